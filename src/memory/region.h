/* SPDX-License-Identifier: MIT
 * Regions, and the heap of a node that they come from. */
#ifndef HAUL_MEMORY_REGION_H
#define HAUL_MEMORY_REGION_H

#include <stdatomic.h>

#include "core/list.h"
#include "memory/provider.h"

struct heap;
struct import;
struct staging;

struct haul_region {
  struct memory memory;
  struct heap *heap;
  _Atomic uint32_t refs;      /* the caller's, and one for each operation */
  _Atomic uint32_t names;     /* names under which it is published */
  _Atomic bool released;      /* by the caller: new operations fail with HAUL_ESTALE */
  _Atomic bool was_published; /* peers may still access it */
  _Atomic bool exported;      /* a descriptor or pages left this process: never pooled again */
  uint8_t size_class;         /* of the pool, or REGION_EXACT */
  uint16_t pool_slot;         /* the pool's, like the next two */
  uint64_t pool_bytes;
  uint64_t generation;      /* unique in the heap; a pooled region gets a new one */
  struct haul_region *next; /* in a list of the pool */
  struct list wrapped;      /* in the heap's list of wrapped regions */
  /* Device memory at the node's NICs (rdma): bits of those that refused to register it, from bit 16
   * on of those that were tried, and from bit 32 on the number of the reason; when to try again, 0:
   * not tried yet. */
  _Atomic uint64_t refused;
  _Atomic int64_t retry_at;
  struct import *import; /* the shared import; NULL: the memory is this region's own */
  uint8_t identity[16];  /* zero until it is exported; the heap's lock */
};

#define REGION_EXACT 0xff

/* Bytes and counts since the heap was opened. */
struct heap_counters {
  uint64_t allocated, freed; /* regions handed out and given back */
  uint64_t hits, misses;     /* allocations served by the pool, and not */
  uint64_t pooled_bytes;     /* in the pool now */
  uint64_t trimmed;          /* freed to the system because the pool was full */
  uint64_t imports_shared;   /* imports without a descriptor */
  uint64_t imports_expired;  /* unmapped after IMPORTS_KEEP_NS without use */
};

/* `pool_bytes` bounds the pool; 0: no pool, and no unused imports are kept. Starts the providers.
 * Each region holds a reference to the heap; heap_close drops the opener's and frees the pool. */
int heap_open(void *node, size_t pool_bytes, struct heap **heap);
void heap_close(struct heap *heap);
/* Fills the pool with this many bytes of shareable host memory in objects of 1 MiB, whose pages are
 * there: no page fault delays their first use. Takes some 0.1 ms (shared huge pages) to 1 ms for
 * each. HAUL_ENOMEM, HAUL_ELIMIT. */
int heap_warm(struct heap *heap, size_t bytes);
/* Callbacks about memory, in the thread that makes or frees it, without locks of the layers above,
 * one at a time. NULL: not called. */
struct heap_watcher {
  /* Memory was wrapped; adjacent memory may follow. */
  void (*wrapped)(void *node, const struct memory *memory);
  /* Memory is about to be freed or unmapped. Pooled memory stays alive. */
  void (*dies)(void *node, const struct memory *memory);
  /* An unused import or buffer is kept: heap_expire must be called later. */
  void (*keeps)(void *node);
  /* Takes a reference to the node; false: it is being freed. */
  bool (*hold)(void *node);
};
/* NULL: none; no callback is running when this returns. */
void heap_watch(struct heap *heap, const struct heap_watcher *watcher);
/* The region's node with a reference; NULL: it is being freed. */
void *region_hold_node(struct haul_region *region);
/* Calls `wrapped` for each wrapped region. */
void heap_report_wrapped(struct heap *heap);
/* Frees expired imports and buffers. Returns when to call it again, or HAUL_FOREVER. */
int64_t heap_expire(struct heap *heap, int64_t now);
/* Calls `keeps`; for the imports and the staging pool. */
void heap_keeps(struct heap *heap);
/* The heap's staging pool (staging.h). */
struct staging *heap_staging(struct heap *heap);
/* Sums the counters of the pool's shards. */
void heap_counters(struct heap *heap, struct heap_counters *counters);

/* Behind the public calls. The region has one reference. */
int heap_alloc(struct heap *heap, struct haul_place place, size_t length, unsigned flags,
               struct haul_region **region);
int heap_wrap(struct heap *heap, void *address, size_t length, struct haul_region **region);
int heap_wrap_file(struct heap *heap, int descriptor, uint64_t offset, size_t length,
                   struct haul_region **region);
int heap_import(struct heap *heap, const struct haul_ticket *ticket, int descriptor,
                struct haul_region **region);
int region_export(struct haul_region *region, unsigned rights, const struct haul_tensor *layout,
                  struct haul_ticket *ticket, int *descriptor);

/* Registers the region's memory with the library of a kind until the region ends, or unregisters
 * it. */
int region_enroll(struct haul_region *region, uint16_t kind, bool wanted);

static inline void region_retain(struct haul_region *region) {
  atomic_fetch_add_explicit(&region->refs, 1, memory_order_relaxed);
}
/* Drops a reference; the last one returns the memory to the pool or frees it. */
void region_put(struct haul_region *region);

/* HAUL_ERANGE with the detail unless offset + length lies within the region, without overflow. */
int region_check(const struct haul_region *region, uint64_t offset, uint64_t length);

#endif
