# SPDX-License-Identifier: MIT
"""Two instances of vLLM, unmodified: one computes prompts, the other reads their KV cache over haul
and generates.

  disaggregated.py WAY    map, tcp: on loopback; hosts: in two network namespaces, with a key;
                          push: the one that computes writes into the other's blocks
"""

import os
import random
import signal
import sys
import time

import rig

WAY = sys.argv[1]
POLICY = {"map": "fail", "tcp": "recompute", "hosts": "fail", "push": "fail"}[WAY]
TOKENS = 12
REQUESTS, AT_A_TIME = 1000, 50
FROZEN = 0.3  # seconds in which the decoding instance posts its transfers


def prompts(*lengths):
    return [[random.randrange(3, rig.VOCABULARY) for _ in range(length)] for length in lengths]


def tokens_of(ended):
    assert all(one["end"] == "length" for one in ended), ended
    return [one["tokens"] for one in ended]


def check_tokens(first, second):
    """Blocks arrive unchanged, and the tokens are those of an instance that computes all by itself."""
    these = prompts(300, 300, 517, 64)
    found = first.prefill(these)
    sent = first.ask("blocks")
    read = tokens_of(second.generate(these, TOKENS, found))
    held = set(second.ask("blocks"))
    for prompt, one in zip(these, found):
        # Into the last block the second instance writes, too.
        whole = one["kv"]["remote_block_ids"][0][: len(prompt) // rig.BLOCK]
        assert len(whole) == len(prompt) // rig.BLOCK
        assert all(sent[block] in held for block in whole), (len(prompt), whole)
    alone = tokens_of(second.generate(these, TOKENS))
    assert read == alone, (read, alone)

    # The tokens depend on what is read: with the cache of another prompt they are others.
    other = tokens_of(second.generate(these[:1], TOKENS, first.prefill(these[1:2])))
    assert other != alone[:1], "the tokens do not depend on the KV cache"


def check_equal(first, second, these, count=TOKENS):
    read = tokens_of(second.generate(these, count, first.prefill(these)))
    assert read == tokens_of(second.generate(these, count))


def check_many(first, second):
    began = time.monotonic()
    for _ in range(0, REQUESTS, AT_A_TIME):
        lengths = [random.randrange(1, 3 * rig.BLOCK) for _ in range(AT_A_TIME)]
        check_equal(first, second, prompts(*lengths), 3)
    print(f"{REQUESTS} requests: {time.monotonic() - began:.1f} s with the comparison")


def start_frozen(first, second, these):
    """Requests of which the transfers cannot proceed."""
    found = first.prefill(these)
    first.signal(signal.SIGSTOP)
    names = second.add(these, TOKENS, found)
    time.sleep(FROZEN)
    return names


def check_abort(first, second):
    """What a transfer of an aborted request still writes reaches no block of another request."""
    these = prompts(900, 900, 40)
    names = start_frozen(first, second, these)
    second.ask("abort", names[:2])
    first.signal(signal.SIGCONT)
    ended = second.finish(names[2:])
    assert tokens_of(ended) == tokens_of(second.generate(these[2:], TOKENS))
    for _ in range(5):
        check_equal(first, second, prompts(900, 500, 40))


def check_death(first, second):
    """Requests whose KV cache was in the killed instance end as the policy says."""
    these = prompts(900, 200, 40)
    if WAY == "map":  # nobody can stop a copy out of a frozen process
        found = first.prefill(these)
        first.end()
        names = second.add(these, TOKENS, found)
    else:
        names = start_frozen(first, second, these)
        first.end()
    began = time.monotonic()
    ended = second.finish(names)
    print(f"killed: {[one['end'] for one in ended]} after {time.monotonic() - began:.1f} s")
    if POLICY == "fail":
        assert all(one["end"] == "error" for one in ended), ended
    else:
        assert tokens_of(ended) == tokens_of(second.generate(these, TOKENS))


def main():
    seed = int(os.environ.get("HAUL_TEST_SEED", random.randrange(1 << 30)))
    print(f"HAUL_TEST_SEED={seed}", flush=True)
    random.seed(seed)
    with rig.Rig(WAY, POLICY) as place:
        first, second = place.start("prefill"), place.start("decode")
        check_tokens(first, second)
        check_many(first, second)
        if WAY in ("tcp", "hosts"):
            check_abort(first, second)
        if WAY != "push":  # there vLLM waits for the dead instance for ever
            check_death(first, second)
            check_equal(place.start("prefill"), second, prompts(300, 40))
        path = "map" if WAY == "map" else "tcp"
        one = first if WAY == "push" else second
        one.must_have_logged(f"host to host: {path}")
        print("ok")


main()
