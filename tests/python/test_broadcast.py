# SPDX-License-Identifier: MIT
"""haul.broadcast: one source, many receivers. Every error is raised, and no version is mixed with another."""

import os
import signal
import threading
import time

import haul
import support
from haul import Code
from haul.broadcast import Receiver, Source, Version

PATIENCE = support.PATIENCE
MIB = 1 << 20
SLOW = {"paths": "tcp", "tcp_rate": 2 * MIB}  # of a source: a test acts meanwhile


def pattern(length, seed):
    return bytes((i * 7 + seed) % 251 for i in range(4096)) * (length // 4096 + 1)


class Case(support.Case):
    def setUp(self):
        self.owner = self.node("source")
        self.address = self.owner.listen("tcp://127.0.0.1:0")
        self.here = self.node("receiver")

    def node(self, name, **settings):
        node = haul.Node(name, timeout=PATIENCE, **settings)
        self.addCleanup(node.close)
        return node

    def source(self, **options):
        source = Source(self.owner, "weights", **options)
        self.addCleanup(source.close)
        return source

    def receiver(self, node=None, **options):
        receiver = Receiver(node or self.here, self.address, "weights", **options)
        self.addCleanup(receiver.close)
        return receiver

    def slow(self, length=8 * MIB):
        """A source whose version takes seconds, a receiver, the version, and memory for it."""
        self.owner, self.here = self.node("slow", **SLOW), self.node("receiver", paths="tcp")
        self.address = self.owner.listen("tcp://127.0.0.1:0")
        source = self.source(chunk=65536)
        source.publish(bytearray(pattern(length, 1)[:length]))
        receiver = self.receiver()
        return source, receiver, receiver.next(), bytearray(length)

    def soon(self, condition):
        until = time.monotonic() + PATIENCE
        while not condition() and time.monotonic() < until:
            time.sleep(0.01)
        self.assertTrue(condition())


class Errors(Case):
    def test_a_name_that_the_node_does_not_have(self):
        self.source()
        error = self.fails(Code.ENAME, Receiver, self.here, self.address, "other")
        self.assertEqual((error.call, error.object), ("haul_broadcast_join", "other"))
        self.assertIn("not the source of a broadcast of this name", error.text)
        self.fails(Code.EINVAL, Receiver, self.here, self.address, "two words")
        self.fails(Code.EINVAL, Receiver, self.here, self.address, "x" * 300)
        self.fails(Code.EINVAL, Receiver, self.here, "tcp://" + "x" * 300, "weights")

    def test_a_node_that_is_not_there(self):
        self.fails(Code.ECONNECT, Receiver, self.here, "tcp://127.0.0.1:1", "weights", timeout=5)

    def test_options_that_are_refused(self):
        self.fails(Code.EINVAL, Source, self.owner, "weights", chunk=5000)
        self.fails(Code.EINVAL, Source, self.owner, "weights", members=65537)
        self.assertRaises(OverflowError, Source, self.owner, "weights", members=-1)
        self.assertRaises(TypeError, Source, self.address, "weights")
        self.source()
        self.fails(Code.EEXIST, Source, self.owner, "weights")
        self.fails(Code.EINVAL, self.receiver, in_flight=65)
        self.fails(Code.EINVAL, self.receiver, member="two words")
        self.fails(Code.EINVAL, self.receiver, advertise="tcp://0.0.0.0:1")

    def test_more_receivers_than_the_source_has_room_for(self):
        self.source(members=1)
        self.receiver(member="one")
        self.fails(Code.ELIMIT, self.receiver, self.node("second"), member="two")

    def test_no_version(self):
        source, receiver = self.source(), self.receiver()
        for timeout in (0, 0.2):
            error = self.fails(Code.ETIMEDOUT, receiver.next, timeout=timeout)
            self.assertEqual(error.text, "no version newer than 0 came in time")
        version = source.publish(b"bytes")
        error = self.fails(Code.ETIMEDOUT, receiver.next, version, timeout=0.2)
        self.assertEqual(error.call, "haul_broadcast_next")
        self.assertEqual(error.text, f"no version newer than {version} came in time")
        self.assertEqual(receiver.next().number, version)
        self.assertIsNone(receiver.report)

    def test_memory_that_a_version_does_not_fit(self):
        source, receiver = self.source(), self.receiver()
        source.publish(bytes(range(100)))
        version = receiver.next()
        self.fails(Code.ERANGE, receiver.receive, version, bytearray(99))
        self.fails(Code.ERANGE, receiver.receive, version, None)
        self.fails(Code.EACCESS, receiver.receive, version, bytes(100))
        with self.owner.alloc(100) as other:
            self.assertRaises(ValueError, receiver.receive, version, other)
            self.assertRaises(ValueError, source.publish, self.here.alloc(100))
        with self.assertRaisesRegex(ValueError, "contiguous"):
            receiver.receive(version, memoryview(bytearray(200))[::2])
        with self.assertRaisesRegex(ValueError, "contiguous"):
            source.publish(memoryview(bytes(200))[::2])
        self.assertRaises(TypeError, receiver.receive, version, "text")
        self.assertRaises(TypeError, receiver.receive, version.number, bytearray(100))
        self.assertRaises(TypeError, receiver.receive, (1, 2), bytearray(100))
        self.assertRaises(TypeError, receiver.receive, version, bytearray(100), progress=1)
        self.fails(Code.EINVAL, receiver.receive, Version(1, 100, 65536), bytearray(100))
        self.assertEqual(receiver.receive(version, bytearray(100)).bytes, 100)

    def test_a_version_that_the_receiver_has(self):
        """In other memory."""
        source, receiver = self.source(), self.receiver()
        number = source.publish(b"bytes")
        version, first, second = receiver.next(), bytearray(5), bytearray(5)
        receiver.receive(version, first)
        error = self.fails(Code.EEXIST, receiver.receive, version, second)
        self.assertEqual(error.call, "haul_broadcast_receive")
        self.assertIn(f"has version {number} in another region", error.text)
        self.assertIn("withdraw", error.hint)
        receiver.withdraw(number)
        receiver.receive(version, second)
        self.assertEqual(second, b"bytes")

    def test_a_version_that_was_replaced(self):
        source, receiver = self.source(), self.receiver()
        source.publish(b"first")
        version = receiver.next()
        for content in (b"second", b"third"):
            source.publish(content)
        self.fails(Code.ESTALE, receiver.receive, version, bytearray(5))
        self.assertEqual(receiver.report.bytes, 0)
        target = bytearray(5)
        receiver.receive(receiver.next(), target)
        self.assertEqual(target, b"third")

    def test_a_newer_version_meanwhile(self):
        source, receiver, version, target = self.slow()
        newer = []

        def publish(_):
            if not newer:
                newer.append(source.publish(b"newer"))

        self.fails(Code.ESTALE, receiver.receive, version, target, newer=True, progress=publish)
        following = receiver.next()
        self.assertEqual(following.number, newer[0])
        receiver.receive(following, target)
        self.assertEqual(target[:5], b"newer")

    def test_the_deadline(self):
        _, receiver, version, target = self.slow()
        error = self.fails(Code.ETIMEDOUT, receiver.receive, version, target, timeout=0.5)
        self.assertIn("chunks are missing", error.text)
        self.assertLess(receiver.report.bytes, len(target))
        self.assertEqual(receiver.report.version, version.number)

    def test_an_exception_of_progress_ends_the_call(self):
        source, receiver, version, target = self.slow()
        seen = []

        def some(bytes):
            seen.append(bytes)
            if bytes > 65536:
                raise ZeroDivisionError("enough")

        with self.assertRaisesRegex(ZeroDivisionError, "enough"):
            receiver.receive(version, target, progress=some)
        self.assertEqual(seen, sorted(seen))
        report = receiver.receive(version, target, keep=True)
        self.assertGreater(report.kept, 0)
        self.assertEqual(target, pattern(len(target), 1)[: len(target)])

    def test_one_thread_at_a_time(self):
        _, receiver, version, target = self.slow()
        codes = []

        def use(_):
            for call in (receiver.next, receiver.withdraw, lambda: receiver.receive(version, target)):
                try:
                    call()
                except haul.Busy as error:
                    codes.append(error.code)
            raise ZeroDivisionError

        with self.assertRaises(ZeroDivisionError):
            receiver.receive(version, target, progress=use)
        self.assertEqual(codes, [Code.EBUSY] * 3)

    def test_a_close_during_the_call(self):
        _, receiver, version, target = self.slow()
        self.fails(Code.ECLOSED, receiver.receive, version, target, progress=lambda _: receiver.close())
        self.fails(Code.ECLOSED, receiver.next)
        target.append(1)  # nothing refers to it any more

    def test_an_interrupt(self):
        _, receiver, version, target = self.slow()
        with self.assertRaises(KeyboardInterrupt):
            receiver.receive(version, target, progress=lambda _: os.kill(os.getpid(), signal.SIGINT))

        def is_free():
            try:
                receiver.withdraw()
            except haul.Busy:
                return False
            return True

        self.soon(is_free)
        target.append(1)
        self.assertEqual(receiver.receive(version, target, keep=True).bytes, version.length)

    def test_the_source_is_gone(self):
        source, receiver = self.source(), self.receiver()
        source.publish(b"bytes")
        version = receiver.next()
        source.close()
        self.fails(Code.ESTALE, receiver.receive, version, bytearray(5))
        for close in (lambda: None, self.owner.close):
            close()
            with self.assertRaises(haul.Error):  # of the last look, or TimedOut
                receiver.next(timeout=0.3)

    def test_closed(self):
        source, receiver = self.source(), self.receiver()
        source.close()
        receiver.close()
        for call in (source.members, source.withdraw, receiver.next, receiver.withdraw):
            self.fails(Code.ECLOSED, call)
        self.fails(Code.ECLOSED, source.publish, b"bytes")
        self.owner.close()
        self.fails(Code.ECLOSED, Source, self.owner, "weights")


class Memory(Case):
    """The memory of a version stays, and is not another version's."""

    def test_it_cannot_be_closed(self):
        source, receiver = self.source(), self.receiver()
        with self.owner.alloc(4096) as region, self.here.alloc(4096) as target:
            version = source.publish(region)
            receiver.receive(receiver.next(), target)
            for one in (region, self.owner, target, self.here):
                self.assertRaises(BufferError, one.close)
            source.withdraw(version)
            receiver.withdraw(version)

    def test_it_is_not_published_again(self):
        source = self.source()
        data = bytearray(b"first")
        source.publish(data)
        self.fails(Code.EBUSY, source.publish, data)
        with self.assertRaises(BufferError):
            data.append(1)
        source.withdraw()
        data[:] = b"again"
        source.publish(memoryview(data))
        source.close()
        data.append(1)

    def test_the_version_before_the_last_one_ends(self):
        source = self.source()
        first, second, third = (bytearray(b"x" * 10) for _ in range(3))
        for data in (first, second, third):
            source.publish(data)
        first.append(1)
        for data in (second, third):
            with self.assertRaises(BufferError):
                data.append(1)

    def test_in_place(self):
        source, receiver, target = self.source(), self.receiver(), bytearray(5)
        for content in (b"first", b"other", b"third"):
            source.publish(content)
            receiver.receive(receiver.next(), target)
            self.assertEqual(target, content)
        receiver.close()
        target.append(1)

    def test_without_references(self):
        source = Source(self.owner, "weights")
        source.publish(self.owner.alloc(4096))
        receiver = Receiver(self.here, self.address, "weights")
        receiver.receive(receiver.next(), self.here.alloc(4096))
        del source, receiver  # before the nodes close

    def test_the_node_is_closed_first(self):
        receiver = self.receiver
        source, receiver = self.source(), self.receiver()
        self.here.close()
        self.owner.close()
        receiver.close()
        source.close()


class Versions(Case):
    def test_bytes_arrive(self):
        source, receiver = self.source(chunk=4096), self.receiver()
        for length in (1, 4095, 4096, 3 * 4096 + 5, MIB + 17):
            content = pattern(length, length)[:length]
            number = source.publish(content)
            version, target = receiver.next(), bytearray(length + 3)
            self.assertEqual(version, (number, length, 4096))
            report = receiver.receive(version, target)
            self.assertEqual(target, content + b"\0\0\0")
            self.assertEqual((report.version, report.bytes, report.corrupt), (number, length, 0))
            self.assertEqual(sum(feeder.bytes for feeder in report.feeders), length)
            self.assertIs(receiver.report, report)

    def test_a_version_without_bytes(self):
        source, receiver = self.source(), self.receiver()
        source.publish(None)
        self.assertEqual(receiver.receive(receiver.next(), None).bytes, 0)

    def test_device_memory(self):
        source, receiver = self.source(), self.receiver()
        content = pattern(3 * MIB, 3)[: 3 * MIB]
        with self.owner.wrap(content) as from_host, self.owner.alloc(3 * MIB, "sim:0") as region:
            region.copy_from(from_host)
            source.publish(region)
            target, copy = self.here.alloc(3 * MIB, "sim:0"), self.here.alloc(3 * MIB)
            receiver.receive(receiver.next(), target)
            copy.copy_from(target)
            self.assertEqual(copy.bytes(), content)
            source.close()

    def test_the_next_version_is_waited_for(self):
        source, receiver, target = self.source(), self.receiver(), bytearray(6)
        source.publish(b"first")
        receiver.receive(receiver.next(), target)
        timer = threading.Timer(0.3, source.publish, [b"second"])
        timer.start()
        receiver.receive(receiver.next(), target)
        timer.join()
        self.assertEqual(target, b"second")
        self.assertEqual(receiver.next(0).length, 6)

    def test_progress(self):
        _, receiver, version, target = self.slow(MIB)
        seen = []
        receiver.receive(version, target, progress=seen.append)
        self.assertTrue(seen and all(0 <= bytes <= len(target) for bytes in seen), seen)
        self.assertEqual(seen, sorted(seen))

    def test_what_the_source_lists(self):
        source, second = self.source(), self.node("second")
        second.listen("tcp://127.0.0.1:0")
        with self.receiver(member="one") as one:
            self.receiver(second, member="two")
            number = source.publish(b"x" * 5000)
            one.receive(one.next(), bytearray(5000))
            found = {member.name: member for member in source.members()}
            self.assertEqual(sorted(found), ["one", "two"])
            self.assertEqual(found["one"][1:5], ("", "complete", number, 5000))
            self.assertEqual(found["one"].feeder, "source")
            self.assertEqual(found["two"][1:5], (second.addresses[0], "waiting", 0, 0))
        states = {member.name: member.state for member in source.members()}
        self.assertEqual(states, {"one": "left", "two": "waiting"})


class Chains(Case):
    """Receivers pass on what they have, each a process."""

    FIRST = """
        from haul.broadcast import Receiver
        node = haul.Node("first", timeout=60)
        node.listen("tcp://127.0.0.1:0")
        receiver = Receiver(node, {address!r}, "weights", member="first")
        version = receiver.next()
        report = receiver.receive(version, node.alloc(version.length))
        channel.send_text(report.feeders[0].name)
        channel.receive_text()
    """

    def first(self):
        child = self.child(self.FIRST.format(address=self.address))
        self.assertEqual(child.receive_text(), "source")
        return child

    def receives(self, receiver, content):
        target = bytearray(len(content))
        report = receiver.receive(receiver.next(), target)
        self.assertEqual(target, content)
        return {feeder.name: feeder.bytes for feeder in report.feeders if feeder.bytes}

    def test_a_receiver_serves_the_next(self):
        content = pattern(2 * MIB, 4)[: 2 * MIB]
        source = self.source()
        source.publish(content)
        first = self.first()
        self.assertEqual(self.receives(self.receiver(), content), {"first": len(content)})
        first.send_text("end")
        self.ends_well(first)

    def test_a_receiver_that_was_killed_is_passed_over(self):
        content = pattern(2 * MIB, 5)[: 2 * MIB]
        source = self.source()
        source.publish(content)
        first = self.first()
        receiver = self.receiver(member="second")
        first.kill()
        self.assertEqual(self.receives(receiver, content), {"source": len(content)})
        self.assertIn("second", [member.name for member in source.members()])

    def test_receivers_go_on_without_the_source(self):
        content = pattern(2 * MIB, 6)[: 2 * MIB]
        source = self.source()
        source.publish(content)
        first, receiver = self.first(), self.receiver()
        version, target = receiver.next(), bytearray(len(content))
        source.close()
        self.owner.close()
        report = receiver.receive(version, target)
        self.assertEqual(target, content)
        self.assertEqual([f.name for f in report.feeders if f.bytes], ["first"])
        first.send_text("end")
        self.ends_well(first)


if __name__ == "__main__":
    support.main()
