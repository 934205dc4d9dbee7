/* SPDX-License-Identifier: MIT
 * Works that go to the NIC with one doorbell: how many do, what comes of them when the queue
 * refuses one in the middle, and who posts while others are at it. */
#include "support/check.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "support/nic.h"
#include "support/owner.h"
#include "support/seams.h"

#define LENGTH ((uint64_t)1 << 20)
#define PART   1024u
#define MANY   64u
#define BOUND  (20 * S)

static struct {
  struct owner owner;
  struct haul_node *node;
  struct haul_peer *peer;
  struct haul_region *region;
  struct haul_remote *remote;
} t;

static void begin(int progress) {
  struct haul_node_config config = HAUL_NODE_CONFIG_INIT;
  config.progress = progress;
  owner_start(&t.owner, "tcp://127.0.0.1:0", NULL);
  assert_int_equal(owner_publish(&t.owner, 0, KIND_HOST, LENGTH, "memory", HAUL_READ | HAUL_WRITE),
                   0);
  assert_works(haul_node_open(&config, &t.node));
  assert_works(haul_peer_connect(t.node, t.owner.address, haul_deadline_in(BOUND), &t.peer));
  assert_works(haul_peer_lookup(t.peer, "memory", haul_deadline_in(BOUND), &t.remote));
  t.region = region_make(t.node, KIND_HOST, LENGTH);
  region_fill(t.node, t.region, 0, LENGTH, 7);
  assert_int_equal(owner_fill(&t.owner, 0, 0, LENGTH, 8), 0);
}

static int tear_down(void **state) {
  (void)state;
  haul_remote_release(t.remote);
  haul_region_release(t.region);
  haul_peer_close(t.peer);
  haul_node_close(t.node);
  nic_fault("");
  assert_int_equal(owner_end(&t.owner), 0);
  nic_check_empty();
  memset(&t, 0, sizeof t);
  return 0;
}

/* The i-th part of both regions. `more`: others follow. */
static haul_transfer *write_part(unsigned i, bool more, const char *only) {
  struct haul_transfer_options options = HAUL_TRANSFER_OPTIONS_INIT;
  struct haul_piece piece = {i * PART, i * PART, PART};
  haul_transfer *transfer;
  options.flags = more ? HAUL_MORE : 0;
  options.only = only;
  options.deadline = haul_deadline_in(BOUND);
  assert_works(haul_write(t.remote, t.region, &piece, 1, &options, &transfer));
  return transfer;
}

static struct haul_report end(haul_transfer *transfer) {
  struct haul_report report = HAUL_REPORT_INIT;
  assert_works(haul_transfer_wait(transfer, haul_deadline_in(BOUND)));
  assert_works(haul_transfer_report(transfer, &report));
  haul_transfer_release(transfer);
  return report;
}

static void assert_written(unsigned parts) {
  assert_true(owner_sum(&t.owner, 0, 0, parts * PART) ==
              region_sum(t.node, t.region, 0, parts * PART));
}

/* What is refused goes another way, what was taken before is not lost, and all of it is there. */
static void a_refused_request_loses_nothing(void **state) {
  (void)state;
  for (unsigned n = 1; n <= 16; n += 5) {
    haul_transfer *transfers[16];
    char fault[32];
    unsigned again = 0;
    begin(HAUL_PROGRESS_CALLER);
    end(write_part(0, false, "rdma")); /* it works until then */
    snprintf(fault, sizeof fault, "refuse:%u", n);
    nic_fault(fault);
    for (unsigned i = 0; i < 16; i++)
      transfers[i] = write_part(i, i < 15, NULL);
    for (unsigned i = 0; i < 16; i++) {
      struct haul_report report = end(transfers[i]);
      assert_string_equal(report.paths[0].name, report.retries ? "tcp" : "rdma");
      again += report.retries;
    }
    assert_true(again >= 16 - (n - 1));
    assert_written(16);
    if (n < 16)
      tear_down(NULL);
  }
}

/* A caller that says that more follow rings once for sixteen. */
static void sixteen_go_with_one_doorbell(void **state) {
  (void)state;
  haul_transfer *transfers[MANY];
  begin(HAUL_PROGRESS_CALLER);
  end(write_part(0, false, "rdma"));
  uint64_t before = nic_doorbells();
  for (unsigned i = 0; i < MANY; i++)
    transfers[i] = write_part(i, true, "rdma");
  assert_int_equal(nic_doorbells() - before, MANY / 16);
  for (unsigned i = 0; i < MANY; i++)
    end(transfers[i]);
  assert_written(MANY);
}

/* Who says nothing of the kind waits for nobody. */
static void one_by_one_each_rings(void **state) {
  (void)state;
  haul_transfer *transfers[16];
  begin(HAUL_PROGRESS_CALLER);
  end(write_part(0, false, "rdma"));
  uint64_t before = nic_doorbells();
  for (unsigned i = 0; i < 16; i++) {
    transfers[i] = write_part(i, false, "rdma");
    assert_int_equal(nic_doorbells() - before, i + 1);
  }
  for (unsigned i = 0; i < 16; i++)
    end(transfers[i]);
}

/* Fewer than sixteen are not left lying: the loop lets them in. */
static void a_few_go_out_by_themselves(void **state) {
  (void)state;
  begin(HAUL_PROGRESS_THREAD);
  haul_transfer *transfers[3];
  for (unsigned i = 0; i < 3; i++)
    transfers[i] = write_part(i, true, "rdma");
  for (unsigned i = 0; i < 3; i++)
    end(transfers[i]);
  assert_written(3);
}

static void *write_many(void *argument) {
  unsigned first = *(unsigned *)argument;
  haul_transfer *transfers[MANY];
  for (unsigned round = 0; round < 20; round++) {
    for (unsigned i = 0; i < MANY; i++)
      transfers[i] = write_part(first + i, (i + round) % 3 != 0, "rdma");
    for (unsigned i = 0; i < MANY; i++)
      end(transfers[i]);
  }
  return NULL;
}

static void threads_bring_works_at_once(void **state) {
  (void)state;
  pthread_t threads[4];
  unsigned firsts[4];
  begin(HAUL_PROGRESS_THREAD);
  for (unsigned i = 0; i < 4; i++) {
    firsts[i] = i * MANY;
    assert_int_equal(pthread_create(&threads[i], NULL, write_many, &firsts[i]), 0);
  }
  for (unsigned i = 0; i < 4; i++)
    pthread_join(threads[i], NULL);
  assert_written(4 * MANY);
}

#define TEST(test) cmocka_unit_test_teardown(test, tear_down)

int main(int argc, char **argv) {
  if (argc > 1 && strcmp(argv[1], OWNER_MODE) == 0)
    return owner_main();
  seams_no_unix_sockets();
  const struct CMUnitTest tests[] = {
      TEST(a_refused_request_loses_nothing), TEST(sixteen_go_with_one_doorbell),
      TEST(one_by_one_each_rings),           TEST(a_few_go_out_by_themselves),
      TEST(threads_bring_works_at_once),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
