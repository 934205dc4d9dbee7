/* SPDX-License-Identifier: MIT
 * The device allocates pages of hundreds of MiB. haul maps each page once, cuts it into blocks, and
 * frees empty pages. The driver does not unmap a page while a dma-buf of it is open (Linux:
 * unmap_device_va, EINVAL). Such a page stays for later allocations, and each free tries again. */
#include <errno.h>
#include <fcntl.h>
#include <string.h>

#include "core/alloc.h"
#include "core/error.h"
#include "core/fork.h"
#include "core/list.h"
#include "core/ranges.h"
#include "memory/gaudi/gaudi.h"
#include "memory/gaudi/suballoc.h"

/* The driver's device addresses of Gaudi2 (VA_HBM_SPACE_START, _END), which are no CPU addresses.
 * Each device starts at the same one, so haul requests another part for each: an address belongs to
 * one device. */
#define SPACE_START ((uint64_t)0x1001 << 48)
#define SPACE_END   ((uint64_t)0x1002 << 48)
#define SPACE_SHARE ((uint64_t)1 << 40) /* per device; 16 parts end before the driver's own */
#define PLACE_TRIES 8u

/* A mapped allocation of the driver. */
struct gaudi_page {
  struct gaudi_page *next;
  uint64_t handle, base;
  struct suballoc parts;
  bool orphan; /* its device was closed while blocks are in use */
};

/* State of a memory. Framework memory has no page. */
struct block {
  struct range range; /* in `blocks` until the owner frees it */
  struct gaudi_device *device;
  struct gaudi_page *page;
  bool private;
  _Atomic uint32_t alive; /* for blocks that wrap this one */
  _Atomic uint32_t refs;  /* its memory, and blocks that wrap it */
};

static struct ranges blocks; /* under gaudi_lock */

static bool is_device_address(uint64_t address) {
  return address >= SPACE_START && address < SPACE_END;
}

/* pages; all with gaudi_lock */

static int no_memory(const struct gaudi_device *device, uint64_t length, int system) {
  const char *object = error_object("gaudi:%u", device->number);
  if (system && system != ENOMEM)
    return error_system(system, object, "hlthunk_device_memory_alloc");
  return error_set(HAUL_ENOMEM, system, object,
                   "release regions; a framework on the device may have reserved all of it",
                   "the device has no room for %llu bytes more, which take whole pages of %llu",
                   (unsigned long long)length, (unsigned long long)device->page);
}

/* Does the range overlap a page of any device except this one, which may be NULL? */
static bool overlaps_page(const struct gaudi_device *except, uint64_t base, uint64_t length) {
  const struct gaudi_device *device;
  for (unsigned i = 0; (device = gaudi_device_at(i)); i++)
    for (const struct gaudi_page *page = device->pages; page && device != except; page = page->next)
      if (base < page->base + page->parts.length && page->base < base + length)
        return true;
  return false;
}

/* The driver ignores a hint that is no multiple of the page. */
static uint64_t next_hint(struct gaudi_device *device, uint64_t length) {
  uint64_t at = SPACE_START + (device->number + 1) * SPACE_SHARE;
  if (device->hints + length > SPACE_SHARE)
    device->hints = 0;
  at += device->hints;
  device->hints += length;
  return (at + device->page - 1) / device->page * device->page;
}

static int map_page(struct gaudi_device *device, struct gaudi_page *page, uint64_t length) {
  int fd = atomic_load(&device->fd);
  for (unsigned i = 0; i < PLACE_TRIES; i++) {
    errno = 0;
    page->base = gaudi_driver->device_memory_map(fd, page->handle, next_hint(device, length));
    if (page->base == 0)
      return error_system(errno ? errno : EIO, "gaudi", "hlthunk_device_memory_map");
    if (!overlaps_page(device, page->base, length))
      return 0;
    gaudi_driver->memory_unmap(fd, page->base);
  }
  return error_set(HAUL_ENOMEM, 0, "gaudi", "use one device a process",
                   "the driver maps two devices' memory at one address");
}

static int take_page(struct gaudi_device *device, struct gaudi_page *page, uint64_t length) {
  int fd = atomic_load(&device->fd);
  errno = 0;
  page->handle = gaudi_driver->device_memory_alloc(fd, length, 0, false, false);
  if (page->handle == 0)
    return no_memory(device, length, errno);
  int code = map_page(device, page, length);
  if (code)
    gaudi_driver->device_memory_free(fd, page->handle);
  return code;
}

static struct gaudi_page *add_page(struct gaudi_device *device, uint64_t length) {
  if (length > device->memory) {
    no_memory(device, length, 0);
    return NULL;
  }
  length = (length + device->page - 1) / device->page * device->page;
  struct gaudi_page *page = alloc_zero(1, sizeof *page);
  if (!page) {
    error_memory("a page of device memory");
    return NULL;
  }
  if (suballoc_open(&page->parts, length) != 0)
    goto no_parts;
  if (take_page(device, page, length) != 0)
    goto no_page;
  page->next = device->pages;
  device->pages = page;
  return page;

no_page:
  suballoc_close(&page->parts);
no_parts:
  alloc_free(page);
  return NULL;
}

/* False: a dma-buf of the page is open. */
static bool give_page(struct gaudi_device *device, struct gaudi_page *page) {
  int fd = atomic_load(&device->fd);
  if (gaudi_driver->memory_unmap(fd, page->base) != 0)
    return false;
  gaudi_driver->device_memory_free(fd, page->handle);
  return true;
}

static void destroy_page(struct gaudi_page *page) {
  suballoc_close(&page->parts);
  alloc_free(page);
}

static void give_empty_pages(struct gaudi_device *device) {
  struct gaudi_page **link = &device->pages;
  while (*link) {
    struct gaudi_page *page = *link;
    if (page->parts.parts > 0 || !give_page(device, page)) {
      link = &page->next;
      continue;
    }
    *link = page->next;
    destroy_page(page);
  }
}

/* Pages that the driver keeps now are freed with the descriptor and the last dma-buf. */
void gaudi_pages_close(struct gaudi_device *device) {
  while (device->pages) {
    struct gaudi_page *page = device->pages;
    device->pages = page->next;
    give_page(device, page);
    page->orphan = true;
    if (page->parts.parts == 0)
      destroy_page(page);
  }
}

void gaudi_pages_count(unsigned number, unsigned *pages, unsigned *kept) {
  struct gaudi_device *device = gaudi_device_at(number);
  *pages = *kept = 0;
  pthread_mutex_lock(&gaudi_lock);
  for (const struct gaudi_page *page = device ? device->pages : NULL; page; page = page->next) {
    *pages += 1;
    *kept += page->parts.parts == 0;
  }
  pthread_mutex_unlock(&gaudi_lock);
}

static struct gaudi_page *best_page(const struct gaudi_device *device, uint64_t length) {
  struct gaudi_page *best = NULL;
  uint64_t least = UINT64_MAX;
  for (struct gaudi_page *page = device->pages; page; page = page->next) {
    uint64_t fit = suballoc_fit(&page->parts, length);
    if (fit == 0 || fit >= least || page->parts.parts >= SUBALLOC_PARTS)
      continue;
    best = page;
    least = fit;
  }
  return best;
}

static int place_block(unsigned number, struct block *block, uint64_t length) {
  int code = gaudi_device_open(number, &block->device);
  if (code)
    return code;
  struct gaudi_page *page = best_page(block->device, length);
  if (!page)
    page = add_page(block->device, length);
  if (!page)
    return haul_error_last()->code;
  uint64_t offset;
  code = suballoc_take(&page->parts, length, &offset);
  if (code) {
    give_empty_pages(block->device);
    return code;
  }
  block->page = page;
  block->range.start = page->base + offset;
  block->range.end = block->range.start + length;
  ranges_add(&blocks, &block->range);
  return 0;
}

static void block_fill_memory(struct memory *memory, uint64_t address, size_t length,
                              struct block *block) {
  memory->address = (void *)(uintptr_t)address;
  memory->length = length;
  memory->writable = true;
  memory->state = block;
}

int gaudi_alloc(unsigned device, size_t length, unsigned flags, struct memory *memory) {
  if (fork_is_child())
    return error_set(HAUL_EFORK, 0, "gaudi", "exec first", "the device is the parent's");
  if (length > (size_t)1 << 48)
    return error_set(HAUL_ENOMEM, 0, NULL, "ask for less", "%zu bytes are more than any device has",
                     length);
  struct block *block = alloc_zero(1, sizeof *block);
  if (!block)
    return error_memory("device memory");
  block->private = flags & HAUL_REGION_PRIVATE;
  block->alive = block->refs = 1;
  pthread_mutex_lock(&gaudi_lock);
  int code = place_block(device, block, (length + SUBALLOC_STEP - 1) & ~(SUBALLOC_STEP - 1));
  pthread_mutex_unlock(&gaudi_lock);
  if (code) {
    alloc_free(block);
    return code;
  }
  block_fill_memory(memory, block->range.start, length, block);
  return 0;
}

static void block_destroy(struct block *block) {
  if (block->page && !fork_is_child()) {
    pthread_mutex_lock(&gaudi_lock);
    suballoc_give(&block->page->parts, block->range.start - block->page->base,
                  range_length(&block->range));
    if (!block->page->orphan)
      give_empty_pages(block->device);
    else if (block->page->parts.parts == 0)
      destroy_page(block->page);
    pthread_mutex_unlock(&gaudi_lock);
  }
  alloc_free(block);
}

void gaudi_free(struct memory *memory) {
  struct block *block = memory->state;
  if (!memory->wrapped) {
    atomic_store_explicit(&block->alive, 0, memory_order_release);
    if (!fork_is_child()) {
      pthread_mutex_lock(&gaudi_lock);
      ranges_remove(&blocks, &block->range);
      pthread_mutex_unlock(&gaudi_lock);
    }
  }
  if (atomic_fetch_sub(&block->refs, 1) == 1)
    block_destroy(block);
}

struct gaudi_device *gaudi_device_of(const struct memory *memory) {
  return ((const struct block *)memory->state)->device;
}

static int error_no_block(const void *address, size_t length) {
  return error_range(
      address, length,
      "give haul the framework's descriptor (HAUL_GAUDI_FD) to use the framework's memory",
      "the range is not within one block of Gaudi memory that haul allocated");
}

/* With gaudi_lock. The block that contains the range, or NULL. */
static struct block *find_block(uint64_t address, uint64_t length) {
  struct range *range = ranges_cover(&blocks, 0, address, address + length);
  return range ? list_entry(range, struct block, range) : NULL;
}

/* With gaudi_lock. Can it be memory of the framework whose descriptor is used? The driver does not
 * reveal its mappings; a copy fails for a wrong address. */
static bool may_be_framework(uint64_t address, uint64_t length) {
  return gaudi_device_given() && is_device_address(address + length - 1) &&
         !overlaps_page(NULL, address, length);
}

/* With gaudi_lock; NULL: unknown. */
static const struct gaudi_device *owner_of(uint64_t address, uint64_t length) {
  const struct block *block = find_block(address, length);
  if (block)
    return block->device;
  return may_be_framework(address, length) ? gaudi_device_given() : NULL;
}

int gaudi_owns(const void *pointer, size_t length, struct haul_place *place) {
  uint64_t address = (uintptr_t)pointer;
  if (!is_device_address(address) && !is_device_address(address + length - 1))
    return 0;
  if (gaudi_devices() == 0) /* before the lock, as it may probe */
    return 0;
  pthread_mutex_lock(&gaudi_lock);
  const struct gaudi_device *device = owner_of(address, length);
  if (device)
    *place = (struct haul_place){HAUL_GAUDI, device->number};
  pthread_mutex_unlock(&gaudi_lock);
  return device ? 1 : error_no_block(pointer, length);
}

static int wrap_framework(struct memory *memory, uint64_t address, size_t length) {
  struct block *block = alloc_zero(1, sizeof *block);
  if (!block)
    return error_memory("device memory");
  block->alive = block->refs = 1;
  pthread_mutex_lock(&gaudi_lock);
  int code = gaudi_device_open(memory->place.device, &block->device);
  pthread_mutex_unlock(&gaudi_lock);
  if (code) {
    alloc_free(block);
    return code;
  }
  block_fill_memory(memory, address, length, block);
  memory->wrapped = true;
  return 0;
}

int gaudi_wrap(void *pointer, size_t length, struct memory *memory) {
  uint64_t address = (uintptr_t)pointer;
  pthread_mutex_lock(&gaudi_lock);
  struct block *block = find_block(address, length);
  if (block)
    atomic_fetch_add(&block->refs, 1);
  bool framework = !block && may_be_framework(address, length);
  pthread_mutex_unlock(&gaudi_lock);
  if (framework)
    return wrap_framework(memory, address, length);
  if (!block) /* freed since `owns` */
    return error_no_block(pointer, length);
  block_fill_memory(memory, address, length, block);
  memory->wrapped = true;
  memory->alive = &block->alive;
  return 0;
}

static int not_exported(const struct block *block, int system) {
  const char *object = error_object("gaudi:%u", block->device->number);
  if (!block->page)
    return error_set(
        HAUL_ENOTSUP, system, object,
        "wrap it from where the framework mapped it, or allocate with haul_region_alloc",
        "the driver makes no dma-buf of the framework's memory from here");
  return error_set(HAUL_ENOTSUP, system, object, "haul doctor gaudi looks at it",
                   "the driver makes no dma-buf: %s", strerror(system));
}

/* Exports from the page's start, and adds the offset here: early drivers ignore theirs. All three
 * numbers must be multiples of 4 KiB, and the flags must be these. */
int gaudi_dmabuf(struct memory *memory, int *descriptor, uint64_t *offset) {
  const struct block *block = memory->state;
  uint64_t address = (uintptr_t)memory->address;
  uint64_t base = block->page ? block->page->base : address & ~(SUBALLOC_STEP - 1);
  uint64_t length = address + memory->length - base;
  if (block->private)
    return error_set(HAUL_ENOTSUP, 0, "gaudi", "allocate it without HAUL_REGION_PRIVATE",
                     "private memory has no dma-buf");
  length = (length + SUBALLOC_STEP - 1) & ~(SUBALLOC_STEP - 1);
  int fd = gaudi_driver->device_mapped_memory_export_dmabuf_fd(atomic_load(&block->device->fd),
                                                               base, length, 0, O_RDWR | O_CLOEXEC);
  if (fd < 0)
    return not_exported(block, -fd);
  *descriptor = fd;
  *offset = address - base;
  return 0;
}
