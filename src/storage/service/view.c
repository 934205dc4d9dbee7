/* SPDX-License-Identifier: MIT */
#include "storage/service/server.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "core/thread.h"
#include "storage/util.h"

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22 /* linux/mman.h, since Linux 5.14 */
#endif

#define KEPT_MAX 64u /* mappings of the process are limited by vm.max_map_count */
#define KEPT_NS  INT64_C(5000000000)

bool view_is_spoiled(const struct view *view) {
  return atomic_load(&view->watch.lost);
}

/* With the lock. Removes and returns an expired view. NULL: *next is the time of the next check. */
static struct view *take_idle(struct views *views, int64_t now, int64_t *next) {
  list_each(item, &views->all) {
    struct view *view = list_entry(item, struct view, link);
    if (view->users > 0)
      continue;
    *next = view->unused_since + KEPT_NS;
    if (now < *next && views->count <= KEPT_MAX && !view_is_spoiled(view) && !views->stops)
      return NULL;
    list_remove(&view->link);
    views->count--;
    return view;
  }
  *next = now + KEPT_NS;
  return NULL;
}

static void *reap_views(void *argument) {
  struct views *views = argument;
  pthread_mutex_lock(&views->lock);
  while (!views->stops || !list_empty(&views->all)) {
    int64_t next;
    struct view *view = take_idle(views, haul_deadline_in(0), &next);
    if (!view) {
      storage_wait(&views->changed, &views->lock, next);
      continue;
    }
    pthread_mutex_unlock(&views->lock);
    sigbus_unwatch(&view->watch);
    haul_region_release(view->region);
    free(view);
    pthread_mutex_lock(&views->lock);
  }
  pthread_mutex_unlock(&views->lock);
  return NULL;
}

int views_open(struct views *views) {
  pthread_mutex_init(&views->lock, NULL);
  storage_cond_init(&views->changed);
  list_init(&views->all);
  int status = -thread_start(&views->thread, reap_views, views);
  views->open = status == 0;
  return status;
}

void views_close(struct views *views) {
  if (!views->open)
    return;
  pthread_mutex_lock(&views->lock);
  views->stops = true;
  pthread_cond_signal(&views->changed);
  pthread_mutex_unlock(&views->lock);
  pthread_join(views->thread, NULL);
  pthread_cond_destroy(&views->changed);
  pthread_mutex_destroy(&views->lock);
}

/* Whether device and inode identify one file, and its mappings always show what read(2) returns:
 * true on known file systems only. In an overlay the first write moves a file to another layer
 * under the same numbers, and FUSE and network file systems may reuse numbers. A tmpfs file with
 * holes is excluded, as reading a hole allocates memory. */
static bool has_pages(int fd, const struct stat *stat) {
  struct statfs system;
  if (fstatfs(fd, &system) != 0)
    return false;
  switch (system.f_type) {
  case EXT4_SUPER_MAGIC:
  case XFS_SUPER_MAGIC:
  case BTRFS_SUPER_MAGIC:
  case F2FS_SUPER_MAGIC:
    return true;
  case TMPFS_MAGIC:
    return (uint64_t)stat->st_blocks * 512 >= (uint64_t)stat->st_size;
  default:
    return false;
  }
}

/* Maps the whole file; has one user. */
static struct view *new_view(struct service *service, int fd, const struct stat *stat) {
  struct view *view = calloc(1, sizeof *view);
  int code = HAUL_ECLOSED;
  if (!view)
    return NULL;
  pthread_rwlock_rdlock(&service->node_lock);
  if (service->node)
    code = haul_region_wrap_file(service->node, fd, 0, (size_t)stat->st_size, &view->region);
  pthread_rwlock_unlock(&service->node_lock);
  if (code) {
    free(view);
    return NULL;
  }
  sigbus_watch(&view->watch, haul_region_address(view->region), (size_t)stat->st_size);
  view->device = stat->st_dev;
  view->inode = stat->st_ino;
  view->users = 1;
  return view;
}

static struct view *find_view(struct views *views, const struct stat *stat, uint64_t end) {
  struct view *found = NULL;
  pthread_mutex_lock(&views->lock);
  list_each(item, &views->all) {
    struct view *view = list_entry(item, struct view, link);
    if (view->inode == stat->st_ino && view->device == stat->st_dev &&
        end <= haul_region_length(view->region) && !view_is_spoiled(view)) {
      view->users++;
      found = view;
      break;
    }
  }
  pthread_mutex_unlock(&views->lock);
  return found;
}

struct view *view_get(struct service *service, int fd, uint64_t end) {
  struct views *views = &service->views;
  struct stat stat;
  int flags = fcntl(fd, F_GETFL); /* a view needs a descriptor that may read */
  if (flags < 0 || (flags & O_ACCMODE) == O_WRONLY || fstat(fd, &stat) != 0 ||
      end > (uint64_t)stat.st_size || !has_pages(fd, &stat))
    return NULL;
  struct view *view = find_view(views, &stat, end);
  if (view)
    return view;
  view = new_view(service, fd, &stat);
  if (!view)
    return NULL;
  pthread_mutex_lock(&views->lock);
  list_append(&views->all, &view->link); /* perhaps beside another thread's, which expires */
  views->count++;
  pthread_mutex_unlock(&views->lock);
  return view;
}

void view_put(struct views *views, struct view *view) {
  if (!view)
    return;
  pthread_mutex_lock(&views->lock);
  if (--view->users == 0) {
    view->unused_since = haul_deadline_in(0);
    list_remove(&view->link);
    list_append(&views->all, &view->link);
  }
  if (views->count > KEPT_MAX)
    pthread_cond_signal(&views->changed);
  pthread_mutex_unlock(&views->lock);
}

bool view_populate(const struct view *view, uint64_t offset, uint64_t length) {
  uint64_t within = offset % (uint64_t)sysconf(_SC_PAGESIZE);
  char *start = (char *)haul_region_address(view->region) + offset - within;
  return madvise(start, within + length, MADV_POPULATE_READ) == 0;
}
