/* SPDX-License-Identifier: MIT
 * libfuse's own loop may lose a signal that ends it, when that comes between its look and its wait.
 * And threads that wait by poll, for a request and for the end at once, answer half as many
 * requests in a second as those that wait in read(2). So they do, and at the end a signal is sent
 * to each of them until it has seen it. */
#include "storage/mount/loop.h"

#include <errno.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#define FUSE_USE_VERSION 35
#include <fuse_lowlevel.h>

#define THREADS_LEAST 4
#define PATIENCE_MS   10000 /* for what is under way at the end */
#define AGAIN_MS      10
#define INTERRUPT     SIGUSR1

static void tell_end(const struct loop *loop) {
  const uint64_t one = 1;
  ssize_t put = write(loop->ended, &one, sizeof one);
  (void)put; /* it is full only when it says so already */
}

static void allow_interrupt(void) {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, INTERRUPT);
  pthread_sigmask(SIG_UNBLOCK, &set, NULL);
}

static void *serve(void *argument) {
  const struct loop *loop = argument;
  struct fuse_buf request = {0};
  allow_interrupt();
  while (!fuse_session_exited(loop->session)) {
    int length = fuse_session_receive_buf(loop->session, &request);
    if (length == -EAGAIN || length == -EINTR)
      continue;
    if (length <= 0)
      break;
    fuse_session_process_buf(loop->session, &request);
  }
  free(request.mem);
  tell_end(loop);
  return NULL;
}

static unsigned wanted(void) {
  long processors = sysconf(_SC_NPROCESSORS_ONLN);
  if (processors < THREADS_LEAST)
    return THREADS_LEAST;
  return processors > LOOP_THREADS ? LOOP_THREADS : (unsigned)processors;
}

/* read(2) ends with EINTR, and that is all. */
static void do_nothing(int number) {
  (void)number;
}

int loop_start(struct loop *loop, struct fuse_session *session) {
  const struct sigaction interrupt = {.sa_handler = do_nothing};
  *loop = (struct loop){.session = session};
  loop->ended = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (loop->ended < 0)
    return -errno;
  sigaction(INTERRUPT, &interrupt, &loop->before);
  int error = 0;
  while (!error && loop->count < wanted()) {
    error = pthread_create(&loop->threads[loop->count], NULL, serve, loop);
    loop->count += error == 0;
  }
  if (error)
    loop_end(loop);
  return -error;
}

/* Once is not enough: the signal may come just before the thread begins to wait. */
static bool end_thread(pthread_t thread, int *patience) {
  struct timespec until;
  do {
    pthread_kill(thread, INTERRUPT);
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_nsec += AGAIN_MS * 1000000;
    until.tv_sec += until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    if (pthread_timedjoin_np(thread, NULL, &until) == 0)
      return true;
    *patience -= AGAIN_MS;
  } while (*patience > 0);
  return false;
}

int loop_end(struct loop *loop) {
  int patience = PATIENCE_MS;
  fuse_session_exit(loop->session);
  while (loop->count > 0) {
    if (!end_thread(loop->threads[loop->count - 1], &patience))
      return -ETIMEDOUT;
    loop->count--;
  }
  close(loop->ended);
  sigaction(INTERRUPT, &loop->before, NULL);
  return 0;
}
