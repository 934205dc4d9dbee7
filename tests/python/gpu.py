# SPDX-License-Identifier: MIT
"""GPU memory: DLPack tensors on CUDA devices, and events. ctest runs it with a mocked driver."""

import ctypes
import os
import threading
import weakref
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


class WithGpu(support.Case):
    def setUp(self):
        self.node = haul.Node()
        self.addCleanup(self.node.close)
        if "cuda:0" not in [device.place for device in self.node.devices()]:
            self.skipTest("no GPU")
        self.region = self.node.alloc(2 << 20, "cuda:0")


class Gpu(WithGpu):
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


class Driver:
    """The context of GPU 0, as the current one of this thread."""

    def __init__(self):
        self.calls = ctypes.CDLL("libcuda.so.1")
        self.context = ctypes.c_void_p()
        self.must("cuInit", 0)
        self.must("cuDevicePrimaryCtxRetain", ctypes.byref(self.context), 0)
        self.must("cuCtxPushCurrent_v2", self.context)

    def must(self, call, *arguments):
        code = getattr(self.calls, call)(*arguments)
        assert code == 0, f"{call}: {code}"


class Event:
    """An event of GPU 0 behind work of its stream, with the attributes of torch.cuda.Event."""

    def __init__(self, driver, device=None):
        self.driver, self.device = driver, device
        self.finished = threading.Event()
        self.work = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(
            lambda user: self.finished.wait(support.PATIENCE) and None
        )
        self.stream, self.event = ctypes.c_void_p(), ctypes.c_void_p()
        driver.must("cuStreamCreate", ctypes.byref(self.stream), 1)
        driver.must("cuEventCreate", ctypes.byref(self.event), 2)
        driver.must("cuLaunchHostFunc", self.stream, self.work, None)
        driver.must("cuEventRecord", self.event, self.stream)

    @property
    def cuda_event(self):
        return self.event.value

    def finish(self):
        self.finished.set()
        self.driver.must("cuStreamSynchronize", self.stream)


class Device:
    """A torch.device."""

    index = 0


class Events(WithGpu):
    """A transfer accesses the local memory once the event has completed."""

    def setUp(self):
        super().setUp()
        self.driver = Driver()
        self.target = self.node.alloc(4096)
        self.target.publish("r", READ | WRITE)
        address = self.node.listen("unix://@haul-test-gpu-events-%d" % os.getpid())
        self.remote = self.node.connect(address).lookup("r")

    def waits_for(self, event, after, call, region):
        for path in ("map", "tcp"):
            transfer = call(region, [(0, 0, 5)], only=path, after=after)
            self.assertRaises(haul.TimedOut, transfer.wait, 0.05)
            self.assertFalse(transfer.done())
        event.finish()
        transfer.wait(support.PATIENCE)

    def test_writes_and_reads(self):
        for call in (self.remote.write, self.remote.read):
            event = Event(self.driver)
            self.waits_for(event, event, call, self.region)
            event = Event(self.driver)
            self.waits_for(event, event.cuda_event, call, self.region)

    def test_host_memory(self):
        """The event names its GPU."""
        event = Event(self.driver, Device())
        self.waits_for(event, event, self.remote.write, self.node.wrap(bytearray(b"later")))
        self.assertEqual(bytes(self.target.bytes()[:5]), b"later")

    def test_the_transfer_keeps_the_event(self):
        event = Event(self.driver)
        kept = weakref.ref(event)
        transfer = self.remote.write(self.region, [(0, 0, 5)], after=event)
        event.finish()
        del event
        self.assertIsNotNone(kept().work)
        transfer.wait(support.PATIENCE)


if __name__ == "__main__":
    support.main()
