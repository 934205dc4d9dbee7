/* SPDX-License-Identifier: MIT
 * The control channel of an rdma endpoint, and the client's side of remote regions. With the loop's
 * lock where nothing else is said. */
#ifndef HAUL_FABRIC_RDMA_CHANNEL_H
#define HAUL_FABRIC_RDMA_CHANNEL_H

#include "fabric/rdma/frame.h"
#include "fabric/transport.h"

struct rdma_binding;
struct rdma_endpoint;
struct rdma_rail;
struct timer;

int rdma_channel_start(struct rdma_endpoint *endpoint, struct stream stream);
void rdma_channel_stop(struct rdma_endpoint *endpoint, int code);
/* Ends the channel for a code that rdma_on_record returned. */
void rdma_channel_fail(struct rdma_endpoint *endpoint, int code);
/* Tells the peer why this side has no rails, and closes the stream. */
void rdma_reject(struct rdma_endpoint *endpoint, struct stream stream);
/* Over the rail that the record's type and `rails` name, or on the channel. */
void rdma_send_record(struct rdma_endpoint *endpoint, const struct rdma_record *record);
/* Tells the peer this side's ends; `paired` as in a hello. */
void rdma_send_hello(struct rdma_endpoint *endpoint, uint16_t paired);
/* Tells it why this side has none. */
void rdma_send_refusal(struct rdma_endpoint *endpoint, const char *reason);
/* A record that came over a rail, or on the channel (NULL): 0, HAUL_EPROTO, or a code with the
 * detail of what this side lacks. */
int rdma_on_record(struct rdma_endpoint *endpoint, const uint8_t bytes[RDMA_RECORD],
                   const struct rdma_rail *rail);
/* Sends REVOKE_ACK for revoked regions without jobs, and DETACH for released ones. */
void rdma_release_bindings(struct rdma_endpoint *endpoint);
/* NULL: no memory. */
struct rdma_binding *rdma_make_binding(const struct rdma_endpoint *endpoint, uint64_t handle,
                                       uint64_t length);
/* Without the lock; blocks until `until`. */
int rdma_attach(struct rdma_endpoint *endpoint, haul_deadline until, struct rdma_binding *binding);
/* Asks the owner for one of the regions that it staged for a shortage. */
void rdma_attach_again(struct timer *timer);

#endif
