/* SPDX-License-Identifier: MIT */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

#include "client.h"

struct mount {
  struct mount *next;
  char path[MOUNT_ROOM];
  int folder; /* its iovs */
  dev_t device;
  ino_t inode;
  pid_t process; /* a forked child is another client of the daemon */
  unsigned references;
};

static struct mount *mounts; /* under LOCK_MOUNTS, with a reference each */

pthread_mutex_t client_locks[CLIENT_LOCKS] = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_MUTEX_INITIALIZER,
                                              PTHREAD_MUTEX_INITIALIZER};

static void before_fork(void) {
  for (unsigned i = 0; i < CLIENT_LOCKS; i++)
    pthread_mutex_lock(&client_locks[i]);
}

static void after_fork(void) {
  for (unsigned i = 0; i < CLIENT_LOCKS; i++)
    pthread_mutex_unlock(&client_locks[i]);
}

__attribute__((constructor)) static void watch_forks(void) {
  pthread_atfork(before_fork, after_fork, after_fork);
}

bool mount_is_path(const char *path) {
  return path && *path && strlen(path) < MOUNT_ROOM;
}

/* Whether the descriptor is still the mount's: a program that closes descriptors it does not know
 * may have reused the number. A negative errno value: the system does not say. */
static int is_ours(const struct mount *mount, int sync) {
  struct statx found;
  if (statx(mount->folder, "", AT_EMPTY_PATH | sync, STATX_INO, &found) != 0)
    return -errno;
  return found.stx_ino == mount->inode &&
         makedev(found.stx_dev_major, found.stx_dev_minor) == mount->device;
}

/* With the lock. */
static void put_mount(struct mount *mount) {
  if (--mount->references > 0)
    return;
  if (is_ours(mount, AT_STATX_DONT_SYNC) == 1)
    close(mount->folder);
  free(mount);
}

static int open_iovs(const char *path, struct stat *found) {
  char folder[MOUNT_ROOM + sizeof "/" CONTROL_IOVS];
  snprintf(folder, sizeof folder, "%s/" CONTROL_IOVS, path);
  int fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0)
    return -errno;
  if (fstat(fd, found) == 0)
    return fd;
  int status = -errno;
  close(fd);
  return status;
}

/* With the lock. The mount that `path` is now: the known one, or a new one that replaces one whose
 * daemon has died. A dead mount keeps its device number while its folder is open, so an equal
 * number means the same mount. On success takes the descriptor. */
static struct mount *update_mount(const char *path, int folder, const struct stat *found) {
  struct mount **at = &mounts;
  while (*at && ((*at)->process != getpid() || strcmp((*at)->path, path) != 0))
    at = &(*at)->next;
  struct mount *old = *at;
  if (old && old->device == found->st_dev && old->inode == found->st_ino) {
    close(folder);
    return old;
  }
  struct mount *mount = calloc(1, sizeof *mount);
  if (!mount)
    return NULL;
  *mount = (struct mount){.next = old ? old->next : NULL,
                          .folder = folder,
                          .device = found->st_dev,
                          .inode = found->st_ino,
                          .process = getpid(),
                          .references = 1};
  memcpy(mount->path, path, strlen(path) + 1);
  *at = mount;
  if (old)
    put_mount(old);
  return mount;
}

int mount_get(const char *path, struct mount **mount) {
  struct stat found = {.st_dev = 0};
  int folder = open_iovs(path, &found); /* blocks for the daemon, so without the lock */
  if (folder < 0)
    return folder;
  pthread_mutex_lock(&client_locks[LOCK_MOUNTS]);
  *mount = update_mount(path, folder, &found);
  if (*mount)
    (*mount)->references++;
  pthread_mutex_unlock(&client_locks[LOCK_MOUNTS]);
  if (*mount)
    return 0;
  close(folder);
  return -ENOMEM;
}

void mount_put(struct mount *mount) {
  pthread_mutex_lock(&client_locks[LOCK_MOUNTS]);
  put_mount(mount);
  pthread_mutex_unlock(&client_locks[LOCK_MOUNTS]);
}

/* The kernel's errors for a mount whose daemon has died, and for a descriptor that was closed.
 * Others do not mean that: a process that became another user may not ask (EACCES), and its rings
 * work. */
static bool means_dead(int error) {
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

/* FORCE_SYNC: what the kernel has cached would outlive the daemon. */
bool mount_is_alive(const struct mount *mount) {
  int ours = is_ours(mount, AT_STATX_FORCE_SYNC);
  return ours < 0 ? !means_dead(-ours) : ours == 1;
}
