/* SPDX-License-Identifier: MIT */
#include "fabric/rdma/receives.h"

#include "core/alloc.h"
#include "core/error.h"
#include "core/shrinkable.h"
#include "fabric/rdma/rail.h"

_Static_assert(RECEIVES_OF_AREA >= RDMA_RECEIVES, "the first rail never finds the queue dry");

/* Ports of one NIC share its queue. */
static struct rdma_device *first_device(struct rdma_device *device) {
  struct rdma_device *first = device->node->devices;
  while (first->nic != device->nic)
    first++;
  return first;
}

/* NULL: the NIC has no such queue left; its rails have receives of their own. */
static struct rdma_receives *open_queue(struct rdma_device *device) {
  const struct nic *nic = device->nic;
  struct rdma_receives *receives = alloc_zero(1, sizeof *receives);
  if (!receives)
    return NULL;
  receives->device = device;
  receives->receives_of_area = shrunk(RECEIVES_OF_AREA, 1);
  receives->areas_most = (uint32_t)nic->limits.srq_wr / receives->receives_of_area;
  if (receives->areas_most > shrunk(RECEIVE_AREAS, 4))
    receives->areas_most = shrunk(RECEIVE_AREAS, 4);
  uint32_t most = receives->areas_most * receives->receives_of_area;
  receives->rails_most = shrunk(RECEIVE_RAILS(most), 4);
  struct ibv_srq_init_attr attributes = {.attr = {.max_wr = most, .max_sge = 1}};
  receives->queue = nic->verbs->create_srq(nic->pd, &attributes);
  if (receives->queue)
    return receives;
  alloc_free(receives);
  return NULL;
}

static int add_area(struct rdma_receives *receives) {
  struct receive_area *area = &receives->areas[receives->area_count];
  struct heap *heap = receives->device->node->fabric->heap;
  uint32_t count = receives->receives_of_area, first = receives->area_count++ * count;
  int code = heap_alloc(heap, (struct haul_place){HAUL_HOST, 0}, (uint64_t)count * RDMA_RECORD,
                        HAUL_REGION_PRIVATE, &area->region);
  if (code == 0)
    code = rdma_device_pin(receives->device, &area->region->memory, &area->registration);
  if (code == 0)
    receives->device->node->receive_bytes += area->region->memory.length;
  for (uint32_t i = 0; i < count && code == 0; i++)
    code = rdma_receives_post(receives, first + i);
  return code;
}

int rdma_receives_get(struct rdma_device *device, struct rdma_receives **out) {
  *out = NULL;
  if ((uint32_t)device->nic->limits.srq_wr < RECEIVES_OF_AREA)
    return 0;
  struct rdma_device *first = first_device(device);
  if (first->receives && first->receives->opened >= first->receives->rails_most)
    first->receives = NULL; /* its rails keep it */
  if (!first->receives)
    first->receives = open_queue(first);
  struct rdma_receives *receives = *out = first->receives;
  if (!receives)
    return 0;
  receives->rails++;
  receives->opened++;
  return receives->area_count < receives->areas_most ? add_area(receives) : 0;
}

void rdma_receives_put(struct rdma_receives *receives) {
  if (!receives)
    return;
  if (--receives->rails > 0)
    return;
  if (receives->device->receives == receives)
    receives->device->receives = NULL;
  receives->device->nic->verbs->destroy_srq(receives->queue); /* before its buffers go */
  for (uint32_t i = 0; i < receives->area_count; i++) {
    struct receive_area *area = &receives->areas[i];
    if (area->registration)
      receives->device->node->receive_bytes -= area->region->memory.length;
    rdma_device_unexport(receives->device, area->registration);
    if (area->region)
      region_put(area->region);
  }
  alloc_free(receives);
}

void rdma_receives_retire(struct rdma_device *device, const struct ibv_srq *queue) {
  struct rdma_device *first = first_device(device);
  if (first->receives && first->receives->queue == queue)
    first->receives = NULL;
}

uint8_t *rdma_receives_buffer(const struct rdma_receives *receives, uint32_t buffer) {
  const struct receive_area *area = &receives->areas[buffer / receives->receives_of_area];
  return (uint8_t *)area->region->memory.view +
         (size_t)(buffer % receives->receives_of_area) * RDMA_RECORD;
}

int rdma_receives_post(const struct rdma_receives *receives, uint32_t buffer) {
  struct ibv_sge segment = {
      .addr = (uintptr_t)rdma_receives_buffer(receives, buffer),
      .length = RDMA_RECORD,
      .lkey = receives->areas[buffer / receives->receives_of_area].registration->lkey};
  struct ibv_recv_wr request = {
      .wr_id = (uint64_t)buffer << WR_ID_BITS | WR_ID_RECEIVE, .sg_list = &segment, .num_sge = 1};
  struct ibv_recv_wr *bad;
  int system = ibv_post_srq_recv(receives->queue, &request, &bad);
  return system ? error_set(HAUL_EPATH, system, receives->device->nic->name, NULL,
                            "its receive queue refused a work request")
                : 0;
}
