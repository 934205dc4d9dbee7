/* SPDX-License-Identifier: MIT
 * Suballocator for parts of a large allocation, in steps of 4 KiB. It handles numbers and never
 * accesses the memory. Best fit, lowest offset first. The caller locks. */
#ifndef HAUL_MEMORY_GAUDI_SUBALLOC_H
#define HAUL_MEMORY_GAUDI_SUBALLOC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define SUBALLOC_STEP  ((uint64_t)4096)
#define SUBALLOC_PARTS 65536u /* allocated at a time, at most */

struct suballoc_hole {
  uint64_t offset, length;
};

struct suballoc {
  uint64_t length;
  struct suballoc_hole *holes; /* by offset, none adjacent to the next */
  size_t count, room;
  size_t parts; /* in use */
};

/* [0, length) is free; `length` is a multiple of the step. HAUL_ENOMEM. */
int suballoc_open(struct suballoc *suballoc, uint64_t length);
void suballoc_close(struct suballoc *suballoc);

/* The size of the smallest hole of at least `length` bytes; 0: none. */
uint64_t suballoc_fit(const struct suballoc *suballoc, uint64_t length);

/* Allocates `length` bytes, a multiple of the step greater than 0. HAUL_ENOMEM: no hole is large
 * enough; HAUL_ELIMIT: SUBALLOC_PARTS are allocated. */
int suballoc_take(struct suballoc *suballoc, uint64_t length, uint64_t *offset);

/* Frees a whole part; cannot fail. */
void suballoc_give(struct suballoc *suballoc, uint64_t offset, uint64_t length);

#endif
