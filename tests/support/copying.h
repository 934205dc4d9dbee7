/* SPDX-License-Identifier: MIT
 * Copies between any two memories, as a node does them. */
#ifndef HAUL_TESTS_COPYING_H
#define HAUL_TESTS_COPYING_H

#include "memory/provider.h"

/* With a staging pool of its own. */
int copy_wait(struct memory *to, uint64_t to_offset, struct memory *from, uint64_t from_offset,
              uint64_t length, haul_deadline until);

#endif
