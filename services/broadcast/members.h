/* SPDX-License-Identifier: MIT
 * The source's board, as a member reads and changes it. Functions that take a deadline wait for the
 * source. */
#ifndef HAUL_SERVICES_BROADCAST_MEMBERS_H
#define HAUL_SERVICES_BROADCAST_MEMBERS_H

#include <stddef.h>

#include "broadcast/join.h"

#define JOIN         "haul_broadcast_join"
#define LOCAL(field) offsetof(struct exchange, field)

static inline struct haul_transfer_options control_options(haul_deadline until) {
  struct haul_transfer_options options = HAUL_TRANSFER_OPTIONS_INIT;
  options.priority = HAUL_PRIORITY_HIGH;
  options.deadline = sooner(until, CONTROL_NS);
  return options;
}

/* Writes part of the exchange memory to the board. */
int member_put(struct join *join, uint64_t remote, uint64_t local, uint64_t length,
               haul_deadline until);
/* Whether the board names each change since the list was read. */
bool member_knows_changes(const struct join *join, const struct board *board, uint64_t used);
/* Takes a card off the board. If it is not there, the list is outdated, whatever the changes say:
 * the member that took it off was killed before it told the change. */
int member_remove(struct join *join, uint64_t place, uint64_t owner, haul_deadline until);

#endif
