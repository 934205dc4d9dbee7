# SPDX-License-Identifier: MIT
"""checkpoint-engine's P2P update over haul.mooncake, unmodified: two ranks have a checkpoint, two others get it.

There is no GPU: its devices are stand-ins with host memory, gloo takes the place of NCCL, and the program that loads
the weights is a thread of its rank, instead of a process with CUDA IPC.

  checkpoint_update.py
"""

import collections
import os
import socket
import subprocess
import sys
import tempfile
import time
import types

import haul.mooncake

try:
    import torch
    import zmq
    from checkpoint_engine import p2p_store, ps, worker
except ImportError as error:
    print(f"skipped checkpoint-engine: this Python cannot import it: {error} (tests/nixl/stacks)")
    sys.exit(77)

OWNERS, RECEIVERS = (0, 1), (2, 3)
WORLD = len(OWNERS) + len(RECEIVERS)
BUCKET_GB = str(2**19 / 2**30)  # so that there are several
PATIENCE = 240  # seconds


def checkpoint(rank):
    """Named tensors of an owner, of several types and lengths."""
    torch.manual_seed(rank)
    types = (torch.float32, torch.bfloat16, torch.uint8)
    return {
        f"rank{rank}.layer{i}": (torch.randn(3 + i, 5000) * 100).to(types[i % 3]) for i in range(20)
    }


# ---- Stand-ins ----


def nothing(*_):
    return 0


device = types.SimpleNamespace(
    device_count=lambda: WORLD, mem_get_info=lambda: (1 << 30, 2 << 30),
    get_device_properties=lambda i: types.SimpleNamespace(uuid=f"{os.environ['MASTER_PORT']}-{i}"),
    set_device=nothing, memory_allocated=nothing, memory_reserved=nothing, synchronize=nothing,
    empty_cache=nothing, ipc_collect=nothing,
)  # fmt: skip


class DeviceManager:
    device_type, backend, transfer_engine_protocol, device_module = "cpu", "gloo", "rdma", device

    def rdma_device(self, rank):
        return f"nic{rank}"


class Engine(haul.mooncake.TransferEngine):
    """Counts what it reads."""

    read = collections.Counter()

    def batch_transfer_sync_read(self, target_hostname, buffers, peer_buffer_addresses, lengths):
        self.read[target_hostname] += sum(lengths)
        return super().batch_transfer_sync_read(
            target_hostname, buffers, peer_buffer_addresses, lengths
        )


buffers = {}


def opened(number):
    return buffers[number]


def reduce_tensor(tensor):
    buffers[id(tensor)] = tensor
    return opened, (id(tensor),)


def replace():
    empty = torch.empty
    torch.empty = lambda *args, pin_memory=False, **options: empty(*args, **options)
    ps.DeviceManager = worker.DeviceManager = DeviceManager
    ps.reduce_tensor = reduce_tensor
    ps.get_ip = p2p_store.get_ip = lambda: "127.0.0.1"
    haul.mooncake.TransferEngine = Engine
    haul.mooncake.install()


# ---- A rank ----


def run_rank(rank):
    replace()
    loaded = {}

    def load(weights):
        for name, tensor in weights:
            assert name not in loaded, name
            loaded[name] = tensor.clone()

    def request(paths):
        handle = dict(paths)[server._device_uuid]
        worker.update_weights_from_ipc(zmq.Context(), handle, device_id=None, run=load)

    server = ps.ParameterServer(rank=rank, world_size=WORLD)
    server.register_checkpoint("step", named_tensors=checkpoint(rank) if rank in OWNERS else {})
    server.gather_metas("step")
    server.update("step", request, ranks=list(RECEIVERS))
    if rank in RECEIVERS:
        wanted = {name: tensor for owner in OWNERS for name, tensor in checkpoint(owner).items()}
        assert loaded.keys() == wanted.keys(), sorted(wanted.keys() ^ loaded.keys())
        for name, tensor in wanted.items():
            assert loaded[name].dtype == tensor.dtype and torch.equal(loaded[name], tensor), name
    server.unregister_checkpoint("step")
    print("read", sum(Engine.read.values()), len(Engine.read), len(loaded), flush=True)


def free_port():
    with socket.socket() as one, socket.socket() as next_one:
        one.bind(("127.0.0.1", 0))
        port = one.getsockname()[1]
        next_one.bind(("127.0.0.1", port + 1))  # the one that the store takes
        return port


def start(rank, port, log):
    settings = {
        "RANK": str(rank), "WORLD_SIZE": str(WORLD), "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port), "GLOO_SOCKET_IFNAME": "lo", "PS_MAX_BUCKET_SIZE_GB": BUCKET_GB,
        "OMP_NUM_THREADS": "1",
    }  # fmt: skip
    return subprocess.Popen(
        [sys.executable, __file__, str(rank)], env={**os.environ, **settings},
        stdout=subprocess.PIPE, stderr=log, text=True,
    )  # fmt: skip


def await_all(ranks, logs):
    """Exits with the log of a rank that failed, or of all that hang."""
    until = time.monotonic() + PATIENCE
    while any(process.poll() is None for process in ranks) and time.monotonic() < until:
        if any(process.poll() for process in ranks):
            break
        time.sleep(0.1)
    for rank, (process, log) in enumerate(zip(ranks, logs)):
        if process.poll() or (process.poll() is None and not any(one.poll() for one in ranks)):
            log.seek(0)
            print(f"rank {rank} failed ({process.returncode})\n{log.read()[-20_000:]}")
    if any(process.returncode != 0 for process in ranks):
        sys.exit(1)


def main():
    port = free_port()
    logs = [tempfile.TemporaryFile("w+") for _ in range(WORLD)]
    ranks = [start(rank, port, log) for rank, log in enumerate(logs)]
    read = loaded = 0
    try:
        await_all(ranks, logs)
        for rank, process in enumerate(ranks):
            figures = [int(word) for word in process.stdout.read().split("read")[-1].split()]
            read, loaded = read + figures[0], loaded + figures[2]
            assert rank in RECEIVERS or figures == [0, 0, 0], figures
    finally:
        for process in ranks:
            process.kill()
            process.wait()
    tensors = [tensor for owner in OWNERS for tensor in checkpoint(owner).values()]
    aligned = sum(-(-tensor.nbytes // 256) * 256 for tensor in tensors)
    assert read == aligned, (read, aligned)  # each byte once: the receivers share the work
    assert loaded == len(tensors) * len(RECEIVERS), loaded
    print(f"checkpoint-engine: {len(tensors)} tensors of {len(OWNERS)} ranks, {read} bytes read over haul, "
          f"loaded by {len(RECEIVERS)} ranks")  # fmt: skip


if __name__ == "__main__":
    run_rank(int(sys.argv[1])) if len(sys.argv) > 1 else main()
