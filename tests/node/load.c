/* SPDX-License-Identifier: MIT
 * Many transfers at once between one node and peers that are processes: all are under way before
 * the first can end, every byte arrives where it should, and the node is then as it was without
 * peers. The bench of this name is the same with more of everything. */
#include "support/check.h"

#include <stdlib.h>
#include <string.h>

#include "support/load_rig.h"
#include "support/owner.h"
#include "support/seams.h"

#define ROUNDS 2

/* On a slow machine what is held is neither late nor gone. */
static const struct load_job job = {
    .peers = SANITIZED ? 4 : 8,
    .regions = SANITIZED ? 40 : 200,
    .count = SANITIZED ? 400 : 2000,
    .most = SANITIZED ? UINT64_C(1) << 17 : UINT64_C(1) << 20,
    .seed = 20,
    .liveness_ns = 120 * S,
    .transfer_ns = 200 * S,
};

static const struct haul_path_stats *tcp_of(const struct haul_node_stats *stats) {
  for (unsigned i = 0; i < HAUL_STATS_PATHS; i++)
    if (strcmp(stats->paths[i].path, "tcp") == 0)
      return &stats->paths[i];
  fail_msg("the counters know no tcp");
  return NULL;
}

static struct haul_node_stats stats_of(const struct load_rig *rig) {
  struct haul_node_stats stats;
  size_t none = 0;
  assert_works(haul_node_stats(rig->node, &stats, NULL, &none));
  return stats;
}

static uint64_t transfers_bytes(const struct load_rig *rig) {
  uint64_t bytes;
  assert_works(haul_counter_read(rig->node, "node.transfers_bytes", &bytes));
  return bytes;
}

/* What the rounds were, to the byte, by the side that posted and by the one that answered. */
static void check_counted(const struct load_rig *rig, const struct haul_node_stats *stats) {
  const struct haul_path_stats *tcp = tcp_of(stats);
  uint64_t in = ROUNDS * load_bytes(&rig->plan, true);
  uint64_t out = ROUNDS * load_bytes(&rig->plan, false);
  uint64_t count = (uint64_t)ROUNDS * rig->job.count;
  if (rig->job.node_posts) {
    assert_int_equal(stats->posted, count);
    assert_int_equal(tcp->bytes_in, in);
    assert_int_equal(tcp->bytes_out, out);
  } else {
    assert_int_equal(stats->posted, 0);
    assert_int_equal(tcp->served, count);
    assert_int_equal(tcp->served_in, in);
    assert_int_equal(tcp->served_out, out);
  }
  assert_int_equal(stats->failed, 0);
  assert_int_equal(stats->retried, 0);
  assert_int_equal(tcp->errors, 0);
}

static void hold_load(int node_posts) {
  static struct load_rig rig;
  struct load_job this = job;
  this.node_posts = node_posts;
  unsigned before = open_descriptors();
  load_rig_open(&rig, &this);
  struct haul_node_stats alone = stats_of(&rig);
  uint64_t descriptors = load_rig_use(&rig).descriptors;
  load_rig_connect(&rig);
  assert_int_equal(stats_of(&rig).peers, job.peers);
  load_rig_look_up(&rig);
  for (unsigned round = 1; round <= ROUNDS; round++) {
    load_rig_fill(&rig, round);
    assert_int_equal(load_rig_post(&rig), job.count);
    load_rig_go(&rig);
    assert_int_equal(load_rig_check(&rig), 0);
  }
  load_rig_leave(&rig);
  struct haul_node_stats stats = stats_of(&rig);
  check_counted(&rig, &stats);
  assert_int_equal(stats.transfers, 0);
  assert_int_equal(stats.published, alone.published);
  assert_int_equal(stats.staging_bytes, alone.staging_bytes);
  assert_int_equal(transfers_bytes(&rig), 0);
  assert_int_equal(load_rig_use(&rig).descriptors, descriptors);
  load_rig_close(&rig);
  assert_int_equal(open_descriptors(), before);
  assert_int_equal(haul_mappings(), 0);
}

static void all_that_peers_post_at_once_arrives(void **state) {
  (void)state;
  hold_load(0);
}

static void all_that_a_node_posts_at_once_arrives(void **state) {
  (void)state;
  hold_load(1);
}

static void make_round(const struct load_plan *plan, char **regions, char **memories) {
  for (unsigned i = 0; i < plan->regions; i++)
    load_fill_region(plan, i, 1, regions[i]);
  for (unsigned i = 0; i < plan->peers; i++)
    load_fill_memory(plan, i, 1, memories[i]);
  for (unsigned i = 0; i < plan->count; i++) {
    const struct load_move *move = &plan->moves[i];
    char *here = regions[move->region] + move->here, *there = memories[move->peer] + move->there;
    memcpy(move->to_node ? here : there, move->to_node ? there : here, move->length);
  }
}

/* Each byte is one that is looked at: where it is another one, that is said. */
static void check_bytes(const struct load_plan *plan, bool memory, unsigned index, char *bytes) {
  bool (*check)(const struct load_plan *, unsigned, unsigned, const void *, uint64_t *) =
      memory ? load_check_memory : load_check_region;
  uint64_t length = memory ? plan->memory_lengths[index] : plan->region_lengths[index], at;
  assert_true(check(plan, index, 1, bytes, &at));
  assert_false(check(plan, index, 2, bytes, &at));
  for (uint64_t i = 0; i < length; i++) {
    bytes[i] ^= 1;
    assert_false(check(plan, index, 1, bytes, &at));
    assert_int_equal(at, i);
    bytes[i] ^= 1;
  }
}

static void a_wrong_byte_is_found(void **state) {
  struct load_plan plan;
  char *regions[5], *memories[3];
  (void)state;
  assert_true(load_plan_make(&plan, COUNT(memories), COUNT(regions), 20, 256, 1));
  for (unsigned i = 0; i < COUNT(regions); i++)
    regions[i] = calloc(1, plan.region_lengths[i]);
  for (unsigned i = 0; i < COUNT(memories); i++)
    memories[i] = calloc(1, plan.memory_lengths[i]);
  make_round(&plan, regions, memories);
  for (unsigned i = 0; i < COUNT(regions); i++)
    check_bytes(&plan, false, i, regions[i]);
  for (unsigned i = 0; i < COUNT(memories); i++)
    check_bytes(&plan, true, i, memories[i]);
  for (unsigned i = 0; i < COUNT(regions); i++)
    free(regions[i]);
  for (unsigned i = 0; i < COUNT(memories); i++)
    free(memories[i]);
  load_plan_free(&plan);
}

int main(int argc, char **argv) {
  if (argc > 1 && strcmp(argv[1], LOAD_PEER_MODE) == 0)
    return load_peer_main();
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(a_wrong_byte_is_found),
      cmocka_unit_test(all_that_peers_post_at_once_arrives),
      cmocka_unit_test(all_that_a_node_posts_at_once_arrives),
  };
  return cmocka_run_group_tests_name("load", tests, NULL, NULL);
}
