/* SPDX-License-Identifier: MIT
 * For tests of tcp's rails: two connected nodes of this process; or a node and a peer by hand
 * (raw.h), from whose memory the node reads. */
#ifndef HAUL_TESTS_ENDS_H
#define HAUL_TESTS_ENDS_H

#include "fabric/tcp/frame.h"
#include "support/raw.h"

#define ENDS_BOUND  (20 * S)
#define ENDS_LENGTH 65536u /* of each region and transfer */

haul_deadline soon(void);
struct haul_transfer_options over_tcp(haul_deadline deadline);
/* A reference to the peer that joins next; the node has peer_events. */
haul_peer *next_joined(struct haul_node *node);

/* Two nodes: end 0 connects to end 1 */

struct end {
  struct haul_node *node;
  haul_peer *peer;
  struct haul_region *source, *target;
  struct haul_remote *remote; /* the other end's target */
};
extern struct end ends[2];

/* With three rails. `idle_ns`: the setting idle_rails. */
void ends_open(const char *listen_at, int64_t idle_ns);
void ends_close(void);
/* A write from this end. */
struct haul_transfer *ends_start(unsigned end, uint64_t seed);
void ends_finish(unsigned end, struct haul_transfer *transfer, uint64_t seed);

struct by_hand {
  int listener; /* the peer's; -1: the node's */
  int control;
  int rail;               /* the test's */
  struct welcome welcome; /* where the node listens */
  struct haul_node *node;
  haul_peer *peer;
  struct haul_region *region;
  struct haul_remote *remote;
};
extern struct by_hand hand;

/* The node connects to the peer. */
void by_hand_accept(const struct haul_node_config *config);
/* The node listens, with peer_events. */
void by_hand_listen(const struct haul_node_config *config);
/* Connects to that node, from another host, and sends READY. */
int by_hand_connect(const char *transport, uint8_t rails, struct welcome *welcome);
/* The node has accepted that connection, and looks up a region there. */
void by_hand_meet(int control);
/* The node asks for rails. */
void by_hand_expect_dial(int control);
void by_hand_close(void);

/* The node reads from the peer. */
struct haul_transfer *read_start(haul_deadline deadline);
void read_finish(struct haul_transfer *transfer, uint64_t seed);
struct frame receive_frame(int rail);
void send_data(int rail, uint64_t request, uint64_t seed);

#endif
