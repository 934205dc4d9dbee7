/* SPDX-License-Identifier: MIT */
#include "core/deferred_close.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "core/thread.h"

#define FULL        256
#define THREADS_MAX 4

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* nothing is taken after it */
static int *waiting; /* lock; as many as the process has open at the most, kept for good */
static unsigned room, threads; /* lock */
static _Atomic unsigned count; /* written with the lock */

/* The next one, or -1: then the thread that asked counts no more. */
static int take(void) {
  int descriptor = -1;
  pthread_mutex_lock(&lock);
  if (atomic_load(&count) > 0)
    descriptor = waiting[atomic_fetch_sub(&count, 1) - 1];
  else
    threads--;
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

/* With the lock. */
static bool has_room(void) {
  if (atomic_load(&count) < room)
    return true;
  int *larger = realloc(waiting, sizeof *waiting * (room + FULL));
  if (larger == NULL)
    return false;
  waiting = larger;
  room += FULL;
  return true;
}

void close_deferred(int descriptor) {
  pthread_mutex_lock(&lock);
  if (has_room())
    waiting[atomic_fetch_add(&count, 1)] = descriptor;
  start_one();
  pthread_mutex_unlock(&lock);
}

bool close_foreign(int descriptor) {
  bool memory = fcntl(descriptor, F_GET_SEALS) >= 0; /* asks no file system */
  if (memory)
    close(descriptor);
  else
    close_deferred(descriptor);
  return memory;
}

bool close_queue_is_full(void) {
  return atomic_load(&count) >= FULL;
}
