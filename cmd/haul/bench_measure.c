/* SPDX-License-Identifier: MIT
 * Each size has two phases: one operation at a time for the latency, then several in flight for
 * the bandwidth. */
#include <stdio.h>
#include <stdlib.h>

#include "bench.h"
#include "command.h"
#include "common/fail.h"
#include "common/text.h"

#define SAMPLES_MAX   ((size_t)1 << 20)
#define WARM_UP_NS    INT64_C(10000000)
#define TURN_NS       INT64_C(100000000) /* between turns of the node */
#define ECHO_PROBE_NS INT64_C(1000000000)
#define ECHO_WAIT_NS  INT64_C(5000000000)
#define SEND_SLICE_NS INT64_C(10000000)
#define SEND_LIMIT_NS INT64_C(10000000000)
#define ECHO_TAG      UINT64_C(0x6563686f) /* "echo": round trips, one at a time */
#define RATE_TAG      UINT64_C(0x72617465) /* "rate": messages at full speed */

struct samples {
  int64_t *list;
  size_t count;
};

/* One complete operation of a size. Returns an exit status. */
typedef int operation_function(struct bench *bench, uint64_t size);

static int compare(const void *a, const void *b) {
  int64_t one = *(const int64_t *)a, other = *(const int64_t *)b;
  return (one > other) - (one < other);
}

/* The smallest sample that is not below `part` of all samples, in microseconds. */
static double percentile(const struct samples *samples, double part) {
  double rank = part * (double)samples->count;
  size_t at = (size_t)rank;
  if ((double)at == rank && at > 0)
    at--;
  return (double)samples->list[at < samples->count ? at : samples->count - 1] / 1000;
}

static void summarise(struct samples *samples, struct bench_latency *latency) {
  qsort(samples->list, samples->count, sizeof(*samples->list), compare);
  *latency = (struct bench_latency){
      .count = samples->count,
      .p50 = percentile(samples, 0.5),
      .p90 = percentile(samples, 0.9),
      .p99 = percentile(samples, 0.99),
      .p999 = percentile(samples, 0.999),
      .max = percentile(samples, 1),
  };
}

/* Small copies over map need no turn of the node, but the peer drops a node that is silent. */
static void keep_connection(struct bench *bench, int64_t now) {
  if (now - bench->turned_at < TURN_NS)
    return;
  bench->turned_at = now;
  haul_node_progress(bench->session.node, HAUL_NO_WAIT);
}

static int sample(struct bench *bench, uint64_t size, operation_function *operation,
                  struct samples *samples) {
  int64_t end = now_ns() + bench->duration / 2;
  for (int64_t before = now_ns(); before < end && samples->count < SAMPLES_MAX;) {
    int status = operation(bench, size);
    if (status)
      return status;
    int64_t after = now_ns();
    samples->list[samples->count++] = after - before;
    keep_connection(bench, after);
    before = after;
  }
  return EXIT_DONE;
}

static int warm_up(struct bench *bench, uint64_t size, operation_function *operation) {
  int64_t end = now_ns() + WARM_UP_NS;
  int status;
  do
    status = operation(bench, size);
  while (status == EXIT_DONE && now_ns() < end);
  return status;
}

static int measure_latency(struct bench *bench, uint64_t size, operation_function *operation,
                           struct bench_latency *latency) {
  struct samples samples = {must_realloc(NULL, SAMPLES_MAX * sizeof(int64_t)), 0};
  int status = warm_up(bench, size, operation);
  if (status == EXIT_DONE)
    status = sample(bench, size, operation, &samples);
  if (status == EXIT_DONE && samples.count)
    summarise(&samples, latency);
  free(samples.list);
  return status;
}

static int fail_bench(const struct bench *bench) {
  return fail_library("cannot %s '%s'", bench->operation == BENCH_WRITE ? "write to" : "read from",
                      bench->region);
}

/* The offset of a slot; slots share memory if the room is too small. */
static uint64_t place_slot(uint64_t room, uint64_t size, unsigned slot) {
  return slot % (room / size) * size;
}

static int start(struct bench *bench, uint64_t size, unsigned slot, haul_transfer **transfer) {
  haul_remote *remote = bench->session.remote;
  struct haul_piece piece = {place_slot(haul_region_length(bench->local), size, slot),
                             place_slot(haul_remote_length(remote), size, slot), size};
  int result = bench->operation == BENCH_WRITE
                   ? haul_write(remote, bench->local, &piece, 1, &bench->options, transfer)
                   : haul_read(bench->local, remote, &piece, 1, &bench->options, transfer);
  return result ? fail_bench(bench) : EXIT_DONE;
}

static int transfer_once(struct bench *bench, uint64_t size) {
  return start(bench, size, 0, NULL);
}

static int settle(const struct bench *bench, haul_transfer **transfer, struct bench_row *row) {
  if (!*transfer)
    return EXIT_DONE;
  int status = haul_transfer_wait(*transfer, HAUL_FOREVER) ? fail_bench(bench) : EXIT_DONE;
  haul_transfer_release(*transfer);
  *transfer = NULL;
  row->count++;
  return status;
}

/* Keeps `depth` transfers in flight. Each has a deadline, so every wait ends. */
static int run_pipeline(struct bench *bench, uint64_t size, haul_transfer **transfers,
                        struct bench_row *row) {
  int64_t started = now_ns();
  int64_t end = started + bench->duration / 2, now = started;
  int status = EXIT_DONE;
  for (unsigned turn = 0; status == EXIT_DONE && (turn == 0 || now < end); turn++) {
    unsigned slot = turn % bench->depth;
    keep_connection(bench, now);
    status = settle(bench, &transfers[slot], row);
    if (status == EXIT_DONE)
      status = start(bench, size, slot, &transfers[slot]);
    now = now_ns();
  }
  for (unsigned slot = 0; slot < bench->depth; slot++) {
    int result = status ? EXIT_DONE : settle(bench, &transfers[slot], row);
    status = status ? status : result;
  }
  row->elapsed = now_ns() - started;
  return status;
}

static int measure_transfers_rate(struct bench *bench, uint64_t size, struct bench_row *row) {
  haul_transfer *transfers[BENCH_DEPTH_MAX] = {NULL};
  int status = run_pipeline(bench, size, transfers, row);
  for (unsigned slot = 0; slot < bench->depth; slot++) {
    if (transfers[slot])
      haul_transfer_cancel(transfers[slot]);
    haul_transfer_release(transfers[slot]);
  }
  return status;
}

/* Stores the path of one transfer, as the choice depends on the size. */
static int note_path(struct bench *bench, uint64_t size, struct bench_row *row) {
  struct haul_report report = {.size = sizeof(report)};
  haul_transfer *transfer = NULL;
  int status = start(bench, size, 0, &transfer);
  if (status)
    return status;
  if (haul_transfer_wait(transfer, HAUL_FOREVER) || haul_transfer_report(transfer, &report))
    status = fail_bench(bench);
  else if (report.path_count)
    snprintf(row->path, sizeof(row->path), "%s", report.paths[0].name);
  haul_transfer_release(transfer);
  return status;
}

static int measure_transfers(struct bench *bench, uint64_t size, struct bench_row *row) {
  int status = note_path(bench, size, row);
  if (status == EXIT_DONE)
    status = measure_latency(bench, size, transfer_once, &row->latency);
  if (status == EXIT_DONE)
    status = measure_transfers_rate(bench, size, row);
  return status;
}

static int fail_message(void) {
  return fail_library("cannot exchange messages");
}

/* Receives echoes and returns the number with this tag. Waits until the deadline for the first. */
static uint64_t receive_echoes(struct bench *bench, uint64_t tag, haul_deadline until) {
  struct haul_message message;
  uint64_t count = 0;
  while (haul_message_receive(bench->session.node, &message, count ? HAUL_NO_WAIT : until) == 0) {
    count += message.kind == HAUL_MESSAGE && message.tag == tag;
    haul_message_release(&message);
  }
  return count;
}

static int send_one(struct bench *bench, uint64_t tag, uint64_t size, uint64_t *echoes) {
  haul_deadline limit = haul_deadline_in(SEND_LIMIT_NS);
  const void *bytes = haul_region_address(bench->local);
  for (;;) {
    int result = haul_message_send(bench->session.peer, tag, bytes, (size_t)size,
                                   haul_deadline_in(SEND_SLICE_NS));
    if (result == 0)
      return EXIT_DONE;
    if (result != HAUL_ETIMEDOUT || now_ns() > limit)
      return fail_message();
    /* An echoing node may wait for room here. */
    *echoes += receive_echoes(bench, tag, HAUL_NO_WAIT);
  }
}

static int round_trip(struct bench *bench, uint64_t size) {
  uint64_t echoes = 0;
  int status = send_one(bench, ECHO_TAG, size, &echoes);
  if (status)
    return status;
  if (!echoes && !receive_echoes(bench, ECHO_TAG, haul_deadline_in(ECHO_WAIT_NS)))
    return fail_message();
  return EXIT_DONE;
}

static int probe_echo(struct bench *bench, uint64_t size) {
  uint64_t echoes = 0;
  int status = send_one(bench, ECHO_TAG, size, &echoes);
  if (status)
    return status;
  bool echo = echoes || receive_echoes(bench, ECHO_TAG, haul_deadline_in(ECHO_PROBE_NS));
  bench->echo = echo ? ECHO_YES : ECHO_NO;
  if (!echo)
    fail_note("latency is not measured: the node does not echo (haul serve --echo)");
  return EXIT_DONE;
}

static int send_all(struct bench *bench, uint64_t size, struct bench_row *row) {
  int64_t started = now_ns();
  int64_t end = started + bench->duration / 2;
  uint64_t echoes = 0;
  int status = EXIT_DONE;
  while (status == EXIT_DONE && now_ns() < end) {
    status = send_one(bench, RATE_TAG, size, &echoes);
    row->count++;
    if (bench->echo == ECHO_YES)
      echoes += receive_echoes(bench, RATE_TAG, HAUL_NO_WAIT);
  }
  row->elapsed = now_ns() - started;
  /* Late echoes must not disturb the next size. */
  for (uint64_t more = 1; bench->echo == ECHO_YES && echoes < row->count && more; echoes += more)
    more = receive_echoes(bench, RATE_TAG, haul_deadline_in(ECHO_WAIT_NS));
  return status;
}

static int measure_messages(struct bench *bench, uint64_t size, struct bench_row *row) {
  int status = EXIT_DONE;
  snprintf(row->path, sizeof(row->path), "message");
  if (bench->echo == ECHO_UNKNOWN)
    status = probe_echo(bench, size);
  if (status == EXIT_DONE && bench->echo == ECHO_YES)
    status = measure_latency(bench, size, round_trip, &row->latency);
  return status ? status : send_all(bench, size, row);
}

int bench_measure(struct bench *bench, uint64_t size, struct bench_row *row) {
  *row = (struct bench_row){.size = size};
  return bench->operation == BENCH_MESSAGE ? measure_messages(bench, size, row)
                                           : measure_transfers(bench, size, row);
}
