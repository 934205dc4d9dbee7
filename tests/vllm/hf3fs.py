# SPDX-License-Identifier: MIT
"""The client of vLLM's connector for 3FS, unmodified, with hf3fs_fuse.io over `haul mount`.

The connector itself needs a GPU: streams and events (hf3fs_connector.py, _init_cuda_resources), Triton
kernels that gather a block (utils/gather_scatter_helper.py). So this drives its class Hf3fsClient, which
writes and reads the pages. Of that class too a GPU's parts have stand-ins here: pinned memory, streams,
and the extension hf3fs_utils, which copies between a page and shared memory by cudaMemcpyAsync.
"""

import contextlib
import os
import random
import subprocess
import sys
import tempfile
import types

import rig

import torch
import torch.utils.cpp_extension

PAGE = 65536  # bytes
PAGES = 64
AT_A_TIME = 8  # DEFAULT_MAX_IO_ENTRIES of the connector


def read_shm(shared, _pinned, tensors, _stream):
    at = 0
    for tensor in tensors:
        size = tensor.numel() * tensor.itemsize
        tensor.view(torch.uint8).copy_(shared[at : at + size])
        at += size


def write_shm(tensors, shared, _pinned, _stream):
    at = 0
    for tensor in tensors:
        size = tensor.numel() * tensor.itemsize
        shared[at : at + size].copy_(tensor.view(torch.uint8))
        at += size


class Stream:
    cuda_stream = 0

    def wait_event(self, event):
        pass


def stand_in():
    empty = torch.empty
    torch.empty = lambda *size, pin_memory=False, **more: empty(*size, **more)
    torch.cuda.Stream = Stream
    torch.cuda.stream = lambda _stream: contextlib.nullcontext()
    torch.utils.cpp_extension.CUDA_HOME = "/"
    torch.utils.cpp_extension.load = lambda **_: types.SimpleNamespace(
        read_shm=read_shm, write_shm=write_shm
    )


def open_client(path):
    stand_in()
    from vllm.distributed.kv_transfer.kv_connector.v1.hf3fs import hf3fs_client, hf3fs_connector

    assert hf3fs_client.HF3FS_AVAILABLE
    # Without hf3fs_fuse.io the connector silently takes a mock.
    assert hf3fs_connector.Hf3fsClient is hf3fs_client.Hf3fsClient
    return hf3fs_client.Hf3fsClient(path, PAGE * PAGES, PAGE, AT_A_TIME)


def pages():
    """Their places in the file, in a random order, and their content."""
    generator = torch.Generator().manual_seed(7)
    content = torch.randn(PAGES, PAGE // 4, generator=generator)
    places = list(range(PAGES))
    random.Random(7).shuffle(places)
    for i in range(0, PAGES, AT_A_TIME):
        some = places[i : i + AT_A_TIME]
        yield [place * PAGE for place in some], [content[place] for place in some]


def write(path):
    client = open_client(path)
    for offsets, tensors in pages():
        assert client.batch_write(offsets, tensors, None) == [PAGE] * AT_A_TIME
    client.flush()
    client.close()


def read(path):
    client = open_client(path)
    for offsets, tensors in pages():
        found = [torch.zeros(PAGE // 4) for _ in offsets]
        assert client.batch_read(offsets, found) == [PAGE] * AT_A_TIME
        assert all(torch.equal(*pair) for pair in zip(found, tensors))
    client.close()


class Mount:
    def __init__(self, work):
        self.source, self.at = os.path.join(work, "source"), os.path.join(work, "mount")
        for folder in (self.source, self.at):
            os.makedirs(folder, exist_ok=True)

    def __enter__(self):
        try:
            rig.run(os.environ["HAUL"], "mount", self.source, self.at)
        except RuntimeError as error:
            rig.skip(error)
        return os.path.join(self.at, "kv")

    def __exit__(self, *_):
        rig.run("fusermount3", "-u", self.at)


def child(what, path):
    subprocess.run([sys.executable, __file__, what, path], check=True)


def main():
    if not os.path.exists("/dev/fuse"):
        rig.skip("there is no /dev/fuse")
    with tempfile.TemporaryDirectory(prefix="haul-vllm-") as work:
        with Mount(work) as path:
            child("write", path)
        with open(os.path.join(work, "source", "kv"), "rb") as file:
            held = file.read()
        for offsets, tensors in pages():
            for offset, tensor in zip(offsets, tensors):
                assert held[offset : offset + PAGE] == tensor.numpy().tobytes()
        with Mount(work) as path:  # a new daemon and a new process
            child("read", path)
            counters = os.readlink(os.path.join(work, "mount/3fs-virt/iovs/haul-counters"))
            print(counters)
        assert dict(one.split("=") for one in counters.split())["operations"] == str(PAGES)
    print("ok")


if len(sys.argv) > 1:
    {"write": write, "read": read}[sys.argv[1]](sys.argv[2])
else:
    main()
