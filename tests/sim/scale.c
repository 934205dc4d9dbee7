/* SPDX-License-Identifier: MIT */
#include "scale.h"

#include <haul/directory.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "calls.h"
#include "etcd.h"
#include "load.h"
#include "net.h"

#define PORT     7000
#define LIVENESS (5 * S)
#define STORM    (2 * S) /* all nodes start within it, without a directory */
#define ROLLING  (60 * S)
#define SPREAD   (60 * S)
/* Nodes a second that start, and that are restarted one after the other. The directory has some
 * seven requests of a start, and as many when the others replace their links to a node. */
#define STARTS   60
#define RESTARTS 30
#define LEASE    150 /* seconds: ten thousand nodes make 320 requests a second to stay entered */

static const struct {
  const char *name;
  int64_t length;
} stages[] = {{"join", 30 * S},
              {"churn of 1% a minute", 60 * S},
              {"rolling restart", ROLLING},
              {"partition of a third", 30 * S},
              {"healed", 70 * S},
              {"outage of etcd", 30 * S},
              {"etcd is back", 40 * S},
              {"end", 0}};

struct scale scale;
static struct event next_stage, churn;
static unsigned rolled;

static void format_address(const struct node *node, char *text, size_t size) {
  uint32_t address = node->host->address;
  if (scale.directory)
    snprintf(text, size, "%s/node-%u", etcd_directory(), node->number);
  else
    snprintf(text, size, "tcp://%u.%u.%u.%u:%u", address >> 24, address >> 16 & 255,
             address >> 8 & 255, address & 255, PORT);
}

static void set_linked(struct own_link *link, haul_peer *peer) {
  if (link->peer) {
    scale.linked--;
    scale.nodes[link->to].incoming--;
  }
  if (peer) {
    scale.linked++;
    scale.nodes[link->to].incoming++;
  }
  link->peer = peer;
}

/* With a directory one that has entered it, as an application knows of those that have joined.
 * False: none was drawn. */
static bool draw_other(const struct node *node, unsigned *other) {
  for (int i = 0; i < 8; i++) {
    *other = (unsigned)sim_below(scale.count);
    if (*other != node->number && (!scale.directory || scale.nodes[*other].entered))
      return true;
  }
  return false;
}

/* As docs/scale.md recommends where many nodes may lose each other at the same time. */
static void wait_some_time(struct node *node) {
  if (scale.directory && node->looks_up_at < sim_now)
    node->looks_up_at = sim_now + sim_between(0, SPREAD);
}

static void connect_link(struct node *node, haul_node *own, struct own_link *link) {
  char address[160];
  haul_peer *peer;
  unsigned other;
  int64_t began = sim_now;
  if (!draw_other(node, &other))
    return;
  format_address(&scale.nodes[other], address, sizeof address);
  int code = haul_peer_connect(own, address, own_clock() + 10 * S, &peer);
  figures_connect(code, sim_now - began);
  if (code) {
    wait_some_time(node);
    return;
  }
  link->to = other;
  set_linked(link, peer);
  if (link->down)
    figures_reconnect(sim_now - link->down);
  link->down = 0;
}

static void drop_ended(struct node *node) {
  for (unsigned i = 0; i < LINKS; i++) {
    struct own_link *link = &node->links[i];
    if (!link->peer || haul_peer_status(link->peer) == 0)
      continue;
    if (strstr(haul_error_last()->text, "silent")) /* others may be, too */
      wait_some_time(node);
    haul_peer_close(link->peer);
    set_linked(link, NULL);
    link->down = sim_now;
  }
}

static void make_links(struct node *node, haul_node *own, unsigned most) {
  for (unsigned i = 0; i < LINKS && most > 0; i++)
    if (!node->links[i].peer && sim_now >= node->looks_up_at) {
      connect_link(node, own, &node->links[i]);
      most--;
    }
}

/* Until the time has passed, or a connection has ended. */
static void receive_messages(haul_node *own, int64_t span) {
  struct haul_message message;
  int64_t until = own_clock() + span;
  bool left = false;
  while (!left && haul_message_receive(own, &message, until) == 0) {
    left = message.kind == HAUL_PEER_LEFT;
    if (message.kind == HAUL_MESSAGE)
      figures_message();
    haul_message_release(&message);
  }
}

static void enter_directory(struct node *node, haul_node *own) {
  struct haul_register_options options = HAUL_REGISTER_OPTIONS_INIT;
  options.lease_seconds = LEASE;
  while (haul_node_register(own, etcd_directory(), &options, own_clock() + 60 * S) != 0) {
    figures_register_failed();
    pause_for(sim_between(S, 5 * S));
  }
  node->entered = true;
}

static haul_node *open_node(const char *name) {
  struct haul_node_config config = HAUL_NODE_CONFIG_INIT;
  haul_node *own;
  config.name = name;
  config.insecure = 1;
  config.liveness_ns = LIVENESS;
  config.copy_threads = (unsigned)-1;
  config.peer_events = 1;
  if (haul_node_open(&config, &own) != 0 || haul_node_listen(own, "tcp://0.0.0.0:7000") != 0)
    sim_fail("scale", "a node cannot open: %s", haul_error_last()->text);
  return own;
}

static void *node_main(void *argument) {
  struct node *node = argument;
  char name[32];
  snprintf(name, sizeof name, "node-%u", node->number);
  haul_node *own = open_node(name);
  if (scale.directory)
    enter_directory(node, own);
  figures_bare(node->process);
  make_links(node, own, LINKS);
  while (scale.stage != END) {
    drop_ended(node);
    make_links(node, own, 1); /* those that are left after a pause, as others may lack links, too */
    haul_peer *peer = node->links[sim_below(LINKS)].peer;
    if (peer)
      haul_message_send(peer, 1, name, strlen(name), own_clock() + S);
    receive_messages(own, sim_between(S, 10 * S));
  }
  return NULL;
}

static void on_start(struct event *event) {
  struct node *node = list_entry(event, struct node, restart);
  node->life++;
  node->process = process_start(node->host, node->number, node->life, node_main, node);
}

static void kill_node(struct node *node) {
  if (!node->process)
    return;
  sim_faults++;
  for (unsigned i = 0; i < LINKS; i++) {
    set_linked(&node->links[i], NULL);
    node->links[i].down = 0;
  }
  node->entered = false;
  process_kill(node->process, false);
  node->process = NULL;
  event_schedule(&node->restart, sim_now + sim_between(S, 5 * S), on_start);
}

/* During the churn a node dies every now and then; during the rolling restart, one after the other
 * in equal times. */
static void on_churn(struct event *event) {
  int64_t each = 100 * 60 * S / scale.count, rolling = ROLLING * 9 / 10 / scale.count;
  if (scale.stage == CHURN)
    kill_node(&scale.nodes[sim_below(scale.count)]);
  else if (scale.stage == ROLL && rolled < scale.count && sim_now < scale.stage_began + ROLLING)
    kill_node(&scale.nodes[rolled++]);
  else
    return;
  if (scale.stage == ROLL)
    each = scale.directory && rolling < S / RESTARTS ? S / RESTARTS : rolling;
  event_schedule(event, sim_now + each, on_churn);
}

static void begin_stage(void) {
  if (scale.stage == CHURN || scale.stage == ROLL)
    event_schedule(&churn, sim_now, on_churn);
  if (scale.stage == PARTITION) {
    for (unsigned i = 0; i < scale.count; i++)
      scale.nodes[i].host->side = i % 3 == 0;
    net_partition(sim_now + stages[PARTITION].length);
    sim_faults++;
  }
  if (scale.stage == OUTAGE) {
    etcd_outage(sim_now + stages[OUTAGE].length, false);
    sim_faults++;
  }
}

static void on_stage(struct event *event) {
  figures_stage(stages[scale.stage].name);
  if (scale.stage != PARTITION && scale.linked < scale.count * LINKS * 9 / 10)
    sim_fail("scale", "only %u of %u links at the end of a stage", scale.linked,
             scale.count * LINKS);
  scale.stage++;
  if (scale.stage == OUTAGE && !scale.directory)
    scale.stage = END;
  scale.stage_began = sim_now;
  begin_stage();
  if (scale.stage == END)
    figures_report();
  else
    event_schedule(event, sim_now + stages[scale.stage].length, on_stage);
}

static void start_directory(void) {
  json_object_seed(1); /* else it is drawn by the clock */
  json_set_alloc_funcs(allocate_always, world_free);
  etcd_plan = (struct etcd_plan){.members = 3, .service = MS, .progress = 600 * S};
  etcd_start(scale.count);
}

void scale_start(unsigned nodes, bool directory) {
  scale.count = nodes;
  scale.directory = directory;
  scale.nodes = calloc(nodes, sizeof *scale.nodes);
  net = (struct net){.latency = 20 * US,
                     .jitter = 10 * US,
                     .picoseconds_a_byte = 320, /* 25 Gbit/s */
                     .window = 1 << 20,
                     .backoff = 9}; /* up to two minutes, as by the kernel */
  sim_atomics_share = 1 << 20;
  plan.shrinks = 0;
  /* etcd has a leader by then; else all nodes would wait for it, and come together. */
  int64_t from = directory ? 5 * S : 0, storm = directory ? (int64_t)nodes * S / STARTS : STORM;
  for (unsigned i = 0; i < nodes; i++) {
    scale.nodes[i].number = i;
    scale.nodes[i].host = host_create(i);
    net_add_host(scale.nodes[i].host);
    event_schedule(&scale.nodes[i].restart, from + sim_between(0, storm), on_start);
  }
  if (directory)
    start_directory();
  figures_start();
  event_schedule(&next_stage, from + storm + stages[JOIN].length, on_stage);
}

bool scale_is_over(void) {
  return scale.stage == END;
}
