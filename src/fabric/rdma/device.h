/* SPDX-License-Identifier: MIT
 * The NIC ports that a node uses, the memory registered at them, and the asynchronous events of
 * their NICs. */
#ifndef HAUL_FABRIC_RDMA_DEVICE_H
#define HAUL_FABRIC_RDMA_DEVICE_H

#include <pthread.h>

#include "core/loop.h"
#include "fabric/rdma/frame.h"
#include "fabric/rdma/nic.h"
#include "fabric/regcache.h"
#include "fabric/transport.h"

extern const struct transport rdma_transport;

/* A port in use by this node: what all its queue pairs share. */
struct rdma_device {
  struct rdma_node *node;
  unsigned number; /* of its bit */
  const struct nic *nic;
  struct nic_port port;
  struct regcache *cache;
  struct rdma_receives *receives; /* for new rails, at one device a NIC; the loop's lock */
  struct watch watch;             /* of the NIC's events, at one device a NIC; the loop's lock */
};

#define RDMA_REFUSALS 16u
#define RDMA_KINDS    8u
#define RDMA_PLACES   16u /* of a kind */

/* The node's share of the transport: fabric->shared[rdma]. */
struct rdma_node {
  struct fabric *fabric;
  pthread_mutex_t lock; /* held while devices are opened or memory is forgotten; for `refusals` */
  struct nics *nics;    /* NULL: not opened yet, or there are none */
  unsigned count;
  struct rdma_device *devices; /* constant once opened */
  /* By place: 4 bits for each device, its rank by distance from 1 on. Computed at the first use; 0:
   * not yet. */
  _Atomic uint64_t ranks[RDMA_KINDS][RDMA_PLACES];
  /* Distinct reasons why NICs refused device memory; the last stands for all later ones. Each is
   * constant once it has a number. */
  char refusals[RDMA_REFUSALS][192];
  _Atomic uint64_t receive_bytes; /* registered for receives of records */
  _Atomic uint32_t own_receives;  /* rails that share no receives */
  struct list endpoints;          /* those with rails; the loop's lock */
  unsigned attach_threads;        /* that take turns (owner.c); the loop's lock */
  _Atomic uint32_t live_threads;  /* of those, not ended yet; a futex */
};

/* HAUL_ENOTSUP with the detail when the host has none that is usable. */
int rdma_devices_open(struct rdma_node *node);
void rdma_devices_close(struct rdma_node *node);
/* As node->ranks. */
uint64_t rdma_devices_rank(struct rdma_node *node, struct haul_place place);
/* Why the place has the one device nearer than the other; a literal. */
const char *rdma_devices_compare(const struct rdma_device *near, const struct rdma_device *far,
                                 struct haul_place place);
/* The device's of these. */
static inline unsigned rdma_rank_of(uint64_t ranks, const struct rdma_device *device) {
  return (unsigned)(ranks >> 4 * device->number & 15);
}
/* transport.announce: announces the memory, so that neighbouring ranges are registered together. */
void rdma_devices_announce(struct fabric *fabric, const struct memory *memory);
/* transport.invalidate: drops the memory's registrations. */
void rdma_devices_invalidate(struct fabric *fabric, const struct memory *memory);
/* The sum over all caches. */
void rdma_devices_count(struct rdma_node *node, struct regcache_counters *sum);

/* Registers exactly these bytes for the peer's NIC, with these rights. */
int rdma_device_export(struct rdma_device *device, const struct memory *memory, unsigned rights,
                       struct ibv_mr **mr);
/* For this node's NIC alone, until rdma_device_unexport. */
int rdma_device_pin(struct rdma_device *device, const struct memory *memory, struct ibv_mr **mr);
/* Safe on NULL. */
void rdma_device_unexport(struct rdma_device *device, struct ibv_mr *mr);
/* Whether an export with these rights also allows atomics: only on memory that CPUs reach. */
bool rdma_device_allows_atomics(const struct rdma_device *device, const struct memory *memory,
                                unsigned rights);
/* For this node's own use, through the cache. */
int rdma_device_register(struct rdma_device *device, const struct memory *memory,
                         struct registration **registration, struct ibv_mr **mr);

#define RDMA_RETRY_NS   1000000000
#define RDMA_REFUSAL_AT 32 /* bit of the reason's number in region->refused */

/* When a registration is tried again that began then and was refused now. */
int64_t rdma_retry_at(int64_t began);
/* Registers the region's device memory at the devices of these bits, unless that has been done or
 * failed a moment ago; region->refused has the outcome. The registrations stay in the caches. */
void rdma_devices_try(struct rdma_node *node, unsigned devices, struct haul_region *region);

/* With the loop's lock. */
int rdma_events_watch(struct rdma_node *node);
void rdma_events_unwatch(struct rdma_node *node);

#endif
