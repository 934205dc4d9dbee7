/* SPDX-License-Identifier: MIT */
#include "storage/buffers.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "core/deferred_close.h"
#include "storage/source.h"

#define BUCKETS      1024u
#define PINNED_BYTES ((size_t)1 << 30) /* of one buffer: io_uring_register(2) */

struct buffers {
  pthread_rwlock_t lock; /* guards the buckets; for writing also the rest. No lock is taken after
                            it, except that of sigbus_watch */
  struct list buckets[BUCKETS];
  uint64_t last_serial;
  _Atomic uint64_t changes;               /* counts removals */
  _Atomic uint64_t serials[BUFFER_SLOTS]; /* of each slot's buffer; 0: none */
};

/* Ids are random. A client that chooses them badly makes its own searches longer. */
static struct list *buffer_bucket(struct buffers *buffers, const uint8_t id[16]) {
  uint64_t half[2];
  memcpy(half, id, sizeof half);
  return &buffers->buckets[((half[0] ^ half[1]) * UINT64_C(0x9e3779b97f4a7c15)) >> 54];
}

/* With the lock. */
static struct buffer *find_buffer(struct buffers *buffers, const uint8_t id[16]) {
  list_each(item, buffer_bucket(buffers, id)) {
    struct buffer *buffer = list_entry(item, struct buffer, link);
    if (memcmp(buffer->id, id, sizeof buffer->id) == 0)
      return buffer;
  }
  return NULL;
}

/* With the lock for writing. */
static void assign_slot(struct buffers *buffers, struct buffer *buffer) {
  buffer->slot = -1;
  buffer->serial = ++buffers->last_serial;
  for (int i = 0; i < BUFFER_SLOTS && buffer->slot < 0; i++)
    if (atomic_load(&buffers->serials[i]) == 0)
      buffer->slot = i;
  if (buffer->slot >= 0)
    atomic_store(&buffers->serials[buffer->slot], buffer->serial);
}

int buffers_add(struct buffers *buffers, const struct buffer *like, struct buffer **out) {
  struct buffer *buffer = malloc(sizeof *buffer);
  if (!buffer)
    return -ENOMEM;
  *buffer = *like;
  atomic_init(&buffer->references, 1);
  list_init(&buffer->link);
  pthread_rwlock_wrlock(&buffers->lock);
  bool exists = find_buffer(buffers, like->id);
  if (!exists) {
    assign_slot(buffers, buffer);
    list_append(buffer_bucket(buffers, like->id), &buffer->link);
    if (buffer->address)
      sigbus_watch(&buffer->watch, buffer->address, buffer->length);
  }
  pthread_rwlock_unlock(&buffers->lock);
  if (exists) {
    free(buffer);
    return -EEXIST;
  }
  *out = buffer;
  return 0;
}

void buffers_remove(struct buffers *buffers, struct buffer *buffer) {
  pthread_rwlock_wrlock(&buffers->lock);
  list_remove(&buffer->link);
  if (buffer->slot >= 0) {
    atomic_store(&buffers->serials[buffer->slot], 0);
    atomic_fetch_add(&buffers->changes, 1);
  }
  pthread_rwlock_unlock(&buffers->lock);
  buffer_put(buffer);
}

int buffers_get(struct buffers *buffers, const uint8_t id[16], uid_t uid, struct buffer **out) {
  pthread_rwlock_rdlock(&buffers->lock);
  struct buffer *buffer = find_buffer(buffers, id);
  if (buffer && buffer->uid != uid)
    buffer = NULL;
  if (buffer)
    atomic_fetch_add_explicit(&buffer->references, 1, memory_order_relaxed);
  pthread_rwlock_unlock(&buffers->lock);
  *out = buffer;
  return buffer ? 0 : -ENOENT;
}

void buffer_put(struct buffer *buffer) {
  if (atomic_fetch_sub_explicit(&buffer->references, 1, memory_order_acq_rel) != 1)
    return;
  if (buffer->memory)
    buffer->source->ops->detach(buffer->source, buffer->memory);
  if (buffer->region) {
    haul_region_release(buffer->region);
    close_foreign(buffer->descriptor);
  } else {
    sigbus_unwatch(&buffer->watch);
    munmap(buffer->address, buffer->length);
  }
  free(buffer);
}

bool buffer_put_unless_last(struct buffer *buffer) {
  unsigned references = atomic_load_explicit(&buffer->references, memory_order_relaxed);
  if (!buffer->memory) {
    buffer_put(buffer);
    return true;
  }
  while (references > 1)
    if (atomic_compare_exchange_weak_explicit(&buffer->references, &references, references - 1,
                                              memory_order_acq_rel, memory_order_relaxed))
      return true;
  return false;
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

static uint64_t serial_of(const struct buffers *buffers, int slot) {
  return atomic_load_explicit(&buffers->serials[slot], memory_order_acquire);
}

static bool register_slot(struct io_uring *uring, int slot, void *address, size_t length) {
  const struct iovec span = {address, length};
  const __u64 tag = 0;
  return io_uring_register_buffers_update_tag(uring, (unsigned)slot, &span, &tag, 1) == 1;
}

void pinned_open(struct pinned *pinned, struct io_uring *uring) {
  *pinned =
      (struct pinned){.supported = io_uring_register_buffers_sparse(uring, BUFFER_SLOTS) == 0};
}

int pinned_slot(struct pinned *pinned, struct io_uring *uring, const struct buffers *buffers,
                const struct buffer *buffer) {
  int slot = buffer->slot;
  if (slot >= 0 && pinned->serials[slot] == buffer->serial)
    return slot;
  if (!pinned->supported || slot < 0 || !buffer->address || buffer->length > PINNED_BYTES ||
      atomic_load_explicit(&buffer->used, memory_order_relaxed) < buffer->length ||
      pinned->rejected[slot] == buffer->serial || serial_of(buffers, slot) != buffer->serial)
    return -1;
  if (!register_slot(uring, slot, buffer->address, buffer->length)) {
    pinned->rejected[slot] = buffer->serial;
    return -1;
  }
  pinned->serials[slot] = buffer->serial;
  return slot;
}

bool pinned_is_rejected(const struct pinned *pinned, const struct buffer *buffer) {
  return buffer->slot >= 0 && pinned->rejected[buffer->slot] == buffer->serial;
}

void pinned_release_removed(struct pinned *pinned, struct io_uring *uring,
                            const struct buffers *buffers) {
  uint64_t changes = atomic_load_explicit(&buffers->changes, memory_order_acquire);
  if (changes == pinned->changes)
    return;
  pinned->changes = changes;
  for (int slot = 0; slot < BUFFER_SLOTS; slot++)
    if (pinned->serials[slot] != 0 && pinned->serials[slot] != serial_of(buffers, slot)) {
      register_slot(uring, slot, NULL, 0);
      pinned->serials[slot] = 0;
    }
}
