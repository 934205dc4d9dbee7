/* SPDX-License-Identifier: MIT
 * The handle, and what source and receivers share. */
#ifndef HAUL_SERVICES_BROADCAST_STATE_H
#define HAUL_SERVICES_BROADCAST_STATE_H

#include <haul/broadcast.h>

#include "broadcast/layout.h"
#include "common/fail.h"
#include "common/owner.h"

#define MEMBER_NAME_ROOM 256

/* A version that this node serves. */
struct held {
  uint64_t version;  /* 0: none */
  haul_region *data; /* the caller's; NULL: a version without bytes */
  haul_region *sums; /* checksums of the chunks; NULL likewise */
  haul_region *have; /* of a receiver */
  bool data_shown, sums_shown, have_shown;
};

struct join; /* join.h */

struct haul_broadcast {
  haul_node *node;
  pid_t owner; /* process */
  char name[NAME_MOST + 1];
  struct haul_broadcast_options options;
  struct held held[2]; /* the older one first */

  /* Source. */
  haul_region *head_region, *board_region;
  struct seen *seen; /* for each place: when it last changed */

  struct join *join; /* receiver */
};

/* "NAME.V.what"; `version` 0: "NAME.what". */
void member_name(const haul_broadcast *broadcast, uint64_t version, const char *what,
                 char text[MEMBER_NAME_ROOM]);

/* Publishes a region of a version for reading. */
int show(haul_broadcast *broadcast, uint64_t version, const char *what, haul_region *region,
         bool *shown);

/* Ends a version: withdraws its names and releases what is not the caller's. */
void held_end(haul_broadcast *broadcast, struct held *held);
/* Makes room for one version more: ends those of this region, and the older one of two. */
struct held *held_next(haul_broadcast *broadcast, const haul_region *region);

/* Sets *sum to the XXH3 of a range, which is copied to host memory if the processor cannot read it.
 */
int range_sum(haul_broadcast *broadcast, haul_region *region, uint64_t offset, uint64_t length,
              haul_deadline until, uint64_t *sum);

int64_t now_ns(void);
/* `until`, but in `nanoseconds` at the latest. */
static inline haul_deadline sooner(haul_deadline until, int64_t nanoseconds) {
  haul_deadline bound = haul_deadline_in(nanoseconds);
  return bound < until ? bound : until;
}
/* Makes progress, or sleeps, until then. */
void pause_until(haul_broadcast *broadcast, haul_deadline until);

void join_close(struct join *join);

#endif
