/* SPDX-License-Identifier: MIT
 * Simulated NICs: libibverbs as the library opens it, and up to six RoCE cards a host. Each is in
 * one of as many networks, which no router connects.
 *
 *   card.c         cards, ports, what the seed draws, faults
 *   verbs.c        the calls of libibverbs, but those on queues
 *   completions.c  completion queues and channels, asynchronous events
 *   queuepair.c    queue pairs: states, posting, the requester
 *   shared.c       shared receive queues
 *   wire.c         packets, and the responder
 *
 * All processes share the real address space, so a NIC reads and writes memory by its address. Each
 * access is checked against a registration that is alive, and against the mappings of its owner. */
#ifndef HAUL_SIM_VERBS_H
#define HAUL_SIM_VERBS_H

#include <errno.h>
#include <infiniband/verbs.h>

#include "cards.h"
#include "sim.h"

/* Here these names are functions, not the header's macros. */
#undef ibv_query_port
#undef ibv_reg_mr

#define INLINED      220u
#define QUEUE_DEPTH  1024
#define SHARED_DEPTH 4096
#define TAKEN_MOST   64u /* receives of a shared queue that a queue pair has taken */
#define GID_ENTRIES  4
#define GID_INDEX    1u /* of RoCE v2 */
#define EVENTS_MOST  64
#define SAVED_MOST   16u /* atomics whose result a responder keeps for a repetition */
#define READS_SERVED 16

/* Cards (card.c) */

struct packet;

struct card {
  struct host *host; /* NULL: no process has looked for it */
  unsigned number;   /* on its host */
  unsigned network;
  bool down; /* its port; in the faulty phase only */
  struct event up;
  int64_t busy_until;    /* its line */
  struct packet *atomic; /* under way */
  struct list contexts;
};

unsigned cards_of(const struct host *host); /* their number */
struct card *card_of(struct host *host, unsigned number);
struct card *card_by_gid(const uint8_t gid[16]); /* NULL: no card has it */
void card_gid(const struct card *card, uint8_t gid[16]);
bool card_is_down(const struct card *card);
/* Does a fault of NICs happen now? One in `rarity` of the plan's rate. */
bool card_fault(unsigned rarity);

/* Objects (verbs.c) */

enum object_kind { CONTEXT, DOMAIN, REGISTRATION, CHANNEL, COMPLETIONS, SHARED, QUEUE_PAIR };

/* Released objects stay until their process ends, so that a use of one shows. */
struct object {
  struct list link; /* of all living, or of all released */
  enum object_kind kind;
  struct process *owner;
  bool released;
};

enum removal { PRESENT, FLUSHED, VANISHED }; /* vanished: nothing completes any more */

/* A descriptor that is readable while events wait. */
struct event_queue {
  struct file file;
  uint64_t waiting;
};

struct context {
  struct object object;
  struct list link; /* card->contexts */
  struct card *card;
  enum removal removal;
  unsigned users; /* domains, channels, completion queues */
  struct event_queue *queue;
  struct ibv_async_event events[EVENTS_MOST];
  unsigned count;
  struct verbs_context verbs; /* its last field is what the library sees */
};

struct domain {
  struct ibv_pd seen;
  struct object object;
  unsigned users;
};

struct range {
  const char *from, *to;
};

struct registration_model {
  struct ibv_mr seen;
  struct object object;
  uint64_t iova;
  unsigned access;
  unsigned requests;  /* local work requests that need it */
  struct range *gone; /* unmapped since */
  size_t gone_count;
};

struct channel {
  struct ibv_comp_channel seen;
  struct object object;
  struct event_queue *queue;
  unsigned cqs;
  struct list raised; /* completion queues with events */
};

/* Checks that the object lives and is the current process's. */
void object_check(const struct object *object, enum object_kind kind, const char *call);
struct context *context_of(struct ibv_context *seen);
/* Returns NULL, with errno. */
static inline void *refused(int error) {
  errno = error;
  return NULL;
}
struct context *context_behind(struct ibv_context *seen); /* the same without the check */
void object_init(struct object *object, enum object_kind kind);
void object_release(struct object *object);

/* The bytes at `address` as the key's owner has them; NULL: no access. Fails the run where memory
 * is accessed that its owner has unmapped. */
uint8_t *dma_at(uint32_t key, const struct ibv_pd *pd, uint64_t address, uint64_t length,
                unsigned rights);
struct registration_model *registration_of(uint32_t key);

/* Completions and events (completions.c) */

struct queue_pair;

struct entry {
  struct ibv_wc completion;
  struct queue_pair *sender; /* NULL: of a receive */
  uint32_t number;
  int64_t at;
};

struct completions {
  struct ibv_cq seen;
  struct object object;
  struct entry *entries;        /* a ring of seen.cqe */
  uint32_t first, ready, count; /* of `count`, `ready` can be polled */
  bool overrun, armed;
  unsigned qps;
  unsigned raised, fetched; /* events */
  struct list link;         /* channel->raised */
  struct event arrival;
  int64_t last_at;
};

struct event_queue *event_queue_open(int *descriptor); /* NULL and errno */
struct completions *completions_of(struct ibv_cq *seen);
/* False: the queue overran. */
bool completions_push(struct completions *queue, const struct ibv_wc *completion,
                      struct queue_pair *sender, uint32_t number);
/* All completions that have their cause can be polled. */
void completions_settle(struct completions *queue);
void completions_purge(struct completions *queue, uint32_t qp_number);
void events_raise(struct context *context, enum ibv_event_type type, void *element);
void events_forget(struct context *context, const void *element);
int completions_poll(struct ibv_cq *seen, int room, struct ibv_wc *completions);
int completions_arm(struct ibv_cq *seen, int solicited_only);

struct ibv_comp_channel *model_create_comp_channel(struct ibv_context *seen);
int model_destroy_comp_channel(struct ibv_comp_channel *seen);
struct ibv_cq *model_create_cq(struct ibv_context *seen, int entries, void *user,
                               struct ibv_comp_channel *channel, int vector);
int model_destroy_cq(struct ibv_cq *seen);
int model_get_cq_event(struct ibv_comp_channel *seen, struct ibv_cq **cq, void **user);
void model_ack_cq_events(struct ibv_cq *seen, unsigned count);
int model_get_async_event(struct ibv_context *seen, struct ibv_async_event *event);
void model_ack_async_event(struct ibv_async_event *event);

/* Queue pairs (queuepair.c) */

struct request {
  uint64_t id;
  enum ibv_wr_opcode opcode;
  bool signaled, is_inline;
  __be32 immediate;
  uint64_t remote, compare_add, swap;
  uint32_t key, length;
  struct ibv_sge place;
  uint32_t first, pieces, piece; /* packet numbers; bytes of one */
  uint32_t received;             /* of a read */
  enum ibv_wc_status fault;      /* that the peer shall have, or 0 */
  uint8_t inlined[INLINED];
};

struct receive {
  uint64_t id;
  struct ibv_sge place;
};

struct shared_queue {
  struct ibv_srq seen;
  struct object object;
  struct receive *receives; /* a ring of `size` */
  uint32_t size, posted, taken;
  unsigned qps;
};

struct queue_pair {
  struct ibv_qp seen;
  struct object object;
  struct card *card;
  struct ibv_qp_attr attributes;
  struct ibv_qp_init_attr first;
  enum ibv_qp_state state;
  /* The requester. Totals of requests; numbers of packets. */
  struct request *requests;
  uint32_t size, posted, done, polled;
  uint32_t next, end, acked; /* to be sent next; behind the last; not acknowledged yet */
  unsigned retries, not_ready;
  bool deaf; /* a fault: nothing that it sends arrives */
  struct event pump, timer;
  int64_t last_request, last_answer; /* arrivals, which keep the order */
  /* The responder. */
  struct receive *receives; /* a ring of receive_room; those taken, where the queue is shared */
  uint32_t receive_room;
  uint32_t receives_posted, receives_taken, receives_done;
  uint32_t expected, answered;
  bool complained; /* about a gap, once */
  struct list arriving;
  struct {
    uint32_t number;
    uint64_t value;
  } saved[SAVED_MOST];
  uint32_t saved_count;
};

struct queue_pair *queue_pair_of(uint32_t number); /* NULL: there is none any more */
/* To the error state: the oldest request ends with the status (0: none has failed), all others are
 * flushed. */
void queue_pair_fail(struct queue_pair *qp, enum ibv_wc_status status);
/* The peer's NIC has everything before this packet. */
void queue_pair_acked(struct queue_pair *qp, uint32_t number);
void queue_pair_resend(struct queue_pair *qp, uint32_t number, int64_t at);
void queue_pair_heard(struct queue_pair *qp);             /* the peer sends a response */
struct request *queue_pair_oldest(struct queue_pair *qp); /* NULL: none is left */
void queue_pair_free(struct queue_pair *qp);              /* its process has died */
void complete_receive(struct queue_pair *qp, const struct ibv_wc *completion);
/* A work request needs the memory, until it leaves it. */
void use_memory(const struct ibv_pd *pd, const struct ibv_sge *place, unsigned rights);
void leave_memory(const struct ibv_sge *place);

/* The context's device was removed. */
void queue_pairs_removed(struct context *context);

struct ibv_qp *model_create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *wanted);
int model_modify_qp(struct ibv_qp *seen, struct ibv_qp_attr *wanted, int mask);
int model_query_qp(struct ibv_qp *seen, struct ibv_qp_attr *attributes, int mask,
                   struct ibv_qp_init_attr *first);
int model_destroy_qp(struct ibv_qp *seen);
int post_send(struct ibv_qp *seen, struct ibv_send_wr *wr, struct ibv_send_wr **bad);
int post_receive(struct ibv_qp *seen, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad);

/* Shared receive queues (shared.c) */

struct shared_queue *shared_of(struct ibv_srq *seen);
/* Moves a receive of the shared queue to the queue pair. False: there is none. */
bool shared_take(struct queue_pair *qp);
struct ibv_srq *model_create_srq(struct ibv_pd *pd, struct ibv_srq_init_attr *wanted);
int model_destroy_srq(struct ibv_srq *seen);
int post_shared(struct ibv_srq *seen, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad);

/* The wire (wire.c) */

/* Sends the packet with this number. */
void wire_request(struct queue_pair *qp, struct request *request, uint32_t number);
/* Ends what the responder has begun; `registration` NULL: all of it. Memory is not accessed later.
 */
void wire_settle(struct queue_pair *qp, const struct registration_model *registration);
/* Its process has died. */
void wire_forget(struct queue_pair *qp);

#endif
