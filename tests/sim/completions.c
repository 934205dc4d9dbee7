/* SPDX-License-Identifier: MIT
 * Completion queues, their channels, and asynchronous events. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>

#include "calls.h"
#include "verbs.h"

struct event_queue *event_queue_open(int *descriptor) {
  struct event_queue *queue = calloc(1, sizeof *queue);
  file_init(&queue->file, FILE_NIC);
  *descriptor = file_install(&queue->file);
  return *descriptor < 0 ? NULL : queue;
}

uint32_t event_queue_ready(struct file *file) {
  return ((struct event_queue *)file)->waiting > 0 ? EPOLLIN : 0;
}

static void count_up(struct event_queue *queue) {
  queue->waiting++;
  file_changed(&queue->file);
}

/* A full queue drops events, as the kernel does. */
void events_raise(struct context *context, enum ibv_event_type type, void *element) {
  if (context->count == EVENTS_MOST)
    return;
  struct ibv_async_event *event = &context->events[context->count++];
  *event = (struct ibv_async_event){.event_type = type};
  if (type == IBV_EVENT_CQ_ERR)
    event->element.cq = element;
  else if (element)
    event->element.qp = element;
  else
    event->element.port_num = 1;
  count_up(context->queue);
}

static void take_out(struct context *context, unsigned at) {
  context->queue->waiting--;
  context->count--;
  memmove(&context->events[at], &context->events[at + 1],
          (context->count - at) * sizeof context->events[0]);
}

void events_forget(struct context *context, const void *element) {
  for (unsigned i = context->count; i-- > 0;)
    if (context->events[i].element.qp == element)
      take_out(context, i);
}

int model_get_async_event(struct ibv_context *seen, struct ibv_async_event *event) {
  struct context *context = context_of(seen);
  sim_point(500);
  if (context->count == 0) {
    errno = EAGAIN;
    return -1;
  }
  *event = context->events[0];
  take_out(context, 0);
  return 0;
}

void model_ack_async_event(struct ibv_async_event *event) {
  (void)event;
  sim_point(100);
}

static struct channel *channel_of(struct ibv_comp_channel *seen, const char *call) {
  struct channel *channel = (struct channel *)seen;
  object_check(&channel->object, CHANNEL, call);
  return channel;
}

struct ibv_comp_channel *model_create_comp_channel(struct ibv_context *seen) {
  struct context *context = context_of(seen);
  int descriptor;
  sim_point(20 * US);
  if (context->removal != PRESENT)
    return refused(EIO);
  if (refuses_memory() || card_fault(8))
    return refused(ENOMEM);
  struct event_queue *queue = event_queue_open(&descriptor);
  if (!queue)
    return NULL;
  struct channel *channel = calloc(1, sizeof *channel);
  object_init(&channel->object, CHANNEL);
  list_init(&channel->raised);
  channel->queue = queue;
  channel->seen.context = seen;
  channel->seen.fd = descriptor;
  context->users++;
  return &channel->seen;
}

int model_destroy_comp_channel(struct ibv_comp_channel *seen) {
  struct channel *channel = channel_of(seen, "ibv_destroy_comp_channel");
  sim_point(10 * US);
  if (channel->cqs > 0)
    return EBUSY;
  world_close(seen->fd);
  context_of(seen->context)->users--;
  object_release(&channel->object);
  return 0;
}

static void raise_event(struct completions *queue) {
  struct channel *channel = (struct channel *)queue->seen.channel;
  if (!channel)
    return;
  if (queue->raised++ == 0)
    list_append(&channel->raised, &queue->link);
  count_up(channel->queue);
}

int model_get_cq_event(struct ibv_comp_channel *seen, struct ibv_cq **cq, void **user) {
  struct channel *channel = channel_of(seen, "ibv_get_cq_event");
  sim_point(500);
  if (list_empty(&channel->raised)) {
    errno = EAGAIN;
    return -1;
  }
  struct completions *queue = list_entry(channel->raised.next, struct completions, link);
  channel->queue->waiting--;
  queue->fetched++;
  if (--queue->raised == 0)
    list_remove(&queue->link);
  *cq = &queue->seen;
  *user = queue->seen.cq_context;
  return 0;
}

void model_ack_cq_events(struct ibv_cq *seen, unsigned count) {
  struct completions *queue = completions_of(seen);
  if (count > queue->fetched)
    sim_fail("verbs", "ibv_ack_cq_events: %u events, and %u were fetched", count, queue->fetched);
  queue->fetched -= count;
}

struct completions *completions_of(struct ibv_cq *seen) {
  struct completions *queue = (struct completions *)seen;
  object_check(&queue->object, COMPLETIONS, "a call on a completion queue");
  return queue;
}

struct ibv_cq *model_create_cq(struct ibv_context *seen, int entries, void *user,
                               struct ibv_comp_channel *channel, int vector) {
  struct context *context = context_of(seen);
  sim_point(30 * US);
  if (context->removal != PRESENT)
    return refused(EIO);
  if (entries < 1 || vector < 0 || vector >= seen->num_comp_vectors)
    return refused(EINVAL);
  if (refuses_memory() || card_fault(8))
    return refused(ENOMEM);
  struct completions *queue = calloc(1, sizeof *queue);
  object_init(&queue->object, COMPLETIONS);
  list_init(&queue->link);
  queue->entries = calloc((size_t)entries, sizeof *queue->entries);
  queue->seen.context = seen;
  queue->seen.channel = channel;
  queue->seen.cq_context = user;
  queue->seen.cqe = entries;
  if (channel)
    channel_of(channel, "ibv_create_cq")->cqs++;
  context->users++;
  return &queue->seen;
}

/* The real call blocks until all fetched events are acknowledged. */
int model_destroy_cq(struct ibv_cq *seen) {
  struct completions *queue = completions_of(seen);
  struct channel *channel = (struct channel *)seen->channel;
  sim_point(20 * US);
  if (queue->qps > 0)
    return EBUSY;
  if (queue->fetched > 0)
    sim_fail("verbs", "ibv_destroy_cq: %u events are not acknowledged", queue->fetched);
  events_forget(context_of(seen->context), seen);
  event_cancel(&queue->arrival);
  list_remove(&queue->link);
  if (channel) {
    channel->queue->waiting -= queue->raised;
    channel->cqs--;
  }
  context_of(seen->context)->users--;
  free(queue->entries);
  queue->entries = NULL;
  object_release(&queue->object);
  return 0;
}

static struct entry *entry_at(struct completions *queue, uint32_t index) {
  return &queue->entries[(queue->first + index) % (uint32_t)queue->seen.cqe];
}

static void on_arrival(struct event *event) {
  struct completions *queue = list_entry(event, struct completions, arrival);
  uint32_t before = queue->ready;
  while (queue->ready < queue->count && entry_at(queue, queue->ready)->at <= sim_now)
    queue->ready++;
  if (queue->armed && queue->ready > before) {
    queue->armed = false;
    raise_event(queue);
  }
  if (queue->ready < queue->count)
    event_schedule(event, entry_at(queue, queue->ready)->at, on_arrival);
}

void completions_settle(struct completions *queue) {
  for (uint32_t i = queue->ready; i < queue->count; i++)
    entry_at(queue, i)->at = sim_now;
  queue->last_at = sim_now;
  event_cancel(&queue->arrival);
  on_arrival(&queue->arrival);
}

/* A queue that overran delivers nothing more; its event is the only notice. */
static bool has_room(struct completions *queue) {
  if (queue->overrun)
    return false;
  if (queue->count < (uint32_t)queue->seen.cqe && !card_fault(64))
    return true;
  if (queue->count == (uint32_t)queue->seen.cqe)
    sim_fail("verbs", "a completion queue of %d entries overran", queue->seen.cqe);
  sim_trace("fault: a completion queue overran");
  queue->overrun = true;
  events_raise(context_behind(queue->seen.context), IBV_EVENT_CQ_ERR, queue);
  return false;
}

bool completions_push(struct completions *queue, const struct ibv_wc *completion,
                      struct queue_pair *sender, uint32_t number) {
  if (!has_room(queue))
    return false;
  int64_t at = sim_now + (sim_chance(800000) ? 0 : sim_between(0, cards.late));
  queue->last_at = at > queue->last_at ? at : queue->last_at;
  *entry_at(queue, queue->count++) = (struct entry){*completion, sender, number, queue->last_at};
  sim_trace("nic: completion %llx of queue pair %u: %d", (unsigned long long)completion->wr_id,
            completion->qp_num, (int)completion->status);
  if (!queue->arrival.place)
    event_schedule(&queue->arrival, queue->last_at, on_arrival);
  return true;
}

int completions_poll(struct ibv_cq *seen, int room, struct ibv_wc *completions) {
  struct completions *queue = completions_of(seen);
  int got = 0;
  sim_point(150);
  for (; got < room && queue->ready > 0; got++) {
    const struct entry *entry = entry_at(queue, 0);
    completions[got] = entry->completion;
    if (entry->sender)
      entry->sender->polled = entry->number;
    queue->first = (queue->first + 1) % (uint32_t)seen->cqe;
    queue->ready--;
    queue->count--;
  }
  return got;
}

int completions_arm(struct ibv_cq *seen, int solicited_only) {
  struct completions *queue = completions_of(seen);
  sim_point(100);
  if (solicited_only)
    sim_fail("simulator", "solicited events are not modelled");
  queue->armed = true;
  return 0;
}

void completions_purge(struct completions *queue, uint32_t qp_number) {
  uint32_t kept = 0, ready = 0;
  for (uint32_t i = 0; i < queue->count; i++) {
    const struct entry entry = *entry_at(queue, i);
    if (entry.completion.qp_num == qp_number)
      continue;
    ready += i < queue->ready;
    *entry_at(queue, kept++) = entry;
  }
  queue->count = kept;
  queue->ready = ready;
}
