/* SPDX-License-Identifier: MIT
 * Connecting to a node, and opening channels of a connection. */
#include <stdio.h>
#include <string.h>

#include "core/error.h"
#include "node/dial.h"
#include "node/directory.h"
#include "node/share.h"

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

/* A dial for the channel, not started; NULL with the detail. */
static struct dial *new_channel(struct haul_peer *peer, const struct transport *transport,
                                bool local, unsigned index, haul_deadline until,
                                struct hello *hello) {
  struct haul_node *node = peer->node;
  bool companion = local && !peer->base.local;
  if (companion && !peer->companion[0]) {
    error_set(HAUL_ENOPATH, 0, peer->base.name, NULL, "the peer has no Unix socket for channels");
    return NULL;
  }
  struct dial *dial = dial_new(node);
  if (!dial)
    return NULL;
  dial->address = peer->address;
  if (companion)
    address_abstract(peer->companion, &dial->address);
  memcpy(dial->text, peer->address_text, sizeof dial->text);
  dial->peer = peer;
  dial->companion = companion;
  dial->descriptors = transport->descriptors;
  dial->plain = node->tls && !dial->address.local && transport->payload && node->config.plain_data;
  dial->reads = transport->payload;
  dial->index = index;
  dial->until = until;
  init_hello(node, ROLE_CHANNEL, hello);
  memcpy(hello->token, peer->token, 16);
  snprintf(hello->transport, sizeof hello->transport, "%s", transport->name);
  hello->index = (uint16_t)index;
  hello->plain = dial->plain;
  return dial;
}

/* struct link's `open_channel`. */
static int connect_channel(struct link *link, const struct transport *transport, bool local,
                           unsigned index, haul_deadline until, struct stream *stream) {
  struct hello hello;
  struct dialed dialed;
  struct dial *dial = new_channel((struct haul_peer *)link, transport, local, index, until, &hello);
  int code = dial ? dial_wait(dial, &hello, &dialed) : haul_error_last()->code;
  *stream = code ? STREAM_NONE : dialed.stream;
  return code;
}

static void on_channel(struct dial *dial, int code) {
  const struct endpoint *endpoint = dial->user;
  endpoint->transport->dialed(dial->user, dial->index, code, dial->stream);
}

/* struct link's `dial_channel`. */
static int dial_channel(struct link *link, const struct transport *transport, bool local,
                        unsigned index, haul_deadline until) {
  struct hello hello;
  struct dial *dial = new_channel((struct haul_peer *)link, transport, local, index, until, &hello);
  if (!dial)
    return haul_error_last()->code;
  dial->done = on_channel;
  dial->user = link->endpoints[transport->index];
  dial_start(dial, &hello);
  return 0;
}

/* The control connection. */
static int dial_node(struct haul_node *node, const struct address *address, const char *text,
                     haul_deadline until, struct dialed *dialed) {
  struct hello hello;
  if (address->inherited)
    return error_set(HAUL_EADDRESS, 0, text, NULL, "a listening socket is nothing to connect to");
  struct dial *dial = dial_new(node);
  if (!dial)
    return haul_error_last()->code;
  dial->address = *address;
  snprintf(dial->text, sizeof dial->text, "%s", text);
  dial->until = until;
  init_hello(node, ROLE_CONTROL, &hello);
  return dial_wait(dial, &hello, dialed);
}

int peer_connect(struct haul_node *node, const char *text, const uint8_t *id, haul_deadline until,
                 struct haul_peer **out) {
  struct address address;
  struct dialed dialed;
  const struct welcome *welcome = &dialed.welcome;
  struct haul_peer *peer = NULL;
  int code = address_parse(text, until, &address);
  if (code == 0)
    code = dial_node(node, &address, text, until, &dialed);
  if (code)
    return code;
  if (id && memcmp(id, welcome->node_id, 16) != 0) {
    code =
        error_set(HAUL_EPEER, 0, text, "retry once the lease of the directory's entry has expired",
                  "the address belongs to another node now, %s", error_quote(welcome->name));
  } else {
    const struct peer_info info = {welcome->node_id, welcome->boot,    welcome->name,
                                   address.local,    address.loopback, welcome->message_window,
                                   welcome->window,  welcome->version};
    loop_lock(node->loop);
    code = peer_new(node, &dialed.stream, &info, &peer);
    loop_unlock(node->loop);
  }
  if (!peer) {
    stream_close(&dialed.stream);
    return code;
  }
  peer->base.initiator = true;
  peer->base.open_channel = connect_channel;
  peer->base.dial_channel = dial_channel;
  peer->address = address;
  snprintf(peer->base.identity, sizeof peer->base.identity, "%s", dialed.identity);
  snprintf(peer->address_text, sizeof peer->address_text, "%s", text);
  memcpy(peer->token, welcome->token, sizeof peer->token);
  memcpy(peer->share, welcome->share, sizeof peer->share);
  memcpy(peer->shared, welcome->shared, sizeof peer->shared);
  snprintf(peer->companion, sizeof peer->companion, "%s", welcome->companion);
  *out = peer;
  return 0;
}

/* A connection that is not started and not needed. */
static void drop_connection(struct haul_peer *peer) {
  loop_lock(peer->node->loop);
  peer_drop(peer, HAUL_ECLOSED, CLOSED_HERE);
  loop_unlock(peer->node->loop);
  peer_unref(peer);
}

static int connect_once(struct haul_node *node, const char *address, haul_deadline until,
                        struct haul_peer **out) {
  return directory_is_address(address) ? directory_connect(node, address, until, out)
                                       : peer_connect(node, address, NULL, until, out);
}

/* A new connection, not started, in *out, or a link that the other node made, with a use, in
 * *link. A connection is kept until the next one is there. */
static int connect_or_share(struct haul_node *node, const char *address, haul_deadline until,
                            struct haul_peer **out, struct haul_peer **link) {
  int code = connect_once(node, address, until, out);
  if (code || !*out)
    return code;
  *link = share_join(*out, until);
  for (unsigned attempt = 0;
       !*link && attempt < CROSSINGS_MAX && share_crosses(*out, attempt, until); attempt++) {
    struct haul_peer *next = NULL;
    if (connect_once(node, address, share_until(node, until), &next) != 0 || !next)
      return 0;
    drop_connection(*out);
    *out = next;
    *link = share_join(next, until);
  }
  if (*link) {
    drop_connection(*out);
    *out = NULL;
  }
  return 0;
}

/* Takes over the connection, which has a use then. */
static int start_connection(struct haul_peer *peer, haul_deadline until) {
  struct loop *loop = peer->node->loop;
  peer_use(peer);
  loop_lock(loop);
  int code = peer_start(peer);
  if (code)
    peer_drop(peer, code, haul_error_last()->text);
  loop_unlock(loop);
  peer_unref(peer);
  if (code == 0) {
    link_connect(&peer->base, until);
    code = control_send_ready(peer);
    loop_lock(loop);
    peer->ready = true;
    loop_unlock(loop);
  }
  if (code)
    peer_unuse(peer);
  return code;
}

HAUL_API int haul_peer_connect(haul_node *node, const char *address, haul_deadline until,
                               haul_peer **out) {
  struct haul_peer *peer = NULL, *link = NULL;
  int code = node_enter("haul_peer_connect", node && out, "node or peer is NULL");
  if (code == 0)
    code = error_if_passed(until, address);
  if (code)
    return code;
  struct haul_error before;
  error_save(&before);
  node_retain(node); /* another thread may close it */
  code = connect_or_share(node, address, until, &peer, &link);
  if (code == 0 && peer)
    code = start_connection(peer, until);
  if (!link)
    link = peer;
  if (code == 0 && (code = share_settle(link, until)) != 0)
    peer_unuse(link);
  node_put(node);
  if (code)
    return code;
  error_reset(&before); /* paths that could not be opened */
  *out = link;
  return 0;
}
