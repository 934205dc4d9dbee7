/* SPDX-License-Identifier: MIT
 * A client's ring as the daemon sees it. Nothing in it is believed: what is taken is copied out
 * once and then checked, and a ring whose indices make no sense is broken for good. One thread at
 * a time: the worker that the ring belongs to. */
#ifndef HAUL_STORAGE_INTAKE_H
#define HAUL_STORAGE_INTAKE_H

#include <haul/usrbio.h>

#include "storage/guard.h"

struct intake {
  struct ring_view view;
  struct guard guard; /* over all of the mapping */
  /* Of the name, constant. */
  int32_t depth;
  int64_t patience_ns; /* that a negative depth waits for a full batch; 0: not at all */
  /* Ours; the shared ones are written from these and never read back. */
  int32_t taken, completed; /* the submissions' tail, the completions' head */
  int32_t under_way;
  int32_t owed;   /* of the batch that was begun, still to be taken */
  int64_t since;  /* when the first of an incomplete batch was seen; 0: there is none */
  bool announces; /* there are completions that the semaphore was not posted for */
  bool broken;
};

/* One operation as it was asked for. */
struct intake_entry {
  struct ring_record record;
  int32_t index;
  uint64_t userdata;
};

/* Over a mapping of at least one entry, which stays the caller's. -EINVAL: it is too small, or the
 * depth is more than it has entries. */
int intake_open(struct intake *intake, void *memory, size_t bytes, const struct iov_name *name);

/* The mapping may go then. */
void intake_close(struct intake *intake);

/* How many to take now, by the ring's depth and the room for completions. When it is none though
 * some are there, *until becomes no later than the time at which that changes by itself. */
int32_t intake_ready(struct intake *intake, int64_t now, int64_t *until);
/* Takes one of those. False: its index makes no sense, and it was answered with -EINVAL. */
bool intake_take(struct intake *intake, struct intake_entry *entry);
/* For each that was taken, once. */
void intake_complete(struct intake *intake, int32_t index, uint64_t userdata, int64_t result);
/* Tells the client of what was completed since. */
void intake_announce(struct intake *intake);

/* 0, or -EINVAL: no name of a buffer or ring, or attributes of a ring on a buffer. */
int iov_name_parse(const char *text, struct iov_name *name);

#endif
