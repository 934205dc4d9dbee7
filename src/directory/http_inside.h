/* SPDX-License-Identifier: MIT
 * Shared by requests and streams. */
#ifndef HAUL_DIRECTORY_HTTP_INSIDE_H
#define HAUL_DIRECTORY_HTTP_INSIDE_H

#include <curl/curl.h>

#include "directory/http.h"

#define MEMBERS_MAX  8
#define MILLISECONDS 1000000LL
#define TOKEN_MAX    4096 /* bytes; signed tokens (JWT) are long */

struct bytes {
  char *data;
  size_t length;
  bool too_many;
};

struct http {
  const struct directory_library *library;
  const _Atomic bool *stop;
  int64_t liveness; /* ns: for one member, when the caller sets no deadline */
  struct login login;
  char token[TOKEN_MAX]; /* "": none yet */
  CURL *easy;
  struct curl_slist *headers; /* of `easy` */
  unsigned member, members;
  bool repeated; /* http_is_repeated */
  char urls[MEMBERS_MAX][160];
  char reason[CURL_ERROR_SIZE];
  char own_host[64];
};

static inline long http_milliseconds_to(int64_t until) {
  int64_t left = until == HAUL_FOREVER ? INT32_MAX : (until - http_now()) / MILLISECONDS;
  return left < 1 ? 1 : left > INT32_MAX ? INT32_MAX : (long)left;
}

static inline bool http_is_stopped(const struct http *http) {
  return http->stop && atomic_load(http->stop);
}

/* As error() of core/error.h, about the present member. */
#define http_error(http, code, hint, ...)                                                          \
  (http)->library->error((code), 0, http_member(http), (hint), __VA_ARGS__)

/* NULL: no memory. */
CURL *http_new_easy(struct http *http);
struct curl_slist *http_new_headers(const struct http *http);
char *http_text_of(json_t *body); /* takes it over; the caller frees the text */
/* Set the detail: of a response with an error status, and of a request without response. */
int http_refused(const struct http *http, long status, const struct bytes *bytes);
int http_failed(const struct http *http, CURLcode result, const struct bytes *bytes);
/* As http_post, for text. */
int http_post_text(struct http *http, const char *path, const char *text, int64_t until,
                   json_t **response);

#endif
