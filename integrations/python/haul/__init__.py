# SPDX-License-Identifier: MIT
"""haul moves bytes between memories and reports the path.

A Node is this process as a peer, a Region a range of bytes at a place, a Tensor a part of a region
with a type and a shape. A Peer is another node, a Remote a region that it publishes, a Transfer an
operation in flight. send, receive and share move whole tensors. A File of this host is read into
regions.

Times are seconds, lengths and offsets bytes, and calls block only where their text says so. They
release the GIL meanwhile, and Ctrl-C ends them. `timeout` has the node's value by default; math.inf
waits for ever. Every failure of the library is an Error, whose class depends on its code; besides
the listed ones, every call raises Closed for an object that is closed, and TypeError, ValueError or
OverflowError for arguments that Python cannot convert. Objects that own something are context
managers. Any thread may use any object.
"""

import importlib
import typing

from ._data import (
    ERRORS,
    AccessDenied,
    AddressInUse,
    BadAddress,
    BadTicket,
    Busy,
    Canceled,
    Check,
    ChecksumMismatch,
    Closed,
    Code,
    ConnectFailed,
    Device,
    Entry,
    Error,
    Event,
    FileReport,
    Forked,
    Insecure,
    Invalid,
    Layout,
    LimitReached,
    Message,
    NameInUse,
    NoPath,
    NoSuchName,
    NoSuchPlace,
    NotAuthenticated,
    NotSupported,
    OutOfMemory,
    OutOfRange,
    Path,
    PathBroke,
    PeerGone,
    Port,
    ProtocolViolated,
    Published,
    Received,
    Report,
    Rights,
    Stale,
    SystemFailed,
    TimedOut,
    VersionMismatch,
)
from ._haul import (
    MESSAGE_MAX,
    Directory,
    File,
    Node,
    Peer,
    Region,
    Remote,
    Tensor,
    Transfer,
    World,
    version,
    wait_all,
    wait_any,
)
from ._tensors import Shared, receive, send, share

if typing.TYPE_CHECKING:
    from . import aio as aio
    from . import broadcast as broadcast
    from . import cache as cache
    from . import reshard as reshard
    from . import safetensors as safetensors

READ = Rights.READ
WRITE = Rights.WRITE
__version__ = version()
__all__ = [
    "ERRORS",
    "MESSAGE_MAX",
    "READ",
    "WRITE",
    "AccessDenied",
    "AddressInUse",
    "BadAddress",
    "BadTicket",
    "Busy",
    "Canceled",
    "Check",
    "ChecksumMismatch",
    "Closed",
    "Code",
    "ConnectFailed",
    "Device",
    "Directory",
    "Entry",
    "Error",
    "Event",
    "File",
    "FileReport",
    "Forked",
    "Insecure",
    "Invalid",
    "Layout",
    "LimitReached",
    "Message",
    "NameInUse",
    "NoPath",
    "NoSuchName",
    "NoSuchPlace",
    "Node",
    "NotAuthenticated",
    "NotSupported",
    "OutOfMemory",
    "OutOfRange",
    "Path",
    "PathBroke",
    "Peer",
    "PeerGone",
    "Port",
    "ProtocolViolated",
    "Published",
    "Received",
    "Region",
    "Remote",
    "Report",
    "Rights",
    "Shared",
    "Stale",
    "SystemFailed",
    "Tensor",
    "TimedOut",
    "Transfer",
    "VersionMismatch",
    "World",
    "receive",
    "send",
    "share",
    "version",
    "wait_all",
    "wait_any",
]
_MODULES = ("aio", "broadcast", "cache", "reshard", "safetensors")  # imported at first use


def __getattr__(name: str) -> typing.Any:
    if name in _MODULES:
        return importlib.import_module(f".{name}", __name__)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULES})

for _name in __all__:
    _public = globals()[_name]
    if getattr(_public, "__module__", "").startswith(f"{__name__}."):
        _public.__module__ = __name__  # as tracebacks show it
del _name, _public
