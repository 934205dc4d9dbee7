/* SPDX-License-Identifier: MIT
 * get and exists: reads from the stores' regions, without requests.
 *
 * A key passes the stages FIND (read its buckets), READ (its block) and VERIFY (the sequence number
 * of its slot, format.h). All keys of a stage are read at the same time, in one transfer for each
 * store. Small blocks in host memory are read at the same time as the sequence number: there the
 * block's checksum proves that the bytes are whole, and the number that they are the present ones.
 */
#include <string.h>
#include <xxhash.h>

#include "cache/client.h"
#include "common/fail.h"

#define TRIES                16  /* reads of a block that changes meanwhile */
#define CHECKSUM_NS_PER_BYTE 0.1 /* XXH3 of bytes in the caches: 10 GB/s and more */

struct get {
  haul_region *to; /* NULL: exists */
  bool small;      /* READ and VERIFY are one stage */
};

/* Writes the segments of one key in a stage, at most two; returns their number. */
typedef unsigned piece_maker(const struct batch *batch, unsigned number, struct haul_piece *pieces);

struct group {
  haul_transfer *transfers[2]; /* the second one: NULL, or of the sequence numbers */
  unsigned member;
  int code;
};

static uint64_t scratch_of(unsigned number) {
  return number * 2 * BUCKET_BYTES;
}

static const void *scratch_bytes(const struct batch *batch, unsigned number) {
  return (const uint8_t *)haul_region_address(batch->scratch) + scratch_of(number);
}

static unsigned pieces_to_find(const struct batch *batch, unsigned number,
                               struct haul_piece *pieces) {
  const struct want *want = &batch->wants[number];
  uint64_t buckets[2];
  key_buckets(want->hash, batch->links[want->member]->header.buckets, buckets);
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

static unsigned pieces_to_verify(const struct batch *batch, unsigned number,
                                 struct haul_piece *pieces) {
  const struct want *want = &batch->wants[number];
  *pieces = (struct haul_piece){scratch_of(number),
                                bucket_offset(0) + want->location.slot_number * sizeof(struct slot),
                                sizeof(uint64_t)};
  return 1;
}

/* Starts one transfer for the keys of a group. */
static int start_transfer(const struct batch *batch, unsigned number, unsigned member,
                          haul_region *to, piece_maker *make, unsigned flags,
                          haul_transfer **transfer) {
  struct haul_transfer_options options = HAUL_TRANSFER_OPTIONS_INIT;
  struct haul_piece pieces[2 * BATCH_KEYS];
  unsigned count = 0;
  if (!batch->links[member])
    return HAUL_EPEER;
  for (unsigned i = 0; i < batch->count; i++)
    if (batch->wants[i].group == number)
      count += make(batch, i, pieces + count);
  options.deadline = batch_share(batch);
  options.only = batch->cache->only;
  options.flags = flags;
  return haul_read(to, batch->links[member]->remote, pieces, count, &options, transfer);
}

/* Starts the reads of all keys in this stage at the store of `wants[first]`. */
static void start_group(struct batch *batch, enum stage stage, unsigned first, unsigned number,
                        haul_region *to, bool small, struct group *group) {
  static piece_maker *const makers[] = {pieces_to_find, pieces_to_read, pieces_to_verify};
  unsigned member = batch->wants[first].member;
  for (unsigned i = first; i < batch->count; i++)
    if (batch->wants[i].stage == stage && batch->wants[i].member == member)
      batch->wants[i].group = number;
  *group = (struct group){.member = member};
  group->code = start_transfer(batch, number, member, to, makers[stage], small ? HAUL_MORE : 0,
                               &group->transfers[0]);
  if (small && group->code == 0)
    group->code = start_transfer(batch, number, member, batch->scratch, pieces_to_verify, 0,
                                 &group->transfers[1]);
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

/* The transfers' own deadlines end the wait; before that their memory is in use. */
static void end_group(struct batch *batch, struct group *group) {
  for (int i = 0; i < 2; i++) {
    int code = group->transfers[i] ? haul_transfer_wait(group->transfers[i], HAUL_FOREVER) : 0;
    if (group->code == 0)
      group->code = code;
    haul_transfer_release(group->transfers[i]);
  }
  if (group->code && is_link_failure(group->code))
    batch_lost(batch, group->member, group->code);
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

/* Reads for all keys in the stage. */
static void read_stage(struct batch *batch, enum stage stage, haul_region *to, bool small) {
  struct group groups[BATCH_KEYS];
  unsigned count = 0;
  check_links(batch, stage);
  for (unsigned i = 0; i < batch->count; i++)
    batch->wants[i].group = NO_GROUP;
  for (unsigned i = 0; i < batch->count; i++)
    if (batch->wants[i].stage == stage && batch->wants[i].group == NO_GROUP) {
      start_group(batch, stage, i, count, to, small, &groups[count]);
      count++;
    }
  for (unsigned g = 0; g < count; g++) {
    end_group(batch, &groups[g]);
    if (groups[g].code)
      fail_group(batch, g, groups[g].code);
  }
}

static bool was_read(const struct want *want) {
  return want->group != NO_GROUP;
}

/* Looks for the key in its buckets. Sets *torn if a slot was changing. */
static bool find_slot(const struct batch *batch, unsigned number, struct location *location,
                      bool *torn) {
  const struct want *want = &batch->wants[number];
  const struct header *header = &batch->links[want->member]->header;
  const struct slot *slots = scratch_bytes(batch, number);
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
      location->reported = 0;
      return true;
    }
  }
  return false;
}

static void succeed(struct want *want) {
  want->item->length = want->location.slot.length;
  want->item->member = want->location.member;
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
  want->lacking++;
  want->rank++;
  if (want->lacking > batch->cache->replicas)
    want_fail_absent(batch, want);
}

static void find_stage(struct batch *batch, const struct get *get) {
  for (unsigned i = 0; i < batch->count; i++)
    if (batch->wants[i].stage == FIND && !batch_choose(batch, &batch->wants[i]))
      want_fail_absent(batch, &batch->wants[i]);
  read_stage(batch, FIND, batch->scratch, false);
  for (unsigned i = 0; i < batch->count; i++) {
    struct want *want = &batch->wants[i];
    bool torn = false;
    if (!was_read(want))
      continue;
    if (find_slot(batch, i, &want->location, &torn))
      found(batch, want, get);
    else
      find_next(batch, want, torn);
  }
}

static bool is_present(const struct batch *batch, unsigned number) {
  uint64_t sequence;
  memcpy(&sequence, scratch_bytes(batch, number), sizeof sequence);
  return sequence ==
         atomic_load_explicit(&batch->wants[number].location.slot.sequence, memory_order_relaxed);
}

static bool is_whole(const struct want *want, const struct get *get) {
  const uint8_t *bytes = haul_region_address(get->to);
  const struct slot *slot = &want->location.slot;
  return !get->small || XXH3_64bits(bytes + want->item->offset, slot->length) == slot->checksum;
}

/* Block and sequence number of the keys have been read. */
static void check_blocks(struct batch *batch, const struct get *get) {
  for (unsigned i = 0; i < batch->count; i++) {
    struct want *want = &batch->wants[i];
    if (!was_read(want))
      continue;
    if (is_present(batch, i) && is_whole(want, get)) {
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

/* Whether checksums of the blocks take less time than reading the sequence numbers afterwards. */
static bool are_small(const struct batch *batch, haul_region *to) {
  double checksums_ns = 0, look_ns = 0;
  for (unsigned i = 0; i < batch->count; i++) {
    const struct want *want = &batch->wants[i];
    if (want->stage != READ || !batch->links[want->member])
      continue;
    checksums_ns += (double)want->location.slot.length * CHECKSUM_NS_PER_BYTE;
    if (batch->links[want->member]->look_ns > look_ns)
      look_ns = batch->links[want->member]->look_ns;
  }
  return checksums_ns < look_ns && haul_region_place(to).kind == HAUL_HOST;
}

static void read_blocks(struct batch *batch, struct get *get) {
  get->small = are_small(batch, get->to);
  read_stage(batch, READ, get->to, get->small);
  if (get->small) {
    check_blocks(batch, get);
    return;
  }
  for (unsigned i = 0; i < batch->count; i++)
    if (was_read(&batch->wants[i]))
      batch->wants[i].stage = VERIFY;
  /* A block that was read before its sequence number is still the same had not been overwritten:
   * the fence orders the copies of both reads where this processor makes them. */
  full_fence();
  read_stage(batch, VERIFY, batch->scratch, false);
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

static void expire(struct batch *batch) {
  for (unsigned i = 0; i < batch->count; i++)
    if (batch->wants[i].stage != DONE)
      want_fail(batch, &batch->wants[i], HAUL_ETIMEDOUT, "allow more time", "the deadline passed");
}

static void run(struct batch *batch, void *context) {
  struct get *get = context;
  for (bool first = true; !are_done(batch); first = false) {
    if (haul_deadline_in(0) >= batch->until) {
      expire(batch);
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
