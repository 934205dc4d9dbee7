/* SPDX-License-Identifier: MIT
 * Connecting to a node, and opening channels of a connection: address, TLS, hello, welcome. */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>

#include "core/error.h"
#include "core/sys.h"
#include "node/directory.h"
#include "node/handshake.h"

/* ---- Waiting for the other side ---- */

struct input {
  struct watch watch;
  struct haul_node *node;
  _Atomic bool arrived;
};

static void on_input(struct watch *watch, uint32_t events) {
  struct input *input = list_entry(watch, struct input, watch);
  (void)events;
  loop_unwatch(input->node->loop, watch);
  atomic_store(&input->arrived, true);
  loop_notify(input->node->loop);
}

static bool has_arrived(void *user) {
  struct input *input = user;
  return atomic_load(&input->arrived);
}

/* Runs the loop of a node that its caller drives until the socket is readable, because the node may
 * be connecting to itself. */
static int drive_until_readable(struct haul_node *node, int fd, haul_deadline until) {
  struct input input = {.node = node};
  if (node->has_thread)
    return 0;
  loop_lock(node->loop);
  int code = loop_watch(node->loop, &input.watch, fd, EPOLLIN, on_input);
  loop_unlock(node->loop);
  if (code)
    return code;
  loop_wait(node->loop, has_arrived, NULL, &input, until);
  loop_lock(node->loop);
  loop_unwatch(node->loop, &input.watch);
  loop_unlock(node->loop);
  return 0;
}

/* ---- The handshake ---- */

static int connect_refused(const struct welcome *welcome, const char *address) {
  if (welcome->code == HAUL_EVERSION || welcome->lowest > PROTOCOL_HIGHEST ||
      welcome->highest < PROTOCOL_LOWEST)
    return error_set(HAUL_EVERSION, 0, address, "install the same version of haul on both sides",
                     "the peer speaks protocol versions %u to %u, this side %d to %d",
                     welcome->lowest, welcome->highest, PROTOCOL_LOWEST, PROTOCOL_HIGHEST);
  return error_set(welcome->code, 0, address, "see the log of the peer's node",
                   "the peer refused the connection: %s", error_quote(welcome->reason));
}

static int receive_welcome(const struct stream *stream, const char *address, haul_deadline until,
                           struct welcome *welcome) {
  uint8_t bytes[HANDSHAKE_MAX];
  int code = stream_receive_all(stream, address, bytes, HANDSHAKE_HEAD, until);
  if (code)
    return code;
  int body = welcome_body(bytes);
  if (body < 0)
    return error_set(HAUL_EPROTO, 0, address, "check the address and the port",
                     "the listener is not a haul node");
  code = stream_receive_all(stream, address, bytes + HANDSHAKE_HEAD, (size_t)body, until);
  if (code)
    return code;
  code = welcome_parse(bytes, HANDSHAKE_HEAD + (size_t)body, welcome);
  if (code == HAUL_EPROTO)
    return error_set(code, 0, address, "check the address and the port",
                     "the response to the handshake is malformed");
  return code || welcome->version == 0 ? connect_refused(welcome, address) : 0;
}

/* A node without a key refuses a ClientHello by a welcome outside of TLS. */
static int receive_bare_refusal(int fd, const char *address, haul_deadline until) {
  struct stream bare = {.fd = fd};
  struct welcome welcome;
  int code = receive_welcome(&bare, address, until, &welcome);
  return code ? code : error_set(HAUL_EPROTO, 0, address, NULL, "the peer answers TLS without TLS");
}

static int handshake_tls(struct haul_node *node, struct stream *stream, const char *address,
                         haul_deadline until) {
  int wanted;
  while ((wanted = tls_handshake(stream->tls, address)) > 0) {
    if (wanted == TLS_BARE)
      return receive_bare_refusal(stream->fd, address, until);
    bool reads = wanted == TLS_READ;
    int code = reads ? drive_until_readable(node, stream->fd, until) : 0;
    int system = code ? 0 : sock_wait(stream->fd, reads ? POLLIN : POLLOUT, until);
    if (system)
      code = error_set(system == ETIMEDOUT ? HAUL_ETIMEDOUT : HAUL_EPEER, system, address,
                       "check that the listener is a haul node with a key, and that it runs",
                       "no response to the TLS handshake");
    if (code)
      return code;
  }
  return wanted;
}

/* Connects, and authenticates both sides by TLS if this node has a key or a certificate. Over a
 * Unix socket the kernel tells the peer's user. */
static int open_stream(struct haul_node *node, const struct address *address, const char *text,
                       haul_deadline until, struct stream *stream) {
  *stream = STREAM_NONE;
  int code = sock_connect(address, text, until, &stream->fd);
  if (code || address->local || !node->tls)
    return code;
  code = tls_open(node->tls, stream->fd, false, &stream->tls);
  if (code == 0)
    code = handshake_tls(node, stream, text, until);
  if (code)
    stream_close(stream);
  return code;
}

static void init_hello(const struct haul_node *node, enum role role, struct hello *hello) {
  *hello = (struct hello){.lowest = PROTOCOL_LOWEST,
                          .highest = PROTOCOL_HIGHEST,
                          .role = (uint8_t)role,
                          .message_window = (uint32_t)node->config.message_window,
                          .window = node_window(node),
                          .updates = node->tls && tls_takes_updates(node->tls)};
  memcpy(hello->node_id, node->fabric.node_id, 16);
  memcpy(hello->boot, node->fabric.boot, 16);
  snprintf(hello->name, sizeof hello->name, "%s", node->name);
}

/* Sends the hello and receives the welcome; closes the stream on failure. `reads`: the channel
 * carries payload (stream_settle). */
static int exchange_hello(struct haul_node *node, struct stream *stream, const struct hello *hello,
                          const char *address, haul_deadline until, bool reads,
                          struct welcome *welcome) {
  uint8_t bytes[HANDSHAKE_MAX];
  size_t length = hello_pack(hello, bytes);
  *welcome = (struct welcome){.version = 0};
  int code = stream_send_all(stream, address, bytes, length, until);
  if (code == 0)
    code = drive_until_readable(node, stream->fd, until);
  if (code == 0)
    code = receive_welcome(stream, address, until, welcome);
  /* The listener checks this side's certificate last, after TLS is established here. */
  if (code == HAUL_EPEER && stream->tls && !tls_is_keyed(stream->tls))
    code = error_set(HAUL_EAUTH, haul_error_last()->system, address,
                     "check this node's certificate against the peer's authority: openssl verify "
                     "-CAfile AUTHORITY CERTIFICATE",
                     "the peer closed the connection after it saw this node's certificate");
  if (code == 0)
    code = stream_settle(stream, hello->plain, welcome->updates, reads);
  if (code)
    stream_close(stream);
  return code;
}

/* ---- Channels ---- */

/* An attacker who can redirect connections could lead this one to another node that the same
 * authority certifies. So the identity is compared before the token is sent. */
static int check_identity(const struct link *link, const struct stream *stream) {
  const char *identity = stream->tls ? tls_identity(stream->tls) : link->identity;
  return strcmp(identity, link->identity) == 0
             ? 0
             : error_set(HAUL_EAUTH, 0, link->name,
                         "check whether the address leads to more than one node",
                         "the channel leads to %s, the control connection to %s", identity,
                         link->identity);
}

/* struct link's `open_channel`. */
static int connect_channel(struct link *link, const struct transport *transport, bool local,
                           unsigned index, haul_deadline until, struct stream *stream) {
  struct haul_peer *peer = (struct haul_peer *)link;
  struct haul_node *node = peer->node;
  struct address address = peer->address;
  struct hello hello;
  struct welcome welcome;
  bool companion = local && !link->local;
  if (companion && !peer->companion[0])
    return error_set(HAUL_ENOPATH, 0, link->name, NULL, "the peer has no Unix socket for channels");
  if (companion)
    address_abstract(peer->companion, &address);
  int code = open_stream(node, &address, peer->address_text, until, stream);
  if (code == HAUL_ECONNECT && companion) /* an abstract socket is seen in its namespace alone */
    return error_set(code, haul_error_last()->system, peer->address_text,
                     "have the peer listen on unix:///PATH in a directory that both sides see",
                     "the peer is in another network namespace");
  if (code)
    return code;
  code = check_identity(link, stream);
  if (code) {
    stream_close(stream);
    return code;
  }
  if (transport->descriptors)
    sock_take_descriptors(stream->fd);
  init_hello(node, ROLE_CHANNEL, &hello);
  memcpy(hello.token, peer->token, 16);
  snprintf(hello.transport, sizeof hello.transport, "%s", transport->name);
  hello.index = (uint16_t)index;
  hello.plain = stream->tls && transport->payload && node->config.plain_data;
  return exchange_hello(node, stream, &hello, peer->address_text, until, transport->payload,
                        &welcome);
}

/* ---- Connections ---- */

int peer_connect(struct haul_node *node, const char *text, const uint8_t *id, haul_deadline until,
                 struct haul_peer **out) {
  struct address address;
  struct hello hello;
  struct welcome welcome;
  struct stream stream;
  struct haul_peer *peer = NULL;
  char identity[64] = "";
  int code = address_parse(text, until, &address);
  if (code == 0)
    code = open_stream(node, &address, text, until, &stream);
  if (code)
    return code;
  if (stream.tls) /* greet may pass TLS on to the kernel */
    snprintf(identity, sizeof identity, "%s", tls_identity(stream.tls));
  init_hello(node, ROLE_CONTROL, &hello);
  code = exchange_hello(node, &stream, &hello, text, until, false, &welcome);
  if (code)
    return code;
  if (id && memcmp(id, welcome.node_id, 16) != 0) {
    code =
        error_set(HAUL_EPEER, 0, text, "retry once the lease of the directory's entry has expired",
                  "the address belongs to another node now, %s", error_quote(welcome.name));
  } else {
    const struct peer_info info = {welcome.boot,     welcome.name,           address.local,
                                   address.loopback, welcome.message_window, welcome.window};
    loop_lock(node->loop);
    code = peer_new(node, &stream, &info, &peer);
    loop_unlock(node->loop);
  }
  if (!peer) {
    stream_close(&stream);
    return code;
  }
  peer->base.initiator = true;
  peer->base.open_channel = connect_channel;
  peer->address = address;
  snprintf(peer->base.identity, sizeof peer->base.identity, "%s", identity);
  snprintf(peer->address_text, sizeof peer->address_text, "%s", text);
  memcpy(peer->token, welcome.token, sizeof peer->token);
  snprintf(peer->companion, sizeof peer->companion, "%s", welcome.companion);
  *out = peer;
  return 0;
}

HAUL_API int haul_peer_connect(haul_node *node, const char *address, haul_deadline until,
                               haul_peer **out) {
  struct haul_peer *peer = NULL;
  int code = node_enter("haul_peer_connect", node && out, "node or peer is NULL");
  if (code)
    return code;
  node_retain(node); /* another thread may close it */
  code = directory_is_address(address) ? directory_connect(node, address, until, &peer)
                                       : peer_connect(node, address, NULL, until, &peer);
  node_put(node);
  if (code || !peer)
    return code;
  peer_use(peer);
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
    peer_unuse(peer);
    return code;
  }
  *out = peer;
  return 0;
}
