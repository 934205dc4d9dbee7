/* SPDX-License-Identifier: MIT
 * Device memory over tcp with the smallest staging pool: many peers in both directions at once,
 * peers that stop or die while they hold bounce buffers, and transfers that wait for those.
 * Everything has a deadline, so a deadlock fails the test. HAUL_TEST_DEVICE selects the device. */
#include "support/check.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "memory/staging.h"
#include "support/owner.h"
#include "support/rails.h"

#define MIB    ((uint64_t)1 << 20)
#define PEERS  10u
#define LENGTH (6 * MIB)
#define BOUND  (100 * S)
#define BOTH   (HAUL_READ | HAUL_WRITE)

static struct haul_node_config smallest(int64_t liveness) {
  struct haul_node_config config = HAUL_NODE_CONFIG_INIT;
  config.staging_bytes = STAGING_LEAST;
  config.liveness_ns = liveness;
  return config;
}

static uint64_t counter(struct haul_node *node, const char *name) {
  uint64_t value;
  assert_works(haul_counter_read(node, name, &value));
  return value;
}

static struct haul_transfer *start(enum haul_operation operation, struct haul_remote *remote,
                                   struct haul_region *region, uint64_t at, uint64_t length) {
  struct haul_transfer_options options = HAUL_TRANSFER_OPTIONS_INIT;
  struct haul_piece piece = {at, at, length};
  struct haul_transfer *transfer;
  options.only = "tcp";
  options.deadline = haul_deadline_in(BOUND);
  assert_works(operation == HAUL_OP_WRITE
                   ? haul_write(remote, region, &piece, 1, &options, &transfer)
                   : haul_read(region, remote, &piece, 1, &options, &transfer));
  return transfer;
}

static int finish(struct haul_transfer *transfer) {
  int code = haul_transfer_wait(transfer, haul_deadline_in(2 * BOUND));
  haul_transfer_release(transfer);
  return code;
}

/* A node, and its view of another node's memory. */
struct side {
  struct haul_node *node;
  struct haul_region *memory; /* published: the peer writes its first half, and reads the second */
  struct haul_region *regions[2]; /* the source of writes, the destination of reads */
  struct haul_peer *peer;
  struct haul_remote *remote;
};

static void open_side(struct side *side, struct haul_node *node, uint64_t seed) {
  struct haul_node_config config = smallest(30 * S);
  side->node = node;
  if (!node)
    assert_works(haul_node_open(&config, &side->node));
  side->memory = region_make(side->node, KIND_SIM, 2 * LENGTH);
  for (unsigned i = 0; i < 2; i++)
    side->regions[i] = region_make(side->node, KIND_SIM, 2 * LENGTH);
  region_fill(side->node, side->memory, LENGTH, LENGTH, seed);
  region_fill(side->node, side->regions[0], 0, LENGTH, seed + 1);
}

static void connect_side(struct side *side, struct haul_node *other, unsigned listener,
                         const char *name) {
  char address[160];
  assert_works(haul_node_address(other, listener, address, sizeof address));
  assert_works(haul_peer_connect(side->node, address, haul_deadline_in(BOUND), &side->peer));
  assert_works(haul_peer_lookup(side->peer, name, haul_deadline_in(BOUND), &side->remote));
}

static void drop_side(struct side *side) {
  haul_remote_release(side->remote);
  haul_peer_close(side->peer);
  haul_region_release(side->memory);
  haul_region_release(side->regions[0]);
  haul_region_release(side->regions[1]);
}

/* The hub and each of its ten peers write and read at once. */
static void many_peers_complete_in_both_directions(void **state) {
  static struct side near[PEERS], far[PEERS];
  struct haul_transfer *transfers[PEERS][4];
  struct haul_node_config config = smallest(30 * S);
  struct haul_node *hub;
  char name[32];
  (void)state;
  assert_works(haul_node_open(&config, &hub));
  assert_works(haul_node_listen(hub, "tcp://127.0.0.1:0"));
  for (unsigned i = 0; i < PEERS; i++) {
    snprintf(name, sizeof name, "memory%u", i);
    open_side(&near[i], hub, i * 4);
    open_side(&far[i], NULL, i * 4 + 2);
    assert_works(haul_node_listen(far[i].node, "tcp://127.0.0.1:0"));
    assert_works(haul_region_publish(near[i].memory, name, BOTH));
    assert_works(haul_region_publish(far[i].memory, name, BOTH));
    connect_side(&near[i], far[i].node, 0, name);
    connect_side(&far[i], hub, 0, name);
  }
  for (unsigned i = 0; i < PEERS; i++) {
    struct side *sides[] = {&near[i], &far[i]};
    for (unsigned k = 0; k < 2; k++) {
      struct side *side = sides[k];
      transfers[i][2 * k] = start(HAUL_OP_WRITE, side->remote, side->regions[0], 0, LENGTH);
      transfers[i][2 * k + 1] = start(HAUL_OP_READ, side->remote, side->regions[1], LENGTH, LENGTH);
    }
    assert_true(counter(hub, "staging.bytes") <= counter(hub, "staging.limit"));
  }
  for (unsigned i = 0; i < PEERS; i++)
    for (unsigned k = 0; k < 4; k++) {
      assert_works(finish(transfers[i][k]));
      assert_true(counter(hub, "staging.bytes") <= STAGING_LEAST);
    }
  assert_int_equal(counter(hub, "staging.limit"), STAGING_LEAST);
  assert_true(counter(hub, "staging.waits") > 0);
  for (unsigned i = 0; i < PEERS; i++) {
    struct side *a = &near[i], *b = &far[i];
    assert_true(region_sum(a->node, a->regions[0], 0, LENGTH) ==
                region_sum(b->node, b->memory, 0, LENGTH));
    assert_true(region_sum(b->node, b->regions[0], 0, LENGTH) ==
                region_sum(a->node, a->memory, 0, LENGTH));
    assert_true(region_sum(a->node, a->regions[1], LENGTH, LENGTH) ==
                region_sum(b->node, b->memory, LENGTH, LENGTH));
    assert_true(region_sum(b->node, b->regions[1], LENGTH, LENGTH) ==
                region_sum(a->node, a->memory, LENGTH, LENGTH));
  }
  for (unsigned i = 0; i < PEERS; i++) {
    drop_side(&near[i]);
    drop_side(&far[i]);
    haul_node_close(far[i].node);
  }
  haul_node_close(hub);
}

#define OWNERS   3u
#define LIVENESS (SANITIZED || getenv("HAUL_TEST_SLOW") ? 3 * S : 1 * S)

/* Four nodes with device memory. */
static struct {
  struct haul_node *node;
  struct haul_region *region;
  struct owner owners[OWNERS];
  struct haul_peer *peers[OWNERS];
  struct haul_remote *remotes[OWNERS];
} t;

static void connect_owner(unsigned i) {
  assert_works(
      haul_peer_connect(t.node, t.owners[i].address, haul_deadline_in(BOUND), &t.peers[i]));
  assert_works(haul_peer_lookup(t.peers[i], "memory", haul_deadline_in(BOUND), &t.remotes[i]));
  open_rails(t.remotes[i], t.region); /* a stopped owner cannot */
}

static int set_up(void **state) {
  struct haul_node_config config = smallest(LIVENESS);
  (void)state;
  assert_works(haul_node_open(&config, &t.node));
  t.region = region_make(t.node, KIND_SIM, 4 * LENGTH);
  for (unsigned i = 0; i < OWNERS; i++) {
    owner_start(&t.owners[i], "tcp://127.0.0.1:0", &config);
    assert_int_equal(owner_publish(&t.owners[i], 0, KIND_SIM, 4 * LENGTH, "memory", BOTH), 0);
    connect_owner(i);
  }
  return 0;
}

static void disconnect_owner(unsigned i) {
  haul_remote_release(t.remotes[i]);
  haul_peer_close(t.peers[i]);
}

static void continue_owners(void) {
  for (unsigned i = 0; i < 2; i++)
    owner_go_on(&t.owners[i]);
}

static int tear_down(void **state) {
  (void)state;
  for (unsigned i = 0; i < OWNERS; i++)
    disconnect_owner(i);
  haul_region_release(t.region);
  haul_node_close(t.node);
  for (unsigned i = 0; i < OWNERS; i++)
    if (t.owners[i].pid != 0)
      owner_end(&t.owners[i]);
  return 0;
}

/* False: the machine was so slow that a peer that does not read was dropped before. */
static bool all_buffers_are_held(struct haul_transfer *transfers[2]) {
  const uint64_t all = (STAGING_LEAST / BOUNCE_BYTES - STAGING_PAIR) * BOUNCE_BYTES;
  haul_deadline until = haul_deadline_in(BOUND);
  while (counter(t.node, "staging.bytes") < all) {
    if (haul_transfer_test(transfers[0]) != 1 || haul_transfer_test(transfers[1]) != 1)
      return false;
    assert_true(haul_deadline_in(0) < until);
    usleep(1000);
  }
  return true;
}

/* Two peers that do not read hold all bounce buffers for sending. */
static void hold_all_buffers(struct haul_transfer *transfers[2]) {
  for (unsigned tries = 0;; tries++) {
    for (unsigned i = 0; i < 2; i++) {
      owner_stop(&t.owners[i]);
      transfers[i] = start(HAUL_OP_WRITE, t.remotes[i], t.region, 0, 3 * LENGTH);
    }
    if (all_buffers_are_held(transfers))
      return;
    assert_true(tries < 50); /* a busy machine may take longer than the liveness timeout */
    continue_owners();
    for (unsigned i = 0; i < 2; i++) {
      finish(transfers[i]);
      disconnect_owner(i);
      connect_owner(i);
    }
  }
}

static void assert_third_works(void) {
  assert_works(finish(start(HAUL_OP_WRITE, t.remotes[2], t.region, 0, LENGTH)));
  assert_works(finish(start(HAUL_OP_READ, t.remotes[2], t.region, 3 * LENGTH, LENGTH)));
}

static void peers_that_do_not_read_delay_others_only_briefly(void **state) {
  struct haul_transfer *stuck[2];
  (void)state;
  hold_all_buffers(stuck);
  assert_works(
      finish(start(HAUL_OP_READ, t.remotes[2], t.region, 3 * LENGTH, LENGTH))); /* at once */
  assert_works(finish(start(HAUL_OP_WRITE, t.remotes[2], t.region, 0, LENGTH)));
  for (unsigned i = 0; i < 2; i++)
    assert_true(finish(stuck[i]) != 0);
  continue_owners();
}

static void buffers_of_peers_that_die_are_freed(void **state) {
  struct haul_transfer *stuck[2];
  (void)state;
  hold_all_buffers(stuck);
  struct haul_transfer *waits = start(HAUL_OP_WRITE, t.remotes[2], t.region, 0, LENGTH);
  for (unsigned i = 0; i < 2; i++) {
    owner_kill(&t.owners[i]);
    t.owners[i].pid = 0;
  }
  assert_works(finish(waits));
  for (unsigned i = 0; i < 2; i++)
    assert_true(finish(stuck[i]) != 0);
  assert_third_works();
}

static void a_waiting_transfer_can_be_canceled(void **state) {
  struct haul_transfer *stuck[2];
  (void)state;
  hold_all_buffers(stuck);
  struct haul_transfer *waits = start(HAUL_OP_WRITE, t.remotes[2], t.region, 0, LENGTH);
  assert_works(haul_transfer_cancel(waits));
  int code = finish(waits);
  assert_true(code == HAUL_ECANCELED);
  for (unsigned i = 0; i < 2; i++)
    assert_works(haul_transfer_cancel(stuck[i]));
  continue_owners();
  for (unsigned i = 0; i < 2; i++)
    assert_true(finish(stuck[i]) != 0);
  assert_third_works();
}

static void a_node_closes_with_waiting_transfers(void **state) {
  struct haul_transfer *stuck[2];
  (void)state;
  hold_all_buffers(stuck);
  struct haul_transfer *waits = start(HAUL_OP_WRITE, t.remotes[2], t.region, 0, LENGTH);
  haul_deadline began = haul_deadline_in(0);
  haul_node_close(t.node);
  assert_true(haul_deadline_in(0) - began < BOUND);
  t.node = NULL;
  assert_int_equal(finish(waits), HAUL_ECLOSED);
  for (unsigned i = 0; i < 2; i++)
    assert_true(finish(stuck[i]) != 0);
  continue_owners();
}

static void buffers_for_reads_from_an_owner_that_dies_are_freed(void **state) {
  struct haul_transfer *reads[OWNERS];
  (void)state;
  for (unsigned i = 0; i < OWNERS; i++)
    reads[i] = start(HAUL_OP_READ, t.remotes[i], t.region, i * LENGTH, LENGTH);
  owner_kill(&t.owners[0]);
  t.owners[0].pid = 0;
  finish(reads[0]);
  assert_works(finish(reads[1]));
  assert_works(finish(reads[2]));
  assert_third_works();
}

/* A network so slow that a peer holds its buffers for longer than others may wait: frames that were
 * not begun give theirs back, and no peer is dropped. */
static void a_slow_network_fails_no_transfer(void **state) {
  struct haul_transfer *transfers[2 * OWNERS];
  (void)state;
  for (unsigned i = 0; i < OWNERS; i++)
    disconnect_owner(i);
  haul_region_release(t.region);
  haul_node_close(t.node);
  struct haul_node_config config = smallest(LIVENESS);
  config.tcp_rate = 3 * MIB;
  assert_works(haul_node_open(&config, &t.node));
  t.region = region_make(t.node, KIND_SIM, 4 * LENGTH);
  for (unsigned i = 0; i < OWNERS; i++)
    connect_owner(i);
  for (unsigned i = 0; i < 2 * OWNERS; i++)
    transfers[i] =
        start(HAUL_OP_WRITE, t.remotes[i % OWNERS], t.region, i / OWNERS * LENGTH, LENGTH);
  for (unsigned i = 0; i < 2 * OWNERS; i++)
    assert_works(finish(transfers[i]));
  for (unsigned i = 0; i < OWNERS; i++)
    assert_works(haul_peer_status(t.peers[i]));
  assert_true(counter(t.node, "staging.waits") > 0);
}

static int run(const char *device) {
#define TEST(test) cmocka_unit_test_setup_teardown(test, set_up, tear_down)
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(many_peers_complete_in_both_directions),
      TEST(peers_that_do_not_read_delay_others_only_briefly),
      TEST(buffers_of_peers_that_die_are_freed),
      TEST(a_waiting_transfer_can_be_canceled),
      TEST(a_node_closes_with_waiting_transfers),
      TEST(a_slow_network_fails_no_transfer),
      TEST(buffers_for_reads_from_an_owner_that_dies_are_freed),
  };
  char name[64];
  snprintf(name, sizeof name, "staging of %.32s", device);
  return cmocka_run_group_tests_name(name, tests, NULL, NULL);
}

int main(int argc, char **argv) {
  const char *device = getenv("HAUL_TEST_DEVICE");
  if (argc > 1 && strcmp(argv[1], OWNER_MODE) == 0)
    return owner_main();
  return run(device ? device : "sim:0");
}
