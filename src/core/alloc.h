/* SPDX-License-Identifier: MIT
 * Allocation of bookkeeping memory, through a seam by which tests fail the n-th request. */
#ifndef HAUL_CORE_ALLOC_H
#define HAUL_CORE_ALLOC_H

#include <stddef.h>

/* Tests replace these functions before the first call. */
struct alloc_ops {
  void *(*calloc)(size_t count, size_t size);
  void *(*realloc)(void *old, size_t size);
  void (*free)(void *block);
};
extern struct alloc_ops alloc_ops;

/* Zeroed; NULL when there is none. */
static inline void *alloc_zero(size_t count, size_t size) {
  return alloc_ops.calloc(count, size);
}

static inline void *alloc_resize(void *old, size_t size) {
  return alloc_ops.realloc(old, size);
}

static inline void alloc_free(void *block) {
  alloc_ops.free(block);
}

/* A copy of the string, or NULL. */
char *alloc_string(const char *text);

#endif
