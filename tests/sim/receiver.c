/* SPDX-License-Identifier: MIT */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "broadcast.h"
#include "calls.h"
#include "cards.h"
#include "load.h"
#include "net.h"

#define AFTERMATH (30 * S) /* until what faults did has ended */
#define STARTING  (12 * S) /* until what began before the first version has ended */
#define CLOSING                                                                                    \
  (10 * S)              /* for a close: exchanges with a source that hangs, and copies that end    \
                         */
#define EXTRA   (3 * S) /* calls wait for transfers that they cancel */
#define ENDING  (8 * S) /* a failed receive waits for members that hang */
#define REGIONS 3

int world_clock_gettime(clockid_t clock, struct timespec *time);

/* ---- Contents ---- */

static uint64_t word_of(uint64_t seed, uint64_t index) {
  return (seed ^ index) * 0x9e3779b97f4a7c15 ^ seed;
}

static void fill(uint8_t *bytes, const struct content *content) {
  for (uint64_t at = 0; at < content->length; at += 8) {
    uint64_t word = word_of(content->seed, at / 8), rest = content->length - at;
    memcpy(bytes + at, &word, rest < 8 ? rest : 8);
  }
}

static void check_bytes(const uint8_t *bytes, const struct content *content, uint64_t number,
                        const char *when) {
  for (uint64_t at = 0; at < content->length; at += 8) {
    uint64_t word = word_of(content->seed, at / 8), rest = content->length - at;
    if (memcmp(bytes + at, &word, rest < 8 ? rest : 8) != 0)
      sim_fail("content", "%s: byte %llu of version %llu", when, (unsigned long long)at,
               (unsigned long long)number);
  }
}

/* Numbers are the source's microseconds since 1970. */
static struct content *content_of(uint64_t number) {
  for (size_t i = cast.count; i-- > 0;)
    if (cast.contents[i].from <= number)
      return &cast.contents[i];
  sim_fail("versions", "version %llu was never published", (unsigned long long)number);
}

static struct content *content_new(const struct participant *source) {
  struct timespec now;
  if (cast.count == VERSIONS)
    sim_fail("simulator", "more than %d versions", VERSIONS);
  world_clock_gettime(CLOCK_REALTIME, &now);
  struct content *content = &cast.contents[cast.count++];
  *content =
      (struct content){.from = (uint64_t)now.tv_sec * 1000000 + (uint64_t)now.tv_nsec / 1000,
                       .seed = sim_random(),
                       .length = sim_many ? cast_plan.length : 1 + sim_below(cast_plan.length),
                       .life = source->life,
                       .at = sim_now,
                       .times = calloc(cast_plan.receivers, sizeof(int64_t))};
  return content;
}

/* ---- Errors ---- */

static bool is_undisturbed(void) {
  /* When all stop, the source closes before some receivers do. */
  if (net.refused_calls || cast.count == 0 || load.phase == STOPPING)
    return false;
  if (!cast_plan.faults.kinds)
    return sim_now > cast.contents[0].at + STARTING;
  return load.phase == QUIET && sim_now > load.quiet_at + AFTERMATH;
}

/* Fails also for codes of calls that nothing hinders. */
static void count(const char *call, int code) {
  bool wrong = code == HAUL_EEXIST || code == HAUL_EBUSY ||
               (code && is_undisturbed() && code != HAUL_ETIMEDOUT && code != HAUL_ESTALE);
  results_count(call, code, false);
  if (wrong)
    fail_code(call, code);
}

/* A version is stale if the source has it no more, or has a newer one. */
static void check_stale(const struct content *content, unsigned flags) {
  size_t newer = cast.count - 1 - (size_t)(content - cast.contents);
  if (newer == 0 && content->life == cast.source.life)
    sim_fail("stale", "the newest version is stale: %s", haul_error_last()->text);
  if (newer == 1 && content->life == cast.source.life && !(flags & HAUL_BROADCAST_NEWER))
    sim_fail("stale", "the source still has the version: %s", haul_error_last()->text);
}

/* ---- Nodes ---- */

static int try_open(const struct participant *member, haul_node **node) {
  struct haul_node_config config = HAUL_NODE_CONFIG_INIT;
  config.name = member->name;
  config.insecure = 1;
  config.liveness_ns = cast_plan.liveness;
  config.copy_threads = sim_many ? (unsigned)-1 : plan.copy_threads;
  config.max_peers = 2 * RECEIVERS;
  config.key = plan.tls ? "/keys/all" : NULL;
  int code = haul_node_open(&config, node);
  if (code)
    return code;
  code = haul_node_listen(*node, member->address);
  if (code) {
    haul_node_close(*node);
    *node = NULL;
  }
  return code;
}

/* NULL: the run ends before memory suffices. */
static haul_node *open_node(const struct participant *member) {
  haul_node *node = NULL;
  while (load.phase != STOPPING) {
    int code = try_open(member, &node);
    if (code == 0)
      return node;
    count("haul_node_open", code);
    pause_for(sim_between(MS, 200 * MS));
  }
  return NULL;
}

static void close_node(struct participant *member, haul_node *node) {
  participant_close(member, node, cast_plan.liveness);
  member->ended = true;
}

static haul_region *region_new(haul_node *node, uint64_t length) {
  haul_region *region = NULL;
  while (haul_region_alloc(node, (struct haul_place){HAUL_HOST, 0}, length, 0, &region) != 0 &&
         load.phase != STOPPING)
    pause_for(sim_between(MS, 200 * MS));
  return region;
}

static void close_broadcast(haul_broadcast *broadcast) {
  struct limit limit = limit_begin("haul_broadcast_close", own_clock() + CLOSING);
  haul_broadcast_close(broadcast);
  limit_end(&limit);
}

/* ---- Source ---- */

/* Into a region that no available version has. */
static void publish(struct participant *source, haul_broadcast *broadcast, haul_node *node,
                    haul_region **region) {
  struct content *content = content_new(source);
  uint64_t version;
  haul_region *made = region_new(node, content->length);
  if (!made)
    return;
  fill(haul_region_address(made), content);
  int code = haul_broadcast_publish(broadcast, made, own_clock() + 60 * S, &version);
  count("haul_broadcast_publish", code);
  haul_region_release(*region); /* of a version that is withdrawn now */
  *region = made;
  if (code == 0 && content_of(version) != content)
    sim_fail("versions", "version %llu is that of another publication",
             (unsigned long long)version);
  if (code == 0 && load.phase == QUIET)
    cast.final = version;
}

static haul_broadcast *open_source(haul_node *node) {
  struct haul_broadcast_options options = HAUL_BROADCAST_OPTIONS_INIT;
  haul_broadcast *broadcast = NULL;
  options.members = 2 * cast_plan.receivers + 16;
  options.chunk = cast_plan.chunk;
  while (node && load.phase != STOPPING) {
    int code = haul_broadcast_open(node, "weights", &options, &broadcast);
    if (code == 0)
      return broadcast;
    count("haul_broadcast_open", code);
    pause_for(sim_between(MS, 200 * MS));
  }
  return NULL;
}

void *source_main(void *argument) {
  struct participant *source = argument;
  haul_region *regions[REGIONS] = {NULL};
  haul_node *node = open_node(source);
  haul_broadcast *broadcast = open_source(node);
  int64_t next = sim_now;
  unsigned turn = 0;
  while (broadcast && load.phase != STOPPING) {
    bool last = load.phase == QUIET && !cast.final;
    if ((load.phase == FAULTY && sim_now >= next) || last) {
      publish(source, broadcast, node, &regions[turn++ % REGIONS]);
      next = sim_now + sim_between(cast_plan.publish_interval / 2, cast_plan.publish_interval * 2);
    }
    pause_for(50 * MS);
  }
  if (broadcast)
    close_broadcast(broadcast);
  for (int i = 0; i < REGIONS; i++)
    haul_region_release(regions[i]);
  close_node(source, node);
  return NULL;
}

/* ---- Receivers ---- */

/* A region, and the version that it must have, unless a call failed that may still change it. */
struct slot {
  haul_region *region;
  const struct content *content; /* NULL: any bytes */
  uint64_t number;
};

static void check_slot(const struct slot *slot, const char *when) {
  if (slot->content)
    check_bytes(haul_region_address(slot->region), slot->content, slot->number, when);
}

static void complete(struct participant *receiver, haul_broadcast *broadcast,
                     struct content *content, const struct haul_broadcast_report *report) {
  struct haul_broadcast_feeder feeders[64];
  size_t known = 64;
  cast.done++;
  cast.kept += report->kept;
  cast.retries += report->retries;
  if (report->bytes != content->length)
    sim_fail("report", "%llu bytes of %llu", (unsigned long long)report->bytes,
             (unsigned long long)content->length);
  if (report->corrupt)
    sim_fail("report", "%llu chunks were wrong", (unsigned long long)report->corrupt);
  haul_broadcast_feeders(broadcast, feeders, &known);
  for (size_t i = 0; i < known && i < 64; i++)
    content->source_bytes += feeders[i].source ? feeders[i].bytes : 0;
  if (cast.versions[receiver->number] < report->version && content->complete < cast_plan.receivers)
    content->times[content->complete++] = sim_now - content->at;
  cast.versions[receiver->number] = report->version;
}

static void receive(struct participant *receiver, haul_broadcast *broadcast,
                    const struct haul_broadcast_version *version, struct slot *slot) {
  struct haul_broadcast_report report = HAUL_BROADCAST_REPORT_INIT;
  struct content *content = content_of(version->number);
  unsigned flags = (sim_chance(300000) ? HAUL_BROADCAST_KEEP : 0) |
                   (sim_chance(300000) ? HAUL_BROADCAST_NEWER : 0);
  int64_t until = own_clock() + (sim_many ? 100 * S : sim_between(50 * MS, 30 * S));
  if (version->length != content->length)
    sim_fail("versions", "version %llu has %llu bytes, not %llu",
             (unsigned long long)version->number, (unsigned long long)version->length,
             (unsigned long long)content->length);
  check_slot(slot, "before its region is used again");
  slot->content = NULL;
  struct limit limit = limit_begin("haul_broadcast_receive", until + ENDING);
  int code = haul_broadcast_receive(broadcast, version, slot->region, flags, until, &report);
  limit_end(&limit);
  count("haul_broadcast_receive", code);
  if (code == HAUL_ESTALE && !verbs_refused_lately())
    check_stale(content, flags);
  if (code)
    return;
  slot->content = content;
  slot->number = version->number;
  check_slot(slot, "at the end of haul_broadcast_receive");
  complete(receiver, broadcast, content, &report);
}

static void follow(struct participant *receiver, haul_broadcast *broadcast, struct slot slots[2]) {
  unsigned turn = 0;
  while (load.phase != STOPPING && !(cast_plan.leaves && sim_chance(50000))) {
    struct haul_broadcast_version version;
    int64_t until = own_clock() + sim_between(10 * MS, 3 * S);
    struct limit limit = limit_begin("haul_broadcast_next", until + EXTRA);
    int code = haul_broadcast_next(broadcast, cast.versions[receiver->number], until, &version);
    limit_end(&limit);
    count("haul_broadcast_next", code);
    if (code == 0)
      receive(receiver, broadcast, &version, &slots[cast_plan.twice && turn++ % 2]);
    else if (code != HAUL_ETIMEDOUT)
      pause_for(sim_between(MS, 200 * MS));
  }
}

static void join(struct participant *receiver, haul_node *node, struct slot slots[2]) {
  struct haul_broadcast_options options = HAUL_BROADCAST_OPTIONS_INIT;
  haul_broadcast *broadcast;
  options.member = receiver->name;
  options.in_flight = cast_plan.in_flight;
  int64_t until = own_clock() + sim_between(100 * MS, 10 * S);
  struct limit limit = limit_begin("haul_broadcast_join", until + EXTRA);
  int code = haul_broadcast_join(node, cast.source.address, "weights", &options, until, &broadcast);
  limit_end(&limit);
  count("haul_broadcast_join", code);
  if (code) {
    pause_for(sim_between(MS, 500 * MS));
    return;
  }
  follow(receiver, broadcast, slots);
  close_broadcast(broadcast);
}

void *receiver_main(void *argument) {
  struct participant *receiver = argument;
  struct slot slots[2] = {{0}};
  haul_node *node = open_node(receiver);
  for (int i = 0; node && i < 2; i++)
    slots[i].region = region_new(node, cast_plan.length);
  while (slots[0].region && slots[1].region && load.phase != STOPPING)
    join(receiver, node, slots);
  for (int i = 0; i < 2; i++) {
    check_slot(&slots[i], "at the end");
    haul_region_release(slots[i].region);
  }
  close_node(receiver, node);
  return NULL;
}
