/* SPDX-License-Identifier: MIT
 * Works become jobs, and jobs work requests. Only the last work request of a job requests a
 * completion. */

#include "core/alloc.h"
#include "core/error.h"
#include "core/shrinkable.h"
#include "core/sys.h"
#include "fabric/rdma/endpoint.h"

#define RDMA_JOBS 128u /* works posted a rail */
/* Bytes posted a rail. Posted work requests cannot be withdrawn, so this bounds how long a cancel
 * takes. A line of 400 Gb/s and 100 us has 5 MB under way. */
#define RDMA_WINDOW ((uint64_t)8 << 20)

/* With the lock, which every writer holds: no read-modify-write needed. */
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
    rail->send_room += job->requests;
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
    atomic_store(&endpoint->bindings_changed, true);
  job->work->state = NULL;
  job->code = code;
  list_append(ended, &job->link);
}

static void count_memory(struct rdma_endpoint *endpoint, uint64_t bytes) {
  atomic_fetch_add_explicit(&endpoint->base.link->fabric->work_bytes, bytes, memory_order_relaxed);
}

static void job_free(struct rdma_job *job) {
  struct rdma_endpoint *endpoint = job->rail->endpoint;
  if (job->registration)
    regcache_put(job->rail->device->cache, job->registration);
  if (job->bounce)
    staging_put(&endpoint->staging, job->bounce);
  count_memory(endpoint, 0 - sizeof *job);
  alloc_free(job->copy);
  alloc_free(job);
}

void jobs_end(struct list *jobs) {
  for (struct list *item; (item = list_take(jobs));) {
    struct rdma_job *job = list_entry(item, struct rdma_job, link);
    struct work *work = job->work;
    int code = job->code;
    job_free(job);
    endpoint_count(work->endpoint, work->operation, work->bytes, code);
    work->done(work, code);
  }
}

/* Work requests that are posted with one doorbell. */
struct batch {
  struct ibv_send_wr requests[WORK_PIECES_MAX];
  struct ibv_sge segments[WORK_PIECES_MAX];
  uint32_t count; /* of both */
  uint32_t jobs;
};

/* Bytes that the NIC moves: their local and remote address. */
struct move {
  uint64_t local, remote, length;
};

/* The job's i-th: its i-th segment. On either side the segments may lie packed in a buffer; if they
 * do on both sides, one move covers them all. `at`: bytes of the segments before. */
static struct move move_of(const struct rdma_job *job, uint32_t i, uint64_t at) {
  const struct work *work = job->work;
  const struct rdma_binding *binding = work->binding;
  const struct haul_piece *piece = &work->pieces[i];
  uint64_t bounce = job->bounce ? (uintptr_t)job->bounce->region->memory.address : 0;
  uint64_t slot = binding->address + (uint64_t)(job->slot < 0 ? 0 : job->slot) * WORK_BYTES_MAX;
  return (struct move){
      .local = job->bounce ? bounce + at : (uintptr_t)work->region->memory.address + piece->local,
      .remote = job->slot >= 0 ? slot + at : binding->address + piece->remote,
      .length = job->bounce && job->slot >= 0 ? work->bytes : piece->length};
}

static uint32_t count_requests(const struct rdma_job *job) {
  return job->bounce && job->slot >= 0 ? 1 : job->work->count;
}

static void fill_request(const struct rdma_job *job, const struct move *move,
                         struct ibv_send_wr *request, struct ibv_sge *segment) {
  const struct work *work = job->work;
  uint32_t key = ((const struct rdma_binding *)work->binding)->keys[job->rail->number];
  bool write = work->operation == HAUL_OP_WRITE;
  /* The CPU copies inline bytes while it posts. */
  bool goes_inline =
      write && move->length <= job->rail->inlined && (job->bounce || work->region->memory.view);
  *segment =
      (struct ibv_sge){.addr = move->local, .length = (uint32_t)move->length, .lkey = job->key};
  *request = (struct ibv_send_wr){
      .wr_id = (uintptr_t)job,
      .sg_list = segment,
      .num_sge = 1,
      .opcode = write ? IBV_WR_RDMA_WRITE : IBV_WR_RDMA_READ,
      .send_flags = goes_inline ? IBV_SEND_INLINE : 0,
      .wr.rdma = {.remote_addr = move->remote, .rkey = key},
  };
  if (!operation_is_atomic(work->operation))
    return;
  request->opcode = work->operation == HAUL_OP_FETCH_ADD ? IBV_WR_ATOMIC_FETCH_AND_ADD
                                                         : IBV_WR_ATOMIC_CMP_AND_SWP;
  request->wr.atomic.remote_addr = move->remote;
  request->wr.atomic.compare_add = work->operands.value;
  request->wr.atomic.swap = work->operands.desired;
  request->wr.atomic.rkey = key;
}

/* `count` is 1 or more. Only the last work request requests a completion, and only it carries the
 * immediate. */
static void add_requests(struct batch *batch, const struct rdma_job *job, uint32_t count) {
  uint64_t at = 0;
  uint32_t i = 0;
  do {
    struct move move = move_of(job, i, at);
    uint32_t here = batch->count++;
    fill_request(job, &move, &batch->requests[here], &batch->segments[here]);
    at += move.length;
    if (here > 0)
      batch->requests[here - 1].next = &batch->requests[here];
  } while (++i < count);
  struct ibv_send_wr *last = &batch->requests[batch->count - 1];
  last->send_flags |= IBV_SEND_SIGNALED;
  if (!job->needs_fence)
    return;
  last->opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
  last->imm_data = htonl(((const struct rdma_binding *)job->work->binding)->number);
}

/* With the lock. */
static void append_waiting(struct rdma_job *job) {
  job->on_rail = true;
  count_on_rail(job->rail, job->work->bytes);
  backlog_add(&job->rail->waiting, &job->link, job->work->rank);
}

void job_append_to_rail(struct rdma_job *job) {
  struct rdma_endpoint *endpoint = job->rail->endpoint;
  combiner_lock(&endpoint->combiner);
  append_waiting(job);
  rdma_rail_post_waiting(job->rail);
  combiner_unlock(&endpoint->combiner);
}

/* With the lock, before the NIC has it. */
static void count_posted(struct rdma_job *job, uint32_t requests) {
  struct rdma_rail *rail = job->rail;
  job->work->begun = operation_is_atomic(job->work->operation);
  job->requests = requests;
  rail->send_room -= requests;
  rail->posted_bytes += job->work->bytes;
  rail->posted_count++;
  rail->unfenced += job->needs_fence;
  job->fence_number = rail->fenced + rail->unfenced;
  list_append(&rail->posted, &job->link);
  work_starts(job->work);
}

static bool rail_has_room(const struct rdma_rail *rail, const struct rdma_job *job) {
  if (job->needs_fence && rail->unfenced >= rail->fence_limit)
    return false;
  return rail->posted_count == 0 ||
         (rail->posted_count < RDMA_JOBS && rail->send_room >= count_requests(job) &&
          rail->posted_bytes + job->work->bytes <= RDMA_WINDOW);
}

/* With the lock: moves waiting jobs into the batch while both have room. */
static void fill_batch(struct rdma_rail *rail, struct batch *batch) {
  struct list *first;
  batch->count = batch->jobs = 0;
  while (batch->jobs < RDMA_BATCH && (first = backlog_first(&rail->waiting))) {
    struct rdma_job *job = list_entry(first, struct rdma_job, link);
    uint32_t requests = count_requests(job);
    if (!rail_has_room(rail, job) || batch->count + requests > WORK_PIECES_MAX)
      return;
    backlog_take(&rail->waiting);
    add_requests(batch, job, requests);
    count_posted(job, requests);
    batch->jobs++;
  }
}

/* With the lock: the queue refused the work request `bad` and all behind it. Jobs that it did not
 * take whole count as not posted. */
__attribute__((cold)) static void take_back(struct rdma_rail *rail, const struct batch *batch,
                                            const struct ibv_send_wr *bad) {
  uint32_t taken = (uint32_t)(bad - batch->requests), left = batch->count;
  while (left > taken) {
    struct rdma_job *job = (struct rdma_job *)(uintptr_t)batch->requests[left - 1].wr_id;
    left -= job->requests;
    rail->unfenced -= job->needs_fence;
    job->work->begun = false;
    job_leave_rail(job);
    append_waiting(job);
  }
}

/* One doorbell a batch. A rail that refuses a work request is broken. */
void rdma_rail_post_waiting(struct rdma_rail *rail) {
  while (!rail->broken && backlog_first(&rail->waiting)) {
    struct batch batch;
    struct ibv_send_wr *bad = batch.requests;
    bool idle = !rdma_rail_is_busy(rail);
    fill_batch(rail, &batch);
    if (batch.count == 0)
      return;
    if (idle)
      rail->progress_at = clock_now();
    int system = ibv_post_send(rail->qp, batch.requests, &bad);
    if (system == 0)
      continue;
    struct haul_error before; /* of another job, which this thread may be about to end */
    error_save(&before);
    take_back(rail, &batch, bad);
    error_set(HAUL_EPATH, system, rail->device->nic->name, NULL,
              "its send queue refused a work request");
    rdma_rail_mark_broken(rail);
    rdma_rail_destroy_qp(rail); /* it may have taken a part of a job that counts as not posted */
    error_restore(&before);
  }
}

/* How long the rail would take for its bytes and `more`, in ns. A line of unknown speed counts as
 * slow. */
static double busy_ns(const struct rdma_rail *rail, uint64_t more) {
  double speed = rail->device->port.bytes_per_ns;
  uint64_t bytes = more + atomic_load_explicit(&rail->bytes, memory_order_relaxed);
  return (double)bytes / (speed > 0 ? speed : 0.1);
}

/* Of the rails at these devices, the one that would be done first. */
static struct rdma_rail *choose_rail(struct rdma_endpoint *endpoint, unsigned devices,
                                     uint64_t bytes) {
  struct rdma_rail *best = NULL;
  double soonest = 0;
  for (unsigned i = 0; i < endpoint->rail_count; i++) {
    struct rdma_rail *rail = endpoint->rails[i];
    if (!(devices & 1u << rail->device->number))
      continue;
    double until = busy_ns(rail, bytes);
    if (best && until >= soonest)
      continue;
    best = rail;
    soonest = until;
  }
  return best;
}

/* HAUL_ENOPATH where the NIC cannot take the memory: another path copies. */
static int prepare_local(struct rdma_job *job) {
  struct haul_region *region = job->work->region;
  struct memory *memory = &region->memory;
  struct ibv_mr *mr;
  if (job->staged)
    return 0;
  if (rdma_device_register(job->rail->device, memory, &job->registration, &mr) != 0) {
    atomic_store(&region->retry_at, 0); /* evicted meanwhile: the next transfer tries again */
    return error_set(HAUL_ENOPATH, 0, NULL, NULL, "%s", haul_error_last()->text);
  }
  job->key = mr->lkey;
  return job->work->operation == HAUL_OP_WRITE ? memory_fence(memory, FENCE_BEFORE_READ) : 0;
}

/* NULL with the detail. Atomics use the rail that the owner names. */
static struct rdma_job *make_job(struct rdma_endpoint *endpoint, struct work *work) {
  struct rdma_binding *binding = rdma_latest(work->binding);
  unsigned rails =
      operation_is_atomic(work->operation) ? 1u << binding->atomic_rail : binding->rails;
  unsigned near = rdma_near(endpoint, work->region->memory.place, rails);
  /* The owner compares checksums for peers that may read. (Over tcp it sums the bytes sent.) */
  bool compares = !work->checksum || work->key->rights & HAUL_READ;
  if (near == 0 || !compares) { /* 0: since the route was estimated */
    error_set(HAUL_ENOPATH, 0, NULL, NULL, "%s",
              compares ? RDMA_SILENT
                       : "a copy into memory without the right to read cannot be compared");
    return NULL;
  }
  struct rdma_job *job = alloc_zero(1, sizeof *job);
  if (!job) {
    error_memory("rdma job");
    return NULL;
  }
  count_memory(endpoint, sizeof *job);
  unsigned taking =
      near & ~(unsigned)atomic_load_explicit(&work->region->refused, memory_order_relaxed);
  job->rail = choose_rail(endpoint, taking ? taking : near, work->bytes);
  job->work = work;
  work->binding = binding;
  job->slot = -1;
  job->staged = !taking && !operation_is_atomic(work->operation);
  job->needs_fence = work->operation == HAUL_OP_WRITE && binding->fenced && !binding->staged;
  list_init(&job->link);
  if (prepare_local(job) == 0)
    return job;
  job_free(job); /* with its registration, where the fence failed after it */
  return NULL;
}

/* With the lock: 0, or why the work cannot be posted; set_reject_error has the text. */
static int enqueue(struct rdma_endpoint *endpoint, struct rdma_job *job) {
  struct rdma_binding *binding = job->work->binding;
  int canceled = atomic_load(&job->work->canceled);
  if (canceled)
    return canceled;
  if (endpoint->broken || !atomic_load(&endpoint->base.open) || !rdma_rail_is_usable(job->rail))
    return HAUL_EPATH;
  if (binding->revoked)
    return HAUL_ESTALE;
  binding->jobs++;
  job->work->state = job;
  step_first(job);
  if (job->step == STEP_NIC)
    append_waiting(job);
  else
    list_append(job->step == STEP_ACQUIRE ? &endpoint->acquiring : &endpoint->stepping, &job->link);
  return 0;
}

/* Ends no job: the lock's holder may hold other locks too, and has an error detail of its own. */
void rdma_enqueue_jobs(struct combiner *combiner, struct list *jobs) {
  struct rdma_endpoint *endpoint = list_entry(combiner, struct rdma_endpoint, combiner);
  for (struct list *item; (item = list_take(jobs));) {
    struct rdma_job *job = list_entry(item, struct rdma_job, link);
    work_batch_remove(&endpoint->work_batch, job->work);
    job->code = enqueue(endpoint, job);
    if (job->code == 0)
      continue;
    list_append(&endpoint->rejected, item);
    atomic_store(&endpoint->has_rejected, true);
    loop_wake(endpoint->base.link->fabric->loop);
  }
  for (unsigned i = 0; i < endpoint->rail_count; i++)
    rdma_rail_post_waiting(endpoint->rails[i]);
}

__attribute__((cold)) static void set_reject_error(const struct rdma_endpoint *endpoint, int code) {
  if (code == HAUL_ESTALE)
    error_set(code, 0, NULL, NULL, "the peer withdrew the region");
  else
    error_set(code, 0, NULL, NULL, "%s",
              code == HAUL_EPATH ? endpoint_reason(&endpoint->base) : "");
}

void rdma_end_rejected(struct rdma_endpoint *endpoint) {
  struct list rejected = LIST_INIT(rejected);
  while (atomic_exchange(&endpoint->has_rejected, false)) {
    combiner_lock(&endpoint->combiner);
    list_splice(&rejected, &endpoint->rejected);
    combiner_unlock(&endpoint->combiner);
    for (struct list *item; (item = list_take(&rejected));) {
      struct list one = LIST_INIT(one);
      list_append(&one, item);
      set_reject_error(endpoint, list_entry(item, struct rdma_job, link)->code);
      jobs_end(&one);
    }
  }
}

void rdma_post(struct endpoint *base, struct work *work) {
  struct rdma_endpoint *endpoint = (struct rdma_endpoint *)base;
  struct loop *loop = base->link->fabric->loop;
  struct rdma_job *job = make_job(endpoint, work);
  work->state = NULL;
  if (!job) {
    work->done(work, haul_error_last()->code);
  } else if (work_batch_add(&endpoint->work_batch, work, shrinkable(RDMA_BATCH, 1),
                            RDMA_BATCH_BYTES, loop, &endpoint->poller)) {
    /* Dekker with rdma_stop (seq_cst), which closes the endpoint and then drains: one of both
     * sees the job. */
    combiner_defer(&endpoint->combiner, &job->link);
    if (!atomic_load(&endpoint->base.open))
      combiner_drain(&endpoint->combiner);
  } else {
    combiner_submit(&endpoint->combiner, &job->link);
  }
  rdma_end_rejected(endpoint);
  loop_wake(loop);
}
