# SPDX-License-Identifier: MIT
"""A store for LMCache's values, and the connector to it.

The store keeps each value in a file of one folder, and moves bytes between its files and the memory
of LMCache:

    python3 -m haul.lmcache /data/kv --listen tcp://127.0.0.1:7430 --capacity 64G

LMCache loads the connector as a native plugin; several instances may share a store:

    --l2-adapter '{"type": "native_plugin", "module_path": "haul.lmcache", "class_name": "Connector",
                   "adapter_params": {"address": "tcp://127.0.0.1:7430", "timeout": 10}}'

A file has its name once its value is complete and on the disk, so a crash leaves no half value, and
a restarted store has all values of the one before. haul's settings (haul.conf(5)) apply to both:
HAUL_KEY for other hosts. Problems are logged as `haul.lmcache`.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import hashlib
import json
import logging
import mmap
import os
import re
import secrets
import sys
import threading
import time
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Union

from ._data import Code, Error, Message, Rights, TimedOut
from ._haul import Node, Peer

_TAG = int.from_bytes(b"lmcache1", "big")  # of requests and responses, which are JSON
_GROUP = 64  # keys of a request
_UNFINISHED = "new-"  # begins the names of files that are being written
_TIME_MAX = 600  # seconds of a request
_MISSING = "the store has no such key"
_MALFORMED = "the store's response is malformed"
_CLOSED = "the connector is closed"

__all__ = ["Connector", "Store", "main"]

_Result = Union[bool, str]  # of a key: success or presence; else why it failed
_Item = tuple[str, str, int]  # key, name of the published memory or "", length in bytes

_log = logging.getLogger(__name__)


def _left(until: float) -> float:
    return max(until - time.monotonic(), 0)


# ---- LMCache's side ----


class Connector:
    """LMCache's interface of native connectors. Its calls return at once; threads do the work.

    address  of the store
    timeout  deadline of each batch, in seconds
    threads  batches at a time
    node     further arguments of haul.Node

    While the store cannot be reached batches fail, and the next one connects again. A context manager.
    """

    def __init__(self, address: str, timeout: float = 10, threads: int = 4, **node: Any) -> None:
        self._address, self._timeout = address, timeout
        self._node = Node(peer_events=True, timeout=timeout, **node)
        self._event = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._pool = ThreadPoolExecutor(threads, "haul-lmcache")
        self._receiver = threading.Thread(target=self._receive, daemon=True)
        self._logged = ""
        self._connecting = threading.Lock()
        self._peer: Peer | None = None
        self._lock = threading.Lock()  # guards what follows
        self._closed = False
        self._serial = 0
        self._waiting: dict[int, tuple[Peer, Future[list[_Result]]]] = {}
        self._completions: list[tuple[int, bool, str, list[bool] | None]] = []
        self._receiver.start()

    def event_fd(self) -> int:
        """Return a descriptor that is readable while there are completions, until close()."""
        return self._event

    def submit_batch_set(self, keys: Sequence[str], values: Sequence[memoryview]) -> int:
        """Begin a batch that stores values, and return its number. Does not wait.

        keys    of the values, any text
        values  contiguous buffers, which are in use until the batch's completion

        Raises ValueError (the connector is closed, or the numbers of keys and values differ).
        """
        return self._submit("set", keys, values)

    def submit_batch_get(self, keys: Sequence[str], values: Sequence[memoryview]) -> int:
        """Begin a batch that loads values, and return its number. Does not wait.

        keys    of the values
        values  writable contiguous buffers of their lengths; undefined after a failure

        Raises ValueError (the connector is closed, or the numbers of keys and values differ).
        """
        return self._submit("get", keys, values)

    def submit_batch_exists(self, keys: Sequence[str]) -> int:
        """Begin a batch that asks which keys the store has, and return its number. Does not wait.

        keys  any number. Raises ValueError (the connector is closed).
        """
        return self._submit("exists", keys)

    def submit_batch_delete(self, keys: Sequence[str]) -> int:
        """Begin a batch that deletes values, and return its number. Does not wait.

        keys  of the values; those without one are no error. Raises ValueError (the connector is closed).
        """
        return self._submit("delete", keys)

    def drain_completions(self) -> list[tuple[int, bool, str, list[bool] | None]]:
        """Return the completions since the last call. Does not wait.

        Of each: the batch's number, whether it has no errors, its errors by key, and for each key
        whether it was stored, loaded, found or deleted.
        """
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._event)
        with self._lock:
            drained, self._completions = self._completions, []
        return drained

    def close(self) -> None:
        """End all batches. Once it returns no memory of theirs is accessed.

        Blocks for the threads; for one that is connecting, until the deadline of its batch.
        """
        with self._lock:
            if self._closed:
                return
            self._closed = True
        self._end_all(ConnectionError(_CLOSED), alive=True)
        self._node.close()  # ends calls that wait for the store
        self._pool.shutdown()
        self._receiver.join()
        os.close(self._event)

    def __enter__(self) -> Connector:
        """Return the connector."""
        return self

    def __exit__(self, *exception: object) -> None:
        """Close it."""
        self.close()

    def _submit(self, operation: str, keys: Sequence[str], values: Sequence[memoryview] = ()) -> int:
        if values and len(values) != len(keys):
            raise ValueError(f"{len(keys)} keys have {len(values)} values")
        with self._lock:
            if self._closed:
                raise ValueError(_CLOSED)
            number = self._next()
            self._pool.submit(self._run, number, operation, list(keys), list(values))
        return number

    def _next(self) -> int:
        self._serial += 1
        return self._serial

    def _run(self, number: int, operation: str, keys: list[str], values: list[memoryview]) -> None:
        until = time.monotonic() + self._timeout
        try:
            results = self._batch(operation, keys, values, until)
        except Exception as error:
            results = [str(error)] * len(keys)
        if operation == "get":
            results = [_MISSING if result is False else result for result in results]
        failed = [(key, result) for key, result in zip(keys, results) if isinstance(result, str)]
        self._log(operation, [pair for pair in failed if pair[1] != _MISSING])
        text = "; ".join(f"{key}: {why}" for key, why in failed)
        with self._lock:
            done = [result is True for result in results]
            self._completions.append((number, not failed, text, done))
            os.eventfd_write(self._event, 1)

    def _log(self, operation: str, errors: list[tuple[str, str]]) -> None:
        """Logs one error of a batch, unless the batch before had the same."""
        why = errors[0][1] if errors else ""
        if why and why != self._logged and not self._closed:
            _log.warning("%s: %s and %d other keys: %s", operation, errors[0][0], len(errors) - 1, why)
        self._logged = why

    def _batch(
        self, operation: str, keys: list[str], values: list[memoryview], until: float
    ) -> list[_Result]:
        peer = self._connected(until)
        results: list[_Result] = []
        with contextlib.ExitStack() as published:
            groups = []
            for first in range(0, len(keys), _GROUP):
                items = [
                    (key, *self._publish(published, operation, values[first + i : first + i + 1]))
                    for i, key in enumerate(keys[first : first + _GROUP])
                ]
                groups.append((len(items), *self._request(peer, operation, items, until)))
            for count, serial, response in groups:
                results += self._response(count, serial, response, until)
        return results

    def _publish(
        self, published: contextlib.ExitStack, operation: str, value: list[memoryview]
    ) -> tuple[str, int]:
        """Until `published` ends the store may access the value, by a name that nobody guesses."""
        if not value:
            return "", 0
        region = published.enter_context(self._node.wrap(value[0]))
        name = secrets.token_hex(16)
        region.publish(name, Rights.READ if operation == "set" else Rights.WRITE)
        return name, region.length

    def _request(
        self, peer: Peer, operation: str, items: list[_Item], until: float
    ) -> tuple[int, Future[list[_Result]]]:
        response: Future[list[_Result]] = Future()
        with self._lock:
            if self._closed:
                raise ConnectionError(_CLOSED)
            serial = self._next()
            self._waiting[serial] = peer, response
        request = {"serial": serial, "operation": operation, "items": items, "time": _left(until)}
        try:
            peer.send(json.dumps(request).encode(), tag=_TAG, timeout=_left(until))
        except Error as error:
            self._end(serial, error)
        return serial, response

    def _response(
        self, count: int, serial: int, response: Future[list[_Result]], until: float
    ) -> list[_Result]:
        try:
            results = response.result(_left(until))
            return results if len(results) == count else [_MALFORMED] * count
        except TimeoutError:
            self._end(serial, TimeoutError())
            return [f"the store at {self._address} did not respond in {self._timeout:g} s"] * count
        except (Error, ConnectionError) as error:
            return [str(error)] * count

    def _end(self, serial: int, end: list[_Result] | Exception) -> None:
        with self._lock:
            _, response = self._waiting.pop(serial, (None, None))
        if response is None:
            return  # it has ended
        if isinstance(end, Exception):
            response.set_exception(end)
        else:
            response.set_result(end)

    def _end_all(self, error: Exception, *, alive: bool) -> None:
        """Ends the requests to peers that are gone; with `alive` those to others, too."""
        with self._lock:
            ended = [serial for serial, (peer, _) in self._waiting.items() if alive or not peer.alive]
        for serial in ended:
            self._end(serial, error)

    def _connected(self, until: float) -> Peer:
        with self._connecting:
            if self._peer is None or not self._peer.alive:
                self._peer = self._node.connect(self._address, timeout=_left(until))
            return self._peer

    def _receive(self) -> None:
        gone = ConnectionError(f"the store at {self._address} is gone")
        for message in _messages(self._node):
            if message.kind == "left":
                self._end_all(gone, alive=False)
            elif message.tag == _TAG:
                with contextlib.suppress(ValueError, LookupError, TypeError):
                    response = json.loads(message.data)
                    self._end(response["serial"], response["results"])


def _messages(node: Node) -> Iterator[Message]:
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


# ---- The store ----


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
        for message in _messages(node):
            if message.kind == "message" and message.tag == _TAG:
                pool.submit(self._respond, message.peer, message.data, time.monotonic())
        pool.shutdown()

    def _respond(self, peer: Peer, data: bytes, received: float) -> None:
        try:
            request = json.loads(data)
            until = received + min(float(request["time"]), _TIME_MAX)
            results = self._perform(peer, request["operation"], request["items"], until)
            response = {"serial": request["serial"], "results": results}
            peer.send(json.dumps(response).encode(), tag=_TAG, timeout=_left(until))
        except Error as error:
            _log.warning("no response to %s: %s", peer.name, error)
        except Exception as error:
            _log.warning("a request of %s is malformed: %r", peer.name, error)

    def _perform(
        self, peer: Peer, operation: str, items: list[_Item], until: float
    ) -> list[_Result]:
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
    ) -> Generator[None, None, _Result]:
        path = os.path.join(self._folder, self._reserve(length))
        try:
            with _created(path, length) as value, peer.node.wrap(value) as region:
                remote = peer.lookup(name, timeout=_left(until))
                transfer = remote.read(region, timeout=_left(until), checksum=True)
                yield
                transfer.wait(_left(until))
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
    ) -> Generator[None, None, _Result]:
        try:
            opened = open(os.path.join(self._folder, file), "rb")
        except FileNotFoundError:
            return False
        with opened:
            value = mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ)
        with value, peer.node.wrap(value) as region:
            if region.length != length:
                raise ValueError(f"the value has {region.length} bytes, and its memory {length}")
            remote = peer.lookup(name, timeout=_left(until))
            transfer = remote.write(region, timeout=_left(until), checksum=True)
            yield
            transfer.wait(_left(until))
        return True

    def _delete(self, file: str) -> _Result:
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


def _advance(move: Generator[None, None, _Result]) -> _Result | None:
    """Runs a move to its next step, or to its result."""
    try:
        next(move)
    except StopIteration as end:
        return end.value
    except Exception as error:
        return str(error)
    return None


def _last(move: Generator[None, None, _Result]) -> _Result:
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


# ---- The command ----


def _bytes_of(text: str) -> int:
    found = re.fullmatch(r"(\d+)([KMGT]?)", text)
    if not found:
        raise argparse.ArgumentTypeError(f"'{text}' is not a number of bytes like 64G")
    return int(found[1]) << 10 * " KMGT".index(found[2] or " ")


def main() -> None:
    """Run the store: python3 -m haul.lmcache FOLDER."""
    parser = argparse.ArgumentParser(
        prog="python3 -m haul.lmcache", description="Keep LMCache's values in a folder."
    )
    parser.add_argument("folder", help="of this store alone; created if there is none")
    parser.add_argument("--listen", required=True, metavar="ADDRESS", help="tcp://, unix://")
    parser.add_argument("--capacity", required=True, type=_bytes_of, metavar="BYTES",
                        help="the most that all values may have: 64G")  # fmt: skip
    parser.add_argument("--threads", type=int, default=4, help="requests at a time; default 4")
    options = parser.parse_args()
    logging.basicConfig(format="%(name)s: %(message)s")
    try:
        with Store(options.folder, options.capacity) as store, Node() as node:
            address = node.listen(options.listen)
            print(f"{len(store)} values, listening on {address}", flush=True)
            store.serve(node, options.threads)
    except (Error, OSError) as error:
        sys.exit(f"haul.lmcache: {error}")
    except KeyboardInterrupt:
        os._exit(130)  # what is unfinished is removed by the next start


if __name__ == "__main__":
    main()
