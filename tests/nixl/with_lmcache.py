# SPDX-License-Identifier: MIT
"""LMCache's own classes over the plugin, unmodified: the channel between two instances, with
`nixl_backends` as in its configuration, and its agents that keep chunks in files.

  with_lmcache.py PLUGIN
"""

import os
import subprocess
import sys
import types

import stacks

if len(sys.argv) == 2:  # the other instance has the environment of this one
    stacks.use_plugin("LMCache", sys.argv[1])
try:
    import torch
    from lmcache.v1.memory_management import MemoryObjMetadata, TensorMemoryObj
    from lmcache.v1.storage_backend import nixl_storage_backend
    from lmcache.v1.transfer_channel import nixl_channel
except ImportError as error:
    stacks.skip("LMCache", f"this Python cannot import it: {error} (tests/nixl/stacks)")

PAGE = 256 << 10
PAGES = 64
SIZE = PAGE * PAGES


class Memory:
    """Pages, as LMCache's allocator has them."""

    def __init__(self, first=0):
        self.whole = torch.empty(SIZE + PAGE, dtype=torch.uint8)
        begin = -self.whole.data_ptr() % PAGE
        self.tensor = self.whole[begin : begin + SIZE]
        for page in range(PAGES):
            self.fill(page, first + page)

    def chunk(self, page):
        """A page as LMCache's memory object."""
        bytes_of = self.tensor[page * PAGE : (page + 1) * PAGE]
        described = MemoryObjMetadata(shape=bytes_of.shape, dtype=bytes_of.dtype, address=page,
                                      phy_size=PAGE, ref_count=1)
        return TensorMemoryObj(bytes_of, described, None)

    def fill(self, page, value):
        self.tensor[page * PAGE : (page + 1) * PAGE] = value

    def holds(self, page, value):
        return bool((self.tensor[page * PAGE : (page + 1) * PAGE] == value).all())

    @property
    def allocator(self):
        return types.SimpleNamespace(buffer_ptr=self.tensor.data_ptr(), buffer_size=SIZE,
                                     align_bytes=PAGE)


def channel(memory, url):
    allocator = memory.allocator
    return nixl_channel.NixlChannel(
        role="both", buffer_ptr=allocator.buffer_ptr, buffer_size=allocator.buffer_size,
        align_bytes=PAGE, tp_rank=0, peer_init_url=url, backends=["HAUL"], device="cpu")


# The other instance, which only listens. It shows its pages when asked.
def peer(url):
    memory = Memory(first=100)
    kept = channel(memory, url)
    print("ready", flush=True)
    for line in sys.stdin:
        page, value = map(int, line.split())
        print(memory.holds(page, value), flush=True)
    os._exit(0 if kept else 1)


def check_channel():
    import zmq
    with zmq.Context() as context, context.socket(zmq.REP) as socket:
        port = socket.bind_to_random_port("tcp://127.0.0.1")
    url = f"127.0.0.1:{port}"
    other = subprocess.Popen([sys.executable, __file__, sys.argv[1], url], stdin=subprocess.PIPE,
                             stdout=subprocess.PIPE, text=True)
    for line in other.stdout:
        if line == "ready\n":
            break
    memory = Memory()
    own = channel(memory, None)
    own.lazy_init_peer_connection("own", "other", url)
    pages, theirs = [0, 1, 2, 9], [40, 3, 4, 5]
    assert own.batched_write([memory.chunk(page) for page in pages],
                             {"receiver_id": "other", "remote_indexes": theirs}) == 4
    for page, there in zip(pages, theirs):
        other.stdin.write(f"{there} {page}\n")
        other.stdin.flush()
        assert other.stdout.readline() == "True\n", f"page {there} has no value {page}"
    assert own.batched_read([memory.chunk(page) for page in (20, 21)],
                            {"sender_id": "other", "remote_indexes": [10, 40]}) == 2
    assert memory.holds(20, 110) and memory.holds(21, 0)
    other.kill()
    other.wait()
    try:
        own.batched_write([memory.chunk(1)], {"receiver_id": "other", "remote_indexes": [1]})
        sys.exit("a write to a killed instance succeeds")
    except Exception as error:
        print(f"a write to a killed instance: {type(error).__name__}")
    print("NixlChannel: passed", flush=True)


def check_static():
    memory = Memory()
    path = stacks.folder()
    pool = nixl_storage_backend.NixlFilePool(16, types.SimpleNamespace(selected=path), False)
    agent = nixl_storage_backend.NixlStaticStorageAgent(memory.allocator, pool, "cpu", "HAUL", {},
                                                        True)
    pages, files = list(range(16)), list(range(16))[::-1]
    for get, memory_pages in ((agent.get_mem_to_storage_handle, pages),
                              (agent.get_storage_to_mem_handle, [page + 32 for page in pages])):
        handle = get(memory_pages, files)
        agent.post_blocking(handle)
        agent.release_handle(handle)
    assert all(memory.holds(page + 32, page) for page in pages)
    assert {os.path.getsize(os.path.join(path, name)) for name in os.listdir(path)} == {PAGE}
    agent.close()
    pool.close()
    print("NixlStaticStorageAgent: passed", flush=True)


def check_dynamic():
    """A file for each chunk, registered for one transfer."""
    memory = Memory()
    path = stacks.folder()
    agent = nixl_storage_backend.NixlDynamicStorageAgent(memory.allocator, "cpu", "HAUL", {}, True)

    def move(get, flags, pages):
        opened = [os.open(os.path.join(path, f"chunk{i}"), flags) for i in range(len(pages))]
        chunks = [nixl_storage_backend.NixlDesc(device_id=fd, meta_info="") for fd in opened]
        registered, files = agent.create_batched_storage_handler(chunks, PAGE)
        handle = get(pages, files, list(range(len(pages))))
        try:
            agent.post_blocking(handle)
        finally:
            agent.release_handle(handle)
            agent.release_storage_handler(registered, files, chunks)

    move(agent.get_mem_to_storage_handle, os.O_RDWR | os.O_CREAT, [4, 5, 6])
    move(agent.get_storage_to_mem_handle, os.O_RDONLY, [50, 51, 52])
    assert all(memory.holds(50 + i, 4 + i) for i in range(3))
    assert agent.batched_nixl_desc_exists([(0, 0, 0, f"chunk{i}") for i in range(9)], path) == 3
    os.truncate(os.path.join(path, "chunk1"), 100)
    try:
        move(agent.get_storage_to_mem_handle, os.O_RDONLY, [50, 51, 52])
        sys.exit("a chunk that is too short is loaded")
    except Exception as error:
        print(f"a chunk that is too short: {type(error).__name__}")
    agent.close()
    print("NixlDynamicStorageAgent: passed", flush=True)


if len(sys.argv) > 2:
    peer(sys.argv[2])
else:
    check_channel()
    check_static()
    check_dynamic()
    stacks.leave()
