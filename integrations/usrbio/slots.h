/* SPDX-License-Identifier: MIT
 * The operations of a ring: which numbers are free, and what the program gave with those that are
 * under way. In memory of the process's own, so nothing the daemon writes can upset it.
 *
 * One thread takes numbers, and one at a time ends them. `free_head` is written by who ends,
 * `free_tail` by who takes. */
#ifndef HAUL_USRBIO_SLOTS_H
#define HAUL_USRBIO_SLOTS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct slot {
  const void *userdata;
  _Atomic bool busy;
};

struct slots {
  int32_t count;
  struct slot *slots;
  int32_t *free; /* a ring of count + 1 places */
  _Alignas(64) _Atomic int32_t free_head;
  _Alignas(64) _Atomic int32_t free_tail;
};

/* 0 or -ENOMEM. */
int slots_make(struct slots *slots, int32_t count);
void slots_end(struct slots *slots);

/* A free number, under way from now on; -1: there is none. */
int32_t slots_take(struct slots *slots, const void *userdata);
/* Whether it is under way; it is not from now on, and not free yet either. Any number will do. */
bool slots_finish(struct slots *slots, int32_t index, const void **userdata);
/* What was finished may be taken again. */
void slots_give(struct slots *slots, int32_t index);
/* Whether nothing is under way. */
bool slots_idle(struct slots *slots);

#endif
