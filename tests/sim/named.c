/* SPDX-License-Identifier: MIT */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "calls.h"
#include "load.h"
#include "names.h"
#include "net.h"

/* For a name to appear once nothing hinders it, and to vanish once its lease has expired. */
#define SLACK_THERE (10 * S)
#define SLACK_EVENT (12 * S)
#define SLACK_GONE  (30 * S)
#define LOOKUP_TIME (4 * S) /* a lookup has to find a member that serves */
#define CLOSE_LIMIT (2 * S) /* nothing is transferred, so that only etcd can delay a close */
#define SETTLED     (5 * S) /* a walk has seen what is older */

/* Since when no request is slow, refused or cut off by chance; NEVER: some are. */
static int64_t calm_since(void) {
  bool calm = !etcd_plan.slow && !etcd_plan.errors && !etcd_plan.broken;
  return !calm ? NEVER : load.phase == FAULTY ? 0 : load.quiet_at;
}

static bool goes_on(const struct named *node) {
  return load.phase != STOPPING && !node->leaves;
}

static void count(int call, int code) {
  if (code == 0)
    names.done[call]++;
  else
    names.failed[call]++;
  if (code < 0 && code > -64)
    names.codes[-code]++;
  sim_hash(200 + (uint64_t)call, (uint64_t)(int64_t)code);
  static const char *const texts[] = {"registers", "finds", "connects", "walks"};
  if (code != HAUL_ETIMEDOUT || call != NEXT)
    sim_trace("%s: %s%s%s", texts[call], code ? haul_error_name(code) : "ok", code ? ", " : "",
              code ? haul_error_last()->text : "");
}

/* Codes that only a defect gives. */
static void check_code(const char *call, int code) {
  if (code == HAUL_EPROTO || code == HAUL_EINVAL || code == HAUL_EADDRESS || code == HAUL_EAUTH ||
      code == HAUL_ENOTSUP || code == HAUL_EINSECURE || code == HAUL_EVERSION)
    sim_fail("codes", "%s: %s (%s; %s)", call, haul_error_name(code), haul_error_last()->text,
             haul_error_last()->object);
}

static struct named *named_of(const char *name) {
  unsigned number;
  int end = 0;
  if (sscanf(name, "node-%u%n", &number, &end) != 1 || name[end] || number >= names_plan.nodes)
    sim_fail("entries", "there is an entry of the node '%s'", name);
  return &names.nodes[number];
}

static unsigned life_of(const struct named *node, const uint8_t id[16]) {
  for (unsigned i = node->life; i > 0; i--)
    if (memcmp(node->lives[i].id, id, 16) == 0)
      return i;
  sim_fail("entries", "no life of node %u has the id %02x%02x…", node->number, id[0], id[1]);
}

/* An entry that a request found that began at `asked`. */
static void check_entry(const struct haul_directory_entry *entry, int64_t asked) {
  const struct named *node = named_of(entry->node);
  const struct life *life = &node->lives[life_of(node, entry->id)];
  if (entry->address_count != 1 || strcmp(entry->addresses[0], life->address) != 0)
    sim_fail("entries", "%s has the address %s, not %s", entry->node, entry->addresses[0],
             life->address);
  int64_t since = life->ended > etcd_trouble_at ? life->ended : etcd_trouble_at;
  if (life->ended && asked > since + names_plan.lease * S + SLACK_GONE)
    sim_fail("entries", "%s of a life that ended at %.3f is still there", entry->node,
             (double)life->ended / S);
}

/* A name is absent. That must not be if the node has been registered for a while, and nothing has
 * hindered it since. */
static void check_absence(const struct named *node, int64_t asked) {
  int64_t since = node->registered_at;
  names.absent++;
  if (!since || !node->process || node->leaves)
    return;
  since = since > calm_since() ? since : calm_since();
  since = since > node->trouble_until ? since : node->trouble_until;
  since = since > etcd_trouble_at ? since : etcd_trouble_at;
  if (asked - names_plan.lease * S - SLACK_THERE > since)
    sim_fail("names", "%s is not found, and is registered since %.3f", node->name,
             (double)node->registered_at / S);
}

/* A lookup failed. That must not be if it had time to try all members, and most of them served all
 * the time. */
static void check_failure(const struct named *node, int code, int64_t asked, int64_t span) {
  bool failed = code == HAUL_ETIMEDOUT || code == HAUL_ECONNECT || code == HAUL_EPEER;
  int64_t since = etcd_serves_since();
  if (!failed || span < LOOKUP_TIME || since == NEVER)
    return;
  since = since > calm_since() ? since : calm_since();
  since = since > node->trouble_until ? since : node->trouble_until;
  if (asked - SLACK_THERE > since)
    sim_fail("lookups", "a member serves, but: %s (%s)", haul_error_last()->text,
             haul_error_last()->object);
}

static void hex_of(const uint8_t id[16], char text[33]) {
  for (size_t i = 0; i < 16; i++)
    snprintf(text + 2 * i, 3, "%02x", id[i]);
}

/* Did the name belong to another life at any time since? */
static bool was_taken(const struct named *node, int64_t since) {
  char own[33], key[64];
  bool taken = false;
  hex_of(node->lives[node->life].id, own);
  snprintf(key, sizeof key, "sim/node/%s", node->name);
  for (size_t i = 0; i < store.change_count; i++) {
    const struct change *change = &store.changes[i];
    if (strcmp(change->key, key) != 0)
      continue;
    if (change->at < since)
      taken = false;
    taken |= change->value && !strstr(change->value, own);
  }
  return taken;
}

static void on_changed(void *user, int code) {
  struct named *node = user;
  sim_trace("the entries of %s are %s", node->name, code ? haul_error_name(code) : "current");
  node->registered_at = code ? 0 : sim_now;
}

static void *register_main(void *argument) {
  struct named *node = argument;
  struct haul_register_options options = HAUL_REGISTER_OPTIONS_INIT;
  options.lease_seconds = names_plan.lease;
  options.advertise = names_plan.advertises ? node->lives[node->life].address : NULL;
  options.changed = on_changed;
  options.user = node;
  while (goes_on(node)) {
    int64_t until = own_clock() + sim_between(100 * MS, 30 * S), began = sim_now;
    struct limit limit = limit_begin("haul_node_register", until);
    int code = haul_node_register(node->node, etcd_directory(), &options, until);
    limit_end(&limit);
    check_code("haul_node_register", code);
    count(REGISTER, code);
    if (code == HAUL_EEXIST && !was_taken(node, began))
      sim_fail("names", "no other life has %s, but: %s", node->name, haul_error_last()->text);
    if (code == 0) {
      node->registered_at = sim_now;
      break;
    }
    pause_for(sim_between(MS, S));
  }
  node->registers = false;
  return NULL;
}

static struct named *draw_other(const struct named *node) {
  unsigned missing = load.phase == QUIET ? ~(node->found & node->connected) : ~0u;
  missing &= ((1u << names_plan.nodes) - 1) & ~(1u << node->number);
  if (!missing)
    missing = ((1u << names_plan.nodes) - 1) & ~(1u << node->number);
  for (;;) {
    unsigned drawn = (unsigned)sim_below(names_plan.nodes);
    if (missing >> drawn & 1)
      return &names.nodes[drawn];
  }
}

static void find(struct named *node) {
  struct named *other = draw_other(node);
  bool region = sim_chance(200000);
  struct haul_directory_entry entries[NODES];
  size_t found = NODES;
  char address[160];
  int64_t span = sim_between(MS, 8 * S), until = own_clock() + span, asked = sim_now;
  snprintf(address, sizeof address, "%s/%s", etcd_directory(), region ? "shared" : other->name);
  struct limit limit = limit_begin("haul_directory_find", until);
  int code = haul_directory_find(node->node, address, until, entries, &found);
  limit_end(&limit);
  check_code("haul_directory_find", code);
  count(FIND, code);
  for (size_t i = 0; code == 0 && i < found && i < NODES; i++) {
    check_entry(&entries[i], asked);
    if (!region && strcmp(entries[i].node, other->name) != 0)
      sim_fail("entries", "a request for %s found %s", other->name, entries[i].node);
  }
  check_failure(node, code, asked, span);
  if (code == HAUL_ENAME && !region)
    check_absence(other, asked);
  if (code == 0 && !region && load.phase == QUIET && other->process &&
      memcmp(entries[0].id, other->lives[other->life].id, 16) == 0)
    node->found |= 1u << other->number;
}

static void connect_by_name(struct named *node) {
  struct named *other = draw_other(node);
  bool region = sim_chance(200000) && load.phase != QUIET;
  haul_peer *peer = NULL;
  char address[160];
  int64_t until = own_clock() + sim_between(10 * MS, 8 * S), asked = sim_now;
  snprintf(address, sizeof address, "%s/%s", etcd_directory(), region ? "shared" : other->name);
  struct limit limit = limit_begin("haul_peer_connect", until);
  int code = haul_peer_connect(node->node, address, until, &peer);
  limit_end(&limit);
  check_code("haul_peer_connect", code);
  count(CONNECT, code);
  if (code == HAUL_ENAME && !region)
    check_absence(other, asked);
  if (code)
    return;
  const char *name = haul_peer_name(peer);
  if (!region && strcmp(name, other->name) != 0)
    sim_fail("names", "%s answers as %s", other->name, name);
  if (load.phase == QUIET)
    node->connected |= 1u << other->number;
  haul_peer_close(peer);
}

/* Publishes a region of its own, or withdraws it. */
static void toggle_region(struct named *node) {
  int code = node->own_published ? haul_region_unpublish(node->own_region, node->name + 5)
                                 : haul_region_publish(node->own_region, node->name + 5, HAUL_READ);
  node->toggled_at = sim_now;
  if (code == 0)
    node->own_published = !node->own_published;
}

static void *lookup_main(void *argument) {
  struct named *node = argument;
  while (goes_on(node)) {
    if (sim_chance(600000))
      find(node);
    else
      connect_by_name(node);
    if (node->own_region && load.phase == FAULTY && sim_chance(200000) &&
        sim_now > node->toggled_at + 200 * MS)
      toggle_region(node);
    pause_for(sim_between(0, names_plan.pause));
  }
  node->looks_up = false;
  return NULL;
}

static struct haul_directory_entry *mirrored(struct mirror *mirror,
                                             const struct haul_directory_entry *entry) {
  for (size_t i = 0; i < mirror->count; i++)
    if (mirror->entries[i].kind == entry->kind &&
        strcmp(mirror->entries[i].node, entry->node) == 0 &&
        strcmp(mirror->entries[i].name, entry->name) == 0)
      return &mirror->entries[i];
  return NULL;
}

/* A walk that goes on has an event soon, also if its member hangs: two liveness timeouts, for the
 * silence and for the probe, and the time to reach another member. */
static void check_lag(const struct named *node, const struct haul_directory_event *event) {
  const struct haul_directory_entry *entry = &event->entry;
  int64_t since = etcd_serves_since(), limit = 2 * names_plan.liveness + SLACK_EVENT;
  bool went = event->kind == HAUL_DIRECTORY_WENT;
  char key[128];
  snprintf(key, sizeof key, *entry->name ? "sim/name/%s/%s" : "sim/node/%s%s", entry->name,
           entry->node);
  for (size_t i = store.change_count; i-- > 0;) {
    const struct change *change = &store.changes[i];
    if (went != !change->value || strcmp(change->key, key) != 0)
      continue;
    since = since > change->at ? since : change->at;
    break;
  }
  since = since > node->trouble_until ? since : node->trouble_until;
  since = since > calm_since() ? since : calm_since();
  if (since != NEVER && sim_now - limit > since)
    sim_fail("walks", "an event of %s comes %.3f s late", key, (double)(sim_now - since) / S);
}

static void take_event(struct mirror *mirror, const struct haul_directory_event *event) {
  struct haul_directory_entry *entry = mirrored(mirror, &event->entry);
  sim_trace("event %d of %s %s", event->kind, event->entry.node, event->entry.name);
  if (event->kind == HAUL_DIRECTORY_TOLD) {
    mirror->told = true;
  } else if (event->kind == HAUL_DIRECTORY_WENT) {
    if (!entry)
      sim_fail("walks", "'%s' of %s went and was not there", event->entry.name, event->entry.node);
    *entry = mirror->entries[--mirror->count];
  } else {
    if (event->kind == HAUL_DIRECTORY_HOLDS && (mirror->told || entry))
      sim_fail("walks", "'%s' of %s is told twice", event->entry.name, event->entry.node);
    life_of(named_of(event->entry.node), event->entry.id);
    if (!entry)
      entry = &mirror->entries[mirror->count++];
    *entry = event->entry;
  }
}

/* Does a walk agree with the store? */
static bool agrees(const struct mirror *mirror) {
  const struct change **pairs;
  size_t count = store_range("sim/", "sim0", INT64_MAX, &pairs);
  bool same = mirror->told && count == mirror->count;
  for (size_t i = 0; same && i < count; i++) {
    const struct haul_directory_entry *entry = &mirror->entries[i];
    char key[128], id[33];
    hex_of(entry->id, id);
    snprintf(key, sizeof key,
             entry->kind == HAUL_DIRECTORY_NODE ? "sim/node/%s%s" : "sim/name/%s/%s", entry->name,
             entry->node);
    const struct change *pair = store_find(key);
    same = pair && strstr(pair->value, id);
  }
  sim_trace("the walk reports %zu entries, the directory has %zu: %s", mirror->count, count,
            same ? "the same" : "others");
  free(pairs);
  return same;
}

static void check_mirror(struct named *node) {
  int64_t changed = store.change_count ? store.changes[store.change_count - 1].at : 0;
  if (load.phase != QUIET || sim_now < changed + names_plan.liveness * 3 + SETTLED)
    return;
  node->mirrors |= agrees(&node->mirror);
}

static haul_directory *open_walk(struct named *node) {
  haul_directory *walk = NULL;
  node->mirror.told = false;
  node->mirror.count = 0;
  int code = haul_directory_open(node->node, etcd_directory(), own_clock() + S, &walk);
  check_code("haul_directory_open", code);
  return code ? NULL : walk;
}

/* False: the walk has ended. */
static bool take_step(struct named *node, haul_directory *walk) {
  struct haul_directory_event event;
  int64_t until = own_clock() + sim_between(MS, 5 * S);
  struct limit limit = limit_begin("haul_directory_next", until);
  int code = haul_directory_next(walk, until, &event);
  limit_end(&limit);
  if (code != HAUL_EPROTO || store.compacted == 0)
    check_code("haul_directory_next", code);
  count(NEXT, code);
  if (code == 0 && (event.kind == HAUL_DIRECTORY_CAME || event.kind == HAUL_DIRECTORY_WENT))
    check_lag(node, &event);
  if (code == 0)
    take_event(&node->mirror, &event);
  else if (code == HAUL_ETIMEDOUT)
    check_mirror(node);
  return code == 0 || code == HAUL_ETIMEDOUT;
}

/* A walk may outlive the node's close. */
static void *walk_main(void *argument) {
  struct named *node = argument;
  while (goes_on(node)) {
    haul_directory *walk = open_walk(node);
    bool lives = walk;
    while (lives && (goes_on(node) || sim_chance(500000)))
      lives = take_step(node, walk);
    haul_directory_close(walk);
    if (goes_on(node))
      pause_for(sim_between(0, S));
  }
  node->walks = false;
  return NULL;
}

static int start_listening(struct named *node) {
  struct life *life = &node->lives[node->life];
  char text[64], listened[160];
  uint32_t address = node->host->address;
  unsigned port = names_plan.free_ports ? 0 : 7000 + node->number;
  if (names_plan.any_address && !names_plan.advertises)
    snprintf(text, sizeof text, "tcp://0.0.0.0:%u", port);
  else
    snprintf(text, sizeof text, "tcp://10.%u.%u.%u:%u", address >> 16 & 255, address >> 8 & 255,
             address & 255, port);
  int code = haul_node_listen(node->node, text);
  if (code == 0)
    code = haul_node_address(node->node, 0, listened, sizeof listened);
  if (code == 0)
    snprintf(life->address, sizeof life->address, "tcp://10.%u.%u.%u%s", address >> 16 & 255,
             address >> 8 & 255, address & 255, strrchr(listened, ':'));
  return code;
}

static int open_node(struct named *node) {
  struct haul_node_config config = HAUL_NODE_CONFIG_INIT;
  struct haul_place host = {HAUL_HOST, 0};
  config.name = node->name;
  config.insecure = 1;
  config.liveness_ns = names_plan.liveness;
  int code = haul_node_open(&config, &node->node);
  if (code)
    return code;
  identity_of(node->node, node->lives[node->life].id);
  code = start_listening(node);
  if (code == 0)
    code = haul_region_alloc(node->node, host, 4096, 0, &node->region);
  if (code == 0)
    code = haul_region_publish(node->region, "shared", HAUL_READ);
  if (code == 0 && names_plan.publishes)
    code = haul_region_alloc(node->node, host, 4096, 0, &node->own_region);
  return code;
}

static bool is_entered(const struct named *node, const char *name) {
  char key[64], id[33];
  snprintf(key, sizeof key, *name ? "sim/name/%s/%s" : "sim/node/%s%s", name, node->name);
  const struct change *pair = store_find(key);
  hex_of(node->lives[node->life].id, id);
  return pair && strstr(pair->value, id);
}

bool named_is_entered(const struct named *node) {
  return is_entered(node, "") && is_entered(node, "shared") &&
         is_entered(node, node->name + strlen("node-")) == node->own_published;
}

/* The close removes the node's entries, if etcd responds in time. */
static void check_removal(const struct named *node) {
  const struct change **pairs;
  char id[33];
  size_t count = store_range("sim/", "sim0", INT64_MAX, &pairs);
  hex_of(node->lives[node->life].id, id);
  for (size_t i = 0; i < count && load.phase == STOPPING; i++)
    if (strstr(pairs[i]->value, id))
      sim_fail("entries", "%s is there after the close of its node", pairs[i]->key);
  free(pairs);
}

static void close_node(struct named *node) {
  struct limit limit = limit_begin("haul_node_close", own_clock() + CLOSE_LIMIT);
  if (!node->node)
    return;
  haul_region_release(node->region);
  haul_region_release(node->own_region);
  node->registered_at = 0;
  haul_node_close(node->node);
  node->node = NULL;
  node->region = node->own_region = NULL;
  node->own_published = false;
  limit_end(&limit);
}

static void run_fibers(struct named *node) {
  node->looks_up = node->registers = node->walks = true;
  fiber_start(node->process, lookup_main, node)->detached = true;
  fiber_start(node->process, register_main, node)->detached = true;
  fiber_start(node->process, walk_main, node)->detached = true;
  while (node->looks_up || node->registers)
    pause_for(5 * MS);
}

void *named_main(void *argument) {
  struct named *node = argument;
  while (goes_on(node) && open_node(node) != 0) {
    sim_trace("cannot serve: %s (%s)", haul_error_last()->text, haul_error_last()->object);
    close_node(node);
    pause_for(sim_between(MS, 200 * MS));
  }
  if (goes_on(node))
    run_fibers(node);
  close_node(node);
  node->lives[node->life].ended = sim_now;
  check_removal(node);
  while (node->walks)
    pause_for(5 * MS);
  pause_for(S); /* for threads that close descriptors */
  files_check_closed(node->process);
  node->ended = true;
  return NULL;
}

void named_start(struct named *node) {
  static struct host *hosts[NODES]; /* of the plan's first nodes, one of each */
  if (node->number < names_plan.hosts && !hosts[node->number])
    hosts[node->number] = node->host;
  if (node->life && names_plan.moves)
    node->host = hosts[sim_below(names_plan.hosts)];
  if (++node->life == LIVES)
    sim_fail("simulator", "node %u has more than %d lives", node->number, LIVES);
  node->leaves = node->ended = node->walks = node->mirrors = node->own_published = false;
  node->node = NULL;
  node->region = node->own_region = NULL;
  node->connected = node->found = 0;
  node->registered_at = 0;
  snprintf(node->name, sizeof node->name, "node-%u", node->number);
  sim_trace("node %u starts its life %u", node->number, node->life);
  node->process = process_start(node->host, node->number, node->life, named_main, node);
}
