/* SPDX-License-Identifier: MIT
 * Who copies between two blocks of memory, and doing it. */
#ifndef HAUL_MEMORY_COPY_H
#define HAUL_MEMORY_COPY_H

#include <string.h>

#include "memory/provider.h"

enum copy_method {
  COPY_STAGED, /* two devices that do not reach each other: stage through the host */
  COPY_CPU,    /* both have a view */
  COPY_ENGINE  /* *engine does it */
};

/* Decides by the tables alone; *engine is set for COPY_ENGINE. */
enum copy_method copy_method(const struct memory *to, const struct memory *from,
                             const struct provider **engine);

/* Copies with the CPU, quickly at any size; ranges do not overlap. When it returns the bytes are
 * visible to every thread and process that maps them and that synchronises with this one. */
void copy_bytes(void *to, const void *from, size_t length);

/* The same for a slice of a copy of `whole` bytes, which decides whether the caches are passed by.
 */
void copy_slice(void *to, const void *from, size_t length, size_t whole);

/* At most COPY_SMALL bytes. Eight are one store: who watches the word sees it whole. */
#define COPY_SMALL 4096u
static inline void copy_small(void *to, const void *from, size_t length) {
  if (length == 8)
    memcpy(to, from, 8);
  else
    memcpy(to, from, length);
}

/* A copy by an engine, and the word that its end is told through. The word is not the status: the
 * engine may still be about to call `wake` when the status is seen to be final. */
struct copy_pending {
  struct copy copy;
  const struct provider *engine;
  _Atomic uint32_t ended;
};

/* HAUL_EACCESS, HAUL_EINVAL (the ranges overlap). */
int copy_check(const struct memory *to, uint64_t to_offset, const struct memory *from,
               uint64_t from_offset, uint64_t length);

/* Starts what is COPY_ENGINE's to do and was checked, and does not block. 1: nothing is started,
 * the engine takes buffers of the host between. `pending` stays in place until a look said how it
 * ended, or cancel returned. */
int copy_pending_start(struct copy_pending *pending, struct memory *to, uint64_t to_offset,
                       struct memory *from, uint64_t from_offset, uint64_t length);

/* 1: under way; 0, or the error it ended with. One caller at a time, cancel included. */
int copy_pending_look(struct copy_pending *pending);

/* When it returns the engine is done with the copy, whatever the result. */
void copy_pending_cancel(struct copy_pending *pending);

struct staging;

/* Copies and waits, through two of these buffers where nobody does it directly. The offsets have
 * been checked. HAUL_EINVAL (the ranges overlap), HAUL_EACCESS, HAUL_ETIMEDOUT (`to` is then
 * undefined), HAUL_ENOTSUP (`staging` is NULL and it takes buffers). */
int copy_sync(struct staging *staging, struct memory *to, uint64_t to_offset, struct memory *from,
              uint64_t from_offset, uint64_t length, haul_deadline until);

/* Whether the device copies to and from memory of this host. */
bool copy_stages(const struct memory *memory);

/* XXH3-64 over a range by the provider or the view; HAUL_ENOTSUP where neither can. */
int memory_checksum(struct memory *memory, uint64_t offset, uint64_t length, uint64_t *sum);

#endif
