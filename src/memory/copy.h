/* SPDX-License-Identifier: MIT
 * Copies between two blocks of memory, by the CPU, an engine or staging. */
#ifndef HAUL_MEMORY_COPY_H
#define HAUL_MEMORY_COPY_H

#include <string.h>

#include "memory/provider.h"

enum copy_method {
  COPY_STAGED, /* neither device reaches the other: through bounce buffers */
  COPY_CPU,    /* both have a CPU view */
  COPY_ENGINE  /* by *engine */
};

/* Chooses by the provider tables; sets *engine for COPY_ENGINE. */
enum copy_method copy_method(const struct memory *to, const struct memory *from,
                             const struct provider **engine);

/* Copies with the CPU a slice of a copy of `whole` bytes, which decides about non-temporal stores.
 * Ranges must not overlap. Afterwards the bytes are visible to each thread and process that maps
 * them and synchronises with this one. */
void copy_slice(void *to, const void *from, size_t length, size_t whole);

/* The same for one of many parts: the bytes are visible after copy_parts_end, once for all of them.
 * A part shorter than COPY_PART_LEAST may as well be copied by memcpy. */
#define COPY_PART_LEAST 256u
void copy_part(void *to, const void *from, size_t length, size_t whole);
void copy_parts_end(size_t whole);

/* At most COPY_SMALL bytes. Eight bytes are one store, so readers see the word whole. */
#define COPY_SMALL 4096u
static inline void copy_small(void *to, const void *from, size_t length) {
  if (length == 8)
    memcpy(to, from, 8);
  else
    memcpy(to, from, length);
}

/* HAUL_EFORK in a forked child, HAUL_EACCESS where the destination may not be written. */
int copy_may_start(const struct copy *copy, const struct provider *engine);

/* A copy by an engine, and a futex word that its `wake` sets once someone waits. */
struct copy_pending {
  struct copy copy;
  const struct provider *engine;
  _Atomic uint32_t woken;
};

/* HAUL_EACCESS, HAUL_EINVAL (the ranges overlap). */
int copy_check(const struct memory *to, uint64_t to_offset, const struct memory *from,
               uint64_t from_offset, uint64_t length);

/* Starts a checked COPY_ENGINE copy without blocking. 1: not started, as the engine needs bounce
 * buffers. `pending` must stay in place until copy_pending_look returns a result, or cancel
 * returns. */
int copy_pending_start(struct copy_pending *pending, struct memory *to, uint64_t to_offset,
                       struct memory *from, uint64_t from_offset, uint64_t length);

/* 1: in progress; 0 or an error: the result. One caller at a time, cancel included. */
int copy_pending_look(struct copy_pending *pending);

/* When it returns, the engine has finished with the copy, whatever the result. */
void copy_pending_cancel(struct copy_pending *pending);

struct staging;

/* Copies and waits, through two bounce buffers if there is no direct way. The caller has checked
 * the offsets. HAUL_EINVAL (the ranges overlap), HAUL_EACCESS, HAUL_ETIMEDOUT (`to` is then
 * undefined), HAUL_ENOTSUP (it needs bounce buffers and `staging` is NULL). */
int copy_sync(struct staging *staging, struct memory *to, uint64_t to_offset, struct memory *from,
              uint64_t from_offset, uint64_t length, haul_deadline until);

/* Can the device's engine copy to and from host memory? */
bool copy_stages(const struct memory *memory);

/* XXH3-64 over a range, by the provider or the CPU view; HAUL_ENOTSUP without either. */
int memory_checksum(struct memory *memory, uint64_t offset, uint64_t length, uint64_t *sum);

#endif
