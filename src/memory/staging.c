/* SPDX-License-Identifier: MIT */
#include "memory/staging.h"

#include "core/alloc.h"
#include "core/error.h"
#include "core/futex.h"
#include "core/sys.h"
#include "memory/pages.h"

void staging_pin(struct staging *staging, struct memory *memory, int numa) {
  const struct provider *engine = atomic_load(&staging->engine);
  /* If a sandbox forbids mbind, pages come from the node of their first use. */
  if (numa >= 0)
    pages_prefer(memory->address, memory->length, (unsigned)numa, false);
  if (engine)
    engine->pin(staging->device, memory);
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

/* Not with the lock, as a driver may have to unpin the memory. */
static void bounce_free(struct bounce *bounce) {
  region_put(bounce->region);
  alloc_free(bounce);
}

static void bounce_free_all(struct list *bounces) {
  for (struct list *item; (item = list_take(bounces));)
    bounce_free(list_entry(item, struct bounce, link));
}

static int bounce_new(struct staging *staging, int numa, struct bounce **made) {
  struct bounce *bounce = alloc_zero(1, sizeof *bounce);
  if (!bounce)
    return error_memory("buffer for a device");
  list_init(&bounce->link);
  bounce->numa = numa;
  int code = heap_alloc(staging->heap, (struct haul_place){HAUL_HOST, 0}, BOUNCE_BYTES,
                        HAUL_REGION_PRIVATE | HAUL_REGION_PINNED, &bounce->region);
  if (code) {
    alloc_free(bounce);
    return code;
  }
  staging_pin(staging, &bounce->region->memory, numa);
  *made = bounce;
  return 0;
}

/* With the lock: moves idle buffers to `dead`, oldest first, until at most `most` exist. */
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
    struct bounce *bounce = list_entry(item, struct bounce, link);
    if (numa >= 0 && bounce->numa != numa)
      continue;
    list_remove(item);
    return bounce;
  }
  return NULL;
}

/* Gets a buffer that the user was counted for. If the limit is reached, a buffer of another NUMA
 * node is replaced, or taken from a pool that is full. */
static int bounce_get(struct staging *staging, int numa, struct bounce **bounce) {
  struct list dead = LIST_INIT(dead);
  pthread_mutex_lock(&staging->lock);
  *bounce = find_idle(staging, numa);
  if (!*bounce && staging->full)
    *bounce = find_idle(staging, -1);
  if (!*bounce) {
    trim(staging, staging->limit - staging->reserved - 1, &dead);
    staging->made++;
  }
  pthread_mutex_unlock(&staging->lock);
  bounce_free_all(&dead);
  int code = *bounce ? 0 : bounce_new(staging, numa, bounce);
  if (code == 0)
    return 0;
  pthread_mutex_lock(&staging->lock);
  staging->made--;
  pthread_mutex_unlock(&staging->lock);
  return code;
}

/* The queue; with the lock */

static size_t guaranteed(const struct staging *staging, unsigned kind) {
  return staging->used[kind] > STAGING_PAIR ? staging->used[kind] : STAGING_PAIR;
}

/* Do `count` more of this kind leave the other kind its guaranteed buffers? */
static bool staging_has_room(const struct staging *staging, enum staging_kind kind,
                             unsigned count) {
  size_t taken = staging->reserved + staging->used[kind] + count;
  for (unsigned i = 0; i < STAGING_KINDS; i++)
    taken += i == kind ? 0 : guaranteed(staging, i);
  return taken <= (staging->full ? staging->made + staging->reserved : staging->limit);
}

static struct staging_user *first_waiter(const struct staging *staging, unsigned kind) {
  struct list *first = staging->waiting[kind].next;
  return first == &staging->waiting[kind] ? NULL : list_entry(first, struct staging_user, link);
}

static void join_queue(struct staging_user *user, unsigned count) {
  user->wanted = count;
  if (user->waits_since != 0 || user->count >= STAGING_PAIR)
    return;
  user->waits_since = clock_now();
  user->staging->waits++;
  list_append(&user->staging->waiting[user->kind], &user->link);
}

static void leave_queue(struct staging_user *user) {
  list_remove(&user->link);
  user->waits_since = 0;
}

static void wake_next(struct staging *staging) {
  for (unsigned kind = 0; kind < STAGING_KINDS; kind++) {
    struct staging_user *first = first_waiter(staging, kind);
    if (first && staging_has_room(staging, kind, first->wanted))
      first->wake(first->context);
  }
}

void staging_user_init(struct staging *staging, struct staging_user *user, enum staging_kind kind,
                       unsigned most, void (*wake)(void *context), void *context) {
  *user = (struct staging_user){
      .staging = staging, .kind = kind, .most = most, .wake = wake, .context = context};
  list_init(&user->link);
}

static bool count_in(struct staging_user *user, unsigned count) {
  struct staging *staging = user->staging;
  pthread_mutex_lock(&staging->lock);
  const struct staging_user *first = first_waiter(staging, user->kind);
  bool may = user->count + count <= user->most && (!first || first == user) &&
             staging_has_room(staging, user->kind, count);
  if (may) {
    leave_queue(user);
    user->count += count;
    staging->used[user->kind] += count;
    wake_next(staging); /* one more may fit */
  } else {
    join_queue(user, count);
  }
  pthread_mutex_unlock(&staging->lock);
  return may;
}

/* With the lock. */
static void count_out(struct staging_user *user, unsigned count) {
  user->count -= count;
  user->staging->used[user->kind] -= count;
  wake_next(user->staging);
}

int staging_get(struct staging_user *user, unsigned count, int numa, struct bounce **bounces) {
  struct staging *staging = user->staging;
  int code = 0;
  unsigned got = 0;
  if (!count_in(user, count))
    return 1;
  while (got < count && (code = bounce_get(staging, numa, &bounces[got])) == 0)
    got++;
  if (code == 0)
    return 0;
  pthread_mutex_lock(&staging->lock);
  count_out(user, count - got);
  bool has_more = user->count > got;
  pthread_mutex_unlock(&staging->lock);
  while (got > 0)
    staging_put(user, bounces[--got]);
  return has_more ? 1 : code;
}

static void wake_thread(void *context) {
  _Atomic uint32_t *woken = context;
  atomic_store_explicit(woken, 1, memory_order_release);
  futex_wake(woken);
}

int staging_get_wait(struct staging *staging, struct staging_user *user, unsigned count, int numa,
                     struct bounce **bounces, haul_deadline until) {
  _Atomic uint32_t woken = 0;
  int code;
  staging_user_init(staging, user, STAGING_RECEIVE, count, wake_thread, &woken);
  while ((code = staging_get(user, count, numa, bounces)) == 1 && clock_now() < until) {
    futex_wait(&woken, 0, until);
    atomic_store(&woken, 0);
  }
  if (code == 1) {
    staging_cancel_wait(user);
    code =
        error_set(HAUL_ETIMEDOUT, 0, "staging", "allow more time, or raise `staging` in haul.conf",
                  "no bounce buffer became free by the deadline");
  }
  return code;
}

void staging_put(struct staging_user *user, struct bounce *bounce) {
  struct staging *staging = user->staging;
  pthread_mutex_lock(&staging->lock);
  bool keeps = !staging->closed, tells = keeps && !staging->expires;
  bounce->ends_at = clock_after(clock_now(), STAGING_IDLE_NS);
  if (keeps)
    list_prepend(&staging->idle, &bounce->link);
  else
    staging->made--;
  staging->expires |= keeps;
  count_out(user, 1);
  pthread_mutex_unlock(&staging->lock);
  if (!keeps)
    bounce_free(bounce);
  else if (tells)
    heap_keeps(staging->heap);
}

void staging_cancel_wait(struct staging_user *user) {
  if (atomic_load_explicit(&user->waits_since, memory_order_relaxed) == 0)
    return;
  pthread_mutex_lock(&user->staging->lock);
  leave_queue(user);
  user->staging->gave_up[user->kind] = clock_now();
  wake_next(user->staging);
  pthread_mutex_unlock(&user->staging->lock);
}

bool staging_is_short(struct staging *staging, enum staging_kind kind, int64_t since) {
  pthread_mutex_lock(&staging->lock);
  bool is_short = first_waiter(staging, kind) || staging->gave_up[kind] > since;
  pthread_mutex_unlock(&staging->lock);
  return is_short;
}

int staging_full(void) {
  return error_set(HAUL_ELIMIT, 0, "staging", "raise `staging` in haul.conf",
                   "all bounce buffers are in use by slow peers");
}

/* With the lock. Reservations count against the goal, but leave buffers for each kind of use. */
static bool lacks_buffers(const struct staging *staging) {
  return staging->made + staging->reserved < staging->goal ||
         staging->made < STAGING_PAIR * STAGING_KINDS;
}

/* Once for all threads: they need not wait for buffers that another one makes. */
static void fill(struct staging *staging, int numa) {
  pthread_mutex_lock(&staging->lock);
  while (staging->full && !staging->closed && lacks_buffers(staging)) {
    pthread_mutex_unlock(&staging->lock);
    struct bounce *bounce = NULL;
    bounce_new(staging, numa, &bounce);
    pthread_mutex_lock(&staging->lock);
    staging->full = bounce != NULL;
    if (bounce) {
      list_prepend(&staging->idle, &bounce->link);
      staging->made++;
    }
    wake_next(staging);
  }
  staging->filling = false;
  pthread_mutex_unlock(&staging->lock);
}

void staging_prepare(struct staging *staging, struct haul_place place) {
  const struct provider *engine = provider_of(place.kind);
  struct list dead = LIST_INIT(dead);
  if (!engine || !engine->pin)
    return;
  int numa = staging_numa(staging, place);
  uint64_t node = UINT64_C(1) << (unsigned)(numa + 1) % 64;
  pthread_mutex_lock(&staging->lock);
  if (!staging->engine) {
    staging->device = place.device;
    atomic_store(&staging->engine, engine);
    trim(staging, 0, &dead); /* these are not pinned */
  }
  if (!(staging->nodes & node))
    staging->goal += numa < 0 ? staging->limit : staging->limit / 2;
  if (staging->goal > staging->limit)
    staging->goal = staging->limit;
  staging->nodes |= node;
  bool fills = !staging->filling;
  staging->filling = staging->full = true;
  pthread_mutex_unlock(&staging->lock);
  bounce_free_all(&dead);
  if (fills)
    fill(staging, numa);
}

unsigned staging_reserve(struct staging *staging, unsigned wanted) {
  struct list dead = LIST_INIT(dead);
  pthread_mutex_lock(&staging->lock);
  size_t half = staging->limit / 2;
  size_t left = half > staging->reserved ? half - staging->reserved : 0, share = left / 4;
  size_t count = share < STAGING_PAIR ? STAGING_PAIR : share < wanted ? share : wanted;
  size_t taken = staging->reserved + count;
  for (unsigned i = 0; i < STAGING_KINDS; i++)
    taken += guaranteed(staging, i);
  if (count > left || taken > staging->limit)
    count = 0;
  staging->reserved += count;
  trim(staging, staging->limit - staging->reserved, &dead);
  pthread_mutex_unlock(&staging->lock);
  bounce_free_all(&dead);
  return (unsigned)count;
}

void staging_unreserve(struct staging *staging, unsigned count) {
  pthread_mutex_lock(&staging->lock);
  staging->reserved -= count;
  wake_next(staging);
  pthread_mutex_unlock(&staging->lock);
}

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
  bounce_free_all(&dead);
}

int64_t staging_expire(struct staging *staging, int64_t now) {
  struct list dead = LIST_INIT(dead);
  int64_t next = HAUL_FOREVER;
  pthread_mutex_lock(&staging->lock);
  while (!staging->full && !list_empty(&staging->idle) && next == HAUL_FOREVER) {
    struct bounce *oldest = list_entry(staging->idle.previous, struct bounce, link);
    if (oldest->ends_at > now)
      next = oldest->ends_at;
    else
      trim(staging, staging->made - 1, &dead);
  }
  staging->expires = next != HAUL_FOREVER;
  pthread_mutex_unlock(&staging->lock);
  bounce_free_all(&dead);
  return next;
}

void staging_counters(struct staging *staging, struct staging_counters *counters) {
  pthread_mutex_lock(&staging->lock);
  counters->bytes = (staging->made + staging->reserved) * BOUNCE_BYTES;
  counters->limit = staging->limit * BOUNCE_BYTES;
  counters->waits = staging->waits;
  pthread_mutex_unlock(&staging->lock);
}
