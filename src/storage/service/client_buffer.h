/* SPDX-License-Identifier: MIT
 * A client buffer: a region of the client that the server writes READ data to, and reads WRITE data
 * from. It is published under a random name, and under a new one for each connection, so that late
 * writes of an earlier connection fail. */
#ifndef HAUL_STORAGE_SERVICE_CLIENT_BUFFER_H
#define HAUL_STORAGE_SERVICE_CLIENT_BUFFER_H

#include <pthread.h>

#include "storage/service/rpc.h"

struct client_buffer {
  struct rpc *rpc;
  haul_region *region;
  unsigned rights;      /* of the server: HAUL_WRITE, or HAUL_READ */
  pthread_mutex_t lock; /* guards the fields below */
  char name[PROTOCOL_REGION_ROOM];
  uint64_t generation; /* of the connection that `number` belongs to; 0: none */
  uint32_t number;     /* the server's */
};

/* The region stays the caller's, and belongs to the node of `rpc`. */
void client_buffer_open(struct client_buffer *buffer, struct rpc *rpc, haul_region *region,
                        unsigned rights);
void client_buffer_close(struct client_buffer *buffer);

/* One READ or WRITE of an open file. */
struct buffer_io {
  uint16_t operation;
  uint64_t generation, file;
  int64_t offset;
  uint64_t at, length; /* in the region */
  uint32_t flags;
  struct io_summary *summary; /* filled after success; may be NULL */
};
/* As rpc_start. */
int client_buffer_start(struct client_buffer *buffer, const struct buffer_io *io,
                        struct rpc_call **call);
/* Returns the number of bytes. *in_use: the server may still use the region; it does not when
 * `late` is called (rpc_wait). */
ssize_t client_buffer_wait(struct client_buffer *buffer, const struct buffer_io *io,
                           struct rpc_call *call, void (*late)(void *user), void *user,
                           bool *in_use);

#endif
