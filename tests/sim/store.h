/* SPDX-License-Identifier: MIT
 * What etcd's members agree on: keys with their history, and leases. Every change has a revision;
 * the changes of one transaction share it. */
#ifndef HAUL_SIM_STORE_H
#define HAUL_SIM_STORE_H

#include <stdio.h>

#include "sim.h"

struct change {
  int64_t revision, created, version, lease, at;
  char *key, *value; /* value NULL: the key was deleted */
  size_t previous;   /* change of this key, counted from 1; 0: none */
};

struct lease {
  int64_t id, seconds, expires;
  struct list link; /* in store.leases */
  struct list same; /* of a bucket of store.c */
};

struct store {
  int64_t revision, compacted;
  struct change *changes; /* all of them, in order */
  size_t change_count, room;
  struct list leases;
  struct list changed; /* fibers that wait for a change */
};
extern struct store store;

void store_start(void);

/* The keys from `from` up to, not including, `to` (NULL: one key), as they were at a revision, by
 * key. The caller frees the array. */
size_t store_range(const char *from, const char *to, int64_t revision,
                   const struct change ***found);
const struct change *store_find(const char *key);

/* Changes belong to one revision until store_commit. */
void store_put(const char *key, const char *value, int64_t lease);
size_t store_delete(const char *from, const char *to);
void store_commit(void);

struct lease *store_lease(int64_t id); /* NULL: expired, or never granted */
struct lease *store_grant(int64_t seconds);
void store_revoke(struct lease *lease);
/* Revokes what has expired. */
void store_expire(void);
/* A new leader gives all leases their whole time again. */
void store_extend_leases(void);

#endif
