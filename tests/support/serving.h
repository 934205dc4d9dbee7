/* SPDX-License-Identifier: MIT
 * A node in another process that is attacked, and the proof that it lives on: a well-behaved peer
 * is served as before, and descriptors and memory return to what they were. */
#ifndef HAUL_TESTS_SERVING_H
#define HAUL_TESTS_SERVING_H

#include "support/owner.h"

struct serving {
  struct owner owner;
  struct haul_node *node;
  struct haul_peer *peer;
  struct haul_remote *remote;
  struct haul_region *region;
  unsigned descriptors;
  uint64_t resident;
};
extern struct serving serving;

/* Setup and teardown of a test. The owner publishes "host", "sim" and "wrapped", 4 MiB each, with
 * both rights, and "readable". The constants are its bounds. The test's state is the address to
 * listen on. */
#define SERVING_LIVENESS  (SANITIZED ? 2 * S : 400 * MS)
#define SERVING_HANDSHAKE (SANITIZED ? 5 * S : 1 * S)
int serving_start(void **state);
int serving_end(void **state);
/* The good peer is served, over both paths. */
void assert_serves(void);
/* And nothing of the bad ones is left. */
void assert_unharmed(void);

#endif
