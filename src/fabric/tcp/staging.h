/* SPDX-License-Identifier: MIT
 * Memory without a view goes through the node's bounce buffers. What is received takes them as
 * STAGING_RECEIVE: the peer has begun to send, and the device does the rest. What is sent takes
 * them as STAGING_SEND, so that a peer that does not read can never keep this side from receiving.
 */
#ifndef HAUL_FABRIC_TCP_STAGING_H
#define HAUL_FABRIC_TCP_STAGING_H

#include "fabric/devcopy.h"
#include "fabric/tcp/payload.h"
#include "fabric/tcp/tcp.h"

#define TCP_BOUNCES 8 /* bounce buffers that a direction of an endpoint has at most */

/* A complete payload in a bounce buffer, on its way to memory without a view; the loop's lock. */
struct staged_receive {
  struct list link; /* the endpoint's staged_receives */
  struct tcp_rail *rail;
  struct frame frame;
  struct frame_trailer trailer;
  struct payload payload; /* its region is a reference for WRITE */
  struct work *work;      /* DATA */
  struct devcopy copy;    /* bounce buffer to region */
  struct frame_segment segments[];
};

void tcp_staging_open(struct tcp_endpoint *endpoint);
/* Waits for buffers no more. */
void tcp_staging_close(struct tcp_endpoint *endpoint);

/* Gets a bounce buffer for a payload that awaits one: 0, 1 (later), or a code with the detail. */
int payload_get_bounce(struct payload *payload, struct staging_user *user);
/* Gives it back, if there is one. */
void payload_put_bounce(struct payload *payload, struct staging_user *user);

/* Both move the copies on, and return whether one ended; *urgent: one needs to be polled soon. */
/* With the endpoint's lock; tcp_advance is to follow. */
bool staged_sends_poll(struct tcp_endpoint *endpoint, bool *urgent);
/* With the loop's lock. */
bool staged_receives_poll(struct tcp_endpoint *endpoint, bool *urgent);

/* The rail's payload, complete in its bounce buffer, is copied on while the rail reads the next
 * frame. HAUL_ENOMEM: it is still the rail's. With the loop's lock. */
int staged_receive_start(struct tcp_rail *rail, const struct frame_trailer *trailer);
/* Ends it: answers the WRITE or ends the READ's work, and frees it. With the loop's lock. */
void staged_receive_finish(struct staged_receive *staged, int code);

/* Leaves the queue for buffers where none is needed any more, for others. With the loop's lock. */
void tcp_staging_leave_queue(struct tcp_endpoint *endpoint);
/* Takes buffers back that were held for too long while others waited, and ends waits that took too
 * long. With the loop's lock. */
void tcp_staging_expire(struct tcp_endpoint *endpoint, int64_t now);

#endif
