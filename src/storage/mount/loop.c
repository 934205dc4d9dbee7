/* SPDX-License-Identifier: MIT
 * libfuse's own loop can be ended by a signal that comes at the wrong moment only when the next
 * request arrives. Here each thread waits for a request and for the end at once. */
#include "storage/mount/loop.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#define FUSE_USE_VERSION 35
#include <fuse_lowlevel.h>

#define THREADS_LEAST 4
#define PATIENCE_S    10 /* for what is under way at the end */

/* False: time to end. */
static bool await(const struct loop *loop, int poll) {
  struct epoll_event events[2];
  int count = epoll_wait(poll, events, 2, -1);
  if (count < 0)
    return errno == EINTR;
  for (int i = 0; i < count; i++)
    if (events[i].data.fd == loop->stop)
      return false;
  return true;
}

/* Exclusive: one request wakes one thread. */
static int make_poll(const struct loop *loop) {
  struct epoll_event request = {.events = EPOLLIN | EPOLLEXCLUSIVE,
                                .data.fd = fuse_session_fd(loop->session)};
  struct epoll_event stop = {.events = EPOLLIN, .data.fd = loop->stop};
  int poll = epoll_create1(EPOLL_CLOEXEC);
  if (poll < 0)
    return -1;
  if (epoll_ctl(poll, EPOLL_CTL_ADD, request.data.fd, &request) ||
      epoll_ctl(poll, EPOLL_CTL_ADD, stop.data.fd, &stop)) {
    close(poll);
    return -1;
  }
  return poll;
}

static void tell_end(const struct loop *loop) {
  const uint64_t one = 1;
  ssize_t put = write(loop->ended, &one, sizeof one);
  (void)put; /* it is full only when it says so already */
}

static void *serve(void *argument) {
  const struct loop *loop = argument;
  struct fuse_buf request = {0};
  int poll = make_poll(loop);
  while (poll >= 0 && await(loop, poll)) {
    int length = fuse_session_receive_buf(loop->session, &request);
    if (length == -EAGAIN || length == -EINTR)
      continue;
    if (length <= 0)
      break;
    fuse_session_process_buf(loop->session, &request);
  }
  free(request.mem);
  if (poll >= 0)
    close(poll);
  tell_end(loop);
  return NULL;
}

static unsigned wanted(void) {
  long processors = sysconf(_SC_NPROCESSORS_ONLN);
  if (processors < THREADS_LEAST)
    return THREADS_LEAST;
  return processors > LOOP_THREADS ? LOOP_THREADS : (unsigned)processors;
}

static void close_both(struct loop *loop) {
  if (loop->stop >= 0)
    close(loop->stop);
  if (loop->ended >= 0)
    close(loop->ended);
}

int loop_start(struct loop *loop, struct fuse_session *session) {
  int fd = fuse_session_fd(session);
  *loop = (struct loop){.session = session};
  loop->stop = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  loop->ended = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (loop->stop < 0 || loop->ended < 0 ||
      fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK) < 0) {
    int status = -errno;
    close_both(loop);
    return status;
  }
  int error = 0;
  while (!error && loop->count < wanted()) {
    error = pthread_create(&loop->threads[loop->count], NULL, serve, loop);
    loop->count += error == 0;
  }
  if (error)
    loop_end(loop);
  return -error;
}

int loop_end(struct loop *loop) {
  struct timespec until;
  const uint64_t one = 1;
  clock_gettime(CLOCK_REALTIME, &until);
  until.tv_sec += PATIENCE_S;
  fuse_session_exit(loop->session);
  if (write(loop->stop, &one, sizeof one) < 0)
    return -errno;
  while (loop->count > 0) {
    if (pthread_timedjoin_np(loop->threads[loop->count - 1], NULL, &until))
      return -ETIMEDOUT;
    loop->count--;
  }
  close_both(loop);
  return 0;
}
