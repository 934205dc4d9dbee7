/* SPDX-License-Identifier: MIT
 * Transfers over rdma between all kinds of memory. HAUL_TEST_PLACES names them (default "host
 * sim:0"). With HAUL_TEST_WAY=straight no transfer may be staged; with `staged` all of device
 * memory are. */
#include "support/check.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support/owner.h"

#define MIB    ((uint64_t)1 << 20)
#define LENGTH (3 * MIB + 11)
#define BOUND  (60 * S)
#define PLACES 8u

static struct {
  struct haul_node *owner, *user;
  struct haul_peer *peer;
  struct haul_place places[PLACES];
  struct haul_region *there[PLACES], *here[PLACES];
  struct haul_remote *remotes[PLACES];
  unsigned count;
} t;

static struct haul_region *alloc(struct haul_node *node, struct haul_place place) {
  struct haul_region *region;
  assert_works(haul_region_alloc(node, place, LENGTH, 0, &region));
  return region;
}

static void add_place(const char *name) {
  unsigned at = t.count++;
  char published[16];
  assert_true(at < PLACES);
  assert_works(haul_place_parse(name, &t.places[at]));
  snprintf(published, sizeof published, "place-%u", at);
  t.there[at] = alloc(t.owner, t.places[at]);
  t.here[at] = alloc(t.user, t.places[at]);
  assert_works(haul_region_publish(t.there[at], published, HAUL_READ | HAUL_WRITE));
  assert_works(haul_peer_lookup(t.peer, published, haul_deadline_in(BOUND), &t.remotes[at]));
}

static int set_up(void **state) {
  const char *named = getenv("HAUL_TEST_PLACES");
  char address[160], names[100], *rest = names;
  (void)state;
  assert_works(haul_node_open(NULL, &t.owner));
  assert_works(haul_node_open(NULL, &t.user));
  assert_works(haul_node_listen(t.owner, "tcp://127.0.0.1:0"));
  assert_works(haul_node_address(t.owner, 0, address, sizeof address));
  assert_works(haul_peer_connect(t.user, address, haul_deadline_in(BOUND), &t.peer));
  snprintf(names, sizeof names, "%s", named ? named : "host sim:0");
  for (const char *name; (name = strsep(&rest, " "));)
    add_place(name);
  return 0;
}

static int tear_down(void **state) {
  (void)state;
  for (unsigned i = 0; i < t.count; i++) {
    haul_remote_release(t.remotes[i]);
    haul_region_release(t.here[i]);
    haul_region_release(t.there[i]);
  }
  haul_peer_close(t.peer);
  haul_node_close(t.user);
  haul_node_close(t.owner);
  return 0;
}

static bool is_device(unsigned place) {
  return t.places[place].kind != HAUL_HOST;
}

/* The path's detail agrees with HAUL_TEST_WAY. */
static void check_way(unsigned here, unsigned there, enum haul_operation operation) {
  struct haul_transfer_options options = HAUL_TRANSFER_OPTIONS_INIT;
  struct haul_path path;
  const char *wanted = getenv("HAUL_TEST_WAY");
  options.only = "rdma";
  assert_works(haul_explain(t.here[here], t.remotes[there], operation, LENGTH, &options, &path,
                            &(size_t){1}));
  assert_true(path.open);
  bool staged = strstr(path.detail, "staged");
  print_message("  %s: %s\n", operation == HAUL_OP_WRITE ? "write" : "read",
                staged ? path.detail : "straight");
  assert_int_equal(path.zero_copy, !staged);
  if (wanted)
    assert_int_equal(staged,
                     strcmp(wanted, "staged") == 0 && (is_device(here) || is_device(there)));
}

static void move(unsigned here, unsigned there, enum haul_operation operation, uint64_t length) {
  struct haul_transfer_options options = HAUL_TRANSFER_OPTIONS_INIT;
  struct haul_piece piece = {3, 5, length};
  bool write = operation == HAUL_OP_WRITE;
  struct haul_region *from = write ? t.here[here] : t.there[there];
  uint64_t from_at = write ? 3 : 5;
  options.only = "rdma";
  region_fill(write ? t.user : t.owner, from, from_at, length, length + here * 16 + there);
  assert_works(write ? haul_write(t.remotes[there], t.here[here], &piece, 1, &options, NULL)
                     : haul_read(t.here[here], t.remotes[there], &piece, 1, &options, NULL));
  assert_true(region_sum(t.user, t.here[here], 3, length) ==
              region_sum(t.owner, t.there[there], 5, length));
}

static void from_each_to_each(void **state) {
  static const uint64_t lengths[] = {1, 8, 4097, MIB + 1, LENGTH - 5};
  static const enum haul_operation operations[] = {HAUL_OP_WRITE, HAUL_OP_READ};
  (void)state;
  for (unsigned pair = 0; pair < t.count * t.count; pair++) {
    unsigned here = pair / t.count, there = pair % t.count;
    char names[2][24];
    haul_place_format(t.places[here], names[0], sizeof names[0]);
    haul_place_format(t.places[there], names[1], sizeof names[1]);
    print_message("%s here, %s there\n", names[0], names[1]);
    for (size_t i = 0; i < COUNT(operations); i++) {
      check_way(here, there, operations[i]);
      for (size_t j = 0; j < COUNT(lengths); j++)
        move(here, there, operations[i], lengths[j]);
    }
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(from_each_to_each),
  };
  return cmocka_run_group_tests_name("rdma between places", tests, set_up, tear_down);
}
