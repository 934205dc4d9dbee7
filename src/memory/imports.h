/* SPDX-License-Identifier: MIT
 * What this process has imported, by the identity of the regions that it came from. Regions of one
 * identity share one import, and the last of them leaves it for the next ticket, for a while.
 *
 * The lock guards the lists and the users of all imports; nothing is taken after it and nobody is
 * called with it held. */
#ifndef HAUL_MEMORY_IMPORTS_H
#define HAUL_MEMORY_IMPORTS_H

#include <pthread.h>

#include "core/list.h"
#include "memory/provider.h"
#include "memory/ticket.h"

#define IMPORTS_IDLE    64u                    /* kept without users, at most */
#define IMPORTS_KEEP_NS ((int64_t)5000000000u) /* and so long */
#define IMPORTS_BUCKETS 64u

struct import_key {
  uint32_t rights, kind;
  uint8_t identity[16], extra[32]; /* of the ticket */
};

struct import {
  struct list link; /* in its bucket, newest first; or the caller's, of those to be freed */
  struct list idle; /* in the order of their ends, while nobody uses it */
  struct import_key key;
  /* Several were brought under this key, and nothing tells which is the owner's:
   * whoever was given a ticket can bring memory of its own with it. */
  bool contested;
  uint32_t users;
  int64_t ends_at;
  struct memory memory; /* users have copies of this */
};

struct imports {
  pthread_mutex_t lock;
  struct list buckets[IMPORTS_BUCKETS];
  struct list idle;
  unsigned idle_count;
  bool closed; /* nothing is kept any more */
  _Atomic uint64_t shared, expired;
};

void imports_open(struct imports *imports);
/* From now on the last user's end is an import's. What nobody uses goes to `dead`, by `link`. */
void imports_close(struct imports *imports, struct list *dead);

/* An import of the ticket's, with one user; `memory` is its own from now on. NULL with the detail
 * where there is no memory for it. */
struct import *imports_add(struct imports *imports, const struct ticket *ticket,
                           const struct memory *memory);
/* The newest of the ticket's memory and rights, with one user more. NULL with the detail:
 * HAUL_ETICKET (there is none, it is contested, or it is not what the ticket says), HAUL_ESTALE. */
struct import *imports_take(struct imports *imports, const struct ticket *ticket);
/* Ends a use. What is to be freed goes to `dead`. Returns whether something is kept now and nothing
 * was before: imports_expire is to be called in time. */
bool imports_put(struct imports *imports, struct import *import, struct list *dead);
/* What was kept long enough goes to `dead`. When the next is due; HAUL_FOREVER: nothing is kept. */
int64_t imports_expire(struct imports *imports, int64_t now, struct list *dead);

#endif
