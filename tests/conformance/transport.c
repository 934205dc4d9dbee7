/* SPDX-License-Identifier: MIT
 * One suite for all transports: the same tests run over each transport and each kind of connection
 * that it supports. A new transport is done when it passes; transport_faults.c has the failures.
 * The remote memory is in another process, which computes its checksum after each transfer,
 * together with the bytes around it. */
#include "support/check.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

#include "memory/pages.h"
#include "memory/provider.h"
#include "support/names.h"
#include "support/owner.h"
#include "support/seams.h"

#define MIB    ((uint64_t)1 << 20)
#define LENGTH (64 * MIB + 65536)
#define MARGIN 4096u

struct variant {
  const char *only, *address;
  bool in_process; /* the owner is a node of this process */
  bool brief;      /* another variant runs the same code: a part of the matrix is enough */
};

static const char *const kind_names[] = {"host", "private", "wrapped", "sim"};
static const enum memory_kind locals[] = {KIND_HOST, KIND_PRIVATE, KIND_WRAPPED, KIND_SIM};
static const enum memory_kind remotes[] = {KIND_HOST, KIND_WRAPPED, KIND_SIM};

static struct {
  const struct variant *variant;
  struct owner owner;
  struct haul_node *owner_node; /* in_process */
  struct haul_region *owner_regions[COUNT(remotes)];
  struct haul_node *node;
  struct haul_peer *peer;
  struct haul_region *regions[COUNT(locals)];
  struct haul_remote *remotes[COUNT(remotes)];
  unsigned descriptors;
} t;

static void start_owner(const struct variant *variant) {
  if (!variant->in_process) {
    owner_start(&t.owner, variant->address, NULL);
    for (unsigned i = 0; i < COUNT(remotes); i++)
      assert_int_equal(owner_publish(&t.owner, i, remotes[i], LENGTH, kind_names[remotes[i]],
                                     HAUL_READ | HAUL_WRITE),
                       0);
    return;
  }
  const struct haul_node_config config = patient_config();
  assert_works(haul_node_open(&config, &t.owner_node));
  assert_works(haul_node_listen(t.owner_node, variant->address));
  assert_works(haul_node_address(t.owner_node, 0, t.owner.address, sizeof t.owner.address));
  for (unsigned i = 0; i < COUNT(remotes); i++) {
    t.owner_regions[i] = region_make(t.owner_node, remotes[i], LENGTH);
    assert_works(
        haul_region_publish(t.owner_regions[i], kind_names[remotes[i]], HAUL_READ | HAUL_WRITE));
  }
}

static void fill_remote(unsigned i, uint64_t offset, uint64_t length, uint64_t seed) {
  if (t.owner_node)
    region_fill(t.owner_node, t.owner_regions[i], offset, length, seed);
  else
    owner_fill(&t.owner, i, offset, length, seed);
}

static uint64_t sum_remote(unsigned i, uint64_t offset, uint64_t length) {
  return t.owner_node ? region_sum(t.owner_node, t.owner_regions[i], offset, length)
                      : owner_sum(&t.owner, i, offset, length);
}

/* Device memory of the tests that the processor reaches. */
static bool has_view(struct haul_place place) {
  return place.kind == HAUL_DPDK;
}

static int set_up(void **state) {
  memset(&t, 0, sizeof t);
  t.variant = *state;
  device_start();
  t.descriptors = open_descriptors();
  start_owner(t.variant);
  const struct haul_node_config config = patient_config();
  assert_works(haul_node_open(&config, &t.node));
  assert_works(haul_peer_connect(t.node, t.owner.address, haul_deadline_in(10 * S), &t.peer));
  for (unsigned i = 0; i < COUNT(locals); i++)
    t.regions[i] = region_make(t.node, locals[i], LENGTH);
  for (unsigned i = 0; i < COUNT(remotes); i++)
    assert_works(
        haul_peer_lookup(t.peer, kind_names[remotes[i]], haul_deadline_in(10 * S), &t.remotes[i]));
  return 0;
}

static int tear_down(void **state) {
  (void)state;
  for (unsigned i = 0; i < COUNT(remotes); i++)
    haul_remote_release(t.remotes[i]);
  for (unsigned i = 0; i < COUNT(locals); i++)
    region_drop(t.regions[i], locals[i]);
  haul_peer_close(t.peer);
  haul_node_close(t.node);
  if (t.owner_node) {
    for (unsigned i = 0; i < COUNT(remotes); i++)
      region_drop(t.owner_regions[i], remotes[i]);
    haul_node_close(t.owner_node);
  } else {
    assert_int_equal(owner_end(&t.owner), 0);
  }
  assert_int_equal(open_descriptors(), t.descriptors);
  assert_int_equal(haul_mappings(), 0);
  return 0;
}

/* Why `map` is closed for two memories; NULL: it is open. Cross-memory attach copies between host
 * memories, so no device's engine takes part; some devices' memory cannot be shared; and no engine
 * reaches another kind of device. */
static const char *why_not(unsigned local, unsigned remote) {
  const struct provider *theirs = provider_of(owners_device_place().kind);
  bool from_device = locals[local] == KIND_SIM && !has_view(device_place());
  if (strcmp(t.variant->only, "map") != 0 || wraps_gpu())
    return NULL;
  if (remotes[remote] == KIND_WRAPPED)
    return from_device ? "private" : NULL;
  if (remotes[remote] != KIND_SIM)
    return NULL;
  if (has_view(owners_device_place()))
    return from_device ? "private" : NULL;
  if (theirs->unshareable)
    return theirs->unshareable;
  return from_device && device_place().kind != theirs->kind ? "cannot access each other" : NULL;
}

static bool is_closed(unsigned local, unsigned remote) {
  return why_not(local, remote);
}

struct job {
  unsigned local, remote;
  enum haul_operation operation;
  unsigned flags;
  bool with_handle;
};

static const char *describe(const struct job *job, uint64_t bytes, size_t pieces) {
  static char text[160];
  snprintf(text, sizeof text, "%s, %s -> %s, %s, %llu bytes in %zu pieces%s", t.variant->only,
           kind_names[locals[job->local]], kind_names[remotes[job->remote]],
           job->operation == HAUL_OP_WRITE ? "write" : "read", (unsigned long long)bytes, pieces,
           job->flags & HAUL_CHECKSUM ? ", checksum" : "");
  return text;
}

static int move(const struct job *job, const struct haul_piece *pieces, size_t count) {
  struct haul_transfer_options options = HAUL_TRANSFER_OPTIONS_INIT;
  options.only = t.variant->only;
  options.flags = job->flags;
  struct haul_remote *remote = t.remotes[job->remote];
  struct haul_region *region = t.regions[job->local];
  struct haul_transfer *transfer = NULL;
  struct haul_transfer **handle = job->with_handle ? &transfer : NULL;
  int code = job->operation == HAUL_OP_WRITE
                 ? haul_write(remote, region, pieces, count, &options, handle)
                 : haul_read(region, remote, pieces, count, &options, handle);
  if (code || !transfer)
    return code;
  code = haul_transfer_wait(transfer, HAUL_FOREVER);
  struct haul_report report = HAUL_REPORT_INIT;
  assert_works(haul_transfer_report(transfer, &report));
  assert_string_equal(report.paths[0].name, t.variant->only);
  assert_int_equal(report.status, code);
  assert_int_equal(report.checksum, job->flags & HAUL_CHECKSUM ? 1 : 0);
  assert_int_equal(report.retries, 0);
  haul_transfer_release(transfer);
  return code;
}

/* Fills the range [from, from + length) of the destination with pattern 2, that of the source with
 * pattern 1. After the transfer the destination has pattern 1 in the pieces, and pattern 2 around.
 */
static void check_move(const struct job *job, const struct haul_piece *pieces, size_t count,
                       uint64_t local_from, uint64_t remote_from, uint64_t length) {
  bool write = job->operation == HAUL_OP_WRITE;
  uint64_t bytes = 0;
  char *source = malloc(length), *wanted = malloc(length);
  pattern_fill(source, length, 1);
  pattern_fill(wanted, length, 2);
  region_fill(t.node, t.regions[job->local], local_from, length, write ? 1 : 2);
  fill_remote(job->remote, remote_from, length, write ? 2 : 1);
  for (size_t i = 0; i < count; i++) {
    uint64_t local = pieces[i].local - local_from, remote = pieces[i].remote - remote_from;
    memcpy(wanted + (write ? remote : local), source + (write ? local : remote), pieces[i].length);
    bytes += pieces[i].length;
  }
  int code = move(job, pieces, count);
  if (code)
    fail_msg("%s: %s: %s: %s", describe(job, bytes, count), haul_error_name(code),
             haul_error_last()->text, haul_error_last()->hint);
  uint64_t here = region_sum(t.node, t.regions[job->local], local_from, length);
  uint64_t there = sum_remote(job->remote, remote_from, length);
  uint64_t sum_source = XXH3_64bits(source, length), sum_wanted = XXH3_64bits(wanted, length);
  if (here != (write ? sum_source : sum_wanted) || there != (write ? sum_wanted : sum_source))
    fail_msg("%s: wrong bytes in the pieces or around them", describe(job, bytes, count));
  free(source);
  free(wanted);
}

static void check_one(const struct job *job, uint64_t size, uint64_t local_skew,
                      uint64_t remote_skew) {
  uint64_t local = MARGIN + local_skew, remote = MARGIN + remote_skew;
  struct haul_piece piece = {local, remote, size};
  check_move(job, &piece, 1, local_skew, remote_skew, size + 2 * MARGIN);
}

/* Calls `check` for every pair of memories that the variant connects, and every operation. */
static void each_pair(void (*check)(struct job *job, void *user), void *user) {
  for (unsigned local = 0; local < COUNT(locals); local++)
    for (unsigned remote = 0; remote < COUNT(remotes); remote++)
      for (unsigned operation = HAUL_OP_WRITE; operation <= HAUL_OP_READ; operation++) {
        struct job job = {.local = local, .remote = remote, .operation = operation};
        if (!is_closed(local, remote))
          check(&job, user);
      }
}

static void a_closed_path_is_rejected_with_the_reason(void **state) {
  (void)state;
  struct haul_piece piece = {0, 0, 1};
  for (unsigned local = 0; local < COUNT(locals); local++)
    for (unsigned remote = 0; remote < COUNT(remotes); remote++) {
      struct job job = {.local = local, .remote = remote, .operation = HAUL_OP_WRITE};
      if (!is_closed(local, remote))
        continue;
      assert_fails(HAUL_ENOPATH, move(&job, &piece, 1));
      assert_non_null(strstr(haul_error_last()->hint, why_not(local, remote)));
    }
}

static void check_sizes(struct job *job, void *user) {
  const uint64_t page = page_size();
  const uint64_t sizes[] = {1,       2,    7,       8,           255,         256,
                            257,     4093, page,    page + 1,    65535,       65537,
                            MIB - 1, MIB,  MIB + 1, 2 * MIB - 1, 3 * MIB + 5, page - 1};
  const unsigned skews[][2] = {{0, 0}, {1, 0}, {0, 3}, {5, 4093}};
  (void)user;
  for (size_t i = 0; i < COUNT(sizes); i++)
    for (size_t s = 0; s < COUNT(skews); s++) {
      job->flags = (i + s) % 2 ? HAUL_CHECKSUM : 0;
      job->with_handle = (i + s) % 3 == 0;
      if ((SANITIZED || t.variant->brief) && sizes[i] > 65537 && s > 0)
        continue;
      check_one(job, sizes[i], skews[s][0], skews[s][1]);
    }
}

static void every_size_and_alignment_arrives(void **state) {
  (void)state;
  each_pair(check_sizes, NULL);
}

static void check_large(struct job *job, void *user) {
  (void)user;
  job->flags = job->operation == HAUL_OP_WRITE ? HAUL_CHECKSUM : 0;
  job->with_handle = true;
  check_one(job, SANITIZED || t.variant->brief ? 8 * MIB + 1 : 20 * MIB + 1, 1, 0);
}

static void large_transfers_arrive_whole(void **state) {
  (void)state;
  each_pair(check_large, NULL);
}

/* `count` pieces of random sizes, in random order, with random gaps on both sides. */
static uint64_t scatter(struct haul_piece *pieces, size_t count, uint64_t largest, uint64_t *seed) {
  uint64_t local = MARGIN, remote = MARGIN;
  for (size_t i = 0; i < count; i++) {
    uint64_t length = 1 + next_random(seed) % largest;
    bool touches = next_random(seed) % 4 == 0;
    local += touches ? 0 : next_random(seed) % 64;
    remote += touches ? 0 : next_random(seed) % 64;
    pieces[i] = (struct haul_piece){local, remote, length};
    local += length;
    remote += length;
  }
  for (size_t i = count - 1; i > 0; i--) {
    size_t other = next_random(seed) % (i + 1);
    if (next_random(seed) % 2)
      continue; /* some stay in order, and are adjacent */
    struct haul_piece swap = pieces[i];
    pieces[i] = pieces[other];
    pieces[other] = swap;
  }
  return (local > remote ? local : remote) + MARGIN;
}

static void check_scattered(struct job *job, void *user) {
  uint64_t *seed = user;
  const struct {
    size_t count;
    uint64_t largest;
  } shapes[] = {{2, 9},    {2, 100000}, {257, 64},   {40, 9000}, /* the shapes of a brief variant */
                {255, 64}, {256, 64},   {257, 9000}, {1000, 64}, {1000, 4096},
                {3, MIB},  {40, 70000}, {5, 2 * MIB}};
  const size_t count = t.variant->brief ? 4 : COUNT(shapes);
  static struct haul_piece pieces[1000];
  for (size_t i = 0; i < count; i++) {
    if (SANITIZED && shapes[i].count * shapes[i].largest > 2 * MIB)
      continue;
    uint64_t length = scatter(pieces, shapes[i].count, shapes[i].largest, seed);
    job->flags = next_random(seed) % 2 ? HAUL_CHECKSUM : 0;
    job->with_handle = next_random(seed) % 2;
    check_move(job, pieces, shapes[i].count, 0, 0, length);
  }
}

static void scattered_pieces_arrive(void **state) {
  (void)state;
  uint64_t seed = test_seed();
  each_pair(check_scattered, &seed);
}

static void the_maximum_of_pieces_arrives(void **state) {
  (void)state;
  struct haul_piece *pieces = calloc(HAUL_PIECES_MAX, sizeof *pieces);
  for (size_t i = 0; i < HAUL_PIECES_MAX; i++)
    pieces[i] = (struct haul_piece){MARGIN + 2 * i, MARGIN + 3 * i, 1};
  struct job job = {.operation = HAUL_OP_WRITE, .with_handle = true};
  check_move(&job, pieces, HAUL_PIECES_MAX, 0, 0, 3 * HAUL_PIECES_MAX + 2 * MARGIN);
  job.operation = HAUL_OP_READ;
  check_move(&job, pieces, HAUL_PIECES_MAX, 0, 0, 3 * HAUL_PIECES_MAX + 2 * MARGIN);
  free(pieces);
}

/* Many concurrent transfers of different sizes, each into its own range. */
static void check_many(struct job *job, void *user) {
  enum { TRANSFERS_MAX = 300, PART = 70000 };
  static struct haul_transfer *transfers[TRANSFERS_MAX];
  const uint64_t count = t.variant->brief ? 100 : TRANSFERS_MAX;
  uint64_t *seed = user;
  struct haul_transfer_options options = HAUL_TRANSFER_OPTIONS_INIT;
  options.only = t.variant->only;
  struct haul_remote *remote = t.remotes[job->remote];
  struct haul_region *region = t.regions[job->local];
  uint64_t whole = count * PART;
  bool write = job->operation == HAUL_OP_WRITE;
  region_fill(t.node, region, 0, whole, write ? 1 : 2);
  fill_remote(job->remote, 0, whole, write ? 2 : 1);
  for (uint64_t i = 0; i < count; i++) {
    uint64_t cut = 1 + next_random(seed) % (PART - 1);
    struct haul_piece pieces[2] = {{i * PART + cut, i * PART + cut, PART - cut},
                                   {i * PART, i * PART, cut}};
    options.flags = next_random(seed) % 4 ? 0 : HAUL_CHECKSUM;
    assert_works(write ? haul_write(remote, region, pieces, 2, &options, &transfers[i])
                       : haul_read(region, remote, pieces, 2, &options, &transfers[i]));
  }
  for (size_t i = 0; i < count; i++) {
    assert_works(haul_transfer_wait(transfers[i], HAUL_FOREVER));
    haul_transfer_release(transfers[i]);
  }
  char *wanted = malloc(whole);
  pattern_fill(wanted, whole, 1);
  assert_int_equal(region_sum(t.node, region, 0, whole), XXH3_64bits(wanted, whole));
  assert_int_equal(sum_remote(job->remote, 0, whole), XXH3_64bits(wanted, whole));
  free(wanted);
}

static void concurrent_transfers_arrive(void **state) {
  (void)state;
  uint64_t seed = test_seed();
  each_pair(check_many, &seed);
}

static void explain_agrees_with_the_transfers(void **state) {
  (void)state;
  for (unsigned local = 0; local < COUNT(locals); local++)
    for (unsigned remote = 0; remote < COUNT(remotes); remote++) {
      struct haul_path paths[HAUL_PATHS_MAX];
      struct haul_transfer_options options = HAUL_TRANSFER_OPTIONS_INIT;
      size_t count = HAUL_PATHS_MAX;
      options.only = t.variant->only;
      assert_works(haul_explain(t.regions[local], t.remotes[remote], HAUL_OP_WRITE, MIB, &options,
                                paths, &count));
      assert_true(count >= 2);
      bool closed = is_closed(local, remote);
      for (size_t i = 0; i < count; i++) {
        bool own = strcmp(paths[i].name, t.variant->only) == 0;
        assert_int_equal(paths[i].open, own && !closed);
        assert_int_equal(paths[i].chosen, own && !closed);
        bool staged =
            own && strcmp(paths[i].name, "rdma") == 0 && strstr(paths[i].detail, "staged");
        assert_int_equal(paths[i].reason[0] == '\0', paths[i].open && !staged);
        assert_true(!paths[i].open || paths[i].cost_ns > 0);
        if (own && paths[i].open && strcmp(t.variant->only, "map") == 0 &&
            remotes[remote] == KIND_WRAPPED)
          assert_non_null(strstr(paths[i].detail, wraps_gpu() ? "IPC mapping, copied by the"
                                                              : "cross-memory attach"));
      }
    }
}

#define BULK       48
#define BULK_BYTES (MIB + MIB / 4)

static struct haul_transfer *started(unsigned remote, uint64_t offset, uint64_t length,
                                     int priority) {
  struct haul_transfer_options options = HAUL_TRANSFER_OPTIONS_INIT;
  struct haul_piece piece = {offset, offset, length};
  struct haul_transfer *transfer;
  options.only = t.variant->only;
  options.priority = priority;
  assert_works(haul_write(t.remotes[remote], t.regions[0], &piece, 1, &options, &transfer));
  return transfer;
}

/* A later transfer completes before the last of the earlier ones; true when that was still in
 * flight when the later one was posted. */
static bool passes(unsigned remote, int bulk, int later) {
  struct haul_transfer *slow[BULK];
  for (unsigned i = 0; i < BULK; i++)
    slow[i] = started(remote, i * BULK_BYTES, BULK_BYTES, bulk);
  struct haul_transfer *fast = started(remote, BULK * BULK_BYTES, 2 * MIB, later);
  bool was_behind = haul_transfer_test(slow[BULK - 1]) == 1;
  while (haul_transfer_test(fast) == 1)
    haul_node_progress(t.node, haul_deadline_in(S / 1000));
  bool passed = haul_transfer_test(slow[BULK - 1]) == 1;
  assert_works(haul_transfer_wait(fast, HAUL_FOREVER));
  haul_transfer_release(fast);
  for (unsigned i = 0; i < BULK; i++) {
    assert_works(haul_transfer_wait(slow[i], HAUL_FOREVER));
    haul_transfer_release(slow[i]);
  }
  return was_behind && passed;
}

/* On a busy machine it may take more than one attempt. */
static void higher_priorities_go_first(void **state) {
  (void)state;
  static const int priorities[][2] = {{HAUL_PRIORITY_LOW, HAUL_PRIORITY_NORMAL},
                                      {HAUL_PRIORITY_NORMAL, HAUL_PRIORITY_HIGH},
                                      {HAUL_PRIORITY_LOW, HAUL_PRIORITY_HIGH}};
  for (unsigned i = 0; i < COUNT(priorities); i++) {
    bool passed = false;
    for (unsigned tries = 0; tries < 50 && !passed; tries++)
      passed = passes(0, priorities[i][0], priorities[i][1]);
    assert_true(passed);
  }
}

static void invalid_priorities_are_rejected(void **state) {
  (void)state;
  static const int wrong[] = {2, -2, INT_MAX, INT_MIN};
  struct haul_piece piece = {0, 0, 8};
  for (unsigned i = 0; i < COUNT(wrong); i++) {
    struct haul_transfer_options options = HAUL_TRANSFER_OPTIONS_INIT;
    options.priority = wrong[i];
    assert_fails(HAUL_EINVAL, haul_write(t.remotes[0], t.regions[0], &piece, 1, &options, NULL));
  }
}

/* The caller releases its handles at once, and the transfer completes nevertheless. */
static void handles_may_be_released_before_the_end(void **state) {
  (void)state;
  struct haul_transfer_options options = HAUL_TRANSFER_OPTIONS_INIT;
  struct haul_piece piece = {0, 0, 4 * MIB};
  options.only = t.variant->only;
  for (unsigned i = 0; i < COUNT(remotes); i++) {
    struct haul_remote *remote;
    struct haul_transfer *transfer;
    if (is_closed(0, i))
      continue;
    assert_works(
        haul_peer_lookup(t.peer, kind_names[remotes[i]], haul_deadline_in(10 * S), &remote));
    assert_works(haul_write(remote, t.regions[0], &piece, 1, &options, &transfer));
    haul_transfer_release(transfer);
    haul_remote_release(remote);
    assert_works(haul_write(t.remotes[i], t.regions[0], &piece, 1, &options, NULL));
  }
}

static int run_over(const struct variant *variant) {
#define CASE(test)                                                                                 \
  { #test, test, NULL, NULL, (void *)(uintptr_t)variant }
  const struct CMUnitTest tests[] = {
      CASE(a_closed_path_is_rejected_with_the_reason),
      CASE(explain_agrees_with_the_transfers),
      CASE(every_size_and_alignment_arrives),
      CASE(scattered_pieces_arrive),
      CASE(the_maximum_of_pieces_arrives),
      CASE(concurrent_transfers_arrive),
      CASE(large_transfers_arrive_whole),
      CASE(higher_priorities_go_first),
      CASE(invalid_priorities_are_rejected),
      CASE(handles_may_be_released_before_the_end),
  };
  char name[80];
  void *state = (void *)(uintptr_t)variant;
  snprintf(name, sizeof name, "%s over %.12s%s", variant->only, variant->address,
           variant->in_process ? ", in one process" : "");
  print_message("---- %s\n", name);
  if (set_up(&state) != 0)
    return 1;
  int failed = cmocka_run_group_tests_name(name, tests, NULL, NULL);
  return failed + tear_down(&state);
}

/* transport [NUMBER [brief] | PATH ADDRESS [brief]]: all variants, one of them, or one that only
 * some hosts have. The ADDRESS "unix" is an abstract socket of this process. */
int main(int argc, char **argv) {
  if (argc > 1 && strcmp(argv[1], OWNER_MODE) == 0)
    return owner_main();
  bool brief = argc > 2 && strcmp(argv[argc - 1], "brief") == 0;
  const char *other = own_socket();
  if (argc - brief > 2)
    return run_over(
        &(struct variant){argv[1], strcmp(argv[2], "unix") == 0 ? other : argv[2], false, brief});
  char socket[64];
  snprintf(socket, sizeof socket, "unix:///tmp/haul-test-%d", (int)getpid());
  struct variant variants[] = {
      {"map", socket, false, false},
      {"map", "tcp://127.0.0.1:0", false, true}, /* through the companion */
      {"tcp", "tcp://127.0.0.1:0", false, false},
      {"tcp", "tcp://[::1]:0", false, true},
      {"tcp", other, false, true},
      {"map", other, true, true},
      {"tcp", "tcp://127.0.0.1:0", true, true},
  };
  int failed = 0;
  for (size_t i = 0; i < COUNT(variants); i++) {
    if (argc > 1 && strtoul(argv[1], NULL, 10) != i)
      continue; /* one variant, for debugging */
    if (SANITIZED && argc == 1 && (i == 1 || i == 3))
      continue;
    variants[i].brief |= brief;
    failed += run_over(&variants[i]);
  }
  return failed;
}
