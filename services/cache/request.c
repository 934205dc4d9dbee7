/* SPDX-License-Identifier: MIT
 * Requests of clients, which may be malformed. */
#include "cache/store.h"

#include <string.h>

static const struct request_key *keys_of(const struct request *request) {
  return (const struct request_key *)(request + 1);
}

static bool keys_are_valid(const struct request *request) {
  for (uint32_t i = 0; i < request->count; i++) {
    const struct request_key *key = &keys_of(request)[i];
    if (key->key_length == 0 || key->key_length > HAUL_CACHE_KEY_MAX ||
        !priority_is_valid(key->priority) || key->seconds > LEASE_MAX)
      return false;
  }
  return true;
}

bool request_is_valid(const struct haul_message *message) {
  const struct request *request = message->bytes;
  if (message->tag >> 48 != CACHE_TAG || message->length < sizeof *request ||
      (uintptr_t)message->bytes % _Alignof(struct request) != 0 || request->count == 0 ||
      request->count > REQUEST_KEYS_MAX)
    return false;
  size_t rest = message->length - sizeof *request;
  if (request->kind == REQUEST_USED)
    return rest == request->count * sizeof(struct used);
  return request->kind >= REQUEST_PUT && request->kind <= REQUEST_PIN &&
         rest == request->count * sizeof(struct request_key) && keys_are_valid(request);
}

void request_respond(const struct haul_message *message, const struct response_key *keys,
                     haul_deadline until) {
  uint32_t count = ((const struct request *)message->bytes)->count;
  /* A client that has gone, or reads no messages, waits for nothing. */
  haul_message_send(message->peer, message->tag, keys, count * sizeof *keys, until);
}

static int execute_key(struct index *index, uint32_t kind, const struct request_key *key,
                       int64_t now) {
  uint32_t slot = index_find(index, key->key, key->key_length);
  if (slot == NO_SLOT)
    return index->below ? execute_key(index->below, kind, key, now) : HAUL_ENAME;
  if (kind == REQUEST_PIN)
    return index_pin(index, slot, key->seconds ? now + key->seconds * HAUL_SECOND : 0, now);
  index_remove(index, slot);
  return 0;
}

static void execute_used(struct haul_cache_store *store, const struct request *request) {
  const struct used *used = (const struct used *)(request + 1);
  for (uint32_t i = 0; i < request->count; i++)
    if (used[i].tier < TIERS) /* the index of one that the store lacks has no slots */
      index_use(&store->tiers[used[i].tier].index, used[i].slot, used[i].sequence);
}

void request_execute(struct haul_cache_store *store, const struct haul_message *message) {
  const struct request *request = message->bytes;
  struct response_key responses[REQUEST_KEYS_MAX] = {{0}};
  int64_t now = cache_now();
  pthread_mutex_lock(&store->lock);
  if (request->kind == REQUEST_USED)
    execute_used(store, request);
  else
    for (uint32_t i = 0; i < request->count; i++)
      responses[i].code = execute_key(&store->top->index, request->kind, &keys_of(request)[i], now);
  pthread_mutex_unlock(&store->lock);
  if (request->kind != REQUEST_USED)
    request_respond(message, responses, HAUL_NO_WAIT);
}
