/* SPDX-License-Identifier: MIT */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "cache/client.h"
#include "common/fail.h"
#include "common/owner.h"

#define ATTEMPTS    2 /* connections to one store that a batch uses up before it is skipped */
#define PATIENCE_NS (60 * HAUL_SECOND) /* longest share of one store */

/* ---- Placement ---- */

static uint64_t weight(const struct want *want, const struct member *member) {
  const uint64_t both[] = {want->hash, member->hash};
  return XXH3_64bits(both, sizeof both);
}

static bool comes_before(uint64_t weight, unsigned member, uint64_t than, unsigned other) {
  return weight != than ? weight > than : member < other;
}

unsigned batch_member(const struct batch *batch, const struct want *want, unsigned rank) {
  const struct haul_cache *cache = batch->cache;
  uint64_t last_weight = 0;
  unsigned last = NO_MEMBER;
  for (unsigned r = 0; r <= rank; r++) {
    uint64_t best_weight = 0;
    unsigned best = NO_MEMBER;
    for (unsigned m = 0; m < batch->members; m++) {
      uint64_t here = weight(want, &cache->members[m]);
      if ((last == NO_MEMBER || comes_before(last_weight, last, here, m)) &&
          (best == NO_MEMBER || comes_before(here, m, best_weight, best))) {
        best = m;
        best_weight = here;
      }
    }
    last = best;
    last_weight = best_weight;
  }
  return last;
}

const char *batch_address(const struct batch *batch, unsigned member) {
  return batch->cache->members[member].address;
}

haul_deadline share_of(haul_deadline until, bool others) {
  int64_t now = haul_deadline_in(0), left = until - now;
  if (others)
    left /= 2;
  return now + (left < PATIENCE_NS ? left : PATIENCE_NS);
}

haul_deadline batch_share(const struct batch *batch) {
  return share_of(batch->until, batch->members > 1);
}

static void note_away(struct want *want, unsigned member, int code, unsigned replicas) {
  if (want->rank < replicas) {
    want->away = code;
    want->away_member = member;
  } else {
    want->other = code;
    want->other_member = member;
  }
}

bool batch_choose(struct batch *batch, struct want *want) {
  for (; want->rank < batch->members; want->rank++) {
    unsigned member = batch_member(batch, want, want->rank);
    int code = HAUL_EPEER;
    want->member = member;
    if (batch->links[member])
      return true;
    if (batch->failures[member] < ATTEMPTS) {
      code = link_get(batch->cache, member, batch_share(batch), &batch->links[member]);
      if (code == 0)
        return true;
      batch->links[member] = NULL;
      batch->failures[member] = ATTEMPTS;
    }
    note_away(want, member, code, batch->cache->replicas);
  }
  return false;
}

void batch_lost(struct batch *batch, unsigned member, int code, haul_deadline began) {
  struct link *link = batch->links[member];
  if (!link)
    return;
  link_failed(batch->cache, member, link, code, haul_deadline_in(0) - began);
  link_put(batch->cache, link);
  batch->links[member] = NULL;
  batch->failures[member] = code == HAUL_ETIMEDOUT ? ATTEMPTS : batch->failures[member] + 1;
}

void want_lost(struct batch *batch, struct want *want, int code) {
  want->step = 0;
  if (batch->failures[want->member] < ATTEMPTS)
    return;
  note_away(want, want->member, code, batch->cache->replicas);
  if (!want->cached)
    want->rank++;
}

/* ---- Results ---- */

void want_done(struct want *want, int code) {
  want->stage = DONE;
  want->item->code = code;
}

static bool is_first_failure(const struct batch *batch, const struct want *want) {
  return (unsigned)(want - batch->wants) < batch->first_failed;
}

/* A key as text, for errors. */
static void print_key(const struct haul_cache_item *item, char *text, size_t size) {
  const unsigned char *key = item->key;
  size_t at = 0;
  if (!key)
    return;
  for (; at < item->key_length && at + 1 < size; at++)
    text[at] = key[at] > ' ' && key[at] < 127 ? (char)key[at] : '?';
  text[at] = '\0';
}

void want_fail(struct batch *batch, struct want *want, int code, const char *hint,
               const char *format, ...) {
  if (is_first_failure(batch, want)) {
    struct haul_error *error = &batch->error;
    va_list arguments;
    *error = (struct haul_error){.code = code};
    snprintf(error->call, sizeof error->call, "%s", batch->call);
    print_key(want->item, error->object, sizeof error->object);
    snprintf(error->hint, sizeof error->hint, "%s", hint);
    va_start(arguments, format);
    vsnprintf(error->text, sizeof error->text, format, arguments);
    va_end(arguments);
    batch->first_failed = (unsigned)(want - batch->wants);
  }
  want_done(want, code);
}

void want_fail_library(struct batch *batch, struct want *want, int code) {
  const struct haul_error *last = haul_error_last();
  want_fail(batch, want, code, last->hint, "%s", last->text);
}

/* Whether the store does not run, or hangs; otherwise the library's hint says more. */
static bool is_gone(int code) {
  return code == HAUL_ECONNECT || code == HAUL_EPEER || code == HAUL_ETIMEDOUT ||
         code == HAUL_ESTALE || code == HAUL_ECLOSED;
}

static void fail_away(struct batch *batch, struct want *want) {
  struct haul_cache *cache = batch->cache;
  const struct member *member = &cache->members[want->away_member];
  char reason[sizeof member->reason], hint[sizeof member->hint];
  pthread_mutex_lock(&cache->lock);
  memcpy(reason, member->reason, sizeof reason);
  memcpy(hint, member->hint, sizeof hint);
  pthread_mutex_unlock(&cache->lock);
  if (is_gone(want->away))
    snprintf(hint, sizeof hint, "start the store at %.80s, or keep more replicas", member->address);
  want_fail(batch, want, want->away, hint, "the store at %.80s cannot be reached: %.80s",
            member->address, reason);
}

void want_fail_absent(struct batch *batch, struct want *want) {
  if (want->busy) {
    want_fail(batch, want, HAUL_EBUSY, "try it again", "the index changed during each read");
    return;
  }
  if (want->away)
    fail_away(batch, want);
  else if (want->other)
    want_fail(batch, want, HAUL_ENAME, "start the store, or put the key again",
              "no other store has the key, and the one at %.80s cannot be reached",
              batch_address(batch, want->other_member));
  else
    want_fail(batch, want, HAUL_ENAME, "put it first; list the keys: haul cache ls",
              "no store has the key");
}

void batch_expire(struct batch *batch) {
  for (unsigned i = 0; i < batch->count; i++)
    if (batch->wants[i].stage != DONE)
      want_fail(batch, &batch->wants[i], HAUL_ETIMEDOUT, "allow more time", "the deadline passed");
}

/* ---- Batches ---- */

static struct batch *batch_new(struct haul_cache *cache) {
  const struct haul_place host = {HAUL_HOST, 0};
  pthread_mutex_lock(&cache->lock);
  struct batch *batch = cache->batches;
  if (batch)
    cache->batches = batch->next;
  pthread_mutex_unlock(&cache->lock);
  if (batch)
    return batch;
  batch = calloc(1, sizeof *batch);
  if (batch)
    batch->cache = cache;
  if (batch && haul_region_alloc(cache->node, host, BATCH_KEYS * 2 * BUCKET_BYTES,
                                 HAUL_REGION_PRIVATE, &batch->scratch)) {
    free(batch);
    batch = NULL;
  }
  return batch;
}

static void batch_release(struct batch *batch) {
  struct haul_cache *cache = batch->cache;
  for (unsigned m = 0; m < cache->member_count; m++)
    if (batch->links[m]) {
      link_put(cache, batch->links[m]);
      batch->links[m] = NULL;
    }
  pthread_mutex_lock(&cache->lock);
  batch->next = cache->batches;
  cache->batches = batch;
  pthread_mutex_unlock(&cache->lock);
}

static bool key_is_valid(const struct haul_cache_item *item) {
  return item->key && item->key_length > 0 && item->key_length <= HAUL_CACHE_KEY_MAX;
}

static void want_begin(struct batch *batch, struct want *want, struct haul_cache_item *item) {
  *want = (struct want){.item = item, .stage = FIND, .away_member = NO_MEMBER};
  item->member = NO_MEMBER;
  item->replicas = 0;
  item->code = 0;
  if (key_is_valid(item))
    want->hash = key_hash(item->key, item->key_length);
  else if (!item->key)
    want_fail(batch, want, HAUL_EINVAL, "set key and key_length", "the key is NULL");
  else
    want_fail(batch, want, HAUL_EINVAL, "use keys of 1 to 192 bytes", "the key has %zu bytes",
              item->key_length);
}

static void batch_begin(struct batch *batch, const char *call, struct haul_cache_item *items,
                        size_t count, haul_deadline until) {
  batch->call = call;
  batch->until = until;
  batch->count = (unsigned)count;
  batch->first_failed = BATCH_KEYS;
  batch->unanswered = false;
  memset(batch->failures, 0, sizeof batch->failures);
  for (size_t i = 0; i < count; i++)
    want_begin(batch, &batch->wants[i], &items[i]);
}

int batch_run(struct haul_cache *cache, const char *call, struct haul_cache_item *items,
              size_t count, haul_deadline until, batch_work *work, void *context) {
  struct haul_error error = {0};
  if (owner_check(cache->owner, call))
    return HAUL_EFORK;
  struct batch *batch = batch_new(cache);
  if (!batch)
    return fail_memory(call);
  batch->members = cache->member_count;
  for (size_t at = 0; at < count; at += batch->count) {
    size_t rest = count - at;
    batch_begin(batch, call, items + at, rest < BATCH_KEYS ? rest : BATCH_KEYS, until);
    work(batch, context);
    if (batch->first_failed < BATCH_KEYS && error.code == 0)
      error = batch->error;
  }
  batch_release(batch);
  return error.code ? haul_error_set(&error) : 0;
}
