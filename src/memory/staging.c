/* SPDX-License-Identifier: MIT */
#include "memory/staging.h"

#include "core/alloc.h"
#include "core/error.h"
#include "core/futex.h"
#include "core/sys.h"
#include "memory/pages.h"

/* ---- Nodes ---- */

void staging_bind_numa(const struct memory *memory, int numa) {
  /* Where a sandbox forbids it the pages come from wherever the first use is made. */
  if (numa >= 0)
    pages_prefer(memory->address, memory->length, (unsigned)numa, false);
}

static int ask_numa(struct haul_place place) {
  const struct provider *provider = provider_of(place.kind);
  struct haul_device device = {.place = place, .numa = -1};
  if (provider && provider->describe)
    provider->describe(place.device, &device);
  return device.numa;
}

int staging_numa(struct staging *staging, struct haul_place place) {
  if (place.kind >= 8 || place.device >= 16 || !sys_ops.has_nodes())
    return -1;
  _Atomic int16_t *near = &staging->near[place.kind][place.device];
  int known = atomic_load_explicit(near, memory_order_relaxed);
  if (known == 0) {
    known = ask_numa(place) + 2;
    atomic_store_explicit(near, (int16_t)known, memory_order_relaxed);
  }
  return known - 2;
}

/* ---- Buffers ---- */

/* Without the lock: a driver may have to unpin it. */
static void end_stage(struct bounce *stage) {
  region_put(stage->region);
  alloc_free(stage);
}

static void end_stages(struct list *stages) {
  for (struct list *item; (item = list_take(stages));)
    end_stage(list_entry(item, struct bounce, link));
}

static int make_stage(struct heap *heap, int numa, struct bounce **made) {
  struct bounce *stage = alloc_zero(1, sizeof *stage);
  if (!stage)
    return error_memory("buffer for a device");
  list_init(&stage->link);
  stage->numa = numa;
  int code = heap_alloc(heap, (struct haul_place){HAUL_HOST, 0}, BOUNCE_BYTES,
                        HAUL_REGION_PRIVATE | HAUL_REGION_PINNED, &stage->region);
  if (code) {
    alloc_free(stage);
    return code;
  }
  staging_bind_numa(&stage->region->memory, numa);
  *made = stage;
  return 0;
}

/* With the lock: the idle ones that are too many, the oldest first. */
static void trim(struct staging *staging, size_t most, struct list *dead) {
  while (staging->made > most && !list_empty(&staging->idle)) {
    struct list *oldest = staging->idle.previous;
    list_remove(oldest);
    list_append(dead, oldest);
    staging->made--;
  }
}

/* With the lock. */
static struct bounce *find_idle(struct staging *staging, int numa) {
  list_each(item, &staging->idle) {
    struct bounce *stage = list_entry(item, struct bounce, link);
    if (numa >= 0 && stage->numa != numa)
      continue;
    list_remove(item);
    return stage;
  }
  return NULL;
}

/* One that the user was counted for; where all there may be lie elsewhere, in place of one. */
static int get_stage(struct staging *staging, int numa, struct bounce **stage) {
  struct list dead = LIST_INIT(dead);
  pthread_mutex_lock(&staging->lock);
  *stage = find_idle(staging, numa);
  if (!*stage) {
    trim(staging, staging->limit - staging->lent - 1, &dead);
    staging->made++;
  }
  pthread_mutex_unlock(&staging->lock);
  end_stages(&dead);
  int code = *stage ? 0 : make_stage(staging->heap, numa, stage);
  if (code == 0)
    return 0;
  pthread_mutex_lock(&staging->lock);
  staging->made--;
  pthread_mutex_unlock(&staging->lock);
  return code;
}

/* ---- Turns; with the lock ---- */

static size_t kept_for(const struct staging *staging, unsigned kind) {
  return staging->used[kind] > STAGING_PAIR ? staging->used[kind] : STAGING_PAIR;
}

/* So many more of this kind leave the other what is its own. */
static bool has_room(const struct staging *staging, enum staging_kind kind, unsigned count) {
  size_t taken = staging->lent + staging->used[kind] + count;
  for (unsigned i = 0; i < STAGING_KINDS; i++)
    taken += i == kind ? 0 : kept_for(staging, i);
  return taken <= staging->limit;
}

static struct staging_user *first_of(const struct staging *staging, unsigned kind) {
  struct list *first = staging->waiting[kind].next;
  return first == &staging->waiting[kind] ? NULL : list_entry(first, struct staging_user, link);
}

static bool is_next(const struct staging_user *user) {
  struct staging_user *first = first_of(user->staging, user->kind);
  return !first || first == user;
}

static void stand_in_line(struct staging_user *user, unsigned count) {
  user->wanted = count;
  if (user->waits_since != 0 || user->held >= STAGING_PAIR)
    return;
  user->waits_since = clock_now();
  user->staging->waits++;
  list_append(&user->staging->waiting[user->kind], &user->link);
}

static void leave_line(struct staging_user *user) {
  list_remove(&user->link);
  user->waits_since = 0;
}

static void wake_next(struct staging *staging) {
  for (unsigned kind = 0; kind < STAGING_KINDS; kind++) {
    struct staging_user *first = first_of(staging, kind);
    if (first && has_room(staging, kind, first->wanted))
      first->wake(first->context);
  }
}

/* ---- Taking ---- */

void staging_user_init(struct staging *staging, struct staging_user *user, enum staging_kind kind,
                       unsigned most, void (*wake)(void *context), void *context) {
  *user = (struct staging_user){
      .staging = staging, .kind = kind, .most = most, .wake = wake, .context = context};
  list_init(&user->link);
}

static bool count_in(struct staging_user *user, unsigned count) {
  struct staging *staging = user->staging;
  pthread_mutex_lock(&staging->lock);
  bool may =
      user->held + count <= user->most && is_next(user) && has_room(staging, user->kind, count);
  if (may) {
    leave_line(user);
    user->held += count;
    staging->used[user->kind] += count;
    wake_next(staging); /* there may be enough for one more */
  } else {
    stand_in_line(user, count);
  }
  pthread_mutex_unlock(&staging->lock);
  return may;
}

/* With the lock. */
static void count_out(struct staging_user *user, unsigned count) {
  user->held -= count;
  user->staging->used[user->kind] -= count;
  wake_next(user->staging);
}

int staging_get(struct staging_user *user, unsigned count, int numa, struct bounce **stages) {
  struct staging *staging = user->staging;
  int code = 0;
  unsigned got = 0;
  if (!count_in(user, count))
    return 1;
  while (got < count && (code = get_stage(staging, numa, &stages[got])) == 0)
    got++;
  if (code == 0)
    return 0;
  pthread_mutex_lock(&staging->lock);
  count_out(user, count - got);
  bool has_more = user->held > got;
  pthread_mutex_unlock(&staging->lock);
  while (got > 0)
    staging_put(user, stages[--got]);
  return has_more ? 1 : code;
}

static void wake_thread(void *context) {
  _Atomic uint32_t *woken = context;
  atomic_store_explicit(woken, 1, memory_order_release);
  futex_wake(woken);
}

int staging_get_wait(struct staging *staging, struct staging_user *user, unsigned count, int numa,
                     struct bounce **stages, haul_deadline until) {
  _Atomic uint32_t woken = 0;
  int code;
  staging_user_init(staging, user, STAGING_RECEIVE, count, wake_thread, &woken);
  while ((code = staging_get(user, count, numa, stages)) == 1 && clock_now() < until) {
    futex_wait(&woken, 0, until);
    atomic_store(&woken, 0);
  }
  if (code == 1) {
    staging_cancel_wait(user);
    code = error_set(HAUL_ETIMEDOUT, 0, "staging",
                     "allow more time, or set more staging buffers (`staging` in haul.conf)",
                     "no staging buffer came free by the deadline");
  }
  return code;
}

void staging_put(struct staging_user *user, struct bounce *stage) {
  struct staging *staging = user->staging;
  pthread_mutex_lock(&staging->lock);
  bool keeps = !staging->closed, tells = keeps && !staging->expires;
  stage->ends_at = clock_after(clock_now(), STAGING_IDLE_NS);
  if (keeps)
    list_prepend(&staging->idle, &stage->link);
  else
    staging->made--;
  staging->expires |= keeps;
  count_out(user, 1);
  pthread_mutex_unlock(&staging->lock);
  if (!keeps)
    end_stage(stage);
  else if (tells)
    heap_keeps(staging->heap);
}

void staging_cancel_wait(struct staging_user *user) {
  if (atomic_load_explicit(&user->waits_since, memory_order_relaxed) == 0)
    return;
  pthread_mutex_lock(&user->staging->lock);
  leave_line(user);
  wake_next(user->staging);
  pthread_mutex_unlock(&user->staging->lock);
}

bool staging_is_short(struct staging *staging, enum staging_kind kind) {
  pthread_mutex_lock(&staging->lock);
  bool is_short = first_of(staging, kind);
  pthread_mutex_unlock(&staging->lock);
  return is_short;
}

int staging_full(void) {
  return error_set(HAUL_ELIMIT, 0, "staging", "set more of them (`staging` in haul.conf)",
                   "all staging buffers are in use, by peers that are too slow");
}

/* ---- Lending ---- */

unsigned staging_reserve(struct staging *staging, unsigned wanted) {
  struct list dead = LIST_INIT(dead);
  pthread_mutex_lock(&staging->lock);
  size_t half = staging->limit / 2;
  size_t left = half > staging->lent ? half - staging->lent : 0, share = left / 4;
  size_t count = share < STAGING_PAIR ? STAGING_PAIR : share < wanted ? share : wanted;
  size_t taken = staging->lent + count;
  for (unsigned i = 0; i < STAGING_KINDS; i++)
    taken += kept_for(staging, i);
  if (count > left || taken > staging->limit)
    count = 0;
  staging->lent += count;
  trim(staging, staging->limit - staging->lent, &dead);
  pthread_mutex_unlock(&staging->lock);
  end_stages(&dead);
  return (unsigned)count;
}

void staging_unreserve(struct staging *staging, unsigned count) {
  pthread_mutex_lock(&staging->lock);
  staging->lent -= count;
  wake_next(staging);
  pthread_mutex_unlock(&staging->lock);
}

/* ---- Life ---- */

void staging_open(struct staging *staging, struct heap *heap) {
  staging->heap = heap;
  staging->limit = STAGING_DEFAULT / BOUNCE_BYTES;
  pthread_mutex_init(&staging->lock, NULL);
  list_init(&staging->idle);
  for (unsigned kind = 0; kind < STAGING_KINDS; kind++)
    list_init(&staging->waiting[kind]);
}

void staging_limit(struct staging *staging, size_t bytes) {
  staging->limit = bytes / BOUNCE_BYTES;
}

void staging_close(struct staging *staging) {
  struct list dead = LIST_INIT(dead);
  pthread_mutex_lock(&staging->lock);
  staging->closed = true;
  trim(staging, 0, &dead);
  pthread_mutex_unlock(&staging->lock);
  end_stages(&dead);
}

int64_t staging_expire(struct staging *staging, int64_t now) {
  struct list dead = LIST_INIT(dead);
  int64_t next = HAUL_FOREVER;
  pthread_mutex_lock(&staging->lock);
  while (!list_empty(&staging->idle) && next == HAUL_FOREVER) {
    struct bounce *oldest = list_entry(staging->idle.previous, struct bounce, link);
    if (oldest->ends_at > now)
      next = oldest->ends_at;
    else
      trim(staging, staging->made - 1, &dead);
  }
  staging->expires = next != HAUL_FOREVER;
  pthread_mutex_unlock(&staging->lock);
  end_stages(&dead);
  return next;
}

void staging_counters(struct staging *staging, struct staging_counters *counters) {
  pthread_mutex_lock(&staging->lock);
  counters->bytes = (staging->made + staging->lent) * BOUNCE_BYTES;
  counters->limit = staging->limit * BOUNCE_BYTES;
  counters->waits = staging->waits;
  pthread_mutex_unlock(&staging->lock);
}
