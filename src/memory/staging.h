/* SPDX-License-Identifier: MIT
 * The staging pool: a node's bounce buffers between devices and sockets, NICs or other devices. One
 * limit bounds them all.
 *
 * Deadlock freedom. A STAGING_RECEIVE user waits only for devices and for bytes in flight, so it
 * always finishes. A STAGING_SEND user waits for a peer that reads, and that peer may wait for a
 * STAGING_RECEIVE buffer of its own node. STAGING_PAIR buffers are guaranteed to each kind, so
 * receivers always progress, and then senders do. Buffers reserved for a peer stay reserved while
 * it is connected: reservations take at most half of the limit and none of the guaranteed buffers.
 *
 * Fairness. A user with fewer than STAGING_PAIR buffers queues, in order of arrival within its
 * kind; others do not queue. So each user gets two before any gets a third. A user that holds
 * buffers requests more only if it can continue without them, or requests all at once.
 *
 * Pinning. A driver may let pinning, unpinning and freeing wait for all that runs on its device, as
 * for a kernel that waits for a transfer. So for an engine that pins, the pool is filled when the
 * node gets memory of its device, and keeps its buffers. */
#ifndef HAUL_MEMORY_STAGING_H
#define HAUL_MEMORY_STAGING_H

#include <pthread.h>

#include "core/list.h"
#include "memory/region.h"

#define BOUNCE_BYTES    ((size_t)1 << 20)
#define STAGING_PAIR    2u                 /* one is filled while the other is drained */
#define STAGING_LEAST   (8 * BOUNCE_BYTES) /* two of each kind, and two peers' reservations */
#define STAGING_DEFAULT (64 * BOUNCE_BYTES)
#define STAGING_IDLE_NS INT64_C(5000000000)

enum staging_kind { STAGING_RECEIVE, STAGING_SEND, STAGING_KINDS };

struct bounce {
  struct list link;           /* staging->idle */
  struct haul_region *region; /* private host memory of BOUNCE_BYTES that an engine may pin */
  int numa;                   /* its NUMA node; -1: any */
  int64_t ends_at;            /* when an idle one is freed */
};

/* NULL for none. */
static inline struct memory *bounce_memory(struct bounce *bounce) {
  return bounce ? &bounce->region->memory : NULL;
}

struct staging {
  struct heap *heap;
  pthread_mutex_t lock; /* guards the rest; no lock is taken after it */
  size_t limit;         /* buffers */
  size_t made;          /* buffers that exist */
  size_t reserved;      /* what was reserved, in buffers */
  size_t used[STAGING_KINDS];
  struct list idle;                   /* bounce buffers, latest first */
  struct list waiting[STAGING_KINDS]; /* users, in order of arrival */
  int64_t gave_up[STAGING_KINDS];     /* when a user last left it without a buffer */
  /* An engine that pins, one of its devices, and the NUMA nodes that have a share: half of the
   * limit each. `full`: buffers are neither made nor freed but by staging_prepare and
   * staging_reserve. */
  const struct provider *_Atomic engine;
  uint16_t device;
  uint64_t nodes;
  size_t goal; /* buffers, made and reserved */
  bool full, filling;
  bool closed;
  bool expires; /* a call of staging_expire is due */
  uint64_t waits;
  _Atomic int16_t near[8][16]; /* NUMA node + 2 by place; 0: unknown */
};

/* A user of buffers: one direction of a connection, an endpoint, a copy. */
struct staging_user {
  struct staging *staging;
  enum staging_kind kind;
  unsigned most;               /* its limit */
  void (*wake)(void *context); /* its turn has come; called with staging->lock, must take no lock */
  void *context;
  /* Guarded by staging->lock. */
  struct list link; /* staging->waiting */
  unsigned count, wanted;
  _Atomic int64_t waits_since; /* 0: not waiting */
};

/* Over zeroed memory; allocates from `heap`, up to STAGING_DEFAULT. */
void staging_open(struct staging *staging, struct heap *heap);
/* Before the first use; at least STAGING_LEAST. */
void staging_limit(struct staging *staging, size_t bytes);
/* Keeps no idle buffers from now on. */
void staging_close(struct staging *staging);
/* Frees buffers that were idle for STAGING_IDLE_NS. Returns when to call it again, or HAUL_FOREVER.
 */
int64_t staging_expire(struct staging *staging, int64_t now);

struct staging_counters {
  uint64_t bytes, limit, waits;
};
void staging_counters(struct staging *staging, struct staging_counters *counters);

/* Over any memory. */
void staging_user_init(struct staging *staging, struct staging_user *user, enum staging_kind kind,
                       unsigned most, void (*wake)(void *context), void *context);
/* Takes all `count` buffers, near `numa` (-1: anywhere), or none. 0: taken; 1: not now, and `wake`
 * will be called unless the user has two or more; else a code with the detail. */
int staging_get(struct staging_user *user, unsigned count, int numa, struct bounce **bounces);
/* Initialises `user` and waits for the buffers in the calling thread. HAUL_ETIMEDOUT. */
int staging_get_wait(struct staging *staging, struct staging_user *user, unsigned count, int numa,
                     struct bounce **bounces, haul_deadline until);
void staging_put(struct staging_user *user, struct bounce *bounce);
/* Leaves the queue; does nothing when not queued. */
void staging_cancel_wait(struct staging_user *user);
/* Is a user of this kind queued, or has one left the queue without a buffer after `since`? The
 * stall timer removes waiting users before it checks for slow holders. */
bool staging_is_short(struct staging *staging, enum staging_kind kind, int64_t since);
/* HAUL_ELIMIT, for a user that waited or held a buffer for too long. */
int staging_full(void);

/* Reserves buffers for a peer: at most `wanted` and a quarter of what may still be reserved, at
 * least STAGING_PAIR. Returns their number; 0: none left. */
unsigned staging_reserve(struct staging *staging, unsigned wanted);
void staging_unreserve(struct staging *staging, unsigned count);

/* The NUMA node of the place's device; -1: unknown, or the host has one node. */
int staging_numa(struct staging *staging, struct haul_place place);
/* Makes the memory's pages come from that node if it has free ones, and has the engine pin them. If
 * that fails, the first copy tries again and reports. Before the first use, not on a data path. */
void staging_pin(struct staging *staging, struct memory *memory, int numa);
/* Fills the pool if engines of the place's kind pin. Not on a data path. */
void staging_prepare(struct staging *staging, struct haul_place place);

#endif
