/* SPDX-License-Identifier: MIT
 * Copies between mapped memories by a device's engine. A task copies one work, or several of one
 * transfer that wait next to each other; many tasks run at once. */
#include "core/alloc.h"
#include "core/combiner.h"
#include "core/error.h"
#include "core/shrinkable.h"
#include "core/sys.h"
#include "fabric/devcopy.h"
#include "fabric/map/map.h"
#include "memory/copy.h"
#include "memory/staging.h"

/* Tasks in flight: enough to keep the devices busy, few enough to poll or cancel all of them. */
#define WINDOW 64

/* Bytes of a task of several works: some 20 us within a GPU at 2 TB/s, 80 us by PCIe at 50 GB/s. A
 * work of a better rank waits for at most as many tasks as the device copies at a time. */
#define TASK_INSIDE ((uint64_t)32 << 20)
#define TASK_BYTES  ((uint64_t)4 << 20)
#define TASK_WORKS  32u
#define GROWS_NS    200000 /* many times as long as a call posts the works of a task */
#define TASK_PIECES 1024u

struct task {
  struct list link; /* engines->tasks */
  bool ipc_begun;   /* ipc_end is due */
  struct engines *engines;
  struct work *works[TASK_WORKS]; /* at least one; of one transfer and one binding */
  uint32_t work_count;
  bool waits; /* for bounce buffers; no copy is in flight */
  struct staging_user user;
  struct bounce *bounces[STAGING_PAIR]; /* NULL unless the engine asked for them */
  struct devcopy copy;
  struct copy_segment segments[]; /* adjacent pieces are one */
};

struct engines {
  struct loop *loop;
  struct staging *staging;
  /* Its lock guards the rest; taken after the loop's; `done` runs under it. Works are submitted
   * through it. */
  struct combiner combiner;
  struct list tasks;
  unsigned running; /* length of `tasks` */
  int64_t
      grows_since; /* when the first waiting group began to wait for more works; 0: it does not */
  struct backlog waiting; /* works beyond the window; their `state` is this struct */
  bool ended;             /* tasks are no longer polled */
  struct poller poller;
};

static struct copy_segment segment_of(const struct devcopy *copy, uint32_t index, uint64_t before) {
  (void)before;
  return ((const struct task *)copy->owner)->segments[index];
}

static void add_segment(struct task *task, const struct copy_segment *segment) {
  struct copy_segment *last = &task->segments[task->copy.count - 1];
  if (task->copy.count > 0 && last->to_offset + last->length == segment->to_offset &&
      last->from_offset + last->length == segment->from_offset)
    last->length += segment->length;
  else
    task->segments[task->copy.count++] = *segment;
}

static void add_work(struct task *task, struct work *work) {
  bool write = work->operation == HAUL_OP_WRITE;
  for (uint32_t i = 0; i < work->count; i++) {
    const struct haul_piece *piece = &work->pieces[i];
    add_segment(task, &(struct copy_segment){.to_offset = write ? piece->remote : piece->local,
                                             .from_offset = write ? piece->local : piece->remote,
                                             .length = piece->length});
  }
  task->works[task->work_count++] = work;
  work->state = task;
}

static int get_bounces(struct task *task) {
  const struct work *work = task->works[0];
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

static int work_verify(const struct work *work) {
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
  struct work *first = task->works[0];
  list_remove(&task->link);
  task->engines->running--;
  devcopy_cancel(&task->copy);
  staging_cancel_wait(&task->user);
  for (unsigned i = 0; i < STAGING_PAIR && task->bounces[i]; i++)
    staging_put(&task->user, task->bounces[i]);
  if (task->ipc_begun)
    ipc_end((struct map_endpoint *)first->endpoint, first->binding);
  struct haul_error why;
  error_save(&why);
  for (uint32_t i = 0; i < task->work_count; i++) {
    struct work *work = task->works[i];
    work->state = NULL;
    error_restore(&why);
    work->done(work, code);
  }
  alloc_free(task);
}

static int task_complete(struct task *task) {
  struct work *first = task->works[0];
  struct map_binding *binding = first->binding;
  struct memory *to =
      first->operation == HAUL_OP_WRITE ? binding_memory(binding) : &first->region->memory;
  int code = memory_fence(to, FENCE_AFTER_WRITE);
  for (uint32_t i = 0; code == 0 && i < task->work_count; i++)
    code = work_verify(task->works[i]);
  if (code == 0 && !map_alive((struct map_endpoint *)first->endpoint, binding->handle))
    code = map_stale();
  return code;
}

/* With the lock. True when the task moved on. */
static bool task_advance(struct task *task) {
  bool waited = task->waits;
  uint32_t before = task->copy.index;
  int status = task_poll(task);
  if (status > 0)
    return waited != task->waits || before != task->copy.index;
  if (status == 0)
    status = task_complete(task);
  for (uint32_t i = 0; i < task->work_count; i++) {
    const struct work *work = task->works[i];
    endpoint_count(work->endpoint, work->operation, work->bytes, status);
  }
  task_finish(task, status);
  return true;
}

/* A withdrawn region may be published again, and must not change by a work that begins later. */
static int check_and_map(struct work *work) {
  struct map_endpoint *endpoint = (struct map_endpoint *)work->endpoint;
  struct map_binding *binding = work->binding;
  return map_alive(endpoint, binding->handle) ? ipc_begin(endpoint, binding) : map_stale();
}

/* The works that wait behind one another and make a task. */
struct group {
  uint64_t bytes;
  uint32_t works, pieces;
};

/* Bytes of a group that begins with this work. */
static uint64_t group_room(const struct work *first) {
  bool inside = !first->region->memory.view && !binding_memory(first->binding)->view;
  return inside ? TASK_INSIDE : TASK_BYTES;
}

/* Adds the work to the group that begins with `first`. False: it does not belong to it. */
static bool group_add(struct group *group, const struct work *first, const struct work *work) {
  if (group->works > 0 &&
      (work->owner != first->owner || work->binding != first->binding ||
       group->works == shrinkable(TASK_WORKS, 1) ||
       group->bytes + work->bytes > group_room(first) || group->pieces + work->count > TASK_PIECES))
    return false;
  group->works++;
  group->pieces += work->count;
  group->bytes += work->bytes;
  return true;
}

/* The first waiting work and those behind it. *grows: it has room for works that follow at once. */
static struct group group_first(const struct engines *engines, bool *grows) {
  struct group group = {0};
  const struct work *first = list_entry(backlog_first(&engines->waiting), struct work, link);
  *grows = false;
  list_each(item, &engines->waiting.queues[first->rank]) {
    const struct work *work = list_entry(item, struct work, link);
    if (!group_add(&group, first, work)) {
      *grows = false;
      break;
    }
    *grows = work->more && !work->last && group.bytes < group_room(first) &&
             group.works < shrinkable(TASK_WORKS, 1) && group.pieces < TASK_PIECES;
  }
  return group;
}

/* Takes the first work, and then those behind it, whatever other ranks wait. */
static struct work *take(struct engines *engines, const struct work *first) {
  struct list *item =
      first ? list_take(&engines->waiting.queues[first->rank]) : backlog_take(&engines->waiting);
  struct work *work = list_entry(item, struct work, link);
  work->state = NULL;
  work_starts(work);
  return work;
}

static void task_prepare(struct task *task, struct engines *engines, struct work *first) {
  struct memory *remote = binding_memory(first->binding), *local = &first->region->memory;
  bool write = first->operation == HAUL_OP_WRITE;
  task->engines = engines;
  task->copy = (struct devcopy){.engine = map_engine_of(first),
                                .to = write ? remote : local,
                                .from = write ? local : remote,
                                .loop = engines->loop,
                                .segment = segment_of,
                                .owner = task};
  staging_user_init(engines->staging, &task->user, STAGING_RECEIVE, STAGING_PAIR,
                    loop_wake_callback, engines->loop);
}

/* With the lock: begins or ends a group of waiting works. False: an IPC mapping must close first.
 */
static bool begin_group(struct engines *engines, const struct group *group) {
  struct work *first = list_entry(backlog_first(&engines->waiting), struct work, link);
  int code = check_and_map(first);
  if (code > 0)
    return false;
  struct task *task = alloc_zero(1, sizeof *task + group->pieces * sizeof task->segments[0]);
  if (!task) {
    if (code == 0)
      ipc_end((struct map_endpoint *)first->endpoint, first->binding);
    take(engines, NULL)->done(first, error_memory("device copy"));
    return true;
  }
  task_prepare(task, engines, first);
  task->ipc_begun = code == 0;
  for (uint32_t i = 0; i < group->works; i++)
    add_work(task, take(engines, i > 0 ? first : NULL));
  list_append(&engines->tasks, &task->link);
  engines->running++;
  if (code == 0)
    task_advance(task);
  else
    task_finish(task, code);
  return true;
}

/* With the lock. Does the group wait for works that follow at once? Only while a task runs, and not
 * for long: the loop polls meanwhile, and the caller may have been interrupted. */
static bool awaits_more(struct engines *engines, bool grows) {
  int64_t now = clock_now();
  if (!grows || engines->running == 0)
    return false;
  if (engines->grows_since == 0)
    engines->grows_since = now;
  return now < clock_after(engines->grows_since, GROWS_NS);
}

/* With the lock. Not from a cancel, which would start works that it is about to cancel next. */
static bool fill_window(struct engines *engines) {
  bool started = false, grows;
  while (engines->running < shrinkable(WINDOW, 1) && backlog_first(&engines->waiting)) {
    struct group group = group_first(engines, &grows);
    if (awaits_more(engines, grows) || !begin_group(engines, &group))
      break;
    engines->grows_since = 0;
    started = true;
  }
  return started;
}

/* With the lock: ends a waiting work. */
static void end_waiting(struct work *work, int code) {
  struct engines *engines = work->state;
  engines->grows_since = 0;
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

void engine_post(struct engines *engines, struct work *work) {
  work->state = NULL;
  combiner_submit(&engines->combiner, &work->link);
  loop_wake(engines->loop); /* it polls the engine */
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
    if (task->works[0]->endpoint == &endpoint->base)
      task_finish(task, code);
  }
  loop_wake(engines->loop);
  combiner_unlock(&engines->combiner);
}
