/* SPDX-License-Identifier: MIT
 * The ioctls of 3FS. The kernel copies arguments by the size in the command, so that a program
 * cannot make the daemon read more. It does not check the caller's rights. */
#include <fcntl.h>
#include <stdlib.h>

#include "core/thread.h"
#include "storage/credentials.h"
#include "storage/mount/mount.h"
#include "storage/util.h"

#define INTERFACE_VERSION 1u /* of GET_VERSION */

struct ioctl_call {
  fuse_req_t request;
  fuse_ino_t node;
  struct handle *handle;
  bool folder;
};

/* Replies without data: callers pass no memory for it, although the command has a size. */
static void reply_ioctl(fuse_req_t request, int status) {
  if (status)
    reply_status(request, status);
  else
    fuse_reply_ioctl(request, 0, NULL, 0);
}

static int link_in_folder(const struct ioctl_call *call, const struct source_entry *folder,
                          const char *name) {
  struct source *source = source_of(call->request);
  const struct source_new link = {.kind = SOURCE_LINK, .node = call->node};
  struct source_caller caller;
  struct source_entry entry;
  gid_t *groups;
  if (!S_ISDIR(folder->stat.st_mode))
    return -ENOTDIR;
  if (control_is_name(folder->node, name))
    return -EPERM;
  int status = caller_unchecked(call->request, &caller, &groups);
  if (!status)
    status = source->ops->make(source, &caller, folder->node, name, &link, &entry);
  if (!status)
    source->ops->forget(source, entry.node, 1);
  free(groups);
  return status;
}

/* The caller passes the folder as an inode number, which can be guessed, so its own rights are
 * checked. */
static int ioctl_link_file(const struct ioctl_call *call, const struct ioctl_link *link) {
  struct source *source = source_of(call->request);
  struct source_entry folder;
  if (call->folder || link->folder >= SOURCE_INODES)
    return -EPERM;
  if (!memchr(link->name, '\0', sizeof link->name))
    return -ENAMETOOLONG;
  int status = source->ops->find(source, link->folder, &folder);
  if (status)
    return status;
  status = link_in_folder(call, &folder, link->name);
  source->ops->forget(source, folder.node, 1);
  return status;
}

static int check_hole_ranges(const struct ioctl_holes *holes) {
  if (holes->count < 0 || holes->count > IOCTL_HOLES || holes->flags)
    return -EINVAL;
  for (int i = 0; i < holes->count; i++)
    if (holes->start[i] > holes->end[i] || holes->end[i] > (size_t)INT64_MAX)
      return -EINVAL;
  return 0;
}

/* Checks all ranges before it punches the first. */
static int punch_holes(const struct ioctl_call *call, const struct ioctl_holes *holes) {
  struct source *source = source_of(call->request);
  if (call->folder)
    return -EISDIR;
  if (!call->handle->writes)
    return -EBADF;
  int status = check_hole_ranges(holes);
  credentials_keep_set_ids(false);
  for (int i = 0; !status && i < holes->count; i++)
    if (holes->start[i] < holes->end[i])
      status = source->ops->fallocate(
          source, call->handle->file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
          (off_t)holes->start[i], (off_t)(holes->end[i] - holes->start[i]));
  credentials_keep_set_ids(true);
  return status;
}

/* Moving and removing.
 * The kernel caches the old name, and drops it before the program gets the reply. It waits for the
 * folder's lock then, whose holder may wait for a thread that serves the kernel. So each such call
 * has a thread of its own. */

#define NAME_JOBS       64u                  /* at a time; more fail with EAGAIN */
#define NAME_JOBS_EACH  16u                  /* of one user */
#define NAME_TIMEOUT_NS INT64_C(10000000000) /* for those in progress at the end */

struct name_job {
  struct list link;
  struct mount *mount;
  fuse_req_t request;
  uid_t user;
  uint64_t node; /* the open folder */
  union {
    struct ioctl_move move;
    struct ioctl_remove remove;
  } argument;
  int (*run)(struct name_job *job, const struct source_caller *caller);
};

/* The folder by the number that the caller passes must be the open one, as in 3FS. */
static int check_name(const struct name_job *job, uint64_t inode, const char *name, size_t room) {
  struct source *source = job->mount->source;
  struct stat stat;
  if (!memchr(name, '\0', room))
    return -ENAMETOOLONG;
  if (control_is_name(job->node, name))
    return -EPERM;
  int status = source->ops->getattr(source, job->node, NULL, &stat);
  return !status && stat.st_ino != inode ? -EINVAL : status;
}

static void drop_name(const struct name_job *job, uint64_t folder, const char *name) {
  fuse_lowlevel_notify_inval_entry(job->mount->session, folder, name, strlen(name));
}

static int move_to(struct name_job *job, const struct source_caller *caller,
                   const struct source_entry *folder) {
  struct source *source = job->mount->source;
  const struct ioctl_move *move = &job->argument.move;
  if (!S_ISDIR(folder->stat.st_mode))
    return -ENOTDIR;
  if (control_is_name(folder->node, move->new_name))
    return -EPERM;
  int status = source->ops->rename(source, caller, job->node, move->name, folder->node,
                                   move->new_name, move->to_trash ? RENAME_NOREPLACE : 0);
  if (!status) {
    drop_name(job, job->node, move->name);
    drop_name(job, folder->node, move->new_name);
  }
  return status;
}

static int move_name(struct name_job *job, const struct source_caller *caller) {
  struct source *source = job->mount->source;
  const struct ioctl_move *move = &job->argument.move;
  struct source_entry folder;
  int status = check_name(job, move->folder, move->name, sizeof move->name);
  if (!status && !memchr(move->new_name, '\0', sizeof move->new_name))
    status = -ENAMETOOLONG;
  if (!status)
    status = move->new_folder < SOURCE_INODES ? source->ops->find(source, move->new_folder, &folder)
                                              : -EPERM;
  if (status)
    return status;
  status = move_to(job, caller, &folder);
  source->ops->forget(source, folder.node, 1);
  return status;
}

static int remove_name(struct name_job *job, const struct source_caller *caller) {
  struct source *source = job->mount->source;
  const struct ioctl_remove *remove = &job->argument.remove;
  int status = check_name(job, remove->folder, remove->name, sizeof remove->name);
  if (!status && !source->ops->remove)
    status = -EPERM;
  if (!status)
    status = source->ops->remove(source, caller, job->node, remove->name, remove->recursive,
                                 &job->mount->stopping);
  if (!status)
    drop_name(job, job->node, remove->name);
  return status;
}

static void end_name_job(struct name_job *job) {
  struct mount *mount = job->mount;
  pthread_mutex_lock(&mount->lock);
  list_remove(&job->link);
  pthread_cond_broadcast(&mount->name_job_ended);
  pthread_mutex_unlock(&mount->lock);
  free(job);
}

static void *run_name_job(void *argument) {
  struct name_job *job = argument;
  struct source_caller caller;
  gid_t *groups;
  int status = caller_unchecked(job->request, &caller, &groups);
  if (!status)
    status = job->run(job, &caller);
  free(groups);
  reply_ioctl(job->request, status);
  end_name_job(job);
  return NULL;
}

/* With the lock. */
static bool may_start(const struct name_job *job) {
  const struct mount *mount = job->mount;
  unsigned all = 0, own = 0;
  list_each(item, &mount->name_jobs) {
    all++;
    own += list_entry(item, struct name_job, link)->user == job->user;
  }
  return !atomic_load(&mount->stopping) && all < NAME_JOBS && own < NAME_JOBS_EACH;
}

static int start_thread(struct name_job *job) {
  struct mount *mount = job->mount;
  pthread_t thread;
  pthread_mutex_lock(&mount->lock);
  bool starts = may_start(job);
  if (starts)
    list_append(&mount->name_jobs, &job->link);
  pthread_mutex_unlock(&mount->lock);
  if (!starts)
    return -EAGAIN;
  int status = -thread_start(&thread, run_name_job, job);
  if (status == 0)
    return pthread_detach(thread);
  pthread_mutex_lock(&mount->lock);
  list_remove(&job->link);
  pthread_mutex_unlock(&mount->lock);
  return status;
}

static void start_name_job(const struct ioctl_call *call, const void *in, size_t size,
                           size_t expected,
                           int (*run)(struct name_job *job, const struct source_caller *caller)) {
  int status = !call->folder ? -ENOTDIR : control_is_node(call->node) ? -EPERM : 0;
  if (!status && (!in || size != expected))
    status = -EINVAL;
  struct name_job *job = status ? NULL : calloc(1, sizeof *job);
  if (!status && !job)
    status = -ENOMEM;
  if (!status) {
    *job = (struct name_job){.mount = mount_of(call->request),
                             .request = call->request,
                             .user = fuse_req_ctx(call->request)->uid,
                             .node = call->node,
                             .run = run};
    memcpy(&job->argument, in, size);
    status = start_thread(job);
  }
  if (!status)
    return; /* the thread has the request */
  free(job);
  reply_status(call->request, status);
}

bool mount_end_ioctls(struct mount *mount) {
  int64_t until = haul_deadline_in(NAME_TIMEOUT_NS);
  bool ended = true;
  pthread_mutex_lock(&mount->lock);
  atomic_store(&mount->stopping, true);
  while (!list_empty(&mount->name_jobs) && ended)
    ended = storage_wait(&mount->name_job_ended, &mount->lock, until);
  ended = list_empty(&mount->name_jobs);
  pthread_mutex_unlock(&mount->lock);
  return ended;
}

/* An aligned copy of the argument. NULL: *status is the error. */
static void *copy_argument(const void *in, size_t length, size_t expected, int *status) {
  void *copy = in && length == expected ? malloc(expected) : NULL;
  *status = copy ? 0 : in && length == expected ? -ENOMEM : -EINVAL;
  return copy ? memcpy(copy, in, expected) : NULL;
}

static void on_ioctl(fuse_req_t request, fuse_ino_t node, unsigned command, void *argument,
                     struct fuse_file_info *info, unsigned flags, const void *in, size_t in_size,
                     size_t out_size) {
  const struct ioctl_call call = {request, node, handle_of(info), (flags & FUSE_IOCTL_DIR) != 0};
  const struct mount *mount = mount_of(request);
  const uint32_t magic = IOCTL_MAGIC, version = INTERFACE_VERSION;
  const struct ioctl_mount identity = {.magic = IOCTL_MAGIC, .id = mount->id};
  void *copy = NULL;
  int status = 0;
  (void)argument;
  (void)out_size;
  switch (command) {
  case IOCTL_GET_NAME:
    fuse_reply_ioctl(request, 0, mount->name, sizeof mount->name);
    break;
  case IOCTL_GET_MAGIC:
    fuse_reply_ioctl(request, 0, &magic, sizeof magic);
    break;
  case IOCTL_GET_VERSION:
    fuse_reply_ioctl(request, 0, &version, sizeof version);
    break;
  case IOCTL_GET_MOUNT:
    fuse_reply_ioctl(request, 0, &identity, sizeof identity);
    break;
  case IOCTL_SYNC:
    reply_ioctl(request, sync_handle(request, call.handle, false));
    break;
  case IOCTL_LINK:
    copy = copy_argument(in, in_size, sizeof(struct ioctl_link), &status);
    reply_ioctl(request, copy ? ioctl_link_file(&call, copy) : status);
    break;
  case IOCTL_PUNCH_HOLES:
    copy = copy_argument(in, in_size, sizeof(struct ioctl_holes), &status);
    reply_ioctl(request, copy ? punch_holes(&call, copy) : status);
    break;
  case IOCTL_MOVE:
    start_name_job(&call, in, in_size, sizeof(struct ioctl_move), move_name);
    break;
  case IOCTL_REMOVE:
    start_name_job(&call, in, in_size, sizeof(struct ioctl_remove), remove_name);
    break;
  default:
    reply_status(request, -ENOTTY);
  }
  free(copy);
}

void mount_add_ioctl_op(struct fuse_lowlevel_ops *ops) {
  ops->ioctl = on_ioctl;
}
