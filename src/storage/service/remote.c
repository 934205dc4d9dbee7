/* SPDX-License-Identifier: MIT */
#include "storage/service/remote.h"

#include <errno.h>
#include <stdlib.h>

#include "storage/error.h"

/* ---- Requests ---- */

/* *handle is the server's. All nodes of a call must be of one connection. */
static int translate(struct remote_call *call, uint64_t node, uint64_t *handle) {
  if (node >= SOURCE_HANDLES || node == 0)
    return -ESTALE;
  *handle = node % PROTOCOL_NODES;
  if (node == SOURCE_ROOT)
    return 0;
  uint64_t generation = node / PROTOCOL_NODES;
  if (generation == 0 || *handle <= SOURCE_ROOT ||
      (call->generation && call->generation != generation))
    return -ESTALE;
  call->generation = generation;
  return 0;
}

int remote_begin(struct remote_call *call, uint16_t operation, uint64_t node) {
  call->generation = 0;
  call->request.operation = operation;
  call->request.forget_count = 0;
  call->request.fields = (struct protocol_fields){0};
  call->response = (struct protocol_fields){0};
  return node ? translate(call, node, &call->request.fields.node) : 0;
}

/* A request about a name in a folder. */
static int begin_name(struct remote_call *call, uint16_t operation, uint64_t folder,
                      const char *name) {
  int status = source_check_name(name);
  if (!status)
    status = remote_begin(call, operation, folder);
  if (!status)
    strcpy(call->request.fields.name, name);
  return status;
}

int remote_begin_change(struct source *source, struct remote_call *call, uint16_t operation,
                        uint64_t folder, const char *name) {
  int status = source_check_name(name);
  if (!status && remote_of(source)->read_only)
    status = -EROFS;
  return status ? status : begin_name(call, operation, folder, name);
}

int remote_call(struct source *source, struct remote_call *call) {
  return rpc_call(remote_of(source)->rpc, &call->generation, &call->request, &call->response);
}

int remote_call_bytes(struct source *source, struct remote_call *call,
                      int (*take)(void *user, const struct protocol_fields *response), void *user) {
  struct rpc *rpc = remote_of(source)->rpc;
  struct rpc_call *sent;
  int status = rpc_start(rpc, &call->generation, &call->request, &sent);
  if (status)
    return status;
  status = rpc_wait(rpc, &sent, &call->response, NULL, NULL);
  if (!status)
    status = take(user, &call->response);
  rpc_end(sent);
  return status;
}

int remote_entry(struct remote_call *call, int status, struct source_entry *entry) {
  if (status)
    return status;
  entry->node = call->response.node;
  entry->stat = call->response.stat;
  if (entry->node != SOURCE_ROOT)
    entry->node += call->generation % REMOTE_GENERATIONS * PROTOCOL_NODES;
  return 0;
}

/* ---- Nodes ---- */

static void close_source(struct source *source) {
  struct remote_source *remote = remote_of(source);
  remote_close_bounce(remote);
  rpc_close(remote->rpc);
  free(remote);
}

static int lookup(struct source *source, uint64_t folder, const char *name,
                  struct source_entry *entry) {
  struct remote_call call;
  int status = begin_name(&call, PROTOCOL_LOOKUP, folder, name);
  if (!status)
    status = remote_call(source, &call);
  return remote_entry(&call, status, entry);
}

static void forget(struct source *source, uint64_t node, uint64_t count) {
  struct remote_call call;
  if (node == SOURCE_ROOT || remote_begin(&call, PROTOCOL_FORGET, node))
    return;
  rpc_forget(remote_of(source)->rpc, call.generation, call.request.fields.node, count);
}

static int find(struct source *source, uint64_t inode, struct source_entry *entry) {
  struct remote_call call;
  remote_begin(&call, PROTOCOL_FIND, 0);
  call.request.fields.inode = inode;
  return remote_entry(&call, remote_call(source, &call), entry);
}

static int get_attributes(struct source *source, uint64_t node, struct source_file *file,
                          struct stat *stat) {
  struct remote_call call;
  (void)file;
  int status = remote_begin(&call, PROTOCOL_GETATTR, node);
  if (!status)
    status = remote_call(source, &call);
  *stat = call.response.stat;
  return status;
}

static int set_attributes(struct source *source, uint64_t node, struct source_file *file,
                          const struct source_change *change, struct stat *stat) {
  struct remote_call call;
  if (remote_of(source)->read_only)
    return -EROFS;
  int status = remote_begin(&call, PROTOCOL_SETATTR, node);
  call.request.fields.change = *change;
  if (!status && file) {
    call.request.fields.file = open_of(file)->handle;
    if (node != SOURCE_ROOT && call.generation != open_of(file)->generation)
      status = -ESTALE;
  }
  if (!status)
    status = remote_call(source, &call);
  *stat = call.response.stat;
  return status;
}

struct text {
  char *bytes;
  size_t size;
  ssize_t length;
};

static int take_target(void *user, const struct protocol_fields *response) {
  struct text *text = user;
  if (memchr(response->bytes, 0, response->size))
    return -EPROTO;
  if (response->size >= text->size)
    return -ENAMETOOLONG;
  memcpy(text->bytes, response->bytes, response->size);
  text->length = (ssize_t)response->size;
  return 0;
}

static ssize_t read_link(struct source *source, uint64_t node, char *target, size_t size) {
  struct remote_call call;
  struct text text = {target, size, 0};
  int status = remote_begin(&call, PROTOCOL_READLINK, node);
  if (!status)
    status = remote_call_bytes(source, &call, take_target, &text);
  return status ? status : text.length;
}

static int stat_system(struct source *source, struct statvfs *stat) {
  struct remote_call call;
  remote_begin(&call, PROTOCOL_STATFS, 0);
  int status = remote_call(source, &call);
  *stat = call.response.space;
  return status;
}

/* ---- Names ----
 *
 * The server acts as its own user. It does not know this host's users, so a caller whose rights are
 * not checked yet is -EPERM. */

/* Sends a request that creates a name. */
static int create(struct source *source, struct remote_call *call, struct source_entry *entry) {
  return remote_entry(call, remote_call(source, call), entry);
}

static int make_folder(struct source *source, const struct source_caller *caller, uint64_t folder,
                       const char *name, mode_t mode, struct source_entry *entry) {
  struct remote_call call;
  if (!caller->checked)
    return -EPERM;
  int status = remote_begin_change(source, &call, PROTOCOL_MKDIR, folder, name);
  if (status)
    return status;
  call.request.fields.mode = mode;
  return create(source, &call, entry);
}

static int make_symlink(struct source *source, const struct source_caller *caller, uint64_t folder,
                        const char *name, const char *target, struct source_entry *entry) {
  struct remote_call call;
  if (!caller->checked)
    return -EPERM;
  int status = remote_begin_change(source, &call, PROTOCOL_SYMLINK, folder, name);
  if (status)
    return status;
  call.request.fields.bytes = target;
  call.request.fields.size = strlen(target);
  return create(source, &call, entry);
}

static int make_node(struct source *source, const struct source_caller *caller, uint64_t folder,
                     const char *name, mode_t mode, struct source_entry *entry) {
  struct remote_call call;
  if (!caller->checked)
    return -EPERM;
  if ((mode & S_IFMT) && !S_ISREG(mode))
    return -EPERM;
  int status = remote_begin_change(source, &call, PROTOCOL_MKNOD, folder, name);
  if (status)
    return status;
  call.request.fields.mode = mode;
  return create(source, &call, entry);
}

static int make_link(struct source *source, const struct source_caller *caller, uint64_t node,
                     uint64_t folder, const char *name, struct source_entry *entry) {
  struct remote_call call;
  if (!caller->checked)
    return -EPERM;
  int status = remote_begin_change(source, &call, PROTOCOL_LINK, node, name);
  if (!status)
    status = translate(&call, folder, &call.request.fields.folder);
  return status ? status : create(source, &call, entry);
}

static int remove_name(struct source *source, uint16_t operation, uint64_t folder,
                       const char *name) {
  struct remote_call call;
  int status = remote_begin_change(source, &call, operation, folder, name);
  return status ? status : remote_call(source, &call);
}

static int unlink_file(struct source *source, uint64_t folder, const char *name) {
  return remove_name(source, PROTOCOL_UNLINK, folder, name);
}

static int remove_folder(struct source *source, uint64_t folder, const char *name) {
  return remove_name(source, PROTOCOL_RMDIR, folder, name);
}

static int rename_node(struct source *source, uint64_t folder, const char *name,
                       uint64_t new_folder, const char *new_name, unsigned flags) {
  struct remote_call call;
  int status = source_check_name(new_name);
  if (!status)
    status = remote_begin_change(source, &call, PROTOCOL_RENAME, folder, name);
  if (!status)
    status = translate(&call, new_folder, &call.request.fields.folder);
  if (status)
    return status;
  strcpy(call.request.fields.new_name, new_name);
  call.request.fields.flags = flags;
  return remote_call(source, &call);
}

/* ---- Extended attributes ---- */

static int take_value(void *user, const struct protocol_fields *response) {
  struct text *text = user;
  if (response->length > PROTOCOL_BYTES_MAX)
    return -EPROTO;
  if (text->size && (response->size != response->length || response->size > text->size))
    return -EPROTO;
  if (text->size && response->size)
    memcpy(text->bytes, response->bytes, response->size);
  text->length = (ssize_t)response->length;
  return 0;
}

static ssize_t read_extended(struct source *source, struct remote_call *call, char *bytes,
                             size_t size) {
  struct text text = {bytes, size, 0};
  call->request.fields.length = size;
  int status = remote_call_bytes(source, call, take_value, &text);
  return status ? status : text.length;
}

static ssize_t get_extended(struct source *source, uint64_t node, const char *name, void *value,
                            size_t size) {
  struct remote_call call;
  int status = remote_begin(&call, PROTOCOL_GETXATTR, node);
  if (!status && strlen(name) > NAME_MAX)
    status = -ERANGE;
  if (status)
    return status;
  strcpy(call.request.fields.name, name);
  return read_extended(source, &call, value, size);
}

static ssize_t list_extended(struct source *source, uint64_t node, char *list, size_t size) {
  struct remote_call call;
  int status = remote_begin(&call, PROTOCOL_LISTXATTR, node);
  return status ? status : read_extended(source, &call, list, size);
}

static int change_extended(struct source *source, uint64_t node, const char *name,
                           struct remote_call *call, uint16_t operation) {
  if (remote_of(source)->read_only)
    return -EROFS;
  if (strlen(name) > NAME_MAX)
    return -ERANGE;
  int status = remote_begin(call, operation, node);
  strcpy(call->request.fields.name, name);
  return status;
}

static int set_extended(struct source *source, uint64_t node, const char *name, const void *value,
                        size_t size, int flags) {
  struct remote_call call;
  int status = change_extended(source, node, name, &call, PROTOCOL_SETXATTR);
  if (status)
    return status;
  call.request.fields.bytes = value;
  call.request.fields.size = size;
  call.request.fields.flags = (uint32_t)flags;
  return remote_call(source, &call);
}

static int remove_extended(struct source *source, uint64_t node, const char *name) {
  struct remote_call call;
  int status = change_extended(source, node, name, &call, PROTOCOL_REMOVEXATTR);
  return status ? status : remote_call(source, &call);
}

/* ---- The table ---- */

static const struct source_ops ops = {
    .close = close_source,
    .lookup = lookup,
    .forget = forget,
    .find = find,
    .getattr = get_attributes,
    .setattr = set_attributes,
    .readlink = read_link,
    .statfs = stat_system,
    .mkdir = make_folder,
    .symlink = make_symlink,
    .mknod = make_node,
    .link = make_link,
    .unlink = unlink_file,
    .rmdir = remove_folder,
    .rename = rename_node,
    .open = remote_open_node,
    .create = remote_create,
    .release = remote_release,
    .read = remote_read,
    .write = remote_write,
    .flush = remote_flush,
    .fsync = remote_fsync,
    .fallocate = remote_fallocate,
    .lseek = remote_lseek,
    .opendir = remote_opendir,
    .readdir = remote_readdir,
    .getxattr = get_extended,
    .listxattr = list_extended,
    .setxattr = set_extended,
    .removexattr = remove_extended,
};

int remote_source_open(const struct remote_config *config, struct source **source,
                       struct haul_storage_error *error) {
  struct remote_source *remote = calloc(1, sizeof *remote);
  if (!remote)
    return storage_fail(error, -ENOMEM, NULL, "no memory left");
  int status = rpc_open(&config->rpc, &remote->rpc, error);
  if (status) {
    free(remote);
    return status;
  }
  remote->source.ops = &ops;
  remote->read_only = config->read_only || !rpc_is_writable(remote->rpc);
  status = remote_open_bounce(remote);
  if (status) {
    rpc_close(remote->rpc);
    free(remote);
    return storage_fail(error, status, NULL, "cannot allocate bounce buffers");
  }
  *source = &remote->source;
  return 0;
}
