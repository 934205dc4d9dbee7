/* SPDX-License-Identifier: MIT
 * A client: some fibers put, get, look up, remove and pin keys, several a call. */
#include <string.h>

#include "cache.h"
#include "calls.h"
#include "cards.h"
#include "load.h"

#define SETTLED  (25 * S)   /* after the last fault, until all have connected again */
#define SETTLING (200 * MS) /* pauses until then: most of a run's time */
#define EXTRA    (6 * S)    /* calls end transfers and withdraw names after their deadline */
#define PATIENT  (20 * S)

/* What the fibers of a client share. */
struct reader {
  struct keeper *keeper;
  haul_cache *cache;
  haul_region *region;
  uint8_t *bytes;
};

struct worker {
  struct reader *reader;
  unsigned number;
};

/* Places of the worker's blocks in the region: of puts, then of gets. */
static uint64_t place_of(const struct worker *worker, unsigned item, bool gets) {
  return ((worker->number * 2 + gets) * (uint64_t)ITEMS + item) * keep_plan.block;
}

static unsigned draw_keys(unsigned drawn[ITEMS], unsigned from, unsigned to) {
  unsigned count = 1 + (unsigned)sim_below(sim_chance(500000) ? 1 : ITEMS);
  for (unsigned i = 0; i < count; i++)
    drawn[i] = (unsigned)sim_between(from, to - 1);
  unsigned kept = 0;
  for (unsigned i = 0; i < count; i++) {
    bool twice = false;
    for (unsigned j = 0; j < kept; j++)
      twice |= drawn[j] == drawn[i];
    if (!twice)
      drawn[kept++] = drawn[i];
  }
  return kept;
}

/* Some calls end while a store still executes their request. */
static int64_t draw_deadline(void) {
  return own_clock() +
         (keep_plan.hasty && load.phase == FAULTY ? 250 * US << sim_below(14) : PATIENT);
}

static void prepare(struct haul_cache_item *item, unsigned key, char text[16]) {
  *item = (struct haul_cache_item){.key = text, .key_length = key_text(key, text)};
}

/* The client that repairs, and ends after the others. */
static bool is_last(const struct reader *reader) {
  return reader->keeper == &keep.clients[0];
}

static bool others_ended(void) {
  for (unsigned i = 1; i < keep_plan.clients; i++)
    if (!keep.clients[i].base.ended)
      return false;
  return true;
}

/* ---- Calls ---- */

static int put(struct worker *worker, const unsigned *drawn, unsigned count, bool if_absent) {
  struct reader *reader = worker->reader;
  struct haul_cache_item items[ITEMS];
  struct put *puts[ITEMS];
  char texts[ITEMS][16];
  int64_t until = draw_deadline();
  for (unsigned i = 0; i < count; i++) {
    puts[i] = put_begin(drawn[i]);
    prepare(&items[i], drawn[i], texts[i]);
    items[i].offset = place_of(worker, i, false);
    items[i].length = puts[i]->length;
    put_fill(puts[i], reader->bytes + items[i].offset);
  }
  struct limit limit = limit_begin("haul_cache_put", until + EXTRA);
  int code = haul_cache_put(reader->cache, reader->region, items, count,
                            if_absent ? HAUL_CACHE_IF_ABSENT : 0,
                            (int)sim_between(HAUL_PRIORITY_LOW, HAUL_PRIORITY_HIGH), until);
  /* From now on no store reads the bytes. */
  memset(reader->bytes + place_of(worker, 0, false), 0xee, ITEMS * keep_plan.block);
  limit_end(&limit);
  for (unsigned i = 0; i < count; i++)
    put_end(puts[i], items[i].code, items[i].replicas);
  keep_count("haul_cache_put", code);
  if (code == HAUL_EEXIST && !if_absent)
    sim_fail("codes", "a put without a condition finds that the key exists");
  return code;
}

static int get(struct worker *worker, const unsigned *drawn, unsigned count, bool exists) {
  struct reader *reader = worker->reader;
  struct haul_cache_item items[ITEMS];
  struct look looks[ITEMS];
  char texts[ITEMS][16];
  int64_t until = draw_deadline();
  for (unsigned i = 0; i < count; i++) {
    look_begin(&looks[i], drawn[i]);
    prepare(&items[i], drawn[i], texts[i]);
    items[i].offset = place_of(worker, i, true);
    items[i].length = keep_plan.block;
  }
  const char *call = exists ? "haul_cache_exists" : "haul_cache_get";
  struct limit limit = limit_begin(call, until + EXTRA);
  int code = exists ? haul_cache_exists(reader->cache, items, count, until)
                    : haul_cache_get(reader->cache, reader->region, items, count, until);
  for (unsigned i = 0; i < count; i++) {
    if (items[i].code == HAUL_ENAME)
      look_absent(&looks[i]);
    if (items[i].code == 0 && !exists)
      look_found(&looks[i], reader->bytes + items[i].offset, items[i].length);
    if (items[i].code == HAUL_ETIMEDOUT)
      trouble(looks[i].began, sim_now);
  }
  limit_end(&limit);
  keep_count(call, code);
  if (code == HAUL_ENOPATH && !strstr(haul_error_last()->text, "cannot be reached"))
    sim_fail("codes", "%s ends, and another store may be reached: %s", call,
             haul_error_last()->text);
  return code;
}

static void remove_keys(struct worker *worker, const unsigned *drawn, unsigned count) {
  struct haul_cache_item items[ITEMS];
  char texts[ITEMS][16];
  int64_t until = draw_deadline(), began = sim_now;
  for (unsigned i = 0; i < count; i++)
    prepare(&items[i], drawn[i], texts[i]);
  struct limit limit = limit_begin("haul_cache_remove", until + EXTRA);
  int code = haul_cache_remove(worker->reader->cache, items, count, until);
  limit_end(&limit);
  for (unsigned i = 0; i < count; i++)
    remove_end(drawn[i], began, items[i].code);
  keep_count("haul_cache_remove", code);
}

static void pin(struct worker *worker, const unsigned *drawn, unsigned count) {
  struct haul_cache_item items[ITEMS];
  char texts[ITEMS][16];
  int64_t until = draw_deadline();
  for (unsigned i = 0; i < count; i++)
    prepare(&items[i], drawn[i], texts[i]);
  struct limit limit = limit_begin("haul_cache_pin", until + EXTRA);
  int code = haul_cache_pin(worker->reader->cache, items, count, (unsigned)sim_below(3), until);
  limit_end(&limit);
  if (code != HAUL_ELIMIT) /* half of the store is pinned */
    keep_count("haul_cache_pin", code);
}

static int repair(struct reader *reader, struct haul_cache_repair *result) {
  int64_t until = draw_deadline();
  repair_begin(sim_now + PATIENT + EXTRA);
  struct limit limit = limit_begin("haul_cache_repair", until + EXTRA);
  int code = haul_cache_repair(reader->cache, 0, until, NULL, NULL, result);
  limit_end(&limit);
  keep_count("haul_cache_repair", code);
  sim_trace("repair: %llu blocks, %llu copies, %llu missing, %llu changed, %u stores away",
            (unsigned long long)result->blocks, (unsigned long long)result->copies,
            (unsigned long long)result->missing, (unsigned long long)result->changed, result->away);
  return code;
}

static void act(struct worker *worker) {
  unsigned drawn[ITEMS];
  uint64_t what = sim_below(100);
  unsigned count = draw_keys(drawn, 0, KEYS);
  if (keep_plan.repairs && is_last(worker->reader) && sim_chance(20000))
    repair(worker->reader, &(struct haul_cache_repair)HAUL_CACHE_REPAIR_INIT);
  else if (what < 30)
    put(worker, drawn, count, false);
  else if (what < 35)
    put(worker, drawn, count, true);
  else if (what < 85)
    get(worker, drawn, count, false);
  else if (what < 92)
    get(worker, drawn, count, true);
  else if (what < 96)
    remove_keys(worker, drawn, draw_keys(drawn, LASTING_KEYS, KEYS));
  else
    pin(worker, drawn, count);
}

/* ---- Life ---- */

static bool goes_on(void) {
  return load.phase == FAULTY || (load.phase == QUIET && sim_now < load.quiet_at + SETTLED);
}

static void *worker_main(void *argument) {
  struct worker *worker = argument;
  while (goes_on()) {
    act(worker);
    pause_for(sim_between(0, load.phase == FAULTY ? keep_plan.pause : SETTLING));
  }
  worker->reader->keeper->working--;
  return NULL;
}

/* Faults have ended and all stores run: what must be there is found, and a put succeeds. */
static void prove(struct reader *reader) {
  struct worker worker = {reader, 0};
  for (unsigned key = 0; key < KEYS; key++) {
    bool must = block_must_be_found(key);
    int code = get(&worker, &key, 1, false);
    if (code && code != HAUL_EBUSY && must)
      sim_fail("lost", "key %u is not found: %s (%s; %s)", key, haul_error_last()->text,
               haul_error_name(code), haul_error_last()->hint);
  }
  unsigned key = (unsigned)sim_below(KEYS);
  int code = put(&worker, &key, 1, false);
  if (code && !(code == HAUL_ELIMIT && keep_is_small()))
    sim_fail("liveness", "a put fails %.3f s after the last fault: %s",
             (double)(sim_now - load.quiet_at) / S, haul_error_last()->text);
}

/* Nothing else changes, and all stores run: replicas agree, after a repair in any case, unless a
 * store may have no room for one. */
static void prove_repair(struct reader *reader) {
  struct haul_cache_repair result = HAUL_CACHE_REPAIR_INIT;
  while (!others_ended())
    pause_for(50 * MS);
  blocks_check();
  int code = repair(reader, &result);
  bool whole = code == 0 && result.away == 0 && result.missing == 0 && result.changed == 0;
  if (keep_is_small())
    return;
  if (whole) {
    replicas_check();
    if (repair(reader, &result) == 0 && result.copies > 0)
      sim_fail("repair", "%llu blocks are copied again", (unsigned long long)result.copies);
  } else if (!cards.faults) {
    sim_fail("repair", "%s; %u stores away, %llu replicas missing, %llu blocks changed: %s",
             haul_error_name(code), result.away, (unsigned long long)result.missing,
             (unsigned long long)result.changed, haul_error_name(result.code));
  }
}

static int begin(struct reader *reader, haul_node *node) {
  struct haul_cache_config config = HAUL_CACHE_INIT;
  const char *members[KEEPERS];
  for (unsigned i = 0; i < keep_plan.stores; i++)
    members[i] = keep.stores[i].base.address;
  config.members = members;
  config.member_count = keep_plan.stores;
  config.replicas = keep_plan.replicas;
  config.only = keep_plan.only;
  int code = haul_cache_open(node, &config, HAUL_NO_WAIT, &reader->cache);
  if (code)
    return code;
  code = haul_region_alloc(node, (struct haul_place){keep_plan.device ? HAUL_SIM : HAUL_HOST, 0},
                           WORKERS * 2 * ITEMS * keep_plan.block, 0, &reader->region);
  if (code == 0)
    code = haul_cache_attach(reader->cache, reader->region);
  if (code) {
    haul_region_release(reader->region);
    haul_cache_close(reader->cache);
    reader->region = NULL;
    return code;
  }
  reader->bytes = region_bytes(reader->region);
  return 0;
}

static void run_workers(struct reader *reader) {
  struct worker workers[WORKERS];
  reader->keeper->working = 0;
  for (unsigned i = 0; i < keep_plan.workers; i++) {
    workers[i] = (struct worker){reader, i};
    reader->keeper->working++;
    fiber_start(reader->keeper->base.process, worker_main, &workers[i])->detached = true;
  }
  while (reader->keeper->working > 0)
    pause_for(5 * MS);
}

/* Else the first puts would miss stores. */
static void await_stores(void) {
  for (unsigned i = 0; i < keep_plan.stores && load.phase == FAULTY; i++)
    while (keep.stores[i].base.life == 1 && !keep.stores[i].serves && load.phase == FAULTY)
      pause_for(5 * MS);
}

void *reader_main(void *argument) {
  struct reader reader = {.keeper = argument};
  await_stores();
  haul_node *node = keep_open(reader.keeper);
  int code = HAUL_ECLOSED;
  while (node && load.phase != STOPPING && (code = begin(&reader, node)) != 0) {
    keep_count("haul_cache_open", code);
    pause_for(sim_between(MS, 200 * MS));
  }
  if (code == 0) {
    run_workers(&reader);
    prove(&reader);
    if (is_last(&reader))
      prove_repair(&reader);
    haul_cache_detach(reader.cache, reader.region);
    haul_cache_close(reader.cache);
    haul_region_release(reader.region);
  }
  participant_close(&reader.keeper->base, node, keep_plan.liveness);
  reader.keeper->base.ended = true;
  return NULL;
}
