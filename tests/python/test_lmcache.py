# SPDX-License-Identifier: MIT
"""The store for LMCache, and its connector, in the order of calls in which LMCache makes them.

tests/python/lmcache_plugin.py drives the connector by LMCache itself.
"""

import os
import pathlib
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time

import haul
import support
from haul import cache, lmcache

PAGE = 64 << 10


class StoreCase(support.Case):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name, "values")
        self.address = f"unix://{folder.name}/socket"
        self.done = {}

    def command(self, *more):
        return [sys.executable, "-m", "haul.lmcache", self.folder, "--listen", self.address, *more]

    def start(self, capacity="64M"):
        """A store's process, and what it says first."""
        store = subprocess.Popen(self.command("--capacity", capacity), stdout=subprocess.PIPE, text=True)
        self.addCleanup(store.stdout.close)
        self.addCleanup(store.wait)
        self.addCleanup(store.kill)
        return store, store.stdout.readline()

    def connect(self, timeout=support.PATIENCE):
        connector = lmcache.Connector(self.address, timeout=timeout)
        self.addCleanup(connector.close)
        return connector

    def end(self, connector, number):
        """What the batch's completion says."""
        while (connector, number) not in self.done:
            ready, _, _ = select.select([connector.event_fd()], [], [], support.PATIENCE)
            self.assertTrue(ready, "the batch does not end")
            for completed, *said in connector.drain_completions():
                self.assertNotIn((connector, completed), self.done)
                self.done[connector, completed] = said
        return self.done.pop((connector, number))

    def set(self, connector, values):
        return self.end(connector, connector.submit_batch_set(list(values), views(values.values())))

    def get(self, connector, keys, length=PAGE):
        found = [bytearray(length) for _ in keys]
        return self.end(connector, connector.submit_batch_get(keys, views(found))), found

    def exists(self, connector, keys):
        return self.end(connector, connector.submit_batch_exists(keys))

    def delete(self, connector, keys):
        return self.end(connector, connector.submit_batch_delete(keys))

    def files(self):
        return {path.name for path in self.folder.iterdir()}


def views(values):
    return [memoryview(value) for value in values]


def values_of(keys, length=PAGE):
    return {key: os.urandom(length) for key in keys}


class Cached(StoreCase):
    """Values in a cache."""

    def setUp(self):
        super().setUp()
        self.stores = {}
        self.nodes = []

    def start(self, name="a", capacity=64 << 20):
        """A store of the cache, which is in this process."""
        node = haul.Node()
        self.addCleanup(node.close)
        self.stores[name] = cache.Store(node, self.folder.parent / name, capacity)
        self.addCleanup(self.stores[name].close)
        self.nodes.append(node.listen(f"unix://{self.folder.parent}/{name}.socket"))

    def connect(self, timeout=support.PATIENCE, **more):
        nodes = self.nodes or [f"unix://{self.folder.parent}/a.socket"]
        connector = lmcache.Connector(cache=",".join(nodes), timeout=timeout, **more)
        self.addCleanup(connector.close)
        return connector

    def test_a_value_is_stored_found_loaded_and_deleted(self):
        self.start()
        connector = self.connect()
        values = values_of(["a/model@00000001@0@ab", "k" * 1000, "key"])
        keys = list(values)
        self.assertEqual(self.exists(connector, keys), [True, "", [False] * 3])
        self.assertEqual(self.set(connector, values), [True, "", [True] * 3])
        self.assertEqual(self.exists(connector, [*keys, "other"])[2], [True] * 3 + [False])
        said, found = self.get(connector, keys)
        self.assertEqual((said, found), ([True, "", [True] * 3], list(values.values())))
        self.assertEqual(self.delete(connector, ["other", *keys[1:]]), [True, "", [False, True, True]])
        self.assertEqual(self.exists(connector, keys)[2], [True, False, False])

    def test_values_that_are_adjacent_in_memory(self):
        """In any order, and between others."""
        self.start()
        connector = self.connect()
        memory, apart = memoryview(bytearray(os.urandom(8 * PAGE))), bytearray(os.urandom(PAGE))
        pages = [memory[i * PAGE : (i + 1) * PAGE] for i in range(8)]
        values = [pages[5], pages[0], pages[4], memoryview(apart), pages[1], pages[7]]
        keys = [f"key {i}" for i in range(len(values))]
        number = connector.submit_batch_set(keys, values)
        self.assertEqual(self.end(connector, number), [True, "", [True] * 6])
        self.assertEqual(self.get(connector, keys)[1], [bytes(value) for value in values])
        before = bytes(memory)
        number = connector.submit_batch_get(keys[::-1], [pages[3], pages[2], *values[3::-1]])
        self.assertEqual(self.end(connector, number), [True, "", [True] * 6])
        self.assertEqual((bytes(pages[3]), bytes(pages[2])), (before[7 * PAGE :], before[PAGE : 2 * PAGE]))

    def test_errors_are_of_a_key(self):
        self.start()
        connector = self.connect()
        values = values_of(["a", "b"])
        self.set(connector, values)
        (ok, text, loaded), found = self.get(connector, ["a", "no", "b"])
        self.assertEqual((ok, text, loaded),
                         (False, "no: the store has no such key", [True, False, True]))
        self.assertEqual(found, [values["a"], bytes(PAGE), values["b"]])
        for length in (PAGE // 2, PAGE * 2):
            said, _ = self.get(connector, ["a"], length)
            self.assertEqual(said, [False, f"a: the value has {PAGE} bytes, and its memory {length}", [False]])
        ok, text, _ = self.set(connector, values_of(["large"], 65 << 20))
        self.assertFalse(ok)
        self.assertIn("has no room", text)
        number = connector.submit_batch_get(["a"], views([bytes(PAGE)]))
        self.assertIn("read-only", self.end(connector, number)[1])

    def test_a_thousand_keys_on_two_stores(self):
        self.start("a")
        self.start("b")
        connector = self.connect(replicas=2)
        values = values_of([f"model@{i}" for i in range(1000)], 1000)
        self.assertEqual(self.set(connector, values), [True, "", [True] * 1000])
        self.stores["a"].close()
        self.stores["a"].node.close()
        self.assertEqual(self.exists(connector, list(values)), [True, "", [True] * 1000])
        said, found = self.get(connector, list(values), 1000)
        self.assertEqual((said[2], found), ([True] * 1000, list(values.values())))

    def test_a_store_that_comes_later(self):
        connector = self.connect(timeout=1)
        ok, text, found = self.exists(connector, ["a"])
        self.assertEqual((ok, found), (False, [False]))
        self.assertIn("cannot be reached", text)
        self.start()
        while not self.exists(connector, ["a"])[0]:  # the store is skipped for some milliseconds
            pass
        self.assertTrue(self.set(connector, values_of(["a"]))[0])

    def test_the_end_of_a_connector(self):
        self.start()
        connector = self.connect()
        memory = bytearray(PAGE)
        for _ in range(100):
            connector.submit_batch_set(["a"], views([memory]))
        connector.close()
        memory.append(0)  # fails while memory is in use
        self.assertRaises(ValueError, connector.submit_batch_exists, ["a"])
        connector.close()

    def test_the_end_of_a_connector_whose_store_hangs(self):
        """It ends at the deadline of its batch, and the node with it."""
        folder = str(self.folder.parent)
        self.nodes.append(f"unix://{folder}/hung.socket")
        program = (
            "import haul, haul.cache, sys, threading\n"
            "node = haul.Node()\n"
            "store = haul.cache.Store(node, sys.argv[1] + '/hung', 1 << 20)\n"
            "print(node.listen(f'unix://{sys.argv[1]}/hung.socket'), flush=True)\n"
            "threading.Event().wait()\n"
        )
        with subprocess.Popen([sys.executable, "-c", program, folder], stdout=subprocess.PIPE) as store:
            try:
                store.stdout.readline()
                connector = self.connect(timeout=3)
                self.set(connector, values_of(["a"]))
                support.freeze(store)
                memory = bytearray(PAGE)
                connector.submit_batch_set(["a"], views([memory]))
                connector.close()
                memory.append(0)  # fails while memory is in use
                self.assertTrue(connector._target._blocks._node.closed)
            finally:
                store.kill()

    def test_an_idle_connector_sleeps(self):
        self.start()
        connector = self.connect()
        self.set(connector, values_of(["a"]))
        self.get(connector, ["a"])
        poll = select.poll()
        poll.register(connector.event_fd(), select.POLLIN)
        for _ in range(10):
            before = time.process_time()
            self.assertEqual(poll.poll(1000), [])
            if time.process_time() - before < 0.01:
                return
        self.fail("an idle process uses a hundredth of a processor")

    def test_wrong_configurations(self):
        self.assertRaises(ValueError, lmcache.Connector)
        self.assertRaises(ValueError, lmcache.Connector, self.address, cache="unix:///a")
        self.assertRaises(haul.BadAddress, lmcache.Connector, cache="")
        self.assertRaises(haul.BadAddress, lmcache.Connector, cache="unix:///a,unix:///a")


class Values(StoreCase):
    def test_a_value_is_stored_found_loaded_and_deleted(self):
        self.start()
        connector = self.connect()
        values = values_of(["a/model@00000001@0@ab", "a/model@00000001@0@cd", "key"])
        keys = list(values)
        self.assertEqual(self.exists(connector, keys), [True, "", [False] * 3])
        self.assertEqual(self.set(connector, values), [True, "", [True] * 3])
        self.assertEqual(self.exists(connector, [*keys, "other"])[2], [True] * 3 + [False])
        said, found = self.get(connector, keys)
        self.assertEqual(said, [True, "", [True] * 3])
        self.assertEqual(found, list(values.values()))
        self.assertEqual(self.delete(connector, ["other", *keys[1:]]), [True, "", [False, True, True]])
        self.assertEqual(self.exists(connector, keys)[2], [True, False, False])
        self.assertEqual(len(self.files()), 1)

    def test_errors_are_of_a_key(self):
        self.start()
        connector = self.connect()
        values = values_of(["a", "b"])
        self.set(connector, values)
        (ok, text, loaded), found = self.get(connector, ["a", "no", "b"])
        self.assertEqual((ok, text, loaded),
                         (False, "no: the store has no such key", [True, False, True]))
        self.assertEqual(found, [values["a"], bytes(PAGE), values["b"]])
        (ok, text, loaded), _ = self.get(connector, ["a"], PAGE // 2)
        self.assertEqual((ok, text, loaded),
                         (False, f"a: the value has {PAGE} bytes, and its memory {PAGE // 2}", [False]))

    def test_a_value_replaces_an_earlier_one(self):
        self.start(capacity=str(PAGE * 3))
        connector = self.connect()
        for _ in range(8):  # more than fit, if any of them stayed
            values = values_of(["a"])
            self.assertTrue(self.set(connector, values)[0])
        self.assertEqual(self.get(connector, ["a"])[1], [values["a"]])
        self.assertTrue(self.set(connector, values_of(["a"], 100))[0])
        self.assertTrue(self.set(connector, values_of(["b", "c"]))[0])

    def test_a_full_store_refuses_values(self):
        self.start(capacity=str(PAGE * 2))
        connector = self.connect()
        ok, text, stored = self.set(connector, values_of(["a", "b", "c"]))
        self.assertFalse(ok)
        self.assertEqual(stored, [True, True, False])
        self.assertEqual(text, f"c: the store is full: {PAGE * 2} of {PAGE * 2} bytes are in use, and"
                         f" this value has {PAGE} (hint: delete keys, or raise --capacity)")  # fmt: skip
        self.assertEqual(len(self.files()), 2)
        self.delete(connector, ["a"])
        self.assertTrue(self.set(connector, values_of(["c"]))[0])

    def test_a_thousand_keys(self):
        self.start()
        connector = self.connect()
        values = values_of([f"model@{i}" for i in range(1000)], 1000)
        self.assertEqual(self.set(connector, values), [True, "", [True] * 1000])
        self.assertEqual(self.exists(connector, list(values)), [True, "", [True] * 1000])
        said, found = self.get(connector, list(values), 1000)
        self.assertEqual(said, [True, "", [True] * 1000])
        self.assertEqual(found, list(values.values()))

    def test_batches_at_a_time(self):
        """Of two connectors, each used by two threads."""
        self.start()
        failed = []

        def use(connector, lock, name):
            try:
                for turn in range(10):
                    values = values_of([f"{name}-{turn}-{i}" for i in range(20)], 5000)
                    with lock:  # of this test's record of completions
                        numbers = [connector.submit_batch_set([key], views([value]))
                                   for key, value in values.items()]  # fmt: skip
                        for number in numbers:
                            self.assertEqual(self.end(connector, number), [True, "", [True]])
                        said, found = self.get(connector, list(values), 5000)
                    self.assertEqual(said[0], True, said)
                    self.assertEqual(found, list(values.values()))
            except BaseException as error:
                failed.append(error)
                raise

        threads = []
        for each in range(2):
            connector, lock = self.connect(), threading.Lock()
            threads += [threading.Thread(target=use, args=(connector, lock, f"{each}{i}")) for i in "ab"]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertFalse(failed)


class Failures(StoreCase):
    def test_a_store_that_is_killed_and_another_on_its_folder(self):
        store, said = self.start()
        self.assertEqual(said, f"0 values, listening on {self.address}\n")
        connector = self.connect()
        values = values_of(["a", "b"])
        self.set(connector, values)
        store.kill()
        store.wait()
        ok, text, found = self.exists(connector, ["a", "b"])
        self.assertEqual((ok, found), (False, [False] * 2))
        self.assertRegex(text, "a: .*; b: .*")
        (self.folder / "new-1").write_bytes(b"half a value")
        _, said = self.start()
        self.assertEqual(said, f"2 values, listening on {self.address}\n")
        self.assertEqual(len(self.files()), 2)
        self.assertEqual(self.get(connector, ["a", "b"]), ([True, "", [True] * 2], list(values.values())))

    def test_a_store_that_is_killed_during_batches_leaves_whole_values(self):
        for turn in range(5):
            store, _ = self.start()
            connector = self.connect()
            values = values_of([f"{turn}-{i}" for i in range(100)], PAGE)
            numbers = [connector.submit_batch_set([key], views([value])) for key, value in values.items()]
            self.end(connector, numbers[turn * 10])
            store.kill()
            store.wait()
            for number in numbers[:turn * 10] + numbers[turn * 10 + 1:]:
                self.end(connector, number)  # long before its deadline
            store, _ = self.start()
            (_, _, loaded), found = self.get(connector, list(values))
            self.assertIn(True, loaded)
            for is_loaded, memory, value in zip(loaded, found, values.values()):
                self.assertEqual(memory, value if is_loaded else bytes(PAGE))
            self.delete(connector, list(values))
            store.kill()
            store.wait()

    def test_a_store_that_does_not_respond(self):
        store, _ = self.start()
        connector = self.connect(timeout=2)
        values = values_of(["a"])
        self.set(connector, values)
        memory = bytearray(PAGE)
        support.freeze(store)
        try:
            number = connector.submit_batch_get(["a"], views([memory]))
            ok, text, _ = self.end(connector, number)
        finally:
            store.send_signal(signal.SIGCONT)
        self.assertFalse(ok)
        self.assertIn(f"a: the store at {self.address} did not respond in 2 s", text)
        self.assertTrue(self.exists(connector, ["a"])[2][0])  # the late request has been served
        self.assertEqual(memory, bytes(PAGE))

    def test_the_end_of_a_connector(self):
        """While it waits for a response, and while it connects."""
        store, _ = self.start()
        for is_connected in (True, False):
            connector = self.connect(timeout=support.PATIENCE if is_connected else 1)
            if is_connected:
                self.exists(connector, ["a"])
            support.freeze(store)
            try:
                memory = bytearray(PAGE)
                connector.submit_batch_get(["a"], views([memory]))
                connector.close()
            finally:
                store.send_signal(signal.SIGCONT)
            memory.append(0)  # fails while memory is in use
            self.assertRaises(ValueError, connector.submit_batch_exists, ["a"])
            connector.close()
        self.assertEqual(self.exists(self.connect(), ["a"]), [True, "", [False]])

    def test_without_a_store(self):
        ok, text, found = self.exists(self.connect(), ["a"])
        self.assertEqual((ok, found), (False, [False]))
        self.assertIn("nobody listens there", text)

    def test_messages_that_are_no_requests(self):
        self.start()
        with haul.Node() as node:
            peer = node.connect(self.address)
            for data in (b"", b"\xff", b"[]", b'{"serial":1,"time":1,"operation":"no","items":[]}',
                         b'{"serial":1,"time":1,"operation":"set","items":[["a"]]}',
                         b'{"serial":1,"time":1,"operation":"set","items":[["a","no",8]]}',
                         b'{"serial":1,"time":1,"operation":"set","items":[["a","no",-8]]}'):  # fmt: skip
                peer.send(data, tag=lmcache.TAG)
                peer.send(data)
            connector = self.connect()
            self.assertTrue(self.set(connector, values_of(["a"]))[0])
            self.assertEqual(len(self.files()), 1)

    def test_a_folder_has_one_store(self):
        self.start()
        ended = subprocess.run(self.command("--capacity", "1M"), stderr=subprocess.PIPE, text=True)
        self.assertEqual(ended.returncode, 1)
        self.assertIn("another store uses the folder", ended.stderr)

    def test_an_interrupted_store(self):
        store, _ = self.start()
        connector = self.connect()
        self.set(connector, values_of(["a"]))
        store.send_signal(signal.SIGINT)
        self.assertEqual(store.wait(support.PATIENCE), 130)

    def test_a_wrong_capacity(self):
        ended = subprocess.run(self.command("--capacity", "much"), stderr=subprocess.PIPE, text=True)
        self.assertEqual(ended.returncode, 2)
        self.assertIn("'much' is not a number of bytes like 64G", ended.stderr)


if __name__ == "__main__":
    support.main()
