/* SPDX-License-Identifier: MIT
 * One client: its queue and the threads that work on it. */
#include <errno.h>
#include <stdlib.h>

#include "core/thread.h"
#include "storage/credentials.h"
#include "storage/service/server.h"

struct task {
  struct list link;
  struct haul_message message;
};

static void free_task(struct task *task) {
  haul_message_release(&task->message);
  free(task);
}

static void destroy(struct session *session) {
  struct service *service = session->service;
  list_each_safe(item, &session->queue) free_task(list_entry(item, struct task, link));
  held_close(session);
  if (session->source)
    session->source->ops->close(session->source);
  haul_peer_close(session->peer);
  pthread_cond_destroy(&session->work);
  pthread_mutex_destroy(&session->lock);
  free(session);
  pthread_mutex_lock(&service->lock);
  service->session_count--;
  pthread_cond_broadcast(&service->changed);
  pthread_mutex_unlock(&service->lock);
}

static void drop(struct session *session) {
  pthread_mutex_lock(&session->lock);
  bool last = --session->holders == 0;
  pthread_mutex_unlock(&session->lock);
  if (last)
    destroy(session);
}

static void shut(struct session *session) {
  pthread_mutex_lock(&session->lock);
  session->ended = true;
  pthread_cond_broadcast(&session->work);
  pthread_mutex_unlock(&session->lock);
}

/* NULL: the session has ended. */
static struct task *next_task(struct session *session) {
  struct list *item = NULL;
  pthread_mutex_lock(&session->lock);
  session->idle++;
  while (!session->ended && !(item = list_take(&session->queue)))
    pthread_cond_wait(&session->work, &session->lock);
  session->idle--;
  if (item) {
    session->queued--;
    session->under_way++;
  }
  pthread_mutex_unlock(&session->lock);
  return item ? list_entry(item, struct task, link) : NULL;
}

/* Before the answer goes out: who has it may ask again. */
static void task_is_done(struct session *session) {
  pthread_mutex_lock(&session->lock);
  session->under_way--;
  pthread_mutex_unlock(&session->lock);
}

static void forget_all(const struct session *session, const struct protocol_request *request) {
  for (unsigned i = 0; session->source && i < request->forget_count; i++)
    session->source->ops->forget(session->source, request->forgets[i].node,
                                 request->forgets[i].count);
}

/* False: the client is none that one can talk to. */
static bool work_on(struct worker_desk *desk, const struct task *task) {
  struct session *session = desk->session;
  const struct haul_message *message = &task->message;
  int status = protocol_get_request(message->bytes, message->length, &desk->request);
  desk->answer = (struct protocol_fields){0};
  if (status == -EPROTO)
    return false;
  if (!status) {
    forget_all(session, &desk->request);
    status = answer_request(desk);
  }
  size_t length =
      protocol_put_answer(desk->request.operation, status, &desk->answer, desk->message);
  task_is_done(session);
  return length && haul_message_send(session->peer, message->tag, desk->message, length,
                                     haul_deadline_in(SERVICE_WAIT_NS)) == 0;
}

static void *run(void *argument) {
  struct worker_desk *desk = argument;
  struct session *session = desk->session;
  credentials_keep_set_ids(false);
  for (struct task *task; (task = next_task(session));) {
    if (!work_on(desk, task))
      shut(session);
    free_task(task);
  }
  free(desk);
  drop(session);
  return NULL;
}

/* The lock. */
static int hire(struct session *session) {
  pthread_t thread;
  struct worker_desk *desk = malloc(sizeof *desk);
  if (!desk)
    return -ENOMEM;
  desk->session = session;
  session->workers++;
  session->holders++;
  int status = -thread_start(&thread, run, desk);
  if (status) {
    session->workers--;
    session->holders--;
    free(desk);
    return status;
  }
  pthread_detach(thread);
  return 0;
}

struct session *session_open(struct service *service, haul_peer *peer) {
  struct session *session = calloc(1, sizeof *session);
  if (!session)
    return NULL;
  session->service = service;
  session->peer = haul_peer_retain(peer);
  session->holders = 1;
  list_init(&session->queue);
  pthread_mutex_init(&session->lock, NULL);
  pthread_cond_init(&session->work, NULL);
  pthread_mutex_lock(&service->lock);
  service->session_count++;
  pthread_mutex_unlock(&service->lock);
  pthread_mutex_lock(&session->lock);
  int status = hire(session);
  pthread_mutex_unlock(&session->lock);
  if (!status)
    return session;
  drop(session);
  return NULL;
}

/* The lock. A client knows how many requests it may have under way, and how long they are. */
static bool may_queue(const struct session *session, const struct haul_message *message) {
  return !session->ended && message->length <= PROTOCOL_REQUEST_ROOM &&
         session->queued + session->under_way < SERVICE_DEPTH;
}

void session_take(struct session *session, struct haul_message *message) {
  struct task *task = calloc(1, sizeof *task);
  pthread_mutex_lock(&session->lock);
  if (!task || !may_queue(session, message)) {
    session->ended = true;
    pthread_cond_broadcast(&session->work);
    pthread_mutex_unlock(&session->lock);
    haul_message_release(message);
    free(task);
    return;
  }
  task->message = *message;
  list_append(&session->queue, &task->link);
  session->queued++;
  /* One more does no harm when it cannot be had: there is one. */
  if (session->queued > session->idle && session->workers < SERVICE_WORKERS)
    hire(session);
  pthread_cond_signal(&session->work);
  pthread_mutex_unlock(&session->lock);
}

void session_end(struct session *session) {
  shut(session);
  drop(session);
}
