/* SPDX-License-Identifier: MIT
 * Preparing, submitting and waiting for operations. */
#include <errno.h>
#include <time.h>

#include "client.h"

#define SILENCE_NS INT64_C(100000000) /* until a check that the daemon lives */

int hf3fs_io_entries(const struct hf3fs_ior *ior) {
  return ior ? ring_entries(ior->iov.size) : 0;
}

static struct ring *ring_of(const struct hf3fs_ior *ior) {
  return ior ? ior->iorh : NULL;
}

static int ring_error(struct ring *ring) {
  return atomic_load_explicit(&ring->error, memory_order_relaxed);
}

static int32_t next_place(const struct ring *ring, int32_t place) {
  return place + 1 == ring->view.slots ? 0 : place + 1;
}

static bool is_in_buffer(const struct hf3fs_iov *iov, const void *address, uint64_t length) {
  if (!iov || !iov->base || (uintptr_t)address < (uintptr_t)iov->base)
    return false;
  uint64_t offset = (uintptr_t)address - (uintptr_t)iov->base;
  return offset <= iov->size && length <= iov->size - offset;
}

/* Whether there is a free submission. With an invalid tail the daemon serves the ring no more,
 * which the thread that waits finds out. */
static bool has_room(struct ring *ring) {
  /* Pairs with the daemon's release, after which it has read the submission. */
  int32_t tail = atomic_load_explicit(&ring->view.indices->submit_tail, memory_order_acquire);
  return next_place(ring, ring->submit_head) != tail;
}

/* The record is complete. */
static void publish(struct ring *ring, int32_t index, const void *userdata) {
  int32_t place = ring->submit_head;
  ring->view.submissions[place] =
      (struct ring_submission){.index = index, .userdata = (uintptr_t)userdata};
  ring->submit_head = next_place(ring, place);
  /* Pairs with the daemon's acquire, after which it reads submission and record. */
  atomic_store_explicit(&ring->view.indices->submit_head, ring->submit_head, memory_order_release);
}

int hf3fs_prep_io(const struct hf3fs_ior *ior, const struct hf3fs_iov *iov, bool read, void *ptr,
                  int fd, size_t off, uint64_t len, const void *userdata) {
  struct ring *ring = ring_of(ior);
  struct file file;
  if (!ring || read != ring->for_read || len == 0 || !is_in_buffer(iov, ptr, len) ||
      off > INT64_MAX || len > INT64_MAX - off)
    return -EINVAL;
  if (!fds_find(fd, &file))
    return -EBADF;
  if (!(read ? file.reads : file.writes))
    return -EACCES;
  int status = ring_error(ring);
  if (status != 0)
    return status;
  if (file.mount != ring->mount) /* its inode number may mean another file here */
    return -EBADF;
  if (!has_room(ring) || !slots_are_free(&ring->slots))
    return -EAGAIN;
  const struct buffer *buffer = iov->iovh;
  uint64_t at = (uintptr_t)ptr - (uintptr_t)iov->base;
  struct stage_part *part = NULL;
  if (buffer && buffer->stage) {
    status = stage_begin(buffer->stage, read, at, len, &part);
    if (status != 0)
      return status;
    at = stage_place(part);
  }
  int32_t index = slots_take(&ring->slots, userdata, part);
  struct ring_record *record = &ring->view.records[index];
  memcpy(record->buffer, iov->id, sizeof record->buffer);
  record->buffer_offset = at;
  record->file = file.inode;
  record->offset = off;
  record->length = len;
  record->userdata = (uintptr_t)userdata;
  publish(ring, index, userdata);
  return index;
}

int hf3fs_submit_ios(const struct hf3fs_ior *ior) {
  struct ring *ring = ring_of(ior);
  if (!ring)
    return -EINVAL;
  semaphore_post(ring->submit);
  return ring_error(ring);
}

/* Taking completions; all with the ring's `taking` */

static void fail_ring(struct ring *ring, int error) {
  atomic_store_explicit(&ring->error, error, memory_order_relaxed);
}

/* Takes what the daemon has completed, at most `room`. */
static int take_completions(struct ring *ring, struct hf3fs_cqe *cqes, int room) {
  int taken = 0;
  /* Pairs with the daemon's release: the completions before it are complete. */
  int32_t head = atomic_load_explicit(&ring->view.indices->complete_head, memory_order_acquire);
  if (head < 0 || head >= ring->view.slots) {
    fail_ring(ring, -EPROTO);
    return 0;
  }
  while (taken < room && ring->complete_tail != head) {
    const struct ring_completion *completion = &ring->view.completions[ring->complete_tail];
    struct hf3fs_cqe *cqe = &cqes[taken];
    struct stage_part *part;
    *cqe = (struct hf3fs_cqe){.index = completion->index, .result = completion->result};
    if (!slots_end(&ring->slots, cqe->index, &cqe->userdata, &part)) {
      fail_ring(ring, -EPROTO);
      break;
    }
    if (part)
      cqe->result = stage_end(part, cqe->result);
    ring->complete_tail = next_place(ring, ring->complete_tail);
    taken++;
  }
  if (taken > 0) /* pairs with the daemon's acquire, after which it reuses these places */
    atomic_store_explicit(&ring->view.indices->complete_tail, ring->complete_tail,
                          memory_order_release);
  /* Not earlier: each operation in flight has room for its completion. */
  for (int i = 0; i < taken; i++)
    slots_release(&ring->slots, cqes[i].index);
  return taken;
}

/* Completes the operations in flight of a failed ring with its error, at most `room`. */
static int abandon_operations(struct ring *ring, struct hf3fs_cqe *cqes, int room) {
  int taken = 0;
  for (int32_t index = 0; index < ring->slots.count && taken < room; index++) {
    struct hf3fs_cqe *cqe = &cqes[taken];
    struct stage_part *part;
    if (!slots_end(&ring->slots, index, &cqe->userdata, &part))
      continue;
    if (part)
      stage_abandon(part);
    cqe->index = index;
    cqe->reserved = 0;
    cqe->result = ring_error(ring);
    slots_release(&ring->slots, index);
    taken++;
  }
  return taken;
}

static int collect(struct ring *ring, struct hf3fs_cqe *cqes, int room) {
  int taken = 0;
  if (ring_error(ring) != -EPROTO)
    taken = take_completions(ring, cqes, room);
  if (ring_error(ring))
    taken += abandon_operations(ring, cqes + taken, room - taken);
  if (taken > 0)
    ring->silent_since = 0;
  return taken;
}

/* Waiting; all with the ring's `taking` */

static int64_t nanoseconds(const struct timespec *time) {
  return (int64_t)time->tv_sec * 1000000000ll + time->tv_nsec;
}

static int64_t monotonic_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return nanoseconds(&now);
}

/* Takes the posts of completions that were taken already, which would each end a later wait at
 * once. Not more than the daemon may have made since the last call. */
static void drain_posts(struct ring *ring) {
  for (int32_t i = 0; i < ring->view.slots && sem_trywait(ring->view.semaphore) == 0; i++)
    ;
}

/* After a silence, checks that the daemon lives. */
static void check_daemon(struct ring *ring) {
  int64_t now = monotonic_ns();
  if (slots_are_idle(&ring->slots)) {
    ring->silent_since = 0;
    return;
  }
  if (ring->silent_since == 0)
    ring->silent_since = now;
  if (now - ring->silent_since < SILENCE_NS)
    return;
  ring->silent_since = now;
  if (!mount_is_alive(ring->buffer->mount))
    fail_ring(ring, -ENOTCONN);
}

/* Nanoseconds until the deadline, at most SILENCE_NS; 0: it has passed. */
static int64_t time_left(const struct timespec *deadline) {
  struct timespec now;
  if (!deadline)
    return SILENCE_NS;
  clock_gettime(CLOCK_REALTIME, &now);
  if (deadline->tv_sec < now.tv_sec || deadline->tv_sec - now.tv_sec > 1) /* no overflow below */
    return deadline->tv_sec < now.tv_sec ? 0 : SILENCE_NS;
  int64_t left = nanoseconds(deadline) - nanoseconds(&now);
  return left < 0 ? 0 : left < SILENCE_NS ? left : SILENCE_NS;
}

static bool has_completions(struct ring *ring) {
  return atomic_load_explicit(&ring->view.indices->complete_head, memory_order_relaxed) !=
         ring->complete_tail;
}

/* Sleeps until the daemon posts, until the deadline (CLOCK_REALTIME; NULL: none), or until it is
 * time to check the daemon; polls before that. False: the deadline has passed. */
static bool sleep_until(struct ring *ring, const struct timespec *deadline) {
  int64_t left = time_left(deadline);
  if (left == 0)
    return false;
  while (left > POLL_NS && ring_poll_again(&ring->poller))
    if (has_completions(ring)) {
      ring_poll_end(&ring->poller);
      return true;
    }
  int status;
  if (deadline && left < SILENCE_NS) {
    status = sem_timedwait(ring->view.semaphore, deadline);
  } else {
    int64_t then = monotonic_ns() + SILENCE_NS;
    struct timespec wake = {.tv_sec = then / 1000000000, .tv_nsec = then % 1000000000};
    status = sem_clockwait(ring->view.semaphore, CLOCK_MONOTONIC, &wake);
  }
  int error = errno;
  ring_poll_end(&ring->poller);
  if (status != 0 && error != ETIMEDOUT && error != EINTR) /* the daemon has overwritten it */
    fail_ring(ring, -EPROTO);
  return true;
}

/* The number of completions, or the error of a ring with none left. */
static int wait_for_completions(struct ring *ring, struct hf3fs_cqe *cqes, int room, int least,
                                const struct timespec *deadline) {
  drain_posts(ring);
  int taken = collect(ring, cqes, room);
  if (taken == 0)
    check_daemon(ring);
  while (taken < least && !ring_error(ring) && sleep_until(ring, deadline)) {
    int more = collect(ring, cqes + taken, room - taken);
    taken += more;
    if (more == 0)
      check_daemon(ring);
  }
  if (ring_error(ring)) /* perhaps set since the last call */
    taken += collect(ring, cqes + taken, room - taken);
  return taken == 0 ? ring_error(ring) : taken;
}

/* False: another thread takes completions, and does so until the deadline. */
static bool lock_taking(struct ring *ring, int least, const struct timespec *deadline) {
  if (pthread_mutex_trylock(&ring->taking) == 0)
    return true;
  if (least == 0)
    return false;
  if (!deadline)
    return pthread_mutex_lock(&ring->taking) == 0;
  return pthread_mutex_timedlock(&ring->taking, deadline) == 0;
}

int hf3fs_wait_for_ios(const struct hf3fs_ior *ior, struct hf3fs_cqe *cqes, int cqec,
                       int min_results, const struct timespec *abs_timeout) {
  struct ring *ring = ring_of(ior);
  if (!ring || !cqes || cqec <= 0)
    return -EINVAL;
  if (abs_timeout && (abs_timeout->tv_nsec < 0 || abs_timeout->tv_nsec >= 1000000000))
    return -EINVAL;
  int least = min_results < 0 ? 0 : min_results > cqec ? cqec : min_results;
  if (!lock_taking(ring, least, abs_timeout))
    return 0;
  int taken = wait_for_completions(ring, cqes, cqec, least, abs_timeout);
  pthread_mutex_unlock(&ring->taking);
  return taken;
}
