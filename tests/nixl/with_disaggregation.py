# SPDX-License-Identifier: MIT
"""SGLang's classes that move KV caches from a prefilling to a decoding instance (NixlKVManager with its
sender, receiver and bootstrap server) over the plugin, unmodified, without a GPU: each instance is a
process with pages of host memory. No model runs.

  with_disaggregation.py PLUGIN
"""

import json
import os
import socket
import subprocess
import sys
import time

import stacks

ROOMS = 200  # requests
LAYERS = 4
SLOTS = 64  # pages of a layer
PAGE = 32 << 10  # bytes, of keys or of values
TOKENS = 16  # of a page
PATIENCE = 120  # seconds
ENVIRONMENT = {
    "SGLANG_DISAGGREGATION_NIXL_BACKEND": "HAUL",
    "SGLANG_HOST_IP": "127.0.0.1",
    "SGLANG_DISAGGREGATION_WAITING_TIMEOUT": str(PATIENCE),
    "SGLANG_DISAGGREGATION_HEARTBEAT_MAX_FAILURE": "1",
}

if len(sys.argv) == 2:  # the other instance has the environment of this one
    stacks.use_plugin("SGLang", sys.argv[1])
    os.environ.update(ENVIRONMENT)
try:
    import numpy
    import torch
    from sglang.srt.disaggregation.base.conn import KVArgs, KVPoll
    from sglang.srt.disaggregation.nixl.conn import (
        NixlKVBootstrapServer, NixlKVManager, NixlKVReceiver, NixlKVSender)
    from sglang.srt.disaggregation.utils import DisaggregationMode
    from sglang.srt.runtime_context import SpawnRanks, get_parallel, publish
    from sglang.srt.server_args import ServerArgs
except ImportError as error:
    stacks.skip("SGLang", f"this Python cannot import it: {error} (tests/nixl/stacks)")


class Instance:
    """SGLang's manager, over a cache of keys and values for each layer, and rows of metadata."""

    def __init__(self, mode, port):
        self.cache = torch.zeros(2 * LAYERS, SLOTS, PAGE, dtype=torch.uint8)
        self.rows = torch.zeros(SLOTS, 4096, dtype=torch.uint8)
        arguments = ServerArgs(
            model_path="dummy", device="cpu", host="127.0.0.1", disaggregation_mode=mode,
            disaggregation_transfer_backend="nixl", disaggregation_bootstrap_port=port)
        publish(arguments, role="scheduler", ranks=SpawnRanks(world_rank=0, gpu_id=0))
        get_parallel().override_permanently(pp_group=None)  # one stage
        self.manager = NixlKVManager(self.arguments(), DisaggregationMode(mode), arguments)
        assert list(self.manager.agent.backends) == ["HAUL"]

    def arguments(self):
        args = KVArgs()
        args.engine_rank = args.pp_rank = args.system_dp_rank = args.gpu_id = 0
        args.kv_data_ptrs = [layer.data_ptr() for layer in self.cache]
        args.kv_data_lens = [layer.nbytes for layer in self.cache]
        args.kv_item_lens = [PAGE] * len(self.cache)
        args.kv_data_mem_kinds = ["DRAM"] * len(self.cache)
        args.kv_layer_ids = list(range(LAYERS)) * 2
        args.kv_cache_dtype_str = "bfloat16"
        args.aux_data_ptrs = [self.rows.data_ptr()]
        args.aux_data_lens = [self.rows.nbytes]
        args.aux_item_lens = [self.rows[0].nbytes]
        args.state_types, args.state_data_ptrs, args.state_data_lens = [], [], []
        args.state_item_lens, args.state_layer_ids, args.state_dim_per_tensor = [], [], []
        args.state_slice_outer_counts, args.state_conv_shard_groups = [], []
        args.is_hybrid_mla_backend, args.mla_compression_ratios = False, None
        args.swa_kv_cache_layout = args.rust_http_port = None
        args.ib_device, args.page_size = "", TOKENS
        args.kv_head_num = args.total_kv_head_num = 4
        args.prefill_start_layer, args.prefill_end_layer = 0, LAYERS
        return args


def until(poll, *states):
    end = time.monotonic() + PATIENCE
    while (state := poll()) not in states:
        assert time.monotonic() < end, f"the state stays {state}"
        assert state != KVPoll.Failed, "the transfer fails"
        time.sleep(0.001)
    return state


# The other instance: it sends what it is asked for.
def prefill(port):
    server = NixlKVBootstrapServer("127.0.0.1", port)
    own = Instance("prefill", port)
    generator = torch.Generator().manual_seed(7)
    own.cache.random_(0, 256, generator=generator)
    own.rows.random_(0, 256, generator=generator)
    print("ready", flush=True)
    for line in sys.stdin:
        room, pages, row = json.loads(line)
        sender = NixlKVSender(own.manager, f"127.0.0.1:{port}", room)
        sender.init(len(pages), row)
        until(sender.poll, KVPoll.WaitingForInput)
        sender.send(numpy.array(pages, dtype=numpy.int32))
        until(sender.poll, KVPoll.Success)
        print("sent", flush=True)
    os._exit(0 if server else 1)


class Prefill:
    def __init__(self):
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        self.address = f"127.0.0.1:{port}"
        self.process = subprocess.Popen([sys.executable, __file__, sys.argv[1], str(port)],
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.expect("ready")

    def expect(self, what):
        for line in self.process.stdout:
            if line == what + "\n":
                return
        sys.exit(f"the prefilling instance ends before it is {what}")

    def send(self, room, pages, row):
        self.process.stdin.write(json.dumps([room, pages, row]) + "\n")
        self.process.stdin.flush()


def receive(own, other, room, pages, row):
    receiver = NixlKVReceiver(own.manager, other.address, room)
    assert own.manager.try_ensure_parallel_info(other.address)
    receiver.init(0)
    receiver.send_metadata(numpy.array(pages, dtype=numpy.int32), row)
    return receiver


def main():
    other = Prefill()
    own = Instance("decode", 0)
    generator = torch.Generator().manual_seed(7)
    cache = torch.empty_like(own.cache).random_(0, 256, generator=generator)
    rows = torch.empty_like(own.rows).random_(0, 256, generator=generator)
    for room in range(ROOMS):
        order = torch.randperm(SLOTS).tolist()
        count = 1 + room % (SLOTS // 2)
        there, here = order[:count], order[-count:]
        row = room % SLOTS
        own.cache.zero_()
        receiver = receive(own, other, room, here, row)
        other.send(room, there, row)
        until(receiver.poll, KVPoll.Success)
        other.expect("sent")
        assert torch.equal(own.cache[:, here], cache[:, there])
        assert not own.cache[:, sorted(set(range(SLOTS)) - set(here))].any()
        assert torch.equal(own.rows[row], rows[row])
        receiver.clear()
    print(f"{ROOMS} requests: passed", flush=True)
    receiver = receive(own, other, ROOMS, [0], 0)
    other.process.kill()
    other.process.wait()
    assert until(receiver.poll, KVPoll.Failed) == KVPoll.Failed
    print("a killed instance: passed", flush=True)
    other = Prefill()
    receiver = receive(own, other, ROOMS + 1, [3], 0)
    other.send(ROOMS + 1, [5], 0)
    until(receiver.poll, KVPoll.Success)
    assert torch.equal(own.cache[:, 3], cache[:, 5])
    print("another instance in its place: passed", flush=True)
    other.process.kill()
    other.process.wait()
    stacks.leave()


if len(sys.argv) > 2:
    prefill(int(sys.argv[2]))
else:
    main()
