/* SPDX-License-Identifier: MIT
 * Threads that do for workers what blocks: copies between staging buffers and devices, and what far
 * files are asked for. */
#ifndef HAUL_STORAGE_MOVER_H
#define HAUL_STORAGE_MOVER_H

#include "core/list.h"
#include "haul/haul.h"
#include "storage/far.h"
#include "storage/guard.h"

struct mover;

/* The caller's, in place until `done`. */
struct moving {
  struct list link;
  /* A copy: */
  haul_region *to, *from;
  uint64_t to_offset, from_offset;
  /* Or, not NULL: */
  struct far *far;
  char *bytes;  /* NULL: the hold is given back, and nothing else is done */
  off_t offset; /* in the file */
  bool writes;
  int flags;                 /* of a write: RWF_... */
  off_t hole_from, hole_end; /* there is to be no hole between the two; 0: who cares */
  struct guard *guard;       /* over the bytes, or NULL */

  size_t length;
  void (*done)(struct moving *moving); /* in the mover's thread */
  void *context;
  ssize_t result; /* bytes, of a copy 0; or a negative errno value */
};

/* 0 or a negative errno value. */
int mover_open(unsigned threads, struct mover **mover);
/* Nothing is under way any more. */
void mover_close(struct mover *mover);
void mover_post(struct mover *mover, struct moving *moving);
/* From now on what far files are asked for, and nobody asks yet, is ECANCELED: a server that does
 * not answer would keep each of them for its whole deadline. */
void mover_hurry(struct mover *mover);

#endif
