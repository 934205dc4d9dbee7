/* SPDX-License-Identifier: MIT
 * A load of its own: a source publishes versions, and receivers follow it, by libhaul-services.
 *
 *   broadcast.c  the plan, faults, phases, the report
 *   receiver.c   the lives of source and receivers, and what must hold */
#ifndef HAUL_SIM_BROADCAST_H
#define HAUL_SIM_BROADCAST_H

#include <haul/broadcast.h>
#include <stdio.h>

#include "scene.h"

#define RECEIVERS 4096
#define VERSIONS  4096

enum cast_fault {
  CAST_KILL,
  CAST_FREEZE,
  CAST_CUT,
  CAST_CUT_ONE_WAY,
  CAST_PARTITION,
  CAST_RESET,
  CAST_MEMORY,
  CAST_SOURCE_KILL,
  CAST_SOURCE_FREEZE,
  CAST_FAULTS
};

struct cast_plan {
  unsigned receivers, hosts;
  struct fault_plan faults;
  uint64_t length; /* of a version, at most */
  uint64_t chunk;
  int64_t publish_interval, liveness;
  unsigned slow_hosts; /* in a million: their links are up to 30 times slower */
  unsigned in_flight;
  bool twice; /* receivers have two regions, for two versions */
  bool leaves;
};
extern struct cast_plan cast_plan;

/* An attempt to publish. */
struct content {
  uint64_t from; /* its version's number is not smaller; that of the next one is larger */
  uint64_t seed, length;
  unsigned life; /* of the source */
  int64_t at;
  size_t complete; /* receivers, each at its first time */
  int64_t *times;
  uint64_t source_bytes; /* that came from the source, of all of them */
};

struct cast {
  struct participant source, receivers[RECEIVERS];
  uint64_t versions[RECEIVERS]; /* that they have completed, in any life */
  struct content contents[VERSIONS];
  size_t count;
  uint64_t final; /* version published after the last fault; 0: not yet */
  uint64_t done, kept, retries;
};
extern struct cast cast;

extern const struct scene broadcast_scene;

void *source_main(void *participant);
void *receiver_main(void *participant);

#endif
