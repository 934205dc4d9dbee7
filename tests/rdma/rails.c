/* SPDX-License-Identifier: MIT
 * Rails between hosts with several NICs: which end of one side belongs to which of the other.
 * Subnets are not connected by routers unless a test says so, so a wrong pair carries nothing. */
#include "support/check.h"

#include <arpa/inet.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "fabric/rdma/sysfs.h"
#include "support/nic.h"
#include "support/pair.h"
#include "support/seams.h"

#define MIB    ((uint64_t)1 << 20)
#define LENGTH (32 * MIB)
#define BOUND  (60 * S)

static struct pair t;

/* This side's NICs and the owner's. */
static void begin_with(const char *own, const char *owners, const char *faults) {
  nic_set(own);
  nic_set_of_children(owners);
  nic_fault(faults);
  nic_fault_of_children(faults);
  pair_open(&t, NULL, LENGTH);
}

static void begin(const char *own, const char *owners) {
  begin_with(own, owners, "");
}

static int tear_down(void **state) {
  (void)state;
  nic_set_of_children(NULL);
  unsetenv("HAUL_RDMA_TIMEOUT");
  pair_close(&t);
  return 0;
}

static struct haul_path explained(void) {
  struct haul_path paths[HAUL_PATHS_MAX];
  size_t count = HAUL_PATHS_MAX;
  assert_works(haul_explain(t.region, t.remote, HAUL_OP_WRITE, LENGTH, NULL, paths, &count));
  for (size_t i = 0; i < count; i++)
    if (strcmp(paths[i].name, "rdma") == 0)
      return paths[i];
  fail_msg("no path rdma");
  return paths[0];
}

/* Bytes move both ways over this number of rails. */
static void assert_moves(unsigned rails) {
  struct haul_transfer_options options = HAUL_TRANSFER_OPTIONS_INIT;
  struct haul_piece whole = {0, 0, LENGTH};
  const struct ibverbs_double *nics = nic_double();
  uint64_t before[DOUBLE_DEVICES] = {0};
  char wanted[16];
  unsigned used = 0;
  snprintf(wanted, sizeof wanted, ", %u rail", rails);
  assert_non_null(strstr(explained().detail, wanted));
  for (size_t i = 0; i < nics->count; i++)
    before[i] = atomic_load(&nics->devices[i].requests);
  options.only = "rdma";
  region_fill(t.node, t.region, 0, LENGTH, rails);
  assert_works(haul_write(t.remote, t.region, &whole, 1, &options, NULL));
  assert_true(owner_sum(&t.owner, 0, 0, LENGTH) == region_sum(t.node, t.region, 0, LENGTH));
  assert_int_equal(owner_fill(&t.owner, 0, 0, LENGTH, 77), 0);
  assert_works(haul_read(t.region, t.remote, &whole, 1, &options, NULL));
  assert_true(owner_sum(&t.owner, 0, 0, LENGTH) == region_sum(t.node, t.region, 0, LENGTH));
  /* On a busy machine some rails are done before the others get a work. */
  for (unsigned round = 0; round < 100 && used != rails; round++) {
    assert_works(haul_write(t.remote, t.region, &whole, 1, &options, NULL));
    used = 0;
    for (size_t i = 0; i < nics->count; i++)
      used += atomic_load(&nics->devices[i].requests) > before[i];
  }
  assert_int_equal(used, rails);
}

/* This side's NIC of that number sends to that GID. */
static void assert_pair(size_t nic, const char *address) {
  uint8_t gid[16];
  assert_int_equal(inet_pton(AF_INET6, address, gid), 1);
  assert_memory_equal(nic_double()->devices[nic].to.grh.dgid.raw, gid, sizeof gid);
}

/* With InfiniBand: to that LID. */
static void assert_lid(size_t nic, unsigned lid) {
  assert_int_equal(nic_double()->devices[nic].to.dlid, lid);
}

#define EIGHT "10.0.1.1,10.0.2.1,10.0.3.1,10.0.4.1,10.0.5.1,10.0.6.1,10.0.7.1,10.0.8.1"

static void eight_and_eight_in_another_order(void **state) {
  (void)state;
  begin(EIGHT, "10.0.8.2,10.0.3.2,10.0.1.2,10.0.6.2,10.0.2.2,10.0.5.2,10.0.4.2,10.0.7.2");
  assert_null(strstr(explained().reason, "order"));
  assert_moves(8);
  for (unsigned i = 0; i < 8; i++) {
    char address[32];
    snprintf(address, sizeof address, "::ffff:10.0.%u.2", i + 1);
    assert_pair(i, address);
  }
}

static void eight_and_four(void **state) {
  (void)state;
  begin(EIGHT, "10.0.7.2,10.0.5.2,10.0.3.2,10.0.1.2");
  assert_moves(4);
  for (unsigned i = 0; i < 8; i += 2) {
    char address[32];
    snprintf(address, sizeof address, "::ffff:10.0.%u.2", i + 1);
    assert_pair(i, address);
  }
  assert_int_equal(nic_queue_pairs(), 4);
}

static void four_and_eight(void **state) {
  (void)state;
  begin("10.0.7.2,10.0.5.2,10.0.3.2,10.0.1.2", EIGHT);
  assert_moves(4);
  assert_pair(0, "::ffff:10.0.7.1");
  assert_pair(3, "::ffff:10.0.1.1");
}

static void a_node_uses_sixteen_of_its_ports(void **state) {
  (void)state;
  char own[512] = "", owners[512] = "";
  for (unsigned i = 0; i < DOUBLE_DEVICES; i++) {
    size_t at = strlen(own), there = strlen(owners);
    snprintf(own + at, sizeof own - at, "%s10.0.%u.1", i ? "," : "", i);
    snprintf(owners + there, sizeof owners - there, "%s10.0.%u.2", i ? "," : "",
             (i + 5) % 16 + i / 16 * 16);
  }
  begin(own, owners);
  assert_moves(16);
  assert_pair(15, "::ffff:10.0.15.2");
}

static void two_in_a_subnet_with_one(void **state) {
  (void)state;
  begin("10.0.1.1,10.0.1.3", "10.0.1.2");
  assert_moves(1);
  assert_pair(0, "::ffff:10.0.1.2");
}

static void two_in_a_subnet_with_two(void **state) {
  (void)state;
  begin("10.0.2.1,10.0.1.1,10.0.1.3", "10.0.1.2,10.0.2.2,10.0.1.4");
  assert_moves(3);
  assert_pair(0, "::ffff:10.0.2.2");
  assert_pair(1, "::ffff:10.0.1.2");
  assert_pair(2, "::ffff:10.0.1.4");
}

/* Those that share a subnet go first, then the others in their order. */
static void routed_ends_are_paired_by_order(void **state) {
  (void)state;
  begin_with("10.0.1.1,10.0.9.1,10.0.2.1,10.0.8.1", "10.0.7.2,10.0.2.2,10.0.6.2,10.0.1.2",
             "routed");
  assert_moves(4);
  assert_pair(0, "::ffff:10.0.1.2");
  assert_pair(1, "::ffff:10.0.7.2");
  assert_pair(2, "::ffff:10.0.2.2");
  assert_pair(3, "::ffff:10.0.6.2");
}

static void routed_rails_are_reported(void **state) {
  (void)state;
  begin_with("10.0.1.1,10.0.9.1,10.0.8.1", "10.0.7.2,10.0.6.2,10.0.1.2", "routed");
  assert_string_equal(explained().detail, "double0, 3 rails");
  assert_non_null(strstr(explained().reason, "2 paired by order, not by subnet"));
}

/* As with 8 tries of 4 ms. */
static void fail_soon(void) {
  setenv("HAUL_RDMA_TIMEOUT", "10", 1);
}

/* The rails of common subnets carry the bytes, before the other one has failed and after. */
static void a_route_that_drops_packets_leaves_its_rail_out(void **state) {
  (void)state;
  begin_with("10.0.1.1,10.0.9.1,10.0.2.1", "10.0.1.2,10.0.8.2,10.0.2.2", "routed,drops");
  assert_non_null(strstr(explained().reason, "1 left out: the peer's NICs do not acknowledge"));
  assert_moves(2);
  pair_close(&t);
  fail_soon();
  begin_with("10.0.1.1,10.0.9.1,10.0.2.1", "10.0.1.2,10.0.8.2,10.0.2.2", "routed,drops");
  nanosleep(&(struct timespec){1, 500 * MS}, NULL);
  assert_non_null(strstr(explained().reason, "1 left out: the peer's NICs do not acknowledge"));
  assert_moves(2);
}

/* And it is left out when the rails are connected again. */
static void a_route_that_drops_packets_later_leaves_its_rail_out(void **state) {
  (void)state;
  struct haul_transfer_options options = HAUL_TRANSFER_OPTIONS_INIT;
  struct haul_piece whole = {0, 0, LENGTH};
  fail_soon();
  begin_with("10.0.1.1,10.0.9.1,10.0.2.1", "10.0.1.2,10.0.8.2,10.0.2.2", "routed");
  assert_moves(3);
  nic_fault("routed,drops");
  struct double_device *lost = &nic_double()->devices[1];
  for (uint64_t before = lost->requests; lost->requests == before;)
    assert_works(haul_write(t.remote, t.region, &whole, 1, NULL, NULL));
  options.only = "rdma";
  haul_deadline until = haul_deadline_in(BOUND);
  while (haul_write(t.remote, t.region, &whole, 1, &options, NULL) != 0) {
    assert_true(haul_deadline_in(0) < until);
    nanosleep(&(struct timespec){0, 10 * MS}, NULL);
  }
  haul_remote_release(t.remote);
  assert_works(haul_peer_lookup(t.peer, "memory", haul_deadline_in(BOUND), &t.remote));
  assert_moves(2);
}

static void routes_that_drop_packets_close_the_path(void **state) {
  (void)state;
  fail_soon();
  begin_with("10.0.1.1,10.0.2.1", "10.1.1.2,10.1.2.2", "routed,drops");
  struct haul_path path = explained();
  assert_false(path.open);
  assert_non_null(strstr(path.reason, "the peer's NICs do not acknowledge"));
}

static void all_are_routed(void **state) {
  (void)state;
  begin_with("10.0.1.1,10.0.2.1", "10.1.1.2,10.1.2.2", "routed");
  assert_moves(2);
  assert_pair(0, "::ffff:10.1.1.2");
  assert_pair(1, "::ffff:10.1.2.2");
}

static void ends_without_a_route_are_left_out(void **state) {
  (void)state;
  begin("10.0.9.1,10.0.1.1", "10.0.1.2,10.0.8.2");
  assert_moves(1);
  assert_pair(1, "::ffff:10.0.1.2");
}

static void without_a_route_the_path_is_closed(void **state) {
  (void)state;
  begin("10.0.1.1,10.0.2.1", "10.0.8.2,10.0.9.2");
  struct haul_path path = explained();
  assert_false(path.open);
  assert_non_null(strstr(path.reason, "is there a route to the peer's GID?"));
}

/* fe80::/64 is the subnet of each wire. */
static void link_local_ends_are_paired_by_order(void **state) {
  (void)state;
  begin("fe80::1,fe80::2,fe80::3", "fe80::11,fe80::12,fe80::13");
  assert_moves(3);
  assert_non_null(strstr(explained().reason, "3 paired by order, not by subnet"));
  assert_pair(0, "fe80::11");
  assert_pair(1, "fe80::12");
  assert_pair(2, "fe80::13");
}

static void ends_of_each_kind_find_each_other(void **state) {
  (void)state;
  begin("10.0.1.1,fe80::1,fd00:2::1,ib:7,fd00:1::1,ib:8",
        "ib:8,fd00:1::2,fe80::2,fd00:2::2,ib:7,10.0.1.2");
  assert_moves(6);
  assert_pair(0, "::ffff:10.0.1.2");
  assert_pair(1, "fe80::2");
  assert_pair(2, "fd00:2::2");
  assert_lid(3, 5);
  assert_pair(4, "fd00:1::2");
  assert_lid(5, 1);
}

static void infiniband_is_paired_by_prefix(void **state) {
  (void)state;
  begin("ib:1,ib:2,ib:3", "ib:3,ib:1,ib:2");
  assert_moves(3);
  assert_lid(0, 2);
  assert_lid(1, 3);
  assert_lid(2, 1);
}

/* Fabrics whose subnet managers were given no prefix have the same. */
static void infiniband_with_the_default_prefix_is_paired_by_order(void **state) {
  (void)state;
  begin("ib:0,ib:0,ib:4", "ib:4,ib:0,ib:0");
  assert_moves(3);
  assert_lid(0, 2);
  assert_lid(1, 3);
  assert_lid(2, 1);
}

static void nics_of_other_kinds_close_the_path(void **state) {
  (void)state;
  begin("ib:1,fe80::1", "10.0.1.2");
  struct haul_path path = explained();
  assert_false(path.open);
  assert_non_null(strstr(path.reason, "addresses of one kind"));
}

/* The rails keep their pairs. */
static void broken_rails_are_connected_again(void **state) {
  (void)state;
  struct haul_transfer_options options = HAUL_TRANSFER_OPTIONS_INIT;
  struct haul_piece piece = {0, 0, 1};
  begin("10.0.1.1,10.0.2.1,10.0.3.1,10.0.4.1,10.0.5.1,10.0.6.1",
        "10.0.6.2,10.0.5.2,10.0.4.2,10.0.3.2,10.0.2.2");
  assert_moves(5);
  nic_fault("retry:1");
  assert_works(haul_write(t.remote, t.region, &piece, 1, NULL, NULL));
  nic_fault("");
  options.only = "rdma";
  haul_deadline until = haul_deadline_in(BOUND);
  while (haul_write(t.remote, t.region, &piece, 1, &options, NULL) != 0) {
    assert_true(haul_deadline_in(0) < until);
    nanosleep(&(struct timespec){0, 10 * MS}, NULL);
  }
  assert_moves(5);
  assert_pair(1, "::ffff:10.0.2.2");
  assert_pair(5, "::ffff:10.0.6.2");
}

/* It may be usable for the next connection. */
static void a_port_that_is_down_is_left_out(void **state) {
  (void)state;
  begin("10.0.1.1,10.0.2.1,10.0.3.1", "10.0.3.2,10.0.2.2,10.0.1.2");
  assert_moves(3);
  haul_remote_release(t.remote);
  haul_peer_close(t.peer);
  nic_double()->devices[0].port[0].state = IBV_PORT_DOWN;
  assert_works(haul_peer_connect(t.node, t.owner.address, haul_deadline_in(BOUND), &t.peer));
  assert_works(haul_peer_lookup(t.peer, "memory", haul_deadline_in(BOUND), &t.remote));
  assert_moves(2);
  assert_pair(1, "::ffff:10.0.2.2");
  assert_pair(2, "::ffff:10.0.3.2");
}

/* Its NIC may be the only one in the peer's network. */
static void a_port_that_comes_up_later_is_used(void **state) {
  (void)state;
  nic_set("10.0.1.1,10.0.2.1,10.0.3.1");
  nic_double()->devices[1].port[0].state = IBV_PORT_DOWN;
  nic_set_of_children("10.0.3.2,10.0.2.2,10.0.1.2");
  pair_open(&t, NULL, LENGTH);
  assert_moves(2);
  haul_remote_release(t.remote);
  haul_peer_close(t.peer);
  nic_double()->devices[1].port[0].state = IBV_PORT_ACTIVE;
  assert_works(haul_peer_connect(t.node, t.owner.address, haul_deadline_in(BOUND), &t.peer));
  assert_works(haul_peer_lookup(t.peer, "memory", haul_deadline_in(BOUND), &t.remote));
  assert_moves(3);
  assert_pair(1, "::ffff:10.0.2.2");
}

/* By the speeds of the lines: 100 Gb/s and 8 Gb/s. */
static void a_slow_port_carries_less(void **state) {
  (void)state;
  nic_set("10.0.1.1,10.0.2.1");
  nic_double()->devices[1].port[0].speed = 4;
  nic_double()->devices[1].port[0].width = 1;
  nic_set_of_children("10.0.1.2,10.0.2.2");
  pair_open(&t, NULL, LENGTH);
  struct double_device *nics = nic_double()->devices;
  assert_moves(2);
  assert_in_range(atomic_load(&nics[1].requests), 1, atomic_load(&nics[0].requests) / 4);
}

static struct haul_path explain_addition(void) {
  struct haul_path paths[HAUL_PATHS_MAX];
  size_t count = HAUL_PATHS_MAX;
  assert_works(haul_explain(t.region, t.remote, HAUL_OP_FETCH_ADD, 8, NULL, paths, &count));
  for (size_t i = 0; i < count; i++)
    if (strcmp(paths[i].name, "rdma") == 0)
      return paths[i];
  fail_msg("no path rdma");
  return paths[0];
}

/* So that those of all peers exclude each other. */
static void atomics_use_the_owners_first_nic(void **state) {
  (void)state;
  struct haul_transfer_options options = HAUL_TRANSFER_OPTIONS_INIT;
  begin("10.0.2.1,10.0.3.1,10.0.1.1", "10.0.1.2,10.0.2.2,10.0.3.2");
  const struct double_device *nics = nic_double()->devices;
  uint64_t before[] = {nics[0].requests, nics[1].requests, nics[2].requests};
  options.only = "rdma";
  for (unsigned i = 0; i < 4; i++)
    assert_works(haul_fetch_add(t.region, 0, t.remote, 0, 1, &options, NULL));
  assert_int_equal(nics[0].requests - before[0], 0);
  assert_int_equal(nics[1].requests - before[1], 0);
  assert_int_equal(nics[2].requests - before[2], 4);
}

static void without_the_owners_first_nic_there_are_no_atomics(void **state) {
  (void)state;
  begin("10.0.2.1,10.0.3.1", "10.0.1.2,10.0.2.2,10.0.3.2");
  struct haul_path path = explain_addition();
  assert_false(path.open);
  assert_non_null(strstr(path.reason, "its NIC for atomics has no rail"));
  assert_moves(2);
}

/* They exclude processors, and so each other. */
static void nics_with_global_atomics_need_no_first(void **state) {
  (void)state;
  begin_with("10.0.2.1", "10.0.1.2,10.0.2.2,10.0.3.2", "global");
  assert_false(explain_addition().open);
  pair_close(&t);
  begin_with("10.0.2.1", "10.0.1.2,10.0.2.2,10.0.3.2", "allglobal");
  assert_true(explain_addition().open);
}

int main(int argc, char **argv) {
  addresses_get = nic_addresses;
  if (argc > 1 && strcmp(argv[1], OWNER_MODE) == 0)
    return owner_main();
  if (!nic_is_there())
    return 77;
  seams_no_unix_sockets();
#define TEST(test) cmocka_unit_test_teardown(test, tear_down)
  const struct CMUnitTest tests[] = {
      TEST(eight_and_eight_in_another_order),
      TEST(eight_and_four),
      TEST(four_and_eight),
      TEST(a_node_uses_sixteen_of_its_ports),
      TEST(two_in_a_subnet_with_one),
      TEST(two_in_a_subnet_with_two),
      TEST(routed_ends_are_paired_by_order),
      TEST(routed_rails_are_reported),
      TEST(a_route_that_drops_packets_leaves_its_rail_out),
      TEST(a_route_that_drops_packets_later_leaves_its_rail_out),
      TEST(routes_that_drop_packets_close_the_path),
      TEST(all_are_routed),
      TEST(ends_without_a_route_are_left_out),
      TEST(without_a_route_the_path_is_closed),
      TEST(link_local_ends_are_paired_by_order),
      TEST(ends_of_each_kind_find_each_other),
      TEST(infiniband_is_paired_by_prefix),
      TEST(infiniband_with_the_default_prefix_is_paired_by_order),
      TEST(nics_of_other_kinds_close_the_path),
      TEST(broken_rails_are_connected_again),
      TEST(a_port_that_is_down_is_left_out),
      TEST(a_port_that_comes_up_later_is_used),
      TEST(a_slow_port_carries_less),
      TEST(atomics_use_the_owners_first_nic),
      TEST(without_the_owners_first_nic_there_are_no_atomics),
      TEST(nics_with_global_atomics_need_no_first),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
