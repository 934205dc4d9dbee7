# SPDX-License-Identifier: MIT
"""The storage for SGLang, in the order of calls in which SGLang makes them, without SGLang: pools and
configuration are this test's. tests/python/sglang_storage.py runs SGLang's own classes.
"""

import pathlib
import sys
import tempfile
import types

import haul
import support
from haul import cache
from haul.sglang import HiCache

try:
    import torch
except ImportError:
    torch = None
else:
    sys.path.insert(0, str(support.REPOSITORY / "tests/nixl"))
    from sglang_pool import TOKENS, Pool, indices


def config(nodes, **more):
    settings = {"nodes": nodes, "timeout": support.PATIENCE, "backend_name": "haul", "interface_v1": 1}
    given = {
        "tp_rank": 0, "tp_size": 1, "pp_rank": 0, "pp_size": 1, "attn_cp_rank": 0, "attn_cp_size": 1,
        "is_mla_model": True, "model_name": "a/model", "extra_config": settings, **more}  # fmt: skip
    return types.SimpleNamespace(**given)


class Storages(support.Case):
    def setUp(self):
        if not torch:
            self.skipTest(f"{sys.executable} has no PyTorch: sudo apt-get install python3-torch")
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        node = haul.Node()
        self.addCleanup(node.close)
        self.store = cache.Store(node, self.folder / "store", 64 << 20)
        self.addCleanup(self.store.close)
        self.address = node.listen(f"unix://{self.folder}/socket")

    def open(self, pool=None, **more):
        storage = HiCache(config(self.address, **more))
        self.addCleanup(storage.close)
        if pool:
            storage.register_mem_pool_host(pool)
        return storage

    def test_errors(self):
        self.assertRaisesRegex(ValueError, "set \"nodes\"", HiCache, config(""))
        self.assertRaises(haul.BadAddress, HiCache, config("unix:///a,unix:///a"))
        storage = self.open()
        pool = Pool("page_first")
        pool.kv_buffer = None
        self.assertRaisesRegex(ValueError, "no memory", storage.register_mem_pool_host, pool)
        pool = Pool("page_first")
        pool.kv_buffer = pool.kv_buffer.T
        self.assertRaisesRegex(ValueError, "not contiguous", storage.register_mem_pool_host, pool)
        storage = self.open(Pool("page_first"))
        self.assertRaises(ValueError, storage.batch_set_v1, ["a"], indices([0])[1:])
        self.assertRaises(ValueError, storage.set, "a")
        self.assertRaises(ValueError, storage.get, "a", 4096)

    def test_pages(self):
        for layout in ("page_first", "layer_first"):
            with self.subTest(layout):
                pool = Pool(layout)
                storage, other = self.open(pool), Pool(layout)
                keys = [f"{page:064x}" for page in range(16)]
                self.assertEqual(storage.batch_exists(keys), 0)
                self.assertEqual(storage.batch_set_v1(keys, indices(range(16))), [True] * 16)
                self.assertEqual(storage.batch_exists([*keys[:5], "no", *keys[5:]]), 5)
                other.kv_buffer.fill_(-1)
                reader = self.open(other)
                into = indices([20, 3, 7])
                self.assertEqual(reader.batch_get_v1([keys[2], "no", keys[9]], into), [True, False, True])
                for page, kept in ((20, 2), (3, -1), (7, 9), (0, -1), (21, -1)):
                    self.assertTrue(bool((other.page(page * TOKENS) == kept).all()), page)
                self.assertEqual(storage.batch_set_v1([], indices([0])[:0]), [])

    def test_a_page_that_exists_is_kept(self):
        pool = Pool("page_first")
        storage = self.open(pool)
        self.assertEqual(storage.batch_set_v1(["a"], indices([1])), [True])
        self.assertEqual(storage.batch_set_v1(["a", "b"], indices([2, 3])), [True, True])
        self.assertEqual(storage.batch_get_v1(["a"], indices([9])), [True])
        self.assertTrue(bool((pool.page(9 * TOKENS) == 1).all()))
        self.assertEqual(self.store.stat().memory.puts, 2)

    def test_pages_of_others(self):
        """Other ranks, models, layouts and types have other pages for the same tokens."""
        storage = self.open(Pool("page_first"))
        storage.batch_set_v1(["a"], indices([1]))
        self.assertEqual(self.open(Pool("page_first")).batch_exists(["a"]), 1)
        self.assertEqual(self.open(Pool("page_first"), tp_rank=1, tp_size=2).batch_exists(["a"]), 1)  # MLA
        other = Pool("page_first")
        other.dtype = torch.bfloat16
        for pool, more in ((Pool("layer_first"), {}), (Pool("page_first"), {"model_name": "another"}), (other, {}),
                           (Pool("page_first"), {"pp_rank": 1, "pp_size": 2}),
                           (Pool("page_first"), {"tp_rank": 1, "tp_size": 2, "is_mla_model": False})):  # fmt: skip
            with self.subTest(pool.layout, **more):
                self.assertEqual(self.open(pool, **more).batch_exists(["a"]), 0)

    def test_values(self):
        storage = self.open()
        value, memory = torch.arange(1000, dtype=torch.float32), torch.zeros(1000)
        self.assertFalse(storage.exists("a"))
        self.assertIsNone(storage.get("a", memory))
        self.assertTrue(storage.set("a", value))
        self.assertTrue(storage.exists("a"))
        self.assertIs(storage.get("a", memory), memory)
        self.assertTrue(torch.equal(memory, value))
        self.assertIsNone(storage.get("a", torch.zeros(999)))
        self.assertIsNone(storage.get("a", torch.zeros(1001)))
        self.assertTrue(storage.batch_set(["b", "c"], [value * 2, value[::2]]))
        loaded = storage.batch_get(["c", "none", "b"], [torch.zeros(500), torch.zeros(1), torch.zeros(1000)])
        self.assertTrue(torch.equal(loaded[0], value[::2]) and torch.equal(loaded[2], value * 2))
        self.assertIsNone(loaded[1])
        self.assertEqual((storage.batch_get([]), storage.batch_set([])), ([], True))

    def test_values_at_addresses(self):
        storage = self.open()
        value, memory = torch.arange(1000), torch.zeros(1000, dtype=torch.int64)
        where = {"target_location": value.data_ptr(), "target_sizes": 8000}
        self.assertIs(storage.set("a", **where), True)
        self.assertIs(storage.get("a", memory.data_ptr(), 8000), True)
        self.assertTrue(torch.equal(memory, value))
        self.assertEqual(storage.batch_get(["a", "b"], [memory.data_ptr()] * 2, [8000] * 2), [True, False])

    def test_several_pools(self):
        main, side = Pool("page_first"), Pool("layer_first")
        side.kv_buffer += 100
        storage = self.open(main)
        storage.register_mem_host_pool_v2(main, "kv")
        storage.register_mem_host_pool_v2(side, "indexer")

        def transfer(name, keys, pages, policy="all_pages"):
            return types.SimpleNamespace(name=name, keys=keys, host_indices=indices(pages), hit_policy=policy)

        both = [transfer("kv", ["a", "b"], [1, 2]), transfer("indexer", ["a"], [1])]
        self.assertEqual(storage.batch_set_v2(both), {"kv": [True, True], "indexer": [True]})
        both = [transfer("kv", ["b"], [9]), transfer("indexer", ["a", "b"], [9, 10])]
        self.assertEqual(storage.batch_get_v2(both), {"kv": [True], "indexer": [True, False]})
        self.assertTrue(bool((main.page(9 * TOKENS) == 2).all() and (side.page(9 * TOKENS) == 101).all()))

    def test_a_store_that_is_away(self):
        storage = self.open(Pool("page_first"))
        storage.batch_set_v1(["a"], indices([1]))
        self.store.close()
        self.store.node.close()
        with self.assertLogs("haul.sglang", "WARNING") as logs:
            self.assertEqual(storage.batch_exists(["a"]), 0)
            self.assertEqual(storage.batch_exists(["a"]), 0)
        self.assertEqual(len(logs.output), 1)
        self.assertIn("cannot be reached", logs.output[0])
        self.assertEqual(storage.batch_get_v1(["a"], indices([1])), [False])
        self.assertEqual(storage.batch_set_v1(["b"], indices([1])), [False])


if __name__ == "__main__":
    support.main()
