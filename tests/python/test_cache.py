# SPDX-License-Identifier: MIT
"""haul.cache: stores and clients, in one process and with a store in another."""

import gc
import inspect
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import threading

import haul
import support
from haul import Code
from haul.cache import KEY_MAX, Block, Cache, Store

BLOCK = 8192
ROOM = 1 << 20  # capacity of a store


class CacheCase(support.Case):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.node = haul.Node(timeout=support.PATIENCE)
        self.addCleanup(self.node.close)
        self.region = self.node.alloc(16 * BLOCK)
        self.addCleanup(self.region.close)
        self.data = os.urandom(8 * BLOCK)
        with self.region.bytes() as view:
            view[: 8 * BLOCK] = self.data
            view[8 * BLOCK :] = bytes(8 * BLOCK)

    def store(self, name="store", capacity=ROOM, **more):
        """The store and its address; closed before the client's node, which is in reverse order."""
        node = haul.Node(timeout=support.PATIENCE)
        self.addCleanup(node.close)
        store = Store(node, self.folder / name, capacity, **more)
        self.addCleanup(store.close)
        return store, node.listen(f"unix://{self.folder}/{name}.socket")

    def cache(self, *addresses, **more):
        cache = Cache(self.node, addresses, **more)
        self.addCleanup(cache.close)
        cache.attach(self.region)
        return cache

    def content(self, first, count=1):
        with self.region.bytes() as view:
            return bytes(view[first * BLOCK : (first + count) * BLOCK])

    def succeed(self, items):
        self.assertEqual([item.error for item in items], [None] * len(items))
        return items

    def fail(self, item, code):
        """Its error, which has a text and a hint."""
        self.assertIsInstance(item.error, haul.Error)
        self.assertEqual(item.error.code, code)
        self.assertTrue(item.error.text and item.error.hint)
        return item.error


def blocks(keys, first=0):
    return [(key, (first + i) * BLOCK, BLOCK) for i, key in enumerate(keys)]


class Errors(CacheCase):
    def test_a_cache_that_cannot_be_opened(self):
        self.fails(Code.EADDRESS, Cache, self.node)
        self.fails(Code.EADDRESS, Cache, self.node, [])
        self.fails(Code.EADDRESS, Cache, self.node, ["unix:///a", "unix:///a"])
        self.fails(Code.EADDRESS, Cache, self.node, [f"unix:///{i}" for i in range(257)])
        self.fails(Code.EADDRESS, Cache, self.node, [""])
        self.fails(Code.EADDRESS, Cache, self.node, directory="no address")
        self.assertRaises(TypeError, Cache, self.node, "unix:///a")
        self.assertRaises(TypeError, Cache, self.node, [b"unix:///a"])
        self.assertRaises(TypeError, Cache, None, ["unix:///a"])
        self.assertRaises(ValueError, Cache, self.node, ["unix:///a"], connect_timeout=-1)
        self.node.close()
        self.fails(Code.ECLOSED, Cache, self.node, ["unix:///a"])

    def test_a_store_that_cannot_be_opened(self):
        self.fails(Code.EINVAL, Store, self.node, self.folder / "none")
        (self.folder / "text").write_text("no store")
        self.fails(Code.EINVAL, Store, self.node, self.folder / "text")
        self.fails(Code.ESYSTEM, Store, self.node, self.folder / "no" / "folder", ROOM)
        self.assertRaises(TypeError, Store, self.node, 5)
        store, _ = self.store("a")
        self.fails(Code.EBUSY, Store, self.node, self.folder / "a")
        store.close()
        self.fails(Code.EINVAL, Store, self.node, self.folder / "a", 2 * ROOM)
        (self.folder / "a").chmod(0o666)
        self.fails(Code.EINSECURE, Store, self.node, self.folder / "a")

    def test_a_node_has_one_cache_or_store(self):
        cache = self.cache("unix:///a")
        for again in (lambda: Cache(self.node, ["unix:///b"]), lambda: Store(self.node, self.folder / "b", ROOM)):
            self.fails(Code.EBUSY, again)
        cache.close()
        self.fails(Code.EINVAL, Store, self.node, self.folder / "b")
        with Store(self.node, self.folder / "b", ROOM):
            self.fails(Code.EBUSY, Cache, self.node, ["unix:///b"])
        Cache(self.node, ["unix:///b"]).close()

    def test_tiers_that_cannot_be_opened(self):
        for wrong in (
            {"device": "sim:0"},
            {"device": "host", "device_capacity": ROOM},
            {"device_capacity": ROOM},
            {"file": self.folder / "tier"},
            {"file_capacity": ROOM},
        ):
            with self.subTest(wrong):
                self.fails(Code.EINVAL, Store, self.node, self.folder / "a", ROOM, **wrong)
        self.fails(Code.EPLACE, Store, self.node, self.folder / "a", ROOM, device="sim:9", device_capacity=ROOM)
        self.assertRaises(haul.Error, Store, self.node, self.folder / "a", ROOM, device="no place", device_capacity=ROOM)
        for wrong in ({"device": 5}, {"file": 5}, {"file_capacity": "1"}, {"device_blocks": None}):
            self.assertRaises(TypeError, Store, self.node, self.folder / "a", ROOM, **wrong)
        self.fails(Code.ESYSTEM, Store, self.node, self.folder / "a", ROOM, file=self.folder / "no" / "b", file_capacity=ROOM)

    def test_missing_keys(self):
        _, address = self.store()
        cache = self.cache(address)
        self.succeed(cache.put(self.region, blocks("ab")))
        items = cache.get(self.region, blocks(["a", "no", "b", "none"], 8))
        self.assertEqual([item.error is None for item in items], [True, False, True, False])
        first, second = self.fail(items[1], Code.ENAME), self.fail(items[3], Code.ENAME)
        self.assertIsInstance(first, haul.NoSuchName)
        self.assertIsInstance(first, FileNotFoundError)
        self.assertEqual((first.object, second.object), ("no", "none"))
        self.assertEqual((items[1].length, items[1].member), (0, None))
        self.assertEqual((self.content(8), self.content(9)), (self.content(0), bytes(BLOCK)))
        for call in (cache.exists, cache.remove, lambda keys: cache.pin(keys, 1)):
            self.fail(call(["none"])[0], Code.ENAME)

    def test_keys_and_ranges_that_are_invalid(self):
        _, address = self.store()
        cache = self.cache(address)
        for key in ("", b"", "k" * (KEY_MAX + 1), "k" * 100_000):
            self.fail(cache.put(self.region, [(key, 0, BLOCK)])[0], Code.EINVAL)
            self.fail(cache.exists(["a", key])[1], Code.EINVAL)
        self.succeed(cache.put(self.region, [("k" * KEY_MAX, 0, BLOCK), (b"\0" * KEY_MAX, 0, BLOCK)]))
        self.fail(cache.put(self.region, [("a", 0, 0)])[0], Code.EINVAL)
        self.fail(cache.put(self.region, [("a", 15 * BLOCK, BLOCK + 1)])[0], Code.ERANGE)
        self.fail(cache.put(self.region, [("a", (1 << 64) - 1, BLOCK)])[0], Code.ERANGE)
        short = cache.get(self.region, [("k" * KEY_MAX, 0, BLOCK - 1)])[0]
        self.fail(short, Code.ERANGE)
        self.assertEqual(short.length, BLOCK)
        self.fail(cache.get(self.region, [("k" * KEY_MAX, 15 * BLOCK + 1, BLOCK)])[0], Code.ERANGE)

    def test_arguments(self):
        cache = self.cache("unix:///nobody")
        for given in ("text", b"text", 5, None):
            self.assertRaises(TypeError, cache.exists, given)
            self.assertRaises(TypeError, cache.put, self.region, given)
        for given in ([5], ["a", None]):
            self.assertRaises(TypeError, cache.exists, given)
            self.assertRaises(TypeError, cache.remove, given)
        for given in (["a"], [("a", 0)], [("a", 0, 1, 2)], [("a", "b", 1)], [(5, 0, 1)]):
            self.assertRaises(TypeError, cache.put, self.region, given)
            self.assertRaises(TypeError, cache.get, self.region, given)
        self.assertRaises(TypeError, cache.put, bytearray(8), [("a", 0, 8)])
        self.assertRaises(TypeError, cache.attach, bytearray(8))
        self.assertRaises(ValueError, cache.exists, ["a"], timeout=-1)
        self.assertRaises(UnicodeEncodeError, cache.exists, ["\ud800"])
        self.fails(Code.EINVAL, cache.put, self.region, [("a", 0, 8)], priority=7)
        self.fails(Code.EINVAL, cache.pin, ["a"], 86401)
        self.fails(Code.ERANGE, cache.list, 1)
        self.fails(Code.ERANGE, cache.stat, 1)

    def test_keywords(self):
        cache = self.cache("unix:///nobody")
        store, _ = self.store()
        wrong = object()
        for thing, calls in ((cache, "attach detach put get exists remove pin list stat"), (store, "stat")):
            for name in calls.split():
                call = getattr(thing, name)
                self.assertRaises(TypeError, call, no_such_argument=1)
                for argument in inspect.signature(call).parameters:
                    with self.subTest(name, argument=argument), self.assertRaises(TypeError) as caught:
                        call(**{argument: wrong})
                    self.assertNotIn("invalid keyword", str(caught.exception))

    def test_arguments_of_a_repair(self):
        cache = self.cache("unix:///nobody")
        self.assertRaises(TypeError, cache.repair, True)
        self.assertRaises(TypeError, cache.repair, timeout="1")
        self.assertRaises(ValueError, cache.repair, timeout=-1)
        self.fails(Code.ECONNECT, cache.repair, timeout=1)

    def test_regions_that_are_not_attached(self):
        _, address = self.store()
        cache = self.cache(address)
        self.fails(Code.EEXIST, cache.attach, self.region)
        cache.detach(self.region)
        self.fails(Code.EINVAL, cache.detach, self.region)
        self.fails(Code.EINVAL, cache.put, self.region, blocks("a"))
        self.fail(cache.get(self.region, blocks("a"))[0], Code.ENAME)
        cache.attach(self.region)
        self.succeed(cache.put(self.region, blocks("a")))

    def test_memory_that_is_read_only(self):
        _, address = self.store()
        cache = self.cache(address)
        with self.node.wrap(b"constant" * BLOCK) as constant:
            cache.attach(constant)
            self.succeed(cache.put(constant, blocks("a")))
            self.fails(Code.EACCESS, cache.get, constant, blocks("a"))
            cache.detach(constant)

    def test_a_store_without_room(self):
        _, address = self.store(capacity=4 * BLOCK)
        cache = self.cache(address)
        self.fail(cache.put(self.region, [("large", 0, 5 * BLOCK)])[0], Code.ELIMIT)
        self.succeed(cache.put(self.region, blocks("abcd")))
        self.succeed(cache.pin(["a", "b"], 60))
        self.fail(cache.pin(["a", "b", "c"], 60)[2], Code.ELIMIT)
        self.succeed(cache.put(self.region, blocks("ef")))  # instead of c and d
        found = [item.error is None for item in cache.exists(["a", "b", "c", "d", "e", "f"])]
        self.assertEqual(found, [True, True, False, False, True, True])
        memory = cache.stat(0).memory
        self.assertEqual((memory.pinned, memory.evictions), (2 * BLOCK, 2))

    def test_a_store_that_is_away(self):
        cache = self.cache("unix:///nobody/listens", timeout=1)
        for items in (cache.put(self.region, blocks("a")), cache.get(self.region, blocks("a")),
                      cache.exists(["a"]), cache.remove(["a"])):  # fmt: skip
            error = self.fail(items[0], Code.ECONNECT)
            self.assertIsInstance(error, ConnectionError)
            self.assertIn("unix:///nobody/listens", error.text)
        self.fails(Code.ECONNECT, cache.list, 0)
        self.fails(Code.ECONNECT, cache.stat, 0)

    def test_a_store_that_does_not_respond(self):
        store = self.process()
        cache = self.cache(store.address)
        self.succeed(cache.put(self.region, blocks("a")))
        support.freeze(store.process)
        self.addCleanup(store.process.send_signal, signal.SIGCONT)
        self.fail(cache.put(self.region, blocks("b"), timeout=0.2)[0], Code.ETIMEDOUT)
        self.fail(cache.exists(["a"], timeout=0)[0], Code.ETIMEDOUT)

    def process(self, name="process"):
        store = Process(self.folder, name)
        self.addCleanup(store.end)
        return store

    def test_an_interrupted_call(self):
        """Ctrl-C ends a call of the main thread at once; the memory stays until the call has ended."""
        store = self.process()
        child = self.child(f"""
            import signal, haul.cache
            node = haul.Node(timeout={support.PATIENCE})
            region = node.alloc({BLOCK})
            cache = haul.cache.Cache(node, [{store.address!r}])
            cache.attach(region)
            assert cache.put(region, [("a", 0, {BLOCK})])[0].error is None
            channel.send_text("put")
            channel.receive_text()
            try:
                channel.send_text("again")
                cache.put(region, [("a", 0, {BLOCK})])
            except KeyboardInterrupt:
                channel.send_text("interrupted")
        """)
        self.assertEqual(child.receive_text(), "put")
        support.freeze(store.process)
        child.send_text("go on")
        self.assertEqual(child.receive_text(), "again")
        child.process.send_signal(signal.SIGINT)
        self.assertEqual(child.receive_text(), "interrupted")
        store.process.send_signal(signal.SIGCONT)
        self.ends_well(child)

    def test_closed_objects(self):
        store, address = self.store()
        cache = self.cache(address)
        cache.close()
        for call in (lambda: cache.exists(["a"]), lambda: cache.attach(self.region), lambda: cache.members,
                     lambda: cache.put(self.region, []), lambda: cache.list(0)):  # fmt: skip
            self.fails(Code.ECLOSED, call)
        store.close()
        self.fails(Code.ECLOSED, store.stat)
        with self.node.alloc(BLOCK) as other:
            pass
        again = self.cache(address)
        self.fails(Code.ECLOSED, again.attach, other)
        self.fails(Code.ECLOSED, again.get, other, blocks("a"))


class Process:
    """A store in a process of its own."""

    def __init__(self, folder, name):
        self.folder, self.name = folder, name
        self.address = f"unix://{folder}/{name}.socket"
        self.start()

    def start(self):
        source = (
            "import haul, haul.cache, sys, threading\n"
            "node = haul.Node()\n"
            "store = haul.cache.Store(node, sys.argv[1], int(sys.argv[2]))\n"
            "node.listen(sys.argv[3])\n"
            "print(store.stat().memory.restored, flush=True)\n"
            "threading.Event().wait()\n"
        )
        self.process = subprocess.Popen(
            [sys.executable, "-c", source, str(self.folder / self.name), str(ROOM), self.address],
            stdout=subprocess.PIPE, text=True)  # fmt: skip
        self.restored = int(self.process.stdout.readline())

    def end(self):
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()


class Use(CacheCase):
    def test_batches(self):
        store, address = self.store()
        cache = self.cache(address)
        self.assertEqual((cache.members, cache.node), ([address], self.node))
        keys = ["a", b"b", bytearray(b"c"), "ü"]
        put = self.succeed(cache.put(self.region, blocks(keys)))
        self.assertEqual([item.key for item in put], keys)
        self.assertEqual([(item.length, item.member, item.replicas) for item in put], [(BLOCK, 0, 1)] * 4)
        got = self.succeed(cache.get(self.region, iter(blocks(["ü".encode(), "a"], 8))))
        self.assertEqual([(item.length, item.member) for item in got], [(BLOCK, 0)] * 2)
        self.assertEqual((self.content(8), self.content(9)), (self.content(3), self.content(0)))
        self.assertEqual([item.length for item in self.succeed(cache.exists({"a": 1, "b": 2}))], [BLOCK] * 2)
        listed = cache.list(0)
        self.assertEqual(sorted(block.key for block in listed), [b"a", b"b", b"c", "ü".encode()])
        self.assertIsInstance(listed[0], Block)
        self.assertEqual({(block.length, block.priority) for block in listed}, {(BLOCK, 0)})
        self.succeed(cache.remove(["a", "b"]))
        self.assertEqual([item.error is None for item in cache.exists(["a", "b", "c"])], [False, False, True])
        self.assertEqual(cache.stat(0), store.stat())
        stats = store.stat().memory
        self.assertEqual((stats.capacity, stats.blocks, stats.puts), (ROOM, 2, 4))
        for call in (cache.exists, cache.remove, lambda keys: cache.get(self.region, keys)):
            self.assertEqual(call([]), [])

    def test_blocks_move_from_the_device_to_memory_to_the_file(self):
        store, address = self.store(
            capacity=2 * BLOCK, file=self.folder / "tier", file_capacity=ROOM, device="sim:0", device_capacity=2 * BLOCK
        )
        cache = self.cache(address)
        for key in "abcdefgh":
            self.succeed(cache.put(self.region, [(key, "abcdefgh".index(key) * BLOCK, BLOCK)]))
        self.assertEqual(cache.stat(0), store.stat())
        self.assertEqual([tier.blocks for tier in store.stat()], [2, 2, 4])
        self.assertEqual([tier.capacity for tier in store.stat()], [2 * BLOCK, 2 * BLOCK, ROOM])
        tiers = ["file"] * 4 + ["memory"] * 2 + ["device"] * 2
        self.assertEqual([item.tier for item in self.succeed(cache.exists(list("abcdefgh")))], tiers)
        got = self.succeed(cache.get(self.region, blocks("abcdefgh", 8)))
        self.assertEqual([item.tier for item in got], tiers)
        self.assertEqual(self.content(8, 8), self.data)
        self.assertEqual({block.key: block.tier for block in cache.list(0)}, {key.encode(): tier for key, tier in zip("abcdefgh", tiers)})
        self.assertIsNone(cache.put(self.region, blocks("a"))[0].tier)
        self.assertIsNone(cache.exists(["none"])[0].tier)

    def test_a_repair_copies_what_a_store_lost(self):
        first, address = self.store("first")
        second, other = self.store("second")
        cache = self.cache(address, other, replicas=2)
        self.succeed(cache.put(self.region, blocks("abcd")))
        with haul.Node() as node, Cache(node, [other]) as one:
            self.succeed(one.remove(["a", "b"]))
        found = cache.repair(dry_run=True)
        self.assertEqual((found.blocks, found.copies, found.missing, found.away, found.error), (4, 0, 2, 0, None))
        done = cache.repair()
        self.assertEqual((done.copies, done.bytes, done.missing), (2, 2 * BLOCK, 0))
        self.assertEqual((first.stat().memory.blocks, second.stat().memory.blocks), (4, 4))

    def test_a_repair_says_what_it_cannot_do(self):
        _, address = self.store("first", blocks=1000)
        second, other = self.store("second", capacity=4096)
        cache = self.cache(address, other, replicas=2)
        keys = [f"key {i}" for i in range(64)]  # about half of them have the large store first
        put = [item for item in cache.put(self.region, [(key, 0, BLOCK) for key in keys]) if not item.error]
        self.assertEqual({item.replicas for item in put}, {1})
        done = cache.repair()
        self.assertEqual((done.copies, done.missing, done.error.code), (0, len(put), Code.ELIMIT))
        second.close()
        self.assertEqual(cache.repair().away, 1)

    def test_a_thousand_keys(self):
        _, address = self.store(capacity=8 << 20, blocks=2000)
        cache = self.cache(address)
        keys = [f"key {i}" for i in range(1000)]
        put = [(key, i * 100, 100) for i, key in enumerate(keys)]
        self.succeed(cache.put(self.region, [put[0]] + put[1:500]))
        self.succeed(cache.put(self.region, [(key, at % (4 * BLOCK), 100) for key, at, _ in put[500:]]))
        with self.node.alloc(1000 * 100) as region:
            self.succeed(cache.get(region, put))
            expected = [self.data[at % (4 * BLOCK) if i >= 500 else at :][:100]
                        for i, (_, at, _) in enumerate(put)]  # fmt: skip
            self.assertEqual(bytes(region), b"".join(expected))
        self.assertEqual(len(cache.list(0)), 1000)

    def test_tensors(self):
        _, address = self.store()
        cache = self.cache(address)
        tensor = self.region.tensor("float32", (BLOCK // 4,), offset=BLOCK)
        self.succeed(cache.put(tensor, [("a", 0, 100)]))
        self.succeed(cache.get(self.region.tensor("uint8", (100,), offset=8 * BLOCK), [("a", 0, 100)]))
        self.assertEqual(self.content(8)[:100], self.data[BLOCK:][:100])
        self.fails(Code.ERANGE, cache.put, tensor, [("a", 1, BLOCK)])
        self.assertRaises(ValueError, cache.put, self.region.tensor("uint8", (2, 2), (8, 1)), [("a", 0, 1)])

    def test_memory_of_a_device(self):
        _, address = self.store()
        cache = self.cache(address)
        with self.node.alloc(2 * BLOCK, "sim:0") as device:
            device.copy_from(self.region, length=BLOCK)
            cache.attach(device)
            self.succeed(cache.put(device, blocks("a")))
            self.succeed(cache.get(device, [("a", BLOCK, BLOCK)]))
            cache.detach(device)
            self.region.copy_from(device, offset=8 * BLOCK, length=2 * BLOCK)
        self.assertEqual(self.content(8, 2), self.data[:BLOCK] * 2)

    def test_conditions_and_priorities(self):
        _, address = self.store(capacity=2 * BLOCK)
        cache = self.cache(address)
        self.succeed(cache.put(self.region, blocks("a"), if_absent=True, priority=1))
        error = self.fail(cache.put(self.region, blocks("a", 1), if_absent=True)[0], Code.EEXIST)
        self.assertIsInstance(error, FileExistsError)
        for i in range(4):
            self.succeed(cache.put(self.region, blocks([f"low {i}"], i), priority=-1))
        self.succeed(cache.get(self.region, blocks("a", 8)))
        self.assertEqual(self.content(8), self.content(0))
        self.assertEqual({block.key: block.priority for block in cache.list(0)}, {b"a": 1, b"low 3": -1})

    def test_several_stores(self):
        addresses = [self.store(f"s{i}")[1] for i in range(3)]
        cache = self.cache(*addresses, replicas=2)
        keys = [f"key {i}" for i in range(8)]
        put = self.succeed(cache.put(self.region, blocks(keys)))
        self.assertEqual([item.replicas for item in put], [2] * 8)
        other = Cache(haul.Node(), reversed(addresses), replicas=2)
        region = other.node.alloc(8 * BLOCK)
        self.succeed(other.get(region, blocks(keys)))
        self.assertEqual(bytes(region), self.data)
        stored = [{block.key.decode() for block in cache.list(i)} for i in range(3)]
        for item in put:
            self.assertEqual(sum(item.key in keys for keys in stored), 2)
            self.assertIn(item.key, stored[item.member])
        other.close()
        other.node.close()

    def test_a_store_that_is_killed_and_started_again(self):
        store = Process(self.folder, "process")
        self.addCleanup(store.end)
        cache = self.cache(store.address)
        self.succeed(cache.put(self.region, blocks("abc")))
        store.end()
        self.assertIsInstance(cache.exists(["a"])[0].error, ConnectionError)
        store.start()
        self.assertEqual(store.restored, 3)
        again = self.cache_of_another_node(store.address)
        self.succeed(again.get(again.node.alloc(4 * BLOCK), blocks("abc")))

    def cache_of_another_node(self, address):
        node = haul.Node(timeout=support.PATIENCE)
        self.addCleanup(node.close)
        cache = Cache(node, [address])
        self.addCleanup(cache.close)
        return cache

    def test_threads(self):
        _, address = self.store(capacity=8 << 20)
        cache = self.cache(address)
        failed = []

        def use(number):
            try:
                for turn in range(30):
                    key = f"{number}-{turn}"
                    self.succeed(cache.put(self.region, [(key, number * BLOCK, BLOCK)]))
                    self.succeed(cache.get(self.region, [(key, (8 + number) * BLOCK, BLOCK)]))
                    self.assertEqual(self.content(8 + number), self.content(number))
                    self.succeed(cache.remove([key]))
            except BaseException as error:
                failed.append(error)

        threads = [threading.Thread(target=use, args=(number,)) for number in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(failed, [])


class Lifetimes(CacheCase):
    def test_attached_regions_and_nodes_of_caches_stay_open(self):
        _, address = self.store()
        cache = self.cache(address)
        with self.assertRaisesRegex(BufferError, "1 buffers, tensors, caches or versions use the region"):
            self.region.close()
        with self.assertRaisesRegex(BufferError, "use the node: release them first"):
            self.node.close()
        self.assertFalse(self.region.closed)
        self.succeed(cache.put(self.region, blocks("a")))
        cache.close()
        self.region.close()
        self.node.close()

    def test_the_node_of_a_store_stays_open(self):
        store, _ = self.store()
        self.assertRaises(BufferError, store.node.close)
        store.close()
        store.node.close()

    def test_objects_without_a_reference(self):
        """A cache, an attached region and a node end in any order."""
        _, address = self.store()
        node = haul.Node()
        region, cache = node.alloc(BLOCK), Cache(node, [address])
        cache.attach(region)
        self.succeed(cache.put(region, blocks("a")))
        del region, node
        self.succeed(cache.exists(["a"]))
        del cache
        gc.collect()

    def test_the_end_of_a_block_with_an_exception(self):
        """It closes region and node once the cache is closed."""
        _, address = self.store()
        with self.assertRaises(KeyError), haul.Node() as node:
            cache = Cache(node, [address])
            with node.alloc(BLOCK) as region:
                cache.attach(region)
                raise KeyError
        self.assertTrue(region.closed and node.closed)
        self.fails(Code.ECLOSED, cache.put, region, blocks("a"))
        cache.close()
        self.assertTrue(cache.closed)

    def test_a_cache_that_is_closed_during_calls(self):
        _, address = self.store()
        for _ in range(10):
            cache = Cache(self.node, [address])
            cache.attach(self.region)
            began = threading.Barrier(3)

            def use(cache=cache, began=began):
                began.wait()
                while True:
                    try:
                        cache.put(self.region, blocks("a"))
                        cache.detach(self.region)
                        cache.attach(self.region)
                    except haul.Error as error:
                        if error.code == Code.ECLOSED:
                            break

            threads = [threading.Thread(target=use) for _ in range(2)]
            for thread in threads:
                thread.start()
            began.wait()
            cache.close()
            for thread in threads:
                thread.join()


if __name__ == "__main__":
    support.main()
