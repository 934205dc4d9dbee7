/* SPDX-License-Identifier: MIT */
#include <stdio.h>

#include "command.h"
#include "common/fail.h"
#include "pingpong.h"

#define WRITE_BASE 1000u
#define READ_BASE  2000u

/* What one role does in a step: moves the bytes and finds out whether those it has to check are
 * right. Returns an exit status, which is about the session alone. */
typedef int step_function(struct side *side, unsigned iteration, struct pingpong_result *result);

struct step {
  const char *name;
  bool repeated; /* once for each iteration */
  step_function *client, *server;
};

static struct haul_piece whole(const struct side *side) {
  return (struct haul_piece){0, 0, side->size};
}

/* ---- Two-sided: the client sends 100·i + k, the server answers 200·i + k ---- */

static int exchange_client(struct side *side, unsigned i, struct pingpong_result *result) {
  int status = memory_fill(side, 100 * i);
  if (status == EXIT_DONE)
    status = talk_send_memory(side);
  if (status == EXIT_DONE)
    status = memory_clear(side);
  if (status == EXIT_DONE)
    status = talk_receive_memory(side);
  return status ? status : memory_check(side, 200 * i, &result->mine);
}

static int exchange_server(struct side *side, unsigned i, struct pingpong_result *result) {
  int status = memory_clear(side);
  if (status == EXIT_DONE)
    status = talk_receive_memory(side);
  if (status == EXIT_DONE)
    status = memory_check(side, 100 * i, &result->mine);
  if (status == EXIT_DONE)
    status = memory_fill(side, 200 * i);
  return status ? status : talk_send_memory(side);
}

/* ---- One-sided ---- */

/* A write or a read of the whole memory, and the path that it took. Without a result it only looks
 * at what another one did, by whatever path. */
static int move(struct side *side, enum haul_operation operation, haul_region *local,
                struct pingpong_result *result) {
  struct haul_piece piece = whole(side);
  struct haul_report report = {.size = sizeof(report)};
  struct haul_transfer_options options = HAUL_TRANSFER_OPTIONS_INIT;
  haul_transfer *transfer = NULL;
  options.only = result ? side->only : NULL;
  int code = operation == HAUL_OP_WRITE
                 ? haul_write(side->remote, local, &piece, 1, &options, &transfer)
                 : haul_read(local, side->remote, &piece, 1, &options, &transfer);
  if (!code)
    code = haul_transfer_wait(transfer, haul_deadline_in(side->patience));
  if (!code)
    code = haul_transfer_report(transfer, &report);
  if (!code && report.path_count && result)
    snprintf(result->path, sizeof(result->path), "%s", report.paths[0].name);
  int status = code ? fail_library("the one-sided operation failed") : EXIT_DONE;
  haul_transfer_release(transfer);
  return status;
}

/* The server writes into the client's memory, and reads back what it wrote. A write that fails is
 * the step's failure, not the session's. */
static int write_server(struct side *side, unsigned i, struct pingpong_result *result) {
  (void)i;
  int status = memory_fill(side, WRITE_BASE);
  if (status == EXIT_DONE)
    status = talk_expect(side, TAG_READY);
  if (status)
    return status;
  bool moved = move(side, HAUL_OP_WRITE, side->memory, result) == EXIT_DONE;
  status = talk_send(side, TAG_DONE, NULL, 0);
  result->mine = moved && move(side, HAUL_OP_READ, side->scratch, NULL) == EXIT_DONE &&
                 scratch_check(side, WRITE_BASE);
  return status;
}

static int write_client(struct side *side, unsigned i, struct pingpong_result *result) {
  (void)i;
  int status = memory_clear(side);
  snprintf(result->path, sizeof(result->path), "(theirs)");
  if (status == EXIT_DONE)
    status = talk_send(side, TAG_READY, NULL, 0);
  if (status == EXIT_DONE)
    status = talk_expect(side, TAG_DONE);
  return status ? status : memory_check(side, WRITE_BASE, &result->mine);
}

static int read_client(struct side *side, unsigned i, struct pingpong_result *result) {
  (void)i;
  int status = memory_clear(side);
  if (status == EXIT_DONE)
    status = talk_expect(side, TAG_READY);
  if (status)
    return status;
  bool moved = move(side, HAUL_OP_READ, side->memory, result) == EXIT_DONE;
  status = talk_send(side, TAG_DONE, NULL, 0);
  bool right = false;
  if (status == EXIT_DONE)
    status = memory_check(side, READ_BASE, &right);
  result->mine = moved && right;
  return status;
}

/* The server's part in being read: its bytes are there before, and unharmed afterwards. */
static int read_server(struct side *side, unsigned i, struct pingpong_result *result) {
  (void)i;
  int status = memory_fill(side, READ_BASE);
  snprintf(result->path, sizeof(result->path), "(theirs)");
  if (status == EXIT_DONE)
    status = talk_send(side, TAG_READY, NULL, 0);
  if (status == EXIT_DONE)
    status = talk_expect(side, TAG_DONE);
  return status ? status : memory_check(side, READ_BASE, &result->mine);
}

static const struct step steps[] = {
    {"exchange", true, exchange_client, exchange_server},
    {"one-sided write", false, write_client, write_server},
    {"one-sided read", false, read_client, read_server},
};

#define STEP_COUNT (sizeof(steps) / sizeof(steps[0]))

/* ---- The session ---- */

static int exchange_verdicts(struct side *side, struct pingpong_result *result) {
  const unsigned char mine = result->mine;
  struct haul_message message;
  int status = talk_send(side, TAG_VERDICT, &mine, 1);
  if (status == EXIT_DONE)
    status = talk_receive(side, TAG_VERDICT, &message);
  if (status)
    return status;
  result->theirs = message.length == 1 && *(const unsigned char *)message.bytes == 1;
  haul_message_release(&message);
  narrate(side, "  here %s, there %s", result->mine ? "right" : "WRONG",
          result->theirs ? "right" : "WRONG");
  return EXIT_DONE;
}

static int run_step(struct side *side, const struct step *step, unsigned iteration) {
  struct pingpong_result *result = &side->results[side->result_count++];
  step_function *function = side->role == ROLE_CLIENT ? step->client : step->server;
  if (step->repeated)
    snprintf(result->step, sizeof(result->step), "%s %u", step->name, iteration);
  else
    snprintf(result->step, sizeof(result->step), "%s", step->name);
  snprintf(result->path, sizeof(result->path), "messages");
  narrate(side, "%s", result->step);
  int status = function(side, iteration, result);
  return status ? status : exchange_verdicts(side, result);
}

int steps_run(struct side *side) {
  int status = EXIT_DONE;
  for (size_t s = 0; s < STEP_COUNT; s++) {
    unsigned count = steps[s].repeated ? side->iterations : 1;
    for (unsigned i = 1; i <= count && status == EXIT_DONE; i++)
      status = run_step(side, &steps[s], i);
  }
  return status;
}

bool steps_held(const struct side *side) {
  for (size_t i = 0; i < side->result_count; i++)
    if (!side->results[i].mine || !side->results[i].theirs)
      return false;
  return side->result_count == side->iterations + STEP_COUNT - 1;
}
