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
    from sglang_pool import TOKENS, WIDTH, Pool, indices
    from sglang.srt.mem_cache.hicache_storage import HiCacheStorageConfig
    from sglang.srt.mem_cache.storage.nixl.hicache_nixl import HiCacheNixl
except ImportError as error:
    stacks.skip("SGLang", f"this Python cannot import it: {error} (tests/nixl/stacks)")


def check(layout):
    config = HiCacheStorageConfig(
        tp_rank=0, tp_size=1, pp_rank=0, pp_size=1, attn_cp_rank=0, attn_cp_size=1,
        is_mla_model=True, enable_storage_metrics=False,
        is_page_first_layout=layout == "page_first", model_name="a/model",
        # its cleaner removes pages from a disk that is four fifths full
        extra_config={"plugin": {"haul": {"active": True}}, "l3_cleaner_enabled": False})
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
