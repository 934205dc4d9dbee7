/* SPDX-License-Identifier: MIT
 * The server: what it exports, and the thread that hands messages to sessions. */
#include <haul/storage.h>

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>

#include "core/thread.h"
#include "storage/error.h"
#include "storage/mapping.h"
#include "storage/service/server.h"
#include "storage/source.h"

#define END_WAIT_S 10

/* ---- Messages ---- */

static struct session *find_session(struct service *service, const haul_peer *peer) {
  list_each(item, &service->sessions) {
    struct session *session = list_entry(item, struct session, link);
    if (session->peer == peer)
      return session;
  }
  return NULL;
}

static void peer_left(struct service *service, const haul_peer *peer) {
  struct session *session = find_session(service, peer);
  if (!session)
    return;
  list_remove(&session->link);
  session_end(session);
}

/* Without waiting: who has not read the one word sent so far is not owed another one. */
static void refuse(const struct haul_message *message, int status) {
  uint8_t bytes[PROTOCOL_ANSWER_ROOM];
  size_t length = protocol_put_answer(PROTOCOL_GREET, status, NULL, bytes);
  haul_message_send(message->peer, message->tag, bytes, length, HAUL_NO_WAIT);
}

static struct session *admit(struct service *service, const struct haul_message *message) {
  pthread_mutex_lock(&service->lock);
  bool full = service->session_count == SERVICE_SESSIONS;
  pthread_mutex_unlock(&service->lock);
  struct session *session = full ? NULL : session_open(service, message->peer);
  if (session)
    list_append(&service->sessions, &session->link);
  else
    refuse(message, full ? -EUSERS : -ENOMEM);
  return session;
}

static bool is_ours(const struct haul_message *message) {
  return message->kind == HAUL_MESSAGE && message->tag / PROTOCOL_NUMBERS == PROTOCOL_TAG >> 48;
}

static void take(struct service *service, struct haul_message *message) {
  if (is_ours(message)) {
    struct session *session = find_session(service, message->peer);
    if (!session)
      session = admit(service, message);
    if (session) {
      session_take(session, message);
      return;
    }
  } else if (message->kind == HAUL_PEER_LEFT) {
    peer_left(service, message->peer);
  } else if (message->kind == HAUL_MESSAGE && service->other) {
    service->other(service->user, message);
  }
  haul_message_release(message);
}

/* A node that is being closed is none to wait on, so this looks for its end now and then. */
static void *run(void *argument) {
  struct service *service = argument;
  struct haul_message message;
  while (!atomic_load(&service->stops))
    if (haul_message_receive(service->node, &message, haul_deadline_in(PROTOCOL_LOOK_NS)) == 0)
      take(service, &message);
  return NULL;
}

/* ---- Opening ---- */

/* A client's files and regions, and those of the node itself, are to be there besides nodes. */
static size_t share_of_descriptors(void) {
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
  exported_free(&service->exports);
  views_close(&service->views);
  if (service->guarded)
    sigbus_stop();
  pthread_cond_destroy(&service->changed);
  pthread_mutex_destroy(&service->lock);
  pthread_rwlock_destroy(&service->node_lock);
  free(service);
}

static struct service *make(const struct haul_storage_serving *serving) {
  pthread_condattr_t monotonic;
  struct service *service = calloc(1, sizeof *service);
  if (!service)
    return NULL;
  service->node = serving->node;
  service->other = serving->other;
  service->user = serving->user;
  service->nodes_max = share_of_descriptors();
  list_init(&service->sessions);
  pthread_mutex_init(&service->lock, NULL);
  pthread_rwlock_init(&service->node_lock, NULL);
  pthread_condattr_init(&monotonic);
  pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
  pthread_cond_init(&service->changed, &monotonic);
  pthread_condattr_destroy(&monotonic);
  return service;
}

static int open_service(const struct haul_storage_serving *serving, struct service **out,
                        struct haul_storage_error *error) {
  if (serving->size != sizeof *serving)
    return storage_fail(error, -EINVAL, "install both from one build",
                        "libhaul-storage.so is of another version");
  for (size_t i = 0; i < serving->count; i++) {
    int status = exported_check(&serving->exports[i], error);
    if (status)
      return status;
  }
  struct service *service = make(serving);
  if (!service)
    return storage_fail(error, -ENOMEM, "", "no memory left");
  umask(0); /* a mode comes as the client's umask has left it */
  int status = sigbus_start();
  service->guarded = !status;
  if (!status)
    status = exported_copy(&service->exports, serving->exports, serving->count);
  if (!status)
    status = views_open(&service->views);
  if (!status)
    status = -thread_start(&service->thread, run, service);
  if (status) {
    free_service(service);
    return storage_fail(error, status, "", "cannot serve files: %s", strerror(-status));
  }
  *out = service;
  return 0;
}

/* ---- Closing ---- */

static void stop_service(struct service *service) {
  atomic_store(&service->stops, true);
  pthread_join(service->thread, NULL);
  pthread_rwlock_wrlock(&service->node_lock);
  service->node = NULL;
  pthread_rwlock_unlock(&service->node_lock);
}

static int close_service(struct service *service) {
  struct timespec until;
  int status = 0;
  for (struct list *item; (item = list_take(&service->sessions));)
    session_end(list_entry(item, struct session, link));
  clock_gettime(CLOCK_MONOTONIC, &until);
  until.tv_sec += END_WAIT_S;
  pthread_mutex_lock(&service->lock);
  while (service->session_count > 0 && !status)
    status = -pthread_cond_timedwait(&service->changed, &service->lock, &until);
  pthread_mutex_unlock(&service->lock);
  if (!status)
    free_service(service);
  return status;
}

__attribute__((visibility("default"))) const struct haul_storage_service haul_storage_service = {
    .open = open_service,
    .stop = stop_service,
    .close = close_service,
};
