/* SPDX-License-Identifier: MIT
 * Threads that wait in poll(2), for a request and for the end at once, answer half as many requests
 * per second as those that wait in read(2), so these do; and a signal interrupts them at the end.
 * libfuse's own loop does the same, but loses a signal between its check and its wait: here each
 * thread is signaled until it has ended. */
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "storage/mount/mount.h"

#define THREADS_MIN     4
#define STOP_TIMEOUT_MS 10000 /* for the requests in progress */
#define STOP_RETRY_MS   10
#define INTERRUPT       SIGUSR1

static void *serve_kernel(void *argument) {
  const struct loop *loop = argument;
  struct fuse_buf request = {0};
  sigset_t interrupt;
  sigemptyset(&interrupt);
  sigaddset(&interrupt, INTERRUPT);
  pthread_sigmask(SIG_UNBLOCK, &interrupt, NULL);
  while (!fuse_session_exited(loop->session)) {
    int length = fuse_session_receive_buf(loop->session, &request);
    if (length == -EAGAIN || length == -EINTR)
      continue;
    if (length <= 0)
      break;
    fuse_session_process_buf(loop->session, &request);
  }
  free(request.mem);
  eventfd_write(loop->ended, 1);
  return NULL;
}

static unsigned thread_count(void) {
  long processors = sysconf(_SC_NPROCESSORS_ONLN);
  if (processors < THREADS_MIN)
    return THREADS_MIN;
  return processors > LOOP_THREADS ? LOOP_THREADS : (unsigned)processors;
}

/* It interrupts read(2), and does nothing else. */
static void on_interrupt(int number) {
  (void)number;
}

int loop_start(struct loop *loop, struct fuse_session *session) {
  const struct sigaction interrupt = {.sa_handler = on_interrupt};
  const unsigned count = thread_count();
  *loop = (struct loop){.session = session};
  loop->ended = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (loop->ended < 0)
    return -errno;
  sigaction(INTERRUPT, &interrupt, &loop->before);
  int error = 0;
  while (!error && loop->count < count) {
    error = pthread_create(&loop->threads[loop->count], NULL, serve_kernel, loop);
    loop->count += error == 0;
  }
  if (error && loop_stop(loop))
    return -ETIMEDOUT;
  return -error;
}

/* Once is not enough: the signal may arrive just before the thread begins to wait. */
static bool stop_thread(pthread_t thread, int *left_ms) {
  struct timespec until;
  do {
    pthread_kill(thread, INTERRUPT);
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_nsec += STOP_RETRY_MS * 1000000;
    until.tv_sec += until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    if (pthread_timedjoin_np(thread, NULL, &until) == 0)
      return true;
    *left_ms -= STOP_RETRY_MS;
  } while (*left_ms > 0);
  return false;
}

int loop_stop(struct loop *loop) {
  int left_ms = STOP_TIMEOUT_MS;
  fuse_session_exit(loop->session);
  while (loop->count > 0) {
    if (!stop_thread(loop->threads[loop->count - 1], &left_ms))
      return -ETIMEDOUT;
    loop->count--;
  }
  close(loop->ended);
  sigaction(INTERRUPT, &loop->before, NULL);
  return 0;
}
