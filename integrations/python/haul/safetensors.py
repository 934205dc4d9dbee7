# SPDX-License-Identifier: MIT
"""Files of the safetensors format: into the memory of other processes, and as tensors there.

    python3 -m haul.safetensors FILE ADDRESS/NAME

writes a file into a published region, which has room for all of it. `tensors` gives the tensors of a
region that has the bytes of a file, without a copy. Nothing in a header is believed: lengths, offsets
and shapes are checked before they are used.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import time
from collections import deque
from collections.abc import Callable
from typing import Any, BinaryIO, NamedTuple

from ._data import Code, Error
from ._haul import Node, Region, Tensor, Transfer, dtypes
from ._inbox import fail
from ._tensors import default_node, finish_first, settle, split_target

__all__ = ["Damaged", "Entry", "Refused", "entries", "main", "tensors", "write"]

HEADER_MAX = 100_000_000  # bytes; the limit of safetensors itself
TYPES = {  # without F4, F6_E2M3 and F6_E3M2, whose elements are not whole bytes
    "BOOL": "bool",
    "U8": "uint8", "U16": "uint16", "U32": "uint32", "U64": "uint64",
    "I8": "int8", "I16": "int16", "I32": "int32", "I64": "int64",
    "F16": "float16", "BF16": "bfloat16", "F32": "float32", "F64": "float64", "C64": "complex64",
    "F8_E4M3": "float8_e4m3fn", "F8_E4M3FNUZ": "float8_e4m3fnuz", "F8_E8M0": "float8_e8m0fnu",
    "F8_E5M2": "float8_e5m2", "F8_E5M2FNUZ": "float8_e5m2fnuz",
}  # fmt: skip

_CHUNK = 64 << 20  # bytes of a transfer
_DIMENSIONS_MAX = 8
_DEPTH = 2  # transfers at a time
_REDRAW = 0.1  # seconds between two bars
_CELLS = 24
_SIZES = {name: bits // 8 for name, (_, bits, _) in dtypes().items()}


class Refused(ValueError):
    """A file that haul does not support: the text says why."""


class Damaged(Refused):
    """A file that violates the format."""


class Entry(NamedTuple):
    """A tensor in a file."""

    dtype: str  # as haul names it: "float32"
    shape: tuple[int, ...]
    offset: int  # of its first byte, from the start of the file
    nbytes: int


def _no_repetition(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise Damaged("its header has a name twice")
    return found


def _header_of(read: Callable[[int, int], bytes], size: int) -> tuple[dict[str, Any], int]:
    """The JSON at the start of `size` bytes, and where the tensors' bytes begin."""
    if size < 8:
        raise Damaged("it is shorter than the length of a header")
    length = int.from_bytes(read(0, 8), "little")
    if length > min(HEADER_MAX, size - 8):
        raise Damaged(f"its header would have {length} bytes")
    try:
        header = json.loads(read(8, length), object_pairs_hook=_no_repetition)
    except Damaged:
        raise
    except (ValueError, RecursionError) as error:
        raise Damaged(f"its header is no JSON: {error}") from None
    if not isinstance(header, dict):
        raise Damaged("its header is no object")
    return header, 8 + length


def _are_numbers(value: Any) -> bool:
    return isinstance(value, list) and all(type(n) is int and 0 <= n < 1 << 63 for n in value)


def _entry_of(entry: Any, start: int, size: int) -> Entry:
    if not isinstance(entry, dict) or not isinstance(entry.get("dtype"), str):
        raise Damaged("it has no type")
    dtype: str = entry["dtype"]
    shape: Any = entry.get("shape")
    offsets: Any = entry.get("data_offsets")
    if dtype not in TYPES:
        raise Refused(f"haul does not support type {dtype!r}")
    if not _are_numbers(shape) or not _are_numbers(offsets) or len(offsets) != 2:
        raise Damaged("it has no shape, or no offsets")
    if len(shape) > _DIMENSIONS_MAX:
        raise Refused(f"haul supports {_DIMENSIONS_MAX} dimensions, and it has {len(shape)}")
    begin, end = offsets
    if begin > end or end > size - start:
        raise Damaged(f"its bytes exceed the {size} bytes of the file")
    if math.prod(shape) * _SIZES[TYPES[dtype]] != end - begin:
        raise Damaged("its shape and its offsets do not agree")
    return Entry(TYPES[dtype], tuple(shape), start + begin, end - begin)


def _entries_of(read: Callable[[int, int], bytes], size: int) -> dict[str, Entry]:
    header, start = _header_of(read, size)
    entries = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        try:
            entries[name] = _entry_of(entry, start, size)
        except Refused as error:
            raise type(error)(f"tensor {name!r}: {error}") from None
    return entries


def entries(file: BinaryIO) -> dict[str, Entry]:
    """Read what a file has, by the names of its tensors.

    file  an open, regular file; its position does not matter and does not change

    Blocks as read does. Raises Damaged, Refused (a type that haul does not have), OSError.
    """
    descriptor = file.fileno()

    def read(offset: int, length: int) -> bytes:
        found = bytearray()
        while len(found) < length:
            part = os.pread(descriptor, length - len(found), offset + len(found))
            if not part:
                raise Damaged("it became shorter while it was read")
            found += part
        return bytes(found)

    return _entries_of(read, os.fstat(descriptor).st_size)


def tensors(region: Region) -> dict[str, Tensor]:
    """Return the tensors of a region that has the bytes of a file at its start, by name.

    region  of host memory, which may be longer than the file

    Does not copy and does not wait. The header is read once; a peer that may write to the region
    can change the elements, but not what this returns. Raises Damaged, Refused (a type that haul
    does not have), BufferError (device memory).
    """
    with region.bytes() as data:
        found = _entries_of(lambda offset, length: bytes(data[offset : offset + length]), len(data))
    made = {}
    for name, entry in found.items():
        try:
            made[name] = region.tensor(entry.dtype, entry.shape, offset=entry.offset)
        except (ValueError, OverflowError) as error:
            raise Damaged(f"tensor {name!r}: {error}") from None
    return made


class _Bar:
    """Progress on the standard error, if that is a terminal."""

    def __init__(self, label: str, total: int, wanted: bool) -> None:
        self.label, self.total = os.path.basename(label), total
        self.shown = wanted and sys.stderr is not None and sys.stderr.isatty()
        self.began = time.monotonic()
        self.drawn = -math.inf

    def show(self, done: int) -> None:
        now = time.monotonic()
        if not self.shown or (now - self.drawn < _REDRAW and done < self.total):
            return
        self.drawn = now
        part = done / self.total if self.total else 1
        cells = "#" * int(part * _CELLS)
        rate = done / max(now - self.began, 1e-9) / 1e9
        text = f"{self.label} [{cells:.<{_CELLS}}] {part:4.0%} of {self.total / 1e9:.2f} GB"
        sys.stderr.write(f"\r\033[K{text}, {rate:.2f} GB/s")
        sys.stderr.flush()

    def end(self) -> None:
        if self.shown:
            sys.stderr.write("\r\033[K")
            sys.stderr.flush()


def write(
    path: str | os.PathLike[str],
    to: str,
    *,
    node: Node | None = None,
    progress: bool = True,
    timeout: float | None = None,
) -> dict[str, Entry]:
    """Write a file into a region that another process publishes, checked before it is sent.

    path      of the file
    to        "ADDRESS/NAME" of a region with WRITE, at least as long as the file
    node      that connects; None: one of this process for all such calls
    progress  draw a bar on stderr, if that is a terminal
    timeout   of each 64 MiB, in seconds; None: the node's

    Returns the file's tensors by name. The bytes go from the page cache, each 64 MiB by a transfer
    with checksums. Blocks until all are at the destination. Raises Damaged, Refused, OSError;
    OutOfRange (the region is too short), AccessDenied (no WRITE), NoSuchName, TimedOut, PeerGone,
    ChecksumMismatch, and as Node.connect.
    """
    node = node or default_node()
    address, name = split_target(to)
    with open(path, "rb") as file:
        found = entries(file)
        with (
            node.wrap_file(file) as region,
            node.connect(address, timeout=timeout) as peer,
            peer.lookup(name, timeout=timeout) as remote,
        ):
            _check_room(region, remote.length, to)
            bar = _Bar(os.fspath(path), region.length, progress)
            moving: deque[Transfer] = deque()
            try:
                for first in range(0, region.length, _CHUNK):
                    bar.show(max(first - _DEPTH * _CHUNK, 0))
                    length = min(_CHUNK, region.length - first)
                    pieces = [(first, first, length)]
                    moving.append(remote.write(region, pieces, timeout=timeout, checksum=True))
                    if len(moving) == _DEPTH:
                        finish_first(moving)
                while moving:
                    finish_first(moving)
                bar.show(region.length)
            finally:
                settle(moving)  # after an error
                bar.end()
    return found


def _check_room(region: Region, room: int, to: str) -> None:
    if region.length > room:
        text = f"the file has {region.length} bytes, and the region {room}"
        fail(Code.ERANGE, "write", to, text, "publish a region that is as long as the file")


def main() -> None:
    """Run the command: python3 -m haul.safetensors FILE ADDRESS/NAME."""
    parser = argparse.ArgumentParser(
        prog="python3 -m haul.safetensors",
        description="Write a safetensors file into a region that another process publishes.",
    )
    parser.add_argument("file", metavar="FILE")
    parser.add_argument("to", metavar="ADDRESS/NAME", help="as of haul put")
    parser.add_argument("--quiet", action="store_true", help="print neither progress nor result")
    options = parser.parse_args()
    try:
        found = write(options.file, options.to, progress=not options.quiet)
    except Damaged as error:
        sys.exit(f"haul.safetensors: the file is damaged: {error}")
    except (Error, OSError, ValueError) as error:
        sys.exit(f"haul.safetensors: {error}")
    if not options.quiet:
        size = sum(entry.nbytes for entry in found.values())
        print(f"wrote {len(found)} tensor{'' if len(found) == 1 else 's'}, {size} bytes, verified")


if __name__ == "__main__":
    main()
