/* SPDX-License-Identifier: MIT */
#include "storage/service/dial.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "core/list.h"
#include "core/thread.h"
#include "storage/error.h"
#include <haul/storage.h>

#define RETRY_NS INT64_C(1000000000)

enum state { DOWN, CONNECTING, UP };

struct call {
  struct list link; /* dial->calls, while it is under way */
  uint64_t number, generation;
  uint16_t operation;
  bool over, lost;
  struct haul_message answer;
  pthread_cond_t ended;
  bool abandoned; /* by who asked: it is freed where it ends */
  void (*late)(void *user);
  void *user;
};

struct dial {
  haul_node *node;
  char *address, *export;
  int64_t timeout_ns;
  pthread_t receiver;
  atomic_bool stops;
  pthread_mutex_t lock;   /* guards what follows */
  pthread_cond_t changed; /* state, under_way */
  enum state state;
  int why;          /* what the last attempt to connect said */
  int64_t retry_at; /* DOWN: not before */
  haul_peer *peer;  /* not while DOWN */
  uint64_t generation, last_number;
  unsigned depth, under_way;
  bool writable;
  struct list calls;
  struct protocol_forget *forgets; /* of this generation */
  size_t forget_count, forget_room;
};

static int64_t clock_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static void open_condition(pthread_cond_t *condition) {
  pthread_condattr_t monotonic;
  pthread_condattr_init(&monotonic);
  pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
  pthread_cond_init(condition, &monotonic);
  pthread_condattr_destroy(&monotonic);
}

/* The lock. False: `until` has passed. */
static bool wait_until(pthread_cond_t *condition, pthread_mutex_t *lock, int64_t until) {
  const struct timespec at = {until / 1000000000, until % 1000000000};
  return pthread_cond_timedwait(condition, lock, &at) != ETIMEDOUT;
}

haul_node *dial_node(const struct dial *dial) {
  return dial->node;
}

int64_t dial_timeout(const struct dial *dial) {
  return dial->timeout_ns;
}

bool dial_is_writable(struct dial *dial) {
  pthread_mutex_lock(&dial->lock);
  bool writable = dial->writable;
  pthread_mutex_unlock(&dial->lock);
  return writable;
}

/* ---- Calls ---- */

static void free_call(struct call *call) {
  haul_message_release(&call->answer);
  pthread_cond_destroy(&call->ended);
  free(call);
}

/* The lock. */
static struct call *add_call(struct dial *dial, uint16_t operation) {
  struct call *call = calloc(1, sizeof *call);
  if (!call)
    return NULL;
  call->number = ++dial->last_number % PROTOCOL_NUMBERS;
  call->generation = dial->generation;
  call->operation = operation;
  open_condition(&call->ended);
  list_append(&dial->calls, &call->link);
  dial->under_way++;
  return call;
}

/* The lock. Returns it where nobody waits for it any more: its `late` is to be called, without the
 * lock. */
static struct call *end_call(struct dial *dial, struct call *call) {
  list_remove(&call->link);
  dial->under_way--;
  call->over = true;
  pthread_cond_signal(&call->ended);
  pthread_cond_broadcast(&dial->changed);
  return call->abandoned ? call : NULL;
}

/* What is owed for a call that nobody waits for any more. */
static void bury(struct call *call) {
  if (call->late)
    call->late(call->user);
  free_call(call);
}

static void send_unheard(struct dial *dial, uint64_t generation, struct protocol_request *request);

/* ---- What comes from the server ---- */

/* The lock. */
static struct call *find_call(struct dial *dial, uint64_t tag) {
  list_each(item, &dial->calls) {
    struct call *call = list_entry(item, struct call, link);
    if ((PROTOCOL_TAG | call->number) == tag)
      return call;
  }
  return NULL;
}

/* What it gave goes back, since nobody will. */
static void give_back(struct dial *dial, const struct call *call) {
  struct protocol_request request = {.operation = PROTOCOL_RELEASE};
  struct protocol_fields answer;
  bool opens = call->operation == PROTOCOL_OPEN || call->operation == PROTOCOL_CREATE ||
               call->operation == PROTOCOL_OPENDIR;
  if (protocol_get_answer(call->answer.bytes, call->answer.length, call->operation, &answer))
    return;
  request.fields.file = answer.file;
  if (answer.node > SOURCE_ROOT)
    dial_forget(dial, call->generation, answer.node, 1);
  if (opens)
    send_unheard(dial, call->generation, &request);
}

static void take_answer(struct dial *dial, struct haul_message *message) {
  struct call *orphan = NULL;
  pthread_mutex_lock(&dial->lock);
  struct call *call = message->peer == dial->peer ? find_call(dial, message->tag) : NULL;
  if (call) {
    call->answer = *message;
    orphan = end_call(dial, call);
  }
  pthread_mutex_unlock(&dial->lock);
  if (!call)
    haul_message_release(message);
  if (orphan) {
    give_back(dial, orphan);
    bury(orphan);
  }
}

/* The lock. Nobody gets an answer any more; those that nobody waits for are put aside. */
static void lose_calls(struct dial *dial, struct list *orphans) {
  while (!list_empty(&dial->calls)) {
    struct call *call = list_entry(dial->calls.next, struct call, link);
    call->lost = true;
    if (end_call(dial, call))
      list_append(orphans, &call->link);
  }
}

static void hang_up(struct dial *dial, const haul_peer *peer) {
  struct list orphans = LIST_INIT(orphans);
  haul_peer *gone = NULL;
  pthread_mutex_lock(&dial->lock);
  if (dial->peer && peer == dial->peer) {
    gone = dial->peer;
    dial->peer = NULL;
    dial->forget_count = 0;
    if (dial->state == UP)
      dial->state = DOWN;
    lose_calls(dial, &orphans);
  }
  pthread_mutex_unlock(&dial->lock);
  haul_peer_close(gone);
  list_each_safe(item, &orphans) bury(list_entry(item, struct call, link));
}

/* A node that is being closed is none to wait on, so this looks for its end now and then. */
static void *receive(void *argument) {
  struct dial *dial = argument;
  struct haul_message message;
  while (!atomic_load(&dial->stops)) {
    if (haul_message_receive(dial->node, &message, haul_deadline_in(PROTOCOL_LOOK_NS)))
      continue;
    if (message.kind == HAUL_MESSAGE) {
      take_answer(dial, &message);
      continue;
    }
    if (message.kind == HAUL_PEER_LEFT)
      hang_up(dial, message.peer);
    haul_message_release(&message);
  }
  return NULL;
}

/* ---- Sending ---- */

/* The lock. Takes as many as a request has room for. */
static void load_forgets(struct dial *dial, struct protocol_request *request) {
  size_t count = dial->forget_count;
  if (count > PROTOCOL_FORGETS_MAX)
    count = PROTOCOL_FORGETS_MAX;
  dial->forget_count -= count;
  request->forget_count = (uint16_t)count;
  if (count)
    memcpy(request->forgets, dial->forgets + dial->forget_count, count * sizeof *dial->forgets);
}

/* The lock. Without memory the server keeps the node until the connection ends. */
static void add_forget(struct dial *dial, uint64_t node, uint64_t count) {
  if (dial->forget_count == dial->forget_room) {
    size_t room = dial->forget_room ? 2 * dial->forget_room : 256;
    struct protocol_forget *more = realloc(dial->forgets, room * sizeof *more);
    if (!more)
      return;
    dial->forgets = more;
    dial->forget_room = room;
  }
  dial->forgets[dial->forget_count++] = (struct protocol_forget){node, count};
}

static int send_request(haul_peer *peer, const struct call *call,
                        const struct protocol_request *request, int64_t until) {
  uint8_t bytes[PROTOCOL_REQUEST_ROOM];
  size_t length = protocol_put_request(request, bytes);
  if (!length)
    return -E2BIG;
  return protocol_errno(haul_message_send(peer, PROTOCOL_TAG | call->number, bytes, length, until));
}

/* The lock, which it gives back meanwhile. The connection's peer is there. */
static int post(struct dial *dial, struct protocol_request *request, int64_t until,
                struct call **out) {
  uint64_t generation = dial->generation;
  struct call *call = add_call(dial, request->operation);
  if (!call)
    return -ENOMEM;
  load_forgets(dial, request);
  haul_peer *peer = haul_peer_retain(dial->peer);
  pthread_mutex_unlock(&dial->lock);
  int status = send_request(peer, call, request, until);
  haul_peer_close(peer);
  pthread_mutex_lock(&dial->lock);
  if (!status) {
    *out = call;
    return 0;
  }
  for (unsigned i = 0; dial->generation == generation && i < request->forget_count; i++)
    add_forget(dial, request->forgets[i].node, request->forgets[i].count);
  if (!call->over)
    end_call(dial, call);
  free_call(call);
  return status;
}

int dial_wait(struct dial *dial, struct call **waited, struct protocol_fields *answer,
              void (*late)(void *user), void *user) {
  int64_t until = clock_ns() + dial->timeout_ns;
  struct call *call = *waited;
  pthread_mutex_lock(&dial->lock);
  while (!call->over && wait_until(&call->ended, &dial->lock, until))
    ;
  bool over = call->over;
  call->abandoned = !over;
  call->late = late;
  call->user = user;
  pthread_mutex_unlock(&dial->lock);
  if (!over) {
    *waited = NULL;
    return -ETIMEDOUT;
  }
  if (call->lost)
    return -ENOTCONN;
  return protocol_get_answer(call->answer.bytes, call->answer.length, call->operation, answer);
}

void dial_end(struct call *call) {
  if (call)
    free_call(call);
}

bool dial_is_up(struct dial *dial, uint64_t generation) {
  pthread_mutex_lock(&dial->lock);
  bool up = dial->state == UP && dial->generation == generation;
  pthread_mutex_unlock(&dial->lock);
  return up;
}

/* ---- Connecting ---- */

/* The lock, which it gives back meanwhile. */
static int greet(struct dial *dial, int64_t until) {
  struct protocol_request request = {.operation = PROTOCOL_GREET,
                                     .fields = {.version = PROTOCOL_VERSION}};
  struct protocol_fields answer;
  struct call *call;
  snprintf(request.fields.name, sizeof request.fields.name, "%s", dial->export);
  int status = post(dial, &request, until, &call);
  if (status)
    return status;
  pthread_mutex_unlock(&dial->lock);
  status = dial_wait(dial, &call, &answer, NULL, NULL);
  dial_end(call);
  pthread_mutex_lock(&dial->lock);
  if (status)
    return status;
  if (answer.version != PROTOCOL_VERSION || answer.depth == 0)
    return -EPROTO;
  dial->depth = answer.depth;
  dial->writable = answer.flags & PROTOCOL_WRITABLE;
  return dial->peer ? 0 : -ENOTCONN;
}

/* The lock, which it gives back meanwhile. */
static int connect_now(struct dial *dial, int64_t until) {
  haul_peer *peer = NULL;
  dial->state = CONNECTING;
  pthread_mutex_unlock(&dial->lock);
  int status = protocol_errno(haul_peer_connect(dial->node, dial->address, until, &peer));
  pthread_mutex_lock(&dial->lock);
  if (!status) {
    dial->peer = peer;
    dial->generation++;
    dial->forget_count = 0;
    status = greet(dial, until);
    peer = dial->peer;
  }
  dial->state = status ? DOWN : UP;
  dial->why = status;
  dial->retry_at = clock_ns() + RETRY_NS;
  if (status && peer) {
    pthread_mutex_unlock(&dial->lock);
    hang_up(dial, peer);
    pthread_mutex_lock(&dial->lock);
  }
  pthread_cond_broadcast(&dial->changed);
  return status;
}

/* The lock, which it gives back meanwhile. What a new connection says is told to who opened the
 * first one; afterwards there is a connection, or there is none. */
static int be_connected(struct dial *dial, int64_t until) {
  while (dial->state == CONNECTING)
    if (!wait_until(&dial->changed, &dial->lock, until))
      return -ETIMEDOUT;
  if (dial->state == UP)
    return 0;
  if (clock_ns() < dial->retry_at)
    return -ENOTCONN;
  int status = connect_now(dial, until);
  return status && status != -ETIMEDOUT ? -ENOTCONN : status;
}

/* The lock, which it gives back meanwhile. */
static int be_ready(struct dial *dial, uint64_t *generation, int64_t until) {
  for (;;) {
    int status = be_connected(dial, until);
    if (status)
      return status;
    if (*generation && *generation != dial->generation)
      return -ESTALE;
    if (dial->under_way < dial->depth)
      break;
    if (!wait_until(&dial->changed, &dial->lock, until))
      return -ETIMEDOUT;
  }
  *generation = dial->generation;
  return 0;
}

int dial_start(struct dial *dial, uint64_t *generation, struct protocol_request *request,
               struct call **call) {
  int64_t until = clock_ns() + dial->timeout_ns;
  pthread_mutex_lock(&dial->lock);
  int status = be_ready(dial, generation, until);
  if (!status)
    status = post(dial, request, until, call);
  pthread_mutex_unlock(&dial->lock);
  return status;
}

int dial_ask(struct dial *dial, uint64_t *generation, struct protocol_request *request,
             struct protocol_fields *answer) {
  struct call *call;
  int status = dial_start(dial, generation, request, &call);
  if (status)
    return status;
  status = dial_wait(dial, &call, answer, NULL, NULL);
  dial_end(call);
  return status;
}

/* Without waiting, and where it is not sent the end of the connection does as well. */
static void send_unheard(struct dial *dial, uint64_t generation, struct protocol_request *request) {
  struct call *call = NULL;
  pthread_mutex_lock(&dial->lock);
  if (dial->state == UP && dial->generation == generation && dial->under_way < dial->depth &&
      post(dial, request, HAUL_NO_WAIT, &call) == 0 && !call->over) {
    call->abandoned = true;
    call = NULL;
  }
  pthread_mutex_unlock(&dial->lock);
  dial_end(call);
}

void dial_forget(struct dial *dial, uint64_t generation, uint64_t node, uint64_t count) {
  struct protocol_request request = {.operation = PROTOCOL_FORGET};
  bool many = false;
  pthread_mutex_lock(&dial->lock);
  if (dial->state == UP && dial->generation == generation) {
    add_forget(dial, node, count);
    many = dial->forget_count >= PROTOCOL_FORGETS_MAX;
  }
  pthread_mutex_unlock(&dial->lock);
  if (many)
    send_unheard(dial, generation, &request);
}

/* ---- Opening and closing ---- */

static int open_node(struct dial *dial, struct haul_storage_error *error) {
  struct haul_node_config config = HAUL_NODE_CONFIG_INIT;
  haul_storage_node_config(&config); /* the receiver drives it */
  int code = haul_node_open(&config, &dial->node);
  if (code)
    return storage_fail(error, -EIO, haul_error_last()->hint, "cannot open a node: %s",
                        haul_error_last()->text);
  code = -thread_start(&dial->receiver, receive, dial);
  if (!code)
    return 0;
  haul_node_close(dial->node);
  dial->node = NULL;
  return storage_fail(error, code, NULL, "cannot start a thread: %s", strerror(-code));
}

static int explain_refusal(const struct dial *dial, int status, struct haul_storage_error *error) {
  const struct haul_error *last = haul_error_last();
  switch (status) {
  case -ENOENT:
    return storage_fail(error, status, "`haul ls NODE/` shows the exports of a node",
                        "%s has no export '%s'", dial->address, dial->export);
  case -ETIMEDOUT:
    return storage_fail(error, status, "was it started with `haul serve --export`?",
                        "%s does not answer for files", dial->address);
  case -EUSERS:
    return storage_fail(error, status, "try again when others have left",
                        "%s serves as many clients as it may", dial->address);
  case -EPROTO:
  case -EPROTONOSUPPORT:
    return storage_fail(error, status, "install the same haul on both",
                        "%s speaks another protocol for files", dial->address);
  default:
    return storage_fail(error, status, last->hint, "cannot connect to %s: %s", dial->address,
                        *last->text ? last->text : strerror(-status));
  }
}

int dial_open(const struct dial_config *config, struct dial **out,
              struct haul_storage_error *error) {
  struct dial *dial = calloc(1, sizeof *dial);
  if (!dial)
    return storage_fail(error, -ENOMEM, NULL, "no memory left");
  pthread_mutex_init(&dial->lock, NULL);
  open_condition(&dial->changed);
  list_init(&dial->calls);
  dial->timeout_ns = config->timeout_ns;
  dial->address = strdup(config->address);
  dial->export = strdup(config->export);
  int status = -ENOMEM;
  if (!dial->address || !dial->export)
    storage_fail(error, status, NULL, "no memory left");
  else
    status = open_node(dial, error);
  if (!status) {
    pthread_mutex_lock(&dial->lock);
    status = connect_now(dial, haul_deadline_in(dial->timeout_ns));
    pthread_mutex_unlock(&dial->lock);
    if (status)
      explain_refusal(dial, status, error);
  }
  if (status)
    dial_close(dial);
  else
    *out = dial;
  return status;
}

void dial_close(struct dial *dial) {
  if (dial->node) {
    atomic_store(&dial->stops, true);
    pthread_join(dial->receiver, NULL);
    haul_node_close(dial->node);
  }
  hang_up(dial, dial->peer);
  pthread_cond_destroy(&dial->changed);
  pthread_mutex_destroy(&dial->lock);
  free(dial->forgets);
  free(dial->address);
  free(dial->export);
  free(dial);
}
