/* SPDX-License-Identifier: MIT
 * epoll, poll, eventfd and timerfd of the world. */
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/timerfd.h>

#include "calls.h"
#include "cards.h"
#include "sim.h"

struct watched {
  struct list link;   /* in file->watches */
  struct list queued; /* in epoll->queued: may be ready */
  struct list all;    /* in epoll->all */
  struct epoll *epoll;
  struct file *file;
  int descriptor;
  struct epoll_event event;
};

struct epoll {
  struct file file;
  struct list all, queued;
};

static uint32_t epoll_ready(struct file *file) {
  struct epoll *epoll = (struct epoll *)file;
  list_each(item, &epoll->queued) {
    struct watched *watched = list_entry(item, struct watched, queued);
    if (file_ready(watched->file) & (watched->event.events | EPOLLERR | EPOLLHUP))
      return EPOLLIN;
  }
  return 0;
}

uint32_t file_ready(struct file *file) {
  switch (file->kind) {
  case FILE_SOCKET:
    return socket_ready(file);
  case FILE_EPOLL:
    return epoll_ready(file);
  case FILE_EVENT:
    return event_ready(file);
  case FILE_TIMER:
    return timer_ready(file);
  case FILE_PROCESS:
    return 0; /* a pidfd is never polled */
  case FILE_NIC:
    return event_queue_ready(file);
  default:
    return EPOLLIN | EPOLLOUT;
  }
}

void file_changed(struct file *file) {
  list_each(item, &file->watches) {
    struct watched *watched = list_entry(item, struct watched, link);
    if (watched->queued.next == &watched->queued)
      list_append(&watched->epoll->queued, &watched->queued);
    if (!list_empty(&watched->epoll->file.waiting) || !list_empty(&watched->epoll->file.watches))
      file_changed(&watched->epoll->file);
  }
  queue_wake(&file->waiting, SIZE_MAX);
}

static void watched_free(struct watched *watched) {
  list_remove(&watched->link);
  list_remove(&watched->queued);
  list_remove(&watched->all);
  free(watched);
}

void watches_free(struct file *file) {
  while (!list_empty(&file->watches))
    watched_free(list_entry(file->watches.next, struct watched, link));
}

void epoll_free(struct file *file) {
  struct epoll *epoll = (struct epoll *)file;
  while (!list_empty(&epoll->all))
    watched_free(list_entry(epoll->all.next, struct watched, all));
  free(epoll);
}

int world_epoll_create1(int flags) {
  (void)flags;
  sim_point(1 * US);
  struct epoll *epoll = calloc(1, sizeof *epoll);
  file_init(&epoll->file, FILE_EPOLL);
  list_init(&epoll->all);
  list_init(&epoll->queued);
  return file_install(&epoll->file);
}

static struct watched *find_watched(const struct epoll *epoll, const struct file *file,
                                    int descriptor) {
  list_each(item, &file->watches) {
    struct watched *watched = list_entry(item, struct watched, link);
    if (watched->epoll == epoll && watched->descriptor == descriptor)
      return watched;
  }
  return NULL;
}

static int epoll_add(struct epoll *epoll, struct file *file, int descriptor,
                     const struct epoll_event *event) {
  if (refuses_memory()) {
    errno = ENOMEM;
    return -1;
  }
  struct watched *watched = calloc(1, sizeof *watched);
  *watched =
      (struct watched){.epoll = epoll, .file = file, .descriptor = descriptor, .event = *event};
  list_append(&file->watches, &watched->link);
  list_append(&epoll->all, &watched->all);
  list_append(&epoll->queued, &watched->queued);
  return 0;
}

int world_epoll_ctl(int descriptor, int operation, int other, struct epoll_event *event) {
  sim_point(400);
  struct file *file = file_of(descriptor), *target = file_of(other);
  if (!file || !target)
    return -1;
  struct epoll *epoll = (struct epoll *)file;
  struct watched *watched = find_watched(epoll, target, other);
  if ((operation == EPOLL_CTL_ADD) == (watched != NULL)) {
    errno = watched ? EEXIST : ENOENT;
    return -1;
  }
  if (operation == EPOLL_CTL_ADD && epoll_add(epoll, target, other, event) != 0)
    return -1;
  if (operation == EPOLL_CTL_DEL) {
    watched_free(watched);
    return 0;
  }
  if (operation == EPOLL_CTL_MOD) {
    watched->event = *event;
    list_remove(&watched->queued);
    list_append(&epoll->queued, &watched->queued);
  }
  if (!list_empty(&epoll->file.waiting))
    queue_wake(&epoll->file.waiting, SIZE_MAX);
  return 0;
}

/* Fills `events` in the order of arrival. Entries that are not ready leave the queue;
 * level-triggered ones that are go to its end. */
static int collect(struct epoll *epoll, struct epoll_event *events, int most) {
  int count = 0;
  struct list again;
  list_init(&again);
  while (count < most && !list_empty(&epoll->queued)) {
    struct watched *watched = list_entry(epoll->queued.next, struct watched, queued);
    list_remove(&watched->queued);
    uint32_t ready = file_ready(watched->file) & (watched->event.events | EPOLLERR | EPOLLHUP);
    if (!ready)
      continue;
    events[count++] = (struct epoll_event){.events = ready, .data = watched->event.data};
    if (!(watched->event.events & EPOLLET))
      list_append(&again, &watched->queued);
  }
  list_splice(&epoll->queued, &again);
  return count;
}

int world_epoll_pwait2(int descriptor, struct epoll_event *events, int most,
                       const struct timespec *span, const sigset_t *signals) {
  (void)signals;
  sim_point(400);
  struct epoll *epoll = (struct epoll *)file_of(descriptor);
  if (!epoll)
    return -1;
  if (sim_chance(2000)) {
    errno = EINTR;
    return -1;
  }
  int64_t until = world_span(span);
  for (;;) {
    int count = collect(epoll, events, most);
    if (count || sim_now >= until)
      return count;
    if (!fiber_wait_one(&epoll->file.waiting, until))
      return collect(epoll, events, most);
  }
}

int world_epoll_wait(int descriptor, struct epoll_event *events, int most, int ms) {
  struct timespec span = {ms / 1000, ms % 1000 * 1000000};
  return world_epoll_pwait2(descriptor, events, most, ms < 0 ? NULL : &span, NULL);
}

static int poll_once(struct pollfd *entries, size_t count) {
  int ready = 0;
  for (size_t i = 0; i < count; i++) {
    struct file *file = entries[i].fd < 0 ? NULL : file_of(entries[i].fd);
    entries[i].revents = 0;
    if (entries[i].fd >= 0 && !file)
      entries[i].revents = POLLNVAL;
    else if (file)
      entries[i].revents = (short)(file_ready(file) & ((uint32_t)(unsigned short)entries[i].events |
                                                       EPOLLERR | EPOLLHUP));
    ready += entries[i].revents != 0;
  }
  return ready;
}

int world_ppoll(struct pollfd *entries, nfds_t count, const struct timespec *span,
                const sigset_t *signals) {
  struct list *queues[WAITERS];
  size_t used = 0;
  (void)signals;
  sim_point(400);
  if (count > WAITERS)
    sim_fail("simulator", "poll of %zu descriptors is not modelled", (size_t)count);
  if (sim_chance(2000) && (!span || span->tv_sec || span->tv_nsec)) {
    errno = EINTR;
    return -1;
  }
  for (size_t i = 0; i < count; i++) {
    struct file *file = entries[i].fd < 0 ? NULL : file_of(entries[i].fd);
    if (file)
      queues[used++] = &file->waiting;
  }
  int64_t until = world_span(span);
  for (;;) {
    int ready = poll_once(entries, count);
    if (ready || sim_now >= until)
      return ready;
    if (!fiber_wait(queues, used, until))
      return poll_once(entries, count);
  }
}

int world_poll(struct pollfd *entries, nfds_t count, int ms) {
  struct timespec span = {ms / 1000, ms % 1000 * 1000000};
  return world_ppoll(entries, count, ms < 0 ? NULL : &span, NULL);
}

struct event_file {
  struct file file;
  uint64_t count;
};

int world_eventfd(unsigned count, int flags) {
  (void)flags;
  sim_point(1 * US);
  struct event_file *event = calloc(1, sizeof *event);
  file_init(&event->file, FILE_EVENT);
  event->count = count;
  return file_install(&event->file);
}

uint32_t event_ready(struct file *file) {
  return EPOLLOUT | (((struct event_file *)file)->count ? (uint32_t)EPOLLIN : 0);
}

static ssize_t take_count(uint64_t *count, void *bytes, size_t length) {
  if (length < sizeof *count || *count == 0) {
    errno = length < sizeof *count ? EINVAL : EAGAIN;
    return -1;
  }
  memcpy(bytes, count, sizeof *count);
  *count = 0;
  return sizeof *count;
}

ssize_t event_read(struct file *file, void *bytes, size_t length) {
  return take_count(&((struct event_file *)file)->count, bytes, length);
}

ssize_t event_write(struct file *file, const void *bytes, size_t length) {
  uint64_t more;
  if (length < sizeof more) {
    errno = EINVAL;
    return -1;
  }
  memcpy(&more, bytes, sizeof more);
  ((struct event_file *)file)->count += more;
  file_changed(file);
  return sizeof more;
}

struct timer_file {
  struct file file;
  struct event event;
  const struct host *host;
  uint64_t expirations;
};

int world_timerfd_create(int clock, int flags) {
  (void)clock, (void)flags;
  sim_point(1 * US);
  struct timer_file *timer = calloc(1, sizeof *timer);
  file_init(&timer->file, FILE_TIMER);
  timer->host = process_current()->host;
  return file_install(&timer->file);
}

void timer_free(struct file *file) {
  event_cancel(&((struct timer_file *)file)->event);
  free(file);
}

static void on_expiration(struct event *event) {
  struct timer_file *timer = list_entry(event, struct timer_file, event);
  timer->expirations++;
  file_changed(&timer->file);
}

int world_timerfd_settime(int descriptor, int flags, const struct itimerspec *to,
                          struct itimerspec *from) {
  (void)from;
  sim_point(300);
  struct timer_file *timer = (struct timer_file *)file_of(descriptor);
  if (!timer)
    return -1;
  event_cancel(&timer->event);
  timer->expirations = 0;
  int64_t value = to->it_value.tv_sec * S + to->it_value.tv_nsec;
  if (value && (flags & TFD_TIMER_ABSTIME))
    event_schedule(&timer->event, host_time_to_world(timer->host, value), on_expiration);
  else if (value)
    event_schedule(&timer->event, sim_now + value, on_expiration);
  return 0;
}

uint32_t timer_ready(struct file *file) {
  return ((struct timer_file *)file)->expirations ? EPOLLIN : 0;
}

ssize_t timer_read(struct file *file, void *bytes, size_t length) {
  return take_count(&((struct timer_file *)file)->expirations, bytes, length);
}
