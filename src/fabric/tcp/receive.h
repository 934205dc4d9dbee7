/* SPDX-License-Identifier: MIT
 * Receiving, with the loop's lock: receive.c reads the bytes of a rail, handle.c does what its
 * frames ask. */
#ifndef HAUL_FABRIC_TCP_RECEIVE_H
#define HAUL_FABRIC_TCP_RECEIVE_H

#include "fabric/tcp/payload.h"
#include "fabric/tcp/tcp.h"

#define TCP_INBOX 8192u /* bytes for heads and small payloads; more than FRAME_HEAD_MAX */

enum rx_state { RX_HEAD, RX_PAYLOAD, RX_TRAILER };

/* Receiving state of a rail; the loop's lock. */
struct rail_rx {
  enum rx_state state;
  bool blocked; /* waits for a bounce buffer, and for no event; both locks to change */
  uint8_t inbox[TCP_INBOX];
  size_t inbox_start, inbox_end;
  struct frame frame;
  struct frame_segment segments[FRAME_SEGMENTS_MAX]; /* also takes the bytes that are discarded */
  struct payload payload; /* its region: WRITE: a reference; DATA: the work's; NULL: discarded */
  int status;             /* of a payload that is discarded: what its sender, or work, gets */
  struct work *work;      /* DATA */
  uint64_t left;          /* payload bytes to come */
  bool summed;            /* `checksum` accumulates this payload's */
  struct running_checksum checksum;
  int64_t moved; /* when bytes last came */
  unsigned idle_polls;
};

/* ---- receive.c ---- */

/* Reads until the socket is empty or a budget is used up; true when something came. */
bool rail_receive(struct tcp_rail *rail);
/* It has no bounce buffer for its payload, and gets none now. */
bool rail_awaits_bounce(const struct tcp_rail *rail);
/* Its payload begins: the first `count` segments, checked, of the region, or NULL to discard it. */
void rail_start_payload(struct tcp_rail *rail, struct haul_region *region, uint32_t count);
/* The rest of the payload is read and dropped; `status` is what the sender, or the work, gets. */
void rail_discard_payload(struct tcp_rail *rail, int status);
/* The peer broke the protocol, or there is no memory to go on: the link fails, and the rail reads
 * no more. With or without the endpoint's lock. */
void rail_fail(struct tcp_rail *rail, int code, const char *what);

/* ---- handle.c ---- */

/* The rail's frame has a complete head. */
void rail_handle_head(struct tcp_rail *rail);
/* Its payload and trailer are there: stages it on, or completes it. */
void rail_handle_payload(struct tcp_rail *rail, const struct frame_trailer *trailer);
/* The bytes of a payload are at their destination: checks them. `checksum`: NULL, or what was
 * accumulated. 0 or a code with the detail. */
int payload_verify(const struct payload *payload, const struct frame *frame,
                   const struct frame_trailer *trailer, const struct running_checksum *checksum);
/* Answers the WRITE, or ends the READ's work, with the code. */
void payload_complete(struct tcp_rail *rail, const struct frame *frame, int code);
/* Nothing that still comes for the work reaches its memory. */
void receive_detach(struct tcp_endpoint *endpoint, const struct work *work);
/* Nothing that still comes for the export is stored. */
void receive_revoke(struct tcp_endpoint *endpoint, uint64_t handle);

#endif
