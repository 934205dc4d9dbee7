# SPDX-License-Identifier: MIT
"""Files of USRBIO: buffers over multiprocessing.shared_memory, rings, and a whole file at once."""

import multiprocessing.shared_memory
import os
import uuid

import hf3fs_py_usrbio as _usrbio
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
    """A buffer, and the link by which the daemon knows it; its slices are for ioring.prepare."""

    def __init__(self, iov, link):
        self.iov = iov
        self.link = link

    def __del__(self):
        try:
            os.unlink(self.link)
        except OSError:
            pass  # the daemon is gone, and the link with it

    def __getitem__(self, key):
        return self.iov[key]

    def __setitem__(self, key, value):
        self.iov[key] = value


class ioring:
    """A ring, as hf3fs_py_usrbio.ioring, whose prepare takes a whole buffer too."""

    def __init__(self, ior):
        self.ior = ior

    @staticmethod
    def size_for_entries(entries):
        return _usrbio.ioring.size_for_entries(entries)

    def prepare(self, iov, *args, **kwargs):
        return self.ior.prepare(iov.iov if isinstance(iov, iovec) else iov, *args, **kwargs)

    def submit(self):
        return self.ior.submit()

    def wait(self, *args, **kwargs):
        return self.ior.wait(*args, **kwargs)


def make_iovec(shm, hf3fs_mount_point, block_size=0, numa=-1):
    """Registers a multiprocessing.shared_memory.SharedMemory as a buffer. The daemon has its memory
    mapped when this returns, so it may be unlinked. `block_size` is in bytes, 0 for one block;
    `numa` a node that its pages are to be on, or negative."""
    name = str(uuid.uuid4())
    mark = f".b{block_size}" if block_size > 0 else ""
    link = f"{hf3fs_mount_point}/3fs-virt/iovs/{name}{mark}"
    os.symlink(os.path.normpath(f"/dev/shm/{shm.name}"), link)
    try:
        return iovec(_usrbio.iovec(shm.buf, name, hf3fs_mount_point, block_size, numa), link)
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
    """A ring for so many operations. `io_depth` > 0 has the daemon begin with exactly so many at a
    time, 0 with what is there, < 0 with that but at most so many; `timeout` is how many
    milliseconds that may wait for the others. `flags`: 2 makes holes an error."""
    return ioring(
        _usrbio.ioring(
            hf3fs_mount_point, entries, for_read, io_depth, priority, timeout, numa, flags
        )
    )


def _read_blocks(fn, mount, block_size, off, priority, each):
    """Calls `each` with a block at a time, and its offset: None goes on, an integer goes on from
    there, and anything else that is true ends it."""
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
    """The file's bytes from `off` on. With `cb` it is called instead, with a block that lasts as
    long as the call, and the block's offset: what it returns is the offset to go on from, or true
    to end."""
    if hf3fs_mount_point is None:
        hf3fs_mount_point = extract_mount_point(fn)
        if hf3fs_mount_point is None:
            raise ValueError(f"{fn} is on no file system of USRBIO's")
    blocks = []

    def keep(block, offset):
        blocks.append(bytes(block))

    _read_blocks(fn, hf3fs_mount_point, block_size, off, priority, cb or keep)
    return b"".join(blocks) if cb is None else None
