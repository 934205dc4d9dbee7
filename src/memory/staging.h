/* SPDX-License-Identifier: MIT
 * A node's host buffers between a device and what else moves its bytes: a socket, a NIC, another
 * device. All of them come from here, so that one figure bounds them.
 *
 * Who waits for whom. A holder of the first kind waits for devices, and for bytes that are on their
 * way to it: whatever becomes of others, it ends. A holder of the second kind waits for a peer that
 * reads, and that peer may wait for a buffer of the first kind, at its own node. Two buffers are
 * kept for each kind, so there is always one of the first kind that moves, then one of the second.
 * What is lent to a peer never comes back while the peer is there: it takes no more than half, and
 * none of those that are kept.
 *
 * Turns. A user that has two does not stand in line, and those of one kind that do are served in
 * the order in which they came. So everybody has two before anybody has a third. Who holds buffers
 * asks for more only where it can go on without them, or asks for all at once. */
#ifndef HAUL_MEMORY_STAGING_H
#define HAUL_MEMORY_STAGING_H

#include <pthread.h>

#include "core/list.h"
#include "memory/region.h"

#define BOUNCE_BYTES    ((size_t)1 << 20)
#define STAGING_PAIR    2u                 /* so that one is filled while the other is emptied */
#define STAGING_LEAST   (8 * BOUNCE_BYTES) /* two of each kind, and two peers' loans */
#define STAGING_DEFAULT (64 * BOUNCE_BYTES)
#define STAGING_IDLE_NS INT64_C(5000000000)

enum staging_kind { STAGING_RECEIVE, STAGING_SEND, STAGING_KINDS };

struct bounce {
  struct list link;           /* the pool's idle ones */
  struct haul_region *region; /* private host memory of BOUNCE_BYTES that an engine may pin */
  int numa;                   /* the node that it was placed on; -1: none */
  int64_t ends_at;            /* idle: goes back to the system then */
};

/* NULL for none. */
static inline struct memory *bounce_memory(struct bounce *stage) {
  return stage ? &stage->region->memory : NULL;
}

struct staging {
  struct heap *heap;
  pthread_mutex_t lock; /* guards the rest; nothing is taken after it */
  size_t limit;         /* buffers */
  size_t made;          /* stages that there are */
  size_t lent;          /* what was lent, in buffers */
  size_t used[STAGING_KINDS];
  struct list idle;                   /* stages, the latest first */
  struct list waiting[STAGING_KINDS]; /* users, in turn */
  bool closed;
  bool expires; /* staging_expire will be called */
  uint64_t waits;
  _Atomic int16_t near[8][16]; /* nodes of devices, by place, and 2; 0: not asked yet */
};

/* Somebody who takes some: one direction of a connection, an endpoint, a copy. */
struct staging_user {
  struct staging *staging;
  enum staging_kind kind;
  unsigned most;               /* that it may have */
  void (*wake)(void *context); /* it is its turn; with the pool's lock, so it takes none */
  void *context;
  /* The pool's lock. */
  struct list link; /* staging->waiting */
  unsigned held, wanted;
  _Atomic int64_t waits_since; /* 0: it does not */
};

/* Over zeroed memory; `heap` is where the buffers come from. The limit is the default's. */
void staging_open(struct staging *staging, struct heap *heap);
/* Before the first use; at least STAGING_LEAST. */
void staging_limit(struct staging *staging, size_t bytes);
/* Nothing is kept from now on. */
void staging_close(struct staging *staging);
/* Gives what was idle for long back to the system; when to call it again, or HAUL_FOREVER. */
int64_t staging_expire(struct staging *staging, int64_t now);

struct staging_counters {
  uint64_t bytes, limit, waits;
};
void staging_counters(struct staging *staging, struct staging_counters *counters);

/* Over any memory. */
void staging_user_init(struct staging *staging, struct staging_user *user, enum staging_kind kind,
                       unsigned most, void (*wake)(void *context), void *context);
/* All of `count`, near `numa` (-1: anywhere), or none. 0; 1: not now: it waits for its turn, which
 * `wake` tells, or, with two or more, for those that it has; else a code with the detail. */
int staging_get(struct staging_user *user, unsigned count, int numa, struct bounce **stages);
/* The same, and waits in the calling thread; joins by itself. HAUL_ETIMEDOUT. */
int staging_get_wait(struct staging *staging, struct staging_user *user, unsigned count, int numa,
                     struct bounce **stages, haul_deadline until);
void staging_put(struct staging_user *user, struct bounce *stage);
/* It wants no more: those behind it are next. Also when it does not wait. */
void staging_cancel_wait(struct staging_user *user);
/* Whether one of that kind waits for another's. */
bool staging_is_short(struct staging *staging, enum staging_kind kind);
/* What a user gets that waited too long, or held one for too long while others waited. */
int staging_full(void);

/* For buffers that are a peer's while it is there: at most `wanted`, an even share of what may
 * still be lent, and at least STAGING_PAIR; 0: nothing is left. */
unsigned staging_reserve(struct staging *staging, unsigned wanted);
void staging_unreserve(struct staging *staging, unsigned count);

/* The NUMA node of the place's device; -1: it has none, or the host has only one. */
int staging_numa(struct staging *staging, struct haul_place place);
/* Has the memory's pages come from that node, where there are any, from their first use on. */
void staging_bind_numa(const struct memory *memory, int numa);

#endif
