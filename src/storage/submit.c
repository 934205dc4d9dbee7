/* SPDX-License-Identifier: MIT */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>

#include "core/thread.h"
#include "storage/worker_internal.h"

/* Of the files in /dev/shm. Daemons of older builds remove files sem.haul-submit-* without a lock
 * of flock, so these have another name. */
#define PREFIX "sem.haul-wake-"

/* A client may clear the waiter's bit in the semaphore. Then posts do not wake the thread, which
 * checks once a second. */
static const struct timespec recheck = {1, 0};

#define LOST_NS 1000000 /* polling interval after a client has truncated it */

struct submit_semaphore {
  struct workers *workers;
  struct sigbus_watch watch; /* over the semaphore */
  int lock;                  /* of the file beside it, locked as long as the daemon lives */
  _Atomic bool stopping;
  pthread_t thread;
  char path[96], lock_path[sizeof SEMAPHORE_LOCK + 96];
};

/* Takes all posts; false: there was none. Acquire: pairs with the release of the post. */
static bool take_posts(sem_t *semaphore) {
  uint64_t word = atomic_load_explicit(semaphore_word(semaphore), memory_order_relaxed);
  while ((uint32_t)word > 0)
    if (atomic_compare_exchange_weak_explicit(semaphore_word(semaphore), &word,
                                              word & ~(uint64_t)UINT32_MAX, memory_order_acquire,
                                              memory_order_relaxed))
      return true;
  return false;
}

bool submit_take_posts(struct workers *workers) {
  bool taken = false;
  for (unsigned i = 0; i < RING_PRIORITIES; i++) {
    struct submit_semaphore *semaphore =
        atomic_load_explicit(&workers->semaphores[i], memory_order_acquire);
    if (semaphore && !atomic_load(&semaphore->watch.lost))
      taken |= take_posts(semaphore->watch.start);
  }
  return taken;
}

/* Takes no post. Only one thread waits, so one bit is the number of waiters; other bits, which
 * clients wrote, are cleared. */
static void wait_for_post(sem_t *semaphore) {
  atomic_fetch_or_explicit(semaphore_word(semaphore), UINT64_C(1) << 32, memory_order_seq_cst);
  syscall(SYS_futex, semaphore, FUTEX_WAIT, 0, &recheck, NULL, 0);
  atomic_fetch_and_explicit(semaphore_word(semaphore), UINT32_MAX, memory_order_relaxed);
}

/* Workers that are awake poll their rings themselves. */
static void wait_for_sleeper(struct workers *workers) {
  syscall(SYS_futex, &workers->sleepers, FUTEX_WAIT_PRIVATE, 0, &recheck, NULL, 0);
}

static void *wake_workers(void *argument) {
  struct submit_semaphore *semaphore = argument;
  while (!atomic_load(&semaphore->stopping)) {
    bool lost = atomic_load(&semaphore->watch.lost);
    if (lost)
      nanosleep(&(struct timespec){0, LOST_NS}, NULL);
    if (!lost && !take_posts(semaphore->watch.start))
      wait_for_post(semaphore->watch.start);
    else if (!workers_wake(semaphore->workers) && !lost)
      wait_for_sleeper(semaphore->workers);
  }
  return NULL;
}

/* Removes the files of a dead daemon of this user: its lock is free. The lock last, so that no
 * semaphore stays without one. */
static void remove_dead(int folder, const char *lock, const char *semaphore) {
  struct stat stat;
  int fd = openat(folder, lock, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
  if (fd < 0)
    return;
  if (fstat(fd, &stat) == 0 && S_ISREG(stat.st_mode) && stat.st_uid == geteuid() &&
      !semaphore_is_locked(fd)) {
    unlinkat(folder, semaphore, 0);
    unlinkat(folder, lock, 0);
  }
  close(fd);
}

/* The name of a semaphore, by that of its lock; false: of another file. */
static bool find_semaphore(const char *lock, char name[NAME_MAX + 1]) {
  size_t length = strlen(lock), end = sizeof SEMAPHORE_LOCK - 1;
  if (strncmp(lock, PREFIX, sizeof PREFIX - 1) != 0 ||
      strcmp(lock + length - end, SEMAPHORE_LOCK) != 0)
    return false;
  snprintf(name, NAME_MAX + 1, "%.*s", (int)(length - end), lock);
  return true;
}

void submit_semaphore_sweep(void) {
  DIR *folder = opendir(SHM_DIR);
  char name[NAME_MAX + 1];
  if (!folder)
    return;
  for (struct dirent *entry; (entry = readdir(folder));)
    if (find_semaphore(entry->d_name, name))
      remove_dead(dirfd(folder), entry->d_name, name);
  closedir(folder);
}

/* The file gets its name last, when it is locked: no sweep finds it unlocked. Returns its
 * descriptor, which holds the lock; that of a semaphore's own file has no meaning. */
static int make_file(const char *path, mode_t mode) {
  char self[40];
  struct flock whole = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
  int fd = open(SHM_DIR, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
  if (fd < 0)
    return -errno;
  snprintf(self, sizeof self, "/proc/self/fd/%d", fd);
  if (fcntl(fd, F_OFD_SETLK, &whole) == 0 && fchmod(fd, mode) == 0 &&
      ftruncate(fd, sizeof(sem_t)) == 0 &&
      linkat(AT_FDCWD, self, AT_FDCWD, path, AT_SYMLINK_FOLLOW) == 0)
    return fd;
  int code = -errno;
  close(fd);
  return code;
}

static void remove_lock(const struct submit_semaphore *semaphore) {
  unlink(semaphore->lock_path);
  close(semaphore->lock);
}

static int map_file(const char *path, mode_t mode, void **memory) {
  int fd = make_file(path, mode), code = 0;
  if (fd < 0)
    return fd;
  *memory = mmap(NULL, sizeof(sem_t), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (*memory == MAP_FAILED) {
    code = -errno;
    unlink(path);
  }
  close(fd);
  return code;
}

static int make_semaphore(struct submit_semaphore *semaphore, enum ring_priority priority,
                          bool others) {
  uint64_t random;
  void *memory;
  if (getrandom(&random, sizeof random, 0) != sizeof random)
    return -errno;
  snprintf(semaphore->path, sizeof semaphore->path, SHM_DIR PREFIX "%016" PRIx64 ".%d", random,
           (int)priority);
  snprintf(semaphore->lock_path, sizeof semaphore->lock_path, "%s" SEMAPHORE_LOCK, semaphore->path);
  semaphore->lock = make_file(semaphore->lock_path, others ? 0644 : 0600);
  if (semaphore->lock < 0)
    return semaphore->lock;
  int code = map_file(semaphore->path, others ? 0666 : 0600, &memory);
  if (code) {
    remove_lock(semaphore);
    return code;
  }
  sigbus_watch(&semaphore->watch, memory, (size_t)sysconf(_SC_PAGESIZE));
  sem_init(memory, 1, 0);
  return 0;
}

static void remove_semaphore(struct submit_semaphore *semaphore) {
  unlink(semaphore->path);
  sigbus_unwatch(&semaphore->watch);
  munmap(semaphore->watch.start, sizeof(sem_t));
  remove_lock(semaphore);
  free(semaphore);
}

int submit_semaphore_open(struct workers *workers, enum ring_priority priority, bool others,
                          struct submit_semaphore **out) {
  struct submit_semaphore *semaphore = calloc(1, sizeof *semaphore);
  if (!semaphore)
    return -ENOMEM;
  semaphore->workers = workers;
  int code = make_semaphore(semaphore, priority, others);
  if (code) {
    free(semaphore);
    return code;
  }
  code = -thread_start(&semaphore->thread, wake_workers, semaphore);
  if (code) {
    remove_semaphore(semaphore);
    return code;
  }
  atomic_store_explicit(&workers->semaphores[priority], semaphore, memory_order_release);
  *out = semaphore;
  return 0;
}

void submit_semaphore_stop(struct submit_semaphore *semaphore) {
  if (!semaphore)
    return;
  atomic_store(&semaphore->stopping, true);
  semaphore_post(semaphore->watch.start);
  pthread_join(semaphore->thread, NULL);
}

void submit_semaphore_close(struct submit_semaphore *semaphore) {
  if (semaphore)
    remove_semaphore(semaphore);
}

const char *submit_semaphore_path(const struct submit_semaphore *semaphore) {
  return semaphore->path;
}
