/* SPDX-License-Identifier: MIT */
#include "cache/client.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "common/cond.h"
#include "common/fail.h"
#include "common/owner.h"

#define OPEN       "haul_cache_open"
#define CONNECT_NS HAUL_SECOND

/* ---- Open and close ---- */

static int fail_members(const char *object, const char *text) {
  return fail(HAUL_EADDRESS, OPEN, object, "name 1 to 256 different nodes with stores", "%s", text);
}

/* For the thread that adds members. NULL: there is none with this address. */
static struct member *find_member(const struct haul_cache *cache, const char *address) {
  for (unsigned i = 0; i < cache->member_count; i++)
    if (strcmp(cache->members[i].address, address) == 0)
      return &cache->members[i];
  return NULL;
}

static struct member *add_member(struct haul_cache *cache, const char *address) {
  struct member *member = &cache->members[cache->member_count];
  snprintf(member->address, sizeof member->address, "%s", address);
  member->hash = key_hash(address, strlen(address));
  cache->member_count++; /* from now on others see it */
  return member;
}

static int add_members(struct haul_cache *cache, const struct haul_cache_config *config) {
  for (size_t i = 0; i < config->member_count; i++) {
    const char *address = config->members[i];
    if (!address || !*address || strlen(address) >= ADDRESS_MAX)
      return fail_members(address, "an address is empty or too long");
    if (find_member(cache, address))
      return fail_members(address, "the address occurs twice");
    add_member(cache, address);
  }
  return 0;
}

void member_join(struct haul_cache *cache, const char *address) {
  struct member *known = find_member(cache, address);
  if (!known && cache->member_count == cache->member_room)
    return;
  if (!known)
    known = add_member(cache, address);
  pthread_mutex_lock(&cache->lock);
  known->named = true;
  known->left = false;
  known->retry_at = 0;
  pthread_mutex_unlock(&cache->lock);
}

void member_leave(struct haul_cache *cache, const char *address) {
  struct member *known = find_member(cache, address);
  pthread_mutex_lock(&cache->lock);
  if (known)
    known->left = true;
  pthread_mutex_unlock(&cache->lock);
}

void members_forget(struct haul_cache *cache) {
  pthread_mutex_lock(&cache->lock);
  for (unsigned i = 0; i < cache->member_count; i++)
    cache->members[i].named = false;
  pthread_mutex_unlock(&cache->lock);
}

void members_settle(struct haul_cache *cache) {
  pthread_mutex_lock(&cache->lock);
  for (unsigned i = 0; i < cache->member_count; i++)
    cache->members[i].left = !cache->members[i].named;
  pthread_mutex_unlock(&cache->lock);
}

static struct haul_cache *allocate(const struct haul_cache_config *config) {
  struct haul_cache *cache = calloc(1, sizeof *cache);
  if (!cache)
    return NULL;
  cache->member_room =
      config->member_count ? (unsigned)config->member_count : HAUL_CACHE_MEMBERS_MAX;
  cache->members = calloc(cache->member_room, sizeof *cache->members);
  cache->locations = calloc(LOCATIONS, sizeof *cache->locations);
  cache->only = config->only ? strdup(config->only) : NULL;
  if (cache->members && cache->locations && (cache->only || !config->only))
    return cache;
  free(cache->only);
  free(cache->locations);
  free(cache->members);
  free(cache);
  return NULL;
}

static void end_locks(struct haul_cache *cache) {
  pthread_cond_destroy(&cache->changed);
  pthread_mutex_destroy(&cache->lock);
}

static void free_all(struct haul_cache *cache) {
  free(cache->only);
  free(cache->locations);
  free(cache->members);
  free(cache);
}

static int open_cache(haul_node *node, const struct haul_cache_config *config, haul_deadline until,
                      haul_cache **out) {
  struct haul_cache *cache = allocate(config);
  if (!cache)
    return fail_memory(OPEN);
  cache->node = node;
  cache->owner = getpid();
  cache->replicas = config->replicas ? config->replicas : 1;
  cache->connect_ns = config->connect_ns > 0 ? config->connect_ns : CONNECT_NS;
  pthread_mutex_init(&cache->lock, NULL);
  monotonic_cond(&cache->changed);
  int code = config->member_count ? add_members(cache, config)
                                  : watch_begin(cache, config->directory, until);
  if (code) {
    end_locks(cache);
    free_all(cache);
    return code;
  }
  *out = cache;
  return 0;
}

int haul_cache_open(haul_node *node, const struct haul_cache_config *config, haul_deadline until,
                    haul_cache **out) {
  if (!node || !config || config->size != sizeof *config || !out ||
      (!config->members && config->member_count > 0))
    return fail(HAUL_EINVAL, OPEN, NULL, "start from HAUL_CACHE_INIT",
                "node, config, its members or cache is NULL, or its size is wrong");
  if (owner_check_node(node, OPEN))
    return HAUL_EFORK;
  if (config->connect_ns < 0)
    return fail(HAUL_EINVAL, OPEN, "connect_ns", "set 0 for the default", "connect_ns is below 0");
  if ((config->member_count == 0 && !config->directory) ||
      config->member_count > HAUL_CACHE_MEMBERS_MAX)
    return fail_members(NULL, "there are no members, or too many");
  return open_cache(node, config, until, out);
}

static void release_batches(struct haul_cache *cache) {
  while (cache->batches) {
    struct batch *batch = cache->batches;
    cache->batches = batch->next;
    haul_region_release(batch->scratch);
    free(batch);
  }
}

/* In a child of fork(2): takes no lock, as the parent's threads may have held it. */
static void close_forked(struct haul_cache *cache) {
  if (cache->watch)
    watch_free(cache->watch);
  while (cache->sources) {
    struct source_region *source = cache->sources;
    cache->sources = source->next;
    free(source);
  }
  release_batches(cache);
  for (unsigned i = 0; i < cache->member_count; i++)
    if (cache->members[i].link)
      link_free(cache->members[i].link);
  free_all(cache);
}

void haul_cache_close(haul_cache *cache) {
  if (!cache)
    return;
  if (is_forked(cache->owner)) {
    close_forked(cache);
    return;
  }
  watch_end(cache);
  while (cache->sources)
    haul_cache_detach(cache, cache->sources->region);
  release_batches(cache);
  for (unsigned i = 0; i < cache->member_count; i++)
    if (cache->members[i].link)
      link_put(cache, cache->members[i].link);
  end_locks(cache);
  free_all(cache);
}

const char *haul_cache_member(haul_cache *cache, unsigned member) {
  return cache && member < cache->member_count ? cache->members[member].address : NULL;
}

/* ---- Regions that stores read ---- */

/* Holds the lock. The place in the list that points to a name of the region, or the end. */
static struct source_region **place_of(struct haul_cache *cache, const haul_region *region) {
  struct source_region **at = &cache->sources;
  while (*at && (*at)->region != region)
    at = &(*at)->next;
  return at;
}

static int publish(struct source_region *source) {
  char name[SOURCE_NAME_MAX];
  uint64_t number;
  if (getrandom(&number, sizeof number, 0) != (ssize_t)sizeof number)
    return fail(HAUL_ESYSTEM, "haul_cache_attach", NULL, "use Linux 3.17 or later",
                "there are no random numbers");
  number |= 1; /* not 0 */
  source_name(number, name);
  int code = haul_region_publish(source->region, name, HAUL_READ);
  if (code == 0)
    source->number = number;
  return code;
}

static int unpublish(haul_region *region, uint64_t number) {
  char name[SOURCE_NAME_MAX];
  if (number == 0)
    return 0;
  source_name(number, name);
  return haul_region_unpublish(region, name);
}

/* Holds the lock. */
static int add_source(struct haul_cache *cache, haul_region *region, struct source_region **out) {
  struct source_region *source = calloc(1, sizeof *source);
  if (!source)
    return fail_memory("haul_cache_attach");
  source->region = region;
  int code = publish(source);
  if (code) {
    free(source);
    return code;
  }
  source->next = cache->sources;
  cache->sources = source;
  *out = source;
  return 0;
}

int source_take(struct haul_cache *cache, haul_region *region, uint64_t *number) {
  int code = 0;
  pthread_mutex_lock(&cache->lock);
  bool attached = *place_of(cache, region) != NULL;
  struct source_region *source = cache->sources;
  while (source && (source->region != region || source->used))
    source = source->next;
  if (!attached)
    code = fail(HAUL_EINVAL, "haul_cache_put", NULL, "call haul_cache_attach first",
                "the region is not attached");
  else if (!source)
    code = add_source(cache, region, &source);
  else if (source->number == 0)
    code = publish(source);
  if (source && code == 0) {
    source->used = true;
    *number = source->number;
  }
  pthread_mutex_unlock(&cache->lock);
  return code;
}

void source_return(struct haul_cache *cache, uint64_t number, bool withdraw) {
  haul_region *region = NULL;
  pthread_mutex_lock(&cache->lock);
  struct source_region *source = cache->sources;
  while (source && source->number != number)
    source = source->next;
  if (source) { /* otherwise it was detached meanwhile */
    source->used = false;
    if (withdraw) {
      region = source->region;
      source->number = 0;
    }
  }
  pthread_mutex_unlock(&cache->lock);
  if (region)
    unpublish(region, number);
}

int haul_cache_attach(haul_cache *cache, haul_region *region) {
  const char *call = "haul_cache_attach";
  struct source_region *source;
  if (!cache || !region)
    return fail(HAUL_EINVAL, call, NULL, "pass both", "cache or region is NULL");
  if (owner_check(cache->owner, call))
    return HAUL_EFORK;
  pthread_mutex_lock(&cache->lock);
  int code = *place_of(cache, region) ? fail(HAUL_EEXIST, call, NULL, "attach a region once",
                                             "the region is attached already")
                                      : add_source(cache, region, &source);
  pthread_mutex_unlock(&cache->lock);
  return code;
}

/* Takes a name of the region out of the list; NULL: there is none. */
static struct source_region *take_out(struct haul_cache *cache, const haul_region *region) {
  pthread_mutex_lock(&cache->lock);
  struct source_region **at = place_of(cache, region), *source = *at;
  if (source)
    *at = source->next;
  pthread_mutex_unlock(&cache->lock);
  return source;
}

int haul_cache_detach(haul_cache *cache, haul_region *region) {
  const char *call = "haul_cache_detach";
  int code = 0;
  if (!cache || !region)
    return fail(HAUL_EINVAL, call, NULL, "pass both", "cache or region is NULL");
  if (owner_check(cache->owner, call))
    return HAUL_EFORK;
  struct source_region *source = take_out(cache, region);
  if (!source)
    return fail(HAUL_EINVAL, call, NULL, "detach attached regions", "the region is not attached");
  for (; source; source = take_out(cache, region)) {
    int here = unpublish(region, source->number);
    if (here)
      code = here;
    free(source);
  }
  return code;
}
