/* SPDX-License-Identifier: MIT
 * put, remove and pin: requests to the stores. */
#include <string.h>

#include "cache/client.h"
#include "common/fail.h"
#include "common/owner.h"

/* A request with all keys of the batch at one store. */
struct parcel {
  struct request request;
  struct request_key keys[BATCH_KEYS];
};

static void fill_key(const struct ask *ask, const struct want *want, struct request_key *key) {
  const struct haul_cache_item *item = want->item;
  *key = (struct request_key){.offset = item->offset,
                              .length = item->length,
                              .version = want->version,
                              .seconds = ask->seconds,
                              .priority = (int16_t)want->priority,
                              .key_length = (uint16_t)item->key_length};
  memcpy(key->key, item->key, item->key_length);
}

static uint32_t milliseconds_until(haul_deadline until) {
  int64_t left = (until - haul_deadline_in(0)) / HAUL_MILLISECOND;
  return left < 1 ? 1 : left > 3600000 ? 3600000 : (uint32_t)left;
}

/* A request to the store of `wants[first]`, in flight. */
struct inquiry {
  struct call call;
  unsigned member;
  haul_deadline began;
  int code;
};

#define NO_GROUP BATCH_KEYS

static void send_group(struct batch *batch, const struct ask *ask, unsigned first, unsigned number,
                       struct response_key *responses, haul_deadline until,
                       struct inquiry *inquiry) {
  struct parcel parcel = {.request = {.kind = ask->kind,
                                      .flags = ask->flags,
                                      .milliseconds = milliseconds_until(until),
                                      .source = ask->source}};
  unsigned member = batch->wants[first].member;
  uint32_t count = 0;
  for (unsigned i = first; i < batch->count; i++)
    if (batch->wants[i].stage == ASK && batch->wants[i].member == member) {
      batch->wants[i].group = number;
      fill_key(ask, &batch->wants[i], &parcel.keys[count++]);
    }
  parcel.request.count = count;
  inquiry->member = member;
  inquiry->began = haul_deadline_in(0);
  inquiry->call =
      (struct call){.peer = batch->links[member]->peer, .responses = responses, .count = count};
  inquiry->code = call_send(batch->cache, &inquiry->call, &parcel,
                            sizeof parcel.request + count * sizeof *parcel.keys, until);
}

static void end_group(struct batch *batch, unsigned number, struct inquiry *inquiry,
                      haul_deadline until, answer_handler *handle) {
  const struct response_key *response = inquiry->call.responses;
  if (inquiry->code == 0)
    inquiry->code = call_wait(batch->cache, &inquiry->call, until);
  if (inquiry->code && is_link_failure(inquiry->code)) {
    batch->unanswered = true;
    batch_lost(batch, inquiry->member, inquiry->code, inquiry->began);
  }
  for (unsigned i = 0; i < batch->count; i++) {
    struct want *want = &batch->wants[i];
    if (want->stage != ASK || want->group != number)
      continue;
    if (inquiry->code == 0) {
      handle(batch, want, response->code, response->version);
      response++;
    } else if (is_link_failure(inquiry->code)) {
      want_lost(batch, want, inquiry->code);
    } else {
      want_fail_library(batch, want, inquiry->code);
    }
  }
}

void batch_ask(struct batch *batch, const struct ask *ask, answer_handler *handle) {
  struct inquiry inquiries[BATCH_KEYS];
  struct response_key responses[BATCH_KEYS];
  haul_deadline until = batch_share(batch);
  unsigned count = 0, used = 0;
  for (unsigned i = 0; i < batch->count; i++)
    batch->wants[i].group = NO_GROUP;
  for (unsigned i = 0; i < batch->count; i++)
    if (batch->wants[i].stage == ASK && batch->wants[i].group == NO_GROUP) {
      send_group(batch, ask, i, count, responses + used, until, &inquiries[count]);
      used += inquiries[count++].call.count;
    }
  for (unsigned g = 0; g < count; g++)
    end_group(batch, g, &inquiries[g], until, handle);
}

/* A failure that the store reported for a key. */
static void fail_refused(struct batch *batch, struct want *want, int code) {
  const char *address = batch_address(batch, want->member);
  if (code == HAUL_EEXIST)
    want_fail(batch, want, code, "get it, or put it without the condition",
              "the store at %.80s has the key", address);
  else
    want_fail(batch, want, code, "attach the region, and keep offset and length within it",
              "the store at %.80s: %s", address, haul_error_text(code));
}

/* ---- put ---- */

static void handle_put(struct batch *batch, struct want *want, int code, uint64_t version) {
  if (code == 0) {
    if (want->placed == 0)
      want->item->member = want->member;
    want->placed++;
    want->version = version;
  } else if (want->placed == 0 && code == HAUL_ELIMIT) {
    want_fail(batch, want, code, "raise the capacity of the store, or unpin blocks",
              "the store at %.80s has no room", batch_address(batch, want->member));
    return;
  } else if (want->placed == 0) {
    fail_refused(batch, want, code);
    return;
  }
  want->rank++;
  if (want->placed == batch->cache->replicas)
    want_done(want, 0);
}

static void end_placed(struct batch *batch, struct want *want) {
  if (want->placed > 0)
    want_done(want, 0);
  else
    want_fail_absent(batch, want);
}

/* ---- remove, pin ---- */

static void handle_change(struct batch *batch, struct want *want, int code, uint64_t version) {
  (void)version;
  if (code == 0 && want->placed++ == 0)
    want->item->member = want->member;
  if (code == HAUL_ELIMIT) {
    want_fail(batch, want, code, "end other pins, or raise the capacity of the store",
              "over half of the tier would be pinned at the store at %.80s",
              batch_address(batch, want->member));
    return;
  }
  if (code != 0 && code != HAUL_ENAME) {
    fail_refused(batch, want, code);
    return;
  }
  want->rank++;
  want->lacking++;
}

/* Nothing was changed: a store that is away may be the one that has the key. */
static void fail_unchanged(struct batch *batch, struct want *want) {
  if (want->away == 0) {
    want->away = want->other;
    want->away_member = want->other_member;
  }
  want_fail_absent(batch, want);
}

/* A store that is away may have the block, and bring it back. */
static void end_remove(struct batch *batch, struct want *want) {
  if (want->placed == 0)
    fail_unchanged(batch, want);
  else if (want->away)
    want_fail_absent(batch, want);
  else
    want_done(want, 0);
}

static void end_pin(struct batch *batch, struct want *want) {
  if (want->placed == 0)
    fail_unchanged(batch, want);
  else
    want_done(want, 0);
}

/* ---- Rounds: one store for each key at a time ---- */

typedef void end_handler(struct batch *batch, struct want *want);

/* Whether the key has been asked at all stores that may have it. */
static bool is_complete(const struct batch *batch, const struct ask *ask, const struct want *want) {
  return ask->kind != REQUEST_PUT && want->lacking > batch->cache->replicas;
}

static bool choose_all(struct batch *batch, const struct ask *ask, end_handler *end) {
  bool some = false;
  bool late = haul_deadline_in(0) >= batch->until;
  for (unsigned i = 0; i < batch->count; i++) {
    struct want *want = &batch->wants[i];
    if (want->stage == DONE)
      continue;
    want->stage = ASK;
    if (late && want->placed == 0)
      want_fail(batch, want, HAUL_ETIMEDOUT, "allow more time", "the deadline passed");
    else if (late || is_complete(batch, ask, want) || !batch_choose(batch, want))
      end(batch, want);
    else
      some = true;
  }
  return some;
}

static void run_rounds(struct batch *batch, const struct ask *ask, answer_handler *handle,
                       end_handler *end) {
  for (unsigned i = 0; i < batch->count; i++)
    if (batch->wants[i].stage != DONE)
      location_forget(batch->cache, batch->wants[i].item->key, batch->wants[i].item->key_length);
  while (choose_all(batch, ask, end))
    batch_ask(batch, ask, handle);
}

static void run_put(struct batch *batch, void *context) {
  struct ask *ask = context;
  for (unsigned i = 0; i < batch->count; i++) {
    batch->wants[i].priority = ask->priority;
    if (batch->wants[i].stage != DONE && batch->wants[i].item->length == 0)
      want_fail(batch, &batch->wants[i], HAUL_EINVAL, "put at least one byte",
                "the block is empty");
  }
  run_rounds(batch, ask, handle_put, end_placed);
  ask->unanswered |= batch->unanswered;
  for (unsigned i = 0; i < batch->count; i++)
    batch->wants[i].item->replicas = batch->wants[i].placed;
}

static void run_remove(struct batch *batch, void *context) {
  run_rounds(batch, context, handle_change, end_remove);
}

static void run_pin(struct batch *batch, void *context) {
  run_rounds(batch, context, handle_change, end_pin);
}

int haul_cache_put(haul_cache *cache, haul_region *region, struct haul_cache_item *items,
                   size_t count, unsigned flags, int priority, haul_deadline until) {
  const char *call = "haul_cache_put";
  struct ask ask = {.kind = REQUEST_PUT, .flags = flags, .priority = priority};
  if (!cache || !region || (!items && count > 0))
    return fail(HAUL_EINVAL, call, NULL, "pass all of them", "cache, region or items is NULL");
  if (flags & ~HAUL_CACHE_IF_ABSENT || !priority_is_valid(priority))
    return fail(HAUL_EINVAL, call, NULL, "use HAUL_CACHE_IF_ABSENT or 0, and enum haul_priority",
                "unknown flags or priority");
  if (owner_check(cache->owner, call))
    return HAUL_EFORK;
  int code = source_take(cache, region, &ask.source);
  if (code)
    return code;
  code = batch_run(cache, call, items, count, until, run_put, &ask);
  struct haul_error error = *haul_error_last();
  source_return(cache, ask.source, ask.unanswered);
  return code ? haul_error_set(&error) : 0;
}

int haul_cache_remove(haul_cache *cache, struct haul_cache_item *items, size_t count,
                      haul_deadline until) {
  struct ask ask = {.kind = REQUEST_REMOVE};
  if (!cache || (!items && count > 0))
    return fail(HAUL_EINVAL, "haul_cache_remove", NULL, "pass both", "cache or items is NULL");
  return batch_run(cache, "haul_cache_remove", items, count, until, run_remove, &ask);
}

int haul_cache_pin(haul_cache *cache, struct haul_cache_item *items, size_t count, unsigned seconds,
                   haul_deadline until) {
  struct ask ask = {.kind = REQUEST_PIN, .seconds = seconds};
  if (!cache || (!items && count > 0) || seconds > LEASE_MAX)
    return fail(HAUL_EINVAL, "haul_cache_pin", NULL, "pass both, and at most 86,400 seconds",
                "cache or items is NULL, or the lease is too long");
  return batch_run(cache, "haul_cache_pin", items, count, until, run_pin, &ask);
}
