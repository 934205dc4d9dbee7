/* SPDX-License-Identifier: MIT
 * Receives that the rails of a NIC share: their memory, a queue that runs dry, receives that fail,
 * a NIC without such a queue. */
#include "support/check.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "fabric/rdma/rail.h"
#include "support/names.h"
#include "support/nic.h"
#include "support/owner.h"
#include "support/raw.h"
#include "support/raw_rail.h"

#define BOUND    (60 * S)
#define LIVENESS (200 * S) /* beyond all bounds here */
#define LENGTH   (UINT64_C(64) << 10)
#define AREA     ((uint64_t)RDMA_RECEIVES * RDMA_RECORD)
#define PEERS    64
#define DRY      8 /* peers that send more than one area holds */

static struct {
  struct haul_node *owner, *user;
  struct haul_region *region, *local;
  struct haul_peer *peers[PEERS];
  struct haul_remote *remotes[PEERS];
  unsigned count;
  char address[160];
  pthread_t thread;
  _Atomic bool paused, ended;
} t;

/* The owner's loop, which the test stops for a while. */
static void *drive(void *argument) {
  (void)argument;
  while (!atomic_load(&t.ended)) {
    if (atomic_load(&t.paused))
      nanosleep(&(struct timespec){0, MS}, NULL);
    else
      haul_node_progress(t.owner, haul_deadline_in(MS));
  }
  return NULL;
}

static int set_up(void **state) {
  struct haul_node_config config = HAUL_NODE_CONFIG_INIT;
  (void)state;
  nic_fault("");
  memset(&t, 0, sizeof t);
  config.liveness_ns = LIVENESS;
  assert_works(haul_node_open(&config, &t.user));
  config.progress = HAUL_PROGRESS_CALLER;
  assert_works(haul_node_open(&config, &t.owner));
  t.region = region_make(t.owner, KIND_HOST, LENGTH);
  assert_works(haul_region_publish(t.region, "memory", HAUL_READ | HAUL_WRITE));
  region_fill(t.owner, t.region, 0, LENGTH, 1);
  t.local = region_make(t.user, KIND_HOST, LENGTH);
  assert_int_equal(pthread_create(&t.thread, NULL, drive, NULL), 0);
  return 0;
}

/* The owner opens its NICs when it listens: after the test has set their faults. */
static void listen_once(void) {
  if (t.address[0])
    return;
  assert_works(haul_node_listen(t.owner, "tcp://127.0.0.1:0"));
  assert_works(haul_node_address(t.owner, 0, t.address, sizeof t.address));
}

static void add_peers(unsigned count) {
  listen_once();
  for (; t.count < count; t.count++) {
    haul_deadline until = haul_deadline_in(BOUND);
    assert_works(haul_peer_connect(t.user, t.address, until, &t.peers[t.count]));
    assert_works(haul_peer_lookup(t.peers[t.count], "memory", until, &t.remotes[t.count]));
  }
}

static void remove_peers(unsigned left) {
  while (t.count > left) {
    haul_remote_release(t.remotes[--t.count]);
    haul_peer_close(t.peers[t.count]);
  }
}

static int tear_down(void **state) {
  (void)state;
  remove_peers(0);
  haul_region_release(t.local);
  haul_node_close(t.user);
  atomic_store(&t.ended, true);
  pthread_join(t.thread, NULL);
  haul_region_release(t.region);
  haul_node_close(t.owner);
  nic_fault("");
  nic_check_empty();
  return 0;
}

static uint64_t counter(const char *name) {
  uint64_t value;
  assert_works(haul_counter_read(t.owner, name, &value));
  return value;
}

/* The owner notices the end of a connection later. */
static void await_counter(const char *name, uint64_t value) {
  haul_deadline until = haul_deadline_in(BOUND);
  while (counter(name) != value && haul_deadline_in(0) < until)
    nanosleep(&(struct timespec){0, MS}, NULL);
  assert_int_equal(counter(name), value);
}

/* A read with many segments: each 32 take a request, and the owner compares checksums. */
static struct haul_transfer *start_read(unsigned peer) {
  enum { PIECES = 4096 };
  static struct haul_piece pieces[PIECES];
  struct haul_transfer *transfer;
  struct haul_transfer_options options = HAUL_TRANSFER_OPTIONS_INIT;
  options.only = "rdma";
  options.flags = HAUL_CHECKSUM;
  options.deadline = haul_deadline_in(BOUND);
  for (uint64_t i = 0; i < PIECES; i++)
    pieces[i] = (struct haul_piece){16 * i, 16 * i, 8};
  assert_works(haul_read(t.local, t.remotes[peer], pieces, PIECES, &options, &transfer));
  return transfer;
}

static void finish(struct haul_transfer *transfer) {
  assert_works(haul_transfer_wait(transfer, haul_deadline_in(BOUND)));
  haul_transfer_release(transfer);
}

static void their_memory_does_not_grow_with_the_peers(void **state) {
  (void)state;
  add_peers(1);
  uint64_t one = counter("rdma.receives.bytes");
  assert_int_equal(one, AREA);
  add_peers(16);
  uint64_t some = counter("rdma.receives.bytes");
  unsigned registrations = atomic_load(&nic_double()->live.registrations);
  add_peers(PEERS);
  printf("bytes of receives with 1, 16 and %d rails: %llu, %llu, %llu\n", PEERS,
         (unsigned long long)one, (unsigned long long)some,
         (unsigned long long)counter("rdma.receives.bytes"));
  assert_int_equal(counter("rdma.receives.bytes"), some);
  /* Each rail adds its sends at both ends, and the owner's region once for each peer. */
  assert_int_equal(atomic_load(&nic_double()->live.registrations),
                   registrations + 3 * (PEERS - 16));
  assert_int_equal(atomic_load(&nic_double()->live.srqs), 2);
  assert_int_equal(counter("rdma.receives.unshared"), 0);
  for (unsigned i = 0; i < PEERS; i++)
    finish(start_read(i));
  remove_peers(1);
  finish(start_read(0));
  remove_peers(0);
  await_counter("rdma.receives.bytes", 0);
  haul_deadline until = haul_deadline_in(BOUND);
  while (atomic_load(&nic_double()->live.srqs) > 0 && haul_deadline_in(0) < until)
    nanosleep(&(struct timespec){0, MS}, NULL);
  assert_int_equal(atomic_load(&nic_double()->live.srqs), 0);
}

/* Each closed rail may have lost some receives: after one rail for every eight receives there is
 * another queue, and the first one ends with its last rail. */
static void a_queue_serves_a_bounded_number_of_rails(void **state) {
  (void)state;
  nic_fault("srq:256");
  for (unsigned i = 0; i < RDMA_RECEIVES / 8; i++) {
    add_peers(2);
    remove_peers(1);
  }
  await_counter("node.peers", 1);
  add_peers(2);
  assert_int_equal(atomic_load(&nic_double()->live.srqs), 4);
  assert_int_equal(counter("rdma.receives.bytes"), 2 * AREA);
  for (unsigned i = 0; i < t.count; i++)
    finish(start_read(i));
}

static void check_unshared(void) {
  add_peers(3);
  assert_int_equal(counter("rdma.receives.bytes"), 3 * AREA);
  assert_int_equal(counter("rdma.receives.unshared"), 3);
  assert_int_equal(atomic_load(&nic_double()->live.srqs), 0);
  for (unsigned i = 0; i < t.count; i++)
    finish(start_read(i));
  remove_peers(0);
  await_counter("rdma.receives.unshared", 0);
  assert_int_equal(counter("rdma.receives.bytes"), 0);
}

static void a_nic_without_a_shared_queue_has_them_for_each_rail(void **state) {
  (void)state;
  nic_fault("srq:1"); /* shorter than the receives of one rail */
  check_unshared();
}

static void a_refused_queue_leaves_them_to_each_rail(void **state) {
  (void)state;
  nic_double()->devices[0].errors.srq = ENOMEM;
  check_unshared();
  nic_double()->devices[0].errors.srq = 0;
  add_peers(1);
  assert_int_equal(counter("rdma.receives.unshared"), 0);
}

/* Requests of all peers find no receive while the owner's loop stands still. */
static void a_dry_queue_recovers(void **state) {
  struct haul_transfer *transfers[DRY];
  (void)state;
  nic_fault("srq:256");
  add_peers(DRY);
  assert_int_equal(counter("rdma.receives.bytes"), AREA);
  uint64_t before = nic_not_ready();
  for (int round = 0; round < 3; round++) {
    atomic_store(&t.paused, true);
    for (unsigned i = 0; i < DRY; i++)
      transfers[i] = start_read(i);
    haul_deadline until = haul_deadline_in(BOUND);
    while (nic_not_ready() < before + 100 && haul_deadline_in(0) < until)
      nanosleep(&(struct timespec){0, MS}, NULL);
    assert_true(nic_not_ready() >= before + 100);
    atomic_store(&t.paused, false);
    for (unsigned i = 0; i < DRY; i++)
      finish(transfers[i]);
    before = nic_not_ready();
  }
  assert_int_equal(counter("rdma.receives.bytes"), AREA);
}

static struct rdma_record receive_record(int channel, enum rdma_record_type type) {
  uint8_t bytes[RDMA_RECORD];
  struct rdma_record record = {.type = 0};
  while (record.type != type) {
    assert_true(raw_receive(channel, bytes, sizeof bytes));
    assert_int_equal(rdma_parse(bytes, &record), 0);
  }
  return record;
}

static void send_record(int channel, const struct rdma_record *record) {
  uint8_t bytes[RDMA_RECORD];
  rdma_pack(record, bytes);
  raw_send(channel, bytes, sizeof bytes);
}

/* A peer by hand. */
static struct {
  struct raw_rail rail;
  int control, channel;
} raw;

static void open_raw_peer(void) {
  struct welcome welcome;
  raw.control = raw_peer(t.address, &welcome);
  raw.channel = raw_channel(t.address, &welcome, "rdma", 0);
  assert_true(raw.channel >= 0);
  raw_rail_open(&raw.rail, RAIL_DEPTH);
  struct rdma_record hello = {.type = RDMA_HELLO, .rails = 1, .ends = {raw_rail_end(&raw.rail)}};
  send_record(raw.channel, &hello);
  hello = receive_record(raw.channel, RDMA_HELLO);
  raw_rail_connect(&raw.rail, &hello.ends[0]);
  send_record(raw.channel, &(struct rdma_record){.type = RDMA_READY});
  receive_record(raw.channel, RDMA_READY);
}

static void close_raw_peer(void) {
  close(raw.channel);
  close(raw.control);
  raw_rail_close(&raw.rail);
}

/* Both nodes post their receives again soon. */
static void assert_none_is_lost(uint32_t receives) {
  haul_deadline until = haul_deadline_in(BOUND);
  finish(start_read(0));
  while (nic_shared_receives() != receives && haul_deadline_in(0) < until)
    nanosleep(&(struct timespec){0, MS}, NULL);
  assert_int_equal(nic_shared_receives(), receives);
}

/* Its message exceeds the receive that it takes, which completes with an error. */
static void break_raw_rail(void) {
  static const char much[RDMA_RECORD + 1] = "much";
  assert_false(raw_rail_send(&raw.rail, much, sizeof much));
}

/* A rail that breaks before may lose the receives of those messages (receives.h). */
static void await_completions(void) {
  haul_deadline until = haul_deadline_in(BOUND);
  while (nic_arrivals() > 0 && haul_deadline_in(0) < until)
    nanosleep(&(struct timespec){0, MS}, NULL);
  assert_int_equal(nic_arrivals(), 0);
}

/* With a rail fail more records than the owner handles in a turn. */
static void a_failed_rail_leaves_its_receives(void **state) {
  const struct rdma_record request = {.type = RDMA_FENCE, .request = 2, .handle = 3};
  (void)state;
  nic_fault("srq:256");
  add_peers(1);
  uint32_t receives = nic_shared_receives();
  for (int round = 0; round < 4; round++) {
    open_raw_peer();
    atomic_store(&t.paused, true);
    nanosleep(&(struct timespec){0, 10 * MS}, NULL);
    for (int i = 0; i < 200; i++)
      assert_true(raw_rail_say(&raw.rail, &request));
    break_raw_rail();
    await_completions();
    atomic_store(&t.paused, false);
    receive_record(raw.channel, RDMA_BROKEN);
    close_raw_peer();
  }
  assert_none_is_lost(receives);
}

/* A rail's own receives would stop it. */
static void a_peer_beyond_its_credits_loses_its_rail(void **state) {
  const struct rdma_record request = {.type = RDMA_FENCE, .request = 2, .handle = 3};
  (void)state;
  add_peers(1);
  open_raw_peer();
  uint32_t receives = nic_shared_receives(); /* one more area for the new rail */
  atomic_store(&t.paused, true);
  nanosleep(&(struct timespec){0, 10 * MS}, NULL);
  for (unsigned i = 0; i < RDMA_RECEIVES + 32; i++)
    assert_true(raw_rail_say(&raw.rail, &request));
  await_completions();
  atomic_store(&t.paused, false);
  receive_record(raw.channel, RDMA_BROKEN);
  close_raw_peer();
  assert_none_is_lost(receives);
}

static void receives_that_fail_are_posted_again(void **state) {
  (void)state;
  nic_fault("srq:256");
  add_peers(1);
  uint32_t receives = nic_shared_receives();
  for (int round = 0; round < 4; round++) {
    open_raw_peer();
    break_raw_rail();
    receive_record(raw.channel, RDMA_BROKEN);
    close_raw_peer();
  }
  assert_none_is_lost(receives);
}

/* The first peer does not wait for the driver's library. */
static void a_listening_node_has_its_nics_open(void **state) {
  (void)state;
  assert_int_equal(atomic_load(&nic_double()->live.contexts), 0);
  listen_once();
  assert_int_equal(atomic_load(&nic_double()->live.contexts), 1);
}

int main(int argc, char **argv) {
  if (argc > 1 && strcmp(argv[1], OWNER_MODE) == 0)
    return owner_main();
  if (!nic_is_there())
    return 77;
#define TEST(test) cmocka_unit_test_setup_teardown(test, set_up, tear_down)
  const struct CMUnitTest tests[] = {
      TEST(their_memory_does_not_grow_with_the_peers),
      TEST(a_queue_serves_a_bounded_number_of_rails),
      TEST(a_nic_without_a_shared_queue_has_them_for_each_rail),
      TEST(a_refused_queue_leaves_them_to_each_rail),
      TEST(a_dry_queue_recovers),
      TEST(a_failed_rail_leaves_its_receives),
      TEST(a_peer_beyond_its_credits_loses_its_rail),
      TEST(receives_that_fail_are_posted_again),
      TEST(a_listening_node_has_its_nics_open),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
