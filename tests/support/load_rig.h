/* SPDX-License-Identifier: MIT
 * A node, its peers in processes of their own, and a load between them (load.h) over tcp on
 * loopback, in steps, for the test and the bench of that name. Callers drive all nodes, so a node
 * that is not driven does not respond. A failing call ends the program with the reason. */
#ifndef HAUL_TESTS_LOAD_RIG_H
#define HAUL_TESTS_LOAD_RIG_H

#include <haul/stats.h>
#include <sys/types.h>

#include "support/load.h"

#define LOAD_PEERS_MAX 512
#define LOAD_PEER_MODE "load-peer" /* main calls load_peer_main for this first argument */

struct load_job {
  unsigned peers, regions, count;
  uint64_t most, seed;
  int64_t liveness_ns, transfer_ns; /* 0: the default */
  int node_posts;                   /* 1: the node posts all transfers; else the peers */
};

/* Resources of a process. */
struct load_use {
  uint64_t resident, private; /* bytes; private: without regions */
  uint64_t descriptors;
  int64_t processor_ns;
};

struct load_peer {
  pid_t process;
  int socket;
  haul_peer *peer; /* the node's handles, if the node posts */
  haul_remote *memory;
  uint64_t value; /* of its last response */
  struct load_use use;
};

struct load_rig {
  struct load_job job;
  struct load_plan plan;
  haul_node *node;
  haul_region **regions;
  haul_transfer **transfers; /* if the node posts */
  struct load_peer peers[LOAD_PEERS_MAX];
  unsigned round;
  int64_t let_go; /* when */
  int64_t *times; /* of each move, from let_go to its end */
};

int load_peer_main(void);

/* Starts the peer processes, without nodes yet, and opens this node with its regions. */
void load_rig_open(struct load_rig *rig, const struct load_job *job);
void load_rig_connect(struct load_rig *rig);
/* Peers look up all regions; if the node posts, it looks up all peers' memories. */
void load_rig_look_up(struct load_rig *rig);
/* Writes new bytes on both sides. */
void load_rig_fill(struct load_rig *rig, unsigned round);
/* Posts all transfers while no side responds. Returns the transfers in flight, as counted by the
 * nodes. */
uint64_t load_rig_post(struct load_rig *rig);
/* Lets the others respond until all transfers have ended, and collects the peers' resources. */
void load_rig_go(struct load_rig *rig);
/* Checks each byte. Returns the number of wrong regions and memories, which it names on stderr. */
unsigned load_rig_check(struct load_rig *rig);
/* Peers release everything and end; a leaked descriptor is a failure. Then the node has no peer. */
void load_rig_leave(struct load_rig *rig);
/* This process's resources without the sockets to peers. */
struct load_use load_rig_use(const struct load_rig *rig);
void load_rig_close(struct load_rig *rig);

struct load_use load_use_now(void);
int64_t load_now(void);

#endif
