/* SPDX-License-Identifier: MIT
 * A peer from its connection to its end. `refs` keep the memory, `uses` are the application's; the
 * node holds one reference while the peer is in its list. */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "core/alloc.h"
#include "core/error.h"
#include "core/fork.h"
#include "core/sys.h"
#include "node/directory.h"
#include "node/node.h"

/* ---- References ---- */

void peer_ref(struct haul_peer *peer) {
  atomic_fetch_add(&peer->refs, 1);
}

void peer_unref(struct haul_peer *peer) {
  if (atomic_fetch_sub(&peer->refs, 1) != 1)
    return;
  struct haul_node *node = peer->node;
  link_destroy_endpoints(&peer->base);
  costs_free(&peer->base);
  if (peer->message)
    alloc_free(peer->message);
  message_free_events(peer);
  alloc_free(peer->told);
  control_clear(peer);
  pthread_mutex_destroy(&peer->send_lock);
  pthread_mutex_destroy(&peer->doom_lock);
  alloc_free(peer);
  node_put(node);
}

static void use(struct haul_peer *peer) {
  atomic_fetch_add(&peer->uses, 1);
  peer_ref(peer);
}

/* The sweep of the node ends a connection that nobody here uses any more. */
static void unuse(struct haul_peer *peer) {
  if (fork_is_child())
    return; /* the connection and the descriptors to wake with are the parent's */
  if (atomic_fetch_sub(&peer->uses, 1) == 1 && peer->base.initiator &&
      !atomic_load(&peer->base.ended))
    loop_wake(peer->node->loop);
  peer_unref(peer);
}

static void retain_link(struct link *link) {
  use((struct haul_peer *)link);
}

static void put_link(struct link *link) {
  unuse((struct haul_peer *)link);
}

void peer_fail(struct haul_peer *peer, int code, const char *reason) {
  pthread_mutex_lock(&peer->doom_lock);
  if (!peer->doom) {
    peer->doom = code;
    snprintf(peer->doom_reason, sizeof peer->doom_reason, "%s", reason);
    atomic_store(&peer->base.failing, code);
    atomic_store(&peer->doomed, true);
  }
  pthread_mutex_unlock(&peer->doom_lock);
  loop_wake(peer->node->loop);
}

static void fail_link(struct link *link, int code, const char *reason) {
  peer_fail((struct haul_peer *)link, code, reason);
}

static void link_leaves(struct link *link) {
  struct haul_peer *peer = (struct haul_peer *)link;
  int64_t never = 0;
  atomic_store(&link->failing, HAUL_EPEER);
  atomic_compare_exchange_strong(&peer->pathless_at, &never, clock_now());
}

/* ---- Life in the loop ---- */

static void on_control(struct watch *watch, uint32_t events) {
  struct haul_peer *peer = list_entry(watch, struct haul_peer, watch);
  peer_ref(peer);
  if (events & EPOLLOUT) {
    pthread_mutex_lock(&peer->send_lock);
    control_pump(peer);
    pthread_mutex_unlock(&peer->send_lock);
  }
  if ((events & (EPOLLIN | EPOLLHUP | EPOLLERR)) && !atomic_load(&peer->base.ended))
    control_receive(peer);
  pthread_mutex_lock(&peer->send_lock); /* what came may have made TLS say something */
  if (!peer->closed && stream_owes(&peer->stream))
    control_pump(peer);
  pthread_mutex_unlock(&peer->send_lock);
  peer_unref(peer);
}

/* What the peer sent meanwhile is still to be read, and it may have made room. */
static void was_stopped(struct haul_peer *peer, int64_t now) {
  atomic_store(&peer->base.heard, now);
  pthread_mutex_lock(&peer->send_lock);
  peer->moved_at = now;
  pthread_mutex_unlock(&peer->send_lock);
}

/* What has come is read before anything is said about the peer: a loop that had much to do may be
 * the one that was silent. May drop it. */
static bool is_silent(struct haul_peer *peer, int64_t bound) {
  if (clock_now() - atomic_load(&peer->base.heard) <= bound)
    return false;
  control_receive(peer);
  return !atomic_load(&peer->base.ended) && clock_now() - atomic_load(&peer->base.heard) > bound;
}

static bool is_late(int64_t began, int64_t bound) {
  return began && clock_now() - began > bound / 4;
}

/* Drops a peer that is silent, does not read, or does not end what has begun to end. */
static void judge(struct haul_peer *peer, int64_t bound) {
  if (is_late(peer->goodbye_at, bound))
    peer_drop(peer, HAUL_ECLOSED, "the connection was closed here");
  else if (is_late(atomic_load(&peer->pathless_at), bound))
    peer_drop(peer, HAUL_EPEER, "its data connections ended");
  else if (is_silent(peer, bound))
    peer_drop(peer, HAUL_EPEER, "nothing was heard of it for the liveness bound");
  else if (control_stalls(peer))
    peer_drop(peer, HAUL_EPEER, "it does not read what it was sent");
}

/* Four times a liveness bound: something is sent, so that the peer hears it, and a peer that was
 * not heard for the bound is gone. A ping asks for one in return: the peer's own bound may be
 * longer than ours, and it speaks no oftener than that needs. */
static void on_tick(struct timer *timer) {
  struct haul_peer *peer = list_entry(timer, struct haul_peer, timer);
  struct haul_node *node = peer->node;
  int64_t bound = node->config.liveness_ns, now = clock_now();
  /* This side was not running. */
  if (now - timer->at > bound / 2)
    was_stopped(peer, now);
  peer_ref(peer);
  judge(peer, bound);
  if (!atomic_load(&peer->base.ended)) {
    link_log_lost(&peer->base);
    pthread_mutex_lock(&peer->send_lock);
    bool silent = now - peer->sent_at > bound / 4;
    pthread_mutex_unlock(&peer->send_lock);
    if (silent || now - atomic_load(&peer->base.heard) > bound / 4)
      control_send(peer, CONTROL_PING, PING_ASKS, NULL, 0);
    loop_timer_start(node->loop, timer, now + bound / 4);
  }
  peer_unref(peer);
}

int peer_new(struct haul_node *node, const struct stream *stream, const struct arrival *arrival,
             struct haul_peer **out) {
  static const uint8_t no_boot[16];
  struct haul_peer *peer = alloc_zero(1, sizeof *peer);
  if (!peer)
    return error_memory("peer");
  struct link *link = &peer->base;
  link->fabric = &node->fabric;
  const uint8_t *boot = arrival->boot;
  snprintf(link->name, sizeof link->name, "%s", arrival->name);
  link->boot_known = memcmp(boot, no_boot, 16) != 0 && memcmp(node->fabric.boot, no_boot, 16) != 0;
  link->same_host = link->boot_known && memcmp(boot, node->fabric.boot, 16) == 0;
  link->local = arrival->local;
  link->loopback = arrival->loopback;
  link->window = arrival->window;
  link->own_window = node_window(node);
  link->fail = fail_link;
  link->leaves = link_leaves;
  link->retain = retain_link;
  link->put = put_link;
  list_init(&link->writes);
  atomic_store(&link->heard, clock_now());
  peer->node = node;
  node_retain(node);
  atomic_store(&peer->refs, 1);
  list_init(&peer->list);
  list_init(&peer->requests);
  list_init(&peer->outgoing);
  pthread_mutex_init(&peer->send_lock, NULL);
  pthread_mutex_init(&peer->doom_lock, NULL);
  timer_init(&peer->timer, on_tick);
  random_bytes(peer->token, sizeof peer->token);
  peer->stream = *stream;
  peer->closed = true; /* until peer_start */
  uint32_t credit = arrival->message_window;
  peer->credit = credit < WINDOW_MAX ? credit : WINDOW_MAX;
  int code = message_make_events(peer);
  if (code == 0)
    code = link_create_endpoints(link);
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

int peer_start(struct haul_peer *peer) {
  struct haul_node *node = peer->node;
  peer_ref(peer);
  peer->base.number = ++node->last_number;
  list_append(&node->peers, &peer->list);
  node->peer_count++;
  loop_timer_start(node->loop, &peer->timer, clock_now() + node->config.liveness_ns / 4);
  if (node_is_closed(node))
    return error_code(HAUL_ECLOSED, peer->base.name);
  pthread_mutex_lock(&peer->send_lock);
  int code = loop_watch(node->loop, &peer->watch, peer->stream.fd, EPOLLIN, on_control);
  peer->closed = code != 0;
  peer->sent_at = clock_now();
  pthread_mutex_unlock(&peer->send_lock);
  if (code == 0)
    peer_log(peer, LOG_CONNECTED, 0, NULL);
  return code;
}

/* Ends whoever waits for the peer's answers. */
static void fail_requests(struct haul_peer *peer, int code, const char *reason) {
  for (struct list *item; (item = list_take(&peer->requests));) {
    struct request *request = list_entry(item, struct request, link);
    request->code = error_set(code, 0, peer->base.name, "connect again", "%s", reason);
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
  loop_timer_stop(&peer->timer);
  transfers_abort(&node->transfers, NULL, link, code, reason);
  link_stop(link, code);
  pthread_mutex_lock(&peer->send_lock);
  peer->closed = true;
  control_clear(peer);
  loop_unwatch(node->loop, &peer->watch);
  stream_close(&peer->stream);
  pthread_mutex_unlock(&peer->send_lock);
  fail_requests(peer, code, reason);
  if (peer->ready)
    message_event(peer, &peer->left);
  message_departed(peer);
  loop_notify(node->loop);
  if (listed) {
    node->peer_count--;
    peer_unref(peer);
  }
}

struct haul_peer *peer_by_token(struct haul_node *node, const uint8_t token[16]) {
  list_each(item, &node->peers) {
    struct haul_peer *peer = list_entry(item, struct haul_peer, list);
    if (!peer->base.initiator && memcmp(peer->token, token, 16) == 0)
      return peer;
  }
  return NULL;
}

/* ---- Connecting ---- */

static int refused(const struct welcome *welcome, const char *address) {
  if (welcome->code == HAUL_EVERSION || welcome->lowest > PROTOCOL_HIGHEST ||
      welcome->highest < PROTOCOL_LOWEST)
    return error_set(HAUL_EVERSION, 0, address, "install the same version of haul on both sides",
                     "the peer speaks versions %u to %u, this side %d to %d", welcome->lowest,
                     welcome->highest, PROTOCOL_LOWEST, PROTOCOL_HIGHEST);
  return error_set(welcome->code, 0, address, "see its log", "the peer refused the connection: %s",
                   error_quote(welcome->reason));
}

struct answer {
  struct watch watch;
  struct haul_node *node;
  _Atomic bool came;
};

static void on_answer(struct watch *watch, uint32_t events) {
  struct answer *answer = list_entry(watch, struct answer, watch);
  (void)events;
  loop_unwatch(answer->node->loop, watch);
  atomic_store(&answer->came, true);
  loop_notify(answer->node->loop);
}

static bool has_come(void *user) {
  struct answer *answer = user;
  return atomic_load(&answer->came);
}

/* A node that its caller drives goes on meanwhile: the one that answers may be itself. */
static int drive_until_answer(struct haul_node *node, int fd, haul_deadline until) {
  struct answer answer = {.node = node};
  if (node->has_thread)
    return 0;
  loop_lock(node->loop);
  int code = loop_watch(node->loop, &answer.watch, fd, EPOLLIN, on_answer);
  loop_unlock(node->loop);
  if (code)
    return code;
  loop_wait(node->loop, has_come, NULL, &answer, until);
  loop_lock(node->loop);
  loop_unwatch(node->loop, &answer.watch);
  loop_unlock(node->loop);
  return 0;
}

/* The welcome, by whatever brings it. */
static int receive_welcome(const struct stream *stream, const char *address, haul_deadline until,
                           struct welcome *welcome) {
  uint8_t bytes[HANDSHAKE_MAX];
  int code = stream_receive_all(stream, address, bytes, HANDSHAKE_HEAD, until);
  if (code)
    return code;
  int body = welcome_body(bytes);
  if (body < 0)
    return error_set(HAUL_EPROTO, 0, address, "check the address and the port",
                     "what listens there is no haul node");
  code = stream_receive_all(stream, address, bytes + HANDSHAKE_HEAD, (size_t)body, until);
  if (code)
    return code;
  code = welcome_parse(bytes, HANDSHAKE_HEAD + (size_t)body, welcome);
  if (code == HAUL_EPROTO)
    return error_set(code, 0, address, "check the address and the port", "its answer is damaged");
  return code || welcome->version == 0 ? refused(welcome, address) : 0;
}

/* A node that takes no TLS answers as it answers everybody: with a welcome that refuses. */
static int answers_bare(int fd, const char *address, haul_deadline until) {
  struct stream bare = {.fd = fd};
  struct welcome welcome;
  int code = receive_welcome(&bare, address, until, &welcome);
  return code ? code : error_set(HAUL_EPROTO, 0, address, NULL, "it answers TLS without TLS");
}

static int prove(struct haul_node *node, struct stream *stream, const char *address,
                 haul_deadline until) {
  int wants;
  while ((wants = tls_handshake(stream->tls, address)) > 0) {
    if (wants == TLS_BARE)
      return answers_bare(stream->fd, address, until);
    bool reads = wants == TLS_READ;
    int code = reads ? drive_until_answer(node, stream->fd, until) : 0;
    int system = code ? 0 : sock_wait(stream->fd, reads ? POLLIN : POLLOUT, until);
    if (system)
      code = error_set(system == ETIMEDOUT ? HAUL_ETIMEDOUT : HAUL_EPEER, system, address,
                       "is it a haul node that has a key?", "the peer does not answer");
    if (code)
      return code;
  }
  return wants;
}

/* Connects, and proves who this is where the node has something to do it with; a Unix socket's
 * other end knows. */
static int reach(struct haul_node *node, const struct address *address, const char *text,
                 haul_deadline until, struct stream *stream) {
  *stream = STREAM_NONE;
  int code = sock_connect(address, text, until, &stream->fd);
  if (code || address->local || !node->tls)
    return code;
  code = tls_open(node->tls, stream->fd, false, &stream->tls);
  if (code == 0)
    code = prove(node, stream, text, until);
  if (code)
    stream_close(stream);
  return code;
}

static int exchange(struct haul_node *node, struct stream *stream, const struct hello *hello,
                    const char *address, haul_deadline until, bool reads, struct welcome *welcome) {
  uint8_t bytes[HANDSHAKE_MAX];
  size_t length = hello_pack(hello, bytes);
  *welcome = (struct welcome){.version = 0};
  int code = stream_send_all(stream, address, bytes, length, until);
  if (code == 0)
    code = drive_until_answer(node, stream->fd, until);
  if (code == 0)
    code = receive_welcome(stream, address, until, welcome);
  /* Where certificates are shown this side's comes last. */
  if (code == HAUL_EPEER && stream->tls && !tls_is_keyed(stream->tls))
    code = error_set(HAUL_EAUTH, haul_error_last()->system, address,
                     "does its authority know this node's certificate? openssl verify -CAfile "
                     "AUTHORITY CERTIFICATE",
                     "the peer ended the connection when it had seen who this is");
  return code ? code : stream_settle(stream, hello->plain, welcome->updates, reads);
}

static void start_hello(const struct haul_node *node, enum role role, struct hello *hello) {
  *hello = (struct hello){.lowest = PROTOCOL_LOWEST,
                          .highest = PROTOCOL_HIGHEST,
                          .role = (uint8_t)role,
                          .message_window = MESSAGE_WINDOW(node),
                          .window = node_window(node),
                          .updates = node->tls && tls_takes_updates(node->tls)};
  memcpy(hello->node_id, node->fabric.node_id, 16);
  memcpy(hello->boot, node->fabric.boot, 16);
  snprintf(hello->name, sizeof hello->name, "%s", node->name);
}

/* Whoever leads connections elsewhere may lead this one to another node whose authority is the
 * same: before it is told the token, or anything else, it must be who the control connection is to.
 */
static int is_same(const struct link *link, const struct stream *stream) {
  const char *identity = stream->tls ? tls_identity(stream->tls) : link->identity;
  return strcmp(identity, link->identity) == 0
             ? 0
             : error_set(HAUL_EAUTH, 0, link->name, "who leads connections to two nodes?",
                         "%s answers there, and the connection is to %s", identity, link->identity);
}

static int dial(struct link *link, const struct transport *transport, bool local, unsigned index,
                haul_deadline until, struct stream *stream) {
  struct haul_peer *peer = (struct haul_peer *)link;
  struct haul_node *node = peer->node;
  struct address address = peer->address;
  struct hello hello;
  struct welcome welcome;
  if (local && !link->local) {
    if (!peer->companion[0])
      return error_set(HAUL_ENOPATH, 0, link->name, NULL, "the peer has none");
    address_abstract(peer->companion, &address);
  }
  int code = reach(node, &address, peer->address_text, until, stream);
  if (code == HAUL_ECONNECT && local && !link->local)
    return error_set(code, haul_error_last()->system, peer->address_text,
                     NULL, /* abstract: not seen */
                     "it is in another network namespace; it could listen on unix:///path in a "
                     "folder that both see");
  if (code)
    return code;
  code = is_same(link, stream);
  if (code) {
    stream_close(stream);
    return code;
  }
  if (transport->descriptors)
    sock_take_descriptors(stream->fd);
  start_hello(node, ROLE_CHANNEL, &hello);
  memcpy(hello.token, peer->token, 16);
  snprintf(hello.transport, sizeof hello.transport, "%s", transport->name);
  hello.index = (uint16_t)index;
  hello.plain = stream->tls && transport->payload && node->config.plain_data;
  code = exchange(node, stream, &hello, peer->address_text, until, transport->payload, &welcome);
  if (code)
    stream_close(stream);
  return code;
}

int peer_reach(struct haul_node *node, const char *text, const uint8_t *id, haul_deadline until,
               struct haul_peer **out) {
  struct address address;
  struct hello hello;
  struct welcome welcome = {.version = 0};
  struct stream stream;
  char identity[64] = "";
  int code = address_parse(text, until, &address);
  if (code == 0)
    code = reach(node, &address, text, until, &stream);
  if (code)
    return code;
  if (stream.tls)
    snprintf(identity, sizeof identity, "%s", tls_identity(stream.tls));
  start_hello(node, ROLE_CONTROL, &hello);
  code = exchange(node, &stream, &hello, text, until, false, &welcome);
  if (code == 0 && id && memcmp(id, welcome.node_id, 16) != 0)
    code = error_set(HAUL_EPEER, 0, text,
                     "the one that the directory names has ended, and so will its entry",
                     "another node listens there now, called %.63s", welcome.name);
  if (code == 0) {
    loop_lock(node->loop);
    /* NOLINTBEGIN(clang-analyzer-core.CallAndMessage): what error_set returns is never 0 */
    const struct arrival arrival = {welcome.boot,     welcome.name,           address.local,
                                    address.loopback, welcome.message_window, welcome.window};
    code = peer_new(node, &stream, &arrival, out);
    /* NOLINTEND(clang-analyzer-core.CallAndMessage) */
    loop_unlock(node->loop);
  }
  if (code) {
    stream_close(&stream);
    return code;
  }
  struct haul_peer *peer = *out;
  peer->base.initiator = true; /* NOLINT(clang-analyzer-core.NullDereference): nor error_memory */
  peer->base.dial = dial;
  peer->address = address;
  snprintf(peer->base.identity, sizeof peer->base.identity, "%s", identity);
  snprintf(peer->address_text, sizeof peer->address_text, "%s", text);
  memcpy(peer->token, welcome.token, sizeof peer->token);
  snprintf(peer->companion, sizeof peer->companion, "%s", welcome.companion);
  return 0;
}

HAUL_API int haul_peer_connect(haul_node *node, const char *address, haul_deadline until,
                               haul_peer **out) {
  struct haul_peer *peer = NULL;
  int code = error_enter("haul_peer_connect");
  if (code)
    return code;
  if (!node || !out)
    return error_set(HAUL_EINVAL, 0, address, NULL, "no node, or no place for the peer");
  node_retain(node); /* it may be closed meanwhile */
  code = directory_is_address(address) ? directory_connect(node, address, until, &peer)
                                       : peer_reach(node, address, NULL, until, &peer);
  node_put(node);
  if (code)
    return code;
  use(peer);
  loop_lock(node->loop);
  code = peer_start(peer);
  if (code)
    peer_drop(peer, code, haul_error_last()->text);
  loop_unlock(node->loop);
  peer_unref(peer);
  if (code == 0) {
    link_connect(&peer->base, until);
    code = control_send(peer, CONTROL_READY, 0, NULL, 0);
    loop_lock(node->loop);
    peer->ready = true;
    loop_unlock(node->loop);
  }
  if (code) {
    unuse(peer);
    return code;
  }
  *out = peer;
  return 0;
}

/* ---- Handles ---- */

HAUL_API haul_peer *haul_peer_retain(haul_peer *peer) {
  if (peer)
    use(peer);
  return peer;
}

HAUL_API void haul_peer_close(haul_peer *peer) {
  if (peer)
    unuse(peer);
}

HAUL_API const char *haul_peer_name(const haul_peer *peer) {
  return peer ? peer->base.name : "";
}

int peer_check(struct haul_peer *peer) {
  int ended = atomic_load(&peer->base.ended);
  return ended
             ? error_set(ended, 0, peer->base.name, "connect again", "%s", peer->base.ended_reason)
             : 0;
}

HAUL_API int haul_peer_status(haul_peer *peer) {
  int code = error_enter("haul_peer_status");
  if (code)
    return code;
  if (!peer)
    return error_set(HAUL_EINVAL, 0, NULL, NULL, "no peer");
  return peer_check(peer);
}
