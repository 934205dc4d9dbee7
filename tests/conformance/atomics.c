/* SPDX-License-Identifier: MIT
 * Atomic operations, for all transports: old and new values, atomicity under concurrency, and
 * rejections. The owner is another process, whose processor takes part where the path is atomic
 * with processors. */
#include "support/check.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "support/names.h"
#include "support/owner.h"
#include "support/seams.h"

#define LENGTH 65536u
#define BOUND  (20 * S)
#define BOTH   (HAUL_READ | HAUL_WRITE)
#define AT     4096u /* the offset of the operands, on both sides */

struct variant {
  const char *only, *address;
};

static const char *const kind_names[] = {"host", "private", "wrapped", "sim"};
static const enum memory_kind kinds[] = {KIND_HOST, KIND_PRIVATE, KIND_WRAPPED, KIND_SIM};
#define KINDS COUNT(kinds)

static struct {
  const struct variant *variant;
  struct owner owner;
  struct haul_node *node;
  struct haul_peer *peer;
  struct haul_region *regions[KINDS];
  struct haul_remote *remotes[KINDS];
  unsigned descriptors;
} t;

static int set_up(void **state) {
  t.variant = *state;
  device_start();
  t.descriptors = open_descriptors();
  owner_start(&t.owner, t.variant->address, NULL);
  const struct haul_node_config config = patient_config();
  assert_works(haul_node_open(&config, &t.node));
  assert_works(haul_peer_connect(t.node, t.owner.address, haul_deadline_in(BOUND), &t.peer));
  for (unsigned i = 0; i < KINDS; i++) {
    assert_int_equal(owner_publish(&t.owner, i, kinds[i], LENGTH, kind_names[i], BOTH), 0);
    assert_works(haul_peer_lookup(t.peer, kind_names[i], haul_deadline_in(BOUND), &t.remotes[i]));
    t.regions[i] = region_make(t.node, kinds[i], LENGTH);
    region_fill(t.node, t.regions[i], 0, LENGTH, 1);
    owner_fill(&t.owner, i, 0, LENGTH, 2);
  }
  return 0;
}

static int tear_down(void **state) {
  (void)state;
  for (unsigned i = 0; i < KINDS; i++) {
    haul_remote_release(t.remotes[i]);
    region_drop(t.regions[i], kinds[i]);
  }
  haul_peer_close(t.peer);
  haul_node_close(t.node);
  if (owner_end(&t.owner) != 0)
    return -1;
  assert_int_equal(open_descriptors(), t.descriptors);
  assert_int_equal(haul_mappings(), 0);
  memset(&t, 0, sizeof t);
  return 0;
}

static bool is_path(const char *path) {
  return strcmp(t.variant->only, path) == 0;
}

/* The owner's processor runs the operation, and the path delivers the old value: each must reach
 * its memory. */
static bool is_closed(enum memory_kind local, enum memory_kind remote) {
  if (remote == KIND_SIM || (local == KIND_SIM && !is_path("tcp")))
    return true;
  return is_path("map") && remote != KIND_HOST;
}

/* Over a NIC operations are atomic only among themselves. */
static bool has_processor(void) {
  return !is_path("rdma");
}

static struct haul_transfer_options path_options(void) {
  struct haul_transfer_options options = HAUL_TRANSFER_OPTIONS_INIT;
  options.only = t.variant->only;
  return options;
}

static int add(struct haul_region *region, struct haul_remote *remote, uint64_t value) {
  struct haul_transfer_options options = path_options();
  return haul_fetch_add(region, AT, remote, AT, value, &options, NULL);
}

static int swap(struct haul_region *region, struct haul_remote *remote, uint64_t expected,
                uint64_t desired) {
  struct haul_transfer_options options = path_options();
  return haul_compare_swap(region, AT, remote, AT, expected, desired, &options, NULL);
}

/* The number at AT, in memory of any kind. */
static uint64_t local_number(struct haul_region *region) {
  struct haul_region *copy = region_make(t.node, KIND_HOST, 8);
  uint64_t number;
  assert_works(haul_region_copy(copy, 0, region, AT, 8, HAUL_FOREVER));
  memcpy(&number, haul_region_address(copy), 8);
  haul_region_release(copy);
  return number;
}

static void set_number(struct haul_remote *remote, uint64_t number) {
  struct haul_region *source = region_make(t.node, KIND_HOST, 8);
  struct haul_transfer_options options = path_options();
  memcpy(haul_region_address(source), &number, 8);
  assert_works(haul_write(remote, source, &(struct haul_piece){0, AT, 8}, 1, &options, NULL));
  haul_region_release(source);
}

static uint64_t number_of(struct haul_remote *remote) {
  struct haul_region *copy = region_make(t.node, KIND_HOST, 8);
  struct haul_transfer_options options = path_options();
  uint64_t number;
  assert_works(haul_read(copy, remote, &(struct haul_piece){0, AT, 8}, 1, &options, NULL));
  memcpy(&number, haul_region_address(copy), 8);
  haul_region_release(copy);
  return number;
}

static void check_pair(unsigned local, unsigned remote) {
  struct haul_region *here = t.regions[local];
  struct haul_remote *there = t.remotes[remote];
  set_number(there, UINT64_MAX - 1);
  assert_works(add(here, there, 3));
  assert_true(local_number(here) == UINT64_MAX - 1);
  assert_true(number_of(there) == 1);
  assert_works(swap(here, there, 2, 9)); /* it is 1 */
  assert_true(local_number(here) == 1);
  assert_true(number_of(there) == 1);
  assert_works(swap(here, there, 1, UINT64_C(0x8070605040302010)));
  assert_true(local_number(here) == 1);
  assert_true(number_of(there) == UINT64_C(0x8070605040302010));
  assert_works(add(here, there, 0));
  assert_true(local_number(here) == UINT64_C(0x8070605040302010));
}

static void old_values_are_returned_and_new_ones_stored(void **state) {
  (void)state;
  for (unsigned local = 0; local < KINDS; local++)
    for (unsigned remote = 0; remote < KINDS; remote++)
      if (!is_closed(kinds[local], kinds[remote]))
        check_pair(local, remote);
}

static void bytes_around_are_not_modified(void **state) {
  (void)state;
  const uint64_t rest = LENGTH - AT - 8;
  uint64_t before = owner_sum(&t.owner, 0, 0, AT), behind = owner_sum(&t.owner, 0, AT + 8, rest);
  uint64_t own_before = region_sum(t.node, t.regions[0], 0, AT);
  uint64_t own_behind = region_sum(t.node, t.regions[0], AT + 8, rest);
  assert_works(add(t.regions[0], t.remotes[0], UINT64_MAX));
  assert_works(swap(t.regions[0], t.remotes[0], number_of(t.remotes[0]), 5));
  assert_true(owner_sum(&t.owner, 0, 0, AT) == before);
  assert_true(owner_sum(&t.owner, 0, AT + 8, rest) == behind);
  assert_true(region_sum(t.node, t.regions[0], 0, AT) == own_before);
  assert_true(region_sum(t.node, t.regions[0], AT + 8, rest) == own_behind);
}

static void a_closed_path_is_rejected_with_the_reason(void **state) {
  (void)state;
  for (unsigned local = 0; local < KINDS; local++)
    for (unsigned remote = 0; remote < KINDS; remote++) {
      if (!is_closed(kinds[local], kinds[remote]))
        continue;
      assert_fails(HAUL_ENOPATH, add(t.regions[local], t.remotes[remote], 1));
      assert_non_null(strstr(haul_error_last()->hint, t.variant->only));
    }
}

static void the_report_names_the_operation(void **state) {
  (void)state;
  struct haul_transfer *transfer;
  struct haul_transfer_options options = path_options();
  struct haul_report report = HAUL_REPORT_INIT;
  char text[2048];
  assert_works(haul_compare_swap(t.regions[0], AT, t.remotes[0], AT, 1, 2, &options, &transfer));
  assert_works(haul_transfer_wait(transfer, haul_deadline_in(BOUND)));
  assert_works(haul_transfer_report(transfer, &report));
  haul_report_format(&report, text, sizeof text);
  haul_transfer_release(transfer);
  assert_int_equal(report.operation, HAUL_OP_COMPARE_SWAP);
  assert_int_equal(report.bytes, 8);
  assert_int_equal(report.pieces, 1);
  assert_int_equal(report.slices, 1);
  assert_int_equal(report.retries, 0);
  assert_string_equal(report.paths[0].name, t.variant->only);
  assert_ptr_equal(strstr(text, "compare-swap 8 B"), text);
}

/* Without `only` the chosen path is also atomic with processors. */
static void explain_supports_atomics(void **state) {
  (void)state;
  struct haul_path paths[HAUL_PATHS_MAX];
  struct haul_transfer_options options = path_options();
  size_t count = HAUL_PATHS_MAX;
  assert_works(
      haul_explain(t.regions[0], t.remotes[0], HAUL_OP_FETCH_ADD, 8, &options, paths, &count));
  assert_string_equal(paths[0].name, t.variant->only);
  assert_int_equal(paths[0].chosen, 1);
  count = HAUL_PATHS_MAX;
  assert_works(
      haul_explain(t.regions[0], t.remotes[0], HAUL_OP_COMPARE_SWAP, 8, NULL, paths, &count));
  assert_int_equal(paths[0].chosen, 1);
  for (size_t i = 0; i < count && is_path("rdma"); i++)
    if (strcmp(paths[i].name, "rdma") == 0)
      assert_non_null(strstr(paths[i].reason, "only = \"rdma\""));
  count = HAUL_PATHS_MAX;
  assert_fails(HAUL_EINVAL, haul_explain(t.regions[0], t.remotes[0], HAUL_OP_FETCH_ADD, 16, NULL,
                                         paths, &count));
}

#define THREADS 4
#define TIMES   (SANITIZED ? 100u : 500u)

/* Half of them have a connection of their own. */
struct adder {
  pthread_t thread;
  struct haul_region *region;
  struct haul_remote *remote;
  bool swaps;
};

/* Adds 1 by compare-and-swap. */
static void add_by_swaps(struct adder *adder) {
  uint64_t *seen = (uint64_t *)(void *)((char *)haul_region_address(adder->region) + AT);
  uint64_t expected;
  assert_works(add(adder->region, adder->remote, 0));
  do {
    expected = *seen;
    assert_works(swap(adder->region, adder->remote, expected, expected + 1));
  } while (*seen != expected);
}

static void *add_often(void *user) {
  struct adder *adder = user;
  for (unsigned i = 0; i < TIMES; i++)
    if (adder->swaps)
      add_by_swaps(adder);
    else
      assert_works(add(adder->region, adder->remote, 1));
  return NULL;
}

static void *processor_adds(void *user) {
  (void)user;
  owner_add(&t.owner, 0, AT, 1000 * TIMES);
  return NULL;
}

static void concurrent_additions_sum_up(void **state) {
  (void)state;
  struct adder adders[THREADS] = {{0}};
  struct haul_node *other;
  struct haul_peer *peer;
  struct haul_remote *remote;
  pthread_t processor;
  assert_works(haul_node_open(NULL, &other));
  assert_works(haul_peer_connect(other, t.owner.address, haul_deadline_in(BOUND), &peer));
  assert_works(haul_peer_lookup(peer, kind_names[0], haul_deadline_in(BOUND), &remote));
  /* By an atomic: the thread sanitizer does not see that the owner adds later. */
  assert_works(add(t.regions[0], t.remotes[0], 0));
  uint64_t all = local_number(t.regions[0]) + THREADS * TIMES;
  if (has_processor())
    pthread_create(&processor, NULL, processor_adds, NULL);
  for (unsigned i = 0; i < THREADS; i++) {
    adders[i].region = region_make(i % 2 ? other : t.node, KIND_HOST, LENGTH);
    adders[i].remote = i % 2 ? remote : t.remotes[0];
    adders[i].swaps = i < THREADS / 2;
    pthread_create(&adders[i].thread, NULL, add_often, &adders[i]);
  }
  for (unsigned i = 0; i < THREADS; i++) {
    pthread_join(adders[i].thread, NULL);
    haul_region_release(adders[i].region);
  }
  if (has_processor())
    pthread_join(processor, NULL);
  assert_works(add(t.regions[0], t.remotes[0], 0));
  assert_true(local_number(t.regions[0]) == all + (has_processor() ? 1000 * TIMES : 0));
  haul_remote_release(remote);
  haul_peer_close(peer);
  haul_node_close(other);
}

/* More than any window holds; each returns a different old value. */
static void concurrent_atomics_run_once_each(void **state) {
  (void)state;
  enum { MANY = 600 };
  static struct haul_transfer *transfers[MANY];
  static bool seen[MANY];
  struct haul_transfer_options options = path_options();
  memset(seen, 0, sizeof seen);
  set_number(t.remotes[0], 0);
  for (uint64_t i = 0; i < MANY; i++)
    assert_works(haul_fetch_add(t.regions[0], 8 * i, t.remotes[0], AT, 1, &options, &transfers[i]));
  for (unsigned i = 0; i < MANY; i++) {
    assert_works(haul_transfer_wait(transfers[i], haul_deadline_in(BOUND)));
    haul_transfer_release(transfers[i]);
    uint64_t old = ((uint64_t *)haul_region_address(t.regions[0]))[i];
    assert_true(old < MANY && !seen[old]);
    seen[old] = true;
  }
  assert_true(number_of(t.remotes[0]) == MANY);
}

/* A canceled one has taken place once or not at all, the others once. */
static void canceled_atomics_run_at_most_once(void **state) {
  (void)state;
  enum { MANY = 300 };
  static struct haul_transfer *transfers[MANY];
  struct haul_transfer_options options = path_options();
  unsigned done = 0;
  set_number(t.remotes[0], 0);
  for (uint64_t i = 0; i < MANY; i++) {
    assert_works(haul_fetch_add(t.regions[0], 8 * i, t.remotes[0], AT, 1, &options, &transfers[i]));
    if (i % 3 == 0)
      assert_works(haul_transfer_cancel(transfers[i]));
  }
  for (unsigned i = 0; i < MANY; i++) {
    int code = haul_transfer_wait(transfers[i], haul_deadline_in(BOUND));
    assert_true(code == 0 || (code == HAUL_ECANCELED && i % 3 == 0));
    done += code == 0;
    haul_transfer_release(transfers[i]);
  }
  assert_works(add(t.regions[0], t.remotes[0], 0));
  assert_in_range(number_of(t.remotes[0]), done, MANY);
}

/* A message arrives after works that were posted before it. */
static void a_message_arrives_after_earlier_atomics(void **state) {
  (void)state;
  struct haul_transfer *transfer;
  struct haul_transfer_options options = path_options();
  uint64_t tag, length, sum;
  for (unsigned i = 0; i < 20; i++) {
    set_number(t.remotes[0], i);
    assert_works(haul_fetch_add(t.regions[0], AT, t.remotes[0], AT, 1, &options, &transfer));
    assert_works(haul_message_send(t.peer, i, "x", 1, haul_deadline_in(BOUND)));
    assert_int_equal(owner_receive(&t.owner, 0, LENGTH, &tag, &length, &sum), 0);
    assert_works(haul_transfer_wait(transfer, haul_deadline_in(BOUND)));
    haul_transfer_release(transfer);
    assert_true(number_of(t.remotes[0]) == i + 1);
    assert_true(owner_sum(&t.owner, 0, 0, LENGTH) == sum);
  }
}

static int add_at(uint64_t local, uint64_t remote) {
  struct haul_transfer_options options = path_options();
  return haul_fetch_add(t.regions[0], local, t.remotes[0], remote, 1, &options, NULL);
}

static void invalid_offsets_are_rejected(void **state) {
  (void)state;
  uint64_t before = owner_sum(&t.owner, 0, 0, LENGTH);
  for (uint64_t i = 1; i < 8; i++) {
    assert_fails(HAUL_EINVAL, add_at(i, 0));
    assert_fails(HAUL_EINVAL, add_at(0, LENGTH - 16 + i));
  }
  const uint64_t outside[] = {LENGTH, LENGTH - 4, LENGTH + 8, UINT64_MAX - 7, UINT64_MAX / 2 + 1};
  for (size_t i = 0; i < COUNT(outside); i++) {
    assert_fails(HAUL_ERANGE, add_at(outside[i], 0));
    assert_fails(HAUL_ERANGE, add_at(0, outside[i]));
  }
  assert_true(owner_sum(&t.owner, 0, 0, LENGTH) == before);
  assert_works(add_at(LENGTH - 8, LENGTH - 8));
}

static void invalid_handles_and_options_are_rejected(void **state) {
  (void)state;
  struct haul_transfer_options options = path_options();
  struct haul_node *other;
  assert_fails(HAUL_EINVAL, add(NULL, t.remotes[0], 1));
  assert_fails(HAUL_EINVAL, add(t.regions[0], NULL, 1));
  assert_fails(HAUL_EINVAL, swap(NULL, t.remotes[0], 1, 2));
  options.flags = HAUL_CHECKSUM;
  assert_fails(HAUL_EINVAL, haul_fetch_add(t.regions[0], 0, t.remotes[0], 0, 1, &options, NULL));
  options.flags = HAUL_REQUIRE_ZERO_COPY;
  int code = haul_fetch_add(t.regions[0], 0, t.remotes[0], 0, 1, &options, NULL);
  assert_int_equal(code, is_path("tcp") ? HAUL_ENOPATH : 0);
  assert_works(haul_node_open(NULL, &other));
  struct haul_region *foreign = region_make(other, KIND_HOST, LENGTH);
  assert_fails(HAUL_EINVAL, add(foreign, t.remotes[0], 1));
  haul_region_release(foreign);
  haul_node_close(other);
}

static void both_rights_are_required(void **state) {
  (void)state;
  const unsigned rights[] = {HAUL_READ, HAUL_WRITE};
  for (unsigned i = 0; i < COUNT(rights); i++) {
    struct haul_remote *remote;
    struct haul_path paths[HAUL_PATHS_MAX];
    size_t count = HAUL_PATHS_MAX;
    assert_int_equal(owner_publish(&t.owner, 8, KIND_HOST, LENGTH, "one", rights[i]), 0);
    assert_works(haul_peer_lookup(t.peer, "one", haul_deadline_in(BOUND), &remote));
    assert_fails(HAUL_EACCESS, add(t.regions[0], remote, 1));
    assert_fails(HAUL_EACCESS, swap(t.regions[0], remote, 1, 2));
    assert_fails(HAUL_EACCESS,
                 haul_explain(t.regions[0], remote, HAUL_OP_FETCH_ADD, 8, NULL, paths, &count));
    haul_remote_release(remote);
  }
}

/* The offsets are multiples of 8, but the address is not. */
static void misaligned_memory_of_the_owner_is_rejected(void **state) {
  (void)state;
  static _Alignas(4096) char bytes[8192];
  struct haul_node *owner;
  struct haul_region *region;
  struct haul_peer *peer;
  struct haul_remote *remote;
  char address[160];
  assert_works(haul_node_open(NULL, &owner));
  assert_works(haul_node_listen(owner, "tcp://127.0.0.1:0"));
  assert_works(haul_node_address(owner, 0, address, sizeof address));
  assert_works(haul_region_wrap(owner, bytes + 4, 4096, &region));
  assert_works(haul_region_publish(region, "misaligned", BOTH));
  assert_works(haul_peer_connect(t.node, address, haul_deadline_in(BOUND), &peer));
  assert_works(haul_peer_lookup(peer, "misaligned", haul_deadline_in(BOUND), &remote));
  struct haul_transfer_options options = path_options();
  int code = haul_fetch_add(t.regions[0], 0, remote, 0, 1, &options, NULL);
  assert_int_equal(code, is_path("tcp") ? HAUL_EINVAL : HAUL_ENOPATH);
  for (size_t i = 0; i < sizeof bytes; i++)
    assert_int_equal(bytes[i], 0);
  haul_remote_release(remote);
  haul_peer_close(peer);
  haul_region_release(region);
  haul_node_close(owner);
}

static void an_unpublished_region_is_stale(void **state) {
  (void)state;
  struct haul_remote *again;
  assert_works(add(t.regions[0], t.remotes[0], 1));
  assert_int_equal(owner_unpublish(&t.owner, 0, "host"), 0);
  uint64_t before = owner_sum(&t.owner, 0, 0, LENGTH);
  assert_fails(HAUL_ESTALE, add(t.regions[0], t.remotes[0], 1));
  assert_fails(HAUL_ESTALE, swap(t.regions[0], t.remotes[0], 1, 2));
  assert_true(owner_sum(&t.owner, 0, 0, LENGTH) == before);
  assert_int_equal(owner_name(&t.owner, 0, "host", BOTH), 0);
  assert_works(haul_peer_lookup(t.peer, "host", haul_deadline_in(BOUND), &again));
  assert_works(add(t.regions[0], again, 1));
  haul_remote_release(again);
}

static int run_over(const struct variant *variant) {
#define CASE(test)                                                                                 \
  { #test, test, set_up, tear_down, (void *)(uintptr_t)variant }
  const struct CMUnitTest tests[] = {
      CASE(old_values_are_returned_and_new_ones_stored),
      CASE(bytes_around_are_not_modified),
      CASE(a_closed_path_is_rejected_with_the_reason),
      CASE(the_report_names_the_operation),
      CASE(explain_supports_atomics),
      CASE(concurrent_additions_sum_up),
      CASE(concurrent_atomics_run_once_each),
      CASE(canceled_atomics_run_at_most_once),
      CASE(a_message_arrives_after_earlier_atomics),
      CASE(invalid_offsets_are_rejected),
      CASE(invalid_handles_and_options_are_rejected),
      CASE(both_rights_are_required),
      CASE(misaligned_memory_of_the_owner_is_rejected),
      CASE(an_unpublished_region_is_stale),
  };
  char name[80];
  snprintf(name, sizeof name, "%s over %.12s", variant->only, variant->address);
  return cmocka_run_group_tests_name(name, tests, NULL, NULL);
}

/* atomics [NUMBER | PATH ADDRESS]: all variants, one of them, or one that only some hosts have. */
int main(int argc, char **argv) {
  if (argc > 1 && strcmp(argv[1], OWNER_MODE) == 0)
    return owner_main();
  if (argc > 2)
    return run_over(&(struct variant){argv[1], argv[2]});
  const struct variant variants[] = {
      {"map", own_socket()},
      {"map", "tcp://127.0.0.1:0"},
      {"tcp", "tcp://127.0.0.1:0"},
      {"tcp", own_socket()},
  };
  int failed = 0;
  for (size_t i = 0; i < COUNT(variants); i++)
    if (argc == 1 || strtoul(argv[1], NULL, 10) == i)
      failed += run_over(&variants[i]);
  return failed;
}
