/* SPDX-License-Identifier: MIT
 * Host pages that a device has pinned and mapped for DMA. Pinning 4 MiB takes as long as copying
 * it, so mappings are kept until the memory ends (gaudi_forget), another one needs their room, or
 * the device is closed. As with a NIC's registrations, the application keeps a region's pages in
 * place while the region lives. Callers hold the engine's lock, except of gaudi_forget, which
 * takes it. */
#include <errno.h>
#include <sys/utsname.h>

#include "core/alloc.h"
#include "core/fork.h"
#include "core/sys.h"
#include "memory/gaudi/gaudi.h"
#include "memory/pages.h"

static uint64_t page_floor(uint64_t address) {
  return address & -(uint64_t)page_size();
}

static uint64_t page_ceiling(uint64_t address) {
  return page_floor(address + page_size() - 1);
}

static void destroy(struct gaudi_device *device, struct gaudi_mapping *mapping) {
  gaudi_driver->memory_unmap(atomic_load(&device->fd), mapping->at);
  alloc_free(mapping);
}

/* No copy finds it any more; the last one that uses it destroys it. */
static void retire(struct gaudi_device *device, struct gaudi_mapping *mapping) {
  struct gaudi_engine *engine = &device->engine;
  ranges_remove(&engine->mapped, &mapping->range);
  list_remove(&mapping->link);
  atomic_fetch_sub(&engine->mapped_bytes, range_length(&mapping->range));
  mapping->kept = false;
  if (mapping->users == 0)
    destroy(device, mapping);
}

static void retire_all(struct gaudi_device *device, uint64_t start, uint64_t end) {
  struct range *range = ranges_first_beyond(&device->engine.mapped, 0, start);
  while (range && range->start < end) {
    struct range *next = range->after;
    retire(device, list_entry(range, struct gaudi_mapping, range));
    range = next;
  }
}

/* Retires unused mappings, the longest unused first, until at most `bytes` are kept. */
static void shrink(struct gaudi_device *device, uint64_t bytes) {
  struct gaudi_engine *engine = &device->engine;
  struct list *next;
  for (struct list *item = engine->kept.next;
       item != &engine->kept && atomic_load(&engine->mapped_bytes) > bytes; item = next) {
    struct gaudi_mapping *mapping = list_entry(item, struct gaudi_mapping, link);
    next = item->next;
    if (mapping->users == 0)
      retire(device, mapping);
  }
}

/* Before Linux 5.12 the parent's first write after a fork may give it a copy of a pinned page,
 * while the device keeps the original. */
static bool may_keep(void) {
  struct utsname kernel;
  return !kernel_is_before("5.12", &kernel);
}

static void keep(struct gaudi_device *device, struct gaudi_mapping *mapping) {
  struct gaudi_engine *engine = &device->engine;
  uint64_t bytes = range_length(&mapping->range);
  retire_all(device, mapping->range.start, mapping->range.end);
  shrink(device, GAUDI_KEPT_BYTES - bytes);
  ranges_add(&engine->mapped, &mapping->range);
  list_append(&engine->kept, &mapping->link);
  atomic_fetch_add(&engine->mapped_bytes, bytes);
  mapping->kept = true;
}

/* 0 or an errno. Pinned pages of others may leave no room. */
static int map(struct gaudi_device *device, struct gaudi_mapping *mapping) {
  void *start = (void *)(uintptr_t)mapping->range.start;
  for (bool again = false;; again = true) {
    errno = 0;
    mapping->at = gaudi_driver->host_memory_map(atomic_load(&device->fd), start, 0,
                                                range_length(&mapping->range));
    if (mapping->at != 0)
      return 0;
    if (errno != ENOMEM || again || atomic_load(&device->engine.mapped_bytes) == 0)
      return errno ? errno : EFAULT;
    shrink(device, 0);
  }
}

/* The pages of the slice that holds `address`, within the memory. */
static int make(struct gaudi_device *device, const struct memory *host, uint64_t address,
                struct gaudi_mapping **out) {
  uint64_t slice = address - address % GAUDI_SLICE, view = (uintptr_t)host->view;
  uint64_t start = page_floor(view), end = page_ceiling(view + host->length);
  struct gaudi_mapping *mapping = alloc_zero(1, sizeof *mapping);
  if (!mapping)
    return ENOMEM;
  mapping->range.start = start > slice ? start : slice;
  mapping->range.end = end < slice + GAUDI_SLICE ? end : slice + GAUDI_SLICE;
  int system = map(device, mapping);
  if (system) {
    alloc_free(mapping);
    return system;
  }
  if (may_keep())
    keep(device, mapping);
  *out = mapping;
  return 0;
}

int gaudi_mapping_get(struct gaudi_device *device, const struct memory *host, uint64_t address,
                      uint64_t bytes, struct gaudi_mapping **out) {
  struct gaudi_engine *engine = &device->engine;
  struct range *range = ranges_cover(&engine->mapped, 0, address, address + bytes);
  int system = 0;
  if (range) {
    *out = list_entry(range, struct gaudi_mapping, range);
    list_remove(&(*out)->link);
    list_append(&engine->kept, &(*out)->link);
  } else {
    system = make(device, host, address, out);
  }
  if (system == 0)
    (*out)->users++;
  return system;
}

void gaudi_mapping_put(struct gaudi_device *device, struct gaudi_mapping *mapping) {
  if (--mapping->users == 0 && !mapping->kept)
    destroy(device, mapping);
}

void gaudi_mappings_close(struct gaudi_device *device) {
  retire_all(device, 0, UINT64_MAX);
}

void gaudi_forget(const struct memory *host) {
  uint64_t view = (uintptr_t)host->view;
  struct gaudi_device *device;
  for (unsigned i = 0; !fork_is_child() && (device = gaudi_device_known(i)); i++) {
    if (atomic_load(&device->engine.mapped_bytes) == 0)
      continue;
    pthread_mutex_lock(&device->engine.lock);
    retire_all(device, page_floor(view), page_ceiling(view + host->length));
    pthread_mutex_unlock(&device->engine.lock);
  }
}
