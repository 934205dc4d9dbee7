# SPDX-License-Identifier: MIT
"""Regions: buffers, tensors, copies, wrapped objects, tickets."""

import collections
import ctypes
import gc
import os
import struct
import weakref

import haul
import support
from haul import READ, WRITE, Code, Layout


def _take_and_release(exporter, flags):
    view = ctypes.create_string_buffer(256)  # more than a Py_buffer takes
    ctypes.pythonapi.PyObject_GetBuffer(ctypes.py_object(exporter), view, flags)
    ctypes.pythonapi.PyBuffer_Release(view)


class WithNode(support.Case):
    def setUp(self):
        self.node = haul.Node()
        self.addCleanup(self.node.close)


class Refused(WithNode):
    def test_closing_what_is_in_use(self):
        region = self.node.alloc(4096)
        view = memoryview(region)
        with self.assertRaisesRegex(BufferError, "1 buffers"):
            region.close()
        with self.assertRaises(BufferError):
            self.node.close()
        view[0] = 7
        view.release()
        region.close()

    def test_device_memory_is_no_buffer(self):
        region = self.node.alloc(4096, "sim:0")
        with self.assertRaisesRegex(BufferError, "CPU cannot access"):
            memoryview(region)
        with self.assertRaises(BufferError):
            region.bytes()
        with self.assertRaisesRegex(BufferError, "sim:0"):
            region.__dlpack__()
        with self.assertRaises(BufferError):
            region.__dlpack_device__()
        region.close()

    def test_invalid_tensors(self):
        region = self.node.alloc(4096)
        for shape, strides, offset in (
            ((1025,), None, 0),
            ((1024,), None, 1),
            ((2, 2), (1 << 62, 1), 0),
            ((1 << 40, 1 << 40), None, 0),
            ((1 << 62, 2), (0, 0), 0),
            ((2,), (-1,), 0),
            ((1,), (1 << 62,), 0),
            ((0,), (-(1 << 63),), 0),
            ((1,), None, 1 << 63),
            ((-1,), None, 0),
            ((1,) * 9, None, 0),
            ((1, 2), (1,), 0),
        ):
            with self.subTest(shape=shape), self.assertRaises(ValueError):
                region.tensor("float32", shape, strides, offset=offset)
        known = "int8, .*bfloat16, .*float8_e8m0fnu, or dlpack"
        for dtype in ("float33", "dlpack:1:1:1", "dlpack:1:8:0", "dlpack:999:8:1", "", "object"):
            with self.subTest(dtype=dtype), self.assertRaisesRegex(ValueError, known):
                region.tensor(dtype, (1,))
        with self.assertRaises(TypeError):
            region.tensor("float32", 4)
        with self.assertRaises(OverflowError):
            region.tensor("uint8", (1,), offset=-1)

    def test_tensors_of_all_sizes(self):
        """Tensors outside the region are refused; others have the right elements."""
        length = 4096
        region = self.node.alloc(length)
        memoryview(region)[:] = content = os.urandom(length)
        outcomes = collections.Counter()
        for shape, strides in support.layouts(5000):
            for dtype, size, code in (("uint8", 1, "B"), ("int64", 8, "q")):
                for offset in (0, 64, length):
                    found = support.extent(shape, strides, size)
                    fits = found and offset + found[0] >= 0 and offset + found[1] <= length
                    outcomes[bool(fits)] += 1
                    with self.subTest(shape=shape, strides=strides, size=size, offset=offset):
                        if not fits:
                            with self.assertRaises(ValueError):
                                region.tensor(dtype, shape, strides, offset=offset)
                            continue
                        tensor = region.tensor(dtype, shape, strides, offset=offset)
                        self.assertEqual(tensor.layout.strides, strides)
                        if 0 not in shape:
                            last = tuple(length - 1 for length in shape)
                            steps = (i * stride * size for i, stride in zip(last, strides))
                            expected = content[offset + sum(steps) :][:size]
                            number = memoryview(tensor)[last]
                            self.assertEqual(struct.pack(code, number), expected)
        self.assertGreater(min(outcomes[True], outcomes[False]), 1000)

    def test_types_without_a_format(self):
        tensor = self.node.alloc(4096).tensor("bfloat16", (4,))
        with self.assertRaisesRegex(BufferError, "DLPack"):
            memoryview(tensor)

    def test_copies(self):
        first, second = self.node.alloc(4096), self.node.alloc(4096)
        self.fails(Code.ERANGE, first.copy_from, second, length=4097)
        self.fails(Code.ERANGE, first.copy_from, second, offset=1)
        self.fails(Code.EINVAL, first.copy_from, first)
        with self.assertRaises(TypeError):
            first.copy_from(bytearray(8))

    def test_wrapping(self):
        for nothing in (b"", bytearray()):
            with self.assertRaises(ValueError):
                self.node.wrap(nothing)
        for other in (7, "text", object()):
            with self.assertRaises(TypeError):
                self.node.wrap(other)
        wrapped = self.node.wrap(bytearray(4096))
        self.fails(Code.ENOTSUP, wrapped.export)

    def test_rights(self):
        region = self.node.alloc(4096)
        self.fails(Code.EINVAL, region.export, rights=0)
        self.fails(Code.EINVAL, region.publish, "name", 9)
        self.fails(Code.EINVAL, region.publish, "a blank")
        self.fails(Code.ENAME, region.unpublish, "name")
        self.fails(Code.ENOTSUP, self.node.alloc(4096, private=True).export)

    def test_layouts(self):
        region = self.node.alloc(4096)
        self.fails(Code.EINVAL, region.export, Layout("float32", (1025,)))
        for layout in (("float32",), ("float33", (1,), None, 0), 7, [1, 2]):
            with self.assertRaises((TypeError, ValueError)):
                region.export(layout)


class Buffers(WithNode):
    def test_bytes_are_shared_with_the_region(self):
        region = self.node.alloc(4096)
        view = memoryview(region)
        self.assertEqual((view.format, view.shape, view.readonly), ("B", (4096,), False))
        view[10:15] = b"bytes"
        self.assertEqual(ctypes.string_at(region.address + 10, 5), b"bytes")
        ctypes.memset(region.address, 9, 1)
        self.assertEqual(view[0], 9)

    def test_a_tensor_has_type_shape_and_strides(self):
        region = self.node.alloc(4096)
        tensor = region.tensor("int16", (3, 4), (1, 3), offset=8)
        view = memoryview(tensor)
        self.assertEqual((view.format, view.shape, view.strides), ("h", (3, 4), (2, 6)))
        self.assertTrue(view.f_contiguous)
        self.assertEqual(tensor.nbytes, view.nbytes)
        self.assertEqual(tensor.layout, Layout("int16", (3, 4), (1, 3), 8))
        self.assertEqual((tensor.dtype, tensor.shape, tensor.offset), ("int16", (3, 4), 8))
        self.assertIs(tensor.region, region)

    def test_a_single_number_and_none(self):
        region = self.node.alloc(4096)
        number = memoryview(region.tensor("float64", (), offset=8))
        number[()] = 2.5
        self.assertEqual((number.ndim, number.shape, number.nbytes), (0, (), 8))
        self.assertEqual(self.node.wrap(number).layout, Layout("float64", (), (), 0))
        self.assertEqual(memoryview(region.tensor("float64", (0, 4), offset=4096)).nbytes, 0)

    def test_flags_of_requests(self):
        simple, writable, nd, strides, c, f, any_order = 0, 1, 0x8, 0x18, 0x38, 0x58, 0x98
        region = self.node.alloc(4096)
        rows = region.tensor("int32", (3, 4))
        columns = region.tensor("int32", (3, 4), (1, 3))
        holes = region.tensor("int32", (3, 4), (8, 2))
        for tensor, good in (
            (rows, {simple, writable, nd, strides, c, any_order}),
            (columns, {strides, f, any_order}),
            (holes, {strides}),
        ):
            for flags in (simple, writable, nd, strides, c, f, any_order):
                with self.subTest(strides=tensor.strides, flags=flags):
                    if flags in good:
                        _take_and_release(tensor, flags)
                    else:
                        with self.assertRaises(BufferError):
                            _take_and_release(tensor, flags)
        region.close()  # no export is left

    def test_views_keep_the_region(self):
        view = memoryview(self.node.alloc(4096).tensor("uint8", (4096,)))
        gc.collect()
        view[:] = bytes(4096)
        view.release()

    def test_device_memory_is_copied(self):
        host, device, back = (
            self.node.alloc(5 << 20, place) for place in ("host", "sim:0", "host")
        )
        memoryview(host)[:] = os.urandom(5 << 20)
        device.copy_from(host)
        back.copy_from(device, offset=1, source_offset=1, length=(5 << 20) - 1)
        self.assertEqual(back.bytes()[1:], host.bytes()[1:])


class Wrapped(WithNode):
    def test_no_copy(self):
        data = bytearray(b"0123456789")
        region = self.node.wrap(data)
        self.assertEqual(region.length, 10)
        memoryview(region)[0] = ord("x")
        self.assertEqual(data[0], ord("x"))
        with self.assertRaises(BufferError):
            data.append(1)
        region.close()
        data.append(1)

    def test_the_object_is_kept(self):
        class Data(bytearray):
            pass

        data = Data(4096)
        gone = weakref.ref(data)
        region = self.node.wrap(data)
        del data
        gc.collect()
        self.assertIsNotNone(gone())
        del region
        self.assertIsNone(gone())

    def test_read_only_objects(self):
        region = self.node.wrap(b"constant")
        self.assertTrue(region.readonly)
        view = memoryview(region)
        self.assertTrue(view.readonly)
        self.assertEqual(view.tobytes(), b"constant")
        with self.assertRaises(TypeError):
            ctypes.c_char.from_buffer(region)

    def test_shapes(self):
        data = memoryview(bytearray(24)).cast("B").cast("i", (2, 3))
        region = self.node.wrap(data)
        self.assertEqual(region.layout, Layout("int32", (2, 3), (3, 1), 0))
        backwards = memoryview(bytearray(range(10)))[::-2]
        region = self.node.wrap(backwards)
        self.assertEqual(region.layout, Layout("uint8", (5,), (-2,), 8))
        self.assertEqual(region.length, 9)
        self.assertEqual(memoryview(region).tolist(), [9, 7, 5, 3, 1])

    def test_arrays_of_ctypes_have_types(self):
        region = self.node.wrap((ctypes.c_float * 3 * 2)())
        self.assertEqual(region.layout, Layout("float32", (2, 3), (3, 1), 0))

    def test_structures(self):
        class Pair(ctypes.Structure):
            _fields_ = [("a", ctypes.c_int), ("b", ctypes.c_double)]

        pairs = (Pair * 4)()
        with self.assertRaisesRegex(ValueError, "T{.*uint8"):
            self.node.wrap(pairs)
        region = self.node.wrap((ctypes.c_char * ctypes.sizeof(pairs)).from_buffer(pairs))
        self.assertEqual(region.layout, Layout("uint8", (64,), (1,), 0))
        self.assertEqual(region.address, ctypes.addressof(pairs))

    def test_objects_are_refused(self):
        class Named(ctypes.Structure):
            _fields_ = [("O", ctypes.c_int)]

        with self.assertRaisesRegex(ValueError, "Python objects"):
            self.node.wrap((ctypes.py_object * 4)())
        with self.assertRaisesRegex(ValueError, "haul has no type"):
            self.node.wrap(Named())

    def test_characters_are_bytes(self):
        self.assertEqual(self.node.wrap(ctypes.create_string_buffer(8)).layout.dtype, "uint8")
        self.assertEqual(self.node.wrap(memoryview(b"abc").cast("c")).layout.dtype, "uint8")


class Tickets(WithNode):
    def setUp(self):
        super().setUp()
        self.region = self.node.alloc(8192)
        self.ticket, self.descriptor = self.region.export(
            Layout("float32", (2, 4), offset=4096), READ | WRITE
        )
        self.addCleanup(os.close, self.descriptor)

    def test_truncated_tickets(self):
        for length in (0, 1, 255):
            self.fails(Code.ETICKET, self.node.import_, self.ticket[:length], self.descriptor)
        self.fails(Code.ETICKET, self.node.import_, self.ticket + b"x", self.descriptor)

    def test_damaged_tickets(self):
        for place in (0, 20, 100, 255):
            ticket = bytearray(self.ticket)
            ticket[place] ^= 0x40
            self.fails(Code.ETICKET, self.node.import_, ticket, self.descriptor)

    def test_wrong_descriptors(self):
        with open("/dev/null", "rb") as other:
            self.fails(Code.ETICKET, self.node.import_, self.ticket, other)
        with self.assertRaises(ValueError):
            self.node.import_(self.ticket, -1)
        with self.assertRaises(TypeError):
            self.node.import_(self.ticket, "3")

    def test_shared_memory_and_layout(self):
        imported = self.node.import_(self.ticket, self.descriptor)
        view = memoryview(imported)
        self.assertEqual((view.format, view.shape), ("f", (2, 4)))
        self.assertFalse(imported.readonly)
        self.region.tensor("float32", (8,), offset=4096)
        memoryview(self.region.tensor("float32", (8,), offset=4096))[5] = 2.5
        self.assertEqual(view[1, 1], 2.5)
        view[0, 0] = 7
        self.assertEqual(memoryview(self.region.tensor("float32", (8,), offset=4096))[0], 7)
        self.fails(Code.ENOTSUP, imported.export)

    def test_the_first_import_needs_a_descriptor(self):
        self.fails(Code.ETICKET, self.node.import_, self.region.ticket())

    def test_many_tensors_need_one_descriptor(self):
        first = self.node.import_(self.ticket, self.descriptor)
        others = [
            self.node.import_(self.region.ticket(Layout("uint8", (16,), offset=16 * i), READ | WRITE))
            for i in range(100)
        ]
        self.assertEqual({other.address for other in others}, {first.address})
        memoryview(others[3])[0] = 9
        self.assertEqual(first.bytes()[48], 9)
        self.fails(Code.ETICKET, self.node.import_, self.region.ticket(rights=READ))

    def test_read_only_tickets(self):
        ticket, descriptor = self.region.export()
        imported = self.node.import_(ticket, descriptor)
        os.close(descriptor)
        self.assertTrue(imported.readonly)
        self.assertTrue(memoryview(imported).readonly)
        self.assertEqual(imported.layout, Layout("uint8", (8192,), (1,), 0))
        self.fails(Code.EACCESS, imported.copy_from, self.node.alloc(8192))

    def test_read_only_device_memory(self):
        region = self.node.alloc(8192, "sim:0")
        for rights in (READ, READ | WRITE):
            ticket, descriptor = region.export(rights=rights)
            imported = self.node.import_(ticket, descriptor)
            os.close(descriptor)
            self.assertEqual((imported.place, imported.readonly), ("sim:0", rights == READ))

    def test_memory_outlives_its_owner(self):
        imported = self.node.import_(self.ticket, self.descriptor)
        memoryview(imported)[0, 0] = 3
        self.region.close()
        self.assertEqual(memoryview(imported)[0, 0], 3)
        self.fails(Code.ESTALE, self.node.alloc(8192).copy_from, imported)
        self.fails(Code.ESTALE, self.node.import_, self.ticket, self.descriptor)


if __name__ == "__main__":
    support.main()
