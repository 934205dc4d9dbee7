/* SPDX-License-Identifier: MIT */
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <sys/mman.h>

#include "core/thread.h"
#include "storage/credentials.h"
#include "storage/worker_internal.h"

#define TURN_OPERATIONS 64  /* per ring and turn */
#define FAIR_TURNS      16u /* every 16th turn begins with the low priority, against starvation */

/* Limits of a lower priority in flight for a second after the last use of a higher one, whose
 * operations wait for them. Larger requests are divided into 1 MiB (operation.c). */
#define LOWER_OPERATIONS 256u
#define LOWER_BYTES      (UINT64_C(8) << 20)
#define LOWER_NS         INT64_C(1000000000)

int client_ring_new(const struct iov_name *name, uid_t uid, const struct client_memory *memory,
                    struct client_ring **out) {
  struct client_ring *ring = calloc(1, sizeof *ring);
  int code = ring ? ring_open(&ring->ring, memory->memory, memory->length, name) : -ENOMEM;
  if (code) {
    free(ring);
    return code;
  }
  ring->uid = uid;
  ring->direction = name->for_read ? FILE_READ : FILE_WRITE;
  ring->priority = name->priority;
  ring->no_holes = name->flags & RING_NO_HOLES;
  ring->durable = name->flags & RING_DURABLE;
  ring->references = 1;
  list_init(&ring->link);
  *out = ring;
  return 0;
}

void client_ring_put(struct client_ring *ring) {
  if (atomic_fetch_sub_explicit(&ring->references, 1, memory_order_acq_rel) != 1)
    return;
  ring_close(&ring->ring);
  munmap(ring->ring.watch.start, ring->ring.watch.length);
  free(ring);
}

struct io_uring_sqe *worker_get_sqe(struct worker *worker) {
  struct io_uring_sqe *sqe;
  while (!(sqe = io_uring_get_sqe(&worker->uring)))
    io_uring_submit(&worker->uring);
  return sqe;
}

static void take_new_rings(struct worker *worker) {
  struct list added = LIST_INIT(added);
  pthread_mutex_lock(&worker->lock);
  list_splice(&added, &worker->new_rings);
  pthread_mutex_unlock(&worker->lock);
  for (struct list *item; (item = list_take(&added));)
    list_append(&worker->rings[list_entry(item, struct client_ring, link)->priority], item);
}

static void drop_ring(struct worker *worker, struct client_ring *ring) {
  list_remove(&ring->link);
  atomic_fetch_sub(&worker->load, 1);
  client_ring_put(ring);
}

bool worker_yields(const struct worker *worker, uint8_t priority) {
  for (unsigned i = 0; i < priority; i++) {
    int64_t used = atomic_load_explicit(&worker->workers->last_used[i], memory_order_relaxed);
    if (used && worker->time - used < LOWER_NS)
      return true;
  }
  return false;
}

static bool may_begin(const struct worker *worker, uint8_t priority) {
  const struct share *share = &worker->shares[priority];
  if (list_empty(&worker->free_operations))
    return false;
  return !worker_yields(worker, priority) ||
         (share->operations < LOWER_OPERATIONS && share->bytes < LOWER_BYTES);
}

/* True: it began an operation. */
static bool serve_ring(struct worker *worker, struct client_ring *ring, int64_t *until) {
  if (atomic_load_explicit(&ring->removed, memory_order_acquire) || ring->ring.broken) {
    if (ring->ring.in_flight == 0)
      drop_ring(worker, ring);
    return false;
  }
  int32_t ready = ring_ready(&ring->ring, worker->time, until);
  int32_t most = ready < TURN_OPERATIONS ? ready : TURN_OPERATIONS, fetched = 0;
  for (; fetched < most && may_begin(worker, ring->priority); fetched++) {
    struct ring_operation operation;
    if (ring_fetch(&ring->ring, &operation))
      operation_begin(worker, ring, &operation);
  }
  if (fetched > 0)
    atomic_store_explicit(&worker->workers->last_used[ring->priority], worker->time,
                          memory_order_relaxed);
  return fetched > 0;
}

/* True: it began an operation. *until becomes at most the time when a ring wants to be served. */
static bool serve_rings(struct worker *worker, int64_t *until) {
  bool began = false, low_first = ++worker->turns % FAIR_TURNS == 0;
  worker->time = haul_deadline_in(0);
  for (unsigned i = 0; i < RING_PRIORITIES; i++) {
    struct list *rings = &worker->rings[low_first ? RING_PRIORITIES - 1 - i : i];
    list_each_safe(item, rings) began |=
        serve_ring(worker, list_entry(item, struct client_ring, link), until);
    if (!list_empty(rings)) /* the next turn begins with another ring */
      list_append(rings, list_take(rings));
  }
  return began;
}

static void announce_completions(struct worker *worker) {
  for (unsigned i = 0; i < RING_PRIORITIES; i++)
    list_each(item, &worker->rings[i])
        ring_announce(&list_entry(item, struct client_ring, link)->ring);
}

/* Its completion has no part. */
static void poll_wake_event(struct worker *worker) {
  struct io_uring_sqe *sqe = worker_get_sqe(worker);
  io_uring_prep_poll_add(sqe, worker->wake_event, POLLIN);
  io_uring_sqe_set_data(sqe, NULL);
}

static bool reap_completions(struct worker *worker) {
  struct io_uring_cqe *cqes[64];
  eventfd_t wakes;
  unsigned count = io_uring_peek_batch_cqe(&worker->uring, cqes, 64);
  for (unsigned i = 0; i < count; i++) {
    struct part *part = io_uring_cqe_get_data(cqes[i]);
    if (part)
      part_ended_io(worker, part, cqes[i]->res);
    else if (eventfd_read(worker->wake_event, &wakes) == 0 || errno == EAGAIN)
      poll_wake_event(worker);
  }
  io_uring_cq_advance(&worker->uring, count);
  return count > 0;
}

/* False: it did not sleep, or another thread was first. */
static bool clear_asleep(struct worker *worker) {
  if (!atomic_exchange(&worker->asleep, false))
    return false;
  atomic_fetch_sub(&worker->workers->sleepers, 1);
  return true;
}

/* Announces that a worker with rings sleeps, and looks for work once more. Posts for operations
 * that it has begun already would wake it; others may be for other workers. */
static bool may_sleep(struct worker *worker, int64_t *until) {
  struct workers *workers = worker->workers;
  if (atomic_load(&worker->load) == 0) /* workers_add signals it */
    return !atomic_load(&worker->stopping);
  if (submit_take_posts(workers))
    workers_wake(workers);
  atomic_store(&worker->asleep, true);
  if (atomic_fetch_add(&workers->sleepers, 1) == 0)
    syscall(SYS_futex, &workers->sleepers, FUTEX_WAKE_PRIVATE, INT32_MAX, NULL, NULL, 0);
  take_new_rings(worker);
  bool moved = operations_turn(worker);
  return !serve_rings(worker, until) && !moved && !atomic_load(&worker->stopping);
}

/* Without work. True: look again, without sleep. */
static bool poll_for_work(struct worker *worker) {
  bool disks = worker->for_disks.since || (!worker->for_clients.since && worker->in_flight > 0);
  return ring_poll_again(disks ? &worker->for_disks : &worker->for_clients);
}

static void end_polling(struct worker *worker) {
  ring_poll_end(&worker->for_clients);
  ring_poll_end(&worker->for_disks);
}

static void sleep_until_work(struct worker *worker) {
  int64_t until = INT64_MAX;
  if (may_sleep(worker, &until)) {
    int64_t left = until == INT64_MAX ? 0 : until - haul_deadline_in(0);
    struct __kernel_timespec timeout = {left / 1000000000, left % 1000000000};
    struct io_uring_cqe *cqe;
    if (until == INT64_MAX)
      io_uring_submit_and_wait(&worker->uring, 1);
    else if (left > 0)
      io_uring_submit_and_wait_timeout(&worker->uring, &cqe, 1, &timeout, NULL);
  }
  clear_asleep(worker);
}

static void *run_worker(void *argument) {
  struct worker *worker = argument;
  credentials_keep_set_ids(false);
  poll_wake_event(worker);
  while (!atomic_load(&worker->stopping) || worker->in_flight > 0) {
    int64_t until = INT64_MAX;
    take_new_rings(worker);
    pinned_release_removed(&worker->pinned, &worker->uring, worker->workers->buffers);
    bool moved = !atomic_load(&worker->stopping) && serve_rings(worker, &until);
    moved |= operations_turn(worker);
    io_uring_submit(&worker->uring);
    moved |= reap_completions(worker);
    announce_completions(worker);
    if (moved)
      end_polling(worker);
    else if (!poll_for_work(worker))
      sleep_until_work(worker);
  }
  return NULL;
}

static void signal_worker(struct worker *worker) {
  eventfd_write(worker->wake_event, 1); /* EAGAIN: it is signaled already */
}

void worker_wake(struct worker *worker) {
  if (clear_asleep(worker))
    signal_worker(worker);
}

bool workers_wake(struct workers *workers) {
  bool woke = false;
  if (atomic_fetch_add(&workers->sleepers, 0) == 0) /* a read-modify-write: see worker.h */
    return false;
  for (unsigned i = 0; i < workers->count; i++)
    if (clear_asleep(&workers->each[i])) {
      signal_worker(&workers->each[i]);
      woke = true;
    }
  return woke;
}

void workers_unpin_removed(struct workers *workers) {
  for (unsigned i = 0; i < workers->count; i++)
    signal_worker(&workers->each[i]);
}

void workers_add(struct workers *workers, struct client_ring *ring) {
  struct worker *worker = &workers->each[0];
  for (unsigned i = 1; i < workers->count; i++)
    if (atomic_load(&workers->each[i].load) < atomic_load(&worker->load))
      worker = &workers->each[i];
  atomic_fetch_add(&worker->load, 1);
  atomic_fetch_add(&ring->references, 1);
  ring->worker = worker;
  pthread_mutex_lock(&worker->lock);
  list_append(&worker->new_rings, &ring->link);
  pthread_mutex_unlock(&worker->lock);
  signal_worker(worker);
}

void workers_remove(struct client_ring *ring) {
  atomic_store_explicit(&ring->removed, true, memory_order_release);
  signal_worker(ring->worker);
}

const struct workers_counters *workers_counters(const struct workers *workers) {
  return &workers->counters;
}

/* Without an interrupt of the worker for each completion, which it looks for itself; since Linux
 * 5.19. */
static int open_uring(struct io_uring *uring) {
  int code = io_uring_queue_init(OPERATIONS, uring, IORING_SETUP_COOP_TASKRUN);
  return code == -EINVAL ? io_uring_queue_init(OPERATIONS, uring, 0) : code;
}

static int open_worker(struct workers *workers, struct worker *worker) {
  worker->workers = workers;
  pthread_mutex_init(&worker->lock, NULL);
  list_init(&worker->new_rings);
  for (unsigned i = 0; i < RING_PRIORITIES; i++)
    list_init(&worker->rings[i]);
  int code = operations_open(worker);
  if (code)
    return code;
  worker->wake_event = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (worker->wake_event < 0) {
    code = -errno;
    goto no_event;
  }
  code = open_uring(&worker->uring);
  if (code)
    goto no_uring;
  pinned_open(&worker->pinned, &worker->uring);
  code = -thread_start(&worker->thread, run_worker, worker);
  if (code)
    goto no_thread;
  return 0;
no_thread:
  io_uring_queue_exit(&worker->uring);
no_uring:
  close(worker->wake_event);
no_event:
  operations_close(worker);
  return code;
}

static void close_worker(struct worker *worker) {
  atomic_store(&worker->stopping, true);
  signal_worker(worker);
  pthread_join(worker->thread, NULL);
  take_new_rings(worker);
  for (unsigned i = 0; i < RING_PRIORITIES; i++)
    list_each_safe(item, &worker->rings[i])
        drop_ring(worker, list_entry(item, struct client_ring, link));
  io_uring_queue_exit(&worker->uring);
  close(worker->wake_event);
  operations_close(worker);
  pthread_mutex_destroy(&worker->lock);
}

void workers_log(struct workers *workers, storage_log *log, void *user) {
  offload_log(workers->offload, log, user);
}

int workers_open(struct files *files, struct buffers *buffers, unsigned count,
                 unsigned offload_threads, struct workers **out) {
  struct workers *workers = calloc(1, sizeof *workers + count * sizeof workers->each[0]);
  if (!workers)
    return -ENOMEM;
  workers->files = files;
  workers->buffers = buffers;
  int code = offload_open(offload_threads, &workers->offload);
  while (code == 0 && workers->count < count) {
    code = open_worker(workers, &workers->each[workers->count]);
    workers->count += code == 0;
  }
  if (code)
    workers_close(workers);
  else
    *out = workers;
  return code;
}

void workers_close(struct workers *workers) {
  if (!workers)
    return;
  if (workers->offload)
    offload_cancel_remote(workers->offload);
  for (unsigned i = 0; i < workers->count; i++)
    close_worker(&workers->each[i]);
  offload_close(workers->offload);
  free(workers);
}
