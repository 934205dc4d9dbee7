/* SPDX-License-Identifier: MIT
 * Puts. The store reads the blocks from the client's region into reserved room, and then makes them
 * visible. So no client writes to the store's memory, and one that dies leaves nothing. */
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "cache/store.h"
#include "common/cond.h"

#define QUEUE_MAX  16
#define REMOTES    16                          /* regions of a client that are known at a time */
#define IDLE_NS    (INT64_C(10) * HAUL_SECOND) /* a session without puts ends */
#define RESPOND_NS HAUL_SECOND
#define PULL_MS    60000 /* longest time for the blocks of a request */

struct source {
  uint64_t number; /* 0: none */
  haul_remote *remote;
};

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
  /* The session's thread only. */
  struct source sources[REMOTES];
  unsigned next_source;
};

/* A put in progress. */
struct put {
  const struct request *request;
  const struct request_key *keys;
  haul_deadline until;
  struct block blocks[REQUEST_KEYS_MAX];
  struct response_key responses[REQUEST_KEYS_MAX];
};

static void forget(struct source *source) {
  haul_remote_release(source->remote);
  *source = (struct source){0, NULL};
}

/* The client's region; blocks for the client at first use. */
static int find_source(struct session *session, uint64_t number, haul_deadline until,
                       struct source **found) {
  char name[SOURCE_NAME_MAX];
  for (int i = 0; i < REMOTES; i++)
    if (number != 0 && session->sources[i].number == number) {
      *found = &session->sources[i];
      return 0;
    }
  struct source *source = &session->sources[session->next_source++ % REMOTES];
  forget(source);
  source_name(number, name);
  int code = haul_peer_lookup(session->peer, name, until, &source->remote);
  if (code)
    return code;
  source->number = number;
  *found = source;
  return 0;
}

/* Replicas follow the first store's decision. */
static bool is_if_absent(const struct put *put, uint32_t i) {
  return put->request->flags & HAUL_CACHE_IF_ABSENT && put->keys[i].version == 0;
}

/* Reserves room for the blocks that may be stored. */
static void reserve(struct haul_cache_store *store, struct put *put) {
  struct index *memory = &store->tiers[MEMORY_TIER].index;
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
    if (is_if_absent(put, i) && index_has(memory, key->key, key->key_length))
      code = HAUL_EEXIST;
    if (code == 0)
      code = index_reserve(memory, block, now);
    put->responses[i].code = code;
  }
  pthread_mutex_unlock(&store->lock);
}

static uint64_t pieces_of(const struct put *put, struct haul_piece *pieces) {
  uint64_t count = 0;
  for (uint32_t i = 0; i < put->request->count; i++)
    if (put->responses[i].code == 0)
      pieces[count++] =
          (struct haul_piece){put->blocks[i].offset, put->keys[i].offset, put->keys[i].length};
  return count;
}

static int pull_once(struct session *session, const struct put *put,
                     const struct haul_piece *pieces, uint64_t count) {
  struct haul_transfer_options options = HAUL_TRANSFER_OPTIONS_INIT;
  struct source *source;
  int code = find_source(session, put->request->source, put->until, &source);
  if (code)
    return code;
  options.deadline = put->until;
  code = haul_read(session->store->tiers[MEMORY_TIER].region, source->remote, pieces, count,
                   &options, NULL);
  if (code)
    forget(source);
  return code;
}

/* Reads the bytes into their room. */
static void pull(struct session *session, struct put *put) {
  struct haul_piece pieces[REQUEST_KEYS_MAX];
  uint64_t count = pieces_of(put, pieces);
  if (count == 0)
    return;
  int code = pull_once(session, put, pieces, count);
  if (code == 0)
    return;
  pthread_mutex_lock(&session->store->lock);
  for (uint32_t i = 0; i < put->request->count; i++)
    if (put->responses[i].code == 0) {
      index_cancel(&session->store->tiers[MEMORY_TIER].index, &put->blocks[i]);
      put->responses[i].code = code;
    }
  pthread_mutex_unlock(&session->store->lock);
}

static void commit(struct haul_cache_store *store, struct put *put) {
  struct index *memory = &store->tiers[MEMORY_TIER].index;
  int64_t now = cache_now();
  for (uint32_t i = 0; i < put->request->count; i++)
    if (put->responses[i].code == 0)
      put->blocks[i].checksum =
          XXH3_64bits(memory->base + put->blocks[i].offset, put->blocks[i].length);
  pthread_mutex_lock(&store->lock);
  for (uint32_t i = 0; i < put->request->count; i++)
    if (put->responses[i].code == 0) {
      put->responses[i].code = index_commit(memory, &put->blocks[i], is_if_absent(put, i), now);
      put->responses[i].version = put->blocks[i].version;
    }
  pthread_mutex_unlock(&store->lock);
}

/* Drops an expired request: its client is free to change the memory. */
static void execute(struct session *session, const struct queued *queued) {
  const struct request *request = queued->message.bytes;
  struct put put = {.request = request,
                    .keys = (const struct request_key *)(request + 1),
                    .until = queued->until};
  if (haul_deadline_in(0) >= put.until)
    return;
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

/* Releases all but its place in the list. */
static void release(struct session *session) {
  for (int i = 0; i < REMOTES; i++)
    forget(&session->sources[i]);
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
  unlink_session(session);
  release(session);
  pthread_cond_signal(&store->session_ended);
  pthread_mutex_unlock(&store->lock);
  return NULL;
}

/* Holds the lock. */
static struct session *find(struct haul_cache_store *store, const haul_peer *peer) {
  struct session *session = store->sessions;
  while (session && session->peer != peer)
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
