/* SPDX-License-Identifier: MIT
 * Shared receive queues. A receive belongs to a queue pair from the moment on at which a message
 * for it arrives. One that the queue pair has not completed when it is destroyed is lost. */
#include <errno.h>
#include <stdlib.h>

#include "calls.h"
#include "verbs.h"

struct shared_queue *shared_of(struct ibv_srq *seen) {
  struct shared_queue *queue = (struct shared_queue *)seen;
  object_check(&queue->object, SHARED, "a call on a shared receive queue");
  return queue;
}

struct ibv_srq *model_create_srq(struct ibv_pd *pd, struct ibv_srq_init_attr *wanted) {
  struct domain *domain = (struct domain *)pd;
  struct context *context = context_of(pd->context);
  sim_point(50 * US);
  object_check(&domain->object, DOMAIN, "ibv_create_srq");
  if (context->removal != PRESENT)
    return refused(EIO);
  if (!cards.shared || wanted->attr.max_wr < 1 || wanted->attr.max_wr > SHARED_DEPTH ||
      wanted->attr.max_sge != 1)
    return refused(EINVAL);
  if (refuses_memory() || card_fault(8))
    return refused(ENOMEM);
  struct shared_queue *queue = calloc(1, sizeof *queue);
  object_init(&queue->object, SHARED);
  queue->seen.context = pd->context;
  queue->seen.pd = pd;
  queue->size = wanted->attr.max_wr;
  queue->receives = calloc(queue->size, sizeof *queue->receives);
  domain->users++;
  return &queue->seen;
}

int model_destroy_srq(struct ibv_srq *seen) {
  struct shared_queue *queue = shared_of(seen);
  sim_point(30 * US);
  if (queue->qps > 0)
    return EBUSY;
  for (; queue->taken != queue->posted; queue->taken++)
    leave_memory(&queue->receives[queue->taken % queue->size].place);
  ((struct domain *)seen->pd)->users--;
  free(queue->receives);
  queue->receives = NULL;
  object_release(&queue->object);
  return 0;
}

int post_shared(struct ibv_srq *seen, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad) {
  struct shared_queue *queue = shared_of(seen);
  int error = 0;
  sim_point(100);
  for (; wr && error == 0; wr = error ? wr : wr->next) {
    if (wr->num_sge != 1)
      error = EINVAL;
    else if (queue->posted - queue->taken == queue->size)
      error = ENOMEM;
    if (error)
      continue;
    struct receive *receive = &queue->receives[queue->posted++ % queue->size];
    *receive = (struct receive){wr->wr_id, wr->sg_list[0]};
    use_memory(seen->pd, &receive->place, IBV_ACCESS_LOCAL_WRITE);
  }
  if (error)
    *bad = wr;
  return error;
}

bool shared_take(struct queue_pair *qp) {
  struct shared_queue *queue = (struct shared_queue *)qp->seen.srq;
  if (queue->taken == queue->posted || qp->receives_posted - qp->receives_done == TAKEN_MOST)
    return false;
  qp->receives[qp->receives_posted++ % qp->receive_room] =
      queue->receives[queue->taken++ % queue->size];
  return true;
}
