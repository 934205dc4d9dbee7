/* SPDX-License-Identifier: MIT
 * What the makers of seeds share. */
#ifndef HAUL_TESTS_SEEDS_H
#define HAUL_TESTS_SEEDS_H

#include "core/wire.h"

/* An empty input, as long as a target takes; there is one at a time. */
struct wire seed_begin(void);
/* Writes it to FOLDER/TARGET/NAME. */
void seed_save(const char *target, const char *name, const struct wire *wire);

void seeds_of_rdma(void); /* seeds_rdma.c */

#endif
