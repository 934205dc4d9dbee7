# SPDX-License-Identifier: MIT
"""One source, many receivers: each passes on what it has while it receives the rest.

    with haul.broadcast.Source(node, "weights") as source:  # the source, say a trainer
        source.publish(tensor)

    with haul.broadcast.Receiver(node, "tcp://trainer:7420", "weights") as receiver:
        version = receiver.next()  # at each receiver
        receiver.receive(version, tensor)

The source's link carries the bytes about once, as each receiver reads from the one before it in a
chain that keeps those of a host together. One that is gone, hangs or is slow is passed over. A chunk
counts, and is passed on, once its checksum equals the source's. The node of a source listens, and so
do those of receivers that pass on; both serve while their node makes progress.
"""

from ._data import BroadcastReport, Feeder, Member, Version
from ._haul import Receiver, Source

__all__ = ["BroadcastReport", "Feeder", "Member", "Receiver", "Source", "Version"]

for _public in (BroadcastReport, Feeder, Member, Version):
    _public.__module__ = __name__  # as tracebacks show it
del _public
