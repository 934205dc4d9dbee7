/* SPDX-License-Identifier: MIT
 * Requests to etcd's HTTP gateway: JSON out, JSON in, by a deadline, to the first member that
 * responds. */
#ifndef HAUL_DIRECTORY_HTTP_H
#define HAUL_DIRECTORY_HTTP_H

#include <jansson.h>
#include <time.h>

#include "directory/login.h"

struct http;

static inline int64_t http_now(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (int64_t)time.tv_sec * 1000000000 + time.tv_nsec;
}

/* `members`: "http://HOST:PORT" of each, then NULL. Members and login are copied. HAUL_EINSECURE: a
 * password would be sent unencrypted. */
int http_open(const struct directory_library *library, const char *const *members,
              const struct login *login, int64_t liveness, const _Atomic bool *stop,
              struct http **http);
void http_close(struct http *http);

/* Sends `body` and takes it over; the caller owns *response. */
int http_post(struct http *http, const char *path, json_t *body, int64_t until, json_t **response);
/* May a try of the last http_post that got no response take effect later? */
bool http_is_repeated(const struct http *http);
void http_own_host(struct http *http, char *host, size_t size);
const char *http_member(const struct http *http);

/* An endless response with one value a line. A member that sends nothing for 5 s gets the probe
 * over another connection; if it does not respond to that, the stream ends. Takes over both bodies.
 */
struct http_stream;
struct http_request {
  const char *path;
  json_t *body;
};
int http_stream_open(struct http *http, struct http_request request, struct http_request probe,
                     int64_t until, struct http_stream **stream);
/* HAUL_ETIMEDOUT; HAUL_EPEER: the stream ended, open it again. */
int http_stream_next(struct http_stream *stream, int64_t until, json_t **value);
void http_stream_close(struct http_stream *stream);

#endif
