/* SPDX-License-Identifier: MIT
 * Works that share a doorbell: their number, a refusal in the middle of a batch, and concurrent
 * submitters. */
#include "support/check.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "support/nic.h"
#include "support/pair.h"
#include "support/seams.h"

#define LENGTH ((uint64_t)1 << 20)
#define PART   1024u
#define MANY   64u
#define BOUND  (20 * S)

static struct pair t;

static void begin(int progress) {
  struct haul_node_config config = HAUL_NODE_CONFIG_INIT;
  config.progress = progress;
  pair_open(&t, &config, LENGTH);
  region_fill(t.node, t.region, 0, LENGTH, 7);
  assert_int_equal(owner_fill(&t.owner, 0, 0, LENGTH, 8), 0);
}

static int tear_down(void **state) {
  (void)state;
  pair_close(&t);
  return 0;
}

/* Writes the i-th part, of `bytes` bytes. `more`: with HAUL_MORE. */
static haul_transfer *write_part_of(uint64_t bytes, unsigned i, bool more, const char *only) {
  struct haul_transfer_options options = HAUL_TRANSFER_OPTIONS_INIT;
  struct haul_piece piece = {i * bytes, i * bytes, bytes};
  haul_transfer *transfer;
  options.flags = more ? HAUL_MORE : 0;
  options.only = only;
  options.deadline = haul_deadline_in(BOUND);
  assert_works(haul_write(t.remote, t.region, &piece, 1, &options, &transfer));
  return transfer;
}

static haul_transfer *write_part(unsigned i, bool more, const char *only) {
  return write_part_of(PART, i, more, only);
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

/* Refused works take another path, accepted ones complete, and all bytes arrive. */
static void a_refused_work_request_loses_nothing(void **state) {
  (void)state;
  for (unsigned n = 1; n <= 16; n += 5) {
    haul_transfer *transfers[16];
    char fault[32];
    unsigned again = 0;
    begin(HAUL_PROGRESS_CALLER);
    end(write_part(0, false, "rdma")); /* works so far */
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

static void sixteen_works_share_a_doorbell(void **state) {
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

static void a_batch_ends_at_64_kib(void **state) {
  (void)state;
  haul_transfer *transfers[12];
  begin(HAUL_PROGRESS_CALLER);
  end(write_part(0, false, "rdma"));
  uint64_t before = nic_doorbells();
  for (unsigned i = 0; i < COUNT(transfers); i++) {
    transfers[i] = write_part_of(16384, i, true, "rdma");
    assert_int_equal(nic_doorbells() - before, (i + 1) / 4);
  }
  for (unsigned i = 0; i < COUNT(transfers); i++)
    end(transfers[i]);
  assert_written(COUNT(transfers) * 16384 / PART);
}

static void works_without_more_ring_each(void **state) {
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

/* The loop posts an incomplete batch. */
static void a_short_batch_is_posted(void **state) {
  (void)state;
  begin(HAUL_PROGRESS_THREAD);
  haul_transfer *transfers[3];
  for (unsigned i = 0; i < 3; i++)
    transfers[i] = write_part(i, true, "rdma");
  for (unsigned i = 0; i < 3; i++)
    end(transfers[i]);
  assert_written(3);
}

/* Without a wait or another call that makes progress. */
static void a_batch_of_one_is_posted(void **state) {
  (void)state;
  begin(HAUL_PROGRESS_THREAD);
  for (unsigned i = 0; i < 20; i++) {
    haul_transfer *transfer = write_part(i, true, "rdma");
    haul_deadline until = haul_deadline_in(BOUND);
    while (haul_transfer_test(transfer) == 1 && haul_deadline_in(0) < until)
      nanosleep(&(struct timespec){0, 100000}, NULL);
    assert_works(haul_transfer_test(transfer));
    haul_transfer_release(transfer);
  }
  assert_written(20);
}

/* Without a progress thread the first progress call posts it. */
static void progress_posts_a_batch_of_one(void **state) {
  (void)state;
  begin(HAUL_PROGRESS_CALLER);
  end(write_part(0, false, "rdma"));
  for (unsigned i = 0; i < 20; i++) {
    uint64_t before = nic_doorbells();
    haul_transfer *transfer = write_part(i, true, "rdma");
    nanosleep(&(struct timespec){0, MS}, NULL); /* older than a batch may get */
    assert_int_equal(nic_doorbells(), before);
    assert_true(haul_node_progress(t.node, HAUL_NO_WAIT) >= 0);
    assert_int_equal(nic_doorbells(), before + 1);
    end(transfer);
  }
  assert_written(20);
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

static void threads_post_concurrently(void **state) {
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

/* Including the path's memory. */
static void a_transfer_takes_at_most_512_bytes(void **state) {
  (void)state;
  static haul_transfer *transfers[10000];
  uint64_t bytes;
  begin(HAUL_PROGRESS_CALLER);
  for (unsigned i = 0; i < COUNT(transfers); i++)
    transfers[i] = write_part(i % (LENGTH / PART), false, "rdma");
  assert_works(haul_counter_read(t.node, "node.transfers_bytes", &bytes));
  print_message("%u bytes a transfer over rdma\n", (unsigned)(bytes / COUNT(transfers)));
  assert_true(bytes <= (uint64_t)512 * COUNT(transfers));
  for (unsigned i = 0; i < COUNT(transfers); i++)
    end(transfers[i]);
  assert_works(haul_counter_read(t.node, "node.transfers_bytes", &bytes));
  assert_int_equal(bytes, 0);
}

/* A work rejected at its submission may hold the last reference to its region. */
static void the_last_work_of_a_revoked_region_ends(void **state) {
  (void)state;
  begin(HAUL_PROGRESS_THREAD);
  for (unsigned i = 0; i < 20; i++) {
    struct haul_remote *remote = t.remote;
    assert_int_equal(owner_unpublish(&t.owner, 0, "memory"), 0);
    struct haul_transfer_options options = HAUL_TRANSFER_OPTIONS_INIT;
    haul_transfer *transfer;
    options.flags = HAUL_MORE;
    options.only = "rdma";
    if (haul_write(remote, t.region, &(struct haul_piece){0, 0, PART}, 1, &options, &transfer) == 0)
      haul_transfer_release(transfer);
    haul_remote_release(remote);
    t.remote = NULL;
    size_t count = 0;
    assert_works(
        haul_peer_list(t.peer, haul_deadline_in(BOUND), NULL, &count)); /* the peer lives */
    assert_int_equal(owner_name(&t.owner, 0, "memory", HAUL_READ | HAUL_WRITE), 0);
    assert_works(haul_peer_lookup(t.peer, "memory", haul_deadline_in(BOUND), &t.remote));
  }
}

static void a_canceled_deferred_work_is_not_posted(void **state) {
  (void)state;
  begin(HAUL_PROGRESS_CALLER);
  end(write_part(0, false, "rdma"));
  uint64_t before = nic_doorbells();
  haul_transfer *transfer = write_part(1, true, "rdma");
  assert_works(haul_transfer_cancel(transfer));
  assert_fails(HAUL_ECANCELED, haul_transfer_wait(transfer, haul_deadline_in(BOUND)));
  haul_transfer_release(transfer);
  end(write_part(2, false, "rdma"));
  assert_int_equal(nic_doorbells() - before, 1);
}

static _Atomic bool stop_rejected;

/* Posts works on a revoked region until told to stop. */
static void *post_rejected_works(void *remote) {
  while (!atomic_load(&stop_rejected)) {
    struct haul_transfer_options options = HAUL_TRANSFER_OPTIONS_INIT;
    haul_transfer *transfer;
    options.flags = HAUL_MORE;
    options.only = "rdma";
    if (haul_write(remote, t.region, &(struct haul_piece){0, 0, PART}, 1, &options, &transfer) == 0)
      haul_transfer_release(transfer);
  }
  return NULL;
}

/* Each failure keeps its own code and text while another thread's works fail. */
static void failures_keep_their_own_error(void **state) {
  (void)state;
  struct haul_remote *withdrawn;
  pthread_t thread;
  begin(HAUL_PROGRESS_THREAD);
  assert_int_equal(owner_name(&t.owner, 0, "second", HAUL_READ | HAUL_WRITE), 0);
  assert_int_equal(owner_publish(&t.owner, 1, KIND_HOST, LENGTH, "other", HAUL_READ | HAUL_WRITE),
                   0);
  assert_works(haul_peer_lookup(t.peer, "other", haul_deadline_in(BOUND), &withdrawn));
  assert_int_equal(owner_unpublish(&t.owner, 1, "other"), 0);
  atomic_store(&stop_rejected, false);
  assert_int_equal(pthread_create(&thread, NULL, post_rejected_works, withdrawn), 0);
  for (unsigned i = 0; i < 2000; i++) {
    struct haul_transfer_options options = HAUL_TRANSFER_OPTIONS_INIT;
    struct haul_piece piece = {0, 0, PART};
    options.only = "rdma";
    options.flags = HAUL_CHECKSUM;
    int code = haul_write(t.remote, t.region, &piece, 1, &options, NULL);
    assert_true(code == 0 || code == HAUL_ECHECKSUM);
  }
  atomic_store(&stop_rejected, true);
  pthread_join(thread, NULL);
  haul_remote_release(withdrawn);
}

/* With rdma as the only path, its failure does not end the peer. */
static void a_broken_only_path_keeps_the_peer(void **state) {
  (void)state;
  struct haul_node_config config = HAUL_NODE_CONFIG_INIT;
  struct haul_node *node;
  struct haul_peer *peer;
  struct haul_remote *remote;
  begin(HAUL_PROGRESS_CALLER);
  config.paths = "rdma";
  assert_works(haul_node_open(&config, &node));
  assert_works(haul_peer_connect(node, t.owner.address, haul_deadline_in(BOUND), &peer));
  assert_works(haul_peer_lookup(peer, "memory", haul_deadline_in(BOUND), &remote));
  struct haul_region *region = region_make(node, KIND_HOST, LENGTH);
  nic_fault("retry:1");
  assert_fails(HAUL_ENOPATH,
               haul_write(remote, region, &(struct haul_piece){0, 0, PART}, 1, NULL, NULL));
  assert_works(haul_peer_status(peer));
  haul_region_release(region);
  haul_remote_release(remote);
  haul_peer_close(peer);
  haul_node_close(node);
}

#define TEST(test) cmocka_unit_test_teardown(test, tear_down)

int main(int argc, char **argv) {
  if (argc > 1 && strcmp(argv[1], OWNER_MODE) == 0)
    return owner_main();
  if (!nic_is_there())
    return 77;
  seams_no_unix_sockets();
  const struct CMUnitTest tests[] = {
      TEST(a_refused_work_request_loses_nothing),
      TEST(sixteen_works_share_a_doorbell),
      TEST(works_without_more_ring_each),
      TEST(a_short_batch_is_posted),
      TEST(a_batch_ends_at_64_kib),
      TEST(a_batch_of_one_is_posted),
      TEST(progress_posts_a_batch_of_one),
      TEST(threads_post_concurrently),
      TEST(the_last_work_of_a_revoked_region_ends),
      TEST(a_canceled_deferred_work_is_not_posted),
      TEST(failures_keep_their_own_error),
      TEST(a_broken_only_path_keeps_the_peer),
      TEST(a_transfer_takes_at_most_512_bytes),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
