/* SPDX-License-Identifier: MIT
 * repair: copies blocks to stores that should have them and do not.
 *
 * The index of each store is read. A store provides its block of a key if no other has a newer one,
 * and none that is before it in the order of the key has the same. Then its block is put, with its
 * version, to those of the key's first stores that lack it. A store drops a block that is older
 * than its own, so repairs and puts may run at the same time. */
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "cache/client.h"
#include "common/fail.h"
#include "common/owner.h"

#define REPAIR      "haul_cache_repair"
#define GROUP_BYTES (UINT64_C(64) << 20) /* of blocks that are copied at a time */

/* A key of the provider. */
struct examined {
  struct location source;
  unsigned seen;   /* stores examined */
  unsigned stores; /* that have the block */
  bool passed;     /* the provider is one of those, where a get finds the block */
  bool left;       /* to another provider */
  bool changed;    /* replaced or removed meanwhile */
  bool lacking;    /* some of `lacks` is set */
  bool lacks[HAUL_CACHE_MEMBERS_MAX];
};

struct repair {
  struct haul_cache *cache;
  unsigned flags;
  haul_deadline until;
  void (*each)(void *user, const struct haul_cache_entry *entry, unsigned stores, unsigned copies);
  void *user;
  struct haul_cache_repair *result;
  unsigned provider;
  haul_region *region; /* of the blocks being copied, attached; NULL: none yet */
  unsigned count;
  struct examined keys[BATCH_KEYS];
};

/* ---- Examine ---- */

/* Notes whether want->member has the block. The first `replicas` stores should. The first one of
 * them that lacks it, and is before the provider, will provide it once it has a copy: item->member,
 * and item->replicas is 1 then. */
static void note(const struct repair *repair, struct examined *key, struct want *want, bool has) {
  if (key->seen++ < repair->cache->replicas && !has) {
    if (!key->lacking && !key->passed)
      want->item->member = want->member;
    key->lacking = key->lacks[want->member] = true;
  }
  want->rank++;
}

/* Sets want->member to the next store to look at: as many as a get does. */
static bool choose(struct repair *repair, struct batch *batch, unsigned number) {
  struct examined *key = &repair->keys[number];
  struct want *want = &batch->wants[number];
  while (want->stage != DONE && !key->left && !key->changed &&
         key->seen <= repair->cache->replicas && batch_choose(batch, want)) {
    if (want->member != repair->provider)
      return true;
    note(repair, key, want, true);
    key->passed = true;
  }
  return false;
}

static void weigh(const struct repair *repair, struct examined *key, struct want *want,
                  enum look look) {
  uint64_t version = look == LOOK_FOUND ? want->location.slot.version : 0;
  uint64_t ours = key->source.slot.version;
  if (look == LOOK_NONE || (look == LOOK_CHANGING && ++want->tries < TRIES))
    return;
  key->changed = look == LOOK_CHANGING;
  key->left = version > ours || (version == ours && !key->passed);
  key->stores += version == ours;
  note(repair, key, want, version == ours);
}

static void examine(struct repair *repair, struct batch *batch) {
  enum look looks[BATCH_KEYS];
  for (bool some = true; some;) {
    some = false;
    if (haul_deadline_in(0) >= batch->until)
      batch_expire(batch);
    for (unsigned i = 0; i < batch->count; i++)
      if (batch->wants[i].stage != DONE) {
        bool looks_on = choose(repair, batch, i);
        batch->wants[i].stage = looks_on ? FIND : IDLE;
        some |= looks_on;
      }
    if (some)
      batch_look(batch, looks);
    for (unsigned i = 0; some && i < batch->count; i++)
      weigh(repair, &repair->keys[i], &batch->wants[i], looks[i]);
  }
  for (unsigned i = 0; i < batch->count; i++)
    batch->wants[i].away = 0; /* from now on why a copy failed */
}

/* ---- Copy ---- */

/* A region of at least this length, attached. */
static int provide_region(struct repair *repair, uint64_t length) {
  const struct haul_place host = {HAUL_HOST, 0};
  if (repair->region && haul_region_length(repair->region) >= length)
    return 0;
  if (repair->region) {
    haul_cache_detach(repair->cache, repair->region);
    haul_region_release(repair->region);
    repair->region = NULL;
  }
  int code = haul_region_alloc(repair->cache->node, host, length, 0, &repair->region);
  if (code)
    return code;
  code = haul_cache_attach(repair->cache, repair->region);
  if (code) {
    haul_region_release(repair->region);
    repair->region = NULL;
  }
  return code;
}

static bool is_due(const struct repair *repair, const struct batch *batch, unsigned number) {
  const struct examined *key = &repair->keys[number];
  return batch->wants[number].stage == IDLE && !key->left && !key->changed && key->lacking;
}

/* Places blocks from that of `first` on in the region, and returns the first key that does not fit.
 */
static unsigned plan_group(const struct repair *repair, struct batch *batch, unsigned first,
                           uint64_t *bytes) {
  unsigned i = first;
  for (*bytes = 0; i < batch->count; i++) {
    struct want *want = &batch->wants[i];
    const struct slot *slot = &repair->keys[i].source.slot;
    if (!is_due(repair, batch, i))
      continue;
    if (*bytes > 0 && slot->length > GROUP_BYTES - *bytes)
      break;
    want->stage = READ;
    want->member = repair->provider;
    memcpy(&want->location, &repair->keys[i].source, sizeof want->location);
    want->version = slot->version;
    want->priority = slot->priority;
    want->item->offset = *bytes;
    want->item->length = slot->length;
    *bytes += (slot->length + UNIT - 1) / UNIT * UNIT;
    if (*bytes >= GROUP_BYTES) {
      i++;
      break;
    }
  }
  return i;
}

/* A damaged block is not spread. */
static bool is_intact(const struct repair *repair, const struct want *want) {
  const uint8_t *bytes = haul_region_address(repair->region);
  return XXH3_64bits(bytes + want->item->offset, want->item->length) ==
         want->location.slot.checksum;
}

/* It may be none of the stores that were examined for these keys. */
static int connect_provider(const struct repair *repair, struct batch *batch) {
  struct link **link = &batch->links[repair->provider];
  return *link ? 0 : link_get(repair->cache, repair->provider, batch_share(batch), link);
}

/* Leaves those keys in stage VERIFY whose blocks were read as they were put. `lost`: the code if
 * the provider is away. */
static void check_group(struct repair *repair, struct batch *batch, int lost) {
  for (unsigned i = 0; i < batch->count; i++) {
    struct want *want = &batch->wants[i];
    if (want->stage == FIND && want->away == 0)
      want->away = lost ? lost : HAUL_EPEER;
    if (want->stage != VERIFY)
      continue;
    if (!batch_has_read(batch, i)) {
      repair->keys[i].changed = true;
      want->stage = FIND;
    } else if (!is_intact(repair, want)) {
      want->stage = FIND;
      want->away = HAUL_ECHECKSUM;
    }
  }
}

static void on_response(struct batch *batch, struct want *want, int code, uint64_t version) {
  (void)batch;
  (void)version;
  want->stage = VERIFY;
  want->placed += code == 0;
  if (code == 0 && want->member == want->item->member)
    want->item->replicas = 1;
  want->away = code ? code : want->away;
}

/* Gives the key its next store that lacks the block; false: there is none. */
static bool next_store(struct examined *key, const struct batch *batch, struct want *want) {
  for (unsigned m = 0; m < HAUL_CACHE_MEMBERS_MAX; m++)
    if (key->lacks[m]) {
      key->lacks[m] = false;
      want->member = m;
      if (batch->links[m])
        return true;
    }
  return false;
}

/* Puts the blocks of the keys in stage VERIFY, at one store for each key at a time. */
static void put_group(struct repair *repair, struct batch *batch, const struct ask *ask) {
  for (bool some = true; some;) {
    some = false;
    for (unsigned i = 0; i < batch->count; i++) {
      struct want *want = &batch->wants[i];
      if (want->stage != VERIFY && want->stage != ASK) /* ASK: the store did not respond */
        continue;
      want->stage = next_store(&repair->keys[i], batch, want) ? ASK : IDLE;
      some |= want->stage == ASK;
    }
    if (some)
      batch_ask(batch, ask, on_response);
  }
}

static int copy_group(struct repair *repair, struct batch *batch, uint64_t bytes) {
  struct ask ask = {.kind = REQUEST_PUT, .flags = REQUEST_SPARE};
  int code = provide_region(repair, bytes);
  if (code == 0)
    code = source_take(repair->cache, repair->region, &ask.source);
  if (code)
    return code;
  int lost = connect_provider(repair, batch);
  batch_read(batch, repair->region);
  check_group(repair, batch, lost);
  batch->unanswered = false;
  put_group(repair, batch, &ask);
  source_return(repair->cache, ask.source, batch->unanswered);
  return 0;
}

static void copy_blocks(struct repair *repair, struct batch *batch) {
  uint64_t bytes;
  for (unsigned first = 0; first < batch->count;) {
    first = plan_group(repair, batch, first, &bytes);
    int code = bytes > 0 ? copy_group(repair, batch, bytes) : 0;
    for (unsigned i = 0; i < batch->count && code; i++)
      if (batch->wants[i].stage == READ)
        want_fail_library(batch, &batch->wants[i], code);
  }
}

/* ---- Results ---- */

static void sum_up(struct repair *repair, struct want *want, const struct examined *key) {
  struct haul_cache_repair *result = repair->result;
  unsigned replicas = repair->cache->replicas;
  unsigned before = key->stores - !key->passed, stores = before + want->placed;
  struct haul_cache_entry entry;
  result->copies += want->placed;
  result->bytes += want->placed * key->source.slot.length;
  if (stores < replicas && want->away)
    result->code = want->away;
  /* A provider whose index is read later counts the block. */
  if (want->item->replicas == 0 || want->item->member < repair->provider) {
    result->blocks++;
    result->missing += stores < replicas ? replicas - stores : 0;
  }
  if (!repair->each || (before >= replicas && want->placed == 0))
    return;
  entry_of_slot(&key->source, &entry);
  repair->each(repair->user, &entry, key->stores, want->placed);
}

static void work(struct batch *batch, void *context) {
  struct repair *repair = context;
  examine(repair, batch);
  if (!(repair->flags & HAUL_CACHE_DRY_RUN))
    copy_blocks(repair, batch);
  for (unsigned i = 0; i < batch->count; i++) {
    struct want *want = &batch->wants[i];
    if (want->stage == DONE)
      continue;
    if (repair->keys[i].changed)
      repair->result->changed++;
    else if (!repair->keys[i].left)
      sum_up(repair, want, &repair->keys[i]);
    want_done(want, 0);
  }
}

/* ---- Walk ---- */

static int flush(struct repair *repair) {
  struct haul_cache_item items[BATCH_KEYS];
  unsigned count = repair->count;
  for (unsigned i = 0; i < count; i++)
    items[i] = (struct haul_cache_item){.key = repair->keys[i].source.slot.key,
                                        .key_length = repair->keys[i].source.slot.key_length};
  repair->count = 0;
  return batch_run(repair->cache, REPAIR, items, count, repair->until, work, repair);
}

static int add(void *context, const struct location *location) {
  struct repair *repair = context;
  struct examined *key = &repair->keys[repair->count++];
  *key = (struct examined){.stores = 1};
  memcpy(&key->source, location, sizeof *location);
  return repair->count == BATCH_KEYS ? flush(repair) : 0;
}

static int repair_member(struct repair *repair, unsigned member) {
  repair->provider = member;
  repair->count = 0;
  int code = slots_visit(repair->cache, member, repair->until, add, repair);
  return code ? code : flush(repair);
}

static int repair_all(struct repair *repair) {
  struct haul_cache *cache = repair->cache;
  unsigned members = cache->member_count;
  int code = 0;
  for (unsigned m = 0; m < members; m++) {
    struct link *link;
    code = link_get(cache, m, share_of(repair->until, m + 1 < members), &link);
    if (code == 0) {
      link_put(cache, link);
      code = repair_member(repair, m);
      if (code && (!is_link_failure(code) || haul_deadline_in(0) >= repair->until))
        return code;
    }
    if (code)
      repair->result->away++;
  }
  if (repair->result->away < members)
    return 0;
  return fail(code, REPAIR, NULL, "start the stores", "no store can be reached: %s",
              haul_error_text(code));
}

int haul_cache_repair(haul_cache *cache, unsigned flags, haul_deadline until,
                      void (*each)(void *user, const struct haul_cache_entry *entry,
                                   unsigned stores, unsigned copies),
                      void *user, struct haul_cache_repair *result) {
  if (!cache || !result || flags & ~HAUL_CACHE_DRY_RUN)
    return fail(HAUL_EINVAL, REPAIR, NULL, "pass both, and HAUL_CACHE_DRY_RUN or 0",
                "cache or result is NULL, or there are unknown flags");
  if (result->size != sizeof *result)
    return fail(HAUL_EINVAL, REPAIR, "result", "start from HAUL_CACHE_REPAIR_INIT",
                "the result has an unknown size");
  if (owner_check(cache->owner, REPAIR))
    return HAUL_EFORK;
  struct repair *repair = calloc(1, sizeof *repair);
  if (!repair)
    return fail_memory(REPAIR);
  *result = (struct haul_cache_repair)HAUL_CACHE_REPAIR_INIT;
  repair->cache = cache;
  repair->flags = flags;
  repair->until = until;
  repair->each = each;
  repair->user = user;
  repair->result = result;
  int code = repair_all(repair);
  struct haul_error error = *haul_error_last();
  if (repair->region) {
    haul_cache_detach(cache, repair->region);
    haul_region_release(repair->region);
  }
  free(repair);
  return code ? haul_error_set(&error) : 0;
}
