/* SPDX-License-Identifier: MIT */
#include "storage/buffer.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "core/deferred_close.h"

#define BUCKETS 1024u

struct buffers {
  pthread_rwlock_t lock; /* the buckets, and who writes the rest; nothing is taken after it */
  struct list buckets[BUCKETS];
  uint64_t last_serial;
  _Atomic uint64_t changes;
  _Atomic uint64_t serials[BUFFERS_SLOTS]; /* of who has the slot; 0: nobody */
};

/* Ids are random, but a client may choose them: its own search is longer then. */
static struct list *bucket_of(struct buffers *buffers, const uint8_t id[16]) {
  uint64_t half[2];
  memcpy(half, id, sizeof half);
  return &buffers->buckets[((half[0] ^ half[1]) * UINT64_C(0x9e3779b97f4a7c15)) >> 54];
}

static struct buffer *find(struct buffers *buffers, const uint8_t id[16]) {
  list_each(item, bucket_of(buffers, id)) {
    struct buffer *buffer = list_entry(item, struct buffer, link);
    if (memcmp(buffer->id, id, sizeof buffer->id) == 0)
      return buffer;
  }
  return NULL;
}

/* With the lock. */
static void take_slot(struct buffers *buffers, struct buffer *buffer) {
  buffer->slot = -1;
  buffer->serial = ++buffers->last_serial;
  for (int i = 0; i < BUFFERS_SLOTS && buffer->slot < 0; i++)
    if (atomic_load(&buffers->serials[i]) == 0)
      buffer->slot = i;
  if (buffer->slot >= 0)
    atomic_store(&buffers->serials[buffer->slot], buffer->serial);
}

/* With the lock. */
static void give_slot(struct buffers *buffers, struct buffer *buffer) {
  if (buffer->slot < 0)
    return;
  atomic_store(&buffers->serials[buffer->slot], 0);
  atomic_fetch_add(&buffers->changes, 1);
}

uint64_t buffers_serial(const struct buffers *buffers, int slot) {
  return atomic_load_explicit(&buffers->serials[slot], memory_order_acquire);
}

uint64_t buffers_changes(const struct buffers *buffers) {
  return atomic_load_explicit(&buffers->changes, memory_order_acquire);
}

int buffers_add(struct buffers *buffers, const struct buffer *like, struct buffer **out) {
  struct buffer *buffer = malloc(sizeof *buffer);
  if (!buffer)
    return -ENOMEM;
  *buffer = *like;
  atomic_init(&buffer->holds, 1);
  list_init(&buffer->link);
  pthread_rwlock_wrlock(&buffers->lock);
  int code = find(buffers, like->id) ? -EEXIST : 0;
  if (code == 0) {
    take_slot(buffers, buffer);
    list_append(bucket_of(buffers, like->id), &buffer->link);
  }
  if (code == 0 && buffer->address)
    guard_watch(&buffer->guard, buffer->address, buffer->length);
  pthread_rwlock_unlock(&buffers->lock);
  if (code)
    free(buffer);
  else
    *out = buffer;
  return code;
}

void buffers_remove(struct buffers *buffers, struct buffer *buffer) {
  pthread_rwlock_wrlock(&buffers->lock);
  list_remove(&buffer->link);
  give_slot(buffers, buffer);
  pthread_rwlock_unlock(&buffers->lock);
  buffer_put(buffer);
}

int buffers_get(struct buffers *buffers, const uint8_t id[16], uid_t uid, struct buffer **out) {
  pthread_rwlock_rdlock(&buffers->lock);
  struct buffer *buffer = find(buffers, id);
  if (buffer && buffer->uid != uid)
    buffer = NULL;
  if (buffer)
    atomic_fetch_add_explicit(&buffer->holds, 1, memory_order_relaxed);
  pthread_rwlock_unlock(&buffers->lock);
  *out = buffer;
  return buffer ? 0 : -ENOENT;
}

void buffer_put(struct buffer *buffer) {
  if (atomic_fetch_sub_explicit(&buffer->holds, 1, memory_order_acq_rel) != 1)
    return;
  if (buffer->region) {
    haul_region_release(buffer->region);
    close_foreign(buffer->descriptor);
  } else {
    guard_unwatch(&buffer->guard);
    munmap(buffer->address, buffer->length);
  }
  free(buffer);
}

int buffers_open(struct buffers **out) {
  struct buffers *buffers = calloc(1, sizeof *buffers);
  if (!buffers)
    return -ENOMEM;
  pthread_rwlock_init(&buffers->lock, NULL);
  for (unsigned i = 0; i < BUCKETS; i++)
    list_init(&buffers->buckets[i]);
  *out = buffers;
  return 0;
}

void buffers_close(struct buffers *buffers) {
  if (!buffers)
    return;
  pthread_rwlock_destroy(&buffers->lock);
  free(buffers);
}
