/* SPDX-License-Identifier: MIT
 * The owner's side of a remote region: what the peer's NIC may reach, and the owner's part of a
 * work: copies through the staging area, fences before reads, checksums. With the loop's lock where
 * nothing else is said. */
#ifndef HAUL_FABRIC_RDMA_OWNER_H
#define HAUL_FABRIC_RDMA_OWNER_H

#include "core/list.h"
#include "fabric/rdma/frame.h"
#include "haul/haul.h"

struct endpoint;
struct ibv_mr;
struct rdma_endpoint;
struct rdma_node;

#define RDMA_SLOTS                                                                                 \
  8u /* works at a time through local bounce buffers, and through the peer's area */

/* A region of ours that the peer's NIC may reach. */
struct rdma_attachment {
  struct list link; /* endpoint->attachments */
  uint64_t handle;
  unsigned uses; /* ATTACHs without a DETACH or REVOKE_ACK */
  bool revoked;
  unsigned rights;
  uint32_t number;                /* for immediates */
  bool staged;                    /* reached through the staging area */
  char reason[128];               /* why it is staged */
  bool copies;                    /* the peer may copy through it: it is staged, or was */
  int64_t retry_at;               /* when an ATTACH tries again to register it; or HAUL_FOREVER */
  struct haul_region *region;     /* a reference: its memory stays registered */
  struct ibv_mr *registrations[]; /* by rail */
};

/* Host memory of ours that the peer's NIC may reach, in place of regions that no NIC can
 * register. */
struct rdma_staging_area {
  struct haul_region *region;
  unsigned slots;                 /* works at a time through it, WORK_BYTES_MAX each */
  struct ibv_mr *registrations[]; /* by rail */
};

int rdma_on_attach(struct rdma_endpoint *endpoint, const struct rdma_record *record);
/* One DETACH or REVOKE_ACK for each granted ATTACH: the peer's work requests on it have ended. */
int rdma_on_detach(struct rdma_endpoint *endpoint, uint64_t handle);
/* CHECKSUM, COPY_IN, COPY_OUT or FENCE. */
int rdma_on_request(struct rdma_endpoint *endpoint, const struct rdma_record *request);
/* transport.revoke and transport.touches. */
void rdma_revoke(struct endpoint *base, uint64_t handle, struct haul_region *region);
bool rdma_uses_handle(struct endpoint *base, uint64_t handle, const struct haul_region *region);
void rdma_close_attachments(struct rdma_endpoint *endpoint);
bool staged_copies_poll(struct rdma_endpoint *endpoint, bool *urgent);
void staged_copies_cancel(struct rdma_endpoint *endpoint);
/* Without the lock, once the loop has ended: blocks until no thread registers any more. */
void rdma_await_attach_threads(struct rdma_node *node);

#endif
