/* SPDX-License-Identifier: MIT */
#include "core/aside.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/socket.h>
#include <unistd.h>

#include "core/thread.h"

#define WAITING_MAX 256
#define THREADS_MAX 4

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* nothing is taken after it */
static int waiting[WAITING_MAX];                         /* lock; a ring from `first` on */
static unsigned first, threads;                          /* lock */
static _Atomic unsigned count;                           /* written with the lock */

/* The next one, or -1: then the thread that asked counts no more. */
static int take(void) {
  int descriptor = -1;
  pthread_mutex_lock(&lock);
  if (atomic_load(&count) > 0) {
    descriptor = waiting[first];
    first = (first + 1) % WAITING_MAX;
    atomic_fetch_sub(&count, 1);
  } else {
    threads--;
  }
  pthread_mutex_unlock(&lock);
  return descriptor;
}

/* A socket need not linger: its sender meant to keep somebody. */
static void *run(void *unused) {
  const struct linger none = {0, 0};
  for (int descriptor; (descriptor = take()) >= 0;) {
    setsockopt(descriptor, SOL_SOCKET, SO_LINGER, &none, sizeof none);
    close(descriptor);
  }
  return unused;
}

/* With the lock. Where no thread can be had the descriptors wait for the next call. */
static void start_one(void) {
  pthread_t thread;
  if (threads == THREADS_MAX || thread_start(&thread, run, NULL) != 0)
    return;
  pthread_detach(thread);
  threads++;
}

void close_aside(int descriptor) {
  pthread_mutex_lock(&lock);
  unsigned held = atomic_load(&count);
  if (held < WAITING_MAX) {
    waiting[(first + held) % WAITING_MAX] = descriptor;
    atomic_store(&count, held + 1);
  }
  start_one();
  pthread_mutex_unlock(&lock);
}

bool close_foreign(int descriptor) {
  bool memory = fcntl(descriptor, F_GET_SEALS) >= 0; /* asks no file system */
  if (memory)
    close(descriptor);
  else
    close_aside(descriptor);
  return memory;
}

bool aside_is_full(void) {
  return atomic_load(&count) == WAITING_MAX;
}
