# SPDX-License-Identifier: MIT
"""haul.share, and haul.send and haul.receive with an address."""

import gc
import random
import struct

import haul
import support
from haul import READ, WRITE, Code
from haul._tensors import split_target

PATIENCE = support.PATIENCE


def setUpModule():
    global numpy
    numpy = support.module("numpy")


def header(shape=(1,), version=1, magic=b"HTNS", **fields):
    """A header, byte for byte as docs/protocol.md has it; of one float32 by default."""
    values = dict(id=0, length=4, offset=0, type=2, bits=32, lanes=1, dimensions=len(shape))
    return (
        struct.pack("<4sBBHQ", magic, version, 1, 0, 0)
        + struct.pack("<QQQBBHI", *(values | fields).values())
        + struct.pack(f"<{len(shape)}q", *shape)
    )


class Targets(support.Case):
    def test_addresses(self):
        for target, address, name in (
            ("localhost/kv", "tcp://localhost:7420", "kv"),
            ("10.0.0.1:99/kv", "tcp://10.0.0.1:99", "kv"),
            ("tcp://[::1]/a/b", "tcp://[::1]:7420", "a/b"),
            ("tcp://[::1]:5/a", "tcp://[::1]:5", "a"),
            ("unix:///run/a/b/kv", "unix:///run/a/b", "kv"),
            ("unix://@name/kv", "unix://@name", "kv"),
            ("etcd://h:1/prefix/kv%2Fa", "etcd://h:1/prefix/kv%2Fa", "kv/a"),
            ("etcds://h/prefix/node/kv", "etcds://h/prefix/node", "kv"),
        ):
            self.assertEqual(split_target(target), (address, name))
        for target in ("", "kv", "tcp://h", "tcp://h/", "unix:///kv", "etcd://h/prefix", "/kv"):
            with self.subTest(target), self.assertRaisesRegex(ValueError, "expected ADDRESS/NAME"):
                split_target(target)


class Shared(support.Case):
    def setUp(self):
        self.node = haul.Node("owner", timeout=PATIENCE)
        self.other = haul.Node("other", timeout=PATIENCE)
        self.addCleanup(self.other.close)
        self.addCleanup(self.node.close)

    def share(self, tensor, name="tensor", rights=READ | WRITE, **keywords):
        shared = haul.share(tensor, name, rights, node=self.node, **keywords)
        self.addCleanup(shared.close)
        return shared

    def receive(self, source, *args, **keywords):
        if not args:
            keywords = {"limit": 1 << 20} | keywords
        return haul.receive(source, *args, node=self.other, **keywords).tensor

    def test_types_and_shapes(self):
        for dtype in ("int8", "float16", "float64", "complex64", "bool"):
            for shape in ((), (5,), (2, 3, 4), (0,), (3, 0)):
                tensor = (numpy.arange(24) % 2).astype(dtype)[: max(numpy.prod(shape, dtype=int), 0)]
                tensor = tensor.reshape(shape)
                with self.subTest(dtype, shape=shape), self.share(tensor) as shared:
                    array = numpy.asarray(self.receive(shared.address))
                    self.assertEqual((array.dtype, array.shape), (tensor.dtype, tensor.shape))
                    self.assertTrue((array == tensor).all())
                    into = numpy.zeros_like(tensor)
                    self.assertIs(self.receive(shared.address, into), into)
                    self.assertTrue((into == tensor).all())
                    haul.send(numpy.zeros_like(tensor), shared.address, node=self.other)
                    self.assertFalse(tensor.any())
                    del array

    def test_torch(self):
        torch = support.module("torch")
        tensor = torch.arange(12).reshape(3, 4).to(torch.bfloat16)
        with self.share(tensor) as shared:
            arrived = torch.from_dlpack(self.receive(shared.address))
            self.assertTrue(torch.equal(arrived, tensor))
            haul.send(tensor * 2, shared.address, node=self.other)
            self.assertTrue(torch.equal(arrived * 2, tensor))
            del arrived
        with self.assertRaisesRegex(ValueError, r"contiguous.*tensor\.contiguous\(\)"):
            haul.share(tensor.t(), node=self.node)

    def test_regions_and_tensors_of_haul(self):
        region = self.node.alloc(1 << 16)
        memoryview(region)[:] = random.Random(1).randbytes(1 << 16)
        part = region.tensor("int32", (16, 16), offset=4096)
        with self.share(part) as shared:
            arrived = self.receive(shared.address)
            self.assertEqual(memoryview(arrived.region.bytes())[:1024], region.bytes()[4096:5120])
            haul.send(self.other.alloc(1024).tensor("int32", (16, 16)), shared.address)
        with self.share(region, "all") as shared:
            self.assertEqual(bytes(self.receive(shared.address)), bytes(region))

    def test_a_region_whose_elements_do_not_begin_it(self):
        """Local offsets count from the first element, also of an imported region with a layout."""
        memory = self.other.alloc(4096)
        exported, descriptor = memory.export(
            haul.Layout("uint8", (8,), offset=64), READ | WRITE
        )
        with self.other.import_(exported, open(descriptor, "rb")) as out:
            with self.share(b"elements", rights=READ) as shared:
                self.receive(shared.address, out)
            self.assertEqual(memory.bytes()[64:72], b"elements")
            into = bytearray(8)
            with self.share(into) as shared:
                haul.send(out, shared.address)
            self.assertEqual(into, b"elements")

    def test_what_a_shared_tensor_looks_like(self):
        """Its region can be read by haul get, and its header is as docs/protocol.md has it."""
        with self.share(numpy.full((2, 3), 7, "float32"), "kv") as shared:
            peer = self.other.connect(self.node.addresses[0])
            self.assertEqual([found.name for found in peer.list()], ["kv", "kv.tensor"])
            remote = peer.lookup("kv.tensor")
            region = self.other.alloc(remote.length)
            remote.read(region).wait()
            self.assertEqual(bytes(region), header((2, 3), length=24))
            self.assertEqual((peer.lookup("kv").length, remote.rights), (24, READ))
        self.assertEqual(peer.list(), [])
        self.assertTrue(shared.closed)

    def test_not_contiguous(self):
        square = numpy.zeros((4, 4))
        for tensor in (square[:, :2], square[::2], square[::-1], square.T[:2]):
            with self.assertRaisesRegex(ValueError, "ascontiguousarray"):
                self.share(tensor)
        self.assertEqual(self.node.connect(self.node.listen("tcp://127.0.0.1:0")).list(), [])

    def test_rights(self):
        tensor = numpy.zeros(4)
        with self.share(tensor, rights=READ) as shared:
            self.fails(Code.EACCESS, haul.send, tensor, shared.address, node=self.other)
        with self.share(tensor, rights=WRITE) as shared:
            self.fails(Code.EACCESS, self.receive, shared.address)
        self.fails(Code.EACCESS, self.share, b"read-only")
        with self.share(tensor, to={"*": READ}) as shared:
            self.receive(shared.address)
        with self.share(tensor, to={"nobody": READ}) as shared:
            self.fails(Code.ENAME, self.receive, shared.address)

    def test_another_type_or_shape(self):
        with self.share(numpy.ones(4, "float32")) as shared:
            for other in (numpy.zeros(4, "int32"), numpy.zeros((2, 2), "float32"), numpy.zeros(5)):
                error = self.fails(Code.EINVAL, haul.send, other, shared.address, node=self.other)
                self.assertIn(str(other.dtype), error.text)
                self.fails(Code.EINVAL, self.receive, shared.address, other)
                self.assertFalse(other.any())
            self.fails(Code.ELIMIT, self.receive, shared.address, limit=15)

    def test_names(self):
        tensor = numpy.zeros(4)
        with self.share(tensor) as shared:
            self.fails(Code.EEXIST, self.share, tensor)
            self.share(tensor, "second")
        error = self.fails(Code.ENAME, self.receive, shared.address)
        self.assertIn("haul.share", error.hint)
        region = self.node.alloc(16)
        region.publish("plain")
        self.fails(Code.ENAME, self.receive, f"{self.node.addresses[0]}/plain")
        self.assertRaises(ValueError, self.receive, shared.address, id=7)
        self.assertRaises(ValueError, haul.send, tensor, shared.address, id=7)
        self.assertRaises(ValueError, haul.receive, shared.address)
        self.assertRaises(TypeError, haul.send, tensor, 7)
        self.assertRaises(TypeError, haul.receive, 7, tensor)

    def test_it_ends_with_its_last_reference(self):
        shared = haul.share(numpy.zeros(4), node=self.node)
        address = shared.address
        peer = self.other.connect(self.node.addresses[0])
        self.assertEqual(len(peer.list()), 2)
        del shared
        gc.collect()
        self.assertEqual(peer.list(), [])
        self.fails(Code.ENAME, self.receive, address)

    def test_the_interpreter_may_end_before_it(self):
        self.ends_well(self.child("""
            shared = haul.share(bytearray(64), "one")
            node = haul.Node()
            with node:
                open = haul.share(bytearray(64), "another", node=node)
            os.shared = haul.share(bytearray(64), "third")  # referred to by a module
        """))

    def test_hostile_headers(self):
        """No length, offset or shape of the other side is believed."""
        self.node.listen("tcp://127.0.0.1:0")
        memory = self.node.alloc(64)
        memory.publish("t", READ | WRITE)
        for content, text in (
            (b"x", "not one of a tensor"),
            (bytes(200), "not one of a tensor"),
            (header(magic=b"HTNT"), "not one of a tensor"),
            (header(version=2), "version 2"),
            (header()[:40], "too short"),
            (header((1,) * 9), "wrong number of dimensions"),
            (header()[:-1], "wrong number of dimensions"),
            (header((1 << 40,), length=4 << 40), "longer than the memory"),
            (header(length=4, offset=61), "longer than the memory"),
            (header(length=4, offset=(1 << 64) - 4), "longer than the memory"),
            (header((2,)), "disagree"),
            (header((-1,), length=0), "disagree"),
            (header((1 << 62, 0, 1 << 62), length=0), "too large"),
        ):
            with self.subTest(text), self.node.alloc(len(content)) as region:
                memoryview(region)[:] = content
                region.publish("t.tensor", READ)
                address = f"{self.node.addresses[0]}/t"
                error = self.fails(Code.EPROTO, self.receive, address, limit=1 << 50)
                self.assertIn(text, error.text)

    def test_withdrawn_between_the_lookups(self):
        """A header that was withdrawn does not describe the tensor that came after it."""
        shared = self.share(numpy.zeros(4))
        peer = self.other.connect(self.node.addresses[0])
        with peer.lookup("tensor.tensor") as stale:
            shared.close()
            self.share(numpy.zeros((2, 2)))
            region = self.other.alloc(stale.length)
            with self.assertRaises(haul.Stale):
                stale.read(region).wait()


class ThreeLines(support.Case):
    """Two processes, with the nodes that haul makes for them."""

    def test_share_and_receive(self):
        child = self.child("""
            memory = bytearray(b"hello")
            shared = haul.share(memory, "greeting", haul.READ | haul.WRITE)
            channel.send_text(shared.address)
            channel.receive_text()
            channel.send_text(memory.decode())
        """)
        address = child.receive_text()
        self.assertTrue(address.startswith("unix://@haul-") and address.endswith("/greeting"))
        self.assertEqual(bytes(haul.receive(address, limit=5).tensor), b"hello")
        haul.send(b"HELLO", address)
        child.send_text("look")
        self.assertEqual(child.receive_text(), "HELLO")
        self.ends_well(child)


if __name__ == "__main__":
    support.main()
