# SPDX-License-Identifier: MIT
"""Each allocation of the interpreter fails once: MemoryError, without leaks."""

import os
import socket
import sys
import tempfile
import unittest
import unittest.mock

import haul
import support
from haul import READ, WRITE, Layout

_testcapi = None
MOST = 2000  # upper bound of allocations per call


def setUpModule():
    global _testcapi
    try:
        import _testcapi
    except ImportError:
        raise unittest.SkipTest("this Python has no _testcapi") from None
    if sys.version_info[:2] == (3, 12):
        raise unittest.SkipTest("Python 3.12 itself crashes when its allocations fail")


class Sweep(support.Case):
    def setUp(self):
        self.node = haul.Node()
        self.addCleanup(self.node.close)
        self.region = self.node.alloc(1 << 20)
        self.region.publish("r", READ | WRITE)
        peer = self.node.connect(self.node.listen(f"unix://@haul-test-memory-{os.getpid()}"))
        self.peer, self.remote = peer, peer.lookup("r")

    def sweep(self, call):
        """Fail the n-th allocation, with growing n until the call succeeds."""
        for n in range(MOST):
            failed = None
            _testcapi.set_nomemory(n, n + 1)
            try:
                call()
            except BaseException as error:
                failed = error
            finally:
                _testcapi.remove_mem_hooks()
            if failed is None and n > 20:  # the interpreter ignores some failures
                return
            self.assertIsInstance(failed, (MemoryError, type(None)))
        self.fail("the call never succeeds")

    def test_tensors(self):
        layout = Layout("float32", (4, 4), (4, 1), 16)
        array = bytearray(64)

        def hand_out():
            tensor = self.region.tensor("float32", (4, 4), offset=16)
            memoryview(tensor).release()
            del tensor

        def share():
            ticket, descriptor = self.region.export(layout)
            os.close(descriptor)

        self.sweep(hand_out)
        self.sweep(self.region.__dlpack__)
        self.sweep(lambda: self.region.__dlpack__(max_version=(1, 0)))
        self.sweep(lambda: self.region.layout)
        self.sweep(lambda: self.node.wrap(array).close())
        self.sweep(share)
        array.append(1)  # not exported any more
        self.region.close()

    def test_transfers(self):
        pieces = [(i, i, 1) for i in range(50)]
        local = self.node.alloc(4096)
        self.sweep(lambda: self.remote.write(local, pieces).wait())
        transfer = self.remote.write(local, only="tcp").wait()
        self.sweep(transfer.report)
        self.sweep(lambda: haul.wait_all([transfer, transfer]))
        self.sweep(lambda: haul.wait_any([transfer]))
        self.sweep(lambda: self.remote.explain(local))
        self.sweep(lambda: self.peer.lookup("r"))
        self.sweep(self.peer.list)
        self.sweep(self.node.counters)
        self.sweep(self.node.devices)
        self.sweep(self.node.ports)
        self.sweep(self.node.checks)
        local.close()

    def test_files_and_worlds(self):
        with tempfile.TemporaryFile() as file:
            file.write(bytes(4096))
            file.flush()
            self.sweep(lambda: self.node.wrap_file(file).close())
            region = self.node.alloc(4096)
            self.sweep(lambda: haul.File(file).read(region))
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = str(probe.getsockname()[1])
        launcher = dict(RANK="0", WORLD_SIZE="1", MASTER_ADDR="127.0.0.1", HAUL_WORLD_PORT=port)
        with unittest.mock.patch.dict(os.environ, launcher), self.node.join() as world:
            self.sweep(lambda: world.addresses)

    def test_errors(self):
        def fail():
            try:
                self.peer.lookup("nothing")
            except haul.Error:
                pass

        self.sweep(fail)


if __name__ == "__main__":
    support.main()
