# SPDX-License-Identifier: MIT
"""Both kinds of DLPack capsules, exported and imported, through ctypes."""

import ctypes
import gc
import threading

import haul
import support
from haul import READ, WRITE, Code, Layout

CPU, CUDA, VULKAN = 1, 2, 7


class Tensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("dimensions", ctypes.c_int32),
        ("type", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


DELETER = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class Managed(ctypes.Structure):
    name = b"dltensor"
    _fields_ = [("tensor", Tensor), ("context", ctypes.c_void_p), ("deleter", DELETER)]


class Versioned(ctypes.Structure):
    name = b"dltensor_versioned"
    _fields_ = [
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("context", ctypes.c_void_p),
        ("deleter", DELETER),
        ("flags", ctypes.c_uint64),
        ("tensor", Tensor),
    ]


def _api(name, result, *arguments):
    function = getattr(ctypes.pythonapi, name)
    function.restype, function.argtypes = result, arguments
    return function


new = _api("PyCapsule_New", ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
name_of = _api("PyCapsule_GetName", ctypes.c_char_p, ctypes.py_object)
set_name = _api("PyCapsule_SetName", ctypes.c_int, ctypes.py_object, ctypes.c_char_p)
pointer_of = _api("PyCapsule_GetPointer", ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)


def look(capsule):
    """The tensor in a capsule, which is kept and not consumed."""
    kind = {kind.name: kind for kind in (Managed, Versioned)}[name_of(capsule)]
    managed = kind.from_address(pointer_of(capsule, kind.name))
    managed.capsule = capsule
    return managed


def consume(capsule):
    """Consume a capsule: the caller deletes the tensor."""
    managed = look(capsule)
    del managed.capsule
    # PyCapsule keeps a pointer to the name, so it must be static.
    set_name(capsule, {Managed: USED, Versioned: USED_VERSIONED}[type(managed)])
    return managed


USED, USED_VERSIONED = b"used_dltensor", b"used_dltensor_versioned"


def delete(managed):
    managed.deleter(ctypes.addressof(managed))


class Producer:
    """A producer that counts calls of its deleter."""

    def __init__(self, kind=Managed, shape=(4,), strides=None, **fields):
        self.deleted = 0
        self.memory = (ctypes.c_float * 64)(*range(64))
        self.kind = kind
        self.managed = kind()
        self.managed.deleter = self.deleter = DELETER(self.count)
        if kind is Versioned:
            self.managed.major = 1
        tensor = self.managed.tensor
        tensor.data = ctypes.addressof(self.memory)
        tensor.device_type, tensor.type, tensor.bits, tensor.lanes = CPU, 2, 32, 1
        tensor.dimensions = len(shape)
        tensor.shape = (ctypes.c_int64 * len(shape))(*shape)
        if strides:
            tensor.strides = (ctypes.c_int64 * len(strides))(*strides)
        for name, value in fields.items():
            setattr(tensor if hasattr(tensor, name) else self.managed, name, value)
        self.asked = []

    def count(self, managed):
        self.deleted += 1

    def __dlpack__(self, **keywords):
        self.asked.append(keywords)
        self.capsule = new(ctypes.addressof(self.managed), self.kind.name, None)
        return self.capsule


class Given(support.Case):
    """Regions as producers."""

    def setUp(self):
        self.node = haul.Node()
        self.addCleanup(self.node.close)
        self.region = self.node.alloc(4096)

    def is_free(self):
        """A region can be closed after each tensor was deleted once."""
        self.region.close()

    def test_unsupported_requests(self):
        for keywords in ({"copy": True}, {"dl_device": (CUDA, 0)}, {"dl_device": (CPU, 1)}):
            with self.assertRaises(BufferError):
                self.region.__dlpack__(**keywords)
        for keywords in ({"stream": "x"}, {"max_version": 1}, {"dl_device": 1}):
            with self.assertRaises(TypeError):
                self.region.__dlpack__(**keywords)
        with self.assertRaises(TypeError):
            self.region.__dlpack__(None)
        self.is_free()

    def test_read_only_memory_needs_versions(self):
        region = self.node.wrap(b"constant")
        with self.assertRaisesRegex(BufferError, "before 1.0"):
            region.__dlpack__()
        with self.assertRaises(BufferError):
            region.__dlpack__(max_version=(0, 8))
        self.assertEqual(look(region.__dlpack__(max_version=(1, 0))).flags, 1)

    def test_an_older_capsule(self):
        tensor = self.region.tensor("float16", (2, 3), (1, 2), offset=64)
        managed = look(tensor.__dlpack__())
        found = managed.tensor
        self.assertEqual(found.data, self.region.address + 64)
        self.assertEqual((found.device_type, found.device_id), (CPU, 0))
        self.assertEqual((found.type, found.bits, found.lanes), (2, 16, 1))
        self.assertEqual(found.dimensions, 2)
        self.assertEqual((found.shape[:2], found.strides[:2]), ([2, 3], [1, 2]))
        self.assertEqual(found.byte_offset, 0)
        self.assertEqual(tensor.__dlpack_device__(), (CPU, 0))

    def test_types_of_8_bits(self):
        for name, number in (
            ("float8_e4m3fn", 10),
            ("float8_e4m3fnuz", 11),
            ("float8_e5m2", 12),
            ("float8_e5m2fnuz", 13),
            ("float8_e8m0fnu", 14),
        ):
            found = look(self.region.tensor(name, (4,)).__dlpack__()).tensor
            self.assertEqual((found.type, found.bits, found.lanes), (number, 8, 1))
            passed = Producer(type=number, bits=8)
            self.assertEqual(self.node.wrap(passed).layout.dtype, name)

    def test_a_newer_capsule(self):
        for version in ((1, 0), (1, 1), (2, 0)):
            managed = look(self.region.__dlpack__(max_version=version, dl_device=(CPU, 0)))
            self.assertIsInstance(managed, Versioned)
            self.assertEqual((managed.major, managed.flags), (1, 0))
            self.assertEqual(managed.tensor.data, self.region.address)

    def test_an_unconsumed_capsule(self):
        for version in (None, (1, 0)):
            capsule = self.region.__dlpack__(max_version=version)
            with self.assertRaises(BufferError):
                self.region.close()
            del capsule
        self.is_free()

    def test_a_consumed_capsule(self):
        for version in (None, (1, 0)):
            capsule = self.region.__dlpack__(max_version=version)
            managed = consume(capsule)
            del capsule
            gc.collect()
            with self.assertRaises(BufferError):
                self.region.close()
            delete(managed)
        self.is_free()

    def test_deletion_without_the_gil(self):
        managed = consume(self.region.__dlpack__())
        thread = threading.Thread(target=delete, args=(managed,))  # ctypes releases the GIL
        thread.start()
        thread.join()
        self.is_free()

    def test_it_keeps_the_region(self):
        managed = consume(self.node.alloc(4096).tensor("uint8", (16,)).__dlpack__())
        gc.collect()
        ctypes.memset(managed.tensor.data, 5, 16)
        delete(managed)


class Taken(support.Case):
    """Regions as consumers."""

    def setUp(self):
        self.node = haul.Node()
        self.addCleanup(self.node.close)

    def test_refused_tensors_are_deleted_once(self):
        for producer in (
            Producer(device_type=VULKAN),
            Producer(lanes=0),
            Producer(bits=4),
            Producer(shape=(1,) * 9),
            Producer(shape=(-1,)),
            Producer(shape=(0,)),
            Producer(shape=(1 << 40, 1 << 40)),
            Producer(shape=(2,), strides=(1 << 62,)),
            Producer(dimensions=-1),
            Producer(Versioned, major=2),
        ):
            with self.assertRaises((BufferError, ValueError)):
                self.node.wrap(producer)
            self.assertEqual(producer.deleted, 1)
            self.assertTrue(name_of(producer.capsule).startswith(b"used_dltensor"))

    def test_unmapped_memory(self):
        producer = Producer(data=0x1000)
        self.fails(Code.EINVAL, self.node.wrap, producer)
        self.assertEqual(producer.deleted, 1)

    def test_a_capsule_is_used_once(self):
        producer = Producer()
        used = self.node.wrap(producer)
        capsule = producer.capsule
        producer.__dlpack__ = None

        class Again:
            def __dlpack__(self, **keywords):
                return capsule

        with self.assertRaisesRegex(BufferError, "used before"):
            self.node.wrap(Again())
        self.assertEqual(producer.deleted, 0)
        del used
        self.assertEqual(producer.deleted, 1)

    def test_no_capsule(self):
        class Wrong:
            def __dlpack__(self, **keywords):
                return 7

        class Broken:
            def __dlpack__(self, **keywords):
                raise BufferError("not today")

        with self.assertRaises(BufferError):
            self.node.wrap(Wrong())
        with self.assertRaisesRegex(BufferError, "not today"):
            self.node.wrap(Broken())

    def test_producers_without_versions(self):
        class Older(Producer):
            def __dlpack__(self, stream=None):
                return super().__dlpack__()

        producer = Older()
        region = self.node.wrap(producer)
        self.assertEqual(memoryview(region).tolist(), [0, 1, 2, 3])
        region.close()
        self.assertEqual(producer.deleted, 1)

    def test_newer_producers_get_the_version(self):
        producer = Producer(Versioned, flags=1)
        region = self.node.wrap(producer)
        self.assertEqual(producer.asked, [{"max_version": (1, 1)}])
        self.assertTrue(region.readonly)
        del region
        self.assertEqual(producer.deleted, 1)

    def test_layouts(self):
        for shape, strides, fields, layout, length in (
            ((2, 3), None, {}, Layout("float32", (2, 3), (3, 1), 0), 24),
            ((2, 3), (1, 2), {}, Layout("float32", (2, 3), (1, 2), 0), 24),
            ((2, 3), (16, 2), {}, Layout("float32", (2, 3), (16, 2), 0), 84),
            ((4,), (-3,), {"byte_offset": 40}, Layout("float32", (4,), (-3,), 36), 40),
            ((), None, {}, Layout("float32", (), (), 0), 4),
            ((4,), (0,), {}, Layout("float32", (4,), (0,), 0), 4),
            ((2,), None, {"lanes": 2}, Layout("dlpack:2:32:2", (2,), (1,), 0), 16),
        ):
            with self.subTest(shape=shape, strides=strides):
                region = self.node.wrap(Producer(shape=shape, strides=strides, **fields))
                self.assertEqual((region.layout, region.length), (layout, length))

    def test_layouts_of_all_sizes(self):
        """Overflowing layouts are refused; others are checked against memory."""
        taken = 0
        for shape, strides in support.layouts(3000):
            producer = Producer(shape=shape, strides=strides, byte_offset=128)
            found = support.extent(shape, strides, 4)
            with self.subTest(shape=shape, strides=strides):
                if not found or found == (0, 0):
                    with self.assertRaises(ValueError):
                        self.node.wrap(producer)
                    continue
                low, high = found
                try:
                    region = self.node.wrap(producer)
                except haul.Error as error:
                    self.assertEqual(error.code, Code.EINVAL)
                    self.assertFalse(-128 <= low and high <= 128)
                    continue
                taken += 1
                self.assertEqual(region.layout, Layout("float32", shape, strides, -low))
                self.assertEqual(region.length, high - low)
                self.assertEqual(region.address, ctypes.addressof(producer.memory) + 128 + low)
                region.close()
        self.assertGreater(taken, 100)

    def test_through_and_back(self):
        region = self.node.alloc(4096)
        memoryview(region)[:4] = b"abcd"

        class Passed:  # not a buffer
            def __dlpack__(self, **keywords):
                return region.__dlpack__(**keywords)

        again = self.node.wrap(Passed())
        self.assertEqual(again.address, region.address)
        again.close()
        region.close()


class Imported(support.Case):
    def test_read_only_imports_say_so(self):
        with haul.Node() as node:
            region = node.alloc(4096)
            for rights, flags in ((READ, 1), (READ | WRITE, 0)):
                ticket, descriptor = region.export(Layout("int64", (8,)), rights)
                with open(descriptor, "rb") as file:
                    imported = node.import_(ticket, file)
                managed = look(imported.__dlpack__(max_version=(1, 0)))
                self.assertEqual(managed.flags, flags)
                self.assertEqual((managed.tensor.type, managed.tensor.bits), (0, 64))
                del managed


if __name__ == "__main__":
    support.main()
