/* SPDX-License-Identifier: MIT
 * The ring of send buffers of a rail, over a queue pair that only records its work requests. */
#include "support/check.h"

#include <string.h>

#include "fabric/rdma/endpoint.h"

static struct {
  struct rdma_endpoint endpoint;
  struct haul_region region;
  struct ibv_context context;
  struct ibv_qp qp;
  struct ibv_mr registration;
  struct rdma_rail rail, *rails[1];
  uint8_t buffers[RDMA_SENDS + RDMA_RECEIVES][RDMA_RECORD];
  unsigned uses[RDMA_SENDS + RDMA_RECEIVES]; /* work requests that send from the buffer */
} t;

static int record_send(struct ibv_qp *qp, struct ibv_send_wr *request, struct ibv_send_wr **bad) {
  (void)qp;
  (void)bad;
  size_t offset = (size_t)(request->sg_list->addr - (uintptr_t)t.buffers);
  assert_int_equal(offset % RDMA_RECORD, 0);
  t.uses[offset / RDMA_RECORD]++;
  return 0;
}

/* 2^32 is no multiple of the ring's size. */
static void no_buffer_is_used_twice_around_two_to_the_32(void **state) {
  (void)state;
  struct rdma_rail *rail = &t.rail;
  rail->messages.sent = rail->messages.completed = UINT32_MAX - RDMA_SENDS / 2;
  for (unsigned i = 0; i < RDMA_SENDS; i++)
    rdma_rail_send(rail, &(struct rdma_record){.type = RDMA_FENCED});
  assert_false(rail->broken);
  for (unsigned i = 0; i < RDMA_SENDS + RDMA_RECEIVES; i++)
    assert_int_equal(t.uses[i], i < RDMA_SENDS);
}

static int set_up(void **state) {
  (void)state;
  struct rdma_rail *rail = &t.rail;
  combiner_init(&t.endpoint.combiner, rdma_enqueue_jobs);
  t.context.ops.post_send = record_send;
  t.qp.context = &t.context;
  t.region.memory.view = t.buffers;
  t.rails[0] = rail;
  t.endpoint.rails = t.rails;
  rail->endpoint = &t.endpoint;
  rail->qp = &t.qp;
  rail->messages.region = &t.region;
  rail->messages.registration = &t.registration;
  return 0;
}

static int tear_down(void **state) {
  (void)state;
  combiner_destroy(&t.endpoint.combiner);
  return 0;
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(no_buffer_is_used_twice_around_two_to_the_32),
  };
  return cmocka_run_group_tests_name("rdma-ring", tests, set_up, tear_down);
}
