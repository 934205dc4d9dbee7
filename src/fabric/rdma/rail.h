/* SPDX-License-Identifier: MIT
 * One rail: a reliable-connected queue pair with a completion queue of its own, and the message
 * queue that carries requests to the owner and their responses over it. */
#ifndef HAUL_FABRIC_RDMA_RAIL_H
#define HAUL_FABRIC_RDMA_RAIL_H

#include "core/backlog.h"
#include "core/loop.h"
#include "fabric/rdma/frame.h"
#include "fabric/rdma/nic.h"
#include "fabric/rdma/verbs.h"
#include "fabric/transport.h"

/* A batch of works is posted at this number of works, or of bytes. */
#define RDMA_BATCH       16u
#define RDMA_BATCH_BYTES 65536u

#define RDMA_DEPTH    512u /* work requests of a send queue; at least those of one work */
#define RDMA_FENCES   64u  /* writes with immediate without a response, a rail and direction */
#define RDMA_REQUESTS 64u  /* requests without a response, a direction */
#define RDMA_INLINE   220u /* bytes copied into the work request, where the NIC takes that many */

/* A receive for each write with immediate of the peer, each response to ours, each request of the
 * peer and each response to it. */
#define RDMA_RECEIVES (2 * RDMA_FENCES + 2 * RDMA_REQUESTS)
#define RDMA_SENDS    (RDMA_FENCES + 2 * RDMA_REQUESTS)

_Static_assert((UINT32_MAX + UINT64_C(1)) % RDMA_RECEIVES == 0, "`received` and `handled` wrap");
_Static_assert(RDMA_DEPTH >= WORK_PIECES_MAX, "a work must fit an empty send queue");

struct rdma_device;
struct rdma_endpoint;
struct rdma_receives;

/* The low bits of a work request's id: 0 for a job, whose address the id is, or one of these. */
#define WR_ID_BITS    2
#define WR_ID_RECEIVE 1u
#define WR_ID_SEND    2u

struct rdma_received {
  uint32_t buffer, length;
};

/* Records over the rail. With the endpoint's lock. The counters are totals, and index a ring modulo
 * its size. 2^32 is no multiple of RDMA_SENDS: `sent` must not wrap. */
struct rdma_messages {
  struct haul_region *region; /* RDMA_RECORD bytes each: RDMA_SENDS, then receives, if any */
  struct ibv_mr *registration;
  uint64_t sent, completed;
  uint32_t received, handled;
  struct rdma_received records[RDMA_RECEIVES]; /* [handled, received), modulo */
};

/* A write with immediate that arrived and awaits its fence. */
struct rdma_fence {
  uint32_t number; /* of the attachment */
  uint32_t buffer; /* of the receive that it consumed, unless receives are shared */
};

struct rdma_rail {
  struct rdma_endpoint *endpoint; /* constant, like all before `usable`; restore.c */
  struct rdma_device *device;
  unsigned number;     /* on both sides */
  bool by_order;       /* paired with an end that is not known to be in the same subnet */
  _Atomic bool usable; /* for works (restore.c); written with the loop's lock */
  struct ibv_comp_channel *events;
  struct ibv_cq *cq;
  struct ibv_qp *qp;
  struct rdma_receives *receives; /* shared with other rails; NULL: the rail has its own */
  struct nic_port port;           /* when the rail was opened */
  struct rdma_end end;            /* as in this side's hello */
  uint32_t inlined;               /* most bytes that go inline */
  struct watch watch;             /* of `events`; the loop's lock */
  /* With the endpoint's lock. */
  uint32_t send_room; /* free work requests of the send queue */
  uint32_t posted_count;
  uint32_t unfenced;      /* writes with immediate, posted and not answered */
  uint32_t fenced;        /* answered since the start: responses keep the order of the writes */
  _Atomic uint64_t bytes; /* of jobs assigned to the rail; read without the lock */
  uint64_t posted_bytes;  /* of those, posted to the NIC */
  struct list posted;     /* jobs, in posting order: completions keep it */
  struct backlog waiting; /* jobs without room */
  int64_t progress_at;    /* time of the latest completion of a posted job */
  bool armed;             /* an event will come */
  bool flushed;           /* without a cause yet: the queue pair is in error */
  bool broken;
  char broken_reason[192]; /* written with `broken`, by the thread that noticed */
  uint32_t fence_limit;    /* writes with immediate that the peer takes without a response */
  uint8_t peer_atomics;    /* enum ibv_atomic_cap */
  struct rdma_fence pending_fences[RDMA_RECEIVES];
  uint32_t pending_fence_count;
  struct rdma_messages messages;
};

/* Looks at the port, and describes this side's end as far as it can be without a queue pair: 0, or
 * HAUL_EPATH with the detail why the port is not usable. */
int rdma_rail_look(struct rdma_rail *rail);
/* Creates the queue pair: 0 or a code with the detail. */
int rdma_rail_open(struct rdma_rail *rail);
/* Posts the receives: 0 or a code with the detail. */
int rdma_rail_open_messages(struct rdma_rail *rail);
int rdma_rail_connect(struct rdma_rail *rail, const struct rdma_end *peer);
/* Destroys the queue pair: after it neither side's NIC reaches the other through it. With the
 * endpoint's lock, where other threads may use the rail. */
void rdma_rail_destroy_qp(struct rdma_rail *rail);
void rdma_rail_close(struct rdma_rail *rail);
/* Sets and returns the error that a completion's status means: HAUL_EPATH where another path may
 * do better. */
int rdma_rail_set_error(const struct rdma_rail *rail, enum ibv_wc_status status, uint32_t vendor);
/* With the endpoint's lock: the thread's error detail becomes the reason. The loop's next turn
 * breaks the path. */
void rdma_rail_mark_broken(struct rdma_rail *rail);

/* With the loop's lock, and not the endpoint's. */
void rdma_rail_send(struct rdma_rail *rail, const struct rdma_record *record);
/* Whether the NIC has work requests of jobs or sends. With the endpoint's lock. */
bool rdma_rail_is_busy(const struct rdma_rail *rail);
static inline bool rdma_rail_is_usable(const struct rdma_rail *rail) {
  return atomic_load_explicit(&rail->usable, memory_order_relaxed);
}
static inline void rdma_rail_set_usable(struct rdma_rail *rail, bool usable) {
  atomic_store_explicit(&rail->usable, usable, memory_order_relaxed);
}
/* With the endpoint's lock: a receive completed that carries nothing for the rail. */
void rdma_rail_drop_receive(struct rdma_rail *rail, const struct ibv_wc *completion);
/* With the endpoint's lock: a send or a receive completed. */
void rdma_rail_complete_message(struct rdma_rail *rail, const struct ibv_wc *completion);
/* With the loop's lock: handles the records received; whether there were any. */
bool rdma_handle_messages(struct rdma_endpoint *endpoint);
/* With the loop's lock: fences the device for each write with immediate that arrived, and responds.
 */
void rdma_fence_writes(struct rdma_endpoint *endpoint);

#endif
