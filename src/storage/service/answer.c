/* SPDX-License-Identifier: MIT
 * What is asked for, done. The server acts as the user who runs it, for everybody: who may connect
 * may do in the tree what that user may, as far as the export allows changes. */
#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "storage/service/server.h"
#include "storage/source.h"

static struct source_caller itself(void) {
  return (struct source_caller){.uid = geteuid(), .gid = getegid(), .checked = true};
}

/* A program that runs as the server's user when somebody starts it on the server's host. */
static bool lends_rights(mode_t mode, bool folder) {
  return (mode & S_ISUID) || (!folder && (mode & S_ISGID));
}

static int give_entry(struct worker_desk *desk, int status, const struct source_entry *entry) {
  if (status)
    return status;
  desk->answer.node = entry->node;
  desk->answer.stat = entry->stat;
  return 0;
}

/* ---- The connection ---- */

static int enter_export(struct session *session, const char *name) {
  const char *identity = haul_peer_identity(session->peer);
  const struct haul_storage_export *export =
      exported_find(&session->service->exports, name, identity);
  struct source *source;
  if (!export)
    return -ENOENT;
  bool writable = exported_rights(export, identity) & HAUL_WRITE;
  int status = local_source_open(export->path, !writable, &source);
  if (status)
    return status;
  local_source_limit(source, session->service->nodes_max);
  pthread_mutex_lock(&session->lock);
  bool first = !session->source;
  if (first) {
    session->source = source;
    session->writable = writable;
  }
  pthread_mutex_unlock(&session->lock);
  if (first)
    return 0;
  source->ops->close(source);
  return -EALREADY;
}

static int greet(struct worker_desk *desk, const struct protocol_fields *fields) {
  struct session *session = desk->session;
  if (fields->version == 0)
    return -EPROTONOSUPPORT;
  int status = *fields->name ? enter_export(session, fields->name) : 0;
  if (status)
    return status;
  pthread_mutex_lock(&session->lock);
  session->greeted = true;
  pthread_mutex_unlock(&session->lock);
  desk->answer.version = PROTOCOL_VERSION;
  desk->answer.flags = session->writable ? PROTOCOL_WRITABLE : 0;
  desk->answer.depth = SERVICE_DEPTH;
  desk->answer.length = PROTOCOL_READ_MAX;
  return 0;
}

/* Those that the client may read; `type` says whether it may write there. */
static int list_exports(struct worker_desk *desk, const struct protocol_fields *fields) {
  const struct exported *exports = &desk->session->service->exports;
  const char *identity = haul_peer_identity(desk->session->peer);
  struct wire wire = wire_over(desk->bytes, sizeof desk->bytes);
  (void)fields;
  for (size_t i = 0; i < exports->count; i++) {
    unsigned rights = exported_rights(&exports->list[i], identity);
    const struct source_name name = {.name = exports->list[i].name,
                                     .type = rights & HAUL_WRITE ? S_IFDIR : S_IFREG};
    if (rights & HAUL_READ && !protocol_put_name(&wire, &name))
      return -EOVERFLOW;
  }
  desk->answer.bytes = desk->bytes;
  desk->answer.size = (size_t)(wire.at - desk->bytes);
  return 0;
}

static int add_region(struct worker_desk *desk, const struct protocol_fields *fields) {
  return held_add_region(desk->session, fields->name, &desk->answer.region);
}

static int take_region_back(struct worker_desk *desk, const struct protocol_fields *fields) {
  return held_release_region(desk->session, fields->region);
}

/* ---- Nodes ---- */

static int look_up(struct worker_desk *desk, const struct protocol_fields *fields) {
  struct source *source = desk->session->source;
  struct source_entry entry;
  int status = source->ops->lookup(source, fields->node, fields->name, &entry);
  return give_entry(desk, status, &entry);
}

/* What it came with was done before. */
static int forget(struct worker_desk *desk, const struct protocol_fields *fields) {
  (void)desk;
  (void)fields;
  return 0;
}

static int find(struct worker_desk *desk, const struct protocol_fields *fields) {
  struct source *source = desk->session->source;
  struct source_entry entry;
  return give_entry(desk, source->ops->find(source, fields->inode, &entry), &entry);
}

static int get_attributes(struct worker_desk *desk, const struct protocol_fields *fields) {
  struct source *source = desk->session->source;
  return source->ops->getattr(source, fields->node, NULL, &desk->answer.stat);
}

static int set_attributes(struct worker_desk *desk, const struct protocol_fields *fields) {
  struct source *source = desk->session->source;
  const struct source_change *change = &fields->change;
  if ((change->which & (SOURCE_UID | SOURCE_GID)) ||
      (change->which & SOURCE_MODE && lends_rights(change->mode, S_ISDIR(change->mode))))
    return -EPERM;
  struct source_file *file = NULL;
  if (fields->file && !(file = held_take_file(desk->session, fields->file)))
    return -ESTALE;
  int status = source->ops->setattr(source, fields->node, file, change, &desk->answer.stat);
  if (file)
    held_give_file(desk->session, fields->file);
  return status;
}

static int read_link(struct worker_desk *desk, const struct protocol_fields *fields) {
  struct source *source = desk->session->source;
  ssize_t length =
      source->ops->readlink(source, fields->node, (char *)desk->bytes, sizeof desk->bytes);
  if (length < 0)
    return (int)length;
  desk->answer.bytes = desk->bytes;
  desk->answer.size = (size_t)length;
  return 0;
}

static int stat_system(struct worker_desk *desk, const struct protocol_fields *fields) {
  struct source *source = desk->session->source;
  (void)fields;
  return source->ops->statfs(source, &desk->answer.space);
}

/* ---- Names ---- */

static int make_folder(struct worker_desk *desk, const struct protocol_fields *fields) {
  struct source *source = desk->session->source;
  const struct source_caller caller = itself();
  struct source_entry entry;
  if (lends_rights(fields->mode, true))
    return -EPERM;
  int status =
      source->ops->mkdir(source, &caller, fields->node, fields->name, fields->mode, &entry);
  return give_entry(desk, status, &entry);
}

static int make_symlink(struct worker_desk *desk, const struct protocol_fields *fields) {
  struct source *source = desk->session->source;
  const struct source_caller caller = itself();
  struct source_entry entry;
  char target[PATH_MAX];
  if (fields->size >= sizeof target)
    return -ENAMETOOLONG;
  if (fields->size == 0 || memchr(fields->bytes, 0, fields->size))
    return -EINVAL;
  memcpy(target, fields->bytes, fields->size);
  target[fields->size] = '\0';
  int status = source->ops->symlink(source, &caller, fields->node, fields->name, target, &entry);
  return give_entry(desk, status, &entry);
}

static int make_node(struct worker_desk *desk, const struct protocol_fields *fields) {
  struct source *source = desk->session->source;
  const struct source_caller caller = itself();
  struct source_entry entry;
  if (lends_rights(fields->mode, false))
    return -EPERM;
  int status =
      source->ops->mknod(source, &caller, fields->node, fields->name, fields->mode, &entry);
  return give_entry(desk, status, &entry);
}

static int make_link(struct worker_desk *desk, const struct protocol_fields *fields) {
  struct source *source = desk->session->source;
  const struct source_caller caller = itself();
  struct source_entry entry;
  int status =
      source->ops->link(source, &caller, fields->node, fields->folder, fields->name, &entry);
  return give_entry(desk, status, &entry);
}

static int unlink_file(struct worker_desk *desk, const struct protocol_fields *fields) {
  struct source *source = desk->session->source;
  int status = source->ops->unlink(source, fields->node, fields->name);
  if (!status)
    held_drop_temporary(desk->session, fields->node, fields->name);
  return status;
}

static int remove_folder(struct worker_desk *desk, const struct protocol_fields *fields) {
  struct source *source = desk->session->source;
  return source->ops->rmdir(source, fields->node, fields->name);
}

static int rename_node(struct worker_desk *desk, const struct protocol_fields *fields) {
  struct source *source = desk->session->source;
  int status = source->ops->rename(source, fields->node, fields->name, fields->folder,
                                   fields->new_name, fields->flags);
  if (!status)
    held_drop_temporary(desk->session, fields->node, fields->name);
  return status;
}

/* ---- Open files ---- */

static int give_file(struct worker_desk *desk, struct source_file *file) {
  struct source *source = desk->session->source;
  int status = held_add_file(desk->session, file, &desk->answer.file);
  desk->answer.inode = file->inode;
  if (status)
    source->ops->release(source, file);
  return status;
}

static int open_file(struct worker_desk *desk, const struct protocol_fields *fields) {
  struct source *source = desk->session->source;
  const struct source_caller caller = itself();
  struct source_file *file;
  int flags = protocol_flags_to_open(fields->flags);
  int status = flags < 0 ? flags : source->ops->open(source, &caller, fields->node, flags, &file);
  return status ? status : give_file(desk, file);
}

static int create_file(struct worker_desk *desk, const struct protocol_fields *fields) {
  struct source *source = desk->session->source;
  const struct source_caller caller = itself();
  struct source_entry entry;
  struct source_file *file;
  bool temporary = fields->flags & PROTOCOL_TEMPORARY;
  int flags = protocol_flags_to_open(fields->flags & ~PROTOCOL_TEMPORARY);
  if (flags < 0 || lends_rights(fields->mode, false))
    return flags < 0 ? flags : -EPERM;
  if (temporary && !(flags & O_EXCL)) /* what was there before is nobody's to take away */
    return -EINVAL;
  int status = source->ops->create(source, &caller, fields->node, fields->name, fields->mode, flags,
                                   &entry, &file);
  if (status)
    return status;
  if (temporary && (status = held_add_temporary(desk->session, fields->node, fields->name))) {
    source->ops->release(source, file);
    source->ops->forget(source, entry.node, 1);
    source->ops->unlink(source, fields->node, fields->name);
    return status;
  }
  status = give_file(desk, file);
  if (status)
    source->ops->forget(source, entry.node, 1);
  return give_entry(desk, status, &entry);
}

static int open_folder(struct worker_desk *desk, const struct protocol_fields *fields) {
  struct source *source = desk->session->source;
  struct source_file *file;
  int status = source->ops->opendir(source, fields->node, &file);
  return status ? status : give_file(desk, file);
}

static int release_file(struct worker_desk *desk, const struct protocol_fields *fields) {
  return held_release_file(desk->session, fields->file);
}

/* ---- What is done with an open file: it is held meanwhile ---- */

static int move_bytes(struct worker_desk *desk, const struct protocol_fields *fields,
                      struct source_file *file) {
  struct session *session = desk->session;
  bool out = desk->request.operation == PROTOCOL_READ;
  int flags = out ? 0 : protocol_flags_to_write(fields->flags);
  struct told told = {.pages = 0};
  if (flags < 0 || (out && fields->flags & ~PROTOCOL_TELL) || fields->length > PROTOCOL_READ_MAX ||
      fields->offset < 0 || fields->offset > INT64_MAX - (int64_t)PROTOCOL_READ_MAX ||
      fields->at > UINT64_MAX - PROTOCOL_READ_MAX)
    return -EINVAL;
  if (!out && !session->writable)
    return -EROFS;
  struct stream stream = {.service = session->service,
                          .source = session->source,
                          .file = file,
                          .remote = held_take_region(session, fields->region),
                          .offset = fields->offset,
                          .length = fields->length,
                          .at = fields->at,
                          .flags = flags,
                          .told = fields->flags & PROTOCOL_TELL ? &told : NULL};
  if (!stream.remote)
    return -ENXIO;
  if (out && fields->length >= VIEW_MIN)
    stream.view = view_take(session->service, file->fd, (uint64_t)fields->offset + fields->length);
  ssize_t moved = out ? stream_read(&stream) : stream_write(&stream);
  view_give(&session->service->views, stream.view);
  held_give_region(session, fields->region);
  if (moved < 0)
    return (int)moved;
  desk->answer.length = (uint64_t)moved;
  desk->answer.bytes = desk->bytes;
  desk->answer.size = stream.told ? told_put(&told, desk->bytes, sizeof desk->bytes) : 0;
  return 0;
}

static int flush_file(struct worker_desk *desk, const struct protocol_fields *fields,
                      struct source_file *file) {
  struct source *source = desk->session->source;
  (void)fields;
  return source->ops->flush(source, file);
}

static int sync_file(struct worker_desk *desk, const struct protocol_fields *fields,
                     struct source_file *file) {
  struct source *source = desk->session->source;
  return source->ops->fsync(source, file, fields->flags != 0);
}

static int allocate(struct worker_desk *desk, const struct protocol_fields *fields,
                    struct source_file *file) {
  struct source *source = desk->session->source;
  if (fields->flags > INT32_MAX || fields->length > INT64_MAX)
    return -EINVAL;
  return source->ops->fallocate(source, file, (int)fields->flags, fields->offset,
                                (off_t)fields->length);
}

static int seek(struct worker_desk *desk, const struct protocol_fields *fields,
                struct source_file *file) {
  struct source *source = desk->session->source;
  if (fields->flags > INT32_MAX)
    return -EINVAL;
  off_t found = source->ops->lseek(source, file, fields->offset, (int)fields->flags);
  desk->answer.offset = found;
  return found < 0 ? (int)found : 0;
}

/* One that has no room is asked for next time. */
static bool list_name(void *user, const struct source_name *name) {
  struct wire *wire = user;
  struct wire before = *wire;
  if (protocol_put_name(wire, name))
    return true;
  *wire = before;
  return false;
}

static int read_folder(struct worker_desk *desk, const struct protocol_fields *fields,
                       struct source_file *file) {
  struct source *source = desk->session->source;
  size_t room = sizeof desk->bytes;
  if (fields->length < room)
    room = fields->length < 512 ? 512 : (size_t)fields->length;
  struct wire wire = wire_over(desk->bytes, room);
  int status = source->ops->readdir(source, file, fields->offset, room, list_name, &wire);
  desk->answer.bytes = desk->bytes;
  desk->answer.size = (size_t)(wire.at - desk->bytes);
  return desk->answer.size ? 0 : status;
}

/* ---- Extended attributes ---- */

static int give_value(struct worker_desk *desk, ssize_t length, size_t size) {
  if (length < 0)
    return (int)length;
  desk->answer.length = (uint64_t)length;
  desk->answer.bytes = desk->bytes;
  desk->answer.size = size ? (size_t)length : 0;
  return 0;
}

static int get_extended(struct worker_desk *desk, const struct protocol_fields *fields) {
  struct source *source = desk->session->source;
  size_t size = fields->length < sizeof desk->bytes ? (size_t)fields->length : sizeof desk->bytes;
  ssize_t length = source->ops->getxattr(source, fields->node, fields->name, desk->bytes, size);
  return give_value(desk, length, size);
}

static int list_extended(struct worker_desk *desk, const struct protocol_fields *fields) {
  struct source *source = desk->session->source;
  size_t size = fields->length < sizeof desk->bytes ? (size_t)fields->length : sizeof desk->bytes;
  ssize_t length = source->ops->listxattr(source, fields->node, (char *)desk->bytes, size);
  return give_value(desk, length, size);
}

/* Others give rights on the server's host: capabilities, ACLs, labels. */
static bool may_be_set(const char *name) {
  return strncmp(name, "user.", 5) == 0;
}

static int set_extended(struct worker_desk *desk, const struct protocol_fields *fields) {
  struct source *source = desk->session->source;
  if (fields->flags > 2) /* XATTR_CREATE, XATTR_REPLACE */
    return -EINVAL;
  if (desk->session->writable && !may_be_set(fields->name))
    return -EPERM;
  return source->ops->setxattr(source, fields->node, fields->name, fields->bytes, fields->size,
                               (int)fields->flags);
}

static int remove_extended(struct worker_desk *desk, const struct protocol_fields *fields) {
  struct source *source = desk->session->source;
  if (desk->session->writable && !may_be_set(fields->name))
    return -EPERM;
  return source->ops->removexattr(source, fields->node, fields->name);
}

/* ---- The table ---- */

static const struct row {
  int (*free)(struct worker_desk *desk, const struct protocol_fields *fields); /* of any export */
  int (*plain)(struct worker_desk *desk, const struct protocol_fields *fields);
  int (*with_file)(struct worker_desk *desk, const struct protocol_fields *fields,
                   struct source_file *file);
} rows[PROTOCOL_OPERATIONS] = {
    [PROTOCOL_GREET] = {.free = greet},
    [PROTOCOL_EXPORTS] = {.free = list_exports},
    [PROTOCOL_REGION] = {.free = add_region},
    [PROTOCOL_UNREGION] = {.free = take_region_back},
    [PROTOCOL_LOOKUP] = {.plain = look_up},
    [PROTOCOL_FORGET] = {.plain = forget},
    [PROTOCOL_FIND] = {.plain = find},
    [PROTOCOL_GETATTR] = {.plain = get_attributes},
    [PROTOCOL_SETATTR] = {.plain = set_attributes},
    [PROTOCOL_READLINK] = {.plain = read_link},
    [PROTOCOL_STATFS] = {.plain = stat_system},
    [PROTOCOL_MKDIR] = {.plain = make_folder},
    [PROTOCOL_SYMLINK] = {.plain = make_symlink},
    [PROTOCOL_MKNOD] = {.plain = make_node},
    [PROTOCOL_LINK] = {.plain = make_link},
    [PROTOCOL_UNLINK] = {.plain = unlink_file},
    [PROTOCOL_RMDIR] = {.plain = remove_folder},
    [PROTOCOL_RENAME] = {.plain = rename_node},
    [PROTOCOL_OPEN] = {.plain = open_file},
    [PROTOCOL_CREATE] = {.plain = create_file},
    [PROTOCOL_RELEASE] = {.plain = release_file},
    [PROTOCOL_READ] = {.with_file = move_bytes},
    [PROTOCOL_WRITE] = {.with_file = move_bytes},
    [PROTOCOL_FLUSH] = {.with_file = flush_file},
    [PROTOCOL_FSYNC] = {.with_file = sync_file},
    [PROTOCOL_FALLOCATE] = {.with_file = allocate},
    [PROTOCOL_LSEEK] = {.with_file = seek},
    [PROTOCOL_OPENDIR] = {.plain = open_folder},
    [PROTOCOL_READDIR] = {.with_file = read_folder},
    [PROTOCOL_GETXATTR] = {.plain = get_extended},
    [PROTOCOL_LISTXATTR] = {.plain = list_extended},
    [PROTOCOL_SETXATTR] = {.plain = set_extended},
    [PROTOCOL_REMOVEXATTR] = {.plain = remove_extended},
};

static int answer_with_file(struct worker_desk *desk, const struct row *row) {
  const struct protocol_fields *fields = &desk->request.fields;
  struct source_file *file = held_take_file(desk->session, fields->file);
  if (!file)
    return -ESTALE;
  int status = row->with_file(desk, fields, file);
  held_give_file(desk->session, fields->file);
  return status;
}

int answer_request(struct worker_desk *desk) {
  struct session *session = desk->session;
  const struct row *row = &rows[desk->request.operation];
  pthread_mutex_lock(&session->lock);
  bool greeted = session->greeted, has_source = session->source != NULL;
  pthread_mutex_unlock(&session->lock);
  if (!greeted && desk->request.operation != PROTOCOL_GREET)
    return -EPROTO;
  if (row->free)
    return row->free(desk, &desk->request.fields);
  if (!has_source)
    return -ENOTCONN;
  return row->plain ? row->plain(desk, &desk->request.fields) : answer_with_file(desk, row);
}
