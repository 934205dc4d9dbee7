/* SPDX-License-Identifier: MIT */
#include "directory/http_inside.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Bytes; bounds the memory that a server can make this process use. It is far above a page of a
 * walk (1000 entries). */
#define RESPONSE_MAX ((size_t)64 << 20)
#define LIVENESS_MAX 3600000000000LL /* ns; so that now + liveness cannot overflow */
#define CONNECT_MS   2000L           /* then the next member is tried */

static size_t http_write_body(char *data, size_t size, size_t count, void *user) {
  struct bytes *bytes = user;
  size_t length = size * count;
  bytes->too_many = length > RESPONSE_MAX - bytes->length;
  char *room = bytes->too_many ? NULL : realloc(bytes->data, bytes->length + length + 1);
  if (!room)
    return 0;
  bytes->data = room;
  memcpy(bytes->data + bytes->length, data, length);
  bytes->length += length;
  bytes->data[bytes->length] = '\0';
  return length;
}

static int abort_if_stopped(void *user, curl_off_t a, curl_off_t b, curl_off_t c, curl_off_t d) {
  (void)a, (void)b, (void)c, (void)d;
  return http_is_stopped(user);
}

static int close_on_exec(void *user, curl_socket_t socket, curlsocktype purpose) {
  (void)user, (void)purpose;
  fcntl(socket, F_SETFD, FD_CLOEXEC);
  return CURL_SOCKOPT_OK;
}

static void start_curl(void) {
  curl_global_init(CURL_GLOBAL_DEFAULT);
}

struct curl_slist *http_new_headers(const struct http *http) {
  char authorization[sizeof "Authorization: " + TOKEN_MAX];
  snprintf(authorization, sizeof authorization, "Authorization: %s", http->token);
  const char *const lines[] = {
      "Content-Type: application/json",
      "Expect:", /* else curl waits for "100 Continue" before bodies over 1 MiB */
      *http->token ? authorization : NULL};
  struct curl_slist *list = NULL;
  for (size_t i = 0; i < sizeof lines / sizeof lines[0] && lines[i]; i++) {
    struct curl_slist *longer = curl_slist_append(list, lines[i]);
    if (!longer) {
      curl_slist_free_all(list);
      return NULL;
    }
    list = longer;
  }
  return list;
}

CURL *http_new_easy(struct http *http) {
  CURL *easy = curl_easy_init();
  if (!easy)
    return NULL;
  if (*http->login.authority)
    curl_easy_setopt(easy, CURLOPT_CAINFO, http->login.authority);
  if (*http->login.certificate) {
    curl_easy_setopt(easy, CURLOPT_SSLCERT, http->login.certificate);
    curl_easy_setopt(easy, CURLOPT_SSLKEY, http->login.private_key);
  }
  curl_easy_setopt(easy, CURLOPT_NOSIGNAL, 1L);
  curl_easy_setopt(easy, CURLOPT_NOPROXY, "*");
#if LIBCURL_VERSION_NUM >= 0x075700
  curl_easy_setopt(easy, CURLOPT_QUICK_EXIT, 1L); /* do not wait for a hanging resolver */
#endif
  curl_easy_setopt(easy, CURLOPT_PROTOCOLS_STR, "http,https");
  curl_easy_setopt(easy, CURLOPT_CONNECTTIMEOUT_MS, CONNECT_MS);
  curl_easy_setopt(easy, CURLOPT_TCP_NODELAY, 1L);
  curl_easy_setopt(easy, CURLOPT_SOCKOPTFUNCTION, close_on_exec);
  curl_easy_setopt(easy, CURLOPT_WRITEFUNCTION, http_write_body);
  curl_easy_setopt(easy, CURLOPT_ERRORBUFFER, http->reason);
  curl_easy_setopt(easy, CURLOPT_XFERINFOFUNCTION, abort_if_stopped);
  curl_easy_setopt(easy, CURLOPT_XFERINFODATA, http);
  curl_easy_setopt(easy, CURLOPT_NOPROGRESS, 0L);
  return easy;
}

static bool is_loopback(const char *url) {
  const char *host = strstr(url, "://") + 3;
  return strncmp(host, "127.", 4) == 0 || strncmp(host, "[::1]", 5) == 0 ||
         strncmp(host, "localhost:", 10) == 0;
}

/* A password is sent only over TLS or loopback. */
static int check_login(const struct http *http) {
  for (unsigned i = 0; *http->login.password && i < http->members; i++)
    if (strncmp(http->urls[i], "https:", 6) != 0 && !is_loopback(http->urls[i]))
      return http->library->error(HAUL_EINSECURE, 0, http->urls[i],
                                  "give etcd a certificate, and use etcds://",
                                  "the password would be sent unencrypted");
  return 0;
}

int http_open(const struct directory_library *library, const char *const *members,
              const struct login *login, int64_t liveness, const _Atomic bool *stop,
              struct http **out) {
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  pthread_once(&once, start_curl);
  struct http *http = calloc(1, sizeof *http);
  if (!http)
    return library->code(HAUL_ENOMEM, "directory");
  *http = (struct http){.library = library,
                        .login = *login,
                        .liveness = liveness < LIVENESS_MAX ? liveness : LIVENESS_MAX,
                        .stop = stop};
  for (; members[http->members] && http->members < MEMBERS_MAX; http->members++)
    snprintf(http->urls[http->members], sizeof http->urls[0], "%s", members[http->members]);
  int code = check_login(http);
  http->headers = http_new_headers(http);
  http->easy = http_new_easy(http);
  if (code == 0 && (!http->headers || !http->easy))
    code = library->code(HAUL_ENOMEM, "directory");
  if (code)
    http_close(http);
  else
    *out = http;
  return code;
}

void http_close(struct http *http) {
  if (!http)
    return;
  curl_easy_cleanup(http->easy);
  curl_slist_free_all(http->headers);
  login_forget(&http->login);
  explicit_bzero(http->token, sizeof http->token);
  free(http);
}

const char *http_member(const struct http *http) {
  return http->urls[http->member];
}

/* curl knows the address only after a success. */
static void note_own_host(struct http *http) {
  char *address = NULL;
  curl_easy_getinfo(http->easy, CURLINFO_LOCAL_IP, &address);
  if (address && *address)
    snprintf(http->own_host, sizeof http->own_host, strchr(address, ':') ? "[%s]" : "%s", address);
}

void http_own_host(struct http *http, char *host, size_t size) {
  snprintf(host, size, "%s", http->own_host);
}

/* Login errors that etcd reports as INVALID_ARGUMENT. */
static bool is_about_login(const char *text) {
  static const char *const words[] = {"user name is empty", "authentication failed",
                                      "authentication is not enabled", "auth store is old",
                                      "CommonName of client"};
  for (size_t i = 0; i < sizeof words / sizeof words[0]; i++)
    if (strstr(text, words[i]))
      return true;
  return false;
}

/* Reads the reason: from etcd's JSON, or the first line of its HTTP server's plain text. Returns
 * whether the response is JSON, as those of the gateway are. */
static bool read_reason(const struct bytes *bytes, char *reason, size_t size) {
  errno = 0;
  json_t *response = bytes->data ? json_loadb(bytes->data, bytes->length, 0, NULL) : NULL;
  bool is_json = response || errno == ENOMEM;
  const char *text = json_string_value(json_object_get(response, "message"));
  size_t length = 0;
  if (!text)
    text = json_string_value(json_object_get(response, "error"));
  if (!text && !response && bytes->data && bytes->data[0] != '<') /* not an HTML page */
    text = bytes->data;
  for (; text && text[length] >= ' ' && text[length] <= '~' && length < size - 1; length++)
    reason[length] = text[length];
  reason[length] = '\0';
  json_decref(response);
  return is_json;
}

int http_refused(const struct http *http, long status, const struct bytes *bytes) {
  char reason[121];
  bool is_json = read_reason(bytes, reason, sizeof reason);
  if (strstr(reason, "lease not found")) /* etcd also uses 404 for this */
    return http_error(http, HAUL_ESTALE, NULL, "the lease expired");
  if (status == 404 && !is_json)
    return http_error(http, HAUL_EPROTO,
                      "use etcd 3.4 or later with its gRPC gateway (--enable-grpc-gateway)",
                      "the server has no /v3 API of etcd");
  const char *why = *reason ? reason : "no reason given";
  if (status == 503)
    return http_error(http, HAUL_EPEER, NULL, "etcd is not ready: %s", why);
  if (status == 401 || status == 403 || is_about_login(reason))
    return http_error(http, HAUL_EAUTH,
                      "set directory_login in haul.conf to a user whose role covers the prefix",
                      "etcd rejected the login: %s", why);
  if (!*reason)
    return http_error(http, HAUL_EPROTO, "check that etcd listens there",
                      "the server rejected the request (HTTP status %ld); it may not be etcd",
                      status);
  return http_error(http, HAUL_EPROTO, NULL, "etcd rejected the request (HTTP status %ld): %s",
                    status, reason);
}

int http_failed(const struct http *http, CURLcode result, const struct bytes *bytes) {
  const char *reason = http->reason[0] ? http->reason : curl_easy_strerror(result);
  if (bytes->too_many)
    return http_error(http, HAUL_EPROTO, "check that etcd listens there",
                      "the response exceeds %zu MiB", RESPONSE_MAX >> 20);
  switch (result) {
  case CURLE_OPERATION_TIMEDOUT:
    return http_error(http, HAUL_ETIMEDOUT, NULL, "the directory does not respond: %s", reason);
  case CURLE_ABORTED_BY_CALLBACK:
    return http->library->code(HAUL_ECLOSED, http_member(http));
  case CURLE_OUT_OF_MEMORY:
  case CURLE_WRITE_ERROR:
    return http->library->code(HAUL_ENOMEM, http_member(http));
  case CURLE_COULDNT_RESOLVE_HOST:
    return http_error(http, HAUL_EADDRESS, NULL, "%s", reason);
  case CURLE_PEER_FAILED_VERIFICATION:
    return http_error(http, HAUL_EAUTH,
                      "set `authority` in the file of directory_login to the authority that "
                      "signed etcd's certificate",
                      "%s", reason);
  case CURLE_SSL_CONNECT_ERROR:
    return http_error(http, HAUL_EAUTH, "check that etcd serves TLS on this port", "%s", reason);
  case CURLE_COULDNT_CONNECT:
    return http_error(http, HAUL_ECONNECT, "check that etcd listens there", "%s", reason);
  default:
    return http_error(http, HAUL_EPEER, NULL, "%s", reason);
  }
}

/* 503: the member is up and has lost the others. */
static bool is_not_ready(const struct http *http, CURLcode result) {
  long status = 0;
  if (result == CURLE_OK)
    curl_easy_getinfo(http->easy, CURLINFO_RESPONSE_CODE, &status);
  return status == 503;
}

/* Whether to retry with another member, or with the same one: a restarted server closes keep-alive
 * connections. */
static bool may_try_again(CURLcode result) {
  return result == CURLE_COULDNT_CONNECT || result == CURLE_COULDNT_RESOLVE_HOST ||
         result == CURLE_OPERATION_TIMEDOUT || result == CURLE_GOT_NOTHING ||
         result == CURLE_RECV_ERROR || result == CURLE_SEND_ERROR || result == CURLE_PARTIAL_FILE;
}

bool http_is_repeated(const struct http *http) {
  return http->repeated;
}

static CURLcode post_once(struct http *http, const char *path, const char *body, int64_t until,
                          struct bytes *bytes) {
  char url[256];
  snprintf(url, sizeof url, "%s%s", http_member(http), path);
  bytes->length = 0;
  http->reason[0] = '\0';
  curl_easy_setopt(http->easy, CURLOPT_URL, url);
  curl_easy_setopt(http->easy, CURLOPT_HTTPHEADER, http->headers);
  curl_easy_setopt(http->easy, CURLOPT_POSTFIELDS, body);
  curl_easy_setopt(http->easy, CURLOPT_POSTFIELDSIZE, (long)strlen(body));
  curl_easy_setopt(http->easy, CURLOPT_TIMEOUT_MS, http_milliseconds_to(until));
  /* Without a deadline, fail only if no bytes arrive for `liveness`. */
  curl_easy_setopt(http->easy, CURLOPT_LOW_SPEED_LIMIT, 1L);
  long seconds = (long)((http->liveness + 999999999) / 1000000000);
  curl_easy_setopt(http->easy, CURLOPT_LOW_SPEED_TIME, until == HAUL_FOREVER ? seconds : 0L);
  curl_easy_setopt(http->easy, CURLOPT_WRITEDATA, bytes);
  return curl_easy_perform(http->easy);
}

static int http_parse_response(const struct http *http, const struct bytes *bytes,
                               json_t **response) {
  json_error_t error;
  long status = 0;
  curl_easy_getinfo(http->easy, CURLINFO_RESPONSE_CODE, &status);
  if (status != 200)
    return http_refused(http, status, bytes);
  errno = 0;
  json_t *value = json_loadb(bytes->data ? bytes->data : "", bytes->length, 0, &error);
  if (!value && errno == ENOMEM) /* jansson reports this as a mistake in the text */
    return http->library->code(HAUL_ENOMEM, http_member(http));
  if (json_is_object(value)) {
    *response = value;
    return 0;
  }
  int code = http_error(http, HAUL_EPROTO, "check that etcd listens there", "the response is %s%s",
                        value ? "JSON, but not an object" : "not JSON: ", value ? "" : error.text);
  json_decref(value);
  return code;
}

/* Tries each member once, for its share of the time, and then the first member again for the rest:
 * its keep-alive connection may have been stale. */
static int http_post_members(struct http *http, const char *path, const char *text, int64_t until,
                             json_t **response) {
  struct bytes bytes = {0};
  CURLcode result = CURLE_OUT_OF_MEMORY;
  http->repeated = false;
  for (unsigned i = 0; i <= http->members; i++) {
    unsigned left = i < http->members ? http->members - i : 1;
    int64_t share = until == HAUL_FOREVER ? http_now() + http->liveness
                                          : http_now() + (until - http_now()) / left;
    result = post_once(http, path, text, left == 1 ? until : share, &bytes);
    bool not_ready = is_not_ready(http, result) && i + 1 < http->members;
    if (!not_ready && !may_try_again(result))
      break;
    http->repeated |= result != CURLE_COULDNT_CONNECT && result != CURLE_COULDNT_RESOLVE_HOST;
    http->member = (http->member + 1) % http->members;
    if (http_now() >= until || http_is_stopped(http))
      break;
  }
  if (result == CURLE_OK)
    note_own_host(http);
  int code = result == CURLE_OK ? http_parse_response(http, &bytes, response)
                                : http_failed(http, result, &bytes);
  free(bytes.data);
  return code;
}

static int set_token(struct http *http, const char *token) {
  if (strlen(token) >= sizeof http->token || strpbrk(token, "\r\n"))
    return http_error(http, HAUL_EPROTO, NULL, "etcd sent an invalid token");
  snprintf(http->token, sizeof http->token, "%s", token);
  struct curl_slist *headers = http_new_headers(http);
  if (!headers)
    return http->library->code(HAUL_ENOMEM, "directory");
  curl_slist_free_all(http->headers);
  http->headers = headers;
  return 0;
}

/* Erases the text after use. */
static int post_secret(struct http *http, const char *path, json_t *body, int64_t until,
                       json_t **response) {
  char *text = http_text_of(body);
  if (!text)
    return http->library->code(HAUL_ENOMEM, "directory");
  int code = http_post_members(http, path, text, until, response);
  explicit_bzero(text, strlen(text));
  free(text);
  return code;
}

/* Gets a token, if there is a user and no token yet. */
static int log_in(struct http *http, int64_t until) {
  json_t *response = NULL;
  if (!*http->login.user || *http->token)
    return 0;
  json_t *body = json_pack("{ss, ss}", "name", http->login.user, "password", http->login.password);
  if (!body)
    return http->library->error(HAUL_EINVAL, 0, "directory_login",
                                "write user and password in UTF-8",
                                "cannot encode user and password as JSON");
  int code = post_secret(http, "/v3/auth/authenticate", body, until, &response);
  if (code)
    return code;
  const char *token = json_string_value(json_object_get(response, "token"));
  code = token && *token ? set_token(http, token)
                         : http_error(http, HAUL_EPROTO, "check that etcd listens there",
                                      "the response has no token");
  json_decref(response);
  return code;
}

int http_post_text(struct http *http, const char *path, const char *text, int64_t until,
                   json_t **response) {
  bool had_token = *http->token;
  int code = log_in(http, until);
  if (code == 0)
    code = http_post_members(http, path, text, until, response);
  /* A token expires with time, or with the member that issued it. Then get another one, once. */
  if (!had_token || code != HAUL_EAUTH || set_token(http, "") != 0)
    return code;
  code = log_in(http, until);
  return code ? code : http_post_members(http, path, text, until, response);
}

char *http_text_of(json_t *body) {
  char *text = json_dumps(body, JSON_COMPACT);
  json_decref(body);
  return text;
}

int http_post(struct http *http, const char *path, json_t *body, int64_t until, json_t **response) {
  if (http_now() >= until) {
    json_decref(body);
    return http->library->code(HAUL_ETIMEDOUT, http_member(http));
  }
  char *text = http_text_of(body);
  if (!text)
    return http->library->code(HAUL_ENOMEM, "directory");
  int code = http_post_text(http, path, text, until, response);
  free(text);
  return code;
}
