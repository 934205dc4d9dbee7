# SPDX-License-Identifier: MIT
"""numpy.asarray(region) copies nothing."""

import haul
import support
from haul import READ, WRITE, Layout

numpy = None


def setUpModule():
    global numpy
    numpy = support.module("numpy")


class Numpy(support.Case):
    def setUp(self):
        self.node = haul.Node()
        self.addCleanup(self.node.close)

    def test_every_type(self):
        region = self.node.alloc(4096)
        for dtype in (
            "int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 float32 float64 "
            "complex64 complex128 bool"
        ).split():
            array = numpy.asarray(region.tensor(dtype, (4, 2), offset=16))
            self.assertEqual(array.dtype, numpy.dtype(dtype))
            array[:] = 1
            tensor = region.tensor(array.dtype, (8,), offset=16)
            self.assertEqual(tensor.dtype, dtype)
            if dtype not in ("bool", "complex64", "complex128"):  # not imported by numpy 1.24
                self.assertTrue((numpy.from_dlpack(tensor) == 1).all())
            self.assertEqual(self.node.wrap(array).layout.dtype, dtype)
            self.assertEqual(region.tensor(array.dtype.type, (1,)).dtype, dtype)

    def test_shared_writes(self):
        region = self.node.alloc(1 << 20)
        array = numpy.asarray(region)
        self.assertEqual(array.__array_interface__["data"], (region.address, False))
        array[5] = 55
        self.assertEqual(memoryview(region)[5], 55)
        memoryview(region)[6] = 66
        self.assertEqual(array[6], 66)
        with self.assertRaises(BufferError):
            region.close()
        del array
        region.close()

    def test_unsupported_memory(self):
        """BufferError as with memoryview, instead of an array of one Python object."""
        region, closed = self.node.alloc(4096), self.node.alloc(4096)
        of_closed = closed.tensor("float32", (4,))
        closed.close()
        for thing, text in (
            (region.tensor("bfloat16", (4,)), "DLPack"),
            (region.tensor("float8_e4m3fn", (4,)), "DLPack"),
            (self.node.alloc(4096, "sim:0"), "CPU cannot access"),
            (closed, "closed"),
            (of_closed, "closed"),
        ):
            for call in (memoryview, numpy.asarray, numpy.array, lambda one: numpy.array([one])):
                with self.subTest(thing=thing), self.assertRaisesRegex(BufferError, text):
                    call(thing)
            with self.assertRaisesRegex(BufferError, text):
                numpy.asarray(thing, dtype="float32")

    def test_array_method(self):
        tensor = self.node.alloc(4096).tensor("int32", (2, 3))
        same = tensor.__array__()
        same[1, 2] = 7
        self.assertEqual((same.dtype, tensor.__array__(copy=False)[1, 2]), (numpy.int32, 7))
        for copied in (tensor.__array__(copy=True), tensor.__array__("float64")):
            self.assertEqual(copied[1, 2], 7)
            copied[:] = 1
            self.assertEqual(same[1, 2], 7)
        with self.assertRaises(TypeError):
            tensor.__array__(kind="f4")

    def test_views_keep_the_region(self):
        part = numpy.asarray(self.node.alloc(4096).tensor("float32", (32, 32)))[3:7, ::2]
        part[:] = 4
        self.assertEqual(part.sum(), 4 * 4 * 16)
        del part

    def test_read_only(self):
        region = self.node.alloc(4096)
        ticket, descriptor = region.export(Layout("float64", (512,)), READ)
        with open(descriptor, "rb") as file:
            imported = self.node.import_(ticket, file)
        array = numpy.asarray(imported)
        self.assertFalse(array.flags.writeable)
        with self.assertRaises(ValueError):
            array[0] = 1
        try:
            array = numpy.from_dlpack(imported)
        except BufferError as error:  # numpy before 2.1
            self.assertIn("before 1.0", str(error))
        else:
            self.assertFalse(array.flags.writeable)
        del array

    def test_wrapped(self):
        whole = numpy.arange(100, dtype=numpy.int64).reshape(10, 10)
        for part in (whole, whole.T, whole[::-1, ::2], whole[3:4], whole[2, 2:3]):
            region = self.node.wrap(part)
            again = numpy.asarray(region)
            self.assertEqual(
                again.__array_interface__["data"][0], part.__array_interface__["data"][0]
            )
            self.assertTrue((again == part).all())
        fixed = numpy.zeros(4)
        fixed.flags.writeable = False
        self.assertTrue(self.node.wrap(fixed).readonly)

    def test_unsupported_arrays(self):
        for dtype in ("O", "i4,O"):
            with self.assertRaisesRegex(ValueError, "Python objects"):
                self.node.wrap(numpy.zeros(4, dtype=dtype))
        for dtype in (">i4", "i4,f8", "S4", "U4", "V8", "g", [("O", "i4")]):
            array = numpy.zeros(4, dtype=dtype)
            with self.subTest(dtype=dtype), self.assertRaisesRegex(ValueError, r"view\(.uint8.\)"):
                self.node.wrap(array)
            region = self.node.wrap(array.view("uint8"))
            self.assertEqual(region.layout, Layout("uint8", (array.nbytes,), (1,), 0))
        with self.assertRaises(ValueError):
            self.node.wrap(numpy.zeros(4, dtype="datetime64[s]"))
        for array in (numpy.zeros(4, dtype="i4,f8")["f1"], numpy.zeros((1,) * 9)):
            with self.assertRaisesRegex(BufferError, "more than 8 dimensions, or strides"):
                self.node.wrap(array)

    def test_wrapped_arrays_travel(self):
        with haul.Node() as other:
            target = numpy.zeros(1 << 16)
            region = other.wrap(target)
            region.publish("target", READ | WRITE)
            source = numpy.random.default_rng(1).random(1 << 16)
            peer = self.node.connect(other.listen("tcp://127.0.0.1:0"))
            for path in ("map", "tcp"):
                target[:] = 0
                remote = peer.lookup("target")
                remote.write(self.node.wrap(source), only=path).wait()
                self.assertTrue((target == source).all())


if __name__ == "__main__":
    support.main()
