/* SPDX-License-Identifier: MIT
 * Parts of a large allocation, in steps of 4 KiB: which are free. It knows numbers alone and never
 * looks at the memory. Best fit, the lowest of equals. The caller locks. */
#ifndef HAUL_MEMORY_GAUDI_SUBALLOC_H
#define HAUL_MEMORY_GAUDI_SUBALLOC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define SUBALLOC_STEP  ((uint64_t)4096)
#define SUBALLOC_PARTS 65536u /* in use at a time, at most */

struct suballoc_hole {
  uint64_t offset, length;
};

struct suballoc {
  uint64_t length;
  struct suballoc_hole *holes; /* by offset, none touches the next */
  size_t count, room;
  size_t parts; /* in use */
};

/* All of [0, length) is free; `length` is in steps. HAUL_ENOMEM. */
int suballoc_open(struct suballoc *suballoc, uint64_t length);
void suballoc_close(struct suballoc *suballoc);

/* The length of the smallest hole that has `length` bytes, 0 where there is none. */
uint64_t suballoc_fit(const struct suballoc *suballoc, uint64_t length);

/* Takes `length` bytes, which are in steps and not 0. HAUL_ENOMEM: no hole is large enough;
 * HAUL_ELIMIT: SUBALLOC_PARTS are in use. */
int suballoc_take(struct suballoc *suballoc, uint64_t length, uint64_t *offset);

/* Gives back what take gave, whole. Cannot fail. */
void suballoc_give(struct suballoc *suballoc, uint64_t offset, uint64_t length);

#endif
