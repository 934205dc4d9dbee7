/* SPDX-License-Identifier: MIT
 * A tree that another node exports, as a source. Its files have no descriptor on this host.
 *
 * A node's handle is the server's handle in the lower bits, and the connection's generation above.
 * The root's is the same on every connection. */
#ifndef HAUL_STORAGE_SERVICE_REMOTE_H
#define HAUL_STORAGE_SERVICE_REMOTE_H

#include <pthread.h>
#include <stdatomic.h>

#include "storage/service/rpc.h"
#include "storage/util.h"

struct remote_config {
  struct rpc_config rpc;
  bool read_only;
  void (*log)(void *user, int priority, const char *text); /* syslog(3)'s priorities; may be NULL */
  void *user;
};

int remote_source_open(const struct remote_config *config, struct source **source,
                       struct haul_storage_error *error);

/* remote_io.c; for remote.c and tree.c */

/* A region of the client that the server writes READ data to, and reads WRITE data from. It is
 * published under a random name, and under a new one for each connection, so that late writes of an
 * earlier connection fail. */
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
  bool registered;            /* filled: it announced the region */
};
/* Announces the region to this connection's server, unless that was done. As rpc_call. */
int client_buffer_announce(struct client_buffer *buffer, uint64_t generation);
/* As rpc_start. */
int client_buffer_start(struct client_buffer *buffer, struct buffer_io *io, struct rpc_call **call);
/* Returns the number of bytes. *in_use: the server may still use the region; it does not when
 * `late` is called (rpc_wait). */
ssize_t client_buffer_wait(struct client_buffer *buffer, const struct buffer_io *io,
                           struct rpc_call *call, void (*late)(void *user), void *user,
                           bool *in_use);

/* Ends the server's access; the next start publishes the region again. Does not wait for a
 * response, but for peers that access the region (haul_region_unpublish). */
void client_buffer_withdraw(struct client_buffer *buffer);

#define REMOTE_GENERATIONS (SOURCE_HANDLES / PROTOCOL_NODES)
#define REMOTE_SLOT        ((uint64_t)1 << 20) /* bytes of a bounce buffer */
#define REMOTE_SLOTS       16u

/* Bounce buffers between the wire and the callers' memory. */
struct bounce_area {
  struct client_buffer buffer;
  pthread_mutex_t lock; /* guards `taken` */
  pthread_cond_t freed;
  uint32_t taken; /* a bit per slot */
};

/* Device memory: a client buffer for both directions. */
struct source_memory {
  struct client_buffer buffer;
  _Atomic int64_t retry_at; /* until then it is staged: the server could not reach it */
};

struct remote_source {
  struct source source;
  struct rpc *rpc;
  bool read_only;
  struct bounce_area in, out;
  void (*log)(void *user, int priority, const char *text);
  void *user;
  pthread_mutex_t note_lock; /* guards the notes */
  struct storage_note reports, refusals;
};

struct remote_open_file {
  struct source_file file;
  uint64_t handle, generation;
};

static inline struct remote_source *remote_of(struct source *source) {
  return (struct remote_source *)(void *)source;
}

static inline struct remote_open_file *open_of(struct source_file *file) {
  return (struct remote_open_file *)(void *)file;
}

/* A request on the connection that its nodes belong to, and the response. */
struct remote_call {
  int status; /* why it cannot be sent, which remote_call returns; 0: it can */
  uint64_t generation;
  struct protocol_request request;
  struct protocol_fields response;
};

/* `node` 0: none. Status -ESTALE. */
void remote_begin(struct remote_call *call, uint16_t operation, uint64_t node);
/* The second node of a request. Status -ESTALE. */
void remote_add_folder(struct remote_call *call, uint64_t folder);
int remote_call(struct source *source, struct remote_call *call);
/* As remote_call; passes the response to `take` while its bytes are valid. */
int remote_call_bytes(struct source *source, struct remote_call *call,
                      int (*take)(void *user, const struct protocol_fields *response), void *user);

/* remote_memory.c: device memory */
haul_node *remote_node(struct source *source);
int remote_attach(struct source *source, haul_region *region, struct source_memory **memory);
void remote_detach(struct source *source, struct source_memory *memory);
ssize_t remote_move(struct source *source, struct source_file *file, struct source_memory *memory,
                    struct source_move *move);

/* remote_io.c: bounce buffers, and reads and writes through them. */
int remote_open_bounce(struct remote_source *remote);
/* Slots of requests without a response stay taken until rpc_close. */
void remote_close_bounce(struct remote_source *remote);
void remote_free_bounce(struct remote_source *remote); /* after rpc_close */
ssize_t remote_read(struct source *source, struct source_file *file, void *bytes, size_t length,
                    off_t offset);
ssize_t remote_write(struct source *source, struct source_file *file, const void *bytes,
                     size_t length, off_t offset, int flags);
/* Between the file and a region of the connection's node, which is in device memory. */
ssize_t remote_move_staged(struct remote_source *remote, const struct remote_open_file *file,
                           haul_region *region, const struct source_move *move);

#endif
