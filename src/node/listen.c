/* SPDX-License-Identifier: MIT
 * Listeners, and what connected but has not said who it is. Until it has, a connection costs a
 * struct handshake and a timer, there are at most HANDSHAKES of them, and each has HANDSHAKE_NS. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "core/alloc.h"
#include "core/error.h"
#include "core/sys.h"
#include "node/node.h"

#define HANDSHAKES   256
#define PAUSE_NS     100000000LL /* without descriptors left nobody is accepted for so long */
#define HANDSHAKE_NS 5000000000LL
#define NAME_NS      10000000000LL /* for the resolver: see haul_node_listen */

struct handshake {
  struct list link; /* node->handshakes */
  struct haul_node *node;
  struct watch watch;
  struct timer timer;
  int fd; /* -1: handed on */
  bool local, loopback, companion;
  size_t length;
  uint8_t bytes[HANDSHAKE_MAX];
};

static void end_handshake(struct handshake *handshake) {
  struct haul_node *node = handshake->node;
  loop_unwatch(node->loop, &handshake->watch);
  loop_timer_stop(&handshake->timer);
  list_remove(&handshake->link);
  node->handshake_count--;
  if (handshake->fd >= 0)
    sock_close(handshake->fd);
  alloc_free(handshake);
}

static void on_timeout(struct timer *timer) {
  end_handshake(list_entry(timer, struct handshake, timer));
}

/* ---- Answers ---- */

/* A fresh socket takes an answer whole; one that does not is not worth waiting for. */
static bool answer(const struct handshake *handshake, const struct welcome *welcome) {
  uint8_t bytes[HANDSHAKE_MAX];
  size_t length = welcome_pack(welcome, bytes);
  return send(handshake->fd, bytes, length, MSG_NOSIGNAL | MSG_DONTWAIT) == (ssize_t)length;
}

static void refuse(const struct handshake *handshake, int code, const char *reason) {
  struct welcome welcome = {.lowest = PROTOCOL_LOWEST, .highest = PROTOCOL_HIGHEST, .code = code};
  snprintf(welcome.reason, sizeof welcome.reason, "%.159s", reason);
  answer(handshake, &welcome);
}

static void start_welcome(const struct haul_node *node, struct welcome *welcome) {
  *welcome = (struct welcome){.version = PROTOCOL_HIGHEST,
                              .lowest = PROTOCOL_LOWEST,
                              .highest = PROTOCOL_HIGHEST,
                              .message_window = MESSAGE_WINDOW(node)};
  memcpy(welcome->node_id, node->fabric.node_id, 16);
  memcpy(welcome->boot, node->fabric.boot, 16);
  snprintf(welcome->name, sizeof welcome->name, "%s", node->name);
  snprintf(welcome->companion, sizeof welcome->companion, "%s", node->companion);
}

/* ---- Whole hellos ---- */

static void on_control(struct handshake *handshake, const struct hello *hello) {
  struct haul_node *node = handshake->node;
  struct haul_peer *peer;
  struct welcome welcome;
  if (node->peer_count + message_departed_count(node) >= node->config.max_peers) {
    refuse(handshake, HAUL_ELIMIT,
           "it has as many peers as its max_peers allows, with those that left unread messages");
    return;
  }
  if (peer_new(node, handshake->fd, hello->boot, hello->name, handshake->local, handshake->loopback,
               hello->message_window, &peer) != 0) {
    refuse(handshake, HAUL_ENOMEM, haul_error_last()->text);
    return;
  }
  start_welcome(node, &welcome);
  memcpy(welcome.token, peer->token, 16);
  loop_unwatch(node->loop, &handshake->watch);
  bool told = answer(handshake, &welcome);
  handshake->fd = -1; /* the peer's */
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
  start_welcome(node, &welcome);
  if (transport->descriptors)
    sock_take_descriptors(handshake->fd); /* the peer may send some once it is welcome */
  if (!answer(handshake, &welcome))
    return;
  loop_unwatch(node->loop, &handshake->watch);
  int fd = handshake->fd;
  handshake->fd = -1;
  transport->adopt(peer->base.endpoints[transport->index], hello->index, fd);
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
  } else if (hello.auth != 0) {
    refuse(handshake, HAUL_ENOTSUP, "it knows no such proof of identity");
  } else if (hello.role == ROLE_CHANNEL) {
    on_channel(handshake, &hello);
  } else if (handshake->companion) {
    refuse(handshake, HAUL_EPROTO, "this socket takes channels only");
  } else {
    on_control(handshake, &hello);
  }
}

static void on_bytes(struct watch *watch, uint32_t events) {
  struct handshake *handshake = list_entry(watch, struct handshake, watch);
  (void)events;
  for (;;) {
    size_t wanted = HANDSHAKE_HEAD;
    if (handshake->length >= HANDSHAKE_HEAD) {
      int body = hello_body(handshake->bytes);
      if (body < 0)
        break; /* not ours: no answer */
      wanted += (size_t)body;
      if (handshake->length == wanted) {
        on_hello(handshake);
        break;
      }
    }
    struct iovec span = {handshake->bytes + handshake->length, wanted - handshake->length};
    struct msghdr message = {.msg_iov = &span, .msg_iovlen = 1};
    ssize_t got = sock_receive(handshake->fd, &message);
    if (got == -EAGAIN || got == -EINTR)
      return;
    if (got <= 0)
      break;
    handshake->length += (size_t)got;
  }
  end_handshake(handshake);
}

/* ---- Listeners ---- */

static void on_connection(struct watch *watch, uint32_t events);

static void on_pause_over(struct timer *timer) {
  struct listener *listener = list_entry(timer, struct listener, timer);
  struct loop *loop = listener->node->loop;
  if (loop_watch(loop, &listener->watch, listener->fd, EPOLLIN, on_connection) != 0)
    loop_timer(loop, timer, clock_now() + PAUSE_NS);
}

/* The connection stays in the queue, and the loop would be told of it again and again. */
static void pause_listener(struct listener *listener) {
  loop_unwatch(listener->node->loop, &listener->watch);
  loop_timer(listener->node->loop, &listener->timer, clock_now() + PAUSE_NS);
}

static void on_connection(struct watch *watch, uint32_t events) {
  struct listener *listener = list_entry(watch, struct listener, watch);
  struct haul_node *node = listener->node;
  (void)events;
  int fd = sock_accept(listener->fd);
  if (fd < 0) {
    if (errno != EAGAIN && errno != EINTR && errno != ECONNABORTED)
      pause_listener(listener);
    return;
  }
  struct handshake *handshake =
      node->handshake_count < HANDSHAKES ? alloc_zero(1, sizeof *handshake) : NULL;
  if (!handshake) {
    sock_close(fd);
    return;
  }
  handshake->node = node;
  handshake->fd = fd;
  handshake->local = listener->address.local;
  handshake->loopback = listener->address.loopback;
  handshake->companion = listener->companion;
  timer_init(&handshake->timer, on_timeout);
  list_append(&node->handshakes, &handshake->link);
  node->handshake_count++;
  if (loop_watch(node->loop, &handshake->watch, fd, EPOLLIN, on_bytes) != 0) {
    end_handshake(handshake);
    return;
  }
  loop_timer(node->loop, &handshake->timer, clock_now() + HANDSHAKE_NS);
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
  list_each(item, &node->handshakes) close(list_entry(item, struct handshake, link)->fd);
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
  if (!address.loopback && !node->config.insecure)
    return error_set(HAUL_EINSECURE, 0, text,
                     "nothing is encrypted yet, so only loopback and Unix sockets are listened "
                     "on|set `insecure` (haul serve --insecure) on a network that you trust");
  loop_lock(node->loop);
  code = node_is_closed(node) ? error_set(HAUL_ECLOSED, 0, text, "|")
                              : listen_on(node, &address, false);
  if (code == 0 && !address.local)
    listen_companion(node);
  loop_unlock(node->loop);
  return code;
}

HAUL_API int haul_node_address(haul_node *node, size_t index, char *text, size_t size) {
  int code = node_enter("haul_node_address", node);
  if (code)
    return code;
  if (!text)
    return error_set(HAUL_EINVAL, 0, NULL, "no place for the address|");
  char address[160];
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
    address_format(&found->address, address, sizeof address);
  loop_unlock(node->loop);
  if (!found)
    return error_set(HAUL_ERANGE, 0, NULL, "the node has fewer listeners|");
  size_t length = strlen(address);
  if (length >= size)
    return error_set(HAUL_EINVAL, 0, address, "%zu bytes are too few for it|160 always do", size);
  memcpy(text, address, length + 1);
  return 0;
}
