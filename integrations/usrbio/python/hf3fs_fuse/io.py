# SPDX-License-Identifier: MIT
"""Buffers over multiprocessing.shared_memory, rings, and reads of whole files."""

import multiprocessing.shared_memory
import os
import uuid

import hf3fs_py_usrbio as h3fio
from hf3fs_py_usrbio import (
    deregister_fd,
    extract_mount_point,
    force_fsync,
    hardlink,
    punch_hole,
    register_fd,
)

__all__ = [
    "IorPriority",
    "deregister_fd",
    "extract_mount_point",
    "force_fsync",
    "h3fio",
    "hardlink",
    "ioring",
    "iovec",
    "make_ioring",
    "make_iovec",
    "punch_hole",
    "read_file",
    "register_fd",
]


class IorPriority:
    HIGH = -1
    NORMAL = 0
    LOW = 1


class iovec:
    """A buffer and the symlink that registers it. Its slices are for ioring.prepare."""

    def __init__(self, iov, link):
        self.iov = iov
        self.link = link

    def __del__(self):
        try:
            os.unlink(self.link)
        except OSError:
            pass  # the daemon has died, and the link with it

    def __getitem__(self, key):
        return self.iov[key]

    def __setitem__(self, key, value):
        self.iov[key] = value


class ioring:
    """A hf3fs_py_usrbio.ioring whose prepare accepts a whole buffer, too."""

    def __init__(self, ior):
        self.ior = ior

    @staticmethod
    def size_for_entries(entries):
        return h3fio.ioring.size_for_entries(entries)

    def prepare(self, iov, *args, **kwargs):
        return self.ior.prepare(iov.iov if isinstance(iov, iovec) else iov, *args, **kwargs)

    def submit(self):
        return self.ior.submit()

    def wait(self, *args, **kwargs):
        return self.ior.wait(*args, **kwargs)


def make_iovec(shm, hf3fs_mount_point, block_size=0, numa=-1):
    """Registers a multiprocessing.shared_memory.SharedMemory as a buffer. It may be unlinked
    afterwards, as the daemon has mapped it. `block_size` is in bytes, 0 for one block; `numa` is
    the preferred node of its pages, or negative."""
    name = str(uuid.uuid4())
    mark = f".b{block_size}" if block_size > 0 else ""
    link = f"{hf3fs_mount_point}/3fs-virt/iovs/{name}{mark}"
    os.symlink(os.path.normpath(f"/dev/shm/{shm.name}"), link)
    try:
        return iovec(h3fio.iovec(shm.buf, name, hf3fs_mount_point, block_size, numa), link)
    except BaseException:
        os.unlink(link)
        raise


def make_ioring(
    hf3fs_mount_point,
    entries,
    for_read=True,
    io_depth=0,
    priority=None,
    timeout=None,
    numa=-1,
    flags=0,
):
    """Makes a ring for that many operations in flight. `io_depth` > 0 lets the daemon begin with
    exactly that many at a time, 0 with whatever is submitted, < 0 with at most -io_depth; `timeout`
    is how many milliseconds the latter waits for a full batch. `flags`: 2 makes holes an error."""
    return ioring(
        h3fio.ioring(
            hf3fs_mount_point, entries, for_read, io_depth, priority, timeout, numa, flags
        )
    )


def _read_blocks(fn, mount, block_size, off, priority, each):
    """Calls `each` with each block and its offset. If it returns an integer, continues from that
    offset; if anything else that is true, ends; else continues with the next block."""
    fd = os.open(fn, os.O_RDONLY | os.O_CLOEXEC)
    shm = multiprocessing.shared_memory.SharedMemory(size=block_size, create=True)
    iov = ior = None
    try:
        register_fd(fd)
        iov = make_iovec(shm, mount)
        ior = make_ioring(mount, 1, priority=priority)
        while True:
            ior.prepare(iov[:block_size], True, fd, off)
            result = ior.submit().wait(min_results=1)[0].result
            if result < 0:
                raise OSError(-result, os.strerror(-result))
            if result == 0:
                return
            with shm.buf[:result] as block:
                then = each(block, off)
            if type(then) is int:
                off = then
            elif then or result < block_size:
                return
            else:
                off += block_size
    finally:
        deregister_fd(fd)
        os.close(fd)
        if ior is not None:
            ior.ior.destroy()
        del ior, iov
        shm.close()
        shm.unlink()


def read_file(fn, hf3fs_mount_point=None, block_size=1 << 30, off=0, priority=None, cb=None):
    """Returns the file's bytes from `off` on. With `cb` calls that instead for each block, which
    is valid during the call, and its offset: it returns the offset to continue from, or true to end."""
    if hf3fs_mount_point is None:
        hf3fs_mount_point = extract_mount_point(fn)
        if hf3fs_mount_point is None:
            raise ValueError(f"{fn} is not on a file system that speaks USRBIO")
    blocks = []

    def keep(block, offset):
        blocks.append(bytes(block))

    _read_blocks(fn, hf3fs_mount_point, block_size, off, priority, cb or keep)
    return b"".join(blocks) if cb is None else None
