# SPDX-License-Identifier: MIT
"""haul moves bytes between memories and reports the path.

A Node is this process as a peer, a Region a range of bytes at a place, a Tensor a part of a region
with a type and a shape. A Peer is another node, a Remote a region that it publishes, a Transfer an
operation in flight. Times are seconds. Calls that wait take `timeout`; its default is the node's.
"""

from ._data import (
    Check,
    Code,
    Device,
    Error,
    Layout,
    Message,
    Path,
    PeerGone,
    Published,
    Received,
    Report,
    Rights,
    TimedOut,
)
from ._haul import MESSAGE_MAX, Node, Peer, Region, Remote, Tensor, Transfer, version
from .aio import receive
from .tensors import recv_tensor, send_tensor

READ = Rights.READ
WRITE = Rights.WRITE

for _class in (
    Check, Code, Device, Error, Layout, Message, Path, PeerGone, Published, Received, Report,
    Rights, TimedOut,
):  # fmt: skip
    _class.__module__ = __name__  # as tracebacks show it

__version__ = version()
__all__ = [
    "MESSAGE_MAX",
    "READ",
    "WRITE",
    "Check",
    "Code",
    "Device",
    "Error",
    "Layout",
    "Message",
    "Node",
    "Path",
    "Peer",
    "PeerGone",
    "Published",
    "Received",
    "Region",
    "Remote",
    "Report",
    "Rights",
    "Tensor",
    "TimedOut",
    "Transfer",
    "receive",
    "recv_tensor",
    "send_tensor",
    "version",
]
