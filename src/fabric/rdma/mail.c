/* SPDX-License-Identifier: MIT
 * Sends and receives: questions to the owner, and answers, as records over a rail. They are there
 * in microseconds, which a fence after every write into a device's memory needs.
 *
 * What is said of a work goes over its rail, behind its bytes: no order holds between two NICs'
 * writes to memory. Nothing is sent that the other side has no receive for: a rail has one for
 * every write with immediate that the peer may have under way, for every answer to ours, and for
 * every question and its answer. A receive is posted again before the answer goes out, which is
 * what allows the peer its next one. */
#include <arpa/inet.h>
#include <string.h>

#include "core/error.h"
#include "core/sys.h"
#include "fabric/rdma/rdma.h"

/* What a peer gets of the loop at a time: a millisecond at most, where hashing takes long. */
#define RECORDS_A_TURN 64
#define SUMMED_A_TURN  ((uint64_t)4 << 20)

static uint8_t *buffer_of(const struct rdma_mail *mail, uint32_t buffer) {
  return (uint8_t *)mail->region->memory.view + (size_t)buffer * RDMA_RECORD;
}

/* ---- Life ---- */

void mail_measure(struct rdma_mail *mail) {
  mail->receives = RDMA_RECEIVES;
  mail->sends = RDMA_FENCES + 2 * RDMA_ASKED;
}

static int post_receive(struct rdma_rail *rail, uint32_t buffer) {
  struct ibv_sge place = {.addr = (uintptr_t)buffer_of(&rail->mail, buffer),
                          .length = RDMA_RECORD,
                          .lkey = rail->mail.registration->lkey};
  struct ibv_recv_wr request = {
      .wr_id = (uint64_t)buffer << MAIL_BITS | MAIL_RECEIVED, .sg_list = &place, .num_sge = 1};
  struct ibv_recv_wr *bad;
  int system = ibv_post_recv(rail->queue, &request, &bad);
  return system ? error_set(HAUL_EPATH, system, rail->card->nic->name, NULL,
                            "its receive queue refused a request")
                : 0;
}

int mail_open(struct rdma_rail *rail) {
  struct rdma_mail *mail = &rail->mail;
  struct heap *heap = rail->endpoint->base.link->fabric->heap;
  uint64_t bytes = (uint64_t)(mail->receives + mail->sends) * RDMA_RECORD;
  int code = heap_alloc(heap, (struct haul_place){HAUL_HOST, 0}, bytes, HAUL_REGION_PRIVATE,
                        &mail->region);
  if (code == 0)
    code = card_pin(rail->card, &mail->region->memory, &mail->registration);
  for (uint32_t i = 0; i < mail->receives && code == 0; i++)
    code = post_receive(rail, i);
  return code;
}

void mail_close(struct rdma_rail *rail) {
  struct rdma_mail *mail = &rail->mail;
  card_unexport(rail->card, mail->registration);
  if (mail->region)
    region_put(mail->region);
  mail->registration = NULL;
  mail->region = NULL;
}

/* ---- Sending ---- */

bool mail_has_room(const struct rdma_mail *mail) {
  return mail->sent - mail->done < mail->sends;
}

/* With the endpoint's lock. Sends complete in their order. */
static int send_record(struct rdma_rail *rail, const struct rdma_record *record) {
  struct rdma_mail *mail = &rail->mail;
  if (!mail_has_room(mail))
    return error_set(HAUL_EPATH, 0, rail->card->nic->name, NULL, "the peer's NIC takes no sends");
  uint8_t *bytes = buffer_of(mail, mail->receives + mail->sent % mail->sends);
  struct ibv_sge place = {.addr = (uintptr_t)bytes,
                          .length = (uint32_t)rdma_pack(record, bytes),
                          .lkey = mail->registration->lkey};
  struct ibv_send_wr request = {
      .wr_id = MAIL_SENT,
      .sg_list = &place,
      .num_sge = 1,
      .opcode = IBV_WR_SEND,
      .send_flags = IBV_SEND_SIGNALED | (place.length <= rail->inlined ? IBV_SEND_INLINE : 0u)};
  struct ibv_send_wr *bad;
  int system = ibv_post_send(rail->queue, &request, &bad);
  if (system)
    return error_set(HAUL_EPATH, system, rail->card->nic->name, NULL,
                     "its send queue refused a request");
  mail->sent++;
  return 0;
}

/* Once the rail broke nobody waits for it any more. */
void mail_send(struct rdma_rail *rail, const struct rdma_record *record) {
  struct rdma_endpoint *endpoint = rail->endpoint;
  combiner_lock(&endpoint->combiner);
  bool breaks = rail->queue && !rail->broken && send_record(rail, record) != 0;
  if (breaks)
    rail_breaks(rail);
  combiner_unlock(&endpoint->combiner);
  if (breaks)
    loop_wake(endpoint->base.link->fabric->loop);
}

/* ---- Receiving ---- */

void mail_take(struct rdma_rail *rail, const struct ibv_wc *completion) {
  struct rdma_mail *mail = &rail->mail;
  uint32_t buffer = (uint32_t)(completion->wr_id >> MAIL_BITS);
  if ((completion->wr_id & MAIL_SENT) != 0)
    mail->done++;
  else if (completion->opcode == IBV_WC_RECV_RDMA_WITH_IMM)
    rail->fences[rail->fence_count++] = (struct rdma_fence){ntohl(completion->imm_data), buffer};
  else
    mail->heard[mail->came++ % RDMA_RECEIVES] = (struct rdma_heard){buffer, completion->byte_len};
}

void mail_receive(struct rdma_rail *rail, uint32_t buffer) {
  if (post_receive(rail, buffer) != 0)
    rail_breaks(rail);
}

/* The next one, behind which the buffer is the peer's again. */
static bool take_heard(struct rdma_rail *rail, uint8_t bytes[RDMA_RECORD]) {
  struct rdma_mail *mail = &rail->mail;
  combiner_lock(&rail->endpoint->combiner);
  bool any = mail->came != mail->taken && rail->queue;
  if (any) {
    struct rdma_heard heard = mail->heard[mail->taken++ % RDMA_RECEIVES];
    memset(bytes, 0, RDMA_RECORD);
    memcpy(bytes, buffer_of(mail, heard.buffer), heard.length); /* the NIC saw to its bound */
    mail_receive(rail, heard.buffer);
  }
  combiner_unlock(&rail->endpoint->combiner);
  return any;
}

static bool hear_rail(struct rdma_rail *rail) {
  struct rdma_endpoint *endpoint = rail->endpoint;
  uint8_t bytes[RDMA_RECORD];
  bool any = false;
  for (int i = 0; i < RECORDS_A_TURN && endpoint->summed < SUMMED_A_TURN && take_heard(rail, bytes);
       i++) {
    int code = rdma_on_record(endpoint, bytes, rail);
    any = true;
    if (code)
      rdma_channel_fail(endpoint, code);
  }
  return any;
}

bool mail_hear(struct rdma_endpoint *endpoint) {
  bool any = false;
  endpoint->summed = 0;
  for (unsigned i = 0; i < endpoint->rail_count; i++)
    any |= hear_rail(&endpoint->rails[i]);
  if (any)
    atomic_store_explicit(&endpoint->base.link->heard, clock_now(), memory_order_relaxed);
  return any;
}
