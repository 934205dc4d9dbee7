# SPDX-License-Identifier: MIT
"""Brings weights from the layout of a trainer into another one, as for inference.

Each rank of the trainer is a process with some columns of a matrix. The ranks of the target have rows. Each reads
its block from the memories of the trainer, every byte once; here one process does it for all of them.

    python3 reshard_weights.py
"""

import os
import subprocess
import sys

import numpy

import haul
from haul import reshard

SHAPE = (512, 768)
TRAINER = reshard.Layout(SHAPE, mesh=(2,), placements=[reshard.Shard(1)])
TARGET = reshard.Layout(SHAPE, mesh=(4,), placements=[reshard.Shard(0)])
PLAN = reshard.plan(TRAINER, TARGET, itemsize=4)


def block_of(layout, rank):
    """The rank's part of the matrix, which a trainer would have computed."""
    weights = numpy.arange(numpy.prod(SHAPE), dtype="float32").reshape(SHAPE)
    return weights[tuple(slice(first, first + count) for first, count in layout.block(rank))]


def train(rank):
    with haul.Node(f"trainer{rank}") as node:
        block = block_of(TRAINER, rank)
        region = node.alloc(block.nbytes)
        numpy.asarray(region.tensor("float32", block.shape))[:] = block
        region.publish("weights")
        print(node.listen(f"unix://@haul-reshard-weights-{os.getpid()}"), flush=True)
        sys.stdin.read()  # until the other process closes it


def load(addresses):
    """Whether all blocks are right."""
    with haul.Node("target", timeout=30) as node:
        remotes = {
            rank: node.connect(address).lookup("weights") for rank, address in enumerate(addresses)
        }
        for rank in range(TARGET.ranks):
            wanted = block_of(TARGET, rank)
            with node.alloc(wanted.nbytes) as region:
                got = reshard.fetch(PLAN, rank, region, remotes, checksum=True)
                block = numpy.asarray(region.tensor("float32", wanted.shape))
                right = (block == wanted).all()
                del block  # a region with arrays of its memory cannot be closed
            print(f"rank {rank}: {got} bytes, rows from {TARGET.block(rank)[0][0]} on are", end=" ")
            print("right" if right else "wrong")
            if not right:
                return False
    return True


def main():
    print(PLAN.table(), end="")
    trainers = [
        subprocess.Popen(
            [sys.executable, __file__, str(rank)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(TRAINER.ranks)
    ]
    try:
        return 0 if load([trainer.stdout.readline().strip() for trainer in trainers]) else 1
    finally:
        for trainer in trainers:
            trainer.communicate(timeout=30)


if __name__ == "__main__":
    try:
        sys.exit(train(int(sys.argv[1])) if len(sys.argv) > 1 else main())
    except haul.Error as error:
        sys.exit(str(error))
