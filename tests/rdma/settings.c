/* SPDX-License-Identifier: MIT
 * Settings of connections over NICs: each reaches ibv_modify_qp; a node with a wrong one does not
 * open. */
#include "support/check.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support/nic.h"
#include "support/pair.h"
#include "support/seams.h"

#define LENGTH UINT64_C(65536)

static struct pair t;

static const char *const variables[] = {"HAUL_RDMA_TRAFFIC_CLASS", "HAUL_RDMA_SERVICE_LEVEL",
                                        "HAUL_RDMA_GID",           "HAUL_RDMA_PKEY",
                                        "HAUL_RDMA_MTU",           "HAUL_RDMA_TIMEOUT",
                                        "HAUL_RDMA_RETRY_COUNT",   "HAUL_RDMA_NICS"};

static int set_up(void **state) {
  (void)state;
  nic_fault("");
  memset(&t, 0, sizeof t);
  return 0;
}

static int tear_down(void **state) {
  (void)state;
  for (size_t i = 0; i < COUNT(variables); i++)
    unsetenv(variables[i]);
  pair_close(&t);
  return 0;
}

/* Connects, writes over rdma, and returns what the queue pair has. */
static struct ibv_qp_attr connect_pair(void) {
  struct haul_transfer_options options = HAUL_TRANSFER_OPTIONS_INIT;
  options.only = "rdma";
  pair_open(&t, NULL, LENGTH);
  region_fill(t.node, t.region, 0, LENGTH, 1);
  assert_works(
      haul_write(t.remote, t.region, &(struct haul_piece){0, 0, LENGTH}, 1, &options, NULL));
  return nic_double()->connected;
}

static struct haul_port port_of(struct haul_node *node) {
  struct haul_port port;
  size_t count = 1;
  assert_works(haul_port_list(node, (struct haul_place){HAUL_HOST, 0}, &port, &count));
  assert_int_equal(count, 1);
  return port;
}

static void defaults_are_those_of_the_port(void **state) {
  (void)state;
  struct ibv_qp_attr attributes = connect_pair();
  assert_int_equal(attributes.ah_attr.grh.traffic_class, 0);
  assert_int_equal(attributes.ah_attr.sl, 0);
  assert_int_equal(attributes.ah_attr.grh.sgid_index, 1);
  assert_int_equal(attributes.pkey_index, 0);
  assert_int_equal(attributes.path_mtu, IBV_MTU_4096);
  assert_int_equal(attributes.timeout, 18);
  assert_int_equal(attributes.retry_cnt, 7);
}

static void each_setting_reaches_the_queue_pair(void **state) {
  (void)state;
  nic_fault("second");
  nic_fault_of_children("second");
  setenv("HAUL_RDMA_TRAFFIC_CLASS", "104", 1);
  setenv("HAUL_RDMA_SERVICE_LEVEL", "double0:3,5", 1);
  setenv("HAUL_RDMA_GID", "2", 1);
  setenv("HAUL_RDMA_PKEY", "0x8002", 1);
  setenv("HAUL_RDMA_MTU", "1024", 1);
  setenv("HAUL_RDMA_TIMEOUT", "14", 1);
  setenv("HAUL_RDMA_RETRY_COUNT", "double0:3,2", 1);
  struct ibv_qp_attr attributes = connect_pair();
  assert_int_equal(attributes.ah_attr.grh.traffic_class, 104);
  assert_int_equal(attributes.ah_attr.sl, 3);
  assert_int_equal(attributes.ah_attr.grh.sgid_index, 2);
  assert_int_equal(attributes.pkey_index, 2);
  assert_int_equal(attributes.path_mtu, IBV_MTU_1024);
  assert_int_equal(attributes.timeout, 14);
  assert_int_equal(attributes.retry_cnt, 3);
  struct haul_port used = port_of(t.node);
  assert_int_equal(used.traffic_class, 104);
  assert_int_equal(used.service_level, 3);
  assert_int_equal(used.gid_index, 2);
  assert_int_equal(used.pkey, 0x8002);
  assert_int_equal(used.mtu, 1024);
  assert_int_equal(used.timeout, 14);
  assert_int_equal(used.retry_count, 3);
}

/* A write while the wire is cut for this time. Returns how long it took. */
static int64_t write_while_cut(int64_t ns, struct haul_report *report) {
  struct haul_transfer *transfer;
  haul_deadline from = haul_deadline_in(0);
  pair_open(&t, NULL, LENGTH);
  nic_fault("cut");
  assert_works(
      haul_write(t.remote, t.region, &(struct haul_piece){0, 0, LENGTH}, 1, NULL, &transfer));
  haul_transfer_wait(transfer, haul_deadline_in(ns));
  nic_fault("");
  assert_works(haul_transfer_wait(transfer, haul_deadline_in(60 * S)));
  *report = (struct haul_report)HAUL_REPORT_INIT;
  assert_works(haul_transfer_report(transfer, report));
  haul_transfer_release(transfer);
  return haul_deadline_in(0) - from;
}

static void a_wire_may_be_cut_for_less_than_all_retries(void **state) {
  (void)state;
  struct haul_report report;
  assert_true(write_while_cut(2 * S, &report) >= 2 * S);
  assert_string_equal(report.paths[0].name, "rdma");
  assert_int_equal(report.retries, 0);
}

static void fewer_retries_end_sooner(void **state) {
  (void)state;
  struct haul_report report;
  setenv("HAUL_RDMA_TIMEOUT", "14", 1);
  setenv("HAUL_RDMA_RETRY_COUNT", "1", 1);
  assert_true(write_while_cut(2 * S, &report) < 2 * S);
  assert_string_equal(report.paths[0].name, "tcp");
  assert_true(report.retries > 0);
}

static void refuses(const char *variable, const char *value, const char *object,
                    const char *words) {
  struct haul_node *node;
  setenv(variable, value, 1);
  assert_fails(HAUL_EINVAL, haul_node_open(NULL, &node));
  unsetenv(variable);
  assert_string_equal(haul_error_last()->object, object);
  if (!strstr(haul_error_last()->text, words) && !strstr(haul_error_last()->hint, words))
    fail_msg("%s, %s", haul_error_last()->text, haul_error_last()->hint);
  nic_check_empty();
}

static void a_node_with_a_wrong_setting_does_not_open(void **state) {
  (void)state;
  refuses("HAUL_RDMA_GID", "7", "rdma_gid", "its GIDs: 1 (::ffff:10.0.0.1)");
  refuses("HAUL_RDMA_GID", "double0:7", "rdma_gid", "its GIDs: 1 (::ffff:10.0.0.1)");
  refuses("HAUL_RDMA_GID", "mlx5_0:1", "rdma_gid", "no NIC mlx5_0");
  refuses("HAUL_RDMA_SERVICE_LEVEL", "mlx5_0:1", "rdma_service_level", "no NIC mlx5_0");
  refuses("HAUL_RDMA_PKEY", "5", "rdma_pkey", "its partition keys: 0xffff");
  nic_double()->devices[0].port[0].mtu = IBV_MTU_1024;
  refuses("HAUL_RDMA_MTU", "2048", "rdma_mtu", "at most 1024");
  refuses("HAUL_RDMA_NICS", "double0,mlx5_0", "rdma_nics", "no NIC mlx5_0");
  refuses("HAUL_RDMA_NICS", "double0:1", "HAUL_RDMA_NICS", "^mlx5_2");
  refuses("HAUL_RDMA_TIMEOUT", "32", "HAUL_RDMA_TIMEOUT", "from 1 to 31");
  refuses("HAUL_RDMA_TRAFFIC_CLASS", "256", "HAUL_RDMA_TRAFFIC_CLASS", "from 0 to 255");
}

static void without_nics_they_have_no_effect(void **state) {
  (void)state;
  setenv("HAUL_RDMA_GID", "mlx5_0:3", 1);
  nic_double()->count = 0;
  assert_works(haul_node_open(NULL, &t.node));
  nic_double()->count = 1;
}

static void a_node_uses_the_chosen_nics_alone(void **state) {
  (void)state;
  nic_set("10.0.0.1,10.0.0.3");
  nic_set_of_children("10.0.0.2,10.0.0.4");
  setenv("HAUL_RDMA_NICS", "double1", 1);
  uint64_t before = atomic_load(&nic_double()->devices[0].requests);
  connect_pair();
  assert_int_equal(atomic_load(&nic_double()->devices[0].requests), before);
  assert_int_not_equal(atomic_load(&nic_double()->devices[1].requests), 0);
  nic_set_of_children(NULL);
  nic_set("10.0.0.1");
}

static void infiniband_within_a_subnet_needs_no_global_header(void **state) {
  (void)state;
  nic_fault("subnet:1");
  nic_fault_of_children("subnet:1");
  struct ibv_qp_attr attributes = connect_pair();
  assert_int_equal(attributes.ah_attr.is_global, 0);
  assert_int_equal(attributes.ah_attr.dlid, 1);
}

static void infiniband_across_subnets_has_a_global_header(void **state) {
  (void)state;
  nic_fault("subnet:1");
  nic_fault_of_children("subnet:2");
  setenv("HAUL_RDMA_TRAFFIC_CLASS", "8", 1);
  struct ibv_qp_attr attributes = connect_pair();
  assert_int_equal(attributes.ah_attr.is_global, 1);
  assert_int_equal(attributes.ah_attr.grh.dgid.raw[7], 2);
  assert_int_equal(attributes.ah_attr.grh.sgid_index, 0);
  assert_int_equal(attributes.ah_attr.grh.traffic_class, 8);
}

int main(int argc, char **argv) {
  if (argc > 1 && strcmp(argv[1], OWNER_MODE) == 0)
    return owner_main();
  if (!nic_is_there())
    return 77;
  seams_no_unix_sockets();
#define TEST(test) cmocka_unit_test_setup_teardown(test, set_up, tear_down)
  const struct CMUnitTest tests[] = {
      TEST(defaults_are_those_of_the_port),
      TEST(each_setting_reaches_the_queue_pair),
      TEST(a_wire_may_be_cut_for_less_than_all_retries),
      TEST(fewer_retries_end_sooner),
      TEST(a_node_with_a_wrong_setting_does_not_open),
      TEST(without_nics_they_have_no_effect),
      TEST(a_node_uses_the_chosen_nics_alone),
      TEST(infiniband_within_a_subnet_needs_no_global_header),
      TEST(infiniband_across_subnets_has_a_global_header),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
