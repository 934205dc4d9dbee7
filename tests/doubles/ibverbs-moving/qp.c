/* SPDX-License-Identifier: MIT
 * A queue pair, and the thread that executes its work requests in order. */
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "moving.h"

#define FOREVER INT64_C(3600000000000)

static struct cq *send_cq(const struct sender *sender) {
  return double_cq_of(sender->qp->seen.send_cq);
}

static struct cq *receive_cq(const struct sender *sender) {
  return double_cq_of(sender->qp->seen.recv_cq);
}

static enum ibv_qp_state state_of(const struct sender *sender) {
  return (enum ibv_qp_state)atomic_load(&sender->slot->state);
}

void qp_fail(struct fabric_qp *slot, bool faulted) {
  if (atomic_load(&slot->state) == IBV_QPS_ERR)
    return;
  slot->faulted |= faulted;
  atomic_store(&slot->state, IBV_QPS_ERR);
  fabric_ring(slot);
}

static void fail_own(struct sender *sender) {
  fabric_lock(&sender->slot->lock);
  qp_fail(sender->slot, false);
  fabric_unlock(&sender->slot->lock);
}

static enum ibv_wc_opcode completed_as(enum ibv_wr_opcode opcode) {
  switch (opcode) {
  case IBV_WR_RDMA_WRITE:
  case IBV_WR_RDMA_WRITE_WITH_IMM:
    return IBV_WC_RDMA_WRITE;
  case IBV_WR_RDMA_READ:
    return IBV_WC_RDMA_READ;
  case IBV_WR_ATOMIC_CMP_AND_SWP:
    return IBV_WC_COMP_SWAP;
  case IBV_WR_ATOMIC_FETCH_AND_ADD:
    return IBV_WC_FETCH_ADD;
  default:
    return IBV_WC_SEND;
  }
}

/* Completes the next request. A failure also completes unsignaled ones. */
static void complete(struct sender *sender, enum ibv_wc_status status) {
  const struct request *request = &sender->requests[sender->done % sender->size];
  struct ibv_wc completion = {.wr_id = request->id,
                              .status = status,
                              .opcode = completed_as(request->opcode),
                              .byte_len = request->length,
                              .qp_num = sender->qp->seen.qp_num};
  sender->done++;
  if (status == IBV_WC_SUCCESS && !request->signaled)
    return;
  if (!cq_push(send_cq(sender), &completion, sender, sender->done))
    fail_own(sender);
}

static void complete_receive(struct sender *sender, const struct ibv_wc *arrival) {
  if (!cq_push(receive_cq(sender), arrival, NULL, 0))
    fail_own(sender);
  fabric_lock(&sender->slot->lock);
  sender->slot->completed++;
  fabric_unlock(&sender->slot->lock);
}

/* Receives that peers completed, in order. */
static void complete_arrivals(struct sender *sender) {
  struct fabric_qp *slot = sender->slot;
  struct ibv_wc arrival;
  bool more = true;
  while (more) {
    fabric_lock(&slot->lock);
    more = slot->arrived != slot->arrivals;
    if (more)
      arrival = slot->arrival[slot->arrived++ % FABRIC_DEPTH];
    fabric_unlock(&slot->lock);
    if (more)
      complete_receive(sender, &arrival);
  }
}

static bool take_receive(struct fabric_qp *slot, uint64_t *id) {
  fabric_lock(&slot->lock);
  bool any = slot->received != slot->receives;
  if (any) {
    *id = slot->receive[slot->received++ % FABRIC_DEPTH].id;
    slot->arrived++; /* a flushed receive counts as an arrival */
    slot->arrivals++;
  }
  fabric_unlock(&slot->lock);
  return any;
}

static void flush(struct sender *sender) {
  struct fabric_qp *slot = sender->slot;
  struct ibv_wc arrival = {.status = IBV_WC_WR_FLUSH_ERR, .qp_num = sender->qp->seen.qp_num};
  while (sender->done != atomic_load(&sender->posted))
    complete(sender, IBV_WC_WR_FLUSH_ERR);
  while (take_receive(slot, &arrival.wr_id))
    complete_receive(sender, &arrival);
  fabric_lock(&slot->lock);
  bool faulted = slot->faulted, last = slot->srq && !slot->flushed;
  slot->faulted = false;
  slot->flushed = true;
  fabric_unlock(&slot->lock);
  if (faulted)
    raise_event(sender->qp->seen.context, IBV_EVENT_QP_ACCESS_ERR, sender->qp);
  if (last)
    raise_event(sender->qp->seen.context, IBV_EVENT_QP_LAST_WQE_REACHED, sender->qp);
}

bool qp_pause(struct sender *sender, int64_t ns) {
  struct fabric_qp *slot = sender->slot;
  for (int64_t now = now_in_ns(), end = now + ns; now < end; now = now_in_ns()) {
    uint32_t bell = atomic_load(&slot->bell);
    if (atomic_load(&sender->stopping) || state_of(sender) == IBV_QPS_ERR || removal() != PRESENT)
      return false;
    complete_arrivals(sender);
    fabric_await(slot, bell, end - now);
  }
  return true;
}

static void work_once(struct sender *sender) {
  complete_arrivals(sender);
  if (removal() != PRESENT && state_of(sender) != IBV_QPS_ERR)
    fail_own(sender);
  if (removal() == VANISHED)
    return; /* meanwhile: nothing completes any more */
  if (state_of(sender) == IBV_QPS_ERR) {
    flush(sender);
  } else if (sender->done != atomic_load(&sender->posted)) {
    struct request *request = &sender->requests[sender->done % sender->size];
    enum ibv_wc_status status = move_request(sender, request);
    if (atomic_load(&sender->stopping) || removal() == VANISHED)
      return;
    if (status != IBV_WC_SUCCESS)
      fail_own(sender);
    complete(sender, status);
  }
}

static bool has_work(const struct sender *sender) {
  return removal() != VANISHED && !is_null() && sender->done != atomic_load(&sender->posted);
}

/* Reads the bell before the state: a later ring ends the sleep. */
static void *work(void *user) {
  struct sender *sender = user;
  for (;;) {
    uint32_t bell = atomic_load(&sender->slot->bell);
    if (atomic_load(&sender->stopping))
      return NULL;
    if (removal() == VANISHED)
      fail_own(sender);
    else if (!is_null())
      work_once(sender);
    if (!has_work(sender) && atomic_load(&sender->slot->bell) == bell)
      fabric_await(sender->slot, bell, FOREVER);
  }
}

/* Blocks the application's signals in the thread. */
static int start_thread(struct sender *sender) {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  int system = pthread_create(&sender->thread, NULL, work, sender);
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  return system;
}

static bool is_atomic(enum ibv_wr_opcode opcode) {
  return opcode == IBV_WR_ATOMIC_CMP_AND_SWP || opcode == IBV_WR_ATOMIC_FETCH_AND_ADD;
}

static bool has_atomics(const struct qp *qp) {
  struct ibv_device_attr attributes;
  return ibv_query_device(qp->seen.context, &attributes) == 0 &&
         attributes.atomic_cap != IBV_ATOMIC_NONE;
}

static bool is_wr(const struct qp *qp, const struct ibv_send_wr *wr) {
  const struct ibv_qp_cap *cap = &qp->first.cap;
  if (wr->opcode > IBV_WR_ATOMIC_FETCH_AND_ADD || wr->opcode == IBV_WR_SEND_WITH_IMM ||
      wr->num_sge < 0 || wr->num_sge > (int)cap->max_send_sge)
    return false;
  uint32_t length = wr->num_sge > 0 ? wr->sg_list[0].length : 0;
  if (length > 1u << 31)
    return false;
  bool atomic = is_atomic(wr->opcode);
  if (atomic && (length != 8 || !has_atomics(qp)))
    return false;
  return !(wr->send_flags & IBV_SEND_INLINE) ||
         (length <= cap->max_inline_data && wr->opcode != IBV_WR_RDMA_READ && !atomic);
}

static void fill(struct request *request, const struct qp *qp, const struct ibv_send_wr *wr) {
  bool atomic = is_atomic(wr->opcode);
  request->id = wr->wr_id;
  request->opcode = wr->opcode;
  request->signaled = qp->first.sq_sig_all || (wr->send_flags & IBV_SEND_SIGNALED);
  request->is_inline = wr->send_flags & IBV_SEND_INLINE;
  request->immediate = wr->imm_data;
  request->remote = atomic ? wr->wr.atomic.remote_addr : wr->wr.rdma.remote_addr;
  request->key = atomic ? wr->wr.atomic.rkey : wr->wr.rdma.rkey;
  request->compare_add = wr->wr.atomic.compare_add;
  request->swap = wr->wr.atomic.swap;
  request->place = wr->num_sge > 0 ? wr->sg_list[0] : (struct ibv_sge){0};
  request->length = request->place.length;
  request->fault = fault_of_request();
  if (request->is_inline && request->length > 0)
    memcpy(request->inlined, (const void *)(uintptr_t)request->place.addr, request->length);
}

/* 0 or an errno. */
static int post(struct sender *sender, const struct ibv_send_wr *wr) {
  uint32_t posted = atomic_load(&sender->posted);
  if (!is_wr(sender->qp, wr))
    return EINVAL;
  if (posted - atomic_load(&sender->polled) == sender->size)
    return ENOMEM;
  if (fault_of_post())
    return ENOMEM;
  fill(&sender->requests[posted % sender->size], sender->qp, wr);
  atomic_store(&sender->posted, posted + 1);
  if (is_null())
    complete(sender, IBV_WC_SUCCESS);
  return 0;
}

int qp_post_send(struct ibv_qp *seen, struct ibv_send_wr *wr, struct ibv_send_wr **bad) {
  note_doorbell();
  struct sender *sender = double_qp_of(seen)->emulator;
  enum ibv_qp_state state = state_of(sender);
  int system = state == IBV_QPS_RTS || state == IBV_QPS_ERR ? 0 : EINVAL;
  pthread_mutex_lock(&sender->posting);
  for (; wr && system == 0; wr = system ? wr : wr->next) {
    system = post(sender, wr);
    atomic_fetch_add(&double_context_of(seen->context)->device->requests, system == 0);
  }
  pthread_mutex_unlock(&sender->posting);
  if (system)
    *bad = wr;
  if (!is_null())
    fabric_ring(sender->slot);
  return system;
}

void qp_polled(struct sender *sender, uint32_t number) {
  atomic_store(&sender->polled, number);
}

static int post_receive(const struct qp *qp, struct fabric_qp *slot, const struct ibv_recv_wr *wr) {
  if (qp->seen.srq || wr->num_sge < 0 || wr->num_sge > (int)qp->first.cap.max_recv_sge)
    return EINVAL;
  if (slot->receives - slot->arrived >= qp->first.cap.max_recv_wr)
    return ENOMEM;
  struct fabric_receive *receive = &slot->receive[slot->receives++ % FABRIC_DEPTH];
  receive->id = wr->wr_id;
  receive->place = wr->num_sge > 0 ? wr->sg_list[0] : (struct ibv_sge){0};
  return 0;
}

int qp_post_receive(struct ibv_qp *seen, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad) {
  struct qp *qp = double_qp_of(seen);
  struct sender *sender = qp->emulator;
  int system = state_of(sender) == IBV_QPS_RESET ? EINVAL : 0;
  fabric_lock(&sender->slot->lock);
  for (; wr && system == 0; wr = system ? wr : wr->next)
    system = post_receive(qp, sender->slot, wr);
  fabric_unlock(&sender->slot->lock);
  if (system)
    *bad = wr;
  if (state_of(sender) == IBV_QPS_ERR)
    fabric_ring(sender->slot);
  return system;
}

static void begin_slot(const struct qp *qp, struct fabric_qp *slot) {
  const struct double_port *port = &double_context_of(qp->seen.context)->device->port[0];
  atomic_store(&slot->state, IBV_QPS_RESET);
  slot->pd = (uintptr_t)qp->seen.pd;
  slot->peer = 0;
  slot->infiniband = port->link_layer == IBV_LINK_LAYER_INFINIBAND;
  slot->lid = port->lid;
  memcpy(slot->gid, port->gids[slot->infiniband ? 0 : 1].raw, sizeof slot->gid);
  slot->srq = qp->seen.srq ? fabric_srq_number(double_srq_of(qp->seen.srq)->emulator) : 0;
  slot->faulted = slot->flushed = false;
  slot->received = slot->receives = slot->arrived = slot->arrivals = slot->completed = 0;
  atomic_store(&slot->pid, getpid());
}

int emulator_begin_qp(struct qp *qp) {
  struct sender *sender = calloc(1, sizeof *sender);
  int system = ENOMEM;
  if (removal() != PRESENT || !sender) {
    free(sender);
    return sender ? EIO : ENOMEM;
  }
  sender->qp = qp;
  sender->size = qp->first.cap.max_send_wr ? qp->first.cap.max_send_wr : 1;
  sender->requests = calloc(sender->size, sizeof *sender->requests);
  sender->slot = sender->requests ? fabric_take_qp() : NULL;
  if (!sender->slot)
    goto no_slot;
  begin_slot(qp, sender->slot);
  qp->seen.qp_num = atomic_load(&sender->slot->number);
  fabric_unlock(&sender->slot->lock);
  pthread_mutex_init(&sender->posting, NULL);
  qp->emulator = sender;
  system = start_thread(sender);
  if (system == 0)
    return 0;
  atomic_store(&sender->slot->pid, 0);
no_slot:
  free(sender->requests);
  free(sender);
  return system;
}

/* Its own copies end with the thread; a peer's copies hold the lock. */
void emulator_end_qp(struct qp *qp) {
  struct sender *sender = qp->emulator;
  atomic_store(&sender->stopping, true);
  fabric_ring(sender->slot);
  pthread_join(sender->thread, NULL);
  fabric_lock(&sender->slot->lock);
  atomic_store(&sender->slot->state, IBV_QPS_RESET);
  atomic_store(&sender->slot->pid, 0);
  fabric_unlock(&sender->slot->lock);
  cq_purge(send_cq(sender), qp->seen.qp_num);
  cq_purge(receive_cq(sender), qp->seen.qp_num);
  forget_events(qp->seen.context, qp);
  pthread_mutex_destroy(&sender->posting);
  free(sender->requests);
  free(sender);
}

enum ibv_qp_state emulator_state(const struct qp *qp) {
  return state_of(qp->emulator);
}

int emulator_to_state(struct qp *qp, enum ibv_qp_state state) {
  struct sender *sender = qp->emulator;
  struct fabric_qp *slot = sender->slot;
  const uint8_t *to = qp->attributes.ah_attr.grh.dgid.raw;
  int system = 0;
  if (removal() != PRESENT)
    return EIO;
  DEMAND(state != IBV_QPS_RESET); /* not emulated */
  if (state == IBV_QPS_RTR && !slot->infiniband && !is_route(slot->gid, to))
    return ENETUNREACH; /* the kernel looks for the route */
  fabric_lock(&slot->lock);
  if (atomic_load(&slot->state) == IBV_QPS_ERR && state != IBV_QPS_ERR) {
    system = EINVAL; /* it failed meanwhile */
  } else {
    slot->access = (unsigned)qp->attributes.qp_access_flags;
    slot->peer = qp->attributes.dest_qp_num;
    slot->packet_in = qp->attributes.rq_psn;
    slot->packet_out = qp->attributes.sq_psn;
    slot->reads_served = qp->attributes.max_dest_rd_atomic;
    slot->not_ready_timer = qp->attributes.min_rnr_timer;
    atomic_store(&slot->state, (int)state);
  }
  fabric_unlock(&slot->lock);
  fabric_ring(slot);
  return system;
}
