/* SPDX-License-Identifier: MIT
 * What the parts of the remote source share.
 *
 * A handle of a node is the server's, below, and the connection's generation above; the root is the
 * same on each. */
#ifndef HAUL_STORAGE_SERVICE_REMOTE_INSIDE_H
#define HAUL_STORAGE_SERVICE_REMOTE_INSIDE_H

#include <pthread.h>

#include "storage/service/remote.h"
#include "storage/service/wharf.h"

#define REMOTE_GENERATIONS (SOURCE_HANDLES / PROTOCOL_NODES)

#define REMOTE_SLOT  ((uint64_t)1 << 20)
#define REMOTE_SLOTS 16u

/* Where bytes lie between the wire and who asked. */
struct stage_area {
  struct wharf wharf;
  pthread_mutex_t lock; /* guards `taken` */
  pthread_cond_t given;
  uint32_t taken; /* a bit a slot */
};

struct remote_source {
  struct source source;
  struct dial *dial;
  bool read_only;
  struct stage_area in, out;
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

/* A request about a node, with the connection that it belongs to. */
struct remote_request {
  uint64_t generation;
  struct protocol_request request;
  struct protocol_fields answer;
};

/* -ESTALE. `node` 0: about none. */
int remote_begin(struct remote_request *asked, uint16_t operation, uint64_t node);
/* The second node of a request. */
int remote_add_folder(struct remote_request *asked, uint64_t folder);
/* -EINVAL, -ENAMETOOLONG. */
int remote_add_name(struct remote_request *asked, const char *name);
int remote_ask(struct source *source, struct remote_request *asked);
/* The answer's node and attributes. */
int remote_entry(struct remote_request *asked, int status, struct source_entry *entry);
/* The same, with the answer's bytes: `take` has them as long as it runs. */
int remote_ask_bytes(struct source *source, struct remote_request *asked,
                     int (*take)(void *user, const struct protocol_fields *answer), void *user);

/* remote_data.c */
int remote_open_stages(struct remote_source *remote);
void remote_close_stages(struct remote_source *remote);
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
                   bool (*each)(void *user, const struct source_name *name), void *user);

/* remote_names.c */
int remote_mkdir(struct source *source, const struct source_caller *caller, uint64_t folder,
                 const char *name, mode_t mode, struct source_entry *entry);
int remote_symlink(struct source *source, const struct source_caller *caller, uint64_t folder,
                   const char *name, const char *target, struct source_entry *entry);
int remote_mknod(struct source *source, const struct source_caller *caller, uint64_t folder,
                 const char *name, mode_t mode, struct source_entry *entry);
int remote_link(struct source *source, const struct source_caller *caller, uint64_t node,
                uint64_t folder, const char *name, struct source_entry *entry);
int remote_unlink(struct source *source, uint64_t folder, const char *name);
int remote_rmdir(struct source *source, uint64_t folder, const char *name);
int remote_rename(struct source *source, uint64_t folder, const char *name, uint64_t new_folder,
                  const char *new_name, unsigned flags);

#endif
