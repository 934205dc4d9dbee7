/* SPDX-License-Identifier: MIT
 * The memory of the emulated accelerators. */
#include <errno.h>
#include <pthread.h>
#include <sys/mman.h>

#include "core/alloc.h"
#include "core/error.h"
#include "core/fork.h"
#include "core/list.h"
#include "core/sys.h"
#include "memory/pages.h"
#include "memory/sim/sim.h"
#include "memory/ticket.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* guards `blocks` */
/* A found block is valid only while the lock is held, or with a reference. */
static struct ranges blocks;

static _Atomic uint64_t used[SIM_DEVICES_MAX];

/* With the lock held. Returns the block that contains the range, or NULL. *touches is set if the
 * range overlaps a block. */
static struct sim_block *find_block(const void *address, size_t length, bool *touches) {
  uint64_t start = (uintptr_t)address;
  struct range *range = ranges_first_beyond(&blocks, 0, start);
  *touches = range && range->start < start + length;
  if (!*touches || start < range->start || length > range->end - start)
    return NULL;
  return list_entry(range, struct sim_block, range);
}

static int take_memory(unsigned device, size_t length) {
  uint64_t before = atomic_fetch_add(&used[device], length);
  if (before + length <= sim_settings.memory)
    return 0;
  atomic_fetch_sub(&used[device], length);
  return error_set(HAUL_ENOMEM, 0, error_object("sim:%u", device),
                   "release regions, or raise HAUL_SIM_MEMORY",
                   "the emulated accelerator has %llu of %llu bytes in use, %zu more do not fit",
                   (unsigned long long)before, (unsigned long long)sim_settings.memory, length);
}

static struct sim_block *new_block(unsigned device) {
  struct sim_block *block = alloc_zero(1, sizeof *block);
  if (!block) {
    error_memory("emulated device memory");
    return NULL;
  }
  block->shm.fd = -1;
  block->device = (uint16_t)device;
  block->alive = 1;
  block->refs = 1;
  return block;
}

static void destroy_block(struct sim_block *block) {
  if (block->base)
    munmap(block->base, block->length);
  if (block->view)
    munmap(block->view, block->length);
  shm_close(&block->shm);
  if (block->counted)
    atomic_fetch_sub(&used[block->device], block->length);
  alloc_free(block);
}

/* Reserves the block's address, by which it can be found from then on. */
static int place_block(struct sim_block *block, struct memory *memory, size_t length) {
  block->base = pages_reserve(block->length);
  if (!block->base)
    return error_system(errno, NULL, "mmap of address space");
  block->range.start = (uintptr_t)block->base;
  block->range.end = block->range.start + block->length;
  pthread_mutex_lock(&lock);
  ranges_add(&blocks, &block->range);
  pthread_mutex_unlock(&lock);
  memory->address = block->base;
  memory->length = length;
  memory->shareable = !block->imported && block->shm.fd >= 0;
  memory->imported = block->imported;
  memory->writable = block->writable;
  memory->alive = block->imported ? &block->shm.footer->alive : NULL;
  memory->state = block;
  return 0;
}

static int map_private(struct sim_block *block) {
  void *view =
      sys_ops.mmap(NULL, block->length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (view == MAP_FAILED)
    return error_system(errno, NULL, "mmap");
  pages_want_huge(view, block->length);
  block->view = view;
  return 0;
}

int sim_alloc(unsigned device, size_t length, unsigned flags, struct memory *memory) {
  struct sim_block *block = new_block(device);
  if (!block)
    return HAUL_ENOMEM;
  int status;
  block->writable = true;
  if (!page_round(length, &block->length))
    status = error_length(length);
  else
    status = take_memory(device, block->length);
  block->counted = status == 0;
  if (status == 0 && flags & HAUL_REGION_PRIVATE)
    status = map_private(block);
  else if (status == 0)
    status = shm_create_mapped("haul-sim", length, &block->shm, &block->view);
  if (status == 0)
    status = place_block(block, memory, length);
  if (status != 0)
    destroy_block(block);
  return status;
}

int sim_import(const struct ticket *ticket, int descriptor, struct memory *memory) {
  struct sim_block *block = new_block(ticket->place.device);
  if (!block)
    return HAUL_ENOMEM;
  block->imported = true;
  block->writable = ticket->rights & HAUL_WRITE;
  int status = shm_import(descriptor, ticket, &block->shm, &block->view);
  block->length = block->shm.length;
  if (status == 0)
    status = place_block(block, memory, ticket->length);
  if (status != 0)
    destroy_block(block);
  return status;
}

void sim_free(struct memory *memory) {
  struct sim_block *block = memory->state;
  if (!memory->wrapped) {
    atomic_store_explicit(&block->alive, 0, memory_order_release);
    if (!block->imported)
      shm_retire(&block->shm);
    /* fork may have copied the lock while another thread held it. Children look up no blocks. */
    if (!fork_is_child()) {
      pthread_mutex_lock(&lock);
      ranges_remove(&blocks, &block->range);
      pthread_mutex_unlock(&lock);
    }
  }
  if (atomic_fetch_sub(&block->refs, 1) == 1)
    destroy_block(block);
}

static int error_partial_range(const void *address, size_t length) {
  return error_range(address, length, "wrap a range within one allocation",
                     "the range lies only partly within one block of an emulated accelerator");
}

int sim_owns(const void *address, size_t length, struct haul_place *place) {
  bool touches;
  pthread_mutex_lock(&lock);
  const struct sim_block *block = find_block(address, length, &touches);
  if (block)
    *place = (struct haul_place){HAUL_SIM, block->device};
  pthread_mutex_unlock(&lock);
  if (block)
    return 1;
  return touches ? error_partial_range(address, length) : 0;
}

int sim_wrap(void *address, size_t length, struct memory *memory) {
  bool touches;
  pthread_mutex_lock(&lock);
  struct sim_block *block = find_block(address, length, &touches);
  if (block)
    atomic_fetch_add(&block->refs, 1);
  pthread_mutex_unlock(&lock);
  if (!block && touches)
    return error_partial_range(address, length);
  if (!block) /* freed since `owns` */
    return error_range(address, length, "keep the memory allocated until the call returns",
                       "the range is no longer allocated");
  memory->address = address;
  memory->length = length;
  memory->wrapped = true;
  memory->writable = block->writable;
  memory->alive = block->imported ? &block->shm.footer->alive : &block->alive;
  memory->state = block;
  return 0;
}

int sim_export(struct memory *memory, unsigned rights, struct ticket *ticket, int *descriptor) {
  struct sim_block *block = memory->state;
  return shm_export(&block->shm, memory->length, rights, ticket, descriptor);
}

int sim_dmabuf(struct memory *memory, int *descriptor, uint64_t *offset) {
  struct sim_block *block = memory->state;
  if (block->shm.fd < 0)
    return error_set(HAUL_ENOTSUP, 0, "sim",
                     block->imported ? "connect to the node that owns it"
                                     : "allocate it without HAUL_REGION_PRIVATE",
                     "%s memory of an emulated accelerator has no dma-buf",
                     block->imported ? "imported" : "private");
  *offset = (uint64_t)((char *)memory->address - block->base);
  return shm_dmabuf(&block->shm, descriptor);
}
