# SPDX-License-Identifier: MIT
"""Files of this host that are read into regions."""

import os
import tempfile

import haul
import support
from haul import Code

LENGTH = (1 << 20) + 100


class Files(support.Case):
    def setUp(self):
        self.node = haul.Node()
        self.addCleanup(self.node.close)
        self.data = os.urandom(LENGTH)
        with tempfile.NamedTemporaryFile() as file:
            file.write(self.data)
            file.flush()
            self.file = haul.File(file)  # which may be closed, and removed

    def content(self, region):
        copy = self.node.alloc(region.length)
        copy.copy_from(region)
        return bytes(copy.bytes())

    def test_into_memory_of_any_place(self):
        for place, paths in (("host", ("O_DIRECT", "page cache")), ("sim:0", ("staged",))):
            with self.subTest(place), self.node.alloc(LENGTH, place) as region:
                report = self.file.read(region)
                self.assertEqual(self.content(region), self.data)
                self.assertEqual(report.bytes, LENGTH)
                self.assertIn(report.path, paths)
                self.assertEqual(report.direct < report.bytes, report.reason != "")

    def test_ranges(self):
        with self.node.alloc(4096) as region:
            with region.bytes() as view:
                view[:] = bytes(4096)
            self.assertEqual(self.file.read(region, 7, region_offset=10, length=20).bytes, 20)
            self.assertEqual(self.file.read(region, 4096, region_offset=4000).bytes, 96)
            self.assertEqual(self.file.read(region, length=0).bytes, 0)
            expected = bytes(10) + self.data[7:27] + bytes(3970) + self.data[4096:4192]
            self.assertEqual(self.content(region), expected)

    def test_tensors(self):
        with self.node.alloc(4096) as region:
            with region.bytes() as view:
                view[:] = bytes(4096)
            tensor = region.tensor("float32", (4, 8), offset=64)
            self.assertEqual(self.file.read(tensor, 1000).bytes, 128)
            self.assertEqual(self.file.read(tensor, region_offset=120).bytes, 8)
            expected = bytes(64) + self.data[1000:1120] + self.data[:8] + bytes(3904)
            self.assertEqual(self.content(region), expected)
            self.fails(Code.ERANGE, self.file.read, tensor, region_offset=120, length=9)
            with self.assertRaisesRegex(ValueError, "not contiguous"):
                self.file.read(region.tensor("float32", (4, 8), (16, 1)))

    def test_no_copy(self):
        error = self.fails(Code.ENOPATH, self.file.read, self.node.alloc(4096, "sim:0"), zero_copy=True)
        self.assertIn("no way from a disk", error.text)

    def test_ranges_that_do_not_exist(self):
        region = self.node.alloc(LENGTH + 1)
        error = self.fails(Code.ERANGE, self.file.read, region)
        self.assertIn(f"ends after {LENGTH} of {LENGTH + 1} bytes", error.text)
        self.fails(Code.ERANGE, self.file.read, region, 2)
        self.fails(Code.ERANGE, self.file.read, region, length=LENGTH + 2)
        self.fails(Code.ERANGE, self.file.read, region, region_offset=LENGTH + 2, length=1)
        self.assertRaises(OverflowError, self.file.read, region, -1, length=1)

    def test_memory_that_cannot_be_written(self):
        self.fails(Code.EACCESS, self.file.read, self.node.wrap(b"constant"))

    def test_what_is_no_file(self):
        read, write = os.pipe()
        self.fails(Code.EINVAL, haul.File, read)
        os.close(read)
        os.close(write)
        self.fails(Code.EINVAL, haul.File, read)
        with tempfile.NamedTemporaryFile() as file, open(file.name, "wb") as written:
            self.fails(Code.EINVAL, haul.File, written)
        for wrong in ("/etc/passwd", None, self.file):
            self.assertRaises(TypeError, haul.File, wrong)

    def test_what_is_closed(self):
        region = self.node.alloc(4096)
        with self.file:
            region.close()
            self.fails(Code.ECLOSED, self.file.read, region)
        self.assertTrue(self.file.closed)
        self.fails(Code.ECLOSED, self.file.read, self.node.alloc(4096))

    def test_descriptors_are_closed(self):
        before = len(os.listdir("/proc/self/fd"))
        self.file.close()
        self.assertLess(len(os.listdir("/proc/self/fd")), before)
        with open(__file__) as file:
            for _ in range(10):
                haul.File(file)
        self.assertLess(len(os.listdir("/proc/self/fd")), before)


if __name__ == "__main__":
    support.main()
