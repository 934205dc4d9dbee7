/* SPDX-License-Identifier: MIT
 * What a NIC says by itself. No completion tells it: of a device that was removed and of a
 * completion queue that overran none comes any more, and a queue pair without requests has none to
 * fail. */
#include <errno.h>
#include <fcntl.h>
#include <string.h>

#include "core/error.h"
#include "fabric/rdma/rdma.h"

static bool concerns_queue(const struct rdma_rail *rail, const struct ibv_async_event *event) {
  switch (event->event_type) {
  case IBV_EVENT_DEVICE_FATAL:
    return true;
  case IBV_EVENT_CQ_ERR:
    return rail->completions == event->element.cq;
  case IBV_EVENT_QP_FATAL:
  case IBV_EVENT_QP_REQ_ERR:
  case IBV_EVENT_QP_ACCESS_ERR:
    return rail->queue && rail->queue == event->element.qp;
  default:
    return false; /* a link that is down for a moment is what retries are for */
  }
}

static const char *meaning_of(enum ibv_event_type type) {
  switch (type) {
  case IBV_EVENT_DEVICE_FATAL:
    return "the NIC failed or was removed";
  case IBV_EVENT_CQ_ERR:
    return "the completion queue overran";
  default:
    return "the queue pair failed: the peer asked for what it may not have";
  }
}

static void end_rails(struct rdma_endpoint *endpoint, const struct nic *nic,
                      const struct ibv_async_event *event) {
  for (unsigned i = 0; i < endpoint->rail_count; i++) {
    const struct rdma_rail *rail = &endpoint->rails[i];
    if (rail->card->nic != nic || !concerns_queue(rail, event))
      continue;
    error_set(HAUL_EPATH, 0, nic->name, NULL, "%s: %s", nic->name, meaning_of(event->event_type));
    rdma_break(endpoint, haul_error_last()->text);
    return;
  }
}

/* The event is given back first: what it is about is not destroyed before. */
static void on_event(struct watch *watch, uint32_t events) {
  struct rdma_card *card = list_entry(watch, struct rdma_card, watch);
  const struct verbs *verbs = card->nic->verbs;
  struct ibv_async_event event;
  (void)events;
  if (verbs->get_async_event(card->nic->context, &event) != 0)
    return;
  verbs->ack_async_event(&event);
  list_each_safe(item, &card->node->endpoints)
      end_rails(list_entry(item, struct rdma_endpoint, peer), card->nic, &event);
}

static bool is_first(const struct rdma_node *node, unsigned number) {
  for (unsigned i = 0; i < number; i++)
    if (node->cards[i].nic == node->cards[number].nic)
      return false;
  return true;
}

int events_watch(struct rdma_node *node) {
  int code = 0;
  for (unsigned i = 0; i < node->count && code == 0; i++) {
    struct rdma_card *card = &node->cards[i];
    if (card->watch.slot || !is_first(node, i))
      continue;
    int fd = card->nic->context->async_fd;
    fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
    code = loop_watch(node->fabric->loop, &card->watch, fd, EPOLLIN, on_event);
  }
  return code;
}

void events_unwatch(struct rdma_node *node) {
  for (unsigned i = 0; i < node->count; i++)
    if (node->cards[i].watch.slot)
      loop_unwatch(node->fabric->loop, &node->cards[i].watch);
}
