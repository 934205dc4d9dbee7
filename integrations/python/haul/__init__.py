# SPDX-License-Identifier: MIT
"""haul moves bytes between memories, and says which path they took.

A Node is this process's end, a Region a range of bytes at a place, a Peer another node, a Remote a
peer's published region, a Transfer bytes on their way, a Tensor a part of a region with a type and a
shape. Times are seconds; every call that waits takes `timeout`, and without it the node's.
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
    Report,
    Rights,
    TimedOut,
)
from ._haul import MESSAGE_MAX, Node, Peer, Region, Remote, Tensor, Transfer, version
from .aio import receive

READ = Rights.READ
WRITE = Rights.WRITE

for _class in (
    Check, Code, Device, Error, Layout, Message, Path, PeerGone, Published, Report, Rights, TimedOut,
):  # fmt: skip
    _class.__module__ = __name__  # where they are to be found, and what a traceback says

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
    "Region",
    "Remote",
    "Report",
    "Rights",
    "Tensor",
    "TimedOut",
    "Transfer",
    "receive",
    "version",
]
