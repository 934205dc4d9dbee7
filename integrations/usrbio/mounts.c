/* SPDX-License-Identifier: MIT */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

#include "client.h"

/* A descriptor, and the file that it is open on. */
struct held {
  int fd;
  dev_t device;
  ino_t inode;
  uid_t owner;
};

struct mount {
  struct mount *next;
  char path[MOUNT_ROOM];
  struct held folder; /* its iovs */
  struct held lock;   /* the file that the daemon has locked, or its semaphore */
  uint64_t id;
  bool locks;    /* false: another daemon than haul's, which locks none, and counts as alive */
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

/* Whether the descriptor is still open on that file: a program that closes descriptors it does not
 * know may have reused the number. Sends the daemon no request. A negative errno value: the system
 * does not say, as a process that became another user may not ask (EACCES). */
static int is_ours(const struct held *held) {
  struct statx found;
  if (statx(held->fd, "", AT_EMPTY_PATH | AT_STATX_DONT_SYNC, STATX_INO, &found) != 0)
    return -errno;
  return found.stx_ino == held->inode &&
         makedev(found.stx_dev_major, found.stx_dev_minor) == held->device;
}

static void close_ours(const struct held *held) {
  if (is_ours(held) == 1)
    close(held->fd);
}

/* With the lock. */
static void put_mount(struct mount *mount) {
  if (--mount->references > 0)
    return;
  close_ours(&mount->folder);
  close_ours(&mount->lock);
  free(mount);
}

/* A regular file or a folder of at least that many bytes. */
static int open_held(const char *path, int flags, off_t least, struct held *held) {
  struct stat found;
  held->fd = open(path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC | flags);
  if (held->fd < 0)
    return -errno;
  int status = fstat(held->fd, &found) == 0 ? 0 : -errno;
  if (status == 0 && !(S_ISREG(found.st_mode) ? found.st_size >= least : S_ISDIR(found.st_mode)))
    status = -EIO;
  if (status != 0)
    close(held->fd);
  held->device = found.st_dev;
  held->inode = found.st_ino;
  held->owner = found.st_uid;
  return status;
}

int mount_semaphore(const char *path, enum ring_priority priority, char target[PATH_MAX]) {
  char link[LINK_ROOM];
  snprintf(link, sizeof link, "%s/" CONTROL_IOVS "/%s", path, ring_semaphore_link(priority));
  ssize_t length = readlink(link, target, PATH_MAX - 1);
  if (length < 0)
    return -errno;
  target[length] = '\0';
  const size_t prefix = sizeof SEMAPHORE_PREFIX - 1;
  if (strncmp(target, SEMAPHORE_PREFIX, prefix) != 0 || strchr(target + prefix, '/'))
    return -EIO;
  return (size_t)length > prefix && (size_t)length < prefix + NAME_MAX ? 0 : -EIO;
}

uint64_t mount_id_of(int fd) {
  struct ioctl_mount mount = {0};
  struct stat found;
  if (ioctl(fd, IOCTL_GET_MOUNT, &mount) == 0 && mount.magic == IOCTL_MAGIC)
    return mount.id;
  if (!hf3fs_is_hf3fs(fd) || fstat(fd, &found) != 0)
    return 0;
  return found.st_dev; /* another daemon than haul's */
}

/* Others than the daemon's user may make a file for a daemon that has none. */
static int open_lock(const char *path, struct mount *mount) {
  char name[PATH_MAX + sizeof SEMAPHORE_LOCK];
  struct stat found;
  int status = mount_semaphore(path, RING_NORMAL, name);
  if (status == 0)
    status = open_held(name, 0, sizeof(sem_t), &mount->lock);
  if (status != 0)
    return status;
  memcpy(name + strlen(name), SEMAPHORE_LOCK, sizeof SEMAPHORE_LOCK);
  mount->locks = lstat(name, &found) == 0 && found.st_uid == mount->lock.owner;
  if (!mount->locks)
    return 0;
  close(mount->lock.fd);
  return open_held(name, 0, 0, &mount->lock);
}

/* Opens the folder and the lock. */
static int open_mount(const char *path, struct mount *mount) {
  char folder[MOUNT_ROOM + sizeof "/" CONTROL_IOVS];
  snprintf(folder, sizeof folder, "%s/" CONTROL_IOVS, path);
  int status = open_held(folder, O_DIRECTORY, 0, &mount->folder);
  if (status != 0)
    return status;
  status = open_lock(path, mount);
  if (status != 0)
    close(mount->folder.fd);
  mount->id = status == 0 ? mount_id_of(mount->folder.fd) : 0;
  return status;
}

static bool is_same(const struct held *one, const struct held *other) {
  return one->device == other->device && one->inode == other->inode;
}

/* With the lock. The mount at the path of `new`: the known one, or else `new`, which may replace
 * one whose daemon has died. A dead mount keeps its device number while its folder is open, so an
 * equal number means the same mount. */
static struct mount *update_mount(struct mount *new) {
  struct mount **at = &mounts;
  while (*at && ((*at)->process != new->process || strcmp((*at)->path, new->path) != 0))
    at = &(*at)->next;
  struct mount *old = *at;
  if (old && is_same(&old->folder, &new->folder))
    return old;
  new->next = old ? old->next : NULL;
  new->references = 1;
  *at = new;
  if (old)
    put_mount(old);
  return new;
}

int mount_get(const char *path, struct mount **mount) {
  struct mount *new = calloc(1, sizeof *new);
  if (!new)
    return -ENOMEM;
  memcpy(new->path, path, strlen(path) + 1);
  new->process = getpid();
  int status = open_mount(path, new); /* blocks for the daemon, so without the lock */
  if (status != 0) {
    free(new);
    return status;
  }
  pthread_mutex_lock(&client_locks[LOCK_MOUNTS]);
  *mount = update_mount(new);
  (*mount)->references++;
  pthread_mutex_unlock(&client_locks[LOCK_MOUNTS]);
  if (*mount != new) {
    close(new->folder.fd);
    close(new->lock.fd);
    free(new);
  }
  return 0;
}

uint64_t mount_id(const struct mount *mount) {
  return mount->id;
}

void mount_put(struct mount *mount) {
  pthread_mutex_lock(&client_locks[LOCK_MOUNTS]);
  put_mount(mount);
  pthread_mutex_unlock(&client_locks[LOCK_MOUNTS]);
}

static bool is_open(const struct held *held) {
  int ours = is_ours(held);
  return ours < 0 ? ours != -EBADF : ours == 1;
}

/* The kernel frees the daemon's lock when it dies. */
bool mount_is_alive(const struct mount *mount) {
  if (!is_open(&mount->folder) || !is_open(&mount->lock))
    return false;
  return !mount->locks || semaphore_is_locked(mount->lock.fd);
}
