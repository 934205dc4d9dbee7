/* SPDX-License-Identifier: MIT
 * What the module asks the hook for allocations of a framework (hook.c, a library of its own, which
 * is preloaded). */
#ifndef HAUL_UCX_HOOK_H
#define HAUL_UCX_HOOK_H

#include <stdbool.h>
#include <stdint.h>

/* The mapping of device memory that the whole range lies in; false: there is none, or no hook. */
bool hook_find(uint64_t address, uint64_t length, uint64_t *start, uint64_t *end);

/* Tells of each mapping that there is, from now on also of those that come and go, from the thread
 * that makes or ends them, until it is called with NULL. Nothing without the hook. */
void hook_watch(void (*changed)(uint64_t start, uint64_t end, bool mapped));

/* Lends haul the descriptor that the framework opened its device with (HAUL_GAUDI_FD), where nobody
 * has set that. Before haul looks for devices. */
void hook_lend_device(void);

#endif
