/* SPDX-License-Identifier: MIT
 * Completions and their events. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "moving.h"

struct entry {
  struct ibv_wc completion;
  struct sender *sender;
  uint32_t number;
};

struct completions {
  pthread_mutex_t lock;
  struct entry *entries; /* of cqe */
  uint32_t count, first;
  bool overrun;
  bool armed;
  uint32_t events;  /* not fetched yet; the channel's lock */
  uint32_t fetched; /* not acknowledged yet; the channel's lock */
};

#define CHANNEL_CQS 64

struct listeners {
  pthread_mutex_t lock;
  struct cq *cqs[CHANNEL_CQS];
};

int emulator_begin_channel(struct channel *channel) {
  struct listeners *listeners = calloc(1, sizeof *listeners);
  if (!listeners)
    return ENOMEM;
  pthread_mutex_init(&listeners->lock, NULL);
  channel->emulator = listeners;
  return 0;
}

void emulator_end_channel(struct channel *channel) {
  struct listeners *listeners = channel->emulator;
  pthread_mutex_destroy(&listeners->lock);
  free(listeners);
}

static struct listeners *listeners_of(struct cq *cq) {
  return cq->seen.channel ? double_channel_of(cq->seen.channel)->emulator : NULL;
}

static bool replace(struct listeners *listeners, const struct cq *from, struct cq *to) {
  bool found = false;
  pthread_mutex_lock(&listeners->lock);
  for (unsigned i = 0; i < CHANNEL_CQS && !found; i++) {
    found = listeners->cqs[i] == from;
    if (found)
      listeners->cqs[i] = to;
  }
  pthread_mutex_unlock(&listeners->lock);
  return found;
}

/* An event is one unit of the eventfd's count and one of the queue's. */
static void count_up(int fd) {
  DEMAND(write(fd, &(uint64_t){1}, 8) == 8);
}

static void raise_cq_event(struct cq *cq) {
  struct listeners *listeners = listeners_of(cq);
  struct completions *queue = cq->emulator;
  if (!listeners)
    return;
  pthread_mutex_lock(&listeners->lock);
  queue->events++;
  count_up(cq->seen.channel->fd);
  pthread_mutex_unlock(&listeners->lock);
}

static struct cq *next_event(struct listeners *listeners) {
  struct cq *found = NULL;
  pthread_mutex_lock(&listeners->lock);
  for (unsigned i = 0; i < CHANNEL_CQS && !found; i++) {
    struct completions *queue = listeners->cqs[i] ? listeners->cqs[i]->emulator : NULL;
    if (!queue || queue->events == 0)
      continue;
    queue->events--;
    queue->fetched++;
    found = listeners->cqs[i];
  }
  pthread_mutex_unlock(&listeners->lock);
  return found;
}

int ibv_get_cq_event(struct ibv_comp_channel *seen, struct ibv_cq **cq, void **user) {
  struct channel *channel = double_channel_of(seen);
  uint64_t one;
  if (read(seen->fd, &one, sizeof one) != (ssize_t)sizeof one)
    return -1;
  struct cq *found = next_event(channel->emulator);
  if (!found) { /* its queue was destroyed meanwhile */
    errno = EAGAIN;
    return -1;
  }
  *cq = &found->seen;
  *user = found->seen.cq_context;
  return 0;
}

void ibv_ack_cq_events(struct ibv_cq *seen, unsigned count) {
  struct cq *cq = double_cq_of(seen);
  struct completions *queue = cq->emulator;
  struct listeners *listeners = listeners_of(cq);
  DEMAND(listeners);
  pthread_mutex_lock(&listeners->lock);
  DEMAND(count <= queue->fetched);
  queue->fetched -= count;
  pthread_mutex_unlock(&listeners->lock);
}

int emulator_begin_cq(struct cq *cq) {
  struct completions *queue = calloc(1, sizeof *queue);
  if (queue)
    queue->entries = calloc((size_t)cq->seen.cqe, sizeof *queue->entries);
  if (!queue || !queue->entries) {
    free(queue);
    return ENOMEM;
  }
  pthread_mutex_init(&queue->lock, NULL);
  cq->emulator = queue;
  struct listeners *listeners = listeners_of(cq);
  DEMAND(!listeners || replace(listeners, NULL, cq));
  return 0;
}

/* The real library blocks until all fetched events are acknowledged. */
void emulator_end_cq(struct cq *cq) {
  struct completions *queue = cq->emulator;
  struct listeners *listeners = listeners_of(cq);
  uint64_t one;
  forget_events(cq->seen.context, cq);
  if (listeners)
    replace(listeners, cq, NULL);
  DEMAND(queue->fetched == 0);
  for (; listeners && queue->events > 0; queue->events--)
    DEMAND(read(cq->seen.channel->fd, &one, sizeof one) == (ssize_t)sizeof one);
  pthread_mutex_destroy(&queue->lock);
  free(queue->entries);
  free(queue);
}

/* With the lock. A queue that overran delivers nothing more; its event is the only notice. */
static bool has_room(struct cq *cq) {
  struct completions *queue = cq->emulator;
  if (queue->overrun)
    return false;
  if (queue->count < (uint32_t)cq->seen.cqe && !fault_of_completion())
    return true;
  queue->overrun = true;
  raise_event(cq->seen.context, IBV_EVENT_CQ_ERR, cq);
  return false;
}

bool cq_push(struct cq *cq, const struct ibv_wc *completion, struct sender *sender,
             uint32_t number) {
  struct completions *queue = cq->emulator;
  fault_late();
  pthread_mutex_lock(&queue->lock);
  bool event = false, fits = has_room(cq);
  if (fits) {
    uint32_t at = (queue->first + queue->count++) % (uint32_t)cq->seen.cqe;
    queue->entries[at] = (struct entry){*completion, sender, number};
    event = queue->armed;
    queue->armed = false;
  }
  if (event)
    raise_cq_event(cq);
  pthread_mutex_unlock(&queue->lock);
  return fits;
}

int cq_poll(struct ibv_cq *seen, int room, struct ibv_wc *completions) {
  struct cq *cq = double_cq_of(seen);
  struct completions *queue = cq->emulator;
  int got = 0;
  pthread_mutex_lock(&queue->lock);
  for (; got < room && queue->count > 0; got++) {
    const struct entry *entry = &queue->entries[queue->first];
    completions[got] = entry->completion;
    if (entry->sender)
      qp_polled(entry->sender, entry->number);
    queue->first = (queue->first + 1) % (uint32_t)seen->cqe;
    queue->count--;
  }
  pthread_mutex_unlock(&queue->lock);
  return got;
}

int cq_arm(struct ibv_cq *seen, int solicited_only) {
  DEMAND(!solicited_only);
  struct completions *queue = double_cq_of(seen)->emulator;
  pthread_mutex_lock(&queue->lock);
  queue->armed = true;
  pthread_mutex_unlock(&queue->lock);
  return 0;
}

void cq_purge(struct cq *cq, uint32_t qp_number) {
  struct completions *queue = cq->emulator;
  uint32_t size = (uint32_t)cq->seen.cqe, kept = 0;
  pthread_mutex_lock(&queue->lock);
  for (uint32_t i = 0; i < queue->count; i++) {
    struct entry *entry = &queue->entries[(queue->first + i) % size];
    if (entry->completion.qp_num != qp_number)
      queue->entries[(queue->first + kept++) % size] = *entry;
  }
  queue->count = kept;
  pthread_mutex_unlock(&queue->lock);
}
