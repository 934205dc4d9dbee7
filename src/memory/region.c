/* SPDX-License-Identifier: MIT */
#include "memory/region.h"

#include <pthread.h>
#include <stdio.h>

#include "core/alloc.h"
#include "core/error.h"
#include "core/fork.h"
#include "memory/pool.h"
#include "memory/ticket.h"

struct heap {
  void *node;
  _Atomic uint32_t refs; /* the opener, and every region that there is, in use or pooled */
  struct pool pool;
  pthread_mutex_t watch_lock; /* held while it is called; nothing of this layer is taken after it */
  const struct heap_watcher *watcher; /* never NULL */
  struct list wrapped;                /* regions; watch_lock */
};

/* ---- the heap ---- */

static const struct heap_watcher nobody = {NULL, NULL};

int heap_open(void *node, size_t pool_bytes, struct heap **heap) {
  struct heap *made = alloc_zero(1, sizeof *made);
  if (!made)
    return error_memory("the heap of regions");
  int status = providers_start();
  if (status != 0) {
    alloc_free(made);
    return status;
  }
  made->node = node;
  pthread_mutex_init(&made->watch_lock, NULL);
  made->watcher = &nobody;
  list_init(&made->wrapped);
  atomic_store(&made->refs, 1);
  pool_open(&made->pool, pool_bytes);
  *heap = made;
  return 0;
}

static void heap_drop(struct heap *heap) {
  if (atomic_fetch_sub_explicit(&heap->refs, 1, memory_order_acq_rel) != 1)
    return;
  providers_stop();
  pthread_mutex_destroy(&heap->watch_lock);
  alloc_free(heap);
}

void heap_watch(struct heap *heap, const struct heap_watcher *watcher) {
  pthread_mutex_lock(&heap->watch_lock);
  heap->watcher = watcher ? watcher : &nobody;
  pthread_mutex_unlock(&heap->watch_lock);
}

void heap_tell_wrapped(struct heap *heap) {
  pthread_mutex_lock(&heap->watch_lock);
  list_each(item, &heap->wrapped) {
    const struct haul_region *region = list_entry(item, struct haul_region, wrapped);
    if (heap->watcher->wrapped)
      heap->watcher->wrapped(heap->node, &region->memory);
  }
  pthread_mutex_unlock(&heap->watch_lock);
}

static void note_wrapped(struct haul_region *region) {
  struct heap *heap = region->heap;
  pthread_mutex_lock(&heap->watch_lock);
  list_append(&heap->wrapped, &region->wrapped);
  if (heap->watcher->wrapped)
    heap->watcher->wrapped(heap->node, &region->memory);
  pthread_mutex_unlock(&heap->watch_lock);
}

static void destroy(struct haul_region *region) {
  struct heap *heap = region->heap;
  if (!fork_is_child()) { /* there the lock may be held by a thread that is not here */
    pthread_mutex_lock(&heap->watch_lock);
    list_remove(&region->wrapped);
    if (heap->watcher->dies)
      heap->watcher->dies(heap->node, &region->memory);
    pthread_mutex_unlock(&heap->watch_lock);
  }
  memory_free(&region->memory);
  alloc_free(region);
  heap_drop(heap);
}

static void destroy_all(struct haul_region *list) {
  while (list) {
    struct haul_region *next = list->next;
    destroy(list);
    list = next;
  }
}

void heap_close(struct heap *heap) {
  if (!heap)
    return;
  destroy_all(pool_empty(&heap->pool, true));
  heap_drop(heap);
}

void heap_counters(struct heap *heap, struct heap_counters *counters) {
  pool_counters(&heap->pool, counters);
}

/* ---- making regions ---- */

/* An object without memory yet; `heap` is held once there is some. */
static struct haul_region *new_region(struct heap *heap) {
  struct haul_region *region = alloc_zero(1, sizeof *region);
  if (!region) {
    error_memory("a region");
    return NULL;
  }
  region->heap = heap;
  region->node = heap->node;
  region->size_class = REGION_EXACT;
  list_init(&region->wrapped);
  atomic_store_explicit(&region->refs, 1, memory_order_relaxed);
  return region;
}

/* Hands the region out if its memory was got, and else ends it. */
static int finish(struct haul_region *made, int status, struct haul_region **region) {
  if (status != 0) {
    alloc_free(made);
    return status;
  }
  atomic_fetch_add_explicit(&made->heap->refs, 1, memory_order_relaxed);
  made->generation = pool_born(&made->heap->pool);
  *region = made;
  return 0;
}

/* A whole class where it can be, and what was asked for where memory is short. */
static int fresh_memory(struct haul_region *region, struct haul_place place, size_t length,
                        unsigned flags, uint8_t size_class) {
  size_t bytes = size_class == REGION_EXACT ? length : pool_class_bytes(size_class);
  int status = memory_alloc(place, bytes, flags, &region->memory);
  region->size_class = size_class;
  if (status == HAUL_ENOMEM || status == HAUL_ELIMIT) {
    destroy_all(pool_empty(&region->heap->pool, false));
    status = memory_alloc(place, length, flags, &region->memory);
    region->size_class = REGION_EXACT;
  }
  region->memory.length = length;
  return status;
}

int heap_alloc(struct heap *heap, struct haul_place place, size_t length, unsigned flags,
               struct haul_region **region) {
  uint8_t size_class = REGION_EXACT;
  if (length > 0 && !(flags & ~HAUL_REGION_PRIVATE))
    size_class = pool_class(&heap->pool, place, length);
  struct haul_region *made = NULL;
  if (size_class != REGION_EXACT)
    made = pool_take(&heap->pool, place, flags & HAUL_REGION_PRIVATE, size_class);
  if (made) {
    made->memory.length = length;
    made->memory.stage = false;
    *region = made;
    return 0;
  }
  made = new_region(heap);
  if (!made)
    return HAUL_ENOMEM;
  return finish(made, fresh_memory(made, place, length, flags, size_class), region);
}

int heap_stage(struct heap *heap, size_t length, struct haul_region **region) {
  int code =
      heap_alloc(heap, (struct haul_place){HAUL_HOST, 0}, length, HAUL_REGION_PRIVATE, region);
  if (code == 0)
    (*region)->memory.stage = true;
  return code;
}

int heap_wrap(struct heap *heap, void *address, size_t length, struct haul_region **region) {
  struct haul_region *made = new_region(heap);
  if (!made)
    return HAUL_ENOMEM;
  int status = finish(made, memory_wrap(address, length, &made->memory), region);
  if (status == 0)
    note_wrapped(made);
  return status;
}

int heap_import(struct heap *heap, const struct haul_ticket *packed, int descriptor,
                struct haul_region **region) {
  struct ticket ticket;
  int status = ticket_unpack(packed, &ticket);
  if (status != 0)
    return status;
  struct haul_region *made = new_region(heap);
  if (!made)
    return HAUL_ENOMEM;
  return finish(made, memory_import(&ticket, descriptor, &made->memory), region);
}

/* ---- using them ---- */

int region_export(struct haul_region *region, unsigned rights, const struct haul_tensor *layout,
                  struct haul_ticket *packed, int *descriptor) {
  struct ticket ticket;
  if (atomic_load(&region->released))
    return error_set(HAUL_ESTALE, 0, NULL, "the region was released|export it before that");
  int status = layout ? tensor_check(layout, region->memory.length) : 0;
  if (status != 0)
    return status;
  atomic_store(&region->handed_out, true);
  status = memory_export(&region->memory, rights, &ticket, descriptor);
  if (status != 0)
    return status;
  ticket.generation = region->generation;
  ticket.has_layout = layout != NULL;
  if (layout)
    ticket.layout = *layout;
  ticket_pack(&ticket, packed);
  return 0;
}

int region_check(const struct haul_region *region, uint64_t offset, uint64_t length) {
  if (offset <= region->memory.length && length <= region->memory.length - offset)
    return 0;
  char object[64];
  snprintf(object, sizeof object, "%llu+%llu", (unsigned long long)offset,
           (unsigned long long)length);
  return error_set(HAUL_ERANGE, 0, object,
                   "the range ends outside the region of %zu bytes|check "
                   "offset and length",
                   region->memory.length);
}

/* ---- the end of a life ---- */

/* Makes the object as new, but for what the next life sets. */
static void wipe(struct haul_region *region) {
  atomic_store_explicit(&region->refs, 1, memory_order_relaxed);
  atomic_store_explicit(&region->names, 0, memory_order_relaxed);
  atomic_store_explicit(&region->released, false, memory_order_relaxed);
}

void region_put(struct haul_region *region) {
  if (!region)
    return;
  /* Who holds the only reference needs no locked instruction to give it back. */
  if (atomic_load_explicit(&region->refs, memory_order_acquire) != 1 &&
      atomic_fetch_sub_explicit(&region->refs, 1, memory_order_acq_rel) != 1)
    return;
  struct pool *pool = &region->heap->pool;
  if (fork_is_child()) { /* the pool's locks may be held by threads that are not here */
    destroy(region);
    return;
  }
  if (region->size_class != REGION_EXACT && !atomic_load(&region->handed_out)) {
    wipe(region);
    if (pool_give(pool, region))
      return;
  }
  pool_died(pool);
  destroy(region);
}
