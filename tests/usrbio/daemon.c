/* SPDX-License-Identifier: MIT */
#include "usrbio/daemon.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <haul/usrbio.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "hf3fs_usrbio.h"
#include "storage/ring.h"

#define REGISTERED 4096
#define TARGET     256

struct registered {
  bool used;
  struct iov_name name;
  uint8_t *base;
  size_t size;
  struct ring_view view;
};

static struct {
  char mount[PATH_MAX], iovs[PATH_MAX + 32];
  bool made;
  sem_t *semaphores[RING_PRIORITIES];
  int lock; /* -1: the daemon is dead */
  pthread_t threads[RING_PRIORITIES];
  struct registered registered[REGISTERED];
  char last_name[IOV_NAME_ROOM], last_target[TARGET];
  int file; /* the last file found, with its inode */
  uint64_t inode, id;
} state;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* guards `state` */
static _Atomic bool running, held, dead;
static _Atomic int symlink_error, liveness_error;
static _Atomic unsigned liveness_checks, requests, woken[RING_PRIORITIES];

static void before_fork(void) {
  pthread_mutex_lock(&lock);
}

static void after_fork(void) {
  pthread_mutex_unlock(&lock);
}

/* A forked client finds the lock free. */
__attribute__((constructor)) static void watch_forks(void) {
  pthread_atfork(before_fork, after_fork, after_fork);
}

static void must(bool done, const char *what) {
  if (done)
    return;
  fprintf(stderr, "mock daemon: %s: %s\n", what, strerror(errno));
  abort();
}

static bool is_below(int fd, const char *folder) {
  char link[64], path[PATH_MAX];
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  ssize_t length = readlink(link, path, sizeof path - 1);
  if (length < 0)
    return false;
  path[length] = '\0';
  return strncmp(path, folder, strlen(folder)) == 0 && path[strlen(folder)] == '/';
}

/* A registered file's descriptor in this process, which is the client's, too. */
static int file_of(uint64_t inode) {
  struct stat found;
  if (state.file >= 0 && state.inode == inode && fstat(state.file, &found) == 0 &&
      found.st_ino == inode)
    return state.file;
  for (int fd = 0; fd < 4096; fd++) {
    if (fstat(fd, &found) != 0 || found.st_ino != inode || !is_below(fd, state.mount))
      continue;
    state.file = fd;
    state.inode = inode;
    return fd;
  }
  return -1;
}

static struct registered *find(const uint8_t id[16], bool ring) {
  for (size_t i = 0; i < REGISTERED; i++) {
    struct registered *entry = &state.registered[i];
    if (entry->used && entry->name.ring == ring && memcmp(entry->name.id, id, 16) == 0)
      return entry;
  }
  return NULL;
}

static int64_t carry_out(const struct ring_record *record, bool read) {
  struct registered *buffer = find(record->buffer, false);
  if (!buffer || record->buffer_offset > buffer->size ||
      record->length > buffer->size - record->buffer_offset)
    return -EINVAL;
  int file = file_of(record->file);
  if (file < 0)
    return -EBADF;
  void *at = buffer->base + record->buffer_offset;
  ssize_t done = read ? pread(file, at, record->length, (off_t)record->offset)
                      : pwrite(file, at, record->length, (off_t)record->offset);
  return done < 0 ? -errno : done;
}

bool daemon_next(struct ring_view *view, struct ring_submission *submission) {
  int32_t tail = atomic_load_explicit(&view->indices->submit_tail, memory_order_relaxed);
  if (tail == atomic_load_explicit(&view->indices->submit_head, memory_order_acquire))
    return false;
  *submission = view->submissions[tail];
  atomic_store_explicit(&view->indices->submit_tail, tail + 1 == view->slots ? 0 : tail + 1,
                        memory_order_release);
  return true;
}

static void complete(struct ring_view *view, int32_t index, int64_t result) {
  int32_t head = atomic_load_explicit(&view->indices->complete_head, memory_order_relaxed);
  int32_t next = head + 1 == view->slots ? 0 : head + 1;
  must(next != atomic_load_explicit(&view->indices->complete_tail, memory_order_acquire),
       "the client left no room for a completion");
  view->completions[head] = (struct ring_completion){.index = index, .result = result};
  atomic_store_explicit(&view->indices->complete_head, next, memory_order_release);
}

void daemon_complete(struct ring_view *view, int32_t index, int64_t result) {
  complete(view, index, result);
  sem_post(view->semaphore);
}

/* With the lock. */
static void serve(struct registered *ring) {
  struct ring_submission submission;
  unsigned done = 0;
  while (daemon_next(&ring->view, &submission)) {
    struct ring_record record = ring->view.records[submission.index];
    complete(&ring->view, submission.index, carry_out(&record, ring->name.for_read));
    done++;
  }
  if (done > 0)
    sem_post(ring->view.semaphore);
}

static void *work(void *argument) {
  enum ring_priority priority = (enum ring_priority)(intptr_t)argument;
  for (;;) {
    while (sem_wait(state.semaphores[priority]) != 0)
      ;
    if (!running)
      return NULL;
    woken[priority]++;
    pthread_mutex_lock(&lock);
    for (size_t i = 0; i < REGISTERED && !dead && !held; i++) {
      struct registered *entry = &state.registered[i];
      if (entry->used && entry->name.ring && entry->name.priority == priority)
        serve(entry);
    }
    pthread_mutex_unlock(&lock);
  }
}

/* The name in the control directory; NULL: another folder. */
static const char *name_in(const char *path) {
  size_t length = strlen(state.iovs);
  bool inside = state.iovs[0] && strncmp(path, state.iovs, length) == 0 && path[length] == '/';
  return inside ? path + length + 1 : NULL;
}

/* With the lock. */
static int enter(const char *target, const struct iov_name *name) {
  struct stat found;
  struct registered *entry = state.registered;
  while (entry->used)
    must(++entry < state.registered + REGISTERED, "too much is registered");
  int file = open(target, O_RDWR | O_CLOEXEC);
  if (file < 0)
    return -errno;
  must(fstat(file, &found) == 0, target);
  void *base = mmap(NULL, (size_t)found.st_size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  must(base != MAP_FAILED, target);
  close(file);
  *entry =
      (struct registered){.used = true, .name = *name, .base = base, .size = (size_t)found.st_size};
  if (name->ring)
    must(ring_view_init(&entry->view, base, entry->size), "a ring without room");
  return 0;
}

static int leave(const struct iov_name *name) {
  struct registered *entry = find(name->id, name->ring);
  if (!entry)
    return -ENOENT;
  munmap(entry->base, entry->size);
  entry->used = false;
  return 0;
}

static int mock_symlink(const char *target, const char *path) {
  struct iov_name name;
  requests++;
  const char *text = name_in(path);
  if (!text || iov_name_parse(text, &name) != 0)
    return text && running ? -EINVAL : 0;
  if (dead || symlink_error)
    snprintf(state.last_target, sizeof state.last_target, "%s", target);
  if (dead || symlink_error)
    return dead ? -ENOTCONN : -symlink_error;
  pthread_mutex_lock(&lock);
  snprintf(state.last_name, sizeof state.last_name, "%s", text);
  snprintf(state.last_target, sizeof state.last_target, "%s", target);
  int status = enter(target, &name);
  pthread_mutex_unlock(&lock);
  return status;
}

static int mock_unlink(const char *path) {
  struct iov_name name;
  requests++;
  const char *text = name_in(path);
  if (!text || iov_name_parse(text, &name) != 0)
    return 0;
  if (dead)
    return -ENOTCONN;
  pthread_mutex_lock(&lock);
  int status = leave(&name);
  pthread_mutex_unlock(&lock);
  return status;
}

/* NULL: there is no mount. */
static const char *mount_folder(void) {
  return running ? state.mount : NULL;
}

/* The library calls these, as the program's symbols precede libc's. Paths in the mock mount are
 * treated as haul's file system does. */

#define MOCK __attribute__((visibility("default")))

MOCK int symlink(const char *target, const char *path);
MOCK int unlink(const char *path);
MOCK int ioctl(int fd, unsigned long request, ...);
MOCK int fcntl(int fd, int command, ...);
MOCK int statx(int folder, const char *restrict path, int flags, unsigned mask,
               struct statx *restrict found);

static int fail(int status) {
  errno = -status;
  return -1;
}

int symlink(const char *target, const char *path) {
  int status = mock_symlink(target, path);
  return status == 0 ? symlinkat(target, AT_FDCWD, path) : fail(status);
}

int unlink(const char *path) {
  int status = mock_unlink(path);
  return status == 0 ? unlinkat(AT_FDCWD, path, 0) : fail(status);
}

int fcntl(int fd, int command, ...) {
  va_list rest;
  va_start(rest, command);
  void *argument = va_arg(rest, void *);
  va_end(rest);
  int error = command == F_OFD_GETLK ? liveness_error : 0;
  liveness_checks += command == F_OFD_GETLK;
  return error ? fail(-error) : (int)syscall(SYS_fcntl, fd, command, argument);
}

int statx(int folder, const char *restrict path, int flags, unsigned mask,
          struct statx *restrict found) {
  requests += (flags & AT_STATX_DONT_SYNC) == 0;
  if (liveness_error)
    return fail(-liveness_error);
  return (int)syscall(SYS_statx, folder, path, flags, mask, found);
}

static int hardlink(int fd, const struct ioctl_link *wanted) {
  char link[64], path[PATH_MAX + sizeof wanted->name];
  struct stat root;
  if (stat(mount_folder(), &root) != 0 || root.st_ino != wanted->folder)
    return fail(-ENOENT);
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  snprintf(path, sizeof path, "%s/%s", mount_folder(), wanted->name);
  return linkat(AT_FDCWD, link, AT_FDCWD, path, AT_SYMLINK_FOLLOW);
}

static int punch(int fd, const struct ioctl_holes *holes) {
  for (int i = 0; i < holes->count; i++)
    if (fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)holes->start[i],
                  (off_t)(holes->end[i] - holes->start[i])) != 0)
      return -1;
  return 0;
}

int ioctl(int fd, unsigned long request, ...) {
  va_list rest;
  va_start(rest, request);
  void *argument = va_arg(rest, void *);
  va_end(rest);
  if (!mount_folder() || !is_below(fd, mount_folder()))
    return (int)syscall(SYS_ioctl, fd, request, argument);
  requests++;
  switch (request) {
  case IOCTL_GET_MAGIC:
    *(uint32_t *)argument = HF3FS_SUPER_MAGIC;
    return 0;
  case IOCTL_GET_MOUNT:
    *(struct ioctl_mount *)argument = (struct ioctl_mount){.magic = IOCTL_MAGIC, .id = state.id};
    return 0;
  case IOCTL_SYNC:
    return fsync(fd);
  case IOCTL_LINK:
    return hardlink(fd, argument);
  case IOCTL_PUNCH_HOLES:
    return punch(fd, argument);
  default:
    return fail(-ENOTTY);
  }
}

static void semaphore_path(int priority, char path[96]) {
  snprintf(path, 96, "/dev/shm/sem.haul-test-%d-%d", (int)getpid(), priority);
}

static void lock_path(char path[96]) {
  semaphore_path(RING_NORMAL, path);
  strcat(path, SEMAPHORE_LOCK);
}

static void take_lock(void) {
  char path[96];
  struct flock whole = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
  lock_path(path);
  state.lock = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  must(state.lock >= 0 && fcntl(state.lock, F_OFD_SETLK, &whole) == 0, path);
}

static void drop_lock(void) {
  if (state.lock >= 0)
    close(state.lock);
  state.lock = -1;
}

static void link_semaphore(enum ring_priority priority) {
  static const char *const marks[] = {".ph", "", ".pl"};
  char name[64], target[96], link[PATH_MAX + 64];
  snprintf(name, sizeof name, "/haul-test-%d-%d", (int)getpid(), (int)priority);
  semaphore_path((int)priority, target);
  snprintf(link, sizeof link, "%s/submit-ios%s", state.iovs, marks[priority]);
  sem_unlink(name);
  state.semaphores[priority] = sem_open(name, O_CREAT | O_EXCL, 0600, 0);
  must(state.semaphores[priority] != SEM_FAILED, name);
  must(symlinkat(target, AT_FDCWD, link) == 0, link);
}

static void make_folders(void) {
  char control[PATH_MAX + 16];
  snprintf(control, sizeof control, "%s/3fs-virt", state.mount);
  must(mkdir(control, 0700) == 0, control);
  snprintf(state.iovs, sizeof state.iovs, "%s/iovs", control);
  must(mkdir(state.iovs, 0700) == 0, state.iovs);
}

const char *daemon_start(const char *folder) {
  char made[] = "/tmp/haul-usrbio.XXXXXX";
  state.made = !folder;
  if (!folder)
    folder = mkdtemp(made);
  must(folder && realpath(folder, state.mount), "its folder");
  state.file = -1;
  make_folders();
  dead = held = false;
  symlink_error = liveness_error = 0;
  liveness_checks = requests = 0;
  state.id++;
  running = true;
  for (intptr_t i = 0; i < RING_PRIORITIES; i++) {
    link_semaphore((enum ring_priority)i);
    must(pthread_create(&state.threads[i], NULL, work, (void *)i) == 0, "a thread");
  }
  take_lock();
  return state.mount;
}

void daemon_hold(bool hold) {
  pthread_mutex_lock(&lock);
  held = hold;
  pthread_mutex_unlock(&lock);
  for (int i = 0; i < RING_PRIORITIES && !hold; i++)
    sem_post(state.semaphores[i]);
}

static void empty(const char *folder) {
  DIR *files = opendir(folder);
  must(files, folder);
  for (struct dirent *file; (file = readdir(files));)
    if (file->d_type != DT_DIR)
      unlinkat(dirfd(files), file->d_name, 0);
  closedir(files);
}

static void remove_folders(void) {
  char control[PATH_MAX + 16];
  snprintf(control, sizeof control, "%s/3fs-virt", state.mount);
  empty(state.iovs);
  must(rmdir(state.iovs) == 0, state.iovs);
  must(rmdir(control) == 0, control);
  if (!state.made)
    return;
  empty(state.mount);
  must(rmdir(state.mount) == 0, state.mount);
}

static void forget_all(void) {
  for (size_t i = 0; i < REGISTERED; i++)
    if (state.registered[i].used)
      leave(&state.registered[i].name);
}

void daemon_stop(void) {
  char path[96];
  daemon_hold(false);
  running = false;
  drop_lock();
  lock_path(path);
  unlink(path);
  for (int i = 0; i < RING_PRIORITIES; i++) {
    char name[64];
    sem_post(state.semaphores[i]);
    pthread_join(state.threads[i], NULL);
    sem_close(state.semaphores[i]);
    snprintf(name, sizeof name, "/haul-test-%d-%d", (int)getpid(), i);
    sem_unlink(name);
  }
  forget_all();
  remove_folders();
}

void daemon_fail_symlinks(int error) {
  symlink_error = error;
}

void daemon_fail_liveness(int error) {
  liveness_error = error;
}

void daemon_die(void) {
  dead = true;
  drop_lock();
}

void daemon_restart(void) {
  char control[PATH_MAX + 16], old[PATH_MAX + 32];
  snprintf(control, sizeof control, "%s/3fs-virt", state.mount);
  snprintf(old, sizeof old, "%s/old", control);
  pthread_mutex_lock(&lock);
  forget_all();
  must(rename(state.iovs, old) == 0, old); /* so that the new folder is another inode */
  must(mkdir(state.iovs, 0700) == 0, state.iovs);
  static const char *const links[] = {"submit-ios.ph", "submit-ios", "submit-ios.pl"};
  for (int i = 0; i < RING_PRIORITIES; i++) {
    char from[PATH_MAX + 64], to[PATH_MAX + 64];
    snprintf(from, sizeof from, "%s/%s", old, links[i]);
    snprintf(to, sizeof to, "%s/%s", state.iovs, links[i]);
    must(rename(from, to) == 0, to);
  }
  empty(old);
  must(rmdir(old) == 0, old);
  drop_lock();
  take_lock();
  state.id++;
  dead = false;
  pthread_mutex_unlock(&lock);
}

struct ring_view *daemon_ring(const struct hf3fs_ior *ior) {
  struct registered *entry = find((const uint8_t *)ior->iov.id, true);
  must(entry, "no such ring");
  return &entry->view;
}

size_t daemon_registered(void) {
  size_t count = 0;
  for (size_t i = 0; i < REGISTERED; i++)
    count += state.registered[i].used;
  return count;
}

unsigned daemon_liveness_checks(void) {
  return liveness_checks;
}

unsigned daemon_requests(void) {
  return requests;
}

const char *daemon_last_name(void) {
  return state.last_name;
}

const char *daemon_last_target(void) {
  return state.last_target;
}

unsigned daemon_woken(int priority) {
  return woken[priority];
}
