/* SPDX-License-Identifier: MIT
 * What was asked: transfers, the remote regions that they go to, and the choice of their path.
 *
 *   remote.c    a peer's region, and what each transport knows of it
 *   route.c     what each path to it would cost, and which one is taken
 *   costs.c     that by size, estimated and corrected by what was measured
 *   rules.c     which paths the configuration sets
 *   paths.c     all of that in words
 *   plan.c      pieces merged where they touch, sliced where they are large
 *   slice.c     how large the slices are, where it matters
 *   start.c     the calls that begin a transfer: the hot path, posting
 *   check.c     what they refuse
 *   learn.c     what a transfer that has ended teaches
 *   note.c      what who watches the node is told of it
 *   transfer.c  from the first work to the end: retries, deadlines, cancels, handles
 *   report.c    what it says about itself */
#ifndef HAUL_TRANSFER_TRANSFER_H
#define HAUL_TRANSFER_TRANSFER_H

#include <pthread.h>

#include "core/combiner.h"
#include "core/tune.h"
#include "fabric/transport.h"
#include "transfer/costs.h"
#include "transfer/rules.h"

/* ---- Slices ---- */

/* A path with a device's engine and buffers is a pipeline: engine, line, engine. A transfer of a
 * few slices that is alone in it waits for one after the other, so smaller ones may be faster,
 * though each costs: that is measured. Where a pipeline is full, and on other paths, slices are of
 * WORK_BYTES_MAX. */
struct slice {
  struct tune *of; /* to be told what the transfer took; NULL: nobody */
  uint32_t bytes;  /* of a work, at most */
  unsigned way;
};

/* `tells`: the transfer's time is as good as others' to learn from. */
struct slice slice_choose(struct tune *tune, uint64_t bytes, bool tells);
/* What would be chosen, trials aside. */
uint32_t slice_best(const struct tune *tune, uint64_t bytes);

/* ---- Remote regions ---- */

/* What each transport would cost between local memory of one sort and the remote. Made when first
 * asked for; all but the slices never change, and it lives as long as the remote. */
struct route {
  struct route *next;
  uint64_t sort; /* of the local memory, and the operation */
  struct estimate estimates[TRANSPORTS_MAX];
  struct tune slices[TRANSPORTS_MAX];
  struct costs *costs; /* the link's; NULL: by the estimates alone */
};

struct haul_remote {
  /* By operation, less one, of writes and reads: the view that the best path for small copies
   * lends, for local memory that has a view too. Without limit where the operation is not allowed.
   */
  struct direct direct[2];
  struct heap *heap; /* of the node: what local regions must come from */
  struct remote_key key;
  _Atomic uint32_t refs;
  struct link *link; /* a reference */
  struct transfers *transfers;
  bool bound[TRANSPORTS_MAX];
  void *bindings[TRANSPORTS_MAX];
  char reasons[TRANSPORTS_MAX][192]; /* why it is not bound */
  struct route *_Atomic routes;      /* a list; the latest first */
  char name[256];
};

/* Binds every open transport of the link. Takes over no reference: it makes its own of the link. */
int remote_open(struct transfers *transfers, struct link *link, const struct remote_key *key,
                const char *name, haul_deadline until, struct haul_remote **remote);
void remote_put(struct haul_remote *remote);

/* What a transfer asks of its path. */
struct constraints {
  const char *only;   /* its table's name, or NULL */
  unsigned flags;     /* of haul_transfer_options */
  uint32_t avoided;   /* bits of the transports that could not take it, though they are open */
  const char *reason; /* why the first of them could not */
  uint32_t slice;     /* what it is cut into; 0: that is not decided */
};

/* That of this memory; NULL where there is no memory for it. It may take as long as registering
 * `local` does. */
struct route *remote_route(struct haul_remote *remote, const struct memory *local,
                           enum haul_operation operation);
/* The best open path for the transfer: 0 and its index, or HAUL_ENOPATH, HAUL_EPEER, … with the
 * reasons in the detail. */
int route_choose(const struct haul_remote *remote, const struct route *route, uint64_t bytes,
                 const struct constraints *constraints, size_t *index);
/* Lends the remote the view for small copies, where the best path for them has one. */
void remote_take_direct(struct haul_remote *remote, enum haul_operation operation);
/* Of that path; NULL where slices are of one size. */
struct tune *route_slices(struct route *route, size_t index);
/* Of one of them, in ns; `known`, which may be NULL: whether it was measured for this size. */
double route_cost(const struct route *route, size_t index, uint64_t bytes, bool *known);
/* Why the path cannot be taken; "" when it can. */
const char *route_refusal(const struct haul_remote *remote, const struct route *route, size_t index,
                          const struct constraints *constraints);
/* The path that the configuration sets for this size, or -1. */
int route_rule(const struct haul_remote *remote, uint64_t bytes,
               const struct constraints *constraints);

/* paths.c: all of them, with costs and reasons; returns how many, at most HAUL_PATHS_MAX. `chosen`:
 * the one taken, or -1. */
size_t route_paths(const struct haul_remote *remote, struct route *route, uint64_t bytes,
                   uint64_t pieces, const struct constraints *constraints, int chosen,
                   struct haul_path *paths);

/* ---- Plans ---- */

struct plan {
  struct haul_piece *pieces;
  struct work *works; /* `pieces`, `count` and `bytes` are set */
  uint32_t work_count;
};

/* What `count` pieces of `bytes` in all need at the most, in works of `slice` bytes, which are
 * WORK_BYTES_MAX at most. */
size_t plan_pieces(size_t count, uint64_t bytes, uint32_t slice);
size_t plan_works(size_t count, uint64_t bytes, uint32_t slice);
/* Fills arrays of those sizes. */
void plan_make(struct plan *plan, const struct haul_piece *pieces, size_t count, uint32_t slice);

/* ---- Transfers ---- */

/* All transfers of a node. */
#define FLOW_STARTED (UINT64_C(1) << 32)
struct transfers {
  struct fabric *fabric;
  int64_t default_ns;
  struct path_rules rules; /* set before transfers_open; constant */
  bool estimates_only;     /* nothing is learned; constant */
  pthread_mutex_t lock;    /* the lists below and the links' lists of writes; taken last */
  struct list running;     /* by deadline */
  struct inbox begun;      /* not in the lists yet; who has the lock puts them there */
  struct list retries;     /* works whose path broke, or was held */
  struct list held;        /* works whose path is: see struct endpoint */
  struct poller poller;
  struct timer timer;
  _Atomic int64_t armed; /* what the timer is set to, HAUL_FOREVER when it is not */
  _Atomic uint64_t started, failed, retried,
      waited; /* of those that did not end within their call */
  /* Of the same: how many are under way, and above them (FLOW_STARTED each) how many ever began, so
   * that both are seen at once. */
  _Atomic uint64_t flow;
  _Atomic uint64_t handles, bytes; /* transfers that there are, and what they take */
  bool ended;                      /* nobody sends again what broke; lock */
};

/* The application drives the node: there is no thread of its own. */
static inline bool transfers_driven(const struct transfers *transfers) {
  return transfers->fabric->config->progress == HAUL_PROGRESS_CALLER;
}

int transfers_open(struct fabric *fabric, struct transfers *transfers);
/* The loop does not run any more: what breaks from now on fails. */
void transfers_end(struct transfers *transfers);
/* No transfer is running. */
void transfers_close(struct transfers *transfers);
/* Ends those that use the region, or all that go to the link (either may be NULL); with the loop's
 * lock. */
void transfers_abort(struct transfers *transfers, const struct haul_region *region,
                     const struct link *link, int code, const char *reason);
/* Whether one that uses the region is still running. */
bool transfers_use(struct transfers *transfers, const struct haul_region *region);
/* The number of the latest write to the link that was started, and whether one up to `number` is
 * still under way. */
uint64_t transfers_last_write(struct transfers *transfers, struct link *link);
bool transfers_writing(struct transfers *transfers, struct link *link, uint64_t number);

struct haul_transfer {
  union {
    struct list link;         /* transfers->running, until it has ended */
    struct deferred deferred; /* its `done`, after that */
  };
  struct list order; /* link->writes, unless it is a read */
  struct haul_remote *remote;
  struct route *route;
  struct haul_region *region; /* a reference while it runs */
  struct haul_place place;    /* of the region */
  _Atomic uint32_t refs;
  _Atomic int status;       /* 1: running; written once, by the last work to end */
  _Atomic int failure;      /* the first code */
  _Atomic uint32_t pending; /* works under way, and one for the call that posts them */
  _Atomic uint32_t retries;
  _Atomic int path;         /* index of the transport */
  _Atomic uint32_t avoided; /* as in struct constraints */
  _Atomic bool posting;     /* the call that started it still hands out works */
  bool immediate;           /* complete when the call returned: never was in a list */
  _Atomic bool alone;       /* none other was under way when it started */
  uint32_t handed;          /* ns from `posted` until every path had its works; 0: not yet */
  /* In a node that its caller drives, when alone: ns from there until somebody waited, and 1; 0:
   * not yet. */
  _Atomic uint32_t awaited;
  char *_Atomic avoided_reason;     /* set before the first bit is; NULL: there was no memory */
  struct haul_error *_Atomic error; /* of the first failure, once it is told */
  const char *only;                 /* of its options, as the next three */
  void (*done)(void *user, haul_transfer *transfer);
  void *user;
  unsigned flags;
  enum haul_operation operation;
  uint32_t size; /* of this, with its works and pieces */
  uint32_t pieces;
  uint64_t number; /* among link->writes */
  uint32_t turn;   /* among all that began */
  uint64_t bytes;
  int64_t called, posted, ended;
  haul_deadline deadline;
  uint32_t slice; /* bytes of a work, at most */
  uint8_t way;    /* that this is of route_slices' */
  bool tells;     /* how good that was */
  uint32_t work_count;
};

/* They lie behind it, and their pieces behind them. */
static inline struct work *transfer_works(const struct haul_transfer *transfer) {
  return (struct work *)(uintptr_t)(transfer + 1);
}

/* check.c */
/* Completes and checks what a caller gave, which may be NULL; `only` becomes the table's own name,
 * which lives for ever and is compared by address. HAUL_EINVAL. */
int transfer_check_options(const struct haul_transfer_options *given,
                           struct haul_transfer_options *options);
/* HAUL_EINVAL for another node's region, HAUL_EACCESS. */
int transfer_check_rights(const struct haul_remote *remote, const struct haul_region *region,
                          enum haul_operation operation);
/* HAUL_EINVAL where there is `done`, and nobody asked for the handle. */
int transfer_check_done(const struct haul_transfer_options *options, bool handle);
/* What is wrong with a call, or with a piece, that the hot path does not like. */
__attribute__((cold)) int transfer_bad_call(const struct haul_remote *remote,
                                            const struct haul_region *region,
                                            const struct haul_piece *pieces, size_t count,
                                            enum haul_operation operation);
__attribute__((cold)) int transfer_bad_piece(const struct haul_remote *remote,
                                             const struct haul_region *region,
                                             const struct haul_piece *piece, size_t i);

/* learn.c: from transfers that were alone from their start to their end. */
/* Every path has its works; somebody begins to wait for it. */
void transfer_posted_all(struct haul_transfer *transfer);
void transfer_wait_began(struct haul_transfer *transfer);
/* Who waited goes before it has ended. */
void transfer_wait_ended(struct haul_transfer *transfer);
/* It has ended. */
void transfer_record(const struct haul_transfer *transfer);
/* It ended within its call. */
void transfer_record_cost(const struct haul_transfer *transfer);

/* note.c: for who watches the node, if anybody does (core/trace.h). */
__attribute__((cold)) void trace_transfer(const struct haul_transfer *transfer,
                                          enum haul_trace_kind kind);
__attribute__((cold)) void trace_work(const struct work *work, enum haul_trace_kind kind, int code);

static inline bool transfer_is_traced(const struct haul_transfer *transfer) {
  return trace_is_on(&transfer->remote->transfers->fabric->trace);
}

/* transfer.c */
/* What it still asks of its path. */
struct constraints transfer_constraints(const struct haul_transfer *transfer);
/* Puts it into the lists; takes no lock. */
void transfer_begin(struct haul_transfer *transfer);
/* Hands the work to the best path: 0, or why there is none. */
int transfer_post(struct haul_transfer *transfer, struct work *work);
void transfer_work_done(struct work *work, int code); /* what a work's `done` is */
/* Keeps the thread's error detail, if it is the first failure. */
void transfer_fail(struct haul_transfer *transfer, int code);
/* One less is pending; the last one ends the transfer. */
void transfer_settle(struct haul_transfer *transfer);
/* With the loop's lock and a reference. */
void transfer_cancel_works(struct haul_transfer *transfer, int code);
/* Waits for the end, or until `until`: the transfer's result, or HAUL_ETIMEDOUT. */
int transfer_await(struct haul_transfer *transfer, haul_deadline until);
/* It has ended: has `done` called, with the reference, or puts it. */
void transfer_notify(struct haul_transfer *transfer);
void transfer_put(struct haul_transfer *transfer);

#endif
