/* SPDX-License-Identifier: MIT */
#include "storage/service/rpc.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

#include "core/list.h"
#include "core/thread.h"
#include "storage/util.h"

#define RETRY_NS   INT64_C(1000000000)
#define TIMEOUT_NS INT64_C(30000000000) /* the default */
#define ENDS_MAX   256

/* A handle that the server may free: of a file, or a region's number. */
struct end {
  uint16_t operation; /* PROTOCOL_RELEASE or PROTOCOL_UNREGION */
  uint64_t handle;
};

enum state { DOWN, CONNECTING, UP };

struct rpc_call {
  struct list link; /* rpc->calls, while it is under way */
  uint64_t number, generation;
  uint16_t operation;
  bool ended, lost; /* lost: with the connection */
  struct haul_message response;
  pthread_cond_t has_ended;
  bool abandoned; /* its caller does not wait any more: the thread that ends it frees it */
  void (*late)(void *user);
  void *user;
};

struct rpc {
  haul_node *node;
  char *address, *export;
  int64_t timeout_ns;
  pthread_t receiver;
  atomic_bool stops;
  pthread_mutex_t lock;   /* guards the fields below */
  pthread_cond_t changed; /* state, under_way */
  enum state state;
  int64_t retry_at; /* the earliest next attempt to connect */
  haul_peer *peer;  /* NULL while DOWN */
  uint64_t generation, last_number;
  unsigned depth, under_way;
  bool writable;
  struct list calls;
  struct protocol_forget *forgets; /* of this generation */
  size_t forget_count, forget_room;
  struct end ends[ENDS_MAX]; /* of this generation; not yet sent */
  size_t end_count;
};

haul_node *rpc_node(const struct rpc *rpc) {
  return rpc->node;
}

int64_t rpc_timeout(const struct rpc *rpc) {
  return rpc->timeout_ns;
}

bool rpc_is_writable(struct rpc *rpc) {
  pthread_mutex_lock(&rpc->lock);
  bool writable = rpc->writable;
  pthread_mutex_unlock(&rpc->lock);
  return writable;
}

void rpc_end(struct rpc_call *call) {
  if (!call)
    return;
  haul_message_release(&call->response);
  pthread_cond_destroy(&call->has_ended);
  free(call);
}

/* With the lock. */
static struct rpc_call *add_call(struct rpc *rpc, uint16_t operation) {
  struct rpc_call *call = calloc(1, sizeof *call);
  if (!call)
    return NULL;
  call->number = ++rpc->last_number % PROTOCOL_NUMBERS;
  call->generation = rpc->generation;
  call->operation = operation;
  storage_cond_init(&call->has_ended);
  list_append(&rpc->calls, &call->link);
  rpc->under_way++;
  return call;
}

/* With the lock. Returns an abandoned call, for discard_call without the lock; else NULL. */
static struct rpc_call *end_call(struct rpc *rpc, struct rpc_call *call) {
  list_remove(&call->link);
  rpc->under_way--;
  call->ended = true;
  pthread_cond_signal(&call->has_ended);
  pthread_cond_broadcast(&rpc->changed);
  return call->abandoned ? call : NULL;
}

/* Ends an abandoned call. Without the lock. */
static void discard_call(struct rpc_call *call) {
  if (call->late)
    call->late(call->user);
  rpc_end(call);
}

/* With the lock. Moves as many forgets to the request as fit. */
static void load_forgets(struct rpc *rpc, struct protocol_request *request) {
  size_t count = rpc->forget_count;
  if (count > PROTOCOL_FORGETS_MAX)
    count = PROTOCOL_FORGETS_MAX;
  rpc->forget_count -= count;
  request->forget_count = (uint16_t)count;
  if (count)
    memcpy(request->forgets, rpc->forgets + rpc->forget_count, count * sizeof *rpc->forgets);
}

/* With the lock. If the list cannot grow, the server keeps the node until the connection ends. */
static void add_forget(struct rpc *rpc, uint64_t node, uint64_t count) {
  if (rpc->forget_count == rpc->forget_room) {
    size_t room = rpc->forget_room ? 2 * rpc->forget_room : 256;
    struct protocol_forget *more = realloc(rpc->forgets, room * sizeof *more);
    if (!more)
      return;
    rpc->forgets = more;
    rpc->forget_room = room;
  }
  rpc->forgets[rpc->forget_count++] = (struct protocol_forget){node, count};
}

static int send_request(haul_peer *peer, const struct rpc_call *call,
                        const struct protocol_request *request, int64_t until) {
  uint8_t bytes[PROTOCOL_REQUEST_ROOM];
  size_t length = protocol_put_request(request, bytes);
  if (!length)
    return -E2BIG;
  return protocol_errno(haul_message_send(peer, PROTOCOL_TAG | call->number, bytes, length, until));
}

/* With the lock, which it releases to send. rpc->peer is not NULL. */
static int post_call(struct rpc *rpc, struct protocol_request *request, int64_t until,
                     struct rpc_call **out) {
  uint64_t generation = rpc->generation;
  struct rpc_call *call = add_call(rpc, request->operation);
  if (!call)
    return -ENOMEM;
  load_forgets(rpc, request);
  haul_peer *peer = haul_peer_retain(rpc->peer);
  pthread_mutex_unlock(&rpc->lock);
  int status = send_request(peer, call, request, until);
  haul_peer_close(peer);
  pthread_mutex_lock(&rpc->lock);
  if (!status) {
    *out = call;
    return 0;
  }
  for (unsigned i = 0; rpc->generation == generation && i < request->forget_count; i++)
    add_forget(rpc, request->forgets[i].node, request->forgets[i].count);
  if (!call->ended)
    end_call(rpc, call);
  rpc_end(call);
  return status;
}

/* With the lock, which it releases to send. Sends a request whose response is ignored; false: it
 * cannot be sent at once. */
static bool post_ignored(struct rpc *rpc, struct protocol_request *request) {
  struct rpc_call *call;
  if (rpc->state != UP || rpc->under_way >= rpc->depth ||
      post_call(rpc, request, HAUL_NO_WAIT, &call))
    return false;
  call->abandoned = !call->ended;
  if (call->ended)
    rpc_end(call);
  return true;
}

/* With the lock. If the list is full, the server keeps the handle until the connection ends. */
static void add_end(struct rpc *rpc, struct end end) {
  if (rpc->end_count < ENDS_MAX)
    rpc->ends[rpc->end_count++] = end;
}

/* With the lock, which it releases to send. Sends as many ends as can be sent at once. */
static void post_ends(struct rpc *rpc) {
  bool sent = true;
  while (sent && rpc->end_count > 0) {
    uint64_t generation = rpc->generation;
    struct end end = rpc->ends[--rpc->end_count];
    struct protocol_request request = {.operation = end.operation};
    if (end.operation == PROTOCOL_UNREGION)
      request.fields.region = (uint32_t)end.handle;
    else
      request.fields.file = end.handle;
    sent = post_ignored(rpc, &request);
    if (!sent && rpc->generation == generation)
      add_end(rpc, end);
  }
}

/* RELEASE or UNREGION of a handle of this connection. */
static void end_handle(struct rpc *rpc, uint64_t generation, uint16_t operation, uint64_t handle) {
  pthread_mutex_lock(&rpc->lock);
  if (rpc->state == UP && rpc->generation == generation) {
    add_end(rpc, (struct end){operation, handle});
    post_ends(rpc);
  }
  pthread_mutex_unlock(&rpc->lock);
}

void rpc_unregion(struct rpc *rpc, uint64_t generation, uint32_t region) {
  end_handle(rpc, generation, PROTOCOL_UNREGION, region);
}

/* With the lock. */
static struct rpc_call *find_call(struct rpc *rpc, uint64_t tag) {
  list_each(item, &rpc->calls) {
    struct rpc_call *call = list_entry(item, struct rpc_call, link);
    if ((PROTOCOL_TAG | call->number) == tag)
      return call;
  }
  return NULL;
}

/* Releases the handles in the response of an abandoned call. */
static void release_handles(struct rpc *rpc, const struct rpc_call *call) {
  struct protocol_fields response;
  bool opens = call->operation == PROTOCOL_OPEN || call->operation == PROTOCOL_CREATE ||
               call->operation == PROTOCOL_OPENDIR;
  if (protocol_get_response(call->response.bytes, call->response.length, call->operation,
                            &response))
    return;
  if (response.node > SOURCE_ROOT)
    rpc_forget(rpc, call->generation, response.node, 1);
  if (opens)
    end_handle(rpc, call->generation, PROTOCOL_RELEASE, response.file);
  if (call->operation == PROTOCOL_REGION)
    rpc_unregion(rpc, call->generation, response.region);
}

static void take_response(struct rpc *rpc, struct haul_message *message) {
  struct rpc_call *orphan = NULL;
  pthread_mutex_lock(&rpc->lock);
  struct rpc_call *call = message->peer == rpc->peer ? find_call(rpc, message->tag) : NULL;
  if (call) {
    call->response = *message;
    orphan = end_call(rpc, call);
    post_ends(rpc);
  }
  pthread_mutex_unlock(&rpc->lock);
  if (!call)
    haul_message_release(message);
  if (orphan) {
    release_handles(rpc, orphan);
    discard_call(orphan);
  }
}

/* With the lock. Fails all calls; *orphans receives those that are abandoned. */
static void lose_calls(struct rpc *rpc, struct list *orphans) {
  while (!list_empty(&rpc->calls)) {
    struct rpc_call *call = list_entry(rpc->calls.next, struct rpc_call, link);
    call->lost = true;
    if (end_call(rpc, call))
      list_append(orphans, &call->link);
  }
}

static void disconnect(struct rpc *rpc, const haul_peer *peer) {
  struct list orphans = LIST_INIT(orphans);
  haul_peer *gone = NULL;
  pthread_mutex_lock(&rpc->lock);
  if (rpc->peer && peer == rpc->peer) {
    gone = rpc->peer;
    rpc->peer = NULL;
    rpc->forget_count = rpc->end_count = 0;
    if (rpc->state == UP)
      rpc->state = DOWN;
    lose_calls(rpc, &orphans);
  }
  pthread_mutex_unlock(&rpc->lock);
  haul_peer_close(gone);
  list_each_safe(item, &orphans) discard_call(list_entry(item, struct rpc_call, link));
}

/* The wait is bounded, as rpc_close must not close the node while a thread waits on it. */
static void *receive_messages(void *argument) {
  struct rpc *rpc = argument;
  struct haul_message message;
  while (!atomic_load(&rpc->stops)) {
    if (haul_message_receive(rpc->node, &message, haul_deadline_in(PROTOCOL_POLL_NS)))
      continue;
    if (message.kind == HAUL_MESSAGE) {
      take_response(rpc, &message);
      continue;
    }
    if (message.kind == HAUL_PEER_LEFT)
      disconnect(rpc, message.peer);
    haul_message_release(&message);
  }
  return NULL;
}

int rpc_wait(struct rpc *rpc, struct rpc_call **waited, struct protocol_fields *response,
             void (*late)(void *user), void *user) {
  int64_t until = haul_deadline_in(rpc->timeout_ns);
  struct rpc_call *call = *waited;
  pthread_mutex_lock(&rpc->lock);
  while (!call->ended && storage_wait(&call->has_ended, &rpc->lock, until))
    ;
  bool ended = call->ended;
  call->abandoned = !ended;
  call->late = late;
  call->user = user;
  pthread_mutex_unlock(&rpc->lock);
  if (!ended) {
    *waited = NULL;
    return -ETIMEDOUT;
  }
  if (call->lost)
    return -ENOTCONN;
  return protocol_get_response(call->response.bytes, call->response.length, call->operation,
                               response);
}

bool rpc_is_up(struct rpc *rpc, uint64_t generation) {
  pthread_mutex_lock(&rpc->lock);
  bool up = rpc->state == UP && rpc->generation == generation;
  pthread_mutex_unlock(&rpc->lock);
  return up;
}

/* With the lock, which it releases to wait. */
static int send_greet(struct rpc *rpc, int64_t until) {
  struct protocol_request request = {.operation = PROTOCOL_GREET,
                                     .fields = {.version = PROTOCOL_VERSION}};
  struct protocol_fields response;
  struct rpc_call *call;
  snprintf(request.fields.name, sizeof request.fields.name, "%s", rpc->export);
  int status = post_call(rpc, &request, until, &call);
  if (status)
    return status;
  pthread_mutex_unlock(&rpc->lock);
  status = rpc_wait(rpc, &call, &response, NULL, NULL);
  rpc_end(call);
  pthread_mutex_lock(&rpc->lock);
  if (status)
    return status;
  if (response.version != PROTOCOL_VERSION || response.depth == 0)
    return -EPROTO;
  rpc->depth = response.depth;
  rpc->writable = response.flags & PROTOCOL_WRITABLE;
  return rpc->peer ? 0 : -ENOTCONN;
}

/* With the lock, which it releases to wait. */
static int connect_now(struct rpc *rpc, int64_t until) {
  haul_peer *peer = NULL;
  rpc->state = CONNECTING;
  pthread_mutex_unlock(&rpc->lock);
  int status = protocol_errno(haul_peer_connect(rpc->node, rpc->address, until, &peer));
  pthread_mutex_lock(&rpc->lock);
  if (!status) {
    rpc->peer = peer;
    rpc->generation++;
    rpc->forget_count = rpc->end_count = 0;
    status = send_greet(rpc, until);
    peer = rpc->peer;
  }
  rpc->state = status ? DOWN : UP;
  rpc->retry_at = haul_deadline_in(RETRY_NS);
  if (status && peer) {
    pthread_mutex_unlock(&rpc->lock);
    disconnect(rpc, peer);
    pthread_mutex_lock(&rpc->lock);
  }
  pthread_cond_broadcast(&rpc->changed);
  return status;
}

/* With the lock, which it releases to connect. The server's own error is reported by rpc_open
 * alone; later failures are -ENOTCONN or -ETIMEDOUT. */
static int ensure_connected(struct rpc *rpc, int64_t until) {
  while (rpc->state == CONNECTING)
    if (!storage_wait(&rpc->changed, &rpc->lock, until))
      return -ETIMEDOUT;
  if (rpc->state == UP)
    return 0;
  if (haul_deadline_in(0) < rpc->retry_at)
    return -ENOTCONN;
  int status = connect_now(rpc, until);
  return status && status != -ETIMEDOUT ? -ENOTCONN : status;
}

/* With the lock, which it releases to wait. */
static int ensure_ready(struct rpc *rpc, uint64_t *generation, int64_t until) {
  for (;;) {
    int status = ensure_connected(rpc, until);
    if (status)
      return status;
    if (*generation && *generation != rpc->generation)
      return -ESTALE;
    if (rpc->under_way < rpc->depth)
      break;
    if (!storage_wait(&rpc->changed, &rpc->lock, until))
      return -ETIMEDOUT;
  }
  *generation = rpc->generation;
  return 0;
}

int rpc_start(struct rpc *rpc, uint64_t *generation, struct protocol_request *request,
              struct rpc_call **call) {
  int64_t until = haul_deadline_in(rpc->timeout_ns);
  pthread_mutex_lock(&rpc->lock);
  post_ends(rpc);
  int status = ensure_ready(rpc, generation, until);
  if (!status)
    status = post_call(rpc, request, until, call);
  pthread_mutex_unlock(&rpc->lock);
  return status;
}

int rpc_call(struct rpc *rpc, uint64_t *generation, struct protocol_request *request,
             struct protocol_fields *response,
             int (*take)(void *user, const struct protocol_fields *response), void *user) {
  struct rpc_call *call;
  int status = rpc_start(rpc, generation, request, &call);
  if (status)
    return status;
  status = rpc_wait(rpc, &call, response, NULL, NULL);
  if (!status && take)
    status = take(user, response);
  rpc_end(call);
  return status;
}

void rpc_forget(struct rpc *rpc, uint64_t generation, uint64_t node, uint64_t count) {
  struct protocol_request request = {.operation = PROTOCOL_FORGET};
  pthread_mutex_lock(&rpc->lock);
  if (rpc->state == UP && rpc->generation == generation) {
    add_forget(rpc, node, count);
    if (rpc->forget_count >= PROTOCOL_FORGETS_MAX)
      post_ignored(rpc, &request);
  }
  pthread_mutex_unlock(&rpc->lock);
}

static int open_client_node(struct rpc *rpc, struct haul_storage_error *error) {
  struct haul_node_config config = HAUL_NODE_CONFIG_INIT;
  haul_storage_node_config(&config); /* the receiver drives it */
  int code = haul_node_open(&config, &rpc->node);
  if (code)
    return storage_fail(error, -EIO, haul_error_last()->hint, "cannot open a node: %s",
                        haul_error_last()->text);
  code = -thread_start(&rpc->receiver, receive_messages, rpc);
  if (!code)
    return 0;
  haul_node_close(rpc->node);
  rpc->node = NULL;
  return storage_fail(error, code, NULL, "cannot start a thread: %s", strerror(-code));
}

static int explain_refusal(const struct rpc *rpc, int status, struct haul_storage_error *error) {
  const struct haul_error *last = haul_error_last();
  switch (status) {
  case -ENOENT:
    return storage_fail(error, status, "`haul ls NODE/` lists the exports of a node",
                        "%s has no export '%s'", rpc->address, rpc->export);
  case -EOPNOTSUPP:
    return storage_fail(error, status, "start it with `haul serve --export NAME=DIR`",
                        "%s exports no files", rpc->address);
  case -ETIMEDOUT:
    return storage_fail(error, status, "start it with `haul serve --export NAME=DIR`",
                        "%s does not respond to file requests", rpc->address);
  case -EUSERS:
    return storage_fail(error, status, "try again later", "%s has reached its limit of clients",
                        rpc->address);
  case -EPROTO:
  case -EPROTONOSUPPORT:
    return storage_fail(error, status, "install the same version of haul on both hosts",
                        "%s uses another version of the file protocol", rpc->address);
  default:
    return storage_fail(error, status, last->hint, "cannot connect to %s: %s", rpc->address,
                        *last->text ? last->text : strerror(-status));
  }
}

int rpc_open(const struct rpc_config *config, struct rpc **out, struct haul_storage_error *error) {
  struct rpc *rpc = calloc(1, sizeof *rpc);
  if (!rpc)
    return storage_fail(error, -ENOMEM, NULL, "no memory left");
  pthread_mutex_init(&rpc->lock, NULL);
  storage_cond_init(&rpc->changed);
  list_init(&rpc->calls);
  rpc->timeout_ns = config->timeout_ns ? config->timeout_ns : TIMEOUT_NS;
  rpc->address = strdup(config->address);
  rpc->export = strdup(config->export);
  int status = rpc->address && rpc->export ? open_client_node(rpc, error)
                                           : storage_fail(error, -ENOMEM, NULL, "no memory left");
  if (!status) {
    pthread_mutex_lock(&rpc->lock);
    status = connect_now(rpc, haul_deadline_in(rpc->timeout_ns));
    pthread_mutex_unlock(&rpc->lock);
    if (status)
      explain_refusal(rpc, status, error);
  }
  if (status)
    rpc_close(rpc);
  else
    *out = rpc;
  return status;
}

void rpc_close(struct rpc *rpc) {
  if (rpc->node) {
    atomic_store(&rpc->stops, true);
    pthread_join(rpc->receiver, NULL);
    haul_node_close(rpc->node);
  }
  disconnect(rpc, rpc->peer);
  pthread_cond_destroy(&rpc->changed);
  pthread_mutex_destroy(&rpc->lock);
  free(rpc->forgets);
  free(rpc->address);
  free(rpc->export);
  free(rpc);
}
