/* SPDX-License-Identifier: MIT
 * The emulator behaves as a NIC: the bytes it moves, the requests it refuses and their status, the
 * state after a failure. Two queue pairs of this process are connected to each other. */
#include "support/check.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <string.h>

#include "fabric/rdma/verbs.h"
#include "support/nic.h"

#define DEPTH  16u
#define LENGTH 8192u
#define ALL                                                                                        \
  (IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |                     \
   IBV_ACCESS_REMOTE_ATOMIC)

struct end {
  struct ibv_cq *cq;
  struct ibv_qp *qp;
  struct ibv_mr *mr;
  _Alignas(4096) char bytes[LENGTH];
};

static const struct verbs *verbs;
static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_comp_channel *channel;
static struct end a, b;

static void open_end(struct end *end, unsigned access, int cqe) {
  struct ibv_qp_init_attr attributes = {.qp_type = IBV_QPT_RC,
                                        .cap = {.max_send_wr = DEPTH,
                                                .max_recv_wr = DEPTH,
                                                .max_send_sge = 1,
                                                .max_recv_sge = 1,
                                                .max_inline_data = 64}};
  memset(end->bytes, 0, sizeof end->bytes);
  end->cq = verbs->create_cq(context, cqe, NULL, channel, 0);
  attributes.send_cq = attributes.recv_cq = end->cq;
  end->qp = verbs->create_qp(pd, &attributes);
  end->mr = verbs->reg_mr(pd, end->bytes, LENGTH, (int)access);
  assert_non_null(end->qp);
  assert_non_null(end->mr);
}

static void connect_end(struct end *end, const struct end *peer, unsigned rnr_retry) {
  struct ibv_qp_attr init = {.qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = ALL};
  struct ibv_qp_attr receive = {
      .qp_state = IBV_QPS_RTR,
      .path_mtu = IBV_MTU_1024,
      .dest_qp_num = peer->qp->qp_num,
      .max_dest_rd_atomic = 1,
      .min_rnr_timer = 1,
      .ah_attr = {.is_global = 1, .port_num = 1, .grh = {.sgid_index = 1, .hop_limit = 1}}};
  struct ibv_qp_attr send = {.qp_state = IBV_QPS_RTS,
                             .timeout = 8,
                             .retry_cnt = 2,
                             .rnr_retry = (uint8_t)rnr_retry,
                             .max_rd_atomic = 1};
  verbs->query_gid(context, 1, 1, &receive.ah_attr.grh.dgid);
  /* The order of states is fixed. */
  assert_int_equal(verbs->modify_qp(end->qp, &send, IBV_QP_STATE), EINVAL);
  assert_int_equal(
      verbs->modify_qp(end->qp, &init,
                       IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS),
      0);
  assert_int_equal(verbs->modify_qp(end->qp, &receive,
                                    IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
                                        IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC |
                                        IBV_QP_MIN_RNR_TIMER),
                   0);
  assert_int_equal(verbs->modify_qp(end->qp, &send,
                                    IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT |
                                        IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                                        IBV_QP_MAX_QP_RD_ATOMIC),
                   0);
}

static void open_ends(unsigned access, int cqe) {
  open_end(&a, ALL, cqe);
  open_end(&b, access, 2 * DEPTH);
  connect_end(&a, &b, 1);
  connect_end(&b, &a, 1);
}

static void close_end(struct end *end) {
  if (end->qp)
    assert_int_equal(verbs->destroy_qp(end->qp), 0);
  if (end->mr)
    assert_int_equal(verbs->dereg_mr(end->mr), 0);
  if (end->cq)
    assert_int_equal(verbs->destroy_cq(end->cq), 0);
  end->qp = NULL;
  end->mr = NULL;
  end->cq = NULL;
}

static int set_up(void **state) {
  (void)state;
  int count;
  nic_fault("");
  verbs = verbs_open();
  assert_non_null(verbs);
  struct ibv_device **list = verbs->get_device_list(&count);
  assert_int_equal(count, 1);
  context = verbs->open_device(list[0]);
  verbs->free_device_list(list);
  pd = verbs->alloc_pd(context);
  channel = verbs->create_comp_channel(context);
  fcntl(context->async_fd, F_SETFL, O_NONBLOCK);
  fcntl(channel->fd, F_SETFL, O_NONBLOCK);
  return 0;
}

static int tear_down(void **state) {
  (void)state;
  close_end(&a);
  close_end(&b);
  assert_int_equal(verbs->destroy_comp_channel(channel), 0);
  assert_int_equal(verbs->dealloc_pd(pd), 0);
  assert_int_equal(verbs->close_device(context), 0);
  nic_check_empty();
  return 0;
}

struct ask {
  enum ibv_wr_opcode opcode;
  unsigned flags;
  uint64_t id, local, remote;
  uint32_t length, rkey;
};

static int post(struct ask ask) {
  struct ibv_sge place = {(uintptr_t)a.bytes + ask.local, ask.length, a.mr->lkey};
  struct ibv_send_wr wr = {.wr_id = ask.id,
                           .sg_list = &place,
                           .num_sge = 1,
                           .opcode = ask.opcode,
                           .send_flags = ask.flags,
                           .imm_data = htonl(77)};
  struct ibv_send_wr *bad;
  if (ask.opcode >= IBV_WR_ATOMIC_CMP_AND_SWP) {
    wr.wr.atomic.remote_addr = (uintptr_t)b.bytes + ask.remote;
    wr.wr.atomic.rkey = b.mr->rkey;
    wr.wr.atomic.compare_add = 5;
    wr.wr.atomic.swap = 9;
  } else {
    wr.wr.rdma.remote_addr = (uintptr_t)b.bytes + ask.remote;
    wr.wr.rdma.rkey = ask.rkey ? ask.rkey : b.mr->rkey;
  }
  return ibv_post_send(a.qp, &wr, &bad);
}

static int post_receive(struct end *end, uint64_t id, uint32_t length) {
  struct ibv_sge place = {(uintptr_t)end->bytes, length, end->mr->lkey};
  struct ibv_recv_wr wr = {.wr_id = id, .sg_list = &place, .num_sge = length > 0}, *bad;
  return ibv_post_recv(end->qp, &wr, &bad);
}

static struct ibv_wc next(struct end *end) {
  struct ibv_wc completion;
  for (int i = 0; i < 5000; i++) {
    int count = ibv_poll_cq(end->cq, 1, &completion);
    assert_true(count >= 0);
    if (count > 0)
      return completion;
    poll(NULL, 0, 1);
  }
  fail_msg("no completion within five seconds");
  return completion;
}

static void assert_next(struct end *end, uint64_t id, enum ibv_wc_status status) {
  struct ibv_wc completion = next(end);
  assert_int_equal(completion.status, status);
  assert_int_equal(completion.wr_id, id);
}

static void assert_nothing(struct end *end) {
  struct ibv_wc completion;
  poll(NULL, 0, 20);
  assert_int_equal(ibv_poll_cq(end->cq, 1, &completion), 0);
}

#define WRITE     .opcode = IBV_WR_RDMA_WRITE, .flags = IBV_SEND_SIGNALED
#define READ      .opcode = IBV_WR_RDMA_READ, .flags = IBV_SEND_SIGNALED
#define POST(...) post((struct ask){__VA_ARGS__})

static void writes_and_reads_move_bytes(void **state) {
  (void)state;
  open_ends(ALL, 2 * DEPTH);
  pattern_fill(a.bytes, 4096, 1);
  assert_int_equal(POST(WRITE, .id = 1, .length = 4000, .remote = 10), 0);
  assert_next(&a, 1, IBV_WC_SUCCESS);
  pattern_check(b.bytes + 10, 4000, 1);
  assert_int_equal(b.bytes[9] | b.bytes[4010], 0);
  assert_int_equal(POST(READ, .id = 2, .length = 4000, .remote = 10, .local = 4096), 0);
  assert_next(&a, 2, IBV_WC_SUCCESS);
  pattern_check(a.bytes + 4096, 4000, 1);
}

static void inline_bytes_are_copied_in_the_call(void **state) {
  (void)state;
  open_ends(ALL, 2 * DEPTH);
  nic_fault("slow:1");
  pattern_fill(a.bytes, 64, 3);
  assert_int_equal(
      POST(.opcode = IBV_WR_RDMA_WRITE, .flags = IBV_SEND_SIGNALED | IBV_SEND_INLINE, .length = 64),
      0);
  memset(a.bytes, 0, 64);
  assert_next(&a, 0, IBV_WC_SUCCESS);
  pattern_check(b.bytes, 64, 3);
  assert_int_equal(POST(.opcode = IBV_WR_RDMA_WRITE, .flags = IBV_SEND_INLINE, .length = 65),
                   EINVAL);
}

static void messages_consume_receives_in_order(void **state) {
  (void)state;
  open_ends(ALL, 2 * DEPTH);
  pattern_fill(a.bytes, 100, 4);
  assert_int_equal(post_receive(&b, 11, 200), 0);
  assert_int_equal(post_receive(&b, 12, 0), 0);
  assert_int_equal(POST(.opcode = IBV_WR_SEND, .length = 100), 0);
  assert_int_equal(POST(.opcode = IBV_WR_RDMA_WRITE_WITH_IMM, .length = 8, .remote = 4096), 0);
  struct ibv_wc first = next(&b), second = next(&b);
  assert_int_equal(first.wr_id, 11);
  assert_int_equal(first.opcode, IBV_WC_RECV);
  assert_int_equal(first.byte_len, 100);
  pattern_check(b.bytes, 100, 4);
  assert_int_equal(second.wr_id, 12);
  assert_int_equal(second.opcode, IBV_WC_RECV_RDMA_WITH_IMM);
  assert_int_equal(ntohl(second.imm_data), 77);
  pattern_check(b.bytes + 4096, 8, 4);
  assert_nothing(&a); /* it was unsignaled */
}

static void atomics_return_the_old_value(void **state) {
  (void)state;
  uint64_t word = 5, got;
  open_ends(ALL, 2 * DEPTH);
  memcpy(b.bytes + 16, &word, 8);
  assert_int_equal(POST(.opcode = IBV_WR_ATOMIC_CMP_AND_SWP, .flags = IBV_SEND_SIGNALED,
                        .length = 8, .remote = 16),
                   0);
  assert_next(&a, 0, IBV_WC_SUCCESS);
  memcpy(&got, a.bytes, 8);
  assert_int_equal(got, 5);
  assert_int_equal(POST(.opcode = IBV_WR_ATOMIC_FETCH_AND_ADD, .flags = IBV_SEND_SIGNALED,
                        .length = 8, .remote = 16),
                   0);
  assert_next(&a, 0, IBV_WC_SUCCESS);
  memcpy(&got, a.bytes, 8);
  memcpy(&word, b.bytes + 16, 8);
  assert_int_equal(got, 9);
  assert_int_equal(word, 14);
}

/* Drivers refuse these in the call. */
static void atomics_have_8_bytes(void **state) {
  (void)state;
  open_ends(ALL, 2 * DEPTH);
  assert_int_equal(POST(.opcode = IBV_WR_ATOMIC_FETCH_AND_ADD, .length = 4), EINVAL);
  assert_int_equal(POST(.opcode = IBV_WR_ATOMIC_CMP_AND_SWP, .length = 16), EINVAL);
  assert_int_equal(
      POST(.opcode = IBV_WR_ATOMIC_FETCH_AND_ADD, .length = 8, .flags = IBV_SEND_INLINE), EINVAL);
  nic_fault("noatomics");
  assert_int_equal(POST(.opcode = IBV_WR_ATOMIC_FETCH_AND_ADD, .length = 8), EINVAL);
}

static void a_full_queue_refuses_until_polled(void **state) {
  (void)state;
  open_ends(ALL, 2 * DEPTH);
  for (unsigned i = 0; i + 1 < DEPTH; i++)
    assert_int_equal(POST(.opcode = IBV_WR_RDMA_WRITE, .length = 1, .remote = i), 0);
  assert_int_equal(POST(WRITE, .id = 9, .length = 1), 0);
  assert_int_equal(POST(WRITE, .length = 1), ENOMEM);
  assert_next(&a, 9, IBV_WC_SUCCESS); /* it frees those before it as well */
  assert_nothing(&a);
  for (unsigned i = 0; i < DEPTH; i++)
    assert_int_equal(POST(WRITE, .length = 1), 0);
}

static void an_armed_queue_raises_one_event(void **state) {
  (void)state;
  struct ibv_cq *cq;
  void *user;
  open_ends(ALL, 2 * DEPTH);
  assert_int_equal(POST(WRITE, .length = 1), 0);
  next(&a);
  assert_int_equal(verbs->get_cq_event(channel, &cq, &user), -1);
  assert_int_equal(ibv_req_notify_cq(a.cq, 0), 0);
  assert_int_equal(POST(WRITE, .length = 1), 0);
  assert_int_equal(POST(WRITE, .length = 1), 0);
  struct pollfd wait = {.fd = channel->fd, .events = POLLIN};
  assert_int_equal(poll(&wait, 1, 5000), 1);
  assert_int_equal(verbs->get_cq_event(channel, &cq, &user), 0);
  assert_ptr_equal(cq, a.cq);
  verbs->ack_cq_events(cq, 1);
  next(&a);
  next(&a);
  assert_int_equal(verbs->get_cq_event(channel, &cq, &user), -1);
}

static enum ibv_event_type next_event(void) {
  struct ibv_async_event event;
  struct pollfd wait = {.fd = context->async_fd, .events = POLLIN};
  assert_int_equal(poll(&wait, 1, 5000), 1);
  assert_int_equal(verbs->get_async_event(context, &event), 0);
  verbs->ack_async_event(&event);
  return event.event_type;
}

static void an_overrun_raises_an_event(void **state) {
  (void)state;
  open_ends(ALL, 2);
  for (unsigned i = 0; i < 3; i++)
    assert_int_equal(POST(WRITE, .id = i, .length = 1), 0);
  assert_int_equal(next_event(), IBV_EVENT_CQ_ERR);
  assert_next(&a, 0, IBV_WC_SUCCESS);
  assert_next(&a, 1, IBV_WC_SUCCESS);
  assert_nothing(&a);
}

/* The work request fails, those behind it are flushed, and the queue pair is in error. */
static void assert_refused(enum ibv_wc_status status) {
  assert_int_equal(POST(WRITE, .id = 2, .length = 1), 0);
  assert_next(&a, 1, status);
  assert_next(&a, 2, IBV_WC_WR_FLUSH_ERR);
  assert_int_equal(POST(.opcode = IBV_WR_RDMA_WRITE, .id = 3, .length = 1), 0);
  assert_next(&a, 3, IBV_WC_WR_FLUSH_ERR);
  struct ibv_qp_attr attributes;
  struct ibv_qp_init_attr first;
  assert_int_equal(verbs->query_qp(a.qp, &attributes, IBV_QP_STATE, &first), 0);
  assert_int_equal(attributes.qp_state, IBV_QPS_ERR);
}

static void a_wrong_key_is_refused(void **state) {
  (void)state;
  open_ends(ALL, 2 * DEPTH);
  assert_int_equal(post_receive(&b, 4, 0), 0);
  assert_int_equal(POST(WRITE, .id = 1, .length = 1, .rkey = b.mr->rkey + 1), 0);
  assert_refused(IBV_WC_REM_ACCESS_ERR);
  assert_next(&b, 4, IBV_WC_WR_FLUSH_ERR);
  assert_int_equal(next_event(), IBV_EVENT_QP_ACCESS_ERR);
}

static void remote_bytes_out_of_bounds_are_refused(void **state) {
  (void)state;
  open_ends(ALL, 2 * DEPTH);
  assert_int_equal(POST(WRITE, .id = 1, .length = 2, .remote = LENGTH - 1), 0);
  assert_refused(IBV_WC_REM_ACCESS_ERR);
}

static void missing_rights_are_refused(void **state) {
  (void)state;
  open_ends(IBV_ACCESS_REMOTE_READ, 2 * DEPTH);
  assert_int_equal(POST(READ, .id = 0, .length = 1), 0);
  assert_next(&a, 0, IBV_WC_SUCCESS);
  assert_int_equal(POST(WRITE, .id = 1, .length = 1), 0);
  assert_refused(IBV_WC_REM_ACCESS_ERR);
}

#define ADD .opcode = IBV_WR_ATOMIC_FETCH_AND_ADD, .flags = IBV_SEND_SIGNALED, .length = 8

static void a_misaligned_atomic_is_refused(void **state) {
  (void)state;
  open_ends(ALL, 2 * DEPTH);
  assert_int_equal(POST(ADD, .id = 1, .remote = 4), 0);
  assert_refused(IBV_WC_REM_INV_REQ_ERR);
}

static void an_atomic_needs_its_own_right(void **state) {
  (void)state;
  open_ends(ALL & ~(unsigned)IBV_ACCESS_REMOTE_ATOMIC, 2 * DEPTH);
  assert_int_equal(POST(ADD, .id = 1), 0);
  assert_refused(IBV_WC_REM_ACCESS_ERR);
}

static void deregistered_memory_is_refused(void **state) {
  (void)state;
  open_ends(ALL, 2 * DEPTH);
  uint32_t key = b.mr->rkey;
  assert_int_equal(verbs->dereg_mr(b.mr), 0);
  b.mr = verbs->reg_mr(pd, b.bytes, LENGTH, ALL);
  assert_int_not_equal(b.mr->rkey, key);
  assert_int_equal(POST(WRITE, .id = 1, .length = 1, .rkey = key), 0);
  assert_refused(IBV_WC_REM_ACCESS_ERR);
}

static void local_bytes_out_of_bounds_are_refused(void **state) {
  (void)state;
  open_ends(ALL, 2 * DEPTH);
  assert_int_equal(POST(WRITE, .id = 1, .length = 2, .local = LENGTH - 1), 0);
  assert_refused(IBV_WC_LOC_PROT_ERR);
}

static void a_message_without_a_receive_is_not_ready(void **state) {
  (void)state;
  open_ends(ALL, 2 * DEPTH);
  assert_int_equal(POST(.opcode = IBV_WR_SEND, .id = 1, .length = 8), 0);
  assert_refused(IBV_WC_RNR_RETRY_EXC_ERR);
}

static void a_destroyed_queue_pair_does_not_acknowledge(void **state) {
  (void)state;
  open_ends(ALL, 2 * DEPTH);
  assert_int_equal(verbs->destroy_qp(b.qp), 0);
  b.qp = NULL;
  assert_int_equal(POST(WRITE, .id = 1, .length = 1), 0);
  assert_refused(IBV_WC_RETRY_EXC_ERR);
}

static void unmapped_memory_cannot_be_registered(void **state) {
  (void)state;
  errno = 0;
  assert_null(verbs->reg_mr(pd, (void *)(uintptr_t)4096, 4096, ALL));
  assert_int_equal(errno, EFAULT);
  nic_fault("memlock:1");
  assert_null(verbs->reg_mr(pd, a.bytes, LENGTH, ALL));
  assert_int_equal(errno, ENOMEM);
}

int main(void) {
  if (!nic_is_there())
    return 77;
#define TEST(test) cmocka_unit_test_setup_teardown(test, set_up, tear_down)
  const struct CMUnitTest tests[] = {
      TEST(writes_and_reads_move_bytes),
      TEST(inline_bytes_are_copied_in_the_call),
      TEST(messages_consume_receives_in_order),
      TEST(atomics_return_the_old_value),
      TEST(atomics_have_8_bytes),
      TEST(a_full_queue_refuses_until_polled),
      TEST(an_armed_queue_raises_one_event),
      TEST(an_overrun_raises_an_event),
      TEST(a_wrong_key_is_refused),
      TEST(remote_bytes_out_of_bounds_are_refused),
      TEST(missing_rights_are_refused),
      TEST(a_misaligned_atomic_is_refused),
      TEST(an_atomic_needs_its_own_right),
      TEST(deregistered_memory_is_refused),
      TEST(local_bytes_out_of_bounds_are_refused),
      TEST(a_message_without_a_receive_is_not_ready),
      TEST(a_destroyed_queue_pair_does_not_acknowledge),
      TEST(unmapped_memory_cannot_be_registered),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
