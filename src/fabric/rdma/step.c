/* SPDX-License-Identifier: MIT
 * What a work needs before and after the NIC's part: its way through a stage of this host, a slot
 * of the peer's loan, the owner's fence, a checksum. Each step is three functions; a job goes
 * through those that it needs, in the order of enum rdma_step, in the loop alone. */
#include <errno.h>
#include <string.h>

#include "core/alloc.h"
#include "core/error.h"
#include "core/sum.h"
#include "fabric/rdma/rdma.h"
#include "memory/copy.h"

static bool is_write(const struct rdma_job *job) {
  return job->work->operation == HAUL_OP_WRITE;
}

static const struct rdma_binding *binding_of(const struct rdma_job *job) {
  return job->work->binding;
}

/* ---- Stages and slots ---- */

/* Free in the peer's loan, or -1. The loop alone takes some. */
static int find_slot(struct rdma_endpoint *endpoint) {
  int slot = -1;
  combiner_lock(&endpoint->combiner);
  for (unsigned i = 0; i < endpoint->slot_count && slot < 0; i++)
    if (!endpoint->slots[i].busy)
      slot = (int)i;
  combiner_unlock(&endpoint->combiner);
  return slot;
}

/* The slot, if any, is free until the stage is there: who has one waits for nobody's other. */
static int take_stage(struct rdma_job *job) {
  struct staging_user *user = &job->rail->endpoint->staging;
  struct ibv_mr *mr;
  int numa = staging_numa(user->staging, job->work->region->memory.place);
  int code = staging_get(user, 1, numa, &job->stage);
  if (code == 0) {
    job->copy = alloc_zero(1, sizeof *job->copy);
    code = job->copy ? 0 : error_memory("device copy");
  }
  if (code == 0)
    code = card_register(job->rail->card, &job->stage->region->memory, &job->entry, &mr);
  if (code == 0)
    job->key = mr->lkey;
  return code;
}

/* What is left of a write that was given up is in a slot, and so are those that it could land on.
 */
static bool must_wait(struct rdma_endpoint *endpoint, const struct rdma_job *job) {
  combiner_lock(&endpoint->combiner);
  bool must = is_write(job) && endpoint->landing_slots > 0;
  combiner_unlock(&endpoint->combiner);
  return must;
}

/* All that the job needs, or nothing. */
static int take(struct rdma_job *job) {
  struct rdma_endpoint *endpoint = job->rail->endpoint;
  bool needs_slot = binding_of(job)->staged;
  int slot = needs_slot && !must_wait(endpoint, job) ? find_slot(endpoint) : -1;
  if (needs_slot && slot < 0) {
    staging_cancel_wait(&endpoint->staging);
    return 1;
  }
  int code = job->staged ? take_stage(job) : 0;
  if (code || !needs_slot)
    return code;
  combiner_lock(&endpoint->combiner);
  endpoint->slots[slot] = (struct rdma_slot){.busy = true};
  combiner_unlock(&endpoint->combiner);
  job->slot = slot;
  return 0;
}

static bool needs_take(const struct rdma_job *job) {
  return job->staged || binding_of(job)->staged;
}

/* ---- The device's copies ---- */

static bool is_copying(const struct rdma_job *job) {
  return job->copy && job->copy->in_flight;
}

static bool needs_fill(const struct rdma_job *job) {
  return job->staged && is_write(job);
}

static bool needs_drain(const struct rdma_job *job) {
  return !is_write(job) && !job->work->region->memory.view;
}

static struct devcopy_segment device_segment(const struct devcopy *copy, uint32_t index) {
  const struct rdma_job *job = copy->owner;
  const struct haul_piece *piece = &job->work->pieces[index];
  bool out = is_write(job);
  return (struct devcopy_segment){.to_offset = out ? copy->copied : piece->local,
                                  .from_offset = out ? piece->local : copy->copied,
                                  .length = piece->length};
}

static int look_at_copy(struct rdma_job *job) {
  return devcopy_poll(job->copy);
}

static int begin_copy(struct rdma_job *job) {
  struct memory *device = &job->work->region->memory, *bounce = bounce_memory(job->stage);
  *job->copy = (struct devcopy){.engine = device->provider,
                                .to = is_write(job) ? bounce : device,
                                .from = is_write(job) ? device : bounce,
                                .loop = job->rail->endpoint->base.link->fabric->loop,
                                .count = job->work->count,
                                .segment = device_segment,
                                .owner = job};
  return look_at_copy(job);
}

/* What the NIC itself wrote into the device's memory. */
static int begin_drain(struct rdma_job *job) {
  return job->stage ? begin_copy(job) : memory_fence(&job->work->region->memory, FENCE_AFTER_WRITE);
}

/* ---- Questions to the owner ---- */

#define LATER 2 /* what `begin` says when too many have no answer */

_Static_assert(WORK_PIECES_MAX / RDMA_SPANS <= RDMA_ASKED, "a work's questions must fit");

static void say_question(struct rdma_job *job, struct rdma_record *question) {
  struct rdma_endpoint *endpoint = job->rail->endpoint;
  question->request = job->serial;
  question->handle = binding_of(job)->handle;
  question->rails = (uint8_t)(job->rail - endpoint->rails);
  endpoint->asked++;
  rdma_say(endpoint, question);
}

/* One sum for all pieces of a record, made of theirs. */
static int sum_pieces(struct rdma_job *job, uint32_t from, uint32_t count, uint64_t *sum) {
  uint64_t sums[RDMA_SPANS];
  for (uint32_t i = 0; i < count; i++) {
    const struct haul_piece *piece = &job->work->pieces[from + i];
    int code = memory_checksum(&job->work->region->memory, piece->local, piece->length, &sums[i]);
    if (code)
      return code;
  }
  *sum = XXH3_64bits(sums, count * sizeof sums[0]);
  return 0;
}

/* As many pieces as a record holds. */
static int ask_for(struct rdma_job *job, unsigned type, uint32_t from, uint64_t *at) {
  struct rdma_record question = {.type = (uint16_t)type, .at = *at};
  uint32_t left = job->work->count - from;
  uint32_t count = left < RDMA_SPANS ? left : RDMA_SPANS;
  for (uint32_t i = 0; i < count; i++) {
    const struct haul_piece *piece = &job->work->pieces[from + i];
    question.spans[i] = (struct rdma_span){piece->remote, (uint32_t)piece->length};
    *at += piece->length;
  }
  question.span_count = (uint8_t)count;
  int code = type == RDMA_SUM ? sum_pieces(job, from, count, &question.sum) : 0;
  if (code == 0)
    say_question(job, &question);
  return code;
}

static int ask(struct rdma_job *job, unsigned type) {
  struct rdma_endpoint *endpoint = job->rail->endpoint;
  uint64_t at = job->slot < 0 ? 0 : (uint64_t)job->slot * WORK_BYTES_MAX;
  uint32_t count = job->work->count;
  uint32_t questions = type == RDMA_FENCE ? 1 : (count + RDMA_SPANS - 1) / RDMA_SPANS;
  if (endpoint->asked + questions > RDMA_ASKED)
    return LATER;
  job->serial = ++endpoint->next_request;
  job->answer = 0;
  job->questions = questions;
  if (type == RDMA_FENCE)
    say_question(job, &(struct rdma_record){.type = RDMA_FENCE});
  for (uint32_t from = 0; type != RDMA_FENCE && from < count; from += RDMA_SPANS) {
    int code = ask_for(job, type, from, &at);
    if (code)
      return code;
  }
  return 1;
}

static int look_for_answers(struct rdma_job *job) {
  if (job->questions > 0)
    return 1;
  if (job->answer == HAUL_ECHECKSUM)
    return error_set(HAUL_ECHECKSUM, 0, NULL, "was the source changed meanwhile?",
                     "the copy could not be shown to equal its source");
  if (job->answer == HAUL_ESTALE)
    return error_set(HAUL_ESTALE, 0, NULL, "look it up again", "the peer withdrew the region");
  return job->answer
             ? error_set(job->answer, 0, NULL, NULL, "the peer could not do its part of the copy")
             : 0;
}

static bool needs_lift(const struct rdma_job *job) {
  return !is_write(job) && (job->slot >= 0 || binding_of(job)->fenced);
}

static int begin_lift(struct rdma_job *job) {
  return ask(job, job->slot >= 0 ? RDMA_LIFT : RDMA_FENCE);
}

static bool needs_land(const struct rdma_job *job) {
  return is_write(job) && (job->slot >= 0 || job->fencing);
}

static int look_for_fence(struct rdma_job *job) {
  if (!job->fenced)
    return 1;
  return job->answer
             ? error_set(job->answer, 0, NULL, NULL, "the peer could not fence its device's memory")
             : 0;
}

static int begin_land(struct rdma_job *job) {
  return job->slot >= 0 ? ask(job, RDMA_LAND) : look_for_fence(job);
}

static int look_at_land(struct rdma_job *job) {
  return job->slot >= 0 ? look_for_answers(job) : look_for_fence(job);
}

static bool needs_sum(const struct rdma_job *job) {
  return job->work->checksum;
}

static int begin_sum(struct rdma_job *job) {
  return ask(job, RDMA_SUM);
}

/* ---- From step to step ---- */

static const struct {
  bool (*needed)(const struct rdma_job *job);
  /* 0: done, 1: under way (of `begin` of the first one: not begun), LATER: not begun, or a code. */
  int (*begin)(struct rdma_job *job);
  int (*look)(struct rdma_job *job);
} steps[STEP_OVER] = {
    [STEP_TAKE] = {needs_take, take, take},
    [STEP_FILL] = {needs_fill, begin_copy, look_at_copy},
    [STEP_LIFT] = {needs_lift, begin_lift, look_for_answers},
    [STEP_LAND] = {needs_land, begin_land, look_at_land},
    [STEP_DRAIN] = {needs_drain, begin_drain, look_at_copy},
    [STEP_SUM] = {needs_sum, begin_sum, look_for_answers},
};

static void skip(struct rdma_job *job) {
  while (job->step != STEP_MOVE && job->step != STEP_OVER && !steps[job->step].needed(job))
    job->step++;
}

void step_first(struct rdma_job *job) {
  job->step = STEP_TAKE;
  skip(job);
}

bool step_after_move(struct rdma_job *job) {
  job->step = STEP_MOVE + 1;
  skip(job);
  return job->step != STEP_OVER;
}

/* 1: it waits; 0: it is over, or the NIC's turn; else a code. */
static int advance(struct rdma_job *job) {
  while (job->step != STEP_MOVE && job->step != STEP_OVER) {
    int status = job->begun ? steps[job->step].look(job) : steps[job->step].begin(job);
    job->begun = status == 1;
    if (status)
      return status;
    job->step++;
    skip(job);
  }
  return 0;
}

/* Takes the job, which is in no list, to where it goes next. */
static void place(struct rdma_job *job, int status, struct list *waiting, struct list *ended) {
  struct rdma_endpoint *endpoint = job->rail->endpoint;
  if (status > 0) {
    list_append(waiting, &job->link);
  } else if (status == 0 && job->step == STEP_MOVE) {
    job_move(job);
  } else {
    combiner_lock(&endpoint->combiner);
    job_retire(job, status, ended);
    combiner_unlock(&endpoint->combiner);
    jobs_end(ended); /* now: the thread's error detail is this job's */
  }
}

static struct rdma_job *next_of(struct rdma_endpoint *endpoint, struct list *jobs) {
  combiner_lock(&endpoint->combiner);
  struct list *item = list_take(jobs);
  combiner_unlock(&endpoint->combiner);
  return item ? list_entry(item, struct rdma_job, link) : NULL;
}

/* Puts the list back in front of what came meanwhile. */
static void put_back(struct rdma_endpoint *endpoint, struct list *waiting, struct list *jobs) {
  combiner_lock(&endpoint->combiner);
  list_splice(waiting, jobs);
  list_splice(jobs, waiting);
  combiner_unlock(&endpoint->combiner);
}

/* In turn: who finds no stage or slot holds up those behind. */
static bool enter_some(struct rdma_endpoint *endpoint) {
  struct list first = LIST_INIT(first), next = LIST_INIT(next), ended = LIST_INIT(ended);
  struct rdma_job *job;
  bool any = false;
  while (list_empty(&first) && (job = next_of(endpoint, &endpoint->entering))) {
    int status = advance(job);
    any |= status <= 0 || job->step != STEP_TAKE;
    place(job, status, job->step == STEP_TAKE ? &first : &next, &ended);
  }
  if (list_empty(&first)) /* nobody waits for a stage any more */
    staging_cancel_wait(&endpoint->staging);
  put_back(endpoint, &first, &endpoint->entering);
  combiner_lock(&endpoint->combiner);
  list_splice(&endpoint->stepping, &next);
  combiner_unlock(&endpoint->combiner);
  return any;
}

static bool step_some(struct rdma_endpoint *endpoint, bool *urgent) {
  struct list waiting = LIST_INIT(waiting), ended = LIST_INIT(ended);
  struct rdma_job *job;
  bool any = false;
  while ((job = next_of(endpoint, &endpoint->stepping))) {
    enum rdma_step before = job->step;
    int status = advance(job);
    any |= status <= 0 || job->step != before;
    *urgent |= status > 0 && is_copying(job) && devcopy_is_polled(job->copy);
    place(job, status, &waiting, &ended);
  }
  put_back(endpoint, &waiting, &endpoint->stepping);
  return any;
}

bool steps_poll(struct rdma_endpoint *endpoint, bool *urgent) {
  bool any = step_some(endpoint, urgent);
  return enter_some(endpoint) || any;
}

/* ---- Answers ---- */

static struct rdma_job *find_asker(struct rdma_endpoint *endpoint, uint32_t serial) {
  struct rdma_job *found = NULL;
  list_each(item, &endpoint->stepping) {
    struct rdma_job *job = list_entry(item, struct rdma_job, link);
    if (job->serial == serial && job->questions > 0)
      found = job;
  }
  return found;
}

static void let_land(struct rdma_endpoint *endpoint, struct rdma_slot *slot) {
  slot->lands = true;
  if (endpoint->landing_slots++ == 0)
    endpoint_block_others(&endpoint->base, true);
}

static void has_landed(struct rdma_endpoint *endpoint, struct rdma_slot *slot) {
  if (slot->lands && --endpoint->landing_slots == 0)
    endpoint_block_others(&endpoint->base, false);
  slot->lands = false;
}

void steps_landed(struct rdma_endpoint *endpoint) {
  for (unsigned i = 0; i < RDMA_STAGES; i++)
    has_landed(endpoint, &endpoint->slots[i]);
}

static void free_slot(struct rdma_endpoint *endpoint, uint32_t serial) {
  for (unsigned i = 0; i < RDMA_STAGES; i++) {
    struct rdma_slot *slot = &endpoint->slots[i];
    if (slot->serial != serial || slot->questions == 0 || --slot->questions > 0)
      continue;
    slot->busy = false;
    has_landed(endpoint, slot);
  }
}

void rdma_on_done(struct rdma_endpoint *endpoint, const struct rdma_record *answer) {
  if (endpoint->asked > 0)
    endpoint->asked--;
  combiner_lock(&endpoint->combiner);
  struct rdma_job *job = find_asker(endpoint, answer->request);
  if (job) {
    job->questions--;
    if (job->answer == 0)
      job->answer = answer->status;
  } else {
    free_slot(endpoint, answer->request); /* its job was canceled meanwhile */
  }
  combiner_unlock(&endpoint->combiner);
}

/* The write with immediate of that rail that was just answered, unless its job was canceled. */
static struct rdma_job *find_fencing(struct list *jobs, const struct rdma_rail *rail) {
  list_each(item, jobs) {
    struct rdma_job *job = list_entry(item, struct rdma_job, link);
    if (job->rail == rail && job->fencing && job->fence == rail->fenced)
      return job;
  }
  return NULL;
}

/* With the endpoint's lock. The answer may come before this side's completion is seen. */
static void take_fenced(struct rdma_rail *rail, int status) {
  rail->unfenced--;
  rail->fenced++;
  struct rdma_job *job = find_fencing(&rail->endpoint->stepping, rail);
  if (!job)
    job = find_fencing(&rail->posted, rail);
  if (!job)
    return;
  job->fenced = true;
  job->answer = status;
}

int rdma_on_fenced(struct rdma_endpoint *endpoint, const struct rdma_record *answer) {
  if (answer->rails >= endpoint->rail_count)
    return HAUL_EPROTO;
  struct rdma_rail *rail = &endpoint->rails[answer->rails];
  combiner_lock(&endpoint->combiner);
  int code = rail->unfenced > 0 || endpoint->broken ? 0 : HAUL_EPROTO;
  if (rail->unfenced > 0)
    take_fenced(rail, answer->status);
  combiner_unlock(&endpoint->combiner);
  return code;
}

/* ---- Early ends ---- */

void step_cancel(struct rdma_job *job) {
  struct rdma_endpoint *endpoint = job->rail->endpoint;
  if (job->copy)
    devcopy_cancel(job->copy);
  if (job->slot >= 0 && job->questions > 0) {
    struct rdma_slot *slot = &endpoint->slots[job->slot];
    combiner_lock(&endpoint->combiner);
    slot->serial = job->serial;
    slot->questions = job->questions;
    if (is_write(job) && job->step == STEP_LAND)
      let_land(endpoint, slot);
    combiner_unlock(&endpoint->combiner);
    job->slot = -1;
  }
}
