/* SPDX-License-Identifier: MIT */
#include "services/rig/cache_case.h"

#include <stdlib.h>
#include <string.h>

#include "support/check.h"

struct cache_case t;

int cache_case_begin(void **state) {
  t.only = *state;
  setenv("HAUL_PATHS", t.only ? t.only : "auto", 1); /* of the stores, too */
  return 0;
}

int cache_case_end(void **state) {
  (void)state;
  if (t.client.cache)
    cache_client_end(&t.client);
  for (int i = 0; i < CACHE_CASE_STORES; i++) {
    if (t.stores[i].pid)
      assert_int_equal(cache_store_end(&t.stores[i]), 0);
    if (*t.stores[i].path)
      cache_store_forget(&t.stores[i]);
  }
  memset(&t, 0, sizeof t);
  return 0;
}

const char *cache_case_address(void) {
  return t.only ? "tcp://127.0.0.1:0" : NULL;
}
