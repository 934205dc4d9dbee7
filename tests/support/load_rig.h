/* SPDX-License-Identifier: MIT
 * One node, its peers in processes of their own, and a load between them (load.h), step by step,
 * for the test and the bench of that name. Over tcp on loopback. All nodes are driven by their
 * callers, so that whoever is to answer can be held: not driven, it answers nothing. A call that
 * fails ends the program, with the reason. */
#ifndef HAUL_TESTS_LOAD_RIG_H
#define HAUL_TESTS_LOAD_RIG_H

#include <haul/stats.h>
#include <sys/types.h>

#include "support/load.h"

#define LOAD_PEERS_MAX 512
#define LOAD_PEER_MODE "load-peer" /* main calls load_peer_main when its first argument is this */

struct load_job {
  unsigned peers, regions, count;
  uint64_t most, seed;
  int64_t liveness_ns, transfer_ns; /* 0: the default */
  int node_posts;                   /* all transfers; else the peers post them */
};

/* What a process has taken. */
struct load_use {
  uint64_t resident, private; /* bytes; private: without the memory of regions */
  uint64_t descriptors;
  int64_t processor_ns;
};

struct load_peer {
  pid_t process;
  int socket;
  haul_peer *peer; /* the node's handle, and its memory, where the node posts */
  haul_remote *memory;
  uint64_t value; /* of its last answer */
  struct load_use use;
};

struct load_rig {
  struct load_job job;
  struct load_plan plan;
  haul_node *node;
  haul_region **regions;
  haul_transfer **transfers; /* where the node posts */
  struct load_peer peers[LOAD_PEERS_MAX];
  unsigned round;
  int64_t let_go; /* when */
  int64_t *times; /* of each move in the last round, from there to its end */
};

int load_peer_main(void);

/* The processes, which have no node yet, and this one's node with its regions. */
void load_rig_open(struct load_rig *rig, const struct load_job *job);
void load_rig_connect(struct load_rig *rig);
/* Each peer every region; where the node posts, it every peer's memory. */
void load_rig_look_up(struct load_rig *rig);
/* New bytes on both sides. */
void load_rig_fill(struct load_rig *rig, unsigned round);
/* Posts everything while nobody answers. Returns how many are under way, as the nodes count. */
uint64_t load_rig_post(struct load_rig *rig);
/* Lets the others answer, until all has ended; what the peers have taken is then known. */
void load_rig_go(struct load_rig *rig);
/* Looks at every byte. Returns how many regions and memories are not as they should be, each of
 * which is named on standard error. */
unsigned load_rig_check(struct load_rig *rig);
/* The peers give everything back and end; those that have kept a descriptor fail. The node has no
 * peer then. */
void load_rig_leave(struct load_rig *rig);
/* What this process has but for the sockets to those of the peers. */
struct load_use load_rig_use(const struct load_rig *rig);
void load_rig_close(struct load_rig *rig);

struct load_use load_use_now(void);
int64_t load_now(void);

#endif
