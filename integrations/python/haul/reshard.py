# SPDX-License-Identifier: MIT
"""Tensors that are laid out differently at their source and at their target.

    source = haul.reshard.Layout((8192, 8192), mesh=(8,), placements=(Shard(0),))
    target = haul.reshard.Layout((8192, 8192), mesh=(4,), placements=(Shard(1),))
    plan = haul.reshard.plan(source, target, itemsize=2)
    print(plan.table())
    haul.reshard.fetch(plan, rank, region, remotes)  # at each rank of the target

A Layout says which block of a tensor each rank of a mesh has, as PyTorch's DTensor does. A plan moves
each byte that a rank of the target needs once, from one of the ranks that have it: the nearest one,
and among equally near ones the one that sends least so far.
"""

from __future__ import annotations

import itertools
import json
import math
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple
from xml.sax.saxutils import escape

from . import safetensors
from ._haul import Region, Remote, Tensor, Transfer
from ._inbox import bytes_of, code_of
from ._layouts import Block, Layout, Replicate, Shard, integers, layout_of
from ._tensors import finish_first, settle

__all__ = [
    "Layout", "Move", "Part", "Plan", "Replicate", "Shard", "Stored",
    "fetch", "fetch_all", "layout_of", "plan", "stored",
]  # fmt: skip

_PIECES, _BYTES = 65536, 64 << 20  # of a transfer; at least a large copy for every path
_DEPTH = 4  # transfers of fetch at a time
_PAIRS = 1 << 22  # of ranks of a plan, which takes some microseconds for each
_CELL, _LEFT, _TOP = 28, 90, 60  # pixels of Plan.svg

def _product(block: Block) -> int:
    return math.prod(length for _, length in block)


def _common(one: Block, other: Block) -> Block | None:
    """The block that both have; None: it is empty."""
    common = []
    for (first, length), (start, count) in zip(one, other, strict=True):
        begin, end = max(first, start), min(first + length, start + count)
        if begin >= end:
            return None
        common.append((begin, end - begin))
    return tuple(common)


def _strides(block: Block, order: Sequence[int]) -> list[int]:
    """Elements between neighbours of each dimension in a rank's memory."""
    strides, step = [0] * len(block), 1
    for dim in reversed(order):
        strides[dim] = step
        step *= block[dim][1]
    return strides


Run = tuple[int, int, int, int, int, int]  # evenly spaced pieces, as Remote.read takes them


def _runs(at: int, start: int, steps: Sequence[tuple[int, int, int]], length: int) -> Iterator[Run]:
    """Pieces of one length. steps: of each dimension the bytes between neighbours, and how many."""
    *outer, (here, there, count) = steps or [(0, 0, 1)]
    if not outer:
        return iter([(at, start, length, count, here, there)])
    return (
        (a + i * outer_here, s + i * outer_there, length, count, here, there)
        for a, s, _, n, outer_here, outer_there in _runs(at, start, outer, 0)
        for i in range(n)
    )


class Move(NamedTuple):
    """A block that goes from one rank to another."""

    source: int
    target: int
    block: Block


class Plan(NamedTuple):
    """Which rank of the target gets what from which rank of the source, from plan."""

    source: Layout
    target: Layout
    itemsize: int  # bytes of an element
    moves: tuple[Move, ...]  # by target, then by source

    @property
    def nbytes(self) -> int:
        """Bytes of all moves."""
        return sum(map(self.nbytes_of, self.moves))

    def nbytes_of(self, move: Move) -> int:
        """Return the bytes of a move."""
        return _product(move.block) * self.itemsize

    def pieces(self, move: Move) -> Iterator[tuple[int, int, int]]:
        """Yield the pieces of a move, for Remote.read: (offset there, at the source, length).

        move  of this plan

        The offsets are in bytes, from where the blocks begin in the memories. Neighbours are one.
        """
        for at, source, length, count, here, there in self.runs(move):
            for i in range(count):
                yield (at + i * here, source + i * there, length)

    def runs(self, move: Move, first: int = 0, start: int = 0) -> Iterator[Run]:
        """Return the same pieces as runs of evenly spaced ones, which Remote.read takes, too.

        move   of this plan
        first  byte of the target's memory where its block begins
        start  byte of the source's memory where its block begins
        """
        theirs = self.source.block(move.source)
        ours = self.target.block(move.target)
        order, size = self.target.order, self.itemsize
        here, there = _strides(ours, order), _strides(theirs, self.source.order)
        at = first + size * sum((move.block[d][0] - ours[d][0]) * here[d] for d in order)
        source = start + size * sum((move.block[d][0] - theirs[d][0]) * there[d] for d in order)
        inner, run = len(order), 1
        while inner > 0:  # dimensions that are one run in both memories
            dim = order[inner - 1]
            if move.block[dim][1] > 1 and (here[dim] != run or there[dim] != run):
                break
            run *= move.block[dim][1]
            inner -= 1
        steps = [(here[d] * size, there[d] * size, move.block[d][1]) for d in order[:inner]]
        return _runs(at, source, steps, run * size)

    def table(self) -> str:
        """Return the moves as a table for people: a row for each target, a column for each source."""
        head = ["", *(f"from {i}" for i in range(self.source.ranks)), "bytes"]
        rows = [head]
        for rank in range(self.target.ranks):
            row = [0] * self.source.ranks
            for move in self.moves:
                if move.target == rank:
                    row[move.source] += self.nbytes_of(move)
            rows.append([f"to {rank}", *(str(n) if n else "." for n in row), str(sum(row))])
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        return "".join(
            "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
            + "\n"
            for row in rows
        )

    def svg(self) -> str:
        """Return the moves as a picture (SVG): the darker a cell, the more bytes."""
        wide, high = self.source.ranks, self.target.ranks
        title = f"{_words(self.source)} to {_words(self.target)}, {self.nbytes} bytes"
        most = max((self.nbytes_of(move) for move in self.moves), default=1)
        width = max(_LEFT + wide * _CELL + 20, len(title) * 7 + 20)
        lines = [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" '
            f'height="{_TOP + high * _CELL + 20}" font-family="sans-serif" font-size="12">',
            f'<text x="10" y="20">{escape(title)}</text>',
        ]
        for i in range(wide):
            lines.append(f'<text x="{_LEFT + i * _CELL + 6}" y="{_TOP - 8}">{i}</text>')
        for i in range(high):
            lines.append(f'<text x="10" y="{_TOP + i * _CELL + 18}">to {i}</text>')
        for move in self.moves:
            share = self.nbytes_of(move) / most
            at = f'x="{_LEFT + move.source * _CELL}" y="{_TOP + move.target * _CELL}"'
            said = f"{move.source} to {move.target}: {self.nbytes_of(move)} bytes"
            lines.append(
                f'<rect {at} width="{_CELL - 2}" height="{_CELL - 2}" fill="#2b6cb0" '
                f'fill-opacity="{0.2 + 0.8 * share:.2f}"><title>{said}</title></rect>'
            )
        return "\n".join([*lines, "</svg>\n"])


def _words(layout: Layout) -> str:
    placements = ", ".join(
        f"{ranks}: {'all' if isinstance(placement, Replicate) else f'dimension {placement.dim}'}"
        for ranks, placement in zip(layout.mesh, layout.placements, strict=True)
    )
    return f"{'x'.join(map(str, layout.shape))} ({placements})"


def _far(distance: Callable[[int, int], float] | None, source: int, target: int) -> float:
    far = 0 if distance is None else distance(source, target)
    try:
        if math.isfinite(far):
            return far
    except (TypeError, OverflowError):
        pass
    raise ValueError(
        f"invalid distance {far!r} from rank {source} to rank {target}: expected a finite number"
    )


def plan(
    source: Layout,
    target: Layout,
    itemsize: int,
    distance: Callable[[int, int], float] | None = None,
) -> Plan:
    """Return the least moves that give each rank of the target its block.

    source    the layout that there is
    target    the layout that is wanted, of a tensor with the same shape
    itemsize  bytes of an element
    distance  from a rank of the source to a rank of the target; None: all are equally far. A rank
              at distance 0 that is the same process may have its bytes moved by a copy

    Does not wait. Raises ValueError for two shapes, for an itemsize below 1, for a distance that is no
    finite number, and for more than 4,194,304 pairs of ranks (2,048 to 2,048 ranks, some 10 s);
    TypeError for an itemsize that is no integer.
    """
    if source.shape != target.shape:
        raise ValueError(f"the source has the shape {source.shape}, the target {target.shape}")
    (itemsize,) = integers("itemsize", (itemsize,))
    if itemsize < 1:
        raise ValueError(f"invalid itemsize {itemsize}: expected 1 or more bytes")
    if source.ranks * target.ranks > _PAIRS:
        raise ValueError(
            f"a plan from {source.ranks} to {target.ranks} ranks is too large: at most {_PAIRS} pairs"
        )
    holders: dict[Block, list[int]] = {}
    for rank in range(source.ranks):
        holders.setdefault(source.block(rank), []).append(rank)
    sent = [0] * source.ranks
    moves = []
    for rank in range(target.ranks):
        wanted = target.block(rank)
        for block, ranks in holders.items():
            common = _common(block, wanted)
            if common is None:
                continue
            chosen = min(ranks, key=lambda r: (_far(distance, r, rank), sent[r], r))
            sent[chosen] += _product(common)
            moves.append(Move(chosen, rank, common))
    moves.sort(key=lambda move: (move.target, move.source))
    return Plan(source, target, itemsize, tuple(moves))


class Part(NamedTuple):
    """A tensor of several, for fetch_all."""

    plan: Plan
    first: int = 0  # byte of the target's memory where its block begins
    starts: Mapping[int, int] = {}  # by rank of the source: likewise; without one: 0


def fetch(
    plan: Plan,
    rank: int,
    into: Region | Tensor,
    remotes: Mapping[int, Remote],
    *,
    first: int = 0,
    starts: Mapping[int, int] | None = None,
    timeout: float | None = None,
    checksum: bool = False,
) -> int:
    """Read a rank's block of the target from the ranks of the source.

    plan      from plan
    rank      of the target
    into      memory of the node for the block; elements of more than a byte have the plan's itemsize
    remotes   by rank of the source: the region with its block, with READ
    first     byte of `into` where the block begins
    starts    by rank of the source: the byte of its region where its block begins; without one: 0
    timeout   of each 64 MiB, in seconds; None: the node's
    checksum  verify each transfer at the destination

    Returns the bytes read. Blocks until all are in place; after an error those of the block are
    undefined. Raises KeyError (a rank of the source has no remote), ValueError (a rank that the
    target does not have, or another itemsize), TimedOut, PeerGone, and as Remote.read.
    """
    part = Part(plan, first, starts or {})
    return fetch_all([part], rank, into, remotes, timeout=timeout, checksum=checksum)


def fetch_all(
    parts: Iterable[Part],
    rank: int,
    into: Region | Tensor,
    remotes: Mapping[int, Remote],
    *,
    timeout: float | None = None,
    checksum: bool = False,
) -> int:
    """Read a rank's blocks of several tensors, such as those of a checkpoint, as fetch does of one.

    parts     a Part for each tensor
    rank      of the target
    into      memory of the node for the blocks, as of fetch
    remotes   by rank of the source: the region with its blocks, with READ
    timeout   of each 64 MiB, in seconds; None: the node's
    checksum  verify each transfer at the destination

    Returns the bytes read. Several tensors share a transfer. Blocks and raises as fetch: TimedOut,
    PeerGone and others.
    """
    if not isinstance(into, (Region, Tensor)):
        raise TypeError(f"invalid into {into!r}: expected a Region or a Tensor")
    runs: dict[int, list[Iterator[Run]]] = {}
    size = bytes_of(code_of(into.layout.dtype), ())
    for part in parts:
        part.plan.target.block(rank)
        if size > 1 and size != part.plan.itemsize:
            raise ValueError(
                f"the plan has elements of {part.plan.itemsize} bytes, and the memory of {size}"
            )
        for move in part.plan.moves:
            if move.target == rank:
                start = part.starts.get(move.source, 0)
                runs.setdefault(move.source, []).append(part.plan.runs(move, part.first, start))
    waiting = deque(
        (remotes[source], _batches(itertools.chain.from_iterable(found)))
        for source, found in runs.items()
    )
    moving: deque[Transfer] = deque()
    done = 0
    try:
        while waiting:  # the sources take turns
            remote, batches = waiting.popleft()
            batch = next(batches, None)
            if batch is None:
                continue
            if len(moving) == _DEPTH:
                finish_first(moving)
            moving.append(remote.read(into, batch, timeout=timeout, checksum=checksum))
            done += sum(run[2] * run[3] for run in batch)
            waiting.append((remote, batches))
        while moving:
            finish_first(moving)
    finally:
        settle(moving)  # after an error
    return done


def _cut(run: Run) -> Iterator[Run]:
    """The run, with pieces of at most _BYTES."""
    at, start, length, count, here, there = run
    if length <= _BYTES:
        yield run
        return
    for i, done in itertools.product(range(count), range(0, length, _BYTES)):
        part = min(_BYTES, length - done)
        yield (at + i * here + done, start + i * there + done, part, 1, 0, 0)


def _batches(runs: Iterator[Run]) -> Iterator[list[Run]]:
    """Each for a transfer."""
    batch: list[Run] = []
    pieces, room = _PIECES, _BYTES
    for at, start, length, count, here, there in itertools.chain.from_iterable(map(_cut, runs)):
        while count:
            n = min(count, pieces, max(room // length, 1))
            batch.append((at, start, length, n, here, there))
            at, start, count = at + n * here, start + n * there, count - n
            pieces, room = pieces - n, room - n * length
            if room <= 0 or not pieces or count:
                yield batch
                batch, pieces, room = [], _PIECES, _BYTES
    if batch:
        yield batch


class Stored(NamedTuple):
    """A tensor in one of the files of an index."""

    path: str  # of the file
    entry: safetensors.Entry


def stored(path: str | os.PathLike[str]) -> dict[str, Stored]:
    """Read where the tensors of a safetensors index file are, by name.

    path  of the index, NAME.safetensors.index.json, beside its files

    A file is a source whose only rank has all of a tensor: fetch with starts={0: entry.offset}.
    Blocks as read does. Raises haul.safetensors.Damaged (an index that violates its format), OSError,
    and as haul.safetensors.entries.
    """
    with open(path, "rb") as file:
        try:
            index = json.load(file)
        except (ValueError, RecursionError) as error:
            raise safetensors.Damaged(f"the index is no JSON: {error}") from None
    names = index.get("weight_map") if isinstance(index, dict) else None
    if not isinstance(names, dict) or not all(isinstance(name, str) for name in names.values()):
        raise safetensors.Damaged("the index has no weight_map of names")
    folder = os.path.dirname(os.fspath(path))
    found: dict[str, dict[str, safetensors.Entry]] = {}
    for name in sorted(set(names.values())):
        if os.path.basename(name) != name or not name:
            raise safetensors.Damaged(f"the index names a file outside of its folder: {name!r}")
        with open(os.path.join(folder, name), "rb") as file:
            found[name] = safetensors.entries(file)
    missing = [tensor for tensor, name in names.items() if tensor not in found[name]]
    if missing:
        raise safetensors.Damaged(f"tensor {missing[0]!r} is not in its file")
    return {
        tensor: Stored(os.path.join(folder, name), found[name][tensor])
        for tensor, name in names.items()
    }
