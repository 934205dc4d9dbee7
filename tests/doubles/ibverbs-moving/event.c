/* SPDX-License-Identifier: MIT
 * Asynchronous events, in a queue for each context. */
#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

#include "moving.h"

#define EVENTS_MAX   64u
#define CONTEXTS_MAX 128u

struct events {
  pthread_mutex_t lock;
  uint32_t count;
  struct ibv_async_event list[EVENTS_MAX];
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* guards the list */
static struct ibv_context *contexts[CONTEXTS_MAX];

static bool replace(const struct ibv_context *from, struct ibv_context *to) {
  bool found = false;
  pthread_mutex_lock(&lock);
  for (unsigned i = 0; i < CONTEXTS_MAX && !found; i++) {
    found = contexts[i] == from;
    if (found)
      contexts[i] = to;
  }
  pthread_mutex_unlock(&lock);
  return found;
}

int emulator_begin_context(struct double_context *context) {
  struct events *events = calloc(1, sizeof *events);
  if (!events)
    return ENOMEM;
  pthread_mutex_init(&events->lock, NULL);
  context->emulator = events;
  context->verbs.context.ops.post_send = qp_post_send;
  context->verbs.context.ops.post_recv = qp_post_receive;
  context->verbs.context.ops.post_srq_recv = srq_post_receive;
  context->verbs.context.ops.poll_cq = cq_poll;
  context->verbs.context.ops.req_notify_cq = cq_arm;
  DEMAND(replace(NULL, &context->verbs.context));
  return 0;
}

void emulator_end_context(struct double_context *context) {
  struct events *events = context->emulator;
  replace(&context->verbs.context, NULL);
  pthread_mutex_destroy(&events->lock);
  free(events);
}

/* A full queue drops events, as the kernel does. */
void raise_event(struct ibv_context *context, enum ibv_event_type type, void *element) {
  struct events *events = double_context_of(context)->emulator;
  pthread_mutex_lock(&events->lock);
  if (events->count < EVENTS_MAX) {
    struct ibv_async_event *event = &events->list[events->count++];
    *event = (struct ibv_async_event){.event_type = type};
    if (type == IBV_EVENT_CQ_ERR)
      event->element.cq = element;
    else if (element)
      event->element.qp = element;
    DEMAND(write(context->async_fd, &(uint64_t){1}, 8) == 8);
  }
  pthread_mutex_unlock(&events->lock);
}

void raise_everywhere(enum ibv_event_type type) {
  pthread_mutex_lock(&lock);
  for (unsigned i = 0; i < CONTEXTS_MAX; i++)
    if (contexts[i])
      raise_event(contexts[i], type, NULL);
  pthread_mutex_unlock(&lock);
}

/* With the queue's lock. */
static void take_out(struct events *events, uint32_t at) {
  for (events->count--; at < events->count; at++)
    events->list[at] = events->list[at + 1];
}

void forget_events(struct ibv_context *context, const void *element) {
  struct events *events = double_context_of(context)->emulator;
  uint64_t one;
  pthread_mutex_lock(&events->lock);
  for (uint32_t i = events->count; i-- > 0;) {
    if (events->list[i].element.qp != element)
      continue;
    take_out(events, i);
    DEMAND(read(context->async_fd, &one, sizeof one) == (ssize_t)sizeof one);
  }
  pthread_mutex_unlock(&events->lock);
}

int ibv_get_async_event(struct ibv_context *context, struct ibv_async_event *event) {
  struct events *events = double_context_of(context)->emulator;
  uint64_t one;
  if (read(context->async_fd, &one, sizeof one) != (ssize_t)sizeof one)
    return -1;
  pthread_mutex_lock(&events->lock);
  DEMAND(events->count > 0);
  *event = events->list[0];
  take_out(events, 0);
  pthread_mutex_unlock(&events->lock);
  return 0;
}

void ibv_ack_async_event(struct ibv_async_event *event) {
  DEMAND(event);
}
