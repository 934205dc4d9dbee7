/* SPDX-License-Identifier: MIT */
#include "node/peer.h"

#include <stdio.h>
#include <string.h>

#include "core/alloc.h"
#include "core/error.h"
#include "core/fork.h"
#include "core/sys.h"
#include "node/dial.h"
#include "node/message.h"
#include "node/share.h"

void peer_ref(struct haul_peer *peer) {
  atomic_fetch_add(&peer->refs, 1);
}

void peer_unref(struct haul_peer *peer) {
  if (atomic_fetch_sub(&peer->refs, 1) != 1)
    return;
  struct haul_node *node = peer->node;
  link_destroy_endpoints(&peer->base);
  costs_free(&peer->base);
  alloc_free(peer->message);
  message_free_events(peer);
  alloc_free(peer->granted);
  control_clear(peer);
  pthread_mutex_destroy(&peer->send_lock);
  pthread_mutex_destroy(&peer->failure_lock);
  alloc_free(peer);
  node_put(node);
}

void peer_use(struct haul_peer *peer) {
  atomic_fetch_add(&peer->uses, 1);
  peer_ref(peer);
}

/* The last use of a connection that this side initiated or holds, other than the other side's,
 * wakes the node, whose sweep closes or releases it (node.c). */
void peer_unuse(struct haul_peer *peer) {
  if (fork_is_child())
    return; /* the connection and the descriptors that wake the node are the parent's */
  if (atomic_fetch_sub(&peer->uses, 1) <= 1u + atomic_load(&peer->held) &&
      (peer->base.initiator || atomic_load(&peer->holding)) && !atomic_load(&peer->base.ended)) {
    atomic_store(&peer->node->sweep_due, true);
    loop_wake(peer->node->loop);
  }
  peer_unref(peer);
}

HAUL_API haul_peer *haul_peer_retain(haul_peer *peer) {
  if (peer)
    peer_use(peer);
  return peer;
}

HAUL_API void haul_peer_close(haul_peer *peer) {
  if (peer)
    peer_unuse(peer);
}

void peer_fail(struct haul_peer *peer, int code, const char *reason) {
  pthread_mutex_lock(&peer->failure_lock);
  if (!atomic_load(&peer->failure)) {
    snprintf(peer->failure_reason, sizeof peer->failure_reason, "%s", reason);
    atomic_store(&peer->base.failing, code);
    atomic_store(&peer->failure, code);
  }
  pthread_mutex_unlock(&peer->failure_lock);
  atomic_store(&peer->node->sweep_due, true);
  loop_wake(peer->node->loop);
}

int peer_check(struct haul_peer *peer) {
  int ended = atomic_load(&peer->base.ended);
  return ended ? error_set(ended, 0, peer->base.name, NULL, "%s", peer->base.ended_reason) : 0;
}

static void link_fail(struct link *link, int code, const char *reason) {
  peer_fail((struct haul_peer *)link, code, reason);
}

static void link_leaves(struct link *link) {
  struct haul_peer *peer = (struct haul_peer *)link;
  int64_t never = 0;
  atomic_store(&link->failing, HAUL_EPEER);
  atomic_compare_exchange_strong(&peer->rails_lost_at, &never, clock_now());
}

static void link_retain(struct link *link) {
  peer_use((struct haul_peer *)link);
}

static void link_put(struct link *link) {
  peer_unuse((struct haul_peer *)link);
}

/* Input that has arrived is read before the peer is called silent: the delay may have been in this
 * node's loop. May drop the peer. */
static bool is_silent(struct haul_peer *peer, int64_t bound) {
  if (clock_now() - atomic_load(&peer->base.heard) <= bound)
    return false;
  control_receive(peer);
  return !atomic_load(&peer->base.ended) && clock_now() - atomic_load(&peer->base.heard) > bound;
}

static bool is_overdue(int64_t since, int64_t bound) {
  return since && clock_now() - since > bound / 4;
}

/* Drops a peer that is silent, does not read, or does not complete the end of its connection. A
 * process that was only stopped learns of it when it runs again; the log says it at once. */
static void check_liveness(struct haul_peer *peer, int64_t bound) {
  char reason[128];
  const char *what = NULL;
  if (is_overdue(peer->close_sent_at, bound))
    peer_drop(peer, HAUL_ECLOSED, CLOSED_HERE);
  else if (is_overdue(atomic_load(&peer->rails_lost_at), bound))
    peer_drop(peer, HAUL_EPEER, "all data connections to the peer ended");
  else if (is_silent(peer, bound))
    what = "was silent for longer than";
  else if (control_is_stalled(peer))
    what = "read nothing for";
  if (!what)
    return;
  snprintf(reason, sizeof reason, "the peer %s the liveness timeout of %g s", what,
           (double)bound / 1e9);
  peer_log(peer, LOG_SILENT, HAUL_EPEER, reason);
  control_send(peer, CONTROL_GOODBYE, GOODBYE_SILENT, NULL, 0);
  peer_drop(peer, HAUL_EPEER, reason);
}

/* Pings after a quarter of the liveness timeout without a frame in one direction. The ping asks for
 * a response, as the peer's own bound may be longer, so that it sends less often by itself. */
static void keep_alive(struct haul_peer *peer, int64_t now, int64_t bound) {
  pthread_mutex_lock(&peer->send_lock);
  bool idle = now - peer->sent_at > bound / 4;
  pthread_mutex_unlock(&peer->send_lock);
  if (idle || now - atomic_load(&peer->base.heard) > bound / 4)
    control_send(peer, CONTROL_PING, PING_REQUEST, NULL, 0);
}

/* Ticks of all peers fall on the same instants, a quarter of the liveness timeout apart at most. */
static void start_tick(struct haul_peer *peer, int64_t now, int64_t bound) {
  int64_t slack = bound / 16;
  loop_timer_start_about(peer->node->loop, &peer->timer, now + 3 * slack, slack);
}

static void on_tick(struct timer *timer) {
  struct haul_peer *peer = list_entry(timer, struct haul_peer, timer);
  int64_t bound = peer->node->config.liveness_ns, now = clock_now();
  /* Late by more than that, this process was stopped. The peer gets its whole bound again. */
  if (now - timer->at > bound / 2) {
    atomic_store(&peer->base.heard, now);
    pthread_mutex_lock(&peer->send_lock);
    peer->moved_at = now;
    pthread_mutex_unlock(&peer->send_lock);
  }
  peer_ref(peer);
  check_liveness(peer, bound);
  if (!atomic_load(&peer->base.ended)) {
    link_log_lost(&peer->base);
    keep_alive(peer, now, bound);
    start_tick(peer, now, bound);
  }
  peer_unref(peer);
}

static void on_event(struct watch *watch, uint32_t events) {
  struct haul_peer *peer = list_entry(watch, struct haul_peer, watch);
  peer_ref(peer);
  if (events & EPOLLOUT) {
    pthread_mutex_lock(&peer->send_lock);
    control_flush(peer);
    pthread_mutex_unlock(&peer->send_lock);
  }
  if ((events & (EPOLLIN | EPOLLHUP | EPOLLERR)) && !atomic_load(&peer->base.ended))
    control_receive(peer);
  pthread_mutex_lock(&peer->send_lock); /* TLS may have answered a record that was read */
  if (!peer->closed && stream_owes(&peer->stream))
    control_flush(peer);
  pthread_mutex_unlock(&peer->send_lock);
  peer_unref(peer);
}

static void init_link(struct link *link, struct haul_node *node, const struct peer_info *info) {
  static const uint8_t unknown[16];
  const uint8_t *boot = node->fabric.boot;
  link->fabric = &node->fabric;
  snprintf(link->name, sizeof link->name, "%s", info->name);
  link->boot_known = memcmp(info->boot, unknown, 16) != 0 && memcmp(boot, unknown, 16) != 0;
  link->same_host = link->boot_known && memcmp(info->boot, boot, 16) == 0;
  link->local = info->local;
  link->loopback = info->loopback;
  link->window = info->window;
  link->version = info->version;
  link->own_window = node_window(node);
  link->fail = link_fail;
  link->last_path_lost = link_leaves;
  link->notify = message_notify;
  link->request_channels = control_request_channels;
  link->refuse_channels = control_refuse_channels;
  link->retain = link_retain;
  link->put = link_put;
  list_init(&link->writes);
  atomic_store(&link->heard, clock_now());
}

int peer_new(struct haul_node *node, const struct stream *stream, const struct peer_info *info,
             struct haul_peer **out) {
  struct haul_peer *peer = alloc_zero(1, sizeof *peer);
  if (!peer)
    return error_memory("peer");
  init_link(&peer->base, node, info);
  peer->base.tls = stream->tls || stream->protection != STREAM_BARE;
  peer->base.socket = stream->fd;
  peer->node = node;
  node_retain(node);
  atomic_store(&peer->refs, 1);
  list_init(&peer->list);
  list_init(&peer->same_token);
  list_init(&peer->requests);
  list_init(&peer->outgoing);
  pthread_mutex_init(&peer->send_lock, NULL);
  pthread_mutex_init(&peer->failure_lock, NULL);
  timer_init(&peer->timer, on_tick);
  random_bytes(peer->token, sizeof peer->token);
  random_bytes(peer->share, sizeof peer->share);
  memcpy(peer->node_id, info->node_id, sizeof peer->node_id);
  peer->stream = *stream;
  peer->closed = true; /* until peer_start */
  uint32_t credit = info->message_window;
  peer->credit = credit < MESSAGE_WINDOW_MAX ? credit : MESSAGE_WINDOW_MAX;
  int code = message_make_events(peer);
  if (code == 0)
    code = link_create_endpoints(&peer->base);
  if (code) {
    peer_unref(peer);
    return code;
  }
  *out = peer;
  return 0;
}

void peer_log(const struct haul_peer *peer, enum log_event event, int code, const char *reason) {
  log_write(&peer->node->fabric.log, event,
            (struct haul_log_field[]){{"peer", peer->base.name},
                                      {"identity", peer->base.identity},
                                      {"address", peer->address_text},
                                      {"code", code ? haul_error_name(code) : NULL},
                                      {"reason", reason},
                                      {0}});
}

/* Tokens are random. */
static struct list *tokens_like(struct haul_node *node, const uint8_t token[16]) {
  return &node->tokens[token[0] % TOKEN_LISTS];
}

int peer_start(struct haul_peer *peer) {
  struct haul_node *node = peer->node;
  peer_ref(peer);
  peer->base.number = ++node->last_number;
  list_append(&node->peers, &peer->list);
  if (!peer->base.initiator)
    list_append(tokens_like(node, peer->token), &peer->same_token);
  node->peer_count++;
  start_tick(peer, clock_now(), node->config.liveness_ns);
  if (node_is_closed(node))
    return error_code(HAUL_ECLOSED, peer->base.name);
  pthread_mutex_lock(&peer->send_lock);
  int code = loop_watch(node->loop, &peer->watch, peer->stream.fd, EPOLLIN, on_event);
  peer->closed = code != 0;
  peer->sent_at = clock_now();
  pthread_mutex_unlock(&peer->send_lock);
  if (code == 0)
    peer_log(peer, LOG_CONNECTED, 0, NULL);
  return code;
}

static void fail_requests(struct haul_peer *peer) {
  for (struct list *item; (item = list_take(&peer->requests));) {
    struct request *request = list_entry(item, struct request, link);
    request->code = peer_check(peer);
    error_save(&request->error);
    request->done = true;
  }
}

void peer_drop(struct haul_peer *peer, int code, const char *reason) {
  struct haul_node *node = peer->node;
  struct link *link = &peer->base;
  if (atomic_load(&link->ended))
    return;
  bool listed = !list_empty(&peer->list);
  if (listed)
    peer_log(peer, code == HAUL_EPROTO ? LOG_DROPPED : LOG_LEFT, code, reason);
  snprintf(link->ended_reason, sizeof link->ended_reason, "%s", reason);
  atomic_store(&link->ended, code);
  list_remove(&peer->list);
  list_remove(&peer->same_token);
  loop_timer_stop(&peer->timer);
  dials_end(peer);
  transfers_abort(&node->transfers, NULL, link, code, link->ended_reason);
  link_stop(link, code);
  pthread_mutex_lock(&peer->send_lock);
  peer->closed = true;
  control_clear(peer);
  loop_unwatch(node->loop, &peer->watch);
  stream_close(&peer->stream);
  pthread_mutex_unlock(&peer->send_lock);
  fail_requests(peer);
  if (peer->ready || !peer->joined)
    message_queue_event(peer, &peer->left);
  message_peer_ended(peer);
  share_end(peer);
  loop_notify(node->loop);
  if (listed) {
    node->peer_count--;
    peer_unref(peer);
  }
}

struct haul_peer *peer_by_token(struct haul_node *node, const uint8_t token[16]) {
  list_each(item, tokens_like(node, token)) {
    struct haul_peer *peer = list_entry(item, struct haul_peer, same_token);
    if (memcmp(peer->token, token, 16) == 0)
      return peer;
  }
  return NULL;
}

HAUL_API const char *haul_peer_name(const haul_peer *peer) {
  return peer ? peer->base.name : "";
}

HAUL_API const char *haul_peer_identity(const haul_peer *peer) {
  return peer ? peer->base.identity : "";
}

HAUL_API int haul_peer_status(haul_peer *peer) {
  int code = node_enter("haul_peer_status", peer, "peer is NULL");
  return code ? code : peer_check(peer);
}
