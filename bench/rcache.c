/* SPDX-License-Identifier: MIT
 * UCX's registration cache as a peer. libucs exports it, but UCX's installed interface has no calls
 * for it: what is declared here is the binary interface of version 1.22. */
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "common.h"
#include "regcache.h"

/* Start and end come first; the cache's own 88 bytes. */
struct region {
  uint64_t start, end, rest[9];
};

/* Where it returns a status, that is of one byte. */
struct callbacks {
  signed char (*reg)(void *context, void *cache, void *user, struct region *region, uint16_t flags);
  void (*dereg)(void *context, void *cache, struct region *region);
  void (*merge)(void *context, void *cache, void *user, struct region *region);
  void (*dump)(void *context, void *cache, struct region *region, char *text, size_t room);
};

struct parameters {
  size_t region_size;
  int events, event_priority;
  const struct callbacks *callbacks;
  void *context;
  int flags;
  unsigned long regions;
  size_t bytes, unreleased;
};

enum { PAGE = 4096 };

static struct {
  void (*set_default_params)(struct parameters *parameters);
  signed char (*create)(const struct parameters *, const char *name, void *statistics, void **);
  void (*destroy)(void *cache);
  signed char (*get)(void *cache, void *address, size_t length, size_t alignment, int protection,
                     void *user, struct region **region);
  void (*region_put)(void *cache, struct region *region);
} api;

static void *cache;
static bool locked;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

static signed char add(void *context, void *of, void *user, struct region *region, uint16_t flags) {
  (void)context, (void)of, (void)user, (void)region, (void)flags;
  atomic_fetch_add_explicit(&tested_calls, 1, memory_order_relaxed);
  return 0;
}

static void drop(void *context, void *of, struct region *region) {
  (void)context, (void)of, (void)region;
}

static void merge(void *context, void *of, void *user, struct region *region) {
  (void)context, (void)of, (void)user, (void)region;
}

static void dump(void *context, void *of, struct region *region, char *text, size_t room) {
  (void)context, (void)of, (void)region;
  if (room > 0)
    *text = '\0';
}

static void *symbol(void *library, const char *name) {
  void *found = dlsym(library, name);
  need(found != NULL, name);
  return found;
}

static void load_api(void) {
  const char *path = getenv("HAUL_BENCH_UCS");
  void *library = dlopen(path ? path : "libucs.so.0", RTLD_NOW);
  if (!library)
    fprintf(stderr, "%s\n", dlerror());
  need(library != NULL, "UCX");
#define LOAD(name) *(void **)&api.name = symbol(library, "ucs_rcache_" #name)
  LOAD(set_default_params);
  LOAD(create);
  LOAD(destroy);
  LOAD(get);
  LOAD(region_put);
#undef LOAD
}

/* Without events of freed memory, which cost a get nothing, and without an order of use where
 * nothing is evicted, as UCX does by default. */
static void open_ucx(uint64_t entries, bool evicts) {
  static const struct callbacks callbacks = {add, drop, merge, dump};
  struct parameters parameters = {0};
  load_api();
  api.set_default_params(&parameters);
  parameters.region_size = sizeof(struct region);
  parameters.events = 0;
  parameters.callbacks = &callbacks;
  locked = evicts;
  if (evicts)
    parameters.regions = entries;
  need(api.create(&parameters, "bench", NULL, &cache) == 0, "cache");
}

/* One lock for all threads where they evict, as UCP has: the cache's own lock over the order of use
 * lets two threads that put one region corrupt that order. A mutex, because spinning is slower
 * here. */
static void lock(void) {
  if (locked)
    pthread_mutex_lock(&mutex);
}

static void unlock(void) {
  if (locked)
    pthread_mutex_unlock(&mutex);
}

static void touch_ucx(const struct touched *ranges, size_t count) {
  for (size_t i = 0; i < count; i++) {
    struct region *region;
    lock();
    int status = api.get(cache, (void *)(uintptr_t)ranges[i].address, ranges[i].length, PAGE,
                         PROT_READ | PROT_WRITE, NULL, &region);
    unlock();
    need(status == 0, "get");
    lock();
    api.region_put(cache, region);
    unlock();
  }
}

static void close_ucx(void) {
  api.destroy(cache);
}

const struct tested tested_ucx = {open_ucx, touch_ucx, close_ucx};
