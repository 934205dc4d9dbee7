/* SPDX-License-Identifier: MIT
 * Queue pairs of reliable connections: their states, posting, and the requester, which sends the
 * packets of its requests in order, again after a timeout, and completes them in order. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "../doubles/ibverbs/transitions.h"
#include "calls.h"
#include "verbs.h"

#define WINDOW       8 /* packets that are not acknowledged */
#define PIECE_LEAST  256u
#define PIECE_MOST   (16u << 10)
#define PIECES       16u
#define FIRST_NUMBER 256u

static struct queue_pair **all;
static uint32_t count, room;

struct queue_pair *queue_pair_of(uint32_t number) {
  return number - FIRST_NUMBER < count ? all[number - FIRST_NUMBER] : NULL;
}

static void give_number(struct queue_pair *qp) {
  if (count == room) {
    room = room ? room * 2 : 64;
    all = realloc(all, room * sizeof(void *));
  }
  qp->seen.qp_num = FIRST_NUMBER + count;
  all[count++] = qp;
}

static struct queue_pair *checked(struct ibv_qp *seen, const char *call) {
  struct queue_pair *qp = (struct queue_pair *)seen;
  object_check(&qp->object, QUEUE_PAIR, call);
  return qp;
}

static struct completions *send_queue(const struct queue_pair *qp) {
  return (struct completions *)qp->seen.send_cq;
}

static struct completions *receive_queue(const struct queue_pair *qp) {
  return (struct completions *)qp->seen.recv_cq;
}

void use_memory(const struct ibv_pd *pd, const struct ibv_sge *place, unsigned rights) {
  if (place->length == 0)
    return;
  if (!dma_at(place->lkey, pd, place->addr, place->length, rights))
    sim_fail("dma", "a work request names %u bytes at %llx, which key %x does not allow",
             place->length, (unsigned long long)place->addr, place->lkey);
  registration_of(place->lkey)->requests++;
}

void leave_memory(const struct ibv_sge *place) {
  struct registration_model *model = place->length > 0 ? registration_of(place->lkey) : NULL;
  if (model)
    model->requests--;
}

static void leave_request(const struct request *request) {
  if (!request->is_inline)
    leave_memory(&request->place);
}

struct request *queue_pair_oldest(struct queue_pair *qp) {
  return qp->done == qp->posted ? NULL : &qp->requests[qp->done % qp->size];
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

/* The oldest request ends. A failure completes unsignaled ones, too. False: the queue overran. */
static bool complete_oldest(struct queue_pair *qp, enum ibv_wc_status status) {
  const struct request *request = queue_pair_oldest(qp);
  struct ibv_wc completion = {.wr_id = request->id,
                              .status = status,
                              .opcode = completed_as(request->opcode),
                              .byte_len = request->length,
                              .qp_num = qp->seen.qp_num};
  leave_request(request);
  qp->done++;
  if (status == IBV_WC_SUCCESS && !request->signaled)
    return true;
  return completions_push(send_queue(qp), &completion, qp, qp->done);
}

void complete_receive(struct queue_pair *qp, const struct ibv_wc *completion) {
  leave_memory(&qp->receives[qp->receives_done++ % qp->receive_room].place);
  if (!completions_push(receive_queue(qp), completion, NULL, 0))
    queue_pair_fail(qp, 0);
}

static void flush_sends(struct queue_pair *qp, enum ibv_wc_status status) {
  while (queue_pair_oldest(qp)) {
    complete_oldest(qp, status ? status : IBV_WC_WR_FLUSH_ERR);
    status = IBV_WC_SUCCESS;
  }
}

static void flush_receives(struct queue_pair *qp) {
  struct ibv_wc completion = {.status = IBV_WC_WR_FLUSH_ERR, .qp_num = qp->seen.qp_num};
  while (qp->receives_done != qp->receives_posted) {
    const struct receive *receive = &qp->receives[qp->receives_done++ % qp->receive_room];
    completion.wr_id = receive->id;
    leave_memory(&receive->place);
    completions_push(receive_queue(qp), &completion, NULL, 0);
  }
  qp->receives_taken = qp->receives_done;
}

/* Nothing of it completes any more. */
static void forget_requests(struct queue_pair *qp) {
  for (; queue_pair_oldest(qp); qp->done++)
    leave_request(queue_pair_oldest(qp));
  for (; qp->receives_done != qp->receives_posted; qp->receives_done++)
    leave_memory(&qp->receives[qp->receives_done % qp->receive_room].place);
}

static void stop(struct queue_pair *qp) {
  event_cancel(&qp->pump);
  event_cancel(&qp->timer);
  wire_settle(qp, NULL);
}

void queue_pair_fail(struct queue_pair *qp, enum ibv_wc_status status) {
  if (qp->state == IBV_QPS_ERR)
    return;
  sim_trace("nic: queue pair %u fails: %d", qp->seen.qp_num, (int)status);
  qp->state = IBV_QPS_ERR;
  stop(qp);
  if (context_behind(qp->seen.context)->removal == VANISHED) {
    forget_requests(qp);
    return;
  }
  bool receives_first = sim_chance(300000);
  if (receives_first)
    flush_receives(qp);
  flush_sends(qp, status);
  if (!receives_first)
    flush_receives(qp);
  if (qp->seen.srq)
    events_raise(context_behind(qp->seen.context), IBV_EVENT_QP_LAST_WQE_REACHED, qp);
}

void queue_pairs_removed(struct context *context) {
  for (uint32_t i = 0; i < count; i++)
    if (all[i] && context_behind(all[i]->seen.context) == context)
      queue_pair_fail(all[i], 0);
}

static void on_timeout(struct event *event);

static int64_t timeout_of(const struct queue_pair *qp) {
  return (INT64_C(4096) << qp->attributes.timeout) * cards.slowness;
}

/* Sends one packet, and then the next. */
static void on_pump(struct event *event) {
  struct queue_pair *qp = list_entry(event, struct queue_pair, pump);
  if (qp->state != IBV_QPS_RTS || qp->next == qp->end || (int32_t)(qp->next - qp->acked) >= WINDOW)
    return;
  uint32_t index = qp->done;
  while (qp->next - qp->requests[index % qp->size].first >= qp->requests[index % qp->size].pieces)
    index++;
  wire_request(qp, &qp->requests[index % qp->size], qp->next++);
  if (!qp->timer.place)
    event_schedule(&qp->timer, sim_now + timeout_of(qp), on_timeout);
  event_schedule(event, sim_now + sim_between(50, 2000), on_pump);
}

void queue_pair_resend(struct queue_pair *qp, uint32_t number, int64_t at) {
  qp->next = number;
  event_schedule(&qp->pump, at, on_pump);
}

static void on_timeout(struct event *event) {
  struct queue_pair *qp = list_entry(event, struct queue_pair, timer);
  if (qp->state != IBV_QPS_RTS || !queue_pair_oldest(qp))
    return;
  if (qp->retries++ == qp->attributes.retry_cnt) {
    queue_pair_fail(qp, IBV_WC_RETRY_EXC_ERR);
    return;
  }
  sim_trace("nic: queue pair %u sends again from %u on", qp->seen.qp_num, qp->acked);
  event_schedule(event, sim_now + timeout_of(qp), on_timeout);
  queue_pair_resend(qp, qp->acked, sim_now);
}

void queue_pair_heard(struct queue_pair *qp) {
  qp->retries = 0;
  event_schedule(&qp->timer, sim_now + timeout_of(qp), on_timeout);
}

void queue_pair_acked(struct queue_pair *qp, uint32_t number) {
  if ((int32_t)(number - qp->acked) <= 0)
    return;
  qp->acked = number;
  qp->retries = qp->not_ready = 0;
  if ((int32_t)(qp->next - number) < 0)
    qp->next = number;
  bool fits = true;
  for (struct request *oldest; fits && (oldest = queue_pair_oldest(qp));) {
    if ((int32_t)(number - (oldest->first + oldest->pieces)) < 0)
      break;
    fits = complete_oldest(qp, IBV_WC_SUCCESS);
  }
  if (!fits) {
    queue_pair_fail(qp, 0);
    return;
  }
  event_cancel(&qp->timer);
  if (qp->next != qp->acked)
    event_schedule(&qp->timer, sim_now + timeout_of(qp), on_timeout);
  if (!qp->pump.place)
    event_schedule(&qp->pump, sim_now, on_pump);
}

static bool is_atomic(enum ibv_wr_opcode opcode) {
  return opcode == IBV_WR_ATOMIC_CMP_AND_SWP || opcode == IBV_WR_ATOMIC_FETCH_AND_ADD;
}

static bool is_request(const struct queue_pair *qp, const struct ibv_send_wr *wr) {
  const struct ibv_qp_cap *cap = &qp->first.cap;
  bool atomic = is_atomic(wr->opcode);
  if (wr->opcode > IBV_WR_ATOMIC_FETCH_AND_ADD || wr->opcode == IBV_WR_SEND_WITH_IMM ||
      wr->num_sge < 0 || wr->num_sge > (int)cap->max_send_sge)
    return false;
  uint32_t length = wr->num_sge > 0 ? wr->sg_list[0].length : 0;
  if (length > 1u << 31 || (atomic && (length != 8 || !cards.atomics)))
    return false;
  return !(wr->send_flags & IBV_SEND_INLINE) ||
         (length <= cap->max_inline_data && wr->opcode != IBV_WR_RDMA_READ && !atomic);
}

/* A message, and a read's request, is one packet here. */
static void cut(struct queue_pair *qp, struct request *request) {
  bool splits =
      request->opcode == IBV_WR_RDMA_WRITE || request->opcode == IBV_WR_RDMA_WRITE_WITH_IMM;
  uint32_t least = request->length / PIECES > PIECE_LEAST ? request->length / PIECES : PIECE_LEAST;
  request->piece = (uint32_t)sim_between(least, least + PIECE_MOST);
  request->pieces = splits ? (request->length + request->piece - 1) / request->piece : 1;
  if (request->pieces == 0)
    request->pieces = 1;
  request->first = qp->end;
  qp->end += request->pieces;
}

static enum ibv_wc_status draw_fault(struct queue_pair *qp, const struct request *request) {
  bool writes = request->opcode != IBV_WR_SEND;
  if (!card_fault(2))
    return 0;
  switch (sim_below(3)) {
  case 0:
    return IBV_WC_RNR_RETRY_EXC_ERR;
  case 1:
    if (writes)
      return IBV_WC_REM_ACCESS_ERR;
    __attribute__((fallthrough));
  default:
    qp->deaf = true;
    return 0;
  }
}

static void fill(struct queue_pair *qp, struct request *request, const struct ibv_send_wr *wr) {
  bool atomic = is_atomic(wr->opcode), reads = atomic || wr->opcode == IBV_WR_RDMA_READ;
  *request = (struct request){
      .id = wr->wr_id,
      .opcode = wr->opcode,
      .signaled = qp->first.sq_sig_all || (wr->send_flags & IBV_SEND_SIGNALED),
      .is_inline = wr->send_flags & IBV_SEND_INLINE,
      .immediate = wr->imm_data,
      .remote = atomic ? wr->wr.atomic.remote_addr : wr->wr.rdma.remote_addr,
      .key = atomic ? wr->wr.atomic.rkey : wr->wr.rdma.rkey,
      .compare_add = wr->wr.atomic.compare_add,
      .swap = wr->wr.atomic.swap,
      .place = wr->num_sge > 0 ? wr->sg_list[0] : (struct ibv_sge){0},
  };
  request->length = request->place.length;
  if (request->is_inline)
    memcpy(request->inlined, (const void *)(uintptr_t)request->place.addr, request->length);
  else
    use_memory(qp->seen.pd, &request->place, reads ? IBV_ACCESS_LOCAL_WRITE : 0);
  cut(qp, request);
  request->fault = draw_fault(qp, request);
  sim_trace("nic: queue pair %u: request %llx, opcode %d, %u bytes, packets %u to %u",
            qp->seen.qp_num, (unsigned long long)request->id, (int)request->opcode, request->length,
            request->first, qp->end - 1);
}

/* 0 or an errno. */
static int post(struct queue_pair *qp, const struct ibv_send_wr *wr) {
  if (!is_request(qp, wr))
    return EINVAL;
  if (qp->posted - qp->polled == qp->size || card_fault(4))
    return ENOMEM;
  fill(qp, &qp->requests[qp->posted % qp->size], wr);
  qp->posted++;
  return 0;
}

int post_send(struct ibv_qp *seen, struct ibv_send_wr *wr, struct ibv_send_wr **bad) {
  struct queue_pair *qp = checked(seen, "ibv_post_send");
  int error = qp->state == IBV_QPS_RTS || qp->state == IBV_QPS_ERR ? 0 : EINVAL;
  if (error)
    sim_fail("verbs", "ibv_post_send on a queue pair in state %d", (int)qp->state);
  for (; wr && error == 0; wr = error ? wr : wr->next) {
    sim_now += 100;
    error = post(qp, wr);
  }
  if (error)
    *bad = wr;
  if (qp->state == IBV_QPS_ERR && context_behind(qp->seen.context)->removal == VANISHED)
    forget_requests(qp);
  else if (qp->state == IBV_QPS_ERR)
    flush_sends(qp, 0);
  else if (!qp->pump.place)
    event_schedule(&qp->pump, sim_now + sim_between(100, 1000), on_pump);
  sim_point(200);
  return error;
}

static int post_one_receive(struct queue_pair *qp, const struct ibv_recv_wr *wr) {
  if (qp->seen.srq || wr->num_sge < 0 || wr->num_sge > (int)qp->first.cap.max_recv_sge)
    return EINVAL;
  if (qp->receives_posted - qp->receives_done >= qp->receive_room)
    return ENOMEM;
  struct receive *receive = &qp->receives[qp->receives_posted++ % qp->receive_room];
  receive->id = wr->wr_id;
  receive->place = wr->num_sge > 0 ? wr->sg_list[0] : (struct ibv_sge){0};
  use_memory(qp->seen.pd, &receive->place, IBV_ACCESS_LOCAL_WRITE);
  return 0;
}

int post_receive(struct ibv_qp *seen, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad) {
  struct queue_pair *qp = checked(seen, "ibv_post_recv");
  int error = qp->state == IBV_QPS_RESET ? EINVAL : 0;
  sim_point(100);
  for (; wr && error == 0; wr = error ? wr : wr->next)
    error = post_one_receive(qp, wr);
  if (error)
    *bad = wr;
  if (qp->state == IBV_QPS_ERR && context_behind(qp->seen.context)->removal == VANISHED)
    forget_requests(qp);
  else if (qp->state == IBV_QPS_ERR)
    flush_receives(qp);
  return error;
}

static bool fits(const struct ibv_qp_init_attr *wanted) {
  const struct ibv_qp_cap *cap = &wanted->cap;
  if (!wanted->srq && cap->max_recv_wr < 1)
    return false;
  return cap->max_send_wr >= 1 && cap->max_send_wr <= QUEUE_DEPTH &&
         cap->max_recv_wr <= QUEUE_DEPTH && cap->max_send_sge <= 1 && cap->max_recv_sge <= 1 &&
         cap->max_inline_data <= INLINED;
}

struct ibv_qp *model_create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *wanted) {
  struct domain *domain = (struct domain *)pd;
  struct context *context = context_of(pd->context);
  sim_point(50 * US);
  object_check(&domain->object, DOMAIN, "ibv_create_qp");
  if (context->removal != PRESENT)
    return refused(EIO);
  if (wanted->qp_type != IBV_QPT_RC || !wanted->send_cq || !wanted->recv_cq || !fits(wanted))
    return refused(EINVAL);
  if (refuses_memory() || card_fault(8))
    return refused(ENOMEM);
  struct queue_pair *qp = calloc(1, sizeof *qp);
  object_init(&qp->object, QUEUE_PAIR);
  list_init(&qp->arriving);
  qp->seen.context = pd->context;
  qp->seen.pd = pd;
  qp->seen.send_cq = wanted->send_cq;
  qp->seen.recv_cq = wanted->recv_cq;
  qp->seen.srq = wanted->srq;
  qp->seen.qp_type = wanted->qp_type;
  qp->first = *wanted;
  qp->card = context->card;
  qp->size = wanted->cap.max_send_wr;
  qp->requests = calloc(qp->size, sizeof *qp->requests);
  qp->receive_room = wanted->srq ? TAKEN_MOST : wanted->cap.max_recv_wr;
  qp->receives = calloc(qp->receive_room, sizeof *qp->receives);
  give_number(qp);
  completions_of(wanted->send_cq)->qps++;
  completions_of(wanted->recv_cq)->qps++;
  if (wanted->srq)
    shared_of(wanted->srq)->qps++;
  domain->users++;
  return &qp->seen;
}

static void release(struct queue_pair *qp) {
  all[qp->seen.qp_num - FIRST_NUMBER] = NULL;
  free(qp->requests);
  free(qp->receives);
  qp->requests = NULL;
  qp->receives = NULL;
}

int model_destroy_qp(struct ibv_qp *seen) {
  struct queue_pair *qp = checked(seen, "ibv_destroy_qp");
  sim_point(30 * US);
  sim_trace("nic: queue pair %u is destroyed", seen->qp_num);
  stop(qp);
  forget_requests(qp);
  completions_purge(send_queue(qp), seen->qp_num);
  completions_purge(receive_queue(qp), seen->qp_num);
  events_forget(context_behind(qp->seen.context), qp);
  completions_of(seen->send_cq)->qps--;
  completions_of(seen->recv_cq)->qps--;
  if (seen->srq)
    shared_of(seen->srq)->qps--;
  ((struct domain *)seen->pd)->users--;
  release(qp);
  object_release(&qp->object);
  return 0;
}

/* What it has begun at others goes on; its own memory is gone. */
void queue_pair_free(struct queue_pair *qp) {
  event_cancel(&qp->pump);
  event_cancel(&qp->timer);
  if (qp->object.released)
    return;
  wire_forget(qp);
  release(qp);
}

static void take(struct queue_pair *qp, const struct ibv_qp_attr *wanted, int mask) {
  attributes_take(&qp->attributes, wanted, mask);
  if (wanted->qp_state == IBV_QPS_RTR)
    qp->expected = qp->answered = wanted->rq_psn;
  if (wanted->qp_state == IBV_QPS_RTS)
    qp->next = qp->end = qp->acked = wanted->sq_psn;
  qp->state = wanted->qp_state;
}

static bool is_route(const struct ibv_qp_attr *wanted) {
  const struct ibv_ah_attr *to = &wanted->ah_attr;
  return to->port_num == 1 && to->is_global && to->grh.sgid_index == GID_INDEX &&
         to->grh.hop_limit > 0 && wanted->path_mtu >= IBV_MTU_256 &&
         wanted->path_mtu <= IBV_MTU_1024 && wanted->max_dest_rd_atomic <= READS_SERVED;
}

int model_modify_qp(struct ibv_qp *seen, struct ibv_qp_attr *wanted, int mask) {
  struct queue_pair *qp = checked(seen, "ibv_modify_qp");
  sim_point(40 * US);
  int least = mask & IBV_QP_STATE ? attributes_needed(qp->state, wanted->qp_state) : -1;
  if (context_behind(qp->seen.context)->removal != PRESENT)
    return EIO;
  if (least < 0 || (mask & least) != least || wanted->qp_state == IBV_QPS_RESET ||
      (wanted->qp_state == IBV_QPS_INIT && wanted->port_num != 1) ||
      (wanted->qp_state == IBV_QPS_RTR && !is_route(wanted)))
    return EINVAL;
  const struct card *to =
      wanted->qp_state == IBV_QPS_RTR ? card_by_gid(wanted->ah_attr.grh.dgid.raw) : NULL;
  if (to && to->network != qp->card->network)
    return ENETUNREACH;
  if (card_fault(8))
    return ETIMEDOUT; /* as of a driver that looks the peer's address up */
  if (wanted->qp_state != IBV_QPS_ERR) {
    take(qp, wanted, mask);
  } else {
    queue_pair_fail(qp, 0);
    completions_settle(receive_queue(qp));
  }
  seen->state = qp->state;
  return 0;
}

int model_query_qp(struct ibv_qp *seen, struct ibv_qp_attr *attributes, int mask,
                   struct ibv_qp_init_attr *first) {
  struct queue_pair *qp = checked(seen, "ibv_query_qp");
  (void)mask;
  sim_point(10 * US);
  *attributes = qp->attributes;
  attributes->qp_state = attributes->cur_qp_state = qp->state;
  attributes->cap = qp->first.cap;
  *first = qp->first;
  return 0;
}
