/* SPDX-License-Identifier: MIT */
#include "directory/http.h"

#include <curl/curl.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define MEMBERS_MAX  8
#define ANSWER_MAX   ((size_t)64 << 20) /* bytes; a walk's page has 1000 entries */
#define CONNECT_MS   2000L              /* then the next member is tried */
#define SLICE_NS     1000000000LL       /* between two looks at `stop` */
#define SHARE_NS     5000000000LL       /* of a member, where nobody says for how long */
#define QUIET_NS     5000000000LL /* of a stream, before its member is asked whether it lives */
#define PATIENCE_MS  5000L        /* with its answer */
#define MILLISECONDS 1000000LL

struct bytes {
  char *data;
  size_t length;
  bool too_many;
};

struct http {
  const struct directory_library *library;
  const _Atomic bool *stop;
  CURL *easy;
  struct curl_slist *headers;
  unsigned member, members;
  char urls[MEMBERS_MAX][160];
  char reason[CURL_ERROR_SIZE];
  char own_host[64];
};

static int64_t now(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (int64_t)time.tv_sec * 1000000000 + time.tv_nsec;
}

static long milliseconds_to(int64_t until) {
  int64_t left = until == HAUL_FOREVER ? INT32_MAX : (until - now()) / MILLISECONDS;
  return left < 1 ? 1 : left > INT32_MAX ? INT32_MAX : (long)left;
}

static bool is_stopped(const struct http *http) {
  return http->stop && atomic_load(http->stop);
}

/* ---- curl's callbacks ---- */

static size_t take(char *data, size_t size, size_t count, void *user) {
  struct bytes *bytes = user;
  size_t length = size * count;
  bytes->too_many = length > ANSWER_MAX - bytes->length;
  char *room = bytes->too_many ? NULL : realloc(bytes->data, bytes->length + length + 1);
  if (!room)
    return 0;
  bytes->data = room;
  memcpy(bytes->data + bytes->length, data, length);
  bytes->length += length;
  bytes->data[bytes->length] = '\0';
  return length;
}

static int look_at_stop(void *user, curl_off_t a, curl_off_t b, curl_off_t c, curl_off_t d) {
  (void)a, (void)b, (void)c, (void)d;
  return is_stopped(user);
}

static int close_on_exec(void *user, curl_socket_t socket, curlsocktype purpose) {
  (void)user, (void)purpose;
  fcntl(socket, F_SETFD, FD_CLOEXEC);
  return CURL_SOCKOPT_OK;
}

/* ---- Life ---- */

static void start_curl(void) {
  curl_global_init(CURL_GLOBAL_DEFAULT);
}

static CURL *new_easy(struct http *http) {
  CURL *easy = curl_easy_init();
  if (!easy)
    return NULL;
  curl_easy_setopt(easy, CURLOPT_NOSIGNAL, 1L);
  curl_easy_setopt(easy, CURLOPT_NOPROXY, "*");
#if LIBCURL_VERSION_NUM >= 0x075700
  curl_easy_setopt(easy, CURLOPT_QUICK_EXIT, 1L); /* a resolver that hangs is not waited for */
#endif
  curl_easy_setopt(easy, CURLOPT_PROTOCOLS_STR, "http,https");
  curl_easy_setopt(easy, CURLOPT_HTTPHEADER, http->headers);
  curl_easy_setopt(easy, CURLOPT_CONNECTTIMEOUT_MS, CONNECT_MS);
  curl_easy_setopt(easy, CURLOPT_TCP_NODELAY, 1L);
  curl_easy_setopt(easy, CURLOPT_SOCKOPTFUNCTION, close_on_exec);
  curl_easy_setopt(easy, CURLOPT_WRITEFUNCTION, take);
  curl_easy_setopt(easy, CURLOPT_ERRORBUFFER, http->reason);
  curl_easy_setopt(easy, CURLOPT_XFERINFOFUNCTION, look_at_stop);
  curl_easy_setopt(easy, CURLOPT_XFERINFODATA, http);
  curl_easy_setopt(easy, CURLOPT_NOPROGRESS, 0L);
  return easy;
}

int http_open(const struct directory_library *library, const char *const *members,
              const _Atomic bool *stop, struct http **out) {
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  pthread_once(&once, start_curl);
  struct http *http = calloc(1, sizeof *http);
  if (!http)
    return library->error(HAUL_ENOMEM, 0, "directory", "|");
  *http = (struct http){.library = library, .stop = stop};
  for (; members[http->members] && http->members < MEMBERS_MAX; http->members++)
    snprintf(http->urls[http->members], sizeof http->urls[0], "%s", members[http->members]);
  http->headers = curl_slist_append(NULL, "Content-Type: application/json");
  /* Without it curl asks first whether a body of over a MiB may be sent, and waits. */
  struct curl_slist *more = curl_slist_append(http->headers, "Expect:");
  http->easy = more ? new_easy(http) : NULL;
  if (!http->easy) {
    http_close(http);
    return library->error(HAUL_ENOMEM, 0, "directory", "|");
  }
  *out = http;
  return 0;
}

void http_close(struct http *http) {
  if (!http)
    return;
  curl_easy_cleanup(http->easy);
  curl_slist_free_all(http->headers);
  free(http);
}

const char *http_member(const struct http *http) {
  return http->urls[http->member];
}

/* After a failure curl knows none. */
static void note_own_host(struct http *http) {
  char *address = NULL;
  curl_easy_getinfo(http->easy, CURLINFO_LOCAL_IP, &address);
  if (address && *address)
    snprintf(http->own_host, sizeof http->own_host, strchr(address, ':') ? "[%s]" : "%s", address);
}

void http_own_host(struct http *http, char *host, size_t size) {
  snprintf(host, size, "%s", http->own_host);
}

/* ---- One request ---- */

/* What etcd says in its answer to a request that it does not take. */
static int refused(const struct http *http, long status, const json_t *answer) {
  const char *text = json_string_value(json_object_get(answer, "message"));
  if (!text)
    text = json_string_value(json_object_get(answer, "error"));
  if (status == 503)
    return http->library->error(HAUL_EPEER, 0, http_member(http), "etcd is not ready: %.120s|",
                                text ? text : "it does not say why");
  if (status == 401 || status == 403)
    return http->library->error(HAUL_EAUTH, 0, http_member(http),
                                "etcd does not let this node in: %.120s|",
                                text ? text : "it does not say why");
  if (text && strstr(text, "lease not found"))
    return http->library->error(HAUL_ESTALE, 0, http_member(http), "the lease ended|");
  if (status == 404 && !text)
    return http->library->error(
        HAUL_EPROTO, 0, http_member(http),
        "what listens there has no /v3 of etcd's|it takes etcd 3.4 or later with its "
        "gRPC gateway on (--enable-grpc-gateway)");
  return http->library->error(HAUL_EPROTO, 0, http_member(http),
                              "etcd refused (HTTP status %ld): %.120s|", status,
                              text ? text : "what listens there may be something else");
}

static int failed(const struct http *http, CURLcode result, const struct bytes *bytes) {
  const char *reason = http->reason[0] ? http->reason : curl_easy_strerror(result);
  if (bytes->too_many)
    return http->library->error(HAUL_EPROTO, 0, http_member(http),
                                "the answer is longer than %zu MiB|is it etcd?", ANSWER_MAX >> 20);
  switch (result) {
  case CURLE_OPERATION_TIMEDOUT:
    return http->library->error(HAUL_ETIMEDOUT, 0, http_member(http),
                                "the directory does not answer: %s|", reason);
  case CURLE_ABORTED_BY_CALLBACK:
    return http->library->error(HAUL_ECLOSED, 0, http_member(http), "|");
  case CURLE_OUT_OF_MEMORY:
  case CURLE_WRITE_ERROR:
    return http->library->error(HAUL_ENOMEM, 0, http_member(http), "|");
  case CURLE_COULDNT_RESOLVE_HOST:
    return http->library->error(HAUL_EADDRESS, 0, http_member(http), "%s|", reason);
  case CURLE_PEER_FAILED_VERIFICATION:
  case CURLE_SSL_CONNECT_ERROR:
    return http->library->error(HAUL_EAUTH, 0, http_member(http),
                                "%s|its certificate must be of an authority that the system knows",
                                reason);
  case CURLE_COULDNT_CONNECT:
    return http->library->error(HAUL_ECONNECT, 0, http_member(http), "%s|does etcd listen there?",
                                reason);
  default:
    return http->library->error(HAUL_EPEER, 0, http_member(http), "%s|", reason);
  }
}

/* Whether another member may do better, or this one when it is asked again: a connection that was
 * kept is closed by a server that starts again. */
static bool may_try_again(CURLcode result) {
  return result == CURLE_COULDNT_CONNECT || result == CURLE_COULDNT_RESOLVE_HOST ||
         result == CURLE_OPERATION_TIMEDOUT || result == CURLE_GOT_NOTHING ||
         result == CURLE_RECV_ERROR || result == CURLE_SEND_ERROR;
}

static CURLcode post_once(struct http *http, const char *path, const char *body, int64_t until,
                          struct bytes *bytes) {
  char url[256];
  snprintf(url, sizeof url, "%s%s", http_member(http), path);
  bytes->length = 0;
  http->reason[0] = '\0';
  curl_easy_setopt(http->easy, CURLOPT_URL, url);
  curl_easy_setopt(http->easy, CURLOPT_POSTFIELDS, body);
  curl_easy_setopt(http->easy, CURLOPT_POSTFIELDSIZE, (long)strlen(body));
  curl_easy_setopt(http->easy, CURLOPT_TIMEOUT_MS, milliseconds_to(until));
  curl_easy_setopt(http->easy, CURLOPT_WRITEDATA, bytes);
  return curl_easy_perform(http->easy);
}

static int parse(const struct http *http, const struct bytes *bytes, json_t **answer) {
  json_error_t error;
  long status = 0;
  curl_easy_getinfo(http->easy, CURLINFO_RESPONSE_CODE, &status);
  json_t *value = json_loadb(bytes->data ? bytes->data : "", bytes->length, 0, &error);
  int code = 0;
  if (status != 200)
    code = refused(http, status, value);
  else if (!json_is_object(value))
    code = http->library->error(HAUL_EPROTO, 0, http_member(http),
                                "the answer is no JSON: %s|is it etcd?",
                                value ? "no object" : error.text);
  if (code)
    json_decref(value);
  else
    *answer = value;
  return code;
}

int http_post(struct http *http, const char *path, json_t *body, int64_t until, json_t **answer) {
  struct bytes bytes = {0};
  CURLcode result = CURLE_OUT_OF_MEMORY;
  if (now() >= until) {
    json_decref(body);
    return http->library->error(HAUL_ETIMEDOUT, 0, http_member(http), "|");
  }
  char *text = json_dumps(body, JSON_COMPACT);
  json_decref(body);
  /* Each member has its share of the time, the last one what is left; the first one comes once
   * more, as its connection may have been an old one. */
  for (unsigned i = 0; text && i <= http->members; i++) {
    unsigned left = i < http->members ? http->members - i : 1;
    int64_t share = until == HAUL_FOREVER ? now() + SHARE_NS : now() + (until - now()) / left;
    result = post_once(http, path, text, left == 1 ? until : share, &bytes);
    if (!may_try_again(result))
      break;
    http->member = (http->member + 1) % http->members;
    if (now() >= until || is_stopped(http))
      break;
  }
  if (result == CURLE_OK)
    note_own_host(http);
  free(text);
  int code = result == CURLE_OK ? parse(http, &bytes, answer) : failed(http, result, &bytes);
  free(bytes.data);
  return code;
}

/* ---- Streams ---- */

/* What a member has not told may not have happened, or it hangs. One that is quiet is asked
 * something else over another connection, and is left when it does not answer that. */
struct http_stream {
  struct http *http;
  CURLM *multi;
  CURL *easy, *probe;
  char *body, *question;
  struct bytes bytes, answer;
  unsigned member;
  int64_t heard;   /* when it last told something, or answered */
  bool asked;      /* the probe is under way */
  bool silent;     /* and came to nothing */
  size_t taken;    /* of the bytes */
  size_t searched; /* of them: no line ends there */
  bool over;
  CURLcode result;
};

static void prepare(const struct http *http, CURL *easy, const struct http_request *request,
                    const char *text, struct bytes *bytes) {
  char url[256];
  snprintf(url, sizeof url, "%s%s", http_member(http), request->path);
  curl_easy_setopt(easy, CURLOPT_URL, url);
  curl_easy_setopt(easy, CURLOPT_POSTFIELDS, text);
  curl_easy_setopt(easy, CURLOPT_WRITEDATA, bytes);
  /* A member that is gone without a word, as by a cut wire. */
  curl_easy_setopt(easy, CURLOPT_TCP_KEEPALIVE, 1L);
  curl_easy_setopt(easy, CURLOPT_TCP_KEEPIDLE, 5L);
  curl_easy_setopt(easy, CURLOPT_TCP_KEEPINTVL, 5L);
}

static char *text_of(json_t *body) {
  char *text = json_dumps(body, JSON_COMPACT);
  json_decref(body);
  return text;
}

static void free_stream(struct http_stream *stream) {
  curl_easy_cleanup(stream->easy);
  curl_easy_cleanup(stream->probe);
  curl_multi_cleanup(stream->multi);
  free(stream->body);
  free(stream->question);
  free(stream->bytes.data);
  free(stream->answer.data);
  free(stream);
}

int http_stream_open(struct http *http, struct http_request request, struct http_request probe,
                     struct http_stream **out) {
  struct http_stream *stream = calloc(1, sizeof *stream);
  char *body = text_of(request.body), *question = text_of(probe.body);
  if (!stream) {
    free(body);
    free(question);
    return http->library->error(HAUL_ENOMEM, 0, "directory", "|");
  }
  *stream = (struct http_stream){.http = http,
                                 .multi = curl_multi_init(),
                                 .easy = new_easy(http),
                                 .probe = new_easy(http),
                                 .body = body,
                                 .question = question,
                                 .member = http->member,
                                 .heard = now()};
  if (!stream->multi || !stream->easy || !stream->probe || !body || !question) {
    free_stream(stream);
    return http->library->error(HAUL_ENOMEM, 0, "directory", "|");
  }
  prepare(http, stream->easy, &request, body, &stream->bytes);
  prepare(http, stream->probe, &probe, question, &stream->answer);
  curl_easy_setopt(stream->probe, CURLOPT_TIMEOUT_MS, PATIENCE_MS);
  curl_multi_add_handle(stream->multi, stream->easy);
  *out = stream;
  return 0;
}

void http_stream_close(struct http_stream *stream) {
  if (!stream)
    return;
  curl_multi_remove_handle(stream->multi, stream->easy);
  if (stream->asked)
    curl_multi_remove_handle(stream->multi, stream->probe);
  free_stream(stream);
}

/* A whole line that was received; *value is NULL where there is none. */
static int next_line(struct http_stream *stream, json_t **value) {
  struct bytes *bytes = &stream->bytes;
  json_error_t error;
  char *line = bytes->data ? bytes->data + stream->taken : NULL;
  char *end =
      line ? memchr(bytes->data + stream->searched, '\n', bytes->length - stream->searched) : NULL;
  *value = NULL;
  if (!end) {
    if (line && stream->taken > 0) {
      memmove(bytes->data, line, bytes->length - stream->taken);
      bytes->length -= stream->taken;
      stream->taken = 0;
    }
    stream->searched = bytes->length;
    return 0;
  }
  *value = json_loadb(line, (size_t)(end - line), 0, &error);
  stream->taken = stream->searched = (size_t)(end + 1 - bytes->data);
  return *value
             ? 0
             : stream->http->library->error(HAUL_EPROTO, 0, http_member(stream->http),
                                            "what it tells is no JSON: %s|is it etcd?", error.text);
}

/* An error of its own is no sign of life: a member that is cut off from the others has one. */
static void take_answer(struct http_stream *stream, CURLcode result) {
  long status = 0;
  curl_easy_getinfo(stream->probe, CURLINFO_RESPONSE_CODE, &status);
  curl_multi_remove_handle(stream->multi, stream->probe);
  stream->asked = false;
  stream->answer.length = 0;
  if (result == CURLE_OK && status < 500)
    stream->heard = now();
  else
    stream->over = stream->silent = true;
}

static void ask_if_quiet(struct http_stream *stream) {
  if (stream->over || stream->asked || now() - stream->heard < QUIET_NS)
    return;
  stream->asked = curl_multi_add_handle(stream->multi, stream->probe) == CURLM_OK;
}

static void receive(struct http_stream *stream) {
  int running = 0, left;
  size_t before = stream->bytes.length;
  curl_multi_perform(stream->multi, &running);
  if (stream->bytes.length > before)
    stream->heard = now();
  for (CURLMsg *message; (message = curl_multi_info_read(stream->multi, &left));) {
    CURLcode result = message->data.result;
    if (message->msg == CURLMSG_DONE && message->easy_handle == stream->probe) {
      take_answer(stream, result);
    } else if (message->msg == CURLMSG_DONE) {
      stream->over = true;
      stream->result = result;
    }
  }
  ask_if_quiet(stream);
}

static int why_ended(struct http_stream *stream) {
  struct http *http = stream->http;
  json_t *value = NULL;
  long status = 0;
  if (stream->silent)
    return http->library->error(HAUL_EPEER, 0, http_member(http), "it does not answer any more|");
  curl_easy_getinfo(stream->easy, CURLINFO_RESPONSE_CODE, &status);
  if (stream->result == CURLE_OPERATION_TIMEDOUT) /* not the caller's time */
    return http->library->error(HAUL_EPEER, 0, http_member(http), "%s|", http->reason);
  if (stream->result != CURLE_OK)
    return failed(http, stream->result, &stream->bytes);
  if (status == 200)
    return http->library->error(HAUL_EPEER, 0, http_member(http), "etcd ended the connection|");
  if (stream->bytes.data)
    value = json_loadb(stream->bytes.data, stream->bytes.length, 0, NULL);
  int code = refused(http, status, value);
  json_decref(value);
  return code;
}

static int ended(struct http_stream *stream) {
  struct http *http = stream->http;
  int code = why_ended(stream);
  if (http->member == stream->member) /* for the next time */
    http->member = (http->member + 1) % http->members;
  return code;
}

int http_stream_next(struct http_stream *stream, int64_t until, json_t **value) {
  for (;;) {
    int code = next_line(stream, value);
    if (code || *value)
      return code;
    if (stream->over)
      return ended(stream);
    receive(stream);
    code = next_line(stream, value);
    if (code || *value)
      return code;
    if (stream->over)
      continue;
    if (is_stopped(stream->http))
      return stream->http->library->error(HAUL_ECLOSED, 0, http_member(stream->http), "|");
    if (now() >= until)
      return stream->http->library->error(HAUL_ETIMEDOUT, 0, http_member(stream->http),
                                          "nothing happened|");
    int64_t slice = now() + SLICE_NS;
    curl_multi_poll(stream->multi, NULL, 0, (int)milliseconds_to(until < slice ? until : slice),
                    NULL);
  }
}
