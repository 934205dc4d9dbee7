/* SPDX-License-Identifier: MIT
 * The server: its exports, and the thread that passes messages to sessions. */
#include <haul/storage.h>

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include "core/thread.h"
#include "storage/credentials.h"
#include "storage/mapping.h"
#include "storage/service/server.h"
#include "storage/source.h"
#include "storage/util.h"

#define END_WAIT_NS INT64_C(10000000000)

/* Reports a bad folder now, and not to each client. */
static int check_export(const struct haul_storage_export *export,
                        struct haul_storage_error *error) {
  struct source *source;
  int status = local_source_open(export->path, !export->writable, &source);
  if (!status) {
    source->ops->close(source);
    return 0;
  }
  return storage_fail(error, status, status == -ENOTDIR ? "give the folder that contains it" : "",
                      "cannot export %s: %s", export->path, strerror(-status));
}

static int copy_grants(struct haul_storage_export *to, const struct haul_storage_export *from) {
  struct haul_grant *grants = calloc(from->grant_count, sizeof *grants);
  to->grants = grants;
  if (!grants)
    return -ENOMEM;
  for (; to->grant_count < from->grant_count; to->grant_count++) {
    const struct haul_grant *grant = &from->grants[to->grant_count];
    grants[to->grant_count] = (struct haul_grant){strdup(grant->who), grant->rights};
    if (!grants[to->grant_count].who)
      return -ENOMEM;
  }
  return 0;
}

static int copy_export(struct haul_storage_export *to, const struct haul_storage_export *from) {
  to->writable = from->writable;
  to->name = strdup(from->name);
  to->path = strdup(from->path);
  if (!to->name || !to->path)
    return -ENOMEM;
  return from->grant_count ? copy_grants(to, from) : 0;
}

/* -ENOMEM: free_exports is due all the same. */
static int copy_exports(struct exports *exports, const struct haul_storage_export *list,
                        size_t count) {
  int status = 0;
  exports->list = calloc(count ? count : 1, sizeof *exports->list);
  if (!exports->list)
    return -ENOMEM;
  for (size_t i = 0; i < count && !status; i++)
    status = copy_export(&exports->list[exports->count++], &list[i]);
  return status;
}

/* Of a copy, which is const for its users. */
static void free_const(const void *copied) {
  free((void *)(uintptr_t)copied);
}

static void free_exports(struct exports *exports) {
  for (size_t i = 0; i < exports->count; i++) {
    const struct haul_storage_export *export = &exports->list[i];
    for (size_t k = 0; k < export->grant_count; k++)
      free_const(export->grants[k].who);
    free_const(export->grants);
    free_const(export->name);
    free_const(export->path);
  }
  free(exports->list);
}

unsigned export_rights(const struct haul_storage_export *export, const char *identity) {
  unsigned all = HAUL_READ | (export->writable ? HAUL_WRITE : 0u), rights = 0;
  if (export->grant_count == 0)
    return all;
  for (size_t i = 0; i < export->grant_count; i++)
    if (strcmp(export->grants[i].who, "*") == 0 ||
        (*identity && strcmp(export->grants[i].who, identity) == 0))
      rights |= export->grants[i].rights;
  return rights & all;
}

static struct session *find_session(struct service *service, const haul_peer *peer) {
  list_each(item, &service->sessions) {
    struct session *session = list_entry(item, struct session, link);
    if (session->peer == peer)
      return session;
  }
  return NULL;
}

static struct session *admit(struct service *service, const struct haul_message *message) {
  pthread_mutex_lock(&service->lock);
  bool full = service->session_count == SERVICE_SESSIONS;
  pthread_mutex_unlock(&service->lock);
  struct session *session = full ? NULL : session_open(service, message->peer);
  if (session) {
    list_append(&service->sessions, &session->link);
    return session;
  }
  /* Does not block: a peer that does not receive gets no second response. */
  uint8_t bytes[PROTOCOL_RESPONSE_ROOM];
  size_t length = protocol_put_response(PROTOCOL_GREET, full ? -EUSERS : -ENOMEM, NULL, bytes);
  haul_message_send(message->peer, message->tag, bytes, length, HAUL_NO_WAIT);
  return NULL;
}

static void dispatch(struct service *service, struct haul_message *message) {
  struct session *session;
  if (message->kind == HAUL_MESSAGE && message->tag / PROTOCOL_NUMBERS == PROTOCOL_TAG >> 48) {
    session = find_session(service, message->peer);
    if (!session)
      session = admit(service, message);
    if (session) {
      session_take(session, message);
      return;
    }
  } else if (message->kind == HAUL_PEER_LEFT) {
    session = find_session(service, message->peer);
    if (session) {
      list_remove(&session->link);
      session_end(session);
    }
  } else if (message->kind == HAUL_MESSAGE && service->other) {
    service->other(service->user, message);
  }
  haul_message_release(message);
}

/* The wait is bounded, as the owner must not close the node while this thread waits on it. */
static void *receive_messages(void *argument) {
  struct service *service = argument;
  struct haul_message message;
  while (!atomic_load(&service->stops))
    if (haul_message_receive(service->node, &message, haul_deadline_in(PROTOCOL_POLL_NS)) == 0)
      dispatch(service, &message);
  return NULL;
}

/* Limit of one client's nodes: an eighth of the descriptors, as clients' files and the node itself
 * need some, too. */
static size_t max_nodes(void) {
  struct rlimit limit;
  if (getrlimit(RLIMIT_NOFILE, &limit))
    return SERVICE_FILES;
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
  if (limit.rlim_max == RLIM_INFINITY || limit.rlim_max > (1u << 24))
    return 1u << 20;
  return limit.rlim_max / 8 > 64 ? limit.rlim_max / 8 : 64;
}

static void free_service(struct service *service) {
  free_exports(&service->exports);
  views_close(&service->views);
  if (service->guarded)
    sigbus_stop();
  pthread_cond_destroy(&service->changed);
  pthread_mutex_destroy(&service->lock);
  pthread_rwlock_destroy(&service->node_lock);
  free(service);
}

static struct service *new_service(const struct haul_storage_serving *serving) {
  struct service *service = calloc(1, sizeof *service);
  if (!service)
    return NULL;
  service->node = serving->node;
  service->other = serving->other;
  service->user = serving->user;
  service->nodes_max = max_nodes();
  list_init(&service->sessions);
  pthread_mutex_init(&service->lock, NULL);
  pthread_rwlock_init(&service->node_lock, NULL);
  storage_cond_init(&service->changed);
  return service;
}

static int open_service(const struct haul_storage_serving *serving, struct service **out,
                        struct haul_storage_error *error) {
  if (serving->size != sizeof *serving)
    return storage_fail(error, -EINVAL,
                        "install the command and libhaul-storage.so from the same build",
                        "libhaul-storage.so is of another version");
  for (size_t i = 0; i < serving->count; i++) {
    int status = check_export(&serving->exports[i], error);
    if (status)
      return status;
  }
  struct service *service = new_service(serving);
  if (!service)
    return storage_fail(error, -ENOMEM, "", "no memory left");
  umask(0); /* the client has applied its own to each mode */
  int status = sigbus_start();
  service->guarded = !status;
  if (!status)
    status = copy_exports(&service->exports, serving->exports, serving->count);
  if (!status)
    status = views_open(&service->views);
  if (!status)
    status = -thread_start(&service->thread, receive_messages, service);
  if (status) {
    free_service(service);
    return storage_fail(error, status, "", "cannot serve files: %s", strerror(-status));
  }
  *out = service;
  return 0;
}

static void stop_service(struct service *service) {
  atomic_store(&service->stops, true);
  pthread_join(service->thread, NULL);
  pthread_rwlock_wrlock(&service->node_lock);
  service->node = NULL;
  pthread_rwlock_unlock(&service->node_lock);
}

/* -ETIMEDOUT: a worker still blocks, and nothing is freed. */
static int close_service(struct service *service) {
  int64_t until = haul_deadline_in(END_WAIT_NS);
  bool ended = true;
  for (struct list *item; (item = list_take(&service->sessions));)
    session_end(list_entry(item, struct session, link));
  pthread_mutex_lock(&service->lock);
  while (service->session_count > 0 && ended)
    ended = storage_wait(&service->changed, &service->lock, until);
  pthread_mutex_unlock(&service->lock);
  if (!ended)
    return -ETIMEDOUT;
  free_service(service);
  return 0;
}

/* Threads of sessions write for others, and post to NICs. */
static void prepare_service(void) {
  credentials_keep_set_ids(false);
}

__attribute__((visibility("default"))) const struct haul_storage_service haul_storage_service = {
    .prepare = prepare_service,
    .open = open_service,
    .stop = stop_service,
    .close = close_service,
};
