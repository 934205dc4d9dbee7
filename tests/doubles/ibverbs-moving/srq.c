/* SPDX-License-Identifier: MIT
 * Shared receive queues. A queue pair takes a receive when a message for it begins. One that ends
 * in the middle of a message takes the receive with it, as a real one may. */
#include <errno.h>
#include <unistd.h>

#include "moving.h"

int emulator_begin_srq(struct srq *srq) {
  if (removal() != PRESENT)
    return EIO;
  if (srq->size.max_wr > FABRIC_SHARED)
    return EINVAL;
  struct fabric_srq *slot = fabric_take_srq();
  if (!slot)
    return ENOMEM;
  slot->most = srq->size.max_wr;
  slot->received = slot->receives = 0;
  atomic_store(&slot->pid, getpid());
  fabric_unlock(&slot->lock);
  srq->emulator = slot;
  return 0;
}

void emulator_end_srq(struct srq *srq) {
  struct fabric_srq *slot = srq->emulator;
  forget_events(srq->seen.context, srq);
  fabric_lock(&slot->lock);
  atomic_store(&slot->pid, 0);
  fabric_unlock(&slot->lock);
}

static int post_receive(struct fabric_srq *slot, const struct ibv_recv_wr *wr) {
  if (wr->num_sge < 0 || wr->num_sge > 1)
    return EINVAL;
  if (slot->receives - slot->received >= slot->most)
    return ENOMEM;
  struct fabric_receive *receive = &slot->receive[slot->receives++ % FABRIC_SHARED];
  receive->id = wr->wr_id;
  receive->place = wr->num_sge > 0 ? wr->sg_list[0] : (struct ibv_sge){0};
  return 0;
}

int srq_post_receive(struct ibv_srq *seen, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad) {
  struct fabric_srq *slot = double_srq_of(seen)->emulator;
  int system = 0;
  fabric_lock(&slot->lock);
  for (; wr && system == 0; wr = system ? wr : wr->next)
    system = post_receive(slot, wr);
  fabric_unlock(&slot->lock);
  if (system)
    *bad = wr;
  return system;
}

bool srq_take(struct fabric_qp *slot) {
  struct fabric_srq *shared = fabric_srq_of(slot->srq);
  if (slot->receives - slot->arrived >= FABRIC_DEPTH)
    return false;
  fabric_lock(&shared->lock);
  bool any = shared->received != shared->receives;
  if (any)
    slot->receive[slot->receives++ % FABRIC_DEPTH] =
        shared->receive[shared->received++ % FABRIC_SHARED];
  fabric_unlock(&shared->lock);
  return any;
}
