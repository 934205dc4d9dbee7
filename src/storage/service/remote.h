/* SPDX-License-Identifier: MIT
 * A tree that another node exports, as a source. Its files have no descriptor on this host.
 *
 * A node's handle is the server's handle in the lower bits, and the connection's generation above.
 * The root's is the same on every connection. */
#ifndef HAUL_STORAGE_SERVICE_REMOTE_H
#define HAUL_STORAGE_SERVICE_REMOTE_H

#include <pthread.h>

#include "storage/service/client_buffer.h"

struct remote_config {
  struct rpc_config rpc;
  bool read_only;
};

int remote_source_open(const struct remote_config *config, struct source **source,
                       struct haul_storage_error *error);

/* ---- Shared by remote.c and remote_files.c, and used by tree.c ---- */

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

struct remote_source {
  struct source source;
  struct rpc *rpc;
  bool read_only;
  struct bounce_area in, out;
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
  uint64_t generation;
  struct protocol_request request;
  struct protocol_fields response;
};

/* `node` 0: none. -ESTALE. */
int remote_begin(struct remote_call *call, uint16_t operation, uint64_t node);
/* A request that changes a name in a folder. Checks the name first, then that the tree is writable:
 * -EINVAL, -ENAMETOOLONG, -EROFS, -ESTALE. */
int remote_begin_change(struct source *source, struct remote_call *call, uint16_t operation,
                        uint64_t folder, const char *name);
int remote_call(struct source *source, struct remote_call *call);
/* Fills *entry from the response, unless status is an error. Returns the status. */
int remote_entry(struct remote_call *call, int status, struct source_entry *entry);
/* As remote_call; passes the response to `take` while its bytes are valid. */
int remote_call_bytes(struct source *source, struct remote_call *call,
                      int (*take)(void *user, const struct protocol_fields *response), void *user);

/* remote_files.c */
int remote_open_bounce(struct remote_source *remote);
void remote_close_bounce(struct remote_source *remote);
int remote_open_node(struct source *source, const struct source_caller *caller, uint64_t node,
                     int flags, struct source_file **file);
int remote_create(struct source *source, const struct source_caller *caller, uint64_t folder,
                  const char *name, mode_t mode, int flags, struct source_entry *entry,
                  struct source_file **file);
int remote_opendir(struct source *source, uint64_t node, struct source_file **folder);
void remote_release(struct source *source, struct source_file *file);
ssize_t remote_read(struct source *source, struct source_file *file, void *bytes, size_t length,
                    off_t offset);
ssize_t remote_write(struct source *source, struct source_file *file, const void *bytes,
                     size_t length, off_t offset, int flags);
int remote_flush(struct source *source, struct source_file *file);
int remote_fsync(struct source *source, struct source_file *file, bool data_only);
int remote_fallocate(struct source *source, struct source_file *file, int mode, off_t offset,
                     off_t length);
off_t remote_lseek(struct source *source, struct source_file *file, off_t offset, int whence);
int remote_readdir(struct source *source, struct source_file *folder, off_t offset, size_t bytes,
                   source_each *each, void *user);

#endif
