/* SPDX-License-Identifier: MIT
 * Threads that copy between staging buffers and devices, so that workers need not wait. */
#ifndef HAUL_STORAGE_MOVER_H
#define HAUL_STORAGE_MOVER_H

#include "core/list.h"
#include "haul/haul.h"

struct mover;

/* The caller's, in place until `done`. */
struct moving {
  struct list link;
  haul_region *to, *from;
  uint64_t to_offset, from_offset;
  size_t length;
  void (*done)(struct moving *moving); /* in the mover's thread */
  void *context;
  int code; /* 0 or a negative errno value */
};

/* 0 or a negative errno value. */
int mover_open(unsigned threads, struct mover **mover);
/* Nothing is under way any more. */
void mover_close(struct mover *mover);
void mover_post(struct mover *mover, struct moving *moving);

#endif
