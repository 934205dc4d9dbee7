# SPDX-License-Identifier: MIT
"""Files as regions, worlds, directories, and transfers that are batched."""

import math
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time

import haul
import support
from haul import READ, WRITE, Code

PATIENCE = support.PATIENCE


class Files(support.Case):
    def setUp(self):
        self.node = haul.Node(timeout=PATIENCE)
        self.addCleanup(self.node.close)
        self.file = tempfile.TemporaryFile()
        self.addCleanup(self.file.close)
        self.content = bytes(range(256)) * 64
        self.file.write(self.content)
        self.file.flush()

    def test_ranges(self):
        for arguments, content in (
            ((), self.content),
            ((100,), self.content[100:]),
            ((100, 50), self.content[100:150]),
            ((0, None), self.content),
        ):
            with self.node.wrap_file(self.file, *arguments) as region:
                self.assertEqual(bytes(region), content)
                self.assertTrue(region.readonly)
        with self.node.wrap_file(self.file.fileno(), offset=5, length=6) as region:
            self.file.close()  # the region does not need it
            self.assertEqual(bytes(region), self.content[5:11])

    def test_it_is_written_to_peers(self):
        with haul.Node(timeout=PATIENCE) as other, other.alloc(len(self.content)) as target:
            target.publish("t", READ | WRITE)
            peer = self.node.connect(other.listen("tcp://127.0.0.1:0"))
            with self.node.wrap_file(self.file) as region, peer.lookup("t") as remote:
                self.assertTrue(remote.write(region, checksum=True).wait().report().checksum)
                error = self.fails(Code.EACCESS, remote.read, region)
                self.assertEqual((error.object, "file" in error.hint), ("wrapped file", True))
            self.assertEqual(bytes(target), self.content)

    def test_refused(self):
        wrap = self.node.wrap_file
        self.fails(Code.ERANGE, wrap, self.file, 0, len(self.content) + 1)
        self.fails(Code.EINVAL, wrap, self.file, len(self.content))
        self.fails(Code.EINVAL, wrap, self.file, 1 << 40)
        with open("/dev/null", "rb") as device:
            self.fails(Code.EINVAL, wrap, device, 0, 1)
        self.assertRaises(TypeError, wrap, "name")
        self.assertRaises(TypeError, wrap, self.file, "first")
        self.assertRaises(OverflowError, wrap, self.file, -1)
        self.assertRaises(OverflowError, wrap, self.file, 0, -1)
        self.assertRaises(OSError, wrap, 999_999)
        self.node.close()
        self.fails(Code.ECLOSED, wrap, self.file)


class Batches(support.Case):
    def test_more(self):
        with haul.Node(timeout=PATIENCE) as node, haul.Node(timeout=PATIENCE) as owner:
            region, local = owner.alloc(1 << 16), node.alloc(1 << 16)
            region.publish("r", READ | WRITE)
            with local.bytes() as view:
                view[:] = os.urandom(1 << 16)
            remote = node.connect(owner.listen("tcp://127.0.0.1:0")).lookup("r")
            pieces = [[(at, at, 4096)] for at in range(0, 1 << 16, 4096)]
            for piece in pieces:  # the last one too: a batch ends by itself
                transfers = [remote.write(local, piece, only="tcp", more=True) for piece in pieces]
            for transfer in transfers:
                transfer.wait()
            self.assertEqual(bytes(region), bytes(local))
            remote.read(local, more=True).wait()
            with self.assertRaises(TypeError):
                remote.fetch_add(local, 0, 1, more=True)


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Worlds(support.Case):
    def environ(self, **values):
        names = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "HAUL_WORLD_PORT")
        before = {name: os.environ.get(name) for name in names}
        self.addCleanup(os.environ.update, {k: v for k, v in before.items() if v is not None})
        for name in names:
            if before[name] is None:
                self.addCleanup(os.environ.pop, name, None)
            os.environ.pop(name, None)
        os.environ.update(values)

    def test_two_ranks(self):
        self.environ(
            RANK="1", WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", HAUL_WORLD_PORT=str(free_port())
        )
        child = self.child("""
            with haul.Node("second", timeout=60) as node, node.join() as world:
                assert (world.rank, world.size) == (1, 2), world.rank
                assert node.receive().data == b"hello"
                with world.peer(0) as peer:
                    peer.send(b"bye")
                channel.receive_text()
        """)
        os.environ["RANK"] = "0"
        with haul.Node("first", timeout=PATIENCE) as node:
            with node.join() as world:
                self.assertEqual((world.rank, world.size, world.node), (0, 2, node))
                self.assertEqual(len(world.addresses), 2)
                self.assertEqual(world.addresses[0], node.addresses[0])
                with world.peer(1) as peer:
                    self.assertEqual(peer.name, "second")
                    peer.send(b"hello")
                    self.assertEqual(node.receive().data, b"bye")
                for rank in (0, 2, (1 << 32) - 1):
                    self.fails(Code.ERANGE, world.peer, rank)
                for rank in (-1, 1 << 32, 1 << 64):
                    self.assertRaises(OverflowError, world.peer, rank)
                child.send_text("end")
                self.ends_well(child)
            self.assertTrue(world.closed)
            self.fails(Code.ECLOSED, world.peer, 1)
            self.fails(Code.ECLOSED, lambda: world.rank)

    def test_alone(self):
        self.environ()
        with haul.Node() as node:
            self.fails(Code.ENOTSUP, node.join)
        self.environ(RANK="3", WORLD_SIZE="2")
        with haul.Node() as node:
            self.fails(Code.EINVAL, node.join)

    def test_ranks_that_do_not_come(self):
        self.environ(
            RANK="0", WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", HAUL_WORLD_PORT=str(free_port())
        )
        with haul.Node() as node:
            error = self.fails(Code.ETIMEDOUT, node.join, timeout=0.2)
            self.assertIn("1 of 2", error.text)

    def test_the_node_is_closed_first(self):
        self.environ(
            RANK="0", WORLD_SIZE="1", MASTER_ADDR="127.0.0.1", HAUL_WORLD_PORT=str(free_port())
        )
        node = haul.Node()
        world = node.join()
        node.close()
        self.fails(Code.ECLOSED, world.peer, 0)
        world.close()


class Etcd:
    """An etcd of this test, on loopback."""

    def __init__(self, case):
        folder = tempfile.TemporaryDirectory()
        case.addCleanup(folder.cleanup)
        port, peer_port = free_port(), free_port()
        client, peer = f"http://127.0.0.1:{port}", f"http://127.0.0.1:{peer_port}"
        self.command = [
            "etcd", "--data-dir", folder.name, "--listen-client-urls", client,
            "--advertise-client-urls", client, "--listen-peer-urls", peer,
            "--initial-advertise-peer-urls", peer, "--initial-cluster", f"default={peer}",
            "--unsafe-no-fsync", "--log-level", "error",
        ]  # fmt: skip
        self.address = f"etcd://127.0.0.1:{port}/test"
        self.start()
        case.addCleanup(self.end)

    def start(self):
        """At its old address, with its former data."""
        self.process = subprocess.Popen(
            self.command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )

    def end(self):
        self.process.kill()
        self.process.wait()


class Directories(support.Case):
    def setUp(self):
        if not shutil.which("etcd"):
            self.skipTest("there is no etcd: sudo apt-get install etcd-server")
        self.node = haul.Node("owner", timeout=PATIENCE)
        self.other = haul.Node("client", timeout=PATIENCE)
        self.addCleanup(self.other.close)
        self.addCleanup(self.node.close)
        try:
            self.other.directory("etcd://127.0.0.1:1/test").close()
        except haul.NotSupported as error:
            self.skipTest(f"haul is built without directories: {error}")
        self.etcd = Etcd(self)
        until = time.monotonic() + PATIENCE
        while True:
            try:
                self.other.find(f"{self.etcd.address}/none")
            except haul.NoSuchName:
                break
            except (haul.ConnectFailed, haul.PeerGone):
                self.assertLess(time.monotonic(), until)
                time.sleep(0.02)

    def registered(self):
        region = self.node.alloc(4096)
        region.publish("kv", READ | WRITE)
        self.address = self.node.listen("tcp://127.0.0.1:0")
        self.assertIsNone(self.node.register(self.etcd.address, lease=2))
        return region

    def test_names(self):
        with self.registered() as region:
            (node,) = self.other.find(f"{self.etcd.address}/owner")
            self.assertEqual((node.kind, node.node, node.name), ("node", "owner", ""))
            self.assertEqual((node.place, node.length, node.rights), (None, 0, haul.Rights(0)))
            self.assertEqual((node.addresses, len(node.id)), ((self.address,), 16))
            with self.other.directory(self.etcd.address) as walk:
                while (event := walk.next()).kind != "told":  # regions are registered a moment later
                    self.assertEqual(event.kind, "holds")
                self.assertIsNone(event.entry)
            found = self.wait_for("kv")
            self.assertEqual(found[0][:4], ("region", "owner", "kv", 4096))
            self.assertEqual((found[0].place, found[0].rights), ("host", READ | WRITE))
            with self.other.connect(f"{self.etcd.address}/kv") as peer, peer.lookup("kv") as remote:
                self.assertEqual(remote.length, 4096)
            haul.share(bytearray(8), "t", WRITE, node=self.node)
            self.fails(Code.ENAME, self.other.find, f"{self.etcd.address}/none")
            self.fails(Code.EINVAL, self.node.register, self.etcd.address)  # it is registered
            self.fails(Code.EADDRESS, self.other.find, "etcd://")
            self.assertTrue(region)

    def wait_for(self, name):
        until = time.monotonic() + PATIENCE
        while time.monotonic() < until:
            try:
                return self.other.find(f"{self.etcd.address}/{name}")
            except haul.NoSuchName:
                time.sleep(0.02)
        self.fail(f"{name} is not registered")

    def test_shared_tensors_by_name(self):
        with self.registered(), haul.share(b"hello", "greeting", node=self.node):
            self.wait_for("greeting.tensor")
            for target in ("greeting", "owner/greeting"):
                received = haul.receive(
                    f"{self.etcd.address}/{target}", limit=5, node=self.other
                )
                self.assertEqual(bytes(received.tensor), b"hello")

    def test_changes(self):
        with self.other.directory(self.etcd.address) as walk:
            self.assertEqual(walk.next(), haul.Event("told", None))
            self.fails(Code.ETIMEDOUT, walk.next, timeout=0.05)
            with self.registered():
                came = {walk.next().entry.name for _ in range(2)}
                self.assertEqual(came, {"", "kv"})
            event = walk.next()
            self.assertEqual((event.kind, event.entry[:3]), ("went", ("region", "owner", "kv")))
            self.waits_in_one_thread(walk)
        self.fails(Code.ECLOSED, walk.next)

    def test_etcd_is_away_for_a_while(self):
        with self.registered(), self.other.directory(self.etcd.address) as walk:
            while walk.next().kind != "told":
                pass
            self.etcd.end()
            with self.assertRaises((haul.ConnectFailed, haul.PeerGone, haul.TimedOut)):
                walk.next(timeout=1.5)  # longer than a step
            found = []
            thread = threading.Thread(target=lambda: found.append(self.first_of(walk, "late")))
            thread.start()
            self.etcd.start()
            late = self.node.alloc(4096)
            late.publish("late")
            thread.join(PATIENCE)
            self.assertEqual([event.entry.node for event in found], ["owner"])

    @staticmethod
    def first_of(walk, name):
        while (event := walk.next(timeout=PATIENCE)).entry.name != name:
            pass
        return event

    def waits_in_one_thread(self, walk):
        met = []

        def wait():
            try:
                walk.next(timeout=math.inf)
            except haul.Error as error:
                met.append(error.code)

        thread = threading.Thread(target=wait)
        thread.start()
        until = time.monotonic() + PATIENCE
        while time.monotonic() < until:
            try:
                walk.next(timeout=0)
            except haul.Busy:
                break
            except haul.TimedOut:
                time.sleep(0.01)
        else:
            self.fail("no second thread is refused")
        self.other.close()
        thread.join(PATIENCE)
        self.assertEqual(met, [Code.ECLOSED])

    def test_signals_end_the_wait(self):
        def interrupt(number, frame):
            raise KeyboardInterrupt

        before = signal.signal(signal.SIGALRM, interrupt)
        self.addCleanup(signal.signal, signal.SIGALRM, before)
        with self.other.directory(self.etcd.address) as walk:
            self.assertEqual(walk.next().kind, "told")
            signal.setitimer(signal.ITIMER_REAL, 0.2)
            with self.assertRaises(KeyboardInterrupt):
                walk.next(timeout=math.inf)

    def test_without_etcd(self):
        self.etcd.end()
        self.fails(Code.ECONNECT, self.other.find, f"{self.etcd.address}/x", timeout=1)
        self.node.listen("tcp://127.0.0.1:0")
        self.fails(Code.ECONNECT, self.node.register, self.etcd.address, timeout=1)
        long = f"etcd://127.0.0.1:{free_port()}/" + "x" * 5000
        self.fails(Code.EADDRESS, self.other.directory, long)


if __name__ == "__main__":
    support.main()
