/* SPDX-License-Identifier: MIT
 * A source that ends, changes its bytes or loses its list of members: receivers are told, and do
 * not wait for ever. And handles in a child of fork. */
#include "broadcast/layout.h" /* before cmocka.h, which has a macro `fail` */

#include "support/check.h"

#include <haul/broadcast.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "support/owner.h"

#define MIB (UINT64_C(1) << 20)

/* A source and a receiver, each with a node of its own. */
struct pair {
  haul_node *nodes[2];
  haul_broadcast *source, *member;
  haul_region *regions[2]; /* the source's, and the receiver's */
  char address[160];
};

/* So slow that 16 MiB take four seconds. */
#define SLOW (4 * MIB)

static void pair_open(struct pair *pair, size_t rate, uint64_t length) {
  struct haul_node_config config = patient_config();
  struct haul_place host = {HAUL_HOST, 0};
  *pair = (struct pair){0};
  config.paths = "tcp";
  config.tcp_rate = rate;
  for (int i = 0; i < 2; i++) {
    assert_works(haul_node_open(&config, &pair->nodes[i]));
    assert_works(haul_node_listen(pair->nodes[i], "tcp://127.0.0.1:0"));
    assert_works(haul_region_alloc(pair->nodes[i], host, length, 0, &pair->regions[i]));
  }
  assert_works(haul_node_address(pair->nodes[0], 0, pair->address, sizeof pair->address));
  pattern_fill(haul_region_address(pair->regions[0]), length, 3);
  assert_works(haul_broadcast_open(pair->nodes[0], "x", NULL, &pair->source));
}

static void pair_publish(struct pair *pair, uint64_t *version) {
  assert_works(
      haul_broadcast_publish(pair->source, pair->regions[0], haul_deadline_in(20 * S), version));
}

static void pair_join(struct pair *pair, const struct haul_broadcast_options *options,
                      struct haul_broadcast_version *version) {
  assert_works(haul_broadcast_join(pair->nodes[1], pair->address, "x", options,
                                   haul_deadline_in(20 * S), &pair->member));
  assert_works(haul_broadcast_next(pair->member, 0, haul_deadline_in(20 * S), version));
}

static void source_end(struct pair *pair) {
  haul_broadcast_close(pair->source);
  haul_region_release(pair->regions[0]);
  haul_node_close(pair->nodes[0]);
  pair->source = NULL;
  pair->regions[0] = NULL;
  pair->nodes[0] = NULL;
}

static void pair_close(struct pair *pair) {
  haul_broadcast_close(pair->member);
  haul_region_release(pair->regions[1]);
  haul_node_close(pair->nodes[1]);
  source_end(pair);
}

/* ---- Fork ---- */

#define FORKED(call)                                                                               \
  do {                                                                                             \
    if ((call) != HAUL_EFORK)                                                                      \
      return __LINE__ % 255 + 1;                                                                   \
  } while (0)

/* Returns 0, or a number that the line of the call that has another code gives. */
static int calls_of_child(struct pair *pair, const struct haul_broadcast_version *version) {
  struct haul_broadcast_version next;
  struct haul_broadcast_member members[2];
  struct haul_broadcast_feeder feeders[2];
  haul_broadcast *other;
  size_t count = 2;
  uint64_t number;
  haul_deadline until = haul_deadline_in(20 * S);
  FORKED(haul_broadcast_open(pair->nodes[0], "y", NULL, &other));
  FORKED(haul_broadcast_join(pair->nodes[1], pair->address, "x", NULL, until, &other));
  FORKED(haul_broadcast_members(pair->source, members, &count));
  FORKED(haul_broadcast_publish(pair->source, NULL, until, &number));
  FORKED(haul_broadcast_withdraw(pair->source, 0));
  FORKED(haul_broadcast_next(pair->member, 0, until, &next));
  FORKED(haul_broadcast_receive(pair->member, version, pair->regions[1], 0, until, NULL));
  FORKED(haul_broadcast_feeders(pair->member, feeders, &count));
  FORKED(haul_broadcast_withdraw(pair->member, 0));
  pair_close(pair);
  return 0;
}

/* The parent goes on as before. */
static void a_child_of_fork_only_releases(void **state) {
  (void)state;
  struct pair pair;
  struct haul_broadcast_version version;
  struct haul_broadcast_member members[2];
  size_t count = COUNT(members);
  int status;
  pair_open(&pair, 0, MIB);
  pair_publish(&pair, NULL);
  pair_join(&pair, NULL, &version);
  pid_t child = fork();
  if (child == 0)
    _exit(calls_of_child(&pair, &version));
  assert_int_equal(waitpid(child, &status, 0), child);
  assert_true(WIFEXITED(status));
  assert_int_equal(WEXITSTATUS(status), 0);
  assert_works(haul_broadcast_members(pair.source, members, &count));
  assert_int_equal(count, 1);
  assert_int_equal(members[0].state, HAUL_BROADCAST_WAITING);
  assert_works(haul_broadcast_receive(pair.member, &version, pair.regions[1], 0,
                                      haul_deadline_in(20 * S), NULL));
  pattern_check(haul_region_address(pair.regions[1]), MIB, 3);
  pair_close(&pair);
}

/* ---- A source that ends ---- */

static int end_source(void *user, uint64_t bytes) {
  (void)bytes;
  struct pair *pair = user;
  if (pair->source)
    source_end(pair);
  return 0;
}

/* Its node refuses connections then. */
static void a_source_that_ended_makes_its_version_stale(void **state) {
  (void)state;
  struct pair pair;
  struct haul_broadcast_options options = HAUL_BROADCAST_OPTIONS_INIT;
  struct haul_broadcast_version version;
  options.progress = end_source;
  options.user = &pair;
  pair_open(&pair, SLOW, 16 * MIB);
  pair_publish(&pair, NULL);
  pair_join(&pair, &options, &version);
  assert_fails(HAUL_ESTALE, haul_broadcast_receive(pair.member, &version, pair.regions[1], 0,
                                                   haul_deadline_in(60 * S), NULL));
  assert_non_null(strstr(haul_error_last()->text, "the source has ended"));
  pair_close(&pair);
}

/* ---- A source whose bytes change ---- */

/* What `progress` sees. */
struct watch {
  struct pair *pair;
  bool saw_wrong_bytes;
};

static int watch_source(void *user, uint64_t bytes) {
  struct watch *watch = user;
  struct haul_broadcast_feeder feeders[2];
  size_t count = COUNT(feeders);
  (void)bytes;
  assert_works(haul_broadcast_feeders(watch->pair->member, feeders, &count));
  for (size_t i = 0; i < count; i++)
    watch->saw_wrong_bytes |= feeders[i].source && strcmp(feeders[i].reason, "wrong bytes") == 0;
  return 0;
}

static void wrong_bytes_of_the_source_end_the_call(void **state) {
  (void)state;
  struct pair pair;
  struct watch watch = {.pair = &pair};
  struct haul_broadcast_options options = HAUL_BROADCAST_OPTIONS_INIT;
  struct haul_broadcast_report report = HAUL_BROADCAST_REPORT_INIT;
  struct haul_broadcast_version version;
  options.progress = watch_source;
  options.user = &watch;
  pair_open(&pair, 0, MIB);
  pair_publish(&pair, NULL);
  pair_join(&pair, &options, &version);
  ((char *)haul_region_address(pair.regions[0]))[MIB / 2] ^= 1;
  ((char *)haul_region_address(pair.regions[0]))[MIB - 1] ^= 1;
  int code = haul_broadcast_receive(pair.member, &version, pair.regions[1], 0,
                                    haul_deadline_in(2 * S), &report);
  if (code == HAUL_ETIMEDOUT && report.corrupt) /* not on a machine that is very slow */
    assert_non_null(strstr(haul_error_last()->text, "the source sent wrong bytes"));
  assert_fails(HAUL_ECHECKSUM, haul_broadcast_receive(pair.member, &version, pair.regions[1], 0,
                                                      haul_deadline_in(60 * S), &report));
  assert_non_null(strstr(haul_error_last()->text, "did they change?"));
  assert_int_equal(report.bytes, MIB - 2 * version.chunk);
  assert_true(report.corrupt > 2);
  assert_true(watch.saw_wrong_bytes);
  pair_close(&pair);
}

/* ---- A list of members that a peer damaged ---- */

/* Writes bytes over it, as each peer may. */
static void damage_list(struct pair *pair, uint64_t length) {
  struct haul_place host = {HAUL_HOST, 0};
  struct haul_piece piece = {0, 0, length};
  haul_peer *peer;
  haul_remote *list;
  haul_region *bytes;
  assert_works(haul_peer_connect(pair->nodes[1], pair->address, haul_deadline_in(20 * S), &peer));
  assert_works(haul_peer_lookup(peer, "x.members", haul_deadline_in(20 * S), &list));
  assert_works(haul_region_alloc(pair->nodes[1], host, length, HAUL_REGION_PRIVATE, &bytes));
  memset(haul_region_address(bytes), 0xa5, length);
  assert_works(haul_write(list, bytes, &piece, 1, NULL, NULL));
  haul_region_release(bytes);
  haul_remote_release(list);
  haul_peer_close(peer);
}

/* Newcomers are refused until the source looks at it. The member that was there enters again. */
static void the_source_rebuilds_its_list(void **state) {
  (void)state;
  const uint64_t lengths[] = {1, sizeof(struct board), card_offset(2)};
  struct haul_broadcast_member members[4];
  struct haul_broadcast_options options = HAUL_BROADCAST_OPTIONS_INIT;
  for (size_t i = 0; i < COUNT(lengths); i++) {
    struct pair pair;
    struct haul_broadcast_version version;
    haul_broadcast *other;
    size_t count = 0;
    pair_open(&pair, 0, MIB);
    pair_publish(&pair, NULL);
    pair_join(&pair, NULL, &version);
    damage_list(&pair, lengths[i]);
    options.member = "other";
    options.address = "tcp://h:1";
    assert_fails(HAUL_EPROTO, haul_broadcast_join(pair.nodes[1], pair.address, "x", &options,
                                                  haul_deadline_in(20 * S), &other));
    assert_works(haul_broadcast_members(pair.source, members, &count));
    assert_works(haul_broadcast_join(pair.nodes[1], pair.address, "x", &options,
                                     haul_deadline_in(20 * S), &other));
    for (int tries = 0; tries < 200 && count != 2; tries++) {
      assert_fails(HAUL_ETIMEDOUT, haul_broadcast_next(pair.member, version.number,
                                                       haul_deadline_in(S / 10), &version));
      count = COUNT(members);
      assert_works(haul_broadcast_members(pair.source, members, &count));
    }
    assert_int_equal(count, 2);
    assert_works(haul_broadcast_receive(pair.member, &version, pair.regions[1], 0,
                                        haul_deadline_in(20 * S), NULL));
    haul_broadcast_close(other);
    pair_close(&pair);
  }
}

int main(void) {
#ifdef __SANITIZE_THREAD__
  printf("skipped all: members read chunks that may change, and verify them; the thread sanitizer "
         "reports that\n");
  return 77;
#endif
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(a_child_of_fork_only_releases),
      cmocka_unit_test(a_source_that_ended_makes_its_version_stale),
      cmocka_unit_test(wrong_bytes_of_the_source_end_the_call),
      cmocka_unit_test(the_source_rebuilds_its_list),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
