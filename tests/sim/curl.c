/* SPDX-License-Identifier: MIT
 * The calls of libcurl that the directory's module makes: HTTP/1.1 over the world's sockets and
 * clocks. As libcurl does it, connections are kept for the next request, and a request that fails
 * on a kept connection before any byte came is repeated once on a new one. */
#include <arpa/inet.h>
#include <curl/curl.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>

#include "calls.h"
#include "etcd.h"
#include "load.h"

#define KEPT     5         /* connections; libcurl's CURLOPT_MAXCONNECTS */
#define KEPT_FOR (118 * S) /* libcurl's CURLOPT_MAXAGE_CONN */
#define LINE     512       /* of a response's head; the model of etcd has shorter ones */
#define SLICE    1000      /* ms: the longest time without a call of the progress function */

enum step { IDLE, OPENS, SENDS, HEAD, BODY, CHUNK, CHUNK_END, TRAILER, DONE };

struct kept {
  int socket; /* 0: none; 0 is no socket of the world */
  struct in_addr host;
  in_port_t port;
  int64_t since;
};

struct easy {
  /* Options */
  char *url;
  const char *body;
  long body_length; /* -1: up to the NUL */
  struct curl_slist *headers;
  long timeout_ms, connect_timeout_ms, low_speed_seconds;
  long keep_alive, keep_idle, keep_interval;
  curl_write_callback write;
  curl_xferinfo_callback progress;
  curl_sockopt_callback opened;
  void *write_user, *progress_user;
  char *reason;
  /* The transfer */
  struct multi *multi;
  enum step step;
  CURLcode result;
  bool told; /* by curl_multi_info_read */
  struct kept connection;
  bool reused, heard_any;
  char *request;
  size_t request_length, sent;
  char line[LINE];
  size_t line_length, left; /* left: of the body or the chunk */
  bool chunked;
  long status;
  int64_t connects_until, until, heard;
  char local[INET_ADDRSTRLEN];
  struct kept kept[KEPT];
};

struct multi {
  struct easy *easies[2];
  CURLMsg message;
};

static void drop(struct kept *connection) {
  if (connection->socket)
    world_close(connection->socket);
  connection->socket = 0;
}

/* Something to read on an idle connection is its end. */
static bool is_alive(const struct kept *connection) {
  struct pollfd entry = {.fd = connection->socket, .events = POLLIN};
  return own_clock() - connection->since < KEPT_FOR && world_poll(&entry, 1, 0) == 0;
}

static bool reuse(struct easy *easy) {
  for (int i = 0; i < KEPT; i++) {
    struct kept *kept = &easy->kept[i];
    if (!kept->socket || kept->host.s_addr != easy->connection.host.s_addr ||
        kept->port != easy->connection.port)
      continue;
    if (is_alive(kept)) {
      easy->connection = *kept;
      kept->socket = 0;
      return true;
    }
    drop(kept);
  }
  return false;
}

/* Instead of the oldest one, if there are too many. */
static void keep(struct easy *easy) {
  struct kept *place = &easy->kept[0];
  for (int i = 0; i < KEPT && place->socket; i++)
    if (!easy->kept[i].socket || easy->kept[i].since < place->since)
      place = &easy->kept[i];
  drop(place);
  *place = easy->connection;
  place->since = own_clock();
  easy->connection.socket = 0;
}

static CURLcode failed(struct easy *easy, CURLcode code, const char *reason) {
  if (easy->reason)
    snprintf(easy->reason, CURL_ERROR_SIZE, "%s", reason);
  return code;
}

/* The idle time first: the world's sockets take it when SO_KEEPALIVE is set. */
static void set_keep_alive(const struct easy *easy, int socket) {
  int idle = (int)easy->keep_idle, interval = (int)easy->keep_interval, on = 1;
  world_setsockopt(socket, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof idle);
  world_setsockopt(socket, IPPROTO_TCP, TCP_KEEPINTVL, &interval, sizeof interval);
  world_setsockopt(socket, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
}

/* Not of a lookup or the start of a walk, whose rate the load draws. */
static bool is_of_upkeep(const struct easy *easy) {
  return !strstr(easy->request, "{\"compare\":[],") && !strstr(easy->url, "/v3/kv/range");
}

static CURLcode open_connection(struct easy *easy) {
  struct sockaddr_in to = {
      .sin_family = AF_INET, .sin_addr = easy->connection.host, .sin_port = easy->connection.port};
  int socket = world_socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (is_of_upkeep(easy))
    count_request(process_current()->pid, CONNECTS);
  if (socket < 0)
    return failed(easy, CURLE_COULDNT_CONNECT, "no socket");
  easy->connection.socket = socket;
  if (easy->keep_alive)
    set_keep_alive(easy, socket);
  if (easy->opened)
    easy->opened(NULL, socket, CURLSOCKTYPE_IPCXN);
  if (world_connect(socket, (const struct sockaddr *)&to, sizeof to) != 0 && errno != EINPROGRESS)
    return failed(easy, CURLE_COULDNT_CONNECT, "connect failed");
  easy->step = OPENS;
  return CURLE_OK;
}

static void note_local(struct easy *easy) {
  struct sockaddr_in own = {0};
  socklen_t length = sizeof own;
  world_getsockname(easy->connection.socket, (struct sockaddr *)&own, &length);
  inet_ntop(AF_INET, &own.sin_addr, easy->local, sizeof easy->local);
}

const char *world_curl_easy_strerror(CURLcode code) {
  static char text[24];
  snprintf(text, sizeof text, code ? "error %d of libcurl" : "ok", (int)code);
  return text;
}

/* "http://HOST:PORT/PATH"; NULL: not such a URL. */
static const char *path_of(struct easy *easy) {
  char host[INET_ADDRSTRLEN + 1];
  unsigned port;
  int at = 0;
  if (!easy->url || sscanf(easy->url, "http://%16[0-9.]:%u%n", host, &port, &at) != 2 ||
      inet_pton(AF_INET, host, &easy->connection.host) != 1)
    return NULL;
  easy->connection.port = htons((uint16_t)port);
  return easy->url + at;
}

static bool make_request(struct easy *easy, const char *path) {
  size_t body = easy->body_length < 0 ? strlen(easy->body) : (size_t)easy->body_length, room = 256;
  for (const struct curl_slist *header = easy->headers; header; header = header->next)
    room += strlen(header->data) + 2;
  easy->request = world_malloc(room + strlen(path) + body);
  if (!easy->request)
    return false;
  size_t used =
      (size_t)sprintf(easy->request, "POST %s HTTP/1.1\r\nContent-Length: %zu\r\n", path, body);
  for (const struct curl_slist *header = easy->headers; header; header = header->next)
    if (header->data[strlen(header->data) - 1] != ':') /* "NAME:" removes a header */
      used += (size_t)sprintf(easy->request + used, "%s\r\n", header->data);
  used += (size_t)sprintf(easy->request + used, "\r\n");
  memcpy(easy->request + used, easy->body, body);
  easy->request_length = used + body;
  return true;
}

static CURLcode begin_attempt(struct easy *easy, bool fresh) {
  easy->sent = easy->line_length = easy->left = 0;
  easy->heard_any = easy->chunked = false;
  easy->status = 0;
  easy->reused = !fresh && reuse(easy);
  easy->step = SENDS;
  return easy->reused ? CURLE_OK : open_connection(easy);
}

static int64_t after_ms(long ms) {
  return ms > 0 ? own_clock() + ms * MS : NEVER;
}

static void finish(struct easy *easy, CURLcode result) {
  sim_trace("curl: %s: %s, status %ld", easy->url ? easy->url : "no URL",
            world_curl_easy_strerror(result), easy->status);
  if (result)
    drop(&easy->connection);
  else
    keep(easy);
  world_free(easy->request);
  easy->request = NULL;
  easy->result = result;
  easy->step = DONE;
  easy->told = false;
}

static void begin(struct easy *easy) {
  const char *path = path_of(easy);
  easy->heard = own_clock();
  if (easy->reason)
    easy->reason[0] = '\0';
  easy->until = after_ms(easy->timeout_ms);
  easy->connects_until = after_ms(easy->connect_timeout_ms);
  if (!path) {
    finish(easy, CURLE_URL_MALFORMAT);
    return;
  }
  CURLcode code = make_request(easy, path) ? begin_attempt(easy, false) : CURLE_OUT_OF_MEMORY;
  if (code)
    finish(easy, code);
}

/* Steps: each returns CURLE_AGAIN when it has to wait */

static CURLcode step_connect(struct easy *easy) {
  struct pollfd entry = {.fd = easy->connection.socket, .events = POLLOUT};
  int error = 0;
  socklen_t size = sizeof error;
  if (world_poll(&entry, 1, 0) == 0)
    return CURLE_AGAIN;
  world_getsockopt(easy->connection.socket, SOL_SOCKET, SO_ERROR, &error, &size);
  if (error)
    return failed(easy, CURLE_COULDNT_CONNECT, strerror(error));
  easy->step = SENDS;
  return CURLE_OK;
}

/* A kept connection may have ended just now. */
static CURLcode lost(struct easy *easy, CURLcode code, const char *reason) {
  if (!easy->reused || easy->heard_any)
    return failed(easy, code, reason);
  sim_trace("curl: %s again: %s", easy->url, reason);
  drop(&easy->connection);
  return begin_attempt(easy, true);
}

static CURLcode step_send(struct easy *easy) {
  struct iovec span = {easy->request + easy->sent, easy->request_length - easy->sent};
  struct msghdr message = {.msg_iov = &span, .msg_iovlen = 1};
  ssize_t sent = world_sendmsg(easy->connection.socket, &message, MSG_NOSIGNAL);
  if (sent < 0)
    return errno == EAGAIN || errno == EINTR ? CURLE_AGAIN
                                             : lost(easy, CURLE_SEND_ERROR, strerror(errno));
  easy->sent += (size_t)sent;
  if (easy->sent == easy->request_length) {
    note_local(easy);
    easy->step = HEAD;
  }
  return CURLE_OK;
}

static CURLcode ended(struct easy *easy) {
  if (!easy->heard_any)
    return lost(easy, CURLE_GOT_NOTHING, "Empty reply from server");
  return easy->step == HEAD ? failed(easy, CURLE_RECV_ERROR, "Connection closed abruptly")
                            : failed(easy, CURLE_PARTIAL_FILE, "transfer closed");
}

static void take_header(struct easy *easy) {
  if (strncmp(easy->line, "HTTP/1.1 ", 9) == 0)
    easy->status = strtol(easy->line + 9, NULL, 10);
  else if (strncasecmp(easy->line, "Content-Length: ", 16) == 0)
    easy->left = strtoul(easy->line + 16, NULL, 10);
  else if (strcasecmp(easy->line, "Transfer-Encoding: chunked") == 0)
    easy->chunked = true;
  else if (easy->line_length == 0)
    easy->step = easy->chunked ? CHUNK : easy->left ? BODY : DONE;
}

/* A whole line of the head, or around chunks. */
static void take_line(struct easy *easy) {
  if (easy->step == HEAD) {
    take_header(easy);
  } else if (easy->step == CHUNK) {
    easy->left = strtoul(easy->line, NULL, 16);
    easy->step = easy->left ? BODY : TRAILER;
  } else if (easy->step == CHUNK_END) {
    easy->step = CHUNK;
  } else if (easy->line_length == 0) {
    easy->step = DONE;
  }
}

static CURLcode take_bytes(struct easy *easy, char *bytes, size_t length) {
  while (length > 0 && easy->step != DONE) {
    if (easy->step == BODY) {
      size_t part = length < easy->left ? length : easy->left;
      if (easy->write(bytes, 1, part, easy->write_user) != part)
        return failed(easy, CURLE_WRITE_ERROR, "Failure writing output to destination");
      bytes += part;
      length -= part;
      easy->left -= part;
      if (easy->left == 0)
        easy->step = easy->chunked ? CHUNK_END : DONE;
      continue;
    }
    char byte = *bytes++;
    length--;
    if (byte == '\n') {
      easy->line[easy->line_length] = '\0';
      take_line(easy);
      easy->line_length = 0;
    } else if (byte != '\r' && easy->line_length < LINE - 1) {
      easy->line[easy->line_length++] = byte;
    }
  }
  return CURLE_OK;
}

static CURLcode step_receive(struct easy *easy) {
  char bytes[4096];
  ssize_t got = world_recv(easy->connection.socket, bytes, sizeof bytes, 0);
  if (got < 0)
    return errno == EAGAIN || errno == EINTR ? CURLE_AGAIN
           : easy->heard_any                 ? failed(easy, CURLE_RECV_ERROR, strerror(errno))
                                             : lost(easy, CURLE_RECV_ERROR, strerror(errno));
  if (got == 0)
    return ended(easy);
  easy->heard_any = true;
  easy->heard = own_clock();
  return take_bytes(easy, bytes, (size_t)got);
}

static CURLcode check_time(struct easy *easy) {
  int64_t now = own_clock();
  if (easy->progress && easy->progress(easy->progress_user, 0, 0, 0, 0))
    return failed(easy, CURLE_ABORTED_BY_CALLBACK, "Callback aborted");
  if (now >= easy->until)
    return failed(easy, CURLE_OPERATION_TIMEDOUT, "Operation timed out");
  if (easy->step == OPENS && now >= easy->connects_until)
    return failed(easy, CURLE_OPERATION_TIMEDOUT, "Connection timed out");
  if (easy->low_speed_seconds && now - easy->heard >= easy->low_speed_seconds * S)
    return failed(easy, CURLE_OPERATION_TIMEDOUT, "Operation too slow");
  return CURLE_OK;
}

/* Goes on until the transfer is done or has to wait. */
static void advance(struct easy *easy) {
  CURLcode code = check_time(easy);
  while (code == CURLE_OK && easy->step != DONE)
    code = easy->step == OPENS   ? step_connect(easy)
           : easy->step == SENDS ? step_send(easy)
                                 : step_receive(easy);
  if (code != CURLE_AGAIN)
    finish(easy, code);
}

static int ms_until(int64_t at, int ms) {
  int64_t left = at == NEVER ? NEVER : (at - own_clock() + MS - 1) / MS;
  return left < 0 ? 0 : left < ms ? (int)left : ms;
}

static void await(struct easy *const *easies, size_t count, int ms) {
  struct pollfd entries[2];
  size_t used = 0;
  for (size_t i = 0; i < count; i++) {
    const struct easy *easy = easies[i];
    if (easy && easy->step == IDLE) /* it is begun by the next curl_multi_perform */
      return;
    if (!easy || easy->step == DONE)
      continue;
    ms = ms_until(easy->until, ms);
    if (easy->step == OPENS)
      ms = ms_until(easy->connects_until, ms);
    entries[used++] = (struct pollfd){.fd = easy->connection.socket,
                                      .events = easy->step <= SENDS ? POLLOUT : POLLIN};
  }
  world_poll(entries, used, ms);
}

CURLcode world_curl_global_init(long flags) {
  (void)flags;
  return CURLE_OK;
}

CURL *world_curl_easy_init(void) {
  struct easy *easy = world_calloc(1, sizeof *easy);
  if (easy)
    easy->body_length = -1;
  return easy;
}

static CURLcode set_url(struct easy *easy, const char *url) {
  world_free(easy->url);
  easy->url = world_malloc(strlen(url) + 1);
  if (!easy->url)
    return CURLE_OUT_OF_MEMORY;
  strcpy(easy->url, url);
  return CURLE_OK;
}

static CURLcode set_pointer(struct easy *easy, CURLoption option, void *value) {
  if (option == CURLOPT_URL)
    return set_url(easy, value);
  if (option == CURLOPT_POSTFIELDS)
    easy->body = value;
  else if (option == CURLOPT_HTTPHEADER)
    easy->headers = value;
  else if (option == CURLOPT_WRITEDATA)
    easy->write_user = value;
  else if (option == CURLOPT_XFERINFODATA)
    easy->progress_user = value;
  else if (option == CURLOPT_ERRORBUFFER)
    easy->reason = value;
  return CURLE_OK;
}

static void set_long(struct easy *easy, CURLoption option, long value) {
  if (option == CURLOPT_POSTFIELDSIZE)
    easy->body_length = value;
  else if (option == CURLOPT_TIMEOUT_MS)
    easy->timeout_ms = value;
  else if (option == CURLOPT_CONNECTTIMEOUT_MS)
    easy->connect_timeout_ms = value;
  else if (option == CURLOPT_LOW_SPEED_TIME)
    easy->low_speed_seconds = value;
  else if (option == CURLOPT_TCP_KEEPALIVE)
    easy->keep_alive = value;
  else if (option == CURLOPT_TCP_KEEPIDLE)
    easy->keep_idle = value;
  else if (option == CURLOPT_TCP_KEEPINTVL)
    easy->keep_interval = value;
}

/* The options that the world has no use for are accepted: TLS, proxies. */
CURLcode world_curl_easy_setopt(CURL *handle, CURLoption option, ...) {
  struct easy *easy = handle;
  va_list arguments;
  CURLcode code = CURLE_OK;
  va_start(arguments, option);
  if (option == CURLOPT_WRITEFUNCTION)
    easy->write = va_arg(arguments, curl_write_callback);
  else if (option == CURLOPT_XFERINFOFUNCTION)
    easy->progress = va_arg(arguments, curl_xferinfo_callback);
  else if (option == CURLOPT_SOCKOPTFUNCTION)
    easy->opened = va_arg(arguments, curl_sockopt_callback);
  else if (option < CURLOPTTYPE_OBJECTPOINT)
    set_long(easy, option, va_arg(arguments, long));
  else
    code = set_pointer(easy, option, va_arg(arguments, void *));
  va_end(arguments);
  return code;
}

CURLcode world_curl_easy_getinfo(CURL *handle, CURLINFO info, ...) {
  struct easy *easy = handle;
  va_list arguments;
  va_start(arguments, info);
  if (info == CURLINFO_RESPONSE_CODE)
    *va_arg(arguments, long *) = easy->status;
  else if (info == CURLINFO_LOCAL_IP)
    *va_arg(arguments, char **) = easy->local;
  else
    sim_fail("simulator", "curl_easy_getinfo %d is not modelled", (int)info);
  va_end(arguments);
  return CURLE_OK;
}

CURLcode world_curl_easy_perform(CURL *handle) {
  struct easy *easy = handle;
  begin(easy);
  while (easy->step != DONE) {
    advance(easy);
    if (easy->step != DONE)
      await(&easy, 1, SLICE);
  }
  return easy->result;
}

void world_curl_easy_cleanup(CURL *handle) {
  struct easy *easy = handle;
  if (!easy)
    return;
  drop(&easy->connection);
  for (int i = 0; i < KEPT; i++)
    drop(&easy->kept[i]);
  world_free(easy->request);
  world_free(easy->url);
  world_free(easy);
}

struct curl_slist *world_curl_slist_append(struct curl_slist *list, const char *text) {
  struct curl_slist *added = world_malloc(sizeof *added + strlen(text) + 1), *last = list;
  if (!added)
    return NULL;
  added->data = (char *)(added + 1);
  strcpy(added->data, text);
  added->next = NULL;
  while (last && last->next)
    last = last->next;
  if (last)
    last->next = added;
  return list ? list : added;
}

void world_curl_slist_free_all(struct curl_slist *list) {
  for (struct curl_slist *next; list; list = next) {
    next = list->next;
    world_free(list);
  }
}

CURLM *world_curl_multi_init(void) {
  return world_calloc(1, sizeof(struct multi));
}

CURLMcode world_curl_multi_add_handle(CURLM *handle, CURL *easy_handle) {
  struct multi *multi = handle;
  struct easy *easy = easy_handle;
  struct easy **place = &multi->easies[multi->easies[0] != NULL];
  if (easy->multi || *place)
    sim_fail("curl", "a handle is added twice");
  *place = easy;
  easy->multi = multi;
  easy->step = IDLE;
  return CURLM_OK;
}

CURLMcode world_curl_multi_remove_handle(CURLM *handle, CURL *easy_handle) {
  struct multi *multi = handle;
  struct easy *easy = easy_handle;
  if (!multi || !easy)
    return CURLM_BAD_HANDLE;
  if (easy->multi != multi)
    return CURLM_OK;
  if (easy->step != DONE)
    drop(&easy->connection);
  world_free(easy->request);
  easy->request = NULL;
  easy->multi = NULL;
  multi->easies[multi->easies[1] == easy] = NULL;
  return CURLM_OK;
}

CURLMcode world_curl_multi_perform(CURLM *handle, int *running) {
  struct multi *multi = handle;
  *running = 0;
  for (int i = 0; i < 2; i++) {
    struct easy *easy = multi->easies[i];
    if (!easy)
      continue;
    if (easy->step == IDLE)
      begin(easy);
    if (easy->step != DONE)
      advance(easy);
    *running += easy->step != DONE;
  }
  return CURLM_OK;
}

CURLMcode world_curl_multi_poll(CURLM *handle, struct curl_waitfd *more, unsigned count, int ms,
                                int *ready) {
  struct multi *multi = handle;
  (void)more, (void)count, (void)ready;
  await(multi->easies, 2, ms);
  return CURLM_OK;
}

CURLMsg *world_curl_multi_info_read(CURLM *handle, int *left) {
  struct multi *multi = handle;
  *left = 0;
  for (int i = 0; i < 2; i++) {
    struct easy *easy = multi->easies[i];
    if (!easy || easy->step != DONE || easy->told)
      continue;
    easy->told = true;
    multi->message.msg = CURLMSG_DONE;
    multi->message.easy_handle = easy;
    multi->message.data.result = easy->result;
    return &multi->message;
  }
  return NULL;
}

CURLMcode world_curl_multi_cleanup(CURLM *handle) {
  world_free(handle);
  return CURLM_OK;
}
