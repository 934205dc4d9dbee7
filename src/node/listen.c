/* SPDX-License-Identifier: MIT
 * Listeners, and what connected but has not said who it is. Until it has, a connection costs a
 * struct handshake and a timer, there are at most HANDSHAKES of them, and each has its time.
 *
 * A session of TLS is made when the whole ClientHello lies in the socket. With a key OpenSSL then
 * sees in the same call whether the other side has it, and what does not is gone again with that
 * call; who shows a certificate proves nothing before its second flight, so of sessions that wait
 * for one there are at most PROVING. Where there are so many, or HANDSHAKES of all, the one that
 * has been silent for longest makes way, after SLOW_NS; before that others wait. One of an origin
 * that has more of them than the newcomer's makes way at once: whoever comes again and again takes
 * the room of nobody else. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "core/alloc.h"
#include "core/error.h"
#include "core/sys.h"
#include "node/node.h"

#define HANDSHAKES    256
#define OVERFLOW_UID  65534 /* any user of another user namespace: kernel.overflowuid */
#define PROVING       32
#define SLOW_NS       500000000LL
#define WAIT_NS       10000000LL    /* before a session is tried for again */
#define TLS_HANDSHAKE 22            /* the type of a record: RFC 8446, 5.1 */
#define CLIENT_HELLO  4096          /* the longest that is taken, with its head */
#define PAUSE_NS      100000000LL   /* without descriptors left nobody is accepted for so long */
#define NAME_NS       10000000000LL /* for the resolver: see haul_node_listen */

struct handshake {
  struct list link; /* node->handshakes */
  struct haul_node *node;
  struct watch watch;
  struct timer timer;
  struct stream stream; /* fd -1: handed on */
  enum { LOOKS, PROVES, READS } state;
  bool local, loopback, companion;
  bool stranger; /* of a user that is not taken here: refused once it has said hello */
  bool counted;  /* in node->proving */
  bool waits;    /* for one of these to end */
  int64_t began, until;
  int wanted; /* bytes, before it is looked at again */
  char identity[64], origin[48];
  size_t length;
  uint8_t bytes[HANDSHAKE_MAX];
};

static void end_handshake(struct handshake *handshake) {
  struct haul_node *node = handshake->node;
  loop_unwatch(node->loop, &handshake->watch);
  loop_timer_stop(&handshake->timer);
  list_remove(&handshake->link);
  node->handshake_count--;
  node->proving -= handshake->counted;
  stream_close(&handshake->stream);
  alloc_free(handshake);
}

static void note_refusal(const struct handshake *handshake, int code, const char *reason);
static void look(struct handshake *handshake);
static void on_bytes(struct watch *watch, uint32_t events);

static void on_timeout(struct timer *timer) {
  struct handshake *handshake = list_entry(timer, struct handshake, timer);
  struct loop *loop = handshake->node->loop;
  bool again = handshake->waits && clock_now() < handshake->until;
  handshake->waits = false;
  if (!again)
    note_refusal(handshake, HAUL_ETIMEDOUT, "it did not say who it is in time");
  if (!again || loop_watch(loop, &handshake->watch, handshake->stream.fd, EPOLLIN, on_bytes) != 0) {
    end_handshake(handshake);
    return;
  }
  loop_timer_start(loop, timer, handshake->until);
  look(handshake);
}

/* Of those that a session counts for, or of all. */
static unsigned count_of(const struct haul_node *node, bool counted, const char *origin) {
  unsigned count = 0;
  list_each(item, &node->handshakes) {
    const struct handshake *one = list_entry(item, struct handshake, link);
    count += (!counted || one->counted) && strcmp(one->origin, origin) == 0;
  }
  return count;
}

/* Of the same: the first that came, if that was long ago, or the first of a crowd. */
static struct handshake *dispensable(const struct haul_node *node, bool counted,
                                     const char *origin) {
  unsigned own = count_of(node, counted, origin), limit = counted ? PROVING : HANDSHAKES;
  bool first = true;
  list_each(item, &node->handshakes) {
    struct handshake *one = list_entry(item, struct handshake, link);
    if (counted && !one->counted)
      continue;
    if (first && clock_now() - one->began > SLOW_NS)
      return one;
    first = false;
    if (own + 1 >= limit - own) /* nobody else has more */
      return NULL;
    if (count_of(node, counted, one->origin) > own + 1)
      return one;
  }
  return NULL;
}

/* For one of this origin. */
static bool make_way(struct haul_node *node, bool counted, const char *origin) {
  struct handshake *one = dispensable(node, counted, origin);
  if (one)
    end_handshake(one);
  return one;
}

/* ---- Answers ---- */

/* A fresh socket takes an answer whole; one that does not is not worth waiting for. */
static bool answer(const struct handshake *handshake, const struct welcome *welcome) {
  uint8_t bytes[HANDSHAKE_MAX];
  struct iovec span = {bytes, welcome_pack(welcome, bytes)};
  struct msghdr message = {.msg_iov = &span, .msg_iovlen = 1};
  return stream_send(&handshake->stream, &message, 0) == (ssize_t)span.iov_len;
}

/* Why nothing becomes of the connection, for the node's log. */
static void note_refusal(const struct handshake *handshake, int code, const char *reason) {
  char address[64];
  sock_other(handshake->stream.fd, address, sizeof address);
  log_write(&handshake->node->fabric.log, code == HAUL_ELIMIT ? LOG_LIMIT : LOG_REFUSED,
            (struct haul_log_field[]){{"address", *address ? address : handshake->origin},
                                      {"identity", handshake->identity},
                                      {"code", haul_error_name(code)},
                                      {"reason", reason},
                                      {0}});
}

static void refuse(const struct handshake *handshake, int code, const char *reason) {
  struct welcome welcome = {.lowest = PROTOCOL_LOWEST, .highest = PROTOCOL_HIGHEST, .code = code};
  note_refusal(handshake, code, reason);
  snprintf(welcome.reason, sizeof welcome.reason, "%.159s", reason);
  answer(handshake, &welcome);
}

static void start_welcome(const struct haul_node *node, struct welcome *welcome) {
  *welcome = (struct welcome){.version = PROTOCOL_HIGHEST,
                              .lowest = PROTOCOL_LOWEST,
                              .highest = PROTOCOL_HIGHEST,
                              .message_window = MESSAGE_WINDOW(node),
                              .window = node_window(node),
                              .updates = node->tls && tls_takes_updates(node->tls)};
  memcpy(welcome->node_id, node->fabric.node_id, 16);
  memcpy(welcome->boot, node->fabric.boot, 16);
  snprintf(welcome->name, sizeof welcome->name, "%s", node->name);
  snprintf(welcome->companion, sizeof welcome->companion, "%s", node->companion);
}

/* ---- Whole hellos ---- */

/* Peers of one identity that connected from one address. */
static bool has_enough_of(const struct handshake *handshake) {
  const struct haul_node *node = handshake->node;
  unsigned count = 0;
  list_each(item, &node->peers) {
    const struct haul_peer *peer = list_entry(item, struct haul_peer, list);
    count += !peer->base.initiator && strcmp(peer->base.identity, handshake->identity) == 0 &&
             strcmp(peer->origin, handshake->origin) == 0;
  }
  return count >= node->config.max_peers_each;
}

static void on_control(struct handshake *handshake, const struct hello *hello) {
  struct haul_node *node = handshake->node;
  struct haul_peer *peer;
  struct welcome welcome;
  if (node->peer_count + message_departed_count(node) >= node->config.max_peers) {
    refuse(handshake, HAUL_ELIMIT,
           "it has as many peers as its max_peers allows, with those that left unread messages");
    return;
  }
  const struct arrival arrival = {hello->boot,         hello->name,           handshake->local,
                                  handshake->loopback, hello->message_window, hello->window};
  if (has_enough_of(handshake)) {
    refuse(handshake, HAUL_ELIMIT, "it has as many of these peers as its max_peers_each allows");
    return;
  }
  if (peer_new(node, &handshake->stream, &arrival, &peer) != 0) {
    refuse(handshake, HAUL_ENOMEM, haul_error_last()->text);
    return;
  }
  snprintf(peer->base.identity, sizeof peer->base.identity, "%s", handshake->identity);
  snprintf(peer->origin, sizeof peer->origin, "%s", handshake->origin);
  sock_other(handshake->stream.fd, peer->address_text, sizeof peer->address_text);
  start_welcome(node, &welcome);
  memcpy(welcome.token, peer->token, 16);
  loop_unwatch(node->loop, &handshake->watch);
  bool told = answer(handshake, &welcome) &&
              stream_settle(&handshake->stream, false, hello->updates, false) == 0;
  peer->stream = handshake->stream;
  handshake->stream = STREAM_NONE;
  if (!told || peer_start(peer) != 0)
    peer_drop(peer, HAUL_EPEER, "the handshake broke");
  peer_unref(peer);
}

static void on_channel(struct handshake *handshake, const struct hello *hello) {
  struct haul_node *node = handshake->node;
  struct haul_peer *peer = peer_by_token(node, hello->token);
  const struct transport *transport = transport_named(hello->transport);
  struct welcome welcome;
  if (!peer || !transport) {
    refuse(handshake, HAUL_EPROTO,
           transport ? "the channel belongs to no connection here" : "it has no such path");
    return;
  }
  bool by_token = handshake->companion && transport->descriptors;
  if (strcmp(handshake->identity, peer->base.identity) != 0 && !by_token) {
    refuse(handshake, HAUL_EAUTH, "the channel is not of who made the connection");
    return;
  }
  if (hello->plain && !(transport->payload && node->config.plain_data)) {
    refuse(handshake, HAUL_EINSECURE,
           "plain_data is not set here, so data is encrypted: take it away on the other side");
    return;
  }
  start_welcome(node, &welcome);
  if (transport->descriptors)
    sock_take_descriptors(handshake->stream.fd); /* the peer may send some once it is welcome */
  if (!answer(handshake, &welcome) ||
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
    snprintf(reason, sizeof reason, "it speaks versions %d to %d, this side %u to %u",
             PROTOCOL_LOWEST, PROTOCOL_HIGHEST, hello.lowest, hello.highest);
    refuse(handshake, code, reason);
  } else if (code) {
    refuse(handshake, code, "the hello is damaged");
  } else if (handshake->stranger) {
    refuse(handshake, HAUL_EAUTH,
           "its socket is for its own user and root (any_user lets others in)");
  } else if (hello.role == ROLE_CHANNEL) {
    on_channel(handshake, &hello);
  } else if (handshake->companion) {
    refuse(handshake, HAUL_EPROTO, "this socket takes channels only");
  } else {
    on_control(handshake, &hello);
  }
}

/* Reads the hello, and answers. */
static void read_hello(struct handshake *handshake) {
  for (;;) {
    size_t wanted = HANDSHAKE_HEAD;
    if (handshake->length >= HANDSHAKE_HEAD) {
      int body = hello_body(handshake->bytes);
      if (body < 0) { /* no answer */
        note_refusal(handshake, HAUL_EPROTO, "what it sent is no hello of a haul node");
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
  end_handshake(handshake);
}

/* ---- Who it is ---- */

static void uncount(struct handshake *handshake) {
  handshake->node->proving -= handshake->counted;
  handshake->counted = false;
}

/* The other side has to speak next, or is known, or is gone. */
static void prove(struct handshake *handshake) {
  int code = tls_handshake(handshake->stream.tls, "a connection");
  if (code == TLS_READ && tls_is_keyed(handshake->stream.tls))
    uncount(handshake);
  if (code == TLS_READ)
    return;
  if (code) { /* a fresh socket takes an answer whole: TLS_WRITE is a peer that does not read */
    if (code < 0)
      note_refusal(handshake, code, haul_error_last()->text);
    end_handshake(handshake);
    return;
  }
  snprintf(handshake->identity, sizeof handshake->identity, "%s",
           tls_identity(handshake->stream.tls));
  uncount(handshake);
  handshake->state = READS;
  read_hello(handshake);
}

/* How many bytes it has, by the head of its record: type, version, length (RFC 8446, 5.1). */
static int client_hello(const uint8_t head[5], ssize_t have) {
  return have < 5 ? 5 : 5 + (head[3] << 8 | head[4]);
}

static void start_proof(struct handshake *handshake) {
  struct haul_node *node = handshake->node;
  if (node->proving == PROVING && !make_way(node, true, handshake->origin)) {
    handshake->waits = true;
    loop_unwatch(node->loop, &handshake->watch);
    loop_timer_start(node->loop, &handshake->timer, clock_now() + WAIT_NS);
  } else if (tls_open(node->tls, handshake->stream.fd, true, &handshake->stream.tls) != 0) {
    end_handshake(handshake);
  } else {
    handshake->began = clock_now();
    handshake->counted = true;
    node->proving++;
    handshake->state = PROVES;
    prove(handshake);
  }
}

/* The event comes again when so many bytes are there, or none will come. */
static void wait_for(struct handshake *handshake, int bytes) {
  handshake->wanted = bytes;
  setsockopt(handshake->stream.fd, SOL_SOCKET, SO_RCVLOWAT, &bytes, sizeof bytes);
}

static void on_tls(struct handshake *handshake, int whole) {
  int there = 0;
  ioctl(handshake->stream.fd, FIONREAD, &there);
  if (whole > CLIENT_HELLO) {
    note_refusal(handshake, HAUL_EPROTO, "its ClientHello is too long");
    end_handshake(handshake);
  } else if (there < handshake->wanted) {
    end_handshake(handshake);
  } else if (there < whole) {
    wait_for(handshake, whole);
  } else {
    wait_for(handshake, 1);
    start_proof(handshake);
  }
}

/* Bytes that were not read would make the close a reset, which takes the answer away. */
static void refuse_unread(struct handshake *handshake, int code, const char *reason) {
  uint8_t unread[CLIENT_HELLO];
  ssize_t got = recv(handshake->stream.fd, unread, sizeof unread, MSG_DONTWAIT);
  (void)got;
  refuse(handshake, code, reason);
  end_handshake(handshake);
}

/* By the first bytes: TLS, or a hello without it, which a node with a key takes over Unix sockets
 * alone. */
static void look(struct handshake *handshake) {
  const struct haul_node *node = handshake->node;
  uint8_t head[5];
  ssize_t have = recv(handshake->stream.fd, head, sizeof head, MSG_PEEK | MSG_DONTWAIT);
  if (have < 0 && (errno == EAGAIN || errno == EINTR))
    return;
  if (have <= 0) {
    end_handshake(handshake);
  } else if (head[0] == TLS_HANDSHAKE && !node->tls) {
    refuse_unread(handshake, HAUL_EAUTH, "it has no key, and cannot prove who it is");
  } else if (head[0] == TLS_HANDSHAKE) {
    on_tls(handshake, client_hello(head, have));
  } else if (node->tls) {
    refuse_unread(handshake, HAUL_EAUTH, "it takes only who has a key that it knows: set `key`");
  } else {
    handshake->state = READS;
    read_hello(handshake);
  }
}

static void on_bytes(struct watch *watch, uint32_t events) {
  struct handshake *handshake = list_entry(watch, struct handshake, watch);
  (void)events;
  if (handshake->state == LOOKS)
    look(handshake);
  else if (handshake->state == PROVES)
    prove(handshake);
  else
    read_hello(handshake);
}

/* Over a Unix socket the kernel knows: this user and root are taken, and others where that is set.
 * The companion takes whoever knows a connection's token. */
static bool knows_user(struct handshake *handshake) {
  struct ucred other;
  socklen_t size = sizeof other;
  if (getsockopt(handshake->stream.fd, SOL_SOCKET, SO_PEERCRED, &other, &size) != 0)
    return false;
  snprintf(handshake->identity, sizeof handshake->identity, "uid:%u", (unsigned)other.uid);
  bool own = other.uid == 0 || (other.uid == geteuid() && other.uid != OVERFLOW_UID);
  return handshake->companion || handshake->node->config.any_user || own;
}

/* ---- Listeners ---- */

static void on_connection(struct watch *watch, uint32_t events);

static void on_pause_over(struct timer *timer) {
  struct listener *listener = list_entry(timer, struct listener, timer);
  struct loop *loop = listener->node->loop;
  if (loop_watch(loop, &listener->watch, listener->fd, EPOLLIN, on_connection) != 0)
    loop_timer_start(loop, timer, clock_now() + PAUSE_NS);
}

/* The connection stays in the queue, and the loop would be told of it again and again. */
static void pause_listener(struct listener *listener, int system) {
  log_write(&listener->node->fabric.log, LOG_ACCEPT,
            (struct haul_log_field[]){{"reason", strerror(system)}, {0}});
  loop_unwatch(listener->node->loop, &listener->watch);
  loop_timer_start(listener->node->loop, &listener->timer, clock_now() + PAUSE_NS);
}

static void on_connection(struct watch *watch, uint32_t events) {
  struct listener *listener = list_entry(watch, struct listener, watch);
  struct haul_node *node = listener->node;
  (void)events;
  int fd = sock_accept(listener->fd);
  if (fd < 0) {
    if (errno != EAGAIN && errno != EINTR && errno != ECONNABORTED)
      pause_listener(listener, errno);
    return;
  }
  char origin[48];
  sock_origin(fd, origin, sizeof origin);
  bool room = node->handshake_count < HANDSHAKES || make_way(node, false, origin);
  struct handshake *handshake = room ? alloc_zero(1, sizeof *handshake) : NULL;
  if (!handshake) {
    log_write(&node->fabric.log, LOG_LIMIT,
              (struct haul_log_field[]){
                  {"reason", room ? "no memory for a connection"
                                  : "as many connections are in the handshake as there may be"},
                  {0}});
    sock_close(fd);
    return;
  }
  handshake->node = node;
  handshake->stream = (struct stream){.fd = fd};
  handshake->local = listener->address.local;
  handshake->loopback = listener->address.loopback;
  handshake->companion = listener->companion;
  handshake->state = handshake->local ? READS : LOOKS;
  snprintf(handshake->origin, sizeof handshake->origin, "%s", origin);
  timer_init(&handshake->timer, on_timeout);
  list_append(&node->handshakes, &handshake->link);
  node->handshake_count++;
  handshake->stranger = handshake->local && !knows_user(handshake);
  if (loop_watch(node->loop, &handshake->watch, fd, EPOLLIN, on_bytes) != 0) {
    end_handshake(handshake);
    return;
  }
  handshake->began = clock_now();
  handshake->until = clock_after(handshake->began, node->config.handshake_ns);
  loop_timer_start(node->loop, &handshake->timer, handshake->until);
}

int listen_on(struct haul_node *node, struct address *address, bool companion) {
  struct listener *listener = alloc_zero(1, sizeof *listener);
  if (!listener)
    return error_memory("listener");
  listener->node = node;
  timer_init(&listener->timer, on_pause_over);
  listener->companion = companion;
  listener->address = *address;
  int code = sock_listen(&listener->address, &listener->fd);
  if (code)
    goto listen_failed;
  code = loop_watch(node->loop, &listener->watch, listener->fd, EPOLLIN, on_connection);
  if (code)
    goto watch_failed;
  list_append(&node->listeners, &listener->link);
  return 0;

watch_failed:
  close(listener->fd);
listen_failed:
  alloc_free(listener);
  return code;
}

void listen_stop(struct haul_node *node) {
  for (struct list *item; (item = list_take(&node->listeners));) {
    struct listener *listener = list_entry(item, struct listener, link);
    loop_unwatch(node->loop, &listener->watch);
    loop_timer_stop(&listener->timer);
    close(listener->fd);
    if (listener->address.path[0])
      unlink(listener->address.path);
    alloc_free(listener);
  }
  while (!list_empty(&node->handshakes))
    end_handshake(list_entry(node->handshakes.next, struct handshake, link));
}

void listen_forked(struct haul_node *node) {
  list_each(item, &node->listeners) close(list_entry(item, struct listener, link)->fd);
  list_each(item, &node->handshakes) close(list_entry(item, struct handshake, link)->stream.fd);
}

/* Peers of this host that connect over TCP find a Unix socket here, which can carry descriptors. It
 * is a convenience: without it their `map` path says why it is closed. */
static void listen_companion(struct haul_node *node) {
  struct address address;
  char *at = node->companion;
  if (at[0])
    return;
  at += snprintf(at, 8, "haul/");
  for (int i = 0; i < 16; i++)
    at += snprintf(at, 3, "%02x", node->fabric.node_id[i]);
  address_abstract(node->companion, &address);
  if (listen_on(node, &address, true) != 0)
    node->companion[0] = '\0';
}

HAUL_API int haul_node_listen(haul_node *node, const char *text) {
  struct address address;
  int code = node_enter("haul_node_listen", node);
  if (code == 0)
    code = address_parse(text, clock_after(clock_now(), NAME_NS), &address);
  if (code)
    return code;
  if (!address.loopback && !node->tls && !node->config.insecure)
    return error_set(HAUL_EINSECURE, 0, text,
                     "haul key new FILE makes one, to be set as `key` on both sides; or set "
                     "`insecure` (haul serve --insecure) on a network that you trust",
                     "without a key only loopback and Unix sockets are listened on");
  loop_lock(node->loop);
  code = node_is_closed(node) ? error_code(HAUL_ECLOSED, text) : listen_on(node, &address, false);
  if (code == 0 && !address.local)
    listen_companion(node);
  loop_unlock(node->loop);
  if (code == 0)
    exports_note_change(node->exports);
  return code;
}

bool listener_address(struct haul_node *node, size_t index, char *text, size_t size) {
  const struct listener *found = NULL;
  loop_lock(node->loop);
  list_each(item, &node->listeners) {
    const struct listener *listener = list_entry(item, struct listener, link);
    if (!listener->companion && index-- == 0) {
      found = listener;
      break;
    }
  }
  if (found)
    address_format(&found->address, text, size);
  loop_unlock(node->loop);
  return found;
}

HAUL_API int haul_node_address(haul_node *node, size_t index, char *text, size_t size) {
  int code = node_enter("haul_node_address", node);
  if (code)
    return code;
  if (!text)
    return error_set(HAUL_EINVAL, 0, NULL, NULL, "no place for the address");
  char address[160];
  if (!listener_address(node, index, address, sizeof address))
    return error_set(HAUL_ERANGE, 0, NULL, NULL, "the node has fewer listeners");
  size_t length = strlen(address);
  if (length >= size)
    return error_set(HAUL_EINVAL, 0, address, "160 always do", "%zu bytes are too few for it",
                     size);
  memcpy(text, address, length + 1);
  return 0;
}
