/* SPDX-License-Identifier: MIT
 * The file that the processes share. Entries of killed processes are reused. */
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#ifdef __SANITIZE_THREAD__
#include <sanitizer/tsan_interface.h>
#endif

#include "moving.h"

/* Seconds; a lock is held for a copy of 256 KiB at most, unless its holder is stopped. */
#define PATIENCE 60

struct fabric {
  struct fabric_qp qps[FABRIC_QPS];
  struct fabric_mr mrs[FABRIC_MRS];
  struct fabric_srq srqs[FABRIC_SRQS];
  pthread_mutex_t atomics;
  atomic_bool ready; /* the locks are initialised */
};

static struct fabric *fabric;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void begin_locks(struct fabric *made) {
  pthread_mutexattr_t attributes;
  pthread_mutexattr_init(&attributes);
  pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
  pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
  for (unsigned i = 0; i < FABRIC_QPS; i++)
    pthread_mutex_init(&made->qps[i].lock, &attributes);
  for (unsigned i = 0; i < FABRIC_MRS; i++)
    pthread_mutex_init(&made->mrs[i].lock, &attributes);
  for (unsigned i = 0; i < FABRIC_SRQS; i++)
    pthread_mutex_init(&made->srqs[i].lock, &attributes);
  pthread_mutex_init(&made->atomics, &attributes);
  pthread_mutexattr_destroy(&attributes);
  atomic_store(&made->ready, true);
}

/* The first process initialises it, under the file's lock; the next one if that was killed. */
static struct fabric *map_file(int fd) {
  if (flock(fd, LOCK_EX) != 0 || ftruncate(fd, sizeof(struct fabric)) != 0)
    return NULL;
  struct fabric *got = mmap(NULL, sizeof(struct fabric), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (got == MAP_FAILED)
    return NULL;
  if (!atomic_load(&got->ready))
    begin_locks(got);
  return got;
}

static void open_file(void) {
  const char *path = getenv("HAUL_DOUBLE_FABRIC");
  int fd = path ? open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600) : -1;
  if (fd < 0)
    return;
  fabric = map_file(fd);
  flock(fd, LOCK_UN); /* the mapping keeps the file open */
  close(fd);
}

bool fabric_open(void) {
  pthread_once(&once, open_file);
  return fabric != NULL;
}

/* The thread sanitizer takes a timed lock as failed if the owner died. */
static void tell_locked(pthread_mutex_t *lock) {
#ifdef __SANITIZE_THREAD__
  __tsan_mutex_pre_lock(lock, __tsan_mutex_try_lock);
  __tsan_mutex_post_lock(lock, __tsan_mutex_try_lock, 0);
#else
  (void)lock;
#endif
}

void fabric_lock(pthread_mutex_t *lock) {
  struct timespec until;
  clock_gettime(CLOCK_REALTIME, &until);
  until.tv_sec += PATIENCE;
  int system = pthread_mutex_timedlock(lock, &until);
  if (system == EOWNERDEAD) { /* guarded data is validated at each use */
    tell_locked(lock);
    system = pthread_mutex_consistent(lock);
  }
  if (system)
    mock_abort(__func__, "a process was stopped for a minute while it held a lock of the fabric");
}

pthread_mutex_t *fabric_atomics(void) {
  return &fabric->atomics;
}

void fabric_unlock(pthread_mutex_t *lock) {
  pthread_mutex_unlock(lock);
}

void fabric_ring(struct fabric_qp *qp) {
  atomic_fetch_add(&qp->bell, 1);
  syscall(SYS_futex, &qp->bell, FUTEX_WAKE, 1, NULL, NULL, 0);
}

void fabric_await(struct fabric_qp *qp, uint32_t seen, int64_t ns) {
  struct timespec most = {ns / 1000000000, ns % 1000000000};
  syscall(SYS_futex, &qp->bell, FUTEX_WAIT, seen, &most, NULL, 0);
}

void fabric_ring_all(void) {
  for (unsigned i = 0; i < FABRIC_QPS; i++)
    if (atomic_load(&fabric->qps[i].pid) == getpid())
      fabric_ring(&fabric->qps[i]);
}

static bool is_free(pid_t pid) {
  return pid == 0 || (pid != getpid() && kill(pid, 0) != 0 && errno == ESRCH);
}

/* Locks the entry if it is free. */
static bool take(pthread_mutex_t *lock, _Atomic pid_t *pid) {
  if (!is_free(atomic_load(pid)))
    return false;
  fabric_lock(lock);
  if (is_free(atomic_load(pid)))
    return true;
  fabric_unlock(lock);
  return false;
}

/* A number has 24 bits: the index, and a use count that keeps it at 256 or above. */
struct fabric_qp *fabric_take_qp(void) {
  for (uint32_t i = 0; i < FABRIC_QPS; i++) {
    struct fabric_qp *qp = &fabric->qps[i];
    if (!take(&qp->lock, &qp->pid))
      continue;
    uint32_t uses = atomic_load(&qp->number) / FABRIC_QPS + 1;
    atomic_store(&qp->number, (uses < 2 || uses >> 16 ? 2 : uses) * FABRIC_QPS + i);
    return qp;
  }
  return NULL;
}

struct fabric_mr *fabric_take_mr(void) {
  for (uint32_t i = 0; i < FABRIC_MRS; i++) {
    struct fabric_mr *mr = &fabric->mrs[i];
    if (!take(&mr->lock, &mr->pid))
      continue;
    mr->key = (i + 1) << 8 | ((mr->key + 1) & 0xff);
    return mr;
  }
  return NULL;
}

struct fabric_srq *fabric_take_srq(void) {
  for (uint32_t i = 0; i < FABRIC_SRQS; i++)
    if (take(&fabric->srqs[i].lock, &fabric->srqs[i].pid))
      return &fabric->srqs[i];
  return NULL;
}

uint32_t ibverbs_double_shared_receives(void) {
  uint32_t count = 0;
  for (uint32_t i = 0; i < FABRIC_SRQS; i++) {
    struct fabric_srq *srq = &fabric->srqs[i];
    fabric_lock(&srq->lock);
    if (atomic_load(&srq->pid) == getpid())
      count += srq->receives - srq->received;
    fabric_unlock(&srq->lock);
  }
  return count;
}

uint32_t ibverbs_double_arrivals(void) {
  uint32_t count = 0;
  for (uint32_t i = 0; i < FABRIC_QPS; i++) {
    struct fabric_qp *qp = &fabric->qps[i];
    fabric_lock(&qp->lock);
    if (atomic_load(&qp->pid) == getpid())
      count += qp->arrivals - qp->completed;
    fabric_unlock(&qp->lock);
  }
  return count;
}

uint32_t fabric_srq_number(const struct fabric_srq *srq) {
  return (uint32_t)(srq - fabric->srqs) + 1;
}

struct fabric_srq *fabric_srq_of(uint32_t number) {
  return &fabric->srqs[number - 1];
}

struct fabric_qp *fabric_qp_of(uint32_t number) {
  return &fabric->qps[number % FABRIC_QPS];
}

struct fabric_mr *fabric_mr_of(uint32_t key) {
  uint32_t index = (key >> 8) - 1;
  return index < FABRIC_MRS ? &fabric->mrs[index] : NULL;
}

static bool is_too_much(uint64_t length) {
  return length / (uint64_t)sysconf(_SC_PAGESIZE) > (uint64_t)sysconf(_SC_PHYS_PAGES);
}

/* The kernel pins the pages, and fails where none are mapped. */
static bool is_mapped(uint64_t address, uint64_t length) {
  enum { PAGES = 16384 };
  static const uint64_t page = 4096;
  unsigned char *in_core = malloc(PAGES);
  uint64_t end = address + length;
  bool mapped = in_core != NULL;
  for (uint64_t at = address & ~(page - 1); at < end && mapped; at += PAGES * page) {
    uint64_t most = end - at < PAGES * page ? end - at : PAGES * page;
    mapped = mincore((void *)(uintptr_t)at, most, in_core) == 0;
  }
  free(in_core);
  return mapped;
}

/* Pages without access cannot be pinned. */
static bool is_readable(uint64_t address) {
  char byte;
  struct iovec own = {&byte, 1}, there = {(void *)(uintptr_t)address, 1};
  return process_vm_readv(getpid(), &own, 1, &there, 1, 0) == 1;
}

/* Where the sender finds the bytes: 0 or an errno. */
static int find_bytes(const struct registration *registration, uint64_t *address) {
  uint64_t start = (uintptr_t)registration->seen.addr, length = registration->seen.length;
  size_t size = 0;
  char *view;
  *address = start;
  if (registration->dmabuf >= 0) {
    view = gpu_dmabuf(registration->dmabuf, &size);
    *address = (uintptr_t)view + registration->offset;
    return view && registration->offset <= size && length <= size - registration->offset ? 0
                                                                                         : EINVAL;
  }
  if (gpu_address(start, length, &view)) {
    *address = (uintptr_t)view;
    return view && has_peer_memory() ? 0 : EFAULT;
  }
  return is_mapped(start, length) && is_readable(start) && is_readable(start + length - 1) ? 0
                                                                                           : EFAULT;
}

int emulator_begin_registration(struct registration *registration) {
  struct ibv_mr *seen = &registration->seen;
  if (removal() != PRESENT)
    return EIO;
  uint64_t address;
  int system = find_bytes(registration, &address);
  if (fault_of_registration() || (address == (uintptr_t)seen->addr && is_too_much(seen->length)))
    return ENOMEM;
  if (system)
    return system;
  struct fabric_mr *mr = fabric_take_mr();
  if (!mr)
    return ENOMEM;
  mr->access = registration->access;
  mr->pd = (uintptr_t)seen->pd;
  mr->iova = registration->iova;
  mr->length = seen->length;
  mr->address = address;
  atomic_store(&mr->pid, getpid());
  seen->lkey = seen->rkey = mr->key;
  registration->emulator = mr;
  if (registration->dmabuf >= 0) /* the kernel's registration holds the buffer */
    registration->dmabuf = fcntl(registration->dmabuf, F_DUPFD_CLOEXEC, 0);
  fabric_unlock(&mr->lock);
  return 0;
}

/* Copies hold the lock, so none is left after this. */
void emulator_end_registration(struct registration *registration) {
  struct fabric_mr *mr = registration->emulator;
  fabric_lock(&mr->lock);
  atomic_store(&mr->pid, 0);
  fabric_unlock(&mr->lock);
  if (registration->dmabuf >= 0)
    close(registration->dmabuf);
}
