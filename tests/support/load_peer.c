/* SPDX-License-Identifier: MIT
 * A peer process of the load, which executes orders. */
#include <poll.h>
#include <stdlib.h>

#include "support/child.h"
#include "support/load_steps.h"

struct self {
  struct load_brief brief;
  struct load_plan plan;
  haul_node *node;
  haul_peer *peer;
  haul_region *memory;
  haul_remote **regions;
  haul_transfer **transfers;
  int64_t *times; /* end times of its own moves, in order */
  uint64_t kept;  /* open descriptors before it had a node */
  unsigned round;
};

static bool is_mine(const struct self *self, unsigned move) {
  return self->plan.moves[move].peer == self->brief.index;
}

static void connect_to_node(struct self *self) {
  struct haul_node_config config = load_config(&self->brief.job);
  char name[32];
  snprintf(name, sizeof name, "peer-%u", self->brief.index);
  config.name = name;
  load_must(haul_node_open(&config, &self->node), "the peer's node");
  load_must(haul_region_alloc(self->node, (struct haul_place){HAUL_HOST, 0},
                              self->plan.memory_lengths[self->brief.index], 0, &self->memory),
            "the peer's memory");
  load_must(haul_region_publish(self->memory, "memory", HAUL_READ | HAUL_WRITE), "publish");
  load_must(haul_peer_connect(self->node, self->brief.address, load_deadline(), &self->peer),
            "connect");
}

static void look_up(struct self *self) {
  for (unsigned i = 0; i < self->plan.regions; i++) {
    char name[LOAD_NAME];
    load_name(i, name);
    load_must(haul_peer_lookup(self->peer, name, load_deadline(), &self->regions[i]), name);
  }
}

static void fill(struct self *self) {
  load_fill_memory(&self->plan, self->brief.index, self->round, haul_region_address(self->memory));
}

static void post(struct self *self) {
  for (unsigned i = 0; i < self->plan.count; i++) {
    const struct load_move *move = &self->plan.moves[i];
    const struct haul_piece piece = {move->there, move->here, move->length};
    if (is_mine(self, i))
      self->transfers[i] = load_post(self->regions[move->region], self->memory, &piece,
                                     move->to_node, &self->times[i]);
  }
}

/* Waits for its transfers and sends their times. */
static void finish(struct self *self, int64_t let_go) {
  unsigned count = 0;
  for (unsigned i = 0; i < self->plan.count; i++) {
    if (!is_mine(self, i))
      continue;
    load_end(self->node, &self->transfers[i], &self->times[i]);
    self->times[count++] = self->times[i] - let_go;
  }
  child_send(3, self->times, count * sizeof *self->times, -1);
}

static uint64_t check(struct self *self) {
  uint64_t at;
  bool right = load_check_memory(&self->plan, self->brief.index, self->round,
                                 haul_region_address(self->memory), &at);
  if (!right)
    fprintf(stderr, "the memory of peer %u is wrong at %llu\n", self->brief.index,
            (unsigned long long)at);
  return !right;
}

/* Returns the number of leaked descriptors. */
static uint64_t leave(struct self *self) {
  for (unsigned i = 0; i < self->plan.regions; i++)
    haul_remote_release(self->regions[i]);
  haul_region_release(self->memory);
  haul_peer_close(self->peer);
  haul_node_close(self->node);
  self->node = NULL;
  return load_use_now().descriptors - self->kept;
}

static uint64_t execute(struct self *self, const struct load_order *order) {
  bool posts = !self->brief.job.node_posts;
  self->round = order->round;
  switch (order->step) {
  case LOAD_CONNECT:
    connect_to_node(self);
    return 0;
  case LOAD_LOOK_UP:
    if (posts)
      look_up(self);
    return 0;
  case LOAD_FILL:
    fill(self);
    return 0;
  case LOAD_POST:
    if (posts)
      post(self);
    return load_under_way(self->node);
  case LOAD_GO:
    if (posts)
      finish(self, order->let_go);
    return 0;
  case LOAD_TELL:
    return 0;
  case LOAD_CHECK:
    return check(self);
  default:
    return leave(self);
  }
}

/* Waits for the next order, driving the node unless `held`. */
static struct load_order next_order(struct self *self, bool held) {
  struct pollfd order_there = {.fd = 3, .events = POLLIN};
  struct load_order order;
  int wait = self->node && !held ? 0 : LOAD_PATIENCE_MS;
  int64_t end = load_now() + LOAD_PATIENCE_MS * INT64_C(1000000);
  while (poll(&order_there, 1, wait) == 0) {
    load_need(load_now() < end, "the peer waits for an order in vain");
    load_must(haul_node_progress(self->node, haul_deadline_in(5000000)), "the peer's progress");
  }
  child_receive(3, &order, sizeof order);
  return order;
}

int load_peer_main(void) {
  struct self self = {.node = NULL};
  struct load_order order = {.step = LOAD_CONNECT};
  child_receive(3, &self.brief, sizeof self.brief);
  const struct load_job *job = &self.brief.job;
  load_need(load_plan_make(&self.plan, job->peers, job->regions, job->count, job->most, job->seed),
            "no memory");
  self.regions = calloc(job->regions, sizeof(haul_remote *));
  self.transfers = calloc(job->count, sizeof(haul_transfer *));
  self.times = calloc(job->count, sizeof(int64_t));
  load_need(self.regions && self.transfers && self.times, "no memory");
  self.kept = load_use_now().descriptors;
  while (order.step != LOAD_LEAVE) {
    order = next_order(&self, order.step == LOAD_POST && job->node_posts);
    struct load_response response = {.value = execute(&self, &order)};
    response.use = load_use_now();
    child_send(3, &response, sizeof response, -1);
  }
  load_plan_free(&self.plan);
  free(self.regions);
  free(self.transfers);
  free(self.times);
  return 0;
}
