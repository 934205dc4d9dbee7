/* SPDX-License-Identifier: MIT
 * The daemon's half of a client's ring (haul/usrbio.h), and the names of buffers and rings.
 *
 * A ring trusts none of its shared memory: submissions and records are copied once and then
 * checked, and an index outside the ring breaks the ring for good. One thread uses it, the worker
 * that it belongs to. */
#ifndef HAUL_STORAGE_RING_H
#define HAUL_STORAGE_RING_H

#include <haul/usrbio.h>

#include "storage/mapping.h"

struct ring {
  struct ring_view view;
  struct sigbus_watch watch; /* over the whole mapping */
  /* Of the name, constant. */
  int32_t depth;
  int64_t patience_ns; /* that a negative depth waits for a full batch; 0: not at all */
  /* The daemon's own copies; the shared indices are written from these and never read back. */
  int32_t submit_tail, complete_head;
  int32_t in_flight;
  int32_t batch_left;    /* of the batch that was begun, to be fetched */
  int64_t waiting_since; /* when the first of an incomplete batch was seen; 0: there is none */
  bool unannounced;      /* there are completions since the semaphore was posted */
  bool broken;
};

struct ring_operation {
  struct ring_record record;
  int32_t index;
  uint64_t userdata;
};

/* 0, or -EINVAL: not the name of a buffer or ring, or a ring's attributes on a buffer. */
int iov_name_parse(const char *text, struct iov_name *name);

/* Over a mapping, which stays the caller's. -EINVAL: it has no room for one entry, or more than
 * RING_ENTRIES, or fewer than the depth. */
int ring_open(struct ring *ring, void *memory, size_t bytes, const struct iov_name *name);
/* To be called before the mapping is removed. */
void ring_close(struct ring *ring);

/* The number of operations to fetch now, by the ring's depth and the room for completions. Where
 * that is 0 because a batch waits to be full, *until becomes at most the time when the wait ends.
 * Times are of CLOCK_MONOTONIC, in nanoseconds. */
int32_t ring_ready(struct ring *ring, int64_t now, int64_t *until);
/* Fetches one of these. False: its index is outside the ring, and it has completed with -EINVAL. */
bool ring_fetch(struct ring *ring, struct ring_operation *operation);
/* Once for each that was fetched. */
void ring_complete(struct ring *ring, int32_t index, uint64_t userdata, int64_t result);
/* Posts the client's semaphore if there were completions since the last call. */
void ring_announce(struct ring *ring);

#endif
