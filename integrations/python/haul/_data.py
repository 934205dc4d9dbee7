# SPDX-License-Identifier: MIT
"""Plain classes that the extension makes its results of, and the exceptions it raises."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from ._haul import Peer


class Code(enum.IntEnum):
    """What an error's `code` may be: the C library's numbers."""

    EINVAL = -1
    ENOMEM = -2
    ENOTSUP = -3
    ETIMEDOUT = -4
    ECANCELED = -5
    EPEER = -6
    ENAME = -7
    EEXIST = -8
    ERANGE = -9
    EACCESS = -10
    ESTALE = -11
    EPROTO = -12
    EVERSION = -13
    EADDRESS = -14
    EADDRINUSE = -15
    ECONNECT = -16
    EINSECURE = -17
    ENOPATH = -18
    ECHECKSUM = -19
    EBUSY = -20
    ELIMIT = -21
    EFORK = -22
    ECLOSED = -23
    ESYSTEM = -24
    ETICKET = -25
    EPLACE = -26
    EPATH = -27
    EAUTH = -28


class Error(Exception):
    """A call of haul failed.

    code    a Code, or a plain number from a newer library
    system  errno of the system call behind it, or 0
    call    the call that failed
    object  what it was about: a name, an address, a range
    text    one sentence: what happened
    hint    one sentence: what to do about it
    """

    def __init__(
        self, code: int, system: int, call: str, object: str, text: str, hint: str
    ) -> None:
        self.code: int = _known(code)
        self.system = system
        self.call = call
        self.object = object
        self.text = text
        self.hint = hint
        self._given = (code, system, call, object, text, hint)
        said = ": ".join(part for part in (call, object, text) if part)
        super().__init__(f"{said} (hint: {hint})" if hint else said)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), self._given


class TimedOut(Error, TimeoutError):
    """The deadline passed."""


class PeerGone(Error, ConnectionError):
    """The peer is gone."""


_CLASSES: dict[int, type[Error]] = {Code.ETIMEDOUT: TimedOut, Code.EPEER: PeerGone}


def _known(code: int) -> int:
    try:
        return Code(code)
    except ValueError:
        return code


def error_of(code: int, system: int, call: str, object: str, text: str, hint: str) -> Error:
    return _CLASSES.get(code, Error)(code, system, call, object, text, hint)


def array_of(view: memoryview, dtype: Any, copy: bool | None) -> Any:
    """numpy's array over a view; without `copy` it copies where the type asks for it."""
    import numpy

    return numpy.asarray(view, dtype) if copy is None else numpy.array(view, dtype, copy=copy)


class Rights(enum.IntFlag):
    """What others may do with a region."""

    READ = 1
    WRITE = 2


class Layout(NamedTuple):
    """How a tensor lies in a region."""

    dtype: str  # "float32", "bfloat16", ...
    shape: tuple[int, ...]
    strides: tuple[int, ...] | None = None  # in elements; None: dense, the last the fastest
    offset: int = 0  # of the first element, in bytes from the region's start


class Message(NamedTuple):
    kind: str  # "message"; with peer_events also "joined" and "left"
    peer: Peer
    tag: int
    data: bytes


class Published(NamedTuple):
    """What a peer publishes."""

    name: str
    length: int
    place: str
    rights: Rights


class Path(NamedTuple):
    """One way to go, open or closed."""

    name: str  # "map", "rdma", "tcp"
    open: bool
    chosen: bool
    cost_ns: float  # time for the length asked for, when open: estimated, or as it was measured
    copies_cpu: int  # how often each byte is copied, by whom
    copies_kernel: int
    copies_dma: int
    zero_copy: bool
    detail: str  # "mapped", "cross-memory attach", "2 rails"
    reason: str  # closed: why; open and not chosen: why not; chosen: who set it, or ""
    estimate_ns: float  # before anything was measured
    measured: bool  # cost_ns comes from transfers of about this size
    send: str  # "short" (in the call), "buffered" (copied first), "direct" (from where they lie)


class Report(NamedTuple):
    """What a transfer says about itself; str() is that in words."""

    status: int  # 1 under way, 0 complete, else the code it ended with
    operation: str  # "write", "read", "fetch_add", "compare_swap"
    bytes: int
    pieces: int
    slices: int
    retries: int  # slices sent again on another path
    checksum: bool  # verified at the destination
    queued_ns: int  # from the call to the first byte handed to the path
    wire_ns: int  # from there to the end
    setup_ns: int  # of queued_ns, what the call itself took
    paths: tuple[Path, ...]  # the chosen one first
    source: str  # places
    destination: str
    peer: str
    name: str  # the remote's
    text: str

    def __str__(self) -> str:
        return self.text


class Device(NamedTuple):
    """A place that memory can be at."""

    place: str
    name: str
    emulated: bool  # software stands in for hardware
    numa: int  # -1 where unknown
    memory: int  # bytes in all, 0 where unknown
    pci: str
    exports: str  # how its memory is shared: "memfd", "descriptor, dma-buf to NICs"


class Check(NamedTuple):
    """One thing that a path or a place needs."""

    state: str  # "ok", "limited", "missing"
    backend: str
    name: str
    text: str  # what was found
    remedy: str  # a command that mends it
