# SPDX-License-Identifier: MIT
"""Integers out of range: OverflowError, instead of the number modulo 2^64."""

import pathlib
import re
import tempfile

import haul
import support
from haul.broadcast import Receiver, Source, Version
from haul.cache import Cache, Store

WORD = (-1, -(1 << 64) + 4096, 1 << 64, (1 << 64) + 4096)
HALF = (*WORD, 1 << 32, (1 << 32) + 1)
FORMAT = re.compile(r'PyArg_Parse\w+\([^";]*"([^":;]*)')


class Numbers(support.Case):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.node = haul.Node(timeout=support.PATIENCE)
        self.owner = haul.Node(timeout=support.PATIENCE)
        self.addCleanup(self.node.close)
        self.addCleanup(self.owner.close)
        self.address = self.owner.listen(f"unix://{self.folder}/owner")
        self.region = self.node.alloc(8192)
        self.addCleanup(self.region.close)

    def refuses(self, calls, numbers):
        for name, call in calls.items():
            for number in numbers:
                with self.subTest(name, number=number):
                    self.assertRaises(OverflowError, call, number)
            with self.subTest(name):
                self.assertRaises(TypeError, call, 1.5)

    def file(self):
        file = open(self.folder / "file", "w+b")
        self.addCleanup(file.close)
        file.write(bytes(8192))
        file.flush()
        return file

    def test_regions_and_messages(self):
        region, other, node = self.region, self.node.alloc(8192), self.node
        self.addCleanup(other.close)
        peer = node.connect(self.address)
        layout = region.tensor("uint8", (1,)).layout
        self.refuses({
            "alloc": node.alloc,
            "wrap_file offset": lambda n: node.wrap_file(self.file(), n),
            "wrap_file length": lambda n: node.wrap_file(self.file(), 0, n),
            "tensor offset": lambda n: region.tensor("uint8", (1,), offset=n),
            "layout offset": lambda n: region.ticket(layout._replace(offset=n)),
            "copy_from offset": lambda n: region.copy_from(other, offset=n, length=1),
            "copy_from source_offset": lambda n: region.copy_from(other, source_offset=n, length=1),
            "copy_from length": lambda n: region.copy_from(other, length=n),
            "send tag": lambda n: peer.send(b"", tag=n),
        }, WORD)  # fmt: skip
        self.refuses({
            "ticket rights": lambda n: region.ticket(None, n),
            "export rights": lambda n: region.export(None, n),
            "publish rights": lambda n: region.publish("name", n),
            "publish to": lambda n: region.publish("name", to={"someone": n}),
            "register lease": lambda n: node.register("etcd://127.0.0.1:1/x", lease=n, timeout=1),
        }, HALF)  # fmt: skip

    def test_transfers_and_files(self):
        region = self.region
        with self.owner.alloc(8192) as there:
            there.publish("there", haul.READ | haul.WRITE)
            remote = self.node.connect(self.address).lookup("there")
            calls = {
                "add offset": lambda n: remote.fetch_add(region, n, 1),
                "add result_offset": lambda n: remote.fetch_add(region, 0, 1, result_offset=n),
                "add tag": lambda n: remote.fetch_add(region, 0, 1, notify=b"", tag=n),
                "swap offset": lambda n: remote.compare_swap(region, n, 0, 1),
                "swap result_offset": lambda n: remote.compare_swap(region, 0, 0, 1, result_offset=n),
                "swap tag": lambda n: remote.compare_swap(region, 0, 0, 1, notify=b"", tag=n),
                "write tag": lambda n: remote.write(region, notify=b"", tag=n),
                "explain length": lambda n: remote.explain(region, length=n),
            }
            for call in (remote.read, remote.write):
                for i in range(6):
                    piece = [0, 0, 1, 1, 0, 0]
                    calls[f"{call.__name__} {i}"] = lambda n, call=call, i=i, piece=piece: call(
                        region, [(*piece[:i], n, *piece[i + 1 :])]
                    )
            with haul.File(self.file()) as file:
                calls["file offset"] = lambda n: file.read(region, n, length=1)
                calls["file region_offset"] = lambda n: file.read(region, region_offset=n, length=1)
                calls["file length"] = lambda n: file.read(region, length=n)
                self.refuses(calls, WORD)
            with there.bytes() as view:
                self.assertEqual(bytes(view), bytes(8192))

    def test_stores_and_caches(self):
        node = haul.Node(timeout=support.PATIENCE)
        self.addCleanup(node.close)
        with Store(self.owner, self.folder / "store", 1 << 20) as store, Cache(node, [self.address]) as cache:
            with node.alloc(8192) as region:
                cache.attach(region)
                self.refuses({
                    "put offset": lambda n: cache.put(region, [("a", n, 16)]),
                    "put length": lambda n: cache.put(region, [("a", 0, n)]),
                    "get offset": lambda n: cache.get(region, [("a", n, 16)]),
                    "get length": lambda n: cache.get(region, [("a", 0, n)]),
                }, WORD)  # fmt: skip
                cache.detach(region)
            self.refuses({
                "pin": lambda n: cache.pin(["a"], n),
                "stat": cache.stat,
                "list": cache.list,
                "replicas": lambda n: Cache(self.node, [self.address], replicas=n),
            }, HALF)  # fmt: skip
            self.assertEqual(store.stat().memory.blocks, 0)
        with haul.Node(timeout=support.PATIENCE) as host:
            path = self.folder / "other"
            self.refuses({
                name: lambda n, name=name: Store(host, path, **{"capacity": 1 << 20, name: n})
                for name in ("capacity", "blocks", "file_capacity", "file_blocks", "device_capacity", "device_blocks")
            }, WORD)  # fmt: skip
            self.assertFalse(path.exists())

    def test_broadcasts(self):
        with Source(self.owner, "name") as source, Receiver(self.node, self.address, "name") as receiver:
            version = source.publish(b"bytes")
            found = receiver.next()
            self.refuses({
                "source withdraw": source.withdraw,
                "receiver withdraw": receiver.withdraw,
                "next": lambda n: receiver.next(n, timeout=1),
                "chunk": lambda n: Source(self.owner, "other", chunk=n),
                **{field: lambda n, field=field: receiver.receive(found._replace(**{field: n}), bytearray(5))
                   for field in Version._fields},
            }, WORD)  # fmt: skip
            self.refuses({
                "members": lambda n: Source(self.owner, "other", members=n),
                "in_flight": lambda n: Receiver(self.node, self.address, "name", in_flight=n),
            }, HALF)  # fmt: skip
            target = bytearray(5)
            self.assertEqual((receiver.receive(found, target).version, target), (version, b"bytes"))

    def test_no_format_takes_a_number_modulo(self):
        sources = sorted((support.REPOSITORY / "integrations/python/haul/_haul").glob("*.c"))
        self.assertTrue(sources)
        for source in sources:
            for letters in FORMAT.findall(source.read_text()):
                self.assertFalse(set(letters) & set("bBhHIkK"), (source, letters))


if __name__ == "__main__":
    support.main()
