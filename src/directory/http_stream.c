/* SPDX-License-Identifier: MIT */
#include "directory/http_inside.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SLICE_NS 1000000000LL /* between two looks at `stop` */

/* A silent member has no events, or it hangs. The probe, over another connection, tells which. */
struct http_stream {
  struct http *http;
  CURLM *multi;
  CURL *easy, *probe;
  struct curl_slist *headers; /* of both */
  char *body, *probe_body;
  struct bytes bytes, probe_bytes;
  unsigned member;
  int64_t heard;   /* when bytes or a response to the probe last arrived */
  bool probing;    /* the probe is under way */
  bool silent;     /* the probe failed */
  size_t taken;    /* of `bytes`, parsed */
  size_t searched; /* of `bytes`, without another end of a line */
  bool over;
  CURLcode result;
};

static void stream_prepare(const struct http_stream *stream, CURL *easy, const char *path,
                           const char *text, struct bytes *bytes) {
  char url[256];
  snprintf(url, sizeof url, "%s%s", http_member(stream->http), path);
  curl_easy_setopt(easy, CURLOPT_HTTPHEADER, stream->headers);
  curl_easy_setopt(easy, CURLOPT_URL, url);
  curl_easy_setopt(easy, CURLOPT_POSTFIELDS, text);
  curl_easy_setopt(easy, CURLOPT_WRITEDATA, bytes);
  /* Finds a member that vanished, as by a cut wire. */
  curl_easy_setopt(easy, CURLOPT_TCP_KEEPALIVE, 1L);
  curl_easy_setopt(easy, CURLOPT_TCP_KEEPIDLE, 5L);
  curl_easy_setopt(easy, CURLOPT_TCP_KEEPINTVL, 5L);
}

static void free_stream(struct http_stream *stream) {
  curl_easy_cleanup(stream->easy);
  curl_easy_cleanup(stream->probe);
  curl_multi_cleanup(stream->multi);
  curl_slist_free_all(stream->headers);
  free(stream->body);
  free(stream->probe_body);
  free(stream->bytes.data);
  free(stream->probe_bytes.data);
  free(stream);
}

static int stream_start(struct http_stream *stream, const struct http_request *request,
                        const struct http_request *probe) {
  struct http *http = stream->http;
  stream->multi = curl_multi_init();
  stream->easy = http_new_easy(http);
  stream->probe = http_new_easy(http);
  stream->headers = http_new_headers(http);
  stream->member = http->member;
  stream->heard = http_now();
  if (!stream->multi || !stream->easy || !stream->probe || !stream->headers)
    return http->library->code(HAUL_ENOMEM, "directory");
  stream_prepare(stream, stream->easy, request->path, stream->body, &stream->bytes);
  stream_prepare(stream, stream->probe, probe->path, stream->probe_body, &stream->probe_bytes);
  curl_easy_setopt(stream->probe, CURLOPT_TIMEOUT_MS,
                   http_milliseconds_to(http_now() + stream->http->liveness));
  curl_multi_add_handle(stream->multi, stream->easy);
  return 0;
}

/* etcd reports a watch with an expired token as compacted. The probe renews such a token first. */
static int renew_token(struct http_stream *stream, const struct http_request *probe,
                       int64_t until) {
  json_t *response = NULL;
  if (!*stream->http->login.user)
    return 0;
  int64_t share = http_now() + stream->http->liveness;
  int code = http_post_text(stream->http, probe->path, stream->probe_body,
                            until < share ? until : share, &response);
  json_decref(response);
  return code;
}

int http_stream_open(struct http *http, struct http_request request, struct http_request probe,
                     int64_t until, struct http_stream **out) {
  struct http_stream *stream = calloc(1, sizeof *stream);
  char *body = http_text_of(request.body), *probe_body = http_text_of(probe.body);
  if (!stream || !body || !probe_body) {
    free(stream);
    free(body);
    free(probe_body);
    return http->library->code(HAUL_ENOMEM, "directory");
  }
  *stream = (struct http_stream){.http = http, .body = body, .probe_body = probe_body};
  int code = renew_token(stream, &probe, until);
  if (code == 0)
    code = stream_start(stream, &request, &probe);
  if (code)
    free_stream(stream);
  else
    *out = stream;
  return code;
}

void http_stream_close(struct http_stream *stream) {
  if (!stream)
    return;
  curl_multi_remove_handle(stream->multi, stream->easy);
  if (stream->probing)
    curl_multi_remove_handle(stream->multi, stream->probe);
  free_stream(stream);
}

/* The next whole line received; *value NULL: none. */
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
  errno = 0;
  *value = json_loadb(line, (size_t)(end - line), 0, &error);
  bool no_memory = !*value && errno == ENOMEM;
  stream->taken = stream->searched = (size_t)(end + 1 - bytes->data);
  return no_memory ? stream->http->library->code(HAUL_ENOMEM, http_member(stream->http))
         : *value  ? 0
                   : http_error(stream->http, HAUL_EPROTO, "check that etcd listens there",
                                "a message of the watch is not JSON: %s", error.text);
}

/* An error status does not count as a response: a member that lost its cluster sends one. */
static void end_probe(struct http_stream *stream, CURLcode result) {
  long status = 0;
  curl_easy_getinfo(stream->probe, CURLINFO_RESPONSE_CODE, &status);
  curl_multi_remove_handle(stream->multi, stream->probe);
  stream->probing = false;
  stream->probe_bytes.length = 0;
  if (result == CURLE_OK && status < 500)
    stream->heard = http_now();
  else
    stream->over = stream->silent = true;
}

static void stream_receive(struct http_stream *stream) {
  int running = 0, left;
  size_t before = stream->bytes.length;
  curl_multi_perform(stream->multi, &running);
  if (stream->bytes.length > before)
    stream->heard = http_now();
  for (CURLMsg *message; (message = curl_multi_info_read(stream->multi, &left));) {
    CURLcode result = message->data.result;
    if (message->msg == CURLMSG_DONE && message->easy_handle == stream->probe) {
      end_probe(stream, result);
    } else if (message->msg == CURLMSG_DONE) {
      stream->over = true;
      stream->result = result;
    }
  }
  if (!stream->over && !stream->probing && http_now() - stream->heard >= stream->http->liveness)
    stream->probing = curl_multi_add_handle(stream->multi, stream->probe) == CURLM_OK;
}

static int why_ended(struct http_stream *stream) {
  struct http *http = stream->http;
  long status = 0;
  if (stream->silent)
    return http_error(http, HAUL_EPEER, NULL, "the directory does not respond any more");
  curl_easy_getinfo(stream->easy, CURLINFO_RESPONSE_CODE, &status);
  if (stream->result == CURLE_OPERATION_TIMEDOUT) /* curl's own, not the caller's deadline */
    return http_error(http, HAUL_EPEER, NULL, "%s", http->reason);
  if (stream->result == CURLE_COULDNT_RESOLVE_HOST) /* another member's name may resolve */
    return http_error(http, HAUL_ECONNECT, NULL, "%s", http->reason);
  if (stream->result != CURLE_OK)
    return http_failed(http, stream->result, &stream->bytes);
  if (status == 200)
    return http_error(http, HAUL_EPEER, NULL, "etcd ended the connection");
  return http_refused(http, status, &stream->bytes);
}

static int stream_ended(struct http_stream *stream) {
  struct http *http = stream->http;
  int code = why_ended(stream);
  if (http->member == stream->member) /* the next stream tries another member */
    http->member = (http->member + 1) % http->members;
  return code;
}

int http_stream_next(struct http_stream *stream, int64_t until, json_t **value) {
  for (bool received = false;; received = true) {
    int code = next_line(stream, value);
    if (code || *value)
      return code;
    if (stream->over)
      return stream_ended(stream);
    if (received) {
      if (http_is_stopped(stream->http))
        return stream->http->library->code(HAUL_ECLOSED, http_member(stream->http));
      if (http_now() >= until)
        return http_error(stream->http, HAUL_ETIMEDOUT, NULL, "no event arrived in time");
      int64_t slice = http_now() + SLICE_NS;
      curl_multi_poll(stream->multi, NULL, 0,
                      (int)http_milliseconds_to(until < slice ? until : slice), NULL);
    }
    stream_receive(stream);
  }
}
