/* SPDX-License-Identifier: MIT */
#include "storage/queue.h"

#include <errno.h>
#include <string.h>

#include "storage/semaphore.h"

int queue_open(struct queue *queue, void *memory, size_t bytes, const struct name *name) {
  int32_t entries = ring_entries(bytes);
  *queue = (struct queue){.guard = {.start = memory, .length = bytes},
                          .depth = name->depth,
                          .patience_ns = (int64_t)name->timeout_ms * 1000000};
  if (entries > RING_ENTRIES || !ring_lay(&queue->view, memory, bytes))
    return -EINVAL;
  return name->depth > entries ? -EINVAL : 0;
}

/* Distance in the ring from one index to another. */
static int32_t distance(const struct queue *queue, int32_t from, int32_t to) {
  int32_t slots = queue->view.slots;
  return to >= from ? to - from : to - from + slots;
}

static int32_t next(const struct queue *queue, int32_t index) {
  return index + 1 == queue->view.slots ? 0 : index + 1;
}

/* Acquire: what the client wrote before it moved the index is seen. -1: it makes no sense. */
static int32_t look(struct queue *queue, _Atomic int32_t *shared) {
  int32_t index = atomic_load_explicit(shared, memory_order_acquire);
  if (index >= 0 && index < queue->view.slots && !atomic_load(&queue->guard.lost))
    return index;
  queue->broken = true;
  return -1;
}

/* That many may be taken so that each completion finds room. */
static int32_t room(struct queue *queue) {
  int32_t tail = look(queue, &queue->view.indices->complete_tail);
  if (tail < 0)
    return 0;
  int32_t unread = distance(queue, tail, queue->completed);
  int32_t left = queue->view.slots - 1 - unread - queue->under_way;
  return left > 0 ? left : 0;
}

/* A batch that is not full waits until the ring's patience ends. */
static bool waits_for_more(struct queue *queue, int64_t now, int64_t *until) {
  if (queue->patience_ns == 0)
    return false;
  if (queue->since == 0)
    queue->since = now;
  int64_t end = queue->since + queue->patience_ns;
  if (now >= end)
    return false;
  if (end < *until)
    *until = end;
  return true;
}

static int32_t by_depth(struct queue *queue, int32_t there, int32_t left, int64_t now,
                        int64_t *until) {
  int32_t most = there < left ? there : left;
  if (queue->depth > 0)
    return most < queue->depth ? 0 : most - most % queue->depth;
  if (queue->depth == 0)
    return most;
  if (there < -queue->depth && waits_for_more(queue, now, until))
    return 0;
  return most < -queue->depth ? most : -queue->depth;
}

int32_t queue_ready(struct queue *queue, int64_t now, int64_t *until) {
  if (queue->broken || queue->owed > 0)
    return queue->broken ? 0 : queue->owed;
  guard_enter(&queue->guard);
  int32_t head = look(queue, &queue->view.indices->submit_head);
  int32_t there = head < 0 ? 0 : distance(queue, queue->taken, head);
  int32_t ready = there > 0 ? by_depth(queue, there, room(queue), now, until) : 0;
  guard_enter(NULL);
  if (there == 0 || ready > 0)
    queue->since = 0;
  queue->owed = queue->broken ? 0 : ready;
  return queue->owed;
}

/* The client may write to either while it is copied: what counts is the copy. Release: the slot is
 * the client's again only after that. */
bool queue_take(struct queue *queue, struct queue_entry *entry) {
  struct ring_submission submission;
  guard_enter(&queue->guard);
  memcpy(&submission, &queue->view.submissions[queue->taken], sizeof submission);
  entry->index = submission.index;
  entry->userdata = submission.userdata;
  bool known = entry->index >= 0 && entry->index < queue->view.slots;
  if (known)
    memcpy(&entry->record, &queue->view.records[entry->index], sizeof entry->record);
  queue->taken = next(queue, queue->taken);
  atomic_store_explicit(&queue->view.indices->submit_tail, queue->taken, memory_order_release);
  guard_enter(NULL);
  queue->under_way++;
  queue->owed--;
  if (!known)
    queue_complete(queue, entry->index, entry->userdata, -EINVAL);
  return known;
}

/* Release: the client sees the completion, and what was read into its buffer. */
void queue_complete(struct queue *queue, int32_t index, uint64_t userdata, int64_t result) {
  const struct ring_completion completion = {index, 0, result, userdata};
  queue->under_way--;
  if (queue->broken)
    return;
  guard_enter(&queue->guard);
  memcpy(&queue->view.completions[queue->completed], &completion, sizeof completion);
  queue->completed = next(queue, queue->completed);
  atomic_store_explicit(&queue->view.indices->complete_head, queue->completed,
                        memory_order_release);
  guard_enter(NULL);
  queue->announces = true;
}

void queue_announce(struct queue *queue) {
  if (!queue->announces || queue->broken)
    return;
  queue->announces = false;
  guard_enter(&queue->guard);
  semaphore_post(queue->view.semaphore);
  guard_enter(NULL);
}
