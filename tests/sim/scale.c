/* SPDX-License-Identifier: MIT */
#include "scale.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "load.h"
#include "net.h"

#define LINKS    4
#define PORT     7000
#define LIVENESS (5 * S)
#define SETTLED  (60 * S) /* after the join, and after each disturbance */
#define ROLLING  (120 * S)
#define PARTED   (60 * S)

/* What happens, one after the other. */
enum stage { JOIN, CHURN, ROLL, PARTITION, HEALED, END };
static const char *const stage_names[] = {
    "join", "churn of 1% a minute", "rolling restart", "partition", "healed", "end"};
static const int64_t stage_lengths[] = {SETTLED, SETTLED, ROLLING, PARTED, SETTLED, 0};

struct node {
  unsigned number, life;
  struct host *host;
  struct process *process;
  struct event restart;
  haul_peer *peers[LINKS];
};

static struct {
  struct node *nodes;
  unsigned count;
  enum stage stage;
  int64_t stage_began;
  struct event next, churn;
  unsigned rolled, linked;
  uint64_t messages, connects, failures;
} scale;

void net_add_host(struct host *host);

/* ---- A node ---- */

static void format_address(const struct node *node, char *text, size_t size) {
  uint32_t address = node->host->address;
  snprintf(text, size, "tcp://%u.%u.%u.%u:%u", address >> 24, address >> 16 & 255,
           address >> 8 & 255, address & 255, PORT);
}

static void set_linked(struct node *node, unsigned index, haul_peer *peer) {
  if (node->peers[index])
    scale.linked--;
  if (peer)
    scale.linked++;
  node->peers[index] = peer;
}

static void connect_link(struct node *node, haul_node *own, unsigned index) {
  char address[64];
  haul_peer *peer;
  unsigned other = (unsigned)sim_below(scale.count);
  if (other == node->number)
    return;
  format_address(&scale.nodes[other], address, sizeof address);
  scale.connects++;
  if (haul_peer_connect(own, address, own_clock() + 10 * S, &peer) == 0)
    set_linked(node, index, peer);
  else
    scale.failures++;
}

static void tend_links(struct node *node, haul_node *own) {
  for (unsigned i = 0; i < LINKS; i++) {
    if (node->peers[i] && haul_peer_status(node->peers[i]) != 0) {
      haul_peer_close(node->peers[i]);
      set_linked(node, i, NULL);
    }
    if (!node->peers[i])
      connect_link(node, own, i);
  }
}

static void drain_messages(haul_node *own) {
  struct haul_message message;
  while (haul_message_receive(own, &message, HAUL_NO_WAIT) == 0) {
    scale.messages++;
    haul_message_release(&message);
  }
}

static void *node_main(void *argument) {
  struct node *node = argument;
  struct haul_node_config config = HAUL_NODE_CONFIG_INIT;
  haul_node *own;
  char name[32];
  snprintf(name, sizeof name, "n%u.%u", node->number, node->life);
  config.name = name;
  config.insecure = 1;
  config.liveness_ns = LIVENESS;
  config.copy_threads = (unsigned)-1;
  if (haul_node_open(&config, &own) != 0 || haul_node_listen(own, "tcp://0.0.0.0:7000") != 0)
    sim_fail("scale", "a node cannot open: %s", haul_error_last()->text);
  while (scale.stage != END) {
    tend_links(node, own);
    drain_messages(own);
    haul_peer *peer = node->peers[sim_below(LINKS)];
    if (peer)
      haul_message_send(peer, 1, name, strlen(name), own_clock() + S);
    pause_for(sim_between(S, 10 * S));
  }
  return NULL;
}

static void start_node(struct node *node) {
  node->life++;
  node->process = process_start(node->host, node->number, node->life, node_main, node);
}

static void on_restart(struct event *event) {
  start_node(list_entry(event, struct node, restart));
}

static void kill_node(struct node *node) {
  if (!node->process)
    return;
  sim_faults++;
  for (unsigned i = 0; i < LINKS; i++)
    set_linked(node, i, NULL);
  process_kill(node->process, false);
  node->process = NULL;
  event_schedule(&node->restart, sim_now + sim_between(S, 5 * S), on_restart);
}

/* ---- Stages ---- */

static void report_stage(void) {
  size_t blocks = 0, bytes = 0, descriptors = 0, fibers = 0;
  for (unsigned i = 0; i < scale.count; i++) {
    const struct process *process = scale.nodes[i].process;
    if (!process)
      continue;
    blocks += process->block_count;
    bytes += process->block_bytes;
    descriptors += process->descriptor_count;
    list_each(item, &process->fibers) fibers++;
  }
  printf(
      "%s: %.0f s; %u of %u links; %llu connects, %llu failed; %llu messages; per node: %.1f KiB "
      "in %.1f blocks, %.1f descriptors, %.1f threads\n",
      stage_names[scale.stage], (double)(sim_now - scale.stage_began) / S, scale.linked,
      scale.count * LINKS, (unsigned long long)scale.connects, (unsigned long long)scale.failures,
      (unsigned long long)scale.messages, (double)bytes / 1024 / scale.count,
      (double)blocks / scale.count, (double)descriptors / scale.count,
      (double)fibers / scale.count);
  fflush(stdout);
  scale.messages = scale.connects = scale.failures = 0;
}

/* During the churn a node dies every now and then; during the rolling restart, one after the other
 * in equal times. */
static void on_churn(struct event *event) {
  if (scale.stage == CHURN)
    kill_node(&scale.nodes[sim_below(scale.count)]);
  else if (scale.stage == ROLL && scale.rolled < scale.count)
    kill_node(&scale.nodes[scale.rolled++]);
  else
    return;
  int64_t each = (scale.stage == CHURN ? 100 * 60 * S : ROLLING * 9 / 10) / scale.count;
  event_schedule(event, sim_now + each, on_churn);
}

static void on_stage(struct event *event) {
  report_stage();
  if (scale.stage != PARTITION && scale.linked < scale.count * LINKS * 9 / 10)
    sim_fail("scale", "only %u of %u links at the end of a stage", scale.linked,
             scale.count * LINKS);
  scale.stage++;
  scale.stage_began = sim_now;
  if (scale.stage == CHURN || scale.stage == ROLL)
    event_schedule(&scale.churn, sim_now, on_churn);
  if (scale.stage == PARTITION) {
    for (unsigned i = 0; i < scale.count; i++)
      scale.nodes[i].host->side = i % 3 == 0;
    net_partition(sim_now + PARTED);
    sim_faults++;
  }
  if (scale.stage != END)
    event_schedule(event, sim_now + stage_lengths[scale.stage], on_stage);
}

void scale_start(unsigned nodes) {
  scale.count = nodes;
  scale.nodes = calloc(nodes, sizeof *scale.nodes);
  net.latency = 20 * US;
  net.jitter = 10 * US;
  net.picoseconds_a_byte = 320; /* 25 Gbit/s */
  net.window = 1 << 20;
  net.short_calls = net.refused_calls = 0;
  sim_atomics_share = 1 << 20;
  plan.shrinks = 0;
  for (unsigned i = 0; i < nodes; i++) {
    scale.nodes[i].number = i;
    scale.nodes[i].host = host_create(i);
    net_add_host(scale.nodes[i].host);
    event_schedule(&scale.nodes[i].restart, sim_between(0, 2 * S), on_restart);
  }
  event_schedule(&scale.next, stage_lengths[JOIN], on_stage);
}

bool scale_is_over(void) {
  return scale.stage == END;
}
