# SPDX-License-Identifier: MIT
"""Hands blocks of a KV-cache from a prefill process to a decode process.

The decoder's cache is one region, used as a tensor of (layer, block, ...). The prefiller has a block of
every layer, contiguous. It writes the blocks of each sequence with one transfer, all sequences at once.
A message follows the bytes of each.

    python3 hand_kv_block.py
"""

import os
import subprocess
import sys

import numpy

import haul

LAYERS, BLOCKS = 32, 64
BLOCK = (2, 16, 8, 64)  # keys and values, tokens, heads, width
BYTES = 2 * 2 * 16 * 8 * 64  # of a block, float16
SEQUENCES = {7: 12, 8: 3, 9: 60}  # sequence number: index of its block in the decoder


def content(sequence, layer):
    return sequence * 100 + layer


def prefill(address):
    with haul.Node("prefill") as node:
        cache = node.connect(address, timeout=10).lookup("kv")
        transfers = []
        for sequence, block in SEQUENCES.items():
            local = node.alloc(LAYERS * BYTES)
            layers = numpy.asarray(local.tensor("float16", (LAYERS, *BLOCK)))
            for layer in range(LAYERS):
                layers[layer] = content(sequence, layer)  # a model would compute them
            pieces = [
                (layer * BYTES, (layer * BLOCKS + block) * BYTES, BYTES) for layer in range(LAYERS)
            ]
            transfers.append(cache.write(local, pieces, notify=b"", tag=sequence))
        haul.wait_all(transfers)
        for transfer in transfers:
            print(transfer.report())
        del layers  # a node with arrays of its memory cannot be closed


def next_sequence(node):
    """The number of the next complete sequence; None if the prefiller left before."""
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
                print(f"decode: sequence {sequence} is {'complete' if whole else 'damaged'}")
                if not whole:
                    return 1
        finally:
            del cache
            block = None
            status = prefiller.wait(30)
        return status


if __name__ == "__main__":
    try:
        sys.exit(prefill(sys.argv[1]) if len(sys.argv) > 1 else decode())
    except haul.Error as error:
        sys.exit(str(error))
