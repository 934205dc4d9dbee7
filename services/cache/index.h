/* SPDX-License-Identifier: MIT
 * The store's index and the room of its blocks. The slots are in the region, where clients read
 * them and a restart finds them; order of use, pins and the map of units are private memory, as
 * nothing that others can write may be believed. One thread at a time: the store's lock. */
#ifndef HAUL_CACHE_INDEX_H
#define HAUL_CACHE_INDEX_H

#include <stdbool.h>
#include <stdint.h>

#include "cache/format.h"

#define NO_SLOT UINT32_MAX

/* A list of slots in the order of use. */
struct use_list {
  uint32_t first, last; /* most and least recently used */
};

/* What is private of a slot. */
struct track {
  uint32_t newer, older;
  int64_t pinned_until;
};

/* Copies a block from `offset` of its region to offset `to` of the region below. 0 or a HAUL_E…
 * code. */
typedef int block_copy(void *user, uint64_t offset, uint64_t to, uint64_t length);

struct index {
  struct index *below; /* tier that keeps evicted blocks; NULL: they are lost */
  block_copy *copy;    /* to there; NULL: by the processor */
  void *user;          /* of `copy` */
  uint8_t *base;       /* of the region; NULL: the blocks are apart */
  struct header *header;
  struct slot *slots;
  uint64_t slot_count, units;
  uint32_t *holders; /* of each unit: FREE, BUSY or slot number + 2 */
  struct track *tracks;
  struct use_list lists[3]; /* by priority */
  uint64_t free_units, pinned_units, cursor;
  uint64_t last_version;
};

/* The length of a region for this capacity in bytes and number of blocks; 0: out of bounds. */
uint64_t index_length(uint64_t capacity, uint64_t blocks);

/* The part of it before the blocks. */
uint64_t index_slots_length(uint64_t capacity, uint64_t blocks);

/* Makes a new store in zeroed memory of index_length() bytes. HAUL_ENOMEM. */
int index_create(struct index *index, void *memory, uint64_t capacity, uint64_t blocks);
/* The same in index_slots_length() bytes: the blocks are apart, in memory that the processor may
 * not reach, and their offsets count from its start. */
int index_create_apart(struct index *index, void *memory, uint64_t capacity, uint64_t blocks);
/* Finds the blocks in memory that a store has used before, and drops damaged ones. HAUL_EINVAL: it
 * has none. HAUL_ENOMEM. */
int index_restore(struct index *index, void *memory, uint64_t length);
void index_close(struct index *index);
/* From now on evicted blocks move to `below`, whose blocks are not apart. Of a key that both have,
 * the newer block stays. Tiers are joined from the bottom up. */
void index_put_below(struct index *index, struct index *below);
/* Evicts the least recently used block of the lowest priority, pinned or not; false: there is none.
 */
bool index_evict_next(struct index *index, int64_t now);

uint32_t index_find(const struct index *index, const void *key, size_t length);
/* Whether the index or one below has the key. */
bool index_has(struct index *index, const void *key, size_t length);
/* Removes the block of the key, if it is older, also below. */
void index_drop_older(struct index *index, const void *key, size_t length, uint64_t version);

struct block {
  const void *key;
  size_t key_length;
  uint64_t offset, length; /* reserved room */
  uint64_t checksum;
  uint64_t version; /* 0: set to a new one */
  int priority;
  bool spare; /* makes no other be lost: evicts only to free room below */
};

/* Room for block->length bytes, by evicting others if necessary; sets block->offset. No reader
 * finds it before the commit. HAUL_ELIMIT. */
int index_reserve(struct index *index, struct block *block, int64_t now);
void index_cancel(struct index *index, const struct block *block);

/* Makes the block that of its key, whose bytes are in its room, also below. An older version than
 * the key has is dropped. The room is freed on failure. HAUL_EEXIST (with `if_absent`), HAUL_ELIMIT
 * (no slot is free or may be freed), HAUL_EINVAL (the version is more than a day ahead of the
 * clock).
 */
int index_commit(struct index *index, struct block *block, bool if_absent, int64_t now);

void index_remove(struct index *index, uint32_t slot);
/* `until` 0 ends all pins. HAUL_ELIMIT. */
int index_pin(struct index *index, uint32_t slot, int64_t until, int64_t now);
/* The block was used, if the slot still has this sequence number. */
void index_use(struct index *index, uint64_t slot, uint64_t sequence);

#endif
