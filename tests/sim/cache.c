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
    keep_plan.faults |= (unsigned)sim_chance(400000) << i;
  keep_plan.block = (uint64_t)1 << sim_between(6, 15);
  keep_plan.evicts = sim_chance(250000);
  keep_plan.hasty = sim_chance(400000);
  keep_plan.by_unix = keep_plan.hosts == 1 && sim_chance(500000);
  keep_plan.only = sim_chance(300000) && !keep_plan.by_unix ? "tcp" : NULL;
  keep_plan.faulty_for = sim_between(3 * S, 20 * S);
  keep_plan.fault_interval = sim_between(20 * MS, 2 * S);
  keep_plan.liveness = sim_between(300 * MS, 5 * S);
  if (sim_chance(250000)) /* no store is ever away */
    keep_plan.faults = net.refused_calls = cards.faults = keep_plan.hasty = 0;
  keep_plan.pause = sim_chance(300000) ? 2 * MS : sim_between(2 * MS, 200 * MS);
}

static const struct field fields[] = {
    FIELD("stores", keep_plan.stores, 1, 1, KEEPERS),
    FIELD("clients", keep_plan.clients, 1, 1, READERS),
    FIELD("workers", keep_plan.workers, 1, 1, WORKERS),
    FIELD("hosts", keep_plan.hosts, 1, 1, KEEPERS + READERS),
    FIELD("replicas", keep_plan.replicas, 1, 1, KEEPERS),
    FIELD("faults", keep_plan.faults, 1, 0, UINT32_MAX),
    FIELD("block", keep_plan.block, 1, 16, 1 << 20),
    FIELD("evicts", keep_plan.evicts, 1, 0, 1),
    FIELD("hasty", keep_plan.hasty, 1, 0, 1),
    FIELD("faulty", keep_plan.faulty_for, MS, 0, INT32_MAX),
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
         "bytes, liveness %lld ms%s%s%s%s\n",
         keep_plan.stores, keep_plan.clients, keep_plan.workers, keep_plan.hosts,
         keep_plan.replicas, (unsigned long long)keep_plan.block,
         (long long)(keep_plan.liveness / MS), keep_plan.evicts ? ", evicts" : "",
         keep_plan.hasty ? ", hasty" : "", keep_plan.only ? ", tcp alone" : "",
         plan.tls ? ", TLS" : "");
  printf("plan: faults for %.1f s, one each %.3f s:", (double)keep_plan.faulty_for / S,
         (double)keep_plan.fault_interval / S);
  for (unsigned i = 0; i < KEEP_FAULTS; i++)
    if (keep_plan.faults >> i & 1)
      printf(" %s", keep_fault_names[i]);
  puts("");
}

/* ---- Faults ---- */

static struct event next_fault, end_of_phase;

static void start(struct keeper *keeper) {
  keeper->life++;
  keeper->serves = keeper->leaves = keeper->ended = false;
  keeper->working = 0;
  sim_trace("%s %u starts its life %u", keeper->is_store ? "store" : "client", keeper->number,
            keeper->life);
  keeper->process = process_start(keeper->host, keeper->number, keeper->life,
                                  keeper->is_store ? keeper_main : reader_main, keeper);
}

static void on_restart(struct event *event) {
  struct keeper *keeper = list_entry(event, struct keeper, restart);
  trouble(sim_now, sim_now);
  start(keeper);
}

static void on_pause_end(struct event *event) {
  struct process *process = list_entry(event, struct keeper, end_of_pause)->process;
  if (process)
    process_thaw(process);
}

static void on_shortage_end(struct event *event) {
  struct process *process = list_entry(event, struct keeper, end_of_shortage)->process;
  if (process)
    process->refuse_memory = process->next_memory = 0;
}

/* From milliseconds to some seconds, shorter ones more often. */
static int64_t draw_length(void) {
  return MS << sim_below(14);
}

static void end_keeper(struct keeper *keeper, bool power) {
  int64_t until = sim_now + sim_between(MS, 3 * S);
  process_kill(keeper->process, power);
  keeper->process = NULL;
  keeper->serves = false;
  if (power)
    host_lose_file(keeper->host, keeper->path);
  if (keeper->is_store)
    store_died(keeper, power);
  event_cancel(&keeper->end_of_pause);
  event_cancel(&keeper->end_of_shortage);
  event_schedule(&keeper->restart, until, on_restart);
}

static void run_short(struct keeper *keeper, int64_t until) {
  if (sim_chance(500000))
    keeper->process->next_memory = 1 + (unsigned)sim_below(1u << sim_below(11));
  else
    keeper->process->refuse_memory = (unsigned)sim_between(1000, 100000);
  keep.short_until = until > keep.short_until ? until : keep.short_until;
  event_schedule(&keeper->end_of_shortage, until, on_shortage_end);
}

static void cut(bool both, int64_t until) {
  unsigned one = (unsigned)sim_below(keep_plan.hosts), other = (unsigned)sim_below(keep_plan.hosts);
  net_cut(one, other, until);
  if (both)
    net_cut(other, one, until);
}

static struct keeper *draw_keeper(bool store) {
  return store ? &keep.stores[sim_below(keep_plan.stores)]
               : &keep.clients[sim_below(keep_plan.clients)];
}

static void inject(enum keep_fault fault) {
  bool of_client = fault == READER_KILL || fault == READER_FREEZE;
  struct keeper *keeper = draw_keeper(!of_client && (fault != KEEP_MEMORY || sim_chance(500000)));
  int64_t until = sim_now + draw_length();
  if (!keeper->process)
    return;
  sim_faults++;
  sim_trace("fault: %s, %u", keep_fault_names[fault], keeper->number);
  trouble(sim_now, until);
  switch (fault) {
  case KEEPER_KILL:
  case KEEPER_POWER:
  case READER_KILL:
    end_keeper(keeper, fault == KEEPER_POWER);
    break;
  case KEEPER_FREEZE:
  case READER_FREEZE:
    process_freeze(keeper->process);
    event_schedule(&keeper->end_of_pause, until, on_pause_end);
    break;
  case KEEPER_LEAVES:
    keeper->leaves = true;
    break;
  case KEEP_CUT:
  case KEEP_CUT_ONE_WAY:
    cut(fault == KEEP_CUT, until);
    break;
  case KEEP_RESET:
    net_reset(keeper->host, draw_keeper(false)->host);
    break;
  default:
    run_short(keeper, until);
  }
}

static void on_fault(struct event *event) {
  unsigned drawn = (unsigned)sim_below(KEEP_FAULTS);
  if (!keep_plan.faults)
    return;
  while (!(keep_plan.faults >> drawn & 1))
    drawn = (drawn + 1) % KEEP_FAULTS;
  inject((enum keep_fault)drawn);
  event_schedule(event, sim_now + sim_between(0, 2 * keep_plan.fault_interval), on_fault);
}

/* ---- Phases ---- */

static void each(void (*act)(struct keeper *keeper)) {
  for (unsigned i = 0; i < keep_plan.stores; i++)
    act(&keep.stores[i]);
  for (unsigned i = 0; i < keep_plan.clients; i++)
    act(&keep.clients[i]);
}

static void calm(struct keeper *keeper) {
  on_pause_end(&keeper->end_of_pause);
  on_shortage_end(&keeper->end_of_shortage);
  if (keeper->restart.place)
    event_schedule(&keeper->restart, sim_now, on_restart);
}

static void on_end_limit(struct event *event) {
  (void)event;
  sim_fail("liveness", "a client has not ended %lld s after the last fault",
           (long long)(END_LIMIT / S));
}

static void on_quiet(struct event *event) {
  sim_trace("no more faults");
  load.phase = QUIET;
  load.quiet_at = sim_now;
  event_cancel(&next_fault);
  net_heal();
  if (net.refused_calls)
    trouble(0, sim_now);
  net.refused_calls = 0;
  each(calm);
  event_schedule(event, sim_now + END_LIMIT, on_end_limit);
}

static void on_stop_limit(struct event *event) {
  (void)event;
  sim_fail("liveness", "a store has not ended %lld s after the request",
           (long long)(STOP_LIMIT / S));
}

void net_add_host(struct host *host);

static void place(struct keeper *keeper, unsigned number, bool is_store, struct host *host) {
  keeper->number = number;
  keeper->is_store = is_store;
  keeper->host = host;
  snprintf(keeper->path, sizeof keeper->path, "/store/cache-%u", number);
  if (keep_plan.by_unix)
    snprintf(keeper->address, sizeof keeper->address, "unix://@cache-%u", number);
  else
    snprintf(keeper->address, sizeof keeper->address, "tcp://10.%u.%u.%u:%u",
             host->address >> 16 & 255, host->address >> 8 & 255, host->address & 255,
             7000 + number);
}

static void start_all(void) {
  struct host *hosts[KEEPERS + READERS];
  /* Blocks take whole pages. */
  uint64_t pages = (keep_plan.block + 4095) / 4096 * 4096;
  keep_plan.capacity =
      pages * (keep_plan.evicts ? 2 + sim_below(11) : KEYS + WORKERS * READERS * ITEMS + 64);
  for (unsigned i = 0; i < keep_plan.hosts; i++) {
    hosts[i] = host_create(i);
    net_add_host(hosts[i]);
  }
  for (unsigned i = 0; i < keep_plan.stores; i++)
    place(&keep.stores[i], i, true, hosts[i < keep_plan.hosts ? i : sim_below(keep_plan.hosts)]);
  for (unsigned i = 0; i < keep_plan.clients; i++)
    place(&keep.clients[i], i, false, hosts[sim_below(keep_plan.hosts)]);
  blocks_start();
  each(start);
  if (keep_plan.hosts > PROGRAMS)
    cards.per_host = 0;
  cards_start();
  event_schedule(&next_fault, sim_now + keep_plan.fault_interval, on_fault);
  event_schedule(&end_of_phase, keep_plan.faulty_for, on_quiet);
}

static bool clients_ended(void) {
  for (unsigned i = 0; i < keep_plan.clients; i++)
    if (!keep.clients[i].ended)
      return false;
  return true;
}

static bool stores_ended(void) {
  for (unsigned i = 0; i < keep_plan.stores; i++)
    if (!keep.stores[i].ended)
      return false;
  return true;
}

static bool is_over(void) {
  if (load.phase == QUIET && clients_ended()) {
    sim_trace("all clients have ended");
    blocks_check();
    load.phase = STOPPING;
    load.stop_at = sim_now;
    event_schedule(&end_of_phase, sim_now + STOP_LIMIT, on_stop_limit);
  }
  return load.phase == STOPPING && stores_ended();
}

static void print_history(void) {
  printf("%llu calls ok, %llu failed\nerrors:", (unsigned long long)keep.done,
         (unsigned long long)keep.failed);
  for (int i = 1; i < 64; i++)
    if (keep.codes[i])
      printf(" %s %llu", haul_error_name(-i), (unsigned long long)keep.codes[i]);
  puts("");
}

static uint64_t operations(void) {
  return keep.done + keep.failed;
}

const struct scene cache_scene = {"cache",   draw,    set,           print_fields, print_plan,
                                  start_all, is_over, print_history, operations};
