/* SPDX-License-Identifier: MIT
 * A ring of USRBIO in shared memory: between a client, which prepares operations and takes their
 * completions, and the daemon. The layout is 3FS's (src/fuse/IoRing.h there), so its clients' own
 * code works on it:
 *
 *   int32 submission head, tail, completion head, tail
 *   n records of what is asked for     56 bytes each, by index
 *   n completions                      24
 *   n submissions                      16
 *   sem_t                              32: posted when there are completions
 *   slack                              to the end of the memory, 4,096 bytes and more
 *
 * n is one more than the entries that a client may use, so that full and empty differ. A head is
 * where its producer writes next, a tail where its consumer takes next; each is written by one side
 * alone and published with release, so that what it announces is there for who reads it with
 * acquire. Neither side believes the other: an index or head out of range breaks the ring.
 *
 * This header needs nothing else of haul: the client's library is built from it too. */
#ifndef HAUL_STORAGE_RING_H
#define HAUL_STORAGE_RING_H

#include <limits.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct ring_record {
  uint8_t buffer[16]; /* its id */
  uint64_t buffer_offset;
  uint64_t file; /* its inode number, as fstat tells it */
  uint64_t offset, length;
  uint64_t userdata;
};

struct ring_completion {
  int32_t index;
  int32_t reserved;
  int64_t result; /* bytes, or a negative errno value */
  uint64_t userdata;
};

struct ring_submission {
  int32_t index; /* of the record */
  int32_t reserved;
  uint64_t userdata;
};

struct ring_indices {
  _Atomic int32_t submit_head, submit_tail, complete_head, complete_tail;
};

#define RING_SLACK 4096u
#define RING_ENTRY                                                                                 \
  (sizeof(struct ring_record) + sizeof(struct ring_completion) + sizeof(struct ring_submission))
#define RING_ENTRIES (1 << 20) /* what the daemon takes at the most */

_Static_assert(sizeof(struct ring_indices) == 16, "3FS's layout");
_Static_assert(sizeof(struct ring_record) == 56, "3FS's layout");
_Static_assert(sizeof(struct ring_completion) == 24, "3FS's layout");
_Static_assert(sizeof(struct ring_submission) == 16, "3FS's layout");
_Static_assert(RING_ENTRY == 96, "3FS's layout");

/* The places in one mapping. */
struct ring_view {
  struct ring_indices *indices;
  struct ring_record *records;
  struct ring_completion *completions;
  struct ring_submission *submissions;
  sem_t *semaphore;
  int32_t slots; /* n */
};

/* Bytes for so many entries. */
static inline size_t ring_bytes(int32_t entries) {
  return sizeof(struct ring_indices) + RING_ENTRY * ((size_t)entries + 1) + sizeof(sem_t) +
         RING_SLACK;
}

/* How many entries that many bytes have room for; 0: none. */
static inline int32_t ring_entries(size_t bytes) {
  const size_t fixed = sizeof(struct ring_indices) + sizeof(sem_t) + RING_SLACK;
  if (bytes < fixed + 2 * RING_ENTRY)
    return 0;
  size_t slots = (bytes - fixed) / RING_ENTRY;
  return slots > INT32_MAX ? INT32_MAX - 1 : (int32_t)slots - 1;
}

/* False: the memory is too small for one entry. */
static inline bool ring_lay(struct ring_view *view, void *memory, size_t bytes) {
  int32_t entries = ring_entries(bytes);
  if (entries < 1)
    return false;
  view->slots = entries + 1;
  view->indices = memory;
  view->records = (struct ring_record *)(view->indices + 1);
  view->completions = (struct ring_completion *)(view->records + view->slots);
  view->submissions = (struct ring_submission *)(view->completions + view->slots);
  view->semaphore = (sem_t *)(view->submissions + view->slots);
  return true;
}

#endif
