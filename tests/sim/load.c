/* SPDX-License-Identifier: MIT
 * The plan of a run, and its phases: faults happen (faults.c); then none, and all programs must
 * reach each other; then all close. */
#include "load.h"

#include <stdlib.h>
#include <string.h>

#include "calls.h"
#include "cards.h"
#include "fields.h"
#include "net.h"
#include "node/message.h"

#define QUIET_LIMIT (90 * S + 2 * plan.liveness) /* for all to reach all once faults have ended */
#define STOP_LIMIT  (90 * S + 2 * plan.liveness) /* for all to close */
/* By then each program has noticed whatever happened to its connections. */
#define SOLO_WINDOW (14 * S) /* more than a call may take in calm */
#define SOLO_ACTIVE (100 * MS)
#define CALM_AFTER  (plan.silent * 2 + plan.liveness / 2 + 12 * S)

struct plan plan;
struct load load;

/* Atomics need memory that processors access, at both ends. */
bool operation_works(enum operation operation) {
  bool is_atomic = operation == ADD || operation == SHARE;
  bool refused = strcmp(plan.paths, "rdma") == 0 && !(cards.atomics && cards.global);
  return !is_atomic || (!plan.device_memory && !plan.device_local && !refused);
}

static unsigned draw_bits(unsigned all, unsigned share) {
  unsigned bits = 0;
  for (unsigned i = 0; i < all; i++)
    bits |= (unsigned)sim_chance(share) << i;
  return bits ? bits : 1u << sim_below(all);
}

static bool is_different(const struct program *program) {
  return plan.tls && plan.stranger && program->number == plan.programs - 1;
}

bool is_stranger(const struct program *program) {
  return is_different(program) && plan.stranger != OTHER_FIRST;
}

bool share_keys(const struct program *one, const struct program *other) {
  return one == other || (!is_stranger(one) && !is_stranger(other));
}

const char *key_path(const struct program *program) {
  static const char *const others[STRANGERS] = {
      [OTHER_SECRET] = "/keys/secret", [OTHER_NAME] = "/keys/name", [OTHER_FIRST] = "/keys/first"};
  if (!plan.tls)
    return NULL;
  return is_different(program) ? others[plan.stranger] : "/keys/all";
}

bool load_key_text(const char *path, char *text, size_t size) {
  if (strncmp(path, "/keys/", 6) != 0)
    return false;
  if (strcmp(path, "/keys/secret") == 0)
    snprintf(text, size, "all %064d\n", 3);
  else if (strcmp(path, "/keys/name") == 0)
    snprintf(text, size, "stranger %064d\n", 3);
  else if (strcmp(path, "/keys/first") == 0)
    snprintf(text, size, "new %064d\nall %064d\n", 2, 1);
  else
    snprintf(text, size, "all %064d\nnew %064d\n", 1, 2);
  return true;
}

/* Beside a stranger two programs have to do something. */
static void keep_two_alike(void) {
  if (plan.tls && plan.stranger && plan.programs < 3)
    plan.programs = 3;
}

static void draw_tls(bool may_have_tls) {
  plan.tls = sim_chance(400000) && may_have_tls;
  plan.plain_data = sim_chance(250000);
  plan.process_tls = sim_chance(250000);
  plan.stranger =
      sim_chance(250000) ? (enum stranger)sim_between(OTHER_SECRET, OTHER_FIRST) : NO_STRANGER;
  plan.key_lasts = sim_chance(500000) ? (uint64_t)1 << sim_between(8, 20) : UINT64_C(1) << 37;
  keep_two_alike();
}

/* Some nodes wait long for silent peers, whose timers then hide no lost wake-up. So nothing happens
 * that only a timer notices. */
static void draw_patience(void) {
  plan.liveness = sim_between(60 * S, 120 * S);
  plan.silent = 0;
  plan.calm_for = sim_between(2, 6) * SOLO_WINDOW;
  plan.solo = true;
  plan.faults &= ~(1u << POWER | 1u << FREEZE | 1u << CUT | 1u << CUT_ONE_WAY | 1u << SILENCE);
  if (!plan.faults)
    plan.faults = 1u << CLOSE;
}

static bool rdma_only; /* the only path, where there are NICs */

static void set_paths(void) {
  bool was = strcmp(plan.paths, "rdma") == 0;
  cards.gid |= rdma_only;
  if (rdma_only && cards.per_host > 0)
    plan.paths = "rdma";
  else if (was)
    plan.paths = "auto";
}

/* A third of the seeds has NICs; in some of these rdma is the only path. Few have many. */
static void draw_rdma(void) {
  cards.per_host = sim_chance(330000) ? (unsigned)sim_between(1, 2) : 0;
  if (cards.per_host == 2 && sim_chance(500000))
    cards.per_host = (unsigned)sim_between(3, 6);
  cards.shuffled = cards.per_host > 1 && sim_chance(800000);
  cards.uneven = cards.shuffled && sim_chance(800000);
  rdma_only = sim_chance(400000);
  cards_draw(rdma_only);
  set_paths();
}

void load_draw(bool may_have_tls) {
  static const char *const paths[] = {"auto", "auto", "tcp"};
  net_draw();
  sim_atomics_share = 1 << sim_between(3, 14);
  sim_preempt_share = sim_chance(400000) ? 0 : (unsigned)sim_between(1000, 40000);
  sim_copy_share = sim_chance(500000) ? 0 : (unsigned)sim_between(1000, 200000);
  plan.lane = (size_t)1 << (sim_chance(80000) ? 17 : sim_between(6, 13));
  plan.programs = (unsigned)sim_between(2, plan.lane > 8192 ? 3 : 5);
  plan.hosts = (unsigned)sim_between(1, plan.programs);
  plan.operations = draw_bits(OPERATIONS, 650000) | 1u << READ; /* one that always works */
  plan.faults = draw_bits(FAULTS, 500000);
  plan.faulty_for = sim_between(5 * S, 40 * S);
  plan.fault_interval = sim_between(20 * MS, 2 * S);
  plan.liveness = sim_between(300 * MS, 5 * S);
  plan.private_memory = sim_chance(250000);
  plan.wraps = sim_chance(250000);
  plan.caller_progress = sim_chance(300000);
  plan.pause_share = (unsigned)sim_between(200000, 1000000);
  plan.pause = sim_between(1 * MS, 200 * MS);
  plan.device_memory = sim_chance(200000);
  plan.device_local = sim_chance(200000);
  plan.device_rate = sim_chance(500000) ? 0 : (uint64_t)sim_between(1000000, 10000000000);
  plan.device_latency = sim_chance(500000) ? 0 : (uint64_t)sim_between(0, 20 * MS);
  plan.rails = (unsigned)sim_between(0, 4);
  plan.copy_threads = sim_chance(500000) ? 0 : (unsigned)-1;
  plan.checksum_share = (unsigned)sim_below(100);
  plan.pool = sim_chance(500000) ? 0 : SIZE_MAX;
  plan.paths = paths[sim_below(3)];
  plan.withdraws = sim_chance(300000);
  plan.peer_bytes = sim_chance(400000) ? (size_t)sim_between(1, 3) << 20 : 0;
  plan.message_most = sim_chance(400000) ? HAUL_MESSAGE_MAX : 4096;
  plan.message_window = ((plan.message_most + MESSAGE_OVERHEAD) * 4 / 3 + 1)
                        << (sim_chance(500000) ? 0 : sim_below(8));
  plan.calm_for = sim_chance(500000) ? sim_between(1 * S, 4 * S) : 0;
  plan.shrinks = sim_chance(400000) ? 0 : (unsigned)sim_between(100000, 900000);
  plan.zero_copy = sim_chance(500000) ? 0 : 4096;
  plan.silent = plan.liveness;
  if (sim_chance(200000))
    draw_patience();
  draw_tls(may_have_tls);
  plan.idle_rails = sim_chance(500000) ? sim_between(2 * MS, 300 * MS) : 0;
  draw_rdma();
}

static const struct field fields[] = {
    FIELD("programs", plan.programs, 1, 2, PROGRAMS),
    FIELD("hosts", plan.hosts, 1, 1, PROGRAMS),
    FIELD("operations", plan.operations, 1, 1, UINT32_MAX),
    FIELD("faults", plan.faults, 1, 0, UINT32_MAX),
    FIELD("faulty", plan.faulty_for, MS, 0, INT32_MAX),
    FIELD("atomics", sim_atomics_share, 1, 1, INT32_MAX),
    FIELD("calls", net.short_calls, 1, 0, 1000000),
    FIELD("calls", net.refused_calls, 1, 0, 1000000),
    FIELD("lane", plan.lane, 1, 1, 1u << 20),
    FIELD("shrinks", plan.shrinks, 1, 0, 1000000),
    FIELD("tls", plan.tls, 1, 0, 1),
    FIELD("stranger", plan.stranger, 1, 0, STRANGERS - 1),
    FIELD("rdma", cards.per_host, 1, 0, 6),
    FIELD("uneven", cards.uneven, 1, 0, 1),
    FIELD("shuffled", cards.shuffled, 1, 0, 1),
    FIELD("only", rdma_only, 1, 0, 1),
};
#define FIELDS (sizeof fields / sizeof fields[0])

bool plan_set(const char *text) {
  if (!fields_set(fields, FIELDS, text))
    return false;
  set_paths();
  keep_two_alike();
  if (plan.hosts > plan.programs)
    plan.hosts = plan.programs;
  return true;
}

void plan_print(FILE *to) {
  fields_print(fields, FIELDS, to);
}

unsigned sim_shrink(const char *name, unsigned value, unsigned least);

/* The same for each call and process of a run. Of the smaller values all sizes are as likely. */
unsigned sim_shrink(const char *name, unsigned value, unsigned least) {
  uint64_t mixed = sim_seed * 0x9e3779b97f4a7c15;
  for (; *name; name++)
    mixed = (mixed ^ (uint8_t)*name) * 0x100000001b3;
  mixed = (mixed ^ mixed >> 29) * 0xbf58476d1ce4e5b9;
  if ((mixed >> 20) % 1000000 >= plan.shrinks)
    return value;
  unsigned bits = 32 - (unsigned)__builtin_clz(value), shrunk = value >> (mixed >> 50) % bits;
  return shrunk > least ? shrunk : least;
}

static struct event end_of_phase;

static void on_stop_limit(struct event *event) {
  (void)event;
  for (unsigned i = 0; i < plan.programs; i++)
    if (!load.programs[i].ended)
      sim_fail("liveness", "program %u has not ended %lld s after the request", i,
               (long long)(STOP_LIMIT / S));
}

/* Must program `i` still do it with `j`, for the run to be over? */
static bool is_owed(unsigned i, unsigned j, enum operation operation) {
  const struct program *from = &load.programs[i], *to = &load.programs[j];
  return i != j && !from->links[j].proven[operation] && operation_works(operation) &&
         share_keys(from, to);
}

static void on_quiet_limit(struct event *event) {
  (void)event;
  for (unsigned i = 0; i < plan.programs; i++)
    for (unsigned j = 0; j < plan.programs; j++)
      for (unsigned k = 0; k <= MESSAGE; k++)
        if (is_owed(i, j, (enum operation)k))
          sim_fail("liveness", "program %u cannot do %s with %u, %lld s after the last fault", i,
                   operation_names[k], j, (long long)(QUIET_LIMIT / S));
}

static void on_quiet(struct event *event) {
  sim_trace("no more faults");
  sim_instant("no more faults");
  load.phase = QUIET;
  load.quiet_at = sim_now;
  load.calm_at = sim_now + CALM_AFTER;
  faults_stop();
  event_schedule(event, sim_now + QUIET_LIMIT, on_quiet_limit);
}

void load_start(void) {
  struct host *hosts[PROGRAMS];
  for (unsigned i = 0; i < plan.hosts; i++) {
    hosts[i] = host_create(i);
    net_add_host(hosts[i]);
  }
  for (unsigned i = 0; i < plan.programs; i++) {
    load.programs[i].number = i;
    load.programs[i].host = hosts[i < plan.hosts ? i : sim_below(plan.hosts)];
    program_start(&load.programs[i]);
  }
  cards_start();
  faults_start();
  watch_start();
  event_schedule(&end_of_phase, plan.faulty_for, on_quiet);
}

static bool all_ended(void) {
  for (unsigned i = 0; i < plan.programs; i++)
    if (!load.programs[i].ended)
      return false;
  return true;
}

static bool all_proven(void) {
  for (unsigned i = 0; i < plan.programs; i++)
    for (unsigned j = 0; j < plan.programs; j++)
      for (unsigned k = 0; k <= MESSAGE; k++)
        if (is_owed(i, j, (enum operation)k))
          return false;
  return true;
}

bool is_calm(void) {
  return plan.calm_for > 0 && load.phase == QUIET && sim_now >= load.calm_at;
}

const struct link *solo_link(void) {
  if (!plan.solo || !is_calm() || !all_proven())
    return NULL;
  uint64_t window = (uint64_t)((sim_now - load.calm_at) / SOLO_WINDOW);
  uint64_t drawn = (sim_seed + window) * 0x9e3779b97f4a7c15 >> 32;
  unsigned from = (unsigned)(drawn % plan.programs);
  unsigned to = (from + 1 + (unsigned)(drawn / 64 % (plan.programs - 1))) % plan.programs;
  return &load.programs[from].links[to];
}

/* A client that acts alone rests, too, after a while. */
int64_t solo_until(void) {
  int64_t begin = sim_now - (sim_now - load.calm_at) % SOLO_WINDOW;
  return sim_now < begin + SOLO_ACTIVE ? begin + SOLO_ACTIVE : begin + SOLO_WINDOW;
}

bool all_links_ended(void) {
  for (unsigned i = 0; i < plan.programs; i++)
    for (unsigned j = 0; j < plan.programs; j++)
      if (!load.programs[i].links[j].ended)
        return false;
  return true;
}

bool load_is_over(void) {
  static unsigned turn;
  bool calmed = plan.calm_for == 0 || sim_now >= load.calm_at + plan.calm_for;
  if (load.phase == QUIET && ++turn % 64 == 0 && calmed && all_proven()) {
    sim_trace("all have reached all");
    load.phase = STOPPING;
    load.stop_at = sim_now;
    event_schedule(&end_of_phase, sim_now + STOP_LIMIT, on_stop_limit);
  }
  return load.phase == STOPPING && all_ended();
}
