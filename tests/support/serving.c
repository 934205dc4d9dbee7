/* SPDX-License-Identifier: MIT */
#include "support/serving.h"

#include <string.h>
#include <time.h>

#include "support/check.h"
#include "support/seams.h"

#define LENGTH ((uint64_t)4 << 20)

struct serving serving;

static haul_deadline soon(void) {
  return haul_deadline_in(20 * S);
}

/* The owner allows a handshake SERVING_HANDSHAKE, and a peer SERVING_LIVENESS. A busy machine may
 * take longer. */
static void connect_patiently(void) {
  haul_deadline until = soon();
  while (haul_peer_connect(serving.node, serving.owner.address, until, &serving.peer) != 0)
    if (haul_deadline_in(0) > until)
      fail_msg("%s", haul_error_last()->text);
}

int serving_start(void **state) {
  struct haul_node_config config = HAUL_NODE_CONFIG_INIT;
  const unsigned both = HAUL_READ | HAUL_WRITE;
  config.liveness_ns = SERVING_LIVENESS;
  config.handshake_ns = SERVING_HANDSHAKE;
  owner_start(&serving.owner, *state, &config);
  assert_int_equal(owner_publish(&serving.owner, 0, KIND_HOST, LENGTH, "host", both), 0);
  assert_int_equal(owner_publish(&serving.owner, 1, KIND_SIM, LENGTH, "sim", both), 0);
  assert_int_equal(owner_publish(&serving.owner, 2, KIND_WRAPPED, LENGTH, "wrapped", both), 0);
  assert_int_equal(owner_publish(&serving.owner, 3, KIND_HOST, LENGTH, "readable", HAUL_READ), 0);
  assert_works(haul_node_open(NULL, &serving.node));
  serving.region = region_make(serving.node, KIND_HOST, LENGTH);
  connect_patiently();
  assert_works(haul_peer_lookup(serving.peer, "host", soon(), &serving.remote));
  assert_serves();
  serving.descriptors = owner_descriptors(&serving.owner);
  serving.resident = owner_resident(&serving.owner);
  return 0;
}

int serving_end(void **state) {
  (void)state;
  haul_remote_release(serving.remote);
  haul_region_release(serving.region);
  haul_peer_close(serving.peer);
  haul_node_close(serving.node);
  return owner_end(&serving.owner);
}

void assert_serves(void) {
  static const char *const ways[] = {"map", "tcp"};
  struct haul_piece piece = {0, 0, LENGTH};
  assert_works(haul_peer_status(serving.peer));
  for (unsigned i = 0; i < 2; i++) {
    struct haul_transfer_options options = HAUL_TRANSFER_OPTIONS_INIT;
    options.only = ways[i];
    region_fill(serving.node, serving.region, 0, LENGTH, i);
    assert_works(haul_write(serving.remote, serving.region, &piece, 1, &options, NULL));
    memset(haul_region_address(serving.region), 0, LENGTH);
    assert_works(haul_read(serving.region, serving.remote, &piece, 1, &options, NULL));
    pattern_check(haul_region_address(serving.region), LENGTH, i);
  }
}

void assert_unharmed(void) {
  haul_deadline until = soon();
  unsigned now;
  assert_serves();
  while ((now = owner_descriptors(&serving.owner)) > serving.descriptors) {
    if (haul_deadline_in(0) > until)
      fail_msg("%u descriptors, %u before", now, serving.descriptors);
    nanosleep(&(struct timespec){0, 2 * MS}, NULL);
  }
  uint64_t resident = owner_resident(&serving.owner);
  if (!SANITIZED && resident > serving.resident + ((uint64_t)16 << 20))
    fail_msg("%llu bytes resident, %llu before", (unsigned long long)resident,
             (unsigned long long)serving.resident);
}
