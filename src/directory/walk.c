/* SPDX-License-Identifier: MIT
 * Walks: all entries of one revision, page by page, then the changes after it from etcd's watch. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "directory/etcd.h"

#define PAGE     1000
#define PAUSE_NS 200000000L /* before a watch that ended is opened again */

struct directory_walk {
  struct directory *directory;
  char from[KEY_MAX], end[KEY_MAX]; /* range of keys that is not read yet */
  int64_t revision;                 /* last one read; 0: none */
  bool read, announced;             /* all pages are read; HAUL_DIRECTORY_TOLD was returned */
  json_t *list;                     /* entries or events received */
  size_t given;                     /* of `list`, returned to the caller */
  struct http_stream *stream;
};

int walk_open(struct directory *directory, int64_t until, struct directory_walk **out) {
  struct directory_walk *walk = calloc(1, sizeof *walk);
  (void)until;
  if (!walk)
    return directory_no_memory(directory);
  walk->directory = directory;
  snprintf(walk->from, sizeof walk->from, "%s/", directory->prefix);
  snprintf(walk->end, sizeof walk->end, "%s0", directory->prefix); /* '0' is the byte behind '/' */
  *out = walk;
  return 0;
}

void walk_close(struct directory_walk *walk) {
  if (!walk)
    return;
  http_stream_close(walk->stream);
  json_decref(walk->list);
  free(walk);
}

static int is_broken(const struct directory_walk *walk, const char *what) {
  return walk->directory->library->error(HAUL_EPROTO, 0, http_member(walk->directory->http),
                                         "open the walk again", "%s", what);
}

/* The next page begins behind the last key of this one. */
static int skip_page(struct directory_walk *walk) {
  const json_t *last = json_array_get(walk->list, json_array_size(walk->list) - 1);
  size_t length;
  errno = 0;
  char *key = bytes_of_json(json_object_get(last, "key"), &length);
  bool fits = key && length + 1 < sizeof walk->from && strlen(key) == length &&
              strncmp(key, walk->from, strlen(walk->directory->prefix) + 1) == 0 &&
              strcmp(key, walk->from) >= 0;
  if (fits)
    snprintf(walk->from, sizeof walk->from, "%s\x01", key); /* below every byte of a key of haul */
  free(key);
  if (fits)
    return 0;
  bool short_of_memory = !key && errno == ENOMEM;
  json_decref(walk->list); /* the next call reads the page again */
  walk->list = NULL;
  return short_of_memory ? directory_no_memory(walk->directory)
                         : is_broken(walk, "etcd returned a key outside of the requested range");
}

static int read_page(struct directory_walk *walk, int64_t until) {
  json_t *response = NULL, *range = range_of(walk->from, walk->end);
  if (json_object_set_new(range, "limit", json_integer(PAGE)) != 0 ||
      json_object_set_new(range, "revision", json_number(walk->revision)) != 0) {
    json_decref(range);
    return directory_no_memory(walk->directory);
  }
  int code = http_post(walk->directory->http, "/v3/kv/range", range, until, &response);
  if (code)
    return code;
  if (walk->revision == 0)
    walk->revision =
        number_of_json(json_object_get(json_object_get(response, "header"), "revision"));
  json_decref(walk->list);
  walk->list = json_incref(json_object_get(response, "kvs"));
  walk->given = 0;
  bool more = json_is_true(json_object_get(response, "more"));
  json_decref(response);
  walk->read = !more;
  return more ? skip_page(walk) : 0;
}

static int open_stream(struct directory_walk *walk, int64_t until) {
  json_t *range = range_of(walk->from, walk->end);
  /* Without notifications, compaction may overtake an idle watch. */
  if (json_object_set_new(range, "start_revision", json_number(walk->revision + 1)) != 0 ||
      json_object_set_new(range, "progress_notify", json_true()) != 0) {
    json_decref(range);
    return directory_no_memory(walk->directory);
  }
  /* Reads are linearizable: a member that responds to the probe is connected to its cluster. */
  json_t *probe = range_of(walk->from, NULL);
  return http_stream_open(
      walk->directory->http,
      (struct http_request){"/v3/watch", json_pack("{so}", "create_request", range)},
      (struct http_request){"/v3/kv/range", probe}, until, &walk->stream);
}

static int take_events(struct directory_walk *walk, json_t *value) {
  json_t *result = json_object_get(value, "result");
  if (json_object_get(value, "error"))
    return walk->directory->library->error(HAUL_EPEER, 0, http_member(walk->directory->http), NULL,
                                           "etcd ended the watch");
  if (!json_is_object(result))
    return is_broken(walk, "a message of the watch has no result");
  if (json_is_true(json_object_get(result, "canceled")))
    return is_broken(walk, "etcd has compacted the changes since the last event");
  json_t *events = json_object_get(result, "events");
  size_t count = json_array_size(events);
  /* The header has etcd's current revision, which a backlog of several messages has not reached. */
  const json_t *latest = count ? json_object_get(json_array_get(events, count - 1), "kv") : NULL;
  int64_t revision =
      count ? number_of_json(json_object_get(latest, "mod_revision"))
            : number_of_json(json_object_get(json_object_get(result, "header"), "revision"));
  if ((count || !json_is_true(json_object_get(result, "created"))) && revision > walk->revision)
    walk->revision = revision;
  if (count == 0)
    return 0;
  json_decref(walk->list);
  walk->list = json_incref(events);
  walk->given = 0;
  return 0;
}

/* Receives the next message. A stream that ended is opened again from the last revision. */
static int receive_events(struct directory_walk *walk, int64_t until) {
  json_t *value = NULL;
  int code = walk->stream ? 0 : open_stream(walk, until);
  bool streams = code == 0;
  if (streams)
    code = http_stream_next(walk->stream, until, &value);
  if (code == 0) {
    code = take_events(walk, value);
    json_decref(value);
  }
  if (code == 0 || code == HAUL_ECLOSED || (streams && code == HAUL_ETIMEDOUT))
    return code;
  http_stream_close(walk->stream);
  walk->stream = NULL;
  if (code != HAUL_EPEER && code != HAUL_ECONNECT && code != HAUL_ETIMEDOUT)
    return code;
  int64_t left = until - http_now();
  if (left > 0)
    nanosleep(&(struct timespec){0, left < PAUSE_NS ? left : PAUSE_NS}, NULL);
  return left > PAUSE_NS ? 0 : code;
}

/* False: a foreign key, or, with errno ENOMEM, no memory. */
static bool read_event(const struct directory_walk *walk, const json_t *event,
                       struct haul_directory_event *out) {
  const json_t *pair = json_object_get(event, "kv");
  const char *type = json_string_value(json_object_get(event, "type"));
  bool removed = type && strcmp(type, "DELETE") == 0;
  out->kind = removed ? HAUL_DIRECTORY_WENT : HAUL_DIRECTORY_CAME;
  if (!removed && entry_of(walk->directory, pair, &out->entry))
    return true;
  out->kind = HAUL_DIRECTORY_WENT; /* or it was overwritten */
  if (!removed && errno == ENOMEM)
    return false;
  size_t length;
  errno = 0;
  char *key = bytes_of_json(json_object_get(pair, "key"), &length);
  memset(&out->entry, 0, sizeof out->entry);
  bool valid = key && key_parse(walk->directory->prefix, key, length, &out->entry);
  free(key);
  return valid;
}

/* Returns the next entry or event received, and skips foreign keys. *code: no memory; the next call
 * reads the event again. */
static bool next_received(struct directory_walk *walk, struct haul_directory_event *event,
                          int *code) {
  while (walk->given < json_array_size(walk->list)) {
    const json_t *item = json_array_get(walk->list, walk->given);
    event->kind = HAUL_DIRECTORY_HOLDS;
    bool valid = json_object_get(item, "kv") ? read_event(walk, item, event)
                                             : entry_of(walk->directory, item, &event->entry);
    if (!valid && errno == ENOMEM) {
      *code = directory_no_memory(walk->directory);
      return false;
    }
    walk->given++;
    if (valid)
      return true;
  }
  return false;
}

int walk_next(struct directory_walk *walk, int64_t until, struct haul_directory_event *event) {
  int code = 0;
  for (bool again = false; code == 0; again = true) {
    if (next_received(walk, event, &code))
      return 0;
    if (code)
      return code;
    if (walk->read && !walk->announced) { /* all entries were returned; events follow */
      snprintf(walk->from, sizeof walk->from, "%s/", walk->directory->prefix);
      memset(event, 0, sizeof *event);
      event->kind = HAUL_DIRECTORY_TOLD;
      walk->announced = true;
      return 0;
    }
    if (again && http_now() >= until) /* foreign keys may change all the time */
      return walk->directory->library->error(HAUL_ETIMEDOUT, 0, http_member(walk->directory->http),
                                             NULL, "no event arrived in time");
    code = walk->read ? receive_events(walk, until) : read_page(walk, until);
  }
  return code;
}
