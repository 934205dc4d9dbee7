/* SPDX-License-Identifier: MIT
 * Stores and a client that end with the test. */
#ifndef HAUL_TESTS_SERVICES_RIG_CACHE_CASE_H
#define HAUL_TESTS_SERVICES_RIG_CACHE_CASE_H

#include "services/rig/cache.h"

/* What the running test has started, which cache_case_end ends. */
#define CACHE_CASE_STORES 3
extern struct cache_case {
  const char *only; /* the path that all use, or NULL: the best one */
  struct cache_store stores[CACHE_CASE_STORES];
  struct cache_client client;
} t;
int cache_case_begin(void **state); /* *state: t.only */
int cache_case_end(void **state);
/* Where a store of the test listens, as cache_store_begin takes it. */
const char *cache_case_address(void);

/* A test of cmocka over tcp; over the best path, too. */
#define TCP(test)                                                                                  \
  { #test ", tcp", test, cache_case_begin, cache_case_end, "tcp" }
#define BOTH(test) {#test ", best path", test, cache_case_begin, cache_case_end, NULL}, TCP(test)

#endif
