# SPDX-License-Identifier: MIT
"""SGLang's storage of its hierarchical cache in 3FS, unmodified, with hf3fs_fuse.io over `haul mount`:
its configuration, its client with the extension that it compiles, and its server of metadata. The
pool of host memory is the test's.

  with_hicache.py
"""

import json
import os
import socket
import subprocess
import sys
import time

import stacks

try:
    from sglang.srt.mem_cache.hicache_storage import HiCacheStorageConfig
    from sglang.srt.mem_cache.storage import StorageBackendFactory
    from sglang_pool import PAGES, TOKENS, Pool, indices
except ImportError as error:
    stacks.skip("SGLang", f"this Python cannot import it: {error} (tests/nixl/stacks)")

LAYOUTS = ("layer_first", "page_first")  # by a copy of each page, and without
KEPT = range(16)  # pages


def open_storage(layout):
    config = HiCacheStorageConfig(
        tp_rank=0, tp_size=1, pp_rank=0, pp_size=1, attn_cp_rank=0, attn_cp_size=1,
        is_mla_model=True, enable_storage_metrics=False,
        is_page_first_layout=layout == "page_first", model_name="a/model", extra_config=None)
    pool = Pool(layout)
    storage = StorageBackendFactory.create_backend("hf3fs", config, pool)
    storage.register_mem_pool_host(pool)
    return storage, pool


def keys(layout):
    return [f"{layout}{page}" for page in KEPT]


def write():
    for layout in LAYOUTS:
        storage, _ = open_storage(layout)
        assert storage.batch_set_v1(keys(layout), indices(KEPT)) == [True] * len(KEPT)
        assert storage.batch_exists([*keys(layout), "another"]) == len(KEPT)
        for client in storage.clients:
            client.flush()


def read():
    for layout in LAYOUTS:
        storage, pool = open_storage(layout)
        into = range(PAGES - len(KEPT), PAGES)
        for page in into:
            pool.page(page * TOKENS)[:] = -1
        assert storage.batch_get_v1(keys(layout), indices(into)) == [True] * len(KEPT)
        for page, kept in zip(into, KEPT):
            assert bool((pool.page(page * TOKENS) == kept).all())
        assert not any(storage.batch_get_v1(["another"], indices([0])))


class Mount:
    def __init__(self, work):
        self.source, self.at = os.path.join(work, "source"), os.path.join(work, "mount")
        for folder in (self.source, self.at):
            os.makedirs(folder, exist_ok=True)

    def __enter__(self):
        mounted = subprocess.run([os.environ["HAUL"], "mount", self.source, self.at],
                                 stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        if mounted.returncode != 0:
            stacks.skip("SGLang", mounted.stdout)
        return self

    def __exit__(self, *_):
        subprocess.run(["fusermount3", "-u", self.at], check=True)

    def counters(self):
        text = os.readlink(os.path.join(self.at, "3fs-virt/iovs/haul-counters"))
        return dict(one.split("=") for one in text.split())


class Metadata:
    """SGLang's server of metadata."""

    def __enter__(self):
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        module = "sglang.srt.mem_cache.storage.hf3fs.mini_3fs_metadata_server"
        self.process = subprocess.Popen(
            [sys.executable, "-m", module, "--host", "127.0.0.1", "--port", str(self.port)],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        while True:
            assert self.process.poll() is None, "the server of metadata ends"
            try:
                socket.create_connection(("127.0.0.1", self.port)).close()
                return f"http://127.0.0.1:{self.port}"
            except ConnectionRefusedError:
                time.sleep(0.1)

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()


def child(what, work):
    tools = os.path.dirname(sys.executable)  # ninja, which compiles the extension
    subprocess.run([sys.executable, __file__, what], check=True, env={
        **os.environ, "PATH": f"{tools}:{os.environ['PATH']}", "HOME": work,
        "TORCH_EXTENSIONS_DIR": os.path.join(work, "extensions"),
        "SGLANG_HICACHE_HF3FS_CONFIG_PATH": os.path.join(work, "config")})


def main():
    if not os.path.exists("/dev/fuse"):
        stacks.skip("SGLang", "there is no /dev/fuse")
    work = stacks.folder()
    with Metadata() as url:
        with Mount(work) as mount:
            with open(os.path.join(work, "config"), "w", encoding="utf-8") as file:
                json.dump({"file_path_prefix": os.path.join(mount.at, "cache"), "numjobs": 2, "entries": 4,
                           "file_size": 64 << 20, "metadata_server_url": url}, file)
            child("write", work)
            assert int(mount.counters()["operations"]) == len(LAYOUTS) * len(KEPT)
        with Mount(work) as mount:  # a new daemon and a new process
            child("read", work)
            print(mount.counters())
            assert int(mount.counters()["operations"]) == len(LAYOUTS) * len(KEPT)
    print("HiCacheHF3FS: passed")


if len(sys.argv) > 1:
    {"write": write, "read": read}[sys.argv[1]]()
    stacks.leave()
else:
    main()
