/* SPDX-License-Identifier: MIT
 * The `rdma` transport: NICs move the bytes, over reliable-connected queue pairs.
 *
 *   nic.c       libibverbs, opened at run time, and the NICs of this host
 *   sysfs.c     sysfs, and the addresses of this network namespace
 *   checks.c    the checks of `haul doctor` and the list of ports
 *   frame.c     records between the two ends, packed and parsed
 *   device.c    ports in use: registrations, asynchronous events
 *   rail.c      a queue pair, its completion queue and its message queue
 *   receives.c  receives that the rails of a NIC share
 *   pair.c      the rails of a connection: which end of one side belongs to which of the other
 *   channel.c   the control channel: set-up, attaching at the client, dispatch of records
 *   owner.c     attachments, and the owner's part of a work
 *   post.c      works become jobs and work requests
 *   complete.c  completions, cancellation, failure
 *   restore.c   connecting a broken path again
 *   step.c      steps of a job before and after the NIC's part
 *   rdma.c      the transport table
 *   absent.c    the table in a build without the verbs' header
 *
 * Locks: the loop's lock guards the channel, attachments, the list of bindings, staged copies, and
 * each job in `stepping`. The endpoint's lock (`combiner`) guards the lists of jobs, rails and
 * slots. It is taken after the loop's lock; only the regcache's lock may be taken inside it.
 * Posting to the receives that rails share needs no lock (receives.h). */
#ifndef HAUL_FABRIC_RDMA_ENDPOINT_H
#define HAUL_FABRIC_RDMA_ENDPOINT_H

#include "core/combiner.h"
#include "fabric/rdma/device.h"
#include "fabric/rdma/job.h"
#include "fabric/rdma/owner.h"
#include "fabric/rdma/rail.h"
#include "fabric/transport.h"
#include "fabric/work_batch.h"
#include "memory/staging.h"

/* A remote region. Mutable fields are guarded by the endpoint's lock. */
struct rdma_binding {
  struct list link; /* endpoint->bindings */
  uint64_t handle, length, address;
  bool staged; /* address and keys are the staging area's */
  bool fenced; /* the owner has to fence its device */
  bool atomic; /* the keys allow atomics, over `atomic_rail` */
  uint8_t atomic_rail;
  uint16_t rails;        /* bits of those with a key */
  uint32_t number;       /* for immediates */
  uint32_t jobs;         /* under way */
  bool retries;          /* the owner may be able to register it later; the loop's lock */
  bool revoked;          /* by the owner */
  bool end_sent;         /* DETACH or REVOKE_ACK went out */
  _Atomic bool released; /* by its user; written without a lock */
  _Atomic bool renewed;  /* the owner has registered it meanwhile: new jobs use `direct` */
  struct rdma_binding *direct;
  char reason[128]; /* why the peer stages the memory */
  uint32_t keys[];  /* by rail */
};

/* Records for the channel that its socket had no room for. */
struct rdma_unsent {
  uint8_t *bytes;
  size_t length, sent, room;
  bool lost; /* one found no memory: no later one may be sent, and the link ends */
};

/* A path that was open and broke is connected again; the loop's lock. */
struct rdma_restore {
  struct timer timer; /* initiator */
  int64_t pause;
  int64_t opened_at; /* 0: not since the pause was set */
  int64_t answer_at; /* acceptor: an earlier HELLO renews nothing */
  bool possible;     /* the path was open, and the peer supports it */
  bool peer_does;    /* the peer's HELLO */
  bool quiet;        /* after BROKEN_ACK: neither side has queue pairs */
  bool probing;      /* the rails carry a message each */
  bool late;         /* those of rails by order have had their time */
};

struct rdma_endpoint {
  struct endpoint base;
  struct rdma_node *node;
  struct list peer;      /* node->endpoints */
  struct stream channel; /* fd -1: none */
  struct watch watch;
  uint8_t partial[RDMA_RECORD]; /* of a record on the channel */
  size_t partial_length;
  struct rdma_unsent unsent;
  uint32_t next_request;
  uint32_t outstanding;        /* requests without a response; the loop's lock */
  struct list attach_requests; /* struct attach_request of channel.c */
  struct timer attach_timer;   /* of the next ATTACH for a binding that `retries` */
  struct list attachments;
  struct list attach_queue;      /* the peer's ATTACHs that wait for a thread */
  bool attaching;                /* a thread serves one of them */
  struct list bindings;          /* the loop's lock */
  _Atomic bool bindings_changed; /* rdma_release_bindings has something to do */
  bool hello_received, ready_sent, ready_received;
  struct rdma_greeting *greeting; /* of a hello whose records have not all come; else NULL */
  struct rdma_restore restore;
  unsigned rail_count;
  struct rdma_rail **rails; /* until the endpoint is destroyed */
  struct poller poller;
  struct timer timer;           /* runs while a NIC has jobs, or canceled jobs are stranded */
  struct combiner combiner;     /* the endpoint's lock; its items are jobs */
  struct work_batch work_batch; /* works whose jobs are not enqueued yet */
  struct list acquiring;        /* jobs at STEP_ACQUIRE, in order; lock */
  struct list stepping;         /* jobs at other steps than the NIC's; lock */
  struct list rejected; /* jobs that were not enqueued, to be ended without the lock; lock */
  _Atomic bool has_rejected;
  struct list stranded; /* jobs of broken rails; they end when the peer acknowledges; lock */
  bool broken;          /* lock */
  struct staging_user staging;
  struct rdma_slot slots[RDMA_SLOTS];     /* of the peer's staging area; lock */
  unsigned slot_count;                    /* lock */
  unsigned slots_in_copy;                 /* while there are any, no other write starts; lock */
  struct rdma_staging_area *staging_area; /* NULL: not needed yet */
  struct list staged_copies;              /* struct staged_copy of owner.c */
  uint64_t checksummed;                   /* bytes, for the peer, in this turn */
  uint32_t next_number;                   /* of an attachment */
};

/* The binding that new jobs use. */
static inline struct rdma_binding *rdma_latest(struct rdma_binding *binding) {
  return atomic_load_explicit(&binding->renewed, memory_order_acquire) ? binding->direct : binding;
}

/* Never 0, the number of a probe (restore.c). */
static inline uint32_t rdma_next_request(struct rdma_endpoint *endpoint) {
  endpoint->next_request += endpoint->next_request == UINT32_MAX ? 2 : 1;
  return endpoint->next_request;
}

/* Whether both sides pair rails by subnet, and know keys that are missing. */
static inline bool rdma_pairs_rails(const struct rdma_endpoint *endpoint) {
  return endpoint->base.link->version >= RDMA_PAIRS_VERSION;
}

/* rdma.c: creates a rail at its device. */
int rdma_open_rail(struct rdma_rail *rail);
void rdma_close_rail(struct rdma_rail *rail);

/* pair.c; with the loop's lock. After a failure, whose detail is set, the caller drops the rails.
 */
/* Initiator: opens a rail at each usable port. */
int rdma_rails_offer(struct rdma_endpoint *endpoint);
/* Acceptor: pairs the peer's ends with this side's, and opens and connects rails for them. Sets
 * `paired`, as in a hello. */
int rdma_rails_accept(struct rdma_endpoint *endpoint, const struct rdma_greeting *peer,
                      uint16_t *paired);
/* Initiator: keeps the rails that the peer has paired, and connects them. HAUL_EPROTO. */
int rdma_rails_settle(struct rdma_endpoint *endpoint, const struct rdma_greeting *peer,
                      uint16_t paired);
/* Connects the rails with as many ends. */
int rdma_rails_connect(struct rdma_endpoint *endpoint, const struct rdma_greeting *peer);
void rdma_rails_close(struct rdma_endpoint *endpoint);
void rdma_rails_free(struct rdma_endpoint *endpoint);

/* Of rails that no message has shown to be usable. */
#define RDMA_SILENT "the peer's NICs do not acknowledge"

/* restore.c; with the loop's lock */
void rdma_restore_init(struct rdma_endpoint *endpoint);
/* Both sides sent and received READY. */
void rdma_connected(struct rdma_endpoint *endpoint);
/* The peer acknowledged BROKEN. */
void rdma_restore_later(struct rdma_endpoint *endpoint);
/* Acceptor, on HELLO while quiet: whether new rails are there. */
bool rdma_restore_answer(struct rdma_endpoint *endpoint);
/* Opens the path once the probes are acknowledged. */
void rdma_restore_poll(struct rdma_endpoint *endpoint);

/* Bits of the devices nearest to the place, among those of these rails (rdma.c). */
unsigned rdma_near(const struct rdma_endpoint *endpoint, struct haul_place place, unsigned rails);

#endif
