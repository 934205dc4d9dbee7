/* SPDX-License-Identifier: MIT
 * The calls of hl-thunk (hlthunk.h) that the hook replaces. */
#ifndef HAUL_UCX_HLTHUNK_H
#define HAUL_UCX_HLTHUNK_H

#include <stdbool.h>
#include <stdint.h>

#pragma GCC visibility push(default)

int hlthunk_open(int kind, const char *bus);
int hlthunk_close(int fd);
uint64_t hlthunk_device_memory_alloc(int fd, uint64_t size, uint64_t page, bool contiguous,
                                     bool shared);
int hlthunk_device_memory_free(int fd, uint64_t handle);
uint64_t hlthunk_device_memory_map(int fd, uint64_t handle, uint64_t hint);
int hlthunk_memory_unmap(int fd, uint64_t address);

#pragma GCC visibility pop

#endif
