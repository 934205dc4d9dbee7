/* SPDX-License-Identifier: MIT
 * A wharf: a region that a client lends to its server: what is read lands in it, what is written
 * lies in it. It is published under a name that nobody can guess, and anew for each connection, so
 * that what a server of before still writes goes nowhere. */
#ifndef HAUL_STORAGE_SERVICE_WHARF_H
#define HAUL_STORAGE_SERVICE_WHARF_H

#include <haul/haul.h>
#include <pthread.h>

#include "storage/service/dial.h"
#include "storage/service/told.h"

struct wharf {
  struct dial *dial;
  haul_region *region;
  unsigned rights;      /* the server's: HAUL_WRITE, or HAUL_READ */
  pthread_mutex_t lock; /* guards what follows */
  char name[PROTOCOL_REGION_ROOM];
  uint64_t generation; /* of the connection that knows it; 0: none */
  uint32_t number;     /* the server's, for it */
};

/* The region stays the caller's, and is the dial's node's. */
void wharf_open(struct wharf *wharf, struct dial *dial, haul_region *region, unsigned rights);
void wharf_close(struct wharf *wharf);

/* What READ and WRITE call it on this connection. As dial_start. */
int wharf_number(struct wharf *wharf, uint64_t *generation, uint32_t *number);

/* One READ or WRITE of an open file, `length` bytes from `at` on in the region; how many were
 * moved. `late` as in dial_wait: it is called where *in_use is set. */
struct wharf_move {
  uint16_t operation;
  uint64_t generation, file;
  int64_t offset;
  uint64_t at, length;
  uint32_t flags;
  struct told *told; /* NULL, or how it went, once it has gone well */
};
int wharf_start(struct wharf *wharf, const struct wharf_move *move, struct call **call);
ssize_t wharf_wait(struct wharf *wharf, const struct wharf_move *move, struct call *call,
                   void (*late)(void *user), void *user, bool *in_use);

#endif
