/* SPDX-License-Identifier: MIT */
#include <errno.h>
#include <linux/futex.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "storage/threads.h"
#include "storage/worker_inside.h"

#define TURN 64  /* operations that a ring begins in a turn */
#define FAIR 16u /* each such turn begins with low priorities */

/* What a worker has under way of a priority while a ring of a higher one was used in the last
 * second: it is what an operation of those waits for. Of a larger operation one MiB is under way at
 * a time then (operation.c). */
#define LOWER_OPERATIONS 256u
#define LOWER_BYTES      (UINT64_C(8) << 20)
#define IDLE_NS          INT64_C(1000000000)

static int64_t now(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return time.tv_sec * INT64_C(1000000000) + time.tv_nsec;
}

void served_put(struct served *served) {
  if (atomic_fetch_sub_explicit(&served->holds, 1, memory_order_acq_rel) != 1)
    return;
  intake_close(&served->intake);
  munmap(served->intake.guard.start, served->intake.guard.length);
  free(served);
}

/* As many requests as there are parts, but for those posted twice in a turn. */
struct io_uring_sqe *worker_request(struct worker *worker) {
  struct io_uring_sqe *request;
  while (!(request = io_uring_get_sqe(&worker->uring)))
    io_uring_submit(&worker->uring);
  return request;
}

/* ---- Rings ---- */

static void take_arrived(struct worker *worker) {
  struct list arrived = LIST_INIT(arrived);
  pthread_mutex_lock(&worker->lock);
  list_splice(&arrived, &worker->arrived);
  pthread_mutex_unlock(&worker->lock);
  for (struct list *item; (item = list_take(&arrived));)
    list_append(&worker->rings[list_entry(item, struct served, link)->priority], item);
}

static void drop(struct worker *worker, struct served *served) {
  list_remove(&served->link);
  atomic_fetch_sub(&worker->load, 1);
  served_put(served);
}

bool worker_yields(const struct worker *worker, uint8_t priority) {
  for (unsigned i = 0; i < priority; i++) {
    int64_t began = atomic_load_explicit(&worker->workers->began[i], memory_order_relaxed);
    if (began && worker->time - began < IDLE_NS)
      return true;
  }
  return false;
}

static bool may_begin(const struct worker *worker, uint8_t priority) {
  const struct share *share = &worker->shares[priority];
  if (list_empty(&worker->free))
    return false;
  return !worker_yields(worker, priority) ||
         (share->operations < LOWER_OPERATIONS && share->bytes < LOWER_BYTES);
}

/* True when it began something. */
static bool serve(struct worker *worker, struct served *served, int64_t time, int64_t *until) {
  if (atomic_load_explicit(&served->left, memory_order_acquire) || served->intake.broken) {
    if (served->intake.under_way == 0)
      drop(worker, served);
    return false;
  }
  int32_t ready = intake_ready(&served->intake, time, until);
  int32_t most = ready < TURN ? ready : TURN, taken = 0;
  for (; taken < most && may_begin(worker, served->priority); taken++) {
    struct intake_entry entry;
    if (intake_take(&served->intake, &entry))
      operation_begin(worker, served, &entry);
  }
  if (taken > 0)
    atomic_store_explicit(&worker->workers->began[served->priority], time, memory_order_relaxed);
  return taken > 0;
}

static bool serve_all(struct worker *worker, int64_t *until) {
  bool began = false, low_first = ++worker->turns % FAIR == 0;
  int64_t time = worker->time = now();
  for (unsigned i = 0; i < RING_PRIORITIES; i++) {
    struct list *rings = &worker->rings[low_first ? RING_PRIORITIES - 1 - i : i];
    list_each_safe(item, rings) began |=
        serve(worker, list_entry(item, struct served, link), time, until);
    if (!list_empty(rings)) /* the next turn begins with another one */
      list_append(rings, list_take(rings));
  }
  return began;
}

static void announce_all(struct worker *worker) {
  for (unsigned i = 0; i < RING_PRIORITIES; i++)
    list_each(item, &worker->rings[i])
        intake_announce(&list_entry(item, struct served, link)->intake);
}

/* ---- Turns ---- */

/* The bell's request has no part. */
static void watch_bell(struct worker *worker) {
  struct io_uring_sqe *request = worker_request(worker);
  io_uring_prep_poll_add(request, worker->bell, POLLIN);
  io_uring_sqe_set_data(request, NULL);
}

static void hear_bell(struct worker *worker) {
  uint64_t rung;
  if (read(worker->bell, &rung, sizeof rung) < 0 && errno != EAGAIN)
    return;
  watch_bell(worker);
}

static bool reap(struct worker *worker) {
  struct io_uring_cqe *said[64];
  unsigned got = io_uring_peek_batch_cqe(&worker->uring, said, 64);
  for (unsigned i = 0; i < got; i++) {
    struct part *part = io_uring_cqe_get_data(said[i]);
    if (part)
      part_proceed(worker, part, said[i]->res);
    else
      hear_bell(worker);
  }
  io_uring_cq_advance(&worker->uring, got);
  return got > 0;
}

static bool wake_one(struct worker *worker) {
  if (!atomic_exchange(&worker->asleep, false))
    return false;
  atomic_fetch_sub(&worker->workers->sleepers, 1);
  return true;
}

/* Says that it sleeps, and then looks once more. */
static bool may_sleep(struct worker *worker, int64_t *until) {
  struct workers *workers = worker->workers;
  atomic_store(&worker->asleep, true);
  if (atomic_fetch_add(&workers->sleepers, 1) == 0)
    syscall(SYS_futex, &workers->sleepers, FUTEX_WAKE_PRIVATE, INT32_MAX, NULL, NULL, 0);
  take_arrived(worker);
  bool moved = operations_turn(worker);
  if (!serve_all(worker, until) && !moved && !atomic_load(&worker->stops))
    return true;
  wake_one(worker);
  return false;
}

static void rest(struct worker *worker) {
  int64_t until = INT64_MAX;
  if (may_sleep(worker, &until)) {
    int64_t left = until == INT64_MAX ? 0 : until - now();
    struct __kernel_timespec most = {left / 1000000000, left % 1000000000};
    struct io_uring_cqe *said;
    if (until == INT64_MAX)
      io_uring_submit_and_wait(&worker->uring, 1);
    else if (left > 0)
      io_uring_submit_and_wait_timeout(&worker->uring, &said, 1, &most, NULL);
  }
  wake_one(worker);
}

static void *run(void *argument) {
  struct worker *worker = argument;
  threads_keep_set_ids(false);
  watch_bell(worker);
  while (!atomic_load(&worker->stops) || worker->under_way > 0) {
    int64_t until = INT64_MAX;
    take_arrived(worker);
    fixed_tend(&worker->fixed, &worker->uring, worker->workers->buffers);
    bool moved = !atomic_load(&worker->stops) && serve_all(worker, &until);
    moved |= operations_turn(worker);
    io_uring_submit(&worker->uring);
    moved |= reap(worker);
    announce_all(worker);
    if (!moved)
      rest(worker);
  }
  for (unsigned i = 0; i < RING_PRIORITIES; i++)
    list_each_safe(item, &worker->rings[i]) drop(worker, list_entry(item, struct served, link));
  return NULL;
}

static void ring_bell(struct worker *worker) {
  const uint64_t one = 1;
  if (write(worker->bell, &one, sizeof one) < 0)
    return; /* it is rung already */
}

/* What the worker is to see was put where it looks, behind its lock, before. */
void worker_nudge(struct worker *worker) {
  if (wake_one(worker))
    ring_bell(worker);
}

void workers_tend(struct workers *workers) {
  for (unsigned i = 0; i < workers->count; i++)
    ring_bell(&workers->each[i]);
}

bool workers_wake(struct workers *workers) {
  bool woke = false;
  if (atomic_fetch_add(&workers->sleepers, 0) == 0)
    return false;
  for (unsigned i = 0; i < workers->count; i++)
    if (wake_one(&workers->each[i])) {
      ring_bell(&workers->each[i]);
      woke = true;
    }
  return woke;
}

_Atomic uint32_t *workers_sleepers(struct workers *workers) {
  return &workers->sleepers;
}

const struct workers_counters *workers_counters(const struct workers *workers) {
  return &workers->counters;
}

/* ---- Life ---- */

static struct worker *least_loaded(struct workers *workers) {
  struct worker *least = &workers->each[0];
  for (unsigned i = 1; i < workers->count; i++)
    if (atomic_load(&workers->each[i].load) < atomic_load(&least->load))
      least = &workers->each[i];
  return least;
}

void workers_add(struct workers *workers, struct served *served) {
  struct worker *worker = least_loaded(workers);
  atomic_fetch_add(&worker->load, 1);
  atomic_fetch_add(&served->holds, 1);
  served->worker = worker;
  pthread_mutex_lock(&worker->lock);
  list_append(&worker->arrived, &served->link);
  pthread_mutex_unlock(&worker->lock);
  ring_bell(worker);
}

void workers_remove(struct served *served) {
  atomic_store_explicit(&served->left, true, memory_order_release);
  ring_bell(served->worker);
}

static int open_worker(struct workers *workers, struct worker *worker) {
  worker->workers = workers;
  pthread_mutex_init(&worker->lock, NULL);
  list_init(&worker->arrived);
  for (unsigned i = 0; i < RING_PRIORITIES; i++)
    list_init(&worker->rings[i]);
  int code = operations_open(worker);
  if (code)
    return code;
  worker->bell = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  code = worker->bell < 0 ? -errno : io_uring_queue_init(OPERATIONS, &worker->uring, 0);
  if (code == 0) {
    fixed_open(&worker->fixed, &worker->uring);
    return 0;
  }
  if (worker->bell >= 0)
    close(worker->bell);
  operations_close(worker);
  return code;
}

static void close_worker(struct worker *worker) {
  io_uring_queue_exit(&worker->uring);
  close(worker->bell);
  operations_close(worker);
  pthread_mutex_destroy(&worker->lock);
}

static int start_workers(struct workers *workers, unsigned number) {
  int code = 0;
  while (code == 0 && workers->count < number) {
    struct worker *worker = &workers->each[workers->count];
    code = open_worker(workers, worker);
    if (code)
      return code;
    code = storage_thread(&worker->thread, run, worker);
    if (code)
      close_worker(worker);
    workers->count += code == 0;
  }
  return code;
}

int workers_open(struct files *files, struct buffers *buffers, unsigned number, unsigned movers,
                 struct workers **out) {
  struct workers *workers = calloc(1, sizeof *workers + number * sizeof workers->each[0]);
  if (!workers)
    return -ENOMEM;
  workers->files = files;
  workers->buffers = buffers;
  int code = mover_open(movers, &workers->mover);
  if (code == 0)
    code = start_workers(workers, number);
  if (code)
    workers_close(workers);
  else
    *out = workers;
  return code;
}

static void end_worker(struct worker *worker) {
  atomic_store(&worker->stops, true);
  ring_bell(worker);
  pthread_join(worker->thread, NULL);
  take_arrived(worker);
  for (unsigned i = 0; i < RING_PRIORITIES; i++)
    list_each_safe(item, &worker->rings[i]) drop(worker, list_entry(item, struct served, link));
  close_worker(worker);
}

void workers_close(struct workers *workers) {
  if (!workers)
    return;
  if (workers->mover)
    mover_hurry(workers->mover);
  for (unsigned i = 0; i < workers->count; i++)
    end_worker(&workers->each[i]);
  mover_close(workers->mover);
  free(workers);
}
