/* SPDX-License-Identifier: MIT
 * sim SEED [trace]: one run. Prints a line of figures; exits with 1 if an oracle found a defect. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/personality.h>
#include <sys/resource.h>
#include <unistd.h>

#include "calls.h"
#include "load.h"
#include "net.h"

static void print_plan(void) {
  printf("plan: %u programs on %u hosts, lanes of %zu bytes, latency %lld us, jitter %lld us, "
         "window %zu, paths %s, %u rails, liveness %lld ms, %s%s%s\n",
         plan.programs, plan.hosts, plan.lane, (long long)(net.latency / US),
         (long long)(net.jitter / US), net.window, plan.paths, plan.rails,
         (long long)(plan.liveness / MS), plan.caller_progress ? "caller progress" : "threads",
         plan.private_memory ? ", private" : "", plan.wraps ? ", wrapped" : "");
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
  puts("");
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

int main(int count, char **arguments) {
  char *end;
  fix_addresses(arguments);
  const struct rlimit files = {65536, 65536};
  uint64_t seed = count > 1 ? strtoull(arguments[1], &end, 10) : 0;
  if (count < 2 || *end || count > 3 || (count == 3 && strcmp(arguments[2], "trace") != 0)) {
    fprintf(stderr, "usage: sim SEED [trace]\n");
    return 2;
  }
  setrlimit(RLIMIT_NOFILE, &files);
  sim_tracing = count == 3;
  threads_start();
  processes_start();
  sim_start(seed);
  load_draw();
  if (sim_tracing)
    print_plan();
  load_start();
  sim_run(load_is_over);
  if (sim_tracing)
    print_history();
  printf("seed=%llu hash=%016llx faults=%llu operations=%llu virtual=%.3f quiet=%.3f\n",
         (unsigned long long)seed, (unsigned long long)sim_hash_value,
         (unsigned long long)sim_faults, (unsigned long long)all_operations(), (double)sim_now / S,
         (double)(load.stop_at - load.quiet_at) / S);
  return 0;
}
