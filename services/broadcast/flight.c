/* SPDX-License-Identifier: MIT
 * Chunks on their way: several at a time, each compared with its checksum when it is here. */
#include <string.h>

#include "broadcast/receive.h"

static void bit_set(uint64_t *bits, uint64_t at) {
  bits[at / 64] |= UINT64_C(1) << at % 64;
}

static void bit_clear(uint64_t *bits, uint64_t at) {
  bits[at / 64] &= ~(UINT64_C(1) << at % 64);
}

void chunk_here(struct receive *receive, uint64_t chunk) {
  struct have *have = haul_region_address(receive->held->have);
  uint64_t *word = &receive->have_bits[chunk / 64];
  bit_set(receive->taken, chunk);
  __atomic_store_n(word, *word | UINT64_C(1) << chunk % 64, __ATOMIC_RELEASE);
  have->count = ++receive->got;
}

int chunk_check(struct receive *receive, uint64_t chunk, bool *right) {
  const struct haul_broadcast_version *version = &receive->version;
  uint64_t sum = 0;
  int code = range_sum(receive->broadcast, receive->region, chunk * version->chunk,
                       chunk_length(version->length, version->chunk, chunk), receive->until, &sum);
  *right = !code && sum == receive->sums[chunk];
  return code;
}

static struct flight *free_flight(struct receive *receive) {
  struct flight *flight = receive->flights;
  while (flight->transfer)
    flight++;
  return flight;
}

static void fly(struct receive *receive, struct feeder *feeder, uint64_t chunk, bool probe) {
  const struct haul_broadcast_version *version = &receive->version;
  struct haul_transfer_options options = HAUL_TRANSFER_OPTIONS_INIT;
  uint64_t offset = chunk * version->chunk;
  struct haul_piece piece = {offset, offset, chunk_length(version->length, version->chunk, chunk)};
  struct flight *flight = free_flight(receive);
  options.deadline = receive->until;
  int code = haul_read(receive->region, feeder->data, &piece, 1, &options, &flight->transfer);
  if (code) {
    flight->transfer = NULL;
    feeder_fail(&receive->feeders, feeder, code);
    return;
  }
  *flight = (struct flight){flight->transfer, feeder, chunk, now_ns(), probe};
  bit_set(receive->taken, chunk);
  if (feeder->flying++ == 0)
    feeder->progress_at = flight->since;
  receive->flying++;
}

void flights_start(struct receive *receive) {
  uint64_t chunk;
  struct feeder *feeder;
  while (receive->flying < receive->window && (feeder = choose_feeder(receive, &chunk)))
    fly(receive, feeder, chunk, false);
  feeder = choose_probe(receive, &chunk);
  if (feeder)
    fly(receive, feeder, chunk, true);
}

static void note_path(struct flight *flight) {
  struct haul_report report = HAUL_REPORT_INIT;
  struct haul_broadcast_feeder *told = &flight->feeder->told;
  if (haul_transfer_report(flight->transfer, &report) == 0 && report.path_count)
    memcpy(told->path, report.paths[0].name, sizeof told->path);
}

static void chunk_came(struct receive *receive, const struct flight *flight) {
  struct feeder *feeder = flight->feeder;
  int64_t now = now_ns();
  chunk_here(receive, flight->chunk);
  receive->wrong_turns = 0;
  feeder->told.bytes +=
      chunk_length(receive->version.length, receive->version.chunk, flight->chunk);
  feeder->progress_at = now;
  feeder->stalled = false;
  feeder->failed = 0;
  feeder->lost = 0;
  feeder_landed(feeder, now - flight->since);
  if (flight->probe) {
    judge_feeder(receive, flight);
    return;
  }
  receive->pace += (now - receive->chunk_at - receive->pace) / 8;
  receive->chunk_at = now;
}

/* Chunks that were in flight together count as one turn. */
static void chunk_is_wrong(struct receive *receive, struct feeder *feeder) {
  receive->report->corrupt++;
  if (feeder->source) {
    receive->wrong++;
    receive->wrong_turns += now_ns() >= feeder->blocked_until;
  }
  feeder->failed = HAUL_ECHECKSUM;
  feeder->hold = feeder->source ? HAUL_SECOND : 60 * HAUL_SECOND;
  feeder_block(feeder, "wrong bytes");
}

static void chunk_failed(struct receive *receive, const struct flight *flight, int code) {
  struct feeder *feeder = flight->feeder;
  bit_clear(receive->taken, flight->chunk);
  receive->report->retries++;
  feeder->told.retries++;
  if (code == HAUL_ECHECKSUM)
    chunk_is_wrong(receive, feeder);
  else if (code != HAUL_ECANCELED && feeder->open)
    feeder_fail(&receive->feeders, feeder, code);
}

/* Takes a flight that has ended. Returns an error of this side only. */
static int land(struct receive *receive, struct flight *flight) {
  bool right = false;
  int code = haul_transfer_test(flight->transfer), own = 0;
  if (code == 1)
    return 0;
  if (!code) {
    note_path(flight);
    own = chunk_check(receive, flight->chunk, &right);
    if (!own && !right)
      code = HAUL_ECHECKSUM;
  }
  haul_transfer_release(flight->transfer);
  flight->transfer = NULL;
  flight->feeder->flying--;
  receive->flying--;
  if (!own && code)
    chunk_failed(receive, flight, code);
  else if (!own)
    chunk_came(receive, flight);
  return own;
}

/* NULL: from all. */
static void cancel_from(struct receive *receive, const struct feeder *feeder) {
  for (size_t i = 0; i < FLIGHTS; i++)
    if (receive->flights[i].transfer && (!feeder || receive->flights[i].feeder == feeder))
      haul_transfer_cancel(receive->flights[i].transfer);
}

/* A feeder from which chunks are on their way, and none arrives: others are to send them. */
static void cancel_late(struct receive *receive) {
  for (size_t i = 0; i < receive->feeders.count; i++) {
    struct feeder *feeder = receive->feeders.all[i];
    if (feeder->flying && feeder_is_late(feeder)) {
      cancel_from(receive, feeder);
      feeder_block_late(feeder);
      feeder->progress_at = now_ns();
    }
  }
}

int flights_land(struct receive *receive) {
  int code = 0;
  for (size_t i = 0; !code && i < FLIGHTS; i++)
    if (receive->flights[i].transfer)
      code = land(receive, &receive->flights[i]);
  cancel_late(receive);
  return code;
}

void flights_wait(struct receive *receive, int64_t wake) {
  haul_transfer *transfers[FLIGHTS + 1];
  size_t count = 0;
  for (size_t i = 0; i < FLIGHTS; i++)
    if (receive->flights[i].transfer)
      transfers[count++] = receive->flights[i].transfer;
  if (receive->current && receive->current->poll)
    transfers[count++] = receive->current->poll;
  if (wake > receive->until)
    wake = receive->until;
  if (count)
    haul_transfer_wait_any(transfers, count, wake, NULL);
  else
    pause_until(receive->broadcast, wake);
}

void flights_end(struct receive *receive) {
  haul_deadline until = haul_deadline_in(CONTROL_NS);
  cancel_from(receive, NULL);
  for (size_t i = 0; i < FLIGHTS; i++) {
    haul_transfer *transfer = receive->flights[i].transfer;
    if (transfer)
      haul_transfer_wait(transfer, until);
    haul_transfer_release(transfer);
  }
}
