/* SPDX-License-Identifier: MIT */
#include "memory/pool.h"

#include "core/fork.h"
#include "core/sys.h"

#define SMALL  ((size_t)64 << 10)
#define MEDIUM ((size_t)1 << 20)
#define STEP   ((size_t)2 << 20)

/* Bytes of the pool's limit that a shard takes at a time, so that it seldom touches `spare`. */
#define BUDGET_STEP ((uint64_t)4 << 20)

#define SWEEP_NS  INT64_C(1000000000) /* at least between two sweeps of a full pool */
#define LOOK_DEEP 8u                  /* regions of other slots that a take passes */

size_t pool_class_bytes(uint8_t size_class) {
  return size_class == 0 ? SMALL : size_class == 1 ? MEDIUM : (size_class - 1) * STEP;
}

__attribute__((cold)) void pool_open(struct pool *pool, size_t limit) {
  while (pool->classes < POOL_CLASSES && pool_class_bytes(pool->classes) <= limit)
    pool->classes++;
  atomic_store(&pool->spare, limit);
  for (unsigned i = 0; i < POOL_SHARDS; i++)
    atomic_store(&pool->shards[i].life, i);
}

static inline uint8_t class_of(size_t length) {
  if (length <= SMALL)
    return 0;
  if (length <= MEDIUM)
    return length > MEDIUM / 4 ? 1 : REGION_EXACT;
  size_t size_class = (length - 1) / STEP + 2;
  return size_class < POOL_CLASSES ? (uint8_t)size_class : REGION_EXACT;
}

uint8_t pool_class(const struct pool *pool, struct haul_place place, size_t length) {
  if (place.kind >= POOL_KINDS || place.device >= POOL_DEVICES)
    return REGION_EXACT;
  uint8_t size_class = class_of(length);
  return size_class < pool->classes ? size_class : REGION_EXACT;
}

static inline size_t slot_of(struct haul_place place, bool private, uint8_t size_class) {
  size_t slot = (size_t)place.device * POOL_KINDS + place.kind;
  return (slot * 2 + private) * POOL_STRIDE + size_class;
}

/* With the lock. There is one writer, so a plain load and store are enough. */
static inline void count(_Atomic uint64_t *counter, uint64_t by) {
  uint64_t value = atomic_load_explicit(counter, memory_order_relaxed);
  atomic_store_explicit(counter, value + by, memory_order_relaxed);
}

/* A thread has only a number, so its end needs no cleanup. initial-exec saves a call to
 * __tls_get_addr; four bytes fit the static TLS that the loader reserves for dlopen. */
static _Thread_local __attribute__((tls_model("initial-exec"))) uint32_t my_number;

static inline uint32_t thread_number(void) {
  static _Atomic uint32_t last;
  while (__builtin_expect(my_number == 0, 0))
    my_number = atomic_fetch_add_explicit(&last, 1, memory_order_relaxed) + 1;
  return my_number;
}

static inline struct pool_shard *shard_of(struct pool *pool, uint32_t number) {
  return &pool->shards[number % POOL_SHARDS];
}

/* With the lock. Unique: shard i issues only values that are i modulo POOL_SHARDS. */
static inline uint64_t next_life(struct pool_shard *shard) {
  uint64_t life = atomic_load_explicit(&shard->life, memory_order_relaxed) + POOL_SHARDS;
  atomic_store_explicit(&shard->life, life, memory_order_relaxed);
  return life;
}

void pool_mark(struct haul_region *region) {
  size_t bytes = pool_class_bytes(region->size_class);
  region->pool_slot =
      (uint16_t)slot_of(region->memory.place, region->memory.private, region->size_class);
  region->pool_bytes = region->memory.footprint > bytes ? region->memory.footprint : bytes;
}

/* One size at two devices gets two stacks. */
static inline struct haul_region *_Atomic *stack_of(struct pool_shard *shard, size_t slot) {
  return &shard->stacks[(slot ^ slot / POOL_STRIDE) % POOL_STACKS];
}

/* With the lock: unlinks the first region of the slot that lies under regions of others. */
static __attribute__((noinline)) struct haul_region *pop_below(struct haul_region *above,
                                                               size_t slot) {
  for (unsigned i = 0; i < LOOK_DEEP && above && above->next; i++, above = above->next) {
    struct haul_region *region = above->next;
    if (region->pool_slot != slot)
      continue;
    above->next = region->next;
    return region;
  }
  return NULL;
}

/* With the lock. */
static inline struct haul_region *pop(struct pool_shard *shard, size_t slot) {
  struct haul_region *_Atomic *stack = stack_of(shard, slot);
  struct haul_region *region = atomic_load_explicit(stack, memory_order_relaxed);
  if (__builtin_expect(region && region->pool_slot == slot, 1))
    atomic_store_explicit(stack, region->next, memory_order_relaxed);
  else
    region = pop_below(region, slot);
  if (__builtin_expect(region != NULL, 1)) {
    region->generation = next_life(shard);
    count(&shard->room, region->pool_bytes);
  }
  return region;
}

static struct haul_region *shard_take(struct pool_shard *shard, size_t slot) {
  /* Read without the lock: a stale value costs a miss at most. */
  if (!atomic_load_explicit(stack_of(shard, slot), memory_order_relaxed))
    return NULL;
  spin_lock(&shard->lock);
  struct haul_region *region = pop(shard, slot);
  spin_unlock(&shard->lock);
  return region;
}

__attribute__((cold)) struct haul_region *pool_take(struct pool *pool, struct haul_place place,
                                                    bool private, uint8_t size_class) {
  size_t slot = slot_of(place, private, size_class);
  uint32_t number = thread_number();
  for (unsigned i = 0; i < POOL_SHARDS; i++) {
    struct haul_region *region = shard_take(&pool->shards[(number + i) % POOL_SHARDS], slot);
    if (region)
      return region;
  }
  struct pool_shard *shard = shard_of(pool, number);
  spin_lock(&shard->lock);
  count(&shard->misses, 1);
  spin_unlock(&shard->lock);
  return NULL;
}

struct haul_region *pool_take_quickly(struct pool *pool, struct haul_place place, bool private,
                                      uint8_t size_class) {
  uint32_t number = my_number;
  struct pool_shard *shard = shard_of(pool, number);
  if (number == 0 || !spin_try(&shard->lock))
    return NULL;
  struct haul_region *region = pop(shard, slot_of(place, private, size_class));
  spin_unlock(&shard->lock);
  return region;
}

static _Atomic unsigned paused; /* calls of pool_pause that no pool_resume has followed yet */

/* pool_give takes the shard's lock after pool_empty released it, and so sees `paused`. */
void pool_pause(void) {
  atomic_fetch_add_explicit(&paused, 1, memory_order_relaxed);
}

void pool_resume(void) {
  atomic_fetch_sub_explicit(&paused, 1, memory_order_relaxed);
}

static inline bool keeps_regions(void) {
  return atomic_load_explicit(&paused, memory_order_relaxed) == 0;
}

/* With the shard's lock: grows the shard's budget until `bytes` more fit. */
static __attribute__((cold)) bool grow_budget(struct pool *pool, struct pool_shard *shard,
                                              uint64_t bytes) {
  uint64_t room = atomic_load_explicit(&shard->room, memory_order_relaxed);
  uint64_t need = bytes - room, want = need > BUDGET_STEP ? need : BUDGET_STEP, taken;
  uint64_t spare = atomic_load_explicit(&pool->spare, memory_order_relaxed);
  do {
    if (spare < need)
      return false;
    taken = spare < want ? spare : want;
  } while (!atomic_compare_exchange_weak_explicit(&pool->spare, &spare, spare - taken,
                                                  memory_order_relaxed, memory_order_relaxed));
  count(&shard->budget, taken);
  count(&shard->room, taken);
  return true;
}

static inline bool shard_has_room(const struct pool_shard *shard, uint64_t bytes) {
  return atomic_load_explicit(&shard->room, memory_order_relaxed) >= bytes;
}

/* With the lock; the room was checked. */
static inline void push(struct pool_shard *shard, struct haul_region *region) {
  struct haul_region *_Atomic *stack = stack_of(shard, region->pool_slot);
  region->next = atomic_load_explicit(stack, memory_order_relaxed);
  atomic_store_explicit(stack, region, memory_order_relaxed);
  count(&shard->room, -region->pool_bytes);
  count(&shard->freed, 1);
}

static bool shard_give(struct pool *pool, struct pool_shard *shard, struct haul_region *region) {
  spin_lock(&shard->lock);
  bool kept =
      !shard->closed && keeps_regions() &&
      (shard_has_room(shard, region->pool_bytes) || grow_budget(pool, shard, region->pool_bytes));
  if (kept)
    push(shard, region);
  spin_unlock(&shard->lock);
  return kept;
}

bool pool_give_quickly(struct pool *pool, struct haul_region *region) {
  uint32_t number = my_number;
  struct pool_shard *shard = shard_of(pool, number);
  if (number == 0 || !spin_try(&shard->lock))
    return false;
  /* A closed shard has no room. */
  bool kept = keeps_regions() && shard_has_room(shard, region->pool_bytes);
  if (__builtin_expect(kept, 1))
    push(shard, region);
  spin_unlock(&shard->lock);
  return kept;
}

/* With the lock: moves the regions of a stack to the front of `list`; returns their number. */
static __attribute__((cold)) uint64_t drop_stack(struct pool_shard *shard, size_t stack,
                                                 struct haul_region **list) {
  struct haul_region *region = atomic_load_explicit(&shard->stacks[stack], memory_order_relaxed);
  uint64_t dropped = 0;
  for (struct haul_region *next; region; region = next, dropped++) {
    next = region->next;
    region->next = *list;
    *list = region;
    count(&shard->room, region->pool_bytes);
  }
  atomic_store_explicit(&shard->stacks[stack], NULL, memory_order_relaxed);
  return dropped;
}

/* With the lock: drops the stacks that gave nothing since the last sweep. */
static __attribute__((cold)) void sweep(struct pool_shard *shard, struct haul_region **list) {
  for (size_t i = 0; i < POOL_STACKS; i++) {
    const struct haul_region *top = atomic_load_explicit(&shard->stacks[i], memory_order_relaxed);
    if (top && top->generation <= shard->swept)
      count(&shard->trimmed, drop_stack(shard, i, list));
  }
  shard->swept = atomic_load_explicit(&shard->life, memory_order_relaxed);
}

static bool sweep_is_due(struct pool *pool) {
  int64_t now = clock_now(), due = atomic_load_explicit(&pool->sweep_at, memory_order_relaxed);
  return now >= due && atomic_compare_exchange_strong(&pool->sweep_at, &due, now + SWEEP_NS);
}

/* Returns the unused part of each shard's budget to the pool, and regions that it should drop. */
static __attribute__((cold)) struct haul_region *reclaim_budgets(struct pool *pool) {
  struct haul_region *list = NULL;
  bool due = sweep_is_due(pool);
  for (unsigned i = 0; i < POOL_SHARDS; i++) {
    struct pool_shard *shard = &pool->shards[i];
    spin_lock(&shard->lock);
    if (due)
      sweep(shard, &list);
    uint64_t room = atomic_load_explicit(&shard->room, memory_order_relaxed);
    atomic_fetch_add_explicit(&pool->spare, room, memory_order_relaxed);
    count(&shard->budget, -room);
    count(&shard->room, -room);
    spin_unlock(&shard->lock);
  }
  return list;
}

__attribute__((cold)) struct haul_region *pool_give(struct pool *pool, struct haul_region *region) {
  struct pool_shard *shard = shard_of(pool, thread_number());
  if (shard_give(pool, shard, region))
    return NULL;
  struct haul_region *list = reclaim_budgets(pool);
  if (shard_give(pool, shard, region))
    return list;
  spin_lock(&shard->lock);
  count(&shard->trimmed, 1);
  count(&shard->freed, 1);
  spin_unlock(&shard->lock);
  region->next = list;
  return region;
}

/* With the lock: moves the shard's regions to the front of `list`. A closed shard has no budget. */
static __attribute__((cold)) void shard_empty(struct pool_shard *shard, struct haul_region **list) {
  for (size_t i = 0; i < POOL_STACKS; i++)
    drop_stack(shard, i, list);
  if (shard->closed) {
    atomic_store_explicit(&shard->budget, 0, memory_order_relaxed);
    atomic_store_explicit(&shard->room, 0, memory_order_relaxed);
  }
}

__attribute__((cold)) struct haul_region *pool_empty(struct pool *pool, bool close) {
  struct haul_region *list = NULL;
  for (unsigned i = 0; i < POOL_SHARDS; i++) {
    struct pool_shard *shard = &pool->shards[i];
    if (!fork_is_child())
      spin_lock(&shard->lock);
    else if (!spin_try(&shard->lock))
      continue;
    shard->closed |= close;
    shard_empty(shard, &list);
    spin_unlock(&shard->lock);
  }
  return list;
}

__attribute__((cold)) uint64_t pool_born(struct pool *pool) {
  struct pool_shard *shard = shard_of(pool, thread_number());
  spin_lock(&shard->lock);
  count(&shard->born, 1);
  uint64_t life = next_life(shard);
  spin_unlock(&shard->lock);
  return life;
}

__attribute__((cold)) void pool_died(struct pool *pool) {
  struct pool_shard *shard = shard_of(pool, thread_number());
  spin_lock(&shard->lock);
  count(&shard->freed, 1);
  spin_unlock(&shard->lock);
}

__attribute__((cold)) void pool_counters(struct pool *pool, struct heap_counters *counters) {
  *counters = (struct heap_counters){0};
  for (unsigned i = 0; i < POOL_SHARDS; i++) {
    struct pool_shard *shard = &pool->shards[i];
    uint64_t lives = atomic_load_explicit(&shard->life, memory_order_relaxed) / POOL_SHARDS;
    uint64_t born = atomic_load_explicit(&shard->born, memory_order_relaxed);
    uint64_t budget = atomic_load_explicit(&shard->budget, memory_order_relaxed);
    uint64_t room = atomic_load_explicit(&shard->room, memory_order_relaxed);
    counters->allocated += lives;
    counters->freed += atomic_load_explicit(&shard->freed, memory_order_relaxed);
    counters->hits += lives > born ? lives - born : 0;
    counters->misses += atomic_load_explicit(&shard->misses, memory_order_relaxed);
    counters->pooled_bytes += budget > room ? budget - room : 0;
    counters->trimmed += atomic_load_explicit(&shard->trimmed, memory_order_relaxed);
  }
}
