/* SPDX-License-Identifier: MIT */
#include "memory/copy.h"

#include <stdio.h>
#include <xxhash.h>

#include "core/error.h"
#include "core/futex.h"
#include "core/sys.h"

#define CPU_SLICE   ((uint64_t)16 << 20) /* between two looks at the clock: a few milliseconds */
#define STAGE_SLICE ((uint64_t)1 << 20)
#define POLL_NS     5000 /* between two looks at an engine that does not call */

enum copy_by copy_who(const struct memory *to, const struct memory *from,
                      const struct provider **engine) {
  if (to->view && from->view)
    return COPY_CPU;
  if (to->provider->reaches && to->provider->reaches(from))
    *engine = to->provider;
  else if (from->provider->reaches && from->provider->reaches(to))
    *engine = from->provider;
  else
    return COPY_NOBODY;
  return COPY_ENGINE;
}

/* ---- one copy by an engine ---- */

static int late(const char *who) {
  return error_set(
      HAUL_ETIMEDOUT, 0, who,
      "the copy did not end by its deadline|allow more time; the destination is undefined");
}

/* A copy and the word that its end is told through. The word is not the status: the engine may
 * still be about to call `wake` when the status is seen to be final. */
struct pending {
  struct copy copy;
  const struct provider *engine;
  _Atomic uint32_t ended;
};

static void pending_wake(void *user) {
  _Atomic uint32_t *ended = user;
  atomic_store_explicit(ended, 1, memory_order_release);
  /* Whoever waited may be gone with the word from here on; the kernel takes the address as a key.
   */
  futex_wake(ended);
}

static int pending_start(struct pending *pending, struct memory *to, uint64_t to_offset,
                         struct memory *from, uint64_t from_offset, uint64_t length) {
  atomic_store_explicit(&pending->ended, 0, memory_order_relaxed);
  pending->copy = (struct copy){.to = to,
                                .from = from,
                                .to_offset = to_offset,
                                .from_offset = from_offset,
                                .length = length,
                                .wake = pending_wake,
                                .user = &pending->ended,
                                .status = 1};
  copy_who(to, from, &pending->engine);
  return pending->engine->copy_start(&pending->copy);
}

static bool pending_is_over(struct pending *pending) {
  if (pending->engine->wakes)
    return atomic_load_explicit(&pending->ended, memory_order_acquire) == 1;
  return pending->engine->copy_poll(&pending->copy) != 1;
}

/* When it returns the engine is done with the copy, whatever the result. */
static int pending_wait(struct pending *pending, haul_deadline until) {
  while (!pending_is_over(pending)) {
    int64_t now = clock_now();
    if (now >= until) {
      pending->engine->copy_cancel(&pending->copy);
      break;
    }
    int64_t look = pending->engine->wakes ? until : clock_after(now, POLL_NS);
    futex_wait(&pending->ended, 0, look < until ? look : until);
  }
  int status = pending->engine->copy_poll(&pending->copy);
  if (status == 0)
    return 0;
  if (status == HAUL_ECANCELED)
    return late(pending->engine->name);
  if (!pending->engine->wakes)
    return status; /* the failure was this thread's */
  return error_set(status, 0, pending->engine->name,
                   "the device's copy failed|haul_check_list says "
                   "what state its provider is in");
}

/* ---- staging ---- */

/* Two buffers, so that one engine fills while the other drains. */
struct stage {
  struct memory buffers[2];
  struct pending in, out;
  bool filling, draining;
};

/* Starts to fill buffer `i` with the slice at `at`. */
static int stage_fill(struct stage *stage, unsigned i, struct memory *from, uint64_t from_offset,
                      uint64_t at, uint64_t length) {
  uint64_t bytes = length - at < STAGE_SLICE ? length - at : STAGE_SLICE;
  if (bytes == 0)
    return 0;
  int status = pending_start(&stage->in, &stage->buffers[i], 0, from, from_offset + at, bytes);
  stage->filling = status == 0;
  return status;
}

static int stage_finish(struct pending *pending, bool *busy, haul_deadline until) {
  if (!*busy)
    return 0;
  *busy = false;
  return pending_wait(pending, until);
}

static int stage_move(struct stage *stage, struct memory *to, uint64_t to_offset,
                      struct memory *from, uint64_t from_offset, uint64_t length,
                      haul_deadline until) {
  unsigned i = 0;
  int status = stage_fill(stage, 0, from, from_offset, 0, length);
  for (uint64_t at = 0; status == 0 && at < length; i ^= 1) {
    uint64_t bytes = length - at < STAGE_SLICE ? length - at : STAGE_SLICE;
    status = stage_finish(&stage->in, &stage->filling, until);
    if (status == 0)
      status = stage_finish(&stage->out, &stage->draining, until);
    if (status == 0)
      status = pending_start(&stage->out, to, to_offset + at, &stage->buffers[i], 0, bytes);
    if (status != 0)
      break;
    stage->draining = true;
    at += bytes;
    status = stage_fill(stage, i ^ 1, from, from_offset, at, length);
  }
  if (status == 0)
    return stage_finish(&stage->out, &stage->draining, until);
  struct haul_error first;
  error_save(&first);
  stage_finish(&stage->in, &stage->filling, HAUL_NO_WAIT);
  stage_finish(&stage->out, &stage->draining, HAUL_NO_WAIT);
  return error_restore(&first);
}

static int copy_staged(struct memory *to, uint64_t to_offset, struct memory *from,
                       uint64_t from_offset, uint64_t length, haul_deadline until) {
  const struct haul_place host = {HAUL_HOST, 0};
  const struct provider *engine;
  struct stage stage = {.filling = false};
  int status = memory_alloc(host, STAGE_SLICE, HAUL_REGION_PRIVATE, &stage.buffers[0]);
  if (status != 0)
    return status;
  status = memory_alloc(host, STAGE_SLICE, HAUL_REGION_PRIVATE, &stage.buffers[1]);
  if (status != 0)
    goto no_second;
  if (copy_who(to, &stage.buffers[0], &engine) != COPY_ENGINE ||
      copy_who(&stage.buffers[0], from, &engine) != COPY_ENGINE)
    status = error_set(HAUL_ENOTSUP, 0, to->provider->name,
                       "no engine copies between this memory and the host's|use other memory");
  else
    status = stage_move(&stage, to, to_offset, from, from_offset, length, until);
  memory_free(&stage.buffers[1]);
no_second:
  memory_free(&stage.buffers[0]);
  return status;
}

/* ---- the whole ---- */

static int copy_by_cpu(struct memory *to, uint64_t to_offset, struct memory *from,
                       uint64_t from_offset, uint64_t length, haul_deadline until) {
  int status = memory_fence(from, FENCE_BEFORE_READ);
  for (uint64_t at = 0; status == 0 && at < length; at += CPU_SLICE) {
    if (at > 0 && clock_now() >= until)
      return late("cpu");
    uint64_t bytes = length - at < CPU_SLICE ? length - at : CPU_SLICE;
    copy_slice((char *)to->view + to_offset + at, (const char *)from->view + from_offset + at,
               bytes, length);
  }
  return status == 0 ? memory_fence(to, FENCE_AFTER_WRITE) : status;
}

static bool overlap(const struct memory *to, uint64_t to_offset, const struct memory *from,
                    uint64_t from_offset, uint64_t length) {
  uintptr_t a = (uintptr_t)to->address + to_offset, b = (uintptr_t)from->address + from_offset;
  return to->place.kind == from->place.kind && to->place.device == from->place.device &&
         a < b + length && b < a + length;
}

int copy_wait(struct memory *to, uint64_t to_offset, struct memory *from, uint64_t from_offset,
              uint64_t length, haul_deadline until) {
  const struct provider *engine;
  if (length == 0)
    return 0;
  if (!to->writable)
    return error_set(
        HAUL_EACCESS, 0, to->provider->name,
        "the destination may only be read|share it with HAUL_WRITE, or map it writable");
  if (overlap(to, to_offset, from, from_offset, length))
    return error_set(HAUL_EINVAL, 0, to->provider->name,
                     "source and destination overlap|copy through a third region");
  switch (copy_who(to, from, &engine)) {
  case COPY_CPU:
    return copy_by_cpu(to, to_offset, from, from_offset, length, until);
  case COPY_NOBODY:
    return copy_staged(to, to_offset, from, from_offset, length, until);
  case COPY_ENGINE:
    break;
  }
  struct pending pending;
  int status = pending_start(&pending, to, to_offset, from, from_offset, length);
  return status == 0 ? pending_wait(&pending, until) : status;
}

int memory_checksum(struct memory *memory, uint64_t offset, uint64_t length, uint64_t *sum) {
  if (memory->provider->checksum)
    return memory->provider->checksum(memory, offset, length, sum);
  if (!memory->view)
    return error_set(HAUL_ENOTSUP, 0, memory->provider->name,
                     "this memory cannot be summed where it is|copy it to the host first");
  int status = memory_fence(memory, FENCE_BEFORE_READ);
  if (status == 0)
    *sum = XXH3_64bits((const char *)memory->view + offset, length);
  return status;
}
