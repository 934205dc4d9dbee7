/* SPDX-License-Identifier: MIT */
#include "storage/fixed.h"

#define LARGEST ((size_t)1 << 30) /* io_uring_register(2): of one buffer */

void fixed_open(struct fixed *fixed, struct io_uring *uring) {
  *fixed = (struct fixed){.possible = io_uring_register_buffers_sparse(uring, BUFFERS_SLOTS) == 0};
}

static bool set(struct io_uring *uring, int slot, void *address, size_t length) {
  const struct iovec span = {address, length};
  const __u64 tag = 0;
  return io_uring_register_buffers_update_tag(uring, (unsigned)slot, &span, &tag, 1) == 1;
}

static bool is_worth_it(const struct fixed *fixed, const struct buffers *buffers,
                        const struct buffer *buffer) {
  return fixed->possible && buffer->slot >= 0 && buffer->address && buffer->length <= LARGEST &&
         atomic_load_explicit(&buffer->used, memory_order_relaxed) >= buffer->length &&
         fixed->refused[buffer->slot] != buffer->serial &&
         buffers_serial(buffers, buffer->slot) == buffer->serial;
}

int fixed_slot(struct fixed *fixed, struct io_uring *uring, const struct buffers *buffers,
               struct buffer *buffer) {
  int slot = buffer->slot;
  if (slot >= 0 && fixed->serials[slot] == buffer->serial)
    return slot;
  if (!is_worth_it(fixed, buffers, buffer))
    return -1;
  if (!set(uring, slot, buffer->address, buffer->length)) {
    fixed->refused[slot] = buffer->serial;
    return -1;
  }
  fixed->serials[slot] = buffer->serial;
  return slot;
}

bool fixed_refuses(const struct fixed *fixed, const struct buffer *buffer) {
  return buffer->slot >= 0 && fixed->refused[buffer->slot] == buffer->serial;
}

void fixed_tend(struct fixed *fixed, struct io_uring *uring, const struct buffers *buffers) {
  uint64_t changes = buffers_changes(buffers);
  if (changes == fixed->changes)
    return;
  fixed->changes = changes;
  for (int slot = 0; slot < BUFFERS_SLOTS; slot++)
    if (fixed->serials[slot] != 0 && fixed->serials[slot] != buffers_serial(buffers, slot)) {
      set(uring, slot, NULL, 0);
      fixed->serials[slot] = 0;
    }
}
