# SPDX-License-Identifier: MIT
"""Peers, published regions, transfers and messages."""

import math
import os
import struct
import threading
import time

import haul
import support
from haul import READ, WRITE, Code

# Another process: publishes `r`, and `ro` read-only, responds to messages, and exits on request.
SERVER = """
    node = haul.Node("server", peer_events=True)
    region = node.alloc(8 << 20)
    memoryview(region)[:5] = b"hello"
    region.publish("r", haul.READ | haul.WRITE)
    region.publish("ro")
    channel.send_text(node.listen("unix://@haul-test-python-%d" % os.getpid()))
    while True:
        message = node.receive()
        if message.kind == "message":
            if message.data == b"end":
                break
            message.peer.send(bytes(memoryview(region)[:8]) + message.data, tag=message.tag + 1)
"""


class WithServer(support.Case):
    def setUp(self):
        self.server = self.child(SERVER)
        self.node = haul.Node("client")
        self.addCleanup(self.node.close)
        self.peer = self.node.connect(self.server.receive_text())


class Gone(WithServer):
    def test_a_peer_that_is_killed(self):
        remote = self.peer.lookup("r")
        region = self.node.alloc(8 << 20)
        self.assertTrue(self.peer.alive)
        self.server.kill()
        with self.assertRaises(haul.PeerGone) as caught:
            for _ in range(1000):
                remote.write(region).wait()
                time.sleep(0.01)
        self.assertTrue(caught.exception.hint)
        self.assertFalse(self.peer.alive)
        for call in (self.peer.check, self.peer.list, self.peer.send):
            self.fails(Code.EPEER, call)
        self.fails(Code.EPEER, self.peer.lookup, "r")

    def test_failed_lists_free_memory(self):
        self.server.kill()
        while self.peer.alive:
            time.sleep(0.01)
        self.fails(Code.EPEER, self.peer.list)
        before = support.allocated()
        for _ in range(100):
            self.fails(Code.EPEER, self.peer.list)
        self.assertLess(support.allocated() - before, 1 << 18)

    def test_leave_event(self):
        with haul.Node(peer_events=True) as node:
            node.connect(f"unix://@haul-test-python-{self.server.process.pid}")
            self.peer.send(b"end")
            message = node.receive(timeout=support.PATIENCE)
            self.assertEqual((message.kind, message.peer.name), ("left", "server"))
        self.ends_well(self.server)

    def test_an_unpublished_name(self):
        with haul.Node() as owner:
            region = owner.alloc(4096)
            region.publish("name", READ | WRITE)
            remote = self.node.connect(owner.listen("tcp://127.0.0.1:0")).lookup("name")
            region.unpublish("name")
            self.fails(Code.ESTALE, lambda: remote.write(self.node.alloc(4096)).wait())


class Refused(WithServer):
    def setUp(self):
        super().setUp()
        self.remote = self.peer.lookup("r")
        self.region = self.node.alloc(4096)

    def test_names(self):
        self.fails(Code.ENAME, self.peer.lookup, "nothing")
        self.fails(Code.EINVAL, self.peer.lookup, "n" * 1000)
        with self.assertRaises(ValueError):
            self.peer.lookup("r\0r")

    def test_pieces(self):
        write = self.remote.write
        self.fails(Code.EINVAL, write, self.region, [])
        self.fails(Code.EINVAL, write, self.region, [(0, 0, 0)])
        self.fails(Code.ERANGE, write, self.region, [(0, 0, 4097)])
        self.fails(Code.ERANGE, write, self.region, [(0, 8 << 20, 1)])
        self.fails(Code.ERANGE, write, self.node.alloc(16 << 20))
        self.fails(Code.ERANGE, write, self.region, [(0, 0, 1, 4097, 1, 1)])
        for wrong in ([(0, 0)], [(0, 0, 0, 0)], [()], [(0, 0, 1, 1 << 62, 0, 0)]):
            with self.assertRaises(ValueError):
                write(self.region, wrong)
        for wrong in ((0, 0, 1, 3, 1 << 63, 0), (0, (1 << 64) - 1, 1, 2, 0, 1), (0, 0, 1, -1, 0, 0)):
            with self.assertRaises(OverflowError):
                write(self.region, [wrong])
        for wrong in (7, [7], [("a", 0, 1)], [(0.5, 0, 1)]):
            with self.assertRaises(TypeError):
                write(self.region, wrong)
        with self.assertRaises(OverflowError):
            write(self.region, [(-1, 0, 1)])
        with self.assertRaisesRegex(TypeError, r"not <class 'bytearray'>: pass node.wrap"):
            write(bytearray(8))

    def test_tensors(self):
        """Pieces outside the tensor are refused even within the region."""
        tensor = self.region.tensor("float32", (4, 4), offset=64)
        for wrong in ((0, 0, 65), (64, 0, 1), (65, 0, 0), (1 << 63, 0, 1 << 63)):
            error = self.fails(Code.ERANGE, self.remote.write, tensor, [(0, 0, 8), wrong])
            self.assertIn("64 bytes", error.text)
        self.fails(Code.ERANGE, self.remote.fetch_add, tensor, 0, 1, result_offset=57)
        self.fails(Code.ERANGE, self.remote.compare_swap, tensor, 0, 1, 2, result_offset=1 << 63)
        self.fails(Code.EINVAL, self.remote.write, self.region.tensor("uint8", (0, 4)))
        for strides in ((1, 4), (8, 1), (0, 1), (4, -1)):
            offset = 64 if min(strides) < 0 else 0
            odd = self.region.tensor("float32", (4, 4), strides, offset=offset)
            for call in (self.remote.write, self.remote.read, self.remote.explain):
                with self.assertRaisesRegex(ValueError, "not contiguous"):
                    call(odd)
        constant = self.node.wrap(b"constant").tensor("uint8", (4,))
        self.fails(Code.EACCESS, self.remote.read, constant)
        self.region.close()
        self.fails(Code.ECLOSED, self.remote.write, tensor)

    def test_rights(self):
        remote = self.peer.lookup("ro")
        self.assertEqual(remote.rights, READ)
        self.fails(Code.EACCESS, remote.write, self.region)
        constant = self.node.wrap(b"constant")
        self.fails(Code.EACCESS, self.remote.read, constant)
        self.fails(Code.EACCESS, self.remote.fetch_add, constant, 0, 1)
        self.fails(Code.EACCESS, self.remote.compare_swap, constant, 0, 1, 2)
        self.fails(Code.EACCESS, constant.copy_from, self.region, length=8)
        self.fails(Code.EACCESS, constant.publish, "constant", READ | WRITE)
        constant.publish("constant")

    def test_paths(self):
        error = self.fails(Code.ENOPATH, self.remote.write, self.region, only="tcp", zero_copy=True)
        self.assertIn("tcp", error.hint)
        self.fails(Code.EINVAL, self.remote.write, self.region, only="pigeon")
        with self.assertRaises(ValueError):
            self.remote.explain(self.region, "teleport")
        self.fails(Code.EINVAL, haul.Node, paths="tcp:64K")
        self.fails(Code.EINVAL, haul.Node, tcp_zero_copy=4095)
        with haul.Node(paths="tcp:64K,map", staging_bytes=8 << 20, max_transfers=9) as node:
            address = f"unix://@haul-test-python-{self.server.process.pid}"
            remote = node.connect(address).lookup("r")
            path = remote.explain(node.alloc(4096), length=4096)[0]
            self.assertEqual((path.name, path.reason), ("tcp", "set by the program"))
            self.assertEqual((path.send, path.measured), ("buffered", False))
            self.assertEqual(path.cost_ns, path.estimate_ns)

    def test_priorities(self):
        for priority in (-1, 0, 1):
            transfer = self.remote.write(self.region, only="tcp", priority=priority)
            transfer.wait()
            self.assertGreaterEqual(transfer.report().queued_ns, transfer.report().setup_ns)
        for wrong in (-2, 2):
            self.fails(Code.EINVAL, self.remote.write, self.region, priority=wrong)
        with self.assertRaises(TypeError):
            self.remote.write(self.region, priority="high")

    def test_another_node_s_region(self):
        with haul.Node() as other:
            self.fails(Code.EINVAL, self.remote.write, other.alloc(4096))

    def test_what_is_closed(self):
        transfer = self.remote.write(self.region)
        transfer.close()
        for call in (transfer.done, transfer.wait, transfer.cancel, transfer.report):
            self.fails(Code.ECLOSED, call)
        self.region.close()
        self.fails(Code.ECLOSED, self.remote.write, self.region)
        self.remote.close()
        self.fails(Code.ECLOSED, self.remote.write, self.node.alloc(4096))
        self.fails(Code.ECLOSED, lambda: self.remote.length)
        self.peer.close()
        self.fails(Code.ECLOSED, self.peer.send)

    def test_messages(self):
        self.fails(Code.ELIMIT, self.peer.send, bytes(haul.MESSAGE_MAX + 1))
        with self.assertRaises(TypeError):
            self.peer.send("text")
        with self.assertRaises(OverflowError):
            self.peer.send(tag=-1)

    def test_notifications(self):
        """None of them is sent."""
        write = self.remote.write
        self.fails(Code.ELIMIT, write, self.region, notify=bytes(haul.MESSAGE_MAX + 1))
        self.fails(Code.ERANGE, write, self.region, [(0, 0, 4097)], notify=b"no")
        with self.assertRaises(TypeError):
            write(self.region, notify="text")
        with self.assertRaises(OverflowError):
            write(self.region, notify=b"no", tag=-1)
        for call in (write, self.remote.read):
            with self.assertRaisesRegex(ValueError, "tag"):
                call(self.region, tag=1)
        with self.assertRaisesRegex(ValueError, "tag"):
            self.remote.fetch_add(self.region, 0, 1, tag=1)
        data = bytearray(b"no")
        self.fails(Code.EINVAL, write, self.region, [], notify=data)
        data.append(0)  # it is not kept
        self.peer.send(b"first")
        self.assertEqual(self.node.receive().data[8:], b"first")

    def test_events(self):
        """python.gpu_double has some."""

        class Event:
            cuda_event = 0  # of PyTorch, never recorded

        for wrong in (Event(), 0):
            with self.assertRaisesRegex(ValueError, "never recorded"):
                self.remote.write(self.region, after=wrong)
        for wrong in ("event", self.region):
            with self.assertRaisesRegex(TypeError, "torch.cuda.Event"):
                self.remote.read(self.region, after=wrong)
        self.fails(Code.ENOTSUP, self.remote.write, self.region, after=1 << 40)

    def test_deadlines(self):
        big = self.node.alloc(8 << 20)
        with self.assertRaises(haul.TimedOut):
            self.remote.write(big, only="tcp", timeout=0)

    def test_what_is_waited_for(self):
        transfer = self.remote.write(self.region)
        for wait in (haul.wait_all, haul.wait_any):
            for wrong in (None, transfer, [None], [transfer, self.region]):
                with self.assertRaises(TypeError):
                    wait(wrong)
            with self.assertRaises(TypeError):
                wait([transfer], timeout="soon")
            with haul.Node() as other:
                region = other.alloc(4096)
                peer = other.connect(f"unix://@haul-test-python-{self.server.process.pid}")
                second = peer.lookup("r").write(region)
                self.fails(Code.EINVAL, wait, [transfer, second])
                second.close()
                self.fails(Code.ECLOSED, wait, [transfer, second])
        self.fails(Code.EINVAL, haul.wait_any, [])
        transfer.close()  # no call keeps it


class Works(WithServer):
    def test_there_and_back(self):
        remote = self.peer.lookup("r")
        self.assertEqual((remote.length, remote.place), (8 << 20, "host"))
        self.assertEqual((remote.rights, remote.name), (READ | WRITE, "r"))
        source, back = self.node.alloc(8 << 20), self.node.alloc(8 << 20)
        for path in ("map", "tcp"):
            memoryview(source)[:] = os.urandom(8 << 20)
            transfer = remote.write(source, only=path, checksum=True, cpu_time=True)
            self.assertIs(transfer.wait(), transfer)
            report = transfer.report()
            self.assertEqual((report.status, report.bytes, report.operation), (0, 8 << 20, "write"))
            self.assertEqual((report.paths[0].name, report.paths[0].chosen), (path, True))
            self.assertEqual((report.peer, report.name, report.checksum), ("server", "r", True))
            self.assertGreater(report.cpu_ns, 0)
            self.assertIn(f"path {path}", str(report))
            self.assertIn("CPU time", str(report))
            self.assertFalse(str(report).endswith("\n"))
            memoryview(back)[:] = bytes(8 << 20)
            remote.read(back, only=path).wait()
            self.assertEqual(memoryview(back), memoryview(source))

    def test_pieces_and_device_memory(self):
        remote = self.peer.lookup("r")
        device, host = self.node.alloc(4096, "sim:0"), self.node.alloc(4096)
        memoryview(host)[:] = os.urandom(4096)
        device.copy_from(host)
        remote.write(device, [(0, 100, 1000), (2000, 50_000, 96)]).wait()
        remote.read(host, [(0, 100, 1000), (1000, 50_000, 96)]).wait()
        back = self.node.alloc(4096)
        back.copy_from(device)
        expected = bytes(back.bytes()[:1000]) + bytes(back.bytes()[2000:2096])
        self.assertEqual(bytes(host.bytes()[:1096]), expected)

    def test_evenly_spaced_pieces(self):
        remote, host, back = self.peer.lookup("r"), self.node.alloc(4096), self.node.alloc(4096)
        host.bytes()[:] = os.urandom(4096)
        remote.write(host, [(0, 1000, 8, 100, 16, 24), (7, 500, 1), (0, 0, 1, 0, 1, 1)]).wait()
        transfer = remote.read(back, [(0, 1000, 8, 100, 8, 24), (800, 500, 1)]).wait()
        self.assertEqual(transfer.report().pieces, 101)
        wanted = b"".join(bytes(host.bytes()[at : at + 8]) for at in range(0, 1600, 16))
        self.assertEqual(bytes(back.bytes()[:801]), wanted + bytes(host.bytes()[7:8]))

    def test_short_pieces_of_a_large_transfer(self):
        """They are copied past the caches."""
        remote, host, back = self.peer.lookup("r"), self.node.alloc(8 << 20), self.node.alloc(8 << 20)
        host.bytes()[:] = os.urandom(8 << 20)
        remote.write(host).wait()
        for length, step in ((255, 400), (300, 333), (1000, 1000), (4097, 4100)):
            count = (8 << 20) // step
            back.bytes()[:] = bytes(8 << 20)
            remote.read(back, [(0, 0, length, count, step, step)]).wait()
            wanted = bytearray(8 << 20)
            for at in range(0, count * step, step):
                wanted[at : at + length] = host.bytes()[at : at + length]
            self.assertTrue(back.bytes() == wanted, length)

    def test_tensors(self):
        """Tensors at any offset in their region."""
        remote, region = self.peer.lookup("r"), self.node.alloc(4096)
        memoryview(region)[:] = os.urandom(4096)
        source = region.tensor("float32", (1, 16), (99, 1), offset=128)
        back = region.tensor("bfloat16", (2, 16), offset=2048)
        transfer = remote.write(source)
        self.assertIs(transfer.region, region)
        self.assertEqual(transfer.wait().report().bytes, 64)
        remote.read(back).wait()
        self.assertEqual(region.bytes()[2048:2112], region.bytes()[128:192])
        remote.write(source, [(60, 100, 4), (0, 104, 8)]).wait()
        remote.read(back, [(52, 100, 12)]).wait()
        self.assertEqual(region.bytes()[2100:2104], region.bytes()[188:192])
        self.assertEqual(region.bytes()[2104:2112], region.bytes()[128:136])
        remote.write(self.node.wrap(bytearray(8)), [(0, 64, 8)]).wait()
        numbers = region.tensor("int64", (4,), offset=1024)
        remote.fetch_add(numbers, 64, 5).wait()
        remote.compare_swap(numbers, 64, 5, 7, result_offset=8).wait()
        self.assertEqual(memoryview(numbers).tolist()[:2], [0, 5])
        self.assertTrue(remote.explain(numbers, "read")[0].chosen)

    def test_a_transfer_keeps_its_region(self):
        remote = self.peer.lookup("r")
        transfer = remote.write(self.node.wrap(bytearray(b"x" * (8 << 20))), only="tcp")
        transfer.wait()
        check = self.node.alloc(4096)
        remote.read(check).wait()
        self.assertEqual(bytes(check.bytes()), b"x" * 4096)

    def test_many_at_once(self):
        remote, region = self.peer.lookup("r"), self.node.alloc(4096)
        pieces = [[(at, at, 16)] for at in range(0, 4096, 16)]
        memoryview(region)[:] = os.urandom(4096)
        self.assertIsNone(haul.wait_all(remote.write(region, piece, only="tcp") for piece in pieces))
        back = self.node.alloc(4096)
        pending = {remote.read(back, piece, only="tcp") for piece in pieces}
        while pending:
            ended = haul.wait_any(pending)
            self.assertTrue(ended.done())
            pending.remove(ended)
        self.assertEqual(back.bytes(), region.bytes())
        haul.wait_all([])

    def test_cancel(self):
        remote = self.peer.lookup("r")
        transfer = remote.write(self.node.alloc(8 << 20), only="tcp")
        transfer.cancel()
        try:
            transfer.wait()
        except haul.Error as error:
            self.assertEqual(error.code, Code.ECANCELED)
        self.assertTrue(transfer.done())

    def test_lists_and_explanations(self):
        self.assertEqual(
            [(entry.name, entry.length, entry.rights) for entry in self.peer.list()],
            [("r", 8 << 20, READ | WRITE), ("ro", 8 << 20, READ)],
        )
        paths = self.peer.lookup("r").explain(self.node.alloc(4096), "read", 1 << 20)
        self.assertTrue(paths[0].chosen)
        self.assertEqual({path.name for path in paths}, {"map", "tcp", "rdma"})
        for path in paths[1:]:
            self.assertTrue(path.reason)

    def test_messages_come_after_writes(self):
        remote = self.peer.lookup("r")
        source = self.node.wrap(bytearray(b"original"))
        remote.write(source)
        self.peer.send(b"!", tag=41)
        message = self.node.receive()
        self.assertEqual((message.data, message.tag), (b"original!", 42))
        self.assertEqual(message.kind, "message")
        self.assertEqual({message.peer: 1}, {self.peer: 1})
        with haul.Node() as other:
            address = f"unix://@haul-test-python-{self.server.process.pid}"
            self.assertNotEqual(other.connect(address), self.peer)
        self.assertEqual(message.peer.name, "server")
        self.peer.send(memoryview(b"-"))
        self.assertEqual(self.node.receive().tag, 1)

    def test_a_notification_follows_the_bytes(self):
        """The server responds with the first bytes of the region, so they were there before it."""
        remote, local = self.peer.lookup("r"), self.node.alloc(8 << 20)
        for i, path in enumerate(("map", "tcp") * 2):
            memoryview(local)[:] = bytes([i]) * (8 << 20)
            written = remote.write(local, only=path, notify=bytearray(b"written"), tag=i)
            message = self.node.receive()
            self.assertEqual((message.data, message.tag), (bytes([i]) * 8 + b"written", i + 1))
            written.wait()
        remote.read(local, [(0, 0, 8)], notify=b"", tag=6).wait()
        self.assertEqual(self.node.receive().tag, 7)
        remote.fetch_add(local, 0, 1, notify=b"added", tag=(1 << 64) - 2).wait()
        message = self.node.receive()
        self.assertEqual((message.data, message.tag), (b"\4" + b"\3" * 7 + b"added", (1 << 64) - 1))
        remote.compare_swap(local, 0, 1, 2, notify=memoryview(b"swapped")).wait()
        self.assertEqual(self.node.receive().data[8:], b"swapped")

    def test_atomic_operations(self):
        remote = self.peer.lookup("r")
        zero, result = self.node.wrap(bytearray(8)), self.node.alloc(4096)
        remote.write(zero, [(0, 64, 8)]).wait()
        remote.fetch_add(result, 64, 5).wait()
        remote.fetch_add(result, 64, -1, result_offset=8).wait()
        remote.compare_swap(result, 64, 4, 99, result_offset=16).wait()
        remote.fetch_add(result, 64, 0, result_offset=24).wait()
        self.assertEqual(struct.unpack("4Q", result.bytes()[:32]), (0, 5, 4, 99))
        self.fails(Code.EINVAL, remote.fetch_add, result, 65, 1)
        self.fails(Code.EACCESS, self.peer.lookup("ro").fetch_add, result, 64, 1)
        with self.assertRaises(TypeError):
            remote.fetch_add(result, 64, 1.5)

    def test_other_threads_run_meanwhile(self):
        done = []
        thread = threading.Thread(target=lambda: done.append(self.node.receive(timeout=math.inf)))
        thread.start()
        self.peer.send(b"?")
        thread.join(support.PATIENCE)
        self.assertEqual(done[0].data[8:], b"?")

    def test_progress_by_the_caller(self):
        with haul.Node(progress="caller") as node:
            peer = node.connect(self.node.listen("tcp://127.0.0.1:0"))
            peer.send(b"driven")
            self.assertEqual(self.node.receive().data, b"driven")
            self.assertFalse(node.progress())

    def test_what_they_look_like(self):
        remote, region = self.peer.lookup("r"), self.node.alloc(4096, "sim:0")
        self.assertEqual(repr(remote), "<haul.Remote r of 8388608 bytes at host>")
        self.assertEqual(repr(self.peer), "<haul.Peer server>")
        self.assertEqual(repr(region), "<haul.Region of 4096 bytes at sim:0>")
        self.assertIn("float32", repr(region.tensor("float32", (4,))))
        transfer = remote.write(region).wait()
        self.assertEqual(repr(transfer), "<haul.Transfer, write of 4096 bytes, complete>")
        self.server.kill()
        while self.peer.alive:
            time.sleep(0.01)
        self.assertEqual(repr(self.peer), "<haul.Peer server, gone>")
        for thing in (transfer, remote, self.peer, region):
            thing.close()
            self.assertIn("closed>", repr(thing))

    def test_what_a_node_knows(self):
        self.assertIn("sim:0", [device.place for device in self.node.devices()])
        for port in self.node.ports():  # python.nic_double has one
            self.assertTrue(port.choice if port.usable else port.reason)
        self.fails(Code.EPLACE, self.node.ports, "moon")
        self.assertTrue(
            {"ok", "limited", "missing"} >= {check.state for check in self.node.checks()}
        )
        self.assertIn("pool.hits", self.node.counters())


if __name__ == "__main__":
    support.main()
