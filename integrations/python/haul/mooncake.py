# SPDX-License-Identifier: MIT
"""Mooncake's TransferEngine over haul: the calls of its Python interface that move bytes between peers.

    import haul.mooncake
    haul.mooncake.install()  # before a program, such as checkpoint-engine, imports mooncake.engine

Addresses are those of the processes, as in Mooncake: a process publishes each range that it registers
under its address, for every peer that may use the node. A key or a certificate (haul.conf, HAUL_KEY)
limits those; without one the node listens on this host alone. haul chooses the paths. As in Mooncake
calls return 0, or -1 after an error, which is logged by the logger "haul.mooncake". Memory is of
the host, or of a GPU.
"""

from __future__ import annotations

import bisect
import ctypes
import logging
import math
import os
import re
import sys
import threading
import types
from collections.abc import Callable, Sequence

from ._data import Error, NoSuchName, PeerGone, Rights, Stale
from ._haul import Node, Peer, Region, Remote, Transfer, wait_all
from ._tensors import settle

__all__ = ["TransferEngine", "install"]

_PREFIX = "mooncake."  # of the name of a range, before its address in base 16
_TIMEOUT = 30.0  # seconds, of a connection and of a transfer without progress
_log = logging.getLogger(__name__)


class _Target:
    """A peer, and the ranges that it has registered."""

    def __init__(self, peer: Peer) -> None:
        self.peer = peer
        self.remotes: dict[int, Remote] = {}  # by address
        self.ranges = sorted(
            (int(found.name.removeprefix(_PREFIX), 16), found.length)
            for found in peer.list()
            if re.fullmatch(f"{_PREFIX}[0-9a-f]{{1,16}}", found.name)
        )

    def start_of(self, address: int, length: int) -> int:
        return _start_of(self.ranges, address, length)

    def remote(self, start: int) -> Remote:
        if start not in self.remotes:
            self.remotes[start] = self.peer.lookup(f"{_PREFIX}{start:x}")
        return self.remotes[start]


def _start_of(ranges: Sequence[tuple[int, int]], address: int, length: int) -> int:
    """The start of the range that has these bytes; the ranges are sorted."""
    at = bisect.bisect_right(ranges, (address, sys.maxsize)) - 1
    if at < 0 or address + length > ranges[at][0] + ranges[at][1]:
        raise LookupError(f"no registered memory has the {length} bytes at {address:#x}")
    return ranges[at][0]


class TransferEngine:
    """A node, as mooncake.engine.TransferEngine."""

    def __init__(self) -> None:
        self._node: Node | None = None
        self._host = ""
        self._port = 0
        self._lock = threading.Lock()  # of the fields below
        self._regions: dict[int, Region] = {}  # by address
        self._targets: dict[str, _Target] = {}

    def initialize(
        self, local_hostname: str, metadata_server: str, protocol: str = "", device_name: str = ""
    ) -> int:
        """Open the node and listen on a free port.

        local_hostname   address of this host that peers reach; a port is ignored
        metadata_server  "P2PHANDSHAKE": peers are named by address; there is no other one here
        protocol         ignored: haul chooses the path
        device_name      ignored likewise
        """
        if metadata_server != "P2PHANDSHAKE":
            return _failed("initialize", f"no metadata server {metadata_server!r}: use P2PHANDSHAKE")
        self._host = local_hostname.partition(":")[0]
        try:
            self._node = Node(f"mooncake-{os.getpid()}", timeout=_TIMEOUT)
            address = self._node.listen(f"tcp://{self._host}:0")
        except Error as error:
            return _failed("initialize", error)
        self._port = int(address.rpartition(":")[2])
        return 0

    def get_rpc_port(self) -> int:
        """Return the port of the node; 0: it is not initialized."""
        return self._port

    def register_memory(self, buffer_addr: int, capacity: int) -> int:
        """Let peers read and write a range of this process's memory.

        buffer_addr  address of its first byte; the memory stays until it is unregistered
        capacity     in bytes
        """
        node = self._node
        if node is None:
            return _failed("register_memory", "the engine is not initialized")
        try:
            region = node.wrap((ctypes.c_char * capacity).from_address(buffer_addr))
            region.publish(f"{_PREFIX}{buffer_addr:x}", Rights.READ | Rights.WRITE)
        except (Error, ValueError) as error:
            return _failed("register_memory", error)
        with self._lock:
            self._regions[buffer_addr] = region
        return 0

    def unregister_memory(self, buffer_addr: int) -> int:
        """End the access of peers to a registered range.

        buffer_addr  as registered
        """
        with self._lock:
            region = self._regions.pop(buffer_addr, None)
        if region is None:
            return _failed("unregister_memory", f"{buffer_addr:#x} is not registered")
        region.close()
        return 0

    def batch_register_memory(self, buffer_addresses: Sequence[int], capacities: Sequence[int]) -> int:
        """Register ranges as register_memory does; after an error none of them.

        buffer_addresses  of their first bytes
        capacities        in bytes, as many
        """
        for i, (address, capacity) in enumerate(zip(buffer_addresses, capacities, strict=True)):
            if self.register_memory(address, capacity) != 0:
                self.batch_unregister_memory(buffer_addresses[:i])
                return -1
        return 0

    def batch_unregister_memory(self, buffer_addresses: Sequence[int]) -> int:
        """Unregister ranges as unregister_memory does.

        buffer_addresses  as registered
        """
        return min((self.unregister_memory(address) for address in buffer_addresses), default=0)

    def batch_transfer_sync_read(
        self,
        target_hostname: str,
        buffers: Sequence[int],
        peer_buffer_addresses: Sequence[int],
        lengths: Sequence[int],
    ) -> int:
        """Read ranges of a peer. Blocks until all bytes are in place.

        target_hostname        "HOST:PORT" of the peer's engine
        buffers                local addresses, in registered memory
        peer_buffer_addresses  the peer's, in memory that it has registered
        lengths                in bytes
        """
        pieces = zip(buffers, peer_buffer_addresses, lengths, strict=True)
        return self._move("batch_transfer_sync_read", Remote.read, target_hostname, list(pieces))

    def batch_transfer_sync_write(
        self,
        target_hostname: str,
        buffers: Sequence[int],
        peer_buffer_addresses: Sequence[int],
        lengths: Sequence[int],
    ) -> int:
        """Write ranges of a peer. Blocks until all bytes are in place.

        target_hostname        "HOST:PORT" of the peer's engine
        buffers                local addresses, in registered memory
        peer_buffer_addresses  the peer's, in memory that it has registered
        lengths                in bytes
        """
        pieces = zip(buffers, peer_buffer_addresses, lengths, strict=True)
        return self._move("batch_transfer_sync_write", Remote.write, target_hostname, list(pieces))

    def _move(
        self,
        call: str,
        method: Callable[..., Transfer],
        hostname: str,
        pieces: list[tuple[int, int, int]],
    ) -> int:
        for again in (True, False):
            try:
                self._transfer(method, hostname, pieces)
                return 0
            except (Error, LookupError, ValueError) as error:
                with self._lock:
                    self._targets.pop(hostname, None)  # it may have registered other memory
                if not again or not isinstance(error, (LookupError, NoSuchName, Stale, PeerGone)):
                    return _failed(call, error)
        raise AssertionError

    def _transfer(
        self, method: Callable[..., Transfer], hostname: str, pieces: list[tuple[int, int, int]]
    ) -> None:
        moving: list[Transfer] = []
        try:
            for remote, region, group in self._grouped(hostname, pieces):
                moving.append(method(remote, region, group))
            wait_all(moving, timeout=math.inf)  # each has a deadline
        except BaseException:
            settle(moving)
            raise

    def _grouped(
        self, hostname: str, pieces: list[tuple[int, int, int]]
    ) -> list[tuple[Remote, Region, list[tuple[int, int, int]]]]:
        """The pieces of each pair of ranges, as offsets."""
        target = self._target(hostname)
        with self._lock:
            regions = dict(self._regions)
        ranges = sorted((start, region.length) for start, region in regions.items())
        groups: dict[tuple[int, int], list[tuple[int, int, int]]] = {}
        for ours, theirs, length in pieces:
            here, there = _start_of(ranges, ours, length), target.start_of(theirs, length)
            groups.setdefault((here, there), []).append((ours - here, theirs - there, length))
        return [(target.remote(there), regions[here], group) for (here, there), group in groups.items()]

    def _target(self, hostname: str) -> _Target:
        if self._node is None:
            raise ValueError("the engine is not initialized")
        with self._lock:
            known = self._targets.get(hostname)
        if known:
            return known
        target = _Target(self._node.connect(f"tcp://{hostname}"))  # without the lock, as it waits
        with self._lock:
            return self._targets.setdefault(hostname, target)


def _failed(call: str, why: object) -> int:
    _log.error("%s: %s", call, why)
    return -1


def install() -> None:
    """Make this module's TransferEngine that of mooncake.engine, for imports from now on.

    Does not wait. A Mooncake that is installed is not imported any more.
    """
    package, engine = types.ModuleType("mooncake"), types.ModuleType("mooncake.engine")
    setattr(engine, "TransferEngine", TransferEngine)
    setattr(package, "engine", engine)
    sys.modules["mooncake"], sys.modules["mooncake.engine"] = package, engine
