/* SPDX-License-Identifier: MIT */
#include <haul/storage.h>

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/random.h>

#include "storage/error.h"
#include "storage/service/remote_inside.h"

#define TIMEOUT_NS INT64_C(30000000000)
#define SLOTS      4u /* requests under way */
#define SLOT       ((uint64_t)4 << 20)

struct lane {
  struct call *call; /* NULL: free */
  struct wharf_move move;
  struct told told;
};

/* Requests that are under way, and the memory for their bytes, which is kept for the next file: the
 * server has it registered. */
struct flow {
  struct wharf wharf; /* without a region until it is first needed */
  struct lane lanes[SLOTS];
  const struct haul_storage_stream *stream;
  bool spoiled; /* the server may still use the memory */
};

struct tree {
  struct source *source;
  char *address, *export;
  struct flow flow;
};

/* ---- Paths ---- */

/* The next name of a path; false: there is none. */
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

/* To the path's end; the node is the caller's to forget. */
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

/* To the folder that a path's last name is in. */
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
    {-EROFS, "the server allows it with `haul serve --export NAME=DIR:rw`"},
    {-ELOOP, "it is a symlink, and symlinks are not followed: name the file itself"},
    {-ENOENT, "`haul ls` shows what is there"},
    {-ENOTDIR, "a name in the middle of the path is a file's: `haul ls` shows what is there"},
    {-EISDIR, "one file at a time: `haul ls` shows what is in it"},
    {-EINVAL, "a path has names alone, neither '.' nor '..'"},
    {-EOPNOTSUPP, "only regular files are moved"},
    {-ERANGE, "`haul ls` shows the sizes of files"},
    {-EACCES,
     "the user that runs the server may not: change the file's or the folder's mode there"},
    {-ENOSPC, "free some space there; what was there before is as it was"},
    {-ESTALE, "the file became shorter, or the server was started again, meanwhile: try once more"},
    {-EBADMSG, "bytes arrive damaged, also when they are sent again: look at the network"},
    {-ETIMEDOUT, "look at the server and its disk; --timeout gives it longer"},
    {-ENOTCONN, "the server has left: start it again, and try once more"},
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

/* ---- Requests under way ---- */

static int open_flow(struct tree *tree, const struct haul_storage_stream *stream) {
  struct dial *dial = remote_of(tree->source)->dial;
  const struct haul_place host = {HAUL_HOST, 0};
  struct flow *flow = &tree->flow;
  haul_region *region;
  flow->stream = stream;
  if (flow->wharf.region)
    return 0;
  int code = haul_region_alloc(dial_node(dial), host, SLOTS * SLOT, 0, &region);
  if (!code)
    wharf_open(&flow->wharf, dial, region, HAUL_READ | HAUL_WRITE);
  return protocol_errno(code);
}

static ssize_t wait_lane(struct flow *flow, struct lane *lane) {
  bool in_use;
  ssize_t moved = wharf_wait(&flow->wharf, &lane->move, lane->call, NULL, NULL, &in_use);
  lane->call = NULL;
  flow->spoiled |= in_use;
  if (moved > 0)
    flow->stream->report(flow->stream->user, &lane->told.report, lane->told.pages);
  return moved;
}

/* Taking the region away ends what the server may still do. */
static void drop_memory(struct flow *flow) {
  haul_region *region = flow->wharf.region;
  if (!region)
    return;
  wharf_close(&flow->wharf);
  haul_region_release(region);
  *flow = (struct flow){.stream = NULL};
}

/* For this file. */
static void end_flow(struct flow *flow) {
  for (unsigned i = 0; i < SLOTS; i++)
    if (flow->lanes[i].call)
      wait_lane(flow, &flow->lanes[i]);
  if (flow->spoiled)
    drop_memory(flow);
}

/* ---- Opening ---- */

static void close_tree(struct tree *tree) {
  drop_memory(&tree->flow);
  if (tree->source)
    tree->source->ops->close(tree->source);
  free(tree->address);
  free(tree->export);
  free(tree);
}

static int open_tree(const struct haul_storage_remote *reach, struct tree **out,
                     struct haul_storage_error *error) {
  if (reach->size != sizeof *reach)
    return storage_fail(error, -EINVAL, "install both from one build",
                        "libhaul-storage.so is of another version");
  const struct remote_config config = {
      .dial = {.address = reach->address,
               .export = reach->export,
               .timeout_ns = reach->timeout_ns ? reach->timeout_ns : TIMEOUT_NS},
  };
  struct tree *tree = calloc(1, sizeof *tree);
  if (tree) {
    tree->address = strdup(reach->address);
    tree->export = strdup(reach->export);
  }
  int status = -ENOMEM;
  if (tree && tree->address && tree->export)
    status = remote_source_open(&config, &tree->source, error);
  else
    storage_fail(error, status, NULL, "no memory left");
  if (!status)
    *out = tree;
  else if (tree)
    close_tree(tree);
  return status;
}

/* ---- Lists ---- */

struct list_job {
  struct source *source;
  uint64_t folder;
  void (*each)(void *user, const struct haul_storage_name *name);
  void *user;
};

/* One that is gone since is left out. */
static bool list_one(void *user, const struct source_name *name) {
  const struct list_job *job = user;
  struct source_entry entry;
  if (strcmp(name->name, ".") == 0 || strcmp(name->name, "..") == 0 ||
      job->source->ops->lookup(job->source, job->folder, name->name, &entry))
    return true;
  job->source->ops->forget(job->source, entry.node, 1);
  const struct haul_storage_name shown = {name->name, entry.stat.st_mode,
                                          (uint64_t)entry.stat.st_size};
  job->each(job->user, &shown);
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

static int take_exports(void *user, const struct protocol_fields *answer) {
  const struct list_job *job = user;
  struct protocol_name name;
  struct wire wire = wire_over(answer->bytes, answer->size);
  while (wire_left(&wire) > 0) {
    if (!protocol_get_name(&wire, &name))
      return -EPROTO;
    const struct haul_storage_name shown = {name.text, S_ISDIR(name.name.type) ? 0777 : 0555, 0};
    job->each(job->user, &shown);
  }
  return 0;
}

static int list_exports(struct list_job *job) {
  struct remote_request asked;
  remote_begin(&asked, PROTOCOL_EXPORTS, 0);
  return remote_ask_bytes(job->source, &asked, take_exports, job);
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
    const struct haul_storage_name shown = {slash ? slash + 1 : path, entry.stat.st_mode,
                                            (uint64_t)entry.stat.st_size};
    job->each(job->user, &shown);
  }
  job->source->ops->forget(job->source, entry.node, 1);
  return status;
}

static int list(struct tree *tree, const char *path,
                void (*each)(void *user, const struct haul_storage_name *name), void *user,
                struct haul_storage_error *error) {
  struct list_job job = {.source = tree->source, .each = each, .user = user};
  int status = *tree->export ? list_path(&job, path) : list_exports(&job);
  return status ? explain(tree, path, status, error) : 0;
}

/* ---- Bytes: answers are taken in order ---- */

static char *lane_bytes(const struct flow *flow, const struct lane *lane) {
  return (char *)haul_region_address(flow->wharf.region) + (lane - flow->lanes) * (off_t)SLOT;
}

static int start_lane(struct flow *flow, struct lane *lane, const struct source_file *file,
                      uint16_t operation, uint64_t offset, uint64_t length) {
  const struct remote_open_file *open = (const struct remote_open_file *)(const void *)file;
  lane->move = (struct wharf_move){.operation = operation,
                                   .generation = open->generation,
                                   .file = open->handle,
                                   .offset = (int64_t)offset,
                                   .at = (uint64_t)(lane - flow->lanes) * SLOT,
                                   .length = length,
                                   .told = &lane->told};
  return wharf_start(&flow->wharf, &lane->move, &lane->call);
}

struct get_job {
  uint64_t at, end; /* in the file */
  const struct haul_storage_stream *stream;
};

static int take_lane(struct flow *flow, struct lane *lane, const struct get_job *job, bool *end) {
  ssize_t got = wait_lane(flow, lane);
  if (got < 0)
    return (int)got;
  *end = (uint64_t)got < lane->move.length; /* it has become shorter meanwhile */
  return job->stream->write(job->stream->user, lane_bytes(flow, lane), (size_t)got) ? 0
                                                                                    : -ECANCELED;
}

static int get_bytes(struct flow *flow, const struct source_file *file, struct get_job *job) {
  bool end = false;
  int status = 0;
  for (unsigned turn = 0; !status && !end; turn++) {
    struct lane *lane = &flow->lanes[turn % SLOTS];
    if (lane->call)
      status = take_lane(flow, lane, job, &end);
    else if (job->at == job->end && turn >= SLOTS)
      break;
    if (status || end || job->at == job->end)
      continue;
    uint64_t length = job->end - job->at < SLOT ? job->end - job->at : SLOT;
    status = start_lane(flow, lane, file, PROTOCOL_READ, job->at, length);
    job->at += length;
  }
  return !status && end ? -ESTALE : status;
}

static int get_file(struct tree *tree, const struct source_entry *entry, struct get_job *job) {
  struct source *source = tree->source;
  struct source_file *file;
  uint64_t size = (uint64_t)entry->stat.st_size;
  const struct source_caller caller = {.checked = true};
  int status = source->ops->open(source, &caller, entry->node, O_RDONLY, &file);
  if (status)
    return status;
  if (job->at > size || job->end > size)
    status = -ERANGE;
  job->end = job->end ? job->end : size;
  if (!status && !job->stream->begin(job->stream->user, job->end - job->at))
    status = -ECANCELED;
  if (!status)
    status = open_flow(tree, job->stream);
  if (!status) {
    status = get_bytes(&tree->flow, file, job);
    end_flow(&tree->flow);
  }
  source->ops->release(source, file);
  return status;
}

static int get(struct tree *tree, const char *path, uint64_t offset, uint64_t length,
               const struct haul_storage_stream *stream, struct haul_storage_error *error) {
  struct get_job job = {.at = offset, .end = length ? offset + length : 0, .stream = stream};
  struct source_entry entry;
  if (offset > INT64_MAX || length > INT64_MAX)
    return explain(tree, path, -ERANGE, error);
  int status = walk(tree->source, path, &entry);
  if (status)
    return explain(tree, path, status, error);
  status = check_regular(entry.stat.st_mode);
  if (!status)
    status = get_file(tree, &entry, &job);
  tree->source->ops->forget(tree->source, entry.node, 1);
  return status ? explain(tree, path, status, error) : 0;
}

/* ---- Writing ---- */

/* All that there is room for; less only at the end. */
static ssize_t fill_lane(struct flow *flow, struct lane *lane) {
  const struct haul_storage_stream *stream = flow->stream;
  size_t done = 0;
  while (done < SLOT) {
    ssize_t got = stream->read(stream->user, lane_bytes(flow, lane) + done, SLOT - done);
    if (got < 0)
      return -ECANCELED;
    if (got == 0)
      break;
    done += (size_t)got;
  }
  return (ssize_t)done;
}

static int settle_write(struct flow *flow, struct lane *lane) {
  ssize_t put = wait_lane(flow, lane);
  if (put < 0)
    return (int)put;
  return (uint64_t)put < lane->move.length ? -ENOSPC : 0;
}

static int put_bytes(struct flow *flow, const struct source_file *file) {
  uint64_t at = 0;
  bool end = false;
  int status = 0;
  for (unsigned turn = 0, idle = 0; !status && idle < SLOTS; turn++) {
    struct lane *lane = &flow->lanes[turn % SLOTS];
    if (lane->call)
      status = settle_write(flow, lane);
    if (status || end) {
      idle++;
      continue;
    }
    ssize_t length = fill_lane(flow, lane);
    end = length < (ssize_t)SLOT;
    if (length < 0)
      status = (int)length;
    else if (length > 0)
      status = start_lane(flow, lane, file, PROTOCOL_WRITE, at, (uint64_t)length);
    at += (uint64_t)length;
  }
  return status;
}

/* A file that is being put: under a name of its own until it is whole. */
struct target {
  char name[NAME_MAX + 1], beside[NAME_MAX + 1];
  uint64_t folder;
  mode_t mode;
  struct source_entry entry;
  struct source_file *file;
};

/* What is there keeps its mode; 0644 where nothing is. */
static int look_at_old(struct source *source, struct target *target) {
  struct source_entry old;
  int status = source->ops->lookup(source, target->folder, target->name, &old);
  target->mode = 0644;
  if (status)
    return status == -ENOENT ? 0 : status;
  source->ops->forget(source, old.node, 1);
  target->mode = old.stat.st_mode & 0777;
  return check_regular(old.stat.st_mode);
}

/* ".NAME.haul-" and a number that nobody else has; of NAME as much as there is room for. */
static int create_beside(struct source *source, struct target *target) {
  const struct source_caller caller = {.checked = true};
  uint64_t random;
  if (getrandom(&random, sizeof random, 0) != sizeof random)
    return -EIO;
  snprintf(target->beside, sizeof target->beside, ".%.220s.haul-%016" PRIx64, target->name, random);
  return source->ops->create(source, &caller, target->folder, target->beside, target->mode,
                             O_WRONLY | O_EXCL | O_TMPFILE, &target->entry, &target->file);
}

static int put_file(struct tree *tree, struct target *target,
                    const struct haul_storage_stream *stream) {
  struct source *source = tree->source;
  int status = look_at_old(source, target);
  if (!status)
    status = create_beside(source, target);
  if (status)
    return status;
  status = open_flow(tree, stream);
  if (!status) {
    status = put_bytes(&tree->flow, target->file);
    end_flow(&tree->flow);
  }
  if (!status) /* its name must not be there before its bytes are, after a power cut either */
    status = source->ops->fsync(source, target->file, true);
  if (!status)
    status = source->ops->flush(source, target->file);
  source->ops->release(source, target->file);
  source->ops->forget(source, target->entry.node, 1);
  if (!status)
    status = source->ops->rename(source, target->folder, target->beside, target->folder,
                                 target->name, 0);
  if (status)
    source->ops->unlink(source, target->folder, target->beside);
  return status;
}

static int put(struct tree *tree, const char *path, const struct haul_storage_stream *stream,
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
    .list = list,
    .get = get,
    .put = put,
};
