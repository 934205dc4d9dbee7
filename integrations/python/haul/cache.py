# SPDX-License-Identifier: MIT
"""Blocks by key in the memories of several nodes.

A Store keeps blocks in a file of one host, like the command `haul cache serve`. A Cache places keys
on stores, and moves blocks between them and regions of this process:

    with haul.Node() as node, node.alloc(1 << 20) as region:
        with haul.cache.Cache(node, ["10.0.0.1:7500", "10.0.0.2:7500"]) as cache:
            cache.attach(region)
            cache.put(region, [("prompt-1", 0, 4096), ("prompt-2", 4096, 4096)])
            for item in cache.get(region, [("prompt-1", 8192, 4096)]):
                print(item.error or item.length)

A key that fails is no exception: its Item has the error. docs/cache.md has the design.
"""

from ._data import Block, Item, Repair, Stats, TierStats
from ._haul import CACHE_KEY_MAX, Cache, Store

KEY_MAX = CACHE_KEY_MAX
"""Bytes of a key, of any value."""

__all__ = ["KEY_MAX", "Block", "Cache", "Item", "Repair", "Stats", "Store", "TierStats"]

for _public in (Block, Item, Repair, Stats, TierStats):
    _public.__module__ = __name__  # as tracebacks show it
del _public
