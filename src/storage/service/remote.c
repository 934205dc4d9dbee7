/* SPDX-License-Identifier: MIT
 * The operations of the remote source. */
#include "storage/service/remote.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>

#include "storage/util.h"

/* A request about a name in a folder. */
static void begin_name(struct remote_call *call, uint16_t operation, uint64_t folder,
                       const char *name) {
  int status = source_check_name(name);
  remote_begin(call, operation, folder);
  if (status)
    call->status = status;
  else
    strcpy(call->request.fields.name, name);
}

/* A request that changes a name. `caller` becomes the owner of a new one; NULL: no new name. Checks
 * the caller first, then the name, the tree and the folder. */
static void begin_change(struct source *source, const struct source_caller *caller,
                         struct remote_call *call, uint16_t operation, uint64_t folder,
                         const char *name) {
  begin_name(call, operation, folder, name);
  if (caller && !caller->checked)
    call->status = -EPERM;
  else if (remote_of(source)->read_only && !source_check_name(name))
    call->status = -EROFS;
}

/* As remote_call; fills *entry from the response. */
static int call_for_entry(struct source *source, struct remote_call *call,
                          struct source_entry *entry) {
  int status = remote_call(source, call);
  if (status)
    return status;
  *entry = call->response.entry;
  if (entry->node != SOURCE_ROOT)
    entry->node += call->generation % REMOTE_GENERATIONS * PROTOCOL_NODES;
  return 0;
}

static void close_source(struct source *source) {
  struct remote_source *remote = remote_of(source);
  remote_close_bounce(remote);
  rpc_close(remote->rpc);
  remote_free_bounce(remote);
  pthread_mutex_destroy(&remote->note_lock);
  free(remote);
}

static int remote_lookup(struct source *source, uint64_t folder, const char *name,
                         struct source_entry *entry) {
  struct remote_call call;
  begin_name(&call, PROTOCOL_LOOKUP, folder, name);
  return call_for_entry(source, &call, entry);
}

static void remote_forget(struct source *source, uint64_t node, uint64_t count) {
  struct remote_call call;
  remote_begin(&call, PROTOCOL_FORGET, node);
  if (node != SOURCE_ROOT && !call.status)
    rpc_forget(remote_of(source)->rpc, call.generation, call.request.fields.node, count);
}

static int remote_find(struct source *source, uint64_t inode, struct source_entry *entry) {
  struct remote_call call;
  remote_begin(&call, PROTOCOL_FIND, 0);
  call.request.fields.inode = inode;
  return call_for_entry(source, &call, entry);
}

static int get_attributes(struct source *source, uint64_t node, struct source_file *file,
                          struct stat *stat) {
  struct remote_call call;
  (void)file;
  remote_begin(&call, PROTOCOL_GETATTR, node);
  int status = remote_call(source, &call);
  *stat = call.response.stat;
  return status;
}

static int set_attributes(struct source *source, uint64_t node, struct source_file *file,
                          const struct source_change *change, struct stat *stat) {
  struct remote_call call;
  if (remote_of(source)->read_only)
    return -EROFS;
  remote_begin(&call, PROTOCOL_SETATTR, node);
  call.request.fields.change = *change;
  if (file) {
    call.request.fields.file = open_of(file)->handle;
    if (node != SOURCE_ROOT && call.generation != open_of(file)->generation)
      call.status = -ESTALE;
  }
  int status = remote_call(source, &call);
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
  remote_begin(&call, PROTOCOL_READLINK, node);
  int status = remote_call_bytes(source, &call, take_target, &text);
  return status ? status : text.length;
}

static int stat_system(struct source *source, struct statvfs *stat) {
  struct remote_call call;
  remote_begin(&call, PROTOCOL_STATFS, 0);
  int status = remote_call(source, &call);
  *stat = call.response.space;
  return status;
}

/* Names. The server acts as its own user. It does not know this host's users, so a caller whose
 * rights are not checked yet is -EPERM. */

static int make_name(struct source *source, const struct source_caller *caller, uint64_t folder,
                     const char *name, const struct source_new *wanted,
                     struct source_entry *entry) {
  static const uint16_t operations[] = {[SOURCE_FOLDER] = PROTOCOL_MKDIR,
                                        [SOURCE_FILE] = PROTOCOL_MKNOD,
                                        [SOURCE_SYMLINK] = PROTOCOL_SYMLINK,
                                        [SOURCE_LINK] = PROTOCOL_LINK};
  struct remote_call call;
  bool links = wanted->kind == SOURCE_LINK;
  if (wanted->kind == SOURCE_FILE && (wanted->mode & S_IFMT) && !S_ISREG(wanted->mode))
    return -EPERM;
  begin_change(source, caller, &call, operations[wanted->kind], links ? wanted->node : folder,
               name);
  if (links)
    remote_add_folder(&call, folder);
  call.request.fields.mode = wanted->mode;
  call.request.fields.bytes = wanted->target;
  call.request.fields.size = wanted->target ? strlen(wanted->target) : 0;
  return call_for_entry(source, &call, entry);
}

static int unlink_name(struct source *source, uint64_t folder, const char *name, int flags) {
  struct remote_call call;
  uint16_t operation = flags & AT_REMOVEDIR ? PROTOCOL_RMDIR : PROTOCOL_UNLINK;
  begin_change(source, NULL, &call, operation, folder, name);
  return remote_call(source, &call);
}

static int rename_node(struct source *source, const struct source_caller *caller, uint64_t folder,
                       const char *name, uint64_t new_folder, const char *new_name,
                       unsigned flags) {
  struct remote_call call;
  int status = source_check_name(new_name);
  if (status)
    return status;
  begin_change(source, caller, &call, PROTOCOL_RENAME, folder, name);
  remote_add_folder(&call, new_folder);
  strcpy(call.request.fields.new_name, new_name);
  call.request.fields.flags = flags;
  return remote_call(source, &call);
}

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

static void put_extended(struct remote_call *call, const char *name) {
  if (strlen(name) <= NAME_MAX)
    strcpy(call->request.fields.name, name);
  else if (!call->status)
    call->status = -ERANGE;
}

static ssize_t get_extended(struct source *source, uint64_t node, const char *name, void *value,
                            size_t size) {
  struct remote_call call;
  struct text text = {value, size, 0};
  remote_begin(&call, name ? PROTOCOL_GETXATTR : PROTOCOL_LISTXATTR, node);
  put_extended(&call, name ? name : "");
  call.request.fields.length = size;
  int status = remote_call_bytes(source, &call, take_value, &text);
  return status ? status : text.length;
}

static void begin_extended(struct source *source, struct remote_call *call, uint16_t operation,
                           uint64_t node, const char *name) {
  remote_begin(call, operation, node);
  put_extended(call, name);
  if (remote_of(source)->read_only)
    call->status = -EROFS;
}

static int set_extended(struct source *source, uint64_t node, const char *name, const void *value,
                        size_t size, int flags) {
  struct remote_call call;
  begin_extended(source, &call, PROTOCOL_SETXATTR, node, name);
  call.request.fields.bytes = value;
  call.request.fields.size = size;
  call.request.fields.flags = (uint32_t)flags;
  return remote_call(source, &call);
}

static int remove_extended(struct source *source, uint64_t node, const char *name) {
  struct remote_call call;
  begin_extended(source, &call, PROTOCOL_REMOVEXATTR, node, name);
  return remote_call(source, &call);
}

static int make_file(struct remote_source *remote, struct remote_call *call, uint64_t inode,
                     struct source_file **file) {
  struct remote_open_file *made = calloc(1, sizeof *made);
  if (made) {
    made->file = (struct source_file){.inode = inode, .fd = -1};
    made->handle = call->response.file;
    made->generation = call->generation;
    *file = &made->file;
    return 0;
  }
  call->request.operation = PROTOCOL_RELEASE;
  call->request.fields = (struct protocol_fields){.file = call->response.file};
  remote_call(&remote->source, call);
  return -ENOMEM;
}

/* -EPERM for unchecked rights: the server does not know this host's users. */
static int open_file(struct source *source, const struct source_caller *caller, uint64_t node,
                     int flags, struct source_file **file) {
  struct remote_call call;
  if (!caller->checked)
    return -EPERM;
  if (remote_of(source)->read_only && flags & (O_ACCMODE | O_TRUNC))
    return -EROFS;
  remote_begin(&call, PROTOCOL_OPEN, node);
  call.request.fields.flags = protocol_open_flags(flags & ~O_EXCL);
  int status = remote_call(source, &call);
  return status ? status : make_file(remote_of(source), &call, call.response.inode, file);
}

static int create_file(struct source *source, const struct source_caller *caller, uint64_t folder,
                       const char *name, mode_t mode, int flags, struct source_entry *entry,
                       struct source_file **file) {
  struct remote_call call;
  begin_change(source, caller, &call, PROTOCOL_CREATE, folder, name);
  call.request.fields.mode = mode;
  call.request.fields.flags = protocol_open_flags(flags);
  int status = call_for_entry(source, &call, entry);
  if (status)
    return status;
  status = make_file(remote_of(source), &call, entry->stat.st_ino, file);
  if (status)
    source->ops->forget(source, entry->node, 1);
  return status;
}

static int open_folder(struct source *source, uint64_t node, struct source_file **folder) {
  struct remote_call call;
  remote_begin(&call, PROTOCOL_OPENDIR, node);
  int status = remote_call(source, &call);
  return status ? status : make_file(remote_of(source), &call, call.response.inode, folder);
}

static void begin_file(struct remote_call *call, uint16_t operation, struct source_file *file) {
  remote_begin(call, operation, 0);
  call->generation = open_of(file)->generation;
  call->request.fields.file = open_of(file)->handle;
}

/* The server releases all files when the connection ends. */
static void release(struct source *source, struct source_file *file) {
  struct remote_call call;
  begin_file(&call, PROTOCOL_RELEASE, file);
  if (rpc_is_up(remote_of(source)->rpc, call.generation))
    remote_call(source, &call);
  free(open_of(file));
}

static int flush(struct source *source, struct source_file *file) {
  struct remote_call call;
  if (remote_of(source)->read_only)
    return 0;
  begin_file(&call, PROTOCOL_FLUSH, file);
  return remote_call(source, &call);
}

static int sync_file(struct source *source, struct source_file *file, bool data_only) {
  struct remote_call call;
  begin_file(&call, PROTOCOL_FSYNC, file);
  call.request.fields.flags = data_only;
  return remote_call(source, &call);
}

static int allocate(struct source *source, struct source_file *file, int mode, off_t offset,
                    off_t length) {
  struct remote_call call;
  if (remote_of(source)->read_only)
    return -EROFS;
  begin_file(&call, PROTOCOL_FALLOCATE, file);
  call.request.fields.flags = (uint32_t)mode;
  call.request.fields.offset = offset;
  call.request.fields.length = (uint64_t)length;
  return remote_call(source, &call);
}

static off_t seek(struct source *source, struct source_file *file, off_t offset, int whence) {
  struct remote_call call;
  begin_file(&call, PROTOCOL_LSEEK, file);
  call.request.fields.flags = (uint32_t)whence;
  call.request.fields.offset = offset;
  int status = remote_call(source, &call);
  if (status)
    return status;
  return call.response.offset < 0 ? -EPROTO : call.response.offset;
}

#define ROUNDS_MAX 4096 /* requests for one readdir: bounds a server that never ends the list */

struct names {
  source_each *each;
  void *user;
  off_t next;
  bool more;
};

static int pass_names(void *user, const struct protocol_fields *response) {
  struct names *names = user;
  struct protocol_name name;
  struct wire wire = wire_over(response->bytes, response->size);
  names->more = wire_left(&wire) > 0;
  while (names->more && wire_left(&wire) > 0) {
    if (!protocol_get_name(&wire, &name))
      return -EPROTO;
    names->more = names->each(names->user, &name.name);
    names->next = name.name.next;
  }
  return 0;
}

static int read_folder(struct source *source, struct source_file *folder, off_t offset,
                       size_t bytes, source_each *each, void *user) {
  struct names names = {.each = each, .user = user, .next = offset, .more = true};
  int status = 0;
  for (unsigned round = 0; names.more && !status; round++) {
    struct remote_call call;
    if (round == ROUNDS_MAX)
      return -EPROTO;
    begin_file(&call, PROTOCOL_READDIR, folder);
    call.request.fields.offset = names.next;
    call.request.fields.length = bytes;
    status = remote_call_bytes(source, &call, pass_names, &names);
  }
  return status;
}

static const struct source_ops ops = {
    .close = close_source,
    .lookup = remote_lookup,
    .forget = remote_forget,
    .find = remote_find,
    .getattr = get_attributes,
    .setattr = set_attributes,
    .readlink = read_link,
    .statfs = stat_system,
    .make = make_name,
    .unlink = unlink_name,
    .rename = rename_node,
    .open = open_file,
    .create = create_file,
    .release = release,
    .read = remote_read,
    .write = remote_write,
    .node = remote_node,
    .attach = remote_attach,
    .detach = remote_detach,
    .move = remote_move,
    .flush = flush,
    .fsync = sync_file,
    .fallocate = allocate,
    .lseek = seek,
    .opendir = open_folder,
    .readdir = read_folder,
    .getxattr = get_extended,
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
  remote->log = config->log;
  remote->user = config->user;
  pthread_mutex_init(&remote->note_lock, NULL);
  remote->read_only = config->read_only || !rpc_is_writable(remote->rpc);
  status = remote_open_bounce(remote);
  if (status) {
    rpc_close(remote->rpc);
    pthread_mutex_destroy(&remote->note_lock);
    free(remote);
    return storage_fail(error, status, NULL, "cannot allocate bounce buffers");
  }
  *source = &remote->source;
  return 0;
}
