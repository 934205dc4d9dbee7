/* SPDX-License-Identifier: MIT
 * The owner's part of a work: copying between a region that no NIC reaches and the loan, fencing a
 * device, comparing sums. A NIC computes no sum that a program could see, so the asker sums its own
 * bytes and the owner says whether its own are the same. That is for those who may read: a span of
 * one byte is found out by asking for all 256, and nothing says that it was written before. */
#include "core/alloc.h"
#include "core/error.h"
#include "core/sum.h"
#include "fabric/rdma/rdma.h"
#include "memory/copy.h"

/* An honest peer asks for no more at a time: a slot's work has at most WORK_PIECES_MAX pieces. */
#define LANDINGS_MAX (RDMA_STAGES * (WORK_PIECES_MAX / RDMA_SPANS))

struct rdma_landing {
  struct list link; /* endpoint->landings */
  struct rdma_record question;
  struct haul_region *region; /* a reference */
  struct devcopy copy;        /* between it and the loan */
};

static void answer(struct rdma_endpoint *endpoint, const struct rdma_record *question, int status) {
  rdma_say(endpoint, &(struct rdma_record){.type = RDMA_DONE,
                                           .request = question->request,
                                           .handle = question->handle,
                                           .rails = question->rails,
                                           .status = status});
}

/* ---- The loan ---- */

/* One range with one key, which is the peer's to write to: these are not the buffers that others
 * use, but they count as if they were. */
int loan_open(struct rdma_endpoint *endpoint, struct haul_place place, struct rdma_loan *loan) {
  struct heap *heap = endpoint->base.link->fabric->heap;
  struct staging *staging = heap_staging(heap);
  loan->slots = staging_reserve(staging, RDMA_STAGES);
  if (loan->slots == 0)
    return error_set(HAUL_ELIMIT, 0, "staging", "set more of them (`staging` in haul.conf)",
                     "all staging buffers that may be lent are lent");
  int code = heap_alloc(heap, (struct haul_place){HAUL_HOST, 0}, loan->slots * BOUNCE_BYTES,
                        HAUL_REGION_PRIVATE | HAUL_REGION_PINNED, &loan->region);
  if (code == 0)
    staging_bind_numa(&loan->region->memory, staging_numa(staging, place));
  for (unsigned i = 0; i < endpoint->rail_count && code == 0; i++)
    code = card_export(endpoint->rails[i].card, &loan->region->memory, HAUL_READ | HAUL_WRITE,
                       &loan->registrations[i]);
  if (code)
    loan_close(endpoint, loan);
  return code;
}

void loan_close(struct rdma_endpoint *endpoint, struct rdma_loan *loan) {
  for (unsigned i = 0; i < RDMA_RAILS_MAX; i++)
    if (loan->registrations[i])
      card_unexport(endpoint->rails[i].card, loan->registrations[i]);
  if (loan->region)
    region_put(loan->region);
  if (loan->slots > 0)
    staging_unreserve(heap_staging(endpoint->base.link->fabric->heap), loan->slots);
  *loan = (struct rdma_loan){.region = NULL};
}

/* ---- What is asked ---- */

/* 0, or why the peer may not: everything is foreign. `loan`: the bytes lie there too. */
static int check_spans(struct rdma_endpoint *endpoint, const struct rdma_record *question,
                       const struct memory *memory, bool loan) {
  uint64_t bytes = 0, room = endpoint->loan.slots * (uint64_t)WORK_BYTES_MAX;
  for (size_t i = 0; i < question->span_count; i++) {
    const struct rdma_span *span = &question->spans[i];
    if (span->length > memory->length || span->offset > memory->length - span->length)
      return HAUL_ERANGE;
    bytes += span->length;
  }
  if (bytes > WORK_BYTES_MAX) /* the loop does nothing else while it sums */
    return HAUL_ELIMIT;
  if (loan && (!endpoint->loan.region || question->at > room || bytes > room - question->at))
    return HAUL_ERANGE;
  return 0;
}

static int compare(struct rdma_endpoint *endpoint, const struct rdma_record *question,
                   const struct rdma_attachment *attachment) {
  struct memory *memory = &attachment->region->memory;
  uint64_t sums[RDMA_SPANS];
  int code = attachment->rights & HAUL_READ ? check_spans(endpoint, question, memory, false)
                                            : HAUL_EACCESS;
  for (size_t i = 0; i < question->span_count && code == 0; i++) {
    const struct rdma_span *span = &question->spans[i];
    code = memory_checksum(memory, span->offset, span->length, &sums[i]);
    endpoint->summed += span->length;
  }
  if (code)
    return code;
  return XXH3_64bits(sums, question->span_count * sizeof sums[0]) == question->sum ? 0
                                                                                   : HAUL_ECHECKSUM;
}

/* ---- Copies between the loan and a region ---- */

static struct devcopy_segment loan_segment(const struct devcopy *copy, uint32_t index) {
  const struct rdma_landing *landing = copy->owner;
  const struct rdma_span *span = &landing->question.spans[index];
  uint64_t at = landing->question.at + copy->copied;
  bool lands = landing->question.type == RDMA_LAND;
  return (struct devcopy_segment){.to_offset = lands ? span->offset : at,
                                  .from_offset = lands ? at : span->offset,
                                  .length = span->length};
}

static void finish(struct rdma_landing *landing) {
  list_remove(&landing->link);
  devcopy_cancel(&landing->copy);
  region_put(landing->region);
  alloc_free(landing);
}

bool landings_poll(struct rdma_endpoint *endpoint, bool *urgent) {
  bool any = false;
  list_each_safe(item, &endpoint->landings) {
    struct rdma_landing *landing = list_entry(item, struct rdma_landing, link);
    int status = devcopy_poll(&landing->copy);
    if (status > 0) {
      *urgent |= devcopy_is_polled(&landing->copy);
      continue;
    }
    any = true;
    answer(endpoint, &landing->question, status);
    finish(landing);
  }
  return any;
}

void landings_cancel(struct rdma_endpoint *endpoint) {
  while (!list_empty(&endpoint->landings))
    finish(list_entry(endpoint->landings.next, struct rdma_landing, link));
}

bool landings_touch(const struct rdma_endpoint *endpoint, uint64_t handle) {
  list_each(item,
            &endpoint->landings) if (list_entry(item, struct rdma_landing, link)->question.handle ==
                                     handle) return true;
  return false;
}

static int land(struct rdma_endpoint *endpoint, const struct rdma_record *question,
                const struct rdma_attachment *attachment) {
  unsigned right = question->type == RDMA_LAND ? HAUL_WRITE : HAUL_READ;
  unsigned count = 0;
  list_each(item, &endpoint->landings) count++;
  if (count >= LANDINGS_MAX)
    return HAUL_EPROTO;
  int code = !attachment->staged || !(attachment->rights & right)
                 ? HAUL_EACCESS
                 : check_spans(endpoint, question, &attachment->region->memory, true);
  struct rdma_landing *landing = code ? NULL : alloc_zero(1, sizeof *landing);
  if (!landing) {
    answer(endpoint, question, code ? code : HAUL_ENOMEM);
    return 0;
  }
  landing->question = *question;
  landing->region = attachment->region;
  region_retain(landing->region);
  struct memory *device = &landing->region->memory, *loan = &endpoint->loan.region->memory;
  bool lands = question->type == RDMA_LAND;
  landing->copy = (struct devcopy){.engine = device->provider,
                                   .to = lands ? device : loan,
                                   .from = lands ? loan : device,
                                   .loop = endpoint->base.link->fabric->loop,
                                   .count = question->span_count,
                                   .segment = loan_segment,
                                   .owner = landing};
  list_append(&endpoint->landings, &landing->link);
  loop_wake(endpoint->base.link->fabric->loop);
  return 0;
}

/* Once the rails broke nobody waits for an answer, and nothing is copied that would have to end
 * before the loan does. */
int rdma_on_question(struct rdma_endpoint *endpoint, const struct rdma_record *question) {
  if (endpoint->broken)
    return 0;
  struct rdma_attachment *attachment = rdma_find_attachment(endpoint, question->handle);
  int status = HAUL_ESTALE;
  if (!attachment || attachment->revoked)
    attachment = NULL;
  else if (question->type == RDMA_SUM)
    status = compare(endpoint, question, attachment);
  else if (question->type == RDMA_FENCE)
    status = memory_fence(&attachment->region->memory, FENCE_BEFORE_READ);
  else
    return land(endpoint, question, attachment);
  answer(endpoint, question, status);
  return 0;
}

/* ---- Writes with immediate ---- */

/* An immediate is ordered behind the bytes of its write on their way to the device: seeing it in
 * the completion queue is what makes a fence of the device worth something. A record on the channel
 * would not do: it comes another way and may be here first. Nor would a read after the write: it
 * shows that the bytes have left the NIC, not that the device's own caches know of them. */
static int fence(struct rdma_endpoint *endpoint, uint32_t number) {
  list_each(item, &endpoint->attachments) {
    struct rdma_attachment *attachment = list_entry(item, struct rdma_attachment, link);
    if (attachment->number == number)
      return memory_fence(&attachment->region->memory, FENCE_AFTER_WRITE);
  }
  return HAUL_ESTALE;
}

/* Where an answer has no room it waits: the NIC may say that the peer has the ones before only
 * after the peer wrote again. */
static bool take_fence(struct rdma_endpoint *endpoint, struct rdma_rail *rail, uint32_t *number) {
  combiner_lock(&endpoint->combiner);
  bool any = rail->fence_count > 0 && rail->queue && mail_has_room(&rail->mail);
  if (any) {
    struct rdma_fence first = rail->fences[0];
    *number = first.number;
    rail->fence_count--;
    for (uint32_t i = 0; i < rail->fence_count; i++)
      rail->fences[i] = rail->fences[i + 1];
    mail_receive(rail, first.buffer); /* before the answer, which allows another write */
  }
  combiner_unlock(&endpoint->combiner);
  return any;
}

void rdma_fence_written(struct rdma_endpoint *endpoint) {
  uint32_t number;
  for (unsigned i = 0; i < endpoint->rail_count; i++)
    while (take_fence(endpoint, &endpoint->rails[i], &number))
      rdma_say(endpoint, &(struct rdma_record){.type = RDMA_FENCED,
                                               .request = number,
                                               .rails = (uint8_t)i,
                                               .status = fence(endpoint, number)});
}
