/* SPDX-License-Identifier: MIT
 * `haul ls`, `haul get` and `haul put` of files on a server: struct haul_storage_tree. */
#include <haul/storage.h>

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/random.h>

#include "storage/service/remote.h"
#include "storage/util.h"

#define SLOTS 4u /* requests in flight */
#define SLOT  ((uint64_t)4 << 20)

struct lane {
  struct rpc_call *call; /* NULL: free */
  struct buffer_io io;
  struct io_summary summary;
};

/* Requests in flight, and their memory, which is kept for the next file: the server has registered
 * it. */
struct pipeline {
  struct client_buffer buffer; /* its region is allocated at the first use */
  struct lane lanes[SLOTS];
  const struct haul_storage_stream *stream;
  bool in_use; /* the server may still use the memory */
};

struct tree {
  struct source *source;
  char *address, *export;
  struct pipeline pipeline;
};

/* The next component of a path; false: the end of the path, or an error. */
static bool next_name(const char **path, char name[NAME_MAX + 1], int *status) {
  const char *at = *path + strspn(*path, "/");
  size_t length = strcspn(at, "/");
  *status = length > NAME_MAX ? -ENAMETOOLONG : 0;
  if (length == 0 || *status)
    return false;
  memcpy(name, at, length);
  name[length] = '\0';
  *path = at + length;
  return true;
}

/* Looks a path up; the caller forgets the node. */
static int walk(struct source *source, const char *path, struct source_entry *entry) {
  char name[NAME_MAX + 1];
  entry->node = SOURCE_ROOT;
  int status = source->ops->getattr(source, SOURCE_ROOT, NULL, &entry->stat);
  while (!status && next_name(&path, name, &status)) {
    struct source_entry next;
    status = source->ops->lookup(source, entry->node, name, &next);
    source->ops->forget(source, entry->node, 1);
    if (!status)
      *entry = next;
  }
  return status;
}

/* Looks up the folder of a path's last component. */
static int walk_to_folder(struct source *source, const char *path, struct source_entry *folder,
                          char name[NAME_MAX + 1]) {
  const char *slash = strrchr(path, '/');
  const char *last = slash ? slash + 1 : path;
  char *above = strndup(path, (size_t)(last - path));
  int status = above ? 0 : -ENOMEM;
  if (!status && strlen(last) > NAME_MAX)
    status = -ENAMETOOLONG;
  if (!status) {
    strcpy(name, last);
    status = walk(source, above, folder);
  }
  free(above);
  return status;
}

static const struct {
  int status;
  const char *hint;
} hints[] = {
    {-EROFS, "export it for writing: `haul serve --export NAME=DIR:rw`"},
    {-ELOOP, "name the file itself: symlinks are not followed"},
    {-ENOENT, "list the folder with `haul ls`"},
    {-ENOTDIR, "list the folder with `haul ls`: a component of the path is a file"},
    {-EISDIR, "name one file: `haul ls` lists those in the folder"},
    {-EINVAL, "remove '.' and '..' from the path"},
    {-EOPNOTSUPP, "name a regular file"},
    {-ERANGE, "show the size of the file with `haul ls`"},
    {-EACCES, "change the mode of the file or folder for the user that runs the server"},
    {-ENOSPC, "free space on the server; an existing file was not changed"},
    {-ESTALE, "try again: the file was truncated, or the server restarted"},
    {-EBADMSG, "check the network: data arrives damaged, also when it is sent again"},
    {-ETIMEDOUT, "check the server and its disk, or set a longer --timeout"},
    {-ENOTCONN, "start the server again, and try again"},
};

static int explain(const struct tree *tree, const char *path, int status,
                   struct haul_storage_error *error) {
  const char *hint = NULL;
  for (size_t i = 0; i < sizeof hints / sizeof hints[0]; i++)
    if (hints[i].status == status)
      hint = hints[i].hint;
  return storage_fail(error, status, hint, "%s/%s/%s: %s", tree->address, tree->export, path,
                      strerror(-status));
}

static int check_regular(mode_t mode) {
  if (S_ISREG(mode))
    return 0;
  return S_ISDIR(mode) ? -EISDIR : S_ISLNK(mode) ? -ELOOP : -EOPNOTSUPP;
}

static int open_pipeline(struct tree *tree, const struct haul_storage_stream *stream) {
  struct rpc *rpc = remote_of(tree->source)->rpc;
  const struct haul_place host = {HAUL_HOST, 0};
  struct pipeline *pipeline = &tree->pipeline;
  haul_region *region;
  pipeline->stream = stream;
  if (pipeline->buffer.region)
    return 0;
  int code = haul_region_alloc(rpc_node(rpc), host, SLOTS * SLOT, 0, &region);
  if (!code)
    client_buffer_open(&pipeline->buffer, rpc, region, HAUL_READ | HAUL_WRITE);
  return protocol_errno(code);
}

static ssize_t wait_lane(struct pipeline *pipeline, struct lane *lane) {
  bool in_use;
  ssize_t moved = client_buffer_wait(&pipeline->buffer, &lane->io, lane->call, NULL, NULL, &in_use);
  lane->call = NULL;
  pipeline->in_use |= in_use;
  if (moved > 0)
    pipeline->stream->report(pipeline->stream->user, &lane->summary.report, lane->summary.pages);
  return moved;
}

/* Releasing the region ends the server's access. */
static void free_memory(struct pipeline *pipeline) {
  haul_region *region = pipeline->buffer.region;
  if (!region)
    return;
  client_buffer_close(&pipeline->buffer);
  haul_region_release(region);
  *pipeline = (struct pipeline){.stream = NULL};
}

static void finish_pipeline(struct pipeline *pipeline) {
  for (unsigned i = 0; i < SLOTS; i++)
    if (pipeline->lanes[i].call)
      wait_lane(pipeline, &pipeline->lanes[i]);
  if (pipeline->in_use)
    free_memory(pipeline);
}

static void close_tree(struct tree *tree) {
  free_memory(&tree->pipeline);
  if (tree->source)
    tree->source->ops->close(tree->source);
  free(tree->address);
  free(tree->export);
  free(tree);
}

static int open_tree(const struct haul_storage_remote *remote, struct tree **out,
                     struct haul_storage_error *error) {
  if (remote->size != sizeof *remote)
    return storage_fail(error, -EINVAL,
                        "install the command and libhaul-storage.so from the same build",
                        "libhaul-storage.so is of another version");
  const struct remote_config config = {
      .rpc = {.address = remote->address,
              .export = remote->export,
              .timeout_ns = remote->timeout_ns},
  };
  struct tree *tree = calloc(1, sizeof *tree);
  if (tree) {
    tree->address = strdup(remote->address);
    tree->export = strdup(remote->export);
  }
  int status = tree && tree->address && tree->export
                   ? remote_source_open(&config, &tree->source, error)
                   : storage_fail(error, -ENOMEM, NULL, "no memory left");
  if (!status)
    *out = tree;
  else if (tree)
    close_tree(tree);
  return status;
}

struct list_job {
  struct source *source;
  uint64_t folder;
  void (*each)(void *user, const struct haul_storage_name *name);
  void *user;
};

static void show(const struct list_job *job, const char *name, mode_t mode, off_t size) {
  job->each(job->user, &(struct haul_storage_name){name, mode, (uint64_t)size});
}

/* Skips a name that was removed meanwhile. */
static bool list_one(void *user, const struct source_name *name) {
  const struct list_job *job = user;
  struct source_entry entry;
  if (strcmp(name->name, ".") == 0 || strcmp(name->name, "..") == 0 ||
      job->source->ops->lookup(job->source, job->folder, name->name, &entry))
    return true;
  job->source->ops->forget(job->source, entry.node, 1);
  show(job, name->name, entry.stat.st_mode, entry.stat.st_size);
  return true;
}

static int list_folder(struct list_job *job) {
  struct source *source = job->source;
  struct source_file *folder;
  int status = source->ops->opendir(source, job->folder, &folder);
  if (status)
    return status;
  status = source->ops->readdir(source, folder, 0, PROTOCOL_BYTES_MAX, list_one, job);
  source->ops->release(source, folder);
  return status;
}

static int pass_exports(void *user, const struct protocol_fields *response) {
  const struct list_job *job = user;
  struct protocol_name name;
  struct wire wire = wire_over(response->bytes, response->size);
  while (wire_left(&wire) > 0) {
    if (!protocol_get_name(&wire, &name))
      return -EPROTO;
    show(job, name.text, S_ISDIR(name.name.type) ? 0777 : 0555, 0);
  }
  return 0;
}

static int list_exports(struct list_job *job) {
  struct remote_call call;
  remote_begin(&call, PROTOCOL_EXPORTS, 0);
  return remote_call_bytes(job->source, &call, pass_exports, job);
}

static int list_path(struct list_job *job, const char *path) {
  struct source_entry entry;
  int status = walk(job->source, path, &entry);
  if (status)
    return status;
  job->folder = entry.node;
  if (S_ISDIR(entry.stat.st_mode)) {
    status = list_folder(job);
  } else {
    const char *slash = strrchr(path, '/');
    show(job, slash ? slash + 1 : path, entry.stat.st_mode, entry.stat.st_size);
  }
  job->source->ops->forget(job->source, entry.node, 1);
  return status;
}

static int tree_list(struct tree *tree, const char *path,
                     void (*each)(void *user, const struct haul_storage_name *name), void *user,
                     struct haul_storage_error *error) {
  struct list_job job = {.source = tree->source, .each = each, .user = user};
  int status = *tree->export ? list_path(&job, path) : list_exports(&job);
  return status ? explain(tree, path, status, error) : 0;
}

/* Reading: responses are processed in order */

static char *lane_bytes(const struct pipeline *pipeline, const struct lane *lane) {
  return (char *)haul_region_address(pipeline->buffer.region) +
         (lane - pipeline->lanes) * (off_t)SLOT;
}

static int start_lane(struct pipeline *pipeline, struct lane *lane, const struct source_file *file,
                      uint16_t operation, uint64_t offset, uint64_t length) {
  const struct remote_open_file *open = (const struct remote_open_file *)(const void *)file;
  lane->io = (struct buffer_io){.operation = operation,
                                .generation = open->generation,
                                .file = open->handle,
                                .offset = (int64_t)offset,
                                .at = (uint64_t)(lane - pipeline->lanes) * SLOT,
                                .length = length,
                                .summary = &lane->summary};
  return client_buffer_start(&pipeline->buffer, &lane->io, &lane->call);
}

static int write_lane(struct pipeline *pipeline, struct lane *lane, bool *truncated) {
  const struct haul_storage_stream *stream = pipeline->stream;
  ssize_t got = wait_lane(pipeline, lane);
  if (got < 0)
    return (int)got;
  *truncated = (uint64_t)got < lane->io.length;
  return stream->write(stream->user, lane_bytes(pipeline, lane), (size_t)got) ? 0 : -ECANCELED;
}

static int get_bytes(struct pipeline *pipeline, const struct source_file *file, uint64_t at,
                     uint64_t end) {
  bool truncated = false; /* meanwhile */
  int status = 0;
  for (unsigned turn = 0; !status && !truncated; turn++) {
    struct lane *lane = &pipeline->lanes[turn % SLOTS];
    if (lane->call)
      status = write_lane(pipeline, lane, &truncated);
    else if (at == end && turn >= SLOTS)
      break;
    if (status || truncated || at == end)
      continue;
    uint64_t length = end - at < SLOT ? end - at : SLOT;
    status = start_lane(pipeline, lane, file, PROTOCOL_READ, at, length);
    at += length;
  }
  return !status && truncated ? -ESTALE : status;
}

/* `end` 0: the end of the file. */
static int get_file(struct tree *tree, const struct source_entry *entry, uint64_t at, uint64_t end,
                    const struct haul_storage_stream *stream) {
  struct source *source = tree->source;
  struct source_file *file;
  uint64_t size = (uint64_t)entry->stat.st_size;
  const struct source_caller caller = {.checked = true};
  int status = source->ops->open(source, &caller, entry->node, O_RDONLY, &file);
  if (status)
    return status;
  if (at > size || end > size)
    status = -ERANGE;
  end = end ? end : size;
  if (!status && !stream->begin(stream->user, end - at))
    status = -ECANCELED;
  if (!status)
    status = open_pipeline(tree, stream);
  if (!status) {
    status = get_bytes(&tree->pipeline, file, at, end);
    finish_pipeline(&tree->pipeline);
  }
  source->ops->release(source, file);
  return status;
}

static int tree_get(struct tree *tree, const char *path, uint64_t offset, uint64_t length,
                    const struct haul_storage_stream *stream, struct haul_storage_error *error) {
  struct source_entry entry;
  if (offset > INT64_MAX || length > INT64_MAX)
    return explain(tree, path, -ERANGE, error);
  int status = walk(tree->source, path, &entry);
  if (status)
    return explain(tree, path, status, error);
  status = check_regular(entry.stat.st_mode);
  if (!status)
    status = get_file(tree, &entry, offset, length ? offset + length : 0, stream);
  tree->source->ops->forget(tree->source, entry.node, 1);
  return status ? explain(tree, path, status, error) : 0;
}

/* Returns SLOT, or less at the end of the stream. */
static ssize_t fill_lane(struct pipeline *pipeline, struct lane *lane) {
  const struct haul_storage_stream *stream = pipeline->stream;
  size_t done = 0;
  while (done < SLOT) {
    ssize_t got = stream->read(stream->user, lane_bytes(pipeline, lane) + done, SLOT - done);
    if (got < 0)
      return -ECANCELED;
    if (got == 0)
      break;
    done += (size_t)got;
  }
  return (ssize_t)done;
}

static int settle_write(struct pipeline *pipeline, struct lane *lane) {
  ssize_t put = wait_lane(pipeline, lane);
  if (put < 0)
    return (int)put;
  return (uint64_t)put < lane->io.length ? -ENOSPC : 0;
}

static int put_bytes(struct pipeline *pipeline, const struct source_file *file) {
  uint64_t at = 0;
  bool end = false;
  int status = 0;
  for (unsigned turn = 0, idle = 0; !status && idle < SLOTS; turn++) {
    struct lane *lane = &pipeline->lanes[turn % SLOTS];
    if (lane->call)
      status = settle_write(pipeline, lane);
    if (status || end) {
      idle++;
      continue;
    }
    ssize_t length = fill_lane(pipeline, lane);
    end = length < (ssize_t)SLOT;
    if (length < 0)
      status = (int)length;
    else if (length > 0)
      status = start_lane(pipeline, lane, file, PROTOCOL_WRITE, at, (uint64_t)length);
    at += (uint64_t)length;
  }
  return status;
}

/* A file that is being written. It has a temporary name until it is complete. */
struct target {
  char name[NAME_MAX + 1], temporary[NAME_MAX + 1];
  uint64_t folder;
  mode_t mode;
  struct source_entry entry;
  struct source_file *file;
};

/* The new file gets the mode of an existing one, else 0644. */
static int choose_mode(struct source *source, struct target *target) {
  struct source_entry old;
  int status = source->ops->lookup(source, target->folder, target->name, &old);
  target->mode = 0644;
  if (status)
    return status == -ENOENT ? 0 : status;
  source->ops->forget(source, old.node, 1);
  target->mode = old.stat.st_mode & 0777;
  return check_regular(old.stat.st_mode);
}

/* ".NAME.haul-" and a random number; NAME is cut to fit. */
static int create_temporary(struct source *source, struct target *target) {
  const struct source_caller caller = {.checked = true};
  uint64_t random;
  if (getrandom(&random, sizeof random, 0) != sizeof random)
    return -EIO;
  snprintf(target->temporary, sizeof target->temporary, ".%.220s.haul-%016" PRIx64, target->name,
           random);
  return source->ops->create(source, &caller, target->folder, target->temporary, target->mode,
                             O_WRONLY | O_EXCL | O_TMPFILE, &target->entry, &target->file);
}

static int put_file(struct tree *tree, struct target *target,
                    const struct haul_storage_stream *stream) {
  const struct source_caller caller = {.checked = true};
  struct source *source = tree->source;
  int status = choose_mode(source, target);
  if (!status)
    status = create_temporary(source, target);
  if (status)
    return status;
  status = open_pipeline(tree, stream);
  if (!status) {
    status = put_bytes(&tree->pipeline, target->file);
    finish_pipeline(&tree->pipeline);
  }
  if (!status) /* the data must be on the disk before the name, also after a power failure */
    status = source->ops->fsync(source, target->file, true);
  if (!status)
    status = source->ops->flush(source, target->file);
  source->ops->release(source, target->file);
  source->ops->forget(source, target->entry.node, 1);
  if (!status)
    status = source->ops->rename(source, &caller, target->folder, target->temporary, target->folder,
                                 target->name, 0);
  if (status)
    source->ops->unlink(source, target->folder, target->temporary, 0);
  return status;
}

static int tree_put(struct tree *tree, const char *path, const struct haul_storage_stream *stream,
                    struct haul_storage_error *error) {
  struct source_entry folder;
  struct target target;
  int status = walk_to_folder(tree->source, path, &folder, target.name);
  if (status)
    return explain(tree, path, status, error);
  target.folder = folder.node;
  status = *target.name ? put_file(tree, &target, stream) : -EISDIR;
  tree->source->ops->forget(tree->source, folder.node, 1);
  return status ? explain(tree, path, status, error) : 0;
}

__attribute__((visibility("default"))) const struct haul_storage_tree haul_storage_tree = {
    .open = open_tree,
    .close = close_tree,
    .list = tree_list,
    .get = tree_get,
    .put = tree_put,
};
