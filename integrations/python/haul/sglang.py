# SPDX-License-Identifier: MIT
"""A storage of SGLang's hierarchical cache in a cache of haul.

Some nodes keep the blocks:

    haul cache serve /dev/shm/cache --capacity 64G --listen tcp://10.0.0.1:7500

SGLang loads the class HiCache by its configuration; `interface_v1` makes it pass memory, so that the
pages are moved without a copy in this process (with --hicache-mem-layout page_first):

    --hicache-storage-backend dynamic --hicache-storage-backend-extra-config '{
        "backend_name": "haul", "module_path": "haul.sglang", "class_name": "HiCache",
        "interface_v1": 1, "nodes": "10.0.0.1:7500,10.0.0.2:7500"}'

Further settings there: "replicas" of each block (1), "timeout" of a call in seconds (10), and "node",
an object with arguments of haul.Node. Problems are logged as `haul.sglang`.
"""

from __future__ import annotations

import importlib
import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from ._blocks import Blocks, Span, key_of
from ._data import Code, Item

_IN_PLACE = ("page_first", "page_first_direct", "page_head")  # layouts with pages in few ranges
_STAGING = 64 << 20  # bytes of pages that are copied at a time
_KV = "kv"  # SGLang's name of the first pool

__all__ = ["HiCache"]

_log = logging.getLogger(__name__)


def _module() -> Any:
    """SGLang's; None where it is not installed, so that this module can be examined."""
    try:
        return importlib.import_module("sglang.srt.mem_cache.hicache_storage")
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] != "sglang":
            raise
        return None


_sglang = _module()
_Storage: Any = _sglang.HiCacheStorage if _sglang else object


def _identity(config: Any) -> str:
    """What distinguishes the pages of a process from those of others with the same tokens."""
    parts = [config.model_name or ""]
    for name in ("pp", "attn_cp", *(() if config.is_mla_model else ("tp",))):
        if getattr(config, f"{name}_size", 1) > 1:
            parts.append(f"{name}{getattr(config, f'{name}_rank')}of{getattr(config, f'{name}_size')}")
    return "/".join(parts)


def _buffers(pool: Any) -> Iterator[Any]:
    """The tensors of a pool's memory."""
    if hasattr(pool, "get_hybrid_pool_buffer"):
        yield from pool.get_hybrid_pool_buffer()
    elif isinstance(pool.kv_buffer, (list, tuple)):
        yield from pool.kv_buffer
    else:
        yield pool.kv_buffer


def _parts(pool: Any) -> int:
    """The number of ranges that a page has in memory."""
    if pool.layout not in _IN_PLACE:
        return 1
    torch = importlib.import_module("torch")
    return len(pool.get_page_buffer_meta(torch.arange(pool.page_size))[0])


def _span_of(tensor: Any) -> Span:
    if not tensor.is_contiguous():
        raise ValueError("a tensor is not contiguous")
    return tensor.data_ptr(), tensor.numel() * tensor.element_size()


def _is_true(items: Sequence[Item]) -> list[bool]:
    return [item.error is None for item in items]


class HiCache(_Storage):  # type: ignore[misc]
    """SGLang's interface of storages. Its calls block, at most for the timeout.

    config   SGLang's, with the settings
    options  further arguments of SGLang, not used

    Raises ValueError (a setting is missing), and as haul.cache.Cache.
    """

    def __init__(self, config: Any, options: Any = None) -> None:
        settings = config.extra_config or {}
        if not settings.get("nodes"):
            raise ValueError('haul.sglang: set "nodes" to the addresses of the cache, or etcd://HOST/PREFIX')
        self._timeout = float(settings.get("timeout", 10))
        self._blocks = Blocks(
            settings["nodes"], self._timeout, settings.get("replicas", 1), **settings.get("node", {})
        )
        self._identity = _identity(config)
        self._pools: dict[str, tuple[Any, int]] = {}  # with the number of a page's parts
        self._logged = ""

    def close(self) -> None:
        """End it: calls in progress fail, or end within a second."""
        self._blocks.close()

    def __enter__(self) -> HiCache:
        """Return the storage."""
        return self

    def __exit__(self, *exception: object) -> None:
        """Close it."""
        self.close()

    # ---- Pools ----

    def register_mem_pool_host(self, mem_pool_host: Any) -> None:
        """Move the pages of this pool.

        mem_pool_host  SGLang's pool of host memory. Raises ValueError (it has no memory).
        """
        self.mem_pool_host = mem_pool_host
        self._register(mem_pool_host, _KV)

    def register_mem_host_pool_v2(self, host_pool: Any, host_pool_name: Any) -> None:
        """Move the pages of a further pool.

        host_pool       SGLang's pool
        host_pool_name  of it
        """
        if str(host_pool_name) != _KV:
            self._register(host_pool, str(host_pool_name))

    def _register(self, pool: Any, name: str) -> None:
        if getattr(pool, "kv_buffer", None) is None and not hasattr(pool, "get_hybrid_pool_buffer"):
            raise ValueError(f"haul.sglang: the pool '{name}' has no memory of its own")
        self._pools[name] = pool, _parts(pool)
        if pool.layout in _IN_PLACE:
            for tensor in _buffers(pool):
                self._blocks.keep(_span_of(tensor))

    # ---- Pages of a pool ----

    def batch_exists(self, keys: list[str], extra_info: Any = None) -> int:
        """Return the number of pages from the first one on that the cache has.

        keys        of pages
        extra_info  not used
        """
        found = self._found(_KV, keys)
        return found.index(False) if False in found else len(found)

    def batch_set_v1(self, keys: list[str], host_indices: Any, extra_info: Any = None) -> list[bool]:
        """Store pages, and return for each whether the cache has it.

        keys          of the pages
        host_indices  of their tokens in the pool
        extra_info    not used
        """
        return self._set_pages(_KV, keys, host_indices)

    def batch_get_v1(self, keys: list[str], host_indices: Any, extra_info: Any = None) -> list[bool]:
        """Load pages, and return for each whether the cache had it.

        keys          of the pages
        host_indices  of their tokens in the pool
        extra_info    not used
        """
        return self._get_pages(_KV, keys, host_indices)

    def batch_set_v2(self, transfers: Any, extra_info: Any = None) -> dict[str, list[bool]]:
        """Store pages of several pools: batch_set_v1 by pool.

        transfers   SGLang's, of pools, keys and indices
        extra_info  not used
        """
        return {
            each.name: self._set_pages(str(each.name), each.keys or [], each.host_indices)
            for each in transfers
        }

    def batch_get_v2(self, transfers: Any, extra_info: Any = None) -> dict[str, list[bool]]:
        """Load pages of several pools: batch_get_v1 by pool.

        transfers   SGLang's, of pools, keys and indices
        extra_info  not used
        """
        return {
            each.name: self._get_pages(str(each.name), each.keys or [], each.host_indices)
            for each in transfers
        }

    def batch_exists_v2(self, keys: list[str], pool_transfers: Any = None, extra_info: Any = None) -> Any:
        """Return SGLang's result: how many pages from the first one on all pools can restore.

        keys            of pages
        pool_transfers  SGLang's, of the further pools and what each needs
        extra_info      not used
        """
        count = self.batch_exists(keys)
        hits = {_KV: count} if count else {}
        lengths = set(range(1, count + 1))
        for each in pool_transfers or []:
            found = self._found(str(each.name), keys[:count])
            able = _restorable(found, each)
            if able:
                hits[each.name] = max(able)
            lengths &= able
        return _sglang.PoolTransferResult(max(lengths, default=0), hits, sorted(lengths))

    def _names(self, pool: str, keys: Sequence[str]) -> list[bytes]:
        """Of all parts of pages. Those of other layouts have the same bytes in another order."""
        host, parts = self._pools[pool]
        how = f"{host.layout}/{getattr(host, 'dtype', '')}/{self._identity}"
        return [key_of(f"{key}/{pool}/{part}of{parts}/{how}") for key in keys for part in range(parts)]

    def _found(self, pool: str, keys: Sequence[str]) -> list[bool]:
        items = self._blocks.exists(self._names(pool, keys), self._timeout)
        self._log("exists", items)
        return _whole(_is_true(items), self._pools[pool][1])

    def _set_pages(self, pool: str, keys: Sequence[str], indices: Any) -> list[bool]:
        return self._pages(pool, keys, indices, self._put, save=True)

    def _get_pages(self, pool: str, keys: Sequence[str], indices: Any) -> list[bool]:
        return self._pages(pool, keys, indices, self._get, save=False)

    def _pages(
        self,
        pool: str,
        keys: Sequence[str],
        indices: Any,
        move: Callable[[Sequence[bytes], Sequence[Span]], list[bool]],
        save: bool,
    ) -> list[bool]:
        host, parts = self._pools[pool]
        if len(indices) != len(keys) * host.page_size:
            raise ValueError(f"{len(keys)} pages have {len(indices)} indices")
        if not keys:
            return []
        if host.layout not in _IN_PLACE:
            return self._staged(pool, keys, indices, move, save)
        spans = list(zip(*host.get_page_buffer_meta(indices)))
        return _whole(move(self._names(pool, keys), spans), parts)

    def _staged(
        self,
        pool: str,
        keys: Sequence[str],
        indices: Any,
        move: Callable[[Sequence[bytes], Sequence[Span]], list[bool]],
        save: bool,
    ) -> list[bool]:
        """By a copy of each page."""
        host, done = self._pools[pool][0], []
        step = max(1, _STAGING // _span_of(host.get_dummy_flat_data_page())[1])
        for first in range(0, len(keys), step):
            some = keys[first : first + step]
            at = [indices[(first + i) * host.page_size] for i in range(len(some))]
            if save:
                pages = [host.get_data_page(index, flat=True).contiguous() for index in at]
            else:
                pages = [host.get_dummy_flat_data_page() for _ in some]
            moved = move(self._names(pool, some), [_span_of(page) for page in pages])
            for index, page, is_moved in zip(at, pages, moved):
                if is_moved and not save:
                    host.set_from_flat_data_page(index, page)
            done += moved
        return done

    # ---- Single values, without the pools ----

    def exists(self, key: str) -> bool:
        """Return whether the cache has a value.

        key  of the value
        """
        items = self._blocks.exists([self._value_name(key)], self._timeout)
        self._log("exists", items)
        return _is_true(items)[0]

    def set(self, key: str, value: Any = None, target_location: Any = None, target_sizes: Any = None) -> bool:
        """Store a value, and return whether the cache has it.

        key              of the value
        value            a tensor in host memory
        target_location  instead: its address
        target_sizes     and its length in bytes
        """
        sizes = None if target_sizes is None else [target_sizes]
        return self.batch_set([key], [value], [target_location], sizes)

    def batch_set(
        self, keys: list[str], values: Any = None, target_locations: Any = None, target_sizes: Any = None
    ) -> bool:
        """Store values, and return whether the cache has all of them.

        keys              of the values
        values            tensors in host memory
        target_locations  instead: their addresses
        target_sizes      and their lengths in bytes
        """
        if not keys:
            return True
        places = target_locations
        if target_sizes is None:
            places = [value.contiguous() for value in values or [] if value is not None]
        return all(self._put([self._value_name(key) for key in keys], _spans_of(places, target_sizes)))

    def get(self, key: str, target_location: Any = None, target_sizes: Any = None) -> Any:
        """Load a value. Return the tensor, or None; with an address whether the cache had it.

        key              of the value
        target_location  a tensor in host memory, or an address
        target_sizes     with an address: the length in bytes
        """
        sizes = None if target_sizes is None else [target_sizes]
        (found,) = self.batch_get([key], [target_location], sizes)
        return found

    def batch_get(self, keys: list[str], target_locations: Any = None, target_sizes: Any = None) -> list[Any]:
        """Load values. Return their tensors, or None; with addresses whether the cache had each.

        keys              of the values
        target_locations  tensors in host memory, or addresses
        target_sizes      with addresses: their lengths in bytes
        """
        if not keys:
            return []
        spans = _spans_of(target_locations, target_sizes)
        loaded = self._get([self._value_name(key) for key in keys], spans)
        if target_sizes is not None:
            return loaded
        return [tensor if is_loaded else None for tensor, is_loaded in zip(target_locations, loaded)]

    def _value_name(self, key: str) -> bytes:
        return key_of(f"{key}/value/{self._identity}")

    # ---- The cache ----

    def _put(self, names: Sequence[bytes], spans: Sequence[Span]) -> list[bool]:
        """A page is named by its tokens, so one that exists is the same."""
        items = self._blocks.put(names, spans, self._timeout, if_absent=True)
        failed = [item for item in items if item.error and item.error.code != Code.EEXIST]
        self._log("set", failed)
        return [item.error is None or item.error.code == Code.EEXIST for item in items]

    def _get(self, names: Sequence[bytes], spans: Sequence[Span]) -> list[bool]:
        items = self._blocks.get(names, spans, self._timeout)
        self._log("get", items)
        return [item.error is None and item.length == length for item, (_, length) in zip(items, spans)]

    def _log(self, operation: str, items: Sequence[Item]) -> None:
        """Logs one error of a call, unless the call before had the same."""
        errors = [item.error for item in items if item.error and item.error.code != Code.ENAME]
        why = str(errors[0]) if errors else ""
        if why and why != self._logged:
            _log.warning("%s: %s, and %d other blocks", operation, why, len(errors) - 1)
        self._logged = why


def _whole(parts_done: list[bool], parts: int) -> list[bool]:
    """Of each page, whether all of its parts are done."""
    return [all(parts_done[at : at + parts]) for at in range(0, len(parts_done), parts)]


def _restorable(found: list[bool], transfer: Any) -> set[int]:
    """The lengths of prefixes for which a further pool has what it needs."""
    count = len(found)
    policy = getattr(transfer.hit_policy, "value", transfer.hit_policy)
    if policy == "all_pages":
        return set(range(1, (found.index(False) if False in found else count) + 1))
    if policy == "trailing_pages":
        last = max(1, len(transfer.keys or []))
        return {end for end in range(1, count + 1) if all(found[max(0, end - last) : end])}
    raise NotImplementedError(f"haul.sglang: the policy '{policy}' of a pool is not supported")


def _spans_of(places: Any, lengths: Any) -> list[Span]:
    """Of tensors, or of addresses with their lengths."""
    if lengths is not None:
        return list(zip(places, lengths))
    if not all(hasattr(place, "data_ptr") for place in places or [None]):
        raise ValueError("haul.sglang: pass tensors, or addresses and lengths")
    return [_span_of(tensor) for tensor in places]
