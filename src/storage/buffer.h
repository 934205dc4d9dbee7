/* SPDX-License-Identifier: MIT
 * Buffers that clients registered, by id. Any thread; 0 or a negative errno value. */
#ifndef HAUL_STORAGE_BUFFER_H
#define HAUL_STORAGE_BUFFER_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "core/list.h"

struct buffers;

/* Mapped memory of a client's, which may cut it short: only the kernel copies to and from it. */
struct buffer {
  uint8_t id[16];
  uid_t uid;
  char *address;
  size_t length;
  struct list link;       /* the table's */
  _Atomic unsigned holds; /* the table's, and one for each operation */
};

int buffers_open(struct buffers **buffers);
/* None is in the table any more. */
void buffers_close(struct buffers *buffers);

/* Takes the mapping, which ends with the last hold. EEXIST, ENOMEM: it stays the caller's. */
int buffers_add(struct buffers *buffers, const uint8_t id[16], uid_t uid, void *address,
                size_t length, struct buffer **buffer);
/* It is found no more. */
void buffers_remove(struct buffers *buffers, struct buffer *buffer);

/* Held until buffer_put. ENOENT: there is none of this user's. */
int buffers_get(struct buffers *buffers, const uint8_t id[16], uid_t uid, struct buffer **buffer);
void buffer_put(struct buffer *buffer);

#endif
