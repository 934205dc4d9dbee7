/* SPDX-License-Identifier: MIT
 * What happens to the programs of a load, and when. */
#include "calls.h"
#include "load.h"
#include "net.h"

const char *const fault_names[FAULTS] = {
    "kills",        "power losses", "freezes",          "cuts",
    "one-way cuts", "resets",       "memory shortages", "descriptor shortages",
    "closes",       "silences"};

static struct event next_fault, end_of_pause[PROGRAMS], end_of_shortage[PROGRAMS],
    restart_at[PROGRAMS];

/* A program that was frozen for about the liveness timeout, whose peer then falls silent. Until it
 * has to have noticed, no other fault comes to it. */
static struct {
  struct program *frozen, *silent;
  int64_t until;
  struct event event;
} silence;

static void on_restart(struct event *event) {
  program_start(&load.programs[event - restart_at]);
}

static void on_shortage_end(struct event *event) {
  struct process *process = load.programs[event - end_of_shortage].process;
  if (process)
    process->refuse_memory = process->refuse_descriptors = process->next_memory =
        process->next_descriptor = 0;
}

static void kill_program(struct program *program, bool silent) {
  unsigned number = program->number;
  for (unsigned i = 0; i < plan.programs; i++)
    program->links[i].bytes = NULL, program->links[i].peer = NULL;
  for (unsigned i = 0; i < plan.programs; i++)
    if (i != number)
      loosen_lanes(&load.programs[i], number);
  process_kill(program->process, silent);
  program->process = NULL;
  program->memory = NULL;
  program->serves = false;
  event_cancel(&end_of_pause[number]);
  event_cancel(&end_of_shortage[number]);
  event_schedule(&restart_at[number], sim_now + sim_between(MS, 3 * S), on_restart);
}

/* A frozen program may die, too. */
static void on_pause_end(struct event *event) {
  struct program *program = &load.programs[event - end_of_pause];
  if (!program->process)
    return;
  if (program->process->frozen && load.phase == FAULTY && (plan.faults >> KILL & 1) &&
      sim_chance(200000))
    kill_program(program, false);
  else
    process_thaw(program->process);
}

/* From milliseconds to some seconds, shorter ones more often; or near the liveness timeout, before
 * and behind which nodes do different things. */
static int64_t draw_length(void) {
  return plan.silent && sim_chance(300000) ? sim_between(plan.silent / 4, 2 * plan.silent)
                                           : MS << sim_below(14);
}

static void cut(bool both) {
  unsigned one = (unsigned)sim_below(plan.hosts), other = (unsigned)sim_below(plan.hosts);
  int64_t until = sim_now + draw_length();
  net_cut(one, other, until);
  if (both)
    net_cut(other, one, until);
}

/* Many calls are refused for a while, or one, the next or a later one. */
static void run_short(unsigned number, enum fault fault) {
  struct process *process = load.programs[number].process;
  unsigned once = sim_chance(500000) ? 1 + (unsigned)sim_below(1u << sim_below(11)) : 0;
  if (fault == MEMORY && once)
    process->next_memory = once;
  else if (fault == MEMORY)
    process->refuse_memory = (unsigned)sim_between(1000, 300000);
  else if (once)
    process->next_descriptor = 1 + once / 16;
  else
    process->refuse_descriptors = (unsigned)sim_between(10000, 900000);
  if (!once)
    event_schedule(&end_of_shortage[number], sim_now + draw_length(), on_shortage_end);
}

void shortage_at_start(struct program *program) {
  for (enum fault fault = MEMORY; fault <= DESCRIPTORS; fault++)
    if (load.phase == FAULTY && (plan.faults >> fault & 1) && sim_chance(250000)) {
      load.injected[fault]++;
      run_short(program->number, fault);
    }
}

static void on_silence(struct event *event) {
  (void)event;
  if (silence.frozen->process)
    process_thaw(silence.frozen->process);
  if (silence.silent->process && load.phase == FAULTY)
    kill_program(silence.silent, true);
}

/* Its peers drop a program that is frozen for longer than the liveness timeout. */
static void freeze_before_silence(struct program *program) {
  unsigned first = (unsigned)sim_below(plan.programs);
  int64_t pause = sim_between(plan.liveness / 2, plan.liveness);
  for (unsigned i = 0; i < plan.programs; i++) {
    const struct link *link = &program->links[(first + i) % plan.programs];
    if (!link->peer || link->to->host == program->host || program->process->frozen)
      continue;
    silence.frozen = program;
    silence.silent = link->to;
    silence.until = sim_now + pause + GONE_LIMIT + S;
    process_freeze(program->process);
    event_schedule(&silence.event, sim_now + pause, on_silence);
    return;
  }
}

static bool is_spared(const struct program *program) {
  return program == silence.frozen && sim_now < silence.until;
}

static void inject(enum fault fault, unsigned number) {
  struct program *program = &load.programs[number];
  struct process *process = program->process;
  if (!process || is_spared(program) || (fault == SILENCE && sim_now < silence.until))
    return;
  sim_faults++;
  load.injected[fault]++;
  sim_trace("fault: %s, program %u", fault_names[fault], number);
  sim_instant(fault_names[fault]);
  switch (fault) {
  case KILL:
  case POWER:
    kill_program(program, fault == POWER);
    break;
  case FREEZE:
    process_freeze(process);
    event_schedule(&end_of_pause[number], sim_now + draw_length(), on_pause_end);
    break;
  case CUT:
  case CUT_ONE_WAY:
    cut(fault == CUT);
    break;
  case RESET:
    net_reset(program->host, load.programs[sim_below(plan.programs)].host);
    break;
  case CLOSE:
    program->leaves |= program->serves;
    break;
  case SILENCE:
    freeze_before_silence(program);
    break;
  default:
    run_short(number, fault);
  }
}

static enum fault draw_fault(void) {
  for (;;) {
    unsigned drawn = (unsigned)sim_below(FAULTS);
    if (plan.faults >> drawn & 1)
      return (enum fault)drawn;
  }
}

/* The fault that comes next, and the call that it waits for, no longer than AIM_LIMIT. */
static struct {
  bool waits, lit;
  enum amid amid;
  enum fault fault;
  unsigned program;
} aim;
#define AIM_LIMIT S

static void on_fault(struct event *event) {
  if (!plan.faults)
    return;
  if (!aim.waits) {
    aim.fault = draw_fault();
    aim.program = (unsigned)sim_below(plan.programs);
    aim.amid = (enum amid)sim_below(AMIDS);
    aim.waits = sim_chance(500000);
    aim.lit = false;
    if (aim.waits) {
      event_schedule(event, sim_now + AIM_LIMIT, on_fault);
      return;
    }
  }
  aim.waits = false;
  inject(aim.fault, aim.program);
  event_schedule(event, sim_now + sim_between(0, 2 * plan.fault_interval), on_fault);
}

int64_t draw_moment(void) {
  return (int64_t)sim_below((uint64_t)US << sim_below(13));
}

void call_begins(const struct link *link, enum amid what) {
  if (link->to->amid == what)
    queue_wake(&link->to->withdrawal, 1);
  if (!aim.waits || aim.lit || aim.amid != what || load.phase != FAULTY ||
      (link->to->number != aim.program && link->from->number != aim.program))
    return;
  aim.lit = true;
  event_schedule(&next_fault, sim_now + draw_moment(), on_fault);
}

void faults_start(void) {
  event_schedule(&next_fault, sim_now + plan.fault_interval, on_fault);
}

void faults_stop(void) {
  event_cancel(&next_fault);
  event_cancel(&silence.event);
  net_heal();
  net.short_calls /= 4;
  net.refused_calls /= 4;
  for (unsigned i = 0; i < plan.programs; i++) {
    on_pause_end(&end_of_pause[i]);
    on_shortage_end(&end_of_shortage[i]);
    if (restart_at[i].place)
      event_schedule(&restart_at[i], sim_now, on_restart);
  }
}
