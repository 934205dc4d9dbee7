/* SPDX-License-Identifier: MIT */
#include "mounts.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

struct mount {
  struct mount *next;
  char path[MOUNT_PATH];
  int folder;
  dev_t device;
  ino_t inode;
  pid_t process; /* a forked child is another client of the daemon */
  unsigned holds;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct mount *mounts; /* under `lock`; each has a hold for being here */

static void before_fork(void) {
  pthread_mutex_lock(&lock);
}

static void after_fork(void) {
  pthread_mutex_unlock(&lock);
}

__attribute__((constructor)) static void watch_forks(void) {
  pthread_atfork(before_fork, after_fork, after_fork);
}

bool mount_is_path(const char *path) {
  return path && *path && strlen(path) < MOUNT_PATH;
}

static int open_folder(const char *path, struct stat *found) {
  char folder[MOUNT_PATH + sizeof "/3fs-virt/iovs"];
  snprintf(folder, sizeof folder, "%s/3fs-virt/iovs", path);
  int descriptor = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor < 0)
    return -errno;
  if (fstat(descriptor, found) == 0)
    return descriptor;
  int status = -errno;
  close(descriptor);
  return status;
}

static struct mount *make(const char *path, int folder, const struct stat *found) {
  struct mount *mount = calloc(1, sizeof *mount);
  if (!mount)
    return NULL;
  memcpy(mount->path, path, strlen(path) + 1);
  mount->folder = folder;
  mount->device = found->st_dev;
  mount->inode = found->st_ino;
  mount->process = getpid();
  return mount;
}

/* Under `lock`. */
static struct mount **find(const char *path) {
  struct mount **at = &mounts;
  while (*at && ((*at)->process != getpid() || strcmp((*at)->path, path) != 0))
    at = &(*at)->next;
  return at;
}

/* Whether the descriptor is what it was, and not what a program made that closes those that it does
 * not know. -errno: the system cannot say. */
static int is_ours(const struct mount *mount, int sync) {
  struct statx found;
  if (statx(mount->folder, "", AT_EMPTY_PATH | sync, STATX_INO, &found) != 0)
    return -errno;
  return found.stx_ino == mount->inode &&
         makedev(found.stx_dev_major, found.stx_dev_minor) == mount->device;
}

/* Under `lock`. */
static void let_go(struct mount *mount) {
  if (--mount->holds > 0)
    return;
  if (is_ours(mount, AT_STATX_DONT_SYNC) == 1)
    close(mount->folder);
  free(mount);
}

/* Under `lock`. The entry for what `path` is now: the one there is, or a new one in the place of
 * one whose daemon is gone. A dead mount keeps its device number while its folder is open, so the
 * same number is the same mount. */
static struct mount *settle(const char *path, int folder, const struct stat *found) {
  struct mount **at = find(path);
  struct mount *old = *at;
  if (old && old->device == found->st_dev && old->inode == found->st_ino) {
    close(folder);
    return old;
  }
  struct mount *mount = make(path, folder, found);
  if (!mount)
    return NULL;
  mount->holds = 1;
  mount->next = old ? old->next : NULL;
  *at = mount;
  if (old)
    let_go(old);
  return mount;
}

int mount_hold(const char *path, struct mount **mount) {
  struct stat found = {.st_dev = 0};
  int folder = open_folder(path, &found); /* may wait for the daemon: not under the lock */
  if (folder < 0)
    return folder;
  pthread_mutex_lock(&lock);
  *mount = settle(path, folder, &found);
  if (*mount)
    (*mount)->holds++;
  pthread_mutex_unlock(&lock);
  if (*mount)
    return 0;
  close(folder);
  return -ENOMEM;
}

void mount_release(struct mount *mount) {
  pthread_mutex_lock(&lock);
  let_go(mount);
  pthread_mutex_unlock(&lock);
}

/* What the kernel says of a mount whose daemon is gone, and of a descriptor that is. Others do not
 * say so: a process that has become another user may not ask (EACCES), and its rings still work. */
static bool says_gone(int error) {
  switch (error) {
  case ENOTCONN:
  case ECONNABORTED:
  case ECONNREFUSED:
  case ESTALE:
  case ENODEV:
  case EIO:
  case EBADF:
    return true;
  default:
    return false;
  }
}

bool mount_answers(const struct mount *mount) {
  /* What the kernel has cached would outlive the daemon. */
  int answer = is_ours(mount, AT_STATX_FORCE_SYNC);
  return answer < 0 ? !says_gone(-answer) : answer == 1;
}
