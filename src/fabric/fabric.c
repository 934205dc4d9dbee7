/* SPDX-License-Identifier: MIT */
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "core/error.h"
#include "fabric/transport.h"

extern const struct transport map_transport;
extern const struct transport rdma_transport;
extern const struct transport tcp_transport;

/* Best first. */
static const struct transport *const transports[] = {
    &map_transport,
    &rdma_transport,
    &tcp_transport,
};

#define TRANSPORTS (sizeof transports / sizeof transports[0])
_Static_assert(TRANSPORTS <= TRANSPORTS_MAX, "raise TRANSPORTS_MAX");

const struct transport *transport_at(size_t index) {
  return index < TRANSPORTS ? transports[index] : NULL;
}

const struct transport *transport_named(const char *name) {
  for (size_t i = 0; i < TRANSPORTS; i++)
    if (strcmp(transports[i]->name, name) == 0)
      return transports[i];
  return NULL;
}

int fabric_open(struct fabric *fabric) {
  int code = 0;
  for (size_t i = 0; i < TRANSPORTS && code == 0; i++)
    if (transports[i]->open)
      code = transports[i]->open(fabric);
  return code;
}

void fabric_prepare(struct fabric *fabric) {
  for (size_t i = 0; i < TRANSPORTS; i++)
    if (transports[i]->prepare)
      transports[i]->prepare(fabric);
}

void fabric_close(struct fabric *fabric) {
  for (size_t i = 0; i < TRANSPORTS; i++)
    if (transports[i]->close)
      transports[i]->close(fabric);
}

void fabric_release(struct fabric *fabric) {
  for (size_t i = 0; i < TRANSPORTS; i++)
    if (transports[i]->release)
      transports[i]->release(fabric);
}

bool fabric_help(struct fabric *fabric, uint64_t least) {
  bool helped = false;
  for (size_t i = 0; i < TRANSPORTS && !helped; i++)
    helped = transports[i]->help && transports[i]->help(fabric, least);
  return helped;
}

void fabric_announce(struct fabric *fabric, const struct memory *memory) {
  for (size_t i = 0; i < TRANSPORTS; i++)
    if (transports[i]->announce)
      transports[i]->announce(fabric, memory);
}

void fabric_invalidate(struct fabric *fabric, const struct memory *memory) {
  for (size_t i = 0; i < TRANSPORTS; i++)
    if (transports[i]->invalidate)
      transports[i]->invalidate(fabric, memory);
}

int link_create_endpoints(struct link *link) {
  for (size_t i = 0; i < TRANSPORTS; i++) {
    int code = transports[i]->create(link, &link->endpoints[i]);
    if (code) {
      while (i-- > 0)
        transports[i]->stop(link->endpoints[i], code);
      link_destroy_endpoints(link);
      return code;
    }
    if (!link->endpoints[i]->counters)
      link->endpoints[i]->counters = &link->endpoints[i]->own_counters;
  }
  return 0;
}

void link_connect(struct link *link, haul_deadline until) {
  for (size_t i = 0; i < TRANSPORTS; i++)
    transports[i]->connect(link->endpoints[i], until);
}

static void add_counters(struct endpoint_counters *sums, const struct endpoint_counters *counters) {
#define ADD(field)                                                                                 \
  atomic_fetch_add(&sums->field, atomic_load_explicit(&counters->field, memory_order_relaxed))
  ADD(writes), ADD(reads), ADD(atomics), ADD(bytes_out), ADD(bytes_in);
  ADD(errors), ADD(served), ADD(served_in), ADD(served_out);
#undef ADD
}

void link_stop(struct link *link, int code) {
  for (size_t i = 0; i < TRANSPORTS; i++) {
    transports[i]->stop(link->endpoints[i], code);
    add_counters(&link->fabric->disconnected[i], link->endpoints[i]->counters);
  }
}

void link_destroy_endpoints(struct link *link) {
  for (size_t i = 0; i < TRANSPORTS; i++) {
    if (link->endpoints[i])
      transports[i]->destroy(link->endpoints[i]);
    link->endpoints[i] = NULL;
  }
}

void link_log(const struct link *link, enum log_event event, const char *path, const char *reason) {
  log_write(&link->fabric->log, event,
            (struct haul_log_field[]){{"peer", link->name},
                                      {"identity", link->identity},
                                      {"path", path},
                                      {"reason", reason},
                                      {0}});
}

void link_log_lost(const struct link *link) {
  for (size_t i = 0; i < TRANSPORTS; i++) {
    struct endpoint *endpoint = link->endpoints[i];
    unsigned rails = atomic_exchange(&endpoint->rails_lost, 0);
    char reason[64];
    snprintf(reason, sizeof reason, "%u data connections ended, others go on", rails);
    if (rails > 0)
      link_log(link, LOG_RAIL_LOST, transports[i]->name, reason);
    if (atomic_exchange(&endpoint->lost, false))
      link_log(link, LOG_PATH_LOST, transports[i]->name, endpoint_reason(endpoint));
  }
}

static pthread_mutex_t reasons = PTHREAD_MUTEX_INITIALIZER; /* of all endpoints; taken last */

/* With that lock: whether the endpoint was open. */
static bool end(struct endpoint *endpoint, _Atomic bool *how) {
  atomic_store(how, true);
  bool was_open = atomic_exchange(&endpoint->open, false);
  atomic_store(&endpoint->lost, was_open || atomic_load(&endpoint->lost));
  return was_open;
}

/* `rest`: behind the stored reason; NULL: no reason holds. */
static const char *reason_with(const struct endpoint *endpoint, const char *rest) {
  static _Thread_local char text[sizeof endpoint->close_reason];
  pthread_mutex_lock(&reasons);
  snprintf(text, sizeof text, "%.170s%s", rest ? endpoint->close_reason : "", rest ? rest : "");
  pthread_mutex_unlock(&reasons);
  return text;
}

const char *endpoint_reason(const struct endpoint *endpoint) {
  return reason_with(endpoint, endpoint_is_closed(endpoint)          ? ""
                               : atomic_load(&endpoint->interrupted) ? "; connecting again"
                                                                     : NULL);
}

const char *endpoint_interruption(const struct endpoint *endpoint, int64_t since) {
  bool came = atomic_load(&endpoint->open) && atomic_load(&endpoint->interrupted_at) >= since;
  return reason_with(endpoint, came ? "; connected again" : NULL);
}

static void close_endpoint(struct endpoint *endpoint, enum log_event event, const char *format,
                           va_list arguments) {
  pthread_mutex_lock(&reasons);
  bool first = !endpoint->closed;
  if (first)
    vsnprintf(endpoint->close_reason, sizeof endpoint->close_reason, format, arguments);
  bool was_open = end(endpoint, &endpoint->closed);
  pthread_mutex_unlock(&reasons);
  if (link_has_abandoned(endpoint->link)) /* waiting works see the change */
    loop_wake(endpoint->link->fabric->loop);
  if (first && !was_open && !atomic_load(&endpoint->link->ended))
    link_log(endpoint->link, event, endpoint->transport->name, endpoint->close_reason);
}

void endpoint_close(struct endpoint *endpoint, const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  close_endpoint(endpoint, LOG_PATH_CLOSED, format, arguments);
  va_end(arguments);
}

void endpoint_interrupt(struct endpoint *endpoint, const char *reason) {
  pthread_mutex_lock(&reasons);
  if (!endpoint->closed && !endpoint->interrupted)
    snprintf(endpoint->close_reason, sizeof endpoint->close_reason, "%.150s", reason);
  atomic_store(&endpoint->interrupted_at, clock_now());
  end(endpoint, &endpoint->interrupted);
  pthread_mutex_unlock(&reasons);
  loop_wake(endpoint->link->fabric->loop); /* works that wait see it */
  loop_notify(endpoint->link->fabric->loop);
}

void endpoint_resume(struct endpoint *endpoint) {
  if (endpoint_is_closed(endpoint))
    return;
  link_log_lost(endpoint->link); /* first */
  bool restored = atomic_exchange(&endpoint->interrupted, false);
  atomic_store(&endpoint->open, true);
  loop_notify(endpoint->link->fabric->loop);
  if (restored)
    link_log(endpoint->link, LOG_PATH_RESTORED, endpoint->transport->name, NULL);
}

void endpoint_failed(struct endpoint *endpoint, const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  close_endpoint(endpoint, LOG_PATH_FAILED, format, arguments);
  va_end(arguments);
}

void endpoint_set_abandoned(struct endpoint *endpoint, bool abandoned) {
  struct link *link = endpoint->link;
  uint32_t bit = 1u << endpoint->transport->index;
  if (abandoned) {
    atomic_fetch_or(&link->abandoned, bit);
    return;
  }
  atomic_fetch_and(&link->abandoned, ~bit);
  loop_wake(link->fabric->loop);
  loop_notify(link->fabric->loop); /* messages wait too */
}

static bool is_settled(void *user) {
  struct endpoint *endpoint = user;
  struct loop *loop = endpoint->link->fabric->loop;
  loop_lock(loop);
  bool settled = atomic_load(&endpoint->open) || endpoint_is_closed(endpoint) ||
                 atomic_load(&endpoint->interrupted) || atomic_load(&endpoint->link->ended);
  loop_unlock(loop);
  return settled;
}

bool endpoint_wait_settled(struct endpoint *endpoint, haul_deadline until) {
  return loop_wait(endpoint->link->fabric->loop, is_settled, NULL, endpoint, until);
}

void endpoint_close_unless_open(struct endpoint *endpoint, const char *before, const char *detail) {
  struct loop *loop = endpoint->link->fabric->loop;
  loop_lock(loop);
  if (!atomic_load(&endpoint->open) && !endpoint_is_closed(endpoint) &&
      !atomic_load(&endpoint->interrupted))
    endpoint_failed(endpoint, "%s%.120s", before, detail);
  loop_unlock(loop);
}

void endpoint_trace_served(const struct endpoint *endpoint, enum haul_trace_kind kind,
                           enum haul_operation operation, uint64_t request, uint64_t bytes,
                           int code) {
  trace_write(&endpoint->link->fabric->trace,
              (struct trace_event){.kind = (uint8_t)kind,
                                   .operation = (uint8_t)operation,
                                   .path = (uint8_t)endpoint->transport->index,
                                   .transfer = request,
                                   .peer = endpoint->link->number,
                                   .bytes = bytes,
                                   .status = code});
}

struct channel_request *channel_request_find(struct list *requests, uint32_t id) {
  list_each(item, requests) {
    struct channel_request *request = list_entry(item, struct channel_request, link);
    if (request->id == id)
      return request;
  }
  return NULL;
}

void channel_request_end(struct channel_request *request, int code) {
  list_remove(&request->link);
  request->code = code;
  if (code)
    error_save(&request->error);
  request->done = true;
  loop_notify(request->endpoint->link->fabric->loop);
}

void channel_requests_fail(struct list *requests, int code) {
  while (!list_empty(requests)) {
    struct channel_request *request = list_entry(requests->next, struct channel_request, link);
    error_set(code, 0, NULL, NULL, "%s", endpoint_reason(request->endpoint));
    channel_request_end(request, code);
  }
}

static bool is_request_done(void *user) {
  const struct channel_request *request = user;
  struct loop *loop = request->endpoint->link->fabric->loop;
  loop_lock(loop);
  bool done = request->done;
  loop_unlock(loop);
  return done;
}

int channel_request_wait(struct channel_request *request, haul_deadline until) {
  struct loop *loop = request->endpoint->link->fabric->loop;
  loop_wait(loop, is_request_done, NULL, request, until);
  loop_lock(loop);
  list_remove(&request->link);
  loop_unlock(loop);
  if (!request->done)
    return error_set(HAUL_ETIMEDOUT, 0, NULL, NULL,
                     "the peer did not respond to a request for its memory");
  return request->code ? error_restore(&request->error) : 0;
}
