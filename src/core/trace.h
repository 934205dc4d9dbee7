/* SPDX-License-Identifier: MIT
 * A ring of the latest events of a node. While tracing is off it costs a load and a branch.
 *
 * Events are numbered from 1, across recordings. Any thread writes, without a lock. Starting,
 * stopping and reading are serialised by the readers' lock, which is the loop's.
 *
 * A slot's `turn` holds the event's number (upper 62 bits) and a state:
 *
 *   WRITES  a writer is in the slot
 *   WHOLE   the words are this event's
 *   0       the event is lost
 *
 * A writer claims the slot for event N by setting `turn` to N with WRITES, and releases it by
 * setting WHOLE instead. If it finds WRITES, another writer was slow for a whole lap. Then it still
 * stores N, N is lost, and the slow writer, which finds its number gone, clears WRITES. So a slot
 * has one writer at a time, and no writer waits.
 *
 * Memory order: words are stored with release and loaded with acquire. So a reader that loads a
 * word of a later writer also sees that writer's `turn` in its second load. WHOLE is stored with
 * release and pairs with the acquire of the reader's first load of `turn`.
 *
 * The ring is freed when no writer is inside: a writer increments `inside`, then loads `ring`;
 * trace_stop clears `ring`, then loads `inside`. All four are seq_cst, so one sees the other. */
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
  struct trace_ring *_Atomic ring; /* NULL: tracing is off */
  _Atomic uint32_t inside;
  _Atomic uint64_t next;        /* number of the last event */
  uint64_t first;               /* event of this recording; readers' lock */
  struct trace_ring *allocated; /* `ring`, or the former one that is not freed yet */
};

static inline bool trace_is_on(const struct trace *trace) {
  return __builtin_expect(atomic_load_explicit(&trace->ring, memory_order_relaxed) != NULL, false);
}

/* Any thread. Sets the event's time. */
void trace_write(struct trace *trace, struct trace_event event);

/* Readers' lock. False: no memory. Does nothing while tracing is on. */
bool trace_start(struct trace *trace);
/* True when the ring is freed. False: a writer is still inside; call it again. */
bool trace_stop(struct trace *trace);
/* Reads at most `room` events from number *from on (0 or a future number: from the next event) and
 * advances *from. Returns their number; *lost counts the overwritten ones among them. */
size_t trace_read(struct trace *trace, uint64_t *from, struct trace_event *events, size_t room,
                  uint64_t *lost);

#endif
