/* SPDX-License-Identifier: MIT
 * The `rdma` transport: the NIC moves the bytes, over reliable-connected queue pairs.
 *
 *   verbs.c    libibverbs, opened at run time
 *   nic.c      the NICs of this host
 *   checks.c   what is missing
 *   ports.c    what there is
 *   frame.c    what the two ends say on their channel
 *   channel.c  saying it: set-up, the asking side of attaching
 *   attach.c   the owner's side of it
 *   queue.c    one rail: a queue pair and its completion queue
 *   memory.c   what is registered, at which NIC, through what
 *   post.c     works to work requests, windows, completions
 *   mail.c     sends and receives: questions and answers
 *   end.c      works that end before they are done
 *   step.c     what a work needs before and after the NIC's part
 *   land.c     the owner's part of that
 *   event.c    what a NIC says by itself: that it is gone, that a queue is in error
 *   rdma.c     the table
 *
 * Locks: the channel, the landings and the attachments are the loop's, and so is a job while it is
 * in `stepping`. `lock` of the endpoint guards the lists of jobs and bindings, rails and slots;
 * it is taken after the loop's, and nothing but the regcache's after it. */
#ifndef HAUL_FABRIC_RDMA_H
#define HAUL_FABRIC_RDMA_H

#include <infiniband/verbs.h>
#include <pthread.h>

#include "core/combiner.h"
#include "fabric/devcopy.h"
#include "fabric/exports.h"
#include "fabric/rdma/frame.h"
#include "fabric/rdma/nic.h"
#include "fabric/rdma/verbs.h"
#include "fabric/regcache.h"
#include "fabric/transport.h"
#include "fabric/work_batch.h"
#include "memory/staging.h"

#define RDMA_DEPTH  512u /* work requests a send queue; at least one work's */
#define RDMA_JOBS   128u /* works posted a rail */
#define RDMA_FENCES 64u  /* writes with immediate without an answer, a rail and direction */
#define RDMA_ASKED  64u  /* questions without an answer, a direction */
#define RDMA_INLINE 220u /* bytes that go with the request itself, where the NIC takes as many */
/* Bytes posted a rail. What is posted cannot be taken back, so this bounds how long a cancel takes;
 * a line of 400 Gb/s and 100 us has 5 MB under way. */
#define RDMA_WINDOW ((uint64_t)8 << 20)
/* ns without a completion after which a NIC that holds a canceled work is taken for dead, twice
 * what its retries take (queue.c); and one that holds any work: by the InfiniBand specification a
 * time-out may last four times as long as it says. */
#define RDMA_STUCK   1000000000
#define RDMA_SILENCE 5000000000
#define RDMA_STAGES  8u /* works at a time through buffers of this host, and as many at the peer */

_Static_assert(RDMA_DEPTH >= WORK_PIECES_MAX, "a work must fit an empty send queue");

struct rdma_endpoint;

/* Buffers for receives of a rail, see mail.c. */
#define RDMA_RECEIVES (2 * RDMA_FENCES + 2 * RDMA_ASKED)

/* A port in use by this node: what all its queue pairs share. */
struct rdma_card {
  struct rdma_node *node;
  const struct nic *nic;
  struct nic_port port;
  struct regcache *cache;
  struct watch watch; /* of the NIC's events, one card a NIC; the loop's lock */
};

/* A node's share: fabric->shared[rdma]. */
struct rdma_node {
  struct fabric *fabric;
  pthread_mutex_t lock; /* while cards are opened, or memory forgotten */
  struct nics *nics;    /* NULL: not opened yet, or there are none */
  unsigned count;
  struct rdma_card cards[RDMA_RAILS_MAX]; /* constant once there are some */
  /* By place: bits of the cards that are nearest to it, made when first asked for; 0: not yet. */
  _Atomic uint8_t near[32][16];
  struct list endpoints;        /* those with rails; the loop's lock */
  unsigned servers;             /* threads of attach.c that take turns; the loop's lock */
  _Atomic uint32_t registering; /* threads of attach.c that have not ended; a futex */
};

struct rdma_heard {
  uint32_t buffer, length;
};

/* What a work request is for, by the lowest bits of its number: a job's, which is its address, or
 * one of these. */
#define MAIL_BITS     2
#define MAIL_RECEIVED 1u
#define MAIL_SENT     2u

struct rdma_mail {
  struct haul_region *region; /* RDMA_RECORD bytes each: buffers of receives, then of sends */
  struct ibv_mr *registration;
  uint32_t receives, sends; /* of each */
  /* With the endpoint's lock: counters of all that ever were. */
  uint32_t sent, done;
  uint32_t came, taken;
  struct rdma_heard heard[RDMA_RECEIVES]; /* [taken, came), modulo */
};

/* A write with immediate that came: to be fenced. */
struct rdma_fence {
  uint32_t number; /* of the attachment */
  uint32_t buffer; /* of the receive that it took */
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
  uint32_t unfenced;      /* writes with immediate, posted and not answered */
  uint32_t fenced;        /* answered, ever: answers come in the order of the writes */
  _Atomic uint64_t bytes; /* of jobs that are to go over it or are on it; read without the lock */
  uint64_t posted_bytes;  /* of those that the NIC has */
  struct list posted;     /* jobs, in the order of their posts: completions come in it */
  struct backlog waiting; /* jobs without room */
  int64_t moved_at;       /* the latest completion of what was posted here */
  bool armed;             /* an event will come */
  bool flushed;           /* a receive ended because the queue pair is in error */
  bool broken;
  char why[192];     /* it broke; set with `broken`, in whatever thread found it out */
  uint32_t receives; /* writes with immediate that may be without an answer */
  uint8_t atomics;   /* of the peer's NIC: enum ibv_atomic_cap */
  struct rdma_fence fences[RDMA_RECEIVES];
  uint32_t fence_count;
  struct rdma_mail mail;
};

/* What a work goes through, in this order; most skip all but one. */
enum rdma_step {
  STEP_TAKE,  /* a stage here and a slot of the peer's loan */
  STEP_FILL,  /* write: the device copies into the stage */
  STEP_LIFT,  /* read: the owner copies into the slot, or fences its device */
  STEP_MOVE,  /* the NIC's */
  STEP_LAND,  /* write: the owner copies out of the slot, or fences its device */
  STEP_DRAIN, /* read: the device copies out of the stage, or is fenced */
  STEP_SUM,   /* both ends compare */
  STEP_OVER
};

/* Of the peer's loan. */
struct rdma_slot {
  bool busy;
  uint32_t serial, questions; /* what has to be answered before it is free: its job was canceled */
  bool lands;                 /* and until then the owner may copy out of it */
};

/* A work on its way. */
struct rdma_job {
  struct list link; /* one of the endpoint's lists or its rail's, or a list of those that ended */
  struct work *work;
  struct rdma_rail *rail;
  struct registration *entry; /* of what the NIC reaches here: the local memory, or the stage */
  uint32_t key;
  enum rdma_step step;
  bool begun;           /* the step has */
  bool staged;          /* it needs a stage */
  uint32_t requests;    /* posted; 0 while it waits */
  bool on_rail;         /* counted in rail->bytes */
  bool fencing, fenced; /* a write with immediate; the owner's answer came */
  uint32_t fence;       /* how many of them the rail had then, with it */
  struct bounce *stage;
  int slot;                   /* -1: none */
  uint32_t serial, questions; /* what was asked, and how many answers are missing */
  int answer;                 /* the first that was no 0 */
  struct devcopy *copy;       /* between device and stage; with the stage */
  int wanted; /* back from the NIC that has it, to end with this code; 0: it is not */
  int code;   /* as it ended */
};

/* What the endpoint knows of one remote region. What changes is the endpoint's lock's. */
struct rdma_binding {
  struct list link; /* endpoint->bindings */
  struct rdma_endpoint *endpoint;
  uint64_t handle, address;
  uint32_t keys[RDMA_RAILS_MAX];
  bool staged;     /* address and keys are the loan's */
  bool fenced;     /* the owner has to fence its device */
  bool atomic;     /* the keys allow atomics */
  uint32_t number; /* for immediates */
  uint32_t jobs;   /* under way */
  bool revoked;    /* by the owner */
  bool quiet;      /* the owner was told that nothing here touches it */
  /* Kinds of local memory that go through stages, as the routes to it were told. */
  _Atomic uint64_t staged_kinds;
  _Atomic bool released; /* nobody uses it any more; no lock, and no neighbour of what has one */
};

/* A region of ours that the peer's NIC may reach. */
struct rdma_attachment {
  struct list link; /* endpoint->attachments */
  uint64_t handle;
  unsigned uses; /* ATTACHs without a DETACH or QUIET */
  bool revoked;
  unsigned rights;
  uint32_t number;            /* for immediates */
  bool staged;                /* reached through the loan */
  struct haul_region *region; /* a reference: its memory stays registered */
  struct ibv_mr *registrations[RDMA_RAILS_MAX];
};

/* Host memory of ours that the peer's NIC may reach, for regions that it may not. */
struct rdma_loan {
  struct haul_region *region; /* NULL: it was not needed yet */
  unsigned slots;             /* works at a time through it, WORK_BYTES_MAX each */
  struct ibv_mr *registrations[RDMA_RAILS_MAX];
};

struct rdma_endpoint {
  struct endpoint base;
  struct rdma_node *node;
  struct list peer;      /* node->endpoints */
  struct stream channel; /* fd -1: none */
  struct watch watch;
  uint8_t inbox[RDMA_RECORD];
  size_t inbox_length;
  uint32_t next_request;
  uint32_t asked;       /* questions that the peer has not answered; the loop's lock */
  struct list requests; /* struct attach_request */
  struct list attachments;
  struct list questions; /* ATTACHs to be served */
  bool serving;          /* a thread is at one of them */
  struct list bindings;  /* lock */
  _Atomic bool tend;     /* one of them has news */
  bool heard, ready_sent, ready_heard;
  unsigned rail_count;
  struct rdma_rail rails[RDMA_RAILS_MAX];
  struct poller poller;
  struct timer timer;           /* while a NIC has something, or had what is wanted back */
  struct combiner combiner;     /* "the lock"; brings jobs */
  struct work_batch work_batch; /* works whose jobs are not in yet */
  struct list entering;         /* jobs at STEP_TAKE, in turn; lock */
  struct list stepping;         /* jobs at other steps than the NIC's; lock */
  struct list refused;          /* jobs that were not let in, to be ended without the lock; lock */
  _Atomic bool refusing;        /* there are some */
  struct list stranded;         /* jobs of broken rails that end once the peer is silent; lock */
  bool broken;                  /* lock */
  struct staging_user staging;
  struct rdma_slot slots[RDMA_STAGES]; /* of the peer's loan; lock */
  unsigned slot_count;                 /* lock */
  unsigned landing_slots; /* that say `lands`: until it has, nothing else is written; lock */
  struct rdma_loan loan;
  struct list landings; /* struct rdma_landing: what the peer asked for */
  uint64_t summed;      /* bytes, for the peer, in this turn */
  uint32_t next_number; /* of an attachment */
};

extern const struct transport rdma_transport;

static inline struct rdma_node *rdma_node_of(const struct link *link) {
  return link->fabric->shared[rdma_transport.index];
}

/* queue.c: 0 or a code with the detail. */
/* Once it is known what the rail's mail needs. */
int queue_open(struct rdma_rail *rail);
int queue_connect(struct rdma_rail *rail, const struct rdma_end *peer);
/* Destroys the queue pair: it reaches nothing any more, and nothing reaches it. */
void queue_break(struct rdma_rail *rail);
void queue_close(struct rdma_rail *rail);
/* What a completion's status means, as an error: HAUL_EPATH where another path may do better. */
int queue_error(const struct rdma_rail *rail, enum ibv_wc_status status, uint32_t vendor);

/* memory.c */
/* HAUL_ENOPATH with the detail when there are none. */
int cards_open(struct rdma_node *node);
void cards_close(struct rdma_node *node);
/* Bits of the cards that are nearest to a place. */
unsigned cards_near(struct rdma_node *node, struct haul_place place);
/* For the peer's NIC: these bytes and no others, with these rights. */
int card_export(struct rdma_card *card, const struct memory *memory, unsigned rights,
                struct ibv_mr **mr);
/* Whether these rights to it allow the peer's NIC atomics too: on what the processors reach. */
bool card_operates(const struct rdma_card *card, const struct memory *memory, unsigned rights);
void card_unexport(struct rdma_card *card, struct ibv_mr *mr);
/* The caller's memory, to be registered together with its neighbours. */
void cards_learn(struct rdma_node *node, const struct memory *memory);
/* For this node's NIC alone, until card_unexport. */
int card_pin(struct rdma_card *card, const struct memory *memory, struct ibv_mr **mr);
/* The memory dies. */
void cards_forget(struct rdma_node *node, const struct memory *memory);
/* Of all the caches. */
void cards_count(struct rdma_node *node, struct regcache_counters *sum);
/* For this node's own use. */
int card_register(struct rdma_card *card, const struct memory *memory, struct registration **entry,
                  struct ibv_mr **mr);

/* event.c; with the loop's lock */
int events_watch(struct rdma_node *node);
void events_unwatch(struct rdma_node *node);

/* channel.c; with the loop's lock */
int rdma_channel_start(struct rdma_endpoint *endpoint, struct stream stream);
void rdma_channel_stop(struct rdma_endpoint *endpoint, int code);
/* Tells the peer why there are no rails here, and closes the stream. */
void rdma_refuse(struct rdma_endpoint *endpoint, struct stream stream);
void rdma_say(struct rdma_endpoint *endpoint, const struct rdma_record *record);
/* What came, over a rail or on the channel (NULL): 0, HAUL_EPROTO, or what this side lacks. */
int rdma_on_record(struct rdma_endpoint *endpoint, const uint8_t bytes[RDMA_RECORD],
                   const struct rdma_rail *rail);
/* That was not 0. */
void rdma_channel_fail(struct rdma_endpoint *endpoint, int code);
/* Tells the peer of withdrawn regions that nothing here touches any more, and of those that nobody
 * here uses any more. */
void rdma_tend_bindings(struct rdma_endpoint *endpoint);
/* Without the lock; blocks until `until`. */
int rdma_attach(struct rdma_endpoint *endpoint, const struct remote_key *key, haul_deadline until,
                struct rdma_binding *binding);

/* mail.c */
/* How many buffers a rail has. */
void mail_measure(struct rdma_mail *mail);
/* Posts the receives, to the open queue: 0 or a code with the detail. */
int mail_open(struct rdma_rail *rail);
/* Once the queue pair has ended. */
void mail_close(struct rdma_rail *rail);
/* With the endpoint's lock: one more may be sent. */
bool mail_has_room(const struct rdma_mail *mail);
/* With the loop's lock, and not the endpoint's. */
void mail_send(struct rdma_rail *rail, const struct rdma_record *record);
/* With the endpoint's lock: a send or a receive was completed. */
void mail_take(struct rdma_rail *rail, const struct ibv_wc *completion);
/* With the endpoint's lock: the buffer may be filled again. */
void mail_receive(struct rdma_rail *rail, uint32_t buffer);
/* With the loop's lock: handles what was received; true when there was anything. */
bool mail_hear(struct rdma_endpoint *endpoint);

/* attach.c; with the loop's lock */
int rdma_on_attach(struct rdma_endpoint *endpoint, const struct rdma_record *record);
int rdma_on_let_go(struct rdma_endpoint *endpoint, uint64_t handle);
void rdma_revoke(struct rdma_endpoint *endpoint, uint64_t handle);
bool rdma_touches(struct rdma_endpoint *endpoint, uint64_t handle);
struct rdma_attachment *rdma_find_attachment(struct rdma_endpoint *endpoint, uint64_t handle);
void rdma_end_attachments(struct rdma_endpoint *endpoint);
/* Without the lock, once the loop has ended: until no thread registers any more. */
void rdma_await_registering(struct rdma_node *node);

/* rdma.c */
/* Whether this local memory goes through stages: no NIC takes its kind. */
bool rdma_goes_staged(const struct rdma_binding *binding, const struct memory *memory);

/* post.c */
void rdma_post(struct rdma_endpoint *endpoint, struct work *work);
/* What the combiner does with jobs. */
void rdma_let_in(struct combiner *combiner, struct list *jobs);
/* Without the lock: those that it did not let in. */
void rdma_end_refused(struct rdma_endpoint *endpoint);
bool rdma_poll(struct rdma_endpoint *endpoint); /* completions; true when there were any */
bool rdma_arm(struct rdma_endpoint *endpoint); /* events for the next ones; whether to poll again */
/* With the endpoint's lock: takes the job out of its list, and out of its rail's accounts. */
void job_leave_rail(struct rdma_job *job);
/* With the endpoint's lock: the job has ended, and its work's `done` is called by jobs_end, which
 * takes no lock. */
void job_retire(struct rdma_job *job, int code, struct list *ended);
void jobs_end(struct list *jobs);
/* With the endpoint's lock: the rail is of no use any more, for the reason in the thread's detail;
 * the loop's next turn breaks the path. */
void rail_breaks(struct rdma_rail *rail);
/* Hands the job, which is in no list, to its rail. */
void job_move(struct rdma_job *job);

/* end.c; with the loop's lock */
void rdma_cancel(struct rdma_endpoint *endpoint, struct work *work, int code);
/* Whether a NIC ends nothing of what it has: then the path breaks. And then whether the peer does
 * not say that it is silent: then nobody waits for it longer. */
void rdma_look_for_stuck(struct rdma_endpoint *endpoint);
/* A NIC has something: from now on that is looked after. */
void rdma_watch_posted(struct rdma_endpoint *endpoint);
/* Works on withdrawn regions that the NIC has not begun end now. */
void rdma_end_revoked(struct rdma_endpoint *endpoint);
/* The rails are of no use any more; works end once the peer is silent. */
void rdma_break(struct rdma_endpoint *endpoint, const char *reason);
/* Whether a write is on its way that might still arrive. */
bool rdma_is_writing(struct rdma_endpoint *endpoint);
void rdma_end_stranded(struct rdma_endpoint *endpoint, int code);
void rdma_drain(struct rdma_endpoint *endpoint, int code);

/* step.c; with the loop's lock */
/* The first step that the job needs. */
void step_first(struct rdma_job *job);
/* Its NIC's part is done: whether more is to come. With the endpoint's lock. */
bool step_after_move(struct rdma_job *job);
bool steps_poll(struct rdma_endpoint *endpoint, bool *urgent);
/* Ends what the job does in this step; what the peer still has to answer is kept in mind. */
void step_cancel(struct rdma_job *job);
/* With the lock: nothing that was left to the owner lands any more. */
void steps_landed(struct rdma_endpoint *endpoint);
void rdma_on_done(struct rdma_endpoint *endpoint, const struct rdma_record *answer);
int rdma_on_fenced(struct rdma_endpoint *endpoint, const struct rdma_record *answer);

/* land.c; with the loop's lock */
int rdma_on_question(struct rdma_endpoint *endpoint, const struct rdma_record *question);
bool landings_poll(struct rdma_endpoint *endpoint, bool *urgent);
void landings_cancel(struct rdma_endpoint *endpoint);
bool landings_touch(const struct rdma_endpoint *endpoint, uint64_t handle);
/* Fences what writes with immediate brought, and says so. */
void rdma_fence_written(struct rdma_endpoint *endpoint);
/* From any thread: 0, or why there is no memory to lend, for a device at that place. */
int loan_open(struct rdma_endpoint *endpoint, struct haul_place place, struct rdma_loan *loan);
/* From any thread; does nothing for none. */
void loan_close(struct rdma_endpoint *endpoint, struct rdma_loan *loan);

#endif
