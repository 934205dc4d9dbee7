/* SPDX-License-Identifier: MIT
 * One rail: a reliable-connected queue pair with a completion queue of its own. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>

#include "core/error.h"
#include "core/sys.h"
#include "fabric/rdma/rdma.h"

/* The InfiniBand specification's codes: an acknowledgement is awaited for 4.096 us times 2^14, 67
 * ms, and asked for seven times; a receiver that is not ready is asked again after 0.64 ms, six
 * times. */
#define TIMEOUT     14
#define RETRIES     7
#define RNR_TIMER   12
#define RNR_RETRIES 6
#define READS       16 /* reads and atomics under way */
#define HOPS        64

static int failed(const struct rdma_rail *rail, const char *what, int system) {
  if (system == ENOMEM)
    return error_set(HAUL_ELIMIT, system, rail->card->nic->name,
                     "raise the limit: ulimit -l unlimited",
                     "%s: no memory that may be locked is left", what);
  return error_set(HAUL_ESYSTEM, system, rail->card->nic->name, "haul doctor looks at the NIC",
                   "%s: %s", what, strerror(system));
}

/* ---- Making ---- */

static int open_completions(struct rdma_rail *rail) {
  const struct verbs *verbs = rail->card->nic->verbs;
  struct ibv_context *context = rail->card->nic->context;
  rail->events = verbs->create_comp_channel(context);
  if (!rail->events)
    return failed(rail, "completion channel", errno);
  int flags = fcntl(rail->events->fd, F_GETFL);
  fcntl(rail->events->fd, F_SETFL, flags | O_NONBLOCK);
  /* Every request ends in it when the queue pair fails, asked for or not. */
  rail->completions = verbs->create_cq(
      context, (int)(rail->room + rail->mail.sends + rail->mail.receives), NULL, rail->events, 0);
  return rail->completions ? 0 : failed(rail, "completion queue", errno);
}

static int open_queue(struct rdma_rail *rail, uint32_t inlined) {
  struct ibv_qp_init_attr attributes = {
      .send_cq = rail->completions,
      .recv_cq = rail->completions,
      .qp_type = IBV_QPT_RC,
      .cap = {.max_send_wr = rail->room + rail->mail.sends,
              .max_recv_wr = rail->mail.receives,
              .max_send_sge = 1,
              .max_recv_sge = 1,
              .max_inline_data = inlined},
  };
  rail->queue = rail->card->nic->verbs->create_qp(rail->card->nic->pd, &attributes);
  rail->inlined = attributes.cap.max_inline_data;
  return rail->queue ? 0 : errno;
}

static int to_init(struct rdma_rail *rail) {
  bool atomics = rail->card->nic->limits.atomics != IBV_ATOMIC_NONE;
  struct ibv_qp_attr attributes = {
      .qp_state = IBV_QPS_INIT,
      .pkey_index = 0,
      .port_num = (uint8_t)rail->card->port.number,
      .qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
                         (atomics ? (unsigned)IBV_ACCESS_REMOTE_ATOMIC : 0),
  };
  int system = rail->card->nic->verbs->modify_qp(rail->queue, &attributes,
                                                 IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT |
                                                     IBV_QP_ACCESS_FLAGS);
  return system ? failed(rail, "queue pair to INIT", system) : 0;
}

static void describe(struct rdma_rail *rail) {
  const struct nic *nic = rail->card->nic;
  const struct nic_port *port = &rail->card->port;
  struct rdma_end *end = &rail->end;
  uint32_t random;
  random_bytes(&random, sizeof random);
  snprintf(end->nic, sizeof end->nic, "%.31s", nic->name);
  end->ethernet = !port->infiniband;
  end->mtu = (uint8_t)port->mtu;
  end->lid = port->lid;
  end->receives = RDMA_FENCES;
  end->reads = nic->limits.reads_served < READS ? (uint8_t)nic->limits.reads_served : READS;
  end->atomics = (uint8_t)nic->limits.atomics;
  memcpy(end->gid, port->gid, 16);
  end->queue_pair = rail->queue->qp_num;
  end->packet = random & 0xffffff;
}

/* How deep its queues are, within what the device has. */
static int measure(struct rdma_rail *rail) {
  const struct nic_limits *limits = &rail->card->nic->limits;
  const struct rdma_mail *mail = &rail->mail;
  int receives = (int)mail->receives, sends = (int)mail->sends;
  int most = limits->cqe - receives < limits->qp_wr ? limits->cqe - receives : limits->qp_wr;
  if (receives > limits->qp_wr || most < sends + (int)WORK_PIECES_MAX)
    return error_set(HAUL_ENOTSUP, 0, rail->card->nic->name, NULL,
                     "its queues hold %d requests, fewer than the %u that are needed", most,
                     mail->sends + WORK_PIECES_MAX);
  most -= sends;
  rail->room = most < (int)RDMA_DEPTH ? (uint32_t)most : RDMA_DEPTH;
  return 0;
}

int queue_open(struct rdma_rail *rail) {
  list_init(&rail->posted);
  backlog_init(&rail->waiting);
  int code = measure(rail);
  if (code == 0)
    code = open_completions(rail);
  if (code)
    return code;
  int system = open_queue(rail, RDMA_INLINE);
  if (system == EINVAL) /* it takes fewer inline */
    system = open_queue(rail, 0);
  if (system)
    return failed(rail, "queue pair", system);
  code = to_init(rail);
  if (code == 0)
    describe(rail);
  return code;
}

/* ---- Connecting ---- */

static int to_receive(struct rdma_rail *rail, const struct rdma_end *peer) {
  const struct nic_port *port = &rail->card->port;
  struct ibv_qp_attr attributes = {
      .qp_state = IBV_QPS_RTR,
      .path_mtu = peer->mtu < rail->end.mtu ? peer->mtu : rail->end.mtu,
      .dest_qp_num = peer->queue_pair,
      .rq_psn = peer->packet,
      .max_dest_rd_atomic = rail->end.reads,
      .min_rnr_timer = RNR_TIMER,
      .ah_attr = {.dlid = peer->lid,
                  .port_num = (uint8_t)port->number,
                  .is_global = peer->ethernet},
  };
  if (peer->ethernet) {
    memcpy(attributes.ah_attr.grh.dgid.raw, peer->gid, 16);
    attributes.ah_attr.grh.sgid_index = (uint8_t)port->gid_index;
    attributes.ah_attr.grh.hop_limit = HOPS;
  }
  int system = rail->card->nic->verbs->modify_qp(
      rail->queue, &attributes,
      IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
          IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
  return system ? failed(rail, "queue pair to RTR: is there a route to the peer's GID?", system)
                : 0;
}

static int to_send(struct rdma_rail *rail, const struct rdma_end *peer) {
  int starts = rail->card->nic->limits.reads_started;
  struct ibv_qp_attr attributes = {
      .qp_state = IBV_QPS_RTS,
      .sq_psn = rail->end.packet,
      .timeout = TIMEOUT,
      .retry_cnt = RETRIES,
      .rnr_retry = RNR_RETRIES,
      .max_rd_atomic = peer->reads < starts ? peer->reads : (uint8_t)starts,
  };
  int system = rail->card->nic->verbs->modify_qp(rail->queue, &attributes,
                                                 IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT |
                                                     IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                                                     IBV_QP_MAX_QP_RD_ATOMIC);
  return system ? failed(rail, "queue pair to RTS", system) : 0;
}

int queue_connect(struct rdma_rail *rail, const struct rdma_end *peer) {
  rail->receives = peer->receives < RDMA_FENCES ? peer->receives : RDMA_FENCES;
  rail->atomics = peer->atomics;
  if (peer->ethernet != rail->end.ethernet)
    return error_set(HAUL_ENOPATH, 0, rail->card->nic->name, NULL,
                     "one side has InfiniBand and the other Ethernet");
  int code = to_receive(rail, peer);
  return code ? code : to_send(rail, peer);
}

/* ---- Ending ---- */

void queue_break(struct rdma_rail *rail) {
  if (rail->queue)
    rail->card->nic->verbs->destroy_qp(rail->queue);
  rail->queue = NULL;
}

void queue_close(struct rdma_rail *rail) {
  const struct verbs *verbs = rail->card->nic->verbs;
  queue_break(rail);
  if (rail->completions)
    verbs->destroy_cq(rail->completions);
  if (rail->events)
    verbs->destroy_comp_channel(rail->events);
  rail->completions = NULL;
  rail->events = NULL;
  mail_close(rail);
}

/* ---- Errors in words ---- */

struct meaning {
  enum ibv_wc_status status;
  int code;
  const char *text, *hint;
};

static const struct meaning meanings[] = {
    {IBV_WC_RETRY_EXC_ERR, HAUL_EPATH, "the peer's NIC does not acknowledge",
     "its process or host is gone, the link is down, or packets are lost: rdma link, ping"},
    {IBV_WC_RNR_RETRY_EXC_ERR, HAUL_EPATH, "the peer's receive queue stayed empty",
     "its node does not run: a stopped process or one that does not progress"},
    {IBV_WC_REM_ACCESS_ERR, HAUL_ESTALE, "the peer's NIC refused the address or its key",
     "the region was released there meanwhile; look it up again"},
    {IBV_WC_REM_INV_REQ_ERR, HAUL_EPROTO, "the peer's NIC took the request for invalid",
     "run the same version of haul on both sides"},
    {IBV_WC_REM_OP_ERR, HAUL_EPATH, "the peer's NIC could not do it",
     "its memory may have been unmapped, or its driver failed: dmesg there"},
    {IBV_WC_LOC_PROT_ERR, HAUL_EINVAL, "this side's NIC refused the local memory",
     "was it unmapped while the transfer was under way?"},
    {IBV_WC_LOC_LEN_ERR, HAUL_EPROTO, "this side's NIC refused the length",
     "report it as a defect"},
    {IBV_WC_LOC_QP_OP_ERR, HAUL_EPATH, "this side's queue pair failed", "dmesg may say why"},
    {IBV_WC_FATAL_ERR, HAUL_EPATH, "the NIC failed", "dmesg says why; was the device removed?"},
    {IBV_WC_WR_FLUSH_ERR, HAUL_EPATH, "the queue pair was in error", "an earlier failure broke it"},
};

int queue_error(const struct rdma_rail *rail, enum ibv_wc_status status, uint32_t vendor) {
  for (size_t i = 0; i < sizeof meanings / sizeof meanings[0]; i++)
    if (meanings[i].status == status)
      return error_set(meanings[i].code, 0, rail->card->nic->name, meanings[i].hint, "%s",
                       meanings[i].text);
  return error_set(HAUL_EPATH, 0, rail->card->nic->name, NULL, "%s (vendor 0x%x)",
                   rail->card->nic->verbs->wc_status_str(status), vendor);
}
