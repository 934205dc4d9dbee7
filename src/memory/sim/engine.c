/* SPDX-License-Identifier: MIT
 * The DMA engines of the emulated accelerators. Each has a thread that moves copies in order and in
 * chunks, at the configured latency and bandwidth. */
#include <pthread.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <time.h>

#include "core/error.h"
#include "core/fork.h"
#include "core/list.h"
#include "core/sys.h"
#include "core/thread.h"
#include "memory/copy.h"
#include "memory/sim/sim.h"

#define CHUNK ((uint64_t)512 << 10) /* about 50 µs: the longest wait of a cancel */

struct engine {
  pthread_mutex_t lock; /* guards the rest */
  pthread_cond_t work;  /* the thread waits here, also while pacing */
  pthread_cond_t done;  /* `current` has changed */
  struct list queue;
  /* The copy that is moved or reported. Once its status is final only its address is used: its
   * owner may have reused the memory. */
  struct copy *current;
  bool abandon; /* cancel the current copy */
  bool stopping, running;
  int64_t free_at; /* when the emulated bus becomes idle */
  pthread_t thread;
};

/* Engine state in struct copy. */
struct job {
  struct list link;
  int64_t due; /* when the copy may start */
  struct engine *engine;
  bool wakes; /* copy->wakes, with the engine's lock */
};
_Static_assert(sizeof(struct job) <= sizeof((struct copy *)0)->engine, "struct copy is too small");

static struct engine engines[SIM_DEVICES_MAX];
static unsigned engine_count;

static struct job *job_of(struct copy *copy) {
  return (struct job *)(void *)copy->engine;
}

static struct copy *copy_of(struct list *link) {
  return (struct copy *)(void *)((char *)link - offsetof(struct copy, engine) -
                                 offsetof(struct job, link));
}

static char *see(const struct memory *memory, uint64_t offset) {
  return memory->view ? (char *)memory->view + offset : sim_view(memory, offset);
}

/* With the lock. Sleeps until `at`, or until the current copy must end early. */
static int sleep_until(struct engine *engine, int64_t at) {
  struct timespec until = {.tv_sec = at / 1000000000, .tv_nsec = at % 1000000000};
  while (!engine->abandon && !engine->stopping && clock_now() < at)
    pthread_cond_timedwait(&engine->work, &engine->lock, &until);
  if (engine->stopping)
    return HAUL_ECLOSED;
  return engine->abandon ? HAUL_ECANCELED : 0;
}

/* With the lock. Accounts `bytes` to the emulated bus and waits until it has carried them. */
static int pace(struct engine *engine, uint64_t bytes) {
  if (sim_settings.bandwidth == 0)
    return sleep_until(engine, 0);
  engine->free_at += (int64_t)(bytes * UINT64_C(1000000000) / sim_settings.bandwidth);
  return sleep_until(engine, engine->free_at);
}

/* With the lock, which is released while bytes move. */
static int move(struct engine *engine, struct copy *copy) {
  int status = sleep_until(engine, job_of(copy)->due);
  int64_t now = clock_now();
  if (engine->free_at < now)
    engine->free_at = now;
  for (uint64_t at = 0; status == 0 && at < copy->length;) {
    uint64_t left = copy->length - at, bytes = left < CHUNK ? left : CHUNK;
    pthread_mutex_unlock(&engine->lock);
    copy_slice(see(copy->to, copy->to_offset + at), see(copy->from, copy->from_offset + at), bytes,
               copy->length);
    pthread_mutex_lock(&engine->lock);
    at += bytes;
    status = pace(engine, bytes);
  }
  return status;
}

/* With the lock, which is released meanwhile. After the final status the copy may be freed. */
static void report(struct engine *engine, struct copy *copy, int status) {
  void (*wake)(void *) = job_of(copy)->wakes ? copy->wake : NULL;
  void *user = copy->user;
  atomic_store_explicit(&copy->status, status, memory_order_release);
  pthread_mutex_unlock(&engine->lock);
  if (wake)
    wake(user);
  pthread_mutex_lock(&engine->lock);
}

static void *engine_main(void *argument) {
  struct engine *engine = argument;
  prctl(PR_SET_TIMERSLACK, 1, 0, 0, 0); /* finer pacing than with the default 50 µs */
  pthread_mutex_lock(&engine->lock);
  while (!engine->stopping || !list_empty(&engine->queue)) {
    struct list *link = list_take(&engine->queue);
    if (!link) {
      pthread_cond_wait(&engine->work, &engine->lock);
      continue;
    }
    struct copy *copy = copy_of(link);
    engine->current = copy;
    engine->abandon = false;
    report(engine, copy, move(engine, copy));
    engine->current = NULL;
    pthread_cond_broadcast(&engine->done);
  }
  pthread_mutex_unlock(&engine->lock);
  return NULL;
}

/* With the lock. */
static int start_thread(struct engine *engine) {
  int system = thread_start(&engine->thread, engine_main, engine);
  if (system != 0)
    return error_set(HAUL_ELIMIT, system, "sim", "raise the limit on threads (ulimit -u)",
                     "no thread for the emulated DMA engine");
  char name[16];
  snprintf(name, sizeof name, "haul-sim:%u", (unsigned)(engine - engines) % SIM_DEVICES_MAX);
  pthread_setname_np(engine->thread, name);
  engine->running = true;
  return 0;
}

void engines_open(unsigned count) {
  pthread_condattr_t monotonic;
  pthread_condattr_init(&monotonic);
  pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
  for (unsigned i = 0; i < count; i++) {
    struct engine *engine = &engines[i];
    *engine = (struct engine){0};
    pthread_mutex_init(&engine->lock, NULL);
    pthread_cond_init(&engine->work, &monotonic);
    pthread_cond_init(&engine->done, NULL);
    list_init(&engine->queue);
  }
  pthread_condattr_destroy(&monotonic);
  engine_count = count;
}

void engines_close(void) {
  for (unsigned i = 0; i < engine_count; i++) {
    struct engine *engine = &engines[i];
    pthread_mutex_lock(&engine->lock);
    engine->stopping = true;
    pthread_cond_signal(&engine->work);
    pthread_mutex_unlock(&engine->lock);
    if (engine->running)
      pthread_join(engine->thread, NULL);
    pthread_cond_destroy(&engine->done);
    pthread_cond_destroy(&engine->work);
    pthread_mutex_destroy(&engine->lock);
  }
  engine_count = 0;
}

bool sim_reaches(const struct memory *own, const struct memory *other) {
  (void)own;
  return other->view || other->provider == &provider_sim;
}

int sim_copy_start(struct copy *copy) {
  int status = copy_may_start(copy, &provider_sim);
  if (status != 0)
    return status;
  const struct memory *own = copy->to->provider == &provider_sim ? copy->to : copy->from;
  struct engine *engine = &engines[own->place.device];
  struct job *job = job_of(copy);
  job->engine = engine;
  job->wakes = copy->wakes;
  job->due =
      sim_settings.latency_ns ? clock_after(clock_now(), (int64_t)sim_settings.latency_ns) : 0;
  atomic_store_explicit(&copy->status, 1, memory_order_relaxed);

  pthread_mutex_lock(&engine->lock);
  status = engine->running ? 0 : start_thread(engine);
  if (status == 0) {
    list_append(&engine->queue, &job->link);
    if (!engine->current)
      pthread_cond_signal(&engine->work);
  }
  pthread_mutex_unlock(&engine->lock);
  return status;
}

/* The engine reports under its lock, so it sees the flag or the poll sees the final status. */
static void wake_from_now(struct copy *copy) {
  struct engine *engine = job_of(copy)->engine;
  pthread_mutex_lock(&engine->lock);
  job_of(copy)->wakes = true;
  pthread_mutex_unlock(&engine->lock);
}

int sim_copy_poll(struct copy *copy) {
  if (copy->wakes && !fork_is_child() && atomic_load(&copy->status) == 1)
    wake_from_now(copy);
  int status = atomic_load_explicit(&copy->status, memory_order_acquire);
  return status < 0 && status != HAUL_ECANCELED
             ? error_set(status, 0, "sim", NULL, "the device's copy failed")
             : status;
}

void sim_copy_cancel(struct copy *copy) {
  int under_way = 1;
  if (fork_is_child()) { /* the engine's thread is not here, and its lock may stay locked */
    atomic_compare_exchange_strong(&copy->status, &under_way, HAUL_ECANCELED);
    return;
  }
  struct engine *engine = job_of(copy)->engine;
  pthread_mutex_lock(&engine->lock);
  /* Check again after each wait: while a former copy at this address was reported, this one was in
   * the queue. */
  while (engine->current == copy && pthread_self() != engine->thread) {
    engine->abandon = true;
    pthread_cond_signal(&engine->work);
    pthread_cond_wait(&engine->done, &engine->lock);
  }
  if (engine->current != copy && atomic_load(&copy->status) == 1) {
    list_remove(&job_of(copy)->link);
    atomic_store_explicit(&copy->status, HAUL_ECANCELED, memory_order_release);
  }
  pthread_mutex_unlock(&engine->lock);
}
