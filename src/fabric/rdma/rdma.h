/* SPDX-License-Identifier: MIT
 * The `rdma` transport: the NIC moves the bytes, over reliable-connected queue pairs.
 *
 *   verbs.c    libibverbs, opened at run time
 *   nic.c      the NICs of this host
 *   checks.c   what is missing
 *   frame.c    what the two ends say on their channel
 *   channel.c  saying it: set-up, attaching, withdrawing
 *   queue.c    one rail: a queue pair and its completion queue
 *   memory.c   what is registered, at which NIC
 *   sum.c      end-to-end checksums
 *   post.c     works to work requests, windows, completions
 *   rdma.c     the table
 *
 * Locks: the channel, the bindings and the attachments are the loop's. `lock` of the endpoint
 * guards rails, jobs and what is posted; it is taken after the loop's, and nothing but the
 * regcache's after it. */
#ifndef HAUL_FABRIC_RDMA_H
#define HAUL_FABRIC_RDMA_H

#include <infiniband/verbs.h>
#include <pthread.h>

#include "fabric/exports.h"
#include "fabric/rdma/frame.h"
#include "fabric/rdma/nic.h"
#include "fabric/rdma/verbs.h"
#include "fabric/regcache.h"
#include "fabric/transport.h"

#define RDMA_DEPTH  512u  /* work requests a send queue; at least one work's */
#define RDMA_JOBS   128u  /* works posted a rail */
#define RDMA_INLINE 220u  /* bytes that go with the request itself, where the NIC takes as many */
#define RDMA_BUSY   50000 /* ns without a completion after which it is waited for asleep */

_Static_assert(RDMA_DEPTH >= WORK_PIECES_MAX, "a work must fit an empty send queue");

struct rdma_endpoint;

/* A port in use by this node: what all its queue pairs share. */
struct rdma_card {
  const struct nic *nic;
  struct nic_port port;
  struct regcache *cache;
};

/* A node's share: fabric->shared[rdma]. */
struct rdma_node {
  struct fabric *fabric;
  pthread_mutex_t lock; /* while cards are opened, or memory forgotten */
  struct nics *nics;    /* NULL: not opened yet, or there are none */
  unsigned count;
  struct rdma_card cards[RDMA_RAILS_MAX]; /* constant once there are some */
};

struct rdma_rail {
  struct rdma_endpoint *endpoint;
  struct rdma_card *card;
  struct ibv_comp_channel *events;
  struct ibv_cq *completions;
  struct ibv_qp *queue;
  struct rdma_end end; /* what the peer is told of it */
  uint32_t inlined;    /* bytes that go inline */
  struct watch watch;  /* of `events`; the loop's lock */
  /* With the endpoint's lock. */
  uint32_t room; /* work requests that the send queue has room for */
  uint32_t posted_count;
  uint64_t bytes;      /* under way */
  struct list posted;  /* jobs, in the order of their posts: completions come in it */
  struct list waiting; /* jobs without room */
  int64_t moved_at;    /* the latest completion */
  bool armed;          /* an event will come */
  bool broken;
};

/* A work on its way. */
struct rdma_job {
  struct list link; /* the rail's posted or waiting, or a list of those that have ended */
  struct work *work;
  struct rdma_rail *rail;
  struct registration *entry; /* of the local memory */
  uint32_t key;
  uint32_t requests;          /* posted; 0 while it waits */
  bool off_rail;              /* in endpoint->stranded or summing */
  uint32_t serial, questions; /* while it is summed; the loop's lock */
  int code;                   /* as it ended */
};

/* What the endpoint knows of one remote region. */
struct rdma_binding {
  struct list link; /* endpoint->bindings */
  struct rdma_endpoint *endpoint;
  uint64_t handle, address;
  uint32_t keys[RDMA_RAILS_MAX];
  uint32_t jobs; /* under way; the endpoint's lock */
  bool revoked;  /* the endpoint's lock */
  bool quiet;    /* the peer was told; the loop's lock */
};

/* A region of ours that the peer's NIC may reach. */
struct rdma_attachment {
  struct list link; /* endpoint->attachments */
  uint64_t handle;
  unsigned uses; /* ATTACHs without a DETACH or QUIET */
  bool revoked;
  struct haul_region *region; /* a reference: its memory stays registered */
  struct ibv_mr *registrations[RDMA_RAILS_MAX];
};

struct rdma_endpoint {
  struct endpoint base;
  struct rdma_node *node;
  int channel;
  struct watch watch;
  uint8_t inbox[RDMA_RECORD];
  size_t inbox_length;
  uint32_t next_request;
  struct list requests; /* struct attach_request */
  struct list bindings, attachments;
  bool heard, ready_sent, ready_heard;
  unsigned rail_count;
  struct rdma_rail rails[RDMA_RAILS_MAX];
  struct poller poller;
  pthread_mutex_t lock;
  struct list summing;  /* jobs whose bytes are being compared; lock */
  struct list stranded; /* jobs of broken rails that end once the peer is silent; lock */
  bool broken;          /* lock */
};

extern const struct transport rdma_transport;

static inline struct rdma_node *rdma_node_of(const struct link *link) {
  return link->fabric->shared[rdma_transport.index];
}

/* queue.c: 0 or a code with the detail. */
int queue_open(struct rdma_rail *rail);
int queue_connect(struct rdma_rail *rail, const struct rdma_end *peer);
/* Destroys the queue pair: it reaches nothing any more, and nothing reaches it. */
void queue_break(struct rdma_rail *rail);
void queue_close(struct rdma_rail *rail);
/* What a completion's status means, as an error: HAUL_EPATH where another path may do better. */
int queue_error(const struct rdma_rail *rail, enum ibv_wc_status status, uint32_t vendor);

/* memory.c */
int cards_open(struct rdma_node *node); /* HAUL_ENOPATH with the detail when there are none */
void cards_close(struct rdma_node *node);
/* For the peer's NIC: these bytes and no others, with these rights. */
int card_export(struct rdma_card *card, const struct memory *memory, unsigned rights,
                struct ibv_mr **mr);
void card_unexport(struct rdma_card *card, struct ibv_mr *mr);
/* The memory dies. */
void cards_forget(struct rdma_node *node, const struct memory *memory);
/* For this node's own use. */
int card_register(struct rdma_card *card, const struct memory *memory, struct registration **entry,
                  struct ibv_mr **mr);

/* channel.c; with the loop's lock */
int rdma_channel_start(struct rdma_endpoint *endpoint, int descriptor);
void rdma_channel_stop(struct rdma_endpoint *endpoint, int code);
void rdma_say(struct rdma_endpoint *endpoint, const struct rdma_record *record);
/* Tells the peer of withdrawn regions that nothing here touches any more. */
void rdma_tell_quiet(struct rdma_endpoint *endpoint);
/* Without the lock; blocks until `until`. */
int rdma_attach(struct rdma_endpoint *endpoint, const struct remote_key *key, haul_deadline until,
                struct rdma_binding *binding);
void rdma_detach(struct rdma_endpoint *endpoint, struct rdma_binding *binding);
void rdma_revoke(struct rdma_endpoint *endpoint, uint64_t handle);
bool rdma_touches(struct rdma_endpoint *endpoint, uint64_t handle);

struct rdma_attachment *rdma_find_attachment(struct rdma_endpoint *endpoint, uint64_t handle);

/* sum.c; with the loop's lock. 0 or a code: then there is no answer to come. */
int rdma_sum_ask(struct rdma_endpoint *endpoint, struct rdma_job *job);
void rdma_on_sum(struct rdma_endpoint *endpoint, const struct rdma_record *question);

/* post.c */
/* An answer to a question of rdma_sum_ask. */
void rdma_summed(struct rdma_endpoint *endpoint, uint32_t serial, int status);
void rdma_post(struct rdma_endpoint *endpoint, struct work *work);
void rdma_cancel(struct rdma_endpoint *endpoint, struct work *work, int code);
bool rdma_poll(struct rdma_endpoint *endpoint); /* completions; true when there were any */
/* The rails are of no use any more; works end once the peer is silent. With the loop's lock. */
void rdma_break(struct rdma_endpoint *endpoint, const char *reason);
void rdma_end_stranded(struct rdma_endpoint *endpoint, int code);
void rdma_drain(struct rdma_endpoint *endpoint, int code);

#endif
