/* SPDX-License-Identifier: MIT */
#include "scene.h"

#include "calls.h"
#include "load.h"
#include "net.h"

#define PORT      7000
#define AFTERMATH (30 * S) /* until what faults did has ended */

struct results results;
static struct list participants = {&participants, &participants};

/* ---- Participants ---- */

static void on_start(struct event *event) {
  struct participant *participant = list_entry(event, struct participant, restart);
  participant->life++;
  participant->ended = false;
  sim_trace("%s starts its life %u", participant->name, participant->life);
  participant->process = process_start(participant->host, participant->number, participant->life,
                                       participant->run, participant);
}

void participant_add(struct participant *participant, const char *kind, unsigned number,
                     struct host *host, void *(*run)(void *participant), int64_t delay) {
  uint32_t address = host->address;
  participant->number = number;
  participant->host = host;
  participant->run = run;
  snprintf(participant->name, sizeof participant->name, "%s%u", kind, number);
  snprintf(participant->address, sizeof participant->address, "tcp://%u.%u.%u.%u:%u", address >> 24,
           address >> 16 & 255, address >> 8 & 255, address & 255, PORT + number);
  list_append(&participants, &participant->link);
  if (delay)
    event_schedule(&participant->restart, sim_now + delay, on_start);
  else
    on_start(&participant->restart);
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

void participant_kill(struct participant *participant, bool power) {
  process_kill(participant->process, power);
  participant->process = NULL;
  event_cancel(&participant->end_of_pause);
  event_cancel(&participant->end_of_shortage);
  event_schedule(&participant->restart, sim_now + sim_between(MS, 3 * S), on_start);
}

void participant_freeze(struct participant *participant, int64_t until) {
  process_freeze(participant->process);
  event_schedule(&participant->end_of_pause, until, on_pause_end);
}

void participant_run_short(struct participant *participant, int64_t until) {
  if (sim_chance(500000))
    participant->process->next_memory = 1 + (unsigned)sim_below(1u << sim_below(11));
  else
    participant->process->refuse_memory = (unsigned)sim_between(1000, 100000);
  results.short_until = until > results.short_until ? until : results.short_until;
  event_schedule(&participant->end_of_shortage, until, on_shortage_end);
}

static void calm(struct participant *participant) {
  on_pause_end(&participant->end_of_pause);
  on_shortage_end(&participant->end_of_shortage);
  if (participant->restart.place)
    event_schedule(&participant->restart, sim_now, on_start);
}

void participant_close(struct participant *participant, haul_node *node, int64_t liveness) {
  if (node) {
    struct limit limit = limit_begin("haul_node_close", own_clock() + liveness + 10 * S);
    haul_node_close(node);
    limit_end(&limit);
  }
  pause_for(S); /* for threads that close descriptors */
  files_check_closed(participant->process);
}

/* ---- Faults and phases ---- */

static const struct course *course;
static const struct fault_plan *fault_plan;
static struct event next_fault, end_of_phase;

int64_t faults_length(void) {
  return MS << sim_below(14);
}

void faults_cut(unsigned hosts, bool both, int64_t until) {
  unsigned one = (unsigned)sim_below(hosts), other = (unsigned)sim_below(hosts);
  net_cut(one, other, until);
  if (both)
    net_cut(other, one, until);
}

void faults_print(const struct fault_plan *faults, const char *const *names, unsigned kinds) {
  printf("plan: faults for %.1f s, one each %.3f s:", (double)faults->lasts / S,
         (double)faults->interval / S);
  for (unsigned i = 0; i < kinds; i++)
    if (faults->kinds >> i & 1)
      printf(" %s", names[i]);
  puts("");
}

static void on_fault(struct event *event) {
  unsigned kind = (unsigned)sim_below(course->kinds);
  if (!fault_plan->kinds)
    return;
  while (!(fault_plan->kinds >> kind & 1))
    kind = (kind + 1) % course->kinds;
  course->inject(kind);
  event_schedule(event, sim_now + sim_between(0, 2 * fault_plan->interval), on_fault);
}

static void on_late(struct event *event) {
  (void)event;
  course->late();
}

static void on_quiet(struct event *event) {
  sim_trace("no more faults");
  load.phase = QUIET;
  load.quiet_at = sim_now;
  event_cancel(&next_fault);
  net_heal();
  if (course->heal)
    course->heal();
  net.refused_calls = 0;
  list_each(item, &participants) calm(list_entry(item, struct participant, link));
  event_schedule(event, sim_now + course->done_limit, on_late);
}

void course_start(const struct course *of_scene, const struct fault_plan *faults) {
  course = of_scene;
  fault_plan = faults;
  event_schedule(&next_fault, sim_now + fault_plan->interval, on_fault);
  event_schedule(&end_of_phase, fault_plan->lasts, on_quiet);
}

/* NULL: all have ended. */
static const struct participant *find_running(void) {
  list_each(item, &participants) {
    const struct participant *participant = list_entry(item, struct participant, link);
    if (!participant->ended)
      return participant;
  }
  return NULL;
}

static void on_stop_limit(struct event *event) {
  (void)event;
  sim_fail("liveness", "%s has not ended %lld s after the request", find_running()->name,
           (long long)(course->stop_limit / S));
}

bool course_is_over(void) {
  if (load.phase == QUIET && course->is_done()) {
    sim_trace("all is done");
    load.phase = STOPPING;
    load.stop_at = sim_now;
    event_schedule(&end_of_phase, sim_now + course->stop_limit, on_stop_limit);
  }
  return load.phase == STOPPING && !find_running();
}

/* ---- Codes ---- */

void fail_code(const char *call, int code) {
  sim_fail("codes", "%s: %s (%s; %s)", call, haul_error_name(code), haul_error_last()->text,
           haul_error_last()->object);
}

static bool is_defect(int code) {
  static const int defects[] = {HAUL_EPROTO,  HAUL_EINVAL,    HAUL_EADDRESS,
                                HAUL_EACCESS, HAUL_EINSECURE, HAUL_EVERSION,
                                HAUL_ERANGE,  HAUL_ECLOSED,   HAUL_ECHECKSUM};
  for (size_t i = 0; i < sizeof defects / sizeof *defects; i++)
    if (code == defects[i])
      return true;
  return false;
}

/* Without memory OpenSSL is not opened, or rejects its peer. */
static bool is_shortage(int code) {
  return code == HAUL_ENOMEM || code == HAUL_ELIMIT || code == HAUL_ESYSTEM ||
         (plan.tls && (code == HAUL_EAUTH || code == HAUL_ENOTSUP));
}

void results_count(const char *call, int code, bool may_be_full) {
  bool is_short = results.short_until && sim_now < results.short_until + AFTERMATH;
  results.failed += code != 0;
  if (code < 0 && code > -64)
    results.codes[-code]++;
  sim_hash(300, (uint64_t)(int64_t)code);
  if (code)
    sim_trace("%s: %s, %s", call, haul_error_name(code), haul_error_last()->text);
  if (is_defect(code) || (is_shortage(code) && !is_short && !(code == HAUL_ELIMIT && may_be_full)))
    fail_code(call, code);
}

void errors_print(const uint64_t codes[64]) {
  printf("errors:");
  for (int i = 1; i < 64; i++)
    if (codes[i])
      printf(" %s %llu", haul_error_name(-i), (unsigned long long)codes[i]);
  puts("");
}
