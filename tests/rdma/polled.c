/* SPDX-License-Identifier: MIT
 * A node that the application drives: it polls the node's descriptor, and makes progress when that
 * is readable. A peer's requests over a rail wake it; no timer would do so in time. */
#include "support/check.h"

#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>

#include "support/nic.h"
#include "support/owner.h"

#define MIB    ((uint64_t)1 << 20)
#define LENGTH (8 * MIB)
#define BOUND  (10 * S)
/* Keep-alives start after a quarter of it, beyond all bounds here. */
#define LIVENESS (200 * S)

static struct {
  struct haul_node *owner, *user;
  struct haul_peer *peer;
  struct haul_region *local;
  pthread_t thread;
  _Atomic bool ended;
} t;

/* As in haul_node(3). */
static void *drive(void *argument) {
  struct pollfd descriptor = {.fd = haul_node_fd(t.owner), .events = POLLIN};
  (void)argument;
  while (!atomic_load(&t.ended)) {
    assert_true(poll(&descriptor, 1, -1) == 1);
    assert_true(haul_node_progress(t.owner, HAUL_NO_WAIT) >= 0);
  }
  return NULL;
}

static int set_up(void **state) {
  struct haul_node_config config = HAUL_NODE_CONFIG_INIT;
  char address[160];
  (void)state;
  atomic_store(&t.ended, false);
  config.liveness_ns = LIVENESS;
  assert_works(haul_node_open(&config, &t.user));
  config.progress = HAUL_PROGRESS_CALLER;
  assert_works(haul_node_open(&config, &t.owner));
  assert_works(haul_node_listen(t.owner, "tcp://127.0.0.1:0"));
  assert_works(haul_node_address(t.owner, 0, address, sizeof address));
  assert_int_equal(pthread_create(&t.thread, NULL, drive, NULL), 0);
  assert_works(haul_peer_connect(t.user, address, haul_deadline_in(BOUND), &t.peer));
  t.local = region_make(t.user, KIND_HOST, LENGTH);
  return 0;
}

static int tear_down(void **state) {
  (void)state;
  haul_region_release(t.local);
  atomic_store(&t.ended, true);
  haul_peer_close(t.peer); /* it wakes the owner */
  pthread_join(t.thread, NULL);
  haul_node_close(t.user);
  haul_node_close(t.owner);
  nic_check_empty();
  return 0;
}

static void moves(struct haul_remote *remote, enum haul_operation operation, unsigned flags) {
  struct haul_piece piece = {0, 0, LENGTH};
  struct haul_transfer_options options = HAUL_TRANSFER_OPTIONS_INIT;
  options.only = "rdma";
  options.flags = flags;
  options.deadline = haul_deadline_in(BOUND);
  if (operation == HAUL_OP_WRITE)
    assert_works(haul_write(remote, t.local, &piece, 1, &options, NULL));
  else
    assert_works(haul_read(t.local, remote, &piece, 1, &options, NULL));
}

static void check_both_ways(enum memory_kind kind, unsigned flags) {
  struct haul_remote *remote;
  struct haul_region *region = region_make(t.owner, kind, LENGTH);
  assert_works(haul_region_publish(region, "region", HAUL_READ | HAUL_WRITE));
  assert_works(haul_peer_lookup(t.peer, "region", haul_deadline_in(BOUND), &remote));
  for (int i = 0; i < 4; i++) {
    moves(remote, HAUL_OP_WRITE, flags);
    moves(remote, HAUL_OP_READ, flags);
  }
  haul_remote_release(remote);
  haul_region_release(region);
}

static void host_memory(void **state) {
  (void)state;
  check_both_ways(KIND_HOST, 0);
}

static void host_memory_with_checksums(void **state) {
  (void)state;
  check_both_ways(KIND_HOST, HAUL_CHECKSUM);
}

static void staged_device_memory(void **state) {
  (void)state;
  check_both_ways(KIND_SIM, 0);
  check_both_ways(KIND_SIM, HAUL_CHECKSUM);
}

int main(void) {
  if (!nic_is_there())
    return 77;
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup_teardown(host_memory, set_up, tear_down),
      cmocka_unit_test_setup_teardown(host_memory_with_checksums, set_up, tear_down),
      cmocka_unit_test_setup_teardown(staged_device_memory, set_up, tear_down),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
