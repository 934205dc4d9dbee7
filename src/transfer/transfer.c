/* SPDX-License-Identifier: MIT */
#include "transfer/transfer.h"

#include <string.h>
#include <time.h>

#include "core/alloc.h"
#include "core/error.h"
#include "core/sys.h"

static const struct haul_transfer_options no_options = HAUL_TRANSFER_OPTIONS_INIT;

/* ---- The end ---- */

static void transfer_put(struct haul_transfer *transfer) {
  if (atomic_fetch_sub(&transfer->refs, 1) != 1)
    return;
  remote_put(transfer->remote);
  alloc_free(atomic_load(&transfer->error));
  alloc_free(transfer);
}

/* The first failure stands; its detail is the thread's. */
static void record_failure(struct haul_transfer *transfer, int code) {
  int none = 0;
  if (!atomic_compare_exchange_strong(&transfer->failure, &none, code))
    return;
  struct haul_error *error = alloc_zero(1, sizeof *error);
  if (error)
    error_save(error);
  atomic_store(&transfer->error, error);
  atomic_fetch_add_explicit(&transfer->owner->failed, 1, memory_order_relaxed);
}

/* The last work has ended. `status` is stored last: who reads it (acquire) sees everything else. */
static void finish(struct haul_transfer *transfer) {
  struct transfers *owner = transfer->owner;
  transfer->ended = clock_now();
  pthread_mutex_lock(&owner->lock);
  list_remove(&transfer->link);
  list_remove(&transfer->order);
  pthread_mutex_unlock(&owner->lock);
  region_put(transfer->region);
  atomic_store_explicit(&transfer->status, atomic_load(&transfer->failure), memory_order_release);
  loop_news(owner->fabric->loop);
  transfer_put(transfer);
}

static void settle(struct haul_transfer *transfer) {
  if (atomic_fetch_sub(&transfer->pending, 1) == 1)
    finish(transfer);
}

static bool will_retry(struct transfers *owner, struct work *work) {
  pthread_mutex_lock(&owner->lock);
  bool will = !owner->ended;
  if (will)
    list_append(&owner->retries, &work->link);
  pthread_mutex_unlock(&owner->lock);
  if (will)
    loop_wake(owner->fabric->loop);
  return will;
}

static int node_closed(const struct haul_transfer *transfer) {
  return error_set(HAUL_ECLOSED, 0, transfer->remote->name, "the node was closed|");
}

static void on_done(struct work *work, int code) {
  struct haul_transfer *transfer = work->owner;
  if (code == HAUL_EPATH && atomic_load(&transfer->failure) == 0) {
    if (will_retry(transfer->owner, work))
      return;
    code = node_closed(transfer);
  }
  if (code)
    record_failure(transfer, code);
  settle(transfer);
}

/* ---- Sending, and again on another path ---- */

static int post_work(struct haul_transfer *transfer, struct work *work) {
  struct haul_remote *remote = transfer->remote;
  size_t index;
  int code = remote_route(remote, &transfer->region->memory, transfer->operation, transfer->bytes,
                          &transfer->options, &index);
  if (code)
    return code;
  atomic_store(&transfer->path, (int)index);
  work->endpoint = remote->link->endpoints[index];
  work->binding = remote->bindings[index];
  work->endpoint->transport->post(work->endpoint, work);
  return 0;
}

/* With the loop's lock. A work whose path broke takes the next one; when none is left the peer is
 * as good as gone. */
static void retry(struct work *work) {
  struct haul_transfer *transfer = work->owner;
  struct link *link = transfer->remote->link;
  if (atomic_load(&transfer->failure)) { /* it was aborted meanwhile */
    settle(transfer);
    return;
  }
  atomic_fetch_add(&transfer->retries, 1);
  atomic_fetch_add_explicit(&transfer->owner->retried, 1, memory_order_relaxed);
  int code = post_work(transfer, work);
  if (code == 0)
    return;
  if (code == HAUL_ENOPATH && !transfer->options.only) {
    link->fail(link, HAUL_EPEER, "no path to it is left");
    code = error_set(HAUL_EPEER, 0, transfer->remote->name,
                     "every path to the peer broke|is it still running? connect again");
  }
  record_failure(transfer, code);
  settle(transfer);
}

/* ---- Early ends ---- */

static bool take_from_retries(struct transfers *owner, struct work *work) {
  bool found = false;
  pthread_mutex_lock(&owner->lock);
  list_each(item, &owner->retries) found |= item == &work->link;
  if (found)
    list_remove(&work->link);
  pthread_mutex_unlock(&owner->lock);
  return found;
}

/* With the loop's lock and a reference. */
static void cancel_works(struct haul_transfer *transfer, int code) {
  for (uint32_t i = 0; i < transfer->plan.work_count; i++) {
    struct work *work = &transfer->plan.works[i];
    if (take_from_retries(transfer->owner, work))
      settle(transfer);
    else if (work->endpoint)
      work->endpoint->transport->cancel(work->endpoint, work, code);
  }
}

/* With the loop's lock and a reference; the thread's error detail says why. While works are being
 * handed out, the call that does it cancels them: it looks at `failure` after it is done, and
 * `posting` is looked at here after `failure` was set, so one of the two sees the other. */
static void abort_transfer(struct haul_transfer *transfer, int code) {
  record_failure(transfer, code);
  if (!atomic_load(&transfer->posting))
    cancel_works(transfer, code);
}

static void expire(struct haul_transfer *transfer) {
  loop_lock(transfer->owner->fabric->loop);
  if (atomic_load(&transfer->status) == 1) {
    error_set(
        HAUL_ETIMEDOUT, 0, transfer->remote->name,
        "the transfer did not end by its deadline|set a later deadline in its options, or see "
        "haul explain for how long it should take");
    abort_transfer(transfer, HAUL_ETIMEDOUT);
  }
  loop_unlock(transfer->owner->fabric->loop);
}

typedef bool matches_fn(const struct haul_transfer *transfer, const void *user);

/* The first running transfer that matches and has not failed, with a reference. */
static struct haul_transfer *find(struct transfers *transfers, matches_fn *matches,
                                  const void *user) {
  struct haul_transfer *found = NULL;
  pthread_mutex_lock(&transfers->lock);
  list_each(item, &transfers->running) {
    struct haul_transfer *transfer = list_entry(item, struct haul_transfer, link);
    if (atomic_load(&transfer->failure) != 0 || !matches(transfer, user))
      continue;
    atomic_fetch_add(&transfer->refs, 1);
    found = transfer;
    break;
  }
  pthread_mutex_unlock(&transfers->lock);
  return found;
}

struct users {
  const struct haul_region *region;
  const struct link *link;
};

static bool uses(const struct haul_transfer *transfer, const void *user) {
  const struct users *users = user;
  return (!users->region || transfer->region == users->region) &&
         (!users->link || transfer->remote->link == users->link);
}

void transfers_abort(struct transfers *transfers, const struct haul_region *region,
                     const struct link *link, int code, const char *reason) {
  struct users users = {region, link};
  struct haul_transfer *transfer;
  while ((transfer = find(transfers, uses, &users))) {
    error_set(code, 0, transfer->remote->name, "%s|", reason);
    abort_transfer(transfer, code);
    transfer_put(transfer);
  }
}

bool transfers_use(struct transfers *transfers, const struct haul_region *region) {
  bool used = false;
  pthread_mutex_lock(&transfers->lock);
  list_each(item, &transfers->running) used |=
      list_entry(item, struct haul_transfer, link)->region == region;
  pthread_mutex_unlock(&transfers->lock);
  return used;
}

/* ---- Deadlines ---- */

static bool is_due(const struct haul_transfer *transfer, const void *user) {
  return transfer->deadline <= *(const int64_t *)user;
}

static void on_timer(struct timer *timer) {
  struct transfers *transfers = list_entry(timer, struct transfers, timer);
  int64_t now = clock_now();
  struct haul_transfer *transfer;
  atomic_store(&transfers->armed, HAUL_FOREVER);
  while ((transfer = find(transfers, is_due, &now))) {
    error_set(HAUL_ETIMEDOUT, 0, transfer->remote->name,
              "the transfer did not end by its deadline|set a later deadline in its options");
    abort_transfer(transfer, HAUL_ETIMEDOUT);
    transfer_put(transfer);
  }
}

static void arm(struct transfers *transfers) {
  int64_t first = HAUL_FOREVER;
  pthread_mutex_lock(&transfers->lock);
  list_each(item, &transfers->running) {
    const struct haul_transfer *transfer = list_entry(item, struct haul_transfer, link);
    if (atomic_load(&transfer->failure) == 0) {
      first = transfer->deadline;
      break;
    }
  }
  pthread_mutex_unlock(&transfers->lock);
  if (first >= atomic_load(&transfers->armed))
    return;
  atomic_store(&transfers->armed, first);
  loop_timer(transfers->fabric->loop, &transfers->timer, first);
}

static bool on_poll(struct poller *poller) {
  struct transfers *transfers = list_entry(poller, struct transfers, poller);
  struct list works = LIST_INIT(works);
  arm(transfers);
  pthread_mutex_lock(&transfers->lock);
  list_splice(&works, &transfers->retries);
  pthread_mutex_unlock(&transfers->lock);
  bool any = !list_empty(&works);
  for (struct list *item; (item = list_take(&works));)
    retry(list_entry(item, struct work, link));
  return any;
}

/* ---- The start ---- */

/* What is wrong with a piece that check_pieces does not like. */
static __attribute__((cold)) int bad_piece(const struct haul_remote *remote,
                                           const struct haul_region *region,
                                           const struct haul_piece *piece, size_t i) {
  uint64_t here = region->memory.length, length = piece->length;
  bool local = length > here || piece->local > here - length;
  if (length == 0)
    return error_set(HAUL_EINVAL, 0, remote->name, "piece %zu has no bytes|leave it out", i);
  return error_set(
      HAUL_ERANGE, 0, remote->name,
      "piece %zu, %s bytes %llu + %llu, does not lie in the %s's %llu|check the offset "
      "and the length",
      i, local ? "local" : "remote", (unsigned long long)(local ? piece->local : piece->remote),
      (unsigned long long)length, local ? "region" : "remote",
      (unsigned long long)(local ? here : remote->key.length));
}

static inline int check_pieces(const struct haul_remote *remote, const struct haul_region *region,
                               const struct haul_piece *pieces, size_t count, uint64_t *bytes) {
  uint64_t total = 0;
  uint64_t here = region->memory.length, there = remote->key.length;
  for (size_t i = 0; i < count; i++) {
    const struct haul_piece *piece = &pieces[i];
    uint64_t length = piece->length;
    /* In this order nothing can overflow. */
    if (length == 0 || length > here || piece->local > here - length || length > there ||
        piece->remote > there - length)
      return bad_piece(remote, region, piece, i);
    total += length;
  }
  *bytes = total;
  return 0;
}

/* What is wrong with a call that is_sound does not like. */
static __attribute__((cold)) int bad_call(const struct haul_remote *remote,
                                          const struct haul_region *region,
                                          const struct haul_piece *pieces, size_t count,
                                          enum haul_operation operation) {
  bool write = operation == HAUL_OP_WRITE;
  if (!remote || !region || !pieces || count == 0)
    return error_set(HAUL_EINVAL, 0, remote ? remote->name : NULL,
                     "%s|a transfer needs a remote, a region and at least one piece",
                     !remote   ? "no remote"
                     : !region ? "no region"
                               : "no pieces");
  if (count > HAUL_PIECES_MAX)
    return error_set(HAUL_ELIMIT, 0, remote->name, "%zu pieces are more than %d|split the transfer",
                     count, HAUL_PIECES_MAX);
  if (region->heap != remote->heap)
    return error_set(HAUL_EINVAL, 0, remote->name,
                     "the region belongs to another node|use regions and peers of one node");
  if (!(remote->key.rights & (write ? HAUL_WRITE : HAUL_READ)))
    return error_set(HAUL_EACCESS, 0, remote->name,
                     "it is published without the right to %s|publish it with HAUL_%s there",
                     write ? "write" : "read", write ? "WRITE" : "READ");
  if (!write && !region->memory.writable)
    return error_set(HAUL_EACCESS, 0, remote->name, "the local memory may not be written|");
  if (atomic_load(&region->released) || !memory_alive(&region->memory))
    return error_set(HAUL_ESTALE, 0, remote->name, "the local region was released|");
  return error_set(atomic_load(&remote->link->ended), 0, remote->link->name, "%s|connect again",
                   remote->link->ended_reason);
}

static inline bool is_sound(const struct haul_remote *remote, const struct haul_region *region,
                            const struct haul_piece *pieces, size_t count,
                            enum haul_operation operation) {
  return remote && region && pieces && count - 1 < HAUL_PIECES_MAX &&
         region->heap == remote->heap &&
         (remote->key.rights & (operation == HAUL_OP_WRITE ? HAUL_WRITE : HAUL_READ)) &&
         (operation == HAUL_OP_WRITE || region->memory.writable) &&
         !atomic_load_explicit(&region->released, memory_order_relaxed) &&
         memory_alive(&region->memory) &&
         !atomic_load_explicit(&remote->link->ended, memory_order_relaxed);
}

static int check_options(const struct haul_transfer_options *given,
                         struct haul_transfer_options *options) {
  *options = no_options;
  if (!given)
    return 0;
  if (given->size < offsetof(struct haul_transfer_options, deadline) || given->size > 4096)
    return error_set(HAUL_EINVAL, 0, NULL,
                     "options of an impossible size|start from HAUL_TRANSFER_OPTIONS_INIT");
  memcpy(options, given, given->size < sizeof *options ? given->size : sizeof *options);
  if (options->flags & ~(HAUL_REQUIRE_ZERO_COPY | HAUL_CHECKSUM))
    return error_set(HAUL_EINVAL, 0, NULL, "unknown flags 0x%x|", options->flags);
  if (options->only && !transport_named(options->only))
    return error_set(HAUL_EINVAL, 0, options->only, "there is no such path|haul info lists them");
  return 0;
}

/* One block: the transfer, its works, its pieces. */
static struct haul_transfer *new_transfer(struct haul_remote *remote, struct haul_region *region,
                                          enum haul_operation operation, size_t works,
                                          size_t pieces) {
  struct haul_transfer *transfer = alloc_zero(1, sizeof *transfer + works * sizeof(struct work) +
                                                     pieces * sizeof(struct haul_piece));
  if (!transfer) {
    error_memory("transfer");
    return NULL;
  }
  list_init(&transfer->link);
  list_init(&transfer->order);
  transfer->owner = remote->transfers;
  transfer->remote = remote;
  transfer->region = region;
  transfer->local = region->memory;
  transfer->operation = operation;
  transfer->plan.works = (struct work *)(void *)(transfer + 1);
  transfer->plan.pieces = (struct haul_piece *)(void *)(transfer->plan.works + works);
  atomic_store(&transfer->refs, 1);
  atomic_fetch_add(&remote->refs, 1);
  return transfer;
}

/* In the lists: by deadline, nearly always at the end. */
static void enlist(struct haul_transfer *transfer) {
  struct transfers *owner = transfer->owner;
  struct link *link = transfer->remote->link;
  pthread_mutex_lock(&owner->lock);
  struct list *before = owner->running.previous;
  while (before != &owner->running &&
         list_entry(before, struct haul_transfer, link)->deadline > transfer->deadline)
    before = before->previous;
  list_append(before->next, &transfer->link);
  if (transfer->operation == HAUL_OP_WRITE) {
    transfer->number = ++link->write_number;
    list_append(&link->writes, &transfer->order);
  }
  pthread_mutex_unlock(&owner->lock);
  if (transfer->deadline < atomic_load(&owner->armed))
    loop_wake(owner->fabric->loop);
}

static void post_all(struct haul_transfer *transfer) {
  for (uint32_t i = 0; i < transfer->plan.work_count; i++) {
    struct work *work = &transfer->plan.works[i];
    int code = atomic_load(&transfer->failure);
    if (code == 0)
      code = post_work(transfer, work);
    if (code) {
      record_failure(transfer, code);
      settle(transfer);
    }
  }
  atomic_store(&transfer->posting, false);
  int failure = atomic_load(&transfer->failure);
  if (failure) {
    loop_lock(transfer->owner->fabric->loop);
    cancel_works(transfer, failure);
    loop_unlock(transfer->owner->fabric->loop);
  }
  settle(transfer); /* the call's own */
}

static int start_posted(struct haul_remote *remote, struct haul_region *region,
                        const struct haul_piece *pieces, size_t count, uint64_t bytes,
                        enum haul_operation operation, const struct haul_transfer_options *options,
                        int64_t called, struct haul_transfer **out) {
  struct transfers *owner = remote->transfers;
  struct haul_transfer *transfer =
      new_transfer(remote, region, operation, plan_works(count, bytes), plan_pieces(count, bytes));
  if (!transfer)
    return HAUL_ENOMEM;
  transfer->options = *options;
  if (options->only) /* the caller's string may not live as long */
    transfer->options.only = transport_named(options->only)->name;
  transfer->bytes = bytes;
  transfer->pieces = count;
  transfer->called = called;
  transfer->deadline =
      options->deadline ? options->deadline : clock_after(called, owner->default_ns);
  plan_make(&transfer->plan, pieces, count);
  for (uint32_t i = 0; i < transfer->plan.work_count; i++) {
    struct work *work = &transfer->plan.works[i];
    list_init(&work->link);
    work->owner = transfer;
    work->done = on_done;
    work->key = &remote->key;
    work->whole = bytes;
    work->region = region;
    work->operation = operation;
    work->checksum = options->flags & HAUL_CHECKSUM;
  }
  region_retain(region);
  atomic_store(&transfer->status, 1);
  atomic_store(&transfer->posting, true);
  atomic_store(&transfer->refs, 2); /* the caller's, and that of being under way */
  atomic_store(&transfer->pending, transfer->plan.work_count + 1);
  enlist(transfer);
  atomic_fetch_add_explicit(&owner->started, 1, memory_order_relaxed);
  transfer->posted = clock_now();
  post_all(transfer);
  *out = transfer;
  return 0;
}

/* A handle for what is complete already. */
static int immediate(struct haul_remote *remote, struct haul_region *region, uint64_t bytes,
                     size_t count, enum haul_operation operation, size_t path, int64_t called,
                     const struct haul_transfer_options *options, struct haul_transfer **out) {
  struct haul_transfer *transfer = new_transfer(remote, region, operation, 0, 0);
  if (!transfer)
    return HAUL_ENOMEM;
  transfer->options = *options;
  transfer->options.only = NULL;
  transfer->immediate = true;
  transfer->region = NULL; /* it may be released before the report is asked for */
  transfer->bytes = bytes;
  transfer->pieces = count;
  transfer->called = transfer->posted = called;
  transfer->ended = clock_now();
  atomic_store(&transfer->path, (int)path);
  *out = transfer;
  return 0;
}

static int result(struct haul_transfer *transfer) {
  int status = atomic_load_explicit(&transfer->status, memory_order_acquire);
  if (status >= 0)
    return status;
  const struct haul_error *error = atomic_load(&transfer->error);
  if (error)
    return error_restore(error);
  return error_set(status, 0, transfer->remote->name, "%s", "");
}

static bool is_done(void *user) {
  struct haul_transfer *transfer = user;
  return atomic_load_explicit(&transfer->status, memory_order_acquire) != 1;
}

static bool help(void *user) {
  struct haul_transfer *transfer = user;
  return fabric_help(transfer->owner->fabric);
}

static int await(struct haul_transfer *transfer, haul_deadline until) {
  struct loop *loop = transfer->owner->fabric->loop;
  int64_t first = until < transfer->deadline ? until : transfer->deadline;
  if (!loop_wait(loop, is_done, help, transfer, first) && clock_now() >= transfer->deadline) {
    expire(transfer);
    loop_wait(loop, is_done, help, transfer, until);
  }
  /* Nobody waits in a loop that has ended; the close that ended it ends the transfer too. */
  while (!is_done(transfer) && loop_has_ended(loop) && clock_now() < until)
    nanosleep(&(struct timespec){0, 50000}, NULL);
  if (!is_done(transfer))
    return error_set(HAUL_ETIMEDOUT, 0, transfer->remote->name,
                     "the transfer is still on its way|wait longer, or cancel it");
  return result(transfer);
}

/* The general way: with options, or with a handle, or not on the spot. */
static int start(struct haul_remote *remote, struct haul_region *region,
                 const struct haul_piece *pieces, size_t count, uint64_t bytes,
                 const struct haul_transfer_options *given, enum haul_operation operation,
                 struct haul_transfer **out) {
  struct haul_transfer_options options;
  struct haul_transfer *transfer;
  size_t path = 0;
  int64_t called = clock_now();
  int code = check_options(given, &options);
  if (code == 0)
    code = remote_route(remote, &region->memory, operation, bytes, &options, &path);
  if (code)
    return code;
  struct endpoint *endpoint = remote->link->endpoints[path];
  if (endpoint->transport->now && !(options.flags & HAUL_CHECKSUM)) {
    code = endpoint->transport->now(endpoint, &remote->key, remote->bindings[path], region, pieces,
                                    count, bytes, operation);
    if (code == 0 && out)
      return immediate(remote, region, bytes, count, operation, path, called, &options, out);
    if (code <= 0)
      return code;
  }
  code = start_posted(remote, region, pieces, count, bytes, operation, &options, called, &transfer);
  if (code)
    return code;
  if (out) {
    *out = transfer;
    return 0;
  }
  code = await(transfer, HAUL_FOREVER); /* its own deadline bounds it */
  transfer_put(transfer);
  return code;
}

/* The hot path is a small transfer without options and handle: no clock, no allocation, no lock. */
static inline __attribute__((always_inline)) int
run(struct haul_remote *remote, struct haul_region *region, const struct haul_piece *pieces,
    size_t count, const struct haul_transfer_options *options, enum haul_operation operation,
    struct haul_transfer **out) {
  uint64_t bytes = 0;
  size_t path;
  if (!is_sound(remote, region, pieces, count, operation))
    return bad_call(remote, region, pieces, count, operation);
  int code = check_pieces(remote, region, pieces, count, &bytes);
  if (code)
    return code;
  if (!options && !out && remote_route_now(remote, &region->memory, operation, bytes, &path)) {
    struct endpoint *endpoint = remote->link->endpoints[path];
    if (endpoint->transport->now) {
      code = endpoint->transport->now(endpoint, &remote->key, remote->bindings[path], region,
                                      pieces, count, bytes, operation);
      if (code <= 0)
        return code;
    }
  }
  return start(remote, region, pieces, count, bytes, options, operation, out);
}

HAUL_API int haul_write(haul_remote *to, haul_region *from, const struct haul_piece *pieces,
                        size_t count, const struct haul_transfer_options *options,
                        haul_transfer **transfer) {
  int code = error_enter("haul_write");
  return code ? code : run(to, from, pieces, count, options, HAUL_OP_WRITE, transfer);
}

HAUL_API int haul_read(haul_region *to, haul_remote *from, const struct haul_piece *pieces,
                       size_t count, const struct haul_transfer_options *options,
                       haul_transfer **transfer) {
  int code = error_enter("haul_read");
  return code ? code : run(from, to, pieces, count, options, HAUL_OP_READ, transfer);
}

/* ---- Handles ---- */

HAUL_API int haul_transfer_test(haul_transfer *transfer) {
  int code = error_enter("haul_transfer_test");
  if (code)
    return code;
  if (!transfer)
    return error_set(HAUL_EINVAL, 0, NULL, "no transfer|");
  if (!is_done(transfer) && clock_now() >= transfer->deadline)
    expire(transfer);
  return result(transfer);
}

HAUL_API int haul_transfer_wait(haul_transfer *transfer, haul_deadline until) {
  int code = error_enter("haul_transfer_wait");
  if (code)
    return code;
  if (!transfer)
    return error_set(HAUL_EINVAL, 0, NULL, "no transfer|");
  return await(transfer, until);
}

HAUL_API int haul_transfer_cancel(haul_transfer *transfer) {
  int code = error_enter("haul_transfer_cancel");
  if (code)
    return code;
  if (!transfer)
    return error_set(HAUL_EINVAL, 0, NULL, "no transfer|");
  loop_lock(transfer->owner->fabric->loop);
  if (!is_done(transfer)) {
    error_set(HAUL_ECANCELED, 0, transfer->remote->name, "|");
    abort_transfer(transfer, HAUL_ECANCELED);
  }
  loop_unlock(transfer->owner->fabric->loop);
  return 0;
}

HAUL_API void haul_transfer_release(haul_transfer *transfer) {
  if (transfer)
    transfer_put(transfer);
}

/* ---- A node's ---- */

int transfers_open(struct fabric *fabric, int64_t default_ns, struct transfers *transfers) {
  transfers->fabric = fabric;
  transfers->default_ns = default_ns;
  pthread_mutex_init(&transfers->lock, NULL);
  list_init(&transfers->running);
  list_init(&transfers->retries);
  atomic_store(&transfers->armed, HAUL_FOREVER);
  timer_init(&transfers->timer, on_timer);
  loop_lock(fabric->loop);
  loop_poller(fabric->loop, &transfers->poller, on_poll);
  loop_unlock(fabric->loop);
  return 0;
}

void transfers_end(struct transfers *transfers) {
  struct list works = LIST_INIT(works);
  pthread_mutex_lock(&transfers->lock);
  transfers->ended = true;
  list_splice(&works, &transfers->retries);
  pthread_mutex_unlock(&transfers->lock);
  for (struct list *item; (item = list_take(&works));) {
    struct haul_transfer *transfer = list_entry(item, struct work, link)->owner;
    record_failure(transfer, node_closed(transfer));
    settle(transfer);
  }
}

void transfers_close(struct transfers *transfers) {
  loop_lock(transfers->fabric->loop);
  loop_poller_stop(transfers->fabric->loop, &transfers->poller);
  loop_timer_stop(&transfers->timer);
  loop_unlock(transfers->fabric->loop);
  pthread_mutex_destroy(&transfers->lock);
}

uint64_t transfers_last_write(struct transfers *transfers, struct link *link) {
  pthread_mutex_lock(&transfers->lock);
  uint64_t number = link->write_number;
  pthread_mutex_unlock(&transfers->lock);
  return number;
}

bool transfers_writing(struct transfers *transfers, struct link *link, uint64_t number) {
  pthread_mutex_lock(&transfers->lock);
  bool writing = !list_empty(&link->writes) &&
                 list_entry(link->writes.next, struct haul_transfer, order)->number <= number;
  pthread_mutex_unlock(&transfers->lock);
  return writing;
}
