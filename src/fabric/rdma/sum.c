/* SPDX-License-Identifier: MIT
 * End-to-end checksums. A NIC computes none that a program could see, so after a work is complete
 * this side sums its local bytes and asks the owner whether its own are the same. The answer is yes
 * or no: whoever may only write learns nothing else of what is there. */
#include <string.h>
#include <xxhash.h>

#include "core/error.h"
#include "fabric/rdma/rdma.h"
#include "memory/copy.h"

/* One sum for all pieces of a record, made of theirs. `remote`: by the remote's offsets. */
static int sum_pieces(struct memory *memory, const struct rdma_span *spans, size_t count,
                      uint64_t *sum) {
  uint64_t sums[RDMA_SPANS];
  for (size_t i = 0; i < count; i++) {
    int code = memory_checksum(memory, spans[i].offset, spans[i].length, &sums[i]);
    if (code)
      return code;
  }
  *sum = XXH3_64bits(sums, count * sizeof sums[0]);
  return 0;
}

/* ---- Asking ---- */

static int ask_for(struct rdma_endpoint *endpoint, struct rdma_job *job, uint32_t from) {
  const struct work *work = job->work;
  struct rdma_record question = {.type = RDMA_SUM,
                                 .request = job->serial,
                                 .handle = ((struct rdma_binding *)work->binding)->handle};
  struct rdma_span local[RDMA_SPANS];
  uint32_t count = work->count - from < RDMA_SPANS ? work->count - from : RDMA_SPANS;
  for (uint32_t i = 0; i < count; i++) {
    const struct haul_piece *piece = &work->pieces[from + i];
    local[i] = (struct rdma_span){piece->local, (uint32_t)piece->length};
    question.spans[i] = (struct rdma_span){piece->remote, (uint32_t)piece->length};
  }
  question.span_count = (uint8_t)count;
  int code = sum_pieces(&work->region->memory, local, count, &question.sum);
  if (code == 0)
    rdma_say(endpoint, &question);
  return code;
}

int rdma_sum_ask(struct rdma_endpoint *endpoint, struct rdma_job *job) {
  uint32_t count = job->work->count;
  job->serial = ++endpoint->next_request;
  job->questions = (count + RDMA_SPANS - 1) / RDMA_SPANS;
  int code = 0;
  for (uint32_t from = 0; from < count && code == 0; from += RDMA_SPANS)
    code = ask_for(endpoint, job, from);
  return code;
}

/* ---- Answering ---- */

static int compare(struct rdma_endpoint *endpoint, const struct rdma_record *question) {
  struct rdma_attachment *attachment = rdma_find_attachment(endpoint, question->handle);
  uint64_t bytes = 0, sum;
  if (!attachment)
    return HAUL_ESTALE;
  struct memory *memory = &attachment->region->memory;
  for (size_t i = 0; i < question->span_count; i++) {
    const struct rdma_span *span = &question->spans[i];
    if (span->length > memory->length || span->offset > memory->length - span->length)
      return HAUL_ERANGE;
    bytes += span->length;
  }
  if (bytes > WORK_BYTES_MAX) /* the loop does nothing else meanwhile */
    return HAUL_ELIMIT;
  int code = sum_pieces(memory, question->spans, question->span_count, &sum);
  return code || sum == question->sum ? code : HAUL_ECHECKSUM;
}

void rdma_on_sum(struct rdma_endpoint *endpoint, const struct rdma_record *question) {
  rdma_say(endpoint, &(struct rdma_record){.type = RDMA_SUMMED,
                                           .request = question->request,
                                           .handle = question->handle,
                                           .status = compare(endpoint, question)});
}
