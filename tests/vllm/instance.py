# SPDX-License-Identifier: MIT
"""An instance of vLLM, unmodified, that follows the lines of its standard input and answers each one,
both in JSON.

  instance.py MODEL OPTIONS    the options are those of vLLM's EngineArgs, as JSON
"""

import hashlib
import json
import os
import select
import sys

answers = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)  # vLLM logs to the standard output

from vllm import EngineArgs, LLMEngine, SamplingParams  # noqa: E402


def digests(worker):
    """Of each block of the KV cache, over all layers. vLLM calls it in its worker."""
    caches = worker.model_runner.kv_caches
    blocks = worker.model_runner.kv_cache_config.num_blocks
    found = [hashlib.sha256() for _ in range(blocks)]
    for cache in caches:
        axis = list(cache.shape).index(blocks)
        for block, digest in enumerate(found):
            digest.update(cache.select(axis, block).contiguous().numpy().tobytes())
    return [digest.hexdigest() for digest in found]


class Instance:
    def __init__(self, model, options):
        self.engine = LLMEngine.from_engine_args(EngineArgs(model=model, **options))
        self.open = set()
        self.ended = {}

    def add(self, requests):
        """Each has a name, a prompt, a count of tokens, and possibly parameters of the connector."""
        for request in requests:
            extra = {"kv_transfer_params": request["kv"]} if request["kv"] else None
            parameters = SamplingParams(
                temperature=0, ignore_eos=True, max_tokens=request["tokens"], extra_args=extra
            )
            prompt = {"prompt_token_ids": request["prompt"]}
            self.engine.add_request(request["name"], prompt, parameters)
            self.open.add(request["name"])
        return True

    def abort(self, names):
        self.engine.abort_request(names)
        self.open.difference_update(names)
        return True

    def blocks(self):
        return self.engine.collective_rpc(digests)[0]

    def step(self):
        for output in self.engine.step():
            if output.finished and output.request_id in self.open:
                self.open.remove(output.request_id)
                self.ended[output.request_id] = {
                    "tokens": list(output.outputs[0].token_ids),
                    "end": output.outputs[0].finish_reason,
                    "kv": output.kv_transfer_params,
                }

    def finish(self):
        """What the requests since the last call ended with, by name."""
        while self.open:
            self.step()
        ended, self.ended = self.ended, {}
        return ended

    def follow(self):
        """Also without a request of its own the engine has to step, for the other instance."""
        while True:
            self.step()
            if not select.select([sys.stdin], [], [], 0 if self.open else 0.005)[0]:
                continue
            line = sys.stdin.readline()
            if not line:
                break
            call, *arguments = json.loads(line)
            print(json.dumps(getattr(self, call)(*arguments)), file=answers, flush=True)


if __name__ == "__main__":
    instance = Instance(sys.argv[1], json.loads(sys.argv[2]))
    print(json.dumps("ready"), file=answers, flush=True)
    instance.follow()
    os._exit(0)  # without a GPU, NIXL's own backends may crash at exit
