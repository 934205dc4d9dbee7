/* SPDX-License-Identifier: MIT
 * What happened, when, in a ring that holds the latest of it: for who watches a node. Nobody
 * watches nearly always, and then it is a load and a branch.
 *
 * Events are numbered from 1 on, over all recordings. Any thread writes, without a lock; who
 * starts, stops and reads has one lock among them, the loop's.
 *
 * A slot's `turn` says of which event it is (its upper 62 bits), and in what state:
 *
 *   WRITES  somebody is in the slot
 *   WHOLE   the words are this event's
 *   0       this event is lost
 *
 * A writer takes the slot for event N by setting `turn` to N with WRITES, and leaves it by setting
 * WHOLE instead. Where it finds WRITES, another writer was slow for a whole lap: N is marked all
 * the same, N is lost, and the slow one, whose mark is gone when it leaves, takes WRITES away. So
 * there is one writer in a slot at a time, and nobody waits for another.
 *
 * Order: the words are stored with release and loaded with acquire. A reader that finds a word of a
 * later writer therefore also finds, in the second look at `turn`, what that writer set before.
 * WHOLE is set with release and pairs with the reader's first look, which acquires.
 *
 * The ring is freed when nobody is in it: a writer adds itself to `inside` and then loads `ring`;
 * who stops takes `ring` away and then loads `inside`. All four are sequentially consistent, so one
 * of the two sees the other. */
#ifndef HAUL_CORE_TRACE_H
#define HAUL_CORE_TRACE_H

#include <haul/stats.h>
#include <stdatomic.h>
#include <stdbool.h>

#define TRACE_SLOTS   16384u
#define TRACE_NO_PATH UINT8_MAX

struct trace_event {
  uint64_t at, transfer, peer, bytes;
  uint32_t slice;
  int32_t status;
  uint8_t kind, operation; /* enum haul_trace_kind, enum haul_operation or 0 */
  uint8_t path;            /* a transport's index, or TRACE_NO_PATH */
};

struct trace_ring;

struct trace {
  struct trace_ring *_Atomic ring; /* NULL: nobody watches */
  _Atomic uint32_t inside;
  _Atomic uint64_t next;   /* the number of the next event, less one */
  uint64_t first;          /* of this recording; as the next one, the readers' lock's */
  struct trace_ring *held; /* `ring`, or what it was and is not free yet */
};

static inline bool trace_is_on(const struct trace *trace) {
  return __builtin_expect(atomic_load_explicit(&trace->ring, memory_order_relaxed) != NULL, false);
}

/* From any thread; the time is set. */
void trace_write(struct trace *trace, struct trace_event event);

/* Readers' lock. False: there is no memory. Nothing where it is on. */
bool trace_start(struct trace *trace);
/* True when the ring is freed: else some thread is still in it, and it is to be called again. */
bool trace_stop(struct trace *trace);
/* The number of the next event. */
uint64_t trace_next(const struct trace *trace);
/* At most `room` events from number *from on, which becomes that of the one behind; returns how
 * many. *lost: how many between are gone. 0: from now on. One that is yet to come is the next. */
size_t trace_read(struct trace *trace, uint64_t *from, struct trace_event *events, size_t room,
                  uint64_t *lost);

#endif
