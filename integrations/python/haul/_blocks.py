# SPDX-License-Identifier: MIT
"""Blocks of a cache, from and to memory of this process by its address, for haul.lmcache and
haul.sglang."""

from __future__ import annotations

import bisect
import contextlib
import ctypes
import hashlib
from collections.abc import Iterator, Sequence
from typing import Any

from ._data import Item
from ._haul import CACHE_KEY_MAX, Cache, Node, Region

Span = tuple[int, int]  # address and length in bytes

_view = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int)(
    ("PyMemoryView_FromMemory", ctypes.pythonapi)
)
_WRITABLE = 0x200  # PyBUF_WRITE


def memory_at(span: Span) -> memoryview:
    """The memory, which the caller keeps."""
    view: memoryview = _view(*span, _WRITABLE)
    return view


def key_of(text: str) -> bytes:
    """The cache's key of a text of any length."""
    key = text.encode()
    return key if len(key) <= CACHE_KEY_MAX else hashlib.sha256(key).hexdigest().encode()


def runs(spans: Sequence[Span], numbers: list[int]) -> Iterator[tuple[Span, list[int]]]:
    """The spans of these numbers, those that are adjacent in memory together."""
    begin = end = 0
    run: list[int] = []
    for number in sorted(numbers, key=lambda number: spans[number]):
        address, length = spans[number]
        if run and address != end:
            yield (begin, end - begin), run
            run = []
        begin = begin if run else address
        end = address + length
        run.append(number)
    if run:
        yield (begin, end - begin), run


class Blocks:
    """A client of the cache at `nodes`: addresses separated by commas, or etcd://HOST/PREFIX.

    timeout  of opening, in seconds
    """

    def __init__(self, nodes: str, timeout: float, replicas: int = 1, **node: Any) -> None:
        where: dict[str, Any] = {"members": nodes.split(",")}
        if nodes.startswith("etcd://"):
            where = {"directory": nodes}
        self._node = Node(timeout=timeout, **node)
        try:
            self._cache = Cache(self._node, replicas=replicas, **where)
        except BaseException:
            self._node.close()
            raise
        self._kept: list[tuple[int, Region]] = []  # by address

    def close(self) -> None:
        """Blocks for calls in progress, up to a second. The end of one that takes longer closes the rest."""
        self._cache.close()
        with contextlib.suppress(BufferError):
            for _, region in self._kept:
                region.close()
            self._node.close()

    def keep(self, span: Span) -> None:
        """Blocks in this memory need no preparation from now on. The memory stays until close()."""
        region = self._node.wrap(memory_at(span))
        self._cache.attach(region)
        bisect.insort(self._kept, (span[0], region), key=lambda kept: kept[0])

    def put(self, keys: Sequence[bytes], spans: Sequence[Span], timeout: float, **how: Any) -> list[Item]:
        """Item by item as Cache.put."""
        items: dict[int, Item] = {}
        for region, numbers, fresh in self._regions(spans):
            if fresh:
                self._cache.attach(region)
            try:
                blocks = self._blocks(region, keys, spans, numbers)
                items.update(zip(numbers, self._cache.put(region, blocks, timeout=timeout, **how)))
            finally:
                if fresh:
                    self._cache.detach(region)
        return [items[number] for number in range(len(keys))]

    def get(self, keys: Sequence[bytes], spans: Sequence[Span], timeout: float) -> list[Item]:
        """Item by item as Cache.get."""
        items: dict[int, Item] = {}
        for region, numbers, _ in self._regions(spans):
            blocks = self._blocks(region, keys, spans, numbers)
            items.update(zip(numbers, self._cache.get(region, blocks, timeout=timeout)))
        return [items[number] for number in range(len(keys))]

    def exists(self, keys: Sequence[bytes], timeout: float) -> list[Item]:
        """As Cache.exists."""
        return self._cache.exists(keys, timeout=timeout)

    def remove(self, keys: Sequence[bytes], timeout: float) -> list[Item]:
        """As Cache.remove."""
        return self._cache.remove(keys, timeout=timeout)

    def span_of(self, memory: memoryview) -> tuple[Span, bool]:
        """Where a contiguous buffer lies, and whether it is read-only."""
        with self._node.wrap(memory) as region:
            return (region.address, region.length), region.readonly

    @staticmethod
    def _blocks(
        region: Region, keys: Sequence[bytes], spans: Sequence[Span], numbers: list[int]
    ) -> list[tuple[bytes, int, int]]:
        begin = region.address
        return [(keys[number], spans[number][0] - begin, spans[number][1]) for number in numbers]

    def _regions(self, spans: Sequence[Span]) -> Iterator[tuple[Region, list[int], bool]]:
        """A region for each span, the numbers of its spans, and whether it is a fresh one, which is
        closed afterwards."""
        kept: dict[Region, list[int]] = {}
        other = []
        for number, span in enumerate(spans):
            region = self._kept_region(span)
            if region:
                kept.setdefault(region, []).append(number)
            else:
                other.append(number)
        for region, numbers in kept.items():
            yield region, numbers, False
        for whole, numbers in runs(spans, other):
            with self._node.wrap(memory_at(whole)) as region:
                yield region, numbers, True

    def _kept_region(self, span: Span) -> Region | None:
        place = bisect.bisect_right(self._kept, span[0], key=lambda kept: kept[0])
        begin, region = self._kept[place - 1] if place else (0, None)
        if region and span[0] + span[1] <= begin + region.length:
            return region
        return None
