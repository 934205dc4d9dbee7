/* SPDX-License-Identifier: MIT
 * One process of a run: a node that owns regions, uses those of the others, and does itself harm.
 */
#ifndef HAUL_TESTS_CHAOS_NODE_H
#define HAUL_TESTS_CHAOS_NODE_H

#include "board.h"
#include "support/owner.h"

#define NODE_MODE "chaos-node"

/* What descriptor 3 brings when the process starts. */
struct brief {
  unsigned seat;
  uint64_t life, seed;
  int board; /* descriptor */
};

int node_main(void);

struct me {
  struct board *board;
  struct seat *seat;
  unsigned number;
  uint64_t life, random;
  struct haul_node *node;
};
extern struct me me;

/* The run has failed: says why, and ends the process so that it shows. */
_Noreturn void violation(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* The call may fail, but only in a way that the harm which is done explains, and with a hint. */
void may_fail(int code, const char *call);
/* The same of how a transfer ended, as haul_transfer_test says. */
void may_end(int code, const char *what);
/* 0 to below - 1. */
uint64_t chance(uint64_t below);
/* Time as the library sees it, which goes faster and slower. */
int64_t strained_now(void);

/* ---- own.c: the regions of this node ---- */

void own_open(void);
/* Another region takes the place of one; what peers know of the old one is stale. */
void own_replace(void);
void own_verify(void);
void own_close(void);

/* ---- link.c: the nodes that this one uses ---- */

struct link {
  struct haul_peer *peer;
  struct haul_remote *remotes[KINDS];
  int64_t retry_at;
  unsigned in_use; /* operations under way */
};

void links_open(void);
/* A remote of a region whose lane is known; NULL: not now. */
struct haul_remote *link_remote(unsigned owner, unsigned kind);
struct haul_peer *link_peer(unsigned owner);
void link_take(unsigned owner);
void link_give(unsigned owner);
/* The region was replaced: looked up again at the next use. */
void link_forget(unsigned owner, unsigned kind);
void links_close(void);

/* ---- operation.c ---- */

void operations_open(void);
/* Ends what has ended, and begins others if it may. Returns how many are under way. */
unsigned operations_step(bool begin);
void operations_close(void);
void message_send(void);
void messages_take(void);

/* ---- harm.c: a thread that does to this process what hosts do ---- */

void harm_start(void);
/* Nothing is refused between the two. */
void harm_hold(void);
void harm_let(void);
/* Ends it, and takes back what lasts. */
void harm_stop(void);

#endif
