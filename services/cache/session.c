/* SPDX-License-Identifier: MIT
 * Puts. The store reads the blocks from the client's region into reserved room, and then makes them
 * visible. So no client writes to the store's memory, and one that dies leaves nothing. */
#include <stdlib.h>
#include <string.h>

#include "cache/pull.h"
#include "cache/store.h"
#include "common/cond.h"

#define QUEUE_MAX  16
#define IDLE_NS    (INT64_C(10) * HAUL_SECOND) /* a session without puts ends */
#define RESPOND_NS HAUL_SECOND
#define PULL_MS    60000 /* longest time for the blocks of a request */

/* A put that waits, and how long its client does. */
struct queued {
  struct haul_message message;
  haul_deadline until;
};

struct session {
  struct session *next;
  struct haul_cache_store *store;
  haul_peer *peer;
  pthread_cond_t submitted;
  struct queued queue[QUEUE_MAX]; /* ring */
  unsigned first, count;
  bool ended;           /* takes no more puts */
  struct puller puller; /* the session's thread only */
};

/* A put in progress. */
struct put {
  const struct request *request;
  const struct request_key *keys;
  haul_deadline until;
  struct block blocks[REQUEST_KEYS_MAX];
  struct response_key responses[REQUEST_KEYS_MAX];
};

/* Replicas follow the first store's decision. */
static bool is_if_absent(const struct put *put, uint32_t i) {
  return put->request->flags & HAUL_CACHE_IF_ABSENT && put->keys[i].version == 0;
}

/* Reserves room for the blocks that may be stored. */
static void reserve(struct haul_cache_store *store, struct put *put) {
  struct index *top = &store->top->index;
  int64_t now = cache_now();
  pthread_mutex_lock(&store->lock);
  for (uint32_t i = 0; i < put->request->count; i++) {
    const struct request_key *key = &put->keys[i];
    struct block *block = &put->blocks[i];
    *block = (struct block){.key = key->key,
                            .key_length = key->key_length,
                            .length = key->length,
                            .version = key->version,
                            .priority = key->priority,
                            .spare = put->request->flags & REQUEST_SPARE};
    int code = 0;
    if (is_if_absent(put, i) && index_has(top, key->key, key->key_length))
      code = HAUL_EEXIST;
    if (code == 0)
      code = index_reserve(top, block, now);
    put->responses[i].code = code;
  }
  pthread_mutex_unlock(&store->lock);
}

/* Reads the bytes into their room. */
static void pull(struct session *session, struct put *put) {
  struct haul_cache_store *store = session->store;
  struct pull pulls[REQUEST_KEYS_MAX];
  uint32_t count = 0;
  for (uint32_t i = 0; i < put->request->count; i++)
    if (put->responses[i].code == 0)
      pulls[count++] = (struct pull){&put->blocks[i], put->keys[i].offset};
  if (count == 0)
    return;
  int code =
      pull_blocks(&session->puller, store->top, put->request->source, pulls, count, put->until);
  if (code == 0)
    return;
  pthread_mutex_lock(&store->lock);
  for (uint32_t i = 0; i < put->request->count; i++)
    if (put->responses[i].code == 0) {
      index_cancel(&store->top->index, &put->blocks[i]);
      put->responses[i].code = code;
    }
  pthread_mutex_unlock(&store->lock);
}

/* Another store has the version of a replica that is not stored here, so the older block must not
 * be found. The first store of a key has failed the whole put, and keeps it. Holds the lock. */
static void drop_older(struct haul_cache_store *store, const struct request_key *key) {
  if (key->version != 0)
    index_drop_older(&store->top->index, key->key, key->key_length, key->version);
}

/* Of a request that is not executed. Holds the lock. */
static void drop_all_older(struct haul_cache_store *store, const struct haul_message *message) {
  const struct request *request = message->bytes;
  for (uint32_t i = 0; i < request->count; i++)
    drop_older(store, (const struct request_key *)(request + 1) + i);
}

static void commit(struct haul_cache_store *store, struct put *put) {
  struct index *top = &store->top->index;
  int64_t now = cache_now();
  pthread_mutex_lock(&store->lock);
  for (uint32_t i = 0; i < put->request->count; i++)
    if (put->responses[i].code == 0) {
      put->responses[i].code = index_commit(top, &put->blocks[i], is_if_absent(put, i), now);
      put->responses[i].version = put->blocks[i].version;
    }
  for (uint32_t i = 0; i < put->request->count; i++)
    if (put->responses[i].code != 0 && put->responses[i].code != HAUL_EINVAL)
      drop_older(store, &put->keys[i]);
  pthread_mutex_unlock(&store->lock);
}

/* Drops an expired request: its client is free to change the memory. */
static void execute(struct session *session, const struct queued *queued) {
  const struct request *request = queued->message.bytes;
  struct put put = {.request = request,
                    .keys = (const struct request_key *)(request + 1),
                    .until = queued->until};
  if (haul_deadline_in(0) >= put.until) {
    pthread_mutex_lock(&session->store->lock);
    drop_all_older(session->store, &queued->message);
    pthread_mutex_unlock(&session->store->lock);
    return;
  }
  memset(put.responses, 0, sizeof put.responses);
  reserve(session->store, &put);
  pull(session, &put);
  commit(session->store, &put);
  request_respond(&queued->message, put.responses, haul_deadline_in(RESPOND_NS));
}

/* Takes the next put; false: none has come for IDLE_NS, or the store is closing. Holds the lock. */
static bool take(struct session *session, struct queued *queued) {
  struct haul_cache_store *store = session->store;
  int64_t until = haul_deadline_in(IDLE_NS);
  struct timespec limit = {until / HAUL_SECOND, until % HAUL_SECOND};
  while (session->count == 0 && !store->closing)
    if (pthread_cond_timedwait(&session->submitted, &store->lock, &limit))
      break;
  if (session->count == 0 || store->closing)
    return false;
  *queued = session->queue[session->first];
  session->first = (session->first + 1) % QUEUE_MAX;
  session->count--;
  return true;
}

static void unlink_session(struct session *session) {
  struct session **at = &session->store->sessions;
  while (*at != session)
    at = &(*at)->next;
  *at = session->next;
}

/* Releases all but its place in the list and what its puller has. */
static void release(struct session *session) {
  for (unsigned i = 0; i < session->count; i++)
    haul_message_release(&session->queue[(session->first + i) % QUEUE_MAX].message);
  haul_peer_close(session->peer);
  pthread_cond_destroy(&session->submitted);
  free(session);
}

static void *run(void *argument) {
  struct session *session = argument;
  struct haul_cache_store *store = session->store;
  struct queued queued;
  pthread_mutex_lock(&store->lock);
  while (take(session, &queued)) {
    pthread_mutex_unlock(&store->lock);
    execute(session, &queued);
    haul_message_release(&queued.message);
    pthread_mutex_lock(&store->lock);
  }
  session->ended = true;
  pthread_mutex_unlock(&store->lock);
  puller_release(&session->puller); /* to unpin memory may wait for all that runs on a GPU */
  pthread_mutex_lock(&store->lock);
  unlink_session(session);
  release(session);
  pthread_cond_signal(&store->session_ended);
  pthread_mutex_unlock(&store->lock);
  return NULL;
}

/* Holds the lock. */
static struct session *find(struct haul_cache_store *store, const haul_peer *peer) {
  struct session *session = store->sessions;
  while (session && (session->ended || session->peer != peer))
    session = session->next;
  return session;
}

/* Holds the lock. NULL: no memory or threads. */
static struct session *begin(struct haul_cache_store *store, haul_peer *peer) {
  struct session *session = calloc(1, sizeof *session);
  pthread_attr_t detached;
  pthread_t thread;
  if (!session)
    return NULL;
  monotonic_cond(&session->submitted);
  session->store = store;
  session->peer = haul_peer_retain(peer);
  session->puller = (struct puller){.node = store->node, .peer = session->peer};
  pthread_attr_init(&detached);
  pthread_attr_setdetachstate(&detached, PTHREAD_CREATE_DETACHED);
  int error = pthread_create(&thread, &detached, run, session);
  pthread_attr_destroy(&detached);
  if (error) {
    release(session);
    return NULL;
  }
  session->next = store->sessions;
  store->sessions = session;
  return session;
}

static void refuse(struct haul_message *message) {
  struct response_key responses[REQUEST_KEYS_MAX] = {{0}};
  for (int i = 0; i < REQUEST_KEYS_MAX; i++)
    responses[i].code = HAUL_ELIMIT;
  request_respond(message, responses, HAUL_NO_WAIT);
  haul_message_release(message);
}

static haul_deadline deadline_of(const struct haul_message *message) {
  const struct request *request = message->bytes;
  uint32_t wait = request->milliseconds < PULL_MS ? request->milliseconds : PULL_MS;
  return haul_deadline_in(wait * HAUL_MILLISECOND);
}

void session_submit(struct haul_cache_store *store, struct haul_message *message) {
  pthread_mutex_lock(&store->lock);
  struct session *session = find(store, message->peer);
  if (!session)
    session = begin(store, message->peer);
  bool taken = session && session->count < QUEUE_MAX;
  if (taken) {
    session->queue[(session->first + session->count++) % QUEUE_MAX] =
        (struct queued){*message, deadline_of(message)};
    pthread_cond_signal(&session->submitted);
  } else {
    drop_all_older(store, message);
  }
  pthread_mutex_unlock(&store->lock);
  if (!taken)
    refuse(message);
}

void sessions_end(struct haul_cache_store *store) {
  pthread_mutex_lock(&store->lock);
  for (struct session *session = store->sessions; session; session = session->next)
    pthread_cond_signal(&session->submitted);
  while (store->sessions)
    pthread_cond_wait(&store->session_ended, &store->lock);
  pthread_mutex_unlock(&store->lock);
}
