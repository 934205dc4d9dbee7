/* SPDX-License-Identifier: MIT
 * The buffers of clients, by id: shared memory, or regions of devices. All calls may be made from
 * any thread, and return 0 or a negative errno value. */
#ifndef HAUL_STORAGE_BUFFERS_H
#define HAUL_STORAGE_BUFFERS_H

#include <haul/haul.h>
#include <liburing.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "storage/mapping.h"

struct buffers;
struct source;
struct source_memory;

struct buffer {
  uint8_t id[16];
  uid_t uid;
  char *address; /* NULL: device memory */
  size_t length;
  struct sigbus_watch watch; /* over the mapping; the kernel's own copies fail with EFAULT */
  haul_region *region;       /* device memory, else NULL */
  haul_node *node;           /* of the region */
  struct source *source; /* of remote files, to which the region is attached; NULL: local ones */
  struct source_memory *memory; /* with `source` */
  int descriptor;  /* received with the region; closed after its release, which its owner awaits */
  int slot;        /* in each worker's io_uring, for as long as the table has it; -1: no free one */
  uint64_t serial; /* of this use of the slot */
  _Atomic uint64_t used;       /* bytes of its operations so far */
  struct list link;            /* in the table */
  _Atomic unsigned references; /* the table's, and one for each operation */
};

int buffers_open(struct buffers **buffers);
/* After the last buffer was removed. */
void buffers_close(struct buffers *buffers);

/* A copy of `like`, which has id, user, length, and the mapping or the region, which end with the
 * last reference. EEXIST, ENOMEM: they stay the caller's. */
int buffers_add(struct buffers *buffers, const struct buffer *like, struct buffer **buffer);
/* buffers_get does not find it any more. */
void buffers_remove(struct buffers *buffers, struct buffer *buffer);
/* A reference to the user's buffer. ENOENT. */
int buffers_get(struct buffers *buffers, const uint8_t id[16], uid_t uid, struct buffer **buffer);
/* The last one of a buffer for remote files waits for peers that access it. */
void buffer_put(struct buffer *buffer);
/* False: it would wait, and the reference stays. */
bool buffer_put_unless_last(struct buffer *buffer);

/* Pinned buffers.
 * An io_uring's registered buffers: their pages are pinned once instead of for each read, a third
 * of the processor's cost of reading 1 MiB. One worker's thread alone uses a table. */

#define BUFFER_SLOTS 1024

struct pinned {
  bool supported;                  /* by the kernel (5.19), and within the limit of memory */
  uint64_t serials[BUFFER_SLOTS];  /* of the buffer registered in each slot; 0: none */
  uint64_t rejected[BUFFER_SLOTS]; /* of the last one that the kernel did not register */
  uint64_t changes;                /* of the buffers, as of the last pinned_release_removed */
};

void pinned_open(struct pinned *pinned, struct io_uring *uring);
/* The slot of a pinned buffer, or -1. A buffer is pinned after its operations have moved its length
 * in bytes, within the limit of locked memory (RLIMIT_MEMLOCK). */
int pinned_slot(struct pinned *pinned, struct io_uring *uring, const struct buffers *buffers,
                const struct buffer *buffer);
/* The kernel did not pin it. */
bool pinned_is_rejected(const struct pinned *pinned, const struct buffer *buffer);
/* Unpins the buffers that were removed. */
void pinned_release_removed(struct pinned *pinned, struct io_uring *uring,
                            const struct buffers *buffers);

/* Device buffers.
 * The socket by which clients add buffers in device memory (haul/usrbio.h), and its thread. */

struct device_buffers;

/* `source`: the buffers are for its remote files; NULL: for local files. It outlives them. */
int device_buffers_open(struct buffers *buffers, struct source *source,
                        struct device_buffers **devices);
/* Ends the thread and removes all its buffers; operations may still use some. */
void device_buffers_stop(struct device_buffers *devices);
/* After device_buffers_stop and the last operation. */
void device_buffers_close(struct device_buffers *devices);
/* "@haul-…": the socket's name in the abstract namespace. */
const char *device_buffers_address(const struct device_buffers *devices);

#endif
