/* SPDX-License-Identifier: MIT
 * What makes, takes away and moves names. The server does it as its own user, whoever the caller
 * is: one whose own rights are to count is refused, since it does not know him. */
#include <errno.h>
#include <fcntl.h>

#include "storage/service/remote_inside.h"

/* A request about a name in a folder: what is wrong with it is told before anything else, and a
 * tree that does not change before what is wrong with the folder. */
static int begin(struct remote_request *asked, struct source *source, uint16_t operation,
                 uint64_t folder, const char *name) {
  int status = source_check_name(name);
  if (!status && remote_of(source)->read_only)
    status = -EROFS;
  if (!status)
    status = remote_begin(asked, operation, folder);
  if (!status)
    status = remote_add_name(asked, name);
  return status;
}

static int make(struct source *source, struct remote_request *asked, struct source_entry *entry) {
  return remote_entry(asked, remote_ask(source, asked), entry);
}

int remote_mkdir(struct source *source, const struct source_caller *caller, uint64_t folder,
                 const char *name, mode_t mode, struct source_entry *entry) {
  struct remote_request asked;
  if (!caller->checked)
    return -EPERM;
  int status = begin(&asked, source, PROTOCOL_MKDIR, folder, name);
  if (status)
    return status;
  asked.request.fields.mode = mode;
  return make(source, &asked, entry);
}

int remote_symlink(struct source *source, const struct source_caller *caller, uint64_t folder,
                   const char *name, const char *target, struct source_entry *entry) {
  struct remote_request asked;
  if (!caller->checked)
    return -EPERM;
  int status = begin(&asked, source, PROTOCOL_SYMLINK, folder, name);
  if (status)
    return status;
  asked.request.fields.bytes = target;
  asked.request.fields.size = strlen(target);
  return make(source, &asked, entry);
}

int remote_mknod(struct source *source, const struct source_caller *caller, uint64_t folder,
                 const char *name, mode_t mode, struct source_entry *entry) {
  struct remote_request asked;
  if (!caller->checked)
    return -EPERM;
  if ((mode & S_IFMT) && !S_ISREG(mode))
    return -EPERM;
  int status = begin(&asked, source, PROTOCOL_MKNOD, folder, name);
  if (status)
    return status;
  asked.request.fields.mode = mode;
  return make(source, &asked, entry);
}

int remote_link(struct source *source, const struct source_caller *caller, uint64_t node,
                uint64_t folder, const char *name, struct source_entry *entry) {
  struct remote_request asked;
  if (!caller->checked)
    return -EPERM;
  int status = begin(&asked, source, PROTOCOL_LINK, node, name);
  if (!status)
    status = remote_add_folder(&asked, folder);
  return status ? status : make(source, &asked, entry);
}

static int take_away(struct source *source, uint16_t operation, uint64_t folder, const char *name) {
  struct remote_request asked;
  int status = begin(&asked, source, operation, folder, name);
  return status ? status : remote_ask(source, &asked);
}

int remote_unlink(struct source *source, uint64_t folder, const char *name) {
  return take_away(source, PROTOCOL_UNLINK, folder, name);
}

int remote_rmdir(struct source *source, uint64_t folder, const char *name) {
  return take_away(source, PROTOCOL_RMDIR, folder, name);
}

int remote_rename(struct source *source, uint64_t folder, const char *name, uint64_t new_folder,
                  const char *new_name, unsigned flags) {
  struct remote_request asked;
  int status = source_check_name(new_name);
  if (!status)
    status = begin(&asked, source, PROTOCOL_RENAME, folder, name);
  if (!status)
    status = remote_add_folder(&asked, new_folder);
  if (status)
    return status;
  strcpy(asked.request.fields.new_name, new_name);
  asked.request.fields.flags = flags;
  return remote_ask(source, &asked);
}
