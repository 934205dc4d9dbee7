/* SPDX-License-Identifier: MIT */
#include "core/deferred_close.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "core/thread.h"

#define FULL        256 /* queue length from which no foreign descriptor should be accepted */
#define THREADS_MAX 4

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* no lock is taken after it */
static int first[FULL];        /* usually enough, so that a shortage of memory leaks none */
static int *waiting = first;   /* lock; grows, never shrinks */
static unsigned room = FULL;   /* lock */
static unsigned threads;       /* lock */
static _Atomic unsigned count; /* written with the lock */

/* The next descriptor; -1: none, and the calling thread is no longer counted. */
static int take_descriptor(void) {
  int descriptor = -1;
  pthread_mutex_lock(&lock);
  if (atomic_load(&count) > 0)
    descriptor = waiting[atomic_fetch_sub(&count, 1) - 1];
  else
    threads--;
  pthread_mutex_unlock(&lock);
  return descriptor;
}

/* SO_LINGER off: the sender may have set it to make close() block. */
static void *close_main(void *unused) {
  const struct linger none = {0, 0};
  for (int descriptor; (descriptor = take_descriptor()) >= 0;) {
    setsockopt(descriptor, SOL_SOCKET, SO_LINGER, &none, sizeof none);
    close(descriptor);
  }
  return unused;
}

/* With the lock. */
static bool queue_has_room(void) {
  if (atomic_load(&count) < room)
    return true;
  int *larger = malloc(sizeof *waiting * (room + FULL));
  if (larger == NULL)
    return false;
  memcpy(larger, waiting, sizeof *waiting * room);
  if (waiting != first)
    free(waiting);
  waiting = larger;
  room += FULL;
  return true;
}

/* With the lock. */
static void start_thread(void) {
  pthread_t thread;
  if (threads < THREADS_MAX && thread_start(&thread, close_main, NULL) == 0) {
    pthread_detach(thread);
    threads++;
  }
}

void close_deferred(int descriptor) {
  pthread_mutex_lock(&lock);
  if (queue_has_room())
    waiting[atomic_fetch_add(&count, 1)] = descriptor;
  start_thread();
  pthread_mutex_unlock(&lock);
}

void close_waiting(void) {
  pthread_mutex_lock(&lock);
  if (atomic_load(&count) > 0)
    start_thread();
  pthread_mutex_unlock(&lock);
}

bool close_foreign(int descriptor) {
  bool memory = fcntl(descriptor, F_GET_SEALS) >= 0; /* a memfd; calls into no file system */
  if (memory)
    close(descriptor);
  else
    close_deferred(descriptor);
  return memory;
}

bool close_queue_is_full(void) {
  return atomic_load(&count) >= FULL;
}
