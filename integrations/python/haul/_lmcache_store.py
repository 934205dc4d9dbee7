# SPDX-License-Identifier: MIT
"""The store of haul.lmcache: values in files, and its requests."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import logging
import mmap
import os
import re
import threading
import time
from collections.abc import Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Union

from ._data import Code, Error, Message, TimedOut
from ._haul import Node, Peer

TAG = int.from_bytes(b"lmcache1", "big")  # of requests and responses, which are JSON
_UNFINISHED = "new-"  # begins the names of files that are being written
_TIME_MAX = 600  # seconds of a request

Result = Union[bool, str]  # of a key: success or presence; else why it failed
Entry = tuple[str, str, int]  # key, name of the published memory or "", length in bytes

_log = logging.getLogger("haul.lmcache")


def left(until: float) -> float:
    """Seconds."""
    return max(until - time.monotonic(), 0)


def messages(node: Node) -> Iterator[Message]:
    """Until the node is closed."""
    while True:
        try:
            yield node.receive(timeout=3600)
        except TimedOut:
            continue
        except Error as error:
            if error.code == Code.ECLOSED:
                return
            raise


class Store:
    """Values in files of one folder, which is locked: no other store uses it meanwhile.

    folder    is created if there is none
    capacity  limit of the sum of the values' lengths in bytes, unfinished ones included

    A file's name is the hash of its key. A context manager; close() unlocks the folder.
    """

    def __init__(self, folder: str, capacity: int) -> None:
        self._folder, self._capacity = folder, capacity
        os.makedirs(folder, exist_ok=True)
        self._opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(self._opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(self._opened)
            raise OSError(error.errno, "another store uses the folder", folder) from None
        self._lock = threading.Lock()  # guards what follows
        self._count = 0  # of files that were begun
        self._lengths = self._find()  # by file
        self._used = sum(self._lengths.values())

    def close(self) -> None:
        """Unlock the folder, once `serve` has returned. Does not wait."""
        if self._opened >= 0:
            os.close(self._opened)
            self._opened = -1

    def __enter__(self) -> Store:
        """Return the store."""
        return self

    def __exit__(self, *exception: object) -> None:
        """Close it."""
        self.close()

    def __len__(self) -> int:
        return len(self._lengths)

    def _find(self) -> dict[str, int]:
        found = {}
        with os.scandir(self._folder) as entries:
            for entry in entries:
                if entry.name.startswith(_UNFINISHED):
                    os.unlink(entry.path)
                elif re.fullmatch("[0-9a-f]{64}", entry.name):
                    found[entry.name] = entry.stat().st_size
        return found

    def serve(self, node: Node, threads: int) -> None:
        """Respond to the requests of a node's peers until another thread closes the node: blocks.

        node     which listens, for this alone
        threads  requests at a time
        """
        pool = ThreadPoolExecutor(threads, "haul-lmcache")
        for message in messages(node):
            if message.kind == "message" and message.tag == TAG:
                pool.submit(self._respond, message.peer, message.data, time.monotonic())
        pool.shutdown()

    def _respond(self, peer: Peer, data: bytes, received: float) -> None:
        try:
            request = json.loads(data)
            until = received + min(float(request["time"]), _TIME_MAX)
            results = self._perform(peer, request["operation"], request["items"], until)
            response = {"serial": request["serial"], "results": results}
            peer.send(json.dumps(response).encode(), tag=TAG, timeout=left(until))
        except Error as error:
            _log.warning("no response to %s: %s", peer.name, error)
        except Exception as error:
            _log.warning("a request of %s is malformed: %r", peer.name, error)

    def _perform(
        self, peer: Peer, operation: str, items: list[Entry], until: float
    ) -> list[Result]:
        if operation == "exists":
            return [_file_of(key) in self._lengths for key, _, _ in items]
        if operation == "delete":
            return [self._delete(_file_of(key)) for key, _, _ in items]
        move = {"set": self._set, "get": self._get}[operation]
        moves = [move(peer, _file_of(key), name, length, until) for key, name, length in items]
        begun = [_advance(each) for each in moves]  # all transfers are in flight at once
        return [_last(move) if result is None else result for move, result in zip(moves, begun)]

    def _set(
        self, peer: Peer, file: str, name: str, length: int, until: float
    ) -> Generator[None, None, Result]:
        path = os.path.join(self._folder, self._reserve(length))
        try:
            with _created(path, length) as value, peer.node.wrap(value) as region:
                remote = peer.lookup(name, timeout=left(until))
                transfer = remote.read(region, timeout=left(until), checksum=True)
                yield
                transfer.wait(left(until))
            _sync(path)
            with self._lock:
                os.replace(path, os.path.join(self._folder, file))
                self._used -= self._lengths.get(file, 0)
                self._lengths[file] = length
        except BaseException:
            self._abandon(path, length)
            raise
        return True

    def _reserve(self, length: int) -> str:
        """The name of a file for so many bytes, which count as used."""
        if length <= 0:
            raise ValueError("a value has at least one byte")
        with self._lock:
            if self._used + length > self._capacity:
                raise ValueError(
                    f"the store is full: {self._used} of {self._capacity} bytes are in use, and this"
                    f" value has {length} (hint: delete keys, or raise --capacity)"
                )
            self._used += length
            self._count += 1
            return f"{_UNFINISHED}{self._count}"

    def _abandon(self, path: str, length: int) -> None:
        with self._lock:
            self._used -= length
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)

    def _get(
        self, peer: Peer, file: str, name: str, length: int, until: float
    ) -> Generator[None, None, Result]:
        try:
            opened = open(os.path.join(self._folder, file), "rb")
        except FileNotFoundError:
            return False
        with opened:
            value = mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ)
        with value, peer.node.wrap(value) as region:
            if region.length != length:
                raise ValueError(f"the value has {region.length} bytes, and its memory {length}")
            remote = peer.lookup(name, timeout=left(until))
            transfer = remote.write(region, timeout=left(until), checksum=True)
            yield
            transfer.wait(left(until))
        return True

    def _delete(self, file: str) -> Result:
        with self._lock:
            if file not in self._lengths:
                return False
            try:
                os.unlink(os.path.join(self._folder, file))
            except OSError as error:
                return str(error)
            self._used -= self._lengths.pop(file)
            return True


def _file_of(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()


def _advance(move: Generator[None, None, Result]) -> Result | None:
    """Runs a move to its next step, or to its result."""
    try:
        next(move)
    except StopIteration as end:
        return end.value
    except Exception as error:
        return str(error)
    return None


def _last(move: Generator[None, None, Result]) -> Result:
    """Runs a move to its result."""
    while (result := _advance(move)) is None:
        pass
    return result


def _created(path: str, length: int) -> mmap.mmap:
    """A new file of this length in memory. Its blocks are allocated, since access to a mapping of a
    full disk kills the process."""
    with open(path, "xb+") as file:
        os.posix_fallocate(file.fileno(), 0, length)
        return mmap.mmap(file.fileno(), length)


def _sync(path: str) -> None:
    with open(path, "rb") as file:
        os.fdatasync(file.fileno())
