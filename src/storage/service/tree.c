/* SPDX-License-Identifier: MIT */
#include "storage/tree.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>

#include "storage/mount/point.h"
#include "storage/service/remote_inside.h"

#define TIMEOUT_NS INT64_C(30000000000)
#define SLOTS      4u /* requests under way */
#define SLOT       ((uint64_t)4 << 20)

struct tree {
  struct source *source;
  char *address, *export;
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

static int explain(const struct tree *tree, const char *path, int status,
                   struct haul_storage_error *error) {
  const char *hint = NULL;
  if (status == -EROFS)
    hint = "the server allows it with `haul serve --export NAME=DIR:rw`";
  else if (status == -ELOOP)
    hint = "it is a symlink, and symlinks are not followed: name the file itself";
  else if (status == -ENOENT)
    hint = "`haul ls` shows what is there";
  else if (status == -EBADMSG)
    hint = "bytes arrive damaged, also when they are sent again: look at the network";
  return point_refuse(error, status, hint, "%s/%s/%s: %s", tree->address, tree->export, path,
                      strerror(-status));
}

/* ---- Opening ---- */

static void close_tree(struct tree *tree) {
  if (tree->source)
    tree->source->ops->close(tree->source);
  free(tree->address);
  free(tree->export);
  free(tree);
}

static int open_tree(const struct haul_storage_reach *reach, struct tree **out,
                     struct haul_storage_error *error) {
  if (reach->size != sizeof *reach)
    return point_refuse(error, -EINVAL, "install both from one build",
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
    point_refuse(error, status, NULL, "no memory left");
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

/* ---- Bytes: some requests under way, their answers taken in order ---- */

struct lane {
  struct call *call; /* NULL: free */
  struct wharf_move move;
};

struct flow {
  struct wharf wharf;
  struct lane lanes[SLOTS];
};

static int open_flow(struct tree *tree, struct flow *flow, unsigned rights) {
  struct dial *dial = remote_of(tree->source)->dial;
  const struct haul_place host = {HAUL_HOST, 0};
  haul_region *region;
  *flow = (struct flow){0};
  int code = haul_region_alloc(dial_node(dial), host, SLOTS * SLOT, 0, &region);
  if (!code)
    wharf_open(&flow->wharf, dial, region, rights);
  return protocol_errno(code);
}

static ssize_t wait_lane(struct flow *flow, struct lane *lane) {
  bool in_use;
  ssize_t moved = wharf_wait(&flow->wharf, &lane->move, lane->call, NULL, NULL, &in_use);
  lane->call = NULL;
  return moved;
}

/* Taking the region away ends what the server may still do. */
static void close_flow(struct flow *flow) {
  for (unsigned i = 0; i < SLOTS; i++)
    if (flow->lanes[i].call)
      wait_lane(flow, &flow->lanes[i]);
  haul_region *region = flow->wharf.region;
  wharf_close(&flow->wharf);
  haul_region_release(region);
}

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
                                   .length = length};
  return wharf_start(&flow->wharf, &lane->move, &lane->call);
}

struct get_job {
  uint64_t at, end; /* in the file */
  bool (*take)(void *user, const void *bytes, size_t length);
  void *user;
};

static int take_lane(struct flow *flow, struct lane *lane, const struct get_job *job, bool *end) {
  ssize_t got = wait_lane(flow, lane);
  if (got < 0)
    return (int)got;
  *end = (uint64_t)got < lane->move.length; /* it has become shorter meanwhile */
  return job->take(job->user, lane_bytes(flow, lane), (size_t)got) ? 0 : -ECANCELED;
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

static int get_file(struct tree *tree, const struct source_entry *entry, struct get_job *job,
                    bool (*begin)(void *user, uint64_t length)) {
  struct source *source = tree->source;
  struct source_file *file;
  struct flow flow;
  uint64_t size = (uint64_t)entry->stat.st_size;
  const struct source_caller caller = {.checked = true};
  int status = source->ops->open(source, &caller, entry->node, O_RDONLY, &file);
  if (status)
    return status;
  if (job->at > size || job->end > size)
    status = -ERANGE;
  job->end = job->end ? job->end : size;
  if (!status && !begin(job->user, job->end - job->at))
    status = -ECANCELED;
  if (!status)
    status = open_flow(tree, &flow, HAUL_WRITE);
  if (!status) {
    status = get_bytes(&flow, file, job);
    close_flow(&flow);
  }
  source->ops->release(source, file);
  return status;
}

static int get(struct tree *tree, const char *path, uint64_t offset, uint64_t length,
               bool (*begin)(void *user, uint64_t length),
               bool (*take)(void *user, const void *bytes, size_t length), void *user,
               struct haul_storage_error *error) {
  struct get_job job = {
      .at = offset, .end = length ? offset + length : 0, .take = take, .user = user};
  struct source_entry entry;
  if (offset > INT64_MAX || length > INT64_MAX)
    return explain(tree, path, -ERANGE, error);
  int status = walk(tree->source, path, &entry);
  if (status)
    return explain(tree, path, status, error);
  status = get_file(tree, &entry, &job, begin);
  tree->source->ops->forget(tree->source, entry.node, 1);
  return status ? explain(tree, path, status, error) : 0;
}

/* ---- Writing ---- */

/* All that there is room for; less only at the end. */
static ssize_t fill_lane(struct flow *flow, struct lane *lane,
                         ssize_t (*give)(void *user, void *bytes, size_t room), void *user) {
  size_t done = 0;
  while (done < SLOT) {
    ssize_t got = give(user, lane_bytes(flow, lane) + done, SLOT - done);
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

static int put_bytes(struct flow *flow, const struct source_file *file,
                     ssize_t (*give)(void *user, void *bytes, size_t room), void *user) {
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
    ssize_t length = fill_lane(flow, lane, give, user);
    end = length < (ssize_t)SLOT;
    if (length < 0)
      status = (int)length;
    else if (length > 0)
      status = start_lane(flow, lane, file, PROTOCOL_WRITE, at, (uint64_t)length);
    at += (uint64_t)length;
  }
  return status;
}

/* A new one, or the one that is there, empty. */
static int open_to_write(struct source *source, uint64_t folder, const char *name,
                         struct source_entry *entry, struct source_file **file) {
  const struct source_caller caller = {.checked = true};
  int status = source->ops->create(source, &caller, folder, name, 0644, O_WRONLY, entry, file);
  if (status != -EEXIST)
    return status;
  status = source->ops->lookup(source, folder, name, entry);
  if (status)
    return status;
  status = source->ops->open(source, &caller, entry->node, O_WRONLY | O_TRUNC, file);
  if (status)
    source->ops->forget(source, entry->node, 1);
  return status;
}

static int put_file(struct tree *tree, uint64_t folder, const char *name,
                    ssize_t (*give)(void *user, void *bytes, size_t room), void *user) {
  struct source *source = tree->source;
  struct source_entry entry;
  struct source_file *file;
  struct flow flow;
  int status = open_to_write(source, folder, name, &entry, &file);
  if (status)
    return status;
  status = open_flow(tree, &flow, HAUL_READ);
  if (!status) {
    status = put_bytes(&flow, file, give, user);
    close_flow(&flow);
  }
  if (!status)
    status = source->ops->flush(source, file);
  source->ops->release(source, file);
  source->ops->forget(source, entry.node, 1);
  return status;
}

static int put(struct tree *tree, const char *path,
               ssize_t (*give)(void *user, void *bytes, size_t room), void *user,
               struct haul_storage_error *error) {
  struct source_entry folder;
  char name[NAME_MAX + 1];
  int status = walk_to_folder(tree->source, path, &folder, name);
  if (status)
    return explain(tree, path, status, error);
  status = put_file(tree, folder.node, name, give, user);
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
