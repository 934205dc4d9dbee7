/* SPDX-License-Identifier: MIT
 * Once the release of a region has returned, no NIC may access its memory: a peer that does not end
 * its access within the liveness timeout is dropped before the release returns. */
#include "support/check.h"

#include <pthread.h>
#include <stdatomic.h>

#include "support/nic.h"
#include "support/pair.h"
#include "support/seams.h"

#define MIB      ((uint64_t)1 << 20)
#define BOUND    (60 * S)
#define LIVENESS (500 * MS) /* less than what a NIC gets to end canceled requests */

static struct haul_node_config impatient(void) {
  struct haul_node_config config = HAUL_NODE_CONFIG_INIT;
  config.liveness_ns = LIVENESS;
  return config;
}

static void local_memory(void **state) {
  const struct haul_node_config config = impatient();
  struct haul_transfer_options options = HAUL_TRANSFER_OPTIONS_INIT;
  struct haul_piece piece = {0, 0, MIB};
  struct haul_transfer *transfer;
  struct pair pair;
  (void)state;
  nic_fault("");
  pair_open(&pair, &config, MIB);
  struct haul_region *wrapped = region_make(pair.node, KIND_WRAPPED, MIB);
  nic_fault("slow:60000000"); /* a minute */
  options.only = "rdma";
  assert_works(haul_read(wrapped, pair.remote, &piece, 1, &options, &transfer));
  region_drop(wrapped, KIND_WRAPPED);
  assert_int_equal(nic_queue_pairs(), 0);
  assert_fails(HAUL_ECANCELED, haul_transfer_test(transfer));
  assert_fails(HAUL_EPEER, haul_peer_status(pair.peer));
  haul_transfer_release(transfer);
  pair_close(&pair);
}

/* Nodes that only their callers drive. */
static struct {
  struct haul_node *owner, *user;
  struct haul_peer *peer;
  struct haul_remote *remote;
  _Atomic bool found;
} t;

static void *find(void *argument) {
  assert_works(haul_peer_connect(t.user, argument, haul_deadline_in(BOUND), &t.peer));
  assert_works(haul_peer_lookup(t.peer, "memory", haul_deadline_in(BOUND), &t.remote));
  atomic_store(&t.found, true);
  return NULL;
}

static void published_memory(void **state) {
  struct haul_node_config config = impatient();
  char address[160];
  pthread_t thread;
  (void)state;
  nic_fault("");
  config.progress = HAUL_PROGRESS_CALLER;
  assert_works(haul_node_open(&config, &t.user));
  assert_works(haul_node_open(&config, &t.owner));
  assert_works(haul_node_listen(t.owner, "tcp://127.0.0.1:0"));
  assert_works(haul_node_address(t.owner, 0, address, sizeof address));
  struct haul_region *wrapped = region_make(t.owner, KIND_WRAPPED, MIB);
  assert_works(haul_region_publish(wrapped, "memory", HAUL_READ | HAUL_WRITE));
  assert_int_equal(pthread_create(&thread, NULL, find, address), 0);
  while (!atomic_load(&t.found))
    haul_node_progress(t.owner, haul_deadline_in(MS));
  pthread_join(thread, NULL);
  unsigned before = nic_queue_pairs();
  region_drop(wrapped, KIND_WRAPPED); /* nobody drives the user, who has to detach */
  assert_int_equal(nic_queue_pairs(), before - 1);
  haul_remote_release(t.remote);
  haul_peer_close(t.peer);
  haul_node_close(t.user);
  haul_node_close(t.owner);
  nic_check_empty();
}

int main(int argc, char **argv) {
  if (argc > 1 && strcmp(argv[1], OWNER_MODE) == 0)
    return owner_main();
  if (!nic_is_there())
    return 77;
  seams_no_unix_sockets();
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(local_memory),
      cmocka_unit_test(published_memory),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
