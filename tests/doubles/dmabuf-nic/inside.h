/* SPDX-License-Identifier: MIT
 * What the double's own files share. */
#ifndef HAUL_TESTS_DMABUF_NIC_INSIDE_H
#define HAUL_TESTS_DMABUF_NIC_INSIDE_H

#include <stdbool.h>
#include <stdint.h>

#include "dmabuf_nic.h"

/* watch.c: what stands between the program and libc. */

/* A symbol of the real libibverbs; ends the process where there is none. */
void *real_verb(const char *name);

/* The shared memory behind a dma-buf that this process made. */
struct behind {
  int memfd; /* the program's own, not to be closed */
  uint64_t offset;
};
bool find_behind(int dmabuf, struct behind *behind);

#endif
