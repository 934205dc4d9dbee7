/* SPDX-License-Identifier: MIT
 * An emulator of libibverbs: RoCE v2 or InfiniBand NICs, one unless HAUL_DOUBLE_NICS names more.
 * They connect the processes that name the same file in HAUL_DOUBLE_FABRIC. The file lists the
 * queue pairs and registrations of all processes. The sender copies from and to the peer's memory
 * (process_vm_readv(2)).
 *
 *   nic.c      the devices, and faults on request
 *   fabric.c   the file
 *   qp.c       a queue pair, and the thread that executes its work requests
 *   srq.c      shared receive queues
 *   move.c     one work request: the peer, access checks, the copy
 *   cq.c       completions and their events
 *   event.c    asynchronous events of the device
 *   gpu.c      memory of the mock GPUs
 *
 * As with a real NIC, writes, reads and atomics to a stopped process complete. Receives of a
 * stopped process complete when it continues.
 *
 * Lock order: a queue pair's in the file, a shared receive queue's, registrations' in the file by
 * index, the atomics' lock, a completion queue's or channel's. Locks in the file are robust, as a
 * process may be killed while it holds one. */
#ifndef HAUL_TESTS_IBVERBS_MOVING_H
#define HAUL_TESTS_IBVERBS_MOVING_H

#include <pthread.h>
#include <stdatomic.h>
#include <sys/types.h>

#include "../ibverbs/inside.h"
#include "door.h"

#define FABRIC_QPS     256u
#define FABRIC_SRQS    64u
#define FABRIC_MRS     8192u
#define FABRIC_DEPTH   1024u /* work requests a queue */
#define FABRIC_SHARED  4096u /* of a shared receive queue */
#define FABRIC_INLINED 220u

/* fabric.c */

struct fabric_mr {
  pthread_mutex_t lock;
  _Atomic pid_t pid; /* 0: free */
  uint32_t key;      /* the index, and 8 bits that change with each use */
  unsigned access;
  uint64_t pd; /* an id in the owner */
  uint64_t iova, length;
  uint64_t address; /* in the owner */
};

struct fabric_receive {
  uint64_t id;
  struct ibv_sge place; /* of 0 bytes without one */
};

struct fabric_srq {
  pthread_mutex_t lock;
  _Atomic pid_t pid; /* 0: free */
  uint32_t most, received, receives;
  struct fabric_receive receive[FABRIC_SHARED]; /* [received, receives): posted */
};

struct fabric_qp {
  pthread_mutex_t lock;
  _Atomic pid_t pid;       /* 0: free */
  _Atomic uint32_t number; /* the index, and bits that change with each use */
  _Atomic int state;       /* enum ibv_qp_state; changes with the lock */
  bool faulted;            /* a peer's request brought it to error */
  bool flushed;            /* its end was announced, which a shared receive queue needs */
  uint64_t pd;
  uint32_t srq; /* the number of its shared receive queue; 0: it has its own */
  uint32_t peer, packet_out, packet_in;
  unsigned access;
  bool infiniband;
  uint16_t lid;
  uint8_t gid[16]; /* of its port */
  uint8_t reads_served, not_ready_timer;
  _Atomic uint32_t bell; /* a futex that wakes the owner's thread */
  /* Totals; the entries between two of them lie in the array below. */
  uint32_t received, receives, arrived, arrivals;
  uint32_t completed;                          /* arrivals that have entered the completion queue */
  struct fabric_receive receive[FABRIC_DEPTH]; /* [received, receives): posted */
  struct ibv_wc arrival[FABRIC_DEPTH];         /* [arrived, arrivals): to complete there */
};

/* Whether HAUL_DOUBLE_FABRIC names a file. */
bool fabric_open(void);
struct fabric_qp *fabric_take_qp(void); /* locked; NULL: all are in use */
struct fabric_mr *fabric_take_mr(void); /* likewise */
struct fabric_srq *fabric_take_srq(void);
/* Numbers of shared receive queues count from 1. */
uint32_t fabric_srq_number(const struct fabric_srq *srq);
struct fabric_srq *fabric_srq_of(uint32_t number);
struct fabric_qp *fabric_qp_of(uint32_t number);
struct fabric_mr *fabric_mr_of(uint32_t key);
/* Serializes the atomics of this host's NICs. They are not atomic with CPUs, whatever atomic_cap
 * says: process_vm_writev(2) is no atomic operation. */
pthread_mutex_t *fabric_atomics(void);
/* Ends the process when a live process holds the lock for a minute. */
void fabric_lock(pthread_mutex_t *lock);
void fabric_unlock(pthread_mutex_t *lock);
void fabric_ring(struct fabric_qp *qp);
/* Sleeps while the bell is `seen`, at most `ns`. */
void fabric_await(struct fabric_qp *qp, uint32_t seen, int64_t ns);
/* Wakes the threads of all queue pairs of this process. */
void fabric_ring_all(void);

/* cq.c */

struct sender; /* qp.c */

/* Adds the completion of the request with this number; `sender` NULL: of a receive. False: overrun.
 */
bool cq_push(struct cq *cq, const struct ibv_wc *completion, struct sender *sender,
             uint32_t number);
/* Removes the completions of the queue pair. */
void cq_purge(struct cq *cq, uint32_t qp_number);
int cq_poll(struct ibv_cq *cq, int room, struct ibv_wc *completions);
int cq_arm(struct ibv_cq *cq, int solicited_only);

/* event.c */

/* `element`: the affected object. */
void raise_event(struct ibv_context *context, enum ibv_event_type type, void *element);
void raise_everywhere(enum ibv_event_type type); /* for all contexts of this process */
/* Drops the pending events of a destroyed object. */
void forget_events(struct ibv_context *context, const void *element);

/* qp.c */

struct request {
  uint64_t id;
  enum ibv_wr_opcode opcode;
  bool signaled, is_inline;
  __be32 immediate;
  uint64_t remote, compare_add, swap;
  uint32_t key, length;
  struct ibv_sge place;
  int fault; /* the enum ibv_wc_status to end with, or 0 */
  uint8_t inlined[FABRIC_INLINED];
};

struct sender {
  struct qp *qp;
  struct fabric_qp *slot;
  pthread_t thread;
  pthread_mutex_t posting;
  struct request *requests; /* of cap.max_send_wr */
  uint32_t size;
  _Atomic uint32_t posted, done, polled; /* totals */
  _Atomic bool stopping;
};

int qp_post_send(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad);
int qp_post_receive(struct ibv_qp *qp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad);
void qp_polled(struct sender *sender, uint32_t number);
/* With the slot's lock: to the error state, by a peer's request (`faulted`) or by itself. */
void qp_fail(struct fabric_qp *slot, bool faulted);
/* Sleeps; false when the queue pair ends or fails meanwhile. */
bool qp_pause(struct sender *sender, int64_t ns);

/* srq.c */

int srq_post_receive(struct ibv_srq *srq, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad);
/* With the queue pair's lock: takes a receive for it. False: there is none. */
bool srq_take(struct fabric_qp *slot);

/* move.c */

/* Executes the request; IBV_WC_WR_FLUSH_ERR when the queue pair fails or ends meanwhile. */
enum ibv_wc_status move_request(struct sender *sender, struct request *request);

/* gpu.c */

/* Is it an address of a GPU? *view: where the CPU finds all of the bytes; NULL: nowhere. */
bool gpu_address(uint64_t address, size_t length, char **view);
/* The CPU's view of the bytes behind the GPU's dma-buf, and their number; NULL: it is none. */
char *gpu_dmabuf(int descriptor, size_t *length);

/* nic.c */

/* The injected fault of the next posted request: an enum ibv_wc_status or 0. */
int fault_of_request(void);
bool fault_cut(void); /* nothing is acknowledged */
/* Whether packets from the one address find the other, if all links are up. */
bool is_route(const uint8_t from[16], const uint8_t to[16]);
/* Whether a packet takes it. */
bool is_delivered(const uint8_t from[16], const uint8_t to[16]);
bool fault_of_post(void); /* the queue refuses it */
bool fault_of_registration(void);
bool fault_of_completion(void); /* its queue is full */
int64_t fault_slow(void);       /* extra ns for each 256 KiB of a request */
void fault_late(void);          /* the injected sleep before a completion */
/* REMOVED: everything is flushed. VANISHED: nothing completes any more. */
enum removal { PRESENT, REMOVED, VANISHED };
enum removal removal(void);
bool has_peer_memory(void);
bool is_null(void); /* HAUL_DOUBLE_MOTION=none: completes without moving bytes */

int64_t now_in_ns(void); /* CLOCK_MONOTONIC */
void note_doorbell(void);

#endif
