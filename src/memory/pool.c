/* SPDX-License-Identifier: MIT */
#include "memory/pool.h"

#include "core/fork.h"

static const size_t class_bytes[POOL_CLASSES] = {64u << 10, 1u << 20, 16u << 20, 256u << 20};

/* What a shard borrows from the pool at a time, so that it seldom has to. */
#define LOAN ((uint64_t)4 << 20)

void pool_open(struct pool *pool, size_t limit) {
  while (pool->classes < POOL_CLASSES && class_bytes[pool->classes] <= limit)
    pool->classes++;
  atomic_store(&pool->spare, limit);
  for (unsigned i = 0; i < POOL_SHARDS; i++)
    atomic_store(&pool->shards[i].life, i);
}

size_t pool_class_bytes(uint8_t size_class) {
  return class_bytes[size_class];
}

uint8_t pool_class(const struct pool *pool, struct haul_place place, size_t length) {
  if (place.kind >= POOL_KINDS || place.device >= POOL_DEVICES)
    return REGION_EXACT;
  uint8_t size_class = pool_class_of(length);
  return size_class < pool->classes ? size_class : REGION_EXACT;
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
static _Thread_local __attribute__((tls_model("initial-exec"))) uint32_t my_number;

static inline uint32_t me(void) {
  static _Atomic uint32_t last;
  while (__builtin_expect(my_number == 0, 0))
    my_number = atomic_fetch_add_explicit(&last, 1, memory_order_relaxed) + 1;
  return my_number;
}

static inline struct pool_shard *shard_of(struct pool *pool, uint32_t number) {
  return &pool->shards[number % POOL_SHARDS];
}

/* With the lock. Unique, as the shards' numbers interleave. */
static inline uint64_t next_life(struct pool_shard *shard) {
  uint64_t life = atomic_load_explicit(&shard->life, memory_order_relaxed) + POOL_SHARDS;
  atomic_store_explicit(&shard->life, life, memory_order_relaxed);
  return life;
}

static inline void make_room(struct pool_shard *shard, uint64_t bytes) {
  count(&shard->room, bytes);
}

/* ---- taking ---- */

/* What it is kept as. A small block of a GPU's that can be shared takes 2 MiB there. */
void pool_mark(struct haul_region *region) {
  size_t bytes = class_bytes[region->size_class];
  region->pool_slot =
      (uint16_t)slot_of(region->memory.place, region->memory.private, region->size_class);
  region->pool_bytes = region->memory.held > bytes ? region->memory.held : bytes;
}

/* With the lock. */
static inline struct haul_region *pop(struct pool_shard *shard, size_t slot) {
  struct haul_region *region = atomic_load_explicit(&shard->stacks[slot], memory_order_relaxed);
  if (__builtin_expect(region != NULL, 1)) {
    atomic_store_explicit(&shard->stacks[slot], region->next, memory_order_relaxed);
    region->generation = next_life(shard);
    make_room(shard, region->pool_bytes);
  }
  return region;
}

static struct haul_region *shard_take(struct pool_shard *shard, size_t slot) {
  /* Without the lock this is a guess; a wrong one costs a miss. */
  if (!atomic_load_explicit(&shard->stacks[slot], memory_order_relaxed))
    return NULL;
  spin_lock(&shard->lock);
  struct haul_region *region = pop(shard, slot);
  spin_unlock(&shard->lock);
  return region;
}

struct haul_region *pool_take(struct pool *pool, struct haul_place place, bool private,
                              uint8_t size_class) {
  size_t slot = slot_of(place, private, size_class);
  uint32_t number = me();
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

/* ---- giving ---- */

static _Atomic unsigned shunned; /* how many wait */

/* What is given after a shard was emptied meets the shard's lock, and so sees this. */
void pool_shun(void) {
  atomic_fetch_add_explicit(&shunned, 1, memory_order_relaxed);
}

void pool_resume(void) {
  atomic_fetch_sub_explicit(&shunned, 1, memory_order_relaxed);
}

static inline bool is_wanted(void) {
  return atomic_load_explicit(&shunned, memory_order_relaxed) == 0;
}

/* With the shard's lock: makes sure that it may keep `bytes` more. */
static bool borrow(struct pool *pool, struct pool_shard *shard, uint64_t bytes) {
  uint64_t room = atomic_load_explicit(&shard->room, memory_order_relaxed);
  uint64_t need = bytes - room, want = need > LOAN ? need : LOAN, loan;
  uint64_t spare = atomic_load_explicit(&pool->spare, memory_order_relaxed);
  do {
    if (spare < need)
      return false;
    loan = spare < want ? spare : want;
  } while (!atomic_compare_exchange_weak_explicit(&pool->spare, &spare, spare - loan,
                                                  memory_order_relaxed, memory_order_relaxed));
  count(&shard->lent, loan);
  make_room(shard, loan);
  return true;
}

static inline bool has_room(const struct pool_shard *shard, uint64_t bytes) {
  return atomic_load_explicit(&shard->room, memory_order_relaxed) >= bytes;
}

/* Takes back what the shards have borrowed and do not use. */
static void call_in_loans(struct pool *pool) {
  for (unsigned i = 0; i < POOL_SHARDS; i++) {
    struct pool_shard *shard = &pool->shards[i];
    spin_lock(&shard->lock);
    uint64_t room = atomic_load_explicit(&shard->room, memory_order_relaxed);
    atomic_fetch_add_explicit(&pool->spare, room, memory_order_relaxed);
    count(&shard->lent, -room);
    make_room(shard, -room);
    spin_unlock(&shard->lock);
  }
}

/* With the lock, and room for it. */
static inline void push(struct pool_shard *shard, struct haul_region *region) {
  struct haul_region *_Atomic *stack = &shard->stacks[region->pool_slot];
  region->next = atomic_load_explicit(stack, memory_order_relaxed);
  atomic_store_explicit(stack, region, memory_order_relaxed);
  make_room(shard, -region->pool_bytes);
  count(&shard->freed, 1);
}

static bool shard_give(struct pool *pool, struct pool_shard *shard, struct haul_region *region) {
  spin_lock(&shard->lock);
  bool kept = !shard->closed && is_wanted() &&
              (has_room(shard, region->pool_bytes) || borrow(pool, shard, region->pool_bytes));
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
  bool kept = is_wanted() && has_room(shard, region->pool_bytes);
  if (__builtin_expect(kept, 1))
    push(shard, region);
  spin_unlock(&shard->lock);
  return kept;
}

/* The second time with what the other shards have no use for. */
bool pool_give(struct pool *pool, struct haul_region *region) {
  uint32_t number = me();
  struct pool_shard *shard = shard_of(pool, number);
  if (shard_give(pool, shard, region))
    return true;
  call_in_loans(pool);
  if (shard_give(pool, shard, region))
    return true;
  spin_lock(&shard->lock);
  count(&shard->trimmed, 1);
  spin_unlock(&shard->lock);
  return false;
}

/* ---- the rest ---- */

/* With the lock: moves all that the shard keeps to the front of `list`. What is closed has no more
 * room. */
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
  uint64_t lent = shard->closed ? 0 : atomic_load_explicit(&shard->lent, memory_order_relaxed);
  atomic_store_explicit(&shard->lent, lent, memory_order_relaxed);
  atomic_store_explicit(&shard->room, lent, memory_order_relaxed);
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
  struct pool_shard *shard = shard_of(pool, me());
  spin_lock(&shard->lock);
  count(&shard->born, 1);
  uint64_t life = next_life(shard);
  spin_unlock(&shard->lock);
  return life;
}

void pool_died(struct pool *pool) {
  struct pool_shard *shard = shard_of(pool, me());
  spin_lock(&shard->lock);
  count(&shard->freed, 1);
  spin_unlock(&shard->lock);
}

void pool_counters(struct pool *pool, struct heap_counters *counters) {
  *counters = (struct heap_counters){0};
  for (unsigned i = 0; i < POOL_SHARDS; i++) {
    struct pool_shard *shard = &pool->shards[i];
    uint64_t lives = atomic_load_explicit(&shard->life, memory_order_relaxed) / POOL_SHARDS;
    uint64_t born = atomic_load_explicit(&shard->born, memory_order_relaxed);
    uint64_t lent = atomic_load_explicit(&shard->lent, memory_order_relaxed);
    uint64_t room = atomic_load_explicit(&shard->room, memory_order_relaxed);
    counters->allocated += lives;
    counters->freed += atomic_load_explicit(&shard->freed, memory_order_relaxed);
    counters->hits += lives > born ? lives - born : 0;
    counters->misses += atomic_load_explicit(&shard->misses, memory_order_relaxed);
    counters->pooled_bytes += lent > room ? lent - room : 0;
    counters->trimmed += atomic_load_explicit(&shard->trimmed, memory_order_relaxed);
  }
}
