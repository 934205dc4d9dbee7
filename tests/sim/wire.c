/* SPDX-License-Identifier: MIT
 * Packets between cards, and the responder. The responder takes packets in order. The bytes of
 * those that it took reach memory at moments of their own, in any order (relaxed ordering), but
 * before the acknowledgement leaves and before the receive completes.
 *
 * A packet is lost when the link is cut, a port is down, or by chance. Packets outlive the queue
 * pair that sent them: those that are on the way still arrive. */
#include <stdlib.h>
#include <string.h>

#include "load.h"
#include "net.h"
#include "verbs.h"

#define HEADERS    64 /* bytes of a packet beside its data */
#define READ_LEAST 256
#define READ_MOST  (16u << 10)

enum packet_kind { REQUEST, ACK, RESPONSE, NAK_SEQUENCE, NAK_NOT_READY, NAK_REFUSED };
enum verdict { FINE, REPEATED, GAP, NOT_READY, REFUSED };

struct packet {
  struct event event;
  struct list link; /* in arriving */
  enum packet_kind kind;
  struct card *from, *to;
  uint32_t sender, receiver, number;
  enum ibv_wr_opcode opcode;
  enum ibv_wc_status status; /* a fault that it carries, or a refusal's */
  uint64_t remote, compare_add, swap, value;
  uint32_t key, length;   /* bytes that it holds */
  uint32_t offset, total; /* of a read or a response; of NAK_NOT_READY: the timer */
  __be32 immediate;
  uint32_t receive;
  bool last; /* of its request */
  enum verdict verdict;
  bool placed, begun;
  uint8_t bytes[];
};

static struct packet *packet_new(enum packet_kind kind, struct queue_pair *qp, uint32_t number,
                                 size_t length) {
  struct packet *packet = calloc(1, sizeof *packet + length);
  list_init(&packet->link);
  packet->kind = kind;
  packet->from = qp->card;
  packet->to = card_by_gid(qp->attributes.ah_attr.grh.dgid.raw);
  packet->sender = qp->seen.qp_num;
  packet->receiver = qp->attributes.dest_qp_num;
  packet->number = number;
  packet->length = (uint32_t)length;
  return packet;
}

static void packet_free(struct packet *packet) {
  if (packet->to && packet->to->atomic == packet)
    packet->to->atomic = NULL;
  event_cancel(&packet->event);
  list_remove(&packet->link);
  free(packet);
}

static bool is_unreachable(const struct packet *packet) {
  return !packet->to || card_is_down(packet->from) || card_is_down(packet->to) ||
         net_is_cut(packet->from->host, packet->to->host);
}

static bool is_lost(void) {
  if (load.phase != FAULTY || !sim_chance(cards.losses))
    return false;
  sim_faults++;
  return true;
}

static void on_arrival(struct event *event);

/* `last`: the arrival of the one before, which it does not overtake. */
static void send_packet(struct packet *packet, int64_t *last) {
  if (is_unreachable(packet) || is_lost()) {
    packet_free(packet);
    return;
  }
  int64_t *busy = &packet->from->busy_until;
  *busy = (*busy > sim_now ? *busy : sim_now) +
          (int64_t)(packet->length + HEADERS) * net.picoseconds_a_byte / 1000;
  bool local = packet->from->host == packet->to->host;
  int64_t at = *busy + (local ? 2 * US : net.latency + sim_between(0, net.jitter));
  *last = at > *last ? at : *last + 1;
  event_schedule(&packet->event, *last, on_arrival);
}

static bool is_atomic(enum ibv_wr_opcode opcode) {
  return opcode == IBV_WR_ATOMIC_CMP_AND_SWP || opcode == IBV_WR_ATOMIC_FETCH_AND_ADD;
}

/* Does the peer respond with data? */
static bool asks(enum ibv_wr_opcode opcode) {
  return opcode == IBV_WR_RDMA_READ || is_atomic(opcode);
}

static const uint8_t *source_of(const struct queue_pair *qp, const struct request *request,
                                uint32_t at, uint32_t length) {
  if (request->is_inline)
    return request->inlined + at;
  const uint8_t *from =
      dma_at(request->place.lkey, qp->seen.pd, request->place.addr + at, length, 0);
  if (!from)
    sim_fail("dma", "the registration of a request's memory has ended");
  return from;
}

void wire_request(struct queue_pair *qp, struct request *request, uint32_t number) {
  uint32_t at = (number - request->first) * request->piece, length = request->length - at;
  bool writes = request->opcode != IBV_WR_SEND && !asks(request->opcode);
  if (writes && length > request->piece)
    length = request->piece;
  if (asks(request->opcode))
    length = 0;
  struct packet *packet = packet_new(REQUEST, qp, number, length);
  if (length > 0)
    memcpy(packet->bytes, source_of(qp, request, at, length), length);
  packet->opcode = request->opcode;
  packet->status = request->fault;
  packet->remote = request->remote + (writes ? at : 0);
  packet->key = request->key;
  packet->compare_add = request->compare_add;
  packet->swap = request->swap;
  packet->immediate = request->immediate;
  packet->offset = request->received;
  packet->total = request->length;
  packet->last = number + 1 == request->first + request->pieces;
  if (qp->deaf)
    packet_free(packet);
  else
    send_packet(packet, &qp->last_request);
}

static void answer(struct queue_pair *qp, enum packet_kind kind, uint32_t number) {
  struct packet *packet = packet_new(kind, qp, number, 0);
  packet->total = qp->attributes.min_rnr_timer;
  send_packet(packet, &qp->last_answer);
}

/* The responder: checks */

static unsigned rights_for(enum ibv_wr_opcode opcode) {
  if (opcode == IBV_WR_RDMA_READ)
    return IBV_ACCESS_REMOTE_READ;
  return is_atomic(opcode) ? IBV_ACCESS_REMOTE_ATOMIC : IBV_ACCESS_REMOTE_WRITE;
}

static uint8_t *target_of(const struct queue_pair *qp, const struct packet *packet, uint32_t offset,
                          uint32_t length) {
  return dma_at(packet->key, qp->seen.pd, packet->remote + offset, length,
                rights_for(packet->opcode));
}

static bool takes_receive(const struct packet *packet) {
  return packet->opcode == IBV_WR_SEND ||
         (packet->opcode == IBV_WR_RDMA_WRITE_WITH_IMM && packet->last);
}

/* 0, or why the peer may not. */
static enum ibv_wc_status judge_access(const struct queue_pair *qp, const struct packet *packet) {
  unsigned rights = rights_for(packet->opcode);
  uint32_t length = asks(packet->opcode) ? packet->total : packet->length;
  if (packet->opcode == IBV_WR_SEND)
    return 0;
  if (((unsigned)qp->attributes.qp_access_flags & rights) != rights ||
      (is_atomic(packet->opcode) && packet->remote % 8))
    return IBV_WC_REM_INV_REQ_ERR;
  return target_of(qp, packet, 0, length) ? 0 : IBV_WC_REM_ACCESS_ERR;
}

/* The library counts receives, so that none is ever missing, unless they are shared. */
static bool has_receive(struct queue_pair *qp, const struct packet *packet) {
  if (!takes_receive(packet))
    return true;
  if (qp->seen.srq && !shared_take(qp)) {
    sim_trace("nic: queue pair %u finds no shared receive", qp->seen.qp_num);
    return false;
  }
  if (qp->receives_taken == qp->receives_posted)
    sim_fail("credits", "a message for queue pair %u of process %d finds no receive",
             qp->seen.qp_num, (int)qp->object.owner->pid);
  const struct receive *receive = &qp->receives[qp->receives_taken % qp->receive_room];
  if (packet->opcode == IBV_WR_SEND && packet->length > receive->place.length)
    sim_fail("verbs", "a message of %u bytes finds a receive of %u", packet->length,
             receive->place.length);
  return true;
}

static enum verdict judge(struct queue_pair *qp, struct packet *packet) {
  int32_t gap = (int32_t)(packet->number - qp->expected);
  if (gap < 0)
    return REPEATED;
  if (gap > 0)
    return GAP;
  if (packet->status == IBV_WC_RNR_RETRY_EXC_ERR)
    return NOT_READY;
  if (packet->status)
    verbs_note_refusal();
  else
    packet->status = judge_access(qp, packet);
  if (packet->status)
    return REFUSED;
  return has_receive(qp, packet) ? FINE : NOT_READY;
}

/* The responder: memory */

static void place(struct queue_pair *qp, struct packet *packet) {
  const struct ibv_sge *own = &qp->receives[packet->receive % qp->receive_room].place;
  uint8_t *to = packet->opcode == IBV_WR_SEND ? dma_at(own->lkey, qp->seen.pd, own->addr,
                                                       packet->length, IBV_ACCESS_LOCAL_WRITE)
                                              : target_of(qp, packet, 0, packet->length);
  if (!to)
    sim_fail("simulator", "bytes that were admitted have no place");
  memcpy(to, packet->bytes, packet->length);
  packet->placed = true;
}

static bool is_swap(const struct packet *packet) {
  return packet->opcode == IBV_WR_ATOMIC_CMP_AND_SWP;
}

static void store_atomic(struct queue_pair *qp, struct packet *packet) {
  uint64_t made = is_swap(packet) ? packet->swap : packet->value + packet->compare_add;
  uint8_t *to = target_of(qp, packet, 0, 8);
  if (!to)
    sim_fail("simulator", "an atomic that was admitted has no place");
  if (!is_swap(packet) || packet->value == packet->compare_add)
    memcpy(to, &made, sizeof made);
  if (packet->to->atomic == packet)
    packet->to->atomic = NULL;
  unsigned at = qp->saved_count++ % SAVED_MOST;
  qp->saved[at].number = packet->number;
  qp->saved[at].value = packet->value;
}

/* The responder: answers, in order */

static void advance(struct queue_pair *qp);

static void conclude(struct queue_pair *qp, struct packet *packet) {
  if (packet->verdict == FINE)
    qp->answered = packet->number + 1;
  packet_free(packet);
}

static void refuse(struct queue_pair *qp, enum ibv_wc_status status) {
  struct packet *packet = packet_new(NAK_REFUSED, qp, qp->answered, 0);
  packet->status = status;
  send_packet(packet, &qp->last_answer);
  events_raise(context_behind(qp->seen.context), IBV_EVENT_QP_ACCESS_ERR, qp);
  queue_pair_fail(qp, 0); /* frees the packet */
}

static void respond(struct queue_pair *qp, const struct packet *packet, const void *bytes,
                    uint32_t length) {
  struct packet *response = packet_new(RESPONSE, qp, packet->number, length);
  memcpy(response->bytes, bytes, length);
  response->offset = packet->offset;
  send_packet(response, &qp->last_answer);
}

/* A part of a read. */
static void on_read_step(struct event *event) {
  struct packet *packet = list_entry(event, struct packet, event);
  struct queue_pair *qp = queue_pair_of(packet->receiver);
  uint32_t part = (uint32_t)sim_between(READ_LEAST, READ_MOST);
  if (part > packet->total - packet->offset)
    part = packet->total - packet->offset;
  const uint8_t *from = target_of(qp, packet, packet->offset, part);
  if (!from) {
    refuse(qp, IBV_WC_REM_ACCESS_ERR);
    return;
  }
  respond(qp, packet, from, part);
  packet->offset += part;
  if (packet->offset < packet->total) {
    event_schedule(event, sim_now + sim_between(50, 3000), on_read_step);
    return;
  }
  conclude(qp, packet);
  advance(qp);
}

static void end_atomic(struct queue_pair *qp, struct packet *packet) {
  store_atomic(qp, packet);
  respond(qp, packet, &packet->value, 8);
  conclude(qp, packet);
  advance(qp);
}

static void on_atomic_store(struct event *event) {
  struct packet *packet = list_entry(event, struct packet, event);
  end_atomic(queue_pair_of(packet->receiver), packet);
}

/* Without IBV_ATOMIC_GLOB a processor may get between the load and the store, but no other atomic
 * of the card. */
static void on_atomic_load(struct event *event) {
  struct packet *packet = list_entry(event, struct packet, event);
  struct queue_pair *qp = queue_pair_of(packet->receiver);
  struct card *card = packet->to;
  if (card->atomic) {
    event_schedule(event, sim_now + 200, on_atomic_load);
    return;
  }
  const uint8_t *from = target_of(qp, packet, 0, 8);
  if (!from) {
    refuse(qp, IBV_WC_REM_ACCESS_ERR);
    return;
  }
  memcpy(&packet->value, from, 8);
  packet->begun = true;
  if (cards.global) {
    end_atomic(qp, packet);
    return;
  }
  card->atomic = packet;
  event_schedule(event, sim_now + sim_between(100, 2000), on_atomic_store);
}

static void repeat_atomic(struct queue_pair *qp, struct packet *packet) {
  for (unsigned i = 0; i < SAVED_MOST && i < qp->saved_count; i++)
    if (qp->saved[i].number == packet->number)
      respond(qp, packet, &qp->saved[i].value, 8);
  conclude(qp, packet);
}

static void end_message(struct queue_pair *qp, struct packet *packet) {
  bool write = packet->opcode == IBV_WR_RDMA_WRITE_WITH_IMM;
  struct ibv_wc completion = {
      .wr_id = qp->receives[packet->receive % qp->receive_room].id,
      .opcode = write ? IBV_WC_RECV_RDMA_WITH_IMM : IBV_WC_RECV,
      .byte_len = packet->total,
      .imm_data = packet->immediate,
      .qp_num = qp->seen.qp_num,
      .src_qp = packet->sender,
      .wc_flags = write ? IBV_WC_WITH_IMM : 0,
  };
  bool receives = packet->verdict == FINE && takes_receive(packet);
  conclude(qp, packet);
  if (receives)
    complete_receive(qp, &completion);
  if (qp->state != IBV_QPS_ERR)
    answer(qp, ACK, qp->answered);
}

/* The first in order. False: it takes time, or the queue pair has failed. */
static bool take_turn(struct queue_pair *qp, struct packet *packet) {
  switch (packet->verdict) {
  case GAP:
    conclude(qp, packet);
    answer(qp, NAK_SEQUENCE, qp->answered);
    return true;
  case NOT_READY:
    conclude(qp, packet);
    answer(qp, NAK_NOT_READY, qp->answered);
    return true;
  case REFUSED:
    refuse(qp, packet->status);
    return false;
  default:
    break;
  }
  if (packet->opcode == IBV_WR_RDMA_READ) {
    event_schedule(&packet->event, sim_now + sim_between(50, 3000), on_read_step);
    return false;
  }
  if (is_atomic(packet->opcode) && packet->verdict == FINE) {
    event_schedule(&packet->event, sim_now + sim_between(50, 1000), on_atomic_load);
    return false;
  }
  if (is_atomic(packet->opcode))
    repeat_atomic(qp, packet);
  else
    end_message(qp, packet);
  return qp->state != IBV_QPS_ERR;
}

static void advance(struct queue_pair *qp) {
  while (!list_empty(&qp->arriving)) {
    struct packet *first = list_entry(qp->arriving.next, struct packet, link);
    if (!first->placed || first->event.place || !take_turn(qp, first))
      return;
  }
}

static void on_placing(struct event *event) {
  struct packet *packet = list_entry(event, struct packet, event);
  struct queue_pair *qp = queue_pair_of(packet->receiver);
  place(qp, packet);
  advance(qp);
}

static void take_request(struct queue_pair *qp, struct packet *packet) {
  if (qp->state != IBV_QPS_RTR && qp->state != IBV_QPS_RTS) {
    packet_free(packet);
    return;
  }
  packet->verdict = judge(qp, packet);
  if (packet->verdict == GAP && qp->complained) {
    packet_free(packet);
    return;
  }
  qp->complained = packet->verdict == GAP || (qp->complained && packet->verdict != FINE);
  list_append(&qp->arriving, &packet->link);
  packet->placed = true;
  if (packet->verdict == FINE) {
    qp->expected++;
    packet->receive = takes_receive(packet) ? qp->receives_taken++ : 0;
    packet->placed = asks(packet->opcode);
    if (!packet->placed)
      event_schedule(&packet->event, sim_now + sim_between(0, 3000), on_placing);
  }
  advance(qp);
}

/* A call that ends access waits until the card has stored what it took. */
void wire_settle(struct queue_pair *qp, const struct registration_model *registration) {
  list_each_safe(item, &qp->arriving) {
    struct packet *packet = list_entry(item, struct packet, link);
    if (!packet->placed && (!registration || packet->key == registration->seen.rkey)) {
      event_cancel(&packet->event);
      place(qp, packet);
    }
  }
  struct packet *atomic = qp->card->atomic;
  if (atomic && atomic->receiver == qp->seen.qp_num &&
      (!registration || atomic->key == registration->seen.rkey)) {
    event_cancel(&atomic->event);
    store_atomic(qp, atomic);
    respond(qp, atomic, &atomic->value, 8);
    conclude(qp, atomic);
  }
  if (!registration)
    wire_forget(qp);
  else
    advance(qp);
}

void wire_forget(struct queue_pair *qp) {
  for (struct list *item; (item = list_take(&qp->arriving));)
    packet_free(list_entry(item, struct packet, link));
}

/* The requester: answers */

/* An acknowledgement behind a read whose response is missing counts up to the read. */
static uint32_t certain(const struct queue_pair *qp, uint32_t number) {
  for (uint32_t i = qp->done; i != qp->posted; i++) {
    const struct request *request = &qp->requests[i % qp->size];
    if ((int32_t)(request->first - number) >= 0)
      break;
    if (asks(request->opcode))
      return request->first;
  }
  return number;
}

/* Codes of the InfiniBand specification, by an approximation of its table. */
static int64_t not_ready_for(uint32_t timer) {
  if (timer == 0)
    return 655360 * US;
  return timer % 2 ? 15 * US << timer / 2 : 10 * US << timer / 2;
}

static void take_response(struct queue_pair *qp, const struct packet *packet) {
  struct request *request = queue_pair_oldest(qp);
  if (!request || request->first != packet->number || !asks(request->opcode) ||
      packet->offset != request->received)
    return;
  uint8_t *to = dma_at(request->place.lkey, qp->seen.pd, request->place.addr + packet->offset,
                       packet->length, IBV_ACCESS_LOCAL_WRITE);
  if (!to)
    sim_fail("dma", "the registration of a request's memory has ended");
  memcpy(to, packet->bytes, packet->length);
  request->received += packet->length;
  if (request->received == request->length)
    queue_pair_acked(qp, packet->number + 1);
  else
    queue_pair_heard(qp);
}

/* A receiver that is not ready by a fault becomes ready some time. */
static void retry_not_ready(struct queue_pair *qp, const struct packet *packet) {
  struct request *oldest = queue_pair_oldest(qp);
  if (oldest->fault == IBV_WC_RNR_RETRY_EXC_ERR && sim_chance(300000))
    oldest->fault = 0;
  queue_pair_resend(qp, qp->acked, sim_now + not_ready_for(packet->total));
}

static void take_refusal(struct queue_pair *qp, const struct packet *packet) {
  if (packet->kind == NAK_REFUSED)
    queue_pair_fail(qp, packet->status);
  else if (packet->kind == NAK_SEQUENCE)
    queue_pair_resend(qp, qp->acked, sim_now);
  else if (qp->attributes.rnr_retry != 7 && qp->not_ready++ == qp->attributes.rnr_retry)
    queue_pair_fail(qp, IBV_WC_RNR_RETRY_EXC_ERR);
  else
    retry_not_ready(qp, packet);
}

static void take_answer(struct queue_pair *qp, const struct packet *packet) {
  if (qp->state != IBV_QPS_RTS || (int32_t)(packet->number - qp->end) > 0)
    return;
  queue_pair_acked(qp, certain(qp, packet->number));
  if (qp->state != IBV_QPS_RTS)
    return;
  if (packet->kind == RESPONSE)
    take_response(qp, packet);
  else if (packet->kind != ACK && qp->acked == packet->number && queue_pair_oldest(qp))
    take_refusal(qp, packet);
}

static void on_arrival(struct event *event) {
  struct packet *packet = list_entry(event, struct packet, event);
  struct queue_pair *qp = queue_pair_of(packet->receiver);
  bool known = qp && qp->card == packet->to && qp->attributes.dest_qp_num == packet->sender;
  if (!known || is_unreachable(packet)) {
    packet_free(packet);
  } else if (packet->kind == REQUEST) {
    take_request(qp, packet);
  } else {
    take_answer(qp, packet);
    packet_free(packet);
  }
}
