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
    cast_plan.faults |= (unsigned)sim_chance(400000) << i;
  cast_plan.length = (uint64_t)sim_between(1, 1 << sim_between(10, 18));
  cast_plan.chunk = UINT64_C(4096) << sim_below(3);
  cast_plan.faulty_for = sim_between(5 * S, 40 * S);
  cast_plan.fault_interval = sim_between(50 * MS, 4 * S);
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
  cast_plan.faults = 1u << CAST_KILL | 1u << CAST_FREEZE | 1u << CAST_CUT | 1u << CAST_CUT_ONE_WAY |
                     1u << CAST_RESET;
  cast_plan.length = 4 << 20;
  cast_plan.chunk = 64 << 10;
  cast_plan.faulty_for = 60 * S;
  cast_plan.fault_interval = 60 * S * 4 / cast_plan.receivers;
  cast_plan.publish_interval = 1000 * S;
  cast_plan.liveness = 5 * S;
  cast_plan.slow_hosts = 10000;
  cast_plan.in_flight = 0;
  cast_plan.leaves = false;
}

static const struct field fields[] = {
    FIELD("receivers", cast_plan.receivers, 1, 1, RECEIVERS),
    FIELD("hosts", cast_plan.hosts, 1, 1, RECEIVERS + 1),
    FIELD("faults", cast_plan.faults, 1, 0, UINT32_MAX),
    FIELD("faulty", cast_plan.faulty_for, MS, 0, INT32_MAX),
    FIELD("interval", cast_plan.fault_interval, MS, 1, INT32_MAX),
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
  printf("plan: faults for %.1f s, one each %.3f s:", (double)cast_plan.faulty_for / S,
         (double)cast_plan.fault_interval / S);
  for (unsigned i = 0; i < CAST_FAULTS; i++)
    if (cast_plan.faults >> i & 1)
      printf(" %s", cast_fault_names[i]);
  puts("");
}

/* ---- Faults ---- */

static struct event next_fault, end_of_phase;

static void start(struct participant *member) {
  member->life++;
  member->ended = false;
  sim_trace("member %u starts its life %u", member->number, member->life);
  member->process = process_start(member->host, member->number, member->life,
                                  member == &cast.source ? source_main : receiver_main, member);
}

static void on_restart(struct event *event) {
  start(list_entry(event, struct participant, restart));
}

static void on_pause_end(struct event *event) {
  struct process *process = list_entry(event, struct participant, end_of_pause)->process;
  if (process)
    process_thaw(process);
}

static void on_shortage_end(struct event *event) {
  struct process *process = list_entry(event, struct participant, end_of_shortage)->process;
  if (process)
    process->refuse_memory = process->next_memory = 0;
}

/* From milliseconds to some seconds, shorter ones more often. */
static int64_t draw_length(void) {
  return MS << sim_below(14);
}

static void end_member(struct participant *member) {
  process_kill(member->process, false);
  member->process = NULL;
  event_cancel(&member->end_of_pause);
  event_cancel(&member->end_of_shortage);
  event_schedule(&member->restart, sim_now + sim_between(MS, 3 * S), on_restart);
}

static void freeze(struct participant *member) {
  process_freeze(member->process);
  event_schedule(&member->end_of_pause, sim_now + draw_length(), on_pause_end);
}

static void run_short(struct participant *member) {
  int64_t until = sim_now + draw_length();
  if (sim_chance(500000))
    member->process->next_memory = 1 + (unsigned)sim_below(1u << sim_below(11));
  else
    member->process->refuse_memory = (unsigned)sim_between(1000, 100000);
  cast.short_until = until > cast.short_until ? until : cast.short_until;
  event_schedule(&member->end_of_shortage, until, on_shortage_end);
}

static void cut(bool both) {
  unsigned one = (unsigned)sim_below(cast_plan.hosts), other = (unsigned)sim_below(cast_plan.hosts);
  int64_t until = sim_now + draw_length();
  net_cut(one, other, until);
  if (both)
    net_cut(other, one, until);
}

static void part(void) {
  cast.source.host->side = 0;
  for (unsigned i = 0; i < cast_plan.receivers; i++)
    cast.receivers[i].host->side = (unsigned)sim_below(2);
  net_partition(sim_now + draw_length());
}

static void inject(enum cast_fault fault, struct participant *member) {
  if (fault == CAST_SOURCE_KILL || fault == CAST_SOURCE_FREEZE)
    member = &cast.source;
  if (!member->process)
    return;
  sim_faults++;
  sim_trace("fault: %s, member %u", cast_fault_names[fault], member->number);
  if (fault == CAST_KILL || fault == CAST_SOURCE_KILL)
    end_member(member);
  else if (fault == CAST_FREEZE || fault == CAST_SOURCE_FREEZE)
    freeze(member);
  else if (fault == CAST_CUT || fault == CAST_CUT_ONE_WAY)
    cut(fault == CAST_CUT);
  else if (fault == CAST_PARTITION)
    part();
  else if (fault == CAST_RESET)
    net_reset(member->host, cast.receivers[sim_below(cast_plan.receivers)].host);
  else
    run_short(member);
}

static void on_fault(struct event *event) {
  unsigned drawn = (unsigned)sim_below(CAST_FAULTS);
  if (!cast_plan.faults)
    return;
  while (!(cast_plan.faults >> drawn & 1))
    drawn = (drawn + 1) % CAST_FAULTS;
  inject((enum cast_fault)drawn, &cast.receivers[sim_below(cast_plan.receivers)]);
  event_schedule(event, sim_now + sim_between(0, 2 * cast_plan.fault_interval), on_fault);
}

static void calm(struct participant *member) {
  on_pause_end(&member->end_of_pause);
  on_shortage_end(&member->end_of_shortage);
  if (member->restart.place)
    event_schedule(&member->restart, sim_now, on_restart);
}

/* ---- Phases ---- */

static void on_quiet_limit(struct event *event) {
  (void)event;
  for (unsigned i = 0; i < cast_plan.receivers; i++)
    if (cast.receivers[i].version != cast.final || !cast.final)
      sim_fail("liveness",
               "receiver %u has version %llu, and not %llu, %lld s after the last fault", i,
               (unsigned long long)cast.receivers[i].version, (unsigned long long)cast.final,
               (long long)(QUIET_LIMIT / S));
}

static void on_quiet(struct event *event) {
  sim_trace("no more faults");
  load.phase = QUIET;
  load.quiet_at = sim_now;
  event_cancel(&next_fault);
  net_heal();
  net.refused_calls = 0;
  calm(&cast.source);
  for (unsigned i = 0; i < cast_plan.receivers; i++)
    calm(&cast.receivers[i]);
  event_schedule(event, sim_now + QUIET_LIMIT, on_quiet_limit);
}

static void on_stop_limit(struct event *event) {
  (void)event;
  sim_fail("liveness", "not all have ended %lld s after the request", (long long)(STOP_LIMIT / S));
}

void net_add_host(struct host *host);

static void start_all(void) {
  struct host **hosts = calloc(cast_plan.hosts, sizeof *hosts);
  for (unsigned i = 0; i < cast_plan.hosts; i++) {
    hosts[i] = host_create(i);
    net_add_host(hosts[i]);
    if (i > 0 && sim_chance(cast_plan.slow_hosts))
      hosts[i]->slow = (unsigned)sim_between(2, 30);
  }
  cast.source.number = cast_plan.receivers;
  cast.source.host = hosts[0];
  start(&cast.source);
  for (unsigned i = 0; i < cast_plan.receivers; i++) {
    struct participant *receiver = &cast.receivers[i];
    receiver->number = i;
    receiver->host = hosts[i + 1 < cast_plan.hosts ? i + 1 : sim_below(cast_plan.hosts)];
    event_schedule(&receiver->restart, sim_now + sim_between(0, 2 * S), on_restart);
  }
  free(hosts);
  if (cast_plan.hosts > PROGRAMS)
    cards.per_host = 0;
  cards_start();
  event_schedule(&next_fault, sim_now + cast_plan.fault_interval, on_fault);
  event_schedule(&end_of_phase, cast_plan.faulty_for, on_quiet);
}

static bool all_have_the_last(void) {
  for (unsigned i = 0; i < cast_plan.receivers; i++)
    if (!cast.final || cast.receivers[i].version != cast.final)
      return false;
  return true;
}

static bool all_ended(void) {
  for (unsigned i = 0; i < cast_plan.receivers; i++)
    if (!cast.receivers[i].ended)
      return false;
  return cast.source.ended;
}

static bool is_over(void) {
  static unsigned turn;
  if (load.phase == QUIET && ++turn % 64 == 0 && all_have_the_last()) {
    sim_trace("all have the last version");
    load.phase = STOPPING;
    load.stop_at = sim_now;
    event_schedule(&end_of_phase, sim_now + STOP_LIMIT, on_stop_limit);
  }
  return load.phase == STOPPING && all_ended();
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
  printf("%llu receives ok, %llu calls failed, %llu bytes kept, %llu chunks read again\nerrors:",
         (unsigned long long)cast.done, (unsigned long long)cast.failed,
         (unsigned long long)cast.kept, (unsigned long long)cast.retries);
  for (int i = 1; i < 64; i++)
    if (cast.codes[i])
      printf(" %s %llu", haul_error_name(-i), (unsigned long long)cast.codes[i]);
  puts("");
}

static uint64_t operations(void) {
  return cast.done + cast.failed;
}

const struct scene broadcast_scene = {"broadcast", draw,    set,           print_fields, print_plan,
                                      start_all,   is_over, print_history, operations};
