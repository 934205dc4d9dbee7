/* SPDX-License-Identifier: MIT
 * Receives that all rails of a NIC share, so that their memory does not grow with the peers.
 *
 * A peer sends only what its rail has credits for (rail.h), but the credits of all peers exceed the
 * receives. If the queue runs dry, the peers' NICs try again until a receive is posted
 * (RNR_RETRIES in rail.c): nothing fails, and nothing is lost. Whoever polls a completion posts its
 * buffer again, and never waits for a peer first; so the queue always fills again.
 *
 * Locks: the loop's lock guards the queue's use by rails and its areas. Posting needs no lock:
 * verbs are thread-safe, and an area is constant once its first receive is posted. */
#ifndef HAUL_FABRIC_RDMA_RECEIVES_H
#define HAUL_FABRIC_RDMA_RECEIVES_H

#include "fabric/rdma/device.h"

/* Each new rail adds an area, up to this number: a node with few peers pins no more than with
 * receives for each rail. 4096 receives are 2 MiB. A turn of the loop posts the receives of all
 * peers again; so some hundred peers may each send a dozen records within a turn. */
#define RECEIVE_AREAS    16u
#define RECEIVES_OF_AREA 256u

/* A closing queue pair may take a few receives with it: the NIC took them for messages whose
 * completions come after the last poll (IBV_EVENT_QP_LAST_WQE_REACHED would announce the end, and a
 * broken rail cannot wait for it). So a queue serves one rail in its life for every eight receives,
 * and does not lose all. Later rails get another queue, which doubles the memory while rails of
 * both are open. */
#define RECEIVE_RAILS(receives) ((receives) / 8)

struct receive_area {
  struct haul_region *region;
  struct ibv_mr *registration;
};

struct rdma_receives {
  struct rdma_device *device; /* the NIC's first */
  struct ibv_srq *queue;
  uint32_t areas_most, receives_of_area, rails_most;
  uint32_t rails, opened; /* that use it; that ever did */
  uint32_t area_count;
  struct receive_area areas[RECEIVE_AREAS];
};

/* With the loop's lock: gives one more rail of the device the receives of its NIC. 0 and NULL where
 * the NIC has no shared receive queue: the rail needs its own. Also after a failure, whose detail
 * is set, the rail has to put what it got. */
int rdma_receives_get(struct rdma_device *device, struct rdma_receives **receives);
/* With the loop's lock, after the rail's queue pair was destroyed. Safe on NULL. */
void rdma_receives_put(struct rdma_receives *receives);
/* The queue failed: no further rail uses it. With the loop's lock. */
void rdma_receives_retire(struct rdma_device *device, const struct ibv_srq *queue);
/* RDMA_RECORD bytes. */
uint8_t *rdma_receives_buffer(const struct rdma_receives *receives, uint32_t buffer);
/* 0 or a code with the detail. With any lock. */
int rdma_receives_post(const struct rdma_receives *receives, uint32_t buffer);

#endif
