/* SPDX-License-Identifier: MIT
 * Copies between mapped memories that a device's engine makes: one piece of a work at a time, many
 * works at once. */
#include "core/alloc.h"
#include "core/combiner.h"
#include "core/error.h"
#include "fabric/map/map.h"
#include "memory/copy.h"
#include "memory/staging.h"

/* Tasks that the devices have at a time: enough to keep them busy, and few enough that looking at
 * all of them, or canceling them, takes no time to speak of. */
#define WINDOW 64

struct task {
  struct list link; /* engines->tasks */
  bool lent;        /* ipc_end is due */
  struct engines *engines;
  const struct provider *by;
  struct work *work;
  uint32_t piece; /* under way */
  bool waits;     /* for its buffers, and nothing is under way */
  struct staging_user user;
  struct bounce *stages[STAGING_PAIR]; /* for an engine that asks for them, else NULL */
  struct copy copy;
};

struct engines {
  struct loop *loop;
  struct staging *staging;
  /* Its lock: tasks and what they hold; taken after the loop's; `done` runs under it. It brings
   * works. */
  struct combiner combiner;
  struct list tasks;
  unsigned running;       /* of them */
  struct backlog waiting; /* works, for room in the window; their `state` is this */
  bool ended;             /* nobody looks at tasks any more; lock */
  struct poller poller;
};

static int start_copy(struct task *task) {
  struct work *work = task->work;
  const struct haul_piece *piece = &work->pieces[task->piece];
  struct memory *remote = binding_memory(work->binding);
  bool write = work->operation == HAUL_OP_WRITE;
  task->copy = (struct copy){
      .to = write ? remote : &work->region->memory,
      .from = write ? &work->region->memory : remote,
      .to_offset = write ? piece->remote : piece->local,
      .from_offset = write ? piece->local : piece->remote,
      .length = piece->length,
      .through = {bounce_memory(task->stages[0]), bounce_memory(task->stages[1])},
      .wake = loop_wake_callback,
      .user = task->engines->loop,
  };
  int code = task->by->copy_start(&task->copy);
  if (code)
    task->copy.to = NULL; /* there is nothing to cancel */
  return code;
}

static int take_stages(struct task *task) {
  const struct work *work = task->work;
  const struct memory *device = &work->region->memory;
  if (device->view)
    device = binding_memory(work->binding);
  return staging_get(&task->user, STAGING_PAIR, staging_numa(task->user.staging, device->place),
                     task->stages);
}

static void give_stages(struct task *task) {
  staging_cancel_wait(&task->user);
  for (unsigned i = 0; i < STAGING_PAIR && task->stages[i]; i++)
    staging_put(&task->user, task->stages[i]);
}

/* 0; 1: it waits for its turn to have buffers; or a code. */
static int start_piece(struct task *task) {
  int code = task->waits ? 1 : start_copy(task);
  if (code == 1 && (code = take_stages(task)) == 0)
    code = start_copy(task);
  task->waits = code == 1;
  return code;
}

static int verify(const struct task *task) {
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
static void finish(struct task *task, int code) {
  struct work *work = task->work;
  list_remove(&task->link);
  task->engines->running--;
  work->state = NULL;
  if (task->copy.to)
    task->by->copy_cancel(&task->copy); /* it has ended, but its wake may be on its way */
  give_stages(task);
  if (task->lent)
    ipc_end((struct map_endpoint *)work->endpoint, work->binding);
  alloc_free(task);
  work->done(work, code);
}

static int complete(struct task *task) {
  struct work *work = task->work;
  struct map_binding *binding = work->binding;
  struct memory *to =
      work->operation == HAUL_OP_WRITE ? binding_memory(binding) : &work->region->memory;
  int code = memory_fence(to, FENCE_AFTER_WRITE);
  if (code == 0)
    code = verify(task);
  if (code == 0 && !map_alive((struct map_endpoint *)work->endpoint, binding->handle))
    code = error_set(HAUL_ESTALE, 0, NULL, "look it up again", "the peer withdrew the region");
  return code;
}

/* With the lock. True when something happened. */
static bool start_or_finish(struct task *task) {
  int code = start_piece(task);
  if (code < 0)
    finish(task, code);
  return code != 1;
}

/* With the lock. Moves the task on as far as it goes; true when something happened. */
static bool advance(struct task *task) {
  if (task->waits)
    return start_or_finish(task);
  int status = task->by->copy_poll(&task->copy);
  if (status > 0)
    return false;
  if (status == 0 && ++task->piece < task->work->count)
    start_or_finish(task);
  else
    finish(task, status == 0 ? complete(task) : status);
  return true;
}

/* With the lock: the first one that waits begins, or ends at once. 1: what is lent has to be given
 * back before. */
static int begin_next(struct engines *engines, struct work *work) {
  struct map_endpoint *endpoint = (struct map_endpoint *)work->endpoint;
  int code = ipc_begin(endpoint, work->binding);
  if (code > 0)
    return 1;
  struct task *task = alloc_zero(1, sizeof *task);
  backlog_take(&engines->waiting);
  work_starts(work);
  if (!task) {
    if (code == 0)
      ipc_end(endpoint, work->binding);
    work->state = NULL;
    work->done(work, error_memory("device copy"));
    return 0;
  }
  task->engines = engines;
  task->work = work;
  task->lent = code == 0;
  task->by = map_engine_of(work);
  staging_user_init(engines->staging, &task->user, STAGING_RECEIVE, STAGING_PAIR,
                    loop_wake_callback, engines->loop);
  work->state = task;
  list_append(&engines->tasks, &task->link);
  engines->running++;
  if (code == 0)
    start_or_finish(task);
  else
    finish(task, code);
  return 0;
}

/* With the lock. Only from posts and polls: a cancel that made room does not start what it is about
 * to cancel next. */
static bool fill_window(struct engines *engines) {
  bool started = false;
  struct list *first;
  while (engines->running < WINDOW && (first = backlog_first(&engines->waiting))) {
    if (begin_next(engines, list_entry(first, struct work, link)))
      break;
    started = true;
  }
  return started;
}

/* With the lock. One that waits. */
static void leave(struct work *work, int code) {
  list_remove(&work->link);
  work->state = NULL;
  work->done(work, code);
}

static void admit(struct combiner *combiner, struct list *works) {
  struct engines *engines = list_entry(combiner, struct engines, combiner);
  for (struct list *item; (item = list_take(works));) {
    struct work *work = list_entry(item, struct work, link);
    int canceled = atomic_load(&work->canceled);
    work->state = engines;
    backlog_add(&engines->waiting, item, work->rank);
    if (canceled)
      leave(work, canceled);
    else if (engines->ended)
      leave(work, error_set(HAUL_EPATH, 0, NULL, NULL, "the node is closed"));
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
    moved |= advance(task);
  }
  moved |= fill_window(engines);
  list_each(item, &engines->tasks) {
    struct task *task = list_entry(item, struct task, link);
    poller->urgent |= !task->by->wakes && !task->waits;
  }
  /* One waits for a cell, which may be that of a copy by the CPU. */
  poller->urgent |= backlog_first(&engines->waiting) && engines->running < WINDOW;
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
  combiner_init(&engines->combiner, admit);
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
  if (!by->wakes) /* somebody has to look */
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
    leave(work, code);
  else if (work->state)
    finish(work->state, code);
  loop_wake(engines->loop); /* there may be room for those that wait */
  combiner_unlock(&engines->combiner);
}

void engine_drain(struct engines *engines, struct map_endpoint *endpoint, int code) {
  combiner_lock(&engines->combiner);
  for (unsigned rank = 0; rank < BACKLOG_RANKS; rank++)
    list_each_safe(item, &engines->waiting.queues[rank]) {
      struct work *work = list_entry(item, struct work, link);
      if (work->endpoint == &endpoint->base)
        leave(work, code);
    }
  list_each_safe(item, &engines->tasks) {
    struct task *task = list_entry(item, struct task, link);
    if (task->work->endpoint == &endpoint->base)
      finish(task, code);
  }
  loop_wake(engines->loop);
  combiner_unlock(&engines->combiner);
}
