/* SPDX-License-Identifier: MIT */
#include <string.h>

#include "cache/client.h"

#define SLICE_NS   (50 * HAUL_MILLISECOND) /* between two checks of the connection */
#define NUMBER_MAX ((UINT64_C(1) << 48) - 1)

/* Holds the lock. */
static void call_unlink(struct haul_cache *cache, const struct call *call) {
  struct call **at = &cache->calls;
  while (*at != call)
    at = &(*at)->next;
  *at = call->next;
}

int call_send(struct haul_cache *cache, struct call *call, const void *request, size_t length,
              haul_deadline until) {
  pthread_mutex_lock(&cache->lock);
  call->number = ++cache->next_call & NUMBER_MAX;
  call->answered = false;
  call->next = cache->calls;
  cache->calls = call;
  pthread_mutex_unlock(&cache->lock);
  int code = haul_message_send(call->peer, CACHE_TAG << 48 | call->number, request, length, until);
  if (code == 0)
    return 0;
  pthread_mutex_lock(&cache->lock);
  call_unlink(cache, call);
  pthread_mutex_unlock(&cache->lock);
  return code;
}

static int check_responses(const struct call *call) {
  for (uint32_t i = 0; i < call->count; i++)
    if (call->responses[i].code > 0 || call->responses[i].code < HAUL_EAUTH)
      return HAUL_EPROTO;
  return 0;
}

/* Holds the lock. Late and foreign messages are dropped. */
static void dispatch(struct haul_cache *cache, const struct haul_message *message) {
  if (message->kind != HAUL_MESSAGE || message->tag >> 48 != CACHE_TAG)
    return;
  struct call *call = cache->calls;
  while (call && (call->number != (message->tag & NUMBER_MAX) || call->peer != message->peer ||
                  call->answered))
    call = call->next;
  if (!call)
    return;
  size_t length = call->count * sizeof *call->responses;
  call->answered = true;
  call->code = message->length == length ? 0 : HAUL_EPROTO;
  if (call->code == 0) {
    memcpy(call->responses, message->bytes, length);
    call->code = check_responses(call);
  }
}

/* Holds the lock, but for the time of waiting. */
static int receive(struct haul_cache *cache, haul_deadline until) {
  struct haul_message message;
  cache->receiving = true;
  pthread_mutex_unlock(&cache->lock);
  int code = haul_message_receive(cache->node, &message, until);
  pthread_mutex_lock(&cache->lock);
  cache->receiving = false;
  if (code == 0) {
    dispatch(cache, &message);
    haul_message_release(&message);
  }
  pthread_cond_broadcast(&cache->changed);
  return code == HAUL_ETIMEDOUT ? 0 : code;
}

/* Holds the lock. Returns when something may have happened. */
static int wait_slice(struct haul_cache *cache, const struct call *call, haul_deadline until) {
  haul_deadline now = haul_deadline_in(0), slice = haul_deadline_in(SLICE_NS);
  if (now >= until)
    return HAUL_ETIMEDOUT;
  if (slice > until)
    slice = until;
  int code = 0;
  if (!cache->receiving) {
    code = receive(cache, slice);
  } else {
    const struct timespec limit = {slice / HAUL_SECOND, slice % HAUL_SECOND};
    pthread_cond_timedwait(&cache->changed, &cache->lock, &limit);
  }
  return call->answered || code ? code : haul_peer_status(call->peer);
}

int call_wait(struct haul_cache *cache, struct call *call, haul_deadline until) {
  int code = 0;
  pthread_mutex_lock(&cache->lock);
  while (!call->answered && code == 0)
    code = wait_slice(cache, call, until);
  call_unlink(cache, call);
  pthread_mutex_unlock(&cache->lock);
  return call->answered ? call->code : code;
}
