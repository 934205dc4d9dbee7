/* SPDX-License-Identifier: MIT
 * What stands behind the handles of hf3fs_usrbio.h. */
#ifndef HAUL_USRBIO_CLIENT_H
#define HAUL_USRBIO_CLIENT_H

#include <haul/usrbio.h>
#include <pthread.h>

#include "device.h"
#include "hf3fs_usrbio.h"
#include "memory.h"
#include "mounts.h"
#include "slots.h"

/* A place under a mount's 3fs-virt/iovs. */
#define LINK_ROOM (MOUNT_PATH + sizeof "/3fs-virt/iovs/" + IOV_NAME_ROOM)

/* Memory that the daemon may know by a link. */
struct buffer {
  struct device *device; /* a device's; then the rest is empty. NULL: shared memory */
  struct memory memory;
  struct mount *mount;  /* NULL: opened, not made */
  char link[LINK_ROOM]; /* with `mount` */
};

/* hf3fs_ior.iorh. */
struct ring {
  struct ring_view view;
  struct buffer *buffer;
  sem_t *submit; /* the daemon's */
  bool for_read;
  /* 0, or the negative errno value that every operation has from now on. Written by who waits. */
  _Atomic int broken;
  struct slots slots;

  /* Of the thread that prepares: what it last published, which shared memory need not say. */
  _Alignas(64) int32_t submit_head;

  /* Who waits has `taking`; the rest is under it. */
  _Alignas(64) pthread_mutex_t taking;
  int32_t complete_tail;
  int64_t silent_since; /* CLOCK_MONOTONIC, ns; 0: not yet */
};

/* MOUNT/3fs-virt/iovs/NAME. */
void client_link(const char *mount, const struct iov_name *name, char link[LINK_ROOM]);
/* New memory to be registered under `name`, whose id this makes. */
int buffer_make(const char *mount, struct iov_name *name, size_t size, int numa,
                struct buffer **buffer);
/* Tells the daemon, who maps it at once. */
int buffer_register(struct buffer *buffer);
void buffer_end(struct buffer *buffer);
/* What stands in a buffer's public half; `id` and `mount` may be those that are in it already. */
void buffer_describe(struct hf3fs_iov *iov, const uint8_t id[16], const char *mount, size_t size,
                     size_t block_size, int numa);
bool buffer_is_size(size_t size, size_t block_size);

#endif
