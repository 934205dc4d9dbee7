# SPDX-License-Identifier: MIT
"""examples/vllm-disaggregated, with two instances on loopback."""

import json
import os
import random
import signal
import subprocess
import sys
import time
import urllib.request

import rig

FOLDER = os.path.join(rig.HERE, "../../examples/vllm-disaggregated")
OPTIONS = ["--dtype", "float32", "--max-model-len", "1024", "--enforce-eager"]
OPTIONS += ["--no-enable-prefix-caching"]
PATIENCE = 200  # seconds until both serve


class Server:
    def __init__(self, place, role):
        self.log = os.path.join(place.work, role + ".log")
        self.port = rig.free_port()
        with open(self.log, "w", encoding="utf-8") as file:
            self.process = subprocess.Popen(
                [os.path.join(FOLDER, "serve"), role, place.model, *OPTIONS],
                env={**place.environment, "PORT": str(self.port)},
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # it has processes of its own
            )
        self.url = f"http://127.0.0.1:{self.port}"

    def serves(self):
        assert self.process.poll() is None, f"status {self.process.returncode}"
        try:
            with urllib.request.urlopen(self.url + "/health") as response:
                return response.status == 200
        except OSError:
            return False

    def logged(self):
        with open(self.log, encoding="utf-8", errors="replace") as file:
            return file.read()

    def end(self):
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.process.wait()


def generate(server, place, prompt, tokens):
    """By this instance alone."""
    body = {"model": place.model, "prompt": prompt, "temperature": 0, "max_tokens": tokens}
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(
        server.url + "/v1/completions", json.dumps(body).encode(), headers
    )
    with urllib.request.urlopen(request) as response:
        return json.load(response)["choices"][0]["text"]


def ask(servers, prompt, tokens):
    prefill, decode = servers
    return rig.run(
        os.path.join(FOLDER, "ask"),
        *("--prefill", prefill.url, "--decode", decode.url, "--tokens", str(tokens), prompt),
        environment=os.environ,
    )


def main():
    random.seed(1)  # tokens that end the text early would be a failure
    with rig.Rig("map", "recompute") as place:
        # `serve` and `ask` find Python and vLLM by PATH.
        binaries = os.path.dirname(sys.executable)
        for environment in (os.environ, place.environment):
            environment["PATH"] = binaries + ":" + os.environ["PATH"]
        del place.environment["VLLM_ENABLE_V1_MULTIPROCESSING"]
        place.instances = servers = [Server(place, role) for role in rig.ROLES]
        until = time.monotonic() + PATIENCE
        while not all(server.serves() for server in servers):
            assert time.monotonic() < until, "an instance does not serve"
            time.sleep(0.5)
        for length in (5, 70, 300):
            prompt = " ".join(f"w{random.randrange(3, rig.VOCABULARY)}" for _ in range(length))
            text = ask(servers, prompt, 12)
            assert len(text.split()) == 12, text
            assert text == generate(servers[1], place, prompt, 12).strip(), text
        assert "host to host: map" in servers[1].logged()
        print("ok")


main()
