/* SPDX-License-Identifier: MIT */
#include "storage/intake.h"

#include <errno.h>
#include <haul/usrbio.h>
#include <string.h>

int intake_open(struct intake *intake, void *memory, size_t bytes, const struct iov_name *name) {
  int32_t entries = ring_entries(bytes);
  *intake =
      (struct intake){.depth = name->depth, .patience_ns = (int64_t)name->timeout_ms * 1000000};
  if (entries > RING_ENTRIES || !ring_view_init(&intake->view, memory, bytes) ||
      name->depth > entries)
    return -EINVAL;
  guard_watch(&intake->guard, memory, bytes);
  return 0;
}

void intake_close(struct intake *intake) {
  guard_unwatch(&intake->guard);
}

/* Distance in the ring from one index to another. */
static int32_t distance(const struct intake *intake, int32_t from, int32_t to) {
  int32_t slots = intake->view.slots;
  return to >= from ? to - from : to - from + slots;
}

static int32_t next(const struct intake *intake, int32_t index) {
  return index + 1 == intake->view.slots ? 0 : index + 1;
}

/* Acquire: what the client wrote before it moved the index is seen. -1: it makes no sense. */
static int32_t look(struct intake *intake, _Atomic int32_t *shared) {
  int32_t index = atomic_load_explicit(shared, memory_order_acquire);
  if (index >= 0 && index < intake->view.slots && !atomic_load(&intake->guard.lost))
    return index;
  intake->broken = true;
  return -1;
}

/* That many may be taken so that each completion finds room. */
static int32_t room(struct intake *intake) {
  int32_t tail = look(intake, &intake->view.indices->complete_tail);
  if (tail < 0)
    return 0;
  int32_t unread = distance(intake, tail, intake->completed);
  int32_t left = intake->view.slots - 1 - unread - intake->under_way;
  return left > 0 ? left : 0;
}

/* A batch that is not full waits until the ring's patience ends. */
static bool waits_for_more(struct intake *intake, int64_t now, int64_t *until) {
  if (intake->patience_ns == 0)
    return false;
  if (intake->since == 0)
    intake->since = now;
  int64_t end = intake->since + intake->patience_ns;
  if (now >= end)
    return false;
  if (end < *until)
    *until = end;
  return true;
}

static int32_t by_depth(struct intake *intake, int32_t there, int32_t left, int64_t now,
                        int64_t *until) {
  int32_t most = there < left ? there : left;
  if (intake->depth > 0)
    return most < intake->depth ? 0 : most - most % intake->depth;
  if (intake->depth == 0)
    return most;
  if (there < -intake->depth && waits_for_more(intake, now, until))
    return 0;
  return most < -intake->depth ? most : -intake->depth;
}

int32_t intake_ready(struct intake *intake, int64_t now, int64_t *until) {
  if (intake->broken || intake->owed > 0)
    return intake->broken ? 0 : intake->owed;
  int32_t head = look(intake, &intake->view.indices->submit_head);
  int32_t there = head < 0 ? 0 : distance(intake, intake->taken, head);
  int32_t ready = there > 0 ? by_depth(intake, there, room(intake), now, until) : 0;
  if (there == 0 || ready > 0)
    intake->since = 0;
  intake->owed = intake->broken ? 0 : ready;
  return intake->owed;
}

/* The client may write to either while it is copied: what counts is the copy. Release: the slot is
 * the client's again only after that. */
bool intake_take(struct intake *intake, struct intake_entry *entry) {
  struct ring_submission submission;
  memcpy(&submission, &intake->view.submissions[intake->taken], sizeof submission);
  entry->index = submission.index;
  entry->userdata = submission.userdata;
  bool known = entry->index >= 0 && entry->index < intake->view.slots;
  if (known)
    memcpy(&entry->record, &intake->view.records[entry->index], sizeof entry->record);
  intake->taken = next(intake, intake->taken);
  atomic_store_explicit(&intake->view.indices->submit_tail, intake->taken, memory_order_release);
  intake->under_way++;
  intake->owed--;
  if (!known)
    intake_complete(intake, entry->index, entry->userdata, -EINVAL);
  return known;
}

/* Release: the client sees the completion, and what was read into its buffer. */
void intake_complete(struct intake *intake, int32_t index, uint64_t userdata, int64_t result) {
  const struct ring_completion completion = {index, 0, result, userdata};
  intake->under_way--;
  if (intake->broken)
    return;
  memcpy(&intake->view.completions[intake->completed], &completion, sizeof completion);
  intake->completed = next(intake, intake->completed);
  atomic_store_explicit(&intake->view.indices->complete_head, intake->completed,
                        memory_order_release);
  intake->announces = true;
}

void intake_announce(struct intake *intake) {
  if (!intake->announces || intake->broken)
    return;
  intake->announces = false;
  semaphore_post(intake->view.semaphore);
}
