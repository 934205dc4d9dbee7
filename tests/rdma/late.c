/* SPDX-License-Identifier: MIT
 * A device copies slowly between its memory and bounce buffers. Data from a canceled write never
 * overwrites a later write, over any path; a withdrawal does not wait for the device. */
#include "support/check.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support/nic.h"
#include "support/owner.h"

#define LENGTH ((size_t)256 << 10)
#define COPY   (2 * S) /* of a slow device */

static struct {
  struct owner owner;
  struct haul_node *node;
  struct haul_peer *peer;
  struct haul_remote *remote;
  struct haul_region *first, *second;
} t;

static haul_deadline soon(void) {
  return haul_deadline_in(60 * S);
}

static void slow_devices_of(void (*open)(const struct haul_node_config *config),
                            const struct haul_node_config *config) {
  char latency[24];
  snprintf(latency, sizeof latency, "%lld", COPY);
  setenv("HAUL_SIM_LATENCY_NS", latency, 1);
  open(config);
  unsetenv("HAUL_SIM_LATENCY_NS");
}

static void open_owner(const struct haul_node_config *config) {
  owner_start(&t.owner, "tcp://127.0.0.1:0", config);
}

static void open_node(const struct haul_node_config *config) {
  assert_works(haul_node_open(config, &t.node));
}

static int set_up_with(bool slow_owner, enum memory_kind local) {
  struct haul_node_config config = HAUL_NODE_CONFIG_INIT;
  config.liveness_ns = 60 * S;
  nic_fault("");
  if (slow_owner)
    slow_devices_of(open_owner, &config);
  else
    open_owner(&config);
  assert_int_equal(owner_publish(&t.owner, 0, KIND_SIM, LENGTH, "memory", HAUL_READ | HAUL_WRITE),
                   0);
  if (slow_owner)
    open_node(&config);
  else
    slow_devices_of(open_node, &config);
  assert_works(haul_peer_connect(t.node, t.owner.address, soon(), &t.peer));
  assert_works(haul_peer_lookup(t.peer, "memory", soon(), &t.remote));
  t.first = region_make(t.node, local, LENGTH);
  t.second = region_make(t.node, KIND_HOST, LENGTH);
  if (local == KIND_HOST)
    region_fill(t.node, t.first, 0, LENGTH, 1);
  region_fill(t.node, t.second, 0, LENGTH, 2);
  return 0;
}

static int set_up(void **state) {
  (void)state;
  return set_up_with(true, KIND_HOST);
}

static int set_up_with_own_device(void **state) {
  (void)state;
  return set_up_with(false, KIND_SIM);
}

static int tear_down(void **state) {
  (void)state;
  haul_remote_release(t.remote);
  haul_region_release(t.first);
  haul_region_release(t.second);
  haul_peer_close(t.peer);
  haul_node_close(t.node);
  assert_int_equal(owner_end(&t.owner), 0);
  nic_check_empty();
  return 0;
}

static struct haul_transfer *write_from(struct haul_region *region, const char *path) {
  struct haul_transfer_options options = HAUL_TRANSFER_OPTIONS_INIT;
  struct haul_piece piece = {0, 0, LENGTH};
  struct haul_transfer *transfer;
  options.only = path;
  options.deadline = soon();
  assert_works(haul_write(t.remote, region, &piece, 1, &options, &transfer));
  return transfer;
}

static uint64_t counter(const char *name) {
  uint64_t value;
  assert_works(haul_counter_read(t.node, name, &value));
  return value;
}

/* After the NIC's part, long before the owner's device has copied. */
static void cancel_first_write(void) {
  struct haul_transfer *transfer = write_from(t.first, "rdma");
  assert_int_equal(haul_transfer_wait(transfer, haul_deadline_in(COPY / 4)), HAUL_ETIMEDOUT);
  assert_works(haul_transfer_cancel(transfer));
  assert_int_equal(haul_transfer_wait(transfer, soon()), HAUL_ECANCELED);
  haul_transfer_release(transfer);
}

static void check_later_write(const char *path, uint64_t held) {
  cancel_first_write();
  struct haul_transfer *transfer = write_from(t.second, path);
  assert_int_equal(haul_transfer_test(transfer), 1);
  assert_int_equal(counter("node.slices_held"), held);
  assert_works(haul_transfer_wait(transfer, soon()));
  haul_transfer_release(transfer);
  assert_true(owner_sum(&t.owner, 0, 0, LENGTH) == region_sum(t.node, t.second, 0, LENGTH));
}

static void a_later_write_over_map_survives(void **state) {
  (void)state;
  check_later_write("map", 1);
}

static void a_later_write_over_tcp_survives(void **state) {
  (void)state;
  check_later_write("tcp", 1);
}

static void a_later_write_over_rdma_survives(void **state) {
  (void)state;
  check_later_write("rdma", 0);
}

static void a_held_write_continues_when_the_rails_break(void **state) {
  (void)state;
  struct haul_transfer_options options = HAUL_TRANSFER_OPTIONS_INIT;
  struct haul_piece piece = {0, 0, 8};
  cancel_first_write();
  struct haul_transfer *transfer = write_from(t.second, "map");
  assert_int_equal(counter("node.slices_held"), 1);
  options.only = "rdma";
  nic_fault("remove:1");
  assert_fails(HAUL_ENOPATH, haul_read(t.first, t.remote, &piece, 1, &options, NULL));
  assert_works(haul_transfer_wait(transfer, soon()));
  haul_transfer_release(transfer);
  assert_true(owner_sum(&t.owner, 0, 0, LENGTH) == region_sum(t.node, t.second, 0, LENGTH));
}

static void a_withdrawal_ends_the_copy(void **state) {
  (void)state;
  struct haul_transfer *transfer = write_from(t.first, "rdma");
  assert_int_equal(haul_transfer_wait(transfer, haul_deadline_in(COPY / 4)), HAUL_ETIMEDOUT);
  assert_int_equal(owner_unpublish(&t.owner, 0, "memory"), 0);
  assert_int_equal(haul_transfer_wait(transfer, soon()), HAUL_ESTALE);
  haul_transfer_release(transfer);
}

int main(int count, char **arguments) {
#define TEST(test) cmocka_unit_test_setup_teardown(test, set_up, tear_down)
  const struct CMUnitTest tests[] = {
      TEST(a_later_write_over_map_survives),
      TEST(a_later_write_over_tcp_survives),
      TEST(a_later_write_over_rdma_survives),
      TEST(a_held_write_continues_when_the_rails_break),
      TEST(a_withdrawal_ends_the_copy),
      cmocka_unit_test_setup_teardown(a_withdrawal_ends_the_copy, set_up_with_own_device,
                                      tear_down),
  };
  if (count > 1 && strcmp(arguments[1], OWNER_MODE) == 0)
    return owner_main();
  if (!nic_is_there())
    return 77;
  return cmocka_run_group_tests(tests, NULL, NULL);
}
