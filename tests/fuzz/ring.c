/* SPDX-License-Identifier: MIT
 * A ring with a hostile client, which writes between any two steps of the daemon. The first bytes
 * are the ring's size and depth. Each further byte chooses a step: the client writes, or the daemon
 * takes, completes or announces. */
#include <stdlib.h>
#include <string.h>

#include "rig.h"
#include "storage/ring.h"

struct input {
  const uint8_t *bytes;
  size_t left;
};

static uint32_t next(struct input *input, size_t count) {
  uint32_t value = 0;
  count = count < input->left ? count : input->left;
  memcpy(&value, input->bytes, count);
  input->bytes += count;
  input->left -= count;
  return value;
}

static void write_somewhere(struct input *input, const struct ring_view *view, size_t bytes) {
  uint32_t value = next(input, 4), at = next(input, 2);
  char *memory = (char *)view->indices;
  memcpy(memory + (at % (bytes / 4)) * 4, &value, sizeof value);
}

static void move(struct input *input, const struct ring_view *view, _Atomic int32_t *index) {
  atomic_store(index, (int32_t)(next(input, 1) % ((unsigned)view->slots + 1)));
}

static void take(struct ring *ring, int32_t *out, int64_t now) {
  int64_t until = INT64_MAX;
  int32_t ready = ring_ready(ring, now, &until);
  RIG_ASSERT(ready >= 0 && ready < ring->view.slots);
  for (int32_t i = 0; i < ready; i++) {
    struct ring_operation entry;
    if (!ring_fetch(ring, &entry))
      continue;
    RIG_ASSERT(entry.index >= 0 && entry.index < ring->view.slots);
    ++*out;
  }
  RIG_ASSERT(ring->in_flight == *out && *out < ring->view.slots);
}

static void complete(struct ring *ring, int32_t *out) {
  if (*out == 0)
    return;
  ring_complete(ring, 1, 2, 3);
  --*out;
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t length) {
  struct input input = {bytes, length};
  int32_t entries = 1 + (int32_t)(next(&input, 1) % 32), out = 0;
  const struct iov_name name = {.ring = true,
                                .depth = (int32_t)(int8_t)next(&input, 1) % (entries + 1),
                                .timeout_ms = (int32_t)(next(&input, 1) % 3)};
  struct ring ring;
  size_t size = ring_bytes(entries);
  void *memory = calloc(1, size);
  RIG_ASSERT(memory && ring_open(&ring, memory, size, &name) == 0);
  for (int64_t now = 1; input.left > 0; now += 400000) {
    switch (next(&input, 1) % 6) {
    case 0:
      write_somewhere(&input, &ring.view, size);
      break;
    case 1:
      move(&input, &ring.view, &ring.view.indices->submit_head);
      break;
    case 2:
      move(&input, &ring.view, &ring.view.indices->complete_tail);
      break;
    case 3:
      take(&ring, &out, now);
      break;
    case 4:
      complete(&ring, &out);
      break;
    default:
      ring_announce(&ring);
    }
  }
  ring_close(&ring);
  free(memory);
  return 0;
}
