/* SPDX-License-Identifier: MIT
 * A job is a work on its way: its steps, its posting, its completion and its cancellation. */
#ifndef HAUL_FABRIC_RDMA_JOB_H
#define HAUL_FABRIC_RDMA_JOB_H

#include "core/list.h"
#include "haul/haul.h"

struct bounce;
struct combiner;
struct devcopy;
struct endpoint;
struct poller;
struct rdma_endpoint;
struct rdma_rail;
struct rdma_record;
struct registration;
struct timer;
struct work;

/* ns without a completion after which a NIC that holds a canceled work counts as dead, though it
 * may still retry. For a NIC without canceled works it is what its retries take, at least
 * RDMA_STALL_NS. */
#define RDMA_CANCEL_NS 1000000000
#define RDMA_STALL_NS  5000000000

/* In the order in which a job passes them; it skips those that it does not need. */
enum rdma_step {
  STEP_ACQUIRE,      /* take a local bounce buffer and a slot of the peer's staging area */
  STEP_FILL,         /* write: the device copies into the bounce buffer */
  STEP_OWNER_BEFORE, /* read: the owner copies into the slot, or fences its device */
  STEP_NIC,          /* the NIC moves the bytes */
  STEP_OWNER_AFTER,  /* write: the owner copies out of the slot, or fences its device */
  STEP_DRAIN,        /* read: the device copies out of the bounce buffer, or is fenced */
  STEP_VERIFY,       /* both ends compare checksums */
  STEP_DONE
};

/* Of the peer's staging area. */
struct rdma_slot {
  bool busy;
  /* Of a canceled job: the slot is free once these responses came. */
  uint32_t request_id, pending_responses;
  bool in_copy; /* until then the owner may still copy out of it */
};

struct rdma_job {
  struct list link; /* one of the endpoint's lists or its rail's, or a list of ended jobs */
  struct work *work;
  struct rdma_rail *rail;
  struct registration *registration; /* of the local memory, or of the bounce buffer */
  uint32_t key;
  enum rdma_step step;
  bool begun;               /* the current step is under way */
  bool staged;              /* it needs a bounce buffer */
  uint32_t requests;        /* work requests posted; 0 while it waits */
  bool on_rail;             /* counted in rail->bytes */
  bool needs_fence, fenced; /* a write with immediate; the owner's response came */
  uint32_t fence_number;    /* the value of rail->fenced with its response */
  struct bounce *bounce;
  int slot; /* -1: none */
  uint32_t request_id, pending_responses;
  int response;         /* the first that was not 0 */
  struct devcopy *copy; /* between device and bounce buffer; with `bounce` */
  int cancel_code;      /* canceled with this code while the NIC has it; else 0 */
  int code;             /* as it ended */
};

/* post.c */
void rdma_post(struct endpoint *base, struct work *work); /* transport.post */
/* The combiner's callback. */
void rdma_enqueue_jobs(struct combiner *combiner, struct list *jobs);
/* Without the lock: ends the jobs that rdma_enqueue_jobs rejected. */
void rdma_end_rejected(struct rdma_endpoint *endpoint);
/* Hands the job, which is in no list, to its rail. */
void job_append_to_rail(struct rdma_job *job);
/* With the endpoint's lock: posts waiting jobs while there is room. */
void rdma_rail_post_waiting(struct rdma_rail *rail);
/* With the endpoint's lock: takes the job out of its list, and out of its rail's accounts. */
void job_leave_rail(struct rdma_job *job);
/* With the endpoint's lock: moves the job to `ended`; jobs_end calls its work's `done`. */
void job_retire(struct rdma_job *job, int code, struct list *ended);
/* Takes no lock. */
void jobs_end(struct list *jobs);

/* complete.c; with the loop's lock */
bool rdma_poll(struct rdma_endpoint *endpoint); /* completions; whether there were any */
bool rdma_arm(struct poller *poller);           /* requests events; whether to poll again */
void rdma_cancel(struct endpoint *base, struct work *work, int code); /* transport.cancel */
/* Breaks the path where a NIC completes nothing. On a broken path: ends canceled jobs that the peer
 * does not acknowledge. */
void rdma_check_stuck(struct timer *timer);
/* Ends works on revoked regions that neither a NIC nor the owner works on. */
void rdma_end_revoked(struct rdma_endpoint *endpoint);
/* Breaks the path; its works end once the peer acknowledges. */
void rdma_break(struct rdma_endpoint *endpoint, const char *reason);
/* Whether a write is on its way that might still arrive. */
bool rdma_has_writes(struct rdma_endpoint *endpoint);
/* Ends the works of broken rails. */
void rdma_end_stranded(struct rdma_endpoint *endpoint, int code);

/* step.c; with the loop's lock */
/* The first step that the job needs. */
void step_first(struct rdma_job *job);
/* With the endpoint's lock, after the NIC's part: whether more steps follow. */
bool step_after_nic(struct rdma_job *job);
bool steps_poll(struct rdma_endpoint *endpoint, bool *urgent);
/* Ends the job's current step; its slot stays busy until all pending responses came. */
void step_cancel(struct rdma_job *job);
/* With the endpoint's lock: the owner copies out of no slot any more. */
void slots_end_copies(struct rdma_endpoint *endpoint);
void rdma_on_response(struct rdma_endpoint *endpoint, const struct rdma_record *response);
int rdma_on_fenced(struct rdma_endpoint *endpoint, const struct rdma_record *response);

#endif
