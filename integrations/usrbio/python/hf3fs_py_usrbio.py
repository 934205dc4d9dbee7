# SPDX-License-Identifier: MIT
"""hf3fs_usrbio.h for Python, with the names of 3FS's own module: buffers, rings, files.

It calls libhf3fs_api_shared.so by ctypes, so there is nothing to compile. HAUL_USRBIO_LIBRARY is
the library's path where the loader does not find it; without the library, importing this raises
ImportError. Errors of the C calls raise OSError.
"""

import ctypes
import datetime
import errno
import fcntl
import os
import sys
import threading
import time
import uuid

__all__ = [
    "deregister_fd",
    "extract_mount_point",
    "force_fsync",
    "hardlink",
    "ioring",
    "iovec",
    "punch_hole",
    "register_fd",
]

_HOLES = 1000  # per call
_FSYNC = 0x8004680B  # _IOR('h', 11, uint32_t)
_SLICE = 0.1  # seconds that a wait may delay a signal handler


class _Iov(ctypes.Structure):
    _fields_ = [
        ("base", ctypes.c_void_p),
        ("iovh", ctypes.c_void_p),
        ("id", ctypes.c_char * 16),
        ("mount_point", ctypes.c_char * 256),
        ("size", ctypes.c_size_t),
        ("block_size", ctypes.c_size_t),
        ("numa", ctypes.c_int),
    ]


class _Ior(ctypes.Structure):
    _fields_ = [
        ("iov", _Iov),
        ("iorh", ctypes.c_void_p),
        ("mount_point", ctypes.c_char * 256),
        ("for_read", ctypes.c_bool),
        ("io_depth", ctypes.c_int),
        ("priority", ctypes.c_int),
        ("timeout", ctypes.c_int),
        ("flags", ctypes.c_uint64),
    ]


class _Cqe(ctypes.Structure):
    _fields_ = [
        ("index", ctypes.c_int32),
        ("reserved", ctypes.c_int32),
        ("result", ctypes.c_int64),
        ("userdata", ctypes.c_void_p),
    ]


class _Timespec(ctypes.Structure):
    _fields_ = [("tv_sec", ctypes.c_long), ("tv_nsec", ctypes.c_long)]


def _calls():
    """The library's calls; those that cannot block keep the interpreter lock."""
    name = os.environ.get("HAUL_USRBIO_LIBRARY") or "libhf3fs_api_shared.so"
    try:
        may_block, cannot = ctypes.CDLL(name), ctypes.PyDLL(name)
    except OSError as failure:
        hint = "install haul, or set HAUL_USRBIO_LIBRARY to the path of libhf3fs_api_shared.so"
        raise ImportError(f"{failure} (hint: {hint})", path=name) from failure
    iov, ior = ctypes.POINTER(_Iov), ctypes.POINTER(_Ior)
    integer, text, size = ctypes.c_int, ctypes.c_char_p, ctypes.c_size_t
    sizes, yes, address = ctypes.POINTER(size), ctypes.c_bool, ctypes.c_void_p
    time_at, word = ctypes.POINTER(_Timespec), ctypes.c_uint64
    table = {
        "extract_mount_point": (may_block, integer, text, integer, text),
        "iovwrap": (may_block, integer, iov, address, text, text, size, size, integer),
        "ior_size": (cannot, size, integer),
        "iorcreate3": (may_block, integer, ior, text, *[integer, yes] + [integer] * 4),
        "iorcreate4": (may_block, integer, ior, text, *[integer, yes] + [integer] * 3, word),
        "iordestroy": (may_block, None, ior),
        "reg_fd": (may_block, integer, integer, word),
        "dereg_fd": (may_block, None, integer),
        "io_entries": (cannot, integer, ior),
        "prep_io": (cannot, integer, ior, iov, yes, address, integer, size, word, address),
        "submit_ios": (cannot, integer, ior),
        "wait_for_ios": (may_block, integer, ior, address, integer, integer, time_at),
        "hardlink": (may_block, integer, text, text),
        "punchhole": (may_block, integer, integer, integer, sizes, sizes, size),
    }
    calls = {}
    for call, (library, result, *arguments) in table.items():
        calls[call] = getattr(library, "hf3fs_" + call)
        calls[call].restype = result
        calls[call].argtypes = arguments
    return calls


_CALLS = _calls()


def _error(code):
    return OSError(code, os.strerror(code))


def _check(code):
    """Raises OSError for a positive errno value."""
    if code > 0:
        raise _error(code)


def extract_mount_point(path):
    """The mount point above `path`; None: its file system does not speak USRBIO."""
    place = ctypes.create_string_buffer(4096)
    length = _CALLS["extract_mount_point"](place, len(place), os.fsencode(path))
    if length < 0:
        return None
    if length > len(place):
        raise _error(errno.ENAMETOOLONG)
    return os.fsdecode(place.value)


def register_fd(fd, flags=0):
    """Registers an open file for use by rings, until deregister_fd."""
    _check(_CALLS["reg_fd"](fd, flags))


def deregister_fd(fd):
    _CALLS["dereg_fd"](fd)


def force_fsync(fd):
    """Makes the next stat report the file's true length. Returns 0, or -1 for failure."""
    try:
        return fcntl.ioctl(fd, _FSYNC, 0)
    except OSError:
        return -1


def hardlink(target, link_name):
    _check(_CALLS["hardlink"](os.fsencode(target), os.fsencode(link_name)))


def punch_hole(filename=None, start=(), end=(), flags=0, *, fd=None):
    """Makes holes from each start up to each end, in a file given by name or descriptor."""
    filename = fd if filename is None else filename
    if len(start) != len(end) or len(start) > _HOLES:
        raise RuntimeError("size not equal")
    if not isinstance(filename, int):
        fd = os.open(filename, os.O_RDWR | os.O_CLOEXEC)
        try:
            return punch_hole(fd, start, end, flags)
        finally:
            os.close(fd)
    count = len(start)
    array = ctypes.c_size_t * count
    _check(_CALLS["punchhole"](filename, count, array(*start), array(*end), flags))
    return None


def _place(buffer):
    """Address and size of a writable buffer, which the caller keeps open."""
    view = memoryview(buffer)
    if not view.contiguous:
        raise ValueError("the buffer is not contiguous")
    if view.nbytes == 0:
        return 0, 0
    return ctypes.addressof(ctypes.c_char.from_buffer(view)), view.nbytes


class _Slot(ctypes.Structure):
    _fields_ = [("slot", ctypes.c_int), ("function", ctypes.c_void_p)]


class _Spec(ctypes.Structure):
    _fields_ = [
        ("name", ctypes.c_char_p),
        ("basicsize", ctypes.c_int),
        ("itemsize", ctypes.c_int),
        ("flags", ctypes.c_uint),
        ("slots", ctypes.POINTER(_Slot)),
    ]


def _buffer_base():
    """A base class whose subclasses are buffers of `_size` bytes at `_address`.

    Classes have __buffer__ from Python 3.12 on. Before, a class is a buffer by a slot of its type,
    which only the C API sets, from 3.9 on (PyType_FromSpec, with Py_bf_getbuffer = 1). A ctypes
    array would be a buffer, too, but of the format "<B", which memoryview cannot index.
    """
    if sys.version_info >= (3, 12) or sys.version_info < (3, 9):
        return object, None
    fill = ctypes.pythonapi.PyBuffer_FillInfo
    fill.argtypes = [ctypes.c_void_p, ctypes.py_object, ctypes.c_void_p, ctypes.c_ssize_t]
    fill.argtypes += [ctypes.c_int, ctypes.c_int]

    @ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_void_p, ctypes.c_int)
    def get_buffer(self, view, flags):
        return fill(view, self, self._address, self._size, 0, flags)

    slots = (_Slot * 2)(_Slot(1, ctypes.cast(get_buffer, ctypes.c_void_p)))
    flags = 1 << 18 | 1 << 10  # Py_TPFLAGS_DEFAULT, Py_TPFLAGS_BASETYPE
    spec = _Spec(b"hf3fs_py_usrbio._Buffer", object.__basicsize__, 0, flags, slots)
    make = ctypes.pythonapi.PyType_FromSpec
    make.restype, make.argtypes = ctypes.py_object, [ctypes.POINTER(_Spec)]
    return make(spec), (get_buffer, spec)  # which the type uses


_Buffer, _buffer_parts = _buffer_base()


class iovec(_Buffer):
    """Shared memory for operations, or a slice of it that an operation reads to or writes from.

    `base` is a buffer over a file in /dev/shm to which a symlink MOUNT/3fs-virt/iovs/ID leads. It
    must stay mapped while operations use it. After an operation its slice has the `result`, a
    number of bytes or a negative errno value, and the `userdata`.
    """

    def __init__(self, base, id, hf3fs_mount_point, block_size=0, numa=-1):
        try:
            identity = uuid.UUID(id).bytes
        except ValueError:
            raise ValueError(f"id '{id}' is not a valid UUID") from None
        self._iov = _Iov()
        self._address, self._size = _place(base)
        self._root = self
        self._clear()
        status = _CALLS["iovwrap"](
            self._iov,
            self._address,
            identity,
            os.fsencode(hf3fs_mount_point),
            self._size,
            block_size,
            numa,
        )
        _check(-status)

    def _clear(self):
        self.result = 0
        self.userdata = None

    def _part(self, offset, size):
        part = iovec.__new__(iovec)
        part._iov = None
        part._root = self._root
        part._address = self._address + offset
        part._size = size
        part._clear()
        return part

    def slice_by(self, buf):
        """The slice that has the same memory as another buffer."""
        address, size = _place(buf)
        if address < self._address or address + size > self._address + self._size:
            raise IndexError("given buf is out of range")
        return self._part(address - self._address, size)

    def __getitem__(self, key):
        start, stop, step = key.indices(self._size)
        if step != 1:
            raise ValueError("step not 1 when slicing iovec")
        return self._part(start, max(0, stop - start))

    def __setitem__(self, key, value):
        self._view()[key] = value

    def __len__(self):
        return self._size

    def _view(self):
        return memoryview((ctypes.c_ubyte * self._size).from_address(self._address)).cast("B")

    def __buffer__(self, flags):  # from Python 3.12 on
        return self._view()

    @property
    def base_off(self):
        """The offset of a slice in the whole buffer."""
        return self._address - self._root._address


def _seconds(timeout):
    return timeout.total_seconds() if isinstance(timeout, datetime.timedelta) else float(timeout)


class ioring:
    """A ring of operations, either for reading or for writing.

    One thread prepares and submits; others may wait. `priority` is ignored if `flags` are set, as
    USRBIO has no call for both.
    """

    def __init__(
        self,
        hf3fs_mount_point,
        entries,
        for_read=True,
        io_depth=0,
        priority=None,
        timeout=None,
        numa=-1,
        flags=0,
    ):
        self._ior = _Ior()
        self._lock = threading.Lock()  # guards the next two
        self._pending = {}  # slice and userdata by token
        self._token = 0
        mount, wait = os.fsencode(hf3fs_mount_point), timeout or 0
        if flags == 0:
            status = _CALLS["iorcreate3"](
                self._ior, mount, entries, for_read, io_depth, priority or 0, wait, numa
            )
        else:
            status = _CALLS["iorcreate4"](
                self._ior, mount, entries, for_read, io_depth, wait, numa, flags
            )
        _check(-status)

    def __del__(self):
        if "_ior" in self.__dict__:
            self.destroy()

    @staticmethod
    def size_for_entries(entries):
        return _CALLS["ior_size"](entries)

    @property
    def entries(self):
        return _CALLS["io_entries"](self._ior)

    def prepare(self, iov, read, fd, off, userdata=None):
        """Prepares an operation on the whole slice, which may begin at once. Returns the ring."""
        with self._lock:
            self._token += 1
            index = _CALLS["prep_io"](
                self._ior, iov._root._iov, read, iov._address, fd, off, iov._size, self._token
            )
            _check(-index)
            self._pending[self._token] = (iov, userdata)
        return self

    def submit(self):
        """Notifies the daemon. Returns the ring."""
        _check(-_CALLS["submit_ios"](self._ior))
        return self

    def _take(self, room, least, deadline):
        """The slices that one call returns, and an errno value, 0 for success."""
        cqes = (_Cqe * room)()
        until = _Timespec(int(deadline // 1), int(deadline % 1 * 1e9))
        got = _CALLS["wait_for_ios"](self._ior, cqes, room, least, until)
        done = []
        with self._lock:
            for cqe in cqes[: max(0, got)]:
                iov, iov_userdata = self._pending.pop(cqe.userdata)
                iov.result, iov.userdata = cqe.result, iov_userdata
                done.append(iov)
        return done, max(0, -got)

    def wait(self, *, max_results=0, min_results=0, timeout=None):
        """Returns the slices of at most `max_results` completed operations, and at least
        `min_results` of them, unless the timeout (seconds, or a timedelta; None: never) ends the
        wait earlier."""
        room = max(max_results, min_results, 1)
        now = time.time()
        end = None if timeout is None else now + _seconds(timeout)
        done = []
        while len(done) < room:
            least = max(0, min_results - len(done))
            deadline = now + _SLICE if end is None else min(end, now + _SLICE)
            more, failure = self._take(room - len(done), least, deadline)
            if not done:
                _check(failure)
            done += more
            now = time.time()
            over = least == 0 or (end is not None and now >= end)
            if failure or (not more and over):
                break
        return done

    def destroy(self):
        _CALLS["iordestroy"](self._ior)
