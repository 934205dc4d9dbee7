#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""A checkpoint of 2.1 GB from 8 ranks to 4 (TP8 to TP4) by haul.reshard, each rank a process. PYTHONPATH has haul.

reshard.py PATH reshard|plain  over this path; plain: each rank reads the same number of bytes from the same two
                               ranks, as they lie there, 64 MiB a transfer; prints GB/s (median of the rounds), from
                               the plans to the last byte
"""
import multiprocessing
import os
import statistics
import sys
import time

import haul
from haul.reshard import Layout, Part, Replicate, Shard, fetch, fetch_all, plan

SOURCES, TARGETS, ROUNDS, ITEM = 8, 4, 3, 2
HIDDEN, INNER, VOCABULARY, LAYERS = 4096, 11008, 32000, 4
PARALLEL = {0: Shard(0), 1: Shard(1), None: Replicate()}


def tensors():
    """Shape and sharded dimension of each tensor: of a Llama with few layers."""
    yield (VOCABULARY, HIDDEN), 0
    for _ in range(LAYERS):
        yield from (((HIDDEN, HIDDEN), 0) for _ in "qkv")
        yield (HIDDEN, HIDDEN), 1
        yield from (((INNER, HIDDEN), 0) for _ in ("gate", "up"))
        yield (HIDDEN, INNER), 1
        yield from (((HIDDEN,), None) for _ in range(2))
    yield (VOCABULARY, HIDDEN), 0


def layouts(ranks):
    return [Layout(shape, (ranks,), [PARALLEL[dim]]) for shape, dim in tensors()]


def nbytes(layout, rank):
    length = ITEM
    for _, count in layout.block(rank):
        length *= count
    return length


def offsets(ranks):
    """Where the block of each tensor begins in a rank's memory, and its end. All ranks have equal parts."""
    found = [0]
    for layout in layouts(ranks):
        found.append(found[-1] + nbytes(layout, 0))
    return found


def listen(node, path):
    return node.listen(f"unix://@haul-bench-{os.getpid()}" if path == "map" else "tcp://127.0.0.1:0")


def serve(path, pipe):
    node = haul.Node(paths=path)
    region = node.alloc(offsets(SOURCES)[-1])
    fill(region, 1)
    region.publish("shard")
    pipe.send(listen(node, path))
    pipe.recv()


def fill(region, value):
    with region.bytes() as view:
        for at in range(0, len(view), 1 << 20):
            view[at : at + (1 << 20)] = bytes([value]) * len(view[at : at + (1 << 20)])


def reshard(rank, region, remotes):
    here, there = offsets(TARGETS), offsets(SOURCES)
    parts = [
        Part(plan(source, target, ITEM), here[i], dict.fromkeys(remotes, there[i]))
        for i, (source, target) in enumerate(zip(layouts(SOURCES), layouts(TARGETS)))
    ]
    fetch_all(parts, rank, region, remotes)


def plain(rank, region, remotes):
    """Half of the bytes from each of two ranks, through the same code."""
    half = offsets(TARGETS)[-1] // 2
    whole = Layout((2 * half,), (1,))
    split = Layout((2 * half,), (2,), [Shard(0)])
    fetch(plan(split, whole, 1), 0, region, {i: remotes[2 * rank + i] for i in range(2)})


def receive(path, run, rank, pipe):
    node = haul.Node(paths=path)
    region = node.alloc(offsets(TARGETS)[-1], private=True)
    fill(region, 2)
    remotes = {i: node.connect(address).lookup("shard") for i, address in enumerate(pipe.recv())}
    pipe.send("ready")
    while pipe.recv() == "go":
        began = time.monotonic()
        run(rank, region, remotes)
        pipe.send((began, time.monotonic()))


def start(target, *arguments):
    ours, theirs = multiprocessing.Pipe()
    multiprocessing.Process(target=target, args=(*arguments, theirs), daemon=True).start()
    return ours


def main():
    path, kind = sys.argv[1], {"reshard": reshard, "plain": plain}[sys.argv[2]]
    sources = [start(serve, path) for _ in range(SOURCES)]
    addresses = [pipe.recv() for pipe in sources]
    targets = [start(receive, path, kind, rank) for rank in range(TARGETS)]
    for pipe in targets:
        pipe.send(addresses)
    for pipe in targets:
        pipe.recv()
    rates = []
    for _ in range(1 + ROUNDS):  # the first one opens connections and maps memory
        for pipe in targets:
            pipe.send("go")
        times = [pipe.recv() for pipe in targets]
        span = max(end for _, end in times) - min(begin for begin, _ in times)
        rates.append(TARGETS * offsets(TARGETS)[-1] / span / 1e9)
    print(f"{statistics.median(rates[1:]):.3f}")
    for pipe in targets + sources:
        pipe.send("end")


if __name__ == "__main__":
    main()
