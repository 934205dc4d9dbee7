/* SPDX-License-Identifier: MIT
 * Files in /dev/shm, mapped. Calls return 0 or a negative errno value. */
#ifndef HAUL_USRBIO_MEMORY_H
#define HAUL_USRBIO_MEMORY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define MEMORY_PATH sizeof "/dev/shm/hf3fs-iov-00112233-4455-6677-8899-aabbccddeeff"

struct memory {
  uint8_t *base;
  size_t size;
  char path[MEMORY_PATH]; /* empty: not this process's to unlink */
};

/* A random UUID. */
int memory_id(uint8_t id[16]);

/* A new file of this user's alone, full of zeros, on a node if it can be (negative: anywhere). */
int memory_make(const uint8_t id[16], size_t size, int numa, struct memory *memory);
/* Of somebody else's file, which has to have as many bytes. */
int memory_open(const char *path, size_t size, struct memory *memory);
void memory_unlink(struct memory *memory);
/* Unlinks it too. */
void memory_end(struct memory *memory);

/* Wishes the pages that are not there yet onto a node. */
void memory_prefer(void *base, size_t size, int numa);

#endif
