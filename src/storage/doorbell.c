/* SPDX-License-Identifier: MIT */
#include "storage/doorbell.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>

#include "storage/semaphore.h"
#include "storage/threads.h"

#define LOOK_NS INT64_C(1000000000) /* clients write to the semaphore: it may lose a waiter */
#define LOST_NS 1000000             /* what is left of one that a client cut short: looking */

struct doorbell {
  struct workers *workers;
  struct guard guard; /* over the semaphore */
  _Atomic bool stops;
  pthread_t thread;
  char path[96];
};

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
  guard_enter(&doorbell->guard);
  while (!atomic_load(&doorbell->stops))
    listen(doorbell, doorbell->guard.start);
  return NULL;
}

static int make_semaphore(struct doorbell *doorbell, enum name_priority priority) {
  uint64_t random;
  if (getrandom(&random, sizeof random, 0) != sizeof random)
    return -errno;
  snprintf(doorbell->path, sizeof doorbell->path, "/dev/shm/sem.haul-%016" PRIx64 ".%d", random,
           (int)priority);
  int fd = open(doorbell->path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (fd < 0)
    return -errno;
  void *memory = MAP_FAILED;
  if (fchmod(fd, 0666) == 0 && ftruncate(fd, sizeof(sem_t)) == 0)
    memory = mmap(NULL, sizeof(sem_t), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  int code = memory == MAP_FAILED ? -errno : 0;
  close(fd);
  if (code) {
    unlink(doorbell->path);
    return code;
  }
  doorbell->guard = (struct guard){.start = memory, .length = (size_t)sysconf(_SC_PAGESIZE)};
  sem_init(memory, 1, 0);
  return 0;
}

static void forget(struct doorbell *doorbell) {
  unlink(doorbell->path);
  munmap(doorbell->guard.start, sizeof(sem_t));
  free(doorbell);
}

int doorbell_open(struct workers *workers, enum name_priority priority, struct doorbell **out) {
  struct doorbell *doorbell = calloc(1, sizeof *doorbell);
  if (!doorbell)
    return -ENOMEM;
  doorbell->workers = workers;
  int code = make_semaphore(doorbell, priority);
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
  guard_enter(&doorbell->guard);
  semaphore_post(doorbell->guard.start);
  guard_enter(NULL);
  pthread_join(doorbell->thread, NULL);
  forget(doorbell);
}

const char *doorbell_path(const struct doorbell *doorbell) {
  return doorbell->path;
}
