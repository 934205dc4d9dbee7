/* SPDX-License-Identifier: MIT
 * Internals of the mock. */
#ifndef HAUL_TESTS_DMABUF_NIC_INSIDE_H
#define HAUL_TESTS_DMABUF_NIC_INSIDE_H

#include <stdbool.h>
#include <stdint.h>

#include "dmabuf_nic.h"

/* watch.c: interposed calls of libc. */

/* A symbol of the real libibverbs; aborts if it is missing. */
void *real_verb(const char *name);

/* The shared memory behind a dma-buf that this process made. */
struct behind {
  int memfd; /* the program's, not to be closed */
  uint64_t offset;
};
bool find_behind(int dmabuf, struct behind *behind);

#endif
