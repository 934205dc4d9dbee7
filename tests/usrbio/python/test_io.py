# SPDX-License-Identifier: MIT
"""hf3fs_fuse.io over the mock of the daemon in tests/usrbio, which is preloaded."""

import ctypes
import datetime
import errno
import gc
import inspect
import multiprocessing.shared_memory
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
import unittest
import weakref

import hf3fs_fuse.io as io
import hf3fs_py_usrbio

MOCK = ctypes.CDLL(None)
FILE = random.Random(1).randbytes(1 << 20)
PATIENCE = 60  # seconds: longer than any test takes


class Case(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.mount = os.path.realpath(folder.name)
        MOCK.daemon_start(self.mount.encode())
        self.addCleanup(MOCK.daemon_stop)
        self.addCleanup(gc.collect)
        self.path = os.path.join(self.mount, "file")
        with open(self.path, "wb") as file:
            file.write(FILE)
        self.fd = os.open(self.path, os.O_RDWR)
        self.addCleanup(os.close, self.fd)
        io.register_fd(self.fd)
        self.addCleanup(io.deregister_fd, self.fd)
        self.shm = multiprocessing.shared_memory.SharedMemory(size=1 << 20, create=True)
        self.addCleanup(self.shm.unlink)
        self.addCleanup(self.shm.close)
        self.iov = io.make_iovec(self.shm, self.mount)
        self.addCleanup(self.__dict__.pop, "iov")

    def assert_errno(self, code, call, *args, **kwargs):
        with self.assertRaises(OSError) as caught:
            call(*args, **kwargs)
        self.assertEqual(caught.exception.errno, code)


class Operations(Case):
    def test_reading(self):
        ring = io.make_ioring(self.mount, 16)
        for i in range(16):
            ring.prepare(self.iov[i * 100 : i * 100 + 100], True, self.fd, i * 1000, userdata=i)
        done = ring.submit().wait(min_results=16)
        self.assertEqual(sorted(iov.userdata for iov in done), list(range(16)))
        for iov in done:
            self.assertEqual(iov.result, 100)
            self.assertEqual(iov.base_off, iov.userdata * 100)
            offset = iov.userdata * 1000
            self.assertEqual(
                bytes(self.shm.buf[iov.base_off : iov.base_off + 100]), FILE[offset : offset + 100]
            )

    def test_writing(self):
        ring = io.make_ioring(self.mount, 4, for_read=False)
        self.iov[0:5] = b"bytes"
        ring.prepare(self.iov[0:5], False, self.fd, 77)
        self.assertEqual(ring.submit().wait(min_results=1)[0].result, 5)
        self.assertEqual(os.pread(self.fd, 5, 77), b"bytes")

    def test_the_whole_buffer_and_the_end_of_the_file(self):
        ring = io.make_ioring(self.mount, 1)
        ring.prepare(self.iov, True, self.fd, len(FILE) - 10)
        self.assertEqual(ring.submit().wait(min_results=1)[0].result, 10)
        self.assertEqual(bytes(self.shm.buf[:10]), FILE[-10:])

    def test_a_full_ring(self):
        MOCK.daemon_hold(True)
        ring = io.make_ioring(self.mount, 2)
        for _ in range(2):
            ring.prepare(self.iov[0:1], True, self.fd, 0)
        self.assert_errno(errno.EAGAIN, ring.prepare, self.iov[0:1], True, self.fd, 0)
        MOCK.daemon_hold(False)
        self.assertEqual(len(ring.submit().wait(max_results=2, min_results=2)), 2)

    def test_errors(self):
        ring = io.make_ioring(self.mount, 2)
        self.assert_errno(errno.EBADF, ring.prepare, self.iov[0:1], True, self.fd + 50, 0)
        self.assert_errno(errno.EINVAL, ring.prepare, self.iov[0:1], False, self.fd, 0)
        self.assert_errno(errno.EINVAL, ring.prepare, self.iov[5:5], True, self.fd, 0)
        self.assert_errno(errno.EINVAL, io.register_fd, self.fd)
        self.assert_errno(errno.EINVAL, io.make_ioring, self.mount, 0)
        self.assert_errno(errno.ENOENT, io.make_ioring, "/nowhere", 1)

    def test_userdata_lives_until_completion(self):
        ring = io.make_ioring(self.mount, 1)
        for i in range(1000):
            ring.prepare(self.iov[0:1], True, self.fd, 0, userdata=["object", i])
            gc.collect() if i % 100 == 0 else None
            (iov,) = ring.submit().wait(min_results=1)
            self.assertEqual(iov.userdata, ["object", i])

    def test_waiting_in_another_thread(self):
        ring = io.make_ioring(self.mount, 8)
        seen = []

        def wait():
            while len(seen) < 3000:
                seen.extend(iov.userdata for iov in ring.wait(max_results=8, min_results=1))

        thread = threading.Thread(target=wait)
        thread.start()
        for i in range(3000):
            while True:
                try:
                    ring.prepare(self.iov[i % 99 : i % 99 + 1], True, self.fd, i, userdata=i)
                    break
                except OSError as failure:
                    self.assertEqual(failure.errno, errno.EAGAIN)
                    time.sleep(0.0001)
            ring.submit()
        thread.join(PATIENCE)
        self.assertEqual(sorted(seen), list(range(3000)))


class Waiting(Case):
    def setUp(self):
        super().setUp()
        MOCK.daemon_hold(True)
        self.ring = io.make_ioring(self.mount, 8)
        self.addCleanup(self.__dict__.pop, "ring")

    def prepare(self, count):
        for _ in range(count):
            self.ring.prepare(self.iov[0:1], True, self.fd, 0)

    def release(self):
        MOCK.daemon_hold(False)
        self.ring.submit()

    def test_the_timeout(self):
        self.prepare(1)
        for timeout in (0.05, datetime.timedelta(milliseconds=50), 0):
            before = time.monotonic()
            self.assertEqual(self.ring.wait(min_results=1, timeout=timeout), [])
            self.assertLess(time.monotonic() - before, PATIENCE)

    def test_counts(self):
        self.prepare(8)
        self.assertEqual(self.ring.wait(), [])
        self.release()
        self.assertEqual(len(self.ring.wait(max_results=3, min_results=3)), 3)
        self.assertEqual(len(self.ring.wait(min_results=2)), 2)
        self.assertEqual(len(self.ring.wait()), 1)
        self.assertEqual(len(self.ring.wait(max_results=9, min_results=1)), 2)
        with self.assertRaises(TypeError):
            self.ring.wait(1)

    def test_no_timeout(self):
        self.prepare(1)
        threading.Timer(0.3, self.release).start()
        self.assertEqual(len(self.ring.wait(min_results=1)), 1)

    def test_death_of_the_daemon(self):
        self.prepare(2)
        MOCK.daemon_die()
        done = self.ring.wait(min_results=2)
        self.assertEqual([iov.result for iov in done], [-errno.ENOTCONN] * 2)
        self.assert_errno(errno.ENOTCONN, self.ring.wait, min_results=1)


class Buffers(Case):
    def test_slices(self):
        part = self.iov[100:200]
        self.assertEqual((part.base_off, len(part)), (100, 100))
        inner = part[10:20]
        self.assertEqual((inner.base_off, len(inner)), (110, 10))
        self.assertEqual((inner.result, inner.userdata), (0, None))
        self.assertEqual(len(self.iov[:]), 1 << 20)
        self.assertEqual(self.iov[-16:].base_off, (1 << 20) - 16)
        self.assertEqual(len(self.iov[20:10]), 0)
        with self.assertRaises(ValueError):
            self.iov[::2]

    def test_slice_by_buffer(self):
        with self.shm.buf[1000:1010] as view:
            part = self.iov.iov.slice_by(view)
            self.assertEqual((part.base_off, len(part)), (1000, 10))
            with self.assertRaises(IndexError):
                part.slice_by(self.shm.buf)
        with self.assertRaises(IndexError):
            self.iov.iov.slice_by(bytearray(10))

    def test_link_lives_as_long_as_buffer(self):
        link = self.iov.link
        self.assertEqual(os.readlink(link), f"/dev/shm/{self.shm.name}")
        with_blocks = io.make_iovec(self.shm, self.mount, block_size=4096, numa=0)
        self.assertTrue(with_blocks.link.endswith(".b4096"))
        other = with_blocks.link
        del with_blocks
        gc.collect()
        self.assertFalse(os.path.lexists(other))
        self.assertTrue(os.path.lexists(link))

    def test_invalid_buffers(self):
        for bad in ("", "0123", "z" * 32):
            with self.assertRaises(ValueError):
                hf3fs_py_usrbio.iovec(self.shm.buf, bad, self.mount)
        with self.assertRaises((TypeError, ValueError, BufferError)):
            hf3fs_py_usrbio.iovec(b"read only", "0" * 32, self.mount)
        self.assert_errno(errno.EINVAL, hf3fs_py_usrbio.iovec, bytearray(), "0" * 32, self.mount)
        with self.assertRaises(FileNotFoundError):
            io.make_iovec(self.shm, "/nowhere")

    @unittest.skipIf(sys.version_info < (3, 9), "classes cannot be buffers before Python 3.9")
    def test_buffer_protocol(self):
        self.shm.buf[0:5] = b"bytes"
        view = memoryview(self.iov[0:5])
        self.assertEqual((bytes(view), view[1], view.format), (b"bytes", ord("y"), "B"))
        self.assertEqual((view.shape, view.readonly), ((5,), False))
        view[0:2] = b"BY"
        self.assertEqual(bytes(self.shm.buf[0:5]), b"BYtes")
        self.assertEqual(len(memoryview(self.iov.iov)), 1 << 20)
        self.assertEqual(len(memoryview(self.iov[5:5])), 0)
        part = self.iov[0:1]
        view, alive = memoryview(part), weakref.ref(part)
        del part
        self.assertIsNotNone(alive())  # until the view is released
        view.release()
        self.assertIsNone(alive())

    def test_numpy(self):
        try:
            import numpy
        except ImportError:
            self.skipTest("there is no numpy")
        self.shm.buf[0:8] = bytes(range(8))
        array = numpy.frombuffer(self.iov[0:8], dtype=numpy.uint32)
        self.assertEqual(array.tolist(), [0x03020100, 0x07060504])
        array[0] = 0
        self.assertEqual(bytes(self.shm.buf[0:5]), b"\0\0\0\0\4")


class Files(Case):
    def test_read_file(self):
        self.assertEqual(io.read_file(self.path, self.mount, block_size=1 << 16), FILE)
        self.assertEqual(io.read_file(self.path, self.mount, block_size=3 << 20), FILE)
        self.assertEqual(
            io.read_file(self.path, self.mount, block_size=1000, off=len(FILE) - 2500), FILE[-2500:]
        )

    def test_read_file_with_callback(self):
        seen = []

        def each(block, offset):
            seen.append((offset, bytes(block)))
            return 5000 if offset == 2000 else offset >= 6000

        self.assertIsNone(io.read_file(self.path, self.mount, block_size=1000, cb=each))
        self.assertEqual([offset for offset, _ in seen], [0, 1000, 2000, 5000, 6000])
        for offset, block in seen:
            self.assertEqual(block, FILE[offset : offset + 1000])

    def test_read_file_errors(self):
        with self.assertRaises(FileNotFoundError):
            io.read_file(os.path.join(self.mount, "missing"), self.mount)
        with self.assertRaises(ValueError):
            io.read_file("/proc/self/status")

        def each(block, offset):
            raise KeyError("mine")

        with self.assertRaises(KeyError):
            io.read_file(self.path, self.mount, block_size=1000, cb=each)

    def test_links_and_holes(self):
        link = os.path.join(self.mount, "link")
        io.hardlink(self.path, link)
        self.assertTrue(os.path.samefile(self.path, link))
        self.assert_errno(errno.EEXIST, io.hardlink, self.path, link)
        io.punch_hole(self.path, [4096], [8192])
        io.punch_hole(self.fd, [16384], [20480], flags=0)
        self.assertEqual(os.pread(self.fd, 4096, 4096), bytes(4096))
        self.assertEqual(os.pread(self.fd, 4096, 16384), bytes(4096))
        with self.assertRaises(RuntimeError):
            io.punch_hole(self.path, [1], [2, 3])
        self.assertEqual(io.force_fsync(self.fd), 0)
        self.assertEqual(io.force_fsync(10**6), -1)

    def test_mount_points(self):
        self.assertIsNone(io.extract_mount_point(self.path))  # an ordinary folder
        self.assertIsNone(io.extract_mount_point("/missing"))

    def test_sizes(self):
        self.assertEqual(io.ioring.size_for_entries(1), 96 * 2 + 4144)
        ring = io.make_ioring(self.mount, 5, priority=io.IorPriority.HIGH, io_depth=-4, timeout=10)
        self.assertEqual(ring.ior.entries, 5)


class Names(unittest.TestCase):
    """The names of 3FS's hf3fs_fuse/io.py and src/lib/py/usrbio_binding.cc, and their arguments."""

    CALLS = {
        "extract_mount_point": "path",
        "register_fd": "fd flags",
        "deregister_fd": "fd",
        "force_fsync": "fd",
        "hardlink": "target link_name",
        "punch_hole": "filename start end flags fd",
    }
    RING = "hf3fs_mount_point entries for_read io_depth priority timeout numa flags"
    WRAPPED = {
        "make_iovec": "shm hf3fs_mount_point block_size numa",
        "make_ioring": RING,
        "read_file": "fn hf3fs_mount_point block_size off priority cb",
    }

    def check(self, call, arguments):
        names = list(inspect.signature(call).parameters)
        self.assertEqual([name for name in names if name != "self"], arguments.split())

    def test_binding(self):
        for name, arguments in self.CALLS.items():
            self.check(getattr(hf3fs_py_usrbio, name), arguments)
        iovec, ioring = hf3fs_py_usrbio.iovec, hf3fs_py_usrbio.ioring
        self.check(iovec.__init__, "base id hf3fs_mount_point block_size numa")
        self.check(iovec.slice_by, "buf")
        self.check(ioring.__init__, self.RING)
        self.check(ioring.size_for_entries, "entries")
        self.check(ioring.prepare, "iov read fd off userdata")
        self.check(ioring.submit, "")
        self.check(ioring.wait, "max_results min_results timeout")
        self.check(ioring.destroy, "")
        for name in ("base_off", "__getitem__"):
            self.assertTrue(hasattr(iovec, name))
        self.assertTrue(hasattr(ioring, "entries"))

    def test_io(self):
        for name, arguments in {**self.CALLS, **self.WRAPPED}.items():
            self.check(getattr(io, name), arguments)
        self.assertIs(io.h3fio, hf3fs_py_usrbio)
        self.assertEqual((io.IorPriority.HIGH, io.IorPriority.NORMAL, io.IorPriority.LOW), (-1, 0, 1))
        for name in ("prepare", "submit", "wait", "size_for_entries"):
            self.assertTrue(hasattr(io.ioring, name))
        for name in ("__getitem__", "__setitem__"):
            self.assertTrue(hasattr(io.iovec, name))

    def test_fuse(self):
        import hf3fs_fuse.fuse

        self.assertIsNone(hf3fs_fuse.fuse.get_mount_point("/proc/self/status"))

    def test_a_missing_library_is_an_import_error(self):
        program = (
            "try:\n import hf3fs_fuse.io\n"
            "except ImportError as error:\n print('none', 'HAUL_USRBIO_LIBRARY' in str(error))\n"
        )
        environment = {**os.environ, "HAUL_USRBIO_LIBRARY": "/nowhere/libhf3fs_api_shared.so"}
        done = subprocess.run(
            [sys.executable, "-c", program], env=environment, capture_output=True, text=True
        )
        self.assertEqual((done.stdout, done.stderr), ("none True\n", ""))


if __name__ == "__main__":
    unittest.main(verbosity=2)
