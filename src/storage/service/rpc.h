/* SPDX-License-Identifier: MIT
 * A client's connection to a file server: requests and their responses, from any thread.
 *
 * A connection that has ended is made again by the next request, at most once a second. Handles
 * belong to one connection: each has a generation number, and handles of another one are -ESTALE.
 */
#ifndef HAUL_STORAGE_SERVICE_RPC_H
#define HAUL_STORAGE_SERVICE_RPC_H

#include <haul/storage.h>

#include "storage/service/protocol.h"

struct rpc;
struct rpc_call;

struct rpc_config {
  const char *address;
  const char *export; /* "": the list of exports alone */
  int64_t timeout_ns; /* of each wait; 0: 30 s */
};

/* Connects. On failure returns a negative errno value and fills *error. */
int rpc_open(const struct rpc_config *config, struct rpc **rpc, struct haul_storage_error *error);
/* No call may be in progress. */
void rpc_close(struct rpc *rpc);

haul_node *rpc_node(const struct rpc *rpc);
int64_t rpc_timeout(const struct rpc *rpc);
bool rpc_is_writable(struct rpc *rpc);

/* Sends a request, and fills in its forgets. *generation: the connection that it belongs to, or 0
 * for any, and then receives its number. -ESTALE: that connection has ended; -ENOTCONN, -ETIMEDOUT.
 */
int rpc_start(struct rpc *rpc, uint64_t *generation, struct protocol_request *request,
              struct rpc_call **call);
/* Waits for the response and returns its status. *response is valid until rpc_end. -ETIMEDOUT:
 * *call is NULL, and the server may still execute the request; `late`, unless NULL, is called when
 * it no longer can. */
int rpc_wait(struct rpc *rpc, struct rpc_call **call, struct protocol_fields *response,
             void (*late)(void *user), void *user);
void rpc_end(struct rpc_call *call);

/* All three. `take`, unless NULL, gets the response after success while its bytes are valid. */
int rpc_call(struct rpc *rpc, uint64_t *generation, struct protocol_request *request,
             struct protocol_fields *response,
             int (*take)(void *user, const struct protocol_fields *response), void *user);

/* Sends UNREGION, whose response is ignored. If it cannot be sent at once, it is sent after the
 * next response or before the next request. Does not block. The end of the connection has the same
 * effect. */
void rpc_unregion(struct rpc *rpc, uint64_t generation, uint32_t region);

/* Whether this connection is up. */
bool rpc_is_up(struct rpc *rpc, uint64_t generation);

/* Adds a forget to one of the next requests. Does not block. */
void rpc_forget(struct rpc *rpc, uint64_t generation, uint64_t node, uint64_t count);

#endif
