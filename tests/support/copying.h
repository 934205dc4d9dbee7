/* SPDX-License-Identifier: MIT
 * Copies between any two memories, as a node makes them. */
#ifndef HAUL_TESTS_COPYING_H
#define HAUL_TESTS_COPYING_H

#include "memory/provider.h"

/* Through staging buffers of the call's own where it takes some. */
int copy_wait(struct memory *to, uint64_t to_offset, struct memory *from, uint64_t from_offset,
              uint64_t length, haul_deadline until);

#endif
