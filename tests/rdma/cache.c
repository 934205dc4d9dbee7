/* SPDX-License-Identifier: MIT
 * The registration cache, by its counters. */
#include "support/check.h"

#include <string.h>
#include <sys/mman.h>

#include "support/owner.h"

#define MIB        ((uint64_t)1 << 20)
#define BOUND      (20 * S)
#define NEIGHBOURS 1265u
#define PART       ((size_t)65536)

static struct {
  struct haul_node *owner, *user;
  struct haul_peer *peer;
  struct haul_region *there;
  struct haul_remote *remote;
  char *bytes;
} t;

static void meet(void) {
  char address[160];
  assert_works(haul_node_address(t.owner, 0, address, sizeof address));
  assert_works(haul_peer_connect(t.user, address, haul_deadline_in(BOUND), &t.peer));
  assert_works(haul_peer_lookup(t.peer, "memory", haul_deadline_in(BOUND), &t.remote));
}

static int set_up(void **state) {
  (void)state;
  assert_works(haul_node_open(NULL, &t.owner));
  assert_works(haul_node_open(NULL, &t.user));
  assert_works(haul_node_listen(t.owner, "tcp://127.0.0.1:0"));
  t.there = region_make(t.owner, KIND_HOST, MIB);
  assert_works(haul_region_publish(t.there, "memory", HAUL_READ | HAUL_WRITE));
  t.bytes =
      mmap(NULL, NEIGHBOURS * PART, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  assert_ptr_not_equal(t.bytes, MAP_FAILED);
  return 0;
}

static int tear_down(void **state) {
  (void)state;
  haul_remote_release(t.remote);
  haul_region_release(t.there);
  haul_peer_close(t.peer);
  haul_node_close(t.user);
  haul_node_close(t.owner);
  munmap(t.bytes, NEIGHBOURS * PART);
  memset(&t, 0, sizeof t);
  return 0;
}

static uint64_t counter(const char *name) {
  uint64_t value;
  assert_works(haul_counter_read(t.user, name, &value));
  return value;
}

static void send_a_part(struct haul_region *region) {
  struct haul_transfer_options options = HAUL_TRANSFER_OPTIONS_INIT;
  struct haul_piece piece = {0, 0, 4096};
  options.only = "rdma";
  assert_works(haul_write(t.remote, region, &piece, 1, &options, NULL));
}

/* At most a fiftieth of the registrations that one by one would take. `before`: the regions are
 * wrapped before the peer connects. */
static void check_neighbours(bool before) {
  static struct haul_region *regions[NEIGHBOURS];
  if (!before)
    meet();
  for (unsigned i = 0; i < NEIGHBOURS; i++)
    assert_works(haul_region_wrap(t.user, t.bytes + i * PART, PART, &regions[i]));
  if (before)
    meet();
  for (unsigned i = 0; i < NEIGHBOURS; i++)
    send_a_part(regions[i]);
  print_message("%u neighbours in %llu registrations\n", NEIGHBOURS,
                (unsigned long long)counter("rdma.cache.registrations"));
  assert_in_range(counter("rdma.cache.registrations"), 1, NEIGHBOURS / 50);
  for (unsigned i = 0; i < NEIGHBOURS; i++)
    haul_region_release(regions[i]);
}

static void neighbours_are_registered_together(void **state) {
  (void)state;
  check_neighbours(false);
}

static void neighbours_wrapped_before_the_peer_too(void **state) {
  (void)state;
  check_neighbours(true);
}

static void reuse_registers_once(void **state) {
  (void)state;
  struct haul_region *region;
  meet();
  assert_works(haul_region_wrap(t.user, t.bytes, PART, &region));
  for (unsigned i = 0; i < 10; i++)
    send_a_part(region);
  assert_int_equal(counter("rdma.cache.registrations"), 1);
  assert_int_equal(counter("rdma.cache.hits"), 9);
  haul_region_release(region);
}

static void release_drops_the_registration(void **state) {
  (void)state;
  struct haul_region *region;
  meet();
  assert_works(haul_region_wrap(t.user, t.bytes, PART, &region));
  send_a_part(region);
  assert_int_equal(counter("rdma.cache.entries"), 1);
  haul_region_release(region);
  assert_int_equal(counter("rdma.cache.entries"), 0);
  assert_int_equal(counter("rdma.cache.invalidations"), 1);
}

int main(void) {
#define TEST(test) cmocka_unit_test_setup_teardown(test, set_up, tear_down)
  const struct CMUnitTest tests[] = {
      TEST(neighbours_are_registered_together),
      TEST(neighbours_wrapped_before_the_peer_too),
      TEST(reuse_registers_once),
      TEST(release_drops_the_registration),
  };
  return cmocka_run_group_tests_name("registrations", tests, NULL, NULL);
}
