/* SPDX-License-Identifier: MIT */
#include "storage/service/remote.h"

#include <errno.h>
#include <stdlib.h>

#include "storage/error.h"
#include "storage/service/remote_inside.h"

/* ---- Requests ---- */

/* The server's handle; all nodes of a request are of one connection. */
static int translate(struct remote_request *asked, uint64_t node, uint64_t *handle) {
  if (node >= SOURCE_HANDLES || node == 0)
    return -ESTALE;
  *handle = node % PROTOCOL_NODES;
  if (node == SOURCE_ROOT)
    return 0;
  uint64_t generation = node / PROTOCOL_NODES;
  if (generation == 0 || *handle <= SOURCE_ROOT ||
      (asked->generation && asked->generation != generation))
    return -ESTALE;
  asked->generation = generation;
  return 0;
}

int remote_begin(struct remote_request *asked, uint16_t operation, uint64_t node) {
  asked->generation = 0;
  asked->request.operation = operation;
  asked->request.forget_count = 0;
  asked->request.fields = (struct protocol_fields){0};
  asked->answer = (struct protocol_fields){0};
  return node ? translate(asked, node, &asked->request.fields.node) : 0;
}

int remote_add_folder(struct remote_request *asked, uint64_t folder) {
  return translate(asked, folder, &asked->request.fields.folder);
}

int remote_add_name(struct remote_request *asked, const char *name) {
  int status = source_check_name(name);
  if (!status)
    memcpy(asked->request.fields.name, name, strlen(name) + 1);
  return status;
}

int remote_ask(struct source *source, struct remote_request *asked) {
  return dial_ask(remote_of(source)->dial, &asked->generation, &asked->request, &asked->answer);
}

int remote_ask_bytes(struct source *source, struct remote_request *asked,
                     int (*take)(void *user, const struct protocol_fields *answer), void *user) {
  struct dial *dial = remote_of(source)->dial;
  struct call *call;
  int status = dial_start(dial, &asked->generation, &asked->request, &call);
  if (status)
    return status;
  status = dial_wait(dial, &call, &asked->answer, NULL, NULL);
  if (!status)
    status = take(user, &asked->answer);
  dial_end(call);
  return status;
}

int remote_entry(struct remote_request *asked, int status, struct source_entry *entry) {
  if (status)
    return status;
  entry->node = asked->answer.node;
  entry->stat = asked->answer.stat;
  if (entry->node != SOURCE_ROOT)
    entry->node += asked->generation % REMOTE_GENERATIONS * PROTOCOL_NODES;
  return 0;
}

/* ---- Nodes ---- */

static void close_source(struct source *source) {
  struct remote_source *remote = remote_of(source);
  remote_close_stages(remote);
  dial_close(remote->dial);
  free(remote);
}

static int lookup(struct source *source, uint64_t folder, const char *name,
                  struct source_entry *entry) {
  struct remote_request asked;
  int status = source_check_name(name);
  if (!status)
    status = remote_begin(&asked, PROTOCOL_LOOKUP, folder);
  if (!status)
    status = remote_add_name(&asked, name);
  if (!status)
    status = remote_ask(source, &asked);
  return remote_entry(&asked, status, entry);
}

static void forget(struct source *source, uint64_t node, uint64_t count) {
  struct remote_request asked;
  if (node == SOURCE_ROOT || remote_begin(&asked, PROTOCOL_FORGET, node))
    return;
  dial_forget(remote_of(source)->dial, asked.generation, asked.request.fields.node, count);
}

static int find(struct source *source, uint64_t inode, struct source_entry *entry) {
  struct remote_request asked;
  remote_begin(&asked, PROTOCOL_FIND, 0);
  asked.request.fields.inode = inode;
  return remote_entry(&asked, remote_ask(source, &asked), entry);
}

static int get_attributes(struct source *source, uint64_t node, struct source_file *file,
                          struct stat *stat) {
  struct remote_request asked;
  (void)file;
  int status = remote_begin(&asked, PROTOCOL_GETATTR, node);
  if (!status)
    status = remote_ask(source, &asked);
  *stat = asked.answer.stat;
  return status;
}

static int set_attributes(struct source *source, uint64_t node, struct source_file *file,
                          const struct source_change *change, struct stat *stat) {
  struct remote_request asked;
  if (remote_of(source)->read_only)
    return -EROFS;
  int status = remote_begin(&asked, PROTOCOL_SETATTR, node);
  asked.request.fields.change = *change;
  if (!status && file) {
    asked.request.fields.file = open_of(file)->handle;
    if (node != SOURCE_ROOT && asked.generation != open_of(file)->generation)
      status = -ESTALE;
  }
  if (!status)
    status = remote_ask(source, &asked);
  *stat = asked.answer.stat;
  return status;
}

struct text {
  char *bytes;
  size_t size;
  ssize_t length;
};

static int take_target(void *user, const struct protocol_fields *answer) {
  struct text *text = user;
  if (memchr(answer->bytes, 0, answer->size))
    return -EPROTO;
  if (answer->size >= text->size)
    return -ENAMETOOLONG;
  memcpy(text->bytes, answer->bytes, answer->size);
  text->length = (ssize_t)answer->size;
  return 0;
}

static ssize_t read_link(struct source *source, uint64_t node, char *target, size_t size) {
  struct remote_request asked;
  struct text text = {target, size, 0};
  int status = remote_begin(&asked, PROTOCOL_READLINK, node);
  if (!status)
    status = remote_ask_bytes(source, &asked, take_target, &text);
  return status ? status : text.length;
}

static int stat_system(struct source *source, struct statvfs *stat) {
  struct remote_request asked;
  remote_begin(&asked, PROTOCOL_STATFS, 0);
  int status = remote_ask(source, &asked);
  *stat = asked.answer.space;
  return status;
}

/* ---- Extended attributes ---- */

static int take_value(void *user, const struct protocol_fields *answer) {
  struct text *text = user;
  if (answer->length > PROTOCOL_BYTES_MAX)
    return -EPROTO;
  if (text->size && (answer->size != answer->length || answer->size > text->size))
    return -EPROTO;
  if (text->size && answer->size)
    memcpy(text->bytes, answer->bytes, answer->size);
  text->length = (ssize_t)answer->length;
  return 0;
}

static ssize_t read_extended(struct source *source, struct remote_request *asked, char *bytes,
                             size_t size) {
  struct text text = {bytes, size, 0};
  asked->request.fields.length = size;
  int status = remote_ask_bytes(source, asked, take_value, &text);
  return status ? status : text.length;
}

static ssize_t get_extended(struct source *source, uint64_t node, const char *name, void *value,
                            size_t size) {
  struct remote_request asked;
  int status = remote_begin(&asked, PROTOCOL_GETXATTR, node);
  if (!status && strlen(name) > NAME_MAX)
    status = -ERANGE;
  if (status)
    return status;
  strcpy(asked.request.fields.name, name);
  return read_extended(source, &asked, value, size);
}

static ssize_t list_extended(struct source *source, uint64_t node, char *list, size_t size) {
  struct remote_request asked;
  int status = remote_begin(&asked, PROTOCOL_LISTXATTR, node);
  return status ? status : read_extended(source, &asked, list, size);
}

static int change_extended(struct source *source, uint64_t node, const char *name,
                           struct remote_request *asked, uint16_t operation) {
  if (remote_of(source)->read_only)
    return -EROFS;
  if (strlen(name) > NAME_MAX)
    return -ERANGE;
  int status = remote_begin(asked, operation, node);
  strcpy(asked->request.fields.name, name);
  return status;
}

static int set_extended(struct source *source, uint64_t node, const char *name, const void *value,
                        size_t size, int flags) {
  struct remote_request asked;
  int status = change_extended(source, node, name, &asked, PROTOCOL_SETXATTR);
  if (status)
    return status;
  asked.request.fields.bytes = value;
  asked.request.fields.size = size;
  asked.request.fields.flags = (uint32_t)flags;
  return remote_ask(source, &asked);
}

static int remove_extended(struct source *source, uint64_t node, const char *name) {
  struct remote_request asked;
  int status = change_extended(source, node, name, &asked, PROTOCOL_REMOVEXATTR);
  return status ? status : remote_ask(source, &asked);
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
    .mkdir = remote_mkdir,
    .symlink = remote_symlink,
    .mknod = remote_mknod,
    .link = remote_link,
    .unlink = remote_unlink,
    .rmdir = remote_rmdir,
    .rename = remote_rename,
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
  int status = dial_open(&config->dial, &remote->dial, error);
  if (status) {
    free(remote);
    return status;
  }
  remote->source.ops = &ops;
  remote->read_only = config->read_only || !dial_is_writable(remote->dial);
  status = remote_open_stages(remote);
  if (status) {
    dial_close(remote->dial);
    free(remote);
    return storage_fail(error, status, NULL, "no memory for bytes on their way");
  }
  *source = &remote->source;
  return 0;
}
