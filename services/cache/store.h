/* SPDX-License-Identifier: MIT
 * The store: one thread receives all messages and executes requests that need no wait. A put waits
 * for the client's memory, so a session, a thread for each client that puts, executes it. It ends
 * when it has been idle. */
#ifndef HAUL_CACHE_STORE_H
#define HAUL_CACHE_STORE_H

#include <pthread.h>
#include <stdint.h>
#include <sys/types.h>

#include "cache/tier.h"

struct session;

struct haul_cache_store {
  haul_node *node;
  pid_t owner;
  int wake; /* eventfd that ends the thread */
  pthread_t thread;
  pthread_mutex_t lock; /* protects all below */
  struct tier tiers[TIERS];
  struct tier *top; /* where puts go */
  uint64_t tier_bits;
  struct session *sessions;
  pthread_cond_t session_ended;
  bool closing;
};

/* Monotonic, as haul_deadline. */
int64_t cache_now(void);

/* Whether the message is a request that can be executed: counts, lengths, keys. */
bool request_is_valid(const struct haul_message *message);

/* Executes a request without waiting, and responds. */
void request_execute(struct haul_cache_store *store, const struct haul_message *message);
void request_respond(const struct haul_message *message, const struct response_key *keys,
                     haul_deadline until);

/* Gives a valid put to the session of its peer, which owns the message from now on. Responds with
 * HAUL_ELIMIT if too many are waiting. */
void session_submit(struct haul_cache_store *store, struct haul_message *message);
/* Waits until no session is left; store->closing is set. */
void sessions_end(struct haul_cache_store *store);

#endif
