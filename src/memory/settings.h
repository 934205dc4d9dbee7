/* SPDX-License-Identifier: MIT
 * What nodes are told of memory, for the whole process: who reads settings is above this layer. */
#ifndef HAUL_MEMORY_SETTINGS_H
#define HAUL_MEMORY_SETTINGS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct memory_settings {
  char dpdk_eal[256];    /* EAL's arguments, between blanks; "": auto, by what the host has */
  size_t dpdk_hugepages; /* bytes that may be reserved as huge pages; 0, SIZE_MAX: none */
  uint32_t dpdk_pool[4]; /* objects of each of the pool's classes, at each node of memory */
  int64_t dpdk_wait_ns;  /* for one of them to come back */
};

extern const struct memory_settings memory_defaults;

/* The next use finds them; what was opened once for the process stays as it is. */
void memory_settings_set(const struct memory_settings *settings);
void memory_settings_get(struct memory_settings *settings);

/* Can these be EAL's arguments? Not one that ends the program, or that no argument looks like. */
bool memory_eal_is_valid(const char *arguments);

#endif
