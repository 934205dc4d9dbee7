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
  _Atomic uint32_t refs;   /* the caller's, and one for each use under way */
  _Atomic uint32_t names;  /* under how many names it is published */
  _Atomic bool released;   /* the caller gave it back: new uses fail with HAUL_ESTALE */
  _Atomic bool shown;      /* it was published once: a peer may still be at it */
  _Atomic bool handed_out; /* a descriptor, or pages, left this process: never pooled again */
  uint8_t size_class;      /* of the pool, or REGION_EXACT */
  uint16_t pool_slot;      /* the pool's, as the next one */
  uint64_t pool_bytes;
  uint64_t generation;      /* of this life of the object, unique in the heap */
  struct haul_region *next; /* the pool's */
  struct list wrapped;      /* the heap's, of memory that the caller gave */
  struct import *import;    /* what the memory is a copy of; NULL: it is this region's own */
  uint8_t identity[16];     /* zero until it is exported; the heap's lock */
};

#define REGION_EXACT 0xff

/* Bytes and counts since the heap was opened. */
struct heap_counters {
  uint64_t allocated, freed; /* regions handed out and given back */
  uint64_t hits, misses;     /* allocations served by the pool, and not */
  uint64_t pooled_bytes;     /* kept now */
  uint64_t trimmed;          /* freed to the system because the pool was full */
  uint64_t imports_shared;   /* imports without a descriptor */
  uint64_t imports_expired;  /* unmapped because nobody asked again */
};

/* `pool_bytes` bounds what is kept; 0: nothing. The heap starts the providers. It is counted: each
 * region holds it, and heap_close drops the opener's hold and frees what is pooled. */
int heap_open(void *node, size_t pool_bytes, struct heap **heap);
void heap_close(struct heap *heap);
/* Who wants to know of memory; in the thread that makes or ends it, without locks of the layers
 * above, one call at a time. */
struct heap_watcher {
  /* The caller gave it: its neighbours may follow. NULL: it is not told. */
  void (*wrapped)(void *node, const struct memory *memory);
  /* Right before it is freed or unmapped. Memory that goes to the pool lives on. */
  void (*dies)(void *node, const struct memory *memory);
  /* Something is kept though nobody uses it: heap_expire is to be called later. */
  void (*keeps)(void *node);
  /* Takes a reference to the node, unless it is about to be freed. NULL: it cannot be held. */
  bool (*hold)(void *node);
};
/* From now on. NULL: nobody any more, and no call is under way when this returns. */
void heap_watch(struct heap *heap, const struct heap_watcher *watcher);
/* The region's node, held as its watcher does it; NULL: it is gone. */
void *region_hold_node(struct haul_region *region);
/* Tells the watcher of all wrapped memory that there is. */
void heap_tell_wrapped(struct heap *heap);
/* Ends what was kept long enough; when to call it again, or HAUL_FOREVER. */
int64_t heap_expire(struct heap *heap, int64_t now);
/* For what the heap keeps: tells the watcher that it does. */
void heap_keeps(struct heap *heap);
/* The buffers of the heap's node (staging.h). */
struct staging *heap_staging(struct heap *heap);
/* A snapshot: the figures are kept per shard of the pool and summed here. */
void heap_counters(struct heap *heap, struct heap_counters *counters);

/* The public calls' work. The region comes with one reference. */
int heap_alloc(struct heap *heap, struct haul_place place, size_t length, unsigned flags,
               struct haul_region **region);
int heap_wrap(struct heap *heap, void *address, size_t length, struct haul_region **region);
int heap_wrap_file(struct heap *heap, int descriptor, uint64_t offset, size_t length,
                   struct haul_region **region);
int heap_import(struct heap *heap, const struct haul_ticket *ticket, int descriptor,
                struct haul_region **region);
int region_export(struct haul_region *region, unsigned rights, const struct haul_tensor *layout,
                  struct haul_ticket *ticket, int *descriptor);

/* Has the library of a kind know the region's memory, until the region ends, or no longer. */
int region_enroll(struct haul_region *region, uint16_t kind, bool wanted);

static inline void region_retain(struct haul_region *region) {
  atomic_fetch_add_explicit(&region->refs, 1, memory_order_relaxed);
}
/* The last one frees the memory or returns it to the pool. */
void region_put(struct haul_region *region);

/* HAUL_ERANGE with the detail unless offset + length lies within the region, without overflow. */
int region_check(const struct haul_region *region, uint64_t offset, uint64_t length);

#endif
