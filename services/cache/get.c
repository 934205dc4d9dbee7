/* SPDX-License-Identifier: MIT
 * get and exists: reads from the stores' regions, without requests.
 *
 * A key passes the stages FIND (read its buckets), READ (its block) and VERIFY (the sequence number
 * of its slot, format.h). All keys of a stage are read at the same time, in one transfer for each
 * store. Where a copy and a checksum take less time than one more read, as for small blocks over
 * tcp, READ and VERIFY are one transfer, to scratch memory: the checksum proves that the bytes are
 * whole, and the number that they are the present ones. Not for blocks in the memory of a device,
 * which are in another region than the numbers. */
#include <string.h>
#include <xxhash.h>

#include "cache/client.h"
#include "common/fail.h"

#define CHECK_NS_PER_BYTE 0.2  /* XXH3 and memcpy in the caches: each 10 GB/s and more */
#define STAGING           4096 /* of the scratch memory, after the sequence numbers: small blocks */

struct get {
  haul_region *to; /* NULL: exists */
  bool small;      /* READ and VERIFY are one transfer */
};

/* Writes the segments of one key in a stage, at most two; returns their number. */
typedef unsigned piece_maker(const struct batch *batch, unsigned number, struct haul_piece *pieces);

struct group {
  haul_transfer *transfer;
  unsigned member;
  haul_deadline began;
  int code;
};

/* The tier that the key's stage reads. */
static unsigned tier_of(const struct batch *batch, const struct want *want) {
  const struct link *link = batch->links[want->member];
  return want->stage == FIND ? link->order[want->step % link->tiers] : want->location.tier;
}

static uint64_t scratch_of(unsigned number) {
  return number * 2 * BUCKET_BYTES;
}

static const void *scratch_at(const struct batch *batch, uint64_t offset) {
  return (const uint8_t *)haul_region_address(batch->scratch) + offset;
}

static unsigned pieces_to_find(const struct batch *batch, unsigned number,
                               struct haul_piece *pieces) {
  const struct want *want = &batch->wants[number];
  uint64_t buckets[2];
  key_buckets(want->hash, batch->links[want->member]->headers[tier_of(batch, want)].buckets,
              buckets);
  for (unsigned i = 0; i < 2; i++)
    pieces[i] = (struct haul_piece){scratch_of(number) + i * BUCKET_BYTES,
                                    bucket_offset(buckets[i]), BUCKET_BYTES};
  return 2;
}

static unsigned pieces_to_read(const struct batch *batch, unsigned number,
                               struct haul_piece *pieces) {
  const struct want *want = &batch->wants[number];
  *pieces = (struct haul_piece){want->item->offset, want->location.slot.offset,
                                want->location.slot.length};
  return 1;
}

static uint64_t sequence_place(unsigned number) {
  return number * sizeof(uint64_t);
}

static unsigned pieces_to_verify(const struct batch *batch, unsigned number,
                                 struct haul_piece *pieces) {
  uint64_t slot = batch->wants[number].location.slot_number;
  *pieces = (struct haul_piece){sequence_place(number),
                                bucket_offset(0) + slot * sizeof(struct slot), sizeof(uint64_t)};
  return 1;
}

static unsigned pieces_of_small(const struct batch *batch, unsigned number,
                                struct haul_piece *pieces) {
  const struct want *want = &batch->wants[number];
  *pieces =
      (struct haul_piece){want->staged, want->location.slot.offset, want->location.slot.length};
  return 1 + pieces_to_verify(batch, number, pieces + 1);
}

/* Starts the reads of all keys in this stage at the store and tier of `wants[first]`. */
static void start_group(struct batch *batch, enum stage stage, unsigned first, unsigned number,
                        haul_region *to, piece_maker *make, struct group *group) {
  struct haul_transfer_options options = HAUL_TRANSFER_OPTIONS_INIT;
  struct haul_piece pieces[2 * BATCH_KEYS];
  unsigned count = 0, member = batch->wants[first].member,
           tier = tier_of(batch, &batch->wants[first]);
  for (unsigned i = first; i < batch->count; i++)
    if (batch->wants[i].stage == stage && batch->wants[i].member == member &&
        tier_of(batch, &batch->wants[i]) == tier) {
      batch->wants[i].group = number;
      count += make(batch, i, pieces + count);
    }
  options.deadline = batch_share(batch);
  options.only = batch->cache->only;
  *group = (struct group){.member = member, .began = haul_deadline_in(0)};
  const struct link *link = batch->links[member];
  haul_remote *from = stage == READ ? link_blocks(link, tier) : link->remotes[tier];
  group->code = haul_read(to, from, pieces, count, &options, &group->transfer);
}

/* The numbers of a location mean nothing to another store, which may have taken the place of the
 * one that it was read from. */
static void check_links(struct batch *batch, enum stage stage) {
  for (unsigned i = 0; i < batch->count && stage != FIND; i++) {
    struct want *want = &batch->wants[i];
    const struct link *link = batch->links[want->member];
    if (want->stage == stage && (!link || link->number != want->location.link)) {
      want->stage = FIND;
      want->cached = false;
    }
  }
}

/* The transfer's own deadline ends the wait; before that its memory is in use. */
static void end_group(struct batch *batch, struct group *group) {
  if (group->code == 0)
    group->code = haul_transfer_wait(group->transfer, HAUL_FOREVER);
  haul_transfer_release(group->transfer);
  if (group->code && is_link_failure(group->code))
    batch_lost(batch, group->member, group->code, group->began);
}

#define NO_GROUP BATCH_KEYS

/* The read of the group failed: its keys go back to FIND, or are done. */
static void fail_group(struct batch *batch, unsigned number, int code) {
  for (unsigned i = 0; i < batch->count; i++) {
    struct want *want = &batch->wants[i];
    if (want->group != number)
      continue;
    want->group = NO_GROUP;
    if (!is_link_failure(code)) {
      want_fail_library(batch, want, code);
      continue;
    }
    want_lost(batch, want, code);
    want->stage = FIND;
    want->cached = false;
  }
}

/* The code of a group. The reads of all tiers of a store need one connection: if one of them has
 * lost it, the others have failed, too. */
static int code_of(const struct group *groups, unsigned count, unsigned number) {
  int code = groups[number].code;
  for (unsigned g = 0; g < count && code == 0; g++)
    if (groups[g].member == groups[number].member && is_link_failure(groups[g].code))
      code = groups[g].code;
  return code;
}

/* Reads for all keys in the stage. */
static void read_stage(struct batch *batch, enum stage stage, haul_region *to, piece_maker *make) {
  struct group groups[BATCH_KEYS];
  unsigned count = 0;
  check_links(batch, stage);
  for (unsigned i = 0; i < batch->count; i++)
    batch->wants[i].group = NO_GROUP;
  for (unsigned i = 0; i < batch->count; i++)
    if (batch->wants[i].stage == stage && batch->wants[i].group == NO_GROUP) {
      start_group(batch, stage, i, count, to, make, &groups[count]);
      count++;
    }
  for (unsigned g = 0; g < count; g++) {
    end_group(batch, &groups[g]);
    if (groups[g].code && !is_link_failure(groups[g].code)) /* while haul_error_last() is its own */
      fail_group(batch, g, groups[g].code);
  }
  for (unsigned g = 0; g < count; g++) {
    int code = code_of(groups, count, g);
    if (code)
      fail_group(batch, g, code);
  }
}

static bool was_read(const struct want *want) {
  return want->group != NO_GROUP;
}

/* Looks for the key in its buckets. Sets *torn if a slot was changing. */
static bool find_slot(struct batch *batch, unsigned number, struct location *location, bool *torn) {
  struct want *want = &batch->wants[number];
  unsigned tier = tier_of(batch, want);
  const struct header *header = &batch->links[want->member]->headers[tier];
  const struct slot *slots = scratch_at(batch, scratch_of(number));
  uint64_t buckets[2];
  key_buckets(want->hash, header->buckets, buckets);
  for (unsigned i = 0; i < 2 * BUCKET_SLOTS; i++) {
    if (!slot_is_whole(&slots[i])) {
      *torn = true;
    } else if (slot_has_key(&slots[i], want->item->key, want->item->key_length) &&
               slot_is_sound(&slots[i], header)) {
      memcpy(&location->slot, &slots[i], sizeof location->slot);
      location->slot_number = buckets[i / BUCKET_SLOTS] * BUCKET_SLOTS + i % BUCKET_SLOTS;
      location->link = batch->links[want->member]->number;
      location->member = want->member;
      location->tier = tier;
      location->reported = 0;
      want->step = 0;
      return true;
    }
  }
  return false;
}

static void succeed(struct want *want) {
  want->item->length = want->location.slot.length;
  want->item->member = want->location.member;
  want->item->tier = want->location.tier;
  want_done(want, 0);
}

static void fail_room(struct batch *batch, struct want *want) {
  unsigned long long length = want->location.slot.length;
  want_fail(batch, want, HAUL_ERANGE, "make the room as long as the block",
            "the block has %llu bytes, and the room %llu", length,
            (unsigned long long)want->item->length);
  want->item->length = length;
}

static void found(struct batch *batch, struct want *want, const struct get *get) {
  if (!get->to)
    succeed(want);
  else if (want->location.slot.length > want->item->length)
    fail_room(batch, want);
  else
    want->stage = READ;
}

/* After FIND. A block that is put beyond its first stores, as these were away, is one store later.
 */
static void find_next(struct batch *batch, struct want *want, bool torn) {
  if (torn && ++want->tries < TRIES)
    return;
  want->busy |= torn;
  want->lacking++;
  want->rank++;
  want->step = 0;
  if (want->lacking > batch->cache->replicas)
    want_fail_absent(batch, want);
}

/* Of the slots' sequence numbers. */
static uint64_t sum_slots(const struct batch *batch, unsigned number) {
  const struct slot *slots = scratch_at(batch, scratch_of(number));
  uint64_t numbers[2 * BUCKET_SLOTS];
  for (unsigned i = 0; i < 2 * BUCKET_SLOTS; i++)
    numbers[i] = atomic_load_explicit(&slots[i].sequence, memory_order_relaxed);
  return XXH3_64bits(numbers, sizeof numbers);
}

/* The key was in none of the slots read. Puts go to the top tier, so a key only moves down while
 * its slots there are the same, and it is in the next tier before it leaves one: a look at each
 * tier from the top to the bottom passes it only if it was put meanwhile. The last look, at the top
 * again, shows that. */
static enum look next_tier(struct batch *batch, unsigned number) {
  struct want *want = &batch->wants[number];
  unsigned step = want->step, tiers = batch->links[want->member]->tiers;
  if (tiers == 1)
    return LOOK_ABSENT;
  uint64_t seen = sum_slots(batch, number);
  want->step = step < tiers ? step + 1 : 0;
  if (step == 0)
    want->seen = seen;
  if (step < tiers)
    return LOOK_NONE;
  return seen == want->seen ? LOOK_ABSENT : LOOK_CHANGING;
}

/* What was seen over an earlier connection tells nothing about the store. */
static void begin_look(const struct batch *batch, struct want *want) {
  uint64_t link = batch->links[want->member]->number;
  if (want->looked != link)
    want->step = 0;
  want->looked = link;
}

void batch_look(struct batch *batch, enum look looks[BATCH_KEYS]) {
  for (unsigned i = 0; i < batch->count; i++)
    if (batch->wants[i].stage == FIND)
      begin_look(batch, &batch->wants[i]);
  read_stage(batch, FIND, batch->scratch, pieces_to_find);
  for (unsigned i = 0; i < batch->count; i++) {
    bool torn = false;
    looks[i] = LOOK_NONE;
    if (!was_read(&batch->wants[i]))
      continue;
    if (find_slot(batch, i, &batch->wants[i].location, &torn))
      looks[i] = LOOK_FOUND;
    else
      looks[i] = torn ? LOOK_CHANGING : next_tier(batch, i);
  }
}

static void find_stage(struct batch *batch, const struct get *get) {
  enum look looks[BATCH_KEYS] = {LOOK_NONE};
  for (unsigned i = 0; i < batch->count; i++)
    if (batch->wants[i].stage == FIND && !batch_choose(batch, &batch->wants[i]))
      want_fail_absent(batch, &batch->wants[i]);
  batch_look(batch, looks);
  for (unsigned i = 0; i < batch->count; i++)
    if (looks[i] == LOOK_FOUND)
      found(batch, &batch->wants[i], get);
    else if (looks[i] != LOOK_NONE)
      find_next(batch, &batch->wants[i], looks[i] == LOOK_CHANGING);
}

static bool is_present(const struct batch *batch, unsigned number) {
  uint64_t sequence;
  memcpy(&sequence, scratch_at(batch, sequence_place(number)), sizeof sequence);
  return sequence ==
         atomic_load_explicit(&batch->wants[number].location.slot.sequence, memory_order_relaxed);
}

bool batch_has_read(const struct batch *batch, unsigned number) {
  return was_read(&batch->wants[number]) && is_present(batch, number);
}

/* Copies a small block to its place, if it is whole. */
static bool take_small(const struct batch *batch, const struct want *want, const struct get *get) {
  const struct slot *slot = &want->location.slot;
  const void *bytes = scratch_at(batch, want->staged);
  if (XXH3_64bits(bytes, slot->length) != slot->checksum)
    return false;
  memcpy((uint8_t *)haul_region_address(get->to) + want->item->offset, bytes, slot->length);
  return true;
}

/* Block and sequence number of the keys have been read. */
static void check_blocks(struct batch *batch, const struct get *get) {
  for (unsigned i = 0; i < batch->count; i++) {
    struct want *want = &batch->wants[i];
    if (!was_read(want))
      continue;
    if (batch_has_read(batch, i) && (!get->small || take_small(batch, want, get))) {
      location_used(batch->cache, batch->links[want->member], &want->location);
      location_store(batch->cache, &want->location);
      succeed(want);
    } else if (++want->tries < TRIES) {
      want->stage = FIND;
      want->cached = false;
    } else {
      want_fail(batch, want, HAUL_EBUSY, "get it again",
                "the block was replaced during each of %d reads", TRIES);
    }
  }
}

/* A place for each block in the scratch memory; false: they are too large for it, one is in another
 * region than its sequence number, or it is faster to read the numbers afterwards. */
static bool stage_small(struct batch *batch) {
  double check_ns = 0, look_ns = 0;
  uint64_t end = STAGING;
  for (unsigned i = 0; i < batch->count; i++) {
    struct want *want = &batch->wants[i];
    if (want->stage != READ || !batch->links[want->member])
      continue;
    uint64_t length = want->location.slot.length;
    if (length > haul_region_length(batch->scratch) - end || want->location.tier == DEVICE_TIER)
      return false;
    want->staged = end;
    end += length;
    check_ns += (double)length * CHECK_NS_PER_BYTE;
    if (batch->links[want->member]->look_ns > look_ns)
      look_ns = batch->links[want->member]->look_ns;
  }
  return check_ns < look_ns;
}

/* Whether the caller's memory can be written by memcpy; if not, haul_read says why. */
static bool is_writable(const struct batch *batch, haul_region *to) {
  uint64_t room = haul_region_length(to);
  for (unsigned i = 0; i < batch->count; i++) {
    const struct want *want = &batch->wants[i];
    if (want->stage == READ &&
        (want->item->offset > room || want->location.slot.length > room - want->item->offset))
      return false;
  }
  return haul_region_place(to).kind == HAUL_HOST && haul_region_rights(to) & HAUL_WRITE;
}

void batch_read(struct batch *batch, haul_region *to) {
  read_stage(batch, READ, to, pieces_to_read);
  for (unsigned i = 0; i < batch->count; i++)
    if (was_read(&batch->wants[i]))
      batch->wants[i].stage = VERIFY;
  /* A block that was read before its sequence number is still the same had not been overwritten:
   * the fence orders the copies of both reads where this processor makes them. */
  full_fence();
  read_stage(batch, VERIFY, batch->scratch, pieces_to_verify);
}

static void read_blocks(struct batch *batch, struct get *get) {
  get->small = is_writable(batch, get->to) && stage_small(batch);
  if (get->small)
    read_stage(batch, READ, batch->scratch, pieces_of_small);
  else
    batch_read(batch, get->to);
  check_blocks(batch, get);
}

/* Uses locations of earlier reads over connections that still exist. */
static void use_locations(struct batch *batch) {
  for (unsigned i = 0; i < batch->count; i++) {
    struct want *want = &batch->wants[i];
    const struct haul_cache_item *item = want->item;
    if (want->stage == DONE ||
        !location_find(batch->cache, item->key, item->key_length, &want->location))
      continue;
    unsigned member = want->location.member;
    if (!batch->links[member] && batch->failures[member] == 0 &&
        link_get(batch->cache, member, batch_share(batch), &batch->links[member]))
      batch->failures[member]++;
    if (!batch->links[member] || batch->links[member]->number != want->location.link ||
        want->location.slot.length > item->length)
      continue;
    want->member = member;
    want->cached = true;
    want->stage = READ;
  }
}

static bool are_done(const struct batch *batch) {
  for (unsigned i = 0; i < batch->count; i++)
    if (batch->wants[i].stage != DONE)
      return false;
  return true;
}

static void run(struct batch *batch, void *context) {
  struct get *get = context;
  for (bool first = true; !are_done(batch); first = false) {
    if (haul_deadline_in(0) >= batch->until) {
      batch_expire(batch);
      return;
    }
    if (first && get->to)
      use_locations(batch);
    find_stage(batch, get);
    if (get->to)
      read_blocks(batch, get);
  }
}

int haul_cache_get(haul_cache *cache, haul_region *region, struct haul_cache_item *items,
                   size_t count, haul_deadline until) {
  struct get get = {.to = region};
  if (!cache || !region || (!items && count > 0))
    return fail(HAUL_EINVAL, "haul_cache_get", NULL, "pass all of them",
                "cache, region or items is NULL");
  return batch_run(cache, "haul_cache_get", items, count, until, run, &get);
}

int haul_cache_exists(haul_cache *cache, struct haul_cache_item *items, size_t count,
                      haul_deadline until) {
  struct get get = {.to = NULL};
  if (!cache || (!items && count > 0))
    return fail(HAUL_EINVAL, "haul_cache_exists", NULL, "pass both", "cache or items is NULL");
  return batch_run(cache, "haul_cache_exists", items, count, until, run, &get);
}
