/* SPDX-License-Identifier: MIT
 * Operations: prepared, submitted, and waited for. */
#include <errno.h>
#include <haul/usrbio.h>
#include <string.h>

#include "client.h"
#include "fds.h"

/* How long a ring is silent before its daemon is asked whether it is there, ns. */
#define SILENCE 1000000000ll

int hf3fs_io_entries(const struct hf3fs_ior *ior) {
  return ior ? ring_entries(ior->iov.size) : 0;
}

static struct ring *ring_of(const struct hf3fs_ior *ior) {
  return ior ? ior->iorh : NULL;
}

static int broken(struct ring *ring) {
  return atomic_load_explicit(&ring->broken, memory_order_relaxed);
}

static int32_t next_place(const struct ring *ring, int32_t place) {
  return place + 1 == ring->view.slots ? 0 : place + 1;
}

/* ---- Preparing ---- */

static bool in_buffer(const struct hf3fs_iov *iov, const void *address, uint64_t length) {
  if (!iov || !iov->base || (uintptr_t)address < (uintptr_t)iov->base)
    return false;
  uint64_t offset = (uintptr_t)address - (uintptr_t)iov->base;
  return offset <= iov->size && length <= iov->size - offset;
}

static int check_file(int fd, bool read, uint64_t *inode) {
  struct file file;
  if (!fds_find(fd, &file))
    return -EBADF;
  *inode = file.inode;
  return (read ? file.reads : file.writes) ? 0 : -EACCES;
}

/* Whether the daemon has room for one more to look at. A tail that is no place is nobody's: the
 * daemon then looks at nothing, and that is found out by who waits. */
static bool has_room(struct ring *ring) {
  /* Pairs with the daemon's release, after which it does not look at the place again. */
  int32_t tail = atomic_load_explicit(&ring->view.indices->submit_tail, memory_order_acquire);
  return next_place(ring, ring->submit_head) != tail;
}

/* The record is in its slot. */
static void publish(struct ring *ring, int32_t index, const void *userdata) {
  int32_t place = ring->submit_head;
  ring->view.submissions[place] =
      (struct ring_submission){.index = index, .userdata = (uintptr_t)userdata};
  ring->submit_head = next_place(ring, place);
  /* Pairs with the daemon's acquire: it finds submission and record written. */
  atomic_store_explicit(&ring->view.indices->submit_head, ring->submit_head, memory_order_release);
}

int hf3fs_prep_io(const struct hf3fs_ior *ior, const struct hf3fs_iov *iov, bool read, void *ptr,
                  int fd, size_t off, uint64_t len, const void *userdata) {
  struct ring *ring = ring_of(ior);
  uint64_t inode;
  if (!ring || read != ring->for_read || len == 0 || !in_buffer(iov, ptr, len) || off > INT64_MAX ||
      len > INT64_MAX - off)
    return -EINVAL;
  int status = check_file(fd, read, &inode);
  if (status == 0)
    status = broken(ring);
  if (status != 0)
    return status;
  int32_t index = has_room(ring) ? slots_take(&ring->slots, userdata) : -1;
  if (index < 0)
    return -EAGAIN;
  struct ring_record *record = &ring->view.records[index];
  memcpy(record->buffer, iov->id, sizeof record->buffer);
  record->buffer_offset = (uintptr_t)ptr - (uintptr_t)iov->base;
  record->file = inode;
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
  return broken(ring);
}

/* ---- Waiting. All of it is under the ring's `taking`. ---- */

static int64_t nanoseconds(const struct timespec *time) {
  return (int64_t)time->tv_sec * 1000000000ll + time->tv_nsec;
}

static int64_t monotonic(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return nanoseconds(&now);
}

static void give_up(struct ring *ring, int status) {
  atomic_store_explicit(&ring->broken, status, memory_order_relaxed);
}

/* One completion as the daemon says; false: it is none. */
static bool take_one(struct ring *ring, int32_t place, struct hf3fs_cqe *cqe) {
  const struct ring_completion *said = &ring->view.completions[place];
  *cqe = (struct hf3fs_cqe){.index = said->index, .result = said->result};
  return slots_finish(&ring->slots, cqe->index, &cqe->userdata);
}

/* Takes what the daemon has completed, up to `room`. */
static int take(struct ring *ring, struct hf3fs_cqe *cqes, int room) {
  int taken = 0;
  /* Pairs with the daemon's release: the completions before it are written. */
  int32_t head = atomic_load_explicit(&ring->view.indices->complete_head, memory_order_acquire);
  if (head < 0 || head >= ring->view.slots) {
    give_up(ring, -EPROTO);
    return 0;
  }
  while (taken < room && ring->complete_tail != head) {
    if (!take_one(ring, ring->complete_tail, &cqes[taken])) {
      give_up(ring, -EPROTO);
      break;
    }
    ring->complete_tail = next_place(ring, ring->complete_tail);
    taken++;
  }
  if (taken > 0) /* pairs with the daemon's acquire: it may write to these places again */
    atomic_store_explicit(&ring->view.indices->complete_tail, ring->complete_tail,
                          memory_order_release);
  /* Only now: so many operations are under way at most as there is room for completions. */
  for (int i = 0; i < taken; i++)
    slots_give(&ring->slots, cqes[i].index);
  return taken;
}

/* Completes what is under way in a ring that is broken, up to `room`. */
static int abandon(struct ring *ring, struct hf3fs_cqe *cqes, int room) {
  int taken = 0;
  for (int32_t index = 0; index < ring->slots.count && taken < room; index++) {
    struct hf3fs_cqe *cqe = &cqes[taken];
    if (!slots_finish(&ring->slots, index, &cqe->userdata))
      continue;
    cqe->index = index;
    cqe->reserved = 0;
    cqe->result = broken(ring);
    slots_give(&ring->slots, index);
    taken++;
  }
  return taken;
}

static int collect(struct ring *ring, struct hf3fs_cqe *cqes, int room) {
  int taken = 0;
  if (broken(ring) != -EPROTO)
    taken = take(ring, cqes, room);
  if (broken(ring))
    taken += abandon(ring, cqes + taken, room - taken);
  if (taken > 0)
    ring->silent_since = 0;
  return taken;
}

/* Posts for completions that are taken already: without this each would end a wait to come. Not
 * more than the daemon may have made since the last time. */
static void forget_posts(struct ring *ring) {
  for (int32_t i = 0; i < ring->view.slots && sem_trywait(ring->view.semaphore) == 0; i++)
    ;
}

/* There was nothing to take: after a while without any, asks whether the daemon is there. */
static void ask(struct ring *ring) {
  int64_t now = monotonic();
  if (slots_idle(&ring->slots)) {
    ring->silent_since = 0;
    return;
  }
  if (ring->silent_since == 0)
    ring->silent_since = now;
  if (now - ring->silent_since < SILENCE)
    return;
  ring->silent_since = now;
  if (!mount_answers(ring->buffer->mount))
    give_up(ring, -ENOTCONN);
}

/* How long until then, and no more than SILENCE; 0: it has passed. */
static int64_t time_left(const struct timespec *deadline) {
  struct timespec now;
  if (!deadline)
    return SILENCE;
  clock_gettime(CLOCK_REALTIME, &now);
  if (deadline->tv_sec < now.tv_sec || deadline->tv_sec - now.tv_sec > 1)
    return deadline->tv_sec < now.tv_sec ? 0 : SILENCE;
  int64_t left = nanoseconds(deadline) - nanoseconds(&now);
  return left < 0 ? 0 : left < SILENCE ? left : SILENCE;
}

/* Until the daemon posts, or `deadline` (CLOCK_REALTIME; NULL: none), or it is time to ask. False:
 * the deadline has passed. */
static bool sleep_until(struct ring *ring, const struct timespec *deadline) {
  int64_t left = time_left(deadline);
  if (left == 0)
    return false;
  int status;
  if (deadline && left < SILENCE) {
    status = sem_timedwait(ring->view.semaphore, deadline);
  } else {
    int64_t then = monotonic() + SILENCE;
    struct timespec wake = {.tv_sec = then / 1000000000, .tv_nsec = then % 1000000000};
    status = sem_clockwait(ring->view.semaphore, CLOCK_MONOTONIC, &wake);
  }
  if (status != 0 && errno != ETIMEDOUT && errno != EINTR) /* it is no semaphore any more */
    give_up(ring, -EPROTO);
  return true;
}

/* The number of completions, or why there will never be one. */
static int take_in_time(struct ring *ring, struct hf3fs_cqe *cqes, int room, int least,
                        const struct timespec *deadline) {
  forget_posts(ring);
  int taken = collect(ring, cqes, room);
  if (taken == 0)
    ask(ring);
  while (taken < least && !broken(ring) && sleep_until(ring, deadline)) {
    int more = collect(ring, cqes + taken, room - taken);
    taken += more;
    if (more == 0)
      ask(ring);
  }
  if (broken(ring)) /* since it was looked at last, it may be */
    taken += collect(ring, cqes + taken, room - taken);
  return taken == 0 ? broken(ring) : taken;
}

/* Whether this thread may take: not while another one does, who takes what there is. */
static bool may_take(struct ring *ring, int least, const struct timespec *deadline) {
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
  if (!may_take(ring, least, abs_timeout))
    return 0;
  int taken = take_in_time(ring, cqes, cqec, least, abs_timeout);
  pthread_mutex_unlock(&ring->taking);
  return taken;
}
