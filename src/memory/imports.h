/* SPDX-License-Identifier: MIT
 * The import cache, by identity of the exported region. Regions of one identity share an import.
 * When the last user leaves, the import is kept for IMPORTS_KEEP_NS for the next ticket.
 *
 * The lock guards the lists and user counts. No lock is taken after it, and no callback is called
 * with it held. */
#ifndef HAUL_MEMORY_IMPORTS_H
#define HAUL_MEMORY_IMPORTS_H

#include <pthread.h>

#include "core/list.h"
#include "memory/provider.h"
#include "memory/ticket.h"

#define IMPORTS_IDLE    64u                    /* unused imports kept, at most */
#define IMPORTS_KEEP_NS ((int64_t)5000000000u) /* for 5 seconds */
#define IMPORTS_BUCKETS 64u

struct import_key {
  uint32_t rights, kind;
  uint8_t identity[16], extra[32]; /* of the ticket */
};

struct import {
  struct list link; /* in its bucket, newest first; or in a list of imports to free */
  struct list idle; /* while unused, by expiry */
  struct import_key key;
  /* Several descriptors came with this key, and the owner's is unknown: a holder of the ticket
   * could send other memory with it. */
  bool contested;
  uint32_t users;
  int64_t ends_at;
  struct memory memory; /* users copy it */
};

struct imports {
  pthread_mutex_t lock;
  struct list buckets[IMPORTS_BUCKETS];
  struct list idle;
  unsigned idle_count;
  bool closed; /* keep no unused imports */
  _Atomic uint64_t shared, expired;
};

/* `keeps`: whether it keeps unused imports. */
void imports_open(struct imports *imports, bool keeps);
/* Keeps no unused import from now on; moves unused ones to `dead`, by `link`. */
void imports_close(struct imports *imports, struct list *dead);

/* Adds an import for the ticket, with one user; it owns `memory`. NULL with HAUL_ENOMEM. */
struct import *imports_add(struct imports *imports, const struct ticket *ticket,
                           const struct memory *memory);
/* The newest import of the ticket's memory and rights, with one more user. NULL with the detail:
 * HAUL_ETICKET (none, contested, or another length), HAUL_ESTALE. */
struct import *imports_take(struct imports *imports, const struct ticket *ticket);
/* Ends a use; moves imports to free to `dead`. Returns true when this is the first kept import:
 * then imports_expire must be called later. */
bool imports_put(struct imports *imports, struct import *import, struct list *dead);
/* Moves expired imports to `dead`. Returns when the next one expires, or HAUL_FOREVER. */
int64_t imports_expire(struct imports *imports, int64_t now, struct list *dead);

#endif
