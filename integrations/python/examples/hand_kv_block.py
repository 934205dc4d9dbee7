# SPDX-License-Identifier: MIT
"""Hands blocks of a KV-cache from a prefill process to a decode process.

The decoder's cache is one region, seen as a tensor of (layer, block, ...). The prefiller has a block of
every layer next to each other, and writes each sequence's blocks to their places with one transfer, all
sequences at once. A message behind them says that they are there.

    python3 hand_kv_block.py
"""

import asyncio
import os
import subprocess
import sys

import numpy

import haul

LAYERS, BLOCKS = 32, 64
BLOCK = (2, 16, 8, 64)  # keys and values, tokens, heads, width
BYTES = 2 * 2 * 16 * 8 * 64  # of a block, float16
SEQUENCES = {7: 12, 8: 3, 9: 60}  # where the decoder has room for each: its number, the block


def content(sequence, layer):
    return sequence * 100 + layer


async def prefill(address):
    with haul.Node("prefill") as node:
        peer = node.connect(address, timeout=10)
        cache = peer.lookup("kv")
        transfers = []
        for sequence, block in SEQUENCES.items():
            local = node.alloc(LAYERS * BYTES)
            layers = numpy.asarray(local.tensor("float16", (LAYERS, *BLOCK)))
            for layer in range(LAYERS):
                layers[layer] = content(sequence, layer)  # here a model would compute
            pieces = [
                (layer * BYTES, (layer * BLOCKS + block) * BYTES, BYTES) for layer in range(LAYERS)
            ]
            transfers.append(cache.write(local, pieces))
        for transfer in await asyncio.gather(*transfers):
            print(transfer.report())
        for sequence in SEQUENCES:
            peer.send(tag=sequence, timeout=10)
        del layers  # the node cannot be closed while somebody looks at its memory


def next_sequence(node):
    """The number of the next one that is there, None where the prefiller has left before."""
    while (message := node.receive(timeout=30)).kind == "joined":
        pass
    return message.tag if message.kind == "message" else None


def decode():
    with haul.Node("decode", peer_events=True) as node:
        region = node.alloc(LAYERS * BLOCKS * BYTES)
        region.publish("kv", haul.READ | haul.WRITE)
        address = node.listen(f"unix://@haul-hand-kv-block-{os.getpid()}")
        prefiller = subprocess.Popen([sys.executable, __file__, address])
        cache = numpy.asarray(region.tensor("float16", (LAYERS, BLOCKS, *BLOCK)))
        try:
            for _ in SEQUENCES:
                sequence = next_sequence(node)
                if sequence is None:
                    print("decode: the prefiller has left")
                    return 1
                block = cache[:, SEQUENCES[sequence]]
                whole = all(
                    (block[layer] == content(sequence, layer)).all() for layer in range(LAYERS)
                )
                print(f"decode: sequence {sequence} is", "here, whole" if whole else "damaged")
                if not whole:
                    return 1
        finally:
            del cache
            block = None
            status = prefiller.wait(30)
        return status


if __name__ == "__main__":
    try:
        sys.exit(asyncio.run(prefill(sys.argv[1])) if len(sys.argv) > 1 else decode())
    except haul.Error as error:
        sys.exit(str(error))
