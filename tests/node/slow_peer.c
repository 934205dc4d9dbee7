/* SPDX-License-Identifier: MIT
 * A peer that does not respond gets max_transfers transfers at most. Further ones fail at once, and
 * transfers to other peers are not affected. */
#include "support/check.h"

#include <string.h>

#include "support/owner.h"

#define LENGTH        ((uint64_t)1 << 20)
#define MAX_TRANSFERS 10u
#define BOUND         (100 * S)

struct other {
  struct owner owner;
  struct haul_peer *peer;
  struct haul_remote *remote;
};

static struct {
  struct haul_node *node;
  struct haul_region *region;
  struct other slow, good;
} t;

static void connect_to(struct other *other, const struct haul_node_config *config) {
  owner_start(&other->owner, "tcp://127.0.0.1:0", config);
  assert_int_equal(
      owner_publish(&other->owner, 0, KIND_HOST, LENGTH, "memory", HAUL_READ | HAUL_WRITE), 0);
  assert_int_equal(owner_fill(&other->owner, 0, 0, LENGTH, 4), 0);
  assert_works(
      haul_peer_connect(t.node, other->owner.address, haul_deadline_in(BOUND), &other->peer));
  assert_works(haul_peer_lookup(other->peer, "memory", haul_deadline_in(BOUND), &other->remote));
}

/* The liveness timeout is so long that the stopped peer is not dropped. */
static void open_all(int progress) {
  struct haul_node_config config = HAUL_NODE_CONFIG_INIT;
  memset(&t, 0, sizeof t);
  config.liveness_ns = config.transfer_ns = BOUND;
  config.progress = progress;
  config.max_transfers = MAX_TRANSFERS;
  assert_works(haul_node_open(&config, &t.node));
  config.progress = HAUL_PROGRESS_THREAD;
  connect_to(&t.slow, &config);
  connect_to(&t.good, &config);
  t.region = region_make(t.node, KIND_HOST, LENGTH);
  region_fill(t.node, t.region, 0, LENGTH, 3);
}

static int set_up(void **state) {
  (void)state;
  open_all(HAUL_PROGRESS_THREAD);
  return 0;
}

static int set_up_driven(void **state) {
  (void)state;
  open_all(HAUL_PROGRESS_CALLER);
  return 0;
}

static int tear_down(void **state) {
  (void)state;
  haul_region_release(t.region);
  haul_remote_release(t.slow.remote);
  haul_remote_release(t.good.remote);
  haul_peer_close(t.slow.peer);
  haul_peer_close(t.good.peer);
  haul_node_close(t.node);
  return owner_end(&t.slow.owner) | owner_end(&t.good.owner);
}

static int write_all(struct other *other, struct haul_transfer **transfer) {
  struct haul_transfer_options options = HAUL_TRANSFER_OPTIONS_INIT;
  const struct haul_piece piece = {0, 0, LENGTH};
  options.only = "tcp";
  return haul_write(other->remote, t.region, &piece, 1, &options, transfer);
}

static int end(struct haul_transfer *transfer) {
  int code = haul_transfer_wait(transfer, haul_deadline_in(BOUND));
  haul_transfer_release(transfer);
  return code;
}

static void assert_full(void) {
  struct haul_transfer_options options = HAUL_TRANSFER_OPTIONS_INIT;
  const struct haul_piece piece = {0, 0, 8};
  struct haul_transfer *more;
  options.only = "tcp";
  assert_fails(HAUL_ELIMIT, write_all(&t.slow, &more));
  assert_fails(HAUL_ELIMIT, write_all(&t.slow, NULL));
  assert_string_equal(haul_error_last()->object, "memory");
  assert_non_null(strstr(haul_error_last()->text, "10 transfers to the peer are under way"));
  assert_non_null(strstr(haul_error_last()->hint, "max_transfers"));
  assert_fails(HAUL_ELIMIT, haul_read(t.region, t.slow.remote, &piece, 1, &options, &more));
  assert_fails(HAUL_ELIMIT, haul_fetch_add(t.region, 0, t.slow.remote, 0, 1, &options, &more));
}

/* As many at a time as the slow one has, then more one after the other. */
static void assert_the_other_peer_works(void) {
  struct haul_transfer *transfers[MAX_TRANSFERS];
  for (unsigned i = 0; i < MAX_TRANSFERS; i++)
    assert_works(write_all(&t.good, &transfers[i]));
  for (unsigned i = 0; i < MAX_TRANSFERS; i++)
    assert_works(end(transfers[i]));
  for (unsigned i = 0; i < 2 * MAX_TRANSFERS; i++)
    assert_works(write_all(&t.good, NULL));
  assert_true(owner_sum(&t.good.owner, 0, 0, LENGTH) == region_sum(t.node, t.region, 0, LENGTH));
}

static void a_stopped_peer_affects_no_other_peer(void **state) {
  struct haul_transfer *transfers[MAX_TRANSFERS];
  (void)state;
  owner_stop(&t.slow.owner);
  for (unsigned i = 0; i < MAX_TRANSFERS; i++)
    assert_works(write_all(&t.slow, &transfers[i]));
  for (unsigned round = 0; round < 3; round++) {
    assert_full();
    assert_the_other_peer_works();
  }
  for (unsigned i = 0; i < MAX_TRANSFERS; i++)
    assert_int_equal(haul_transfer_test(transfers[i]), 1);
  owner_go_on(&t.slow.owner);
  for (unsigned i = 0; i < MAX_TRANSFERS; i++)
    assert_works(end(transfers[i]));
  assert_true(owner_sum(&t.slow.owner, 0, 0, LENGTH) == region_sum(t.node, t.region, 0, LENGTH));
  assert_works(write_all(&t.slow, NULL)); /* there is room again */
}

static void a_canceled_transfer_makes_room(void **state) {
  struct haul_transfer *transfers[MAX_TRANSFERS], *more;
  (void)state;
  owner_stop(&t.slow.owner);
  for (unsigned i = 0; i < MAX_TRANSFERS; i++)
    assert_works(write_all(&t.slow, &transfers[i]));
  assert_full();
  assert_works(haul_transfer_cancel(transfers[MAX_TRANSFERS - 1]));
  assert_fails(HAUL_ECANCELED, end(transfers[MAX_TRANSFERS - 1]));
  assert_works(write_all(&t.slow, &more));
  assert_full();
  owner_go_on(&t.slow.owner);
  for (unsigned i = 0; i < MAX_TRANSFERS - 1; i++)
    assert_works(end(transfers[i]));
  assert_works(end(more));
}

int main(int argc, char **argv) {
  if (argc > 1 && strcmp(argv[1], OWNER_MODE) == 0)
    return owner_main();
#define TEST(test)        cmocka_unit_test_setup_teardown(test, set_up, tear_down)
#define TEST_DRIVEN(test) cmocka_unit_test_setup_teardown(test, set_up_driven, tear_down)
  const struct CMUnitTest tests[] = {
      TEST(a_stopped_peer_affects_no_other_peer),
      TEST_DRIVEN(a_stopped_peer_affects_no_other_peer),
      TEST(a_canceled_transfer_makes_room),
      TEST_DRIVEN(a_canceled_transfer_makes_room),
  };
  return cmocka_run_group_tests_name("slow peer", tests, NULL, NULL);
}
