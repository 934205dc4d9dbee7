/* SPDX-License-Identifier: MIT
 * Queue pairs, and records as messages over them: requests to the owner and responses arrive within
 * microseconds, as a fence after every write into a device's memory needs.
 *
 * Records about a work go over its rail, after its bytes: writes of two NICs to memory have no
 * order. A side sends only what the peer has receives for (rail.h counts them), unless the
 * peer's rails share receives. A receive is posted again before the response is sent, as the
 * response allows the peer its next message. */
#include "fabric/rdma/rail.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>

#include "core/error.h"
#include "core/sys.h"
#include "fabric/rdma/channel.h"
#include "fabric/rdma/endpoint.h"
#include "fabric/rdma/receives.h"

/* Codes of the InfiniBand specification. A receiver that is not ready is asked again after 0.64 ms,
 * and without end (7): where rails share receives, they may run out for a while. rdma_check_stuck
 * ends a rail whose peer never becomes ready. */
#define RNR_TIMER   12
#define RNR_RETRIES 7
#define READS       16 /* reads and atomics under way */
#define HOPS        64

/* Share of one rail in a turn of the loop: at most a millisecond, even with slow hashing. */
#define RECORDS_A_TURN     64
#define CHECKSUMMED_A_TURN ((uint64_t)4 << 20)

__attribute__((cold)) static int rail_error(const struct rdma_rail *rail, const char *what,
                                            int system) {
  if (system == ENOMEM)
    return error_set(HAUL_ELIMIT, system, rail->device->nic->name,
                     "raise the limit: ulimit -l unlimited",
                     "%s: the locked-memory limit is reached", what);
  return error_set(HAUL_ESYSTEM, system, rail->device->nic->name, "haul doctor rdma", "%s: %s",
                   what, strerror(system));
}

__attribute__((cold)) static int open_completions(struct rdma_rail *rail) {
  const struct verbs *verbs = rail->device->nic->verbs;
  struct ibv_context *context = rail->device->nic->context;
  rail->events = verbs->create_comp_channel(context);
  if (!rail->events)
    return rail_error(rail, "completion channel", errno);
  int flags = fcntl(rail->events->fd, F_GETFL);
  fcntl(rail->events->fd, F_SETFL, flags | O_NONBLOCK);
  /* Room for all work requests: when the queue pair fails, unsignaled ones complete as well. */
  rail->cq = verbs->create_cq(context, (int)(rail->send_room + RDMA_SENDS + RDMA_RECEIVES), NULL,
                              rail->events, 0);
  return rail->cq ? 0 : rail_error(rail, "completion queue", errno);
}

__attribute__((cold)) static int create_qp(struct rdma_rail *rail, uint32_t inlined) {
  struct ibv_qp_init_attr attributes = {
      .send_cq = rail->cq,
      .recv_cq = rail->cq,
      .srq = rail->receives ? rail->receives->queue : NULL,
      .qp_type = IBV_QPT_RC,
      .cap = {.max_send_wr = rail->send_room + RDMA_SENDS,
              .max_recv_wr = rail->receives ? 0 : RDMA_RECEIVES, /* without effect if shared */
              .max_send_sge = 1,
              .max_recv_sge = 1,
              .max_inline_data = inlined},
  };
  rail->qp = rail->device->nic->verbs->create_qp(rail->device->nic->pd, &attributes);
  rail->inlined = attributes.cap.max_inline_data;
  return rail->qp ? 0 : errno;
}

__attribute__((cold)) static int modify(struct rdma_rail *rail, struct ibv_qp_attr *attributes,
                                        int mask, const char *what) {
  int system = rail->device->nic->verbs->modify_qp(rail->qp, attributes, IBV_QP_STATE | mask);
  return system ? rail_error(rail, what, system) : 0;
}

__attribute__((cold)) static int to_init(struct rdma_rail *rail) {
  bool atomics = rail->device->nic->limits.atomics != IBV_ATOMIC_NONE;
  struct ibv_qp_attr attributes = {
      .qp_state = IBV_QPS_INIT,
      .pkey_index = rail->port.pkey_index,
      .port_num = (uint8_t)rail->port.number,
      .qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
                         (atomics ? (unsigned)IBV_ACCESS_REMOTE_ATOMIC : 0),
  };
  return modify(rail, &attributes, IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS,
                "queue pair to INIT");
}

/* LID and GID may differ from those at the node's opening. */
__attribute__((cold)) int rdma_rail_look(struct rdma_rail *rail) {
  const struct nic *nic = rail->device->nic;
  struct nic_port *port = &rail->port;
  struct rdma_end *end = &rail->end;
  list_init(&rail->posted);
  backlog_init(&rail->waiting);
  nic_port(nic, rail->device->port.number, port);
  if (port->status != NIC_PORT_USABLE)
    return error_set(HAUL_EPATH, 0, nic->name, NULL, "%s", port->reason);
  if (port->foreign && !rail->device->port.foreign)
    return error_set(HAUL_EPATH, 0, nic->name, NULL,
                     "its address belongs to another network namespace");
  snprintf(end->nic, sizeof end->nic, "%.31s", nic->name);
  end->ethernet = !port->infiniband;
  end->mtu = (uint8_t)port->mtu;
  end->lid = port->lid;
  end->receives = RDMA_FENCES;
  end->reads = nic->limits.reads_served < READS ? (uint8_t)nic->limits.reads_served : READS;
  end->atomics = (uint8_t)nic->limits.atomics;
  memcpy(end->gid, port->gid, 16);
  return 0;
}

/* Sets the depth of the send queue, within the device's limits. */
__attribute__((cold)) static int size_queues(struct rdma_rail *rail) {
  const struct nic_limits *limits = &rail->device->nic->limits;
  int receives = (int)RDMA_RECEIVES, sends = (int)RDMA_SENDS;
  int most = limits->cqe - receives < limits->qp_wr ? limits->cqe - receives : limits->qp_wr;
  if (receives > limits->qp_wr || most < sends + (int)WORK_PIECES_MAX)
    return error_set(HAUL_ENOTSUP, 0, rail->device->nic->name, NULL,
                     "its queues hold %d work requests, and %u are needed", most,
                     RDMA_SENDS + WORK_PIECES_MAX);
  most -= sends;
  rail->send_room = most < (int)RDMA_DEPTH ? (uint32_t)most : RDMA_DEPTH;
  return 0;
}

static uint8_t *buffer_of(const struct rdma_rail *rail, uint32_t buffer) {
  return (uint8_t *)rail->messages.region->memory.view + (size_t)buffer * RDMA_RECORD;
}

static uint8_t *received_bytes(const struct rdma_rail *rail, uint32_t buffer) {
  return rail->receives ? rdma_receives_buffer(rail->receives, buffer)
                        : buffer_of(rail, RDMA_SENDS + buffer);
}

static int post_receive(struct rdma_rail *rail, uint32_t buffer) {
  if (rail->receives)
    return rdma_receives_post(rail->receives, buffer);
  struct ibv_sge segment = {.addr = (uintptr_t)received_bytes(rail, buffer),
                            .length = RDMA_RECORD,
                            .lkey = rail->messages.registration->lkey};
  struct ibv_recv_wr request = {
      .wr_id = (uint64_t)buffer << WR_ID_BITS | WR_ID_RECEIVE, .sg_list = &segment, .num_sge = 1};
  struct ibv_recv_wr *bad;
  int system = ibv_post_recv(rail->qp, &request, &bad);
  return system ? error_set(HAUL_EPATH, system, rail->device->nic->name, NULL,
                            "its receive queue refused a work request")
                : 0;
}

/* For the counters, while the receives of this rail alone are registered. */
static void count_own_receives(const struct rdma_rail *rail, int change) {
  struct rdma_node *node = rail->device->node;
  if (rail->receives)
    return;
  node->own_receives += (uint32_t)change;
  node->receive_bytes += (uint64_t)(int64_t)change * RDMA_RECEIVES * RDMA_RECORD;
}

__attribute__((cold)) int rdma_rail_open_messages(struct rdma_rail *rail) {
  struct rdma_messages *messages = &rail->messages;
  struct heap *heap = rail->endpoint->base.link->fabric->heap;
  uint32_t receives = rail->receives ? 0 : RDMA_RECEIVES;
  int code = heap_alloc(heap, (struct haul_place){HAUL_HOST, 0},
                        (uint64_t)(RDMA_SENDS + receives) * RDMA_RECORD, HAUL_REGION_PRIVATE,
                        &messages->region);
  if (code == 0)
    code = rdma_device_pin(rail->device, &messages->region->memory, &messages->registration);
  if (code == 0)
    count_own_receives(rail, 1);
  for (uint32_t i = 0; i < receives && code == 0; i++)
    code = post_receive(rail, i);
  return code;
}

__attribute__((cold)) int rdma_rail_open(struct rdma_rail *rail) {
  uint32_t random;
  int code = size_queues(rail);
  if (code == 0)
    code = rdma_receives_get(rail->device, &rail->receives);
  if (code == 0)
    code = open_completions(rail);
  if (code)
    return code;
  int system = create_qp(rail, RDMA_INLINE);
  if (system == EINVAL) /* the device takes fewer bytes inline */
    system = create_qp(rail, 0);
  if (system)
    return rail_error(rail, "queue pair", system);
  random_bytes(&random, sizeof random);
  rail->end.queue_pair = rail->qp->qp_num;
  rail->end.packet = random & 0xffffff;
  return to_init(rail);
}

/* InfiniBand needs the global header only where routers are on the way. */
static bool needs_gid(const struct rdma_end *own, const struct rdma_end *peer) {
  return peer->ethernet || memcmp(own->gid, peer->gid, 8) != 0;
}

__attribute__((cold)) static int to_receive(struct rdma_rail *rail, const struct rdma_end *peer) {
  const struct nic_port *port = &rail->port;
  const int *settings = rail->device->nic->settings;
  struct ibv_qp_attr attributes = {
      .qp_state = IBV_QPS_RTR,
      .path_mtu = peer->mtu < rail->end.mtu ? peer->mtu : rail->end.mtu,
      .dest_qp_num = peer->queue_pair,
      .rq_psn = peer->packet,
      .max_dest_rd_atomic = rail->end.reads,
      .min_rnr_timer = RNR_TIMER,
      .ah_attr = {.dlid = peer->lid,
                  .sl = (uint8_t)settings[RDMA_SERVICE_LEVEL],
                  .port_num = (uint8_t)port->number,
                  .is_global = needs_gid(&rail->end, peer)},
  };
  if (attributes.ah_attr.is_global) {
    memcpy(attributes.ah_attr.grh.dgid.raw, peer->gid, 16);
    attributes.ah_attr.grh.sgid_index = (uint8_t)port->gid_index;
    attributes.ah_attr.grh.hop_limit = HOPS;
    attributes.ah_attr.grh.traffic_class = (uint8_t)settings[RDMA_TRAFFIC_CLASS];
  }
  return modify(rail, &attributes,
                IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                    IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER,
                "queue pair to RTR: is there a route to the peer's GID?");
}

__attribute__((cold)) static int to_send(struct rdma_rail *rail, const struct rdma_end *peer) {
  int starts = rail->device->nic->limits.reads_started;
  const int *settings = rail->device->nic->settings;
  struct ibv_qp_attr attributes = {
      .qp_state = IBV_QPS_RTS,
      .sq_psn = rail->end.packet,
      .timeout = (uint8_t)settings[RDMA_TIMEOUT],
      .retry_cnt = (uint8_t)settings[RDMA_RETRY_COUNT],
      .rnr_retry = RNR_RETRIES,
      .max_rd_atomic = peer->reads < starts ? peer->reads : (uint8_t)starts,
  };
  return modify(rail, &attributes,
                IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                    IBV_QP_MAX_QP_RD_ATOMIC,
                "queue pair to RTS");
}

__attribute__((cold)) int rdma_rail_connect(struct rdma_rail *rail, const struct rdma_end *peer) {
  rail->fence_limit = peer->receives < RDMA_FENCES ? peer->receives : RDMA_FENCES;
  rail->peer_atomics = peer->atomics;
  if (peer->ethernet != rail->end.ethernet)
    return error_set(HAUL_ENOPATH, 0, rail->device->nic->name, NULL,
                     "one side has InfiniBand and the other Ethernet");
  int code = to_receive(rail, peer);
  return code ? code : to_send(rail, peer);
}

/* Posts receives again that completed and were not polled. Completions of sends and jobs are of no
 * use any more: without their queue pair, jobs end with the rail. */
static void return_completed(struct rdma_rail *rail) {
  struct ibv_wc completion;
  while (ibv_poll_cq(rail->cq, 1, &completion) > 0)
    rdma_rail_drop_receive(rail, &completion);
}

/* Leaves the receives that this rail has taken to the others, also those of records that are not
 * handled yet. In the error state the queue pair takes no more of them. */
__attribute__((cold)) static void return_receives(struct rdma_rail *rail) {
  struct rdma_messages *messages = &rail->messages;
  struct ibv_qp_attr error = {.qp_state = IBV_QPS_ERR};
  rail->device->nic->verbs->modify_qp(rail->qp, &error, IBV_QP_STATE);
  return_completed(rail);
  for (; messages->handled != messages->received; messages->handled++)
    post_receive(rail, messages->records[messages->handled % RDMA_RECEIVES].buffer);
}

__attribute__((cold)) void rdma_rail_destroy_qp(struct rdma_rail *rail) {
  if (!rail->qp)
    return;
  if (rail->receives)
    return_receives(rail);
  rail->device->nic->verbs->destroy_qp(rail->qp);
  rail->qp = NULL;
}

__attribute__((cold)) void rdma_rail_close(struct rdma_rail *rail) {
  const struct verbs *verbs = rail->device->nic->verbs;
  struct rdma_messages *messages = &rail->messages;
  rdma_rail_destroy_qp(rail); /* before its buffers go */
  if (rail->cq && rail->receives)
    return_completed(rail); /* those that came while it was destroyed */
  if (rail->cq)
    verbs->destroy_cq(rail->cq);
  if (rail->events)
    verbs->destroy_comp_channel(rail->events);
  rail->cq = NULL;
  rail->events = NULL;
  if (messages->registration)
    count_own_receives(rail, -1);
  rdma_device_unexport(rail->device, messages->registration);
  if (messages->region)
    region_put(messages->region);
  rdma_receives_put(rail->receives);
  messages->registration = NULL;
  messages->region = NULL;
  rail->receives = NULL;
}

static const struct {
  enum ibv_wc_status status;
  int code;
  const char *text, *hint;
} completion_errors[] = {
    {IBV_WC_RETRY_EXC_ERR, HAUL_EPATH, "the peer's NIC does not acknowledge",
     "check the peer's process, the link and packet loss: rdma link, ping"},
    {IBV_WC_RNR_RETRY_EXC_ERR, HAUL_EPATH, "the peer's receive queue stayed empty",
     "check that the peer's process runs and makes progress"},
    {IBV_WC_REM_ACCESS_ERR, HAUL_ESTALE, "the peer's NIC refused the address or its key", NULL},
    {IBV_WC_REM_INV_REQ_ERR, HAUL_EPROTO, "the peer's NIC rejected the work request as invalid",
     "run the same version of haul on both sides"},
    {IBV_WC_REM_OP_ERR, HAUL_EPATH, "the peer's NIC failed to execute the work request",
     "run dmesg on the peer: its memory was unmapped, or its driver failed"},
    {IBV_WC_LOC_PROT_ERR, HAUL_EINVAL, "this side's NIC refused the local memory",
     "keep the memory mapped until the transfer has ended"},
    {IBV_WC_LOC_LEN_ERR, HAUL_EPROTO, "this side's NIC refused the length",
     "report it as a defect"},
    {IBV_WC_LOC_QP_OP_ERR, HAUL_EPATH, "this side's queue pair failed", "run dmesg"},
    {IBV_WC_FATAL_ERR, HAUL_EPATH, "the NIC failed", "run dmesg; was the device removed?"},
    {IBV_WC_WR_FLUSH_ERR, HAUL_EPATH, "the queue pair was in error", "look for an earlier failure"},
};

__attribute__((cold)) int rdma_rail_set_error(const struct rdma_rail *rail,
                                              enum ibv_wc_status status, uint32_t vendor) {
  const char *nic = rail->device->nic->name;
  for (size_t i = 0; i < sizeof completion_errors / sizeof completion_errors[0]; i++)
    if (completion_errors[i].status == status)
      return error_set(completion_errors[i].code, 0, nic, completion_errors[i].hint, "%s",
                       completion_errors[i].text);
  return error_set(HAUL_EPATH, 0, nic, NULL, "%s (vendor 0x%x)",
                   rail->device->nic->verbs->wc_status_str(status), vendor);
}

void rdma_rail_mark_broken(struct rdma_rail *rail) {
  if (!rail->broken)
    snprintf(rail->broken_reason, sizeof rail->broken_reason, "%s", haul_error_last()->text);
  rail->broken = true;
}

/* With the endpoint's lock. */
static bool can_send(const struct rdma_rail *rail) {
  return rail->messages.sent - rail->messages.completed < RDMA_SENDS;
}

/* With the endpoint's lock. Sends complete in order, so their buffers are a ring. */
static int post_send(struct rdma_rail *rail, const struct rdma_record *record) {
  struct rdma_messages *messages = &rail->messages;
  if (!can_send(rail))
    return error_set(HAUL_EPATH, 0, rail->device->nic->name, NULL,
                     "the peer's NIC completes no sends");
  uint8_t *bytes = buffer_of(rail, (uint32_t)(messages->sent % RDMA_SENDS));
  struct ibv_sge segment = {.addr = (uintptr_t)bytes,
                            .length = (uint32_t)rdma_pack(record, bytes),
                            .lkey = messages->registration->lkey};
  struct ibv_send_wr request = {
      .wr_id = WR_ID_SEND,
      .sg_list = &segment,
      .num_sge = 1,
      .opcode = IBV_WR_SEND,
      .send_flags = IBV_SEND_SIGNALED | (segment.length <= rail->inlined ? IBV_SEND_INLINE : 0u)};
  struct ibv_send_wr *bad;
  if (!rdma_rail_is_busy(rail))
    rail->progress_at = clock_now();
  int system = ibv_post_send(rail->qp, &request, &bad);
  if (system)
    return error_set(HAUL_EPATH, system, rail->device->nic->name, NULL,
                     "its send queue refused a work request");
  messages->sent++;
  return 0;
}

/* A broken rail drops the record: its works end without a response. */
void rdma_rail_send(struct rdma_rail *rail, const struct rdma_record *record) {
  struct rdma_endpoint *endpoint = rail->endpoint;
  combiner_lock(&endpoint->combiner);
  bool breaks = rail->qp && !rail->broken && post_send(rail, record) != 0;
  if (breaks)
    rdma_rail_mark_broken(rail);
  combiner_unlock(&endpoint->combiner);
  if (breaks)
    loop_wake(endpoint->base.link->fabric->loop);
}

bool rdma_rail_is_busy(const struct rdma_rail *rail) {
  return rail->posted_count > 0 || rail->messages.sent != rail->messages.completed;
}

/* With the endpoint's lock: the buffer may be filled again. */
static void post_again(struct rdma_rail *rail, uint32_t buffer) {
  if (post_receive(rail, buffer) != 0)
    rdma_rail_mark_broken(rail);
}

static uint32_t buffer_of_completion(const struct ibv_wc *completion) {
  return (uint32_t)(completion->wr_id >> WR_ID_BITS);
}

void rdma_rail_drop_receive(struct rdma_rail *rail, const struct ibv_wc *completion) {
  if (rail->receives && completion->wr_id & WR_ID_RECEIVE)
    post_again(rail, buffer_of_completion(completion));
}

/* Shared receives do not bound what a peer sends, so this does. */
static bool exceeds_credits(struct rdma_rail *rail) {
  struct rdma_messages *messages = &rail->messages;
  if (messages->received - messages->handled + rail->pending_fence_count < RDMA_RECEIVES)
    return false;
  error_set(HAUL_EPATH, 0, rail->device->nic->name, NULL,
            "the peer sent more messages than it may");
  rdma_rail_mark_broken(rail);
  return true;
}

void rdma_rail_complete_message(struct rdma_rail *rail, const struct ibv_wc *completion) {
  struct rdma_messages *messages = &rail->messages;
  uint32_t buffer = buffer_of_completion(completion);
  bool fence = completion->opcode == IBV_WC_RECV_RDMA_WITH_IMM;
  if ((completion->wr_id & WR_ID_SEND) != 0) {
    messages->completed++;
    rdma_rail_set_usable(rail, true);
    return;
  }
  if (!rail->qp || exceeds_credits(rail)) {
    rdma_rail_drop_receive(rail, completion);
    return;
  }
  if (!fence) {
    messages->records[messages->received++ % RDMA_RECEIVES] =
        (struct rdma_received){buffer, completion->byte_len};
    return;
  }
  rail->pending_fences[rail->pending_fence_count++] =
      (struct rdma_fence){ntohl(completion->imm_data), buffer};
  rdma_rail_drop_receive(rail, completion); /* its buffer is empty; others need it meanwhile */
}

/* Copies the next record out and posts its buffer again. */
static bool take_record(struct rdma_rail *rail, uint8_t bytes[RDMA_RECORD]) {
  struct rdma_messages *messages = &rail->messages;
  combiner_lock(&rail->endpoint->combiner);
  bool any = messages->received != messages->handled && rail->qp;
  if (any) {
    struct rdma_received next = messages->records[messages->handled++ % RDMA_RECEIVES];
    memset(bytes, 0, RDMA_RECORD);
    memcpy(bytes, received_bytes(rail, next.buffer), next.length); /* the NIC enforces the bound */
    post_again(rail, next.buffer);
  }
  combiner_unlock(&rail->endpoint->combiner);
  return any;
}

static bool handle_messages(struct rdma_rail *rail) {
  struct rdma_endpoint *endpoint = rail->endpoint;
  uint8_t bytes[RDMA_RECORD];
  bool any = false;
  for (int i = 0;
       i < RECORDS_A_TURN && endpoint->checksummed < CHECKSUMMED_A_TURN && take_record(rail, bytes);
       i++) {
    int code = rdma_on_record(endpoint, bytes, rail);
    any = true;
    if (code)
      rdma_channel_fail(endpoint, code);
  }
  return any;
}

bool rdma_handle_messages(struct rdma_endpoint *endpoint) {
  bool any = false;
  endpoint->checksummed = 0;
  for (unsigned i = 0; i < endpoint->rail_count; i++)
    any |= handle_messages(endpoint->rails[i]);
  if (any)
    atomic_store_explicit(&endpoint->base.link->heard, clock_now(), memory_order_relaxed);
  return any;
}

/* The immediate's completion is ordered behind the bytes of its write on their way to the device,
 * so a fence after it covers them. A record on the channel takes another way and may arrive first.
 * A read after the write shows only that the bytes left the NIC, not that the device's caches know
 * of them. */
static int fence_number(struct rdma_endpoint *endpoint, uint32_t number) {
  list_each(item, &endpoint->attachments) {
    struct rdma_attachment *attachment = list_entry(item, struct rdma_attachment, link);
    if (attachment->number == number)
      return memory_fence(&attachment->region->memory, FENCE_AFTER_WRITE);
  }
  return HAUL_ESTALE;
}

/* A response without a send buffer waits: the NIC may report earlier sends as complete only after
 * the peer has written again. */
static bool take_fence(struct rdma_endpoint *endpoint, struct rdma_rail *rail, uint32_t *number) {
  combiner_lock(&endpoint->combiner);
  bool any = rail->pending_fence_count > 0 && rail->qp && can_send(rail);
  if (any) {
    struct rdma_fence first = rail->pending_fences[0];
    *number = first.number;
    rail->pending_fence_count--;
    for (uint32_t i = 0; i < rail->pending_fence_count; i++)
      rail->pending_fences[i] = rail->pending_fences[i + 1];
    if (!rail->receives)
      post_again(rail, first.buffer); /* before the response, which allows another write */
  }
  combiner_unlock(&endpoint->combiner);
  return any;
}

void rdma_fence_writes(struct rdma_endpoint *endpoint) {
  uint32_t number;
  for (unsigned i = 0; i < endpoint->rail_count; i++)
    while (take_fence(endpoint, endpoint->rails[i], &number))
      rdma_send_record(endpoint, &(struct rdma_record){.type = RDMA_FENCED,
                                                       .request = number,
                                                       .rails = (uint8_t)i,
                                                       .status = fence_number(endpoint, number)});
}
