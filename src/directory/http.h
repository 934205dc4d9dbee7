/* SPDX-License-Identifier: MIT
 * Requests to etcd's gateway: JSON out, JSON in, by a deadline, to the first of its members that
 * answers. */
#ifndef HAUL_DIRECTORY_HTTP_H
#define HAUL_DIRECTORY_HTTP_H

#include <jansson.h>

#include "directory/login.h"

struct http;

/* "http://HOST:PORT" of each member, ended by NULL; copied, as the login. HAUL_EINSECURE: it has a
 * password, which others could read on its way. */
int http_open(const struct directory_library *library, const char *const *members,
              const struct login *login, const _Atomic bool *stop, struct http **http);
void http_close(struct http *http);

/* Sends `body` and drops it; *answer is the caller's. */
int http_post(struct http *http, const char *path, json_t *body, int64_t until, json_t **answer);
void http_own_host(struct http *http, char *host, size_t size);
const char *http_member(const struct http *http);

/* An answer without an end, of which each line is a value. A member that tells nothing for a while
 * is asked the probe, which it answers at once if it lives; else the stream ends. Drops both
 * bodies. */
struct http_stream;
struct http_request {
  const char *path;
  json_t *body;
};
int http_stream_open(struct http *http, struct http_request request, struct http_request probe,
                     int64_t until, struct http_stream **stream);
/* HAUL_ETIMEDOUT, HAUL_EPEER: it ended; open it again. */
int http_stream_next(struct http_stream *stream, int64_t until, json_t **value);
void http_stream_close(struct http_stream *stream);

#endif
