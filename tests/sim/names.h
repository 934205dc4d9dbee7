/* SPDX-License-Identifier: MIT
 * A load of its own: nodes that enter their names in a directory, find each other there, connect by
 * name, and walk.
 *
 *   names.c   the plan, faults, phases
 *   named.c   a node's life, what it looks up, what must hold
 *   identity.c  apart, as the library's headers have names of their own */
#ifndef HAUL_SIM_NAMES_H
#define HAUL_SIM_NAMES_H

#include <haul/directory.h>
#include <haul/haul.h>

#include "etcd.h"

#define NODES    6
#define LIVES    512
#define MIRRORED 64 /* entries of a walk */

enum node_fault {
  NODE_KILL,
  NODE_POWER,
  NODE_FREEZE,
  NODE_LEAVES, /* closes in order, and comes back */
  LINK_CUT,
  LINK_CUT_ONE_WAY,
  LINK_RESET,
  NO_MEMORY,
  NO_DESCRIPTORS,
  NODE_FAULTS
};

struct names_plan {
  unsigned nodes, hosts;
  unsigned node_faults, etcd_faults; /* bits by enum */
  int64_t faulty_for, fault_interval, liveness, pause;
  unsigned lease; /* seconds */
  bool any_address, advertises, free_ports, moves, publishes;
};
extern struct names_plan names_plan;

/* One life of a node. */
struct life {
  uint8_t id[16];
  char address[64];
  int64_t ended; /* 0: it goes on */
};

/* What a walk has told so far. */
struct mirror {
  bool told; /* everything that existed at its start */
  size_t count;
  struct haul_directory_entry entries[MIRRORED];
};

struct named {
  unsigned number, life;
  struct host *host;
  struct process *process; /* NULL: dead */
  char name[16];
  haul_node *node;
  haul_region *region, *own_region;
  bool own_published;
  int64_t toggled_at;       /* each publication costs requests, whose number is limited */
  struct life lives[LIVES]; /* by life */
  int64_t registered_at;    /* its entries are current since then; 0: they are not */
  int64_t trouble_until;    /* of this node or its links */
  bool leaves, ended, looks_up, registers, walks;
  unsigned connected, found; /* bits of other nodes, in the quiet phase */
  bool mirrors;              /* its walk agrees with the directory, in the quiet phase */
  struct mirror mirror;
};

struct names {
  struct named nodes[NODES];
  uint64_t done[4], failed[4], codes[64]; /* by call: register, find, connect, walk */
  uint64_t absent;                        /* lookups without an entry */
};
extern struct names names;
enum { REGISTER, FIND, CONNECT, NEXT };

void names_draw(void);
bool names_set(const char *text); /* as plan_set and plan_print (load.h) */
void names_print_plan(FILE *to);
void names_print(void);
void names_start(void);
bool names_are_over(void);
void names_history(void);
uint64_t names_operations(void);

void named_start(struct named *node);
void *named_main(void *node);
/* Are exactly the node and the regions in the directory that it publishes? */
bool named_is_entered(const struct named *node);
/* The id in the entries of a node; from the library's internal headers. */
void identity_of(const haul_node *node, uint8_t id[16]);

#endif
