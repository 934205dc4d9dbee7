/* SPDX-License-Identifier: MIT
 * The members of a cache in a directory: the nodes that publish a store. A thread follows the
 * directory as long as the client is open. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <haul/directory.h>

#include "cache/client.h"
#include "common/cond.h"
#include "common/fail.h"

#define SLICE_LEAST (20 * HAUL_MILLISECOND) /* of one wait for changes */
#define SLICE_MOST  HAUL_SECOND

struct watch {
  struct haul_cache *cache;
  haul_directory *walk;
  char *directory;
  haul_deadline began;
  pthread_t thread;
  /* cache->lock */
  bool closing;
  pthread_cond_t closed;
};

/* DIRECTORY/NAME, with the escapes of haul/directory.h; false: it is too long. */
static bool name_address(const char *directory, const char *name, char address[ADDRESS_MAX]) {
  int length = snprintf(address, ADDRESS_MAX, "%s/", directory);
  if (length < 0 || (size_t)length + 3 * strlen(name) >= ADDRESS_MAX)
    return false;
  char *at = address + length;
  for (; *name; name++)
    if (*name == '/' || *name == '%')
      at += sprintf(at, "%%%02X", (unsigned)*name);
    else
      *at++ = *name;
  *at = '\0';
  return true;
}

static void take(const struct watch *watch, const struct haul_directory_event *event) {
  const struct haul_directory_entry *entry = &event->entry;
  char address[ADDRESS_MAX];
  if (event->kind == HAUL_DIRECTORY_TOLD)
    members_settle(watch->cache);
  if (event->kind == HAUL_DIRECTORY_TOLD || entry->kind != HAUL_DIRECTORY_REGION ||
      strcmp(entry->name, REGION_NAME) != 0 ||
      !name_address(watch->directory, entry->node, address))
    return;
  if (event->kind == HAUL_DIRECTORY_WENT)
    member_leave(watch->cache, address);
  else
    member_join(watch->cache, address);
}

/* Opens the walk, and reads the present members. */
static int read_members(struct watch *watch, haul_deadline until) {
  struct haul_directory_event event = {.kind = 0};
  int code = haul_directory_open(watch->cache->node, watch->directory, until, &watch->walk);
  while (code == 0 && event.kind != HAUL_DIRECTORY_TOLD) {
    code = haul_directory_next(watch->walk, until, &event);
    if (code == 0)
      take(watch, &event);
  }
  return code;
}

/* A wait takes no longer than the client has been open, so that one that is open for a moment is
 * closed in a moment. */
static int64_t slice(const struct watch *watch) {
  int64_t age = haul_deadline_in(0) - watch->began;
  return age < SLICE_LEAST ? SLICE_LEAST : age > SLICE_MOST ? SLICE_MOST : age;
}

/* After a failure. True: go on. */
static bool rest(struct watch *watch, int64_t ns) {
  struct haul_cache *cache = watch->cache;
  haul_deadline until = haul_deadline_in(ns);
  const struct timespec limit = {until / HAUL_SECOND, until % HAUL_SECOND};
  pthread_mutex_lock(&cache->lock);
  while (!watch->closing && ns > 0 &&
         pthread_cond_timedwait(&watch->closed, &cache->lock, &limit) != ETIMEDOUT)
    ;
  bool goes_on = !watch->closing;
  pthread_mutex_unlock(&cache->lock);
  return goes_on;
}

static int next_change(struct watch *watch) {
  struct haul_directory_event event;
  haul_deadline until = haul_deadline_in(slice(watch));
  if (!watch->walk) { /* it begins with the present members */
    members_forget(watch->cache);
    return haul_directory_open(watch->cache->node, watch->directory, until, &watch->walk);
  }
  int code = haul_directory_next(watch->walk, until, &event);
  if (code == 0)
    take(watch, &event);
  return code == HAUL_ETIMEDOUT ? 0 : code;
}

static void *follow(void *argument) {
  struct watch *watch = argument;
  int64_t pause = 0;
  while (rest(watch, pause)) {
    int code = next_change(watch);
    pause = code ? slice(watch) : 0;
    if (code == HAUL_EPROTO) { /* etcd has compacted the changes, or is sick */
      haul_directory_close(watch->walk);
      watch->walk = NULL;
    }
  }
  return NULL;
}

void watch_free(struct watch *watch) {
  haul_directory_close(watch->walk);
  free(watch->directory);
  free(watch);
}

static int start(struct watch *watch, haul_deadline until) {
  int code = read_members(watch, until);
  if (code)
    return code;
  if (watch->cache->member_count == 0)
    return fail(HAUL_ENAME, "haul_cache_open", watch->directory,
                "start a store there: haul cache serve --register", "no node there has a store");
  int error = pthread_create(&watch->thread, NULL, follow, watch);
  return error == 0
             ? 0
             : fail(HAUL_ELIMIT, "haul_cache_open", NULL, "raise the limit of threads (ulimit -u)",
                    "cannot start a thread: %s", strerror(error));
}

int watch_begin(struct haul_cache *cache, const char *directory, haul_deadline until) {
  struct watch *watch = calloc(1, sizeof *watch);
  if (!watch)
    return fail_memory("haul_cache_open");
  watch->cache = cache;
  watch->began = haul_deadline_in(0);
  watch->directory = strdup(directory);
  monotonic_cond(&watch->closed);
  int code = watch->directory ? start(watch, until) : fail_memory("haul_cache_open");
  if (code)
    watch_free(watch);
  else
    cache->watch = watch;
  return code;
}

void watch_end(struct haul_cache *cache) {
  struct watch *watch = cache->watch;
  if (!watch)
    return;
  pthread_mutex_lock(&cache->lock);
  watch->closing = true;
  pthread_cond_signal(&watch->closed);
  pthread_mutex_unlock(&cache->lock);
  pthread_join(watch->thread, NULL);
  pthread_cond_destroy(&watch->closed);
  watch_free(watch);
}
