/* SPDX-License-Identifier: MIT
 * Handles accepted connections until their handshake is complete. An unauthenticated connection
 * costs a struct handshake and a timer; at most HANDSHAKES_MAX are open, each for `handshake_ns`.
 *
 * A TLS session is created once the whole ClientHello lies in the socket. With a key OpenSSL then
 * authenticates the peer in the same call, and a failure frees the session at once. With a
 * certificate the peer proves itself only in its second flight; at most TLS_MAX sessions wait for
 * one.
 *
 * At either limit the oldest handshake is evicted if it is older than SLOW_NS. If another origin
 * has more open handshakes than the newcomer's, one of its handshakes is evicted whatever its age,
 * so that one address cannot keep others out. A handshake that gets no TLS session retries after
 * RETRY_NS. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "core/alloc.h"
#include "core/sys.h"
#include "node/handshake.h"
#include "node/listen.h"
#include "node/message.h"
#include "node/share.h"

#define HANDSHAKES_MAX   256
#define TLS_MAX          32
#define SLOW_NS          500000000LL
#define RETRY_NS         10000000LL
#define TLS_HANDSHAKE    22   /* type of a record: RFC 8446, 5.1 */
#define CLIENT_HELLO_MAX 4096 /* bytes, with the head of the record */

struct handshake {
  struct list link; /* node->handshakes, in the order of arrival */
  struct haul_node *node;
  struct watch watch;
  struct timer timer;
  struct stream stream; /* STREAM_NONE once a peer or a transport owns it */
  enum { PEEK, TLS, HELLO } state;
  bool local, loopback;
  bool companion;   /* accepted on the node's abstract Unix socket, for channels of TCP peers */
  bool wrong_user;  /* refused once its hello is read */
  bool in_tls;      /* counts in node->tls_count */
  bool awaits_slot; /* for a TLS session; not watched meanwhile */
  int64_t began, until;
  int low_water; /* bytes in the socket before the next event: SO_RCVLOWAT */
  char identity[64], origin[48];
  size_t length;
  uint8_t bytes[HANDSHAKE_MAX];
};

static void leave_tls(struct handshake *handshake) {
  handshake->node->tls_count -= handshake->in_tls;
  handshake->in_tls = false;
}

static void handshake_end(struct handshake *handshake) {
  struct haul_node *node = handshake->node;
  loop_unwatch(node->loop, &handshake->watch);
  loop_timer_stop(&handshake->timer);
  list_remove(&handshake->link);
  node->handshake_count--;
  leave_tls(handshake);
  stream_close(&handshake->stream);
  alloc_free(handshake);
}

static unsigned count_from(const struct haul_node *node, bool in_tls, const char *origin) {
  unsigned count = 0;
  list_each(item, &node->handshakes) {
    const struct handshake *one = list_entry(item, struct handshake, link);
    count += (!in_tls || one->in_tls) && strcmp(one->origin, origin) == 0;
  }
  return count;
}

/* Ends one handshake for a newcomer from `origin`, of all or of those in TLS; false: none may be
 * evicted. */
static bool evict(struct haul_node *node, bool in_tls, const char *origin) {
  unsigned own = count_from(node, in_tls, origin), limit = in_tls ? TLS_MAX : HANDSHAKES_MAX;
  bool oldest = true;
  list_each(item, &node->handshakes) {
    struct handshake *one = list_entry(item, struct handshake, link);
    if (in_tls && !one->in_tls)
      continue;
    bool slow = oldest && clock_now() - one->began > SLOW_NS;
    if (!slow && own + 1 >= limit - own) /* no other origin can have more */
      return false;
    if (slow || count_from(node, in_tls, one->origin) > own + 1) {
      handshake_end(one);
      return true;
    }
    oldest = false;
  }
  return false;
}

/* A fresh socket takes a whole response; one that does not is not waited for. */
static bool respond(const struct handshake *handshake, const struct welcome *welcome) {
  uint8_t bytes[HANDSHAKE_MAX];
  struct iovec span = {bytes, welcome_pack(welcome, bytes)};
  struct msghdr message = {.msg_iov = &span, .msg_iovlen = 1};
  return stream_send(&handshake->stream, &message, 0) == (ssize_t)span.iov_len;
}

static void log_refusal(const struct handshake *handshake, int code, const char *reason) {
  char address[64];
  sock_other(handshake->stream.fd, address, sizeof address);
  log_write(&handshake->node->fabric.log, code == HAUL_ELIMIT ? LOG_LIMIT : LOG_REFUSED,
            (struct haul_log_field[]){{"address", *address ? address : handshake->origin},
                                      {"identity", handshake->identity},
                                      {"code", haul_error_name(code)},
                                      {"reason", reason},
                                      {0}});
}

/* The reason is read in this node's log and at the other side. */
static void handshake_refuse(const struct handshake *handshake, int code, const char *reason) {
  struct welcome welcome = {.lowest = PROTOCOL_LOWEST, .highest = PROTOCOL_HIGHEST, .code = code};
  log_refusal(handshake, code, reason);
  snprintf(welcome.reason, sizeof welcome.reason, "%.159s", reason);
  respond(handshake, &welcome);
}

/* The highest version that both sides support. */
static uint16_t version_for(const struct hello *hello) {
  return hello->highest < PROTOCOL_HIGHEST ? hello->highest : PROTOCOL_HIGHEST;
}

static void init_welcome(const struct haul_node *node, const struct hello *hello,
                         struct welcome *welcome) {
  *welcome = (struct welcome){.version = version_for(hello),
                              .lowest = PROTOCOL_LOWEST,
                              .highest = PROTOCOL_HIGHEST,
                              .message_window = (uint32_t)node->config.message_window,
                              .window = node_window(node),
                              .updates = node->tls && tls_takes_updates(node->tls)};
  memcpy(welcome->node_id, node->fabric.node_id, 16);
  memcpy(welcome->boot, node->fabric.boot, 16);
  snprintf(welcome->name, sizeof welcome->name, "%s", node->name);
  snprintf(welcome->companion, sizeof welcome->companion, "%s", node->companion);
}

/* True if this identity and address already have max_peers_each peers. */
static bool has_enough_peers(const struct handshake *handshake) {
  const struct haul_node *node = handshake->node;
  unsigned count = 0;
  if (node->config.max_peers_each >= node->config.max_peers) /* the default */
    return false;
  list_each(item, &node->peers) {
    const struct haul_peer *peer = list_entry(item, struct haul_peer, list);
    count += !peer->base.initiator && strcmp(peer->base.identity, handshake->identity) == 0 &&
             strcmp(peer->origin, handshake->origin) == 0;
  }
  return count >= node->config.max_peers_each;
}

static void accept_peer(struct handshake *handshake, const struct hello *hello) {
  struct haul_node *node = handshake->node;
  struct haul_peer *peer;
  struct welcome welcome;
  const struct peer_info info = {hello->node_id,   hello->boot,         hello->name,
                                 handshake->local, handshake->loopback, hello->message_window,
                                 hello->window,    version_for(hello)};
  if (node->peer_count + message_ended_peers(node) >= node->config.max_peers) {
    handshake_refuse(handshake, HAUL_ELIMIT,
                     "limit max_peers reached (ended peers with unread messages count)");
    return;
  }
  if (has_enough_peers(handshake)) {
    handshake_refuse(handshake, HAUL_ELIMIT,
                     "limit max_peers_each reached for this identity and address");
    return;
  }
  if (peer_new(node, &handshake->stream, &info, &peer) != 0) {
    handshake_refuse(handshake, HAUL_ENOMEM, haul_error_last()->text);
    return;
  }
  snprintf(peer->base.identity, sizeof peer->base.identity, "%s", handshake->identity);
  snprintf(peer->origin, sizeof peer->origin, "%s", handshake->origin);
  sock_other(handshake->stream.fd, peer->address_text, sizeof peer->address_text);
  init_welcome(node, hello, &welcome);
  memcpy(welcome.token, peer->token, 16);
  memcpy(welcome.share, peer->share, 16);
  share_offer(peer, &welcome);
  loop_unwatch(node->loop, &handshake->watch);
  bool welcomed = respond(handshake, &welcome) &&
                  stream_settle(&handshake->stream, false, hello->updates, false) == 0;
  peer->stream = handshake->stream;
  handshake->stream = STREAM_NONE;
  if (!welcomed || peer_start(peer) != 0)
    peer_drop(peer, HAUL_EPEER, "the handshake could not be completed");
  peer_unref(peer);
}

static void accept_channel(struct handshake *handshake, const struct hello *hello) {
  struct haul_node *node = handshake->node;
  struct haul_peer *peer = peer_by_token(node, hello->token);
  const struct transport *transport = transport_named(hello->transport);
  struct welcome welcome;
  if (!peer || !transport) {
    handshake_refuse(handshake, HAUL_EPROTO,
                     transport ? "the channel belongs to no connection" : "unknown transport");
    return;
  }
  if (transport->descriptors && !handshake->local) {
    handshake_refuse(handshake, HAUL_EPROTO, "the transport's channels are Unix sockets");
    return;
  }
  bool token_suffices = handshake->companion && transport->descriptors;
  if (strcmp(handshake->identity, peer->base.identity) != 0 && !token_suffices) {
    handshake_refuse(handshake, HAUL_EAUTH, "the channel's identity is not that of its connection");
    return;
  }
  if (hello->plain && !(transport->payload && node->config.plain_data)) {
    handshake_refuse(
        handshake, HAUL_EINSECURE,
        "plain_data is set on the connecting side only: set it on both sides or on none");
    return;
  }
  init_welcome(node, hello, &welcome);
  if (transport->descriptors)
    sock_take_descriptors(handshake->stream.fd); /* before the peer may send any */
  if (!respond(handshake, &welcome) ||
      stream_settle(&handshake->stream, hello->plain, hello->updates, transport->payload) != 0)
    return;
  loop_unwatch(node->loop, &handshake->watch);
  struct stream stream = handshake->stream;
  handshake->stream = STREAM_NONE;
  transport->adopt(peer->base.endpoints[transport->index], hello->index, stream);
}

static void on_hello(struct handshake *handshake) {
  struct hello hello;
  char reason[128];
  int code = hello_parse(handshake->bytes, handshake->length, &hello);
  if (code == HAUL_EVERSION) {
    snprintf(reason, sizeof reason,
             "no common protocol version: %u to %u offered, %d to %d supported", hello.lowest,
             hello.highest, PROTOCOL_LOWEST, PROTOCOL_HIGHEST);
    handshake_refuse(handshake, code, reason);
  } else if (code) {
    handshake_refuse(handshake, code, "malformed hello");
  } else if (handshake->wrong_user) {
    handshake_refuse(
        handshake, HAUL_EAUTH,
        "the Unix socket accepts its own user and root only (setting any_user admits others)");
  } else if (hello.role == ROLE_CHANNEL) {
    accept_channel(handshake, &hello);
  } else if (handshake->companion) {
    handshake_refuse(handshake, HAUL_EPROTO, "this socket accepts channels only");
  } else {
    accept_peer(handshake, &hello);
  }
}

static void read_hello(struct handshake *handshake) {
  for (;;) {
    size_t wanted = HANDSHAKE_HEAD;
    if (handshake->length >= HANDSHAKE_HEAD) {
      int body = hello_body(handshake->bytes);
      if (body < 0) { /* another protocol, which would not understand a welcome */
        log_refusal(handshake, HAUL_EPROTO, "the connection does not begin with a hello of haul");
        break;
      }
      wanted += (size_t)body;
      if (handshake->length == wanted) {
        on_hello(handshake);
        break;
      }
    }
    struct iovec span = {handshake->bytes + handshake->length, wanted - handshake->length};
    struct msghdr message = {.msg_iov = &span, .msg_iovlen = 1};
    ssize_t got = stream_take(&handshake->stream, &message);
    if (got == -EAGAIN || got == -EINTR)
      return;
    if (got <= 0)
      break;
    handshake->length += (size_t)got;
  }
  handshake_end(handshake);
}

static void continue_tls(struct handshake *handshake) {
  int code = tls_handshake(handshake->stream.tls, "connection");
  if (code == TLS_READ) {
    if (tls_is_keyed(handshake->stream.tls))
      leave_tls(handshake); /* authenticated already */
    return;
  }
  if (code) { /* TLS_WRITE: the peer does not read, as a fresh socket takes a whole flight */
    if (code < 0)
      log_refusal(handshake, code, haul_error_last()->text);
    handshake_end(handshake);
    return;
  }
  snprintf(handshake->identity, sizeof handshake->identity, "%s",
           tls_identity(handshake->stream.tls));
  leave_tls(handshake);
  handshake->state = HELLO;
  read_hello(handshake);
}

static void start_tls(struct handshake *handshake) {
  struct haul_node *node = handshake->node;
  if (node->tls_count == TLS_MAX && !evict(node, true, handshake->origin)) {
    handshake->awaits_slot = true;
    loop_unwatch(node->loop, &handshake->watch);
    loop_timer_start(node->loop, &handshake->timer, clock_now() + RETRY_NS);
  } else if (tls_open(node->tls, handshake->stream.fd, true, &handshake->stream.tls) != 0) {
    handshake_end(handshake);
  } else {
    handshake->began = clock_now();
    handshake->in_tls = true;
    node->tls_count++;
    handshake->state = TLS;
    continue_tls(handshake);
  }
}

/* Delays the next event until `bytes` are in the socket, or the connection ends. */
static void set_low_water(struct handshake *handshake, int bytes) {
  handshake->low_water = bytes;
  setsockopt(handshake->stream.fd, SOL_SOCKET, SO_RCVLOWAT, &bytes, sizeof bytes);
}

/* `whole`: the length of the ClientHello with its head. */
static void await_client_hello(struct handshake *handshake, int whole) {
  int available = 0;
  ioctl(handshake->stream.fd, FIONREAD, &available);
  if (whole > CLIENT_HELLO_MAX) {
    log_refusal(handshake, HAUL_EPROTO, "the TLS ClientHello exceeds 4096 bytes");
    handshake_end(handshake);
  } else if (available < handshake->low_water) { /* the connection ended */
    handshake_end(handshake);
  } else if (available < whole) {
    set_low_water(handshake, whole);
  } else {
    set_low_water(handshake, 1);
    start_tls(handshake);
  }
}

/* First reads the bytes that have arrived: closing a socket with unread bytes resets it, and the
 * other side would lose the refusal. */
static void refuse_unread(struct handshake *handshake, const char *reason) {
  uint8_t unread[CLIENT_HELLO_MAX];
  ssize_t got = recv(handshake->stream.fd, unread, sizeof unread, MSG_DONTWAIT);
  (void)got;
  handshake_refuse(handshake, HAUL_EAUTH, reason);
  handshake_end(handshake);
}

/* Decides by the first bytes between TLS and a bare hello. A node with a key takes the latter over
 * Unix sockets only. */
static void peek(struct handshake *handshake) {
  const struct haul_node *node = handshake->node;
  uint8_t head[5]; /* of a TLS record: type u8, version u16, length u16 (RFC 8446, 5.1) */
  ssize_t have = recv(handshake->stream.fd, head, sizeof head, MSG_PEEK | MSG_DONTWAIT);
  if (have < 0 && (errno == EAGAIN || errno == EINTR))
    return;
  if (have <= 0) {
    handshake_end(handshake);
  } else if (head[0] == TLS_HANDSHAKE && !node->tls) {
    refuse_unread(handshake, "the listening node has no key: set the same `key` on both sides");
  } else if (head[0] == TLS_HANDSHAKE) {
    await_client_hello(handshake, have < 5 ? 5 : 5 + (head[3] << 8 | head[4]));
  } else if (node->tls) {
    refuse_unread(handshake, "the connecting node has no key: set the same `key` on both sides");
  } else {
    handshake->state = HELLO;
    read_hello(handshake);
  }
}

static void on_bytes(struct watch *watch, uint32_t events) {
  struct handshake *handshake = list_entry(watch, struct handshake, watch);
  (void)events;
  if (handshake->state == PEEK)
    peek(handshake);
  else if (handshake->state == TLS)
    continue_tls(handshake);
  else
    read_hello(handshake);
}

static void handshake_expire(struct timer *timer) {
  struct handshake *handshake = list_entry(timer, struct handshake, timer);
  struct loop *loop = handshake->node->loop;
  bool retry = handshake->awaits_slot && clock_now() < handshake->until;
  handshake->awaits_slot = false;
  if (!retry)
    log_refusal(handshake, HAUL_ETIMEDOUT,
                "the handshake took longer than the setting `handshake`");
  if (!retry || loop_watch(loop, &handshake->watch, handshake->stream.fd, EPOLLIN, on_bytes) != 0) {
    handshake_end(handshake);
    return;
  }
  loop_timer_start(loop, timer, handshake->until);
  peek(handshake);
}

/* Over a Unix socket the kernel names the user. This process's user and root are accepted, others
 * by the setting any_user. The companion accepts any user: channels need a connection's token. */
static bool is_user_accepted(struct handshake *handshake) {
  uid_t user;
  bool own = sock_is_own_user(handshake->stream.fd, &user);
  snprintf(handshake->identity, sizeof handshake->identity, "uid:%u", (unsigned)user);
  return handshake->companion || handshake->node->config.any_user || own;
}

void accept_start(const struct listener *listener, int fd) {
  struct haul_node *node = listener->node;
  char origin[48];
  sock_origin(fd, origin, sizeof origin);
  bool room = node->handshake_count < HANDSHAKES_MAX || evict(node, false, origin);
  struct handshake *handshake = room ? alloc_zero(1, sizeof *handshake) : NULL;
  if (!handshake) {
    log_write(
        &node->fabric.log, LOG_LIMIT,
        (struct haul_log_field[]){{"reason", room ? "no memory for a connection"
                                                  : "limit of 256 concurrent handshakes reached"},
                                  {0}});
    sock_close(fd);
    return;
  }
  handshake->node = node;
  handshake->stream = (struct stream){.fd = fd};
  handshake->local = listener->address.local;
  handshake->loopback = listener->address.loopback;
  handshake->companion = listener->companion;
  handshake->state = handshake->local ? HELLO : PEEK;
  snprintf(handshake->origin, sizeof handshake->origin, "%s", origin);
  timer_init(&handshake->timer, handshake_expire);
  list_append(&node->handshakes, &handshake->link);
  node->handshake_count++;
  handshake->wrong_user = handshake->local && !is_user_accepted(handshake);
  if (loop_watch(node->loop, &handshake->watch, fd, EPOLLIN, on_bytes) != 0) {
    handshake_end(handshake);
    return;
  }
  handshake->began = clock_now();
  handshake->until = clock_after(handshake->began, node->config.handshake_ns);
  loop_timer_start(node->loop, &handshake->timer, handshake->until);
}

void accept_stop(struct haul_node *node) {
  while (!list_empty(&node->handshakes))
    handshake_end(list_entry(node->handshakes.next, struct handshake, link));
}

void accept_forked(struct haul_node *node) {
  list_each(item, &node->handshakes) close(list_entry(item, struct handshake, link)->stream.fd);
}
