/* SPDX-License-Identifier: MIT
 * The steps of a job before and after the NIC's part: local bounce buffers, slots of the peer's
 * staging area, the owner's fence, checksums. Each step is three functions. They run in the loop
 * alone, in the order of enum rdma_step. */
#include "core/alloc.h"
#include "core/error.h"
#include "core/sum.h"
#include "fabric/devcopy.h"
#include "fabric/rdma/channel.h"
#include "fabric/rdma/endpoint.h"
#include "memory/copy.h"

static bool is_write(const struct rdma_job *job) {
  return job->work->operation == HAUL_OP_WRITE;
}

static const struct rdma_binding *binding_of(const struct rdma_job *job) {
  return job->work->binding;
}

/* Statuses of `begin` besides 0 (done) and codes. */
#define UNDER_WAY 1 /* also of `poll` */
#define LATER     2 /* not begun: `begin` is called again */

/* A free slot for the job, or -1. Only the loop takes slots. While the owner may still copy out of
 * the slot of a canceled write, no other write starts, because that copy could overwrite the later
 * write. */
static int find_slot(struct rdma_endpoint *endpoint, const struct rdma_job *job) {
  int slot = -1;
  combiner_lock(&endpoint->combiner);
  bool blocked = is_write(job) && endpoint->slots_in_copy > 0;
  for (unsigned i = 0; !blocked && i < endpoint->slot_count && slot < 0; i++)
    if (!endpoint->slots[i].busy)
      slot = (int)i;
  combiner_unlock(&endpoint->combiner);
  return slot;
}

static int take_bounce(struct rdma_job *job) {
  struct staging_user *user = &job->rail->endpoint->staging;
  struct ibv_mr *mr;
  int numa = staging_numa(user->staging, job->work->region->memory.place);
  int code = staging_get(user, 1, numa, &job->bounce);
  if (code == 0) {
    job->copy = alloc_zero(1, sizeof *job->copy);
    code = job->copy ? 0 : error_memory("device copy");
  }
  if (code == 0)
    code = rdma_device_register(job->rail->device, &job->bounce->region->memory, &job->registration,
                                &mr);
  if (code == 0)
    job->key = mr->lkey;
  return code;
}

/* Takes both the slot and the bounce buffer, or neither: a job that holds one never waits for the
 * other. */
static int acquire(struct rdma_job *job) {
  struct rdma_endpoint *endpoint = job->rail->endpoint;
  bool needs_slot = binding_of(job)->staged;
  int slot = needs_slot ? find_slot(endpoint, job) : -1;
  if (needs_slot && slot < 0) {
    staging_cancel_wait(&endpoint->staging);
    return LATER;
  }
  int code = job->staged ? take_bounce(job) : 0;
  if (code || !needs_slot)
    return code > 0 ? LATER : code;
  combiner_lock(&endpoint->combiner);
  endpoint->slots[slot] = (struct rdma_slot){.busy = true};
  combiner_unlock(&endpoint->combiner);
  job->slot = slot;
  return 0;
}

static bool needs_acquire(const struct rdma_job *job) {
  return job->staged || binding_of(job)->staged;
}

static bool needs_fill(const struct rdma_job *job) {
  return job->staged && is_write(job);
}

static bool needs_drain(const struct rdma_job *job) {
  return !is_write(job) && !job->work->region->memory.view;
}

static struct copy_segment device_segment(const struct devcopy *copy, uint32_t index,
                                          uint64_t before) {
  const struct rdma_job *job = copy->owner;
  const struct haul_piece *piece = &job->work->pieces[index];
  bool out = is_write(job);
  return (struct copy_segment){.to_offset = out ? before : piece->local,
                               .from_offset = out ? piece->local : before,
                               .length = piece->length};
}

static int poll_copy(struct rdma_job *job) {
  return devcopy_poll(job->copy);
}

static int begin_copy(struct rdma_job *job) {
  struct memory *device = &job->work->region->memory, *bounce = bounce_memory(job->bounce);
  *job->copy = (struct devcopy){.engine = device->provider,
                                .to = is_write(job) ? bounce : device,
                                .from = is_write(job) ? device : bounce,
                                .loop = job->rail->endpoint->base.link->fabric->loop,
                                .count = job->work->count,
                                .segment = device_segment,
                                .owner = job};
  return poll_copy(job);
}

/* Without a bounce buffer the NIC has written into device memory, so a fence is due. */
static int begin_drain(struct rdma_job *job) {
  return job->bounce ? begin_copy(job)
                     : memory_fence(&job->work->region->memory, FENCE_AFTER_WRITE);
}

_Static_assert(WORK_PIECES_MAX / RDMA_SPANS <= RDMA_REQUESTS, "a work's requests must fit");

static void send_request(struct rdma_job *job, struct rdma_record *request) {
  struct rdma_endpoint *endpoint = job->rail->endpoint;
  request->request = job->request_id;
  request->handle = binding_of(job)->handle;
  request->rails = (uint8_t)job->rail->number;
  endpoint->outstanding++;
  rdma_send_record(endpoint, request);
}

/* The checksum over the checksums of a record's segments. */
static int sum_segments(struct rdma_job *job, uint32_t from, uint32_t count, uint64_t *sum) {
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

/* Sends one request for as many segments as a record holds. *at is their offset in the staging
 * area; it advances. */
static int request_spans(struct rdma_job *job, unsigned type, uint32_t from, uint64_t *at) {
  struct rdma_record request = {.type = (uint16_t)type, .at = *at};
  uint32_t left = job->work->count - from;
  uint32_t count = left < RDMA_SPANS ? left : RDMA_SPANS;
  for (uint32_t i = 0; i < count; i++) {
    const struct haul_piece *piece = &job->work->pieces[from + i];
    request.spans[i] = (struct rdma_span){piece->remote, (uint32_t)piece->length};
    *at += piece->length;
  }
  request.span_count = (uint8_t)count;
  int code = type == RDMA_CHECKSUM ? sum_segments(job, from, count, &request.sum) : 0;
  if (code == 0)
    send_request(job, &request);
  return code;
}

/* LATER while too many requests have no response. */
static int request_all(struct rdma_job *job, unsigned type) {
  struct rdma_endpoint *endpoint = job->rail->endpoint;
  uint64_t at = job->slot < 0 ? 0 : (uint64_t)job->slot * WORK_BYTES_MAX;
  uint32_t count = job->work->count;
  uint32_t requests = type == RDMA_FENCE ? 1 : (count + RDMA_SPANS - 1) / RDMA_SPANS;
  if (endpoint->outstanding + requests > RDMA_REQUESTS)
    return LATER;
  job->request_id = rdma_next_request(endpoint);
  job->response = 0;
  job->pending_responses = requests;
  if (type == RDMA_FENCE)
    send_request(job, &(struct rdma_record){.type = RDMA_FENCE});
  for (uint32_t from = 0; type != RDMA_FENCE && from < count; from += RDMA_SPANS) {
    int code = request_spans(job, type, from, &at);
    if (code)
      return code;
  }
  return UNDER_WAY;
}

static int poll_responses(struct rdma_job *job) {
  if (job->pending_responses > 0)
    return UNDER_WAY;
  if (job->response == HAUL_ECHECKSUM)
    return error_set(HAUL_ECHECKSUM, 0, NULL, "keep the source unchanged until the transfer ends",
                     "checksum mismatch between source and destination");
  if (job->response == HAUL_ESTALE)
    return error_set(HAUL_ESTALE, 0, NULL, NULL, "the peer withdrew the region");
  return job->response
             ? error_set(job->response, 0, NULL, NULL, "the peer failed its step of the transfer")
             : 0;
}

static bool needs_owner_before(const struct rdma_job *job) {
  return !is_write(job) && (job->slot >= 0 || binding_of(job)->fenced);
}

static int begin_owner_before(struct rdma_job *job) {
  return request_all(job, job->slot >= 0 ? RDMA_COPY_OUT : RDMA_FENCE);
}

static bool needs_owner_after(const struct rdma_job *job) {
  return is_write(job) && (job->slot >= 0 || job->needs_fence);
}

static int poll_fence(struct rdma_job *job) {
  if (!job->fenced)
    return UNDER_WAY;
  return job->response ? error_set(job->response, 0, NULL, NULL,
                                   "the peer could not fence its device's memory")
                       : 0;
}

static int begin_owner_after(struct rdma_job *job) {
  return job->slot >= 0 ? request_all(job, RDMA_COPY_IN) : poll_fence(job);
}

static int poll_owner_after(struct rdma_job *job) {
  return job->slot >= 0 ? poll_responses(job) : poll_fence(job);
}

static bool needs_verify(const struct rdma_job *job) {
  return job->work->checksum;
}

static int begin_verify(struct rdma_job *job) {
  return request_all(job, RDMA_CHECKSUM);
}

static const struct {
  bool (*needed)(const struct rdma_job *job);
  int (*begin)(struct rdma_job *job); /* 0, UNDER_WAY, LATER or a code */
  int (*poll)(struct rdma_job *job);  /* 0, UNDER_WAY or a code; NULL: `begin` has done all */
} steps[STEP_DONE] = {
    [STEP_ACQUIRE] = {needs_acquire, acquire, NULL},
    [STEP_FILL] = {needs_fill, begin_copy, poll_copy},
    [STEP_OWNER_BEFORE] = {needs_owner_before, begin_owner_before, poll_responses},
    [STEP_OWNER_AFTER] = {needs_owner_after, begin_owner_after, poll_owner_after},
    [STEP_DRAIN] = {needs_drain, begin_drain, poll_copy},
    [STEP_VERIFY] = {needs_verify, begin_verify, poll_responses},
};

static void skip_unneeded(struct rdma_job *job) {
  while (job->step != STEP_NIC && job->step != STEP_DONE && !steps[job->step].needed(job))
    job->step++;
}

void step_first(struct rdma_job *job) {
  job->step = STEP_ACQUIRE;
  skip_unneeded(job);
}

bool step_after_nic(struct rdma_job *job) {
  job->step = STEP_NIC + 1;
  skip_unneeded(job);
  return job->step != STEP_DONE;
}

/* Returns UNDER_WAY or LATER while a step waits, 0 when the steps are done or the NIC is next, else
 * a code. */
static int advance_job(struct rdma_job *job) {
  while (job->step != STEP_NIC && job->step != STEP_DONE) {
    int status = job->begun ? steps[job->step].poll(job) : steps[job->step].begin(job);
    job->begun = status == UNDER_WAY;
    if (status)
      return status;
    job->step++;
    skip_unneeded(job);
  }
  return 0;
}

/* Moves the job, which is in no list, to the list for its status. */
static void dispatch(struct rdma_job *job, int status, struct list *waiting, struct list *ended) {
  struct rdma_endpoint *endpoint = job->rail->endpoint;
  if (status > 0) {
    list_append(waiting, &job->link);
  } else if (status == 0 && job->step == STEP_NIC) {
    job_append_to_rail(job);
  } else {
    combiner_lock(&endpoint->combiner);
    job_retire(job, status, ended);
    combiner_unlock(&endpoint->combiner);
    jobs_end(ended); /* at once: the thread's error detail is this job's */
  }
}

static struct rdma_job *take_first(struct rdma_endpoint *endpoint, struct list *jobs) {
  combiner_lock(&endpoint->combiner);
  struct list *item = list_take(jobs);
  combiner_unlock(&endpoint->combiner);
  return item ? list_entry(item, struct rdma_job, link) : NULL;
}

/* Puts the waiting jobs in front of those that were added meanwhile. */
static void put_back(struct rdma_endpoint *endpoint, struct list *waiting, struct list *jobs) {
  combiner_lock(&endpoint->combiner);
  list_splice(waiting, jobs);
  list_splice(jobs, waiting);
  combiner_unlock(&endpoint->combiner);
}

/* Keeps the order: a job without a bounce buffer or slot blocks those behind it. */
static bool poll_acquiring(struct rdma_endpoint *endpoint) {
  struct list still_acquiring = LIST_INIT(still_acquiring), acquired = LIST_INIT(acquired);
  struct list ended = LIST_INIT(ended);
  struct rdma_job *job;
  bool any = false;
  while (list_empty(&still_acquiring) && (job = take_first(endpoint, &endpoint->acquiring))) {
    int status = advance_job(job);
    any |= status <= 0 || job->step != STEP_ACQUIRE;
    dispatch(job, status, job->step == STEP_ACQUIRE ? &still_acquiring : &acquired, &ended);
  }
  if (list_empty(&still_acquiring)) /* no job waits for a bounce buffer any more */
    staging_cancel_wait(&endpoint->staging);
  put_back(endpoint, &still_acquiring, &endpoint->acquiring);
  combiner_lock(&endpoint->combiner);
  list_splice(&endpoint->stepping, &acquired);
  combiner_unlock(&endpoint->combiner);
  return any;
}

static bool poll_stepping(struct rdma_endpoint *endpoint, bool *urgent) {
  struct list waiting = LIST_INIT(waiting), ended = LIST_INIT(ended);
  struct rdma_job *job;
  bool any = false;
  while ((job = take_first(endpoint, &endpoint->stepping))) {
    enum rdma_step before = job->step;
    int status = advance_job(job);
    any |= status <= 0 || job->step != before;
    *urgent |= status > 0 && job->copy && devcopy_is_polled(job->copy);
    dispatch(job, status, &waiting, &ended);
  }
  put_back(endpoint, &waiting, &endpoint->stepping);
  return any;
}

bool steps_poll(struct rdma_endpoint *endpoint, bool *urgent) {
  bool any = poll_stepping(endpoint, urgent);
  return poll_acquiring(endpoint) || any;
}

static void end_slot_copy(struct rdma_endpoint *endpoint, struct rdma_slot *slot) {
  if (slot->in_copy && --endpoint->slots_in_copy == 0)
    endpoint_set_abandoned(&endpoint->base, false);
  slot->in_copy = false;
}

void slots_end_copies(struct rdma_endpoint *endpoint) {
  for (unsigned i = 0; i < RDMA_SLOTS; i++)
    end_slot_copy(endpoint, &endpoint->slots[i]);
}

static void count_slot_response(struct rdma_endpoint *endpoint, uint32_t request_id) {
  for (unsigned i = 0; i < RDMA_SLOTS; i++) {
    struct rdma_slot *slot = &endpoint->slots[i];
    if (slot->request_id != request_id || slot->pending_responses == 0 ||
        --slot->pending_responses > 0)
      continue;
    slot->busy = false;
    end_slot_copy(endpoint, slot);
  }
}

void step_cancel(struct rdma_job *job) {
  struct rdma_endpoint *endpoint = job->rail->endpoint;
  if (job->copy)
    devcopy_cancel(job->copy);
  if (job->slot < 0 || job->pending_responses == 0)
    return;
  struct rdma_slot *slot = &endpoint->slots[job->slot];
  combiner_lock(&endpoint->combiner);
  slot->request_id = job->request_id;
  slot->pending_responses = job->pending_responses;
  if (is_write(job) && job->step == STEP_OWNER_AFTER) {
    slot->in_copy = true;
    if (endpoint->slots_in_copy++ == 0)
      endpoint_set_abandoned(&endpoint->base, true);
  }
  combiner_unlock(&endpoint->combiner);
  job->slot = -1;
}

static struct rdma_job *find_job_of_request(struct rdma_endpoint *endpoint, uint32_t request_id) {
  struct rdma_job *found = NULL;
  list_each(item, &endpoint->stepping) {
    struct rdma_job *job = list_entry(item, struct rdma_job, link);
    if (job->request_id == request_id && job->pending_responses > 0)
      found = job;
  }
  return found;
}

void rdma_on_response(struct rdma_endpoint *endpoint, const struct rdma_record *response) {
  if (response->request == 0) /* a probe (restore.c) */
    return;
  if (endpoint->outstanding > 0)
    endpoint->outstanding--;
  combiner_lock(&endpoint->combiner);
  struct rdma_job *job = find_job_of_request(endpoint, response->request);
  if (job) {
    job->pending_responses--;
    if (job->response == 0)
      job->response = response->status;
  } else {
    count_slot_response(endpoint, response->request); /* its job was canceled meanwhile */
  }
  combiner_unlock(&endpoint->combiner);
}

/* Returns the job whose write with immediate this response acknowledges, or NULL if the job was
 * canceled. */
static struct rdma_job *find_fenced(struct list *jobs, const struct rdma_rail *rail) {
  list_each(item, jobs) {
    struct rdma_job *job = list_entry(item, struct rdma_job, link);
    if (job->rail == rail && job->needs_fence && job->fence_number == rail->fenced)
      return job;
  }
  return NULL;
}

/* With the endpoint's lock. The response may come before this side sees the write's completion. */
static void mark_fenced(struct rdma_rail *rail, int status) {
  rail->unfenced--;
  rail->fenced++;
  struct rdma_job *job = find_fenced(&rail->endpoint->stepping, rail);
  if (!job)
    job = find_fenced(&rail->posted, rail);
  if (!job)
    return;
  job->fenced = true;
  job->response = status;
}

int rdma_on_fenced(struct rdma_endpoint *endpoint, const struct rdma_record *response) {
  if (response->rails >= endpoint->rail_count)
    return HAUL_EPROTO;
  struct rdma_rail *rail = endpoint->rails[response->rails];
  combiner_lock(&endpoint->combiner);
  int code = rail->unfenced > 0 || endpoint->broken ? 0 : HAUL_EPROTO;
  if (rail->unfenced > 0)
    mark_fenced(rail, response->status);
  combiner_unlock(&endpoint->combiner);
  return code;
}
