# SPDX-License-Identifier: MIT
"""haul's storage for SGLang, loaded and called by SGLang itself, unmodified: its factory with the backend
`dynamic`, and its pools of host memory in all layouts. Then the tests that SGLang ships for its Mooncake
storage, with haul's class in the place of Mooncake's.

  sglang_storage.py
"""

import os
import runpy
import subprocess
import sys
import tempfile
import types

try:
    import torch
    from sglang.srt.mem_cache import hicache_storage
    from sglang.srt.mem_cache.hicache_storage import HiCacheStorage, HiCacheStorageConfig, PoolTransfer
    from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool, MLATokenToKVPool
    from sglang.srt.mem_cache.pool_host.mha import MHATokenToKVPoolHost
    from sglang.srt.mem_cache.pool_host.mla import MLATokenToKVPoolHost
    from sglang.srt.mem_cache.storage import StorageBackendFactory
except ImportError as error:
    print(f"skipped SGLang: this Python cannot import it: {error} (tests/nixl/stacks)")
    sys.exit(77)

PAGE = 16  # tokens
LAYERS = 3
MOONCAKE = "sglang.srt.mem_cache.storage.mooncake_store"


def settings(address):
    return {"backend_name": "haul", "module_path": "haul.sglang", "class_name": "HiCache",
            "interface_v1": 1, "nodes": address}  # fmt: skip


def config(address, mla):
    return HiCacheStorageConfig(
        tp_rank=0, tp_size=1, pp_rank=0, pp_size=1, attn_cp_rank=0, attn_cp_size=1,
        is_mla_model=mla, enable_storage_metrics=False, is_page_first_layout=True,
        model_name="a/model", extra_config=settings(address))  # fmt: skip


def mha_pool(layout):
    device = MHATokenToKVPool(size=16 * PAGE, page_size=PAGE, dtype=torch.bfloat16, head_num=2, head_dim=64,
                              layer_num=LAYERS, device="cpu", enable_memory_saver=False)  # fmt: skip
    return host_pool(MHATokenToKVPoolHost, device, layout)


def mla_pool(layout):
    device = MLATokenToKVPool(size=16 * PAGE, page_size=PAGE, dtype=torch.bfloat16, kv_lora_rank=64,
                              qk_rope_head_dim=16, layer_num=LAYERS, device="cpu",
                              enable_memory_saver=False)  # fmt: skip
    return host_pool(MLATokenToKVPoolHost, device, layout, target_layer_num=LAYERS)


def host_pool(kind, device, layout, **more):
    """SGLang's pool of host memory, twice as large as its pool of a device, which is in host memory here."""
    pool = kind(
        device.get_device_pool_infos()[0].buffer_info, 2, 0, PAGE, layout, pin_memory=False,
        device_capacity_tokens=device.size, start_layer=device.start_layer, end_layer=device.end_layer, **more,
    )  # fmt: skip
    pool.kept = device
    pool.kv_buffer.copy_(torch.randn(pool.kv_buffer.shape))
    return pool


def indices(pages):
    return torch.cat([torch.arange(page * PAGE, (page + 1) * PAGE) for page in pages])


def page(pool, number):
    return pool.get_data_page(torch.tensor(number * PAGE), flat=True)


def check_pool(address, name, pool, other):
    mla = isinstance(pool, MLATokenToKVPoolHost)
    storage = StorageBackendFactory.create_backend("dynamic", config(address, mla), pool)
    reader = StorageBackendFactory.create_backend("dynamic", config(address, mla), other)
    assert isinstance(storage, HiCacheStorage)
    storage.register_mem_pool_host(pool)
    storage.on_host_pools_registered()
    reader.register_mem_pool_host(other)
    keys = [f"{name} {i}" for i in range(8)]
    assert storage.batch_exists(keys) == 0
    assert storage.batch_set_v1(keys, indices(range(8))) == [True] * 8
    assert storage.batch_exists([*keys, "none"]) == 8
    before = page(other, 19).clone()
    assert reader.batch_get_v1([keys[5], "none", keys[2]], indices([20, 19, 1])) == [True, False, True]
    assert torch.equal(page(other, 20), page(pool, 5)) and torch.equal(page(other, 1), page(pool, 2))
    assert torch.equal(page(other, 19), before)
    for each in (storage, reader):
        each.close()
    print(f"{name}: passed", flush=True)


def check_generic(address, pool):
    """The interface without `interface_v1`, as SGLang's controller calls it."""
    storage = StorageBackendFactory.create_backend("dynamic", config(address, False), pool)
    storage.register_mem_pool_host(pool)
    keys = [f"generic {i}" for i in range(4)]
    assert storage.batch_set(keys, [pool.get_data_page(torch.tensor(i * PAGE)) for i in range(4)])
    found = storage.batch_get([*keys, "none"], [pool.get_dummy_flat_data_page() for _ in range(5)])
    assert found[4] is None
    for i in range(4):
        assert torch.equal(found[i], page(pool, i))
    storage.close()
    print("tensors: passed", flush=True)


def check_several_pools(address, pool, side):
    storage = StorageBackendFactory.create_backend("dynamic", config(address, False), pool)
    storage.register_mem_pool_host(pool)
    storage.register_mem_host_pool_v2(side, hicache_storage.PoolName.INDEXER)
    keys = [f"several {i}" for i in range(6)]
    assert storage.batch_set_v1(keys, indices(range(6))) == [True] * 6

    def transfer(count, at, policy="all_pages"):
        return PoolTransfer(name=hicache_storage.PoolName.INDEXER, keys=keys[:count],
                            host_indices=indices(range(at, at + count)),
                            hit_policy=hicache_storage.PoolHitPolicy(policy))  # fmt: skip

    assert storage.batch_set_v2([transfer(4, 0)]) == {"indexer": [True] * 4}
    result = storage.batch_exists_v2(keys, [transfer(4, 0)])
    assert (result.kv_hit_pages, result.extra_pool_hit_pages) == (4, {"kv": 6, "indexer": 4}), result
    result = storage.batch_exists_v2(keys, [transfer(2, 0, "trailing_pages")])
    assert result.restorable_prefix_pages == [1, 2, 3, 4], result
    assert storage.batch_exists_v2(["none", *keys]).kv_hit_pages == 0
    assert storage.batch_get_v2([transfer(5, 10)]) == {"indexer": [True] * 4 + [False]}
    assert torch.equal(page(side, 13), page(side, 3))
    storage.close()
    print("several pools: passed", flush=True)


def check_mooncakes_tests(address):
    from haul.sglang import HiCache

    def opened(config):
        config.extra_config = settings(address)
        return HiCache(config)

    package = __import__(MOONCAKE, fromlist=["__path__"])
    stand_in = types.ModuleType(f"{MOONCAKE}.mooncake_store")
    stand_in.MooncakeStore = opened
    sys.modules[stand_in.__name__] = stand_in
    runpy.run_path(os.path.join(next(iter(package.__path__)), "test_mooncake_store.py"), run_name="__main__")
    print("SGLang's tests for Mooncake: passed", flush=True)


def main():
    with tempfile.TemporaryDirectory(prefix="haul-sglang-") as folder:
        address = f"unix://{folder}/socket"
        command = os.path.join(os.environ["HAUL_BUILD"], "cmd/haul/haul")
        server = subprocess.Popen(
            [command, "cache", "serve", f"{folder}/cache", "--capacity", "64M", "--listen", address],
            stdout=subprocess.PIPE, text=True)  # fmt: skip
        try:
            print(server.stdout.readline(), end="", flush=True)
            for layout in ("layer_first", "page_first", "page_first_direct", "page_head"):
                check_pool(address, f"MHA {layout}", mha_pool(layout), mha_pool(layout))
            for layout in ("layer_first", "page_first", "page_first_direct"):
                check_pool(address, f"MLA {layout}", mla_pool(layout), mla_pool(layout))
            check_generic(address, mha_pool("layer_first"))
            check_several_pools(address, mha_pool("page_first"), mla_pool("page_first"))
            check_mooncakes_tests(address)
        finally:
            server.kill()
            server.wait()
    sys.stdout.flush()
    os._exit(0)  # without the destructors of other people's modules


main()
