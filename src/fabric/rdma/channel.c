/* SPDX-License-Identifier: MIT
 * The connection on which the two ends agree: first their queue pairs, then what their NICs may
 * reach. Only the node's loop reads and writes it, with the lock. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "core/alloc.h"
#include "core/error.h"
#include "core/sock.h"
#include "core/sys.h"
#include "fabric/rdma/rdma.h"

#define RECORDS_A_TURN 64 /* what a peer gets of the loop at a time */

struct attach_request {
  struct list link; /* endpoint->requests */
  struct rdma_endpoint *endpoint;
  struct rdma_binding *binding;
  const struct remote_key *key;
  uint32_t id;
  bool done;
  int code;
  struct haul_error error; /* why, when code is not 0 */
};

/* Questions, and answers to them: over which rail, or NULL. */
static struct rdma_rail *rail_of(struct rdma_endpoint *endpoint, const struct rdma_record *record) {
  return record->type < RDMA_SUM ? NULL : &endpoint->rails[record->rails];
}

static ssize_t send_record(const struct stream *stream, uint8_t bytes[RDMA_RECORD]) {
  struct iovec span = {bytes, RDMA_RECORD};
  struct msghdr message = {.msg_iov = &span, .msg_iovlen = 1};
  ssize_t put = stream_send(stream, &message, 0);
  if (put < 0 || !stream_owes(stream) || stream_flush(stream) == 0)
    return put;
  return errno == EAGAIN ? 0 : -1; /* TLS took it, and the socket did not */
}

/* On the channel records are small and few; a socket without room for one has a peer that does not
 * read. */
void rdma_say(struct rdma_endpoint *endpoint, const struct rdma_record *record) {
  uint8_t bytes[RDMA_RECORD];
  struct link *link = endpoint->base.link;
  struct rdma_rail *rail = rail_of(endpoint, record);
  if (endpoint->channel.fd < 0)
    return;
  if (rail) {
    mail_send(rail, record);
    return;
  }
  rdma_pack(record, bytes);
  ssize_t put = send_record(&endpoint->channel, bytes);
  if (put != (ssize_t)sizeof bytes && (put >= 0 || (errno != EPIPE && errno != ECONNRESET)))
    link->fail(link, HAUL_EPROTO, "the rdma channel is full: the peer does not read it");
}

/* ---- Set-up ---- */

static int say_hello(struct rdma_endpoint *endpoint) {
  struct rdma_record hello = {.type = RDMA_HELLO, .rails = (uint8_t)endpoint->rail_count};
  for (unsigned i = 0; i < endpoint->rail_count; i++)
    hello.ends[i] = endpoint->rails[i].end;
  rdma_say(endpoint, &hello);
  return 0;
}

/* Nothing else will be said on it. */
void rdma_refuse(struct rdma_endpoint *endpoint, struct stream stream) {
  struct rdma_record hello = {.type = RDMA_HELLO};
  uint8_t bytes[RDMA_RECORD];
  snprintf(hello.reason, sizeof hello.reason, "%.127s", endpoint_reason(&endpoint->base));
  rdma_pack(&hello, bytes);
  ssize_t put = send_record(&stream, bytes);
  (void)put; /* then the peer learns only that the channel ended */
  stream_close(&stream);
}

static void open_when_ready(struct rdma_endpoint *endpoint) {
  if (endpoint->ready_sent && endpoint->ready_heard && !endpoint_is_closed(&endpoint->base)) {
    atomic_store(&endpoint->base.open, true);
    loop_notify(endpoint->base.link->fabric->loop);
  }
}

static int on_hello(struct rdma_endpoint *endpoint, const struct rdma_record *hello) {
  if (endpoint->heard)
    return HAUL_EPROTO;
  endpoint->heard = true;
  if (hello->rails == 0)
    return error_set(HAUL_ENOPATH, 0, NULL, NULL, "the peer says %s", error_quote(hello->reason));
  if (endpoint->broken) /* meanwhile: there is nothing to connect */
    return 0;
  for (unsigned i = hello->rails; i < endpoint->rail_count; i++) {
    loop_unwatch(endpoint->base.link->fabric->loop, &endpoint->rails[i].watch);
    queue_close(&endpoint->rails[i]);
  }
  if (hello->rails < endpoint->rail_count)
    endpoint->rail_count = hello->rails;
  for (unsigned i = 0; i < endpoint->rail_count; i++) {
    int code = queue_connect(&endpoint->rails[i], &hello->ends[i]);
    if (code)
      return code;
  }
  endpoint->ready_sent = true;
  rdma_say(endpoint, &(struct rdma_record){.type = RDMA_READY});
  open_when_ready(endpoint);
  return 0;
}

static int on_ready(struct rdma_endpoint *endpoint) {
  if (!endpoint->heard || endpoint->ready_heard)
    return HAUL_EPROTO;
  endpoint->ready_heard = true;
  open_when_ready(endpoint);
  return 0;
}

/* ---- The asking side ---- */

static int take_answer(struct attach_request *request, const struct rdma_record *answer) {
  struct rdma_endpoint *endpoint = request->endpoint;
  struct rdma_binding *binding = request->binding;
  if (answer->status)
    return error_set(HAUL_ENOPATH, 0, NULL, NULL, "the peer says %s", error_quote(answer->reason));
  if (answer->length != request->key->length || answer->rails != endpoint->rail_count ||
      answer->handle != request->key->handle)
    return HAUL_EPROTO;
  binding->address = answer->address;
  binding->staged = answer->flags & RDMA_STAGED;
  binding->fenced = answer->flags & RDMA_FENCED_WRITES;
  binding->atomic = answer->flags & RDMA_ATOMIC;
  binding->number = answer->number;
  memcpy(binding->keys, answer->keys, sizeof binding->keys);
  if (binding->staged && answer->slots == 0)
    return HAUL_EPROTO;
  combiner_lock(&endpoint->combiner);
  if (binding->staged)
    endpoint->slot_count = answer->slots < RDMA_STAGES ? answer->slots : RDMA_STAGES;
  list_append(&endpoint->bindings, &binding->link);
  combiner_unlock(&endpoint->combiner);
  return 0;
}

static int on_attached(struct rdma_endpoint *endpoint, const struct rdma_record *answer) {
  struct attach_request *request = NULL;
  list_each(item, &endpoint->requests) {
    struct attach_request *candidate = list_entry(item, struct attach_request, link);
    if (candidate->id == answer->request)
      request = candidate;
  }
  if (!request) { /* it was given up at its deadline */
    if (answer->status == 0)
      rdma_say(endpoint, &(struct rdma_record){.type = RDMA_DETACH, .handle = answer->handle});
    return 0;
  }
  int code = take_answer(request, answer);
  if (code == HAUL_EPROTO)
    return code;
  list_remove(&request->link);
  request->code = code;
  if (code)
    error_save(&request->error);
  request->done = true;
  loop_notify(endpoint->base.link->fabric->loop);
  return 0;
}

static int on_revoked(struct rdma_endpoint *endpoint, uint64_t handle) {
  combiner_lock(&endpoint->combiner);
  list_each(item, &endpoint->bindings) {
    struct rdma_binding *binding = list_entry(item, struct rdma_binding, link);
    binding->revoked |= binding->handle == handle;
  }
  combiner_unlock(&endpoint->combiner);
  rdma_end_revoked(endpoint);
  atomic_store(&endpoint->tend, true);
  rdma_tend_bindings(endpoint);
  return 0;
}

/* With the endpoint's lock: what the peer is to be told of the binding now, or 0. */
static unsigned news_of(const struct rdma_binding *binding, bool released) {
  if (binding->quiet || binding->jobs > 0)
    return 0;
  return binding->revoked ? RDMA_QUIET : released ? RDMA_DETACH : 0;
}

void rdma_tend_bindings(struct rdma_endpoint *endpoint) {
  if (!atomic_exchange(&endpoint->tend, false))
    return;
  combiner_lock(&endpoint->combiner);
  list_each_safe(item, &endpoint->bindings) {
    struct rdma_binding *binding = list_entry(item, struct rdma_binding, link);
    bool released = atomic_load(&binding->released);
    unsigned news = news_of(binding, released);
    if (news)
      rdma_say(endpoint, &(struct rdma_record){.type = (uint16_t)news, .handle = binding->handle});
    binding->quiet |= news != 0;
    if (released) {
      list_remove(&binding->link);
      alloc_free(binding);
    }
  }
  combiner_unlock(&endpoint->combiner);
}

static bool is_done(void *user) {
  struct attach_request *request = user;
  struct loop *loop = request->endpoint->base.link->fabric->loop;
  loop_lock(loop);
  bool done = request->done;
  loop_unlock(loop);
  return done;
}

int rdma_attach(struct rdma_endpoint *endpoint, const struct remote_key *key, haul_deadline until,
                struct rdma_binding *binding) {
  struct loop *loop = endpoint->base.link->fabric->loop;
  struct attach_request request = {.endpoint = endpoint, .key = key, .binding = binding};
  loop_lock(loop);
  if (endpoint->channel.fd < 0) {
    loop_unlock(loop);
    return error_set(HAUL_EPATH, 0, NULL, NULL, "%s", endpoint_reason(&endpoint->base));
  }
  request.id = ++endpoint->next_request;
  list_append(&endpoint->requests, &request.link);
  rdma_say(endpoint, &(struct rdma_record){
                         .type = RDMA_ATTACH, .request = request.id, .handle = key->handle});
  loop_unlock(loop);

  loop_wait(loop, is_done, NULL, &request, until);
  loop_lock(loop);
  list_remove(&request.link);
  loop_unlock(loop);
  if (!request.done)
    return error_set(HAUL_ETIMEDOUT, 0, NULL, NULL,
                     "the peer did not answer a request for its memory");
  return request.code ? error_restore(&request.error) : 0;
}

/* ---- Reading ---- */

static int on_broken(struct rdma_endpoint *endpoint) {
  rdma_break(endpoint, "the peer's rails broke");
  rdma_say(endpoint, &(struct rdma_record){.type = RDMA_SILENT});
  rdma_end_stranded(endpoint, HAUL_EPATH); /* nothing of ours is received there any more */
  return 0;
}

/* It came where it belongs. Questions have their rail from here. */
static bool belongs(struct rdma_record *record, const struct rdma_rail *rail) {
  if (!rail || record->type < RDMA_SUM)
    return !rail && record->type < RDMA_SUM;
  uint8_t index = (uint8_t)(rail - rail->endpoint->rails);
  if (record->type >= RDMA_DONE)
    return record->rails == index;
  record->rails = index;
  return true;
}

int rdma_on_record(struct rdma_endpoint *endpoint, const uint8_t bytes[RDMA_RECORD],
                   const struct rdma_rail *rail) {
  struct rdma_record record;
  int code = rdma_parse(bytes, &record);
  if (code == 0 && !belongs(&record, rail))
    code = HAUL_EPROTO;
  if (code)
    return code;
  switch (record.type) {
  case RDMA_HELLO:
    return on_hello(endpoint, &record);
  case RDMA_READY:
    return on_ready(endpoint);
  case RDMA_ATTACH:
    return rdma_on_attach(endpoint, &record);
  case RDMA_ATTACHED:
    return on_attached(endpoint, &record);
  case RDMA_DETACH:
  case RDMA_QUIET:
    return rdma_on_let_go(endpoint, record.handle);
  case RDMA_REVOKED:
    return on_revoked(endpoint, record.handle);
  case RDMA_SUM:
  case RDMA_LAND:
  case RDMA_LIFT:
  case RDMA_FENCE:
    return rdma_on_question(endpoint, &record);
  case RDMA_DONE:
    rdma_on_done(endpoint, &record);
    return 0;
  case RDMA_FENCED:
    return rdma_on_fenced(endpoint, &record);
  case RDMA_BROKEN:
    return on_broken(endpoint);
  default: /* RDMA_SILENT */
    rdma_end_stranded(endpoint, HAUL_EPATH);
    return 0;
  }
}

/* What this side lacks closes this path alone; nonsense is the peer's fault. Without the channel
 * nobody says when the peer's NIC has seen the last of what was on its way, and a write that is
 * sent again elsewhere might be overtaken by itself: then the peer has to go. */
void rdma_channel_fail(struct rdma_endpoint *endpoint, int code) {
  struct link *link = endpoint->base.link;
  if (code == HAUL_EPROTO)
    link->fail(link, HAUL_EPROTO, "nonsense on the rdma channel or a rail");
  else if (rdma_is_writing(endpoint))
    link->fail(link, HAUL_EPEER, "the rdma channel to it ended while writes were under way");
  else if (code != HAUL_EPATH)
    endpoint_close(&endpoint->base, "%s", haul_error_last()->text);
  rdma_channel_stop(endpoint, HAUL_EPATH);
}

/* One read; false when there is nothing more now or the channel ended. */
static bool read_some(struct rdma_endpoint *endpoint, size_t most) {
  size_t left = RDMA_RECORD - endpoint->inbox_length;
  struct iovec span = {endpoint->inbox + endpoint->inbox_length, left < most ? left : most};
  struct msghdr message = {.msg_iov = &span, .msg_iovlen = 1};
  ssize_t got = stream_receive(&endpoint->channel, &message);
  if (got < 0 && (errno == EAGAIN || errno == EINTR))
    return false;
  int code = got > 0 ? 0 : HAUL_EPATH;
  if (code == 0) {
    endpoint->inbox_length += (size_t)got;
    atomic_store_explicit(&endpoint->base.link->heard, clock_now(), memory_order_relaxed);
    if (endpoint->inbox_length < RDMA_RECORD)
      return true;
    code = rdma_on_record(endpoint, endpoint->inbox, NULL);
    endpoint->inbox_length = 0;
  }
  if (code == 0)
    return true;
  rdma_channel_fail(endpoint, code);
  return false;
}

/* The loop has other peers, and what is left is there in its next turn. */
static void on_channel(struct watch *watch, uint32_t events) {
  struct rdma_endpoint *endpoint = list_entry(watch, struct rdma_endpoint, watch);
  (void)events;
  for (int i = 0; endpoint->channel.fd >= 0; i++) {
    size_t most = i < RECORDS_A_TURN ? SIZE_MAX : stream_pending(&endpoint->channel);
    if (most == 0 || !read_some(endpoint, most))
      break;
  }
}

int rdma_channel_start(struct rdma_endpoint *endpoint, struct stream stream) {
  struct loop *loop = endpoint->base.link->fabric->loop;
  endpoint->channel = stream;
  int code = loop_watch(loop, &endpoint->watch, stream.fd, EPOLLIN, on_channel);
  if (code == 0)
    code = say_hello(endpoint);
  if (code) {
    endpoint_close(&endpoint->base, "%s", haul_error_last()->text);
    rdma_channel_stop(endpoint, HAUL_EPATH);
  }
  return code;
}

void rdma_channel_stop(struct rdma_endpoint *endpoint, int code) {
  struct loop *loop = endpoint->base.link->fabric->loop;
  if (endpoint->channel.fd < 0)
    return;
  if (atomic_load(&endpoint->base.open) || !endpoint_is_closed(&endpoint->base))
    endpoint_close(&endpoint->base, "the rdma channel to the peer ended");
  rdma_drain(endpoint, code);
  loop_unwatch(loop, &endpoint->watch);
  stream_close(&endpoint->channel);
  for (struct list *item; (item = list_take(&endpoint->requests));) {
    struct attach_request *request = list_entry(item, struct attach_request, link);
    request->code = error_set(code, 0, NULL, NULL, "%s", endpoint_reason(&endpoint->base));
    error_save(&request->error);
    request->done = true;
  }
  rdma_end_attachments(endpoint);
  loop_notify(loop);
}
