/* SPDX-License-Identifier: MIT */
#include "node/dial.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/un.h>
#include <unistd.h>

#include "core/alloc.h"
#include "core/error.h"
#include "core/sys.h"

#define WAITS    1         /* a step goes on with the next event */
#define RETRY_NS 1000000LL /* until the next attempt at a Unix listener whose queue is full */
/* Most TLS handshakes with one address at a time; others wait. A listener evicts slow ones where 32
 * are under way (accept.c). */
#define TLS_MAX 16

static void on_event(struct watch *watch, uint32_t events);

static bool is_for(const struct dial *dial, const struct address *address) {
  return dial->address.length == address->length &&
         memcmp(&dial->address.storage, &address->storage, address->length) == 0;
}

static bool uses_tls(const struct dial *dial) {
  return dial->node->tls && !dial->address.local;
}

static bool may_begin(struct dial *dial) {
  unsigned begun = 0;
  list_each(item, &dial->node->dials) {
    const struct dial *one = list_entry(item, struct dial, link);
    begun += one->begun && is_for(one, &dial->address);
  }
  dial->begun = dial->begun || !uses_tls(dial) || begun < TLS_MAX;
  dial->queued = !dial->begun;
  return dial->begun;
}

static void wake_next(const struct dial *ended) {
  list_each(item, &ended->node->dials) {
    struct dial *dial = list_entry(item, struct dial, link);
    if (dial->queued && is_for(dial, &ended->address)) {
      dial->queued = false;
      loop_timer_start(dial->node->loop, &dial->timer, clock_now());
      return;
    }
  }
}

static void dial_end(struct dial *dial, int code) {
  loop_unwatch(dial->node->loop, &dial->watch);
  loop_timer_stop(&dial->timer);
  list_remove(&dial->link);
  wake_next(dial);
  if (code)
    stream_close(&dial->stream);
  dial->done(dial, code);
  alloc_free(dial);
}

static int timed_out(const struct dial *dial) {
  if (dial->state == DIAL_CONNECT)
    return sock_connect_error(ETIMEDOUT, dial->text);
  if (dial->state == DIAL_TLS)
    return error_set(HAUL_ETIMEDOUT, ETIMEDOUT, dial->text,
                     "check that the listener is a haul node with a key, and that it runs",
                     "no response to the TLS handshake");
  return error_set(HAUL_ETIMEDOUT, ETIMEDOUT, dial->text,
                   "check that a haul node runs there and is not stopped",
                   "the peer does not answer");
}

static int disconnected(const struct dial *dial, int system) {
  /* The listener checks this side's certificate last, after TLS is established here. */
  if (dial->stream.tls && !tls_is_keyed(dial->stream.tls))
    return error_set(HAUL_EAUTH, system, dial->text,
                     "check this node's certificate against the peer's authority: openssl verify "
                     "-CAfile AUTHORITY CERTIFICATE",
                     "the peer closed the connection after it saw this node's certificate");
  return error_set(HAUL_EPEER, system, dial->text,
                   system ? strerror(system) : "the peer closed it; its log says why",
                   "the connection ended");
}

/* Steps: 0 once they are done, WAITS, or a code with the detail */

static int await(struct dial *dial, uint32_t events) {
  struct loop *loop = dial->node->loop;
  if (dial->watch.slot) {
    loop_change(loop, &dial->watch, events);
    return WAITS;
  }
  int code = loop_watch(loop, &dial->watch, dial->stream.fd, events, on_event);
  return code ? code : WAITS;
}

static void start_deadline(struct dial *dial) {
  if (dial->until != HAUL_FOREVER)
    loop_timer_start(dial->node->loop, &dial->timer, dial->until);
}

static int retry_later(struct dial *dial) {
  int64_t at = clock_now() + RETRY_NS;
  loop_timer_start(dial->node->loop, &dial->timer, at < dial->until ? at : dial->until);
  return WAITS;
}

/* Any user may take an abstract name; the permissions of folders protect paths. */
static int check_user(const struct dial *dial) {
  const struct sockaddr_un *name = (const struct sockaddr_un *)&dial->address.storage;
  uid_t user;
  if (!dial->address.local || name->sun_path[0] || dial->companion || dial->node->config.any_user ||
      sock_is_own_user(dial->stream.fd, &user))
    return 0;
  return error_set(HAUL_EAUTH, 0, dial->text,
                   "connect to unix:///PATH in a folder of that user, or set any_user",
                   "user %u listens there, and any user may take this name", (unsigned)user);
}

static int connect_step(struct dial *dial) {
  if (!may_begin(dial))
    return WAITS;
  int system = dial->connecting ? sock_connect_end(dial->stream.fd)
                                : sock_connect_start(dial->stream.fd, &dial->address);
  dial->connecting = system == EINPROGRESS;
  if (dial->connecting)
    return await(dial, EPOLLOUT);
  if (system == EAGAIN && dial->address.local)
    return retry_later(dial);
  int code = system ? sock_connect_error(system, dial->text) : 0;
  if (code == HAUL_ECONNECT && dial->companion) /* an abstract socket is seen in its namespace */
    return error_set(code, system, dial->text,
                     "have the peer listen on unix:///PATH in a directory that both sides see",
                     "the peer is in another network namespace");
  return code ? code : check_user(dial);
}

/* An attacker who can redirect connections could lead a channel to another node that the same
 * authority certifies. So the identity is compared before the token is sent. */
static int check_identity(const struct dial *dial) {
  const struct link *link = dial->peer ? &dial->peer->base : NULL;
  if (!link || strcmp(dial->identity, link->identity) == 0)
    return 0;
  return error_set(
      HAUL_EAUTH, 0, link->name, "check whether the address leads to more than one node",
      "the channel leads to %s, the control connection to %s", dial->identity, link->identity);
}

/* Authenticates both sides if this node has a key or a certificate. Over a Unix socket the kernel
 * tells the peer's user. */
static int tls_step(struct dial *dial) {
  struct stream *stream = &dial->stream;
  if (!uses_tls(dial))
    return 0;
  int code = stream->tls ? 0 : tls_open(dial->node->tls, stream->fd, false, &stream->tls);
  int wanted = code ? code : tls_handshake(stream->tls, dial->text);
  if (wanted == TLS_READ || wanted == TLS_WRITE)
    return await(dial, wanted == TLS_READ ? EPOLLIN : EPOLLOUT);
  if (wanted == TLS_BARE) { /* a node without a key refuses by a welcome outside of TLS */
    tls_free(stream->tls);
    stream->tls = NULL;
    dial->bare = true;
    return 0;
  }
  if (wanted)
    return wanted;
  /* Before the kernel may take over from TLS. */
  snprintf(dial->identity, sizeof dial->identity, "%s", tls_identity(stream->tls));
  return check_identity(dial);
}

static int hello_step(struct dial *dial) {
  while (dial->sent < dial->length && !dial->bare) {
    struct iovec span = {dial->bytes + dial->sent, dial->length - dial->sent};
    struct msghdr message = {.msg_iov = &span, .msg_iovlen = 1};
    ssize_t put = stream_send(&dial->stream, &message, 0);
    if (put < 0 && errno == EAGAIN)
      return await(dial, EPOLLOUT);
    if (put < 0 && errno != EINTR)
      return disconnected(dial, errno);
    dial->sent += put > 0 ? (size_t)put : 0;
  }
  dial->length = 0; /* of the welcome */
  return 0;
}

static int refused(const struct dial *dial) {
  const struct welcome *welcome = &dial->welcome;
  if (welcome->code == HAUL_EVERSION || welcome->lowest > PROTOCOL_HIGHEST ||
      welcome->highest < PROTOCOL_LOWEST)
    return error_set(HAUL_EVERSION, 0, dial->text, NULL,
                     "the peer speaks protocol versions %u to %u, this side %d to %d",
                     welcome->lowest, welcome->highest, PROTOCOL_LOWEST, PROTOCOL_HIGHEST);
  return error_set(welcome->code, 0, dial->text,
                   welcome->code == HAUL_EAUTH && !dial->address.local /* there users count */
                       ? "compare HAUL_KEY of both sides, and see the log of the peer's node"
                       : "see the log of the peer's node",
                   "the peer refused the connection: %s", error_quote(welcome->reason));
}

static int on_welcome(struct dial *dial) {
  int code = welcome_parse(dial->bytes, dial->length, &dial->welcome);
  if (code == HAUL_EPROTO)
    return error_set(code, 0, dial->text, "check the address and the port",
                     "the response to the handshake is malformed");
  if (code || dial->welcome.version == 0)
    return refused(dial);
  if (dial->bare)
    return error_set(HAUL_EPROTO, 0, dial->text, NULL, "the peer answers TLS without TLS");
  return stream_settle(&dial->stream, dial->plain, dial->welcome.updates, dial->reads);
}

static int welcome_step(struct dial *dial) {
  for (;;) {
    size_t wanted = HANDSHAKE_HEAD;
    if (dial->length >= HANDSHAKE_HEAD) {
      int body = welcome_body(dial->bytes);
      if (body < 0)
        return error_set(HAUL_EPROTO, 0, dial->text, "check the address and the port",
                         "the listener is not a haul node");
      wanted += (size_t)body;
      if (dial->length == wanted)
        return on_welcome(dial);
    }
    struct iovec span = {dial->bytes + dial->length, wanted - dial->length};
    struct msghdr message = {.msg_iov = &span, .msg_iovlen = 1};
    ssize_t got = stream_take(&dial->stream, &message);
    if (got == -EAGAIN)
      return await(dial, EPOLLIN);
    if (got <= 0 && got != -EINTR)
      return disconnected(dial, (int)-got);
    dial->length += got > 0 ? (size_t)got : 0;
  }
}

static void dial_run(struct dial *dial) {
  static int (*const steps[DIAL_DONE])(struct dial * dial) = {connect_step, tls_step, hello_step,
                                                              welcome_step};
  int code = 0;
  for (; code == 0 && dial->state != DIAL_DONE; dial->state += code == 0)
    code = steps[dial->state](dial);
  if (code != WAITS)
    dial_end(dial, code);
}

static void on_event(struct watch *watch, uint32_t events) {
  (void)events;
  dial_run(list_entry(watch, struct dial, watch));
}

static void on_timer(struct timer *timer) {
  struct dial *dial = list_entry(timer, struct dial, timer);
  if (clock_now() >= dial->until) {
    dial_end(dial, timed_out(dial));
    return;
  }
  start_deadline(dial);
  dial_run(dial);
}

struct dial *dial_new(struct haul_node *node) {
  struct dial *dial = alloc_zero(1, sizeof *dial);
  if (!dial) {
    error_memory("connection");
    return NULL;
  }
  dial->node = node;
  dial->stream = STREAM_NONE;
  list_init(&dial->link);
  timer_init(&dial->timer, on_timer);
  return dial;
}

void dial_start(struct dial *dial, const struct hello *hello) {
  dial->length = hello_pack(hello, dial->bytes);
  list_append(&dial->node->dials, &dial->link);
  int code = dial->peer ? peer_check(dial->peer) : 0;
  if (code == 0)
    code = sock_open(&dial->address, dial->text, &dial->stream.fd);
  if (code) {
    dial_end(dial, code);
    return;
  }
  if (dial->descriptors)
    sock_take_descriptors(dial->stream.fd);
  start_deadline(dial);
  dial_run(dial);
}

void dials_end(struct haul_peer *peer) {
  list_each_safe(item, &peer->node->dials) {
    struct dial *dial = list_entry(item, struct dial, link);
    if (dial->peer == peer)
      dial_end(dial, peer_check(peer));
  }
}

void dials_stop(struct haul_node *node) {
  while (!list_empty(&node->dials)) {
    struct dial *dial = list_entry(node->dials.next, struct dial, link);
    dial_end(dial, error_code(HAUL_ECLOSED, dial->text));
  }
}

void dials_forked(const struct haul_node *node) {
  list_each(item, &node->dials) {
    const struct dial *dial = list_entry(item, struct dial, link);
    if (dial->stream.fd >= 0)
      close(dial->stream.fd);
  }
}

static void on_dialed(struct dial *dial, int code) {
  struct dialed *dialed = dial->user;
  dialed->stream = dial->stream;
  dialed->welcome = dial->welcome;
  memcpy(dialed->identity, dial->identity, sizeof dialed->identity);
  dialed->code = code;
  if (code)
    error_save(&dialed->error);
  dialed->ended = true;
  loop_notify(dial->node->loop);
}

static bool is_dialed(void *user) {
  const struct dialed *dialed = user;
  loop_lock(dialed->node->loop);
  bool ended = dialed->ended;
  loop_unlock(dialed->node->loop);
  return ended;
}

/* The deadline is checked here, too, as the loop may be busy; and it ends with the node. */
int dial_wait(struct dial *dial, const struct hello *hello, struct dialed *dialed) {
  struct haul_node *node = dial->node;
  haul_deadline until = dial->until;
  *dialed = (struct dialed){.node = node, .stream = STREAM_NONE};
  dial->done = on_dialed;
  dial->user = dialed;
  loop_lock(node->loop);
  dial_start(dial, hello);
  loop_unlock(node->loop);
  loop_wait(node->loop, is_dialed, NULL, dialed, until);
  loop_lock(node->loop);
  if (!dialed->ended)
    dial_end(dial, node_is_closed(node) ? error_code(HAUL_ECLOSED, dial->text) : timed_out(dial));
  loop_unlock(node->loop);
  return dialed->code ? error_restore(&dialed->error) : 0;
}
