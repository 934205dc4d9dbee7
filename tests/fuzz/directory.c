/* SPDX-License-Identifier: MIT
 * Responses of etcd. The input is a byte that chooses the request, then lines, each a response or a
 * message of a watch; or the text of a login. Every entry returned is valid: its texts end, and its
 * numbers are within bounds. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "directory/etcd.h"
#include "node/directory.h"
#include "rig.h"

extern const struct directory_module haul_directory_module;

static const char *rest, *end;

struct http {
  int unused;
};

int http_open(const struct directory_library *library, const char *const *members,
              const struct login *login, int64_t liveness, const _Atomic bool *stop,
              struct http **http) {
  static struct http one;
  (void)library, (void)members, (void)liveness, (void)stop;
  RIG_ASSERT(!*login->user == !*login->password && memchr(login->user, 0, sizeof login->user));
  *http = &one;
  return 0;
}

void http_close(struct http *http) {
  (void)http;
}

static json_t *next_line(void) {
  const char *line = rest;
  if (rest >= end)
    return NULL;
  const char *stop = memchr(rest, '\n', (size_t)(end - rest));
  rest = stop ? stop + 1 : end;
  json_t *value = json_loadb(line, (size_t)((stop ? stop : end) - line), 0, NULL);
  return value ? value : json_object();
}

int http_post(struct http *http, const char *path, json_t *body, int64_t until, json_t **answer) {
  (void)http, (void)until;
  RIG_ASSERT(path[0] == '/' && json_is_object(body));
  json_decref(body);
  *answer = next_line();
  return *answer ? 0 : error_code(HAUL_EPEER, NULL);
}

bool http_is_repeated(const struct http *http) {
  (void)http;
  return false;
}

void http_own_host(struct http *http, char *host, size_t size) {
  (void)http;
  snprintf(host, size, "127.0.0.1");
}

const char *http_member(const struct http *http) {
  (void)http;
  return "http://127.0.0.1:2379";
}

struct http_stream {
  int unused;
};

int http_stream_open(struct http *http, struct http_request request, struct http_request probe,
                     int64_t until, struct http_stream **stream) {
  static struct http_stream one;
  (void)http, (void)until;
  RIG_ASSERT(json_is_object(request.body) && json_is_object(probe.body));
  json_decref(request.body);
  json_decref(probe.body);
  *stream = &one;
  return 0;
}

int http_stream_next(struct http_stream *stream, int64_t until, json_t **value) {
  (void)stream, (void)until;
  *value = next_line();
  return *value ? 0 : error_code(HAUL_ETIMEDOUT, NULL);
}

void http_stream_close(struct http_stream *stream) {
  (void)stream;
}

static void check_entry(const struct haul_directory_entry *entry, bool whole) {
  RIG_ASSERT(entry->kind == HAUL_DIRECTORY_NODE || entry->kind == HAUL_DIRECTORY_REGION);
  RIG_ASSERT(entry->node[0] && memchr(entry->node, 0, sizeof entry->node));
  RIG_ASSERT(memchr(entry->name, 0, sizeof entry->name));
  RIG_ASSERT((entry->name[0] != 0) == (entry->kind == HAUL_DIRECTORY_REGION));
  if (!whole)
    return;
  RIG_ASSERT(entry->address_count >= 1 && entry->address_count <= HAUL_DIRECTORY_ADDRESSES);
  for (unsigned i = 0; i < entry->address_count; i++)
    RIG_ASSERT(memchr(entry->addresses[i], 0, sizeof entry->addresses[i]));
  if (entry->kind == HAUL_DIRECTORY_REGION)
    RIG_ASSERT(entry->length > 0 && entry->rights >= 1 && entry->rights <= 3);
}

static void find(struct directory *directory) {
  static struct haul_directory_entry entries[8];
  size_t count = 8;
  if (haul_directory_module.find(directory, "weights", INT64_MAX, entries, &count) == 0)
    for (size_t i = 0; i < count && i < 8; i++)
      check_entry(&entries[i], true);
}

static void walk(struct directory *directory) {
  struct directory_walk *walk;
  struct haul_directory_event event;
  RIG_ASSERT(haul_directory_module.walk_open(directory, INT64_MAX, &walk) == 0);
  while (haul_directory_module.walk_next(walk, INT64_MAX, &event) == 0)
    if (event.kind != HAUL_DIRECTORY_TOLD)
      check_entry(&event.entry, event.kind != HAUL_DIRECTORY_WENT);
  haul_directory_module.walk_close(walk);
}

static void enter(struct directory *directory) {
  struct haul_directory_entry node = {
      .kind = HAUL_DIRECTORY_NODE, .node = "fuzzed", .address_count = 1};
  int64_t lease = 1;
  strcpy(node.addresses[0], "tcp://127.0.0.1:7420");
  haul_directory_module.lease(directory, 10, INT64_MAX, &lease);
  haul_directory_module.claim(directory, lease, &node, INT64_MAX);
  haul_directory_module.put(directory, lease, &node, 1, INT64_MAX);
  haul_directory_module.renew(directory, lease, &node, INT64_MAX);
  haul_directory_module.drop(directory, lease, &node, 1, INT64_MAX);
  haul_directory_module.end(directory, lease, INT64_MAX);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t length) {
  struct directory *directory;
  if (length < 1)
    return 0;
  rest = (const char *)bytes + 1;
  end = (const char *)bytes + length;
  bool logs_in = bytes[0] % 4 == 3;
  char *login = logs_in ? strndup(rest, length - 1) : NULL;
  int code = haul_directory_module.open(&directory_library, "etcd://127.0.0.1/test", login,
                                        1000000000, NULL, &directory);
  free(login);
  RIG_ASSERT(code == 0 || (logs_in && code == HAUL_EINVAL));
  if (code)
    return 0;
  switch (bytes[0] % 4) {
  case 0:
    find(directory);
    break;
  case 1:
    walk(directory);
    break;
  case 2:
    enter(directory);
  }
  haul_directory_module.close(directory);
  return 0;
}
