/* SPDX-License-Identifier: MIT */
#include "storage/worker.h"

#include <errno.h>
#include <liburing.h>
#include <linux/futex.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#define OPERATIONS 1024u               /* that a worker has under way */
#define ONCE       ((uint64_t)1 << 30) /* bytes of one request of io_uring's */
#define TURN       64                  /* operations that a ring begins in a turn */
#define FAIR       16u                 /* each such turn begins with low priorities */

/* One read or write. */
struct operation {
  struct list link; /* the free ones */
  struct served *served;
  struct file *file;
  struct buffer *buffer;
  uint64_t userdata, at, offset, left, done; /* `at`: in the buffer */
  int32_t index;
  bool direct;
};

struct worker {
  struct workers *workers;
  pthread_t thread;
  struct io_uring uring;
  int bell; /* eventfd: somebody wakes it */
  _Atomic bool asleep, stops;
  pthread_mutex_t lock;  /* guards `arrived`; nothing is taken after it */
  struct list arrived;   /* rings */
  _Atomic unsigned load; /* rings that it has */
  /* The thread's own. */
  struct list rings[NAME_PRIORITIES], announcing;
  struct list free;
  struct operation *operations;
  unsigned under_way, turns;
};

struct workers {
  struct files *files;
  struct buffers *buffers;
  unsigned count;
  _Atomic uint32_t sleepers;
  struct workers_counters counters;
  struct worker each[];
};

static int64_t now(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return time.tv_sec * INT64_C(1000000000) + time.tv_nsec;
}

static void count(_Atomic uint64_t *counter, uint64_t by) {
  atomic_fetch_add_explicit(counter, by, memory_order_relaxed);
}

void served_put(struct served *served) {
  if (atomic_fetch_sub_explicit(&served->holds, 1, memory_order_acq_rel) != 1)
    return;
  munmap(served->intake.guard.start, served->intake.guard.length);
  free(served);
}

/* ---- One operation ---- */

static void end(struct worker *worker, struct operation *operation, int64_t result) {
  struct served *served = operation->served;
  if (operation->file)
    files_put(operation->file);
  if (operation->buffer)
    buffer_put(operation->buffer);
  intake_complete(&served->intake, operation->index, operation->userdata, result);
  count(result < 0 ? &worker->workers->counters.refused : &worker->workers->counters.bytes,
        result < 0 ? 1 : (uint64_t)result);
  list_append(&worker->free, &operation->link);
  worker->under_way--;
}

static struct io_uring_sqe *get_request(struct worker *worker) {
  struct io_uring_sqe *request = io_uring_get_sqe(&worker->uring);
  if (!request) { /* as many as there are operations, but for those posted twice in a turn */
    io_uring_submit(&worker->uring);
    request = io_uring_get_sqe(&worker->uring);
  }
  return request;
}

static void post(struct worker *worker, struct operation *operation) {
  const struct served *served = operation->served;
  struct io_uring_sqe *request = get_request(worker);
  int fd = operation->direct ? file_direct(operation->file, served->way)
                             : operation->file->fd[served->way];
  char *bytes = operation->buffer->address + operation->at + operation->done;
  unsigned length = (unsigned)(operation->left < ONCE ? operation->left : ONCE);
  uint64_t offset = operation->offset + operation->done;
  if (!request) {
    end(worker, operation, -EAGAIN);
    return;
  }
  if (served->way == FILE_READS)
    io_uring_prep_read(request, fd, bytes, length, offset);
  else
    io_uring_prep_write(request, fd, bytes, length, offset);
  if (served->way == FILE_WRITES && served->durable)
    request->rw_flags = RWF_DSYNC;
  io_uring_sqe_set_data(request, operation);
}

static bool is_aligned(const struct operation *operation) {
  const struct file *file = operation->file;
  uintptr_t bytes = (uintptr_t)operation->buffer->address + operation->at;
  return bytes % file->memory_align == 0 && operation->offset % file->offset_align == 0 &&
         operation->left % file->offset_align == 0;
}

/* Past the page cache where it can be, and counts why not. */
static bool goes_direct(struct worker *worker, const struct operation *operation) {
  struct workers_counters *counters = &worker->workers->counters;
  if (file_direct(operation->file, operation->served->way) < 0)
    count(&counters->buffered_file, 1);
  else if (!is_aligned(operation))
    count(&counters->buffered_alignment, 1);
  else
    return count(&counters->direct, 1), true;
  return false;
}

/* What lies beyond the end of the file is no hole. */
static int look_for_holes(const struct operation *operation) {
  int fd = operation->file->fd[FILE_READS];
  off_t hole = lseek(fd, (off_t)operation->offset, SEEK_HOLE);
  if (hole < 0)
    return errno == ENXIO ? 0 : -errno;
  if ((uint64_t)hole >= operation->offset + operation->left)
    return 0;
  off_t data = lseek(fd, hole, SEEK_DATA), size = lseek(fd, 0, SEEK_END);
  return data < 0 && hole == size ? 0 : -ENODATA;
}

/* Nothing of the record has been looked at before. */
static int check(struct worker *worker, const struct ring_record *record,
                 struct operation *operation) {
  const struct served *served = operation->served;
  if (record->length == 0 || record->offset > INT64_MAX ||
      record->length > INT64_MAX - record->offset)
    return -EINVAL;
  int code = buffers_get(worker->workers->buffers, record->buffer, served->uid, &operation->buffer);
  if (code)
    return code;
  if (record->buffer_offset > operation->buffer->length ||
      record->length > operation->buffer->length - record->buffer_offset)
    return -EINVAL;
  code =
      files_get(worker->workers->files, record->file, served->uid, served->way, &operation->file);
  return code == 0 && served->no_holes && served->way == FILE_READS ? look_for_holes(operation)
                                                                    : code;
}

static void begin(struct worker *worker, struct served *served, const struct intake_entry *entry) {
  struct operation *operation = list_entry(list_take(&worker->free), struct operation, link);
  *operation = (struct operation){.served = served,
                                  .userdata = entry->userdata,
                                  .at = entry->record.buffer_offset,
                                  .offset = entry->record.offset,
                                  .left = entry->record.length,
                                  .index = entry->index};
  list_init(&operation->link);
  worker->under_way++;
  count(&worker->workers->counters.operations, 1);
  int code = check(worker, &entry->record, operation);
  if (code) {
    end(worker, operation, code);
    return;
  }
  operation->direct = goes_direct(worker, operation);
  post(worker, operation);
}

/* What io_uring says of it. A read that is short goes on until it finds nothing more. */
static void proceed(struct worker *worker, struct operation *operation, int result) {
  if (result == -EINTR || result == -EAGAIN) {
    post(worker, operation);
  } else if (result == -EINVAL && operation->direct) {
    count(&worker->workers->counters.buffered_file, 1);
    operation->direct = false;
    post(worker, operation);
  } else if (result < 0) {
    end(worker, operation, operation->done > 0 ? (int64_t)operation->done : result);
  } else {
    operation->done += (uint64_t)result;
    operation->left -= (uint64_t)result;
    operation->direct &= operation->left == 0;
    if (result == 0 || operation->left == 0)
      end(worker, operation, (int64_t)operation->done);
    else
      post(worker, operation);
  }
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

/* True when it began something. */
static bool serve(struct worker *worker, struct served *served, int64_t time, int64_t *until) {
  if (atomic_load_explicit(&served->left, memory_order_acquire) || served->intake.broken) {
    if (served->intake.under_way == 0)
      drop(worker, served);
    return false;
  }
  int32_t ready = intake_ready(&served->intake, time, until);
  int32_t most = ready < TURN ? ready : TURN, taken = 0;
  for (; taken < most && !list_empty(&worker->free); taken++) {
    struct intake_entry entry;
    if (intake_take(&served->intake, &entry))
      begin(worker, served, &entry);
  }
  return taken > 0;
}

static bool serve_all(struct worker *worker, int64_t *until) {
  bool began = false, low_first = ++worker->turns % FAIR == 0;
  int64_t time = now();
  for (unsigned i = 0; i < NAME_PRIORITIES; i++) {
    struct list *rings = &worker->rings[low_first ? NAME_PRIORITIES - 1 - i : i];
    list_each_safe(item, rings) began |=
        serve(worker, list_entry(item, struct served, link), time, until);
    if (!list_empty(rings)) /* the next turn begins with another one */
      list_append(rings, list_take(rings));
  }
  return began;
}

static void announce_all(struct worker *worker) {
  for (unsigned i = 0; i < NAME_PRIORITIES; i++)
    list_each(item, &worker->rings[i])
        intake_announce(&list_entry(item, struct served, link)->intake);
}

/* ---- Turns ---- */

/* The bell's request has no operation. */
static void watch_bell(struct worker *worker) {
  struct io_uring_sqe *request = get_request(worker);
  if (!request)
    return;
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
    struct operation *operation = io_uring_cqe_get_data(said[i]);
    int result = said[i]->res;
    if (operation)
      proceed(worker, operation, result);
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
  if (!serve_all(worker, until) && !atomic_load(&worker->stops))
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
  watch_bell(worker);
  while (!atomic_load(&worker->stops) || worker->under_way > 0) {
    int64_t until = INT64_MAX;
    take_arrived(worker);
    bool moved = !atomic_load(&worker->stops) && serve_all(worker, &until);
    io_uring_submit(&worker->uring);
    moved |= reap(worker);
    announce_all(worker);
    if (!moved)
      rest(worker);
  }
  for (unsigned i = 0; i < NAME_PRIORITIES; i++)
    list_each_safe(item, &worker->rings[i]) drop(worker, list_entry(item, struct served, link));
  return NULL;
}

static void ring_bell(struct worker *worker) {
  const uint64_t one = 1;
  if (write(worker->bell, &one, sizeof one) < 0)
    return; /* it is rung already */
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
  list_init(&worker->free);
  for (unsigned i = 0; i < NAME_PRIORITIES; i++)
    list_init(&worker->rings[i]);
  worker->operations = calloc(OPERATIONS, sizeof *worker->operations);
  if (!worker->operations)
    return -ENOMEM;
  for (unsigned i = 0; i < OPERATIONS; i++)
    list_append(&worker->free, &worker->operations[i].link);
  worker->bell = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (worker->bell < 0)
    return -errno;
  int code = io_uring_queue_init(OPERATIONS, &worker->uring, 0);
  if (code)
    close(worker->bell);
  return code;
}

/* Signals are the daemon's own threads' business. */
static int start_worker(struct worker *worker) {
  sigset_t all, before;
  sigfillset(&all);
  sigdelset(&all, SIGBUS);
  sigdelset(&all, SIGSEGV);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  int code = -pthread_create(&worker->thread, NULL, run, worker);
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  return code;
}

static void close_worker(struct worker *worker) {
  io_uring_queue_exit(&worker->uring);
  close(worker->bell);
}

int workers_open(struct files *files, struct buffers *buffers, unsigned number,
                 struct workers **out) {
  struct workers *workers = calloc(1, sizeof *workers + number * sizeof workers->each[0]);
  int code = workers ? 0 : -ENOMEM;
  if (code)
    return code;
  workers->files = files;
  workers->buffers = buffers;
  while (code == 0 && workers->count < number) {
    struct worker *worker = &workers->each[workers->count];
    code = open_worker(workers, worker);
    if (code == 0 && (code = start_worker(worker)) != 0)
      close_worker(worker);
    if (code)
      free(worker->operations);
    else
      workers->count++;
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
  for (unsigned i = 0; i < workers->count; i++) {
    struct worker *worker = &workers->each[i];
    atomic_store(&worker->stops, true);
    ring_bell(worker);
    pthread_join(worker->thread, NULL);
    take_arrived(worker);
    for (unsigned k = 0; k < NAME_PRIORITIES; k++)
      list_each_safe(item, &worker->rings[k]) drop(worker, list_entry(item, struct served, link));
    close_worker(worker);
    free(worker->operations);
    pthread_mutex_destroy(&worker->lock);
  }
  free(workers);
}
