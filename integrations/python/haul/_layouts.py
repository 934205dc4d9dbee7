# SPDX-License-Identifier: MIT
"""Layouts of haul.reshard: which block of a tensor each rank has."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable
from typing import Any, NamedTuple

Block = tuple[tuple[int, int], ...]  # of each dimension: the first index, and how many


class Shard(NamedTuple):
    """The ranks of a mesh dimension have consecutive parts of dimension `dim`.

    The parts have equal lengths, rounded up; the last ones may be shorter, or empty. A Layout counts
    a `dim` below 0 from the last dimension.
    """

    dim: int


class Replicate(NamedTuple):
    """The ranks of a mesh dimension have the same."""


class _Layout(NamedTuple):
    shape: tuple[int, ...]
    mesh: tuple[int, ...]
    placements: tuple[Shard | Replicate, ...]
    order: tuple[int, ...]


def integers(name: str, given: Iterable[int]) -> tuple[int, ...]:
    """Also of numpy. Raises TypeError in the name of an argument."""
    try:
        return tuple(map(operator.index, given))
    except TypeError:
        raise TypeError(f"invalid {name} {given!r}: expected integers") from None


def _placement(given: Shard | Replicate, dimensions: int) -> Shard | Replicate:
    """The same with a `dim` of 0 or more."""
    if not isinstance(given, (Shard, Replicate)):
        raise ValueError(f"invalid placement {given!r}: expected Shard or Replicate")
    if isinstance(given, Replicate):
        return given
    (dim,) = integers("placement", given)
    if not -dimensions <= dim < dimensions:
        raise ValueError(f"invalid placement {given}: the tensor has {dimensions} dimensions")
    return Shard(dim % dimensions)


class Layout(_Layout):
    """Which block of a tensor each rank has, and how its elements lie in memory.

    shape       of the whole tensor
    mesh        lengths of the mesh's dimensions; rank 1 is next to 0 in the last one
    placements  a Shard or a Replicate for each dimension of the mesh. Several Shards of one `dim`
                split each other's parts, the first one first
    order       the tensor's dimensions from the slowest to the fastest in a rank's memory, which
                has its block alone; None: C's order

    Raises ValueError for lengths below 0 and for dimensions that do not exist; TypeError for numbers
    that are no integers.
    """

    __slots__ = ()

    def __new__(
        cls,
        shape: Iterable[int],
        mesh: Iterable[int] = (1,),
        placements: Iterable[Shard | Replicate] = (Replicate(),),
        order: Iterable[int] | None = None,
    ) -> Layout:
        shape, mesh = integers("shape", shape), integers("mesh", mesh)
        order = integers("order", range(len(shape)) if order is None else order)
        placements = tuple(_placement(placement, len(shape)) for placement in placements)
        if min(shape, default=0) < 0 or min(mesh, default=1) < 1:
            raise ValueError(f"invalid shape {shape} or mesh {mesh}: a length is too small")
        if len(placements) != len(mesh):
            raise ValueError(f"{len(placements)} placements for a mesh of {len(mesh)} dimensions")
        if sorted(order) != list(range(len(shape))):
            raise ValueError(f"invalid order {order}: expected each dimension once")
        return super().__new__(cls, shape, mesh, placements, order)

    @property
    def ranks(self) -> int:
        """How many ranks the mesh has."""
        return math.prod(self.mesh)

    def block(self, rank: int) -> Block:
        """Return a rank's block: of each dimension the first index, and how many.

        Raises ValueError for a rank that the mesh does not have.
        """
        if not 0 <= rank < self.ranks:
            raise ValueError(f"invalid rank {rank}: the mesh {self.mesh} has {self.ranks}")
        block = [(0, length) for length in self.shape]
        below = self.ranks
        for parts, placement in zip(self.mesh, self.placements, strict=True):
            below //= parts
            if isinstance(placement, Shard):
                first, length = block[placement.dim]
                part = -(-length // parts)
                skipped = min(rank // below % parts * part, length)
                block[placement.dim] = (first + skipped, min(part, length - skipped))
        return tuple(block)


def layout_of(tensor: Any) -> Layout:
    """Return the layout of a tensor, a DTensor of PyTorch.

    Its ranks count within its mesh: rank 0 is the mesh's first. Does not wait. Raises ValueError for
    a placement that is neither Shard nor Replicate, such as Partial; TypeError for other objects.
    """
    if not hasattr(tensor, "placements") or not hasattr(tensor, "device_mesh"):
        raise TypeError(f"invalid tensor: expected a DTensor, not a {type(tensor).__name__}")
    placements: list[Shard | Replicate] = []
    for placement in tensor.placements:
        if type(placement).__name__ not in ("Shard", "Replicate"):
            raise ValueError(f"invalid placement {placement}: expected Shard or Replicate")
        dim = getattr(placement, "dim", None)
        placements.append(Replicate() if dim is None else Shard(dim))
    return Layout(tensor.shape, tensor.device_mesh.shape, placements)
