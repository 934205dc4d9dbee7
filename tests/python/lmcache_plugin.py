# SPDX-License-Identifier: MIT
"""haul's connector for LMCache, loaded and called by LMCache itself, unmodified: its configuration of
storage, its loader of native plugins, its adapter. Then LMCache's own check of adapters, and its bench with
verification. All of them over a store in files, and over a cache.

  lmcache_plugin.py
"""

import argparse
import hashlib
import json
import os
import re
import select
import subprocess
import sys
import tempfile
import threading
import time

try:
    import torch
    from lmcache.v1.distributed.api import ObjectKey
    from lmcache.v1.distributed.l2_adapters import config, create_l2_adapter
    from lmcache.v1.memory_management import MemoryObjMetadata, TensorMemoryObj
except ImportError as error:
    print(f"skipped LMCache: this Python cannot import it: {error} (tests/nixl/stacks)")
    sys.exit(77)

PAGE = 64 << 10
PATIENCE = 60  # seconds


def key_of(name):
    return ObjectKey(chunk_hash=hashlib.sha256(name.encode()).digest(), model_name="a/model",
                     kv_rank=1, cache_salt="tenant")  # fmt: skip


def chunks(count, length=PAGE):
    """LMCache's memory objects, with random bytes."""
    made = []
    for i in range(count):
        data = torch.randint(0, 256, (length,), dtype=torch.uint8)
        described = MemoryObjMetadata(shape=data.shape, dtype=data.dtype, address=i, phy_size=length,
                                      ref_count=1)  # fmt: skip
        made.append(TensorMemoryObj(data, described, None))
    return made


def equal(some, others):
    return all(torch.equal(one.raw_data, other.raw_data) for one, other in zip(some, others, strict=True))


class Server:
    """A process that prints a line once it listens."""

    def __init__(self, *command):
        self.process = subprocess.Popen([*map(str, command)], stdout=subprocess.PIPE, text=True)
        self.said = self.process.stdout.readline()

    def kill(self):
        self.process.kill()
        self.process.wait()


def files(folder):
    """The server, and the parameters of its connector."""
    address = f"unix://{folder}/socket"
    server = Server(sys.executable, "-m", "haul.lmcache", f"{folder}/values", "--listen", address,
                    "--capacity", "16M")  # fmt: skip
    return server, {"address": address}


def cache(folder):
    address = f"unix://{folder}/cache.socket"
    command = os.path.join(os.environ["HAUL_BUILD"], "cmd/haul/haul")
    server = Server(command, "cache", "serve", f"{folder}/cache", "--capacity", "16M", "--blocks", 4096,
                    "--listen", address)  # fmt: skip
    return server, {"cache": address}


def spec_of(parameters):
    return json.dumps({"type": "native_plugin", "module_path": "haul.lmcache", "class_name": "Connector",
                       "adapter_params": {**parameters, "timeout": PATIENCE}})  # fmt: skip


class Adapter:
    """LMCache's adapter, and its results; one thread at a time uses an object."""

    def __init__(self, parameters):
        parser = config.add_l2_adapters_args(argparse.ArgumentParser())
        options = parser.parse_args(["--l2-adapter", spec_of(parameters)])
        (parsed,) = config.parse_args_to_l2_adapters_config(options).adapters
        self.adapter = create_l2_adapter(parsed)

    def wait(self, descriptor, result):
        """Until `result` returns something; other events of the adapter may come first."""
        while True:
            assert select.select([descriptor], [], [], PATIENCE)[0], "the task does not end"
            os.read(descriptor, 8)
            found = result()
            if found is not None:
                return found

    def store(self, names, values):
        task = self.adapter.submit_store_task([key_of(name) for name in names], values)
        done = self.adapter.pop_completed_store_tasks
        return self.wait(self.adapter.get_store_event_fd(), lambda: done().get(task))

    def found(self, names):
        keys = [key_of(name) for name in names]
        task = self.adapter.submit_lookup_and_lock_task(keys, {})
        bits = self.wait(self.adapter.get_lookup_and_lock_event_fd(),
                         lambda: self.adapter.query_lookup_and_lock_result(task))  # fmt: skip
        self.adapter.submit_unlock(keys)
        return [bits.test(i) for i in range(len(names))]

    def load(self, names, values):
        task = self.adapter.submit_load_task([key_of(name) for name in names], values)
        bits = self.wait(self.adapter.get_load_event_fd(),
                         lambda: self.adapter.query_load_result(task))  # fmt: skip
        return [bits.test(i) for i in range(len(names))]


def check_values(own):
    names, values = ["a", "b"], chunks(2)
    assert own.found(names) == [False] * 2
    assert int(own.store(names, values)) == 2 * PAGE
    assert own.found([*names, "c"]) == [True, True, False]
    loaded = chunks(3)
    assert own.load(["a", "c", "b"], loaded) == [True, False, True]
    assert equal([loaded[0], loaded[2]], values)
    own.adapter.delete([key_of("a")])
    assert own.found(names) == [False, True]
    print("set, get, exists, delete: passed", flush=True)


def check_thousand(own):
    names, values, loaded = [f"key {i}" for i in range(1000)], chunks(1000, 1000), chunks(1000, 1000)
    assert int(own.store(names, values)) == 1000 * 1000
    assert all(own.found(names))
    assert all(own.load(names, loaded)) and equal(loaded, values)
    own.adapter.delete([key_of(name) for name in names])
    assert not any(own.found(names))
    print("1,000 keys: passed", flush=True)


def check_full(own):
    assert int(own.store(["large"], chunks(1, 17 << 20))) == -1
    assert own.found(["large"]) == [False]
    print("a value that exceeds the capacity: passed", flush=True)


def check_together(parameters):
    """Four instances at a time."""
    failed = []

    def use(name):
        try:
            own = Adapter(parameters)
            for turn in range(20):
                names, values, loaded = [f"{name} {turn} {i}" for i in range(8)], chunks(8), chunks(8)
                assert int(own.store(names, values)) == 8 * PAGE
                assert all(own.load(names, loaded)) and equal(loaded, values)
                own.adapter.delete([key_of(name) for name in names])
            own.adapter.close()
        except BaseException as error:
            failed.append(error)
            raise

    threads = [threading.Thread(target=use, args=(name,)) for name in "wxyz"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
    print("four instances: passed", flush=True)


def check_death(own, server, serve, folder):
    values, loaded = chunks(4), chunks(4)
    names = ["p", "q", "r", "s"]
    assert int(own.store(names, values)) == 4 * PAGE
    server.kill()
    assert own.found(names) == [False] * 4
    assert own.load(names, loaded) == [False] * 4
    assert int(own.store(["t"], chunks(1))) == -1
    again, _ = serve(folder)
    until = time.monotonic() + PATIENCE
    while own.found(names) != [True] * 4:  # a client of a cache skips a store that was away for a moment
        assert time.monotonic() < until, again.said
    assert own.load(names, loaded) == [True] * 4 and equal(loaded, values)
    print("a killed store, and another on its folder: passed", flush=True)
    return again


def run(*command):
    """What LMCache prints; its status says nothing of the results."""
    done = subprocess.run([sys.executable, "-m", *map(str, command)], stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, timeout=4 * PATIENCE)  # fmt: skip
    return done.stdout


def check_own_check(parameters):
    """LMCache's own check of an adapter."""
    said = run("lmcache.v1.basic_check", "--mode", "test_l2_adapter", "--l2-adapter", spec_of(parameters),
               "--num-keys", 20, "--obj-size", 32 << 10)  # fmt: skip
    passed = re.findall(r"Validation.*: 20/20|Batch store OK", said)
    assert len(passed) == 5, said
    print("LMCache's check of adapters: passed", flush=True)


def check_own_bench(parameters):
    """LMCache's own bench, which compares what it loads."""
    said = run("lmcache.cli.main", "bench", "l2", "--l2-adapter", spec_of(parameters), "--num-keys", 16,
               "--in-flight", 2, "--data-size-kb", 64, "--rounds", 3, "--no-skip-verify")  # fmt: skip
    rounds = re.findall(r"\[(?:Store|Load)\] Round \d: .* (?:success_keys|loaded)=32/32", said)
    assert len(rounds) == 8, said  # one of each is for the warm-up
    assert "All 32 keys data verified OK." in said, said
    print("LMCache's bench: passed", flush=True)


def check_all(serve, folder):
    server, parameters = serve(folder)
    print(f"-- {serve.__name__}: {server.said}", end="", flush=True)
    try:
        own = Adapter(parameters)
        check_values(own)
        check_thousand(own)
        check_full(own)
        check_together(parameters)
        check_own_check(parameters)
        check_own_bench(parameters)
        server = check_death(own, server, serve, folder)
        own.adapter.close()
    finally:
        server.kill()


def main():
    for serve in (files, cache):
        with tempfile.TemporaryDirectory(prefix="haul-lmcache-") as folder:
            check_all(serve, folder)
    sys.stdout.flush()
    os._exit(0)  # without the destructors of other people's modules


main()
