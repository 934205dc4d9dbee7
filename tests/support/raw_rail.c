/* SPDX-License-Identifier: MIT */
#include "support/raw_rail.h"

#include <arpa/inet.h>
#include <string.h>
#include <time.h>

#include "core/sys.h"
#include "support/check.h"

#define BOUND     INT64_C(20000000000)
#define GID_INDEX 1 /* of the mock's RoCE v2 address */

static void post_receive(struct raw_rail *rail, uint64_t buffer) {
  struct ibv_sge place = {(uintptr_t)(rail->bytes + buffer * RDMA_RECORD), RDMA_RECORD,
                          rail->registration->lkey};
  struct ibv_recv_wr request = {.wr_id = buffer, .sg_list = &place, .num_sge = 1}, *bad;
  assert_int_equal(ibv_post_recv(rail->queue, &request, &bad), 0);
}

static void to_init(struct raw_rail *rail) {
  struct ibv_qp_attr init = {.qp_state = IBV_QPS_INIT,
                             .port_num = 1,
                             .qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
                                                IBV_ACCESS_REMOTE_ATOMIC};
  assert_int_equal(
      rail->verbs->modify_qp(rail->queue, &init,
                             IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS),
      0);
}

void raw_rail_open(struct raw_rail *rail, unsigned receives) {
  int count;
  memset(rail, 0, sizeof *rail);
  rail->not_ready_timer = 1;
  rail->verbs = verbs_open();
  assert_non_null(rail->verbs);
  struct ibv_device **list = rail->verbs->get_device_list(&count);
  assert_int_equal(count, 1);
  rail->context = rail->verbs->open_device(list[0]);
  rail->verbs->free_device_list(list);
  rail->pd = rail->verbs->alloc_pd(rail->context);
  rail->completions = rail->verbs->create_cq(rail->context, 4 * RAIL_DEPTH, NULL, NULL, 0);
  struct ibv_qp_init_attr attributes = {.qp_type = IBV_QPT_RC,
                                        .send_cq = rail->completions,
                                        .recv_cq = rail->completions,
                                        .sq_sig_all = 1,
                                        .cap = {.max_send_wr = RAIL_DEPTH,
                                                .max_recv_wr = RAIL_DEPTH,
                                                .max_send_sge = 1,
                                                .max_recv_sge = 1}};
  rail->queue = rail->verbs->create_qp(rail->pd, &attributes);
  assert_non_null(rail->queue);
  rail->registration = raw_rail_register(rail, rail->bytes, sizeof rail->bytes);
  to_init(rail);
  raw_rail_receive(rail, receives);
}

void raw_rail_receive(struct raw_rail *rail, unsigned receives) {
  for (unsigned i = 0; i < receives; i++)
    post_receive(rail, i);
}

void raw_rail_close(struct raw_rail *rail) {
  assert_int_equal(rail->verbs->destroy_qp(rail->queue), 0);
  assert_int_equal(rail->verbs->destroy_cq(rail->completions), 0);
  assert_int_equal(rail->verbs->dereg_mr(rail->registration), 0);
  assert_int_equal(rail->verbs->dealloc_pd(rail->pd), 0);
  assert_int_equal(rail->verbs->close_device(rail->context), 0);
  rail->verbs = NULL;
}

struct ibv_mr *raw_rail_register(struct raw_rail *rail, void *address, size_t length) {
  struct ibv_mr *registration = rail->verbs->reg_mr(
      rail->pd, address, length,
      IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ);
  assert_non_null(registration);
  return registration;
}

struct rdma_end raw_rail_end(const struct raw_rail *rail) {
  struct rdma_end end = {.nic = "raw",
                         .ethernet = 1,
                         .mtu = IBV_MTU_1024,
                         .reads = 1,
                         .receives = 1,
                         .atomics = IBV_ATOMIC_HCA,
                         .queue_pair = rail->queue->qp_num};
  union ibv_gid gid;
  assert_int_equal(rail->verbs->query_gid(rail->context, 1, GID_INDEX, &gid), 0);
  memcpy(end.gid, gid.raw, sizeof end.gid);
  return end;
}

void raw_rail_connect(struct raw_rail *rail, const struct rdma_end *peer) {
  struct ibv_qp_attr receive = {
      .qp_state = IBV_QPS_RTR,
      .path_mtu = IBV_MTU_1024,
      .dest_qp_num = peer->queue_pair,
      .rq_psn = peer->packet,
      .max_dest_rd_atomic = 1,
      .min_rnr_timer = rail->not_ready_timer,
      .ah_attr = {.is_global = 1, .port_num = 1, .grh = {.sgid_index = GID_INDEX, .hop_limit = 1}}};
  struct ibv_qp_attr send = {.qp_state = IBV_QPS_RTS, .timeout = 8, .retry_cnt = 2, .rnr_retry = 2};
  memcpy(receive.ah_attr.grh.dgid.raw, peer->gid, 16);
  assert_int_equal(rail->verbs->modify_qp(rail->queue, &receive,
                                          IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU |
                                              IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                                              IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER),
                   0);
  assert_int_equal(rail->verbs->modify_qp(rail->queue, &send,
                                          IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT |
                                              IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                                              IBV_QP_MAX_QP_RD_ATOMIC),
                   0);
}

static void take_receive(struct raw_rail *rail, const struct ibv_wc *completion) {
  uint8_t record[RDMA_RECORD] = {0};
  rail->taken++;
  if (completion->opcode == IBV_WC_RECV_RDMA_WITH_IMM) {
    rail->immediates++;
  } else {
    memcpy(record, rail->bytes + completion->wr_id * RDMA_RECORD, completion->byte_len);
    assert_true(rail->count < sizeof rail->heard / sizeof rail->heard[0]);
    assert_int_equal(rdma_parse(record, &rail->heard[rail->count++]), 0);
  }
  post_receive(rail, completion->wr_id);
}

/* True when a send completed. */
static bool poll_once(struct raw_rail *rail) {
  struct ibv_wc completion;
  if (ibv_poll_cq(rail->completions, 1, &completion) == 0) {
    nanosleep(&(struct timespec){0, 20000}, NULL);
    return false;
  }
  if (completion.status != IBV_WC_SUCCESS && rail->failure == IBV_WC_SUCCESS)
    rail->failure = completion.status;
  if (completion.status != IBV_WC_SUCCESS)
    return false;
  if (completion.opcode == IBV_WC_SEND)
    return true;
  if (completion.opcode == IBV_WC_RDMA_WRITE)
    return false;
  take_receive(rail, &completion);
  return false;
}

bool raw_rail_send(struct raw_rail *rail, const void *bytes, size_t length) {
  uint8_t *own = rail->bytes + (size_t)RAIL_DEPTH * RDMA_RECORD;
  struct ibv_sge place = {(uintptr_t)own, (uint32_t)length, rail->registration->lkey};
  struct ibv_send_wr request = {.sg_list = &place, .num_sge = 1, .opcode = IBV_WR_SEND}, *bad;
  memcpy(own, bytes, length);
  assert_int_equal(ibv_post_send(rail->queue, &request, &bad), 0);
  for (int64_t end = clock_after(clock_now(), BOUND); clock_now() < end && !rail->failure;)
    if (poll_once(rail))
      return true;
  return false;
}

void raw_rail_tell(struct raw_rail *rail, uint32_t number) {
  struct ibv_send_wr request = {.opcode = IBV_WR_RDMA_WRITE_WITH_IMM, .imm_data = htonl(number)};
  struct ibv_send_wr *bad;
  assert_int_equal(ibv_post_send(rail->queue, &request, &bad), 0);
}

bool raw_rail_say(struct raw_rail *rail, const struct rdma_record *record) {
  uint8_t bytes[RDMA_RECORD];
  return raw_rail_send(rail, bytes, rdma_pack(record, bytes));
}

struct rdma_record raw_rail_hear(struct raw_rail *rail, enum rdma_record_type type) {
  struct rdma_record record;
  for (int64_t end = clock_after(clock_now(), BOUND); clock_now() < end;) {
    if (rail->count == 0) {
      poll_once(rail);
      continue;
    }
    record = rail->heard[0];
    memmove(rail->heard, rail->heard + 1, --rail->count * sizeof rail->heard[0]);
    if (record.type == type)
      return record;
  }
  fail_msg("no such record came over the rail");
  return record;
}
