/* SPDX-License-Identifier: MIT */
#include "node/share.h"

#include <string.h>

#include "core/sys.h"
#include "node/message.h"

static const uint8_t none[16];

/* Whether the two connections have the same node at the other end, with the same rights. */
static bool is_alike(const struct haul_peer *one, const struct haul_peer *other) {
  return !one->base.local && !other->base.local && one->base.tls == other->base.tls &&
         memcmp(one->node_id, other->node_id, 16) == 0 &&
         strcmp(one->base.identity, other->base.identity) == 0;
}

static bool is_live(const struct haul_peer *peer) {
  return !atomic_load(&peer->base.ended) && !atomic_load(&peer->base.failing) &&
         !peer->close_sent_at;
}

static bool is_shared(const struct haul_peer *peer) {
  return atomic_load(&peer->held) || atomic_load(&peer->holding);
}

/* With the loop's lock: a link that is not shared yet. A `share` of NULL matches any id. */
static struct haul_peer *find_alike(const struct haul_peer *peer, bool initiator,
                                    const uint8_t *share) {
  struct haul_node *node = peer->node;
  if (memcmp(peer->node_id, node->fabric.node_id, 16) == 0)
    return NULL; /* the node called itself */
  list_each(item, &node->peers) {
    struct haul_peer *other = list_entry(item, struct haul_peer, list);
    if (other != peer && other->base.initiator == initiator && is_live(other) &&
        !is_shared(other) && is_alike(peer, other) &&
        (!share || memcmp(share, other->share, 16) == 0))
      return other;
  }
  return NULL;
}

void share_offer(const struct haul_peer *newcomer, struct welcome *welcome) {
  struct haul_peer *link = find_alike(newcomer, true, NULL);
  if (!link)
    return;
  memcpy(welcome->shared, link->share, 16);
  link->offered = true;
}

haul_deadline share_until(const struct haul_node *node, haul_deadline until) {
  int64_t now = clock_now(), most = node->config.liveness_ns / 4;
  return now + (until > now && (until - now) / 4 < most ? (until - now) / 4 : most);
}

static int parse_held(struct request *request, struct wire *in) {
  int code = (int32_t)wire_get32(in);
  return code ? error_code(code, request->peer->base.name) : 0;
}

static bool is_ready(void *user) {
  struct haul_peer *link = user;
  loop_lock(link->node->loop);
  bool ready = link->ready || atomic_load(&link->base.ended);
  loop_unlock(link->node->loop);
  return ready;
}

struct haul_peer *share_join(const struct haul_peer *connection, haul_deadline until) {
  struct loop *loop = connection->node->loop;
  if (memcmp(connection->shared, none, 16) == 0)
    return NULL;
  until = share_until(connection->node, until);
  loop_lock(loop);
  struct haul_peer *link = find_alike(connection, false, connection->shared);
  if (link) {
    peer_use(link);
    link->holds++;
  }
  loop_unlock(loop);
  if (!link)
    return NULL;
  struct request request = {.peer = link, .parse = parse_held};
  if (control_request(&request, CONTROL_HOLD, NULL, 0, until) != 0 ||
      !loop_wait(loop, is_ready, NULL, link, until) || atomic_load(&link->base.ended)) {
    peer_unuse(link);
    return NULL;
  }
  return link;
}

static bool never(void *user) {
  return node_is_closed(user);
}

bool share_crosses(const struct haul_peer *connection, unsigned attempt, haul_deadline until) {
  struct haul_node *node = connection->node;
  if (memcmp(connection->shared, none, 16) != 0 ||
      memcmp(node->fabric.node_id, connection->node_id, 16) < 0)
    return false;
  loop_lock(node->loop);
  bool crosses = find_alike(connection, false, NULL) != NULL;
  loop_unlock(node->loop);
  int64_t then = clock_after(clock_now(), 2000000LL << (2 * attempt));
  if (crosses && then < until)
    loop_wait(node->loop, never, NULL, node, then);
  return crosses && then < until && !node_is_closed(node);
}

/* Over a link that this node made. HAUL_PEER_JOINED is queued once. */
void share_serve_hold(struct haul_peer *peer, struct wire *in, struct wire *out) {
  struct haul_node *node = peer->node;
  int code = !is_live(peer) ? HAUL_ECLOSED : atomic_load(&peer->held) ? HAUL_EEXIST : 0;
  if (code == 0 && node->peer_count > node->config.max_peers)
    code = HAUL_ELIMIT; /* links that only peers still use count as well */
  (void)in;
  if (code == 0) {
    peer_use(peer);
    atomic_store(&peer->held, true);
    atomic_store(&node->sweep_due, true); /* peer_unuse may have seen this use as a local one */
    loop_wake(node->loop);
    message_queue_event(peer, &peer->joined);
    peer_log(peer, LOG_SHARED, 0, NULL);
  }
  wire_put32(out, (uint32_t)code);
}

static bool is_awaited(const struct haul_peer *peer, uint32_t id) {
  list_each(item,
            &peer->requests) if (list_entry(item, struct request, link)->id == id) return true;
  return false;
}

/* Called before the waiting request ends. A request that timed out does not use the link. */
int share_on_held(struct haul_peer *peer, struct wire in, uint32_t id) {
  int code = (int32_t)wire_get32(&in);
  if (in.failed || wire_left(&in) > 0 || peer->holds == 0 || code > 0 || code < HAUL_EAUTH)
    return HAUL_EPROTO;
  peer->holds--;
  if (code == 0 && is_awaited(peer, id))
    atomic_store(&peer->holding, true);
  else if (code == 0)
    control_send(peer, CONTROL_RELEASE, 0, NULL, 0);
  return 0;
}

void share_end(struct haul_peer *peer) {
  if (atomic_exchange(&peer->held, false))
    peer_unuse(peer);
}

bool share_sweep(struct haul_peer *peer) {
  unsigned uses = atomic_load(&peer->uses);
  bool ours = peer->base.initiator ? peer->ready : atomic_load(&peer->holding);
  if (uses > atomic_load(&peer->held) || (!ours && !peer->unsettled))
    return false;
  if (peer->unsettled || peer->close_sent_at)
    return true;
  if (peer->base.initiator)
    return uses == 0;
  atomic_store(&peer->holding, false);
  control_send(peer, CONTROL_RELEASE, 0, NULL, 0);
  return false;
}

/* With the loop's lock: a link that this node does not use any more, while its abandoned writes may
 * land after those of `next`. It is listed until the other side has closed it, too. */
static bool is_unsettled(const struct haul_peer *peer, const struct haul_peer *next) {
  return peer != next && is_alike(peer, next) && link_has_abandoned(&peer->base) &&
         atomic_load(&peer->uses) <= atomic_load(&peer->held);
}

static bool are_settled(void *user) {
  const struct haul_peer *next = user;
  bool settled = true;
  loop_lock(next->node->loop);
  list_each(item, &next->node->peers) settled &=
      !is_unsettled(list_entry(item, struct haul_peer, list), next);
  loop_unlock(next->node->loop);
  return settled || node_is_closed(next->node);
}

static void close_unsettled(const struct haul_peer *next) {
  struct haul_node *node = next->node;
  loop_lock(node->loop);
  list_each(item, &node->peers) {
    struct haul_peer *peer = list_entry(item, struct haul_peer, list);
    peer->unsettled |= is_unsettled(peer, next);
  }
  atomic_store(&node->sweep_due, true);
  loop_unlock(node->loop);
  loop_wake(node->loop);
}

int share_settle(struct haul_peer *next, haul_deadline until) {
  struct haul_node *node = next->node;
  int64_t now = clock_now(), most = clock_after(now, node->config.liveness_ns);
  int64_t half = until > now ? now + (until - now) / 2 : until;
  if (loop_wait(node->loop, are_settled, NULL, next, half < most ? half : most))
    return 0;
  close_unsettled(next);
  if (loop_wait(node->loop, are_settled, NULL, next, until))
    return 0;
  return error_set(HAUL_ETIMEDOUT, 0, next->base.name, NULL,
                   "abandoned writes of an earlier connection may still land there");
}
