/* SPDX-License-Identifier: MIT
 * Memory that ranks send from and receive into, at the place that HAUL_TEST_PLACE names: of the
 * host, of an emulated accelerator, of a GPU (a double's, in the tests) by the driver's calls. */
#ifndef HAUL_TESTS_NCCL_PLACES_H
#define HAUL_TESTS_NCCL_PLACES_H

#include <stdint.h>

#include "ranks.h"

struct place {
  char *address;
  size_t size;
  int type; /* as NCCL says it */
  void *region;
};

/* Does this host have that place? Else it says that the program is skipped. */
bool places_are_there(void);
void place_make(const struct rank *rank, struct place *place, size_t size);
void place_end(struct place *place);
/* Registers it as NCCL does: memory of a device by a dma-buf, which stays the caller's. */
void place_register(const struct rank *rank, const struct place *place, void *comm, void **memory);
void place_put(const struct rank *rank, const struct place *place, size_t offset,
               const uint8_t *bytes, size_t size);
void place_get(const struct rank *rank, const struct place *place, size_t offset, uint8_t *bytes,
               size_t size);

#endif
