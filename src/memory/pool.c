/* SPDX-License-Identifier: MIT */
#include "memory/pool.h"

#include "core/fork.h"

static const size_t class_bytes[POOL_CLASSES] = {64u << 10, 1u << 20, 16u << 20, 256u << 20};

/* What a shard borrows from the pool at a time, so that it seldom has to. */
#define LOAN ((uint64_t)4 << 20)

void pool_open(struct pool *pool, size_t limit) {
  pool->limit = limit;
  atomic_store(&pool->spare, limit);
}

size_t pool_class_bytes(uint8_t size_class) {
  return class_bytes[size_class];
}

uint8_t pool_class(const struct pool *pool, struct haul_place place, size_t length) {
  if (place.kind >= POOL_KINDS || place.device >= POOL_DEVICES)
    return REGION_EXACT;
  uint8_t size_class = pool_class_of(length);
  return size_class != REGION_EXACT && class_bytes[size_class] <= pool->limit ? size_class
                                                                              : REGION_EXACT;
}

uint8_t pool_class_of(size_t length) {
  for (uint8_t i = 0; i < POOL_CLASSES; i++)
    if (length <= class_bytes[i])
      return i == 0 || length > class_bytes[i] / 4 ? i : REGION_EXACT;
  return REGION_EXACT;
}

static size_t slot_of(struct haul_place place, bool private, uint8_t size_class) {
  size_t slot = (size_t)place.kind * POOL_DEVICES + place.device;
  return (slot * 2 + private) * POOL_CLASSES + size_class;
}

/* ---- shards ---- */

/* With the lock there is one writer, and a locked instruction is not needed. */
static inline void count(_Atomic uint64_t *counter, uint64_t by) {
  uint64_t value = atomic_load_explicit(counter, memory_order_relaxed);
  atomic_store_explicit(counter, value + by, memory_order_relaxed);
}

/* A number, not a resource: nothing has to be done when the thread ends. initial-exec saves a call;
 * four bytes fit what the loader keeps for libraries opened later. */
static _Thread_local __attribute__((tls_model("initial-exec"))) unsigned my_number;

static inline unsigned my_shard(void) {
  static _Atomic unsigned next;
  if (__builtin_expect(my_number == 0, 0))
    my_number = 1 + atomic_fetch_add_explicit(&next, 1, memory_order_relaxed) % POOL_SHARDS;
  return my_number - 1;
}

/* With the lock. Unique, as the shards' numbers interleave. */
static inline uint64_t next_life(const struct pool *pool, struct pool_shard *shard) {
  return ++shard->lives * POOL_SHARDS + (uint64_t)(shard - pool->shards);
}

/* ---- taking ---- */

/* What keeping it takes: a small block of a GPU's that can be shared is 2 MiB there. */
static inline size_t weight_of(const struct haul_region *region) {
  size_t bytes = class_bytes[region->size_class];
  return region->memory.held > bytes ? region->memory.held : bytes;
}

static inline struct haul_region *shard_take(struct pool *pool, struct pool_shard *shard,
                                             size_t slot) {
  /* Without the lock this is a guess; a wrong one costs a miss. */
  if (!atomic_load_explicit(&shard->stacks[slot], memory_order_relaxed))
    return NULL;
  spin_lock(&shard->lock);
  struct haul_region *region = atomic_load_explicit(&shard->stacks[slot], memory_order_relaxed);
  if (region) {
    atomic_store_explicit(&shard->stacks[slot], region->next, memory_order_relaxed);
    region->generation = next_life(pool, shard);
    size_t bytes = weight_of(region);
    shard->room += bytes;
    count(&shard->kept, -(uint64_t)bytes);
    count(&shard->hits, 1);
    count(&shard->allocated, 1);
  }
  spin_unlock(&shard->lock);
  return region;
}

struct haul_region *pool_take(struct pool *pool, struct haul_place place, bool private,
                              uint8_t size_class) {
  size_t slot = slot_of(place, private, size_class);
  unsigned mine = my_shard();
  for (unsigned i = 0; i < POOL_SHARDS; i++) {
    struct pool_shard *shard = &pool->shards[(mine + i) % POOL_SHARDS];
    struct haul_region *region = shard_take(pool, shard, slot);
    if (region)
      return region;
  }
  struct pool_shard *shard = &pool->shards[mine];
  spin_lock(&shard->lock);
  count(&shard->misses, 1);
  spin_unlock(&shard->lock);
  return NULL;
}

/* ---- giving ---- */

static _Atomic unsigned shunned; /* how many wait */

/* What is given after a shard was emptied meets the shard's lock, and so sees this. */
void pool_shun(void) {
  atomic_fetch_add_explicit(&shunned, 1, memory_order_relaxed);
}

void pool_resume(void) {
  atomic_fetch_sub_explicit(&shunned, 1, memory_order_relaxed);
}

static inline bool is_open(const struct pool_shard *shard) {
  return !shard->closed && atomic_load_explicit(&shunned, memory_order_relaxed) == 0;
}

/* With the shard's lock: makes sure that it may keep `bytes` more. */
static bool borrow(struct pool *pool, struct pool_shard *shard, uint64_t bytes) {
  if (shard->room >= bytes)
    return true;
  uint64_t need = bytes - shard->room, want = need > LOAN ? need : LOAN, loan;
  uint64_t spare = atomic_load_explicit(&pool->spare, memory_order_relaxed);
  do {
    if (spare < need)
      return false;
    loan = spare < want ? spare : want;
  } while (!atomic_compare_exchange_weak_explicit(&pool->spare, &spare, spare - loan,
                                                  memory_order_relaxed, memory_order_relaxed));
  shard->room += loan;
  return true;
}

/* Takes back what the shards have borrowed and do not use. */
static void call_in_loans(struct pool *pool) {
  for (unsigned i = 0; i < POOL_SHARDS; i++) {
    struct pool_shard *shard = &pool->shards[i];
    spin_lock(&shard->lock);
    atomic_fetch_add_explicit(&pool->spare, shard->room, memory_order_relaxed);
    shard->room = 0;
    spin_unlock(&shard->lock);
  }
}

static inline bool shard_give(struct pool *pool, struct pool_shard *shard,
                              struct haul_region *region, bool last_try) {
  size_t bytes = weight_of(region);
  size_t slot = slot_of(region->memory.place, region->memory.private, region->size_class);
  spin_lock(&shard->lock);
  bool kept = is_open(shard) && borrow(pool, shard, bytes);
  if (kept) {
    region->next = atomic_load_explicit(&shard->stacks[slot], memory_order_relaxed);
    atomic_store_explicit(&shard->stacks[slot], region, memory_order_relaxed);
    shard->room -= bytes;
    count(&shard->kept, bytes);
    count(&shard->freed, 1);
  } else if (last_try) {
    count(&shard->trimmed, 1);
  }
  spin_unlock(&shard->lock);
  return kept;
}

bool pool_give(struct pool *pool, struct haul_region *region) {
  struct pool_shard *shard = &pool->shards[my_shard()];
  if (__builtin_expect(shard_give(pool, shard, region, false), 1))
    return true;
  call_in_loans(pool);
  return shard_give(pool, shard, region, true);
}

/* ---- the rest ---- */

/* With the lock: moves all that the shard keeps to the front of `list`. */
static struct haul_region *shard_empty(struct pool_shard *shard, struct haul_region *list) {
  for (size_t slot = 0; slot < POOL_SLOTS; slot++) {
    struct haul_region *region = atomic_load_explicit(&shard->stacks[slot], memory_order_relaxed);
    while (region) {
      struct haul_region *next = region->next;
      region->next = list;
      list = region;
      region = next;
    }
    atomic_store_explicit(&shard->stacks[slot], NULL, memory_order_relaxed);
  }
  shard->room += atomic_load_explicit(&shard->kept, memory_order_relaxed);
  atomic_store_explicit(&shard->kept, 0, memory_order_relaxed);
  return list;
}

struct haul_region *pool_empty(struct pool *pool, bool close) {
  struct haul_region *list = NULL;
  for (unsigned i = 0; i < POOL_SHARDS; i++) {
    struct pool_shard *shard = &pool->shards[i];
    if (!fork_is_child())
      spin_lock(&shard->lock);
    else if (!spin_try(&shard->lock))
      continue;
    shard->closed |= close;
    list = shard_empty(shard, list);
    spin_unlock(&shard->lock);
  }
  return list;
}

uint64_t pool_born(struct pool *pool) {
  struct pool_shard *shard = &pool->shards[my_shard()];
  spin_lock(&shard->lock);
  count(&shard->allocated, 1);
  uint64_t life = next_life(pool, shard);
  spin_unlock(&shard->lock);
  return life;
}

void pool_died(struct pool *pool) {
  struct pool_shard *shard = &pool->shards[my_shard()];
  spin_lock(&shard->lock);
  count(&shard->freed, 1);
  spin_unlock(&shard->lock);
}

void pool_counters(struct pool *pool, struct heap_counters *counters) {
  *counters = (struct heap_counters){0};
  for (unsigned i = 0; i < POOL_SHARDS; i++) {
    struct pool_shard *shard = &pool->shards[i];
    counters->allocated += atomic_load_explicit(&shard->allocated, memory_order_relaxed);
    counters->freed += atomic_load_explicit(&shard->freed, memory_order_relaxed);
    counters->hits += atomic_load_explicit(&shard->hits, memory_order_relaxed);
    counters->misses += atomic_load_explicit(&shard->misses, memory_order_relaxed);
    counters->pooled_bytes += atomic_load_explicit(&shard->kept, memory_order_relaxed);
    counters->trimmed += atomic_load_explicit(&shard->trimmed, memory_order_relaxed);
  }
}
