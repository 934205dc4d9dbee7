/* SPDX-License-Identifier: MIT
 * One run. Prints a line of figures; exits with 1 if an oracle found a defect.
 *
 *   sim SEED [trace] [until=SECONDS] [view=FILE] [plan] [FIELD=VALUE...]
 *   sim SEED nodes=N [directory]  thousands of nodes instead (scale.c)
 *   sim SEED SCENE [...]          another scene, with its own fields: names (names.c), broadcast
 *                                 (broadcast.c), cache (cache.c)
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

#include "broadcast.h"
#include "cache.h"
#include "calls.h"
#include "load.h"
#include "names.h"
#include "net.h"
#include "scale.h"
#include "scene.h"

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
  faults_print(&(struct fault_plan){plan.faults, plan.faulty_for, plan.fault_interval}, fault_names,
               FAULTS);
}

static void print_history(void) {
  for (unsigned i = 0; i < OPERATIONS; i++)
    printf("%s%s %llu ok, %llu failed", i ? "; " : "operations: ", operation_names[i],
           (unsigned long long)load.done[i], (unsigned long long)load.failed[i]);
  puts("");
  errors_print(load.codes);
  printf("strangers: %llu rejected\n", (unsigned long long)load.rejections);
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

static void draw_nothing(void) {}

static const struct scene programs_scene = {"programs",   draw_nothing,  plan_set,
                                            plan_print,   print_plan,    load_start,
                                            load_is_over, print_history, all_operations};
static const struct scene names_scene = {"names",          names_draw,    names_set,
                                         names_print_plan, names_print,   names_start,
                                         names_are_over,   names_history, names_operations};
static const struct scene *const scenes[] = {&programs_scene, &names_scene, &broadcast_scene,
                                             &cache_scene};
#define SCENES (sizeof scenes / sizeof scenes[0])

static int64_t until = NEVER;
static const struct scene *scene = &programs_scene;
static unsigned nodes; /* instead of a scene; 0: none */
static bool directory; /* for `nodes` */

__attribute__((noinline)) void sim_until(void);
__attribute__((noinline)) void sim_until(void) {
  printf("the time that was asked for\n");
}

static bool is_over(void) {
  if (sim_now < until)
    return nodes ? scale_is_over() : scene->is_over();
  sim_until();
  return true;
}

static bool take_scene(const char *text) {
  for (size_t i = 0; i < SCENES; i++)
    if (strcmp(text, scenes[i]->name) == 0) {
      scene = scenes[i];
      scene->draw();
      return true;
    }
  return false;
}

/* False: the argument is unknown. */
static bool take_argument(const char *text) {
  if (strcmp(text, "trace") == 0) {
    sim_tracing = true;
  } else if (strncmp(text, "until=", 6) == 0) {
    until = (int64_t)(atof(text + 6) * (double)S);
  } else if (strncmp(text, "view=", 5) == 0) {
    sim_viewer_open(text + 5);
  } else if (scene == &programs_scene && strncmp(text, "nodes=", 6) == 0) {
    nodes = (unsigned)atoi(text + 6);
    sim_many = true;
    return nodes >= 2 && nodes <= HOSTS;
  } else if (strcmp(text, "directory") == 0) {
    directory = true;
  } else if (strcmp(text, "plan") == 0) {
    scene->print_fields(stdout);
    exit(0);
  } else {
    return take_scene(text) || scene->set(text);
  }
  return true;
}

static void print_figures(void) {
  printf("seed=%llu hash=%016llx faults=%llu operations=%llu virtual=%.3f quiet=%.3f\n",
         (unsigned long long)sim_seed, (unsigned long long)sim_hash_value,
         (unsigned long long)sim_faults, (unsigned long long)scene->operations(),
         (double)sim_now / S, (double)(load.stop_at - load.quiet_at) / S);
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
      scene->print_fields(stderr);
      return 2;
    }
  if (sim_tracing)
    scene->print_plan();
  if (nodes)
    scale_start(nodes, directory);
  else
    scene->start();
  sim_run(is_over);
  sim_viewer_close();
  if (sim_tracing || (sim_many && !nodes))
    scene->print_history();
  print_figures();
  return 0;
}
