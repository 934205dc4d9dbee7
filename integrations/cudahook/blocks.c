/* SPDX-License-Identifier: MIT */
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "hook.h"

#define SHARD_BITS 6
#define SHARDS     (1u << SHARD_BITS)
#define CHAINS     64u /* per shard */

static struct shard {
  pthread_mutex_t lock;
  struct block *chains[CHAINS];
} shards[SHARDS];

/* Set by the first insertion. Before it no lock is taken, as a process without a node cannot detect
 * its forked children, in which a lock may be held forever. */
static _Atomic bool used;

static __attribute__((constructor)) void make_locks(void) {
  for (size_t i = 0; i < SHARDS; i++)
    pthread_mutex_init(&shards[i].lock, NULL);
}

/* Addresses are multiples of 2 MiB; a product with the golden ratio spreads them over all chains.
 */
static struct shard *find_chain(const void *address, struct block ***chain) {
  uint64_t mixed = ((uintptr_t)address >> 12) * UINT64_C(0x9e3779b97f4a7c15);
  struct shard *shard = &shards[mixed >> (64 - SHARD_BITS)];
  *chain = &shard->chains[mixed >> (58 - SHARD_BITS) & (CHAINS - 1)];
  return shard;
}

/* With the shard's lock. */
static struct block *unlink_block(struct block **at, const void *address) {
  while (*at && (*at)->address != (const char *)address)
    at = &(*at)->next;
  struct block *block = *at;
  if (block)
    *at = block->next;
  return block;
}

struct block *blocks_insert(struct block *block) {
  struct block **chain;
  struct shard *shard = find_chain(block->address, &chain);
  atomic_store(&used, true);
  pthread_mutex_lock(&shard->lock);
  struct block *before = unlink_block(chain, block->address);
  block->next = *chain;
  *chain = block;
  pthread_mutex_unlock(&shard->lock);
  return before;
}

struct block *blocks_remove(const void *address) {
  struct block **chain;
  struct shard *shard = find_chain(address, &chain);
  if (!atomic_load(&used))
    return NULL;
  pthread_mutex_lock(&shard->lock);
  struct block *block = unlink_block(chain, address);
  pthread_mutex_unlock(&shard->lock);
  return block;
}

/* With the shard's lock. */
static struct block *move_blocks(struct block **at, int device, struct block *to) {
  while (*at) {
    struct block *block = *at;
    if (block->device != device) {
      at = &block->next;
      continue;
    }
    *at = block->next;
    block->next = to;
    to = block;
  }
  return to;
}

struct block *blocks_remove_all(int device) {
  struct block *taken = NULL;
  if (!atomic_load(&used))
    return NULL;
  for (struct shard *shard = shards; shard < shards + SHARDS; shard++) {
    pthread_mutex_lock(&shard->lock);
    for (size_t i = 0; i < CHAINS; i++)
      taken = move_blocks(&shard->chains[i], device, taken);
    pthread_mutex_unlock(&shard->lock);
  }
  return taken;
}

/* With the shard's lock. */
static struct block *find_inside(const struct shard *shard, const char *address) {
  for (size_t i = 0; i < CHAINS; i++)
    for (struct block *block = shard->chains[i]; block; block = block->next)
      if (address >= block->address && (size_t)(address - block->address) < block->bytes)
        return block;
  return NULL;
}

int blocks_use(const void *address, int (*use)(void *user, struct block *block), void *user) {
  struct block **chain;
  struct shard *home = find_chain(address, &chain);
  if (!atomic_load(&used))
    return HAUL_EINVAL;
  pthread_mutex_lock(&home->lock);
  struct block *block = *chain;
  while (block && block->address != (const char *)address)
    block = block->next;
  int code = block ? use(user, block) : HAUL_EINVAL;
  pthread_mutex_unlock(&home->lock);
  for (struct shard *shard = shards; shard < shards + SHARDS && !block; shard++) {
    pthread_mutex_lock(&shard->lock);
    block = find_inside(shard, address);
    code = block ? use(user, block) : HAUL_EINVAL;
    pthread_mutex_unlock(&shard->lock);
  }
  return code;
}
