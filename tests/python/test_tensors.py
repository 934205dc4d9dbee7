# SPDX-License-Identifier: MIT
"""haul.send, haul.receive and haul.share."""

import asyncio
import concurrent.futures
import os
import random
import struct
import time

import haul
import support
from haul import Code
from haul._haul import TENSOR_TAG
from haul._inbox import inbox_of

PATIENCE = support.PATIENCE
NUMPY_TYPES = (
    "int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 float32 float64 "
    "complex64 complex128 bool"
)
OFFERS_MAX, PEER_OFFERS_MAX, MESSAGES_MAX = 1024, 64, 16384


def setUpModule():
    global numpy
    numpy = support.module("numpy")


def offer(shape=(1,), serial=77, version=1, **fields):
    """An offer, byte for byte as docs/protocol.md has it; of one float32 by default."""
    values = dict(id=0, length=4, offset=0, type=2, bits=32, lanes=1, dimensions=len(shape))
    return (
        struct.pack("<4sBBHQ", b"HTNS", version, 1, 0, serial)
        + struct.pack("<QQQBBHI", *(values | fields).values())
        + struct.pack(f"<{len(shape)}q", *shape)
    )


def reply(serial, status=0):
    return struct.pack("<4sBBHQ", b"HTNS", 1, 2, status, serial)


class Pair(support.Case):
    """Two nodes of this process, and the peer of each."""

    paths = None

    def setUp(self):
        self.left = haul.Node("left", paths=self.paths, timeout=PATIENCE)
        self.right = haul.Node("right", paths=self.paths, timeout=PATIENCE)
        self.pool = concurrent.futures.ThreadPoolExecutor(16)
        self.to_right = self.left.connect(self.right.listen("tcp://127.0.0.1:0"), timeout=PATIENCE)
        self.to_right.send(b"hello")
        self.to_left = self.right.receive().peer
        self.addCleanup(self.close)

    def close(self):
        self.pool.shutdown()
        self.left.close()
        self.right.close()

    def send(self, tensor, **keywords):
        """Sends to the right in another thread; returns its future."""
        return self.pool.submit(haul.send, tensor, self.to_right, **keywords)

    def pass_on(self, tensor, out=None, **keywords):
        """Sends to the right; returns what arrives there."""
        sent = self.send(tensor)
        received = haul.receive(self.to_left, out, **keywords)
        self.assertIsNone(sent.result(PATIENCE))
        return received.tensor

    def refused(self, code, sent):
        """The sender's error."""
        return self.fails(code, sent.result, PATIENCE)


class Tensors(Pair):
    def same(self, tensor):
        arrived = self.pass_on(tensor, limit=1 << 20)
        array = numpy.asarray(arrived)
        self.assertEqual((array.dtype, array.shape), (tensor.dtype, tensor.shape))
        self.assertTrue((array == tensor).all())
        del array

    def test_numpy_types(self):
        for name in NUMPY_TYPES.split():
            with self.subTest(name):
                self.same(numpy.arange(24).reshape(2, 3, 4).astype(name))

    def test_shapes(self):
        for shape in ((), (1,), (0,), (3, 0, 2), (1,) * 8, (2,) * 8, (5, 1, 3)):
            with self.subTest(shape):
                self.same(numpy.ones(shape, "float32"))
                out = numpy.zeros(shape, "float32")
                self.assertIs(self.pass_on(numpy.ones(shape, "float32"), out), out)
                self.assertTrue((out == 1).all())

    def test_buffers(self):
        self.assertEqual(bytes(self.pass_on(b"hello", limit=5)), b"hello")
        out = bytearray(5)
        self.pass_on(b"hello", out)
        self.assertEqual(out, b"hello")

    def test_haul_tensors(self):
        region = self.left.alloc(1 << 16)
        memoryview(region)[:] = random.Random(1).randbytes(1 << 16)
        for tensor in (
            region,
            region.tensor("bfloat16", (100, 7), offset=4096),
            region.tensor("dlpack:2:32:4", (5,), offset=64),
            region.tensor("float32", (4, 0)),
        ):
            with self.subTest(tensor):
                arrived = self.pass_on(tensor, limit=1 << 16)
                self.assertEqual(arrived.layout[:2], tensor.layout[:2])
                self.assertEqual(*map(self.bytes_of, (arrived, tensor)))
        out = self.right.alloc(1 << 16)
        into = out.tensor("int32", (16, 16), offset=1024)
        self.assertIs(self.pass_on(region.tensor("int32", (16, 16), offset=2048), into), into)
        self.assertEqual(memoryview(out)[1024:2048], memoryview(region)[2048:3072])

    @staticmethod
    def bytes_of(tensor):
        if isinstance(tensor, haul.Region):
            return bytes(tensor)
        return bytes(tensor.region.bytes()[tensor.offset : tensor.offset + tensor.nbytes])

    def test_device_memory(self):
        here, there = self.left.alloc(4096, "sim:0"), self.left.alloc(4096)
        memoryview(there)[:] = random.Random(2).randbytes(4096)
        here.copy_from(there)
        arrived = self.pass_on(here.tensor("float32", (1024,)), limit=4096, place="sim:0")
        self.assertEqual(arrived.region.place, "sim:0")
        back = self.right.alloc(4096)
        back.copy_from(arrived.region)
        self.assertEqual(bytes(back), bytes(there))

    def test_torch(self):
        torch = support.module("torch")
        for dtype in (torch.float32, torch.bfloat16, torch.int64):
            with self.subTest(dtype):
                tensor = torch.arange(12).reshape(3, 4).to(dtype)
                arrived = torch.from_dlpack(self.pass_on(tensor, limit=1 << 12))
                self.assertEqual(arrived.dtype, dtype)
                self.assertTrue(torch.equal(arrived, tensor))
                out = torch.zeros(3, 4, dtype=dtype)
                self.assertIs(self.pass_on(tensor, out), out)
                self.assertTrue(torch.equal(out, tensor))
                del arrived
        empty = torch.zeros(2, 0)
        self.assertEqual(self.pass_on(empty, limit=0).shape, (2, 0))
        self.assertRaises(ValueError, haul.send, torch.zeros(3, 4).t(), self.to_right)

    def test_torch_is_not_imported(self):
        child = self.child("sys.exit(any(name in sys.modules for name in ('torch', 'numpy')))")
        self.ends_well(child)

    def test_nothing_stays_published(self):
        for tensor in (b"secret", self.left.alloc(6)):
            self.pass_on(tensor, limit=6)
            self.assertEqual(self.to_left.list(), [])
            self.fails(Code.ETIMEDOUT, haul.send, tensor, self.to_right, timeout=0.01)
            self.assertEqual(self.to_left.list(), [])


class OverTcp(Tensors):
    paths = "tcp"


class Arguments(Pair):
    def nothing_was_sent(self):
        self.fails(Code.ETIMEDOUT, haul.receive, self.right, id=None, limit=1 << 20, timeout=0)

    def test_not_contiguous(self):
        square = numpy.zeros((4, 4))
        fortran = numpy.asfortranarray(numpy.zeros((2, 3)))
        for tensor in (square[:, :2], square[::2], square[::-1], fortran):
            self.assertRaises(ValueError, haul.send, tensor, self.to_right)
            self.assertRaises(ValueError, haul.receive, self.to_left, tensor)
        repeated = numpy.broadcast_to(square[0], (4, 4))
        self.assertRaises(ValueError, haul.send, repeated, self.to_right)
        self.nothing_was_sent()
        self.pass_on(square[1:3], limit=64)  # rows are contiguous

    def test_types_that_haul_does_not_have(self):
        for dtype in (">f4", ">i8", "S3", "U2", "O", "f4,i4"):
            self.assertRaises(ValueError, haul.send, numpy.zeros(3, dtype), self.to_right)
            self.assertRaises(ValueError, haul.receive, self.to_left, numpy.zeros(3, dtype))
        self.assertRaises(BufferError, haul.send, numpy.zeros((1,) * 9), self.to_right)
        self.assertRaises(TypeError, haul.send, "text", self.to_right)
        self.nothing_was_sent()

    def test_ids(self):
        for id in (-1, 1 << 64):
            self.assertRaises(ValueError, haul.send, b"x", self.to_right, id=id)
        sent = self.send(b"x", id=(1 << 64) - 1)
        self.assertEqual(haul.receive(self.right, id=None, limit=1).id, (1 << 64) - 1)
        sent.result(PATIENCE)

    def test_no_destination(self):
        self.assertRaises(ValueError, haul.receive, self.to_left)

    def test_a_destination_that_cannot_be_written(self):
        sent = self.send(b"hello")
        self.assertRaises(ValueError, haul.receive, self.to_left, b"hello")
        haul.receive(self.to_left, limit=5)
        sent.result(PATIENCE)

    def test_memory_of_another_node(self):
        region = self.right.alloc(64)
        self.assertRaises(ValueError, haul.send, region, self.to_right)
        self.assertRaises(ValueError, haul.receive, self.to_right, region)

    def test_an_unknown_place(self):
        sent = self.send(b"hello")
        self.fails(Code.EPLACE, haul.receive, self.to_left, limit=5, place="sim:99")
        self.refused(Code.EPATH, sent)


class Refused(Pair):
    def other(self, tensor, out):
        sent = self.send(tensor)
        before = out.copy()
        error = self.fails(Code.EINVAL, haul.receive, self.to_left, out)
        self.assertIn(str(tensor.dtype), error.text)
        self.assertIn(str(out.shape), error.text)
        self.refused(Code.EINVAL, sent)
        self.assertTrue((out == before).all())

    def test_another_type(self):
        self.other(numpy.ones(4, "float32"), numpy.zeros(4, "int32"))
        self.other(numpy.ones(4, "float32"), numpy.zeros(2, "float64"))

    def test_another_shape(self):
        self.other(numpy.ones((2, 3), "float32"), numpy.zeros((3, 2), "float32"))
        self.other(numpy.ones(4, "float32"), numpy.zeros(5, "float32"))
        self.other(numpy.ones((), "float32"), numpy.zeros(1, "float32"))
        self.other(numpy.ones((0, 2), "float32"), numpy.zeros((2, 0), "float32"))

    def test_too_large(self):
        sent = self.send(bytes(1001))
        self.fails(Code.ELIMIT, haul.receive, self.to_left, limit=1000)
        self.refused(Code.ELIMIT, sent)
        self.assertEqual(len(bytes(self.pass_on(bytes(1000), limit=1000))), 1000)

    def offer_from(self, peer, count, serial=1 << 32):
        """Offers of tensors with id 9 that nobody publishes; returns once they are there."""
        for more in range(count):
            peer.send(offer(serial=serial + more, id=9), tag=TENSOR_TAG)
        peer.send(b"last")
        self.assertEqual(self.right.receive().data, b"last")

    def first(self):
        """Sends the first tensor; returns once its offer is there."""
        sent = self.send(b"first")
        while not inbox_of(self.right).offers:
            self.fails(Code.ETIMEDOUT, self.right.receive, timeout=0.01)
        return sent

    def other_peer(self):
        other = haul.Node("other", timeout=PATIENCE)
        self.addCleanup(other.close)
        return other.connect(self.right.addresses[0])

    def test_too_many_of_one_peer(self):
        first = self.first()
        self.offer_from(self.to_right, PEER_OFFERS_MAX)
        self.refused(Code.EBUSY, first)
        self.assertEqual(len(inbox_of(self.right).offers), PEER_OFFERS_MAX)
        self.offer_from(self.to_right, OFFERS_MAX)
        sent = self.pool.submit(haul.send, b"other", self.other_peer())
        self.assertEqual(bytes(haul.receive(self.right, limit=8).tensor), b"other")
        sent.result(PATIENCE)
        self.assertEqual(bytes(self.pass_on(b"left", limit=8)), b"left")

    def test_too_many_of_all_peers(self):
        first = self.first()
        others = [self.other_peer() for _ in range(OFFERS_MAX // PEER_OFFERS_MAX)]
        for peer in others:
            self.offer_from(peer, PEER_OFFERS_MAX)
        self.refused(Code.EBUSY, first)
        self.assertEqual(len(inbox_of(self.right).offers), OFFERS_MAX)
        self.assertEqual(bytes(self.pass_on(b"again", limit=8)), b"again")

    def test_too_many_of_peers_that_are_gone(self):
        first = self.first()
        for i in range(OFFERS_MAX // PEER_OFFERS_MAX):
            peer = self.other_peer()
            self.offer_from(peer, PEER_OFFERS_MAX - (i == 0))
            peer.node.close()
        inbox = inbox_of(self.right)
        while sum(held.peer.alive for held in inbox.offers) > 1:
            time.sleep(0.01)
        inbox.offers[1].peer.close()
        last = self.send(b"last")
        while len(inbox.offers) > 2 and not last.done():
            self.fails(Code.ETIMEDOUT, self.right.receive, timeout=0.01)
        self.assertEqual(bytes(haul.receive(self.to_left, limit=8).tensor), b"first")
        self.assertEqual(bytes(haul.receive(self.to_left, limit=8).tensor), b"last")
        first.result(PATIENCE)
        last.result(PATIENCE)
        self.assertEqual(inbox.offers, [])


class Order(Pair):
    def test_one_id(self):
        sent = self.pool.submit(
            lambda: [haul.send(bytes([i]), self.to_right) for i in range(20)]
        )
        arrived = [bytes(haul.receive(self.to_left, limit=1).tensor)[0] for _ in range(20)]
        self.assertEqual(arrived, list(range(20)))
        sent.result(PATIENCE)

    def test_several_ids(self):
        sent = [self.send(bytes([id]), id=id) for id in range(5)]
        for id in (3, 0, 4):
            received = haul.receive(self.to_left, id=id, limit=1)
            self.assertEqual((received.id, bytes(received.tensor)), (id, bytes([id])))
        rest = {haul.receive(self.to_left, id=None, limit=1).id for _ in range(2)}
        self.assertEqual(rest, {1, 2})
        for one in sent:
            one.result(PATIENCE)

    def test_several_peers(self):
        other = haul.Node("other", timeout=PATIENCE)
        self.addCleanup(other.close)
        peer = other.connect(self.right.addresses[0])
        sent = [self.send(b"left"), self.pool.submit(haul.send, b"other", peer)]
        for _ in sent:
            received = haul.receive(self.right, limit=8)
            self.assertEqual(bytes(received.tensor).decode(), received.peer.name)
        for one in sent:
            one.result(PATIENCE)

    def test_a_certain_peer(self):
        other = haul.Node("other", timeout=PATIENCE)
        self.addCleanup(other.close)
        sent = self.pool.submit(haul.send, b"other", other.connect(self.right.addresses[0]))
        while not inbox_of(self.right).offers:
            self.fails(Code.ETIMEDOUT, haul.receive, self.to_left, limit=8, timeout=0.01)
        self.assertEqual(bytes(self.pass_on(b"left", limit=8)), b"left")
        self.assertEqual(bytes(haul.receive(self.right, limit=8).tensor), b"other")
        sent.result(PATIENCE)

    def test_both_directions_of_one_node(self):
        peer = self.left.connect(self.left.listen("tcp://127.0.0.1:0"))
        sent = self.pool.submit(haul.send, b"myself", peer)
        self.assertEqual(bytes(haul.receive(self.left, limit=8).tensor), b"myself")
        sent.result(PATIENCE)

    def test_many_threads(self):
        def exchange(send_to, receive_from, id):
            for turn in range(20):
                if id % 2:
                    haul.send(struct.pack("<II", id, turn), send_to, id=id)
                else:
                    tensor = haul.receive(receive_from, id=id + 1, limit=8).tensor
                    self.assertEqual(struct.unpack("<II", bytes(tensor)), (id + 1, turn))

        for end in [self.pool.submit(exchange, self.to_right, self.to_left, id) for id in range(8)]:
            end.result(PATIENCE)


class OtherMessages(Pair):
    def test_they_reach_receive_in_order(self):
        self.to_right.send(b"1")
        sent = self.send(b"tensor")
        self.assertEqual(self.right.receive().data, b"1")
        while not inbox_of(self.right).offers:  # as soon as receive got the offer
            self.fails(Code.ETIMEDOUT, self.right.receive, timeout=0.01)
        self.to_right.send(b"2", tag=5)
        self.to_right.send(b"3")
        haul.receive(self.right, limit=8)
        sent.result(PATIENCE)
        self.to_right.send(b"4")
        self.fails(Code.ETIMEDOUT, haul.receive, self.right, limit=8, timeout=0.05)
        messages = [self.right.receive() for _ in range(3)]
        self.assertEqual([one.data for one in messages], [b"2", b"3", b"4"])
        self.assertEqual(messages[0].tag, 5)
        self.assertEqual(messages[0].peer, self.to_left)
        self.fails(Code.ETIMEDOUT, self.right.receive, timeout=0)

    def test_messages_with_the_tag(self):
        for data in (b"", b"HTN", bytes(100)):
            self.to_right.send(data, tag=TENSOR_TAG)
            message = self.right.receive()
            self.assertEqual((message.data, message.tag), (data, TENSOR_TAG))

    def test_events(self):
        with haul.Node(peer_events=True, timeout=PATIENCE) as node:
            peer = haul.Node("guest").connect(node.listen("tcp://127.0.0.1:0"))
            sent = self.pool.submit(haul.send, b"x", peer)
            haul.receive(node, limit=1)
            self.assertEqual(node.receive().kind, "joined")
            sent.result(PATIENCE)

    def test_asyncio(self):
        async def both():
            receiving = asyncio.create_task(haul.aio.receive(self.right))
            arriving = asyncio.create_task(asyncio.to_thread(haul.receive, self.right, limit=8))
            await asyncio.to_thread(haul.send, b"tensor", self.to_right)
            await asyncio.to_thread(self.to_right.send, b"message")
            return bytes((await arriving).tensor), (await receiving).data

        self.assertEqual(asyncio.run(both()), (b"tensor", b"message"))

    def test_a_thread_in_receive(self):
        got = self.pool.submit(self.right.receive)
        self.assertEqual(bytes(self.pass_on(b"tensor", limit=8)), b"tensor")
        self.to_right.send(b"message")
        self.assertEqual(got.result(PATIENCE).data, b"message")

    def test_more_bytes_than_the_inbox_holds(self):
        self.fails(Code.ETIMEDOUT, haul.receive, self.right, limit=8, timeout=0)
        count, kept, data = 70, 64, bytes(1 << 20)
        flood = self.pool.submit(lambda: [self.to_right.send(data) for _ in range(count)])
        waiting = self.pool.submit(haul.receive, self.right, limit=8)
        flood.result(PATIENCE)
        sent = self.send(b"tensor")
        self.assertEqual(bytes(waiting.result(PATIENCE).tensor), b"tensor")
        sent.result(PATIENCE)
        error = self.fails(Code.ELIMIT, self.right.receive)
        self.assertIn(f"{count - kept} messages", error.text)
        self.to_right.send(b"last")
        for _ in range(kept):
            self.assertEqual(len(self.right.receive().data), len(data))
        self.assertEqual(self.right.receive().data, b"last")
        self.fails(Code.ETIMEDOUT, self.right.receive, timeout=0)

    def test_more_messages_than_the_inbox_holds(self):
        inbox = inbox_of(self.right)
        events = [haul.Message(kind, self.to_left, 0, b"") for kind in ("joined", "left")]
        messages = [
            haul.Message("message", self.to_left, tag, b"") for tag in range(MESSAGES_MAX + 2)
        ]
        for one in messages[:2] + events + messages[2:]:
            inbox.hold(one)
        inbox.hold(events[0])
        self.assertEqual(bytes(self.pass_on(b"tensor", limit=8)), b"tensor")
        self.assertIn("5 messages", self.fails(Code.ELIMIT, self.right.receive).text)
        tags = [self.right.receive().tag for _ in range(MESSAGES_MAX)]
        self.assertEqual(tags, list(range(MESSAGES_MAX)))
        self.fails(Code.ETIMEDOUT, self.right.receive, timeout=0)

    def test_more_events_than_the_inbox_holds(self):
        inbox = inbox_of(self.right)
        for tag in range(MESSAGES_MAX + 10):
            inbox.hold(haul.Message("joined", self.to_left, tag, b""))
        self.assertEqual(bytes(self.pass_on(b"tensor", limit=8)), b"tensor")
        self.assertIn("10 messages", self.fails(Code.ELIMIT, self.right.receive).text)
        self.assertEqual(self.right.receive().tag, 10)


class Deadlines(Pair):
    def test_nobody_receives(self):
        self.fails(Code.ETIMEDOUT, haul.send, b"late", self.to_right, timeout=0.01)
        error = self.fails(Code.ETIMEDOUT, haul.receive, self.to_left, limit=8, timeout=0.2)
        self.assertIsInstance(error, TimeoutError)
        self.assertEqual(bytes(self.pass_on(b"again", limit=8)), b"again")

    def test_the_node_has_the_default(self):
        with haul.Node(timeout=0.01) as node:
            self.fails(Code.ETIMEDOUT, haul.receive, node, limit=8)

    def test_a_closed_node(self):
        waiting = self.pool.submit(haul.receive, self.right, limit=8)
        time.sleep(0.05)
        self.right.close()
        self.fails(Code.ECLOSED, waiting.result, PATIENCE)
        self.fails(Code.ECLOSED, haul.receive, self.right, limit=8)


class LastWords(Pair):
    """The receiver replies and closes its node while the sender is busy."""

    def ends(self, *messages):
        for data, tag in messages:
            self.to_left.send(data, tag=tag)
        self.right.close()
        while self.to_right.alive:
            time.sleep(0.01)

    def status(self, timeout, *before):
        """The reply that arrives last."""
        inbox = inbox_of(self.left)
        with inbox.expecting(self.to_right) as (serial, status):
            self.ends(*before, (reply(serial), TENSOR_TAG))
            until = time.monotonic() + timeout
            return inbox.take(self.left, "send", until, status, self.to_right.check)

    def test_a_reply_behind_messages(self):
        self.assertEqual(self.status(PATIENCE, (b"1", 0), (b"2", 0)), 0)
        self.assertEqual([self.left.receive().data for _ in range(2)], [b"1", b"2"])

    def test_a_reply_that_another_thread_may_receive(self):
        waiting = self.pool.submit(haul.receive, self.left, limit=8, timeout=1)
        self.assertEqual(self.status(PATIENCE, (b"1", 0), (b"2", 0)), 0)
        self.refused(Code.ETIMEDOUT, waiting)

    def test_a_tensor_behind_messages(self):
        empty = offer(shape=(0,), length=0)
        self.ends((b"1", 0), (b"2", 0), (empty, TENSOR_TAG))
        self.assertEqual(haul.receive(self.to_right, limit=0).tensor.shape, (0,))

    def test_nothing(self):
        waiting = self.pool.submit(haul.receive, self.left, limit=8, timeout=1)
        self.ends((b"1", 0), (b"2", 0))
        self.fails(Code.EPEER, haul.receive, self.to_right, limit=8)
        self.fails(Code.EPEER, haul.receive, self.to_right, limit=8, timeout=0)
        self.refused(Code.ETIMEDOUT, waiting)


class Hostile(Pair):
    INVALID = {
        "version": dict(version=2),
        "dimensions that are not there": dict(dimensions=2),
        "more than eight dimensions": dict(shape=(1,) * 9),
        "a negative dimension": dict(shape=(-1,)),
        "a large product": dict(shape=(1 << 62, 1 << 62), length=4),
        "a large product with a zero": dict(shape=(1 << 62, 1 << 62, 0), length=0),
        "strides that overflow": dict(shape=(0, 1 << 61), length=0),
        "another length": dict(length=8),
        "no length": dict(length=0),
        "elements of bits": dict(bits=4, length=0),
        "elements of no bits": dict(bits=0, length=0),
        "no lanes": dict(lanes=0, length=0),
    }

    def send_raw(self, data):
        self.to_right.send(data, tag=TENSOR_TAG)

    def test_invalid_offers(self):
        for name, fields in self.INVALID.items():
            with self.subTest(name):
                self.send_raw(offer(**fields))
                self.fails(Code.EPROTO, haul.receive, self.right, limit=1 << 62)

    def test_truncated_offers(self):
        whole = offer(shape=(1, 1))
        for length in range(16, len(whole)):
            self.send_raw(whole[:length])
            self.fails(Code.EPROTO, haul.receive, self.right, limit=4)
        self.send_raw(whole + b"more")
        self.fails(Code.EPROTO, haul.receive, self.right, limit=4)

    def test_random_offers(self):
        chance = random.Random(3)
        for _ in range(300):
            data = bytearray(offer(shape=(2, 2), length=16))
            for _ in range(chance.randrange(1, 4)):
                data[chance.randrange(6, len(data))] = chance.randrange(256)
            self.send_raw(bytes(data))
            with self.assertRaises(haul.Error):
                haul.receive(self.right, id=None, limit=1 << 16, timeout=0.02)

    def test_a_sender_without_memory(self):
        self.send_raw(offer())
        self.fails(Code.ETIMEDOUT, haul.receive, self.right, limit=4, timeout=0.05)

    def test_memory_that_is_shorter(self):
        region = self.left.alloc(100)
        region.publish(f"tensor-{77:016x}")
        past = dict(length=104, shape=(26,)), dict(offset=97), dict(offset=(1 << 64) - 4)
        for fields in past:
            self.send_raw(offer(**fields))
            self.fails(Code.EPROTO, haul.receive, self.right, limit=1 << 62)

    def test_replies_that_nobody_waits_for(self):
        for status in (0, 1, 999):
            self.send_raw(reply(5, status))
        self.send_raw(reply(5)[:15])
        self.assertEqual(bytes(self.pass_on(b"fine", limit=8)), b"fine")

    def test_an_unknown_reply(self):
        sent = self.send(b"hello")
        while not inbox_of(self.right).offers:
            self.fails(Code.ETIMEDOUT, self.right.receive, timeout=0.01)
        serial = inbox_of(self.right).offers[0].serial
        self.to_left.send(reply(serial, 999), tag=TENSOR_TAG)
        self.refused(Code.EPATH, sent)

    def test_a_reply_of_another_peer(self):
        other = haul.Node("other")
        self.addCleanup(other.close)
        sent = self.send(b"hello")
        while not inbox_of(self.right).offers:
            self.fails(Code.ETIMEDOUT, self.right.receive, timeout=0.01)
        serial = inbox_of(self.right).offers[0].serial
        other.connect(self.left.listen("tcp://127.0.0.1:0")).send(reply(serial), tag=TENSOR_TAG)
        time.sleep(0.2)
        self.assertFalse(sent.done())
        haul.receive(self.right, limit=5)
        sent.result(PATIENCE)


class Gone(support.Case):
    """The other side is killed."""

    SENDER = f"""
        node = haul.Node("child")
        peer = node.connect(channel.receive_text())
        peer.send(bytes.fromhex(channel.receive_text()), tag={TENSOR_TAG})
        channel.receive_text()
    """
    RECEIVER = """
        node = haul.Node("child")
        peer = node.connect(channel.receive_text())
        peer.send(b"hello")
        node.receive()
        channel.send_text("received")
        channel.receive_text()
    """

    def setUp(self):
        self.node = haul.Node("parent", timeout=PATIENCE)
        self.addCleanup(self.node.close)

    def start(self, source):
        child = self.child(source)
        child.send_text(self.node.listen("tcp://127.0.0.1:0"))
        return child

    def test_the_sender(self):
        child = self.start(self.SENDER)
        child.send_text(offer().hex())
        while not inbox_of(self.node).offers:
            self.fails(Code.ETIMEDOUT, self.node.receive, timeout=0.01)
        peer = inbox_of(self.node).offers[0].peer
        child.kill()
        error = self.fails(Code.EPEER, haul.receive, peer, limit=4)
        self.assertIsInstance(error, ConnectionError)

    def test_the_sender_among_others(self):
        child = self.start(self.SENDER)
        child.send_text(offer().hex())
        while not inbox_of(self.node).offers:
            self.fails(Code.ETIMEDOUT, self.node.receive, timeout=0.01)
        child.kill()
        self.fails(Code.ETIMEDOUT, haul.receive, self.node, limit=4, timeout=0.1)

    def test_the_receiver(self):
        child = self.start(self.RECEIVER)
        peer = self.node.receive().peer
        with concurrent.futures.ThreadPoolExecutor() as pool:
            sent = pool.submit(haul.send, bytes(1000), peer)
            child.kill()
            self.fails(Code.EPEER, sent.result, PATIENCE)
        self.fails(Code.EPEER, haul.send, bytes(1000), peer)


class Processes(support.Case):
    def test_there_and_back(self):
        child = self.child("""
            import numpy
            node = haul.Node("child")
            peer = node.connect(channel.receive_text())
            peer.send(b"hello")
            for _ in range(3):
                received = haul.receive(peer, id=1, limit=1 << 24)
                haul.send(numpy.asarray(received.tensor) + 1, peer, id=2)
        """)
        with haul.Node("parent", timeout=PATIENCE) as node:
            child.send_text(node.listen(f"unix://@haul-test-tensors-{os.getpid()}"))
            peer = node.receive().peer
            tensor = numpy.arange(1 << 20, dtype="float32").reshape(1024, 1024)
            for _ in range(3):
                haul.send(tensor, peer, id=1)
                haul.receive(peer, tensor, id=2)
            self.assertTrue((tensor == numpy.arange(1 << 20).reshape(1024, 1024) + 3).all())
            self.ends_well(child)


if __name__ == "__main__":
    support.main()
