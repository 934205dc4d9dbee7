/* SPDX-License-Identifier: MIT */
#include "names.h"

#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "calls.h"
#include "fields.h"
#include "load.h"
#include "net.h"
#include "scene.h"

#define QUIET_LIMIT (90 * S) /* for all to find and reach all once faults have ended */
#define STOP_LIMIT  (60 * S) /* for all to close */

struct names_plan names_plan;
struct names names;

static const char *const node_fault_names[NODE_FAULTS] = {
    "kills",        "power losses", "freezes",          "leaves",       "cuts",
    "one-way cuts", "resets",       "memory shortages", "no descriptor"};

static unsigned draw_bits(unsigned all, unsigned share) {
  unsigned bits = 0;
  for (unsigned i = 0; i < all; i++)
    bits |= (unsigned)sim_chance(share) << i;
  return bits;
}

void names_draw(void) {
  net_draw();
  etcd_draw();
  sim_atomics_share = 1 << sim_between(8, 14);
  unsigned share = (unsigned)sim_between(100000, 600000);
  names_plan.nodes = (unsigned)sim_between(2, NODES);
  names_plan.hosts = (unsigned)sim_between(1, names_plan.nodes);
  names_plan.node_faults = draw_bits(NODE_FAULTS, share);
  names_plan.etcd_faults = draw_bits(ETCD_FAULTS, share);
  if (!names_plan.node_faults && !names_plan.etcd_faults)
    names_plan.node_faults = 1u << sim_below(NODE_FAULTS);
  names_plan.faulty_for = sim_between(10 * S, 120 * S);
  names_plan.fault_interval = sim_between(200 * MS, sim_chance(500000) ? 4 * S : 30 * S);
  names_plan.lease = (unsigned)sim_between(2, sim_chance(700000) ? 5 : 20);
  names_plan.liveness = sim_between(300 * MS, 5 * S);
  names_plan.pause = sim_between(10 * MS, 2 * S);
  names_plan.any_address = sim_chance(400000);
  names_plan.advertises = sim_chance(200000);
  names_plan.free_ports = sim_chance(500000);
  names_plan.moves = sim_chance(300000);
  names_plan.publishes = sim_chance(700000);
}

static const struct field fields[] = {
    FIELD("nodes", names_plan.nodes, 1, 2, NODES),
    FIELD("hosts", names_plan.hosts, 1, 1, NODES),
    FIELD("members", etcd_plan.members, 1, 1, MEMBERS),
    FIELD("faults", names_plan.node_faults, 1, 0, UINT32_MAX),
    FIELD("etcd", names_plan.etcd_faults, 1, 0, UINT32_MAX),
    FIELD("faulty", names_plan.faulty_for, MS, 0, INT32_MAX),
    FIELD("atomics", sim_atomics_share, 1, 1, INT32_MAX),
    FIELD("calls", net.short_calls, 1, 0, 1000000),
    FIELD("calls", net.refused_calls, 1, 0, 1000000),
    FIELD("errors", etcd_plan.slow, 1, 0, 1000000),
    FIELD("errors", etcd_plan.errors, 1, 0, 1000000),
    FIELD("errors", etcd_plan.broken, 1, 0, 1000000),
    FIELD("shrinks", plan.shrinks, 1, 0, 1000000),
    FIELD("moves", names_plan.moves, 1, 0, 1),
    FIELD("publishes", names_plan.publishes, 1, 0, 1),
    FIELD("tls", plan.tls, 1, 0, 1),
};
#define FIELDS (sizeof fields / sizeof fields[0])

bool names_set(const char *text) {
  bool known = fields_set(fields, FIELDS, text);
  if (names_plan.hosts > names_plan.nodes)
    names_plan.hosts = names_plan.nodes;
  return known;
}

void names_print_plan(FILE *to) {
  fields_print(fields, FIELDS, to);
}

static void print_bits(unsigned bits, const char *const *texts, unsigned count) {
  for (unsigned i = 0; i < count; i++)
    if (bits >> i & 1)
      printf(", %s", texts[i]);
}

void names_print(void) {
  printf("plan: %u nodes on %u hosts, %u members, lease %u s, liveness %lld ms%s%s%s%s%s\n",
         names_plan.nodes, names_plan.hosts, etcd_plan.members, names_plan.lease,
         (long long)(names_plan.liveness / MS), names_plan.any_address ? ", any address" : "",
         names_plan.advertises ? ", advertised" : "", names_plan.free_ports ? ", free ports" : "",
         names_plan.moves ? ", moves" : "", names_plan.publishes ? ", publishes" : "");
  printf("plan: service %lld us, slow %u, errors %u, broken %u, faults for %.1f s, one each %.3f s",
         (long long)(etcd_plan.service / US), etcd_plan.slow, etcd_plan.errors, etcd_plan.broken,
         (double)names_plan.faulty_for / S, (double)names_plan.fault_interval / S);
  print_bits(names_plan.node_faults, node_fault_names, NODE_FAULTS);
  print_bits(names_plan.etcd_faults, etcd_fault_names, ETCD_FAULTS);
  puts("");
}

static struct event next_fault, end_of_phase, restart_at[NODES], end_of_pause[NODES],
    end_of_shortage[NODES], next_death[NODES];

static void on_restart(struct event *event) {
  struct named *node = &names.nodes[event - restart_at];
  if (node->process) /* it left in order, and its process has ended */
    process_kill(node->process, false);
  named_start(node);
}

static void on_pause_end(struct event *event) {
  struct process *process = names.nodes[event - end_of_pause].process;
  if (process)
    process_thaw(process);
}

static void on_shortage_end(struct event *event) {
  struct process *process = names.nodes[event - end_of_shortage].process;
  if (process)
    process->refuse_memory = process->refuse_descriptors = 0;
}

static void end_node(struct named *node, bool silent) {
  node->lives[node->life].ended = sim_now;
  node->registered_at = 0;
  process_kill(node->process, silent);
  node->process = NULL;
  event_cancel(&end_of_pause[node->number]);
  event_cancel(&end_of_shortage[node->number]);
  event_schedule(&restart_at[node->number], sim_now + sim_between(MS, 20 * S), on_restart);
}

/* Waits until the node has left, and then starts it again. */
static void on_left(struct event *event) {
  struct named *node = &names.nodes[event - next_death];
  if (!node->process || !node->leaves)
    return;
  if (!node->ended)
    event_schedule(event, sim_now + 50 * MS, on_left);
  else if (load.phase == FAULTY || load.phase == QUIET)
    event_schedule(&restart_at[node->number], sim_now + sim_between(MS, 5 * S), on_restart);
}

/* From milliseconds to some seconds, shorter ones more often. */
static int64_t draw_length(void) {
  return MS << sim_below(15);
}

static void trouble(unsigned host, int64_t until) {
  for (unsigned i = 0; i < names_plan.nodes; i++)
    if (names.nodes[i].host->number == host && names.nodes[i].trouble_until < until)
      names.nodes[i].trouble_until = until;
}

static void cut(bool both) {
  unsigned hosts = names_plan.hosts + etcd_plan.members;
  unsigned one = (unsigned)sim_below(hosts), other = (unsigned)sim_below(hosts);
  int64_t until = sim_now + draw_length();
  net_cut(one, other, until);
  if (both)
    net_cut(other, one, until);
  trouble(one, until);
  trouble(other, until);
}

static void run_short(struct named *node, enum node_fault fault) {
  int64_t until = sim_now + draw_length();
  if (fault == NO_MEMORY)
    node->process->refuse_memory = (unsigned)sim_between(1000, 100000);
  else
    node->process->refuse_descriptors = (unsigned)sim_between(10000, 900000);
  event_schedule(&end_of_shortage[node->number], until, on_shortage_end);
  node->trouble_until = until;
}

static void inject(struct named *node, enum node_fault fault) {
  sim_faults++;
  sim_trace("fault: %s, node %u", node_fault_names[fault], node->number);
  if (fault == NODE_KILL || fault == NODE_POWER) {
    end_node(node, fault == NODE_POWER);
  } else if (fault == NODE_FREEZE) {
    int64_t until = sim_now + draw_length();
    process_freeze(node->process);
    event_schedule(&end_of_pause[node->number], until, on_pause_end);
    node->trouble_until = until;
  } else if (fault == NODE_LEAVES) {
    node->leaves = true;
    event_schedule(&next_death[node->number], sim_now, on_left);
  } else if (fault == LINK_CUT || fault == LINK_CUT_ONE_WAY) {
    cut(fault == LINK_CUT);
  } else if (fault == LINK_RESET) {
    net_reset(node->host, names.nodes[sim_below(names_plan.nodes)].host);
  } else {
    run_short(node, fault);
  }
}

static void on_fault(struct event *event) {
  unsigned drawn;
  do
    drawn = (unsigned)sim_below(NODE_FAULTS + ETCD_FAULTS);
  while (!((names_plan.node_faults | names_plan.etcd_faults << NODE_FAULTS) >> drawn & 1));
  struct named *node = &names.nodes[sim_below(names_plan.nodes)];
  if (drawn >= NODE_FAULTS)
    etcd_inject((enum etcd_fault)(drawn - NODE_FAULTS));
  else if (node->process && !node->leaves)
    inject(node, (enum node_fault)drawn);
  event_schedule(event, sim_now + sim_between(0, 2 * names_plan.fault_interval), on_fault);
}

static void faults_end(void) {
  event_cancel(&next_fault);
  net_heal();
  etcd_heal();
  for (unsigned i = 0; i < names_plan.nodes; i++) {
    on_pause_end(&end_of_pause[i]);
    on_shortage_end(&end_of_shortage[i]);
    if (restart_at[i].place)
      event_schedule(&restart_at[i], sim_now, on_restart);
  }
}

static unsigned others_of(unsigned number) {
  return ((1u << names_plan.nodes) - 1) & ~(1u << number);
}

static bool is_proven(const struct named *node) {
  unsigned others = others_of(node->number);
  return node->registered_at && node->connected == others && node->found == others &&
         node->mirrors && named_is_entered(node);
}

static void on_quiet_limit(struct event *event) {
  (void)event;
  for (unsigned i = 0; i < names_plan.nodes; i++) {
    const struct named *node = &names.nodes[i];
    if (!is_proven(node))
      sim_fail("liveness",
               "node %u, %lld s after the last fault: registered %d, found %x, connected %x, walk "
               "%d, entered %d",
               i, (long long)(QUIET_LIMIT / S), node->registered_at > 0, node->found,
               node->connected, node->mirrors, named_is_entered(node));
  }
}

static void on_quiet(struct event *event) {
  sim_trace("no more faults");
  load.phase = QUIET;
  load.quiet_at = sim_now;
  faults_end();
  event_schedule(event, sim_now + QUIET_LIMIT, on_quiet_limit);
}

static void on_stop_limit(struct event *event) {
  (void)event;
  for (unsigned i = 0; i < names_plan.nodes; i++)
    if (!names.nodes[i].ended)
      sim_fail("liveness", "node %u has not ended %lld s after the request", i,
               (long long)(STOP_LIMIT / S));
}

void names_start(void) {
  struct host *hosts[NODES];
  json_object_seed(1); /* else it is drawn by the clock */
  json_set_alloc_funcs(allocate_always, world_free);
  for (unsigned i = 0; i < names_plan.hosts; i++) {
    hosts[i] = host_create(i);
    net_add_host(hosts[i]);
  }
  etcd_start(names_plan.hosts);
  for (unsigned i = 0; i < names_plan.nodes; i++) {
    names.nodes[i].number = i;
    names.nodes[i].host = hosts[i < names_plan.hosts ? i : sim_below(names_plan.hosts)];
    named_start(&names.nodes[i]);
  }
  event_schedule(&next_fault, sim_now + sim_between(0, 5 * S), on_fault);
  event_schedule(&end_of_phase, names_plan.faulty_for, on_quiet);
}

static bool all(bool (*holds)(const struct named *node)) {
  for (unsigned i = 0; i < names_plan.nodes; i++)
    if (!holds(&names.nodes[i]))
      return false;
  return true;
}

static bool has_ended(const struct named *node) {
  return node->ended;
}

bool names_are_over(void) {
  static unsigned turn;
  if (load.phase == QUIET && ++turn % 64 == 0 && all(is_proven)) {
    sim_trace("all have found and reached all");
    load.phase = STOPPING;
    load.stop_at = sim_now;
    event_schedule(&end_of_phase, sim_now + STOP_LIMIT, on_stop_limit);
  }
  return load.phase == STOPPING && all(has_ended);
}

uint64_t names_operations(void) {
  uint64_t sum = 0;
  for (int i = 0; i < 4; i++)
    sum += names.done[i] + names.failed[i];
  return sum;
}

void names_history(void) {
  static const char *const calls[] = {"registrations", "lookups", "connections", "walks"};
  for (int i = 0; i < 4; i++)
    printf("%s %llu ok, %llu failed; ", calls[i], (unsigned long long)names.done[i],
           (unsigned long long)names.failed[i]);
  printf("%llu names absent\n", (unsigned long long)names.absent);
  errors_print(names.codes);
  printf("etcd: %llu requests, %llu refused; in one second: all %u, after an outage %u, of one "
         "client: %u to register, %u to look up, %u to watch, %u connections\n",
         (unsigned long long)etcd_requests, (unsigned long long)etcd_refused, etcd_peak,
         etcd_peak_after_outage, etcd_client_peak[REGISTERS], etcd_client_peak[LOOKS_UP],
         etcd_client_peak[WATCHES], etcd_client_peak[CONNECTS]);
}
