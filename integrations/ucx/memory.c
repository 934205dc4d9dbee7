/* SPDX-License-Identifier: MIT
 * Memory of UCX's operations: blocks of device memory, and registrations. haul keeps the pages of
 * a registration pinned, and UCX reports no end of memory that it did not register. So such memory
 * is registered for one operation. */
#include "module.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct {
  pthread_rwlock_t lock;      /* guards the blocks */
  struct gaudi_block *blocks; /* by start; none touches another */
  size_t count, room;
} state = {.lock = PTHREAD_RWLOCK_INITIALIZER};

/* The hook (hook.c), if preloaded */

/* The mapping of device memory that contains the range; false without one, or without the hook. */
static bool hook_find(uint64_t address, uint64_t length, uint64_t *start, uint64_t *end) {
  bool (*find)(uint64_t, uint64_t, uint64_t *, uint64_t *);
  *(void **)&find = dlsym(RTLD_DEFAULT, "haul_gaudihook_find");
  return find && find(address, length, start, end);
}

/* Reports each mapping, and later changes from the thread that makes them, with the hook's lock,
 * until it is called with NULL. */
static void hook_watch(void (*changed)(uint64_t start, uint64_t end, bool mapped)) {
  void (*watch)(void (*)(uint64_t, uint64_t, bool));
  *(void **)&watch = dlsym(RTLD_DEFAULT, "haul_gaudihook_watch");
  if (watch)
    watch(changed);
}

void hook_share_device(void) {
  int (*descriptor)(void);
  char text[16];
  *(void **)&descriptor = dlsym(RTLD_DEFAULT, "haul_gaudihook_descriptor");
  int fd = descriptor ? descriptor() : -1;
  if (fd < 0 || getenv("HAUL_GAUDI_FD"))
    return;
  snprintf(text, sizeof text, "%d", fd);
  setenv("HAUL_GAUDI_FD", text, 0);
}

/* UCP treats memory that is not in the cache as host memory, without a query to the domain. 1.13
 * has no type for it. The hook calls this too, with its lock. */
static void update_memtype(uint64_t start, uint64_t end, bool mapped) {
#if UCX_HAS_GAUDI
  ucs_memory_info_t ignored;
  if (!mapped) /* invalidates registration caches */
    ucm_vm_munmap((void *)(uintptr_t)start, (size_t)(end - start));
  /* The first lookup creates the cache; without a cache UCP queries each domain. */
  if (ucs_memtype_cache_lookup((void *)(uintptr_t)start, 1, &ignored) == UCS_ERR_UNSUPPORTED)
    return;
  if (mapped)
    ucs_memtype_cache_update((void *)(uintptr_t)start, (size_t)(end - start), GAUDI_MEMORY_TYPE,
                             UCS_SYS_DEVICE_ID_UNKNOWN, UCS_MEM_FLAG_REGISTRABLE);
  else
    ucs_memtype_cache_remove((void *)(uintptr_t)start, (size_t)(end - start));
#else
  (void)start, (void)end, (void)mapped;
#endif
}

void gaudi_memory_open(void) {
  state.count = 0;
  hook_watch(update_memtype);
}

void gaudi_memory_close(void) {
  hook_watch(NULL);
  free(state.blocks);
  state.blocks = NULL;
  state.count = state.room = 0;
}

/* With the lock: the index of the first block that ends after the address. */
static size_t search(uint64_t address) {
  size_t low = 0, high = state.count;
  while (low < high) {
    size_t middle = (low + high) / 2;
    if (state.blocks[middle].end > address)
      high = middle;
    else
      low = middle + 1;
  }
  return low;
}

static bool grow(void) {
  if (state.count < state.room)
    return true;
  size_t room = state.room ? 2 * state.room : 64;
  struct gaudi_block *blocks = realloc(state.blocks, room * sizeof *blocks);
  if (!blocks)
    return false;
  state.blocks = blocks;
  state.room = room;
  return true;
}

static bool add_block(struct gaudi_block block) {
  pthread_rwlock_wrlock(&state.lock);
  bool added = grow();
  if (added) {
    size_t at = search(block.start);
    memmove(state.blocks + at + 1, state.blocks + at, (state.count - at) * sizeof block);
    state.blocks[at] = block;
    state.count++;
  }
  pthread_rwlock_unlock(&state.lock);
  return added;
}

static void remove_block(uint64_t start) {
  pthread_rwlock_wrlock(&state.lock);
  size_t at = search(start);
  if (at < state.count && state.blocks[at].start == start) {
    state.count--;
    memmove(state.blocks + at, state.blocks + at + 1, (state.count - at) * sizeof state.blocks[0]);
  }
  pthread_rwlock_unlock(&state.lock);
}

static bool find_block(uint64_t start, uint64_t length, struct gaudi_block *block) {
  pthread_rwlock_rdlock(&state.lock);
  size_t at = search(start);
  bool found =
      at < state.count && state.blocks[at].start <= start && length <= state.blocks[at].end - start;
  if (found)
    *block = state.blocks[at];
  pthread_rwlock_unlock(&state.lock);
  return found;
}

/* A mapping of the framework, if the hook saw it. haul knows its device. */
static bool find_mapping(uint64_t start, uint64_t length, struct gaudi_block *block) {
  haul_region *region;
  if (!hook_find(start, length, &block->start, &block->end) ||
      haul_region_wrap(gaudi_node(), (void *)(uintptr_t)block->start,
                       (size_t)(block->end - block->start), &region))
    return false;
  struct haul_place place = haul_region_place(region);
  haul_region_release(region);
  block->device = place.device;
  block->region = NULL;
  return place.kind == HAUL_GAUDI;
}

ucs_status_t gaudi_memory_find(const void *address, size_t length, struct gaudi_block *block) {
  uint64_t start = (uintptr_t)address, least = length ? length : 1;
  if (find_block(start, least, block) || find_mapping(start, least, block))
    return UCS_OK;
  return UCS_ERR_INVALID_ADDR;
}

ucs_status_t gaudi_memory_register(void *address, size_t length, ucs_log_level_t level,
                                   struct gaudi_memh **out) {
  struct gaudi_memh *memh = calloc(1, sizeof *memh);
  if (!memh)
    return UCS_ERR_NO_MEMORY;
  if (haul_region_wrap(gaudi_node(), address, length, &memh->region)) {
    free(memh);
    return gaudi_failed("cannot register memory", level);
  }
  memh->start = (uintptr_t)address;
  memh->length = length;
  memh->place = haul_region_place(memh->region);
  *out = memh;
  return UCS_OK;
}

/* Whole pages, like other drivers: UCP registers ranges aligned to 16 bytes, and importers of the
 * dma-buf to pages. */
static size_t in_pages(size_t length) {
  size_t page = ucs_get_page_size();
  return length > SIZE_MAX - page ? length : (length + page - 1) / page * page;
}

ucs_status_t gaudi_memory_alloc(uint16_t device, size_t *length, void **address,
                                struct gaudi_memh **out) {
  const struct haul_place place = {HAUL_GAUDI, device};
  struct gaudi_memh *memh = calloc(1, sizeof *memh);
  if (!memh)
    return UCS_ERR_NO_MEMORY;
  if (haul_region_alloc(gaudi_node(), place, in_pages(*length), 0, &memh->region)) {
    free(memh);
    return gaudi_failed("cannot allocate device memory", UCS_LOG_LEVEL_DEBUG);
  }
  memh->start = (uintptr_t)haul_region_address(memh->region);
  memh->length = *length = haul_region_length(memh->region);
  memh->place = place;
  memh->allocated = true;
  if (!add_block((struct gaudi_block){memh->start, memh->start + memh->length, place.device,
                                      memh->region})) {
    haul_region_release(memh->region);
    free(memh);
    return UCS_ERR_NO_MEMORY;
  }
  update_memtype(memh->start, memh->start + memh->length, true);
  *address = (void *)(uintptr_t)memh->start;
  *out = memh;
  return UCS_OK;
}

void gaudi_memory_free(struct gaudi_memh *memh) {
  char name[GAUDI_NAME_ROOM];
  if (memh->id)
    haul_region_unpublish(memh->region, gaudi_name_of(memh->id, name));
  if (memh->allocated) {
    update_memtype(memh->start, memh->start + memh->length, false);
    remove_block(memh->start);
  }
  haul_region_release(memh->region);
  free(memh);
}

ucs_status_t gaudi_part_acquire(const void *address, size_t length, const struct gaudi_memh *memh,
                                struct gaudi_part *part) {
  uint64_t start = (uintptr_t)address;
  struct gaudi_block block;
  *part = (struct gaudi_part){0};
  if (memh) {
    if (start < memh->start || length > memh->length ||
        start - memh->start > memh->length - length) {
      ucs_error("gaudi: %p+%zu exceeds the memory of its handle", address, length);
      return UCS_ERR_INVALID_PARAM;
    }
    part->region = memh->region;
    part->offset = start - memh->start;
    return UCS_OK;
  }
  if (find_block(start, length, &block)) {
    part->region = block.region;
    part->offset = start - block.start;
    return UCS_OK;
  }
  if (haul_region_wrap(gaudi_node(), (void *)(uintptr_t)address, length, &part->own))
    return gaudi_failed("cannot register memory", UCS_LOG_LEVEL_ERROR);
  part->region = part->own;
  return UCS_OK;
}

ucs_status_t gaudi_target_acquire(uint64_t address, uct_rkey_t rkey, size_t length,
                                  struct gaudi_part *part) {
  const struct gaudi_key *key = rkey == UCT_INVALID_RKEY ? NULL : (const struct gaudi_key *)rkey;
  if (key && !(key->process == gaudi_process() && gaudi_key_covers(key, address, length))) {
    ucs_error("gaudi: the remote key does not cover 0x%lx+%zu", (unsigned long)address, length);
    return UCS_ERR_INVALID_ADDR;
  }
  return gaudi_part_acquire((void *)(uintptr_t)address, length, NULL, part);
}

void gaudi_part_release(struct gaudi_part *part) {
  haul_region_release(part->own);
  *part = (struct gaudi_part){0};
}
