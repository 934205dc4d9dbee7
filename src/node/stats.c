/* SPDX-License-Identifier: MIT
 * What a node is doing: collected, told to peers page by page, and asked of them. */
#include <haul/stats.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "core/error.h"
#include "core/sys.h"
#include "core/wire.h"
#include "memory/staging.h"
#include "node/node.h"

#define PAGE 16 /* peers that surely fit CONTROL_BODY_MAX, behind the node's own */

/* ---- Collecting ---- */

static void add(struct haul_path_stats *path, const struct endpoint_counters *counters) {
#define ADD(field, name) path->field += atomic_load_explicit(&counters->name, memory_order_relaxed)
  ADD(writes, writes);
  ADD(reads, reads);
  ADD(atomics, atomics);
  ADD(bytes_out, bytes_out);
  ADD(bytes_in, bytes_in);
  ADD(errors, errors);
  ADD(served, served);
  ADD(served_in, served_in);
  ADD(served_out, served_out);
#undef ADD
}

static void name_paths(struct haul_path_stats paths[HAUL_STATS_PATHS]) {
  memset(paths, 0, HAUL_STATS_PATHS * sizeof *paths);
  for (size_t i = 0; transport_at(i) && i < HAUL_STATS_PATHS; i++)
    snprintf(paths[i].path, sizeof paths[i].path, "%s", transport_at(i)->name);
}

/* With the loop's lock. */
static void describe_peer(struct haul_peer *peer, struct haul_peer_stats *stats) {
  struct link *link = &peer->base;
  memset(stats, 0, sizeof *stats);
  stats->number = link->number;
  snprintf(stats->name, sizeof stats->name, "%s", link->name);
  snprintf(stats->identity, sizeof stats->identity, "%s", link->identity);
  stats->initiator = link->initiator;
  stats->same_host = link->same_host;
  stats->transfers = atomic_load(&link->transfers);
  int64_t silent = clock_now() - atomic_load(&link->heard);
  stats->silent_ns = silent > 0 ? (uint64_t)silent : 0;
  name_paths(stats->paths);
  for (size_t i = 0; transport_at(i) && i < HAUL_STATS_PATHS; i++) {
    stats->paths[i].open = atomic_load(&link->endpoints[i]->open);
    add(&stats->paths[i], &link->endpoints[i]->counters);
  }
}

/* Likewise. */
static void describe_node(struct haul_node *node, struct haul_node_stats *stats) {
  struct heap_counters heap;
  struct staging_counters staging;
  heap_counters(node->heap, &heap);
  staging_counters(heap_staging(node->heap), &staging);
  memset(stats, 0, sizeof *stats);
  snprintf(stats->name, sizeof stats->name, "%s", node->name);
  stats->uptime_ns = (uint64_t)(clock_now() - node->opened_at);
  stats->peers = node->peer_count;
  stats->published = (unsigned)exports_count(node->exports, NULL);
  stats->transfers = (unsigned)atomic_load(&node->transfers.handles);
  stats->posted = atomic_load(&node->transfers.started);
  stats->failed = atomic_load(&node->transfers.failed);
  stats->retried = atomic_load(&node->transfers.retried);
  stats->pool_bytes = heap.pooled_bytes;
  stats->staging_bytes = staging.bytes;
  name_paths(stats->paths);
  for (size_t i = 0; transport_at(i) && i < HAUL_STATS_PATHS; i++) {
    add(&stats->paths[i], &node->fabric.left[i]);
    list_each(item, &node->peers) {
      struct haul_peer *peer = list_entry(item, struct haul_peer, list);
      add(&stats->paths[i], &peer->base.endpoints[i]->counters);
    }
  }
}

HAUL_API int haul_node_stats(haul_node *node, struct haul_node_stats *stats,
                             struct haul_peer_stats *peers, size_t *count) {
  int code = node_enter("haul_node_stats", node);
  if (code)
    return code;
  if (!stats || !count || (*count > 0 && !peers))
    return error_set(HAUL_EINVAL, 0, NULL, NULL, "no place for what is told");
  size_t room = *count;
  *count = 0;
  loop_lock(node->loop);
  describe_node(node, stats);
  list_each(item, &node->peers) {
    if (*count < room)
      describe_peer(list_entry(item, struct haul_peer, list), &peers[*count]);
    ++*count;
  }
  loop_unlock(node->loop);
  return 0;
}

/* ---- Telling ---- */

static void put_path(struct wire *wire, const struct haul_path_stats *path) {
  wire_put_string(wire, path->path);
  wire_put8(wire, path->open != 0);
  wire_put64(wire, path->writes);
  wire_put64(wire, path->reads);
  wire_put64(wire, path->atomics);
  wire_put64(wire, path->bytes_out);
  wire_put64(wire, path->bytes_in);
  wire_put64(wire, path->errors);
  wire_put64(wire, path->served);
  wire_put64(wire, path->served_in);
  wire_put64(wire, path->served_out);
}

static void get_path(struct wire *wire, struct haul_path_stats *path) {
  memset(path, 0, sizeof *path);
  wire_get_string(wire, path->path, sizeof path->path);
  path->open = wire_get8(wire);
  path->writes = wire_get64(wire);
  path->reads = wire_get64(wire);
  path->atomics = wire_get64(wire);
  path->bytes_out = wire_get64(wire);
  path->bytes_in = wire_get64(wire);
  path->errors = wire_get64(wire);
  path->served = wire_get64(wire);
  path->served_in = wire_get64(wire);
  path->served_out = wire_get64(wire);
}

static void put_paths(struct wire *wire, const struct haul_path_stats paths[HAUL_STATS_PATHS]) {
  unsigned count = 0;
  while (count < HAUL_STATS_PATHS && paths[count].path[0])
    count++;
  wire_put8(wire, (uint8_t)count);
  for (unsigned i = 0; i < count; i++)
    put_path(wire, &paths[i]);
}

static bool get_paths(struct wire *wire, struct haul_path_stats paths[HAUL_STATS_PATHS]) {
  unsigned count = wire_get8(wire);
  memset(paths, 0, HAUL_STATS_PATHS * sizeof *paths);
  for (unsigned i = 0; i < count && i < HAUL_STATS_PATHS; i++) {
    get_path(wire, &paths[i]);
    if (!paths[i].path[0])
      return false;
  }
  return count <= HAUL_STATS_PATHS && !wire->failed;
}

static void put_node(struct wire *wire, const struct haul_node_stats *stats) {
  wire_put64(wire, stats->uptime_ns);
  wire_put32(wire, stats->peers);
  wire_put32(wire, stats->published);
  wire_put32(wire, stats->transfers);
  wire_put64(wire, stats->posted);
  wire_put64(wire, stats->failed);
  wire_put64(wire, stats->retried);
  wire_put64(wire, stats->pool_bytes);
  wire_put64(wire, stats->staging_bytes);
  put_paths(wire, stats->paths);
}

static bool get_node(struct wire *wire, struct haul_node_stats *stats) {
  stats->uptime_ns = wire_get64(wire);
  stats->peers = wire_get32(wire);
  stats->published = wire_get32(wire);
  stats->transfers = wire_get32(wire);
  stats->posted = wire_get64(wire);
  stats->failed = wire_get64(wire);
  stats->retried = wire_get64(wire);
  stats->pool_bytes = wire_get64(wire);
  stats->staging_bytes = wire_get64(wire);
  return get_paths(wire, stats->paths);
}

static void put_peer(struct wire *wire, const struct haul_peer_stats *stats) {
  wire_put64(wire, stats->number);
  wire_put_string(wire, stats->name);
  wire_put_string(wire, stats->identity);
  wire_put8(wire, (uint8_t)((stats->initiator ? 1 : 0) | (stats->same_host ? 2 : 0)));
  wire_put32(wire, stats->transfers);
  wire_put64(wire, stats->silent_ns);
  put_paths(wire, stats->paths);
}

static bool get_peer(struct wire *wire, struct haul_peer_stats *stats) {
  memset(stats, 0, sizeof *stats);
  stats->number = wire_get64(wire);
  wire_get_string(wire, stats->name, sizeof stats->name);
  wire_get_string(wire, stats->identity, sizeof stats->identity);
  uint8_t flags = wire_get8(wire);
  stats->initiator = flags & 1;
  stats->same_host = flags >> 1 & 1;
  stats->transfers = wire_get32(wire);
  stats->silent_ns = wire_get64(wire);
  return get_paths(wire, stats->paths) && flags < 4;
}

bool stats_may_observe(const struct haul_peer *peer) {
  const struct haul_node *node = peer->node;
  const char *identity = peer->base.identity;
  char own[32];
  snprintf(own, sizeof own, "uid:%u", (unsigned)geteuid());
  return node->config.any_observer || (!node->tls && !identity[0]) || strcmp(identity, own) == 0 ||
         strcmp(identity, "uid:0") == 0;
}

int stats_on_request(struct haul_peer *asking, uint32_t request, const uint8_t *body,
                     size_t length) {
  struct haul_node *node = asking->node;
  struct haul_node_stats stats;
  uint8_t answer[CONTROL_BODY_MAX];
  struct wire in = wire_over(body, length), out = wire_over(answer, sizeof answer);
  uint64_t after = wire_get64(&in);
  if (in.failed || wire_left(&in) > 0)
    return HAUL_EPROTO;
  bool may = stats_may_observe(asking);
  wire_put32(&out, (uint32_t)(may ? 0 : HAUL_EACCESS));
  if (may) {
    describe_node(node, &stats);
    put_node(&out, &stats);
    uint8_t *count_at = out.at;
    uint16_t count = 0;
    wire_put16(&out, 0);
    list_each(item, &node->peers) { /* in the order of their numbers */
      struct haul_peer *peer = list_entry(item, struct haul_peer, list);
      struct haul_peer_stats one;
      if (peer->base.number <= after || count == PAGE)
        continue;
      describe_peer(peer, &one);
      put_peer(&out, &one);
      count++;
    }
    struct wire at = wire_over(count_at, 2);
    wire_put16(&at, count);
  }
  control_send(asking, CONTROL_STATE, request, answer, sizeof answer - wire_left(&out));
  return 0;
}

/* ---- Asking ---- */

struct question {
  struct request request; /* first */
  struct haul_node_stats *stats;
  struct haul_peer_stats *peers;
  size_t room, count;
  uint64_t last;
  unsigned page;
};

int stats_refused(const struct haul_peer *peer) {
  return error_set(HAUL_EACCESS, 0, peer->base.name,
                   "ask it over its Unix socket, or set any_observer there",
                   "the peer tells others what it is doing, and not this user");
}

static int take_state(struct request *request, const uint8_t *body, size_t length) {
  struct question *question = (struct question *)request;
  struct wire wire = wire_over(body, length);
  int32_t status = (int32_t)wire_get32(&wire);
  if (status == HAUL_EACCESS && !wire.failed && wire_left(&wire) == 0)
    return stats_refused(request->peer);
  if (wire.failed || status != 0 || !get_node(&wire, question->stats))
    return HAUL_EPROTO;
  question->page = wire_get16(&wire);
  for (unsigned i = 0; i < question->page && !wire.failed; i++) {
    struct haul_peer_stats one;
    if (!get_peer(&wire, &one) || one.number <= question->last)
      return HAUL_EPROTO;
    question->last = one.number;
    if (question->count < question->room)
      question->peers[question->count] = one;
    question->count++;
  }
  return wire.failed || wire_left(&wire) > 0 ? HAUL_EPROTO : 0;
}

HAUL_API int haul_peer_stats_of(haul_peer *peer, haul_deadline until, struct haul_node_stats *stats,
                                struct haul_peer_stats *peers, size_t *count) {
  int code = error_enter("haul_peer_stats_of");
  if (code)
    return code;
  if (!peer || !stats || !count || (*count > 0 && !peers))
    return error_set(HAUL_EINVAL, 0, NULL, NULL, "no peer, or no place for what it tells");
  struct question question = {.stats = stats, .peers = peers, .room = *count};
  memset(stats, 0, sizeof *stats);
  snprintf(stats->name, sizeof stats->name, "%s", peer->base.name);
  do {
    uint8_t body[8];
    struct wire wire = wire_over(body, sizeof body);
    wire_put64(&wire, question.last);
    question.request = (struct request){.peer = peer, .take = take_state};
    code = control_request(&question.request, CONTROL_STATS, body, sizeof body, until);
    if (code)
      return code;
  } while (question.page == PAGE && question.count < question.room);
  *count = question.page == PAGE && question.count < stats->peers ? stats->peers : question.count;
  return 0;
}
