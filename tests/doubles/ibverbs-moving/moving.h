/* SPDX-License-Identifier: MIT
 * A double of libibverbs that moves bytes: one emulated RoCE v2 NIC a host, which connects the
 * processes that name the same file in HAUL_DOUBLE_FABRIC. Every process has a list of them all
 * there, and copies to and from the others' memory itself (process_vm_readv(2)).
 *
 *   nic.c      the device, and faults on request
 *   fabric.c   the file: queue pairs and registrations of all processes
 *   qp.c       a queue pair: what is posted, and the thread that works it off
 *   move.c     one request: who is there, what it may reach, the copy
 *   cq.c       completions, and the events that say that there are some
 *   event.c    events of the device
 *
 * A real NIC goes on while its process is stopped: so does this one as the target of writes, reads
 * and atomics; receives of a stopped process complete when it goes on.
 *
 * Locks, in this order: a queue pair's in the file, registrations' in the file by their index, the
 * atomics', a completion queue's or channel's. Those in the file are robust: a process may be
 * killed with them.
 */
#ifndef HAUL_TESTS_IBVERBS_MOVING_H
#define HAUL_TESTS_IBVERBS_MOVING_H

#include <pthread.h>
#include <stdatomic.h>
#include <sys/types.h>

#include "../ibverbs/inside.h"
#include "door.h"

#define FABRIC_QPS     128u
#define FABRIC_MRS     8192u
#define FABRIC_DEPTH   1024u /* requests a queue */
#define FABRIC_PLACES  4u    /* pieces a request */
#define FABRIC_INLINED 220u

/* ---- fabric.c ---- */

struct fabric_mr {
  pthread_mutex_t lock;
  _Atomic pid_t pid; /* 0: nobody's */
  uint32_t key;      /* its index, and 8 bits that change with each use */
  unsigned access;
  uint64_t pd; /* the owner's own name of it */
  uint64_t iova, length;
  uint64_t address; /* in the owner */
};

struct fabric_receive {
  uint64_t id;
  unsigned count;
  struct ibv_sge places[FABRIC_PLACES];
};

struct fabric_arrival {
  struct ibv_wc completion;
  bool solicited;
};

struct fabric_qp {
  pthread_mutex_t lock;
  _Atomic pid_t pid;       /* 0: nobody's */
  _Atomic uint32_t number; /* its index, and bits that change with each use */
  _Atomic int state;       /* enum ibv_qp_state; changes with the lock */
  bool faulted;            /* a peer's request brought it to error */
  uint64_t pd;
  uint32_t peer, packet_out, packet_in;
  unsigned access;
  uint8_t reads_served, not_ready_timer;
  _Atomic uint32_t bell; /* a futex of its owner's thread: there is something to do */
  /* Counters of all that ever was; what is between two of them lies in the array below. */
  uint32_t received, receives, arrived, arrivals;
  struct fabric_receive receive[FABRIC_DEPTH]; /* [received, receives): posted */
  struct fabric_arrival arrival[FABRIC_DEPTH]; /* [arrived, arrivals): to complete there */
};

/* Whether this process takes part: HAUL_DOUBLE_FABRIC names a file. */
bool fabric_open(void);
struct fabric_qp *fabric_take_qp(void); /* locked; NULL: all are taken */
struct fabric_mr *fabric_take_mr(void); /* the same */
struct fabric_qp *fabric_qp_of(uint32_t number);
struct fabric_mr *fabric_mr_of(uint32_t key);
/* Of whoever does an atomic on this host: they are atomic among themselves, and towards nobody
 * else, whatever atomic_cap says: no processor's atomics reach another process's memory. */
pthread_mutex_t *fabric_atomics(void);
/* Ends the process when somebody who lives holds it for longer than anything takes. */
void fabric_lock(pthread_mutex_t *lock);
void fabric_unlock(pthread_mutex_t *lock);
void fabric_ring(struct fabric_qp *qp);
/* Sleeps until the bell is not `seen` any more, at most so long. */
void fabric_await(struct fabric_qp *qp, uint32_t seen, int64_t ns);
/* All queue pairs of this process look again. */
void fabric_ring_all(void);

/* ---- cq.c ---- */

struct sender; /* qp.c */

/* The completion of the request with this number; `sender` NULL: of a receive. False: the queue
 * overran. */
bool cq_push(struct cq *cq, const struct ibv_wc *completion, struct sender *sender, uint32_t number,
             bool solicited);
/* Nothing of the queue pair is in it any more. */
void cq_purge(struct cq *cq, uint32_t qp_number);
int cq_poll(struct ibv_cq *cq, int room, struct ibv_wc *completions);
int cq_arm(struct ibv_cq *cq, int solicited_only);

/* ---- event.c ---- */

/* `element` is the object that it is about. */
void raise_event(struct ibv_context *context, enum ibv_event_type type, void *element);
void raise_everywhere(enum ibv_event_type type); /* for all contexts of this process */
/* The object ends, and with it what nobody fetched. */
void forget_events(struct ibv_context *context, const void *element);

/* ---- qp.c ---- */

struct request {
  uint64_t id;
  enum ibv_wr_opcode opcode;
  bool signaled, solicited, is_inline;
  __be32 immediate;
  uint64_t remote, compare_add, swap;
  uint32_t key, length;
  unsigned count;
  struct ibv_sge places[FABRIC_PLACES];
  int fault; /* enum ibv_wc_status that it ends with, or 0 */
  uint8_t inlined[FABRIC_INLINED];
};

struct sender {
  struct qp *qp;
  struct fabric_qp *slot;
  pthread_t thread;
  pthread_mutex_t posting;
  struct request *requests; /* of cap.max_send_wr */
  uint32_t size;
  _Atomic uint32_t posted, done, polled; /* counters of all that ever was */
  _Atomic bool stopping;
};

int qp_post_send(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad);
int qp_post_receive(struct ibv_qp *qp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad);
void qp_polled(struct sender *sender, uint32_t number);
/* With the slot's lock: to error, by a peer (`faulted`) or by itself. */
void qp_fail(struct fabric_qp *slot, bool faulted);
/* Waits, unless the queue pair ends or fails: then false. */
bool qp_pause(struct sender *sender, int64_t ns);

/* ---- move.c ---- */

/* Does the whole request; IBV_WC_WR_FLUSH_ERR where the queue pair failed or ends meanwhile. */
enum ibv_wc_status move_request(struct sender *sender, struct request *request);

/* ---- nic.c ---- */

/* What was asked for, for the next request that is posted: enum ibv_wc_status or 0. */
int fault_of_request(void);
bool fault_of_post(void); /* the queue takes it not */
bool fault_of_registration(void);
bool fault_of_completion(void); /* it finds its queue full */
int64_t fault_slow(void);       /* ns that each piece of a request takes longer */
void fault_late(void);          /* sleeps as long as asked for, before a completion */
/* The device: with REMOVED everything is flushed, with VANISHED nothing completes any more. */
enum removal { PRESENT, REMOVED, VANISHED };
enum removal removal(void);
bool is_null(void); /* no byte moves: HAUL_DOUBLE_MOTION=none */

int64_t now_in_ns(void); /* CLOCK_MONOTONIC */
void note_doorbell(void);

#endif
