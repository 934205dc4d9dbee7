/* SPDX-License-Identifier: MIT
 * Copies between a device and host memory by the device's PCI DMA, without bounce buffers. Host
 * memory is pinned and mapped slice by slice (mapping.c). The driver has no callback for the end of
 * a submission, so it is polled.
 *
 * Copies within a device use the DMA engines of its memory. Those between two devices go through
 * the host, as the driver maps no other device's memory. */
#include <errno.h>
#include <string.h>
#include <sys/mman.h>

#include "core/alloc.h"
#include "core/error.h"
#include "core/fork.h"
#include "core/sys.h"
#include "memory/copy.h"
#include "memory/gaudi/gaudi.h"
#include "memory/pages.h"

/* Bytes of a slice within a device, which takes less than a millisecond. */
#define INSIDE ((uint64_t)64 << 20)

#define IN_FLIGHT 2u  /* slices per copy: one is pinned while the other is copied */
#define SLOTS     64u /* submissions per device; the driver's queues hold more */
#define SLOT      64u /* bytes per packet: a cache line */
#define SLOT_PAGE 4096u

#define LOOK_US  10000u               /* a cancel waits for the driver in steps of 10 ms */
#define GIVEN_UP INT64_C(60000000000) /* 60 s; the driver ends a hanging submission after 30 s */

struct slice {
  bool busy;
  unsigned slot;
  uint64_t seq;
  struct gaudi_mapping *mapping; /* NULL: within the device */
};

struct job {
  struct list link;
  struct copy *copy;
  struct gaudi_device *device;
  const struct memory *host; /* NULL: within the device */
  uint64_t from, to;         /* addresses; the host's are the CPU's */
  bool down;                 /* to the device */
  uint64_t submitted;
  struct slice slices[IN_FLIGHT];
  int failed;            /* result once no slice is in flight */
  struct haul_error why; /* its detail, as another thread may see the last slice */
};

/* Engine state in struct copy; NULL once its status is final. Under the engine's lock. */
static struct job **job_of(struct copy *copy) {
  _Static_assert(sizeof(struct job *) <= sizeof copy->engine, "struct copy is too small");
  return (struct job **)(void *)copy->engine;
}

static struct gaudi_device *device_for(const struct copy *copy) {
  return gaudi_device_of(copy->to->provider == &provider_gaudi ? copy->to : copy->from);
}

/* With the lock. */
static int map_packets(struct gaudi_device *device) {
  struct gaudi_engine *engine = &device->engine;
  void *got =
      sys_ops.mmap(NULL, SLOT_PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (got == MAP_FAILED)
    return error_system(errno, "gaudi", "mmap of command packets");
  madvise(got, SLOT_PAGE, MADV_DONTFORK); /* before Linux 5.12 a child would inherit pinned pages */
  memset(got, 0, SLOT_PAGE);
  errno = 0;
  engine->packets_at = gaudi_driver->host_memory_map(atomic_load(&device->fd), got, 0, SLOT_PAGE);
  if (engine->packets_at == 0) {
    int system = errno;
    munmap(got, SLOT_PAGE);
    return error_system(system ? system : EIO, "gaudi", "hlthunk_host_memory_map");
  }
  engine->packets = got;
  return 0;
}

/* With the lock. False: all are in use. */
static bool take_slot(struct gaudi_engine *engine, unsigned *slot) {
  if (engine->busy == UINT64_MAX)
    return false;
  *slot = (unsigned)__builtin_ctzll(~engine->busy);
  engine->busy |= UINT64_C(1) << *slot;
  return true;
}

static void give_slot(struct gaudi_engine *engine, unsigned slot) {
  engine->busy &= ~(UINT64_C(1) << slot);
}

/* one slice; all with the lock */

static int not_pinned(int system) {
  if (system != EFAULT && system != EINVAL)
    return error_system(system, "gaudi", "hlthunk_host_memory_map");
  return error_set(
      HAUL_ENOTSUP, system, "gaudi",
      "copy it to memory of haul's own first; mappings of files and devices cannot be pinned",
      "the device cannot pin the host memory: %s", strerror(system));
}

/* Two slices within a device are copied by two engines, if it has them. */
static unsigned queue_of(const struct job *job, const struct slice *slice) {
  unsigned both = atomic_load(&job->device->inside);
  if (job->host)
    return job->down ? GAUDI_QUEUE_DOWN : GAUDI_QUEUE_UP;
  return GAUDI_QUEUE_INSIDE(both == 3 ? slice == &job->slices[1] : both >> 1);
}

static int not_submitted(struct job *job, int system) {
  if (job->host || system != EINVAL)
    return error_system(system, "gaudi", "hlthunk_command_submission");
  atomic_store(&job->device->inside, 0);
  return error_set(HAUL_ENOTSUP, system, "gaudi", "copy again: it goes through the host then",
                   "the driver has disabled the device's own DMA engines");
}

static int submit(struct job *job, struct slice *slice, uint64_t to, uint64_t from,
                  uint64_t bytes) {
  struct gaudi_engine *engine = &job->device->engine;
  uint64_t place = (uint64_t)slice->slot * SLOT;
  struct gaudi_lin_dma packet = {
      .size = (uint32_t)bytes, .control = GAUDI_LIN_DMA, .source = from, .destination = to};
  struct gaudi_chunk chunk = {.commands = engine->packets_at + place,
                              .queue = queue_of(job, slice),
                              .bytes = sizeof packet,
                              .flags = GAUDI_CHUNK_USER};
  struct gaudi_cs_in in = {.execute = &chunk, .execute_count = 1};
  struct gaudi_cs_out out = {0};
  memcpy(engine->packets + place, &packet, sizeof packet);
  int system = gaudi_driver->command_submission(atomic_load(&job->device->fd), &in, &out);
  slice->seq = out.seq;
  return system == 0 ? 0 : not_submitted(job, system < 0 ? -system : EIO);
}

/* Maps the host's part of the slice and replaces its address by the device's. */
static int map_slice(struct job *job, struct slice *slice, uint64_t *address, uint64_t bytes) {
  int system = gaudi_mapping_get(job->device, job->host, *address, bytes, &slice->mapping);
  if (system)
    return not_pinned(system);
  *address += slice->mapping->at - slice->mapping->range.start;
  return 0;
}

static void unmap_slice(struct job *job, struct slice *slice) {
  if (slice->mapping)
    gaudi_mapping_put(job->device, slice->mapping);
  slice->mapping = NULL;
}

static int start_slice(struct job *job, struct slice *slice) {
  uint64_t to = job->to + job->submitted, from = job->from + job->submitted;
  uint64_t *host = job->down ? &from : &to, left = job->copy->length - job->submitted;
  uint64_t most = job->host ? GAUDI_SLICE - *host % GAUDI_SLICE : INSIDE;
  uint64_t bytes = left < most ? left : most;
  int code = job->host ? map_slice(job, slice, host, bytes) : 0;
  if (code == 0)
    code = submit(job, slice, to, from, bytes);
  if (code) {
    unmap_slice(job, slice);
    return code;
  }
  slice->busy = true;
  job->submitted += bytes;
  return 0;
}

static void copy_fail(struct job *job, int code) {
  job->failed = code;
  error_save(&job->why);
}

/* A reset aborts the other submissions, which may be seen before the timeout that caused it. */
static int ended_badly(struct gaudi_engine *engine, int system, uint32_t status) {
  if (status == GAUDI_CS_TIMEOUT || (status == GAUDI_CS_ABORTED && !engine->lost))
    engine->lost = (enum gaudi_cs_status)status;
  return error_set(HAUL_ESYSTEM, system, "gaudi",
                   "sudo dmesg | grep habanalabs; the device was reset, so close all nodes of this "
                   "process and open them again",
                   "the device's copy %s",
                   engine->lost == GAUDI_CS_TIMEOUT   ? "timed out in the driver"
                   : engine->lost == GAUDI_CS_ABORTED ? "was aborted by the driver"
                                                      : "could not be waited for");
}

/* Polls a slice in flight; frees its resources when it ended. */
static void slice_poll(struct job *job, struct slice *slice) {
  int fd = atomic_load(&job->device->fd);
  uint32_t status = GAUDI_CS_BUSY;
  int system = gaudi_driver->wait_for_cs(fd, slice->seq, 0, &status);
  if (system == 0 && status == GAUDI_CS_BUSY)
    return;
  /* Overwrites failures that a reset caused. */
  if (system != 0 || status != GAUDI_CS_DONE)
    copy_fail(job, ended_badly(&job->device->engine, system < 0 ? -system : EIO, status));
  unmap_slice(job, slice);
  give_slot(&job->device->engine, slice->slot);
  slice->busy = false;
}

/* one copy; all with the lock */

static void copy_finish(struct job *job, int status) {
  struct copy *copy = job->copy;
  if (status == job->why.code)
    error_restore(&job->why);
  list_remove(&job->link);
  *job_of(copy) = NULL;
  alloc_free(job);
  atomic_store_explicit(&copy->status, status, memory_order_release);
}

static bool wants_more(const struct job *job) {
  return job->failed == 0 && job->submitted < job->copy->length;
}

static void fill_up(struct job *job) {
  struct gaudi_engine *engine = &job->device->engine;
  for (unsigned i = 0; i < IN_FLIGHT && wants_more(job); i++) {
    struct slice *slice = &job->slices[i];
    if (slice->busy || !take_slot(engine, &slice->slot))
      continue;
    int code = start_slice(job, slice);
    if (code == 0)
      continue;
    give_slot(engine, slice->slot);
    copy_fail(job, code);
  }
}

/* Advances the copy. NULL: it ended; else a slice to wait for, or the first one if all slots are in
 * use. */
static const struct slice *copy_advance(struct job *job) {
  const struct slice *busy = NULL;
  for (unsigned i = 0; i < IN_FLIGHT; i++)
    if (job->slices[i].busy)
      slice_poll(job, &job->slices[i]);
  fill_up(job);
  for (unsigned i = 0; i < IN_FLIGHT; i++)
    busy = job->slices[i].busy && !busy ? &job->slices[i] : busy;
  if (busy || wants_more(job))
    return busy ? busy : &job->slices[0];
  copy_finish(job, job->failed);
  return NULL;
}

/* Ends the copy early: submits nothing more, and waits for slices in flight, which cannot be
 * canceled. The driver ends hanging ones. If it does not, pages and slot stay pinned for good, so
 * that the device never writes to reused memory. Releases the lock while it waits. */
static void copy_end(struct gaudi_device *device, struct copy *copy, int status) {
  int64_t until = clock_after(clock_now(), GIVEN_UP);
  struct job *job;
  while ((job = *job_of(copy))) {
    job->failed = job->failed || !wants_more(job) ? job->failed : status;
    const struct slice *slice = copy_advance(job);
    if (!slice)
      return;
    if (clock_now() >= until) {
      copy_finish(job, HAUL_ESYSTEM);
      return;
    }
    uint64_t seq = slice->seq;
    uint32_t ignored;
    int fd = atomic_load(&device->fd);
    pthread_mutex_unlock(&device->engine.lock);
    gaudi_driver->wait_for_cs(fd, seq, LOOK_US, &ignored);
    pthread_mutex_lock(&device->engine.lock);
  }
}

void gaudi_engine_open(struct gaudi_engine *engine) {
  *engine = (struct gaudi_engine){0};
  pthread_mutex_init(&engine->lock, NULL);
  list_init(&engine->jobs);
  list_init(&engine->kept);
}

void gaudi_engine_close(struct gaudi_device *device) {
  struct gaudi_engine *engine = &device->engine;
  pthread_mutex_lock(&engine->lock);
  while (!list_empty(&engine->jobs)) {
    struct job *job = list_entry(engine->jobs.next, struct job, link);
    copy_end(device, job->copy, HAUL_ECLOSED);
  }
  gaudi_mappings_close(device);
  /* Slots in use now stay with the device for good. */
  if (engine->packets && engine->busy == 0) {
    gaudi_driver->memory_unmap(atomic_load(&device->fd), engine->packets_at);
    munmap(engine->packets, SLOT_PAGE);
  }
  engine->packets = NULL;
  pthread_mutex_unlock(&engine->lock);
}

/* Pages are pinned for writing in both directions, so read-only memory cannot be used. */
bool gaudi_reaches(const struct memory *own, const struct memory *other) {
  if (other->provider == &provider_gaudi)
    return own->place.device == other->place.device && atomic_load(&gaudi_device_of(own)->inside);
  return other->view && other->writable;
}

static uint64_t address_of(const struct memory *memory, uint64_t offset) {
  return (uintptr_t)(memory->view ? memory->view : memory->address) + offset;
}

static struct job *new_job(struct copy *copy, struct gaudi_device *device) {
  struct job *job = alloc_zero(1, sizeof *job);
  if (!job)
    return NULL;
  job->copy = copy;
  job->device = device;
  job->down = copy->from->provider != &provider_gaudi;
  job->host = job->down ? copy->from : copy->to->provider != &provider_gaudi ? copy->to : NULL;
  job->to = address_of(copy->to, copy->to_offset);
  job->from = address_of(copy->from, copy->from_offset);
  return job;
}

/* With the lock. */
static int copy_begin(struct copy *copy, struct job *job) {
  struct gaudi_engine *engine = &job->device->engine;
  if (engine->lost)
    return ended_badly(engine, EIO, GAUDI_CS_ABORTED);
  int code = engine->packets ? 0 : map_packets(job->device);
  if (code)
    return code;
  *job_of(copy) = job;
  list_append(&engine->jobs, &job->link);
  copy_advance(job);
  int status = atomic_load(&copy->status);
  return status < 0 ? status : 0;
}

int gaudi_copy_start(struct copy *copy) {
  struct gaudi_device *device = device_for(copy);
  int code = copy_may_start(copy, &provider_gaudi);
  if (code)
    return code;
  struct job *job = new_job(copy, device);
  if (!job)
    return error_memory("a device's copy");
  *job_of(copy) = NULL;
  atomic_store_explicit(&copy->status, 1, memory_order_relaxed);
  pthread_mutex_lock(&device->engine.lock);
  code = copy_begin(copy, job);
  bool refused = code && atomic_load(&copy->status) == 1;
  pthread_mutex_unlock(&device->engine.lock);
  if (refused)
    alloc_free(job);
  return code;
}

int gaudi_copy_poll(struct copy *copy) {
  int status = atomic_load_explicit(&copy->status, memory_order_acquire);
  if (status != 1 || fork_is_child())
    return status;
  struct gaudi_device *device = device_for(copy);
  pthread_mutex_lock(&device->engine.lock);
  if (*job_of(copy))
    copy_advance(*job_of(copy));
  pthread_mutex_unlock(&device->engine.lock);
  return atomic_load_explicit(&copy->status, memory_order_acquire);
}

void gaudi_copy_cancel(struct copy *copy) {
  int under_way = 1;
  if (fork_is_child()) { /* the lock may stay locked */
    atomic_compare_exchange_strong(&copy->status, &under_way, HAUL_ECANCELED);
    return;
  }
  if (atomic_load_explicit(&copy->status, memory_order_acquire) != 1)
    return;
  struct gaudi_device *device = device_for(copy);
  pthread_mutex_lock(&device->engine.lock);
  copy_end(device, copy, HAUL_ECANCELED);
  pthread_mutex_unlock(&device->engine.lock);
}
