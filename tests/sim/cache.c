/* SPDX-License-Identifier: MIT */
#include "cache.h"

#include <string.h>

#include "calls.h"
#include "cards.h"
#include "fields.h"
#include "load.h"
#include "net.h"
#include "scene.h"

#define END_LIMIT  (180 * S) /* for all clients to end once faults have */
#define STOP_LIMIT (90 * S)  /* for all stores to close */

struct keep_plan keep_plan;
struct keep keep;

static const char *const keep_fault_names[KEEP_FAULTS] = {"kills of stores",
                                                          "power losses",
                                                          "freezes of stores",
                                                          "closes of stores",
                                                          "kills of clients",
                                                          "freezes of clients",
                                                          "cuts",
                                                          "one-way cuts",
                                                          "resets",
                                                          "memory shortages"};

static void draw(void) {
  net_draw();
  keep_plan.stores = (unsigned)sim_between(1, sim_chance(300000) ? KEEPERS : 4);
  keep_plan.clients = (unsigned)sim_between(1, sim_chance(300000) ? READERS : 3);
  keep_plan.workers = (unsigned)sim_between(1, WORKERS);
  keep_plan.hosts = (unsigned)sim_between(1, keep_plan.stores + keep_plan.clients);
  keep_plan.replicas = (unsigned)sim_between(1, 3);
  if (keep_plan.replicas > keep_plan.stores)
    keep_plan.replicas = keep_plan.stores;
  for (unsigned i = 0; i < KEEP_FAULTS; i++)
    keep_plan.faults.kinds |= (unsigned)sim_chance(400000) << i;
  keep_plan.block = (uint64_t)1 << sim_between(6, 15);
  keep_plan.files = sim_chance(400000);
  keep_plan.evicts = sim_chance(250000);
  keep_plan.hasty = sim_chance(400000);
  keep_plan.repairs = sim_chance(250000);
  keep_plan.device = sim_chance(350000);
  keep_plan.by_unix = keep_plan.hosts == 1 && sim_chance(500000);
  keep_plan.only = sim_chance(300000) && !keep_plan.by_unix ? "tcp" : NULL;
  keep_plan.faults.lasts = sim_between(3 * S, 20 * S);
  keep_plan.faults.interval = sim_between(20 * MS, 2 * S);
  keep_plan.liveness = sim_between(300 * MS, 5 * S);
  if (sim_chance(250000)) /* no store is ever away */
    keep_plan.faults.kinds = net.refused_calls = cards.faults = keep_plan.hasty = 0;
  keep_plan.pause = sim_chance(300000) ? 2 * MS : sim_between(2 * MS, 200 * MS);
}

bool keep_is_small(void) {
  return keep_plan.files || keep_plan.evicts;
}

static const struct field fields[] = {
    FIELD("stores", keep_plan.stores, 1, 1, KEEPERS),
    FIELD("clients", keep_plan.clients, 1, 1, READERS),
    FIELD("workers", keep_plan.workers, 1, 1, WORKERS),
    FIELD("hosts", keep_plan.hosts, 1, 1, KEEPERS + READERS),
    FIELD("replicas", keep_plan.replicas, 1, 1, KEEPERS),
    FIELD("faults", keep_plan.faults.kinds, 1, 0, UINT32_MAX),
    FIELD("block", keep_plan.block, 1, 16, 1 << 20),
    FIELD("files", keep_plan.files, 1, 0, 1),
    FIELD("evicts", keep_plan.evicts, 1, 0, 1),
    FIELD("hasty", keep_plan.hasty, 1, 0, 1),
    FIELD("device", keep_plan.device, 1, 0, 1),
    FIELD("repairs", keep_plan.repairs, 1, 0, 1),
    FIELD("faulty", keep_plan.faults.lasts, MS, 0, INT32_MAX),
    FIELD("atomics", sim_atomics_share, 1, 1, INT32_MAX),
    FIELD("calls", net.short_calls, 1, 0, 1000000),
    FIELD("calls", net.refused_calls, 1, 0, 1000000),
    FIELD("shrinks", plan.shrinks, 1, 0, 1000000),
    FIELD("tls", plan.tls, 1, 0, 1),
    FIELD("rdma", cards.per_host, 1, 0, 6),
};
#define FIELDS (sizeof fields / sizeof fields[0])

static bool set(const char *text) {
  bool known = fields_set(fields, FIELDS, text);
  if (keep_plan.replicas > keep_plan.stores)
    keep_plan.replicas = keep_plan.stores;
  if (keep_plan.hosts > keep_plan.stores + keep_plan.clients)
    keep_plan.hosts = keep_plan.stores + keep_plan.clients;
  if (keep_plan.hosts > 1)
    keep_plan.by_unix = false;
  return known;
}

static void print_fields(FILE *to) {
  fields_print(fields, FIELDS, to);
}

static void print_plan(void) {
  printf("plan: %u stores, %u clients of %u fibers, %u hosts, %u replicas, blocks of up to %llu "
         "bytes, liveness %lld ms%s%s%s%s%s%s%s\n",
         keep_plan.stores, keep_plan.clients, keep_plan.workers, keep_plan.hosts,
         keep_plan.replicas, (unsigned long long)keep_plan.block,
         (long long)(keep_plan.liveness / MS), keep_plan.files ? ", file tiers" : "",
         keep_plan.evicts ? ", evicts" : "", keep_plan.hasty ? ", hasty" : "",
         keep_plan.repairs ? ", repairs" : "", keep_plan.device ? ", in devices" : "",
         keep_plan.only ? ", tcp alone" : "", plan.tls ? ", TLS" : "");
  faults_print(&keep_plan.faults, keep_fault_names, KEEP_FAULTS);
}

/* ---- Faults ---- */

static struct keeper *draw_keeper(bool store) {
  return store ? &keep.stores[sim_below(keep_plan.stores)]
               : &keep.clients[sim_below(keep_plan.clients)];
}

/* And the file, in part of the cases: what the kernel had not written. */
static void lose_memory(struct keeper *store) {
  host_lose_file(store->base.host, store->path);
  if (keep_plan.files && sim_chance(500000))
    host_lose_file(store->base.host, store->file_path);
}

static void end_keeper(struct keeper *keeper, bool power) {
  participant_kill(&keeper->base, power);
  keeper->serves = false;
  keeper->deaths++;
  if (power)
    lose_memory(keeper);
  if (keeper->is_store)
    store_died(keeper, power);
}

static void inject(unsigned fault) {
  bool of_client = fault == READER_KILL || fault == READER_FREEZE;
  struct keeper *keeper = draw_keeper(!of_client && (fault != KEEP_MEMORY || sim_chance(500000)));
  int64_t until = sim_now + faults_length();
  if (!keeper->base.process)
    return;
  sim_faults++;
  sim_trace("fault: %s, %s", keep_fault_names[fault], keeper->base.name);
  trouble(sim_now, until);
  switch ((enum keep_fault)fault) {
  case KEEPER_KILL:
  case KEEPER_POWER:
  case READER_KILL:
    end_keeper(keeper, fault == KEEPER_POWER);
    break;
  case KEEPER_FREEZE:
  case READER_FREEZE:
    participant_freeze(&keeper->base, until);
    break;
  case KEEPER_LEAVES:
    keeper->leaves = true;
    break;
  case KEEP_CUT:
  case KEEP_CUT_ONE_WAY:
    faults_cut(keep_plan.hosts, fault == KEEP_CUT, until);
    break;
  case KEEP_RESET:
    net_reset(keeper->base.host, draw_keeper(false)->base.host);
    break;
  default:
    participant_run_short(&keeper->base, until);
  }
}

/* ---- Phases ---- */

static void heal(void) {
  if (net.refused_calls)
    trouble(0, sim_now);
}

static bool is_done(void) {
  for (unsigned i = 0; i < keep_plan.clients; i++)
    if (!keep.clients[i].base.ended)
      return false;
  return true;
}

static void fail_late(void) {
  sim_fail("liveness", "a client has not ended %lld s after the last fault",
           (long long)(END_LIMIT / S));
}

static const struct course course = {.kinds = KEEP_FAULTS,
                                     .inject = inject,
                                     .heal = heal,
                                     .is_done = is_done,
                                     .done_limit = END_LIMIT,
                                     .late = fail_late,
                                     .stop_limit = STOP_LIMIT};

static void add_store(unsigned number, struct host *host) {
  struct keeper *store = &keep.stores[number];
  participant_add(&store->base, "store", number, host, keeper_main, 0);
  store->is_store = true;
  snprintf(store->path, sizeof store->path, "/store/cache-%u", number);
  snprintf(store->file_path, sizeof store->file_path, "/store/file-%u", number);
  if (keep_plan.by_unix)
    snprintf(store->base.address, sizeof store->base.address, "unix://@cache-%u", number);
}

/* For a few blocks of the longest kind, or for all. */
static uint64_t draw_capacity(bool few) {
  uint64_t pages = (keep_plan.block + 4095) / 4096 * 4096; /* blocks take whole pages */
  return pages * (few ? 2 + sim_below(11) : KEYS + WORKERS * READERS * ITEMS + 64);
}

static void start(void) {
  struct host *hosts[KEEPERS + READERS];
  keep_plan.capacity = draw_capacity(keep_is_small());
  keep_plan.file_capacity = draw_capacity(keep_plan.evicts);
  for (unsigned i = 0; i < keep_plan.hosts; i++) {
    hosts[i] = host_create(i);
    net_add_host(hosts[i]);
  }
  for (unsigned i = 0; i < keep_plan.stores; i++)
    add_store(i, hosts[i < keep_plan.hosts ? i : sim_below(keep_plan.hosts)]);
  for (unsigned i = 0; i < keep_plan.clients; i++)
    participant_add(&keep.clients[i].base, "client", i, hosts[sim_below(keep_plan.hosts)],
                    reader_main, 0);
  blocks_start();
  if (keep_plan.hosts > PROGRAMS)
    cards.per_host = 0;
  cards_start();
  course_start(&course, &keep_plan.faults);
}

static void print_history(void) {
  printf("%llu calls ok, %llu failed\n", (unsigned long long)keep.done,
         (unsigned long long)results.failed);
  errors_print(results.codes);
}

static uint64_t operations(void) {
  return keep.done + results.failed;
}

const struct scene cache_scene = {"cache", draw,           set,           print_fields, print_plan,
                                  start,   course_is_over, print_history, operations};
