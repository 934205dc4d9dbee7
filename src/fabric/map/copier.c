/* SPDX-License-Identifier: MIT
 * Copies too large for the call itself: by threads of the node, by threads that wait for a
 * transfer, and, without threads, by the loop. */
#include <limits.h>
#include <pthread.h>
#include <sched.h>

#include "core/alloc.h"
#include "core/error.h"
#include "core/thread.h"
#include "fabric/map/map.h"

#define THREADS_MAX 16

struct copier {
  struct loop *loop;
  pthread_mutex_t lock; /* queue, ending; nothing is taken after it */
  pthread_cond_t more;
  struct backlog queue;    /* works */
  _Atomic uint32_t queued; /* length of the queue, for a look without the lock */
  bool ending;
  unsigned wanted;          /* threads, started when first needed */
  _Atomic unsigned started; /* under the lock */
  pthread_t threads[THREADS_MAX];
  struct poller poller; /* runs works when no thread started */
};

static struct map_endpoint *endpoint_of(const struct work *work) {
  return (struct map_endpoint *)work->endpoint;
}

/* With the lock. A queued work's `state` is the copier, else NULL. */
static void enqueue(struct copier *copier, struct work *work) {
  work->state = copier;
  backlog_add(&copier->queue, &work->link, work->rank);
  atomic_fetch_add_explicit(&copier->queued, 1, memory_order_relaxed);
}

static void dequeue(struct copier *copier, struct work *work) {
  work->state = NULL;
  list_remove(&work->link);
  atomic_fetch_sub_explicit(&copier->queued, 1, memory_order_relaxed);
}

/* With the lock. `active` counts the work until `done` has returned. */
static struct work *copier_take(struct copier *copier) {
  struct list *item = backlog_take(&copier->queue);
  if (!item)
    return NULL;
  struct work *work = list_entry(item, struct work, link);
  dequeue(copier, work);
  work_starts(work);
  atomic_fetch_add(&endpoint_of(work)->active, 1);
  return work;
}

static void copier_run(struct work *work) {
  struct map_endpoint *endpoint = endpoint_of(work);
  int code = map_run(work);
  work->done(work, code);
  atomic_fetch_sub(&endpoint->active, 1); /* pairs with copier_drain */
}

static void *copy_thread(void *argument) {
  struct copier *copier = argument;
  pthread_mutex_lock(&copier->lock);
  while (!copier->ending) {
    struct work *work = copier_take(copier);
    if (!work) {
      pthread_cond_wait(&copier->more, &copier->lock);
      continue;
    }
    pthread_mutex_unlock(&copier->lock);
    copier_run(work);
    pthread_mutex_lock(&copier->lock);
  }
  pthread_mutex_unlock(&copier->lock);
  return NULL;
}

/* With the lock. */
static void start_threads(struct copier *copier) {
  while (copier->started < copier->wanted) {
    if (thread_start(&copier->threads[copier->started], copy_thread, copier) != 0) {
      copier->wanted = copier->started;
      return;
    }
    copier->started++;
  }
}

bool copier_help(struct copier *copier, uint64_t least) {
  if (atomic_load_explicit(&copier->queued, memory_order_relaxed) == 0)
    return false;
  pthread_mutex_lock(&copier->lock);
  struct list *first = backlog_first(&copier->queue);
  bool large = first && list_entry(first, struct work, link)->whole >= least;
  struct work *work = large ? copier_take(copier) : NULL;
  pthread_mutex_unlock(&copier->lock);
  if (work)
    copier_run(work);
  return work != NULL;
}

static bool poll_queue(struct poller *poller) {
  struct copier *copier = list_entry(poller, struct copier, poller);
  return copier->started == 0 && copier_help(copier, 0);
}

__attribute__((cold)) int copier_open(struct fabric *fabric, struct copier **out) {
  struct copier *copier = alloc_zero(1, sizeof *copier);
  if (!copier)
    return error_memory("copy threads");
  copier->loop = fabric->loop;
  pthread_mutex_init(&copier->lock, NULL);
  pthread_cond_init(&copier->more, NULL);
  backlog_init(&copier->queue);
  list_init(&copier->poller.link);
  unsigned wanted = fabric->config->copy_threads;
  copier->wanted = wanted == UINT_MAX ? 0 : wanted < THREADS_MAX ? wanted : THREADS_MAX;
  loop_lock(copier->loop);
  loop_poller_start(copier->loop, &copier->poller, poll_queue);
  loop_unlock(copier->loop);
  *out = copier;
  return 0;
}

__attribute__((cold)) void copier_end(struct copier *copier) {
  pthread_mutex_lock(&copier->lock);
  copier->ending = true;
  pthread_cond_broadcast(&copier->more);
  pthread_mutex_unlock(&copier->lock);
  for (unsigned i = 0; i < copier->started; i++)
    pthread_join(copier->threads[i], NULL);
  loop_lock(copier->loop);
  loop_poller_stop(copier->loop, &copier->poller);
  loop_unlock(copier->loop);
}

void copier_free(struct copier *copier) {
  if (!copier)
    return;
  pthread_cond_destroy(&copier->more);
  pthread_mutex_destroy(&copier->lock);
  alloc_free(copier);
}

void copier_post(struct copier *copier, struct work *work) {
  pthread_mutex_lock(&copier->lock);
  if (copier->ending) {
    pthread_mutex_unlock(&copier->lock);
    work->state = NULL;
    work->done(work, error_set(HAUL_EPATH, 0, NULL, NULL, "the node is closed"));
    return;
  }
  enqueue(copier, work);
  start_threads(copier);
  pthread_cond_signal(&copier->more);
  bool alone = copier->started == 0;
  pthread_mutex_unlock(&copier->lock);
  if (alone)
    loop_wake(copier->loop);
}

__attribute__((cold)) bool copier_cancel(struct copier *copier, struct work *work) {
  pthread_mutex_lock(&copier->lock);
  bool found = work->state == copier;
  if (found)
    dequeue(copier, work);
  pthread_mutex_unlock(&copier->lock);
  return found;
}

void copier_drain(struct copier *copier, struct map_endpoint *endpoint, int code) {
  struct list mine = LIST_INIT(mine);
  pthread_mutex_lock(&copier->lock);
  for (unsigned rank = 0; rank < BACKLOG_RANKS; rank++)
    list_each_safe(item, &copier->queue.queues[rank]) {
      struct work *work = list_entry(item, struct work, link);
      if (endpoint_of(work) != endpoint)
        continue;
      dequeue(copier, work);
      list_append(&mine, item);
    }
  pthread_mutex_unlock(&copier->lock);
  for (struct list *item; (item = list_take(&mine));) {
    struct work *work = list_entry(item, struct work, link);
    work->done(work, code);
  }
  /* A running copy lasts at most one work and takes no lock. */
  while (atomic_load(&endpoint->active) > 0)
    sched_yield();
}
