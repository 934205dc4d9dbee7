/* SPDX-License-Identifier: MIT
 * The control channel: the two ends exchange their queue pairs, then what their NICs may reach.
 * Only the node's loop reads and writes it. */
#include "fabric/rdma/channel.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

#include "core/alloc.h"
#include "core/error.h"
#include "core/sys.h"
#include "fabric/rdma/endpoint.h"

#define RECORDS_A_TURN 64 /* of one peer, in a turn of the loop */

struct attach_request {
  struct channel_request base; /* in endpoint->attach_requests */
  struct rdma_binding *binding;
};

/* Without memory for a longer queue, or behind a peer that does not read, the channel fails. */
#define UNSENT_MOST ((size_t)256 << 10)

/* The bytes that the socket took. One that has ended takes all: reading finds its end. */
static size_t send_bytes(const struct stream *stream, uint8_t *bytes, size_t length) {
  struct iovec span = {bytes, length};
  struct msghdr message = {.msg_iov = &span, .msg_iovlen = 1};
  ssize_t sent;
  do
    sent = stream_send(stream, &message, 0);
  while (sent < 0 && errno == EINTR);
  if (sent >= 0)
    return (size_t)sent;
  return errno == EAGAIN || errno == ENOBUFS || errno == ENOMEM ? 0 : length;
}

static void flush_unsent(struct rdma_endpoint *endpoint) {
  struct rdma_unsent *unsent = &endpoint->unsent;
  size_t sent = 1;
  if (stream_owes(&endpoint->channel))
    stream_flush(&endpoint->channel);
  while (unsent->sent < unsent->length && sent > 0) {
    sent =
        send_bytes(&endpoint->channel, unsent->bytes + unsent->sent, unsent->length - unsent->sent);
    unsent->sent += sent;
  }
  if (unsent->sent == unsent->length)
    unsent->sent = unsent->length = 0;
  bool owes = unsent->length > 0 || stream_owes(&endpoint->channel);
  loop_change(endpoint->base.link->fabric->loop, &endpoint->watch,
              EPOLLIN | (owes ? EPOLLOUT : 0u));
}

static int keep_unsent(struct rdma_unsent *unsent, const uint8_t *bytes, size_t length) {
  if (length == 0)
    return 0;
  unsent->length -= unsent->sent;
  if (unsent->sent > 0)
    memmove(unsent->bytes, unsent->bytes + unsent->sent, unsent->length);
  unsent->sent = 0;
  size_t needed = unsent->length + length;
  if (needed > UNSENT_MOST)
    return HAUL_EPROTO;
  if (needed > unsent->room) {
    size_t room = unsent->room * 2 + (size_t)8 * RDMA_RECORD;
    uint8_t *longer = alloc_resize(unsent->bytes, room);
    if (!longer)
      return HAUL_ENOMEM;
    unsent->bytes = longer;
    unsent->room = room;
  }
  memcpy(unsent->bytes + unsent->length, bytes, length);
  unsent->length = needed;
  return 0;
}

static void drop_unsent(struct rdma_unsent *unsent) {
  alloc_free(unsent->bytes);
  *unsent = (struct rdma_unsent){.bytes = NULL};
}

/* A socket may take a part of a record, or none where the kernel is short of memory. */
void rdma_send_record(struct rdma_endpoint *endpoint, const struct rdma_record *record) {
  uint8_t bytes[RDMA_RECORD];
  struct link *link = endpoint->base.link;
  if (endpoint->channel.fd < 0 || endpoint->unsent.lost)
    return;
  if (record->type >= RDMA_CHECKSUM) {
    rdma_rail_send(endpoint->rails[record->rails], record);
    return;
  }
  rdma_pack(record, bytes);
  size_t sent =
      endpoint->unsent.length > 0 ? 0 : send_bytes(&endpoint->channel, bytes, sizeof bytes);
  int code = keep_unsent(&endpoint->unsent, bytes + sent, sizeof bytes - sent);
  endpoint->unsent.lost = code != 0;
  if (code == HAUL_EPROTO)
    link->fail(link, code, "the rdma channel is full: the peer does not read it");
  else if (code)
    link->fail(link, HAUL_EPEER, "no memory for a record of the rdma channel");
  flush_unsent(endpoint);
}

static struct rdma_record refusal(const char *reason) {
  struct rdma_record hello = {.type = RDMA_HELLO};
  snprintf(hello.reason, sizeof hello.reason, "%.127s", reason);
  return hello;
}

void rdma_reject(struct rdma_endpoint *endpoint, struct stream stream) {
  struct rdma_record hello = refusal(endpoint_reason(&endpoint->base));
  uint8_t bytes[RDMA_RECORD];
  rdma_pack(&hello, bytes);
  send_bytes(&stream, bytes, sizeof bytes); /* else the peer learns only that the channel ended */
  stream_close(&stream);
}

static void open_when_ready(struct rdma_endpoint *endpoint) {
  if (endpoint->ready_sent && endpoint->ready_received && !endpoint_is_closed(&endpoint->base))
    rdma_connected(endpoint);
}

void rdma_send_hello(struct rdma_endpoint *endpoint, uint16_t paired) {
  struct rdma_record hello = {.type = RDMA_HELLO, .restores = true, .paired = paired};
  for (unsigned i = 0; i < endpoint->rail_count; i += RDMA_ENDS) {
    unsigned left = endpoint->rail_count - i, count = left < RDMA_ENDS ? left : RDMA_ENDS;
    hello.rails = (uint8_t)count;
    hello.more = (uint8_t)(left - count);
    for (unsigned j = 0; j < count; j++)
      hello.ends[j] = endpoint->rails[i + j]->end;
    rdma_send_record(endpoint, &hello);
  }
}

void rdma_send_refusal(struct rdma_endpoint *endpoint, const char *reason) {
  struct rdma_record hello = refusal(reason);
  rdma_send_record(endpoint, &hello);
}

static int accept_rails(struct rdma_endpoint *endpoint, const struct rdma_greeting *greeting) {
  uint16_t paired = 0;
  int code = rdma_rails_accept(endpoint, greeting, &paired);
  if (code == 0)
    rdma_send_hello(endpoint, paired);
  else
    rdma_send_refusal(endpoint, haul_error_last()->text);
  return code;
}

static int connect_rails(struct rdma_endpoint *endpoint, const struct rdma_greeting *greeting,
                         uint16_t paired) {
  if (endpoint->restore.possible) /* bindings have a key for each rail, so their number stays */
    return greeting->count == endpoint->rail_count ? rdma_rails_connect(endpoint, greeting)
                                                   : HAUL_EPROTO;
  return endpoint->base.link->initiator ? rdma_rails_settle(endpoint, greeting, paired)
                                        : accept_rails(endpoint, greeting);
}

/* With the ends of all its records; `hello` is the last of these. */
static int on_whole_hello(struct rdma_endpoint *endpoint, const struct rdma_record *hello) {
  bool again = endpoint->restore.quiet && !endpoint->base.link->initiator && hello->rails > 0;
  if (again && !rdma_restore_answer(endpoint))
    return 0;
  if (endpoint->hello_received && !again)
    return HAUL_EPROTO;
  endpoint->hello_received = true;
  endpoint->restore.peer_does = hello->restores;
  if (hello->rails == 0)
    return error_set(HAUL_ENOPATH, 0, NULL, NULL, "the peer says %s", error_quote(hello->reason));
  if (endpoint->broken) /* meanwhile: there is nothing to connect */
    return 0;
  int code = connect_rails(endpoint, endpoint->greeting, hello->paired);
  if (code && code != HAUL_EPROTO && endpoint->restore.possible) {
    rdma_break(endpoint, haul_error_last()->text); /* the next attempt follows */
    return 0;
  }
  if (code)
    return code;
  endpoint->ready_sent = true;
  rdma_send_record(endpoint, &(struct rdma_record){.type = RDMA_READY});
  open_when_ready(endpoint);
  return 0;
}

/* Collects the ends of the records. */
static int on_hello(struct rdma_endpoint *endpoint, const struct rdma_record *hello) {
  struct rdma_greeting *greeting = endpoint->greeting;
  if (!greeting) {
    greeting = endpoint->greeting = alloc_zero(1, sizeof *greeting);
    if (!greeting)
      return error_memory("hello of the peer's NICs");
    greeting->left = hello->rails + hello->more;
  }
  if (greeting->left != hello->rails + hello->more)
    return HAUL_EPROTO;
  memcpy(&greeting->ends[greeting->count], hello->ends, hello->rails * sizeof hello->ends[0]);
  greeting->count += hello->rails;
  greeting->left = hello->more;
  if (greeting->left > 0)
    return 0;
  int code = on_whole_hello(endpoint, hello);
  alloc_free(greeting);
  endpoint->greeting = NULL;
  return code;
}

static int on_ready(struct rdma_endpoint *endpoint) {
  if (!endpoint->hello_received || endpoint->ready_received)
    return HAUL_EPROTO;
  endpoint->ready_received = true;
  open_when_ready(endpoint);
  return 0;
}

struct rdma_binding *rdma_make_binding(const struct rdma_endpoint *endpoint, uint64_t handle,
                                       uint64_t length) {
  struct rdma_binding *binding =
      alloc_zero(1, sizeof *binding + endpoint->rail_count * sizeof binding->keys[0]);
  if (!binding)
    return NULL;
  binding->handle = handle;
  binding->length = length;
  list_init(&binding->link);
  return binding;
}

/* `ns` from now, unless the next one is due earlier. */
static void again_in(struct rdma_endpoint *endpoint, int64_t ns) {
  if (!timer_runs(&endpoint->attach_timer))
    loop_timer_start(endpoint->base.link->fabric->loop, &endpoint->attach_timer,
                     clock_after(clock_now(), ns));
}

static int fill_binding(struct rdma_endpoint *endpoint, struct rdma_binding *binding,
                        const struct rdma_record *response) {
  if (response->status)
    return error_set(HAUL_ENOPATH, 0, NULL, NULL, "the peer says %s",
                     error_quote(response->reason));
  unsigned rails = ((1u << endpoint->rail_count) - 1) & ~(unsigned)response->missing;
  if (response->length != binding->length || response->rails != endpoint->rail_count ||
      response->handle != binding->handle || rails == 0 ||
      response->atomic_rail >= endpoint->rail_count)
    return HAUL_EPROTO;
  binding->rails = (uint16_t)rails;
  binding->atomic_rail = response->atomic_rail;
  binding->address = response->address;
  binding->staged = response->flags & RDMA_STAGED;
  binding->fenced = response->flags & RDMA_FENCED_WRITES;
  binding->atomic = response->flags & RDMA_ATOMIC;
  binding->number = response->number;
  if (*response->reason)
    snprintf(binding->reason, sizeof binding->reason, "the peer says %.113s",
             error_quote(response->reason));
  memcpy(binding->keys, response->keys, response->rails * sizeof binding->keys[0]);
  if (binding->staged && response->slots == 0)
    return HAUL_EPROTO;
  combiner_lock(&endpoint->combiner);
  if (binding->staged)
    endpoint->slot_count = response->slots < RDMA_SLOTS ? response->slots : RDMA_SLOTS;
  list_append(&endpoint->bindings, &binding->link);
  combiner_unlock(&endpoint->combiner);
  binding->retries = binding->staged && response->flags & RDMA_RETRIES;
  return 0;
}

/* The first one with this handle (0: any) that the owner may be able to register later. It moves
 * behind the others. */
static struct rdma_binding *find_short(struct rdma_endpoint *endpoint, uint64_t handle) {
  list_each(item, &endpoint->bindings) {
    struct rdma_binding *binding = list_entry(item, struct rdma_binding, link);
    if (!binding->retries || (handle && binding->handle != handle))
      continue;
    list_remove(item);
    list_append(&endpoint->bindings, item);
    return binding;
  }
  return NULL;
}

/* The binding to fill: of the request, or a new one beside that of a region which was `staged`, as
 * works under way use the keys of the staging area. NULL: the use is not needed. */
static struct rdma_binding *find_unfilled(const struct rdma_endpoint *endpoint,
                                          const struct channel_request *request,
                                          const struct rdma_binding *staged,
                                          const struct rdma_record *response) {
  if (request)
    return ((const struct attach_request *)request)->binding;
  return staged && response->status == 0 && !(response->flags & RDMA_STAGED)
             ? rdma_make_binding(endpoint, staged->handle, staged->length)
             : NULL;
}

static int on_attached(struct rdma_endpoint *endpoint, const struct rdma_record *response) {
  struct channel_request *request =
      channel_request_find(&endpoint->attach_requests, response->request);
  struct rdma_binding *staged = request ? NULL : find_short(endpoint, response->handle);
  struct rdma_binding *binding = find_unfilled(endpoint, request, staged, response);
  int code = binding ? fill_binding(endpoint, binding, response) : 0;
  if (code && !request)
    alloc_free(binding);
  if (code == HAUL_EPROTO)
    return code;
  if (!binding && response->status == 0) /* also where the request timed out */
    rdma_send_record(endpoint,
                     &(struct rdma_record){.type = RDMA_DETACH, .handle = response->handle});
  if (staged) {
    staged->direct = binding;
    staged->retries = !binding && response->flags & RDMA_RETRIES;
    atomic_store_explicit(&staged->renewed, binding != NULL, memory_order_release);
  }
  if (staged || (binding && binding->retries))
    again_in(endpoint, staged && binding ? 0 : RDMA_RETRY_NS); /* 0: for the next region */
  if (request)
    channel_request_end(request, code);
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
  atomic_store(&endpoint->bindings_changed, true);
  rdma_release_bindings(endpoint);
  return 0;
}

void rdma_release_bindings(struct rdma_endpoint *endpoint) {
  if (!atomic_exchange(&endpoint->bindings_changed, false))
    return;
  combiner_lock(&endpoint->combiner);
  list_each_safe(item, &endpoint->bindings) {
    struct rdma_binding *binding = list_entry(item, struct rdma_binding, link);
    bool released = atomic_load(&binding->released);
    if (!binding->end_sent && binding->jobs == 0 && (binding->revoked || released)) {
      uint16_t type = binding->revoked ? RDMA_REVOKE_ACK : RDMA_DETACH;
      rdma_send_record(endpoint, &(struct rdma_record){.type = type, .handle = binding->handle});
      binding->end_sent = true;
    }
    if (released && binding->direct) /* which is behind it in the list */
      atomic_store(&binding->direct->released, true);
    if (released) {
      list_remove(&binding->link);
      alloc_free(binding);
    }
  }
  combiner_unlock(&endpoint->combiner);
}

static uint32_t send_attach(struct rdma_endpoint *endpoint, uint64_t handle) {
  uint32_t request = rdma_next_request(endpoint);
  rdma_send_record(
      endpoint, &(struct rdma_record){.type = RDMA_ATTACH, .request = request, .handle = handle});
  return request;
}

/* One region at a time, in turns: while the shortage lasts one ATTACH goes out each RDMA_RETRY_NS,
 * whatever the number of regions. */
void rdma_attach_again(struct timer *timer) {
  struct rdma_endpoint *endpoint = list_entry(timer, struct rdma_endpoint, attach_timer);
  struct rdma_binding *next = find_short(endpoint, 0);
  if (next)
    send_attach(endpoint, next->handle);
}

int rdma_attach(struct rdma_endpoint *endpoint, haul_deadline until, struct rdma_binding *binding) {
  struct loop *loop = endpoint->base.link->fabric->loop;
  struct attach_request request = {.base.endpoint = &endpoint->base, .binding = binding};
  loop_lock(loop);
  if (endpoint->channel.fd < 0) {
    loop_unlock(loop);
    return error_set(HAUL_EPATH, 0, NULL, NULL, "%s", endpoint_reason(&endpoint->base));
  }
  request.base.id = send_attach(endpoint, binding->handle);
  list_append(&endpoint->attach_requests, &request.base.link);
  loop_unlock(loop);
  return channel_request_wait(&request.base, until);
}

/* Whether the record came over a channel or rail that is allowed to carry it. Sets the rail of a
 * request, which is where its response goes. */
static bool check_origin(struct rdma_record *record, const struct rdma_rail *rail) {
  if (!rail || record->type < RDMA_CHECKSUM)
    return !rail && record->type < RDMA_CHECKSUM;
  if (record->type >= RDMA_RESPONSE)
    return record->rails == rail->number;
  record->rails = (uint8_t)rail->number;
  return true;
}

int rdma_on_record(struct rdma_endpoint *endpoint, const uint8_t bytes[RDMA_RECORD],
                   const struct rdma_rail *rail) {
  struct rdma_record record;
  int code = rdma_parse(bytes, &record);
  if (code == 0 && !check_origin(&record, rail))
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
  case RDMA_REVOKE_ACK:
    return rdma_on_detach(endpoint, record.handle);
  case RDMA_REVOKED:
    return on_revoked(endpoint, record.handle);
  case RDMA_CHECKSUM:
  case RDMA_COPY_IN:
  case RDMA_COPY_OUT:
  case RDMA_FENCE:
    return rdma_on_request(endpoint, &record);
  case RDMA_RESPONSE:
    rdma_on_response(endpoint, &record);
    return 0;
  case RDMA_FENCED:
    return rdma_on_fenced(endpoint, &record);
  case RDMA_BROKEN:
    rdma_break(endpoint, "the peer's rails broke");
    rdma_send_record(endpoint, &(struct rdma_record){.type = RDMA_BROKEN_ACK});
    break;
  default: /* RDMA_BROKEN_ACK */
    break;
  }
  rdma_end_stranded(endpoint, HAUL_EPATH); /* the peer receives none of it any more */
  if (record.type != RDMA_BROKEN_ACK)
    return 0;
  rdma_restore_later(endpoint);
  /* The peer waits for a HELLO, and this side never opened: the channel's end tells the peer. */
  const struct rdma_restore *restore = &endpoint->restore;
  return endpoint->base.link->initiator && restore->peer_does && !restore->possible ? HAUL_EPATH
                                                                                    : 0;
}

/* A failure of this side closes this path alone; a malformed record ends the connection to the
 * peer. Only a BROKEN_ACK on the channel shows that the peer's NIC has seen the last write. Without
 * it, a write that is repeated over another path could be overwritten by its first attempt. So the
 * peer is disconnected while writes are under way. */
void rdma_channel_fail(struct rdma_endpoint *endpoint, int code) {
  struct link *link = endpoint->base.link;
  if (code == HAUL_EPROTO)
    link->fail(link, HAUL_EPROTO, "malformed record on the rdma channel or a rail");
  else if (rdma_has_writes(endpoint))
    link->fail(link, HAUL_EPEER, "the rdma channel to it ended while writes were under way");
  else if (code != HAUL_EPATH)
    endpoint_close(&endpoint->base, "%s", haul_error_last()->text);
  rdma_channel_stop(endpoint, HAUL_EPATH);
}

/* One read; false when no more is available now or the channel ended. */
static bool read_some(struct rdma_endpoint *endpoint, size_t most) {
  size_t left = RDMA_RECORD - endpoint->partial_length;
  struct iovec span = {endpoint->partial + endpoint->partial_length, left < most ? left : most};
  struct msghdr message = {.msg_iov = &span, .msg_iovlen = 1};
  ssize_t got = stream_receive(&endpoint->channel, &message);
  if (got < 0 && (errno == EAGAIN || errno == EINTR))
    return false;
  int code = got > 0 ? 0 : HAUL_EPATH;
  if (code == 0) {
    endpoint->partial_length += (size_t)got;
    atomic_store_explicit(&endpoint->base.link->heard, clock_now(), memory_order_relaxed);
    if (endpoint->partial_length < RDMA_RECORD)
      return true;
    code = rdma_on_record(endpoint, endpoint->partial, NULL);
    endpoint->partial_length = 0;
  }
  if (code == 0)
    return true;
  rdma_channel_fail(endpoint, code);
  return false;
}

/* Bounded, as the loop has other peers. Bytes that TLS has already decrypted are read all the same:
 * no event would announce them. */
static void on_channel(struct watch *watch, uint32_t events) {
  struct rdma_endpoint *endpoint = list_entry(watch, struct rdma_endpoint, watch);
  if (events & EPOLLOUT)
    flush_unsent(endpoint);
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
  if (code) {
    endpoint_close(&endpoint->base, "%s", haul_error_last()->text);
    rdma_channel_stop(endpoint, HAUL_EPATH);
    return code;
  }
  if (endpoint->base.link->initiator)
    rdma_send_hello(endpoint, 0);
  return 0;
}

void rdma_channel_stop(struct rdma_endpoint *endpoint, int code) {
  struct loop *loop = endpoint->base.link->fabric->loop;
  if (endpoint->channel.fd < 0)
    return;
  if (atomic_load(&endpoint->base.open) || !endpoint_is_closed(&endpoint->base))
    endpoint_close(&endpoint->base, "the rdma channel to the peer ended");
  rdma_break(endpoint, "the peer left");
  rdma_end_stranded(endpoint, code);
  loop_timer_stop(&endpoint->restore.timer);
  loop_timer_stop(&endpoint->attach_timer);
  loop_unwatch(loop, &endpoint->watch);
  stream_close(&endpoint->channel);
  drop_unsent(&endpoint->unsent);
  channel_requests_fail(&endpoint->attach_requests, code);
  rdma_close_attachments(endpoint);
  loop_notify(loop);
}
