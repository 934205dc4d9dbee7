# SPDX-License-Identifier: MIT
"""haul.mooncake: the calls of Mooncake's TransferEngine, over haul."""

import ctypes
import subprocess
import sys

import haul.mooncake
import support
from haul.mooncake import TransferEngine


def address_of(memory):
    return ctypes.addressof(ctypes.c_char.from_buffer(memory))


class Engines(support.Case):
    def engine(self):
        engine = TransferEngine()
        self.assertEqual(engine.initialize("127.0.0.1", "P2PHANDSHAKE", "rdma", "mlx5_0"), 0)
        return engine

    def setUp(self):
        self.here, self.there = self.engine(), self.engine()
        self.target = f"127.0.0.1:{self.there.get_rpc_port()}"
        self.ours, self.theirs = bytearray(8192), [bytearray(b"a" * 4096), bytearray(b"b" * 4096)]
        self.assertEqual(self.here.register_memory(address_of(self.ours), 8192), 0)
        addresses = [address_of(one) for one in self.theirs]
        self.assertEqual(self.there.batch_register_memory(addresses, [4096, 4096]), 0)

    def read(self, *pieces):
        buffers, peers, lengths = zip(*pieces)
        start = address_of(self.ours)
        return self.here.batch_transfer_sync_read(
            self.target, [start + at for at in buffers], list(peers), list(lengths)
        )

    def logged(self):
        return self.assertLogs("haul.mooncake", "ERROR")

    def test_reads(self):
        first, second = map(address_of, self.theirs)
        self.assertEqual(self.read((0, first + 100, 10), (10, second, 4096), (5000, first, 1)), 0)
        self.assertEqual(self.ours[:4106], b"a" * 10 + b"b" * 4096)
        self.assertEqual(self.ours[4999:5002], b"\0a\0")

    def test_writes(self):
        self.ours[:3] = b"xyz"
        start, first = address_of(self.ours), address_of(self.theirs[0])
        code = self.here.batch_transfer_sync_write(self.target, [start], [first + 7], [3])
        self.assertEqual((code, bytes(self.theirs[0][6:11])), (0, b"axyza"))

    def test_memory_that_is_registered_later(self):
        self.assertEqual(self.read((0, address_of(self.theirs[0]), 1)), 0)
        more = bytearray(b"c" * 100)
        self.assertEqual(self.there.register_memory(address_of(more), 100), 0)
        self.assertEqual(self.read((0, address_of(more), 100)), 0)
        self.assertEqual(self.ours[:101], b"c" * 100 + b"\0")

    def test_memory_that_is_registered_again(self):
        first = address_of(self.theirs[0])
        self.assertEqual(self.read((0, first, 4096)), 0)
        self.assertEqual(self.there.batch_unregister_memory([first]), 0)
        with self.logged():
            self.assertEqual(self.read((0, first, 4096)), -1)
        self.assertEqual(self.there.register_memory(first, 4096), 0)
        self.assertEqual(self.read((0, first, 4096)), 0)

    def test_refused(self):
        first, second = map(address_of, self.theirs)
        for pieces in (
            [(0, max(first, second), 4097)],
            [(8000, first, 1000)],
            [(0, 4096, 1)],
            [(0, first, 1), (0, 4096, 1)],
        ):
            with self.logged():
                self.assertEqual(self.read(*pieces), -1, pieces)
        with self.logged():
            self.assertEqual(self.here.batch_transfer_sync_read("127.0.0.1:1", [0], [0], [1]), -1)
        with self.logged():
            self.assertEqual(self.here.unregister_memory(4096), -1)
        with self.logged():
            self.assertEqual(TransferEngine().register_memory(first, 4096), -1)
        with self.logged():
            self.assertEqual(TransferEngine().initialize("127.0.0.1", "etcd://127.0.0.1"), -1)
        with self.logged():
            self.assertEqual(TransferEngine().initialize("192.0.2.1", "P2PHANDSHAKE"), -1)
        self.assertRaises(ValueError, self.here.batch_register_memory, [first], [])

    def test_none_of_a_batch_that_fails(self):
        engine, memory = self.engine(), bytearray(4096)
        with self.logged():
            self.assertEqual(engine.batch_register_memory([address_of(memory)] * 2, [4096] * 2), -1)
        with self.logged():
            self.assertEqual(engine.unregister_memory(address_of(memory)), -1)

    def test_install(self):
        code = (
            "import haul.mooncake; haul.mooncake.install()\n"
            "from mooncake.engine import TransferEngine\n"
            "assert TransferEngine is haul.mooncake.TransferEngine"
        )
        self.assertEqual(subprocess.run([sys.executable, "-c", code]).returncode, 0)


if __name__ == "__main__":
    support.main()
