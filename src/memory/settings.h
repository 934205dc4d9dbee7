/* SPDX-License-Identifier: MIT
 * Memory settings of the process, set by the layers above, which read the configuration. */
#ifndef HAUL_MEMORY_SETTINGS_H
#define HAUL_MEMORY_SETTINGS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct memory_settings {
  char dpdk_eal[256];    /* EAL's arguments, separated by blanks; "": automatic */
  size_t dpdk_hugepages; /* bytes to reserve as huge pages; 0, SIZE_MAX: none */
  uint32_t dpdk_pool[4]; /* objects of each size class, on each NUMA node */
  int64_t dpdk_wait_ns;  /* how long an allocation waits for a free object */
};

extern const struct memory_settings memory_defaults;

/* Used from now on; has no effect on what is already open. */
void memory_settings_set(const struct memory_settings *settings);
void memory_settings_get(struct memory_settings *settings);

/* Are these valid arguments for EAL, none of which ends the program? */
bool memory_eal_is_valid(const char *arguments);

#endif
