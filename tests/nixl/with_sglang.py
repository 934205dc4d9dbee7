# SPDX-License-Identifier: MIT
"""SGLang's storage of its hierarchical cache (HiCacheNixl) over the plugin, unmodified, chosen by its
configuration. The pool of host memory is the test's.

  with_sglang.py PLUGIN
"""

import os
import sys

import stacks

stacks.use_plugin("SGLang", sys.argv[1])
try:
    import torch
    from sglang.srt.mem_cache.hicache_storage import HiCacheStorageConfig
    from sglang.srt.mem_cache.storage.nixl.hicache_nixl import HiCacheNixl
except ImportError as error:
    stacks.skip("SGLang", f"this Python cannot import it: {error} (tests/nixl/stacks)")

TOKENS = 16  # of a page
PAGES = 32
WIDTH = 4096  # floats of a token


class Pool:
    """Pages of host memory, with what HiCacheNixl calls of SGLang's HostKVCache."""

    page_size = TOKENS

    def __init__(self, layout):
        self.layout = layout
        whole = torch.empty(PAGES * TOKENS * WIDTH + 1024)
        begin = -whole.data_ptr() % 4096 // 4
        self.kv_buffer = whole[begin : begin + PAGES * TOKENS * WIDTH].view(-1, WIDTH)
        for page in range(PAGES):
            self.page(page * TOKENS)[:] = page

    def page(self, index):
        return self.kv_buffer[int(index) : int(index) + TOKENS]

    def is_stride_page_aligned(self, size):
        return self.kv_buffer.data_ptr() % size == 0 and self.page(0).nbytes % size == 0

    def get_dummy_flat_data_page(self):
        return torch.zeros(TOKENS * WIDTH)

    def get_data_page(self, index, flat=True):
        return self.page(index).flatten() if flat else self.page(index)

    def set_from_flat_data_page(self, index, page):
        self.page(index)[:] = page.reshape(TOKENS, WIDTH)

    def get_page_buffer_meta(self, indices):
        pages = [self.page(index) for index in indices[::TOKENS]]
        return [page.data_ptr() for page in pages], [page.nbytes for page in pages]


def indices(pages):
    return torch.cat([torch.arange(page * TOKENS, (page + 1) * TOKENS) for page in pages])


def check(layout):
    config = HiCacheStorageConfig(
        tp_rank=0, tp_size=1, pp_rank=0, pp_size=1, attn_cp_rank=0, attn_cp_size=1,
        is_mla_model=True, enable_storage_metrics=False,
        is_page_first_layout=layout == "page_first", model_name="a/model",
        extra_config={"plugin": {"haul": {"active": True}}})
    path = stacks.folder()
    storage = HiCacheNixl(config, path)
    assert storage.backend_selector.backend_name == "HAUL"
    assert storage.registry.path_mode
    pool = Pool(layout)
    storage.register_mem_pool_host(pool)
    keys = [f"page{i}" for i in range(8)]
    assert storage.batch_set_v1(keys, indices(range(8))) == [True] * 8
    assert storage.batch_exists([*keys, "another"]) == 8
    assert storage.batch_get_v1(keys, indices(range(8, 16))) == [True] * 8
    for page in range(8):
        assert bool((pool.page((page + 8) * TOKENS) == page).all())
    assert not any(storage.batch_get_v1(["another"], indices([20])))
    assert bool((pool.page(20 * TOKENS) == 20).all())
    found = [os.path.join(root, name) for root, _, names in os.walk(path) for name in names]
    assert {os.path.getsize(name) for name in found} == {TOKENS * WIDTH * 4}
    storage.close()
    print(f"HiCacheNixl, {layout}: passed", flush=True)


for each in ("layer_first", "page_first"):
    check(each)
stacks.leave()
