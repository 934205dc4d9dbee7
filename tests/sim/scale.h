/* SPDX-License-Identifier: MIT
 * Thousands of nodes with few links each: what they cost, and what a join of all, churn, a rolling
 * restart and a partition do to them. With a directory the nodes enter their names there and find
 * each other by name; then etcd has an outage, too.
 *
 *   scale.c    nodes and stages
 *   figures.c  the report */
#ifndef HAUL_SIM_SCALE_H
#define HAUL_SIM_SCALE_H

#include <haul/haul.h>

#include "sim.h"

#define LINKS 4 /* that a node makes */

enum stage { JOIN, CHURN, ROLL, PARTITION, HEALED, OUTAGE, RECOVERED, END };

struct node {
  unsigned number, life;
  struct host *host;
  struct process *process; /* NULL: dead */
  struct event restart;
  bool entered; /* its name is in the directory */
  unsigned incoming;
  int64_t looks_up_at; /* looks for another node then */
  struct own_link {
    haul_peer *peer; /* NULL: none */
    unsigned to;
    int64_t down; /* since when; 0: it is up, or has never been */
  } links[LINKS];
};

struct scale {
  struct node *nodes;
  unsigned count, linked;
  bool directory;
  enum stage stage;
  int64_t stage_began;
};
extern struct scale scale;

void scale_start(unsigned nodes, bool directory);
bool scale_is_over(void);

/* figures.c */

void figures_start(void);
void figures_bare(const struct process *process); /* of a node without links */
void figures_message(void);
void figures_connect(int code, int64_t took);
void figures_reconnect(int64_t took);
void figures_register_failed(void);
void figures_stage(const char *name); /* its end */
void figures_report(void);

#endif
