/* SPDX-License-Identifier: MIT
 * Failures, for all transports: invalid arguments, regions that the owner withdraws, canceled
 * transfers, and processes that stop or die. */
#include "support/check.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "support/child.h"
#include "support/owner.h"
#include "support/seams.h"

#define MIB       ((uint64_t)1 << 20)
#define LENGTH    (64 * MIB)
#define TRANSFERS 16
#define PART      (LENGTH / TRANSFERS) /* concurrent transfers have disjoint ranges */
#define BOTH      (HAUL_READ | HAUL_WRITE)

struct variant {
  const char *only, *address;
  enum memory_kind remote; /* wrapped memory is reached by cross-memory attach over `map` */
};

/* An emulated machine is as slow as a sanitizer. */
#define SLOW     (SANITIZED || getenv("HAUL_TEST_SLOW"))
#define LIVENESS (SLOW ? 2 * S : 300 * MS) /* of the tests about it; of others a minute */
/* Within this time a lost peer must be detected; generous for slow machines. */
#define BOUND (60 * S)

static struct {
  const struct variant *variant;
  struct owner owner;
  struct haul_node *node;
  struct haul_peer *peer;
  struct haul_region *region;
  struct haul_remote *remote;
  unsigned descriptors;
} t;

static int open_pair(const struct variant *variant, int64_t liveness_ns) {
  t.variant = variant;
  device_start();
  t.descriptors = open_descriptors();
  struct haul_node_config config = HAUL_NODE_CONFIG_INIT;
  config.liveness_ns = liveness_ns;
  config.pool_bytes = SIZE_MAX; /* leaks show */
  owner_start(&t.owner, t.variant->address, &config);
  assert_works(haul_node_open(&config, &t.node));
  assert_works(haul_peer_connect(t.node, t.owner.address, haul_deadline_in(BOUND), &t.peer));
  t.region = region_make(t.node, KIND_HOST, LENGTH);
  assert_int_equal(owner_publish(&t.owner, 0, t.variant->remote, LENGTH, "memory", BOTH), 0);
  assert_works(haul_peer_lookup(t.peer, "memory", haul_deadline_in(BOUND), &t.remote));
  return 0;
}

static int set_up(void **state) {
  return open_pair(*state, 60 * S);
}

static int set_up_liveness(void **state) {
  return open_pair(*state, LIVENESS);
}

static void close_node(void) {
  haul_remote_release(t.remote);
  haul_region_release(t.region);
  haul_peer_close(t.peer);
  haul_node_close(t.node);
  t.node = NULL;
}

static int tear_down(void **state) {
  (void)state;
  if (t.node)
    close_node();
  if (t.owner.pid && owner_end(&t.owner) != 0)
    return -1;
  assert_int_equal(open_descriptors(), t.descriptors);
  assert_int_equal(haul_mappings(), 0);
  memset(&t, 0, sizeof t);
  return 0;
}

static struct haul_transfer_options path_options(void) {
  struct haul_transfer_options options = HAUL_TRANSFER_OPTIONS_INIT;
  options.only = t.variant->only;
  return options;
}

static int run(enum haul_operation operation, struct haul_remote *remote,
               const struct haul_piece *pieces, size_t count) {
  struct haul_transfer_options options = path_options();
  return operation == HAUL_OP_WRITE ? haul_write(remote, t.region, pieces, count, &options, NULL)
                                    : haul_read(t.region, remote, pieces, count, &options, NULL);
}

static struct haul_transfer *start(enum haul_operation operation, uint64_t offset,
                                   uint64_t length) {
  struct haul_transfer *transfer;
  struct haul_transfer_options options = path_options();
  struct haul_piece piece = {offset, offset, length};
  assert_works(operation == HAUL_OP_WRITE
                   ? haul_write(t.remote, t.region, &piece, 1, &options, &transfer)
                   : haul_read(t.region, t.remote, &piece, 1, &options, &transfer));
  return transfer;
}

static int finish(struct haul_transfer *transfer) {
  int code = haul_transfer_wait(transfer, haul_deadline_in(BOUND));
  assert_int_not_equal(haul_transfer_test(transfer), 1);
  haul_transfer_release(transfer);
  return code;
}

static void assert_transfers_work(struct haul_remote *remote) {
  struct haul_piece piece = {1, 2, MIB + 3};
  assert_works(run(HAUL_OP_WRITE, remote, &piece, 1));
  assert_works(run(HAUL_OP_READ, remote, &piece, 1));
}

static void sleep_ms(long ms) {
  nanosleep(&(struct timespec){ms / 1000, ms % 1000 * 1000000}, NULL);
}

static void invalid_pieces_are_rejected(void **state) {
  (void)state;
  const struct haul_piece empty = {0, 0, 0}, fine = {0, 0, 1};
  const struct haul_piece outside[] = {{0, LENGTH, 1},
                                       {0, 0, LENGTH + 1},
                                       {0, 1, LENGTH},
                                       {LENGTH, 0, 1},
                                       {1, 0, LENGTH},
                                       {0, UINT64_MAX, 1},
                                       {0, UINT64_MAX, 2},
                                       {UINT64_MAX, 0, 2},
                                       {0, 2, UINT64_MAX - 1},
                                       {2, 0, UINT64_MAX - 1},
                                       {0, 1, UINT64_MAX},
                                       {0, UINT64_MAX / 2, UINT64_MAX / 2 + 2},
                                       {UINT64_MAX, UINT64_MAX, UINT64_MAX}};
  const enum haul_operation operations[] = {HAUL_OP_WRITE, HAUL_OP_READ};
  owner_fill(&t.owner, 0, 0, LENGTH, 5);
  uint64_t before = owner_sum(&t.owner, 0, 0, LENGTH);
  for (size_t o = 0; o < COUNT(operations); o++) {
    assert_fails(HAUL_EINVAL, run(operations[o], t.remote, &fine, 0));
    assert_fails(HAUL_EINVAL, run(operations[o], t.remote, NULL, 1));
    assert_fails(HAUL_EINVAL, run(operations[o], t.remote, &empty, 1));
    for (size_t i = 0; i < COUNT(outside); i++) {
      struct haul_piece two[2] = {{0, 0, LENGTH / 2}, outside[i]};
      assert_fails(HAUL_ERANGE, run(operations[o], t.remote, &outside[i], 1));
      assert_fails(HAUL_ERANGE, run(operations[o], t.remote, two, 2));
    }
    struct haul_piece none[2] = {fine, empty};
    assert_fails(HAUL_EINVAL, run(operations[o], t.remote, none, 2));
  }
  assert_true(owner_sum(&t.owner, 0, 0, LENGTH) == before);
  assert_transfers_work(t.remote);
}

static void too_many_pieces_are_rejected(void **state) {
  (void)state;
  struct haul_piece *pieces = calloc(1000000, sizeof *pieces);
  for (size_t i = 0; i < 1000000; i++)
    pieces[i] = (struct haul_piece){2 * i, 2 * i, 1};
  assert_fails(HAUL_ELIMIT, run(HAUL_OP_WRITE, t.remote, pieces, HAUL_PIECES_MAX + 1));
  assert_fails(HAUL_ELIMIT, run(HAUL_OP_READ, t.remote, pieces, 1000000));
  free(pieces);
}

static void missing_rights_are_rejected(void **state) {
  (void)state;
  struct haul_piece piece = {0, 0, 4096};
  struct haul_remote *readable, *writable;
  assert_int_equal(owner_publish(&t.owner, 1, t.variant->remote, MIB, "readable", HAUL_READ), 0);
  assert_int_equal(owner_publish(&t.owner, 2, t.variant->remote, MIB, "writable", HAUL_WRITE), 0);
  assert_works(haul_peer_lookup(t.peer, "readable", haul_deadline_in(BOUND), &readable));
  assert_works(haul_peer_lookup(t.peer, "writable", haul_deadline_in(BOUND), &writable));
  assert_fails(HAUL_EACCESS, run(HAUL_OP_WRITE, readable, &piece, 1));
  assert_fails(HAUL_EACCESS, run(HAUL_OP_READ, writable, &piece, 1));
  if (wraps_gpu()) /* IPC mappings are writable */
    assert_fails(HAUL_ENOPATH, run(HAUL_OP_READ, readable, &piece, 1));
  else
    assert_works(run(HAUL_OP_READ, readable, &piece, 1));
  int code = run(HAUL_OP_WRITE, writable, &piece, 1);
  assert_true(code == 0 || code == HAUL_ENOPATH); /* mappings are readable: `map` is closed */
  assert_int_equal(code == 0, strcmp(t.variant->only, "map") != 0);
  haul_remote_release(readable);
  haul_remote_release(writable);
}

static void invalid_handles_and_options_are_rejected(void **state) {
  (void)state;
  struct haul_piece piece = {0, 0, 1};
  struct haul_transfer_options options = path_options();
  struct haul_transfer *transfer;
  assert_fails(HAUL_EINVAL, haul_write(NULL, t.region, &piece, 1, NULL, NULL));
  assert_fails(HAUL_EINVAL, haul_write(t.remote, NULL, &piece, 1, NULL, NULL));
  options.flags = ~0u;
  assert_fails(HAUL_EINVAL, haul_write(t.remote, t.region, &piece, 1, &options, NULL));
  options = path_options();
  options.size = 1;
  assert_fails(HAUL_EINVAL, haul_write(t.remote, t.region, &piece, 1, &options, NULL));
  options = path_options();
  options.only = "carrier pigeon";
  assert_fails(HAUL_EINVAL, haul_write(t.remote, t.region, &piece, 1, &options, &transfer));
  struct haul_node *other;
  assert_works(haul_node_open(NULL, &other));
  struct haul_region *foreign = region_make(other, KIND_HOST, 4096);
  assert_fails(HAUL_EINVAL, haul_write(t.remote, foreign, &piece, 1, NULL, NULL));
  haul_region_release(foreign);
  haul_node_close(other);
}

/* Withdraws the region during transfers: each completes or is stale, and later ones are stale. */
static void withdraw_during_transfers(void (*withdraw)(void), bool reads) {
  struct haul_transfer *transfers[TRANSFERS];
  struct haul_piece piece = {0, 0, MIB + 1}, small = {0, 0, 8};
  for (unsigned i = 0; i < TRANSFERS; i++)
    transfers[i] = start(reads && i % 2 ? HAUL_OP_READ : HAUL_OP_WRITE, i * PART, PART);
  withdraw();
  for (unsigned i = 0; i < TRANSFERS; i++) {
    int code = finish(transfers[i]);
    if (code != 0 && code != HAUL_ESTALE)
      fail_msg("transfer %u ended with %s: %s", i, haul_error_name(code), haul_error_last()->text);
  }
  assert_fails(HAUL_ESTALE, run(HAUL_OP_WRITE, t.remote, &piece, 1));
  assert_fails(HAUL_ESTALE, run(HAUL_OP_READ, t.remote, &piece, 1));
  assert_fails(HAUL_ESTALE, run(HAUL_OP_WRITE, t.remote, &small, 1));
  assert_fails(HAUL_ESTALE, run(HAUL_OP_READ, t.remote, &small, 1));
  assert_works(haul_peer_status(t.peer));
}

static void unpublish(void) {
  assert_int_equal(owner_unpublish(&t.owner, 0, "memory"), 0);
}

static void release(void) {
  assert_int_equal(owner_release(&t.owner, 0), 0);
}

static void a_region_unpublished_during_transfers_is_stale(void **state) {
  (void)state;
  withdraw_during_transfers(unpublish, true);
  struct haul_remote *again;
  assert_fails(HAUL_ENAME, haul_peer_lookup(t.peer, "memory", haul_deadline_in(BOUND), &again));
  assert_int_equal(owner_name(&t.owner, 0, "memory", BOTH), 0);
  assert_works(haul_peer_lookup(t.peer, "memory", haul_deadline_in(BOUND), &again));
  assert_transfers_work(again);
  struct haul_piece piece = {0, 0, 1};
  assert_fails(HAUL_ESTALE, run(HAUL_OP_WRITE, t.remote, &piece, 1));
  haul_remote_release(again);
}

static void one_of_two_names_can_be_unpublished(void **state) {
  (void)state;
  struct haul_remote *other;
  struct haul_piece piece = {0, 0, MIB};
  assert_int_equal(owner_name(&t.owner, 0, "other", BOTH), 0);
  assert_works(haul_peer_lookup(t.peer, "other", haul_deadline_in(BOUND), &other));
  unpublish();
  assert_fails(HAUL_ESTALE, run(HAUL_OP_WRITE, t.remote, &piece, 1));
  assert_transfers_work(other);
  haul_remote_release(other);
}

static void a_region_released_during_transfers_is_stale_and_untouched(void **state) {
  (void)state;
  withdraw_during_transfers(release, false);
  if (t.variant->remote == KIND_WRAPPED)
    assert_true(owner_pages_untouched(&t.owner, 0));
}

static void canceled_transfers_do_not_modify_local_memory(void **state) {
  (void)state;
  char *bytes = haul_region_address(t.region);
  for (unsigned round = 0; round < 20; round++) {
    struct haul_transfer *transfer = start(round % 2 ? HAUL_OP_READ : HAUL_OP_WRITE, 0, LENGTH);
    if (round % 4 >= 2)
      sleep_ms(1);
    assert_works(haul_transfer_cancel(transfer));
    assert_works(haul_transfer_cancel(transfer));
    int code = finish(transfer);
    assert_true(code == 0 || code == HAUL_ECANCELED);
    memset(bytes, 0x5a, LENGTH); /* from now on the transfer uses it no more */
    sleep_ms(2);
    for (uint64_t i = 0; i < LENGTH; i += 509)
      assert_int_equal(bytes[i], 0x5a);
  }
  assert_transfers_work(t.remote);
}

/* 64 GiB: the loop serves nothing else while it is being canceled. */
static void a_long_transfer_is_canceled_at_once(void **state) {
  (void)state;
  const size_t count = 65536;
  struct haul_transfer *transfer;
  struct haul_transfer_options options = path_options();
  struct haul_piece *pieces = calloc(count, sizeof *pieces);
  for (size_t i = 0; i < count; i++)
    pieces[i] = (struct haul_piece){0, 0, MIB};
  options.deadline = HAUL_FOREVER;
  assert_works(haul_write(t.remote, t.region, pieces, count, &options, &transfer));
  int64_t began = haul_deadline_in(0);
  assert_works(haul_transfer_cancel(transfer));
  assert_in_range(haul_deadline_in(0) - began, 0, (SLOW ? 30 : 10) * S);
  assert_int_equal(finish(transfer), HAUL_ECANCELED);
  assert_transfers_work(t.remote);
  free(pieces);
}

static void a_local_region_may_be_released_during_a_transfer(void **state) {
  (void)state;
  struct haul_transfer_options options = path_options();
  struct haul_piece piece = {0, 0, LENGTH};
  for (unsigned round = 0; round < 10; round++) {
    struct haul_transfer *transfer;
    struct haul_region *region = region_make(t.node, KIND_WRAPPED, LENGTH);
    assert_works(round % 2 ? haul_read(region, t.remote, &piece, 1, &options, &transfer)
                           : haul_write(t.remote, region, &piece, 1, &options, &transfer));
    region_drop(region, KIND_WRAPPED); /* unmaps it: an access would fault */
    int code = finish(transfer);
    assert_true(code == 0 || code == HAUL_ECANCELED);
  }
  assert_transfers_work(t.remote);
}

static void assert_done_or_late(int code) {
  if (code != 0 && code != HAUL_ETIMEDOUT)
    fail_msg("%s: %s", haul_error_name(code), haul_error_last()->text);
}

static void a_transfer_times_out(void **state) {
  (void)state;
  struct haul_transfer_options options = path_options();
  struct haul_piece piece = {0, 0, LENGTH};
  struct haul_transfer *transfer;
  for (unsigned round = 0; round < 32; round++) {
    options.deadline = haul_deadline_in((round + 1) * 10 * HAUL_MICROSECOND);
    int code = round % 2 ? haul_read(t.region, t.remote, &piece, 1, &options, &transfer)
                         : haul_write(t.remote, t.region, &piece, 1, &options, &transfer);
    assert_done_or_late(code ? code : finish(transfer));
    options.deadline = haul_deadline_in((round + 1) * 10 * HAUL_MICROSECOND);
    assert_done_or_late(round % 2 ? haul_read(t.region, t.remote, &piece, 1, &options, NULL)
                                  : haul_write(t.remote, t.region, &piece, 1, &options, NULL));
  }
  assert_transfers_work(t.remote);
}

static void a_wait_may_time_out_before_the_transfer_ends(void **state) {
  (void)state;
  struct haul_transfer *transfer = start(HAUL_OP_WRITE, 0, LENGTH);
  int code = haul_transfer_wait(transfer, HAUL_NO_WAIT);
  assert_true(code == 0 || code == HAUL_ETIMEDOUT);
  assert_works(haul_transfer_wait(transfer, HAUL_FOREVER));
  assert_int_equal(haul_transfer_test(transfer), 0);
  haul_transfer_release(transfer);
}

static void handles_may_be_released_early(void **state) {
  (void)state;
  for (unsigned i = 0; i < 50; i++)
    haul_transfer_release(start(i % 2 ? HAUL_OP_READ : HAUL_OP_WRITE, i * MIB, MIB));
  struct haul_transfer *last = start(HAUL_OP_WRITE, 60 * MIB, 4096);
  haul_remote_release(t.remote); /* its transfers continue */
  t.remote = NULL;
  assert_int_equal(finish(last), 0);
}

static void a_node_closed_during_transfers_cancels_them_and_leaks_nothing(void **state) {
  (void)state;
  struct haul_transfer *transfers[TRANSFERS];
  for (unsigned i = 0; i < TRANSFERS; i++)
    transfers[i] = start(i % 2 ? HAUL_OP_READ : HAUL_OP_WRITE, i * PART, PART);
  haul_node_close(t.node);
  for (unsigned i = 0; i < TRANSFERS; i++) {
    int code = haul_transfer_test(transfers[i]);
    assert_true(code == 0 || code == HAUL_ECLOSED);
    haul_transfer_release(transfers[i]);
  }
  t.node = NULL;
  haul_remote_release(t.remote);
  haul_region_release(t.region);
  haul_peer_close(t.peer);
}

static void owner_closes(void) {
  assert_int_equal(owner_end(&t.owner), 0);
  t.owner.pid = 0;
}

static void owner_dies(void) {
  owner_kill(&t.owner);
  t.owner.pid = 0;
}

/* Loses the peer during transfers: they end, and later calls fail. */
static void lose_peer(void (*lose)(void), enum haul_operation operation) {
  struct haul_transfer *transfers[8];
  for (unsigned i = 0; i < COUNT(transfers); i++)
    transfers[i] = start(operation, i * PART, PART);
  lose();
  for (unsigned i = 0; i < COUNT(transfers); i++) {
    int code = finish(transfers[i]);
    if (code != 0 && code != HAUL_EPEER && code != HAUL_ESTALE && code != HAUL_ENOPATH)
      fail_msg("transfer %u ended with %s: %s", i, haul_error_name(code), haul_error_last()->text);
  }
  haul_deadline until = haul_deadline_in(BOUND);
  while (haul_peer_status(t.peer) == 0 && haul_deadline_in(0) < until)
    sleep_ms(1);
  struct haul_piece piece = {0, 0, 1}, large = {0, 0, 2 * MIB};
  struct haul_remote *remote;
  assert_fails(HAUL_EPEER, haul_peer_status(t.peer));
  assert_fails(HAUL_EPEER, run(operation, t.remote, &piece, 1));
  assert_fails(HAUL_EPEER, run(operation, t.remote, &large, 1));
  assert_fails(HAUL_EPEER, haul_peer_lookup(t.peer, "memory", haul_deadline_in(BOUND), &remote));
  assert_fails(HAUL_EPEER, haul_message_send(t.peer, 1, "x", 1, haul_deadline_in(BOUND)));
}

static void an_owner_that_closes_is_detected(void **state) {
  (void)state;
  lose_peer(owner_closes, HAUL_OP_WRITE);
}

static void an_owner_killed_during_writes_is_detected(void **state) {
  (void)state;
  lose_peer(owner_dies, HAUL_OP_WRITE);
}

static void an_owner_killed_during_reads_is_detected(void **state) {
  (void)state;
  lose_peer(owner_dies, HAUL_OP_READ);
}

static void stop(void) {
  owner_stop(&t.owner);
}

static void a_stopped_owner_is_dropped_after_the_liveness_timeout(void **state) {
  (void)state;
  lose_peer(stop, HAUL_OP_WRITE);
  owner_go_on(&t.owner);
}

static void a_briefly_stopped_owner_is_not_dropped(void **state) {
  (void)state;
  struct haul_transfer *transfer = start(HAUL_OP_READ, 0, LENGTH);
  stop();
  sleep_ms(LIVENESS / MS / 6);
  owner_go_on(&t.owner);
  assert_int_equal(finish(transfer), 0);
  sleep_ms(2 * LIVENESS / MS);
  assert_transfers_work(t.remote);
}

/* Over `map` a copy does not need the owner to run. */
static void a_transfer_to_a_stopped_owner_times_out(void **state) {
  (void)state;
  struct haul_transfer_options options = path_options();
  struct haul_piece piece = {0, 0, LENGTH};
  stop();
  options.deadline = haul_deadline_in(50 * MS);
  int code = haul_write(t.remote, t.region, &piece, 1, &options, NULL);
  int64_t late = haul_deadline_in(0) - options.deadline;
  owner_go_on(&t.owner);
  assert_true(code == HAUL_ETIMEDOUT || (code == 0 && strcmp(t.variant->only, "map") == 0));
  assert_true(code == 0 || late < 5 * S);
}

static int run_over(const struct variant *variant) {
#define CASE_OF(test, before)                                                                      \
  { #test, test, before, tear_down, (void *)(uintptr_t)variant }
#define CASE(test) CASE_OF(test, set_up)
  const struct CMUnitTest tests[] = {
      CASE(invalid_pieces_are_rejected),
      CASE(too_many_pieces_are_rejected),
      CASE(missing_rights_are_rejected),
      CASE(invalid_handles_and_options_are_rejected),
      CASE(a_region_unpublished_during_transfers_is_stale),
      CASE(one_of_two_names_can_be_unpublished),
      CASE(a_region_released_during_transfers_is_stale_and_untouched),
      CASE(canceled_transfers_do_not_modify_local_memory),
      CASE(a_long_transfer_is_canceled_at_once),
      CASE(a_local_region_may_be_released_during_a_transfer),
      CASE(a_transfer_times_out),
      CASE(a_wait_may_time_out_before_the_transfer_ends),
      CASE(handles_may_be_released_early),
      CASE(a_node_closed_during_transfers_cancels_them_and_leaks_nothing),
      CASE(an_owner_that_closes_is_detected),
      CASE(an_owner_killed_during_writes_is_detected),
      CASE(an_owner_killed_during_reads_is_detected),
      CASE_OF(a_stopped_owner_is_dropped_after_the_liveness_timeout, set_up_liveness),
      CASE_OF(a_briefly_stopped_owner_is_not_dropped, set_up_liveness),
      CASE(a_transfer_to_a_stopped_owner_times_out),
  };
  static const char *const kinds[] = {"host", "private", "wrapped", "sim"};
  char name[80];
  snprintf(name, sizeof name, "%s over %.12s, %s", variant->only, variant->address,
           kinds[variant->remote]);
  return cmocka_run_group_tests_name(name, tests, NULL, NULL);
}

/* transport_faults [NUMBER | PATH ADDRESS]: all variants, one of them, or one that only some hosts
 * have. */
int main(int argc, char **argv) {
  if (argc > 1 && strcmp(argv[1], OWNER_MODE) == 0)
    return owner_main();
  if (argc > 2)
    return run_over(&(struct variant){argv[1], argv[2], KIND_HOST});
  char socket[64];
  snprintf(socket, sizeof socket, "unix:///tmp/haul-test-%d", (int)getpid());
  const struct variant variants[] = {
      {"map", socket, KIND_HOST},    {"map", "tcp://127.0.0.1:0", KIND_WRAPPED},
      {"map", socket, KIND_SIM},     {"tcp", "tcp://127.0.0.1:0", KIND_HOST},
      {"tcp", socket, KIND_WRAPPED}, {"tcp", "tcp://127.0.0.1:0", KIND_SIM},
  };
  int failed = 0;
  for (size_t i = 0; i < COUNT(variants); i++)
    if (argc == 1 || strtoul(argv[1], NULL, 10) == i)
      failed += run_over(&variants[i]);
  return failed;
}
