# SPDX-License-Identifier: MIT
"""Keeps blocks of a KV-cache in a store, so that the prefix that prompts share is computed once.

The store is a process of its own, like `haul cache serve`. The key of a block is a hash of its tokens and of
all tokens before it. A worker gets the blocks that the store has, computes the others and puts them.

    python3 reuse_prefix.py
"""

import hashlib
import os
import subprocess
import sys
import tempfile

import numpy

import haul
from haul.cache import Cache, Store

TOKENS = 16  # of a block
BLOCK = (2, 32, TOKENS, 8, 64)  # keys and values, layers, tokens, heads, width
BYTES = 2 * 2 * 32 * TOKENS * 8 * 64  # of a block, float16
MOST = 8  # blocks of a prompt

SYSTEM = list(range(64))
PROMPTS = (SYSTEM + [100] * 32, SYSTEM + [200] * 48, SYSTEM + [100] * 32)


def blocks_of(prompt):
    return [prompt[i : i + TOKENS] for i in range(0, len(prompt), TOKENS)]


def keys_of(prompt):
    hashed, keys = hashlib.sha256(), []
    for tokens in blocks_of(prompt):
        hashed.update(numpy.array(tokens, "<u4").tobytes())
        keys.append("kv-" + hashed.hexdigest()[:32])
    return keys


def content(tokens):
    return sum(tokens) % 1000  # a model would compute it, from all tokens before, too


def get(cache, memory, keys):
    """How many blocks from the first one on are in the memory now."""
    got = cache.get(memory, [(key, i * BYTES, BYTES) for i, key in enumerate(keys)])
    for i, item in enumerate(got):
        if item.error and item.error.code != haul.Code.ENAME:
            raise item.error
        if item.error:
            return i
    return len(keys)


def put(cache, memory, keys, first):
    wanted = [(key, i * BYTES, BYTES) for i, key in enumerate(keys) if i >= first]
    for item in cache.put(memory, wanted):
        if item.error:
            print(f"worker: {item.error}")  # the next prompt computes it again


def answer(cache, memory, prompt):
    """Whether the memory has the prompt's blocks in the end."""
    keys, parts = keys_of(prompt), blocks_of(prompt)
    blocks = numpy.asarray(memory.tensor("float16", (MOST, *BLOCK)))
    blocks[:] = -1
    known = get(cache, memory, keys)
    for i in range(known, len(parts)):
        blocks[i] = content(parts[i])
    put(cache, memory, keys, known)
    print(f"worker: {known} blocks from the store, {len(parts) - known} computed")
    return all((block == content(tokens)).all() for block, tokens in zip(blocks, parts))


def serve(path):
    with haul.Node("store") as node, Store(node, path, 256 << 20):
        print(node.listen(f"unix://@haul-reuse-prefix-{os.getpid()}"), flush=True)
        sys.stdin.read()  # until the worker closes it


def work(address):
    with haul.Node("worker", timeout=30) as node, node.alloc(MOST * BYTES) as memory:
        with Cache(node, [address]) as cache:
            cache.attach(memory)
            right = all([answer(cache, memory, prompt) for prompt in PROMPTS])
            print(f"worker: the store has {cache.stat(0).memory.blocks} blocks")
    print("worker: all blocks are", "right" if right else "wrong")
    return 0 if right else 1


def main():
    with tempfile.TemporaryDirectory() as folder:
        store = subprocess.Popen(
            [sys.executable, __file__, os.path.join(folder, "store")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            return work(store.stdout.readline().strip())
        finally:
            store.communicate(timeout=30)


if __name__ == "__main__":
    try:
        sys.exit(serve(sys.argv[1]) if len(sys.argv) > 1 else main())
    except haul.Error as error:
        sys.exit(str(error))
