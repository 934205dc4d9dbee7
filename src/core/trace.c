/* SPDX-License-Identifier: MIT */
#include "core/trace.h"

#include "core/alloc.h"
#include "core/sys.h"

#define WRITES UINT64_C(1)
#define WHOLE  UINT64_C(2)
#define STATES 2 /* bits */
#define WORDS  6

struct slot {
  _Atomic uint64_t turn;
  _Atomic uint64_t words[WORDS];
  uint64_t pad; /* one cache line */
};

struct trace_ring {
  struct slot slots[TRACE_SLOTS];
};

static void pack(const struct trace_event *event, uint64_t words[WORDS]) {
  words[0] = event->at;
  words[1] = event->transfer;
  words[2] = event->peer;
  words[3] = event->bytes;
  words[4] = (uint64_t)event->slice << 32 | (uint32_t)event->status;
  words[5] = (uint64_t)event->path << 16 | (uint64_t)event->operation << 8 | event->kind;
}

static void unpack(const uint64_t words[WORDS], struct trace_event *event) {
  *event = (struct trace_event){.at = words[0],
                                .transfer = words[1],
                                .peer = words[2],
                                .bytes = words[3],
                                .slice = (uint32_t)(words[4] >> 32),
                                .status = (int32_t)(uint32_t)words[4],
                                .kind = (uint8_t)words[5],
                                .operation = (uint8_t)(words[5] >> 8),
                                .path = (uint8_t)(words[5] >> 16)};
}

/* False: the event is lost. */
static bool claim_slot(struct slot *slot, uint64_t number) {
  uint64_t seen = atomic_load_explicit(&slot->turn, memory_order_relaxed);
  do
    if (seen >> STATES > number)
      return false;
  while (!atomic_compare_exchange_weak_explicit(&slot->turn, &seen, number << STATES | WRITES,
                                                memory_order_acquire, memory_order_relaxed));
  return !(seen & WRITES);
}

static void release_slot(struct slot *slot, uint64_t number) {
  uint64_t mine = number << STATES | WRITES;
  if (!atomic_compare_exchange_strong_explicit(&slot->turn, &mine, number << STATES | WHOLE,
                                               memory_order_release, memory_order_relaxed))
    atomic_fetch_and_explicit(&slot->turn, ~WRITES, memory_order_release);
}

static void write_slot(struct trace_ring *ring, uint64_t number, const struct trace_event *event) {
  struct slot *slot = &ring->slots[number % TRACE_SLOTS];
  uint64_t words[WORDS];
  if (!claim_slot(slot, number))
    return;
  pack(event, words);
  for (int i = 0; i < WORDS; i++)
    atomic_store_explicit(&slot->words[i], words[i], memory_order_release);
  release_slot(slot, number);
}

void trace_write(struct trace *trace, struct trace_event event) {
  event.at = (uint64_t)clock_now();
  atomic_fetch_add(&trace->inside, 1);
  struct trace_ring *ring = atomic_load(&trace->ring);
  if (ring)
    write_slot(ring, atomic_fetch_add_explicit(&trace->next, 1, memory_order_relaxed) + 1, &event);
  atomic_fetch_sub(&trace->inside, 1);
}

/* The next event's number. */
static uint64_t next_number(const struct trace *trace) {
  return atomic_load_explicit(&trace->next, memory_order_relaxed) + 1;
}

bool trace_start(struct trace *trace) {
  if (atomic_load(&trace->ring))
    return true;
  if (!trace->allocated)
    trace->allocated = alloc_zero(1, sizeof *trace->allocated);
  if (!trace->allocated)
    return false;
  trace->first = next_number(trace);
  atomic_store(&trace->ring, trace->allocated);
  return true;
}

bool trace_stop(struct trace *trace) {
  atomic_store(&trace->ring, NULL);
  if (atomic_load(&trace->inside) > 0)
    return false;
  alloc_free(trace->allocated);
  trace->allocated = NULL;
  return true;
}

enum found { FOUND, GONE, UNFINISHED };

static enum found read_slot(struct slot *slot, uint64_t number, struct trace_event *event) {
  uint64_t words[WORDS];
  uint64_t turn = atomic_load_explicit(&slot->turn, memory_order_acquire);
  if (turn >> STATES < number || turn == (number << STATES | WRITES))
    return UNFINISHED;
  if (turn != (number << STATES | WHOLE))
    return GONE;
  for (int i = 0; i < WORDS; i++)
    words[i] = atomic_load_explicit(&slot->words[i], memory_order_acquire);
  if (atomic_load_explicit(&slot->turn, memory_order_relaxed) != turn)
    return GONE;
  unpack(words, event);
  return FOUND;
}

size_t trace_read(struct trace *trace, uint64_t *from, struct trace_event *events, size_t room,
                  uint64_t *lost) {
  struct trace_ring *ring = atomic_load(&trace->ring);
  uint64_t end = next_number(trace), at = *from;
  size_t count = 0;
  *lost = 0;
  if (at == 0 || at > end || !ring)
    at = end;
  if (at < trace->first) /* not recorded */
    at = trace->first;
  if (end - at > TRACE_SLOTS) {
    *lost = end - at - TRACE_SLOTS;
    at = end - TRACE_SLOTS;
  }
  for (; at < end && count < room; at++) {
    enum found found = read_slot(&ring->slots[at % TRACE_SLOTS], at, &events[count]);
    if (found == UNFINISHED) /* its writer has not finished; the next read gets it */
      break;
    count += found == FOUND;
    *lost += found == GONE;
  }
  *from = at;
  return count;
}
