/* SPDX-License-Identifier: MIT */
#include "storage/doorbell.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <haul/usrbio.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>

#include "storage/threads.h"

#define LOOK_NS INT64_C(1000000000) /* clients write to the semaphore: it may lose a waiter */
#define LOST_NS 1000000             /* what is left of one that a client cut short: looking */

struct doorbell {
  struct workers *workers;
  struct guard guard; /* over the semaphore */
  int fd;             /* of it, locked: while it is, its daemon lives */
  _Atomic bool stops;
  pthread_t thread;
  char path[96];
};

#define SEMAPHORE_WAITER (UINT64_C(1) << 32)

/* All that was posted; false: nothing. Acquire. */
static bool semaphore_take(sem_t *semaphore) {
  uint64_t word = atomic_load_explicit(semaphore_word(semaphore), memory_order_relaxed);
  while ((uint32_t)word > 0)
    if (atomic_compare_exchange_weak_explicit(semaphore_word(semaphore), &word,
                                              word & ~(uint64_t)UINT32_MAX, memory_order_acquire,
                                              memory_order_relaxed))
      return true;
  return false;
}

/* Until somebody posts, or not for much longer than so many nanoseconds. Takes nothing. For the one
 * thread that ever waits: it says so by a bit, so that whatever others wrote there is forgotten. */
static void semaphore_wait(sem_t *semaphore, int64_t nanoseconds) {
  const struct timespec most = {nanoseconds / 1000000000, nanoseconds % 1000000000};
  atomic_fetch_or_explicit(semaphore_word(semaphore), SEMAPHORE_WAITER, memory_order_seq_cst);
  syscall(SYS_futex, semaphore, FUTEX_WAIT, 0, &most, NULL, 0);
  atomic_fetch_and_explicit(semaphore_word(semaphore), UINT32_MAX, memory_order_relaxed);
}

/* Until a worker sleeps: those that are awake look at their rings themselves. */
static void wait_for_sleepers(struct doorbell *doorbell) {
  const struct timespec most = {LOOK_NS / 1000000000, 0};
  syscall(SYS_futex, workers_sleepers(doorbell->workers), FUTEX_WAIT_PRIVATE, 0, &most, NULL, 0);
}

static void listen(struct doorbell *doorbell, sem_t *semaphore) {
  bool lost = atomic_load(&doorbell->guard.lost);
  if (lost)
    nanosleep(&(struct timespec){0, LOST_NS}, NULL);
  else if (!semaphore_take(semaphore)) {
    semaphore_wait(semaphore, LOOK_NS);
    return;
  }
  if (!workers_wake(doorbell->workers) && !lost)
    wait_for_sleepers(doorbell);
}

static void *run(void *argument) {
  struct doorbell *doorbell = argument;
  while (!atomic_load(&doorbell->stops))
    listen(doorbell, doorbell->guard.start);
  return NULL;
}

#define FOLDER "/dev/shm"
#define PREFIX "sem.haul-submit-"

/* Of a daemon of this user's that was killed: nobody holds its lock. */
static void remove_dead(int folder, const char *name) {
  struct stat stat;
  int fd = openat(folder, name, O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
  if (fd < 0)
    return;
  if (fstat(fd, &stat) == 0 && S_ISREG(stat.st_mode) && stat.st_uid == geteuid() &&
      flock(fd, LOCK_EX | LOCK_NB) == 0)
    unlinkat(folder, name, 0);
  close(fd);
}

void doorbell_sweep(void) {
  DIR *folder = opendir(FOLDER);
  if (!folder)
    return;
  for (struct dirent *entry; (entry = readdir(folder));)
    if (strncmp(entry->d_name, PREFIX, sizeof PREFIX - 1) == 0)
      remove_dead(dirfd(folder), entry->d_name);
  closedir(folder);
}

/* Locked before anybody else can find it unlocked: it gets its name last. */
static int make_file(struct doorbell *doorbell, bool others) {
  char self[40];
  doorbell->fd = open(FOLDER, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
  if (doorbell->fd < 0)
    return -errno;
  snprintf(self, sizeof self, "/proc/self/fd/%d", doorbell->fd);
  if (flock(doorbell->fd, LOCK_EX | LOCK_NB) == 0 &&
      fchmod(doorbell->fd, others ? 0666 : 0600) == 0 &&
      ftruncate(doorbell->fd, sizeof(sem_t)) == 0 &&
      linkat(AT_FDCWD, self, AT_FDCWD, doorbell->path, AT_SYMLINK_FOLLOW) == 0)
    return 0;
  int code = -errno;
  close(doorbell->fd);
  return code;
}

static int make_semaphore(struct doorbell *doorbell, enum ring_priority priority, bool others) {
  uint64_t random;
  if (getrandom(&random, sizeof random, 0) != sizeof random)
    return -errno;
  snprintf(doorbell->path, sizeof doorbell->path, FOLDER "/" PREFIX "%016" PRIx64 ".%d", random,
           (int)priority);
  int code = make_file(doorbell, others);
  if (code)
    return code;
  void *memory = mmap(NULL, sizeof(sem_t), PROT_READ | PROT_WRITE, MAP_SHARED, doorbell->fd, 0);
  if (memory == MAP_FAILED) {
    code = -errno;
    unlink(doorbell->path);
    close(doorbell->fd);
    return code;
  }
  guard_watch(&doorbell->guard, memory, (size_t)sysconf(_SC_PAGESIZE));
  sem_init(memory, 1, 0);
  return 0;
}

static void forget(struct doorbell *doorbell) {
  unlink(doorbell->path);
  guard_unwatch(&doorbell->guard);
  munmap(doorbell->guard.start, sizeof(sem_t));
  close(doorbell->fd);
  free(doorbell);
}

int doorbell_open(struct workers *workers, enum ring_priority priority, bool others,
                  struct doorbell **out) {
  struct doorbell *doorbell = calloc(1, sizeof *doorbell);
  if (!doorbell)
    return -ENOMEM;
  doorbell->workers = workers;
  int code = make_semaphore(doorbell, priority, others);
  if (code) {
    free(doorbell);
    return code;
  }
  code = storage_thread(&doorbell->thread, run, doorbell);
  if (code)
    forget(doorbell);
  else
    *out = doorbell;
  return code;
}

void doorbell_close(struct doorbell *doorbell) {
  if (!doorbell)
    return;
  atomic_store(&doorbell->stops, true);
  semaphore_post(doorbell->guard.start);
  pthread_join(doorbell->thread, NULL);
  forget(doorbell);
}

const char *doorbell_path(const struct doorbell *doorbell) {
  return doorbell->path;
}
