/* SPDX-License-Identifier: MIT
 * The node's side, which sends orders to the peers. */
#include "support/load_rig.h"

#include <poll.h>
#include <stdlib.h>
#include <sys/socket.h>

#include "support/child.h"
#include "support/load_steps.h"

#define LOOK_NS                                                                                    \
  INT64_C(1000000) /* interval between checks for responses while driving the node                 \
                    */

static void send_order(struct load_rig *rig, const struct load_peer *peer, enum load_step step) {
  const struct load_order order = {step, rig->round, rig->let_go};
  child_send(peer->socket, &order, sizeof order, -1);
}

static void send_all(struct load_rig *rig, enum load_step step) {
  for (unsigned i = 0; i < rig->job.peers; i++)
    send_order(rig, &rig->peers[i], step);
}

static void receive_response(struct load_peer *peer) {
  struct load_response response;
  ssize_t length = recv(peer->socket, &response, sizeof response, 0);
  load_need(length == (ssize_t)sizeof response, "a peer has ended");
  peer->value = response.value;
  peer->use = response.use;
}

/* Receives the times of the peer's moves, in the order of the moves. */
static void receive_times(struct load_rig *rig, unsigned index, int64_t *buffer) {
  size_t room = rig->job.count * sizeof *buffer, at = 0;
  ssize_t length = recv(rig->peers[index].socket, buffer, room, 0);
  load_need(length >= 0, "a peer has ended");
  for (unsigned i = 0; i < rig->job.count; i++)
    if (rig->plan.moves[i].peer == index)
      rig->times[i] = buffer[at++];
  load_need(at * sizeof *buffer == (size_t)length, "a peer told other times");
}

static bool is_there(const struct load_peer *peer, int wait_ms) {
  struct pollfd response = {.fd = peer->socket, .events = POLLIN};
  return poll(&response, 1, wait_ms) > 0;
}

static void drive(struct load_rig *rig) {
  for (int64_t end = load_now() + LOOK_NS; load_now() < end;)
    load_must(haul_node_progress(rig->node, end), "progress");
}

static void await_one(struct load_rig *rig, const struct load_peer *peer, bool driven) {
  int64_t end = load_now() + LOAD_PATIENCE_MS * INT64_C(1000000);
  while (!is_there(peer, driven ? 0 : LOAD_PATIENCE_MS)) {
    load_need(driven && load_now() < end, "a peer does not response");
    drive(rig);
  }
}

/* Receives the responses to the last order; returns the sum of their values. */
static uint64_t await_all(struct load_rig *rig, bool driven) {
  uint64_t sum = 0;
  for (unsigned i = 0; i < rig->job.peers; i++) {
    await_one(rig, &rig->peers[i], driven);
    receive_response(&rig->peers[i]);
    sum += rig->peers[i].value;
  }
  return sum;
}

static uint64_t order_all(struct load_rig *rig, enum load_step step, bool driven) {
  send_all(rig, step);
  return await_all(rig, driven);
}

/* For slow orders, during which a peer is silent: one peer after the other. */
static uint64_t order_each(struct load_rig *rig, enum load_step step) {
  uint64_t sum = 0;
  for (unsigned i = 0; i < rig->job.peers; i++) {
    send_order(rig, &rig->peers[i], step);
    await_one(rig, &rig->peers[i], true);
    receive_response(&rig->peers[i]);
    sum += rig->peers[i].value;
  }
  return sum;
}

static unsigned peers_of(haul_node *node) {
  struct haul_node_stats stats;
  size_t none = 0;
  load_must(haul_node_stats(node, &stats, NULL, &none), "the counters");
  return stats.peers;
}

/* Drops the messages about peers that left. */
static void drop_messages(haul_node *node) {
  struct haul_message message;
  while (haul_message_receive(node, &message, HAUL_NO_WAIT) == 0)
    haul_message_release(&message);
}

static void await_no_peers(struct load_rig *rig) {
  for (int64_t end = load_deadline(); peers_of(rig->node) > 0; drive(rig))
    load_need(load_now() < end, "a peer has left, and the node keeps it");
  drop_messages(rig->node);
}

static void open_node(struct load_rig *rig) {
  struct haul_node_config config = load_config(&rig->job);
  config.peer_events = 1;
  load_must(haul_node_open(&config, &rig->node), "node");
  for (unsigned i = 0; i < rig->plan.regions; i++) {
    char name[LOAD_NAME];
    load_name(i, name);
    load_must(haul_region_alloc(rig->node, (struct haul_place){HAUL_HOST, 0},
                                rig->plan.region_lengths[i], 0, &rig->regions[i]),
              name);
    load_fill_region(&rig->plan, i, 0, haul_region_address(rig->regions[i]));
    load_must(haul_region_publish(rig->regions[i], name, HAUL_READ | HAUL_WRITE), name);
  }
  load_must(haul_node_listen(rig->node, "tcp://127.0.0.1:0"), "listen");
}

/* Connects a first peer, so that one-time allocations of the node are not counted as leaks. */
static void warm_up(struct load_rig *rig, const char *address) {
  haul_peer *peer;
  haul_remote *remote;
  load_must(haul_peer_connect(rig->node, address, load_deadline(), &peer), "a guest");
  load_must(haul_peer_lookup(peer, "region-0", load_deadline(), &remote), "the guest's region");
  haul_remote_release(remote);
  haul_peer_close(peer);
  await_no_peers(rig);
}

void load_rig_open(struct load_rig *rig, const struct load_job *job) {
  struct load_brief brief = {.job = *job};
  *rig = (struct load_rig){.job = *job};
  load_need(job->peers > 0 && job->peers <= LOAD_PEERS_MAX, "too many peers");
  load_need(load_plan_make(&rig->plan, job->peers, job->regions, job->count, job->most, job->seed),
            "no memory");
  rig->regions = calloc(job->regions, sizeof(haul_region *));
  rig->transfers = calloc(job->count, sizeof(haul_transfer *));
  rig->times = calloc(job->count, sizeof(int64_t));
  load_need(rig->regions && rig->transfers && rig->times, "no memory");
  for (unsigned i = 0; i < job->peers; i++)
    rig->peers[i].process = child_start(LOAD_PEER_MODE, &rig->peers[i].socket);
  open_node(rig);
  load_must(haul_node_address(rig->node, 0, brief.address, sizeof brief.address), "address");
  warm_up(rig, brief.address);
  for (unsigned i = 0; i < job->peers; i++) {
    brief.index = i;
    child_send(rig->peers[i].socket, &brief, sizeof brief, -1);
  }
}

/* Keeps the node's handles of connected peers. */
static void keep_handles(struct load_rig *rig) {
  for (unsigned i = 0; i < rig->job.peers; i++) {
    struct haul_message message;
    unsigned index = 0;
    load_must(haul_message_receive(rig->node, &message, load_deadline()), "a peer's coming");
    load_need(message.kind == HAUL_PEER_JOINED &&
                  sscanf(haul_peer_name(message.peer), "peer-%u", &index) == 1 &&
                  index < rig->job.peers && !rig->peers[index].peer,
              "who has come was not called");
    rig->peers[index].peer = haul_peer_retain(message.peer);
    haul_message_release(&message);
  }
}

void load_rig_connect(struct load_rig *rig) {
  order_all(rig, LOAD_CONNECT, true);
  keep_handles(rig);
}

void load_rig_look_up(struct load_rig *rig) {
  order_all(rig, LOAD_LOOK_UP, true);
  for (unsigned i = 0; rig->job.node_posts && i < rig->job.peers; i++)
    load_must(
        haul_peer_lookup(rig->peers[i].peer, "memory", load_deadline(), &rig->peers[i].memory),
        "a peer's memory");
}

/* Drives the node between two regions, so that peers do not drop it. */
static void live(struct load_rig *rig) {
  load_must(haul_node_progress(rig->node, HAUL_NO_WAIT), "progress");
}

void load_rig_fill(struct load_rig *rig, unsigned round) {
  rig->round = round;
  for (unsigned i = 0; i < rig->plan.regions; i++) {
    load_fill_region(&rig->plan, i, round, haul_region_address(rig->regions[i]));
    live(rig);
  }
  order_each(rig, LOAD_FILL);
}

static void post_all(struct load_rig *rig) {
  for (unsigned i = 0; i < rig->plan.count; i++) {
    const struct load_move *move = &rig->plan.moves[i];
    const struct haul_piece piece = {move->here, move->there, move->length};
    rig->transfers[i] = load_post(rig->peers[move->peer].memory, rig->regions[move->region], &piece,
                                  !move->to_node, &rig->times[i]);
  }
}

uint64_t load_rig_post(struct load_rig *rig) {
  uint64_t sum = order_all(rig, LOAD_POST, false);
  if (!rig->job.node_posts)
    return sum;
  post_all(rig);
  return load_under_way(rig->node);
}

static void end_all(struct load_rig *rig) {
  for (unsigned i = 0; i < rig->plan.count; i++) {
    load_end(rig->node, &rig->transfers[i], &rig->times[i]);
    rig->times[i] -= rig->let_go;
  }
}

static void await_times(struct load_rig *rig) {
  int64_t *buffer = calloc(rig->job.count, sizeof *buffer);
  load_need(buffer != NULL, "no memory");
  for (unsigned i = 0; i < rig->job.peers; i++) {
    await_one(rig, &rig->peers[i], true);
    receive_times(rig, i, buffer);
  }
  free(buffer);
}

void load_rig_go(struct load_rig *rig) {
  rig->let_go = load_now();
  send_all(rig, LOAD_GO);
  if (rig->job.node_posts)
    end_all(rig);
  else
    await_times(rig);
  await_all(rig, true);
  order_all(rig, LOAD_TELL, true);
}

unsigned load_rig_check(struct load_rig *rig) {
  unsigned wrong = 0;
  for (unsigned i = 0; i < rig->plan.regions; i++) {
    uint64_t at;
    live(rig);
    if (load_check_region(&rig->plan, i, rig->round, haul_region_address(rig->regions[i]), &at))
      continue;
    fprintf(stderr, "region %u is wrong at %llu\n", i, (unsigned long long)at);
    wrong++;
  }
  return wrong + (unsigned)order_each(rig, LOAD_CHECK);
}

void load_rig_leave(struct load_rig *rig) {
  for (unsigned i = 0; i < rig->job.peers; i++) {
    haul_remote_release(rig->peers[i].memory);
    haul_peer_close(rig->peers[i].peer);
  }
  load_need(order_all(rig, LOAD_LEAVE, true) == 0, "a peer has kept a descriptor");
  for (unsigned i = 0; i < rig->job.peers; i++) {
    load_need(child_end(rig->peers[i].process, rig->peers[i].socket) == 0, "a peer has failed");
    rig->peers[i].socket = -1;
  }
  await_no_peers(rig);
}

struct load_use load_rig_use(const struct load_rig *rig) {
  struct load_use use = load_use_now();
  for (unsigned i = 0; i < rig->job.peers; i++)
    use.descriptors -= rig->peers[i].socket >= 0;
  return use;
}

void load_rig_close(struct load_rig *rig) {
  for (unsigned i = 0; i < rig->plan.regions; i++)
    haul_region_release(rig->regions[i]);
  haul_node_close(rig->node);
  load_plan_free(&rig->plan);
  free(rig->regions);
  free(rig->transfers);
  free(rig->times);
}
