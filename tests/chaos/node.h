/* SPDX-License-Identifier: MIT
 * One process of a run: a node that owns regions, accesses the other nodes' regions, and injects
 * faults into itself. */
#ifndef HAUL_TESTS_CHAOS_NODE_H
#define HAUL_TESTS_CHAOS_NODE_H

#include "shared.h"
#include "support/owner.h"

#define NODE_MODE "chaos-node"

/* Arrives on descriptor 3 at the start of the process. */
struct node_arguments {
  unsigned number;
  uint64_t life, seed;
  int shared; /* descriptor */
};

int node_main(void);

struct self {
  struct shared *shared;
  struct process *process;
  unsigned number;
  uint64_t life, random;
  struct haul_node *node;
};
extern struct self self;
extern const char *const region_names[KINDS];

/* Fails the run: prints the reason and aborts the process. */
_Noreturn void violation(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* The call may fail, but only with an error that the injected faults explain, and with a hint. */
void may_fail(int code, const char *call);
/* The same for the code of an ended transfer (haul_transfer_test). */
void may_end(int code, const char *operation);
/* 0 to below - 1. */
uint64_t chance(uint64_t below);
/* The library's time, whose speed faults.c varies. */
int64_t skewed_now(void);

/* regions.c */

void regions_open(void);
/* Replaces a region; the peers' handles of the old one become stale. */
void regions_replace(void);
void regions_verify(void);
void regions_close(void);

/* link.c: connections to the other nodes */

struct link {
  struct haul_peer *peer;
  struct haul_remote *remotes[KINDS];
  int64_t retry_at;
  unsigned in_use; /* operations in flight */
};

void links_open(void);
/* A remote of a region whose lane is valid; NULL: not now. */
struct haul_remote *link_remote(unsigned owner, unsigned kind);
struct haul_peer *link_peer(unsigned owner);
void link_hold(unsigned owner);
void link_release(unsigned owner);
/* The region was replaced: the next use looks it up again. */
void link_forget(unsigned owner, unsigned kind);
void links_close(void);

/* operation.c */

void operations_open(void);
/* Completes ended operations, and begins others if it may. Returns the number in flight. */
unsigned operations_step(bool may_begin);
void operations_close(void);
void message_send(void);
void messages_receive(void);

/* faults.c: a thread that injects faults into this process */

void faults_start(void);
/* No memory or descriptor is refused between the two. */
void faults_pause(void);
void faults_resume(void);
/* Ends it and restores the clock. */
void faults_stop(void);

#endif
