/* SPDX-License-Identifier: MIT
 * A node in another process that is attacked, and the check that it is unharmed: it serves a well-
 * behaved peer as before, and its descriptors and memory return to their former numbers. */
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

/* Set-up and teardown of a test, whose state is the address to listen on. The owner publishes
 * "host", "sim" and "wrapped", 4 MiB each, readable and writable, and "readable". The constants are
 * its time limits. */
#define SERVING_LIVENESS  (SANITIZED ? 2 * S : 1 * S)
#define SERVING_HANDSHAKE (SANITIZED ? 5 * S : 1 * S)
int serving_start(void **state);
int serving_end(void **state);
/* The well-behaved peer is served over both paths. */
void assert_serves(void);
/* The same, and the hostile peers have left no resources. */
void assert_unharmed(void);

#endif
