/* SPDX-License-Identifier: MIT
 * Mock of libhl-thunk.so: device memory, mappings, dma-bufs. */
#include "hlthunk.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

/* VA_HBM_SPACE_START, and the start of mapped host memory. */
#define DEVICE_SPACE ((uint64_t)0x1001 << 48)
#define DEVICE_END   ((uint64_t)0x1002 << 48)
#define HOST_SPACE   ((uint64_t)0xfff0 << 48)

static uint64_t refuse(int error) {
  errno = error;
  return 0;
}

static uint64_t alloc_page(struct context *context, uint64_t size) {
  uint64_t step = double_setting("PAGE", UINT64_C(24) << 20);
  size = (size + step - 1) / step * step;
  if (size == 0)
    return refuse(EINVAL);
  if (context->used + size > double_setting("MEMORY", UINT64_C(960) << 20))
    return refuse(ENOMEM);
  struct page *page = calloc(1, sizeof *page);
  if (!page)
    abort();
  int memory = memfd_create("double-of-gaudi", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (memory < 0 || ftruncate(memory, (off_t)size) != 0)
    abort();
  page->bytes = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, memory, 0);
  if (page->bytes == MAP_FAILED)
    abort();
  keep_for_dmabufs(page, memory);
  page->size = size;
  page->handle = ++context->next_handle;
  page->next = context->pages;
  context->pages = page;
  context->used += size;
  return page->handle;
}

uint64_t hlthunk_device_memory_alloc(int fd, uint64_t size, uint64_t page, bool contiguous,
                                     bool shared) {
  (void)page; /* Gaudi2 has one page size */
  (void)contiguous;
  if (shared)
    return refuse(EPERM);
  if (double_fails("alloc"))
    return 0;
  pthread_mutex_lock(&double_lock);
  struct context *context = double_context(fd);
  uint64_t handle = context ? alloc_page(context, size) : 0;
  pthread_mutex_unlock(&double_lock);
  return handle;
}

static void destroy_page(struct page *page) {
  munmap(page->bytes, page->size);
  if (page->memory >= 0)
    close(page->memory);
  free(page);
}

int hlthunk_device_memory_free(int fd, uint64_t handle) {
  int code = -EINVAL;
  pthread_mutex_lock(&double_lock);
  struct context *context = double_context(fd);
  for (struct page **link = context ? &context->pages : NULL; link && *link;) {
    struct page *page = *link;
    if (page->handle != handle || page->base) { /* a mapped page cannot be freed */
      link = &page->next;
      continue;
    }
    context->used -= page->size;
    *link = page->next;
    destroy_page(page);
    code = 0;
  }
  pthread_mutex_unlock(&double_lock);
  return code;
}

static bool is_taken(const struct context *context, uint64_t base, uint64_t size) {
  for (const struct page *page = context->pages; page; page = page->next)
    if (page->base && base < page->base + page->size && page->base < base + size)
      return true;
  return false;
}

/* Ignores hints that are misaligned, out of range or in use. */
static uint64_t choose_base(struct context *context, uint64_t size, uint64_t hint) {
  uint64_t step = double_setting("PAGE", UINT64_C(24) << 20);
  if (hint % step == 0 && hint >= DEVICE_SPACE && hint + size <= DEVICE_END &&
      !is_taken(context, hint, size))
    return hint;
  uint64_t base = DEVICE_SPACE + step;
  while (is_taken(context, base, size))
    base += step;
  return base;
}

uint64_t hlthunk_device_memory_map(int fd, uint64_t handle, uint64_t hint) {
  uint64_t base = 0;
  if (double_fails("map"))
    return 0;
  pthread_mutex_lock(&double_lock);
  struct context *context = double_context(fd);
  for (struct page *page = context ? context->pages : NULL; page; page = page->next)
    if (page->handle == handle && page->base == 0)
      base = page->base = choose_base(context, page->size, hint);
  if (context && !base)
    errno = EINVAL;
  pthread_mutex_unlock(&double_lock);
  return base;
}

char *device_bytes(const struct context *context, uint64_t address, uint64_t size) {
  for (const struct page *page = context->pages; page; page = page->next)
    if (page->base && address >= page->base && size <= page->size &&
        address - page->base <= page->size - size)
      return page->bytes + (address - page->base);
  return NULL;
}

static uint64_t maps;

void hlthunk_double_hosts(int fd, uint64_t *calls, uint64_t *bytes) {
  pthread_mutex_lock(&double_lock);
  const struct context *context = double_open_context(fd);
  *calls = maps;
  *bytes = context ? context->pinned : 0;
  pthread_mutex_unlock(&double_lock);
}

/* Time that the driver takes for a page: to pin it, and for an entry of the device's page table. */
static void take_time_for(uint64_t pages) {
  struct timespec now;
  int64_t until = 0;
  do {
    clock_gettime(CLOCK_MONOTONIC, &now);
    int64_t at = now.tv_sec * INT64_C(1000000000) + now.tv_nsec;
    until = until ? until : at + (int64_t)(pages * double_setting("PIN_NS", 50));
    if (at >= until)
      return;
  } while (1);
}

/* The device would go on with the old pages. A reset one does not. */
static void check_pages(const struct context *context, const struct host_mapping *one) {
  if (context->reset || msync(one->bytes, one->size, MS_ASYNC) == 0)
    return;
  fprintf(stderr, "double of libhl-thunk: memory was unmapped while the device had it mapped\n");
  abort();
}

/* Pins for writing, so read-only memory fails. */
uint64_t hlthunk_host_memory_map(int fd, void *address, uint64_t hint, uint64_t size) {
  (void)hint;
  if (double_fails("host_map"))
    return 0;
  if ((uintptr_t)address % STEP || size % STEP || size == 0)
    return refuse(EINVAL);
  if (madvise(address, size, MADV_POPULATE_WRITE) != 0)
    return refuse(EFAULT);
  take_time_for(size / STEP);
  struct host_mapping *mapping = calloc(1, sizeof *mapping);
  if (!mapping)
    abort();
  uint64_t base = 0;
  pthread_mutex_lock(&double_lock);
  struct context *context = double_context(fd);
  maps++;
  if (context && context->pinned + size > double_setting("PINNED", UINT64_MAX)) {
    errno = ENOMEM;
    context = NULL;
  }
  if (context) {
    context->pinned += size;
    base = HOST_SPACE + (context->next_host += STEP); /* with a gap between mappings */
    context->next_host += size;
    *mapping = (struct host_mapping){context->hosts, base, size, address};
    context->hosts = mapping;
  } else {
    free(mapping);
  }
  pthread_mutex_unlock(&double_lock);
  return base;
}

char *host_bytes(const struct context *context, uint64_t address, uint64_t size) {
  for (const struct host_mapping *one = context->hosts; one; one = one->next)
    if (address >= one->base && size <= one->size && address - one->base <= one->size - size) {
      check_pages(context, one);
      return one->bytes + (address - one->base);
    }
  return NULL;
}

static int unmap_host(struct context *context, uint64_t address) {
  for (struct host_mapping **link = &context->hosts; *link; link = &(*link)->next) {
    struct host_mapping *mapping = *link;
    if (mapping->base != address)
      continue;
    check_pages(context, mapping);
    take_time_for(mapping->size / STEP);
    *link = mapping->next;
    context->pinned -= mapping->size;
    free(mapping);
    return 0;
  }
  return -EINVAL;
}

static int unmap_page(struct context *context, uint64_t address) {
  for (struct page *page = context->pages; page; page = page->next)
    if (page->base == address && address != 0) {
      if (context_exports(context, address))
        return -EINVAL;
      page->base = 0;
      return 0;
    }
  return -EINVAL;
}

int hlthunk_memory_unmap(int fd, uint64_t address) {
  pthread_mutex_lock(&double_lock);
  struct context *context = double_context(fd);
  int code = !context                ? -errno
             : address >= HOST_SPACE ? unmap_host(context, address)
                                     : unmap_page(context, address);
  pthread_mutex_unlock(&double_lock);
  return code;
}

void context_free_memory(struct context *context) {
  while (context->pages) {
    struct page *page = context->pages;
    context->pages = page->next;
    destroy_page(page);
  }
  while (context->hosts)
    unmap_host(context, context->hosts->base);
}
