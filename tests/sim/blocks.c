/* SPDX-License-Identifier: MIT
 * A put's bytes tell which put it was. What the stores have is read from their files, at one
 * moment: nothing switches here. */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <xxhash.h>

#include "atomics.h"
#include "cache.h"
#include "cache/format.h"
#include "calls.h"
#include "cards.h"
#include "load.h"
#include "net.h"

#define CONSTANT   (UINT64_C(1) << 63)
#define UNANSWERED (70 * S) /* a store may still execute a put: PULL_MS of session.c, and more */
#define AWAY       (15 * S) /* clients do not try a store again for so long */

/* Puts and removals of a key that took place at all its stores, by their ends. */
struct full {
  int64_t began, ended;
};

static struct key {
  char text[16];
  size_t text_length;
  uint64_t hash;
  unsigned order[KEEPERS]; /* the stores, best first */
  struct full *full;
  size_t full_count, full_room;
  unsigned putting;     /* puts that go on */
  int64_t ended_at;     /* the last put or removal */
  int64_t unsure_until; /* a put that ended may still take place */
  bool expected[KEEPERS];
} keys[KEYS];

static struct put **all_puts; /* by id - 1 */
static size_t put_count, put_room;

static struct interval { int64_t from, until; } * troubles;
static size_t trouble_count, trouble_room;

/* A tier of a store. */
static struct view {
  int real;
  uint8_t *base; /* NULL: none */
  size_t length;
} views[KEEPERS][TIERS];

static void *grow(void *array, size_t count, size_t *room, size_t size) {
  if (count < *room)
    return array;
  *room = *room ? 2 * *room : 64;
  return realloc(array, *room * size);
}

/* ---- Keys ---- */

size_t key_text(unsigned key, char text[16]) {
  memcpy(text, keys[key].text, 16);
  return keys[key].text_length;
}

uint64_t key_length(unsigned key) {
  return 8 + keys[key].hash % (keep_plan.block - 7);
}

/* As the clients place keys (batch.c of the cache). */
static void place(struct key *key) {
  uint64_t weights[KEEPERS];
  for (unsigned i = 0; i < keep_plan.stores; i++) {
    const char *address = keep.stores[i].base.address;
    const uint64_t both[] = {key->hash, XXH3_64bits(address, strlen(address))};
    weights[i] = XXH3_64bits(both, sizeof both);
    unsigned at = i;
    for (; at > 0 && weights[key->order[at - 1]] < weights[i]; at--)
      key->order[at] = key->order[at - 1];
    key->order[at] = i;
  }
}

void blocks_start(void) {
  for (unsigned i = 0; i < KEYS; i++) {
    struct key *key = &keys[i];
    key->text_length = (size_t)snprintf(key->text, sizeof key->text, "key-%u", i);
    key->hash = XXH3_64bits(key->text, key->text_length);
    place(key);
  }
}

/* ---- The stores' tiers ---- */

/* NULL: there is none yet. */
static const struct view *view_of(const struct keeper *store, unsigned tier) {
  struct view *view = &views[store->base.number][tier];
  int real = host_file(store->base.host, tier == MEMORY_TIER ? store->path : store->file_path);
  struct stat status = {0};
  if (real < 0 || fstat(real, &status) != 0 || status.st_size < HEADER_BYTES)
    return NULL;
  if (!view->base || view->real != real || view->length != (size_t)status.st_size) {
    if (view->base)
      munmap(view->base, view->length);
    *view = (struct view){real, NULL, (size_t)status.st_size};
    view->base = mmap(NULL, view->length, PROT_READ, MAP_SHARED, real, 0);
    if (view->base == MAP_FAILED)
      sim_fail("simulator", "no memory for a store's view");
  }
  return header_is_sound((const struct header *)(const void *)view->base, view->length, 0) ? view
                                                                                           : NULL;
}

/* The slot of the key; NULL: it is in none, or that is changing. */
static const struct slot *slot_at(const struct view *view, const struct key *key) {
  const struct header *header = (const struct header *)(const void *)view->base;
  uint64_t buckets[2];
  key_buckets(key->hash, header->buckets, buckets);
  for (unsigned i = 0; i < 2 * BUCKET_SLOTS; i++) {
    const struct slot *slot =
        (const struct slot *)(const void *)(view->base + bucket_offset(buckets[i / BUCKET_SLOTS])) +
        i % BUCKET_SLOTS;
    if (slot_is_whole(slot) && slot_has_key(slot, key->text, key->text_length))
      return slot;
  }
  return NULL;
}

/* The library's functions are asked, whose atomic operations are points for a switch. */
static struct seen see_tier(const struct keeper *store, unsigned tier, const struct key *key) {
  struct seen seen = {.deaths = store->deaths};
  int left = sim_atomics_left;
  sim_atomics_left = 1 << 20;
  const struct view *view = view_of(store, tier);
  const struct slot *slot = view ? slot_at(view, key) : NULL;
  if (slot) {
    seen.there = true;
    seen.file = view->real;
    seen.slot = slot;
    seen.sequence = *(const uint64_t *)(const void *)&slot->sequence;
    memcpy(&seen.id, view->base + slot->offset, sizeof seen.id);
  }
  sim_atomics_left = left;
  return seen;
}

static unsigned last_tier(void) {
  return keep_plan.files ? FILE_TIER : MEMORY_TIER;
}

static struct seen see(const struct keeper *store, const struct key *key) {
  struct seen seen = see_tier(store, MEMORY_TIER, key);
  return seen.there ? seen : see_tier(store, last_tier(), key);
}

/* From its last tier, since it was opened: such blocks are lost. */
static bool has_evicted(const struct keeper *store) {
  int left = sim_atomics_left;
  sim_atomics_left = 1 << 20;
  const struct view *view = view_of(store, last_tier());
  const struct header *header = view ? (const struct header *)(const void *)view->base : NULL;
  bool has = header && *(const uint64_t *)(const void *)&header->evictions > 0;
  sim_atomics_left = left;
  return has;
}

/* ---- Stores that seem away ---- */

void trouble(int64_t from, int64_t until) {
  until += AWAY;
  if (trouble_count > 0 && troubles[trouble_count - 1].from <= from &&
      troubles[trouble_count - 1].until >= from) {
    struct interval *last = &troubles[trouble_count - 1];
    last->until = last->until > until ? last->until : until;
    return;
  }
  troubles = grow(troubles, trouble_count, &trouble_room, sizeof *troubles);
  troubles[trouble_count++] = (struct interval){from, until};
}

static int64_t repaired_until; /* 0: no repair has begun */

void repair_begin(int64_t until) {
  repaired_until = until > repaired_until ? until : repaired_until;
}

/* A repair may bring such a block back. */
static bool may_return(const struct look *look) {
  return repaired_until && (look->key >= LASTING_KEYS || keep_plan.evicts);
}

static bool was_trouble(int64_t from, int64_t until) {
  if (net.refused_calls || (cards.per_host && cards.faults))
    return true;
  for (size_t i = 0; i < trouble_count; i++)
    if (troubles[i].from <= until && troubles[i].until >= from)
      return true;
  return false;
}

/* ---- Puts ---- */

struct put *put_begin(unsigned key) {
  struct put *put = malloc(sizeof *put);
  all_puts = grow(all_puts, put_count, &put_room, sizeof(struct put *));
  all_puts[put_count++] = put;
  bool constant = key < CONSTANT_KEYS;
  *put = (struct put){.key = key,
                      .id = constant ? CONSTANT | key : put_count,
                      .length = constant ? key_length(key) : 8 + sim_below(keep_plan.block - 7),
                      .began = sim_now,
                      .ended = NEVER};
  keys[key].putting++;
  return put;
}

static uint64_t word_of(uint64_t id, uint64_t index) {
  return index ? (id ^ index << 32) * 0x9e3779b97f4a7c15 ^ id : id;
}

void put_fill(const struct put *put, uint8_t *bytes) {
  for (uint64_t at = 0; at < put->length; at += 8) {
    uint64_t word = word_of(put->id, at / 8), rest = put->length - at;
    memcpy(bytes + at, &word, rest < 8 ? rest : 8);
  }
}

static void add_full(struct key *key, int64_t began) {
  key->full = grow(key->full, key->full_count, &key->full_room, sizeof *key->full);
  key->full[key->full_count++] = (struct full){began, sim_now};
}

/* A store that has the block keeps it from now on. */
static void expect(struct key *key) {
  for (unsigned i = 0; i < keep_plan.stores; i++)
    key->expected[i] |= see(&keep.stores[i], key).there && !has_evicted(&keep.stores[i]);
}

static bool is_everywhere(const struct put *put) {
  const struct key *key = &keys[put->key];
  for (unsigned rank = 0; rank < keep_plan.replicas; rank++) {
    struct seen seen = see(&keep.stores[key->order[rank]], key);
    if (!seen.there || seen.id != put->id)
      return false;
  }
  return true;
}

void put_end(struct put *put, int code, unsigned replicas) {
  struct key *key = &keys[put->key];
  bool all = code == 0 && replicas == keep_plan.replicas;
  put->ended = sim_now;
  put->everywhere = all && is_everywhere(put);
  key->putting--;
  bool alone = key->putting == 0 && key->ended_at < put->began && sim_now >= key->unsure_until;
  key->ended_at = sim_now;
  if (put->everywhere) {
    add_full(key, put->began);
  } else {
    if (all && alone && put->key < LASTING_KEYS && !keep_is_small() && !keep_plan.hasty &&
        !was_trouble(put->began, sim_now))
      sim_fail("put", "%s: put %llu succeeded, and is not in all its stores", key->text,
               (unsigned long long)put->id);
    key->unsure_until = sim_now + UNANSWERED;
    if (code != HAUL_EEXIST && (!all || alone || keep_plan.hasty))
      trouble(put->began, sim_now);
  }
  if (all && put->key < LASTING_KEYS)
    expect(key);
}

void remove_end(unsigned key, int64_t began, int code) {
  keys[key].ended_at = sim_now;
  if (code == 0)
    add_full(&keys[key], began);
  else if (code != HAUL_ENAME)
    trouble(began, sim_now);
}

/* ---- Gets ---- */

void look_begin(struct look *look, unsigned key) {
  look->key = key;
  look->began = sim_now;
  for (unsigned i = 0; i < keep_plan.stores; i++) {
    look->seen[i] = see(&keep.stores[i], &keys[key]);
    look->last[i] = see_tier(&keep.stores[i], last_tier(), &keys[key]);
  }
}

static bool was_seen(const struct look *look, uint64_t id) {
  for (unsigned i = 0; i < keep_plan.stores; i++)
    if ((look->seen[i].there && look->seen[i].id == id) ||
        (look->last[i].there && look->last[i].id == id))
      return true;
  return false;
}

/* Could the put take place, or a store have it, within the look? */
static void check_present(const struct look *look, const struct put *put) {
  if (put->ended < look->began && put->everywhere && !was_seen(look, put->id))
    sim_fail("stale", "%s: the block of put %llu, which no store had any more when the get began",
             keys[put->key].text, (unsigned long long)put->id);
}

/* A later put or removal had reached all stores of the key. */
static void check_fresh(const struct look *look, const struct put *put) {
  const struct key *key = &keys[look->key];
  for (size_t i = key->full_count; i-- > 0 && key->full[i].ended > put->ended;) {
    const struct full *full = &key->full[i];
    if (full->ended >= look->began || full->began <= put->ended)
      continue;
    if (!was_trouble(put->began, full->ended))
      sim_fail("stale", "%s: the block of put %llu, replaced at %.6f while no store was away",
               key->text, (unsigned long long)put->id, (double)full->ended / S);
    return;
  }
}

static void check_block(const struct key *key, uint64_t id, const uint8_t *bytes, uint64_t length) {
  for (uint64_t at = 0; at < length; at += 8) {
    uint64_t word = word_of(id, at / 8), rest = length - at;
    if (memcmp(bytes + at, &word, rest < 8 ? rest : 8) != 0)
      sim_fail("content", "%s: byte %llu of %llu is not that of put %llu", key->text,
               (unsigned long long)at, (unsigned long long)length, (unsigned long long)id);
  }
}

void look_found(const struct look *look, const uint8_t *bytes, uint64_t length) {
  const struct key *key = &keys[look->key];
  uint64_t id;
  memcpy(&id, bytes, sizeof id);
  bool constant = look->key < CONSTANT_KEYS;
  if (constant ? id != (CONSTANT | look->key)
               : id == 0 || id > put_count || all_puts[id - 1]->key != look->key)
    sim_fail("content", "%s: the first word is %llx, of no put", key->text, (unsigned long long)id);
  uint64_t expected = constant ? key_length(look->key) : all_puts[id - 1]->length;
  if (length != expected)
    sim_fail("content", "%s: %llu bytes of %llu", key->text, (unsigned long long)length,
             (unsigned long long)expected);
  check_block(key, id, bytes, length);
  if (constant || may_return(look))
    return;
  check_present(look, all_puts[id - 1]);
  check_fresh(look, all_puts[id - 1]);
}

/* Did the store have the block all the time: at the same place, or as it never loses one? It may
 * have moved. */
static bool had_it(const struct keeper *store, const struct look *look, const struct seen *before,
                   const struct seen *now) {
  if (!before->there || !now->there)
    return false;
  if (before->file == now->file && before->slot == now->slot && before->sequence == now->sequence)
    return true;
  return look->key < LASTING_KEYS && before->deaths == now->deaths && !keep_plan.evicts &&
         !has_evicted(store);
}

void look_absent(const struct look *look) {
  const struct key *key = &keys[look->key];
  for (unsigned rank = 0; rank < keep_plan.replicas; rank++) {
    const struct keeper *store = &keep.stores[key->order[rank]];
    const struct seen *before = &look->seen[store->base.number];
    struct seen now = see(store, key);
    if (had_it(store, look, before, &now))
      sim_fail("lost", "%s is absent, and store %u has it all the time", key->text,
               store->base.number);
  }
}

/* ---- What stores must have ---- */

void store_died(const struct keeper *store, bool lost) {
  if (sim_now < repaired_until) /* it takes blocks that are older than those that it lost */
    trouble(0, sim_now);
  for (unsigned i = 0; i < KEYS; i++) {
    struct key *key = &keys[i];
    if (lost || key->putting > 0 || sim_now < key->unsure_until)
      key->expected[store->base.number] = false;
  }
}

void store_restored(const struct keeper *store) {
  for (unsigned i = 0; i < KEYS && !keep_plan.evicts && !has_evicted(store); i++)
    if (keys[i].expected[store->base.number] && !see(store, &keys[i]).there &&
        keys[i].putting == 0 && sim_now >= keys[i].unsure_until)
      sim_fail("lost", "store %u has lost %s", store->base.number, keys[i].text);
}

bool block_must_be_found(unsigned key) {
  bool must = false;
  for (unsigned rank = 0; rank < keep_plan.replicas && !keep_plan.evicts; rank++) {
    unsigned store = keys[key].order[rank];
    must |= keys[key].expected[store] && !has_evicted(&keep.stores[store]);
  }
  return must;
}

void replicas_check(void) {
  for (unsigned i = 0; i < KEYS; i++) {
    struct seen first = see(&keep.stores[keys[i].order[0]], &keys[i]);
    for (unsigned rank = 1; rank < keep_plan.stores; rank++) {
      struct seen other = see(&keep.stores[keys[i].order[rank]], &keys[i]);
      bool differs = first.there != other.there || (first.there && first.id != other.id);
      if (rank < keep_plan.replicas ? differs : other.there && !first.there)
        sim_fail("replicas", "%s: put %llu and put %llu", keys[i].text,
                 (unsigned long long)first.id, (unsigned long long)other.id);
    }
  }
}

void blocks_check(void) {
  for (unsigned i = 0; i < keep_plan.stores; i++)
    store_restored(&keep.stores[i]);
  if (!was_trouble(0, sim_now) && !keep_is_small())
    replicas_check();
}
