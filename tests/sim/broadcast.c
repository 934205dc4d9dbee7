/* SPDX-License-Identifier: MIT */
#include "broadcast.h"

#include <stdlib.h>
#include <string.h>

#include "calls.h"
#include "cards.h"
#include "fields.h"
#include "load.h"
#include "net.h"
#include "scene.h"

#define QUIET_LIMIT (120 * S) /* for all to have the last version once faults have ended */
#define STOP_LIMIT  (60 * S)  /* for all to close */
#define CROWD       64        /* more receivers than that have a plan that is not drawn */

struct cast_plan cast_plan;
struct cast cast;

static const char *const cast_fault_names[CAST_FAULTS] = {"kills",
                                                          "freezes",
                                                          "cuts",
                                                          "one-way cuts",
                                                          "partitions",
                                                          "resets",
                                                          "memory shortages",
                                                          "source is killed",
                                                          "source is frozen"};

static void draw(void) {
  net_draw();
  sim_atomics_share = 1 << sim_between(8, 14);
  cast_plan.receivers = (unsigned)sim_between(2, sim_chance(200000) ? 24 : 8);
  cast_plan.hosts = (unsigned)sim_between(1, cast_plan.receivers + 1);
  for (unsigned i = 0; i < CAST_FAULTS; i++)
    cast_plan.faults.kinds |= (unsigned)sim_chance(400000) << i;
  cast_plan.length = (uint64_t)sim_between(1, 1 << sim_between(10, 18));
  cast_plan.chunk = UINT64_C(4096) << sim_below(3);
  cast_plan.faults.lasts = sim_between(5 * S, 40 * S);
  cast_plan.faults.interval = sim_between(50 * MS, 4 * S);
  cast_plan.publish_interval = sim_between(500 * MS, 10 * S);
  cast_plan.liveness = sim_between(300 * MS, 5 * S);
  cast_plan.slow_hosts = sim_chance(500000) ? 0 : 250000;
  cast_plan.in_flight = sim_chance(500000) ? 0 : (unsigned)sim_between(1, 16);
  cast_plan.twice = sim_chance(500000);
  cast_plan.leaves = sim_chance(500000);
}

/* One in twenty receivers is killed, and others are frozen or cut off, while a version spreads. */
static void plan_crowd(void) {
  sim_many = true;
  net = (struct net){.latency = 20 * US,
                     .jitter = 200 * US,
                     .picoseconds_a_byte = 10000, /* 100 MB/s */
                     .window = 1 << 20,
                     .backoff = 9};
  sim_atomics_share = 1 << 20;
  plan.shrinks = 0;
  plan.tls = false;
  cards.per_host = 0;
  cast_plan.hosts = cast_plan.receivers + 1;
  cast_plan.faults.kinds = 1u << CAST_KILL | 1u << CAST_FREEZE | 1u << CAST_CUT |
                           1u << CAST_CUT_ONE_WAY | 1u << CAST_RESET;
  cast_plan.length = 4 << 20;
  cast_plan.chunk = 64 << 10;
  cast_plan.faults.lasts = 60 * S;
  cast_plan.faults.interval = 60 * S * 4 / cast_plan.receivers;
  cast_plan.publish_interval = 1000 * S;
  cast_plan.liveness = 5 * S;
  cast_plan.slow_hosts = 10000;
  cast_plan.in_flight = 0;
  cast_plan.leaves = false;
}

static const struct field fields[] = {
    FIELD("receivers", cast_plan.receivers, 1, 1, RECEIVERS),
    FIELD("hosts", cast_plan.hosts, 1, 1, RECEIVERS + 1),
    FIELD("faults", cast_plan.faults.kinds, 1, 0, UINT32_MAX),
    FIELD("faulty", cast_plan.faults.lasts, MS, 0, INT32_MAX),
    FIELD("interval", cast_plan.faults.interval, MS, 1, INT32_MAX),
    FIELD("publish", cast_plan.publish_interval, MS, 1, INT32_MAX),
    FIELD("length", cast_plan.length, 1, 1, 1 << 30),
    FIELD("chunk", cast_plan.chunk, 1, 4096, 1 << 20),
    FIELD("slow", cast_plan.slow_hosts, 1, 0, 1000000),
    FIELD("leaves", cast_plan.leaves, 1, 0, 1),
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
  if (cast_plan.receivers > CROWD && strncmp(text, "receivers=", 10) == 0)
    plan_crowd();
  if (cast_plan.hosts > cast_plan.receivers + 1)
    cast_plan.hosts = cast_plan.receivers + 1;
  return known;
}

static void print_fields(FILE *to) {
  fields_print(fields, FIELDS, to);
}

static void print_plan(void) {
  printf(
      "plan: %u receivers, %u hosts, up to %llu bytes in chunks of %llu, liveness %lld ms%s%s%s\n",
      cast_plan.receivers, cast_plan.hosts, (unsigned long long)cast_plan.length,
      (unsigned long long)cast_plan.chunk, (long long)(cast_plan.liveness / MS),
      cast_plan.twice ? ", two regions" : "", cast_plan.leaves ? ", members leave" : "",
      plan.tls ? ", TLS" : "");
  faults_print(&cast_plan.faults, cast_fault_names, CAST_FAULTS);
}

/* ---- Faults ---- */

static void part(int64_t until) {
  cast.source.host->side = 0;
  for (unsigned i = 0; i < cast_plan.receivers; i++)
    cast.receivers[i].host->side = (unsigned)sim_below(2);
  net_partition(until);
}

static struct participant *draw_receiver(void) {
  return &cast.receivers[sim_below(cast_plan.receivers)];
}

static void inject(unsigned fault) {
  bool of_source = fault == CAST_SOURCE_KILL || fault == CAST_SOURCE_FREEZE;
  struct participant *member = of_source ? &cast.source : draw_receiver();
  int64_t until = sim_now + faults_length();
  if (!member->process)
    return;
  sim_faults++;
  sim_trace("fault: %s, %s", cast_fault_names[fault], member->name);
  switch ((enum cast_fault)fault) {
  case CAST_KILL:
  case CAST_SOURCE_KILL:
    participant_kill(member, false);
    break;
  case CAST_FREEZE:
  case CAST_SOURCE_FREEZE:
    participant_freeze(member, until);
    break;
  case CAST_CUT:
  case CAST_CUT_ONE_WAY:
    faults_cut(cast_plan.hosts, fault == CAST_CUT, until);
    break;
  case CAST_PARTITION:
    part(until);
    break;
  case CAST_RESET:
    net_reset(member->host, draw_receiver()->host);
    break;
  default:
    participant_run_short(member, until);
  }
}

/* ---- Phases ---- */

static bool all_have_the_last(void) {
  for (unsigned i = 0; i < cast_plan.receivers; i++)
    if (!cast.final || cast.versions[i] != cast.final)
      return false;
  return true;
}

static bool is_done(void) {
  static unsigned turn;
  return ++turn % 64 == 0 && all_have_the_last();
}

static void fail_late(void) {
  for (unsigned i = 0; i < cast_plan.receivers; i++)
    if (cast.versions[i] != cast.final || !cast.final)
      sim_fail("liveness",
               "receiver %u has version %llu, and not %llu, %lld s after the last fault", i,
               (unsigned long long)cast.versions[i], (unsigned long long)cast.final,
               (long long)(QUIET_LIMIT / S));
}

static const struct course course = {.kinds = CAST_FAULTS,
                                     .inject = inject,
                                     .is_done = is_done,
                                     .done_limit = QUIET_LIMIT,
                                     .late = fail_late,
                                     .stop_limit = STOP_LIMIT};

static void start(void) {
  struct host **hosts = calloc(cast_plan.hosts, sizeof *hosts);
  for (unsigned i = 0; i < cast_plan.hosts; i++) {
    hosts[i] = host_create(i);
    net_add_host(hosts[i]);
    if (i > 0 && sim_chance(cast_plan.slow_hosts))
      hosts[i]->slow = (unsigned)sim_between(2, 30);
  }
  participant_add(&cast.source, "source", cast_plan.receivers, hosts[0], source_main, 0);
  for (unsigned i = 0; i < cast_plan.receivers; i++) {
    struct host *host = hosts[i + 1 < cast_plan.hosts ? i + 1 : sim_below(cast_plan.hosts)];
    participant_add(&cast.receivers[i], "r", i, host, receiver_main, sim_between(0, 2 * S));
  }
  free(hosts);
  if (cast_plan.hosts > PROGRAMS)
    cards.per_host = 0;
  cards_start();
  course_start(&course, &cast_plan.faults);
}

/* ---- Report ---- */

static int compare(const void *one, const void *other) {
  int64_t a = *(const int64_t *)one, b = *(const int64_t *)other;
  return (a > b) - (a < b);
}

static void report(struct content *content) {
  size_t count = content->complete;
  if (count == 0)
    return;
  qsort(content->times, count, sizeof *content->times, compare);
  printf("simulated: %llu bytes, %zu of %u receivers complete after: median %.3f s, p99 %.3f s, "
         "last %.3f s; from the source: %.2f times the bytes\n",
         (unsigned long long)content->length, count, cast_plan.receivers,
         (double)content->times[count / 2] / S, (double)content->times[count * 99 / 100] / S,
         (double)content->times[count - 1] / S,
         (double)content->source_bytes / (double)content->length);
}

static void print_history(void) {
  for (size_t i = 0; i < cast.count; i++)
    report(&cast.contents[i]);
  printf("%llu receives ok, %llu calls failed, %llu bytes kept, %llu chunks read again\n",
         (unsigned long long)cast.done, (unsigned long long)results.failed,
         (unsigned long long)cast.kept, (unsigned long long)cast.retries);
  errors_print(results.codes);
}

static uint64_t operations(void) {
  return cast.done + results.failed;
}

const struct scene broadcast_scene = {"broadcast",    draw,          set,
                                      print_fields,   print_plan,    start,
                                      course_is_over, print_history, operations};
