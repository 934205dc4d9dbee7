/* SPDX-License-Identifier: MIT
 * Buffers that clients registered, by id. Any thread; 0 or a negative errno value. */
#ifndef HAUL_STORAGE_BUFFER_H
#define HAUL_STORAGE_BUFFER_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "core/list.h"
#include "haul/haul.h"
#include "storage/guard.h"

struct buffers;

/* Mapped memory of a client's, which may cut it short: where it is not the kernel that copies, the
 * guard is asked afterwards. Or a region of a device's. */
struct buffer {
  uint8_t id[16];
  uid_t uid;
  char *address; /* NULL: a device's */
  size_t length;
  struct guard guard;  /* over the mapping */
  haul_region *region; /* a device's, else NULL */
  haul_node *node;     /* the region's */
  int descriptor;  /* came with the region, and is closed after it: who lent it waits for that */
  int slot;        /* for fixed.c, nobody else's while it is in the table; -1: none is left */
  uint64_t serial; /* of this life of the slot */
  _Atomic uint64_t used;  /* bytes that operations on it asked for */
  struct list link;       /* the table's */
  _Atomic unsigned holds; /* the table's, and one for each operation */
};

int buffers_open(struct buffers **buffers);
/* None is in the table any more. */
void buffers_close(struct buffers *buffers);

/* `like` has id, user, length, and the mapping or the region, which end with the last hold. EEXIST,
 * ENOMEM: they stay the caller's. */
int buffers_add(struct buffers *buffers, const struct buffer *like, struct buffer **buffer);
/* It is found no more. */
void buffers_remove(struct buffers *buffers, struct buffer *buffer);

/* The serial number that the slot's buffer has, 0 when it has none; and a number that changes
 * whenever one of these does. */
#define BUFFERS_SLOTS 1024
uint64_t buffers_serial(const struct buffers *buffers, int slot);
uint64_t buffers_changes(const struct buffers *buffers);

/* Held until buffer_put. ENOENT: there is none of this user's. */
int buffers_get(struct buffers *buffers, const uint8_t id[16], uid_t uid, struct buffer **buffer);
void buffer_put(struct buffer *buffer);

#endif
