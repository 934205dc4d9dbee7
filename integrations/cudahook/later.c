/* SPDX-License-Identifier: MIT */
#include "later.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "serve.h"

#define WAITING_MAX 256u

struct waiting {
  struct waiting *next;
  struct block *block;
  cudaEvent_t event;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct waiting *first; /* the lock's */
static _Atomic unsigned count;

/* Without the lock, as a region's end may wait for peers. */
static void end_all(const struct runtime *calls, struct waiting *list) {
  while (list) {
    struct waiting *next = list->next;
    calls->event_destroy(list->event);
    serve_end(list->block);
    free(list);
    list = next;
  }
}

/* With the lock: what is done leaves the list. An event that fails is done too: its device was
 * reset, or a fault has ended all work on it. */
static struct waiting *take_done(const struct runtime *calls) {
  struct waiting *done = NULL, **at = &first;
  while (*at) {
    struct waiting *one = *at;
    if (calls->event_query(one->event) == cudaErrorNotReady) {
      at = &one->next;
      continue;
    }
    *at = one->next;
    one->next = done;
    done = one;
    atomic_fetch_sub(&count, 1);
  }
  return done;
}

void later_poll(const struct runtime *calls) {
  if (atomic_load(&count) == 0 || pthread_mutex_trylock(&lock) != 0)
    return;
  struct calm calm = calm_begin(calls);
  /* "not ready" would take the place of an error that the application has not looked at yet. */
  struct waiting *done = calm.error == cudaSuccess ? take_done(calls) : NULL;
  pthread_mutex_unlock(&lock);
  end_all(calls, done);
  calm_end(calls, &calm);
}

bool later_wait(const struct runtime *calls) {
  pthread_mutex_lock(&lock);
  struct waiting *all = first;
  first = NULL;
  atomic_store(&count, 0);
  pthread_mutex_unlock(&lock);
  struct calm calm = calm_begin(calls);
  for (const struct waiting *one = all; one; one = one->next)
    calls->event_wait(one->event);
  end_all(calls, all);
  calm_end(calls, &calm);
  return all != NULL;
}

static void append(struct waiting *made) {
  pthread_mutex_lock(&lock);
  made->next = first;
  first = made;
  atomic_fetch_add(&count, 1);
  pthread_mutex_unlock(&lock);
}

/* An event of the device that is current, which need not be the stream's. */
static cudaError_t mark_stream(const struct runtime *calls, cudaStream_t stream,
                               cudaEvent_t *event) {
  cudaError_t error = calls->event_create(event, cudaEventDisableTiming);
  if (error != cudaSuccess)
    return error;
  error = calls->event_record(*event, stream);
  if (error != cudaSuccess)
    calls->event_destroy(*event);
  return error;
}

cudaError_t later_add(const struct runtime *calls, struct block *block, cudaStream_t stream) {
  cudaError_t error = cudaSuccess;
  cudaEvent_t event = NULL;
  if (atomic_load(&count) >= WAITING_MAX)
    later_wait(calls);
  struct waiting *made = malloc(sizeof *made);
  struct calm calm = calm_begin(calls);
  bool marked = made && mark_stream(calls, stream, &event) == cudaSuccess;
  calm_end(calls, &calm);
  if (marked) {
    *made = (struct waiting){.block = block, .event = event};
    append(made);
    return cudaSuccess;
  }
  free(made);
  error = calls->stream_wait(stream);
  if (error == cudaSuccess)
    serve_end(block);
  return error;
}
