/* SPDX-License-Identifier: MIT
 * Performance: the table that estimates begin with, and what it is corrected by when
 * GAUDI_MEASURE asks for it. */
#include "module.h"

#include <stdlib.h>

#define LARGE  ((size_t)16 << 20)
#define ROUNDS 9

/* From the published guide for Gaudi in UCX. */
const struct gaudi_performance gaudi_table[GAUDI_KINDS] = {
    [GAUDI_COPY] = {25.6e9, 5e-6},
    [GAUDI_IPC] = {12.8e9, 1e-6},
    [GAUDI_DMA] = {25.6e9, 1e-6},
};

static int ascending(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

/* The median, in seconds; 0: it failed. */
static double time_of(haul_region *device, haul_region *host, size_t length, haul_deadline until) {
  double took[ROUNDS];
  for (unsigned i = 0; i < ROUNDS; i++) {
    haul_deadline began = haul_deadline_in(0);
    if (haul_region_copy(i % 2 ? host : device, 0, i % 2 ? device : host, 0, length, until))
      return 0;
    took[i] = (double)(haul_deadline_in(0) - began) * 1e-9;
  }
  qsort(took, ROUNDS, sizeof took[0], ascending);
  return took[ROUNDS / 2];
}

static void measure(struct gaudi_md *md, haul_region *device, haul_region *host) {
  haul_deadline until = haul_deadline_in(gaudi_nanoseconds(md->timeout));
  double small = time_of(device, host, 64, until), large = time_of(device, host, LARGE, until);
  if (small <= 0 || large <= small) {
    gaudi_failed("copies cannot be measured, so estimates stay", UCS_LOG_LEVEL_WARN);
    return;
  }
  md->measured = (struct gaudi_performance){(double)LARGE / (large - small), small};
  ucs_info("gaudi: measured: %.1f GB/s, %.1f us; gaudi_ipc is estimated by its table, as that "
           "takes a second process",
           md->measured.bandwidth * 1e-9, small * 1e6);
}

void gaudi_measure(struct gaudi_md *md) {
  const struct haul_place at_host = {HAUL_HOST, 0};
  struct gaudi_memh *memh = NULL;
  haul_region *host = NULL;
  size_t length = LARGE;
  void *address;
  if (gaudi_md_alloc(md, &length, &address, &memh) != UCS_OK ||
      haul_region_alloc(gaudi_node(), at_host, LARGE, HAUL_REGION_PINNED, &host))
    ucs_warn("gaudi: copies cannot be measured for want of memory, so estimates stay");
  else
    measure(md, memh->region, host);
  haul_region_release(host);
  if (memh)
    gaudi_memory_free(memh);
}
