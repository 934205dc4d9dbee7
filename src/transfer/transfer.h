/* SPDX-License-Identifier: MIT
 * Transfers, the remote regions that they access, and the choice of their path.
 *
 *   route.c     remote regions; what each path to one costs, and which path is taken
 *   costs.c     costs by size: estimates, corrected by measured transfers
 *   rules.c     the setting `paths`
 *   plan.c      pieces merged where they touch and cut into slices; the size of slices
 *   start.c     the calls that start a transfer: the hot path, posting
 *   check.c     validation of their arguments
 *   transfer.c  from the first work to the end: retries, deadlines, cancellation, handles
 *   wait.c      results, and waits for one or many
 *   notice.c    notifications: messages that follow the bytes
 *   report.c    reports, explanations of paths, trace events */
#ifndef HAUL_TRANSFER_TRANSFER_H
#define HAUL_TRANSFER_TRANSFER_H

#include <pthread.h>

#include "core/combiner.h"
#include "core/tune.h"
#include "fabric/transport.h"
#include "transfer/costs.h"
#include "transfer/rules.h"

/* A path with bounce buffers is a pipeline: engine, wire, engine. A transfer of a few slices that
 * has the pipeline to itself waits for one stage after the other. Smaller slices may be faster
 * then, although each has a cost, so their size is tuned by measurement. Where the pipeline is
 * full, and on other paths, slices have WORK_BYTES_MAX. */
struct slice {
  struct tune *tune; /* gets the time of the transfer; NULL: none */
  uint32_t bytes;    /* of a work, at most */
  unsigned way;      /* of `tune` */
};

/* Of transfers whose slices are not tuned. */
struct slice slice_whole(void);
/* `measures`: the time of the transfer is recorded, so other sizes may be tried. */
struct slice slice_choose(struct tune *tune, uint64_t bytes, bool measures);
/* The best known size. */
uint32_t slice_best(const struct tune *tune, uint64_t bytes);

/* Estimates of each transport between local memory of one type and the remote. Created on first
 * use and lives as long as the remote; only `slices` changes. */
struct route {
  struct route *next;
  uint64_t type; /* of the local memory and the operation: route.c, type_of */
  struct estimate estimates[TRANSPORTS_MAX];
  struct tune slices[TRANSPORTS_MAX];
  struct costs *costs;          /* of the link; NULL: the estimates alone decide */
  const _Atomic bool *outdated; /* of an estimate; or NULL */
};

struct haul_remote {
  /* For writes and reads (operation - 1): the mapping through which the best path copies few bytes,
   * if the local memory is mapped too. Limit 0: none. */
  struct direct direct[2];
  struct heap *heap; /* of the node; local regions must come from it */
  struct remote_key key;
  _Atomic uint32_t refs;
  struct link *link; /* a reference */
  struct transfers *transfers;
  bool bound[TRANSPORTS_MAX];
  void *bindings[TRANSPORTS_MAX];
  char reasons[TRANSPORTS_MAX][192]; /* why a transport is not bound */
  struct route *_Atomic routes;      /* a list that only grows, at its head */
  char name[256];
};

/* Binds every open transport of the link, and takes a reference of the link. */
int remote_open(struct transfers *transfers, struct link *link, const struct remote_key *key,
                const char *name, haul_deadline until, struct haul_remote **remote);
void remote_put(struct haul_remote *remote);

/* The caller's demands on the path. */
struct constraints {
  const char *only;   /* the transport's own name; NULL: any */
  unsigned flags;     /* of haul_transfer_options */
  uint32_t avoided;   /* bits of open transports that refused the transfer */
  const char *reason; /* of the first refusal */
  uint32_t slice;     /* bytes; 0: not decided yet */
};

/* The route for this region; NULL without memory, with the detail. May take as long as registering
 * it. */
struct route *remote_route(struct haul_remote *remote, struct haul_region *local,
                           enum haul_operation operation);
/* Chooses the best open path: 0, or HAUL_ENOPATH, HAUL_EPEER, … with the reason of each path in the
 * detail. */
int route_choose(const struct haul_remote *remote, const struct route *route, uint64_t bytes,
                 const struct constraints *constraints, size_t *index);
/* The tuned slices of a path; NULL: all slices have one size. */
struct tune *route_slices(struct route *route, size_t index);
/* Expected ns on a path. `known`, which may be NULL: whether this size was measured. */
double route_cost(const struct route *route, size_t index, uint64_t bytes, bool *known);
/* Why the path cannot be taken; "": it can. */
const char *route_refusal(const struct haul_remote *remote, const struct route *route, size_t index,
                          const struct constraints *constraints);
/* The path that the setting `paths` wants for this size; -1: none. */
int route_rule(const struct haul_remote *remote, uint64_t bytes,
               const struct constraints *constraints);

struct constraints transfer_constraints(const struct haul_transfer *transfer);
/* The path of a transfer. It is chosen once, and again only if it is closed or refused a work.
 * Returns 0, or the code of route_choose. */
int transfer_path(struct haul_transfer *transfer, size_t *path);

struct plan {
  struct haul_piece *pieces;
  struct work *works; /* `pieces`, `count` and `bytes` are set */
  uint32_t work_count;
};

/* Upper bounds of the pieces and works of a plan for `count` pieces of `bytes` in all, cut into
 * slices of at most WORK_BYTES_MAX. */
size_t plan_pieces(size_t count, uint64_t bytes, uint32_t slice);
size_t plan_works(size_t count, uint64_t bytes, uint32_t slice);
/* Fills arrays of those lengths. */
void plan_make(struct plan *plan, const struct haul_piece *pieces, size_t count, uint32_t slice);

/* All transfers of a node. */
#define FLOW_STARTED (UINT64_C(1) << 32)
struct transfers {
  struct fabric *fabric;
  int64_t default_ns;
  struct path_rules rules; /* constant; set before transfers_open */
  bool estimates_only;     /* constant: measurements do not correct the estimates */
  pthread_mutex_t lock;    /* guards the lists below and the links' lists of writes; innermost */
  struct list running;     /* by deadline */
  struct inbox begun;      /* started; the next holder of `lock` moves them to `running` */
  struct list held;        /* first works of transfers that wait for an event, their `state` */
  struct list retries;     /* works whose path broke */
  struct list blocked;     /* works whose endpoint is blocked: see struct endpoint */
  struct list notices;     /* notifications that wait for room */
  struct poller poller;
  struct timer timer;
  _Atomic int64_t armed; /* when the timer fires; HAUL_FOREVER: stopped */
  /* Counters. `waited`: of works that were put into `blocked`. */
  _Atomic uint64_t started, failed, retried, waited;
  /* Transfers under way, plus FLOW_STARTED for each that ever started: one load gives both. */
  _Atomic uint64_t flow;
  _Atomic uint64_t handles, bytes; /* existing handles, and their memory */
  bool ended;                      /* works are not retried any more; guarded by `lock` */
};

/* The application drives the node, which has no thread. */
static inline bool transfers_driven(const struct transfers *transfers) {
  return transfers->fabric->config->progress == HAUL_PROGRESS_CALLER;
}

/* Takes the lock, and moves what has begun to `running`. */
void transfers_lock(struct transfers *transfers);
void transfers_on_deadline(struct timer *timer);
void transfers_open(struct fabric *fabric, struct transfers *transfers);
/* The loop does not run any more: works whose path breaks from now on fail. */
void transfers_end(struct transfers *transfers);
/* No transfer is running. */
void transfers_close(struct transfers *transfers);
/* With the loop's lock. Cancels the transfers that use the region and go to the link; NULL matches
 * all. */
void transfers_abort(struct transfers *transfers, const struct haul_region *region,
                     const struct link *link, int code, const char *reason);
/* Whether a running transfer uses the region and goes to the link; NULL matches all. */
bool transfers_use(struct transfers *transfers, const struct haul_region *region,
                   const struct link *link);
/* The number of the last write to the link that was started; whether a write up to `number` is
 * still under way. */
uint64_t transfers_last_write(struct transfers *transfers, struct link *link);
bool transfers_writing(struct transfers *transfers, struct link *link, uint64_t number);

#define TRANSFER_COMMITTED 1 /* as `failure`: the notification is sent, so none counts any more */

/* A notification, behind the pieces of its transfer, and its bytes behind it. */
struct notice {
  struct list link; /* transfers->notices; empty: does not wait */
  struct haul_transfer *transfer;
  struct haul_notification message;
};

struct haul_transfer {
  union {
    struct list link;         /* transfers->running, until the end */
    struct deferred deferred; /* calls `done`, after the end */
  };
  struct list order; /* link->writes, except for reads */
  struct haul_remote *remote;
  struct route *route;
  struct haul_region *region; /* a reference while the transfer runs */
  struct haul_place place;    /* of the region */
  _Atomic uint32_t refs;
  _Atomic int status;  /* 1: running; written once, by the last work to end */
  _Atomic int failure; /* first code; transfer_fail sets it after `error`. TRANSFER_COMMITTED */
  _Atomic uint32_t pending; /* works under way, plus one while the call posts them */
  uint32_t work_count;
  _Atomic uint32_t retries;
  _Atomic uint8_t path;    /* index of the transport that the next work takes if it is open */
  _Atomic uint8_t avoided; /* as in struct constraints */
  _Atomic bool posting;    /* the call that started the transfer still posts works, or it is held */
  bool immediate;          /* complete within the call; never listed */
  _Atomic bool alone;      /* no other was under way when it started */
  uint8_t way;             /* of route_slices */
  bool measures;           /* transfer_record records the time of its slices */
  uint32_t handed;         /* ns from `posted` until all works were posted; 0: not yet */
  /* In a node that its caller drives, for a transfer that is alone: ns from all works posted to the
   * wait for it, plus 1; 0: no wait yet. */
  _Atomic uint32_t awaited;
  struct haul_place after_at;       /* of the event */
  char *_Atomic avoided_reason;     /* set before the first bit of `avoided`; NULL: no memory */
  struct haul_error *_Atomic error; /* detail of `failure`; NULL: no memory */
  const char *only;                 /* an option, as the next three */
  void (*done)(void *user, haul_transfer *transfer);
  void *user;
  struct notice *notice; /* NULL: none */
  unsigned flags;
  enum haul_operation operation;
  uint32_t size; /* bytes of this with its works and pieces */
  uint32_t pieces;
  uint64_t number; /* in link->writes */
  uint64_t bytes;
  int64_t called, posted, ended;
  _Atomic int64_t cpu; /* HAUL_CPU_TIME: minus clock_cpu() at the call; after the end, the sum */
  haul_deadline deadline;
  uint32_t slice; /* bytes of a work, at most */
  uint32_t turn;  /* among all that ever started */
};

/* Notes the time of the end. */
void transfer_stamp(struct haul_transfer *transfer);

/* The works lie behind the transfer, and their pieces behind the works. */
static inline struct work *transfer_works(const struct haul_transfer *transfer) {
  return (struct work *)(uintptr_t)(transfer + 1);
}

/* Copies the caller's options, which may be NULL, over the defaults. `only` becomes the transport's
 * own name, which is constant and compared by address. HAUL_EINVAL. */
int transfer_check_options(const struct haul_transfer_options *given,
                           struct haul_transfer_options *options);
/* HAUL_EINVAL for a region of another node, HAUL_EACCESS. */
int transfer_check_rights(const struct haul_remote *remote, const struct haul_region *region,
                          enum haul_operation operation);
/* HAUL_ETIMEDOUT for a deadline that has passed, HAUL_EINVAL for `done` without a handle. */
int transfer_check_start(const struct haul_transfer_options *options, bool handle);
/* HAUL_EINVAL, HAUL_ELIMIT. `peer`, its name, may be NULL. */
int transfer_check_message(const char *peer, const void *bytes, size_t length);
/* Set the detail for a call or a piece that start.c found invalid. */
__attribute__((cold)) int transfer_bad_call(const struct haul_remote *remote,
                                            const struct haul_region *region,
                                            const struct haul_piece *pieces, size_t count,
                                            enum haul_operation operation);
__attribute__((cold)) int transfer_bad_piece(const struct haul_remote *remote,
                                             const struct haul_region *region,
                                             const struct haul_piece *piece, size_t i);

/* costs.c: feedback from transfers that were alone from start to end */

/* All works are posted; a wait for the transfer begins; a wait ended before the transfer. */
void transfer_posted_all(struct haul_transfer *transfer);
void transfer_wait_began(struct haul_transfer *transfer);
void transfer_wait_ended(struct haul_transfer *transfer);
/* The transfer ended. */
void transfer_record(const struct haul_transfer *transfer);
/* The transfer ended within its call. */
void transfer_record_cost(const struct haul_transfer *transfer);

/* report.c: trace events (core/trace.h) */

__attribute__((cold)) void trace_transfer(const struct haul_transfer *transfer,
                                          enum haul_trace_kind kind);
__attribute__((cold)) void trace_work(const struct work *work, enum haul_trace_kind kind, int code);

static inline bool transfer_is_traced(const struct haul_transfer *transfer) {
  return trace_is_on(&transfer->remote->transfers->fabric->trace);
}

/* haul_write and haul_read, within a public call. */
int transfer_start(struct haul_remote *remote, struct haul_region *region,
                   const struct haul_piece *pieces, size_t count,
                   const struct haul_transfer_options *given, enum haul_operation operation,
                   struct haul_transfer **out);
/* haul_transfer_report, within a public call. */
int transfer_report(struct haul_transfer *transfer, struct haul_report *report);
/* Posts all works, or ends those of a transfer that failed. `locked`: with the loop's lock. */
void transfer_post_all(struct haul_transfer *transfer, bool locked);
/* Posts the works once the event, at after_at, has completed. */
void transfer_hold(struct haul_transfer *transfer, void *event);
/* With the loop's lock. Takes over the works that were in transfers->held. True: one was released.
 */
bool transfers_release_held(struct transfers *transfers, struct list *held);
/* Queues the transfer for `running`; takes no lock. */
void transfer_begin(struct haul_transfer *transfer);
/* Posts the work on the transfer's path, or on the best one left if that path is lost. Returns 0,
 * or the code of route_choose. */
int transfer_post(struct haul_transfer *transfer, struct work *work);
void transfer_work_done(struct work *work, int code); /* `done` of a work */
/* Records the first failure, whose detail is the thread's. */
void transfer_fail(struct haul_transfer *transfer, int code);
/* The detail of a transfer that ends with its node. */
int transfer_node_closed(const struct haul_transfer *transfer);
/* Ends it if it is still running, as its deadline has passed. Without the loop's lock. */
void transfer_expire(struct haul_transfer *transfer);
/* Whether a call may use the handle: 0, or a code with the detail. */
int transfer_enter(const char *call, const struct haul_transfer *transfer);
/* Takes one from `pending`; the last one ends the transfer. */
void transfer_settle(struct haul_transfer *transfer);
void transfer_finish(struct haul_transfer *transfer);
/* All works have ended. Sends the notification unless one failed. False: the peer has no room, and
 * the notification is in transfers->notices, or the transfer has ended meanwhile. */
bool transfer_send_notice(struct haul_transfer *transfer);
/* Ends a transfer that failed while it waited for room. With a reference. */
void transfer_drop_notice(struct haul_transfer *transfer);
/* With the loop's lock, or after the last run: tries again for those that wait. */
void transfers_send_notices(struct transfers *transfers);
/* With the loop's lock and a reference. */
void transfer_cancel_works(struct haul_transfer *transfer, int code);
/* Waits for the end, or until `until`: the transfer's result, or HAUL_ETIMEDOUT. */
int transfer_await(struct haul_transfer *transfer, haul_deadline until);
/* After the end: has `done` called with the reference, or puts the reference. */
void transfer_notify(struct haul_transfer *transfer);
void transfer_put(struct haul_transfer *transfer);

#endif
