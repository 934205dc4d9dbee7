/* SPDX-License-Identifier: MIT */
#include "storage/ring.h"

#include <errno.h>

int ring_open(struct ring *ring, void *memory, size_t bytes, const struct iov_name *name) {
  int32_t entries = ring_entries(bytes);
  *ring = (struct ring){.depth = name->depth, .patience_ns = (int64_t)name->timeout_ms * 1000000};
  if (entries > RING_ENTRIES || !ring_view_init(&ring->view, memory, bytes) ||
      name->depth > entries)
    return -EINVAL;
  sigbus_watch(&ring->watch, memory, bytes);
  return 0;
}

void ring_close(struct ring *ring) {
  sigbus_unwatch(&ring->watch);
}

static int32_t distance(const struct ring *ring, int32_t from, int32_t to) {
  return to >= from ? to - from : to - from + ring->view.slots;
}

static int32_t next_slot(const struct ring *ring, int32_t slot) {
  return slot + 1 == ring->view.slots ? 0 : slot + 1;
}

/* Acquire: pairs with the client's release, after which its entries are complete. -1, and the
 * ring is broken: the index is out of range, or the client truncated the mapping. */
static int32_t load_index(struct ring *ring, _Atomic int32_t *shared) {
  int32_t index = atomic_load_explicit(shared, memory_order_acquire);
  if (index >= 0 && index < ring->view.slots && !atomic_load(&ring->watch.lost))
    return index;
  ring->broken = true;
  return -1;
}

/* The number of operations whose completions have room. */
static int32_t completion_room(struct ring *ring) {
  int32_t tail = load_index(ring, &ring->view.indices->complete_tail);
  if (tail < 0)
    return 0;
  int32_t unread = distance(ring, tail, ring->complete_head);
  int32_t left = ring->view.slots - 1 - unread - ring->in_flight;
  return left > 0 ? left : 0;
}

/* True if an incomplete batch should wait. */
static bool waits_for_batch(struct ring *ring, int64_t now, int64_t *until) {
  if (ring->patience_ns == 0)
    return false;
  if (ring->waiting_since == 0)
    ring->waiting_since = now;
  int64_t end = ring->waiting_since + ring->patience_ns;
  if (now >= end)
    return false;
  if (end < *until)
    *until = end;
  return true;
}

static int32_t batch_size(struct ring *ring, int32_t submitted, int64_t now, int64_t *until) {
  int32_t room = completion_room(ring);
  int32_t most = submitted < room ? submitted : room;
  if (ring->depth > 0)
    return most - most % ring->depth;
  if (ring->depth == 0)
    return most;
  if (submitted < -ring->depth && waits_for_batch(ring, now, until))
    return 0;
  return most < -ring->depth ? most : -ring->depth;
}

int32_t ring_ready(struct ring *ring, int64_t now, int64_t *until) {
  if (ring->broken || ring->batch_left > 0)
    return ring->broken ? 0 : ring->batch_left;
  int32_t head = load_index(ring, &ring->view.indices->submit_head);
  int32_t submitted = head < 0 ? 0 : distance(ring, ring->submit_tail, head);
  int32_t ready = submitted > 0 ? batch_size(ring, submitted, now, until) : 0;
  if (submitted == 0 || ready > 0)
    ring->waiting_since = 0;
  ring->batch_left = ring->broken ? 0 : ready;
  return ring->batch_left;
}

/* The client may write to the submission and the record meanwhile: the copies count. */
bool ring_fetch(struct ring *ring, struct ring_operation *operation) {
  struct ring_submission submission;
  memcpy(&submission, &ring->view.submissions[ring->submit_tail], sizeof submission);
  operation->index = submission.index;
  operation->userdata = submission.userdata;
  bool valid = operation->index >= 0 && operation->index < ring->view.slots;
  if (valid)
    memcpy(&operation->record, &ring->view.records[operation->index], sizeof operation->record);
  ring->submit_tail = next_slot(ring, ring->submit_tail);
  /* Release: the client reuses the slot only after it was copied. */
  atomic_store_explicit(&ring->view.indices->submit_tail, ring->submit_tail, memory_order_release);
  ring->in_flight++;
  ring->batch_left--;
  if (!valid)
    ring_complete(ring, operation->index, operation->userdata, -EINVAL);
  return valid;
}

void ring_complete(struct ring *ring, int32_t index, uint64_t userdata, int64_t result) {
  const struct ring_completion completion = {index, 0, result, userdata};
  ring->in_flight--;
  if (ring->broken)
    return;
  memcpy(&ring->view.completions[ring->complete_head], &completion, sizeof completion);
  ring->complete_head = next_slot(ring, ring->complete_head);
  /* Release: the client sees the completion, and the bytes that were read into its buffer. */
  atomic_store_explicit(&ring->view.indices->complete_head, ring->complete_head,
                        memory_order_release);
  ring->unannounced = true;
}

void ring_announce(struct ring *ring) {
  if (!ring->unannounced || ring->broken)
    return;
  ring->unannounced = false;
  semaphore_post(ring->view.semaphore);
}
