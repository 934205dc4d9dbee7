/* SPDX-License-Identifier: MIT
 * Statistics of a node and its peers, and trace events of transfers: collected, served to peers
 * page by page, requested from peers. And the node's counters by name. */
#include <haul/stats.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "core/error.h"
#include "core/sys.h"
#include "core/wire.h"
#include "memory/staging.h"
#include "node/peer.h"

#define PEERS_PAGE                                                                                 \
  16 /* peers of a response: at most 16 * 480 bytes, and 395 of the node: CONTROL_BODY_MAX */

#define EVENTS_PAGE 128          /* events of 43 bytes, which fit CONTROL_BODY_MAX */
#define IDLE_NS     3000000000LL /* without a reader, before the recording stops */

/* The fields of an event with their widths, in their order on the wire. */
#define EVENT_FIELDS(X)                                                                            \
  X(64, at)                                                                                        \
  X(8, kind)                                                                                       \
  X(8, operation) X(8, path) X(32, slice) X(32, status) X(64, transfer) X(64, peer) X(64, bytes)

/* The counters of a path, in their order on the wire. */
#define PATH_COUNTERS(X)                                                                           \
  X(writes)                                                                                        \
  X(reads) X(atomics) X(bytes_out) X(bytes_in) X(errors) X(served) X(served_in) X(served_out)

/* The figures of a node, in their order on the wire, with their widths there. */
#define NODE_FIGURES(X)                                                                            \
  X(64, uptime_ns)                                                                                 \
  X(32, peers)                                                                                     \
  X(32, published)                                                                                 \
  X(32, transfers) X(64, posted) X(64, failed) X(64, retried) X(64, pool_bytes) X(64, staging_bytes)

static void add_counters(struct haul_path_stats *path, const struct endpoint_counters *counters) {
#define ADD(name) path->name += atomic_load_explicit(&counters->name, memory_order_relaxed);
  PATH_COUNTERS(ADD)
#undef ADD
}

/* With the loop's lock. */
static void add_endpoint(struct haul_path_stats *path, struct endpoint *endpoint) {
  if (endpoint->transport->collect)
    endpoint->transport->collect(endpoint);
  add_counters(path, endpoint->counters);
}

/* With the loop's lock: all peers of the node, also those that ended. */
static void sum_path(struct haul_node *node, size_t path, struct haul_path_stats *sum) {
  *sum = (struct haul_path_stats){.open = 0};
  snprintf(sum->path, sizeof sum->path, "%s", transport_at(path)->name);
  add_counters(sum, &node->fabric.disconnected[path]);
  list_each(item, &node->peers) {
    struct haul_peer *peer = list_entry(item, struct haul_peer, list);
    add_endpoint(sum, peer->base.endpoints[path]);
  }
}

/* With the loop's lock. */
static void describe_path(struct endpoint *endpoint, struct haul_path_stats *path) {
  *path = (struct haul_path_stats){.open = atomic_load(&endpoint->open)};
  snprintf(path->path, sizeof path->path, "%s", endpoint->transport->name);
  add_endpoint(path, endpoint);
}

/* With the loop's lock. */
static void describe_peer(struct haul_peer *peer, struct haul_peer_stats *stats) {
  struct link *link = &peer->base;
  int64_t silent = clock_now() - atomic_load(&link->heard);
  *stats = (struct haul_peer_stats){.number = link->number,
                                    .initiator = link->initiator,
                                    .same_host = link->same_host,
                                    .transfers = atomic_load(&link->transfers),
                                    .silent_ns = silent > 0 ? (uint64_t)silent : 0};
  snprintf(stats->name, sizeof stats->name, "%s", link->name);
  snprintf(stats->identity, sizeof stats->identity, "%s", link->identity);
  for (size_t i = 0; transport_at(i) && i < HAUL_STATS_PATHS; i++)
    describe_path(link->endpoints[i], &stats->paths[i]);
}

/* With the loop's lock. */
static void describe_node(struct haul_node *node, struct haul_node_stats *stats) {
  struct heap_counters heap;
  struct staging_counters staging;
  heap_counters(node->heap, &heap);
  staging_counters(heap_staging(node->heap), &staging);
  *stats = (struct haul_node_stats){
      .uptime_ns = (uint64_t)(clock_now() - node->opened_at),
      .peers = node->peer_count,
      .published = (unsigned)exports_count(node->exports, NULL),
      .transfers = (unsigned)atomic_load(&node->transfers.handles),
      .posted = atomic_load(&node->transfers.started),
      .failed = atomic_load(&node->transfers.failed),
      .retried = atomic_load(&node->transfers.retried),
      .pool_bytes = heap.pooled_bytes,
      .staging_bytes = staging.bytes,
  };
  snprintf(stats->name, sizeof stats->name, "%s", node->name);
  for (size_t i = 0; transport_at(i) && i < HAUL_STATS_PATHS; i++)
    sum_path(node, i, &stats->paths[i]);
}

HAUL_API int haul_node_stats(haul_node *node, struct haul_node_stats *stats,
                             struct haul_peer_stats *peers, size_t *count) {
  int code = node_enter("haul_node_stats", node && stats && count && (*count == 0 || peers),
                        "node, stats, peers or count is NULL");
  if (code)
    return code;
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

/* False: more paths than there may be, or one without a name, which would end the list. */
static bool paths_fields(struct wire *wire, struct haul_path_stats paths[HAUL_STATS_PATHS]) {
  uint8_t count = 0;
  while (count < HAUL_STATS_PATHS && paths[count].path[0])
    count++;
  WIRE(wire, 8, count);
  if (count > HAUL_STATS_PATHS)
    return false;
  if (wire->gets)
    memset(paths, 0, HAUL_STATS_PATHS * sizeof *paths);
  for (struct haul_path_stats *path = paths; path < paths + count; path++) {
    wire_string(wire, path->path, sizeof path->path);
    WIRE(wire, 8, path->open);
#define FIELD(name) WIRE(wire, 64, path->name);
    PATH_COUNTERS(FIELD)
#undef FIELD
    if (!path->path[0])
      return false;
  }
  return !wire->failed;
}

static bool node_fields(struct wire *wire, struct haul_node_stats *stats) {
#define FIELD(bits, name) WIRE(wire, bits, stats->name);
  NODE_FIGURES(FIELD)
#undef FIELD
  return paths_fields(wire, stats->paths);
}

static bool peer_fields(struct wire *wire, struct haul_peer_stats *stats) {
  uint8_t flags = (uint8_t)((stats->initiator ? 1 : 0) | (stats->same_host ? 2 : 0));
  WIRE(wire, 64, stats->number);
  wire_string(wire, stats->name, sizeof stats->name);
  wire_string(wire, stats->identity, sizeof stats->identity);
  WIRE(wire, 8, flags);
  stats->initiator = flags & 1;
  stats->same_host = flags >> 1 & 1;
  WIRE(wire, 32, stats->transfers);
  WIRE(wire, 64, stats->silent_ns);
  return paths_fields(wire, stats->paths) && flags < 4;
}

/* Whether this peer may read statistics and traces: setting `any_observer`. */
static bool may_observe(const struct haul_peer *peer) {
  const struct haul_node *node = peer->node;
  const char *identity = peer->base.identity;
  char own[32];
  snprintf(own, sizeof own, "uid:%u", (unsigned)geteuid());
  return node->config.any_observer || (!node->tls && !identity[0]) || strcmp(identity, own) == 0 ||
         strcmp(identity, "uid:0") == 0;
}

/* The node, and the peers from the first with a number above `after`. */
static void put_state(struct haul_node *node, uint64_t after, struct wire *out) {
  struct haul_node_stats stats;
  uint16_t count = 0;
  describe_node(node, &stats);
  node_fields(out, &stats);
  struct wire count_at = *out;
  wire_put16(out, 0);
  list_each(item, &node->peers) { /* in the order of their numbers */
    struct haul_peer *peer = list_entry(item, struct haul_peer, list);
    struct haul_peer_stats one;
    if (peer->base.number <= after || count == PEERS_PAGE)
      continue;
    describe_peer(peer, &one);
    peer_fields(out, &one);
    count++;
  }
  wire_put16(&count_at, count);
}

void stats_serve(struct haul_peer *peer, struct wire *in, struct wire *out) {
  uint64_t after = wire_get64(in);
  bool allowed = may_observe(peer);
  wire_put32(out, (uint32_t)(allowed ? 0 : HAUL_EACCESS));
  if (allowed)
    put_state(peer->node, after, out);
}

struct stats_request {
  struct request base; /* first */
  struct haul_node_stats *stats;
  struct haul_peer_stats *peers;
  size_t room, count;
  uint64_t last; /* number of the last peer received */
  unsigned page; /* peers in the last response */
};

/* Sets the detail of a peer that refused to show them, and returns HAUL_EACCESS. */
static int observation_refused(const struct haul_peer *peer) {
  return error_set(HAUL_EACCESS, 0, peer->base.name,
                   "connect over its Unix socket, or set any_observer there",
                   "the peer does not show its statistics to this user");
}

static int parse_state(struct request *request, struct wire *in) {
  struct stats_request *state = (struct stats_request *)request;
  int32_t status = (int32_t)wire_get32(in);
  if (status == HAUL_EACCESS)
    return observation_refused(request->peer);
  if (status != 0 || !node_fields(in, state->stats))
    return HAUL_EPROTO;
  state->page = wire_get16(in);
  for (unsigned i = 0; i < state->page; i++) {
    struct haul_peer_stats one = {.number = 0};
    if (!peer_fields(in, &one) || one.number <= state->last)
      return HAUL_EPROTO;
    state->last = one.number;
    if (state->count < state->room)
      state->peers[state->count] = one;
    state->count++;
  }
  return 0;
}

HAUL_API int haul_peer_stats_of(haul_peer *peer, haul_deadline until, struct haul_node_stats *stats,
                                struct haul_peer_stats *peers, size_t *count) {
  int code = node_enter("haul_peer_stats_of", peer && stats && count && (*count == 0 || peers),
                        "peer, stats, peers or count is NULL");
  if (code == 0)
    code = error_if_passed(until, peer->base.name);
  if (code)
    return code;
  struct stats_request state = {.stats = stats, .peers = peers, .room = *count};
  memset(stats, 0, sizeof *stats);
  snprintf(stats->name, sizeof stats->name, "%s", peer->base.name);
  do {
    uint8_t body[8];
    struct wire wire = wire_over(body, sizeof body);
    wire_put64(&wire, state.last);
    state.base = (struct request){.peer = peer, .parse = parse_state};
    code = control_request(&state.base, CONTROL_STATS, body, sizeof body, until);
    if (code)
      return code;
  } while (state.page == PEERS_PAGE && state.count < state.room);
  *count = state.page == PEERS_PAGE && state.count < stats->peers ? stats->peers : state.count;
  return 0;
}

typedef void each_fn(void *user, const char *name, uint64_t value);

static void report_path(each_fn *each, void *user, const char *prefix,
                        const struct haul_path_stats *path) {
  char name[128];
#define REPORT(counter)                                                                            \
  snprintf(name, sizeof name, "%s.%s." #counter, prefix, path->path);                              \
  each(user, name, path->counter);
  PATH_COUNTERS(REPORT)
#undef REPORT
}

/* With the loop's lock. */
static void report_paths(struct haul_node *node, each_fn *each, void *user) {
  struct haul_path_stats path;
  for (size_t i = 0; transport_at(i); i++) {
    list_each(item, &node->peers) {
      struct haul_peer *peer = list_entry(item, struct haul_peer, list);
      char prefix[80];
      describe_path(peer->base.endpoints[i], &path);
      snprintf(prefix, sizeof prefix, "peer.%s", peer->base.name);
      report_path(each, user, prefix, &path);
    }
    sum_path(node, i, &path);
    report_path(each, user, "path", &path);
  }
}

static void report_node(struct haul_node *node, each_fn *each, void *user) {
  struct heap_counters heap;
  struct staging_counters staging;
  heap_counters(node->heap, &heap);
  staging_counters(heap_staging(node->heap), &staging);
  each(user, "pool.allocated", heap.allocated);
  each(user, "pool.freed", heap.freed);
  each(user, "pool.hits", heap.hits);
  each(user, "pool.misses", heap.misses);
  each(user, "pool.bytes", heap.pooled_bytes);
  each(user, "pool.trimmed", heap.trimmed);
  each(user, "staging.bytes", staging.bytes);
  each(user, "staging.limit", staging.limit);
  each(user, "staging.waits", staging.waits);
  each(user, "imports.shared", heap.imports_shared);
  each(user, "imports.expired", heap.imports_expired);
  each(user, "node.published", exports_count(node->exports, NULL));
  each(user, "node.transfers", atomic_load(&node->transfers.handles));
  each(user, "node.transfers_bytes",
       atomic_load(&node->transfers.bytes) + atomic_load(&node->fabric.work_bytes));
  each(user, "node.transfers_posted", atomic_load(&node->transfers.started));
  each(user, "node.transfers_failed", atomic_load(&node->transfers.failed));
  each(user, "node.slices_retried", atomic_load(&node->transfers.retried));
  each(user, "node.slices_held", atomic_load(&node->transfers.waited));
}

static void report_all(struct haul_node *node, each_fn *each, void *user) {
  report_node(node, each, user);
  for (size_t i = 0; provider_at(i); i++)
    if (provider_at(i)->counters)
      provider_at(i)->counters(each, user);
  for (size_t i = 0; transport_at(i); i++)
    if (transport_at(i)->counters)
      transport_at(i)->counters(&node->fabric, each, user);
  loop_lock(node->loop);
  each(user, "node.peers", node->peer_count);
  report_paths(node, each, user);
  loop_unlock(node->loop);
}

HAUL_API int haul_counter_list(haul_node *node, each_fn *each, void *user) {
  int code = node_enter("haul_counter_list", node && each, "node or each is NULL");
  if (code)
    return code;
  report_all(node, each, user);
  return 0;
}

struct wanted_counter {
  const char *name;
  uint64_t value;
  bool found;
};

static void match_counter(void *user, const char *name, uint64_t value) {
  struct wanted_counter *wanted = user;
  if (strcmp(name, wanted->name) != 0)
    return;
  wanted->value += value; /* peers may share a name */
  wanted->found = true;
}

HAUL_API int haul_counter_read(haul_node *node, const char *name, uint64_t *value) {
  struct wanted_counter wanted = {.name = name};
  int code = node_enter("haul_counter_read", node && name && value, "node, name or value is NULL");
  if (code)
    return code;
  report_all(node, match_counter, &wanted);
  if (!wanted.found)
    return error_set(HAUL_ENAME, 0, name, "haul_counter_list reports every counter",
                     "there is no such counter");
  *value = wanted.value;
  return 0;
}

void trace_expire(struct timer *timer) {
  struct haul_node *node = list_entry(timer, struct haul_node, trace_expiry);
  if (!trace_stop(&node->fabric.trace)) /* another thread is recording an event */
    loop_timer_start(node->loop, timer, clock_now() + IDLE_NS);
}

/* With the loop's lock: starts the recording, or keeps it going. */
static int keep_recording(struct haul_node *node) {
  if (node_is_closed(node))
    return HAUL_ECLOSED;
  if (!trace_start(&node->fabric.trace))
    return HAUL_ENOMEM;
  loop_timer_start(node->loop, &node->trace_expiry, clock_now() + IDLE_NS);
  return 0;
}

static void describe_event(const struct trace_event *event, struct haul_trace_event *out) {
  *out = (struct haul_trace_event){.at_ns = event->at,
                                   .peer = event->peer,
                                   .transfer = event->transfer,
                                   .bytes = event->bytes,
                                   .slice = event->slice,
                                   .status = event->status,
                                   .kind = event->kind,
                                   .operation = event->operation};
  if (event->path != TRACE_NO_PATH)
    snprintf(out->path, sizeof out->path, "%s", transport_at(event->path)->name);
}

/* A page at a time, which bounds how long the loop's lock is held. */
static size_t read_events(struct haul_node *node, struct haul_trace *trace,
                          struct haul_trace_event *events, size_t room, int *code) {
  struct trace_event page[EVENTS_PAGE];
  uint64_t lost = 0;
  loop_lock(node->loop);
  *code = keep_recording(node);
  size_t count = *code ? 0
                       : trace_read(&node->fabric.trace, &trace->next, page,
                                    room < EVENTS_PAGE ? room : EVENTS_PAGE, &lost);
  trace->lost += lost;
  trace->clock_ns = (uint64_t)clock_now();
  loop_unlock(node->loop);
  for (size_t i = 0; events && i < count; i++)
    describe_event(&page[i], &events[i]);
  return count;
}

HAUL_API int haul_node_trace(haul_node *node, struct haul_trace *trace,
                             struct haul_trace_event *events, size_t *count) {
  int code = node_enter("haul_node_trace", node && trace && count && (*count == 0 || events),
                        "node, trace, events or count is NULL");
  if (code)
    return code;
  size_t room = *count, page;
  *count = 0;
  do {
    page = read_events(node, trace, events ? events + *count : NULL, room - *count, &code);
    *count += page;
  } while (page == EVENTS_PAGE && *count < room);
  return code == HAUL_ENOMEM ? error_memory("events") : code ? error_code(code, NULL) : 0;
}

/* Whether the event is valid. */
static bool event_fields(struct wire *wire, struct trace_event *event) {
#define FIELD(bits, name) WIRE(wire, bits, event->name);
  EVENT_FIELDS(FIELD)
#undef FIELD
  return !wire->failed && event->kind >= HAUL_TRACE_SUBMIT && event->kind <= HAUL_TRACE_REQUEST &&
         event->operation >= HAUL_OP_WRITE && event->operation <= HAUL_OP_COMPARE_SWAP &&
         event->status <= 0 && (event->path == TRACE_NO_PATH || transport_at(event->path));
}

void trace_serve(struct haul_peer *peer, struct wire *in, struct wire *out) {
  struct trace_event page[EVENTS_PAGE];
  uint64_t first = wire_get64(in), lost;
  size_t most = wire_get16(in);
  int code = may_observe(peer) ? keep_recording(peer->node) : HAUL_EACCESS;
  wire_put32(out, (uint32_t)code);
  if (code == 0) {
    size_t count = trace_read(&peer->node->fabric.trace, &first, page,
                              most < EVENTS_PAGE ? most : EVENTS_PAGE, &lost);
    wire_put64(out, (uint64_t)clock_now());
    wire_put64(out, first);
    wire_put64(out, lost);
    wire_put16(out, (uint16_t)count);
    for (size_t i = 0; i < count; i++)
      event_fields(out, &page[i]);
  }
}

struct trace_request {
  struct request base; /* first */
  struct haul_trace trace;
  struct haul_trace_event *events;
  size_t room, count, page;
};

static int parse_traced(struct request *request, struct wire *in) {
  struct trace_request *traced = (struct trace_request *)request;
  int32_t status = (int32_t)wire_get32(in);
  if (status == HAUL_EACCESS)
    return observation_refused(request->peer);
  if (status == HAUL_ENOMEM || status == HAUL_ECLOSED)
    return error_set(status, 0, request->peer->base.name, NULL, "the peer cannot record events: %s",
                     haul_error_text(status));
  traced->trace.clock_ns = wire_get64(in);
  traced->trace.next = wire_get64(in);
  traced->trace.lost += wire_get64(in);
  traced->page = wire_get16(in);
  if (in->failed || status != 0 || traced->trace.next == 0 ||
      traced->page > traced->room - traced->count)
    return HAUL_EPROTO;
  for (size_t i = 0; i < traced->page; i++) {
    struct trace_event event = {0};
    if (!event_fields(in, &event))
      return HAUL_EPROTO;
    describe_event(&event, &traced->events[traced->count++]);
  }
  return 0;
}

HAUL_API int haul_peer_trace_of(haul_peer *peer, haul_deadline until, struct haul_trace *trace,
                                struct haul_trace_event *events, size_t *count) {
  int code = node_enter("haul_peer_trace_of", peer && trace && count && (*count == 0 || events),
                        "peer, trace, events or count is NULL");
  if (code == 0)
    code = error_if_passed(until, peer->base.name);
  if (code)
    return code;
  struct trace_request traced = {.trace = *trace, .events = events, .room = *count};
  *count = 0;
  do {
    uint8_t body[10];
    struct wire wire = wire_over(body, sizeof body);
    size_t left = traced.room - traced.count;
    wire_put64(&wire, traced.trace.next);
    wire_put16(&wire, (uint16_t)(left < EVENTS_PAGE ? left : EVENTS_PAGE));
    traced.base = (struct request){.peer = peer, .parse = parse_traced};
    code = control_request(&traced.base, CONTROL_TRACE, body, sizeof body, until);
    if (code)
      return code;
  } while (traced.page == EVENTS_PAGE && traced.count < traced.room);
  *trace = traced.trace;
  *count = traced.count;
  return 0;
}
