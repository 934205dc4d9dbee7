/* SPDX-License-Identifier: MIT
 * Slices over tcp that two nodes have recorded: the sides of each are found by its request, and
 * bound the difference of the clocks. All times are nanoseconds, by one clock but for an error. */
#ifndef HAUL_TRACE_LINK_H
#define HAUL_TRACE_LINK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <haul/stats.h>

/* A slice as one node saw it. */
struct link_side {
  uint64_t request, bytes, peer;
  uint64_t from, to; /* initiator: handed to the path, completed; responder: arriving, served */
  enum haul_operation operation;
  uint32_t track; /* of the event in the timeline of the node; UINT32_MAX: none */
  uint32_t next;  /* for the timeline */
};

struct link_list {
  struct link_side *list;
  size_t count, room;
};

/* What a node recorded. Begins with zeros, `names` belong to the caller. */
struct links {
  struct link_list sent;   /* slices of its own transfers */
  struct link_list served; /* slices of its peers */
  const char *name;        /* of the node */
  const struct haul_peer_stats *peers;
  size_t peer_count;
};

uint32_t links_add(struct link_list *list, const struct link_side *side); /* returns its index */
void links_free(struct links *links);

/* Both sides of a slice: indices in `sent` of one node and `served` of the other one. */
struct link {
  uint64_t peer, other; /* the numbers by which the nodes know each other */
  uint32_t sent, served;
};

struct link_pairs {
  struct link *list;
  size_t count, room;
};

/* Finds slices that `initiator` sent and `responder` served within `error` of that time. The caller
 * frees the list. */
struct link_pairs links_find(const struct links *initiator, const struct links *responder,
                             int64_t error);

/* Times of the second node are to be moved by a value in this range. */
struct link_shift {
  int64_t least, most;
};

/* Narrows the range to values with which each serving lies between begin and end of its slice.
 * `second`: the initiator is the second node. */
void links_narrow(struct link_shift *shift, const struct links *initiator,
                  const struct links *responder, const struct link_pairs *pairs, bool second);

#endif
