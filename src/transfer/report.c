/* SPDX-License-Identifier: MIT
 * Reports of transfers, explanations of paths, and trace events. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "core/error.h"
#include "core/sys.h"
#include "transfer/transfer.h"

/* Adds the size of the slices, if there is more than one. */
static void add_slices(struct route *route, size_t i, uint64_t bytes,
                       const struct constraints *constraints, struct haul_path *path) {
  const struct tune *slices = route_slices(route, i);
  size_t at = strlen(path->detail);
  if (!slices)
    return;
  uint32_t slice = constraints->slice ? constraints->slice : slice_best(slices, bytes);
  if (path->open && bytes > slice)
    snprintf(path->detail + at, sizeof path->detail - at, "%sslices of %u %s", at ? ", " : "",
             slice >> 20 ? slice >> 20 : slice >> 10, slice >> 20 ? "MiB" : "KiB");
}

static enum send_mode mode_of(const struct haul_remote *remote, size_t i,
                              const struct estimate *estimate, uint64_t bytes, uint64_t pieces) {
  enum send_mode mode = lines_mode(estimate->lines, bytes);
  const struct endpoint *endpoint = remote->link->endpoints[i];
  bool as_small = bytes < pieces * estimate->small_piece || atomic_load(&endpoint->no_zero_copy) ||
                  atomic_load(&endpoint->copy_wins);
  return mode == SEND_DIRECT && as_small && estimate->lines[SEND_BUFFERED].most ? SEND_BUFFERED
                                                                                : mode;
}

static void describe_path(const struct haul_remote *remote, size_t i, struct route *route,
                          uint64_t bytes, uint64_t pieces, const struct constraints *constraints,
                          int chosen, struct haul_path *path) {
  static const char *const words[] = {"short", "buffered", "direct"};
  const struct estimate *estimate = &route->estimates[i];
  enum send_mode mode = mode_of(remote, i, estimate, bytes, pieces);
  bool again = mode == SEND_BUFFERED && estimate->lines[SEND_DIRECT].most;
  const char *reason = route_refusal(remote, route, i, constraints);
  bool known;
  memset(path, 0, sizeof *path);
  snprintf(path->name, sizeof path->name, "%s", transport_at(i)->name);
  path->chosen = (int)i == chosen;
  path->open = reason[0] == '\0' || path->chosen;
  path->copies_cpu = estimate->copies_cpu;
  path->copies_kernel = estimate->copies_kernel + (again ? estimate->copies_kernel_buffered : 0);
  path->copies_dma = estimate->copies_dma;
  path->zero_copy = estimate->zero_copy;
  bool by_trial = again && atomic_load(&remote->link->endpoints[i]->copy_wins);
  snprintf(path->detail, sizeof path->detail, "%s%s", estimate->detail,
           by_trial ? ", copied: measured faster" : "");
  if (path->open) {
    snprintf(path->send, sizeof path->send, "%s", words[mode]);
    path->cost_ns = route_cost(route, i, bytes, &known);
    path->estimate_ns = lines_ns(estimate->lines, bytes);
    path->measured = known;
    if (!estimate->explicit_only)
      snprintf(path->reason, sizeof path->reason, "%s", estimate->reason);
  } else {
    snprintf(path->reason, sizeof path->reason, "%s", reason);
  }
  add_slices(route, i, bytes, constraints, path);
}

/* The chosen path first, then open ones by cost, then closed ones. */
static bool goes_before(const struct haul_path *a, const struct haul_path *b) {
  if (a->chosen != b->chosen)
    return a->chosen;
  if (a->open != b->open)
    return a->open;
  return a->open && a->cost_ns < b->cost_ns;
}

/* Sets why an open path is not taken. `set`: the setting that chose another one, or "". */
static void set_reason(const struct haul_path *chosen, const char *set, struct haul_path *path) {
  double times = path->cost_ns / (chosen->cost_ns > 0 ? chosen->cost_ns : 1);
  bool measured = path->measured && chosen->measured;
  const char *how = measured ? "measured" : "estimated";
  if (times < 0.95)
    snprintf(path->reason, sizeof path->reason, "%s %.1f times faster%s%s", how, 1 / times,
             *set ? ", but another is set by " : "", set);
  else if (times < 1.05)
    snprintf(path->reason, sizeof path->reason, "%s about as fast", how);
  else
    snprintf(path->reason, sizeof path->reason, "%s %.1f times slower%s", how, times,
             !measured && chosen->copies_cpu ? " with warm pages" : "");
}

/* Sets why a path is taken that is not the cheapest by the estimates, before why it is staged. */
static void set_chosen_reason(const struct haul_path *paths, size_t count, bool any,
                              bool estimates_only, const char *set, struct haul_path *chosen) {
  bool expected = true;
  char staged[128];
  snprintf(staged, sizeof staged, "%s%.120s", *chosen->reason ? "; " : "", chosen->reason);
  for (size_t i = 0; i < count; i++)
    expected &= !paths[i].open || paths[i].estimate_ns >= chosen->estimate_ns;
  if (*set)
    snprintf(chosen->reason, sizeof chosen->reason, "set by %.48s%s", set, staged);
  else if (any && !expected && chosen->measured)
    snprintf(chosen->reason, sizeof chosen->reason, "by measurement%s", staged);
  else if (any && estimates_only)
    snprintf(chosen->reason, sizeof chosen->reason, "by estimates alone (estimates_only)%s",
             staged);
}

/* Describes all paths with their costs and reasons, and returns their number, at most
 * HAUL_PATHS_MAX. `chosen`: the path taken; -1: none. */
static size_t describe_paths(const struct haul_remote *remote, struct route *route, uint64_t bytes,
                             uint64_t pieces, const struct constraints *constraints, int chosen,
                             struct haul_path *paths) {
  bool ruled = chosen >= 0 && route_rule(remote, bytes, constraints) == chosen;
  const char *set = ruled ? remote->transfers->rules.origin : "";
  size_t count = 0;
  for (size_t i = 0; transport_at(i); i++) {
    struct haul_path path;
    describe_path(remote, i, route, bytes, pieces, constraints, chosen, &path);
    size_t at = count++;
    for (; at > 0 && goes_before(&path, &paths[at - 1]); at--)
      paths[at] = paths[at - 1];
    paths[at] = path;
  }
  if (count == 0 || !paths[0].chosen)
    return count;
  for (size_t i = 1; i < count; i++)
    if (paths[i].open)
      set_reason(&paths[0], set, &paths[i]);
  set_chosen_reason(paths, count, !constraints->only, remote->transfers->estimates_only, set,
                    &paths[0]);
  return count;
}

/* When the first slice was started; `ended`: none was yet. */
static int64_t started_at(const struct haul_transfer *transfer, int64_t ended) {
  int64_t first = transfer->immediate ? transfer->posted : ended;
  for (uint32_t i = 0; i < transfer->work_count; i++) {
    int64_t started =
        atomic_load_explicit(&transfer_works(transfer)[i].started, memory_order_relaxed);
    if (started && started < first)
      first = started;
  }
  return first > transfer->posted ? first : transfer->posted;
}

/* A path that broke under the transfer may be open again. */
static void name_interruptions(const struct haul_transfer *transfer, struct haul_report *report) {
  for (size_t i = 0; i < report->path_count; i++) {
    struct haul_path *path = &report->paths[i];
    const struct transport *transport = transport_named(path->name);
    const char *reason = endpoint_interruption(transfer->remote->link->endpoints[transport->index],
                                               transfer->posted);
    if (!path->chosen && *reason)
      snprintf(path->reason, sizeof path->reason, "%s", reason);
  }
}

static void fill_report(struct haul_transfer *transfer, struct haul_report *report) {
  struct haul_remote *remote = transfer->remote;
  int status = atomic_load_explicit(&transfer->status, memory_order_acquire);
  bool write = transfer->operation == HAUL_OP_WRITE;
  report->status = status;
  report->operation = (int)transfer->operation;
  report->bytes = transfer->bytes;
  report->pieces = transfer->pieces;
  report->slices = transfer->immediate ? 1 : transfer->work_count;
  report->retries = atomic_load(&transfer->retries);
  report->checksum = status == 0 && (transfer->flags & HAUL_CHECKSUM);
  int64_t ended = status == 1 ? clock_now() : transfer->ended,
          started = started_at(transfer, ended);
  int64_t handed = transfer->posted + transfer->handed; /* memory is registered by then */
  report->setup_ns = (handed < started ? handed : started) - transfer->called;
  report->queued_ns = started - transfer->called;
  report->wire_ns = ended - started;
  report->cpu_ns = atomic_load_explicit(&transfer->cpu, memory_order_relaxed);
  if (report->cpu_ns < 0) /* still under way */
    report->cpu_ns += clock_cpu();
  report->from = write ? transfer->place : remote->key.place;
  report->to = write ? remote->key.place : transfer->place;
  struct constraints constraints = transfer_constraints(transfer);
  report->path_count = describe_paths(remote, transfer->route, transfer->bytes, transfer->pieces,
                                      &constraints, atomic_load(&transfer->path), report->paths);
  if (report->retries > 0)
    name_interruptions(transfer, report);
  snprintf(report->peer, sizeof report->peer, "%s", remote->link->name);
  snprintf(report->name, sizeof report->name, "%s", remote->name);
}

int transfer_report(struct haul_transfer *transfer, struct haul_report *report) {
  if (!transfer || !report || report->size < sizeof report->size)
    return error_set(HAUL_EINVAL, 0, NULL, "initialize the report with HAUL_REPORT_INIT",
                     "transfer or report is NULL, or the report has no size");
  struct haul_report whole;
  size_t size = report->size < sizeof whole ? report->size : sizeof whole;
  memset(&whole, 0, sizeof whole);
  whole.size = report->size;
  fill_report(transfer, &whole);
  memcpy(report, &whole, size);
  return 0;
}

HAUL_API int haul_transfer_report(haul_transfer *transfer, struct haul_report *report) {
  int code = error_enter("haul_transfer_report");
  return code ? code : transfer_report(transfer, report);
}

struct text {
  char *at;
  size_t size;
  int length; /* of the whole text, also beyond `size` */
};

static __attribute__((format(printf, 2, 3))) void add(struct text *text, const char *format, ...) {
  va_list arguments;
  size_t used = (size_t)text->length < text->size ? (size_t)text->length : text->size;
  va_start(arguments, format);
  int length = vsnprintf(text->size ? text->at + used : NULL, text->size - used, format, arguments);
  va_end(arguments);
  if (length > 0)
    text->length += length;
}

static void add_bytes(struct text *text, uint64_t bytes) {
  static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  double value = (double)bytes;
  size_t unit = 0;
  while (value >= 1024 && unit < 4) {
    value /= 1024;
    unit++;
  }
  add(text, unit ? "%.2f %s" : "%.0f %s", value, units[unit]);
}

static void add_time(struct text *text, int64_t ns) {
  double value = (double)ns;
  if (ns < 1000)
    add(text, "%.0f ns", value);
  else if (ns < 1000000)
    add(text, "%.1f us", value / 1e3);
  else if (ns < 1000000000)
    add(text, "%.1f ms", value / 1e6);
  else
    add(text, "%.2f s", value / 1e9);
}

static void add_heading(struct text *text, const struct haul_report *report) {
  static const char *const verbs[] = {[HAUL_OP_WRITE] = "write",
                                      [HAUL_OP_READ] = "read",
                                      [HAUL_OP_FETCH_ADD] = "fetch-add",
                                      [HAUL_OP_COMPARE_SWAP] = "compare-swap"};
  char from[16], to[16];
  bool write = report->operation == HAUL_OP_WRITE;
  bool known = report->operation >= HAUL_OP_WRITE && report->operation <= HAUL_OP_COMPARE_SWAP;
  haul_place_format(report->from, from, sizeof from);
  haul_place_format(report->to, to, sizeof to);
  add(text, "%s ", verbs[known ? report->operation : HAUL_OP_READ]);
  add_bytes(text, report->bytes);
  if (write)
    add(text, " %s -> %s/%s at %s\n", from, report->peer, report->name, to);
  else
    add(text, " %s/%s at %s -> %s\n", report->peer, report->name, from, to);
}

static void add_chosen(struct text *text, const struct haul_report *report) {
  const struct haul_path *path = &report->paths[0];
  add(text, "  path %s", path->name);
  if (path->detail[0])
    add(text, ", %s", path->detail);
  if (path->reason[0])
    add(text, ", %s", path->reason);
  if (report->wire_ns > 0 && report->status == 0 && report->bytes >= 65536)
    add(text, ", %.2f GB/s", (double)report->bytes / (double)report->wire_ns);
  add(text, ", ");
  add_time(text, report->wire_ns);
  add(text, " (queued ");
  add_time(text, report->queued_ns - report->setup_ns);
  add(text, ", set-up ");
  add_time(text, report->setup_ns);
  add(text, ")");
  if (report->retries)
    add(text, ", %u slices retried", report->retries);
  if (report->checksum)
    add(text, ", checksum verified");
  add(text, "\n  copies: kernel %u, device DMA %u, CPU %u", path->copies_kernel, path->copies_dma,
      path->copies_cpu);
  if (report->cpu_ns) {
    add(text, "; CPU time ");
    add_time(text, report->cpu_ns);
  }
  add(text, "\n");
}

HAUL_API int haul_report_format(const struct haul_report *given, char *out, size_t size) {
  struct text text = {out, size, 0};
  if (size > 0)
    out[0] = '\0';
  if (!given || given->size < sizeof given->size)
    return 0;
  struct haul_report whole;
  memset(&whole, 0, sizeof whole);
  memcpy(&whole, given, given->size < sizeof whole ? given->size : sizeof whole);
  const struct haul_report *report = &whole;
  add_heading(&text, report);
  if (report->status < 0)
    add(&text, "  failed: %s\n", haul_error_text(report->status));
  else if (report->status == 1)
    add(&text, "  still under way\n");
  if (report->path_count > 0 && report->paths[0].chosen)
    add_chosen(&text, report);
  for (size_t i = 0; i < report->path_count && i < HAUL_PATHS_MAX; i++)
    if (!report->paths[i].chosen)
      add(&text, "  not %s: %s\n", report->paths[i].name, report->paths[i].reason);
  return text.length;
}

HAUL_API int haul_explain(haul_region *local, haul_remote *remote, enum haul_operation operation,
                          uint64_t length, const struct haul_transfer_options *options,
                          struct haul_path *paths, size_t *count) {
  struct haul_path all[HAUL_PATHS_MAX];
  size_t chosen = 0;
  int code = error_enter("haul_explain");
  if (code)
    return code;
  if (!local || !remote || !count || (*count > 0 && !paths) || operation < HAUL_OP_WRITE ||
      operation > HAUL_OP_COMPARE_SWAP)
    return error_set(HAUL_EINVAL, 0, NULL, NULL,
                     "region, remote, paths or count is NULL, or the operation is unknown");
  if (operation_is_atomic(operation) && length != 8)
    return error_set(HAUL_EINVAL, 0, remote->name, "pass a length of 8",
                     "an atomic operation has 8 bytes");
  struct haul_transfer_options completed;
  code = transfer_check_rights(remote, local, operation);
  if (code == 0)
    code = transfer_check_options(options, &completed);
  if (code)
    return code;
  struct constraints constraints = {.only = completed.only, .flags = completed.flags};
  struct route *route = remote_route(remote, local, operation);
  if (!route)
    return HAUL_ENOMEM;
  bool found = route_choose(remote, route, length, &constraints, &chosen) == 0;
  size_t all_count =
      describe_paths(remote, route, length, 1, &constraints, found ? (int)chosen : -1, all);
  for (size_t i = 0; i < all_count && i < *count; i++)
    paths[i] = all[i];
  *count = all_count;
  return 0;
}

void trace_transfer(const struct haul_transfer *transfer, enum haul_trace_kind kind) {
  bool ends = kind == HAUL_TRACE_COMPLETE;
  int failure = atomic_load(&transfer->failure);
  trace_write(
      &transfer->remote->transfers->fabric->trace,
      (struct trace_event){.kind = (uint8_t)kind,
                           .operation = (uint8_t)transfer->operation,
                           .path = ends ? (uint8_t)atomic_load(&transfer->path) : TRACE_NO_PATH,
                           .transfer = transfer->turn,
                           .slice = transfer->work_count,
                           .peer = transfer->remote->link->number,
                           .bytes = transfer->bytes,
                           .status = ends && failure < 0 ? failure : 0});
}

void trace_work(const struct work *work, enum haul_trace_kind kind, int code) {
  const struct haul_transfer *transfer = work->owner;
  trace_write(
      &transfer->remote->transfers->fabric->trace,
      (struct trace_event){.kind = (uint8_t)kind,
                           .operation = (uint8_t)work->operation,
                           .path = (uint8_t)work->endpoint->transport->index,
                           .transfer = transfer->turn,
                           .slice = (uint32_t)(work - transfer_works(transfer)),
                           .peer = transfer->remote->link->number,
                           .bytes = kind == HAUL_TRACE_REQUEST ? work->request : work->bytes,
                           .status = code});
}
