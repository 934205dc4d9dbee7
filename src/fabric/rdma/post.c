/* SPDX-License-Identifier: MIT
 * Works to work requests, and completions to works. A rail's completions come in the order of its
 * posts, and only the last request of a job asks for one. */
#include <errno.h>

#include "core/alloc.h"
#include "core/error.h"
#include "core/sys.h"
#include "fabric/rdma/rdma.h"

/* ---- Ends ---- */

/* Takes the job out of the rail's accounts; with the lock. */
static void leave_rail(struct rdma_job *job) {
  struct rdma_rail *rail = job->rail;
  list_remove(&job->link);
  rail->bytes -= job->work->bytes;
  if (job->requests > 0) {
    rail->room += job->requests;
    rail->posted_count--;
    job->requests = 0;
  }
}

/* With the lock: it is over, and its work's `done` is called once the lock is free. */
static void retire(struct rdma_job *job, int code, struct list *ended) {
  struct rdma_binding *binding = job->work->binding;
  binding->jobs--;
  job->work->state = NULL;
  job->code = code;
  list_append(ended, &job->link);
}

static void end_jobs(struct list *jobs) {
  for (struct list *item; (item = list_take(jobs));) {
    struct rdma_job *job = list_entry(item, struct rdma_job, link);
    struct work *work = job->work;
    struct endpoint *endpoint = work->endpoint;
    int code = job->code;
    regcache_put(job->rail->card->cache, job->entry);
    alloc_free(job);
    if (code == 0)
      endpoint_count(endpoint, work->operation, work->bytes);
    else
      atomic_fetch_add_explicit(&endpoint->counters.errors, 1, memory_order_relaxed);
    work->done(work, code);
  }
}

/* ---- Posting ---- */

struct batch {
  struct ibv_send_wr requests[WORK_PIECES_MAX];
  struct ibv_sge places[WORK_PIECES_MAX];
};

static void fill_request(const struct rdma_job *job, const struct haul_piece *piece, unsigned rail,
                         struct ibv_send_wr *request, struct ibv_sge *place) {
  const struct work *work = job->work;
  const struct rdma_binding *binding = work->binding;
  bool write = work->operation == HAUL_OP_WRITE;
  *place = (struct ibv_sge){.addr = (uintptr_t)work->region->memory.address + piece->local,
                            .length = (uint32_t)piece->length,
                            .lkey = job->key};
  *request = (struct ibv_send_wr){
      .wr_id = (uintptr_t)job,
      .sg_list = place,
      .num_sge = 1,
      .opcode = write ? IBV_WR_RDMA_WRITE : IBV_WR_RDMA_READ,
      .send_flags = write && piece->length <= job->rail->inlined ? IBV_SEND_INLINE : 0,
      .wr.rdma = {.remote_addr = binding->address + piece->remote, .rkey = binding->keys[rail]},
  };
}

/* One doorbell for the work; with the lock, and room for it. 0 or a code. */
static int ring(struct rdma_job *job) {
  struct rdma_rail *rail = job->rail;
  const struct work *work = job->work;
  unsigned number = (unsigned)(rail - rail->endpoint->rails);
  struct batch batch;
  struct ibv_send_wr *bad;
  for (uint32_t i = 0; i < work->count; i++) {
    fill_request(job, &work->pieces[i], number, &batch.requests[i], &batch.places[i]);
    if (i > 0)
      batch.requests[i - 1].next = &batch.requests[i];
    if (i + 1 == work->count)
      batch.requests[i].send_flags |= IBV_SEND_SIGNALED;
  }
  int system = ibv_post_send(rail->queue, batch.requests, &bad);
  if (system)
    return error_set(HAUL_EPATH, system, rail->card->nic->name,
                     "its send queue refused a request|");
  job->requests = work->count;
  rail->room -= work->count;
  rail->posted_count++;
  return 0;
}

/* With the lock: posts what waits and has room now; what fails goes to `ended`. */
static void pump(struct rdma_rail *rail, struct list *ended) {
  while (!list_empty(&rail->waiting) && !rail->broken) {
    struct rdma_job *job = list_entry(rail->waiting.next, struct rdma_job, link);
    if (rail->posted_count == RDMA_JOBS || rail->room < job->work->count)
      return;
    list_remove(&job->link);
    list_append(&rail->posted, &job->link);
    int code = ring(job);
    if (code) {
      leave_rail(job);
      retire(job, code, ended);
    } else if (rail->posted_count == 1) {
      rail->moved_at = clock_now();
    }
  }
}

/* The rail with the least under way. */
static struct rdma_rail *choose_rail(struct rdma_endpoint *endpoint) {
  struct rdma_rail *best = &endpoint->rails[0];
  for (unsigned i = 1; i < endpoint->rail_count; i++)
    if (endpoint->rails[i].bytes < best->bytes)
      best = &endpoint->rails[i];
  return best;
}

/* NULL with the detail where it has none. */
static struct rdma_job *make_job(struct rdma_endpoint *endpoint, struct work *work) {
  struct rdma_job *job = alloc_zero(1, sizeof *job);
  struct ibv_mr *mr;
  if (!job) {
    error_memory("rdma job");
    return NULL;
  }
  pthread_mutex_lock(&endpoint->lock);
  job->rail = choose_rail(endpoint);
  pthread_mutex_unlock(&endpoint->lock);
  job->work = work;
  list_init(&job->link);
  if (card_register(job->rail->card, &work->region->memory, &job->entry, &mr) != 0) {
    alloc_free(job);
    return NULL;
  }
  job->key = mr->lkey;
  return job;
}

/* With the lock: 0, or why the work cannot be posted. */
static int enqueue(struct rdma_endpoint *endpoint, struct rdma_job *job) {
  struct rdma_binding *binding = job->work->binding;
  if (endpoint->broken || !atomic_load(&endpoint->base.open))
    return error_set(HAUL_EPATH, 0, NULL, "%s|", endpoint->base.reason);
  if (binding->revoked)
    return error_set(HAUL_ESTALE, 0, NULL, "the peer withdrew the region|look it up again");
  binding->jobs++;
  job->work->state = job;
  job->rail->bytes += job->work->bytes;
  list_append(&job->rail->waiting, &job->link);
  return 0;
}

void rdma_post(struct rdma_endpoint *endpoint, struct work *work) {
  struct list ended = LIST_INIT(ended);
  struct rdma_job *job = make_job(endpoint, work);
  work->state = NULL;
  if (!job) {
    work->done(work, haul_error_last()->code);
    return;
  }
  pthread_mutex_lock(&endpoint->lock);
  job->code = enqueue(endpoint, job);
  if (job->code)
    list_append(&ended, &job->link);
  else
    pump(job->rail, &ended);
  pthread_mutex_unlock(&endpoint->lock);
  end_jobs(&ended);
  loop_wake(endpoint->base.link->fabric->loop);
}

/* ---- Completions ---- */

/* With the lock: all up to this job are complete. */
static void take_up_to(struct rdma_rail *rail, struct rdma_job *last, int code,
                       struct list *ended) {
  bool more = true;
  while (more && !list_empty(&rail->posted)) {
    struct rdma_job *job = list_entry(rail->posted.next, struct rdma_job, link);
    more = job != last;
    leave_rail(job);
    if (job->work->checksum && (more || code == 0)) {
      job->off_rail = true;
      list_append(&rail->endpoint->summing, &job->link);
    } else {
      retire(job, more ? 0 : code, ended);
    }
  }
}

/* One completion; with the lock. An error's is for the first request that failed, asked for or not,
 * and all after it are flushed. */
static void take(struct rdma_rail *rail, const struct ibv_wc *completion, struct list *ended) {
  struct rdma_job *job = (struct rdma_job *)(uintptr_t)completion->wr_id;
  rail->moved_at = clock_now();
  if (completion->status == IBV_WC_SUCCESS) {
    take_up_to(rail, job, 0, ended);
    return;
  }
  if (completion->status == IBV_WC_WR_FLUSH_ERR)
    return; /* its job ends with the rail */
  int code = queue_error(rail, completion->status, completion->vendor_err);
  if (code != HAUL_EPATH)
    take_up_to(rail, job, code, ended);
  rail->broken = true;
}

static bool poll_rail(struct rdma_rail *rail, struct list *ended) {
  struct ibv_wc completions[16];
  bool any = false;
  int count;
  do {
    count = ibv_poll_cq(rail->completions, 16, completions);
    for (int i = 0; i < count; i++)
      take(rail, &completions[i], ended);
    any |= count > 0;
  } while (count == 16);
  if (count < 0)
    rail->broken = true;
  if (any)
    pump(rail, ended);
  return any;
}

/* With the lock. Nothing under way needs no event; what takes long is waited for asleep. */
static bool is_urgent(struct rdma_rail *rail) {
  if (rail->posted_count == 0 || rail->broken)
    return false;
  if (clock_now() - rail->moved_at < RDMA_BUSY)
    return true;
  if (!rail->armed) {
    rail->armed = ibv_req_notify_cq(rail->completions, 0) == 0;
    return true; /* once more: it may have come before */
  }
  return false;
}

/* ---- Checksums ---- */

/* The next job that nobody was asked about yet. */
static struct rdma_job *next_to_sum(struct rdma_endpoint *endpoint) {
  struct rdma_job *found = NULL;
  pthread_mutex_lock(&endpoint->lock);
  list_each(item, &endpoint->summing) {
    struct rdma_job *job = list_entry(item, struct rdma_job, link);
    if (job->serial == 0 && !found)
      found = job;
  }
  pthread_mutex_unlock(&endpoint->lock);
  return found;
}

static void finish_sum(struct rdma_endpoint *endpoint, struct rdma_job *job, int code) {
  struct list ended = LIST_INIT(ended);
  pthread_mutex_lock(&endpoint->lock);
  list_remove(&job->link);
  retire(job, code, &ended);
  pthread_mutex_unlock(&endpoint->lock);
  end_jobs(&ended);
}

static void sum_all(struct rdma_endpoint *endpoint) {
  for (struct rdma_job *job; (job = next_to_sum(endpoint));) {
    int code = rdma_sum_ask(endpoint, job);
    if (code)
      finish_sum(endpoint, job, code);
  }
}

void rdma_summed(struct rdma_endpoint *endpoint, uint32_t serial, int status) {
  struct rdma_job *found = NULL;
  pthread_mutex_lock(&endpoint->lock);
  list_each(item, &endpoint->summing) {
    struct rdma_job *job = list_entry(item, struct rdma_job, link);
    if (job->serial == serial)
      found = job;
  }
  pthread_mutex_unlock(&endpoint->lock);
  if (!found)
    return; /* it was canceled meanwhile */
  if (status)
    error_set(status, 0, NULL,
              "the copy could not be shown to equal its source|was the source "
              "changed meanwhile?");
  if (status || --found->questions == 0)
    finish_sum(endpoint, found, status);
}

bool rdma_poll(struct rdma_endpoint *endpoint) {
  struct list ended = LIST_INIT(ended);
  bool any = false, urgent = false, breaks = false;
  struct haul_error error;
  pthread_mutex_lock(&endpoint->lock);
  for (unsigned i = 0; i < endpoint->rail_count && !endpoint->broken; i++) {
    struct rdma_rail *rail = &endpoint->rails[i];
    any |= poll_rail(rail, &ended);
    urgent |= is_urgent(rail);
    if (rail->broken && !breaks) {
      breaks = true;
      error_save(&error);
    }
  }
  pthread_mutex_unlock(&endpoint->lock);
  endpoint->poller.urgent = urgent;
  end_jobs(&ended);
  sum_all(endpoint);
  if (breaks)
    rdma_break(endpoint, error.text);
  return any;
}

/* ---- Early ends ---- */

/* What the NIC has cannot be taken back: it ends by itself, within the retries' time, or when the
 * peer is dropped. */
void rdma_cancel(struct rdma_endpoint *endpoint, struct work *work, int code) {
  struct list ended = LIST_INIT(ended);
  pthread_mutex_lock(&endpoint->lock);
  struct rdma_job *job = work->state;
  if (job && job->requests == 0) { /* waiting, being summed, or stranded */
    if (!job->off_rail)
      leave_rail(job);
    list_remove(&job->link);
    retire(job, code, &ended);
  }
  pthread_mutex_unlock(&endpoint->lock);
  end_jobs(&ended);
}

/* With the lock. */
static void strand(struct list *jobs, struct list *stranded) {
  while (!list_empty(jobs)) {
    struct rdma_job *job = list_entry(jobs->next, struct rdma_job, link);
    leave_rail(job);
    job->off_rail = true;
    list_append(stranded, &job->link);
  }
}

void rdma_break(struct rdma_endpoint *endpoint, const char *reason) {
  pthread_mutex_lock(&endpoint->lock);
  bool first = !endpoint->broken;
  endpoint->broken = true;
  for (unsigned i = 0; first && i < endpoint->rail_count; i++) {
    struct rdma_rail *rail = &endpoint->rails[i];
    queue_break(rail);
    strand(&rail->posted, &endpoint->stranded);
    strand(&rail->waiting, &endpoint->stranded);
  }
  if (first)
    list_splice(&endpoint->stranded, &endpoint->summing);
  pthread_mutex_unlock(&endpoint->lock);
  if (!first)
    return;
  endpoint_shut(&endpoint->base, "%s", reason);
  rdma_say(endpoint, &(struct rdma_record){.type = RDMA_BROKEN});
}

void rdma_end_stranded(struct rdma_endpoint *endpoint, int code) {
  struct list ended = LIST_INIT(ended);
  pthread_mutex_lock(&endpoint->lock);
  while (!list_empty(&endpoint->stranded))
    retire(list_entry(list_take(&endpoint->stranded), struct rdma_job, link), code, &ended);
  pthread_mutex_unlock(&endpoint->lock);
  if (code == HAUL_EPATH)
    error_set(code, 0, NULL, "%s|", endpoint->base.reason);
  end_jobs(&ended);
}

/* The peer is gone, or the node closes. The NIC lets go of everything first. */
void rdma_drain(struct rdma_endpoint *endpoint, int code) {
  rdma_break(endpoint, "the peer left");
  rdma_end_stranded(endpoint, code);
}
