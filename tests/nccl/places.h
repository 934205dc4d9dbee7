/* SPDX-License-Identifier: MIT
 * Memory of the ranks, at the place in HAUL_TEST_PLACE: host, emulated accelerator, or GPU (mocked
 * in CI), there allocated by the driver. */
#ifndef HAUL_TESTS_NCCL_PLACES_H
#define HAUL_TESTS_NCCL_PLACES_H

#include <stdint.h>

#include "ranks.h"

struct place {
  char *address;
  size_t size;
  int type; /* NCCL_POINTER_... */
  void *region;
};

/* Whether this host has the place; otherwise prints the skip. */
bool places_are_available(void);
void place_make(const struct rank *rank, struct place *place, size_t size);
void place_end(struct place *place);
/* Registers it like NCCL: device memory by a dma-buf. */
void place_register(const struct rank *rank, const struct place *place, void *comm, void **memory);
void place_put(const struct rank *rank, const struct place *place, size_t offset,
               const uint8_t *bytes, size_t size);
void place_get(const struct rank *rank, const struct place *place, size_t offset, uint8_t *bytes,
               size_t size);

#endif
