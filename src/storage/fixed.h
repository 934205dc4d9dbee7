/* SPDX-License-Identifier: MIT
 * Buffers that a worker's io_uring knows: their pages are pinned once instead of for each read, a
 * third of what a read of a MiB costs the processor. Their own worker's thread alone. */
#ifndef HAUL_STORAGE_FIXED_H
#define HAUL_STORAGE_FIXED_H

#include <liburing.h>
#include <stdbool.h>

#include "storage/buffer.h"

struct fixed {
  bool possible;                   /* this kernel has it (5.19), and room was left */
  uint64_t serials[BUFFERS_SLOTS]; /* what the io_uring has in each slot; 0: nothing */
  uint64_t refused[BUFFERS_SLOTS]; /* the last one that it did not take */
  uint64_t changes;                /* that were looked at */
};

void fixed_open(struct fixed *fixed, struct io_uring *uring);
/* The slot of a buffer whose pages are pinned: once as many bytes went through it as it has, and
 * while the limit of locked memory (RLIMIT_MEMLOCK) lasts. -1: it has none. */
int fixed_slot(struct fixed *fixed, struct io_uring *uring, const struct buffers *buffers,
               struct buffer *buffer);
/* The kernel did not take it. */
bool fixed_refuses(const struct fixed *fixed, const struct buffer *buffer);
/* Lets go of buffers that are gone. */
void fixed_tend(struct fixed *fixed, struct io_uring *uring, const struct buffers *buffers);

#endif
