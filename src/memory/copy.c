/* SPDX-License-Identifier: MIT */
#include "memory/copy.h"

#include <sched.h>

#include "core/error.h"
#include "core/fork.h"
#include "core/futex.h"
#include "core/sum.h"
#include "core/sys.h"
#include "core/tune.h"
#include "memory/staging.h"

#define CPU_SLICE ((uint64_t)16 << 20) /* between two checks of the deadline: some milliseconds */
#define POLL_NS   5000                 /* between two polls of an engine without callbacks */
#define LOOK_NS   10000000             /* of one with callbacks, which may lose the last one */
/* Polled without a pause before the thread sleeps: a GPU copies 2 GB within itself meanwhile, and
 * its driver's own wait polls to the end. Sleeping costs some 30 us (H200, driver 580). */
#define SPIN_NS 1000000

enum copy_method copy_method(const struct memory *to, const struct memory *from,
                             const struct provider **engine) {
  if (to->view && from->view)
    return COPY_CPU;
  if (to->provider->reaches && to->provider->reaches(to, from))
    *engine = to->provider;
  else if (from->provider->reaches && from->provider->reaches(from, to))
    *engine = from->provider;
  else
    return COPY_STAGED;
  return COPY_ENGINE;
}

int copy_may_start(const struct copy *copy, const struct provider *engine) {
  if (fork_is_child())
    return error_set(HAUL_EFORK, 0, engine->name, "exec first",
                     "the device belongs to the parent process");
  if (!copy->to->writable)
    return error_set(HAUL_EACCESS, 0, copy->to->provider->name, "ask its owner for HAUL_WRITE",
                     "the memory was shared for reading alone");
  return 0;
}

static int error_timeout(const char *who) {
  return error_set(HAUL_ETIMEDOUT, 0, who, "allow more time; the destination is undefined",
                   "the copy did not end by its deadline");
}

static void pending_wake(void *user) {
  _Atomic uint32_t *woken = user;
  atomic_store(woken, 1);
  futex_wake(woken);
}

static int pending_begin(struct copy_pending *pending) {
  atomic_store_explicit(&pending->woken, 0, memory_order_relaxed);
  atomic_store_explicit(&pending->copy.status, 1, memory_order_relaxed);
  return pending->engine->copy_start(&pending->copy);
}

int copy_pending_start(struct copy_pending *pending, struct memory *to, uint64_t to_offset,
                       struct memory *from, uint64_t from_offset, uint64_t length) {
  pending->copy = (struct copy){.to = to,
                                .from = from,
                                .to_offset = to_offset,
                                .from_offset = from_offset,
                                .length = length,
                                .wake = pending_wake,
                                .user = &pending->woken};
  copy_method(to, from, &pending->engine);
  return pending_begin(pending);
}

void copy_pending_cancel(struct copy_pending *pending) {
  pending->engine->copy_cancel(&pending->copy);
}

int copy_pending_look(struct copy_pending *pending) {
  int status = pending->engine->copy_poll(&pending->copy);
  if (status != 1 && pending->copy.wakes)
    copy_pending_cancel(pending); /* ended, but its `wake` may still be on its way */
  return status;
}

static void pending_sleep(struct copy_pending *pending, int64_t now, haul_deadline until) {
  int64_t look = clock_after(now, pending->copy.wakes ? LOOK_NS : POLL_NS);
  futex_wait(&pending->woken, 0, look < until ? look : until);
  atomic_store(&pending->woken, 0);
}

/* When it returns, the engine has finished with the copy, whatever the result. */
static int pending_wait(struct copy_pending *pending, haul_deadline until) {
  int64_t sleeps = clock_after(clock_now(), SPIN_NS);
  int status;
  while ((status = copy_pending_look(pending)) == 1) {
    int64_t now = clock_now();
    if (now >= until)
      copy_pending_cancel(pending);
    else if (now < sleeps)
      sched_yield();
    else if (pending->engine->wakes && !pending->copy.wakes)
      pending->copy.wakes = true; /* and look once more */
    else
      pending_sleep(pending, now, until);
  }
  return status == HAUL_ECANCELED ? error_timeout(pending->engine->name) : status;
}

static int copy_by_cpu(struct memory *to, uint64_t to_offset, struct memory *from,
                       uint64_t from_offset, uint64_t length, haul_deadline until) {
  int status = memory_fence(from, FENCE_BEFORE_READ);
  for (uint64_t at = 0; status == 0 && at < length; at += CPU_SLICE) {
    if (at > 0 && clock_now() >= until)
      return error_timeout("cpu");
    uint64_t bytes = length - at < CPU_SLICE ? length - at : CPU_SLICE;
    copy_slice((char *)to->view + to_offset + at, (const char *)from->view + from_offset + at,
               bytes, length);
  }
  return status == 0 ? memory_fence(to, FENCE_AFTER_WRITE) : status;
}

static int no_staging(const struct memory *memory) {
  return error_set(HAUL_ENOTSUP, 0, memory->provider->name, "use other memory",
                   "no engine copies between this memory and host memory");
}

/* Two bounce buffers near the device. */
static int get_bounces(struct staging *staging, struct staging_user *user,
                       const struct memory *device, struct bounce *stages[2], haul_deadline until) {
  return staging_get_wait(staging, user, 2, staging_numa(staging, device->place), stages, until);
}

static void put_bounces(struct staging_user *user, struct bounce *stages[2]) {
  staging_put(user, stages[0]);
  staging_put(user, stages[1]);
}

bool copy_stages(const struct memory *memory) {
  char here;
  const struct memory host = {.provider = provider_of(HAUL_HOST),
                              .place = {HAUL_HOST, 0},
                              .address = &here,
                              .view = &here,
                              .length = 1,
                              .writable = true};
  return memory->provider->reaches && memory->provider->reaches(memory, &host);
}

static bool can_stage(const struct memory *memory) {
  return memory->view || copy_stages(memory);
}

/* A copy in slices through two bounce buffers: one is filled while the other is drained. */
struct staged {
  struct memory *to, *from;
  uint64_t to_offset, from_offset, length, slice;
  haul_deadline until;
  struct bounce *stages[2];
  struct copy_pending in, out;
  bool filling, draining;
};

static uint64_t slice_at(const struct staged *copy, uint64_t at) {
  uint64_t left = copy->length - at;
  return left < copy->slice ? left : copy->slice;
}

/* Copies a slice to or from a buffer: by the device's engine, or by the CPU for host memory that
 * the engine refuses. */
static int stage_start(struct copy_pending *pending, bool *busy, struct memory *to,
                       uint64_t to_offset, struct memory *from, uint64_t from_offset,
                       uint64_t bytes) {
  if (to->view && from->view)
    return copy_by_cpu(to, to_offset, from, from_offset, bytes, HAUL_FOREVER);
  int status = copy_pending_start(pending, to, to_offset, from, from_offset, bytes);
  *busy = status == 0;
  return status;
}

/* Starts filling buffer `i` with the slice at `at`. */
static int stage_fill(struct staged *copy, unsigned i, uint64_t at) {
  uint64_t bytes = slice_at(copy, at);
  if (bytes == 0)
    return 0;
  return stage_start(&copy->in, &copy->filling, &copy->stages[i]->region->memory, 0, copy->from,
                     copy->from_offset + at, bytes);
}

static int stage_finish(struct copy_pending *pending, bool *busy, haul_deadline until) {
  if (!*busy)
    return 0;
  *busy = false;
  return pending_wait(pending, until);
}

static int stage_move(struct staged *copy) {
  unsigned i = 0;
  int status = stage_fill(copy, 0, 0);
  for (uint64_t at = 0; status == 0 && at < copy->length; i ^= 1) {
    status = stage_finish(&copy->in, &copy->filling, copy->until);
    if (status == 0)
      status = stage_finish(&copy->out, &copy->draining, copy->until);
    if (status == 0)
      status = stage_start(&copy->out, &copy->draining, copy->to, copy->to_offset + at,
                           &copy->stages[i]->region->memory, 0, slice_at(copy, at));
    if (status != 0)
      break;
    at += slice_at(copy, at);
    status = stage_fill(copy, i ^ 1, at);
  }
  if (status == 0)
    return stage_finish(&copy->out, &copy->draining, copy->until);
  struct haul_error first;
  error_save(&first);
  stage_finish(&copy->in, &copy->filling, HAUL_NO_WAIT);
  stage_finish(&copy->out, &copy->draining, HAUL_NO_WAIT);
  return error_restore(&first);
}

#define TUNED_KINDS 8u
#define TUNED_LEAST ((uint64_t)2 << 20) /* shorter ones hardly overlap slices */

/* Slice sizes by kind of source and destination; NULL: not measured. */
static struct tune *tune_for(const struct staged *copy) {
  static struct tune tunes[TUNED_KINDS][TUNED_KINDS];
  unsigned from = copy->from->place.kind, to = copy->to->place.kind;
  return copy->length < TUNED_LEAST || from >= TUNED_KINDS || to >= TUNED_KINDS ? NULL
                                                                                : &tunes[from][to];
}

static int copy_staged(struct staging *staging, struct staged *copy) {
  struct staging_user user;
  if (!staging || !can_stage(copy->to) || !can_stage(copy->from))
    return no_staging(copy->to);
  int status = get_bounces(staging, &user, copy->to, copy->stages, copy->until);
  if (status != 0)
    return status;
  struct tune *tune = tune_for(copy);
  unsigned way = tune ? tune_next(tune) : 0;
  int64_t began = clock_now();
  copy->slice = BOUNCE_BYTES >> way;
  status = stage_move(copy);
  if (tune && status == 0)
    tune_record(tune, way, copy->length, clock_now() - began);
  put_bounces(&user, copy->stages);
  return status;
}

/* A copy whose engine needs bounce buffers, as it does not reach the host memory. */
static int copy_between(struct staging *staging, struct copy_pending *pending,
                        haul_deadline until) {
  struct staging_user user;
  struct bounce *stages[2];
  struct memory *device = pending->copy.to->view ? pending->copy.from : pending->copy.to;
  if (!staging)
    return no_staging(device);
  int status = get_bounces(staging, &user, device, stages, until);
  if (status != 0)
    return status;
  for (unsigned i = 0; i < 2; i++)
    pending->copy.through[i] = bounce_memory(stages[i]);
  status = pending_begin(pending);
  if (status == 0)
    status = pending_wait(pending, until);
  put_bounces(&user, stages);
  return status;
}

static bool overlap(const struct memory *to, uint64_t to_offset, const struct memory *from,
                    uint64_t from_offset, uint64_t length) {
  uintptr_t a = (uintptr_t)to->address + to_offset, b = (uintptr_t)from->address + from_offset;
  return to->place.kind == from->place.kind && to->place.device == from->place.device &&
         a < b + length && b < a + length;
}

int copy_check(const struct memory *to, uint64_t to_offset, const struct memory *from,
               uint64_t from_offset, uint64_t length) {
  if (!to->writable)
    return error_set(HAUL_EACCESS, 0, to->provider->name,
                     "share it with HAUL_WRITE, or map it writable",
                     "the destination may only be read");
  if (overlap(to, to_offset, from, from_offset, length))
    return error_set(HAUL_EINVAL, 0, to->provider->name, "copy through a third region",
                     "source and destination overlap");
  return 0;
}

int copy_sync(struct staging *staging, struct memory *to, uint64_t to_offset, struct memory *from,
              uint64_t from_offset, uint64_t length, haul_deadline until) {
  const struct provider *engine;
  int code = length == 0 ? 0 : copy_check(to, to_offset, from, from_offset, length);
  if (code || length == 0)
    return code;
  enum copy_method method = copy_method(to, from, &engine);
  if (method == COPY_CPU)
    return copy_by_cpu(to, to_offset, from, from_offset, length, until);
  if (method == COPY_ENGINE) {
    struct copy_pending pending;
    code = copy_pending_start(&pending, to, to_offset, from, from_offset, length);
    if (code == 1)
      return copy_between(staging, &pending, until);
    if (code != HAUL_ENOTSUP || copy_method(to, from, &engine) == COPY_ENGINE)
      return code == 0 ? pending_wait(&pending, until) : code;
  }
  return copy_staged(staging, &(struct staged){.to = to,
                                               .from = from,
                                               .to_offset = to_offset,
                                               .from_offset = from_offset,
                                               .length = length,
                                               .until = until});
}

int memory_checksum(struct memory *memory, uint64_t offset, uint64_t length, uint64_t *sum) {
  if (memory->provider->checksum)
    return memory->provider->checksum(memory, offset, length, sum);
  if (!memory->view)
    return error_set(HAUL_ENOTSUP, 0, memory->provider->name, "copy it to the host first",
                     "this memory cannot be summed where it is");
  int status = memory_fence(memory, FENCE_BEFORE_READ);
  if (status == 0)
    *sum = XXH3_64bits((const char *)memory->view + offset, length);
  return status;
}
