/* SPDX-License-Identifier: MIT
 * A client's session: its handles, its queue, and the threads that serve it. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "core/thread.h"
#include "storage/credentials.h"
#include "storage/service/server.h"

#define REGION_BITS 9 /* of a region's number, for its entry */
_Static_assert(SERVICE_REGIONS < 1u << REGION_BITS, "an entry's number has too few bits");

struct task {
  struct list link;
  struct haul_message message;
};

/* With the lock. NULL: the table is full. */
static struct session_handle *free_handle(struct session_handle *table, uint32_t count) {
  for (uint32_t i = 0; i < count; i++)
    if (!table[i].object)
      return &table[i];
  return NULL;
}

/* With the lock. Numbers count from 1. NULL: none with this number. */
static struct session_handle *find_handle(struct session_handle *table, uint32_t count,
                                          uint32_t number) {
  if (number == 0 || number > count || !table[number - 1].object || table[number - 1].released)
    return NULL;
  return &table[number - 1];
}

/* With the lock, which it releases, as releasing an object may block. Returns the object if it was
 * released and has no users, else NULL. Safe on NULL. */
static void *unlock_and_reap(struct session *session, struct session_handle *handle) {
  void *object = NULL;
  if (handle && handle->released && handle->users == 0) {
    object = handle->object;
    handle->object = NULL;
  }
  pthread_mutex_unlock(&session->lock);
  return object;
}

/* A file's handle is its number, with the entry's generation in the upper half. With the lock. */
static struct session_handle *find_file(struct session *session, uint64_t handle) {
  struct session_handle *found = find_handle(session->files, SERVICE_FILES, (uint32_t)handle);
  return found && found->generation == handle >> 32 ? found : NULL;
}

int session_add_file(struct session *session, struct source_file *file, uint64_t *handle) {
  pthread_mutex_lock(&session->lock);
  struct session_handle *slot = free_handle(session->files, SERVICE_FILES);
  if (slot) {
    *slot = (struct session_handle){.object = file, .generation = slot->generation + 1};
    *handle = (uint64_t)slot->generation << 32 | (uint64_t)(slot - session->files + 1);
  }
  pthread_mutex_unlock(&session->lock);
  return slot ? 0 : -EMFILE;
}

struct source_file *session_get_file(struct session *session, uint64_t handle) {
  pthread_mutex_lock(&session->lock);
  struct session_handle *found = find_file(session, handle);
  if (found)
    found->users++;
  pthread_mutex_unlock(&session->lock);
  return found ? found->object : NULL;
}

/* With the lock, which it releases. */
static void unlock_file(struct session *session, struct session_handle *handle) {
  struct source_file *file = unlock_and_reap(session, handle);
  if (file)
    session->source->ops->release(session->source, file);
}

void session_put_file(struct session *session, uint64_t handle) {
  struct session_handle *used = &session->files[(uint32_t)handle - 1];
  pthread_mutex_lock(&session->lock);
  used->users--;
  unlock_file(session, used);
}

int session_release_file(struct session *session, uint64_t handle) {
  pthread_mutex_lock(&session->lock);
  struct session_handle *found = find_file(session, handle);
  if (found)
    found->released = true;
  unlock_file(session, found);
  return found ? 0 : -ESTALE;
}

/* A region's number is its entry's, with the generation above it. */
static uint32_t region_number(const struct session *session, const struct session_handle *region) {
  return region->generation << REGION_BITS | (uint32_t)(region - session->regions + 1);
}

/* The entry of a number that session_get_region has found. */
static struct session_handle *region_entry(struct session *session, uint32_t number) {
  return &session->regions[number % (1u << REGION_BITS) - 1];
}

/* With the lock. */
static struct session_handle *find_region(struct session *session, uint32_t number) {
  struct session_handle *found =
      find_handle(session->regions, SERVICE_REGIONS, number % (1u << REGION_BITS));
  return found && region_number(session, found) == number ? found : NULL;
}

int session_add_region(struct session *session, const char *name, uint32_t *number) {
  haul_remote *remote;
  int code = haul_peer_lookup(session->peer, name, haul_deadline_in(SERVICE_WAIT_NS), &remote);
  if (code)
    return protocol_errno(code);
  pthread_mutex_lock(&session->lock);
  struct session_handle *slot = free_handle(session->regions, SERVICE_REGIONS);
  if (slot) {
    *slot = (struct session_handle){.object = remote, .generation = slot->generation + 1};
    *number = region_number(session, slot);
  }
  pthread_mutex_unlock(&session->lock);
  if (slot)
    return 0;
  haul_remote_release(remote);
  return -ENFILE;
}

haul_remote *session_get_region(struct session *session, uint32_t number) {
  pthread_mutex_lock(&session->lock);
  struct session_handle *found = find_region(session, number);
  if (found)
    found->users++;
  pthread_mutex_unlock(&session->lock);
  return found ? found->object : NULL;
}

void session_put_region(struct session *session, uint32_t number) {
  struct session_handle *used = region_entry(session, number);
  pthread_mutex_lock(&session->lock);
  used->users--;
  haul_remote_release(unlock_and_reap(session, used));
}

int session_release_region(struct session *session, uint32_t number) {
  pthread_mutex_lock(&session->lock);
  struct session_handle *found = find_region(session, number);
  if (found)
    found->released = true;
  haul_remote_release(unlock_and_reap(session, found));
  return found ? 0 : -ENXIO;
}

int session_add_temporary(struct session *session, uint64_t folder, const char *name) {
  int status = -EMFILE;
  pthread_mutex_lock(&session->lock);
  for (unsigned i = 0; i < SERVICE_TEMPORARIES && status; i++) {
    struct session_temporary *temporary = &session->temporaries[i];
    if (*temporary->name)
      continue;
    temporary->folder = folder;
    snprintf(temporary->name, sizeof temporary->name, "%s", name);
    status = 0;
  }
  pthread_mutex_unlock(&session->lock);
  return status;
}

void session_drop_temporary(struct session *session, uint64_t folder, const char *name) {
  pthread_mutex_lock(&session->lock);
  for (unsigned i = 0; i < SERVICE_TEMPORARIES; i++) {
    struct session_temporary *temporary = &session->temporaries[i];
    if (temporary->folder == folder && strcmp(temporary->name, name) == 0)
      temporary->name[0] = '\0';
  }
  pthread_mutex_unlock(&session->lock);
}

/* Without users. */
static void close_handles(struct session *session) {
  for (unsigned i = 0; i < SERVICE_TEMPORARIES; i++) {
    const struct session_temporary *temporary = &session->temporaries[i];
    if (*temporary->name)
      session->source->ops->unlink(session->source, temporary->folder, temporary->name, 0);
  }
  for (unsigned i = 0; i < SERVICE_FILES; i++)
    if (session->files[i].object)
      session->source->ops->release(session->source, session->files[i].object);
  for (unsigned i = 0; i < SERVICE_REGIONS; i++)
    haul_remote_release(session->regions[i].object);
}

static void free_task(struct task *task) {
  haul_message_release(&task->message);
  free(task);
}

static void free_session(struct session *session) {
  struct service *service = session->service;
  list_each_safe(item, &session->queue) free_task(list_entry(item, struct task, link));
  close_handles(session);
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

static void put_session(struct session *session) {
  pthread_mutex_lock(&session->lock);
  bool last = --session->references == 0;
  pthread_mutex_unlock(&session->lock);
  if (last)
    free_session(session);
}

static void stop_session(struct session *session) {
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

/* False: the client breaks the protocol, or does not receive. */
static bool serve_request(struct service_job *job, const struct task *task) {
  struct session *session = job->session;
  const struct haul_message *message = &task->message;
  int status = protocol_get_request(message->bytes, message->length, &job->request);
  job->response = (struct protocol_fields){.bytes = job->bytes};
  if (status == -EPROTO)
    return false;
  if (!status) {
    for (unsigned i = 0; session->source && i < job->request.forget_count; i++)
      session->source->ops->forget(session->source, job->request.forgets[i].node,
                                   job->request.forgets[i].count);
    status = handle_request(job);
  }
  size_t length =
      protocol_put_response(job->request.operation, status, &job->response, job->message);
  /* Before the response is sent, as its receiver may send the next request at once. */
  pthread_mutex_lock(&session->lock);
  session->under_way--;
  pthread_mutex_unlock(&session->lock);
  return length && haul_message_send(session->peer, message->tag, job->message, length,
                                     haul_deadline_in(SERVICE_WAIT_NS)) == 0;
}

static void *run_worker(void *argument) {
  struct service_job *job = argument;
  struct session *session = job->session;
  credentials_keep_set_ids(false);
  for (struct task *task; (task = next_task(session));) {
    if (!serve_request(job, task))
      stop_session(session);
    free_task(task);
  }
  free(job);
  put_session(session);
  return NULL;
}

/* With the lock. */
static int start_worker(struct session *session) {
  pthread_t thread;
  struct service_job *job = malloc(sizeof *job);
  if (!job)
    return -ENOMEM;
  job->session = session;
  job->caller = (struct source_caller){.uid = geteuid(), .gid = getegid(), .checked = true};
  int status = -thread_start(&thread, run_worker, job);
  if (status) {
    free(job);
    return status;
  }
  session->workers++;
  session->references++;
  pthread_detach(thread);
  return 0;
}

struct session *session_open(struct service *service, haul_peer *peer) {
  struct session *session = calloc(1, sizeof *session);
  if (!session)
    return NULL;
  session->service = service;
  session->peer = haul_peer_retain(peer);
  session->references = 1;
  list_init(&session->queue);
  pthread_mutex_init(&session->lock, NULL);
  pthread_cond_init(&session->work, NULL);
  pthread_mutex_lock(&service->lock);
  service->session_count++;
  pthread_mutex_unlock(&service->lock);
  pthread_mutex_lock(&session->lock);
  int status = start_worker(session);
  pthread_mutex_unlock(&session->lock);
  if (!status)
    return session;
  put_session(session);
  return NULL;
}

/* With the lock. A client that exceeds the limits of GREET's response is disconnected. */
static bool may_queue(const struct session *session, const struct haul_message *message) {
  return !session->ended && message->length <= PROTOCOL_REQUEST_ROOM &&
         session->queued + session->under_way < SERVICE_DEPTH;
}

void session_take(struct session *session, struct haul_message *message) {
  struct task *task = calloc(1, sizeof *task);
  pthread_mutex_lock(&session->lock);
  if (!task || !may_queue(session, message)) {
    pthread_mutex_unlock(&session->lock);
    stop_session(session);
    haul_message_release(message);
    free(task);
    return;
  }
  task->message = *message;
  list_append(&session->queue, &task->link);
  session->queued++;
  /* May fail: the session has one worker at least. */
  if (session->queued > session->idle && session->workers < SERVICE_WORKERS)
    start_worker(session);
  pthread_cond_signal(&session->work);
  pthread_mutex_unlock(&session->lock);
}

void session_end(struct session *session) {
  stop_session(session);
  put_session(session);
}
