/* SPDX-License-Identifier: MIT
 * A client's connection to a node that serves files: requests and their answers, from any thread.
 *
 * A connection that ended is made again when somebody asks for something, once a second at the
 * most. What a server gave out is its own connection's: each one has a number, its generation, and
 * handles of another one are -ESTALE. */
#ifndef HAUL_STORAGE_SERVICE_DIAL_H
#define HAUL_STORAGE_SERVICE_DIAL_H

#include <haul/haul.h>

#include "storage/service/protocol.h"
#include <haul/storage.h>

struct dial;
struct call;

struct dial_config {
  const char *address;
  const char *export; /* "": the list of exports alone */
  int64_t timeout_ns; /* of each thing that is waited for */
};

/* Connects. A negative errno value, and *error says why. */
int dial_open(const struct dial_config *config, struct dial **dial,
              struct haul_storage_error *error);
/* Nobody waits for anything. */
void dial_close(struct dial *dial);

haul_node *dial_node(const struct dial *dial);
int64_t dial_timeout(const struct dial *dial);
bool dial_is_writable(struct dial *dial);

/* Sends a request: forgets is filled in. *generation: the one that it is for, or 0, any, and then
 * which it was. -ESTALE: there is another connection now; -ENOTCONN, -ETIMEDOUT. */
int dial_start(struct dial *dial, uint64_t *generation, struct protocol_request *request,
               struct call **call);
/* Waits for the answer: its status. *answer is good until dial_end. Where none came in time it is
 * -ETIMEDOUT, *call is NULL, and the server may yet do what it was asked for: `late`, if any, is
 * called once it cannot any more. */
int dial_wait(struct dial *dial, struct call **call, struct protocol_fields *answer,
              void (*late)(void *user), void *user);
void dial_end(struct call *call);

/* The three in one, for answers without bytes. */
int dial_ask(struct dial *dial, uint64_t *generation, struct protocol_request *request,
             struct protocol_fields *answer);

/* Whether this connection is there. */
bool dial_is_up(struct dial *dial, uint64_t generation);

/* Tells the server with one of the next requests. Does not wait. */
void dial_forget(struct dial *dial, uint64_t generation, uint64_t node, uint64_t count);

#endif
