/* SPDX-License-Identifier: MIT
 * One run. Prints a line of figures; exits with 1 if an oracle found a defect.
 *
 *   sim SEED [trace] [until=SECONDS] [view=FILE] [plan] [FIELD=VALUE...]
 *   sim SEED nodes=N [directory]  thousands of nodes instead (scale.c)
 *   sim SEED names [...]          names in a directory instead (names.c), with its own fields
 *
 * trace prints every call; until ends the run then, for a debugger: a breakpoint on sim_until; view
 * writes a trace for Perfetto; plan prints the fields that the seed drew, and ends; the fields
 * replace them. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/personality.h>
#include <sys/resource.h>
#include <unistd.h>

#include "calls.h"
#include "load.h"
#include "names.h"
#include "net.h"
#include "scale.h"

static void print_plan(void) {
  printf("plan: %u programs on %u hosts, lanes of %zu bytes, latency %lld us, jitter %lld us, "
         "window %zu, paths %s, %u rails, liveness %lld ms, %s%s%s\n",
         plan.programs, plan.hosts, plan.lane, (long long)(net.latency / US),
         (long long)(net.jitter / US), net.window, plan.paths, plan.rails,
         (long long)(plan.liveness / MS), plan.caller_progress ? "caller progress" : "threads",
         plan.private_memory ? ", private" : "", plan.wraps ? ", wrapped" : "");
  if (plan.tls)
    printf("plan: TLS%s%s, stranger %d, keys for %llu bytes\n",
           plan.plain_data ? ", plain data" : "", plan.process_tls ? ", by the process" : "",
           (int)plan.stranger, (unsigned long long)plan.key_lasts);
  printf("plan: faults for %.1f s, one each %.3f s:", (double)plan.faulty_for / S,
         (double)plan.fault_interval / S);
  for (unsigned i = 0; i < FAULTS; i++)
    if (plan.faults >> i & 1)
      printf(" %s", fault_names[i]);
  puts("");
}

static void print_history(void) {
  for (unsigned i = 0; i < OPERATIONS; i++)
    printf("%s%s %llu ok, %llu failed", i ? "; " : "operations: ", operation_names[i],
           (unsigned long long)load.done[i], (unsigned long long)load.failed[i]);
  printf("\nerrors:");
  for (int i = 1; i < 64; i++)
    if (load.codes[i])
      printf(" %s %llu", haul_error_name(-i), (unsigned long long)load.codes[i]);
  printf("\nstrangers: %llu rejected\n", (unsigned long long)load.rejections);
}

static uint64_t all_operations(void) {
  uint64_t sum = 0;
  for (unsigned i = 0; i < OPERATIONS; i++)
    sum += load.done[i] + load.failed[i];
  return sum;
}

/* Addresses that differ from run to run could decide something. */
static void fix_addresses(char **arguments) {
  int now = personality(0xffffffff);
  if (now < 0 || (now & ADDR_NO_RANDOMIZE) ||
      personality((unsigned long)now | ADDR_NO_RANDOMIZE) < 0)
    return;
  execv("/proc/self/exe", arguments);
}

static int64_t until = NEVER;
static unsigned nodes; /* 0: the load of load.c */
static bool directory; /* for `nodes` */
static bool named;     /* the load of names.c */

__attribute__((noinline)) void sim_until(void);
__attribute__((noinline)) void sim_until(void) {
  printf("the time that was asked for\n");
}

static bool is_over(void) {
  if (sim_now < until)
    return named ? names_are_over() : nodes ? scale_is_over() : load_is_over();
  sim_until();
  return true;
}

static void print_fields(FILE *to) {
  named ? names_print_plan(to) : plan_print(to);
}

/* False: the argument is unknown. */
static bool take_argument(const char *text) {
  if (strcmp(text, "trace") == 0) {
    sim_tracing = true;
  } else if (strncmp(text, "until=", 6) == 0) {
    until = (int64_t)(atof(text + 6) * (double)S);
  } else if (strncmp(text, "view=", 5) == 0) {
    sim_viewer_open(text + 5);
  } else if (!named && strncmp(text, "nodes=", 6) == 0) {
    nodes = (unsigned)atoi(text + 6);
    sim_many = true;
    return nodes >= 2 && nodes <= HOSTS;
  } else if (strcmp(text, "directory") == 0) {
    directory = true;
  } else if (strcmp(text, "names") == 0) {
    named = true;
    names_draw();
  } else if (strcmp(text, "plan") == 0) {
    print_fields(stdout);
    exit(0);
  } else {
    return named ? names_set(text) : plan_set(text);
  }
  return true;
}

static void print_figures(void) {
  printf("seed=%llu hash=%016llx faults=%llu operations=%llu virtual=%.3f quiet=%.3f\n",
         (unsigned long long)sim_seed, (unsigned long long)sim_hash_value,
         (unsigned long long)sim_faults,
         (unsigned long long)(named ? names_operations() : all_operations()), (double)sim_now / S,
         (double)(load.stop_at - load.quiet_at) / S);
}

int main(int count, char **arguments) {
  char *end = NULL;
  const struct rlimit files = {65536, 65536};
  fix_addresses(arguments);
  uint64_t seed = count > 1 ? strtoull(arguments[1], &end, 10) : 0;
  if (count < 2 || *end || end == arguments[1]) {
    fprintf(stderr,
            "usage: sim SEED [trace] [until=SECONDS] [view=FILE] [plan] [FIELD=VALUE...]\n");
    return 2;
  }
  setrlimit(RLIMIT_NOFILE, &files);
  threads_start();
  processes_start();
  sim_start(seed);
  load_draw(openssl_start());
  for (int i = 2; i < count; i++)
    if (!take_argument(arguments[i])) {
      fprintf(stderr, "sim: unknown argument %s; fields: ", arguments[i]);
      print_fields(stderr);
      return 2;
    }
  if (sim_tracing)
    named ? names_print() : print_plan();
  if (named)
    names_start();
  else if (nodes)
    scale_start(nodes, directory);
  else
    load_start();
  sim_run(is_over);
  sim_viewer_close();
  if (sim_tracing)
    named ? names_history() : print_history();
  print_figures();
  return 0;
}
