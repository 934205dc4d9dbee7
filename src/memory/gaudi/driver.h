/* SPDX-License-Identifier: MIT
 * libhl-thunk.so, opened at run time. */
#ifndef HAUL_MEMORY_GAUDI_DRIVER_H
#define HAUL_MEMORY_GAUDI_DRIVER_H

#include "core/library.h"
#include "memory/gaudi/api.h"

/* Each slot is the call that api.h names. */
struct gaudi_driver {
#define GAUDI_SLOT(slot, result, arguments) result(*slot) arguments;
  GAUDI_CALLS(GAUDI_SLOT)
  GAUDI_OPTIONAL_CALLS(GAUDI_SLOT)
#undef GAUDI_SLOT
};

/* The library's table, as from library_open: NULL with the detail. It is searched by the loader,
 * then in the folder of Intel's packages. */
const struct gaudi_driver *gaudi_driver_open(void);

/* For tests. */
extern struct library gaudi_library;

#endif
