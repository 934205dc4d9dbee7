/* SPDX-License-Identifier: MIT
 * Names under 3fs-virt/iovs: a buffer's or a ring's id (a UUID in hexadecimal, with or without
 * hyphens) and, each behind a dot, what it is:
 *
 *   b4096    blocks of so many bytes
 *   r32 w-8  a ring for reading or writing, and its depth
 *   ph pl pn priority: high, low, normal
 *   t100     milliseconds that a ring with a negative depth waits for a full batch
 *   f10      flags, in binary digits
 *
 * Needs nothing else of haul: the client's library is built from it too. */
#ifndef HAUL_STORAGE_NAME_H
#define HAUL_STORAGE_NAME_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define NAME_ROOM 192 /* for any name that name_format makes */

/* Of a ring: HF3FS_IOR_… of hf3fs_usrbio.h, which HAUL_IOR_DURABLE extends. */
#define RING_UNCOMMITTED                                                                           \
  1u /* taken, and without a meaning here: what is read is what was written */
#define RING_NO_HOLES 2u
#define RING_DURABLE  4u /* haul's own: a write is complete when it would survive a power cut */

enum name_priority { NAME_HIGH, NAME_NORMAL, NAME_LOW, NAME_PRIORITIES };

struct name {
  uint8_t id[16];
  uint64_t block;
  bool ring, for_read;
  int32_t depth;
  int32_t timeout_ms;
  uint64_t flags;
  uint8_t priority; /* enum name_priority */
};

/* 0, or -EINVAL: no such name, or marks of a ring on what is none. */
int name_parse(const char *text, struct name *name);
/* The name in 3FS's own spelling; the length. */
size_t name_format(const struct name *name, char text[NAME_ROOM]);

#endif
