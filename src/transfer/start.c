/* SPDX-License-Identifier: MIT
 * The calls that start a transfer: validation, copies within the call, posting. */
#include <string.h>

#include "core/alloc.h"
#include "core/error.h"
#include "core/fork.h"
#include "core/probe.h"
#include "core/sys.h"
#include "memory/copy.h"
#include "transfer/transfer.h"

static inline int check_pieces(const struct haul_remote *remote, const struct haul_region *region,
                               const struct haul_piece *pieces, size_t count, uint64_t *bytes) {
  uint64_t total = 0;
  uint64_t here = region->memory.length, there = remote->key.length;
  for (size_t i = 0; i < count; i++) {
    const struct haul_piece *piece = &pieces[i];
    uint64_t length = piece->length;
    /* In this order no sum can overflow. */
    if (length == 0 || length > here || piece->local > here - length || length > there ||
        piece->remote > there - length)
      return transfer_bad_piece(remote, region, piece, i);
    if (__builtin_add_overflow(total, length, &total))
      return error_set(HAUL_ELIMIT, 0, remote->name, "split the transfer",
                       "the length of all segments exceeds 64 bits");
  }
  *bytes = total;
  return 0;
}

static inline bool is_valid_call(const struct haul_remote *remote, const struct haul_region *region,
                                 const struct haul_piece *pieces, size_t count,
                                 enum haul_operation operation) {
  unsigned rights = operation_rights(operation);
  return remote && region && pieces && count - 1 < HAUL_PIECES_MAX &&
         region->heap == remote->heap && (remote->key.rights & rights) == rights &&
         (operation == HAUL_OP_WRITE || region->memory.writable) &&
         !atomic_load_explicit(&region->released, memory_order_relaxed) &&
         memory_alive(&region->memory) &&
         !atomic_load_explicit(&remote->link->ended, memory_order_relaxed);
}

/* A validated call, and its path. */
struct transfer_request {
  struct haul_remote *remote;
  struct haul_region *region;
  const struct haul_piece *pieces;
  size_t count;
  uint64_t bytes;
  enum haul_operation operation;
  struct operands operands;
  struct haul_transfer_options options;
  int64_t called, cpu; /* clock_now() and, with HAUL_CPU_TIME, clock_cpu() at the call */
  struct route *route;
  size_t path;
};

/* An event that has completed is none. */
__attribute__((cold)) static int check_event(struct transfer_request *request) {
  struct haul_transfer_options *options = &request->options;
  if (options->after_at.kind == 0)
    options->after_at = request->region->memory.place;
  int state = memory_event(options->after_at, options->after, false);
  if (state == 0)
    options->after = NULL;
  return state < 0 ? state : 0;
}

static int choose_path(struct transfer_request *request) {
  if (request->options.flags & HAUL_CPU_TIME)
    request->cpu = clock_cpu();
  request->route = remote_route(request->remote, request->region, request->operation);
  if (!request->route)
    return HAUL_ENOMEM;
  return route_choose(
      request->remote, request->route, request->bytes,
      &(struct constraints){.only = request->options.only, .flags = request->options.flags},
      &request->path);
}

/* `at` is in the transfer's block, behind its pieces. */
static void copy_notification(struct haul_transfer *transfer, void *at,
                              const struct haul_notification *given) {
  struct notice *notice = at;
  list_init(&notice->link);
  notice->transfer = transfer;
  notice->message = (struct haul_notification){given->tag, notice + 1, given->length};
  if (given->length > 0)
    memcpy(notice + 1, given->bytes, given->length);
  transfer->notice = notice;
}

/* One block: the transfer, its works, its pieces, its notification. */
static struct haul_transfer *new_transfer(const struct transfer_request *request, size_t works,
                                          size_t pieces) {
  size_t size = sizeof(struct haul_transfer) + works * sizeof(struct work) +
                pieces * sizeof(struct haul_piece);
  const struct haul_notification *notify = request->options.notify;
  size_t behind = size;
  if (notify)
    size += sizeof(struct notice) + notify->length;
  struct haul_transfer *transfer = alloc_zero(1, size);
  if (!transfer) {
    error_memory("transfer");
    return NULL;
  }
  transfer->size = (uint32_t)size;
  if (notify)
    copy_notification(transfer, (char *)transfer + behind, notify);
  list_init(&transfer->link);
  list_init(&transfer->order);
  transfer->remote = request->remote;
  transfer->route = request->route;
  transfer->place = request->region->memory.place;
  atomic_store_explicit(&transfer->path, (uint8_t)request->path, memory_order_relaxed);
  transfer->operation = request->operation;
  transfer->only = request->options.only;
  transfer->after_at = request->options.after_at;
  transfer->done = request->options.done;
  transfer->user = request->options.user;
  transfer->flags = request->options.flags;
  transfer->bytes = request->bytes;
  transfer->pieces = (uint32_t)request->count;
  transfer->called = request->called;
  atomic_store_explicit(&transfer->cpu, -request->cpu, memory_order_relaxed);
  atomic_store(&transfer->refs, 1);
  atomic_fetch_add(&request->remote->refs, 1);
  atomic_fetch_add_explicit(&transfer->remote->transfers->handles, 1, memory_order_relaxed);
  atomic_fetch_add_explicit(&transfer->remote->transfers->bytes, size, memory_order_relaxed);
  return transfer;
}

static void post_works(struct haul_transfer *transfer) {
  bool more = transfer->flags & HAUL_MORE;
  for (uint32_t i = 0; i < transfer->work_count; i++) {
    struct work *work = &transfer_works(transfer)[i];
    int code = atomic_load(&transfer->failure);
    work->last = i + 1 == transfer->work_count;
    work->more = more || !work->last;
    if (code == 0)
      code = transfer_post(transfer, work);
    if (code) {
      transfer_fail(transfer, code);
      transfer_settle(transfer);
    }
  }
  atomic_store(&transfer->posting, false);
}

void transfer_post_all(struct haul_transfer *transfer, bool locked) {
  struct loop *loop = transfer->remote->transfers->fabric->loop;
  post_works(transfer);
  int failure = atomic_load(&transfer->failure);
  if (failure && !locked)
    loop_lock(loop);
  if (failure)
    transfer_cancel_works(transfer, failure);
  if (failure && !locked)
    loop_unlock(loop);
  transfer_posted_all(transfer);
  transfer_settle(transfer); /* the call's own; `done` may release the transfer from here on */
}

static struct slice slice_of(const struct transfer_request *request, bool alone) {
  struct tune *slices = route_slices(request->route, request->path);
  if (!slices || !alone)
    return slice_whole();
  return slice_choose(slices, request->bytes, !(request->options.flags & HAUL_CHECKSUM));
}

/* Counts the transfer against max_transfers, which bounds the work queued for a slow peer. */
static int transfer_admit(struct haul_remote *remote) {
  unsigned most = remote->transfers->fabric->config->max_transfers;
  if (atomic_fetch_add(&remote->link->transfers, 1) < most)
    return 0;
  atomic_fetch_sub(&remote->link->transfers, 1);
  link_log(remote->link, LOG_LIMIT, NULL, "limit max_transfers reached");
  return error_set(HAUL_ELIMIT, 0, remote->name,
                   "wait for transfers to end, or raise the setting max_transfers",
                   "limit max_transfers reached: %u transfers to the peer are under way", most);
}

static int start_posted(const struct transfer_request *request, struct haul_transfer **out) {
  struct haul_remote *remote = request->remote;
  struct transfers *owner = remote->transfers;
  int code = transfer_admit(remote);
  if (code)
    return code;
  uint64_t flow = atomic_fetch_add(&owner->flow, FLOW_STARTED + 1);
  bool alone = flow % FLOW_STARTED == 0;
  struct slice slice = slice_of(request, alone);
  size_t works = plan_works(request->count, request->bytes, slice.bytes);
  struct haul_transfer *transfer =
      new_transfer(request, works, plan_pieces(request->count, request->bytes, slice.bytes));
  if (!transfer) {
    atomic_fetch_sub(&owner->flow, 1);
    atomic_fetch_sub(&remote->link->transfers, 1);
    return HAUL_ENOMEM;
  }
  transfer->alone = alone;
  transfer->slice = slice.bytes;
  transfer->way = (uint8_t)slice.way;
  transfer->measures = slice.tune != NULL;
  transfer->region = request->region;
  transfer->deadline = request->options.deadline ? request->options.deadline
                                                 : clock_after(request->called, owner->default_ns);
  struct plan plan = {.works = transfer_works(transfer),
                      .pieces = (struct haul_piece *)(void *)(transfer_works(transfer) + works)};
  plan_make(&plan, request->pieces, request->count, slice.bytes);
  transfer->work_count = plan.work_count;
  for (uint32_t i = 0; i < transfer->work_count; i++) {
    struct work *work = &transfer_works(transfer)[i];
    list_init(&work->link);
    work->owner = transfer;
    work->done = transfer_work_done;
    work->key = &remote->key;
    work->whole = request->bytes;
    work->region = request->region;
    work->operation = request->operation;
    work->operands = request->operands;
    work->checksum = request->options.flags & HAUL_CHECKSUM;
    work->rank = (uint8_t)(HAUL_PRIORITY_HIGH - request->options.priority);
  }
  region_retain(request->region);
  atomic_store(&transfer->status, 1);
  atomic_store(&transfer->posting, true);
  atomic_store(&transfer->refs, 2); /* the caller's, and one until the end */
  atomic_store(&transfer->pending, transfer->work_count + 1);
  transfer_begin(transfer);
  transfer->turn = (uint32_t)(flow / FLOW_STARTED) + 1;
  atomic_fetch_add_explicit(&owner->started, 1, memory_order_relaxed);
  transfer->posted = clock_now();
  PROBE4(submit, transfer, request->operation, request->bytes, remote->name);
  if (transfer_is_traced(transfer))
    trace_transfer(transfer, HAUL_TRACE_SUBMIT);
  *out = transfer;
  if (request->options.after)
    transfer_hold(transfer, request->options.after);
  else
    transfer_post_all(transfer, false);
  return 0;
}

/* For a transfer that is complete within the call. The caller keeps its reference. */
static void notify_immediate(struct haul_transfer *transfer) {
  if (!transfer->done)
    return;
  atomic_fetch_add(&transfer->refs, 1);
  transfer_notify(transfer);
}

/* Makes a handle for a transfer that is complete. It holds no region, as the caller may release the
 * region before it reads the report. */
static int make_immediate(const struct transfer_request *request, struct haul_transfer **out) {
  struct haul_transfer *transfer = new_transfer(request, 0, 0);
  if (!transfer)
    return HAUL_ENOMEM;
  transfer->immediate = true;
  transfer->posted = request->called;
  *out = transfer;
  return 0;
}

/* Waits for the end if the caller takes no handle. */
static int post_and_wait(const struct transfer_request *request, struct haul_transfer **out) {
  struct haul_transfer *transfer;
  int code = start_posted(request, &transfer);
  if (code)
    return code;
  if (out) {
    *out = transfer;
    return 0;
  }
  code = transfer_await(transfer, HAUL_FOREVER); /* the transfer's deadline bounds it */
  transfer_put(transfer);
  return code;
}

int transfer_start(struct haul_remote *remote, struct haul_region *region,
                   const struct haul_piece *pieces, size_t count,
                   const struct haul_transfer_options *given, enum haul_operation operation,
                   struct haul_transfer **out) {
  struct transfer_request request = {.remote = remote,
                                     .region = region,
                                     .pieces = pieces,
                                     .count = count,
                                     .operation = operation,
                                     .called = clock_now()};
  if (!is_valid_call(remote, region, pieces, count, operation))
    return transfer_bad_call(remote, region, pieces, count, operation);
  int code = check_pieces(remote, region, pieces, count, &request.bytes);
  if (code == 0)
    code = transfer_check_options(given, &request.options);
  if (code == 0)
    code = transfer_check_start(&request.options, out);
  if (code == 0 && request.options.after)
    code = check_event(&request);
  if (code == 0)
    code = choose_path(&request);
  if (code)
    return code;
  struct endpoint *endpoint = remote->link->endpoints[request.path];
  if (endpoint->transport->now && !(request.options.flags & HAUL_CHECKSUM) &&
      !request.options.after && !request.options.notify &&
      !endpoint_is_blocked(endpoint, operation)) {
    code = endpoint->transport->now(endpoint, &remote->key, remote->bindings[request.path], region,
                                    pieces, count, request.bytes, operation);
    if (code == 0 && out)
      code = make_immediate(&request, out);
    if (code == 0 && out) {
      transfer_stamp(*out);
      transfer_record_cost(*out);
      notify_immediate(*out);
    }
    if (code < 0)
      error_about(remote->name);
    if (code <= 0)
      return code;
  }
  return post_and_wait(&request, out);
}

/* The hot path, a few instructions up to the store: one small segment, without options and handle,
 * for which a transport lends a mapping. False: transfer_start has to handle the call, and sets the
 * detail of errors. `length` is that of the segment, a compile-time constant where that matters. */
static inline __attribute__((always_inline)) bool
copy_direct(const struct haul_remote *remote, const struct haul_region *region,
            const struct haul_piece *piece, uint64_t length, enum haul_operation operation) {
  const struct direct *direct = &remote->direct[operation - 1];
  const struct memory *memory = &region->memory;
  uint64_t here = memory->length, there = remote->key.length;
  /* As check_pieces. Length 0 wraps around and exceeds any limit. */
  if (length - 1 >= direct->limit || length > here || piece->local > here - length ||
      length > there || piece->remote > there - length)
    return false;
  if (!memory->view || region->heap != remote->heap ||
      (operation == HAUL_OP_READ && !memory->writable) ||
      atomic_load_explicit(&region->released, memory_order_relaxed) || !memory_alive(memory) ||
      !atomic_load_explicit(&direct->endpoint->open, memory_order_acquire) ||
      endpoint_is_blocked(direct->endpoint, operation) ||
      atomic_load_explicit(direct->word, memory_order_acquire) != direct->stamp)
    return false;
  char *local = (char *)memory->view + piece->local;
  char *view = direct->view + piece->remote;
  if (operation == HAUL_OP_WRITE)
    copy_small(view, local, length);
  else
    copy_small(local, view, length);
  order_copy();
  if (atomic_load_explicit(direct->word, memory_order_acquire) != direct->stamp)
    return false;
  endpoint_count(direct->endpoint, operation, length, 0);
  return true;
}

static inline __attribute__((always_inline)) bool
is_plain(const struct haul_remote *remote, const struct haul_region *region,
         const struct haul_piece *pieces, size_t count, const struct haul_transfer_options *options,
         struct haul_transfer **out) {
  return count == 1 && !options && !out && remote && region && pieces && !fork_is_child();
}

/* Not inlined, like all code that is not for 8 bytes, so that the hottest path saves no registers.
 */
static __attribute__((noinline)) bool copy_direct_sized(const struct haul_remote *remote,
                                                        const struct haul_region *region,
                                                        const struct haul_piece *piece,
                                                        enum haul_operation operation) {
  return operation == HAUL_OP_WRITE
             ? copy_direct(remote, region, piece, piece->length, HAUL_OP_WRITE)
             : copy_direct(remote, region, piece, piece->length, HAUL_OP_READ);
}

static __attribute__((noinline)) int start_general(const char *call, struct haul_remote *remote,
                                                   struct haul_region *region,
                                                   const struct haul_piece *pieces, size_t count,
                                                   const struct haul_transfer_options *options,
                                                   enum haul_operation operation,
                                                   struct haul_transfer **out) {
  if (is_plain(remote, region, pieces, count, options, out) &&
      copy_direct_sized(remote, region, pieces, operation))
    return 0;
  int code = error_enter(call);
  return code ? code : transfer_start(remote, region, pieces, count, options, operation, out);
}

static inline __attribute__((always_inline)) int
run_transfer(const char *call, struct haul_remote *remote, struct haul_region *region,
             const struct haul_piece *pieces, size_t count,
             const struct haul_transfer_options *options, enum haul_operation operation,
             struct haul_transfer **out) {
  if (is_plain(remote, region, pieces, count, options, out) && pieces->length == 8 &&
      copy_direct(remote, region, pieces, 8, operation))
    return 0;
  return start_general(call, remote, region, pieces, count, options, operation, out);
}

HAUL_API int haul_write(haul_remote *to, haul_region *from, const struct haul_piece *pieces,
                        size_t count, const struct haul_transfer_options *options,
                        haul_transfer **transfer) {
  return run_transfer("haul_write", to, from, pieces, count, options, HAUL_OP_WRITE, transfer);
}

HAUL_API int haul_read(haul_region *to, haul_remote *from, const struct haul_piece *pieces,
                       size_t count, const struct haul_transfer_options *options,
                       haul_transfer **transfer) {
  return run_transfer("haul_read", from, to, pieces, count, options, HAUL_OP_READ, transfer);
}

static int check_atomic(const struct haul_remote *remote, const struct haul_region *region,
                        const struct haul_piece *piece, const struct haul_transfer_options *given,
                        struct haul_transfer_options *options) {
  uint64_t bytes;
  int code = check_pieces(remote, region, piece, 1, &bytes);
  if (code)
    return code;
  if (piece->local % 8 || piece->remote % 8)
    return error_set(HAUL_EINVAL, 0, remote->name, "pass a multiple of 8",
                     "the %s offset %llu of an atomic operation is not a multiple of 8",
                     piece->local % 8 ? "local" : "remote",
                     (unsigned long long)(piece->local % 8 ? piece->local : piece->remote));
  code = transfer_check_options(given, options);
  if (code == 0 && options->flags & HAUL_CHECKSUM)
    code = error_set(HAUL_EINVAL, 0, remote->name, "leave out HAUL_CHECKSUM",
                     "atomic operations have no checksum");
  return code;
}

/* Operates within the call: 0, a code, or 1 if a work has to be posted. The handle is made first,
 * because an operation that took place must not fail afterwards. */
static int operate_now(const struct transfer_request *request, struct haul_transfer **out) {
  struct haul_remote *remote = request->remote;
  struct endpoint *endpoint = remote->link->endpoints[request->path];
  struct haul_transfer *transfer = NULL;
  if (!endpoint->transport->atomic || request->options.after || request->options.notify ||
      endpoint_is_blocked(endpoint, request->operation))
    return 1;
  const struct work work = {.endpoint = endpoint,
                            .key = &remote->key,
                            .binding = remote->bindings[request->path],
                            .region = request->region,
                            .pieces = request->pieces,
                            .count = 1,
                            .operation = request->operation,
                            .operands = request->operands,
                            .bytes = 8,
                            .whole = 8};
  int code = out ? make_immediate(request, &transfer) : 0;
  if (code == 0)
    code = endpoint->transport->atomic(endpoint, &work);
  if (code < 0)
    error_about(remote->name);
  if (code && transfer)
    transfer_put(transfer);
  else if (transfer)
    transfer_stamp(transfer);
  if (code == 0 && out) {
    *out = transfer;
    notify_immediate(transfer);
  }
  return code;
}

static int run_atomic(const char *call, struct haul_remote *remote, struct haul_region *region,
                      const struct haul_piece *piece, enum haul_operation operation,
                      const struct operands *operands, const struct haul_transfer_options *given,
                      struct haul_transfer **out) {
  struct transfer_request request = {.remote = remote,
                                     .region = region,
                                     .pieces = piece,
                                     .count = 1,
                                     .bytes = 8,
                                     .operation = operation,
                                     .operands = *operands,
                                     .called = clock_now()};
  int code = error_enter(call);
  if (code)
    return code;
  if (!is_valid_call(remote, region, piece, 1, operation))
    return transfer_bad_call(remote, region, piece, 1, operation);
  code = check_atomic(remote, region, piece, given, &request.options);
  if (code == 0)
    code = transfer_check_start(&request.options, out);
  if (code == 0 && request.options.after)
    code = check_event(&request);
  if (code == 0)
    code = choose_path(&request);
  if (code)
    return code;
  code = operate_now(&request, out);
  return code <= 0 ? code : post_and_wait(&request, out);
}

HAUL_API int haul_fetch_add(haul_region *result, uint64_t result_offset, haul_remote *remote,
                            uint64_t offset, uint64_t value,
                            const struct haul_transfer_options *options, haul_transfer **transfer) {
  return run_atomic("haul_fetch_add", remote, result,
                    &(struct haul_piece){result_offset, offset, 8}, HAUL_OP_FETCH_ADD,
                    &(struct operands){.value = value}, options, transfer);
}

HAUL_API int haul_compare_swap(haul_region *result, uint64_t result_offset, haul_remote *remote,
                               uint64_t offset, uint64_t expected, uint64_t desired,
                               const struct haul_transfer_options *options,
                               haul_transfer **transfer) {
  return run_atomic("haul_compare_swap", remote, result,
                    &(struct haul_piece){result_offset, offset, 8}, HAUL_OP_COMPARE_SWAP,
                    &(struct operands){expected, desired}, options, transfer);
}
