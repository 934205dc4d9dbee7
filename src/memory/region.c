/* SPDX-License-Identifier: MIT */
#include "memory/region.h"

#include <errno.h>
#include <pthread.h>
#include <string.h>

#include "core/alloc.h"
#include "core/error.h"
#include "core/fork.h"
#include "core/sys.h"
#include "memory/imports.h"
#include "memory/pages.h"
#include "memory/pool.h"
#include "memory/staging.h"
#include "memory/ticket.h"

#define WARM_OBJECT ((size_t)1 << 20)

struct heap {
  void *node;
  _Atomic uint32_t refs; /* the opener's, and one for each region, pooled ones too */
  struct pool pool;
  pthread_mutex_t watch_lock; /* held during callbacks; no lock of this layer is taken after it */
  const struct heap_watcher *watcher; /* never NULL */
  struct list wrapped;                /* regions; watch_lock */
  pthread_mutex_t enroll_lock;        /* guards memory.enrolled_by of all regions */
  struct imports imports;
  struct staging staging;
};

static const struct heap_watcher nobody = {NULL, NULL, NULL, NULL};

__attribute__((cold)) int heap_open(void *node, size_t pool_bytes, struct heap **heap) {
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
  pthread_mutex_init(&made->enroll_lock, NULL);
  made->watcher = &nobody;
  list_init(&made->wrapped);
  imports_open(&made->imports, pool_bytes > 0);
  atomic_store(&made->refs, 1);
  pool_open(&made->pool, pool_bytes);
  staging_open(&made->staging, made);
  *heap = made;
  return 0;
}

static void heap_drop(struct heap *heap) {
  if (atomic_fetch_sub_explicit(&heap->refs, 1, memory_order_acq_rel) != 1)
    return;
  providers_stop();
  pthread_mutex_destroy(&heap->watch_lock);
  pthread_mutex_destroy(&heap->enroll_lock);
  alloc_free(heap);
}

__attribute__((cold)) void heap_watch(struct heap *heap, const struct heap_watcher *watcher) {
  pthread_mutex_lock(&heap->watch_lock);
  heap->watcher = watcher ? watcher : &nobody;
  pthread_mutex_unlock(&heap->watch_lock);
}

__attribute__((cold)) void heap_report_wrapped(struct heap *heap) {
  pthread_mutex_lock(&heap->watch_lock);
  list_each(item, &heap->wrapped) {
    const struct haul_region *region = list_entry(item, struct haul_region, wrapped);
    if (heap->watcher->wrapped)
      heap->watcher->wrapped(heap->node, &region->memory);
  }
  pthread_mutex_unlock(&heap->watch_lock);
}

static __attribute__((cold)) void note_wrapped(struct haul_region *region) {
  struct heap *heap = region->heap;
  pthread_mutex_lock(&heap->watch_lock);
  list_append(&heap->wrapped, &region->wrapped);
  if (heap->watcher->wrapped)
    heap->watcher->wrapped(heap->node, &region->memory);
  pthread_mutex_unlock(&heap->watch_lock);
}

/* `wrapped`: NULL, or the region's link in heap->wrapped. */
static __attribute__((cold)) void end_memory(struct heap *heap, struct memory *memory,
                                             struct list *wrapped) {
  if (!fork_is_child()) { /* in a child another thread's lock may stay locked */
    pthread_mutex_lock(&heap->watch_lock);
    if (wrapped)
      list_remove(wrapped);
    if (heap->watcher->dies)
      heap->watcher->dies(heap->node, memory);
    pthread_mutex_unlock(&heap->watch_lock);
  }
  memory_free(memory);
}

static void end_imports(struct heap *heap, struct list *dead) {
  for (struct list *item; (item = list_take(dead));) {
    struct import *import = list_entry(item, struct import, link);
    end_memory(heap, &import->memory, NULL);
    alloc_free(import);
  }
}

__attribute__((cold)) void heap_keeps(struct heap *heap) {
  pthread_mutex_lock(&heap->watch_lock);
  if (heap->watcher->keeps)
    heap->watcher->keeps(heap->node);
  pthread_mutex_unlock(&heap->watch_lock);
}

/* In a child the lock may stay locked, and the import belongs to the parent. */
static void leave_import(struct heap *heap, struct import *import) {
  struct list dead = LIST_INIT(dead);
  if (fork_is_child())
    return;
  bool first = imports_put(&heap->imports, import, &dead);
  end_imports(heap, &dead);
  if (first)
    heap_keeps(heap);
}

__attribute__((cold)) int64_t heap_expire(struct heap *heap, int64_t now) {
  struct list dead = LIST_INIT(dead);
  int64_t next = imports_expire(&heap->imports, now, &dead);
  int64_t other = staging_expire(&heap->staging, now);
  end_imports(heap, &dead);
  return other < next ? other : next;
}

struct staging *heap_staging(struct heap *heap) {
  return &heap->staging;
}

static __attribute__((noinline, cold)) void region_destroy(struct haul_region *region) {
  struct heap *heap = region->heap;
  if (region->memory.enrolled_by && !fork_is_child())
    memory_dismiss(&region->memory);
  if (region->import)
    leave_import(heap, region->import);
  else
    end_memory(heap, &region->memory, &region->wrapped);
  alloc_free(region);
  heap_drop(heap);
}

static void region_destroy_all(struct haul_region *list) {
  while (list) {
    struct haul_region *next = list->next;
    region_destroy(list);
    list = next;
  }
}

__attribute__((cold)) void heap_close(struct heap *heap) {
  if (!heap)
    return;
  struct list dead = LIST_INIT(dead);
  region_destroy_all(pool_empty(&heap->pool, true));
  if (!fork_is_child()) {
    staging_close(&heap->staging);
    imports_close(&heap->imports, &dead);
  }
  end_imports(heap, &dead);
  heap_drop(heap);
}

__attribute__((cold)) void heap_counters(struct heap *heap, struct heap_counters *counters) {
  pool_counters(&heap->pool, counters);
  counters->imports_shared = atomic_load(&heap->imports.shared);
  counters->imports_expired = atomic_load(&heap->imports.expired);
}

/* A region without memory; finish() makes it hold the heap. */
static struct haul_region *new_region(struct heap *heap) {
  struct haul_region *region = alloc_zero(1, sizeof *region);
  if (!region) {
    error_memory("a region");
    return NULL;
  }
  region->heap = heap;
  region->size_class = REGION_EXACT;
  list_init(&region->wrapped);
  atomic_store_explicit(&region->refs, 1, memory_order_relaxed);
  return region;
}

/* Completes the region if it got memory, else frees it. */
static int region_finish(struct haul_region *made, int status, struct haul_region **region) {
  if (status != 0) {
    alloc_free(made);
    return status;
  }
  atomic_fetch_add_explicit(&made->heap->refs, 1, memory_order_relaxed);
  made->generation = pool_born(&made->heap->pool);
  staging_prepare(&made->heap->staging, made->memory.place);
  *region = made;
  return 0;
}

/* Allocates a whole size class; only `length` when memory is short. */
static __attribute__((cold)) int fresh_memory(struct haul_region *region, struct haul_place place,
                                              size_t length, unsigned flags, uint8_t size_class) {
  size_t bytes = size_class == REGION_EXACT ? length : pool_class_bytes(size_class);
  int status = memory_alloc(place, bytes, flags, &region->memory);
  region->size_class = size_class;
  if (status == HAUL_ENOMEM || status == HAUL_ELIMIT) {
    pool_pause();
    region_destroy_all(pool_empty(&region->heap->pool, false));
    status = memory_alloc_wait(place, length, flags, &region->memory);
    pool_resume();
    region->size_class = REGION_EXACT;
  }
  region->memory.length = length;
  if (status == 0 && region->size_class != REGION_EXACT)
    pool_mark(region);
  return status;
}

/* A pooled region whose memory is gone is destroyed. */
static struct haul_region *pooled(struct heap *heap, struct haul_place place, bool private,
                                  uint8_t size_class) {
  struct haul_region *region;
  while ((region = pool_take(&heap->pool, place, private, size_class)) &&
         memory_check(&region->memory) != 0) {
    pool_died(&heap->pool);
    region_destroy(region);
  }
  return region;
}

static inline uint8_t class_for(const struct heap *heap, struct haul_place place, size_t length,
                                unsigned flags) {
  return length > 0 && !(flags & ~HAUL_REGION_PRIVATE) ? pool_class(&heap->pool, place, length)
                                                       : REGION_EXACT;
}

static __attribute__((noinline, cold)) int alloc_slowly(struct heap *heap, struct haul_place place,
                                                        size_t length, unsigned flags,
                                                        struct haul_region **region) {
  uint8_t size_class = class_for(heap, place, length, flags);
  struct haul_region *made = NULL;
  if (size_class != REGION_EXACT)
    made = pooled(heap, place, flags & HAUL_REGION_PRIVATE, size_class);
  if (made) {
    made->memory.length = length;
    *region = made;
    return 0;
  }
  made = new_region(heap);
  if (!made)
    return HAUL_ENOMEM;
  return region_finish(made, fresh_memory(made, place, length, flags, size_class), region);
}

/* Checks that the memory of a pooled region still exists. */
static __attribute__((noinline, cold)) int alloc_checked(struct heap *heap,
                                                         struct haul_region *kept, size_t length,
                                                         unsigned flags,
                                                         struct haul_region **region) {
  struct haul_place place = kept->memory.place;
  if (memory_check(&kept->memory) == 0) {
    kept->memory.length = length;
    *region = kept;
    return 0;
  }
  pool_died(&heap->pool);
  region_destroy(kept);
  return alloc_slowly(heap, place, length, flags, region);
}

/* Makes only tail calls, so that no register is spilled to the stack. */
int heap_alloc(struct heap *heap, struct haul_place place, size_t length, unsigned flags,
               struct haul_region **region) {
  uint8_t size_class = class_for(heap, place, length, flags);
  struct haul_region *kept =
      size_class == REGION_EXACT
          ? NULL
          : pool_take_quickly(&heap->pool, place, flags & HAUL_REGION_PRIVATE, size_class);
  if (__builtin_expect(!kept, 0))
    return alloc_slowly(heap, place, length, flags, region);
  if (kept->memory.provider->check)
    return alloc_checked(heap, kept, length, flags, region);
  kept->memory.length = length;
  *region = kept;
  return 0;
}

/* Linux before 5.14 does not know the advice. */
static __attribute__((cold)) int populate(const struct memory *memory) {
  if (madvise(memory->view, memory->length, MADV_POPULATE_WRITE) == 0)
    return 0;
  if (errno != EINVAL)
    return error_system(errno, NULL, "madvise");
  memset(memory->view, 0, memory->length);
  return 0;
}

__attribute__((cold)) int heap_warm(struct heap *heap, size_t bytes) {
  struct haul_region *list = NULL, *region;
  int code = 0;
  for (size_t done = 0; code == 0 && bytes - done >= WARM_OBJECT; done += WARM_OBJECT) {
    code = heap_alloc(heap, (struct haul_place){HAUL_HOST, 0}, WARM_OBJECT, 0, &region);
    if (code)
      break;
    region->next = list;
    list = region;
    code = populate(&region->memory);
  }
  while ((region = list)) {
    list = region->next;
    region_put(region);
  }
  return code;
}

__attribute__((cold)) int heap_wrap(struct heap *heap, void *address, size_t length,
                                    struct haul_region **region) {
  struct haul_region *made = new_region(heap);
  if (!made)
    return HAUL_ENOMEM;
  int status = region_finish(made, memory_wrap(address, length, &made->memory), region);
  if (status == 0)
    note_wrapped(made);
  return status;
}

__attribute__((cold)) int heap_wrap_file(struct heap *heap, int descriptor, uint64_t offset,
                                         size_t length, struct haul_region **region) {
  struct haul_region *made = new_region(heap);
  if (!made)
    return HAUL_ENOMEM;
  return region_finish(made, memory_wrap_file(descriptor, offset, length, &made->memory), region);
}

/* Adds the import, so that later tickets need no descriptor. */
static int import_anew(struct haul_region *made, const struct ticket *ticket, int descriptor) {
  static const uint8_t unknown[sizeof ticket->identity];
  int code = memory_import(ticket, descriptor, &made->memory);
  if (code || memcmp(ticket->identity, unknown, sizeof unknown) == 0)
    return code;
  made->import = imports_add(&made->heap->imports, ticket, &made->memory);
  if (made->import)
    return 0;
  memory_free(&made->memory);
  return HAUL_ENOMEM;
}

static int import_again(struct haul_region *made, const struct ticket *ticket) {
  struct import *import = imports_take(&made->heap->imports, ticket);
  if (!import)
    return haul_error_last()->code;
  int code = memory_check(&import->memory);
  if (code) {
    leave_import(made->heap, import);
    return code;
  }
  made->import = import;
  made->memory = import->memory;
  return 0;
}

__attribute__((cold)) int heap_import(struct heap *heap, const struct haul_ticket *packed,
                                      int descriptor, struct haul_region **region) {
  struct ticket ticket;
  int status = ticket_unpack(packed, &ticket);
  if (status != 0)
    return status;
  struct haul_region *made = new_region(heap);
  if (!made)
    return HAUL_ENOMEM;
  if (ticket.has_token)
    status = memory_ipc_import(&ticket, ticket.token, &made->memory);
  else
    status = descriptor < 0 ? import_again(made, &ticket) : import_anew(made, &ticket, descriptor);
  return region_finish(made, status, region);
}

__attribute__((cold)) void *region_hold_node(struct haul_region *region) {
  struct heap *heap = region->heap;
  pthread_mutex_lock(&heap->watch_lock);
  bool held = heap->watcher->hold && heap->watcher->hold(heap->node);
  pthread_mutex_unlock(&heap->watch_lock);
  return held ? heap->node : NULL;
}

/* A random identity: knowing it permits the use of an import without descriptor. */
static __attribute__((cold)) void identify(struct haul_region *region, uint8_t identity[16]) {
  static const uint8_t unknown[sizeof region->identity];
  pthread_mutex_lock(&region->heap->watch_lock);
  if (memcmp(region->identity, unknown, sizeof unknown) == 0)
    random_bytes(region->identity, sizeof region->identity);
  memcpy(identity, region->identity, sizeof region->identity);
  pthread_mutex_unlock(&region->heap->watch_lock);
}

__attribute__((cold)) int region_export(struct haul_region *region, unsigned rights,
                                        const struct haul_tensor *layout,
                                        struct haul_ticket *packed, int *descriptor) {
  struct ticket ticket;
  if (atomic_load(&region->released))
    return error_set(HAUL_ESTALE, 0, NULL, "export it before its release",
                     "the region was released");
  int status = layout ? tensor_check(layout, region->memory.length) : 0;
  if (status != 0)
    return status;
  atomic_store(&region->exported, true);
  status = memory_export(&region->memory, rights, &ticket, descriptor);
  if (status != 0)
    return status;
  if (layout && ticket.has_token)
    return error_set(HAUL_ENOTSUP, 0, NULL, "send the layout separately",
                     "a ticket with an IPC token has no room for a layout");
  ticket.generation = region->generation;
  identify(region, ticket.identity);
  ticket.has_layout = layout != NULL;
  if (layout)
    ticket.layout = *layout;
  ticket_pack(&ticket, packed);
  return 0;
}

__attribute__((cold)) int region_enroll(struct haul_region *region, uint16_t kind, bool wanted) {
  if (atomic_load(&region->released))
    return error_set(HAUL_ESTALE, 0, NULL, NULL, "the region was released");
  pthread_mutex_lock(&region->heap->enroll_lock);
  int status = wanted ? memory_enroll(&region->memory, kind) : memory_dismiss(&region->memory);
  if (status == 0)
    atomic_store(&region->exported, true);
  pthread_mutex_unlock(&region->heap->enroll_lock);
  return status;
}

int region_check(const struct haul_region *region, uint64_t offset, uint64_t length) {
  if (offset <= region->memory.length && length <= region->memory.length - offset)
    return 0;
  return error_set(HAUL_ERANGE, 0, NULL, "check the offset and the length",
                   "offset %llu + length %llu exceeds the region of %zu bytes",
                   (unsigned long long)offset, (unsigned long long)length, region->memory.length);
}

/* Is it released early or possibly in use by peers? */
static inline bool is_used(const struct haul_region *region) {
  return atomic_load_explicit(&region->released, memory_order_relaxed) ||
         atomic_load_explicit(&region->was_published, memory_order_relaxed);
}

static inline bool may_be_kept(const struct haul_region *region) {
  return region->size_class != REGION_EXACT &&
         !atomic_load_explicit(&region->exported, memory_order_acquire);
}

/* Resets the region for its next use, but for the fields that its allocation sets. */
static void region_wipe(struct haul_region *region) {
  atomic_store_explicit(&region->refs, 1, memory_order_relaxed);
  atomic_store_explicit(&region->names, 0, memory_order_relaxed);
  atomic_store_explicit(&region->released, false, memory_order_relaxed);
  atomic_store_explicit(&region->was_published, false, memory_order_relaxed);
}

/* Without references. */
static __attribute__((noinline, cold)) void region_end(struct haul_region *region) {
  struct pool *pool = &region->heap->pool;
  if (fork_is_child()) { /* another thread's lock may stay locked */
    region_destroy(region);
    return;
  }
  if (may_be_kept(region)) {
    region_wipe(region);
    region_destroy_all(pool_give(pool, region));
    return;
  }
  pool_died(pool);
  region_destroy(region);
}

/* Makes only tail calls, as heap_alloc. A forked child keeps the region in its own copy of the
 * pool. */
void region_put(struct haul_region *region) {
  if (!region)
    return;
  /* The only reference needs no atomic decrement. */
  if (__builtin_expect(atomic_load_explicit(&region->refs, memory_order_acquire) != 1, 0) &&
      atomic_fetch_sub_explicit(&region->refs, 1, memory_order_acq_rel) != 1)
    return;
  bool quick = atomic_load_explicit(&region->refs, memory_order_relaxed) == 1 &&
               may_be_kept(region) && !is_used(region);
  if (!quick || !pool_give_quickly(&region->heap->pool, region))
    region_end(region);
}
