# SPDX-License-Identifier: MIT
"""GPU memory: DLPack tensors on CUDA devices. ctest runs it with a mocked driver."""

import os
from concurrent.futures import ThreadPoolExecutor

import haul
import support
from haul import READ, WRITE, Code, Layout
from test_dlpack import Versioned, consume, delete, look

CPU, CUDA = 1, 2


class Passed:
    """A tensor of another library, as haul sees it."""

    def __init__(self, tensor):
        self.tensor = tensor

    def __dlpack__(self, **keywords):
        return self.tensor.__dlpack__(**keywords)


class Gpu(support.Case):
    def setUp(self):
        self.node = haul.Node()
        self.addCleanup(self.node.close)
        if "cuda:0" not in [device.place for device in self.node.devices()]:
            self.skipTest("no GPU")
        self.region = self.node.alloc(2 << 20, "cuda:0")

    def test_no_buffer(self):
        with self.assertRaisesRegex(BufferError, "DLPack"):
            memoryview(self.region)

    def test_device(self):
        with self.assertRaises(BufferError):
            self.region.__dlpack__(dl_device=(CPU, 0))
        self.assertEqual(self.region.__dlpack_device__(), (CUDA, 0))
        tensor = self.region.tensor("bfloat16", (2, 8), offset=256)
        for stream in (None, -1, 1, 2, 0x5500_0000_1000):
            managed = look(tensor.__dlpack__(stream=stream, dl_device=(CUDA, 0)))
            self.assertEqual((managed.tensor.device_type, managed.tensor.device_id), (CUDA, 0))
            self.assertEqual(managed.tensor.data, self.region.address + 256)
        del managed

    def test_wrapped_tensors(self):
        tensor = self.region.tensor("float32", (4, 4), (8, 1), offset=4096)
        wrapped = self.node.wrap(Passed(tensor))
        self.assertEqual(wrapped.place, "cuda:0")
        self.assertEqual(wrapped.address, self.region.address + 4096)
        self.assertEqual(wrapped.layout, Layout("float32", (4, 4), (8, 1), 0))
        managed = consume(wrapped.__dlpack__(max_version=(1, 0)))
        self.assertIsInstance(managed, Versioned)
        with self.assertRaises(BufferError):
            wrapped.close()
        delete(managed)
        wrapped.close()
        self.region.close()

    def test_send_tensor(self):
        with haul.Node(timeout=support.PATIENCE) as sender, ThreadPoolExecutor() as pool:
            peer = sender.connect(self.node.listen("unix://@haul-test-gpu-%d" % os.getpid()))
            host, memory = sender.alloc(4096), sender.alloc(4096, "cuda:0")
            memoryview(host)[:] = os.urandom(4096)
            memory.copy_from(host)
            tensor = Passed(memory.tensor("float32", (8, 64), offset=1024))
            out = Passed(self.region.tensor("float32", (8, 64), offset=512))
            for _ in range(2):
                sent = pool.submit(haul.send, tensor, peer)
                self.assertIs(haul.receive(self.node, out).tensor, out)
                sent.result(support.PATIENCE)
            back = self.node.alloc(4096)
            back.copy_from(self.region, length=4096)
            self.assertEqual(memoryview(back)[512:2560], memoryview(host)[1024:3072])

    def test_another_process(self):
        self.fails(Code.ENOTSUP, self.region.export)
        child = self.child("""
            node = haul.Node()
            region = channel.import_ticket(node)
            assert region.place == "cuda:0" and not region.readonly
            assert region.__dlpack_device__() == (2, 0)
            assert region.layout.shape == (16,)
            region.copy_from(node.wrap(bytearray(b"from the child")))
            channel.send_text("done")
        """)
        child.send_ticket(self.region.export(Layout("float32", (16,)), READ | WRITE))
        self.assertEqual(child.receive_text(), "done")
        self.ends_well(child)
        host = self.node.alloc(4096)
        host.copy_from(self.region, length=14)
        self.assertEqual(bytes(host.bytes()[:14]), b"from the child")


if __name__ == "__main__":
    support.main()
