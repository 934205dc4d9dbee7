# SPDX-License-Identifier: MIT
"""NICs: their ports, and transfers over them. ctest runs it with an emulated NIC."""

import os

import haul
import support
from haul import Code


class Nic(support.Case):
    def setUp(self):
        self.node = haul.Node()
        self.addCleanup(self.node.close)

    def test_ports(self):
        first, *rest = self.node.ports()
        self.assertEqual((first.path, first.usable, first.reason), ("rdma", True, ""))
        self.assertRegex(first.name, r"^\w+/\d+$")
        self.assertTrue(first.chosen and first.choice and first.address)
        self.assertGreater(min(first.mtu, first.bits_per_second), 0)
        for port in rest:
            self.assertTrue(port.choice if port.usable else port.reason)
        self.assertEqual({port.name for port in self.node.ports("sim:0")}, {first.name} | {port.name for port in rest})
        self.fails(Code.EPLACE, self.node.ports, "moon")

    def test_a_notification_follows_the_bytes(self):
        source = self.node.alloc(1 << 20)
        with source.bytes() as view:
            view[:] = os.urandom(1 << 20)
        with haul.Node() as owner, owner.alloc(1 << 20) as region:
            region.publish("r", haul.READ | haul.WRITE)
            remote = self.node.connect(owner.listen("tcp://127.0.0.1:0")).lookup("r")
            written = remote.write(source, only="rdma", notify=b"written", tag=1)
            self.assertEqual(owner.receive().data, b"written")
            self.assertEqual(region.bytes(), source.bytes())
            self.assertEqual(written.wait().report().paths[0].name, "rdma")


if __name__ == "__main__":
    support.main()
