/* SPDX-License-Identifier: MIT
 * The request handlers. The server acts as the user that runs it, for every client: a client has
 * this user's rights in the tree, except changes where the export is read-only. */
#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>

#include "storage/service/server.h"
#include "storage/source.h"

/* Whether users of the server's host would run the file with the rights of the server's user. */
static bool grants_rights(mode_t mode, bool folder) {
  return (mode & S_ISUID) || (!folder && (mode & S_ISGID));
}

/* NULL: no such export, or no right to read it. */
static const struct haul_storage_export *find_export(const struct session *session,
                                                     const char *name, const char *identity) {
  const struct exports *exports = &session->service->exports;
  for (size_t i = 0; i < exports->count; i++)
    if (strcmp(exports->list[i].name, name) == 0)
      return export_rights(&exports->list[i], identity) & HAUL_READ ? &exports->list[i] : NULL;
  return NULL;
}

static int enter_export(struct session *session, const char *name) {
  const char *identity = haul_peer_identity(session->peer);
  const struct haul_storage_export *export = find_export(session, name, identity);
  struct source *source;
  if (!export)
    return -ENOENT;
  bool writable = export_rights(export, identity) & HAUL_WRITE;
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

static int handle_greet(struct service_job *job, const struct protocol_fields *fields) {
  struct session *session = job->session;
  if (fields->version == 0)
    return -EPROTONOSUPPORT;
  int status = *fields->name ? enter_export(session, fields->name) : 0;
  if (status)
    return status;
  pthread_mutex_lock(&session->lock);
  session->greeted = true;
  pthread_mutex_unlock(&session->lock);
  job->response.version = PROTOCOL_VERSION;
  job->response.flags = session->writable ? PROTOCOL_WRITABLE : 0;
  job->response.depth = SERVICE_DEPTH;
  job->response.length = PROTOCOL_READ_MAX;
  return 0;
}

/* The exports that the client may read. `type` is S_IFDIR if it may write, else S_IFREG. */
static int handle_exports(struct service_job *job, const struct protocol_fields *fields) {
  const struct exports *exports = &job->session->service->exports;
  const char *identity = haul_peer_identity(job->session->peer);
  struct wire wire = wire_over(job->bytes, sizeof job->bytes);
  (void)fields;
  for (size_t i = 0; i < exports->count; i++) {
    unsigned rights = export_rights(&exports->list[i], identity);
    const struct source_name name = {.name = exports->list[i].name,
                                     .type = rights & HAUL_WRITE ? S_IFDIR : S_IFREG};
    if (rights & HAUL_READ && !protocol_put_name(&wire, &name))
      return -EOVERFLOW;
  }
  job->response.size = (size_t)(wire.at - job->bytes);
  return 0;
}

static int handle_region(struct service_job *job, const struct protocol_fields *fields) {
  return session_add_region(job->session, fields->name, &job->response.region);
}

static int handle_unregion(struct service_job *job, const struct protocol_fields *fields) {
  return session_release_region(job->session, fields->region);
}

static int handle_lookup(struct service_job *job, const struct protocol_fields *fields) {
  return job->source->ops->lookup(job->source, fields->node, fields->name, &job->response.entry);
}

/* The forgets of every request are done before its handler runs. */
static int handle_forget(struct service_job *job, const struct protocol_fields *fields) {
  (void)job;
  (void)fields;
  return 0;
}

static int handle_find(struct service_job *job, const struct protocol_fields *fields) {
  return job->source->ops->find(job->source, fields->inode, &job->response.entry);
}

static int handle_getattr(struct service_job *job, const struct protocol_fields *fields) {
  return job->source->ops->getattr(job->source, fields->node, NULL, &job->response.stat);
}

static int handle_setattr(struct service_job *job, const struct protocol_fields *fields) {
  const struct source_change *change = &fields->change;
  if ((change->which & (SOURCE_UID | SOURCE_GID)) ||
      (change->which & SOURCE_MODE && grants_rights(change->mode, S_ISDIR(change->mode))))
    return -EPERM;
  struct source_file *file = NULL;
  if (fields->file && !(file = session_get_file(job->session, fields->file)))
    return -ESTALE;
  int status =
      job->source->ops->setattr(job->source, fields->node, file, change, &job->response.stat);
  if (file)
    session_put_file(job->session, fields->file);
  return status;
}

static int handle_readlink(struct service_job *job, const struct protocol_fields *fields) {
  ssize_t length =
      job->source->ops->readlink(job->source, fields->node, (char *)job->bytes, sizeof job->bytes);
  if (length < 0)
    return (int)length;
  job->response.size = (size_t)length;
  return 0;
}

static int handle_statfs(struct service_job *job, const struct protocol_fields *fields) {
  (void)fields;
  return job->source->ops->statfs(job->source, &job->response.space);
}

static int make_name(struct service_job *job, uint64_t folder, const struct source_new *wanted) {
  return job->source->ops->make(job->source, &job->caller, folder, job->request.fields.name, wanted,
                                &job->response.entry);
}

static int handle_mkdir(struct service_job *job, const struct protocol_fields *fields) {
  const struct source_new wanted = {.kind = SOURCE_FOLDER, .mode = fields->mode};
  return grants_rights(fields->mode, true) ? -EPERM : make_name(job, fields->node, &wanted);
}

static int handle_symlink(struct service_job *job, const struct protocol_fields *fields) {
  char target[PATH_MAX];
  const struct source_new wanted = {.kind = SOURCE_SYMLINK, .target = target};
  if (fields->size >= sizeof target)
    return -ENAMETOOLONG;
  if (fields->size == 0 || memchr(fields->bytes, 0, fields->size))
    return -EINVAL;
  memcpy(target, fields->bytes, fields->size);
  target[fields->size] = '\0';
  return make_name(job, fields->node, &wanted);
}

static int handle_mknod(struct service_job *job, const struct protocol_fields *fields) {
  const struct source_new wanted = {.kind = SOURCE_FILE, .mode = fields->mode};
  return grants_rights(fields->mode, false) ? -EPERM : make_name(job, fields->node, &wanted);
}

static int handle_link(struct service_job *job, const struct protocol_fields *fields) {
  const struct source_new wanted = {.kind = SOURCE_LINK, .node = fields->node};
  return make_name(job, fields->folder, &wanted);
}

static int handle_unlink(struct service_job *job, const struct protocol_fields *fields) {
  int status = job->source->ops->unlink(job->source, fields->node, fields->name, 0);
  if (!status)
    session_drop_temporary(job->session, fields->node, fields->name);
  return status;
}

static int handle_rmdir(struct service_job *job, const struct protocol_fields *fields) {
  return job->source->ops->unlink(job->source, fields->node, fields->name, AT_REMOVEDIR);
}

static int handle_rename(struct service_job *job, const struct protocol_fields *fields) {
  int status = job->source->ops->rename(job->source, &job->caller, fields->node, fields->name,
                                        fields->folder, fields->new_name, fields->flags);
  if (!status)
    session_drop_temporary(job->session, fields->node, fields->name);
  return status;
}

static int return_file(struct service_job *job, struct source_file *file) {
  int status = session_add_file(job->session, file, &job->response.file);
  job->response.inode = file->inode;
  if (status)
    job->source->ops->release(job->source, file);
  return status;
}

static int handle_open(struct service_job *job, const struct protocol_fields *fields) {
  struct source_file *file;
  int flags = protocol_flags_to_open(fields->flags);
  int status = flags < 0
                   ? flags
                   : job->source->ops->open(job->source, &job->caller, fields->node, flags, &file);
  return status ? status : return_file(job, file);
}

static int handle_create(struct service_job *job, const struct protocol_fields *fields) {
  struct source_file *file;
  bool temporary = fields->flags & PROTOCOL_TEMPORARY;
  int flags = protocol_flags_to_open(fields->flags & ~PROTOCOL_TEMPORARY);
  if (flags < 0 || grants_rights(fields->mode, false))
    return flags < 0 ? flags : -EPERM;
  if (temporary && !(flags & O_EXCL)) /* an existing file must not be removed */
    return -EINVAL;
  int status = job->source->ops->create(job->source, &job->caller, fields->node, fields->name,
                                        fields->mode, flags, &job->response.entry, &file);
  if (status)
    return status;
  if (temporary && (status = session_add_temporary(job->session, fields->node, fields->name))) {
    job->source->ops->release(job->source, file);
    job->source->ops->forget(job->source, job->response.node, 1);
    job->source->ops->unlink(job->source, fields->node, fields->name, 0);
    return status;
  }
  status = return_file(job, file);
  if (status)
    job->source->ops->forget(job->source, job->response.node, 1);
  return status;
}

static int handle_opendir(struct service_job *job, const struct protocol_fields *fields) {
  struct source_file *file;
  int status = job->source->ops->opendir(job->source, fields->node, &file);
  return status ? status : return_file(job, file);
}

static int handle_release(struct service_job *job, const struct protocol_fields *fields) {
  return session_release_file(job->session, fields->file);
}

/* Operations on open files; the caller has a reference */

static int handle_io(struct service_job *job, const struct protocol_fields *fields,
                     struct source_file *file) {
  struct session *session = job->session;
  bool out = job->request.operation == PROTOCOL_READ;
  int flags = out ? 0 : protocol_flags_to_write(fields->flags);
  struct io_summary summary = {.pages = 0};
  if (flags < 0 || (out && fields->flags & ~PROTOCOL_SUMMARY) ||
      fields->length > PROTOCOL_READ_MAX || fields->offset < 0 ||
      fields->offset > INT64_MAX - (int64_t)PROTOCOL_READ_MAX ||
      fields->at > UINT64_MAX - PROTOCOL_READ_MAX)
    return -EINVAL;
  if (!out && !session->writable)
    return -EROFS;
  struct stream stream = {.service = session->service,
                          .source = session->source,
                          .file = file,
                          .remote = session_get_region(session, fields->region),
                          .offset = fields->offset,
                          .length = fields->length,
                          .at = fields->at,
                          .flags = flags,
                          .summary = fields->flags & PROTOCOL_SUMMARY ? &summary : NULL};
  if (!stream.remote)
    return -ENXIO;
  if (out && fields->length >= SERVICE_VIEW_MIN)
    stream.view = view_get(session->service, file->fd, (uint64_t)fields->offset + fields->length);
  ssize_t moved = out ? stream_read(&stream) : stream_write(&stream);
  view_put(&session->service->views, stream.view);
  session_put_region(session, fields->region);
  if (moved < 0)
    return (int)moved;
  job->response.length = (uint64_t)moved;
  job->response.size =
      stream.summary ? protocol_put_summary(&summary, job->bytes, sizeof job->bytes) : 0;
  return 0;
}

static int handle_flush(struct service_job *job, const struct protocol_fields *fields,
                        struct source_file *file) {
  (void)fields;
  return job->source->ops->flush(job->source, file);
}

static int handle_fsync(struct service_job *job, const struct protocol_fields *fields,
                        struct source_file *file) {
  return job->source->ops->fsync(job->source, file, fields->flags != 0);
}

static int handle_fallocate(struct service_job *job, const struct protocol_fields *fields,
                            struct source_file *file) {
  if (fields->flags > INT32_MAX || fields->length > INT64_MAX)
    return -EINVAL;
  return job->source->ops->fallocate(job->source, file, (int)fields->flags, fields->offset,
                                     (off_t)fields->length);
}

static int handle_lseek(struct service_job *job, const struct protocol_fields *fields,
                        struct source_file *file) {
  if (fields->flags > INT32_MAX)
    return -EINVAL;
  off_t found = job->source->ops->lseek(job->source, file, fields->offset, (int)fields->flags);
  job->response.offset = found;
  return found < 0 ? (int)found : 0;
}

/* A name without room is read again by the next request. */
static bool list_name(void *user, const struct source_name *name) {
  struct wire *wire = user;
  struct wire before = *wire;
  if (protocol_put_name(wire, name))
    return true;
  *wire = before;
  return false;
}

static int handle_readdir(struct service_job *job, const struct protocol_fields *fields,
                          struct source_file *file) {
  size_t room = sizeof job->bytes;
  if (fields->length < room)
    room = fields->length < 512 ? 512 : (size_t)fields->length;
  struct wire wire = wire_over(job->bytes, room);
  int status = job->source->ops->readdir(job->source, file, fields->offset, room, list_name, &wire);
  job->response.size = (size_t)(wire.at - job->bytes);
  return job->response.size ? 0 : status;
}

static int handle_getxattr(struct service_job *job, const struct protocol_fields *fields) {
  const char *name = job->request.operation == PROTOCOL_GETXATTR ? fields->name : NULL;
  size_t size = fields->length < sizeof job->bytes ? (size_t)fields->length : sizeof job->bytes;
  ssize_t length = job->source->ops->getxattr(job->source, fields->node, name, job->bytes, size);
  if (length < 0)
    return (int)length;
  job->response.length = (uint64_t)length;
  job->response.size = size ? (size_t)length : 0;
  return 0;
}

/* Other attributes change rights on the server's host: capabilities, ACLs, labels. */
static bool is_user_attribute(const char *name) {
  return strncmp(name, "user.", 5) == 0;
}

static int handle_setxattr(struct service_job *job, const struct protocol_fields *fields) {
  if (fields->flags > 2) /* XATTR_CREATE, XATTR_REPLACE */
    return -EINVAL;
  if (job->session->writable && !is_user_attribute(fields->name))
    return -EPERM;
  return job->source->ops->setxattr(job->source, fields->node, fields->name, fields->bytes,
                                    fields->size, (int)fields->flags);
}

static int handle_removexattr(struct service_job *job, const struct protocol_fields *fields) {
  if (job->session->writable && !is_user_attribute(fields->name))
    return -EPERM;
  return job->source->ops->removexattr(job->source, fields->node, fields->name);
}

static const struct row {
  int (*any)(struct service_job *job, const struct protocol_fields *fields); /* needs no export */
  int (*plain)(struct service_job *job, const struct protocol_fields *fields);
  int (*with_file)(struct service_job *job, const struct protocol_fields *fields,
                   struct source_file *file);
} rows[PROTOCOL_OPERATIONS] = {
    [PROTOCOL_GREET] = {.any = handle_greet},
    [PROTOCOL_EXPORTS] = {.any = handle_exports},
    [PROTOCOL_REGION] = {.any = handle_region},
    [PROTOCOL_UNREGION] = {.any = handle_unregion},
    [PROTOCOL_LOOKUP] = {.plain = handle_lookup},
    [PROTOCOL_FORGET] = {.plain = handle_forget},
    [PROTOCOL_FIND] = {.plain = handle_find},
    [PROTOCOL_GETATTR] = {.plain = handle_getattr},
    [PROTOCOL_SETATTR] = {.plain = handle_setattr},
    [PROTOCOL_READLINK] = {.plain = handle_readlink},
    [PROTOCOL_STATFS] = {.plain = handle_statfs},
    [PROTOCOL_MKDIR] = {.plain = handle_mkdir},
    [PROTOCOL_SYMLINK] = {.plain = handle_symlink},
    [PROTOCOL_MKNOD] = {.plain = handle_mknod},
    [PROTOCOL_LINK] = {.plain = handle_link},
    [PROTOCOL_UNLINK] = {.plain = handle_unlink},
    [PROTOCOL_RMDIR] = {.plain = handle_rmdir},
    [PROTOCOL_RENAME] = {.plain = handle_rename},
    [PROTOCOL_OPEN] = {.plain = handle_open},
    [PROTOCOL_CREATE] = {.plain = handle_create},
    [PROTOCOL_RELEASE] = {.plain = handle_release},
    [PROTOCOL_READ] = {.with_file = handle_io},
    [PROTOCOL_WRITE] = {.with_file = handle_io},
    [PROTOCOL_FLUSH] = {.with_file = handle_flush},
    [PROTOCOL_FSYNC] = {.with_file = handle_fsync},
    [PROTOCOL_FALLOCATE] = {.with_file = handle_fallocate},
    [PROTOCOL_LSEEK] = {.with_file = handle_lseek},
    [PROTOCOL_OPENDIR] = {.plain = handle_opendir},
    [PROTOCOL_READDIR] = {.with_file = handle_readdir},
    [PROTOCOL_GETXATTR] = {.plain = handle_getxattr},
    [PROTOCOL_LISTXATTR] = {.plain = handle_getxattr},
    [PROTOCOL_SETXATTR] = {.plain = handle_setxattr},
    [PROTOCOL_REMOVEXATTR] = {.plain = handle_removexattr},
};

int handle_request(struct service_job *job) {
  struct session *session = job->session;
  const struct row *row = &rows[job->request.operation];
  const struct protocol_fields *fields = &job->request.fields;
  pthread_mutex_lock(&session->lock);
  bool greeted = session->greeted;
  job->source = session->source;
  pthread_mutex_unlock(&session->lock);
  if (!greeted && job->request.operation != PROTOCOL_GREET)
    return -EPROTO;
  if (row->any)
    return row->any(job, fields);
  if (!job->source)
    return -ENOTCONN;
  if (row->plain)
    return row->plain(job, fields);
  struct source_file *file = session_get_file(session, fields->file);
  if (!file)
    return -ESTALE;
  int status = row->with_file(job, fields, file);
  session_put_file(session, fields->file);
  return status;
}
