# SPDX-License-Identifier: MIT
"""A store for LMCache's values, and the connector to it.

The store keeps each value in a file of one folder, and moves bytes between its files and the memory
of LMCache:

    python3 -m haul.lmcache /data/kv --listen tcp://127.0.0.1:7430 --capacity 64G

LMCache loads the connector as a native plugin; several instances may share a store:

    --l2-adapter '{"type": "native_plugin", "module_path": "haul.lmcache", "class_name": "Connector",
                   "adapter_params": {"address": "tcp://127.0.0.1:7430", "timeout": 10}}'

With {"cache": "10.0.0.1:7500,10.0.0.2:7500"} as parameters it keeps the values in a cache instead
(haul.cache), whose nodes run `haul cache serve`.

A file of the store has its name once its value is complete and on the disk, so a crash leaves no half
value, and a restarted store has all values of the one before. haul's settings (haul.conf(5)) apply to
all of them: HAUL_KEY for other hosts. Problems are logged as `haul.lmcache`.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import os
import re
import secrets
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from ._blocks import Blocks, Span, key_of
from ._data import Code, Error, Item, Rights
from ._haul import Node, Peer
from ._lmcache_store import TAG, Entry, Result, Store, left, messages

_GROUP = 64  # keys of a request
_MISSING = "the store has no such key"
_MALFORMED = "the store's response is malformed"
_CLOSED = "the connector is closed"

__all__ = ["Connector", "Store", "main"]
Store.__module__ = __name__  # as tracebacks show it

_log = logging.getLogger(__name__)


class Connector:
    """LMCache's interface of native connectors. Its calls return at once; threads do the work.

    address   of the store
    cache     instead: the nodes of a cache, ADDRESS,ADDRESS... or etcd://HOST/PREFIX
    replicas  of each value in the cache
    timeout   deadline of each batch, in seconds
    threads   batches at a time
    node      further arguments of haul.Node

    While the store cannot be reached batches fail, and the next one connects again. A context manager.
    """

    def __init__(
        self,
        address: str | None = None,
        timeout: float = 10,
        threads: int = 4,
        *,
        cache: str | None = None,
        replicas: int = 1,
        **node: Any,
    ) -> None:
        if (address is None) == (cache is None):
            raise ValueError("a connector needs either the address of a store or the nodes of a cache")
        self._timeout = timeout
        self._target: _Cached | _Stored = (
            _Cached(cache, timeout, replicas, node) if cache is not None
            else _Stored(str(address), timeout, node)
        )  # fmt: skip
        self._event = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._pool = ThreadPoolExecutor(threads, "haul-lmcache")
        self._logged = ""
        self._lock = threading.Lock()  # guards what follows
        self._closed = False
        self._serial = 0
        self._completions: list[tuple[int, bool, str, list[bool] | None]] = []

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

        Blocks for the threads; for one that is connecting, or in a call of the cache, until the
        deadline of its batch.
        """
        with self._lock:
            if self._closed:
                return
            self._closed = True
        self._target.close()
        self._pool.shutdown()
        self._target.close()  # again, if it had to leave a part to a call in progress
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
            self._serial += 1
            self._pool.submit(self._run, self._serial, operation, list(keys), list(values))
            return self._serial

    def _run(self, number: int, operation: str, keys: list[str], values: list[memoryview]) -> None:
        until = time.monotonic() + self._timeout
        try:
            results = self._target.batch(operation, keys, values, until)
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


class _Cached:
    """Values in a cache. Its calls end at their deadlines, so nothing ends them earlier."""

    def __init__(self, nodes: str, timeout: float, replicas: int, node: dict[str, Any]) -> None:
        self._blocks = Blocks(nodes, timeout, replicas, **node)

    def close(self) -> None:
        self._blocks.close()

    def batch(
        self, operation: str, keys: list[str], values: list[memoryview], until: float
    ) -> list[Result]:
        names = [key_of(key) for key in keys]
        if operation == "exists":
            return [_result_of(item) for item in self._blocks.exists(names, left(until))]
        if operation == "delete":
            return [_result_of(item) for item in self._blocks.remove(names, left(until))]
        spans = [self._span_of(value, writes=operation == "get") for value in values]
        if operation == "set":
            return [_result_of(item) for item in self._blocks.put(names, spans, left(until))]
        items = self._blocks.get(names, spans, left(until))
        return [_loaded(item, length) for item, (_, length) in zip(items, spans)]

    def _span_of(self, value: memoryview, writes: bool) -> Span:
        span, readonly = self._blocks.span_of(value)
        if readonly and writes:
            raise ValueError("the memory of a value is read-only")
        return span


def _result_of(item: Item) -> Result:
    if item.error is None:
        return True
    if item.error.code == Code.ENAME:
        return False
    return f"{item.error.text} (hint: {item.error.hint})"  # without the key, which is named beside it


def _loaded(item: Item, length: int) -> Result:
    if item.length not in (0, length):
        return f"the value has {item.length} bytes, and its memory {length}"
    return _result_of(item)


class _Stored:
    """Values in a store of this module."""

    def __init__(self, address: str, timeout: float, node: dict[str, Any]) -> None:
        self._address, self._timeout = address, timeout
        self._node = Node(peer_events=True, timeout=timeout, **node)
        self._receiver = threading.Thread(target=self._receive, daemon=True)
        self._connecting = threading.Lock()
        self._peer: Peer | None = None
        self._lock = threading.Lock()  # guards what follows
        self._closed = False
        self._serial = 0
        self._waiting: dict[int, tuple[Peer, Future[list[Result]]]] = {}
        self._receiver.start()

    def close(self) -> None:
        with self._lock:
            self._closed = True
        self._end_all(ConnectionError(_CLOSED), alive=True)
        self._node.close()  # ends calls that wait for the store
        self._receiver.join()

    def batch(
        self, operation: str, keys: list[str], values: list[memoryview], until: float
    ) -> list[Result]:
        peer = self._connected(until)
        results: list[Result] = []
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
        self, peer: Peer, operation: str, items: list[Entry], until: float
    ) -> tuple[int, Future[list[Result]]]:
        response: Future[list[Result]] = Future()
        with self._lock:
            if self._closed:
                raise ConnectionError(_CLOSED)
            self._serial += 1
            serial = self._serial
            self._waiting[serial] = peer, response
        request = {"serial": serial, "operation": operation, "items": items, "time": left(until)}
        try:
            peer.send(json.dumps(request).encode(), tag=TAG, timeout=left(until))
        except Error as error:
            self._end(serial, error)
        return serial, response

    def _response(
        self, count: int, serial: int, response: Future[list[Result]], until: float
    ) -> list[Result]:
        try:
            results = response.result(left(until))
            return results if len(results) == count else [_MALFORMED] * count
        except TimeoutError:
            self._end(serial, TimeoutError())
            return [f"the store at {self._address} did not respond in {self._timeout:g} s"] * count
        except (Error, ConnectionError) as error:
            return [str(error)] * count

    def _end(self, serial: int, end: list[Result] | Exception) -> None:
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
                self._peer = self._node.connect(self._address, timeout=left(until))
            return self._peer

    def _receive(self) -> None:
        gone = ConnectionError(f"the store at {self._address} is gone")
        for message in messages(self._node):
            if message.kind == "left":
                self._end_all(gone, alive=False)
            elif message.tag == TAG:
                with contextlib.suppress(ValueError, LookupError, TypeError):
                    response = json.loads(message.data)
                    self._end(response["serial"], response["results"])


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
