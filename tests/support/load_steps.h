/* SPDX-License-Identifier: MIT
 * Shared by both sides of a load (load_rig.h). */
#ifndef HAUL_TESTS_LOAD_STEPS_H
#define HAUL_TESTS_LOAD_STEPS_H

#include <stdio.h>

#include "support/load_rig.h"

#define LOAD_PATIENCE_MS 200000 /* for a step of one side */
#define LOAD_NAME        32

enum load_step {
  LOAD_CONNECT,
  LOAD_LOOK_UP,
  LOAD_FILL,
  LOAD_POST, /* or do not drive the node, if the node posts */
  LOAD_GO,
  LOAD_TELL, /* report resources */
  LOAD_CHECK,
  LOAD_LEAVE
};

/* The first message to a peer. */
struct load_brief {
  struct load_job job;
  unsigned index;
  char address[160];
};

struct load_order {
  enum load_step step;
  unsigned round;
  int64_t let_go;
};

/* Response to an order. Before the one to LOAD_GO the peer sends its times, if it posts. */
struct load_response {
  uint64_t value;
  struct load_use use;
};

void load_must(int code, const char *what); /* exits if `code` is an error */
_Noreturn void load_fail(const char *what);
static inline void load_need(bool holds, const char *what) {
  if (!holds)
    load_fail(what);
}

struct haul_node_config load_config(const struct load_job *job);
void load_name(unsigned region, char name[LOAD_NAME]);
haul_deadline load_deadline(void);

/* The node's own transfers in flight. */
uint64_t load_under_way(haul_node *node);

/* Writes to the remote or reads from it; *ended becomes the time of its end. */
haul_transfer *load_post(haul_remote *remote, haul_region *local, const struct haul_piece *piece,
                         bool write, int64_t *ended);
/* Waits for the end and releases the transfer. */
void load_end(haul_node *node, haul_transfer **transfer, const int64_t *ended);

#endif
