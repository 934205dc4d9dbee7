/* SPDX-License-Identifier: MIT
 * Copies between mapped memories by a device's engine: one segment of a work at a time, many works
 * at once. */
#include "core/alloc.h"
#include "core/combiner.h"
#include "core/error.h"
#include "core/shrinkable.h"
#include "fabric/devcopy.h"
#include "fabric/map/map.h"
#include "memory/copy.h"
#include "memory/staging.h"

/* Tasks in flight: enough to keep the devices busy, few enough to poll or cancel all of them. */
#define WINDOW 64

struct task {
  struct list link; /* engines->tasks */
  bool ipc_begun;   /* ipc_end is due */
  struct engines *engines;
  struct work *work;
  bool waits; /* for bounce buffers; no copy is in flight */
  struct staging_user user;
  struct bounce *bounces[STAGING_PAIR]; /* NULL unless the engine asked for them */
  struct devcopy copy;
};

struct engines {
  struct loop *loop;
  struct staging *staging;
  /* Its lock guards the rest; taken after the loop's; `done` runs under it. Works are submitted
   * through it. */
  struct combiner combiner;
  struct list tasks;
  unsigned running;       /* length of `tasks` */
  struct backlog waiting; /* works beyond the window; their `state` is this struct */
  bool ended;             /* tasks are no longer polled */
  struct poller poller;
};

static struct devcopy_segment segment_of(const struct devcopy *copy, uint32_t index) {
  const struct task *task = copy->owner;
  const struct haul_piece *piece = &task->work->pieces[index];
  bool write = task->work->operation == HAUL_OP_WRITE;
  return (struct devcopy_segment){.to_offset = write ? piece->remote : piece->local,
                                  .from_offset = write ? piece->local : piece->remote,
                                  .length = piece->length};
}

static int get_bounces(struct task *task) {
  const struct work *work = task->work;
  const struct memory *device = &work->region->memory;
  if (device->view)
    device = binding_memory(work->binding);
  return staging_get(&task->user, STAGING_PAIR, staging_numa(task->user.staging, device->place),
                     task->bounces);
}

/* With the lock. 1: in flight or waiting for bounce buffers; 0: copied; or a code. */
static int task_poll(struct task *task) {
  int status = task->waits ? DEVCOPY_NEEDS_BOUNCE : devcopy_poll(&task->copy);
  if (status == DEVCOPY_NEEDS_BOUNCE && (status = get_bounces(task)) == 0) {
    for (unsigned i = 0; i < STAGING_PAIR; i++)
      task->copy.bounce[i] = bounce_memory(task->bounces[i]);
    task->waits = false;
    return devcopy_poll(&task->copy);
  }
  task->waits = status == 1 && !task->copy.in_flight;
  return status;
}

static int task_verify(const struct task *task) {
  struct work *work = task->work;
  struct map_binding *binding = work->binding;
  for (uint32_t i = 0; work->checksum && i < work->count; i++) {
    const struct haul_piece *piece = &work->pieces[i];
    uint64_t here, there;
    int code = memory_checksum(&work->region->memory, piece->local, piece->length, &here);
    if (code == 0)
      code = memory_checksum(binding_memory(binding), piece->remote, piece->length, &there);
    if (code)
      return code;
    if (here != there)
      return error_set(HAUL_ECHECKSUM, 0, NULL, NULL, "the device's copy differs from its source");
  }
  return 0;
}

/* With the lock. */
static void task_finish(struct task *task, int code) {
  struct work *work = task->work;
  list_remove(&task->link);
  task->engines->running--;
  work->state = NULL;
  devcopy_cancel(&task->copy);
  staging_cancel_wait(&task->user);
  for (unsigned i = 0; i < STAGING_PAIR && task->bounces[i]; i++)
    staging_put(&task->user, task->bounces[i]);
  if (task->ipc_begun)
    ipc_end((struct map_endpoint *)work->endpoint, work->binding);
  alloc_free(task);
  work->done(work, code);
}

static int task_complete(struct task *task) {
  struct work *work = task->work;
  struct map_binding *binding = work->binding;
  struct memory *to =
      work->operation == HAUL_OP_WRITE ? binding_memory(binding) : &work->region->memory;
  int code = memory_fence(to, FENCE_AFTER_WRITE);
  if (code == 0)
    code = task_verify(task);
  if (code == 0 && !map_alive((struct map_endpoint *)work->endpoint, binding->handle))
    code = map_stale();
  return code;
}

/* With the lock. True when the task moved on. */
static bool task_advance(struct task *task) {
  bool waited = task->waits;
  uint32_t before = task->copy.index;
  struct work *work = task->work;
  int status = task_poll(task);
  if (status > 0)
    return waited != task->waits || before != task->copy.index;
  if (status == 0)
    status = task_complete(task);
  endpoint_count(work->endpoint, work->operation, work->bytes, status);
  task_finish(task, status);
  return true;
}

/* A withdrawn region may be published again, and must not change by a work that begins later. */
static int check_and_map(struct work *work) {
  struct map_endpoint *endpoint = (struct map_endpoint *)work->endpoint;
  struct map_binding *binding = work->binding;
  return map_alive(endpoint, binding->handle) ? ipc_begin(endpoint, binding) : map_stale();
}

/* With the lock: begins or ends the first waiting work. False: an IPC mapping must close first. */
static bool begin_next(struct engines *engines, struct work *work) {
  struct map_endpoint *endpoint = (struct map_endpoint *)work->endpoint;
  int code = check_and_map(work);
  if (code > 0)
    return false;
  struct task *task = alloc_zero(1, sizeof *task);
  backlog_take(&engines->waiting);
  work_starts(work);
  if (!task) {
    if (code == 0)
      ipc_end(endpoint, work->binding);
    work->state = NULL;
    work->done(work, error_memory("device copy"));
    return true;
  }
  task->engines = engines;
  task->work = work;
  task->ipc_begun = code == 0;
  struct memory *remote = binding_memory(work->binding), *local = &work->region->memory;
  bool write = work->operation == HAUL_OP_WRITE;
  task->copy = (struct devcopy){.engine = map_engine_of(work),
                                .to = write ? remote : local,
                                .from = write ? local : remote,
                                .loop = engines->loop,
                                .count = work->count,
                                .segment = segment_of,
                                .owner = task};
  staging_user_init(engines->staging, &task->user, STAGING_RECEIVE, STAGING_PAIR,
                    loop_wake_callback, engines->loop);
  work->state = task;
  list_append(&engines->tasks, &task->link);
  engines->running++;
  if (code == 0)
    task_advance(task);
  else
    task_finish(task, code);
  return true;
}

/* With the lock. Not from a cancel, which would start works that it is about to cancel next. */
static bool fill_window(struct engines *engines) {
  bool started = false;
  struct list *first;
  while (engines->running < shrinkable(WINDOW, 1) && (first = backlog_first(&engines->waiting))) {
    if (!begin_next(engines, list_entry(first, struct work, link)))
      break;
    started = true;
  }
  return started;
}

/* With the lock: ends a waiting work. */
static void end_waiting(struct work *work, int code) {
  list_remove(&work->link);
  work->state = NULL;
  work->done(work, code);
}

static void engine_admit(struct combiner *combiner, struct list *works) {
  struct engines *engines = list_entry(combiner, struct engines, combiner);
  for (struct list *item; (item = list_take(works));) {
    struct work *work = list_entry(item, struct work, link);
    int canceled = atomic_load(&work->canceled);
    work->state = engines;
    backlog_add(&engines->waiting, item, work->rank);
    if (canceled)
      end_waiting(work, canceled);
    else if (engines->ended)
      end_waiting(work, error_set(HAUL_EPATH, 0, NULL, NULL, "the node is closed"));
  }
  fill_window(engines);
}

static bool poll_tasks(struct poller *poller) {
  struct engines *engines = list_entry(poller, struct engines, poller);
  bool moved = false;
  poller->urgent = false;
  combiner_lock(&engines->combiner);
  list_each_safe(item, &engines->tasks) {
    struct task *task = list_entry(item, struct task, link);
    moved |= task_advance(task);
  }
  moved |= fill_window(engines);
  list_each(item, &engines->tasks) {
    struct task *task = list_entry(item, struct task, link);
    poller->urgent |= devcopy_is_polled(&task->copy);
  }
  /* A work waits for a hazard cell, which a copy by the CPU may hold. */
  poller->urgent |= backlog_first(&engines->waiting) && engines->running < shrinkable(WINDOW, 1);
  combiner_unlock(&engines->combiner);
  if (moved)
    loop_notify(engines->loop);
  return moved;
}

int map_engines_open(struct fabric *fabric, struct engines **out) {
  struct engines *engines = alloc_zero(1, sizeof *engines);
  if (!engines)
    return error_memory("device copies");
  engines->loop = fabric->loop;
  engines->staging = heap_staging(fabric->heap);
  combiner_init(&engines->combiner, engine_admit);
  list_init(&engines->tasks);
  backlog_init(&engines->waiting);
  loop_lock(engines->loop);
  loop_poller_start(engines->loop, &engines->poller, poll_tasks);
  loop_unlock(engines->loop);
  *out = engines;
  return 0;
}

void map_engines_end(struct engines *engines) {
  combiner_lock(&engines->combiner);
  engines->ended = true;
  combiner_unlock(&engines->combiner);
  loop_lock(engines->loop);
  loop_poller_stop(engines->loop, &engines->poller);
  loop_unlock(engines->loop);
}

void map_engines_free(struct engines *engines) {
  combiner_destroy(&engines->combiner);
  alloc_free(engines);
}

void engine_post(struct engines *engines, const struct provider *by, struct work *work) {
  work->state = NULL;
  combiner_submit(&engines->combiner, &work->link);
  if (!by->wakes) /* the loop polls it */
    loop_wake(engines->loop);
}

int engine_try(struct engines *engines, struct map_endpoint *endpoint,
               struct map_binding *binding) {
  combiner_lock(&engines->combiner);
  int code = ipc_begin(endpoint, binding);
  if (code == 0)
    ipc_end(endpoint, binding);
  combiner_unlock(&engines->combiner);
  return code < 0 ? code : 0;
}

void engine_cancel(struct engines *engines, struct work *work, int code) {
  combiner_lock(&engines->combiner);
  if (work->state == engines)
    end_waiting(work, code);
  else if (work->state)
    task_finish(work->state, code);
  loop_wake(engines->loop); /* there may be room for waiting works */
  combiner_unlock(&engines->combiner);
}

void engine_drain(struct engines *engines, struct map_endpoint *endpoint, int code) {
  combiner_lock(&engines->combiner);
  for (unsigned rank = 0; rank < BACKLOG_RANKS; rank++)
    list_each_safe(item, &engines->waiting.queues[rank]) {
      struct work *work = list_entry(item, struct work, link);
      if (work->endpoint == &endpoint->base)
        end_waiting(work, code);
    }
  list_each_safe(item, &engines->tasks) {
    struct task *task = list_entry(item, struct task, link);
    if (task->work->endpoint == &endpoint->base)
      task_finish(task, code);
  }
  loop_wake(engines->loop);
  combiner_unlock(&engines->combiner);
}
