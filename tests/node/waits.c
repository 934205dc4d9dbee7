/* SPDX-License-Identifier: MIT
 * Waits for all or any of many transfers. The peer is another process that can be stopped, so that
 * transfers over tcp stay in flight. */
#include "support/check.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "support/owner.h"

#define BOUND  (20 * S)
#define MIB    ((size_t)1 << 20)
#define MANY   64u
#define LENGTH (4 * MIB)

static struct {
  struct owner owner;
  struct haul_node *node;
  struct haul_peer *peer;
  struct haul_region *region;
  struct haul_remote *remote;
  struct haul_transfer *transfers[MANY];
} t;

static haul_deadline soon(void) {
  return haul_deadline_in(BOUND);
}

static int set_up(void **state) {
  struct haul_node_config config = HAUL_NODE_CONFIG_INIT;
  config.liveness_ns = 60 * S; /* the owner is stopped */
  owner_start(&t.owner, "tcp://127.0.0.1:0", &config);
  assert_int_equal(owner_publish(&t.owner, 0, KIND_HOST, LENGTH, "memory", HAUL_WRITE | HAUL_READ),
                   0);
  config.progress = (int)(uintptr_t)*state;
  assert_works(haul_node_open(&config, &t.node));
  assert_works(haul_peer_connect(t.node, t.owner.address, soon(), &t.peer));
  assert_works(haul_peer_lookup(t.peer, "memory", soon(), &t.remote));
  t.region = region_make(t.node, KIND_HOST, LENGTH);
  return 0;
}

static int tear_down(void **state) {
  (void)state;
  for (unsigned i = 0; i < MANY; i++)
    haul_transfer_release(t.transfers[i]);
  haul_region_release(t.region);
  haul_remote_release(t.remote);
  haul_peer_close(t.peer);
  haul_node_close(t.node);
  assert_int_equal(owner_end(&t.owner), 0);
  memset(&t, 0, sizeof t);
  return 0;
}

/* Reads, because a write may be complete at the socket of a stopped peer. */
static void start(unsigned i, const char *only, haul_deadline deadline) {
  struct haul_transfer_options options = HAUL_TRANSFER_OPTIONS_INIT;
  struct haul_piece piece = {i * (LENGTH / MANY), i * (LENGTH / MANY), LENGTH / MANY};
  options.only = only;
  options.deadline = deadline;
  assert_works(haul_read(t.region, t.remote, &piece, 1, &options, &t.transfers[i]));
}

static void all_end(void **state) {
  (void)state;
  for (unsigned round = 0; round < 20; round++) {
    size_t index = 0;
    for (unsigned i = 0; i < MANY; i++)
      start(i, i % 3 ? "tcp" : "map", 0);
    assert_works(haul_transfer_wait_all(t.transfers, MANY, soon(), &index));
    assert_int_equal(index, MANY);
    for (unsigned i = 0; i < MANY; i++) {
      assert_int_equal(haul_transfer_test(t.transfers[i]), 0);
      haul_transfer_release(t.transfers[i]);
      t.transfers[i] = NULL;
    }
  }
}

static void any_ends_one_after_the_other(void **state) {
  (void)state;
  bool seen[MANY] = {false};
  size_t index;
  for (unsigned i = 0; i < MANY; i++)
    start(i, i % 3 ? "tcp" : "map", 0);
  for (unsigned i = 0; i < MANY; i++) {
    assert_works(haul_transfer_wait_any(t.transfers, MANY, soon(), &index));
    assert_true(index < MANY && !seen[index]);
    seen[index] = true;
    haul_transfer_release(t.transfers[index]);
    t.transfers[index] = NULL;
  }
  assert_fails(HAUL_EINVAL, haul_transfer_wait_any(t.transfers, MANY, soon(), &index));
  assert_works(haul_transfer_wait_all(t.transfers, MANY, soon(), &index));
}

static void the_deadline_bounds_both(void **state) {
  (void)state;
  size_t index = 0;
  owner_stop(&t.owner);
  start(1, "tcp", 0);
  start(2, "map", 0);
  start(3, "tcp", 0);
  /* One has ended, so the wait for any does not wait, even past its deadline. */
  assert_works(haul_transfer_wait_any(t.transfers, 4, HAUL_NO_WAIT, &index));
  assert_int_equal(index, 2);
  assert_fails(HAUL_ETIMEDOUT, haul_transfer_wait_all(t.transfers, 4, HAUL_NO_WAIT, &index));
  assert_int_equal(index, 1);
  assert_fails(HAUL_ETIMEDOUT,
               haul_transfer_wait_all(t.transfers, 4, haul_deadline_in(20 * MS), &index));
  assert_int_equal(index, 1);
  assert_int_equal(haul_transfer_test(t.transfers[index]), 1);
  haul_transfer_release(t.transfers[2]);
  t.transfers[2] = NULL;
  assert_fails(HAUL_ETIMEDOUT,
               haul_transfer_wait_any(t.transfers, 4, haul_deadline_in(20 * MS), &index));
  assert_int_equal(index, 1);
  owner_go_on(&t.owner);
  assert_works(haul_transfer_wait_all(t.transfers, 4, soon(), &index));
  assert_works(haul_transfer_wait_any(t.transfers, 4, HAUL_NO_WAIT, NULL));
}

/* The first in the array that failed, whichever failed first; the wait is for all nevertheless. */
static void errors_have_an_index(void **state) {
  (void)state;
  size_t index = 0;
  owner_stop(&t.owner);
  start(0, "map", 0);
  start(1, "tcp", 0);
  start(2, "tcp", haul_deadline_in(1000 * MS));
  start(3, "tcp", haul_deadline_in(500 * MS));
  start(4, "tcp", 0);
  assert_works(haul_transfer_cancel(t.transfers[4]));
  assert_fails(HAUL_ETIMEDOUT, haul_transfer_wait_all(&t.transfers[2], 3, soon(), &index));
  assert_int_equal(index, 0);
  assert_fails(HAUL_ETIMEDOUT, haul_transfer_test(t.transfers[2]));
  assert_fails(HAUL_ETIMEDOUT, haul_transfer_test(t.transfers[3]));
  assert_fails(HAUL_ECANCELED, haul_transfer_wait_all(&t.transfers[4], 1, soon(), &index));
  /* Any: the result of the first in the array that has ended. */
  assert_fails(HAUL_ETIMEDOUT, haul_transfer_wait_any(&t.transfers[1], 4, soon(), &index));
  assert_int_equal(index, 1);
  owner_go_on(&t.owner);
  assert_fails(HAUL_ETIMEDOUT, haul_transfer_wait_all(t.transfers, MANY, soon(), &index));
  assert_int_equal(index, 2);
  assert_int_equal(haul_transfer_test(t.transfers[1]), 0);
}

static void what_cannot_be_waited_for_is_refused(void **state) {
  (void)state;
  struct haul_node *other;
  struct haul_peer *peer;
  struct haul_remote *remote;
  struct haul_piece piece = {0, 0, 8};
  struct haul_transfer *pair[2];
  assert_works(haul_node_open(NULL, &other));
  assert_works(haul_peer_connect(other, t.owner.address, soon(), &peer));
  assert_works(haul_peer_lookup(peer, "memory", soon(), &remote));
  struct haul_region *region = region_make(other, KIND_HOST, MIB);
  start(0, "map", 0);
  pair[0] = t.transfers[0];
  assert_works(haul_read(region, remote, &piece, 1, NULL, &pair[1]));
  assert_fails(HAUL_EINVAL, haul_transfer_wait_all(pair, 2, soon(), NULL));
  assert_fails(HAUL_EINVAL, haul_transfer_wait_any(pair, 2, soon(), NULL));
  assert_fails(HAUL_EINVAL, haul_transfer_wait_all(NULL, 1, soon(), NULL));
  assert_fails(HAUL_EINVAL, haul_transfer_wait_any(NULL, 0, soon(), NULL));
  assert_works(haul_transfer_wait_all(NULL, 0, HAUL_NO_WAIT, NULL));
  haul_transfer_release(pair[1]);
  haul_region_release(region);
  haul_remote_release(remote);
  haul_peer_close(peer);
  haul_node_close(other);
}

static void *wait_for_all(void *argument) {
  size_t index;
  (void)argument;
  if (haul_transfer_wait_all(t.transfers, MANY, soon(), &index) || index != MANY)
    abort();
  return NULL;
}

static void *wait_for_any(void *argument) {
  size_t index;
  (void)argument;
  if (haul_transfer_wait_any(t.transfers, MANY, soon(), &index) || index >= MANY)
    abort();
  return NULL;
}

static void threads_wait_for_the_same_transfers(void **state) {
  (void)state;
  pthread_t threads[6];
  owner_stop(&t.owner);
  for (unsigned i = 0; i < MANY; i++)
    start(i, "tcp", 0);
  for (unsigned i = 0; i < COUNT(threads); i++)
    pthread_create(&threads[i], NULL, i % 2 ? wait_for_any : wait_for_all, NULL);
  owner_go_on(&t.owner);
  for (unsigned i = 0; i < COUNT(threads); i++)
    pthread_join(threads[i], NULL);
}

static void a_close_ends_the_wait(void **state) {
  (void)state;
  size_t index = 7;
  owner_stop(&t.owner);
  start(0, "map", 0);
  start(1, "tcp", 0);
  haul_node_close(t.node);
  t.node = NULL;
  assert_fails(HAUL_ECLOSED, haul_transfer_wait_all(t.transfers, 2, soon(), &index));
  assert_int_equal(index, 1);
  owner_go_on(&t.owner);
}

int main(int argc, char **argv) {
  if (argc > 1 && strcmp(argv[1], OWNER_MODE) == 0)
    return owner_main();
#define PROGRESS(test, by)                                                                         \
  { #test, test, set_up, tear_down, (void *)(uintptr_t)(by) }
#define BOTH(test) PROGRESS(test, HAUL_PROGRESS_THREAD), PROGRESS(test, HAUL_PROGRESS_CALLER)
  const struct CMUnitTest tests[] = {
      BOTH(all_end),
      BOTH(any_ends_one_after_the_other),
      BOTH(the_deadline_bounds_both),
      BOTH(errors_have_an_index),
      BOTH(what_cannot_be_waited_for_is_refused),
      BOTH(threads_wait_for_the_same_transfers),
      BOTH(a_close_ends_the_wait),
  };
  return cmocka_run_group_tests_name("waits", tests, NULL, NULL);
}
