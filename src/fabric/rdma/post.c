/* SPDX-License-Identifier: MIT
 * Works to work requests, and completions to works. A rail's completions come in the order of its
 * posts, and only the last request of a job asks for one. */
#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "core/alloc.h"
#include "core/error.h"
#include "core/sys.h"
#include "fabric/rdma/rdma.h"

/* ---- Ends ---- */

/* With the lock: nobody else writes it. */
static void count_on_rail(struct rdma_rail *rail, uint64_t bytes) {
  uint64_t before = atomic_load_explicit(&rail->bytes, memory_order_relaxed);
  atomic_store_explicit(&rail->bytes, before + bytes, memory_order_relaxed);
}

void job_leave_rail(struct rdma_job *job) {
  struct rdma_rail *rail = job->rail;
  list_remove(&job->link);
  if (job->on_rail)
    count_on_rail(rail, 0 - job->work->bytes);
  if (job->requests > 0) {
    rail->room += job->requests;
    rail->posted_bytes -= job->work->bytes;
    rail->posted_count--;
  }
  job->on_rail = false;
  job->requests = 0;
}

void job_retire(struct rdma_job *job, int code, struct list *ended) {
  struct rdma_endpoint *endpoint = job->rail->endpoint;
  struct rdma_binding *binding = job->work->binding;
  job_leave_rail(job);
  if (job->slot >= 0)
    endpoint->slots[job->slot].busy = false;
  if (--binding->jobs == 0 && binding->revoked)
    atomic_store(&endpoint->tend, true);
  job->work->state = NULL;
  job->code = code;
  list_append(ended, &job->link);
}

static void count_memory(struct rdma_endpoint *endpoint, uint64_t bytes) {
  atomic_fetch_add_explicit(&endpoint->base.link->fabric->work_bytes, bytes, memory_order_relaxed);
}

/* In no list any more: what it holds goes back. */
static void job_free(struct rdma_job *job) {
  struct rdma_endpoint *endpoint = job->rail->endpoint;
  if (job->entry)
    regcache_put(job->rail->card->cache, job->entry);
  if (job->stage)
    staging_put(&endpoint->staging, job->stage);
  count_memory(endpoint, 0 - sizeof *job);
  alloc_free(job->copy);
  alloc_free(job);
}

void jobs_end(struct list *jobs) {
  for (struct list *item; (item = list_take(jobs));) {
    struct rdma_job *job = list_entry(item, struct rdma_job, link);
    struct work *work = job->work;
    struct endpoint *endpoint = work->endpoint;
    int code = job->code;
    job_free(job);
    if (code == 0)
      endpoint_count(endpoint, work->operation, work->bytes);
    else
      atomic_fetch_add_explicit(&endpoint->counters.errors, 1, memory_order_relaxed);
    work->done(work, code);
  }
}

void rail_breaks(struct rdma_rail *rail) {
  if (!rail->broken)
    snprintf(rail->why, sizeof rail->why, "%s", haul_error_last()->text);
  rail->broken = true;
}

/* ---- Posting ---- */

/* With the lock. */
static void append_waiting(struct rdma_job *job) {
  job->on_rail = true;
  count_on_rail(job->rail, job->work->bytes);
  backlog_add(&job->rail->waiting, &job->link, job->work->rank);
}

/* What goes to the NIC with one doorbell. */
struct batch {
  struct ibv_send_wr requests[WORK_PIECES_MAX];
  struct ibv_sge places[WORK_PIECES_MAX];
  uint32_t count; /* of both */
  uint32_t jobs;
};

/* Bytes that the NIC moves: where they lie here and there. */
struct move {
  uint64_t local, remote, length;
};

/* The i-th of the job's: its i-th piece, of which each side may lie packed in a buffer; all at once
 * where both do. `at`: bytes of the pieces before. */
static struct move move_of(const struct rdma_job *job, uint32_t i, uint64_t at) {
  const struct work *work = job->work;
  const struct rdma_binding *binding = work->binding;
  const struct haul_piece *piece = &work->pieces[i];
  uint64_t stage = job->stage ? (uintptr_t)job->stage->region->memory.address : 0;
  uint64_t slot = binding->address + (uint64_t)(job->slot < 0 ? 0 : job->slot) * WORK_BYTES_MAX;
  return (struct move){.local = job->stage ? stage + at
                                           : (uintptr_t)work->region->memory.address + piece->local,
                       .remote = job->slot >= 0 ? slot + at : binding->address + piece->remote,
                       .length = job->stage && job->slot >= 0 ? work->bytes : piece->length};
}

static uint32_t count_requests(const struct rdma_job *job) {
  return job->stage && job->slot >= 0 ? 1 : job->work->count;
}

/* What goes with the request is read by the CPU, here and now. */
static bool goes_inline(const struct rdma_job *job, const struct move *move) {
  return job->work->operation == HAUL_OP_WRITE && move->length <= job->rail->inlined &&
         (job->stage || job->work->region->memory.view);
}

/* The NIC of the first rail does them all: many are atomic among their own alone. */
static void fill_atomic(const struct rdma_job *job, const struct move *move, unsigned rail,
                        struct ibv_send_wr *request) {
  const struct work *work = job->work;
  bool add = work->operation == HAUL_OP_FETCH_ADD;
  request->opcode = add ? IBV_WR_ATOMIC_FETCH_AND_ADD : IBV_WR_ATOMIC_CMP_AND_SWP;
  request->wr.atomic.remote_addr = move->remote;
  request->wr.atomic.compare_add = work->operands.value;
  request->wr.atomic.swap = work->operands.desired;
  request->wr.atomic.rkey = ((const struct rdma_binding *)work->binding)->keys[rail];
}

static void fill_request(const struct rdma_job *job, const struct move *move, unsigned rail,
                         struct ibv_send_wr *request, struct ibv_sge *place) {
  const struct rdma_binding *binding = job->work->binding;
  bool write = job->work->operation == HAUL_OP_WRITE;
  *place =
      (struct ibv_sge){.addr = move->local, .length = (uint32_t)move->length, .lkey = job->key};
  *request = (struct ibv_send_wr){
      .wr_id = (uintptr_t)job,
      .sg_list = place,
      .num_sge = 1,
      .opcode = write ? IBV_WR_RDMA_WRITE : IBV_WR_RDMA_READ,
      .send_flags = goes_inline(job, move) ? IBV_SEND_INLINE : 0,
      .wr.rdma = {.remote_addr = move->remote, .rkey = binding->keys[rail]},
  };
  if (operation_is_atomic(job->work->operation))
    fill_atomic(job, move, rail, request);
}

/* Only the last asks for a completion, and only it tells the owner. */
static void finish_last(const struct rdma_job *job, struct ibv_send_wr *last) {
  last->send_flags |= IBV_SEND_SIGNALED;
  if (!job->fencing)
    return;
  last->opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
  last->imm_data = htonl(((const struct rdma_binding *)job->work->binding)->number);
}

static void add_requests(struct batch *batch, const struct rdma_job *job, uint32_t count) {
  unsigned number = (unsigned)(job->rail - job->rail->endpoint->rails);
  uint64_t at = 0;
  for (uint32_t i = 0; i < count; i++) {
    struct move move = move_of(job, i, at);
    uint32_t here = batch->count++;
    fill_request(job, &move, number, &batch->requests[here], &batch->places[here]);
    at += move.length;
    if (here > 0)
      batch->requests[here - 1].next = &batch->requests[here];
  }
  finish_last(job, &batch->requests[batch->count - 1]);
}

/* The NIC is about to have it. */
static void count_posted(struct rdma_job *job, uint32_t requests) {
  struct rdma_rail *rail = job->rail;
  job->work->begun = operation_is_atomic(job->work->operation);
  job->requests = requests;
  rail->room -= requests;
  rail->posted_bytes += job->work->bytes;
  rail->posted_count++;
  rail->unfenced += job->fencing;
  job->fence = rail->fenced + rail->unfenced;
  list_append(&rail->posted, &job->link);
  work_starts(job->work);
}

static bool has_room(const struct rdma_rail *rail, const struct rdma_job *job) {
  if (rail->posted_count == 0)
    return !job->fencing || rail->unfenced < rail->receives;
  return rail->posted_count < RDMA_JOBS && rail->room >= count_requests(job) &&
         rail->posted_bytes + job->work->bytes <= RDMA_WINDOW &&
         (!job->fencing || rail->unfenced < rail->receives);
}

/* With the lock: takes what waits and has room now, as much as goes at once. */
static void fill(struct rdma_rail *rail, struct batch *batch) {
  struct list *first;
  batch->count = batch->jobs = 0;
  while (batch->jobs < WORK_BATCH && (first = backlog_first(&rail->waiting))) {
    struct rdma_job *job = list_entry(first, struct rdma_job, link);
    uint32_t requests = count_requests(job);
    if (!has_room(rail, job) || batch->count + requests > WORK_PIECES_MAX)
      return;
    backlog_take(&rail->waiting);
    add_requests(batch, job, requests);
    count_posted(job, requests);
    batch->jobs++;
  }
}

/* With the lock: the queue refused the request `bad` and all behind it. The jobs that it did not
 * take whole count as not posted. */
static void take_back(struct rdma_rail *rail, const struct batch *batch,
                      const struct ibv_send_wr *bad) {
  uint32_t taken = (uint32_t)(bad - batch->requests), left = batch->count;
  while (left > taken) {
    struct rdma_job *job = (struct rdma_job *)(uintptr_t)batch->requests[left - 1].wr_id;
    left -= job->requests;
    rail->unfenced -= job->fencing;
    job->work->begun = false;
    job_leave_rail(job);
    append_waiting(job);
  }
}

/* With the lock: one doorbell for as many works as go at once. A rail that refuses a request is of
 * no use. */
static void pump(struct rdma_rail *rail) {
  while (!rail->broken && backlog_first(&rail->waiting)) {
    struct batch batch;
    struct ibv_send_wr *bad = batch.requests;
    bool idle = rail->posted_count == 0;
    fill(rail, &batch);
    if (batch.count == 0)
      return;
    if (idle)
      rail->moved_at = clock_now();
    int system = ibv_post_send(rail->queue, batch.requests, &bad);
    if (system == 0)
      continue;
    struct haul_error before; /* whose words these are: who let this in may be at another's end */
    error_save(&before);
    take_back(rail, &batch, bad);
    error_set(HAUL_EPATH, system, rail->card->nic->name, NULL, "its send queue refused a request");
    rail_breaks(rail);
    queue_break(rail); /* it may have taken some of those that count as not posted */
    error_restore(&before);
  }
}

/* Of the rails nearest to the local memory the one with the least under way. */
static struct rdma_rail *choose_rail(struct rdma_endpoint *endpoint, unsigned near) {
  struct rdma_rail *best = NULL;
  unsigned all = (1u << endpoint->rail_count) - 1;
  if ((near & all) == 0)
    near = all;
  for (unsigned i = 0; i < endpoint->rail_count; i++)
    if (near & 1u << i &&
        (!best || atomic_load_explicit(&endpoint->rails[i].bytes, memory_order_relaxed) <
                      atomic_load_explicit(&best->bytes, memory_order_relaxed)))
      best = &endpoint->rails[i];
  return best;
}

/* An owner compares for those who may read; over tcp it sums what it was sent. */
static int prepare_sum(const struct work *work) {
  if (!work->checksum || work->key->rights & HAUL_READ)
    return 0;
  return error_set(HAUL_ENOPATH, 0, NULL, NULL,
                   "a copy into memory that may not be read cannot be compared");
}

/* What the NIC cannot take is this path's to refuse: another one copies. */
static int prepare_local(struct rdma_job *job) {
  struct memory *memory = &job->work->region->memory;
  struct ibv_mr *mr;
  if (job->staged)
    return 0;
  if (card_register(job->rail->card, memory, &job->entry, &mr) != 0)
    return error_set(HAUL_ENOPATH, 0, NULL, NULL, "%s", haul_error_last()->text);
  job->key = mr->lkey;
  return job->work->operation == HAUL_OP_WRITE ? memory_fence(memory, FENCE_BEFORE_READ) : 0;
}

/* NULL with the detail where it has none. */
static struct rdma_job *make_job(struct rdma_endpoint *endpoint, struct work *work) {
  const struct rdma_binding *binding = work->binding;
  struct rdma_job *job = alloc_zero(1, sizeof *job);
  if (!job) {
    error_memory("rdma job");
    return NULL;
  }
  count_memory(endpoint, sizeof *job);
  unsigned near = operation_is_atomic(work->operation)
                      ? 1u
                      : cards_near(endpoint->node, work->region->memory.place);
  job->rail = choose_rail(endpoint, near);
  job->work = work;
  job->slot = -1;
  job->staged = rdma_goes_staged(binding, &work->region->memory);
  job->fencing = work->operation == HAUL_OP_WRITE && binding->fenced && !binding->staged;
  list_init(&job->link);
  if (prepare_sum(work) == 0 && prepare_local(job) == 0)
    return job;
  job_free(job); /* also a registration, where the fence failed after it */
  return NULL;
}

/* With the lock: 0, or why the work cannot be posted; its words are end_refused's. */
static int enqueue(struct rdma_endpoint *endpoint, struct rdma_job *job) {
  struct rdma_binding *binding = job->work->binding;
  int canceled = atomic_load(&job->work->canceled);
  if (canceled)
    return canceled;
  if (endpoint->broken || !atomic_load(&endpoint->base.open))
    return HAUL_EPATH;
  if (binding->revoked)
    return HAUL_ESTALE;
  binding->jobs++;
  job->work->state = job;
  step_first(job);
  if (job->step == STEP_MOVE)
    append_waiting(job);
  else
    list_append(job->step == STEP_TAKE ? &endpoint->entering : &endpoint->stepping, &job->link);
  return 0;
}

/* Ends nothing: whoever is at the combiner may work_batch other locks, and an error's words. */
void rdma_let_in(struct combiner *combiner, struct list *jobs) {
  struct rdma_endpoint *endpoint = list_entry(combiner, struct rdma_endpoint, combiner);
  for (struct list *item; (item = list_take(jobs));) {
    struct rdma_job *job = list_entry(item, struct rdma_job, link);
    work_batch_remove(&endpoint->work_batch, job->work);
    job->code = enqueue(endpoint, job);
    if (job->code == 0)
      continue;
    list_append(&endpoint->refused, item);
    atomic_store(&endpoint->refusing, true);
    loop_wake(endpoint->base.link->fabric->loop);
  }
  for (unsigned i = 0; i < endpoint->rail_count; i++)
    pump(&endpoint->rails[i]);
}

static void say_refused(const struct rdma_endpoint *endpoint, int code) {
  if (code == HAUL_ESTALE)
    error_set(code, 0, NULL, "look it up again", "the peer withdrew the region");
  else
    error_set(code, 0, NULL, NULL, "%s",
              code == HAUL_EPATH ? endpoint_reason(&endpoint->base) : "");
}

void rdma_end_refused(struct rdma_endpoint *endpoint) {
  struct list refused = LIST_INIT(refused);
  while (atomic_exchange(&endpoint->refusing, false)) {
    combiner_lock(&endpoint->combiner);
    list_splice(&refused, &endpoint->refused);
    combiner_unlock(&endpoint->combiner);
    for (struct list *item; (item = list_take(&refused));) {
      struct list one = LIST_INIT(one);
      list_append(&one, item);
      say_refused(endpoint, list_entry(item, struct rdma_job, link)->code);
      jobs_end(&one);
    }
  }
}

/* Dekker with `stop`: it shuts the endpoint, then takes in what is laid. */
static void lay(struct rdma_endpoint *endpoint, struct list *item) {
  combiner_defer(&endpoint->combiner, item);
  if (!atomic_load(&endpoint->base.open))
    combiner_drain(&endpoint->combiner);
}

void rdma_post(struct rdma_endpoint *endpoint, struct work *work) {
  struct loop *loop = endpoint->base.link->fabric->loop;
  struct rdma_job *job = make_job(endpoint, work);
  work->state = NULL;
  if (!job)
    work->done(work, haul_error_last()->code);
  else if (work_batch_add(&endpoint->work_batch, work, loop))
    lay(endpoint, &job->link);
  else
    combiner_submit(&endpoint->combiner, &job->link);
  rdma_end_refused(endpoint);
  loop_wake(loop);
}

void job_move(struct rdma_job *job) {
  struct rdma_endpoint *endpoint = job->rail->endpoint;
  combiner_lock(&endpoint->combiner);
  append_waiting(job);
  pump(job->rail);
  combiner_unlock(&endpoint->combiner);
}

/* ---- Completions ---- */

/* With the lock: all up to this job are complete. */
static void take_up_to(struct rdma_rail *rail, struct rdma_job *last, int code,
                       struct list *ended) {
  bool more = true;
  while (more && !list_empty(&rail->posted)) {
    struct rdma_job *job = list_entry(rail->posted.next, struct rdma_job, link);
    more = job != last;
    int outcome = more || code == 0 ? job->wanted : code;
    if (outcome == 0 && step_after_move(job)) {
      job_leave_rail(job);
      list_append(&rail->endpoint->stepping, &job->link);
    } else {
      job_retire(job, outcome, ended);
    }
  }
}

/* One completion; with the lock. An error's is for the first request that failed, asked for or not,
 * and all after it are flushed. Where nothing failed before, somebody else brought the queue pair
 * to error: the peer's request, or the device's end. */
static void take(struct rdma_rail *rail, const struct ibv_wc *completion, struct list *ended) {
  bool mail = completion->wr_id & (MAIL_RECEIVED | MAIL_SENT);
  struct rdma_job *job = mail ? NULL : (struct rdma_job *)(uintptr_t)completion->wr_id;
  if (rail->broken && completion->status != IBV_WC_SUCCESS)
    return; /* what is left ends with the rail, and its job may have ended */
  if (completion->status == IBV_WC_WR_FLUSH_ERR && completion->wr_id & MAIL_RECEIVED) {
    rail->flushed = true; /* what brought it to error may come behind, with more to say */
  } else if (completion->status == IBV_WC_SUCCESS && mail) {
    mail_take(rail, completion);
  } else if (completion->status == IBV_WC_SUCCESS) {
    take_up_to(rail, job, 0, ended);
  } else {
    int code = queue_error(rail, completion->status, completion->vendor_err);
    if (code != HAUL_EPATH && job)
      take_up_to(rail, job, code, ended);
    rail_breaks(rail);
  }
}

/* What the peer sends says nothing of what was posted here. */
static bool is_ours(const struct ibv_wc *completion) {
  return !(completion->wr_id & MAIL_RECEIVED);
}

static bool poll_rail(struct rdma_rail *rail, struct list *ended) {
  struct ibv_wc completions[16];
  bool any = false, moved = false;
  int count;
  do {
    count = ibv_poll_cq(rail->completions, 16, completions);
    for (int i = 0; i < count; i++) {
      moved |= is_ours(&completions[i]);
      take(rail, &completions[i], ended);
    }
    any |= count > 0;
  } while (count == 16);
  if (moved)
    rail->moved_at = clock_now();
  if (rail->flushed && !rail->broken) {
    queue_error(rail, IBV_WC_WR_FLUSH_ERR, 0);
    rail_breaks(rail);
  }
  if (count < 0) {
    error_set(HAUL_EPATH, 0, rail->card->nic->name, NULL, "its completion queue cannot be read");
    rail_breaks(rail);
  }
  pump(rail);
  return any;
}

/* Once more after it was asked for: what came before brings no event. */
bool rdma_arm(struct rdma_endpoint *endpoint) {
  bool again = false;
  combiner_lock(&endpoint->combiner);
  for (unsigned i = 0; i < endpoint->rail_count && !endpoint->broken; i++) {
    struct rdma_rail *rail = &endpoint->rails[i];
    again |= rail->broken; /* the next turn breaks the path */
    if (rail->armed || rail->broken)
      continue;
    int system = ibv_req_notify_cq(rail->completions, 0);
    if (system) {
      error_set(HAUL_EPATH, system, rail->card->nic->name, NULL,
                "its completion queue gives no events");
      rail_breaks(rail);
    }
    rail->armed = true;
    again = true;
  }
  combiner_unlock(&endpoint->combiner);
  return again;
}

/* With the lock: what is there to do without it. */
struct findings {
  struct list ended;
  bool any, posted, fences, heard, steps;
  const struct rdma_rail *broken; /* its reason changes no more */
};

static void poll_rails(struct rdma_endpoint *endpoint, struct findings *found) {
  for (unsigned i = 0; i < endpoint->rail_count && !endpoint->broken; i++) {
    struct rdma_rail *rail = &endpoint->rails[i];
    found->any |= poll_rail(rail, &found->ended);
    found->posted |= rail->posted_count > 0;
    found->fences |= rail->fence_count > 0;
    found->heard |= rail->mail.came != rail->mail.taken;
    if (rail->broken && !found->broken)
      found->broken = rail;
  }
  found->steps = !list_empty(&endpoint->stepping) || !list_empty(&endpoint->entering);
}

bool rdma_poll(struct rdma_endpoint *endpoint) {
  struct findings found = {.any = false};
  bool urgent = false;
  list_init(&found.ended);
  combiner_lock(&endpoint->combiner);
  poll_rails(endpoint, &found);
  combiner_unlock(&endpoint->combiner);
  jobs_end(&found.ended);
  rdma_end_refused(endpoint);
  if (found.posted)
    rdma_watch_posted(endpoint);
  if (found.fences)
    rdma_fence_written(endpoint);
  if (found.heard)
    found.any |= mail_hear(endpoint);
  if (found.steps)
    found.any |= steps_poll(endpoint, &urgent);
  found.any |= landings_poll(endpoint, &urgent);
  endpoint->poller.urgent = urgent;
  if (found.broken)
    rdma_break(endpoint, found.broken->why);
  return found.any;
}
