/* SPDX-License-Identifier: MIT
 * The HTTP gateway of one member, as etcd 3.4 has it: JSON, bytes as base64, 64-bit numbers as
 * strings, zeros omitted, errors and streams in chunks. */
#include <errno.h>
#include <jansson.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include "calls.h"
#include "etcd.h"
#include "load.h"

#define PROPOSAL (7 * S) /* etcd tries so long to have a proposal accepted */
#define BODY     (1u << 20)
#define ROOM     4096u

struct connection {
  struct member *member;
  int socket;
  pid_t client;
  char *bytes; /* received */
  size_t used, room;
  const char *path, *body; /* of the request, in `bytes` */
  size_t whole;            /* of the request */
};

static const char letters[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/* The caller frees the text; NULL stays NULL. */
static char *decode(const char *text) {
  if (!text)
    return NULL;
  char *bytes = malloc(strlen(text) + 1);
  size_t used = 0;
  unsigned group = 0, bits = 0;
  for (; *text && *text != '='; text++) {
    const char *digit = strchr(letters, *text);
    if (!digit)
      sim_fail("etcd", "a request has no base64");
    group = group << 6 | (unsigned)(digit - letters);
    bits += 6;
    if (bits >= 8)
      bytes[used++] = (char)(group >> (bits -= 8) & 255);
  }
  bytes[used] = '\0';
  return bytes;
}

static void encode(FILE *out, const char *bytes) {
  for (size_t left = strlen(bytes); left > 0; left -= left < 3 ? left : 3, bytes += 3) {
    unsigned group = (unsigned)(unsigned char)bytes[0] << 16;
    group |= left > 1 ? (unsigned)(unsigned char)bytes[1] << 8 : 0;
    group |= left > 2 ? (unsigned)(unsigned char)bytes[2] : 0;
    fprintf(out, "%c%c%c%c", letters[group >> 18], letters[group >> 12 & 63],
            left > 1 ? letters[group >> 6 & 63] : '=', left > 2 ? letters[group & 63] : '=');
  }
}

static bool wait_for(int socket, short events) {
  struct pollfd entry = {.fd = socket, .events = events};
  world_poll(&entry, 1, -1);
  return true;
}

static bool send_all(const struct connection *connection, const char *bytes, size_t length) {
  while (length > 0) {
    struct iovec span = {(void *)(uintptr_t)bytes, length};
    struct msghdr message = {.msg_iov = &span, .msg_iovlen = 1};
    ssize_t sent = world_sendmsg(connection->socket, &message, MSG_NOSIGNAL);
    if (sent < 0 && errno != EAGAIN && errno != EINTR)
      return false;
    if (sent < 0)
      wait_for(connection->socket, POLLOUT);
    else
      bytes += sent, length -= (size_t)sent;
  }
  return true;
}

/* Receives until a whole request is there. */
static bool find_request(struct connection *connection) {
  if (!connection->bytes)
    return false;
  connection->bytes[connection->used] = '\0';
  char *end = strstr(connection->bytes, "\r\n\r\n");
  const char *length = strstr(connection->bytes, "Content-Length: ");
  if (!end || !length || length > end)
    return false;
  connection->whole = (size_t)(end + 4 - connection->bytes) + strtoul(length + 16, NULL, 10);
  if (connection->whole > BODY)
    sim_fail("etcd", "a request of %zu bytes", connection->whole);
  if (connection->used < connection->whole)
    return false;
  connection->path = connection->bytes + strlen("POST ");
  connection->body = end + 4;
  connection->bytes[strcspn(connection->bytes + 5, " ") + 5] = '\0';
  return true;
}

static bool read_request(struct connection *connection) {
  while (!find_request(connection)) {
    if (connection->room - connection->used < ROOM) {
      connection->room += connection->room < ROOM ? ROOM : connection->room;
      connection->bytes = world_realloc(connection->bytes, connection->room + 1);
    }
    ssize_t got = world_recv(connection->socket, connection->bytes + connection->used,
                             connection->room - connection->used, 0);
    if (got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR))
      return false;
    if (got > 0)
      connection->used += (size_t)got;
    else if (errno == EAGAIN)
      wait_for(connection->socket, POLLIN);
  }
  return true;
}

static void skip_request(struct connection *connection) {
  connection->used -= connection->whole;
  memmove(connection->bytes, connection->bytes + connection->whole, connection->used);
}

struct response {
  int status;
  bool chunked;
  FILE *out;
  char *text;
  size_t length;
};

static struct response response_new(void) {
  return (struct response){.status = 200};
}

static void response_open(struct response *response) {
  response->out = open_memstream(&response->text, &response->length);
}

static const char *status_text(int status) {
  return status == 200   ? "OK"
         : status == 400 ? "Bad Request"
         : status == 404 ? "Not Found"
                         : "Service Unavailable";
}

/* The whole response as bytes; the caller frees them. */
static char *response_bytes(const struct response *response, size_t *length) {
  char *bytes;
  FILE *out = open_memstream(&bytes, length);
  bool chunked = response->chunked || response->status != 200 || response->length > 2048;
  fprintf(out, "HTTP/1.1 %d %s\r\nContent-Type: application/json\r\n", response->status,
          status_text(response->status));
  if (chunked)
    fprintf(out, "Transfer-Encoding: chunked\r\n\r\n%zx\r\n%s\r\n0\r\n%s\r\n", response->length,
            response->text,
            response->status == 200 ? "" : "Grpc-Trailer-Content-Type: application/grpc\r\n");
  else
    fprintf(out, "Content-Length: %zu\r\n\r\n%s", response->length, response->text);
  fclose(out);
  return bytes;
}

/* False: the connection ends. Some responses are cut off, some come in two parts. */
static bool respond(const struct connection *connection, struct response *response) {
  size_t length;
  fclose(response->out);
  char *bytes = response_bytes(response, &length);
  free(response->text);
  bool cut_off = sim_chance(etcd_plan.broken);
  size_t first = sim_chance(etcd_plan.broken) || cut_off ? sim_below(length) : length;
  bool sent = send_all(connection, bytes, first);
  if (first < length && !cut_off) {
    pause_for(sim_between(MS, 3 * S));
    sent = sent && send_all(connection, bytes + first, length - first);
  }
  sim_faults += first < length;
  free(bytes);
  return sent && !cut_off;
}

static void write_error(struct response *response, int status, int code, const char *text) {
  response->status = status;
  if (status == 503)
    etcd_refused++;
  response_open(response);
  fprintf(response->out, "{\"error\":\"%s\",\"message\":\"%s\",\"code\":%d}", text, text, code);
}

static void write_header(struct response *response) {
  fprintf(response->out,
          "\"header\":{\"cluster_id\":\"1\",\"member_id\":\"2\",\"revision\":"
          "\"%lld\",\"raft_term\":\"2\"}",
          (long long)store.revision);
}

static void write_pair(FILE *out, const struct change *pair) {
  fputs("{\"key\":\"", out);
  encode(out, pair->key);
  if (pair->value) {
    fprintf(out, "\",\"create_revision\":\"%lld\"", (long long)pair->created);
    fprintf(out, ",\"mod_revision\":\"%lld\",\"version\":\"%lld\",\"value\":\"",
            (long long)pair->revision, (long long)pair->version);
    encode(out, pair->value);
    if (pair->lease)
      fprintf(out, "\",\"lease\":\"%lld", (long long)pair->lease);
    fputs("\"}", out);
  } else {
    fprintf(out, "\",\"mod_revision\":\"%lld\"}", (long long)pair->revision);
  }
}

/* Operations: parsed first, as no fiber may run between their reads and writes */

enum kind { RANGE, PUT, DELETE };

struct request {
  enum kind kind;
  char *key, *end, *value;
  int64_t lease, limit, revision;
};

static int64_t number_in(const json_t *object, const char *name) {
  const json_t *number = json_object_get(object, name);
  const char *text = json_string_value(number);
  return text ? strtoll(text, NULL, 10) : json_integer_value(number);
}

static struct request parse_one(enum kind kind, const json_t *object) {
  return (struct request){.kind = kind,
                          .key = decode(json_string_value(json_object_get(object, "key"))),
                          .end = decode(json_string_value(json_object_get(object, "range_end"))),
                          .value = decode(json_string_value(json_object_get(object, "value"))),
                          .lease = number_in(object, "lease"),
                          .limit = number_in(object, "limit"),
                          .revision = number_in(object, "revision")};
}

static void forget(struct request *request) {
  free(request->key);
  free(request->end);
  free(request->value);
}

static void write_range(struct response *response, const struct request *request) {
  const struct change **found;
  int64_t revision = request->revision ? request->revision : INT64_MAX;
  size_t count = store_range(request->key, request->end, revision, &found), given = count;
  if (request->limit && (size_t)request->limit < given)
    given = (size_t)request->limit;
  write_header(response);
  for (size_t i = 0; i < given; i++) {
    fputs(i ? "," : ",\"kvs\":[", response->out);
    write_pair(response->out, found[i]);
  }
  if (given)
    fputs("]", response->out);
  if (given < count)
    fputs(",\"more\":true", response->out);
  if (count)
    fprintf(response->out, ",\"count\":\"%zu\"", count);
  free(found);
}

static void apply(struct response *response, const struct request *request) {
  static const char *const names[] = {"response_range", "response_put", "response_delete_range"};
  fprintf(response->out, "{\"%s\":{", names[request->kind]);
  if (request->kind == RANGE) {
    write_range(response, request);
  } else {
    if (request->kind == PUT)
      store_put(request->key, request->value, request->lease);
    else
      store_delete(request->key, request->end);
    write_header(response);
  }
  fputs("}}", response->out);
}

/* What the gateway does once the cluster has accepted a request. */
typedef void handler(struct response *response, const json_t *body);

static void handle_range(struct response *response, const json_t *body) {
  struct request request = parse_one(RANGE, body);
  if (request.revision && request.revision < store.compacted) {
    write_error(response, 400, 11, "etcdserver: mvcc: required revision has been compacted");
  } else if (request.revision > store.revision) {
    write_error(response, 400, 11, "etcdserver: mvcc: required revision is a future revision");
  } else {
    response_open(response);
    fputs("{", response->out);
    write_range(response, &request);
    fputs("}", response->out);
  }
  forget(&request);
}

struct comparison {
  char *key;
  bool by_lease;
  int64_t wanted;
};

static struct comparison parse_comparison(const json_t *object) {
  const char *target = json_string_value(json_object_get(object, "target"));
  bool by_lease = target && strcmp(target, "LEASE") == 0;
  return (struct comparison){decode(json_string_value(json_object_get(object, "key"))), by_lease,
                             number_in(object, by_lease ? "lease" : "mod_revision")};
}

static bool holds(const struct comparison *comparison) {
  const struct change *pair = store_find(comparison->key);
  int64_t is = !pair ? 0 : comparison->by_lease ? pair->lease : pair->revision;
  return is == comparison->wanted;
}

static bool leases_exist(const struct request *requests, size_t count) {
  for (size_t i = 0; i < count; i++)
    if (requests[i].kind == PUT && requests[i].lease && !store_lease(requests[i].lease))
      return false;
  return true;
}

static void transact(struct response *response, const struct request *requests, size_t count,
                     bool succeeds) {
  if (succeeds && !leases_exist(requests, count)) {
    write_error(response, 404, 5, "etcdserver: requested lease not found");
    return;
  }
  response_open(response);
  fputs("{", response->out);
  if (succeeds)
    fputs("\"succeeded\":true,", response->out);
  for (size_t i = 0; succeeds && i < count; i++) {
    fputs(i ? "," : "\"responses\":[", response->out);
    apply(response, &requests[i]);
  }
  if (succeeds && count)
    fputs("],", response->out);
  store_commit();
  write_header(response);
  fputs("}", response->out);
}

/* A defect of the module: an entry that no lease removes, or that is no entry. */
static void check_put(const struct request *request) {
  if (!request->key || !request->value || !request->lease || !strstr(request->value, "\"boot\""))
    sim_fail("entries", "%s = %s is put under lease %lld", request->key, request->value,
             (long long)request->lease);
}

static void handle_txn(struct response *response, const json_t *body) {
  const json_t *compare = json_object_get(body, "compare");
  const json_t *success = json_object_get(body, "success");
  struct comparison comparisons[4];
  struct request requests[128];
  size_t compared = json_array_size(compare), count = json_array_size(success);
  if (compared > 4 || count > 128)
    sim_fail("etcd", "a transaction of %zu operations", count);
  for (size_t i = 0; i < compared; i++)
    comparisons[i] = parse_comparison(json_array_get(compare, i));
  for (size_t i = 0; i < count; i++) {
    static const char *const names[] = {"request_range", "request_put", "request_delete_range"};
    const json_t *operation = json_array_get(success, i);
    for (int kind = RANGE; kind <= DELETE; kind++)
      if (json_object_get(operation, names[kind]))
        requests[i] = parse_one((enum kind)kind, json_object_get(operation, names[kind]));
    if (requests[i].kind == PUT)
      check_put(&requests[i]);
  }
  bool succeeds = true;
  for (size_t i = 0; i < compared; i++) {
    succeeds = succeeds && holds(&comparisons[i]);
    free(comparisons[i].key);
  }
  transact(response, requests, count, succeeds);
  for (size_t i = 0; i < count; i++)
    forget(&requests[i]);
}

static void handle_grant(struct response *response, const json_t *body) {
  const struct lease *lease = store_grant(number_in(body, "TTL"));
  response_open(response);
  fputs("{", response->out);
  write_header(response);
  fprintf(response->out, ",\"ID\":\"%lld\",\"TTL\":\"%lld\"}", (long long)lease->id,
          (long long)lease->seconds);
}

static void handle_keepalive(struct response *response, const json_t *body) {
  int64_t id = number_in(body, "ID");
  struct lease *lease = store_lease(id);
  response_open(response);
  response->chunked = true;
  fputs("{\"result\":{", response->out);
  write_header(response);
  fprintf(response->out, ",\"ID\":\"%lld\"", (long long)id);
  if (lease) {
    lease->expires = sim_now + lease->seconds * S;
    fprintf(response->out, ",\"TTL\":\"%lld\"", (long long)lease->seconds);
  }
  fputs("}}\n", response->out);
}

static void handle_revoke(struct response *response, const json_t *body) {
  struct lease *lease = store_lease(number_in(body, "ID"));
  if (!lease) {
    write_error(response, 404, 5, "etcdserver: requested lease not found");
    return;
  }
  store_revoke(lease);
  response_open(response);
  fputs("{", response->out);
  write_header(response);
  fputs("}", response->out);
}

struct watch {
  const struct connection *connection;
  char *key, *end;
  int64_t next; /* revision */
};

static bool send_chunk(const struct watch *watch, struct response *response) {
  char head[24];
  fclose(response->out);
  snprintf(head, sizeof head, "%zx\r\n", response->length);
  bool sent = send_all(watch->connection, head, strlen(head)) &&
              send_all(watch->connection, response->text, response->length) &&
              send_all(watch->connection, "\r\n", 2);
  free(response->text);
  return sent;
}

static void begin_message(struct response *response) {
  *response = response_new();
  response_open(response);
  fputs("{\"result\":{", response->out);
  write_header(response);
}

static bool send_flag(const struct watch *watch, const char *text) {
  struct response response;
  begin_message(&response);
  fprintf(response.out, "%s}}\n", text);
  return send_chunk(watch, &response);
}

/* The events since `next`: those of whole revisions, up to `most`. */
static bool send_events(struct watch *watch, size_t most) {
  struct response response;
  begin_message(&response);
  size_t count = 0;
  int64_t until = store.revision;
  for (size_t i = 0; i < store.change_count && store.changes[i].revision <= until; i++) {
    const struct change *change = &store.changes[i];
    if (change->revision < watch->next || strcmp(change->key, watch->key) < 0 ||
        strcmp(change->key, watch->end) >= 0)
      continue;
    fputs(count++ ? "," : ",\"events\":[", response.out);
    fputs(change->value ? "{\"kv\":" : "{\"type\":\"DELETE\",\"kv\":", response.out);
    write_pair(response.out, change);
    fputs("}", response.out);
    if (count >= most)
      until = change->revision;
  }
  fputs(count ? "]}}\n" : "}}\n", response.out);
  watch->next = until + 1;
  if (count)
    return send_chunk(watch, &response);
  fclose(response.out);
  free(response.text);
  return true;
}

/* Until the client or a fault ends it. */
static void follow(struct watch *watch) {
  const struct member *member = watch->connection->member;
  unsigned cuts = member->cuts;
  struct file *file = file_of(watch->connection->socket);
  struct list *const queues[] = {&store.changed, &file->waiting};
  int64_t progress = sim_now + etcd_plan.progress;
  while (member->cuts == cuts && !(file_ready(file) & EPOLLIN)) {
    bool works = member_works(member), sent = true;
    if (works && watch->next < store.compacted) {
      char text[80];
      snprintf(text, sizeof text, ",\"canceled\":true,\"compact_revision\":\"%lld\"",
               (long long)store.compacted);
      send_flag(watch, text);
      wait_for(watch->connection->socket, POLLIN);
      return;
    }
    if (works && watch->next <= store.revision) {
      sent = send_events(watch, sim_chance(500000) ? 1 : 1000) && !sim_chance(etcd_plan.broken);
    } else {
      fiber_wait(queues, 2, works ? progress : sim_now + 500 * MS);
      if (works && sim_now >= progress) {
        sent = watch->next <= store.revision || send_flag(watch, "");
        progress = sim_now + etcd_plan.progress;
      }
    }
    if (!sent)
      return;
  }
}

static void handle_watch(const struct connection *connection, const json_t *body) {
  const json_t *range = json_object_get(body, "create_request");
  struct request request = parse_one(RANGE, range);
  struct watch watch = {connection, request.key, request.end, number_in(range, "start_revision")};
  static const char head[] = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
                             "Transfer-Encoding: chunked\r\n\r\n";
  if (send_all(connection, head, sizeof head - 1) && send_flag(&watch, ",\"created\":true"))
    follow(&watch);
  forget(&request);
}

static const struct {
  const char *path;
  handler *handle;
  enum purpose purpose;
} routes[] = {{"/v3/kv/range", handle_range, REGISTERS},
              {"/v3/kv/txn", handle_txn, REGISTERS},
              {"/v3/lease/grant", handle_grant, REGISTERS},
              {"/v3/lease/keepalive", handle_keepalive, REGISTERS},
              {"/v3/lease/revoke", handle_revoke, REGISTERS},
              {"/v3/watch", NULL, WATCHES}};
#define ROUTES (sizeof routes / sizeof routes[0])

/* Lookups are transactions without a condition; pages and probes of walks are ranges. */
static enum purpose purpose_of(size_t route, const json_t *body) {
  if (routes[route].handle == handle_txn && !json_array_size(json_object_get(body, "compare")))
    return LOOKS_UP;
  if (routes[route].handle == handle_range && json_object_get(body, "revision"))
    return WATCHES;
  return routes[route].purpose;
}

/* A request that timed out may take effect all the same, once the cluster works again. */
static bool handle_late(const struct connection *connection, size_t route, const json_t *body) {
  struct response response = response_new();
  write_error(&response, 503, 14,
              sim_chance(500000) ? "etcdserver: request timed out" : "etcdserver: no leader");
  bool sent = respond(connection, &response);
  if (!sim_chance(300000) || !member_await(connection->member, sim_now + 10 * S))
    return sent;
  struct response nobody = response_new();
  routes[route].handle(&nobody, body);
  fclose(nobody.out);
  free(nobody.text);
  return sent;
}

static bool handle(const struct connection *connection, size_t route, const json_t *body) {
  struct response response = response_new();
  int64_t patience = sim_chance(500000) ? PROPOSAL : sim_between(0, S);
  bool refused = sim_chance(etcd_plan.errors);
  sim_faults += refused;
  if ((refused && sim_chance(500000)) || !member_await(connection->member, sim_now + patience))
    return handle_late(connection, route, body);
  routes[route].handle(&response, body);
  if (refused && response.status == 200) { /* it took effect */
    fclose(response.out);
    free(response.text);
    write_error(&response, 503, 14, "etcdserver: leader changed");
  }
  return respond(connection, &response);
}

static bool serve_request(struct connection *connection) {
  size_t route = 0;
  while (route < ROUTES && strcmp(connection->path, routes[route].path) != 0)
    route++;
  json_t *body = json_loads(connection->body, 0, NULL);
  if (route == ROUTES || !json_is_object(body))
    sim_fail("etcd", "the request %s %s", connection->path, connection->body);
  count_request(connection->client, purpose_of(route, body));
  pause_for(sim_between(0, etcd_plan.service));
  if (sim_chance(etcd_plan.slow))
    pause_for(sim_between(0, 8 * S));
  bool goes_on = routes[route].handle != NULL;
  if (goes_on)
    goes_on = handle(connection, route, body);
  else
    handle_watch(connection, body);
  json_decref(body);
  return goes_on;
}

static void *connection_main(void *argument) {
  struct connection *connection = argument;
  while (read_request(connection)) {
    sim_trace("etcd: %s of process %d", connection->path, (int)connection->client);
    char end = connection->bytes[connection->whole];
    connection->bytes[connection->whole] = '\0';
    bool goes_on = serve_request(connection);
    connection->bytes[connection->whole] = end;
    if (!goes_on)
      break;
    skip_request(connection);
  }
  world_close(connection->socket);
  world_free(connection->bytes);
  world_free(connection);
  return NULL;
}

static void accept_one(struct member *member, int listener) {
  int socket = world_accept4(listener, NULL, NULL, SOCK_NONBLOCK);
  struct ucred peer = {0};
  socklen_t size = sizeof peer;
  if (socket < 0)
    return;
  world_getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &size);
  struct connection *connection = world_malloc(sizeof *connection);
  *connection = (struct connection){.member = member, .socket = socket, .client = peer.pid};
  fiber_start(process_current(), connection_main, connection)->detached = true;
}

void *gateway_main(void *argument) {
  struct member *member = argument;
  struct sockaddr_in own = {.sin_family = AF_INET, .sin_port = htons(ETCD_PORT)};
  int listener = world_socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
  world_bind(listener, (const struct sockaddr *)&own, sizeof own);
  world_listen(listener, 1000);
  for (;;) {
    wait_for(listener, POLLIN);
    accept_one(member, listener);
  }
}
