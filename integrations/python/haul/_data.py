# SPDX-License-Identifier: MIT
"""Plain classes of results, and the exceptions that the extension raises."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from ._haul import Peer


class Code(enum.IntEnum):
    """Error codes of the C library."""

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
    """A call of haul failed. Each code has a class of its own, which is also one of Python's classes.

    code    a Code, or a plain number from a newer library
    system  errno of the system call behind it, or 0
    call    the call that failed
    object  its object: a name, an address, a range
    text    what failed, and why
    hint    a command or a sentence that helps
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
        parts = (call, "" if object in text else object, text)
        message = ": ".join(part for part in parts if part)
        super().__init__(f"{message} (hint: {hint})" if hint else message)
        if system and isinstance(self, OSError):
            setattr(self, "errno", system)  # as a statement it would be one of Error's for mypy

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), self._given


class Invalid(Error, ValueError):
    """An argument is invalid."""


class OutOfMemory(Error, MemoryError):
    """There is no memory."""


class NotSupported(Error, NotImplementedError):
    """The operation is not supported here: the hint names what is missing."""


class TimedOut(Error, TimeoutError):
    """The deadline passed."""


class Canceled(Error):
    """The operation was canceled."""


class PeerGone(Error, ConnectionError):
    """The connection to the peer ended."""


class NoSuchName(Error, FileNotFoundError):
    """The name does not exist."""


class NameInUse(Error, FileExistsError):
    """The name is already in use."""


class OutOfRange(Error, IndexError):
    """The range is out of bounds."""


class AccessDenied(Error, PermissionError):
    """The memory or the region does not grant the access."""


class Stale(Error):
    """The owner released the memory or withdrew its name."""


class ProtocolViolated(Error):
    """The peer violated the protocol."""


class VersionMismatch(Error):
    """There is no protocol version that both sides know."""


class BadAddress(Error, ValueError):
    """The address is invalid or unavailable."""


class AddressInUse(Error, OSError):
    """The address is already in use."""


class ConnectFailed(Error, ConnectionError):
    """The connection failed."""


class Insecure(Error, PermissionError):
    """Refused as insecure."""


class NoPath(Error):
    """No path meets the constraints: the hint has the reason of each."""


class ChecksumMismatch(Error):
    """The bytes differ from those that were sent."""


class Busy(Error):
    """The object is in use."""


class LimitReached(Error):
    """A limit is reached: the text names it."""


class Forked(Error, RuntimeError):
    """The object belongs to the parent process."""


class Closed(Error, ValueError):
    """The object is closed, like a closed file."""


class SystemFailed(Error, OSError):
    """A system call failed: errno says how."""


class BadTicket(Error, ValueError):
    """The ticket is damaged, forged or for other memory."""


class NoSuchPlace(Error, ValueError):
    """The place does not exist."""


class PathBroke(Error, ConnectionError):
    """The path broke during the transfer."""


class NotAuthenticated(Error, PermissionError):
    """The peer did not prove its identity, or does not accept this one."""


ERRORS: dict[int, type[Error]] = {
    Code.EINVAL: Invalid,
    Code.ENOMEM: OutOfMemory,
    Code.ENOTSUP: NotSupported,
    Code.ETIMEDOUT: TimedOut,
    Code.ECANCELED: Canceled,
    Code.EPEER: PeerGone,
    Code.ENAME: NoSuchName,
    Code.EEXIST: NameInUse,
    Code.ERANGE: OutOfRange,
    Code.EACCESS: AccessDenied,
    Code.ESTALE: Stale,
    Code.EPROTO: ProtocolViolated,
    Code.EVERSION: VersionMismatch,
    Code.EADDRESS: BadAddress,
    Code.EADDRINUSE: AddressInUse,
    Code.ECONNECT: ConnectFailed,
    Code.EINSECURE: Insecure,
    Code.ENOPATH: NoPath,
    Code.ECHECKSUM: ChecksumMismatch,
    Code.EBUSY: Busy,
    Code.ELIMIT: LimitReached,
    Code.EFORK: Forked,
    Code.ECLOSED: Closed,
    Code.ESYSTEM: SystemFailed,
    Code.ETICKET: BadTicket,
    Code.EPLACE: NoSuchPlace,
    Code.EPATH: PathBroke,
    Code.EAUTH: NotAuthenticated,
}


def _known(code: int) -> int:
    try:
        return Code(code)
    except ValueError:
        return code


def error_of(code: int, system: int, call: str, object: str, text: str, hint: str) -> Error:
    """The error of a code, of its class."""
    return ERRORS.get(code, Error)(code, system, call, object, text, hint)


def array_of(view: memoryview, dtype: Any, copy: bool | None) -> Any:
    """A numpy array of a view; copies if the type differs, unless `copy` says otherwise."""
    import numpy

    return numpy.asarray(view, dtype) if copy is None else numpy.array(view, dtype, copy=copy)


class Rights(enum.IntFlag):
    """Rights of peers in a region."""

    READ = 1
    WRITE = 2


class Layout(NamedTuple):
    """Type, shape and position of a tensor in a region."""

    dtype: str  # "float32", "bfloat16", ...
    shape: tuple[int, ...]
    strides: tuple[int, ...] | None = None  # in elements; None: dense, C order
    offset: int = 0  # of the first element, in bytes from the region's start


class Message(NamedTuple):
    """A message, or with peer_events that a peer joined or left."""

    kind: str  # "message", "offer" (refused); with peer_events also "joined" and "left"
    peer: Peer
    tag: int
    data: bytes


class Received(NamedTuple):
    """A tensor that haul.receive received."""

    tensor: Any  # `out`, or a new haul.Tensor
    peer: Peer
    id: int  # of the sender; 0 for a shared tensor


class Published(NamedTuple):
    """A region that a peer publishes."""

    name: str
    length: int
    place: str
    rights: Rights


class Entry(NamedTuple):
    """A node in a directory, or a region of one."""

    kind: str  # "node", "region"
    node: str
    name: str  # of a region, else ""
    length: int  # of a region, in bytes
    place: str | None  # of a region
    rights: Rights  # of a region
    id: bytes  # of the node, new with every Node
    boot: bytes  # boot id of its host
    network: int  # inode of its network namespace; 0: `advertise` set its addresses
    addresses: tuple[str, ...]


class Event(NamedTuple):
    """A step of a walk over a directory."""

    kind: str  # "holds", "told", "came", "went"
    entry: Entry | None  # None with "told"; kind, node and name alone with "went"


class Path(NamedTuple):
    """A path, open or closed (unavailable)."""

    name: str  # "map", "rdma", "tcp"
    open: bool
    chosen: bool
    cost_ns: float  # if open, time for the requested length: estimated or measured
    copies_cpu: int  # copies of each byte, by CPU, kernel and device
    copies_kernel: int
    copies_dma: int
    zero_copy: bool
    detail: str  # "mapped", "cross-memory attach", "2 rails"
    reason: str  # why closed or not chosen; if chosen, what set it or why it is staged, or ""
    estimate_ns: float  # without measurements
    measured: bool  # cost_ns: from transfers of about this size
    send: str  # "short" (in the call), "buffered" (copied first), "direct"


class Report(NamedTuple):
    """Report of a transfer; str() formats it."""

    status: int  # 1: in flight, 0: complete, else its error code
    operation: str  # "write", "read", "fetch_add", "compare_swap"
    bytes: int
    pieces: int
    slices: int
    retries: int  # slices repeated on another path
    checksum: bool  # verified at the destination
    queued_ns: int  # from the call to the first byte on the path
    wire_ns: int  # from there to the end
    setup_ns: int  # of queued_ns, within the call itself
    cpu_ns: int  # CPU time of this process meanwhile, with cpu_time; else 0
    paths: tuple[Path, ...]  # the chosen one first
    source: str  # places
    destination: str
    peer: str
    name: str  # the remote's
    text: str

    def __str__(self) -> str:
        return self.text


class FileReport(NamedTuple):
    """How a part of a file was read."""

    bytes: int
    direct: int  # of these, without a copy in host memory on their way
    path: str  # of the most bytes: "O_DIRECT", "cuFile", "page cache", "staged"
    detail: str  # "into host memory", "straight into GPU memory"
    reason: str  # why not all bytes were direct, or ""


class Item(NamedTuple):
    """The result of one key of a call of haul.cache.Cache."""

    key: str | bytes  # as it was given
    length: int  # of the block, in bytes; 0 if unknown
    member: int | None  # the number of the store that has it
    replicas: int  # put: the number of stores that have it
    error: Error | None  # why the key failed
    tier: str | None = None  # get, exists: "device", "memory" or "file"


class Block(NamedTuple):
    """A block that a store of a cache has."""

    key: bytes
    length: int
    checksum: int  # XXH3, 64 bits
    version: int  # increases with each put; about nanoseconds since 1970
    priority: int  # -1, 0 or 1
    tier: str  # "device", "memory" or "file"


class TierStats(NamedTuple):
    """What a store of a cache has in one tier, and has done."""

    capacity: int  # in bytes, like the next two; 0: there is no such tier
    used: int
    pinned: int
    blocks: int
    room: int  # entries of the index
    restored: int  # blocks found in the file at the start
    dropped: int  # of these, damaged ones
    puts: int  # blocks that came, also from the tier above
    evictions: int  # blocks that left for want of room: to the tier below, or lost


class Stats(NamedTuple):
    """What a store of a cache has in each tier; blocks move from the device to memory to the file."""

    device: TierStats
    memory: TierStats
    file: TierStats


class Repair(NamedTuple):
    """What Cache.repair found and did."""

    blocks: int  # different keys
    copies: int  # made
    bytes: int  # of the copies
    missing: int  # replicas that blocks lack at the end
    changed: int  # blocks that were replaced or removed meanwhile
    away: int  # stores that could not be read: what they have is not counted
    error: Error | None  # of the last copy that failed


class Version(NamedTuple):
    """A version of a broadcast."""

    number: int  # of two versions the newer one has the larger number
    length: int  # in bytes
    chunk: int  # bytes of a chunk


class Feeder(NamedTuple):
    """A node that chunks of a version came from."""

    name: str  # of a receiver, or "source"
    path: str  # of the last chunk: "map", "rdma", "tcp"
    source: bool
    bytes: int
    retries: int  # chunks that had to be read again
    reason: str  # why it was passed over last, or ""


class BroadcastReport(NamedTuple):
    """How a version was received, or how much of it."""

    version: int
    bytes: int
    kept: int  # of these, that were there already
    retries: int  # chunks read again: of feeders that left, were late or sent wrong bytes
    corrupt: int  # of these, whose checksum was wrong
    duration_ns: int
    feeders: tuple[Feeder, ...]


class Member(NamedTuple):
    """A receiver, as it reports itself to the source, unverified."""

    name: str
    address: str  # of its node; "" if it does not listen
    state: str  # "waiting", "receiving", "complete", "silent" (no report for 5 s), "left"
    version: int  # that it receives or has; 0: none
    bytes: int  # complete ones of that version
    retries: int
    duration_ns: int  # since it began to receive, final when it is complete
    feeder: str  # name of the node that it reads from, or ""
    path: str


class Device(NamedTuple):
    """A device or host memory, as a place of regions."""

    place: str
    name: str
    emulated: bool  # in software
    numa: int  # -1 if unknown
    memory: int  # in bytes; 0 if unknown
    pci: str
    exports: str  # sharing mechanism: "memfd", "descriptor, dma-buf to NICs"


class Port(NamedTuple):
    """A port of a NIC that a path of this host uses, as seen from a place."""

    path: str  # "rdma"
    name: str  # NIC and port number: "mlx5_0/1"
    usable: bool  # False: see `reason`
    emulated: bool  # in software
    numa: int  # -1 if unknown
    bridges: int  # PCI bridges shared with the place's device
    numa_distance: int  # of the kernel: 10 within a node; -1 if unknown
    bits_per_second: int  # line rate; 0 if unknown
    pci: str
    interface: str  # network interface: "eth2", or ""
    address: str  # for peers: a GID "::ffff:10.0.0.2", or "lid 12"
    reason: str
    mtu: int  # bytes of payload a packet; this and the next six are 0 if it is not usable
    gid_index: int
    pkey: int
    traffic_class: int
    service_level: int
    timeout: int  # of packets: 4.096 us times 2^timeout
    retry_count: int
    chosen: bool  # it carries the transfers of memory at the place
    choice: str  # why, or why not: "nearest by PCI"; "" if it is not usable


class Check(NamedTuple):
    """A requirement of a path or a place."""

    state: str  # "ok", "limited", "missing"
    backend: str
    name: str
    text: str  # the finding
    remedy: str  # a command that fixes it
