# SPDX-License-Identifier: MIT
"""PyTorch: tensors shared by two processes, without copies."""

import gc
import os

import haul
import support
from haul import READ, WRITE, Layout

torch = None

# Another process: uses and changes a tensor that it receives.
CONSUMER = """
    import torch
    node = haul.Node()
    region = channel.import_ticket(node)
    tensor = torch.from_dlpack(region)
    assert tensor.data_ptr() == region.address + region.layout.offset
    assert tensor.shape == (64, 32) and tensor.dtype == torch.bfloat16, tensor
    assert (tensor == 1.5).all()
    tensor[7] = 2
    channel.send_text("written")
    assert channel.receive_text() == "answered"
    assert (tensor[8] == 3).all()
    channel.send_text("seen")
    channel.receive_text()
"""


def setUpModule():
    global torch
    torch = support.module("torch")
    torch.set_num_threads(1)


class Tensors(support.Case):
    def setUp(self):
        self.node = haul.Node()
        self.addCleanup(self.node.close)

    def test_no_copy(self):
        region = self.node.alloc(4096)
        tensor = torch.from_dlpack(region)
        self.assertEqual((tensor.data_ptr(), tensor.dtype), (region.address, torch.uint8))
        tensor[100] = 42
        self.assertEqual(memoryview(region)[100], 42)
        memoryview(region)[101] = 43
        self.assertEqual(int(tensor[101]), 43)

    def test_types(self):
        region = self.node.alloc(4096)
        for dtype in (
            torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8,
            torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64,
        ):  # fmt: skip
            tensor = torch.from_dlpack(region.tensor(dtype, (3, 5), (1, 3), offset=16))
            self.assertEqual((tensor.dtype, tensor.stride()), (dtype, (1, 3)))
            self.assertEqual(tensor.data_ptr(), region.address + 16)
            again = self.node.wrap(tensor)
            self.assertEqual(str(dtype), "torch." + again.layout.dtype)

    def test_each_tensor_is_deleted_once(self):
        """After a second deletion the count would wrap around, and the region could not be closed."""
        region = self.node.alloc(4096)
        tensors = [torch.from_dlpack(region) for _ in range(10)]
        parts = [tensor[16:32] for tensor in tensors]
        del tensors
        with self.assertRaisesRegex(BufferError, "10 buffers"):
            region.close()
        del parts
        region.close()

    def test_tensors_keep_the_region(self):
        tensor = torch.from_dlpack(self.node.alloc(1 << 20))
        gc.collect()
        tensor.fill_(9)
        self.assertEqual(int(tensor.sum(dtype=torch.int64)), 9 << 20)
        del tensor

    def test_read_only_memory(self):
        """The hints of the error work for every type."""
        layout = Layout("bfloat16", (64,))
        region = self.node.alloc(4096)
        torch.from_dlpack(region.tensor(layout.dtype, layout.shape)).fill_(1.5)
        imported, writable = (
            self.node.import_(*self.shared(region, layout, rights))
            for rights in (READ, READ | WRITE)
        )
        own = self.node.alloc(4096)
        own.copy_from(imported)
        with self.assertRaisesRegex(BufferError, "WRITE too, or copy"):
            imported.__dlpack__()
        for tensor in (writable, own.tensor(layout.dtype, layout.shape)):
            self.assertTrue((torch.from_dlpack(tensor) == 1.5).all())

    def shared(self, *arguments):
        ticket, descriptor = arguments[0].export(*arguments[1:])
        self.addCleanup(os.close, descriptor)
        return ticket, descriptor

    def test_wrapped(self):
        tensor = torch.arange(24, dtype=torch.float32).reshape(4, 6)
        for part in (tensor, tensor.t(), tensor[1:3, ::2]):
            region = self.node.wrap(part)
            again = torch.from_dlpack(region)
            self.assertEqual(again.data_ptr(), part.data_ptr())
            self.assertTrue(torch.equal(again, part))
        storage = tensor.data_ptr()
        region = self.node.wrap(tensor)
        del tensor, part, again
        gc.collect()
        self.assertEqual(region.address, storage)
        self.assertEqual(memoryview(region)[3, 5], 23)


class TwoProcesses(support.Case):
    def share(self, node, child):
        region = node.alloc(1 << 20)
        layout = Layout("bfloat16", (64, 32), offset=4096)
        tensor = torch.from_dlpack(region.tensor(layout.dtype, layout.shape, offset=4096))
        tensor.fill_(1.5)
        child.send_ticket(region.export(layout, READ | WRITE))
        self.assertEqual(child.receive_text(), "written")
        self.assertTrue((tensor[7] == 2).all())
        tensor[8] = 3
        child.send_text("answered")
        self.assertEqual(child.receive_text(), "seen")
        return region, tensor

    def test_the_importer_ends_first(self):
        with haul.Node() as node:
            child = self.child(CONSUMER)
            region, tensor = self.share(node, child)
            child.send_text("end")
            self.ends_well(child)
            tensor.fill_(4)
            del tensor
            region.close()

    def test_the_owner_ends_first(self):
        child = self.child(CONSUMER + """
    assert (tensor[7] == 2).all()
    tensor.fill_(5)
    assert float(tensor.float().sum()) == 5 * 64 * 32
    """)
        with haul.Node() as node:
            region, tensor = self.share(node, child)
            del tensor
            region.close()
        child.send_text("end")
        self.ends_well(child)

    def test_the_owner_is_killed(self):
        """The importer's memory outlives the owner."""
        owner = self.child("""
            node = haul.Node()
            region = node.alloc(1 << 20)
            memoryview(region)[:5] = b"hello"
            channel.send_ticket(region.export(rights=haul.READ | haul.WRITE))
            channel.receive_text()
        """)
        with haul.Node() as node:
            tensor = torch.from_dlpack(owner.import_ticket(node))
            owner.kill()
            self.assertEqual(bytes(tensor[:5].tolist()), b"hello")
            tensor.fill_(1)
            del tensor

    def test_processes_end_with_everything_in_use(self):
        """Tensors outlive their region and node until the interpreter's end."""
        child = self.child("""
            import torch
            node = haul.Node()
            region = node.alloc(1 << 20)
            tensor = torch.from_dlpack(region)
            wrapped = node.wrap(torch.zeros(1 << 16))
            torch.kept = [tensor, torch.from_dlpack(wrapped), region.__dlpack__()]
            sys.kept = torch.kept
            del node, region
        """)
        self.ends_well(child)


if __name__ == "__main__":
    support.main()
