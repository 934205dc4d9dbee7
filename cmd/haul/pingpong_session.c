/* SPDX-License-Identifier: MIT */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "command.h"
#include "common/fail.h"
#include "common/process.h"
#include "common/text.h"
#include "pingpong.h"

#define PART          (UINT64_C(256) << 10) /* bytes a message; the receiver accepts any size */
#define BYE_WAIT_NS   INT64_C(2000000000)
#define GREETING_SIZE 512
#define PEER_LOST     "the other side closed the connection"

static int send_message(struct side *side, enum pingpong_tag tag, const void *bytes,
                        size_t length) {
  if (haul_message_send(side->peer, tag, bytes, length, haul_deadline_in(side->timeout)))
    return fail_library("cannot send to the other side");
  return EXIT_DONE;
}

/* Receives the next message of this session; drops events and messages of other peers, unless
 * `peer` is NULL. Waits in slices, to notice signals. */
static int next_message(struct side *side, struct haul_message *message, haul_deadline until) {
  for (;;) {
    int result = haul_message_receive(side->node, message, haul_deadline_in(INTERRUPT_SLICE_NS));
    if (interrupted())
      return fail_because(NULL, "interrupted");
    bool is_message = message->kind == HAUL_MESSAGE || message->kind == HAUL_MESSAGE_OFFER;
    if (result == 0 && is_message && (!side->peer || message->peer == side->peer))
      return EXIT_DONE;
    if (result == 0) {
      bool closed = message->kind == HAUL_PEER_LEFT && side->peer && message->peer == side->peer;
      haul_message_release(message);
      if (closed)
        return fail_because(NULL, PEER_LOST);
      continue;
    }
    if (result != HAUL_ETIMEDOUT)
      return fail_library("cannot receive from the other side");
    if (side->peer && haul_peer_status(side->peer))
      return fail_library(PEER_LOST);
    if (now_ns() >= until)
      return fail_because("check that `haul pingpong` runs there and is not stopped",
                          "timed out waiting for the other side");
  }
}

/* The next message of the peer must have this tag; the caller releases it. */
static int receive_message(struct side *side, enum pingpong_tag tag, struct haul_message *message) {
  int status = next_message(side, message, haul_deadline_in(side->timeout));
  if (status)
    return status;
  if (message->tag == tag && (message->kind == HAUL_MESSAGE_OFFER) == (tag == TAG_OFFER))
    return EXIT_DONE;
  if (message->tag == TAG_HELLO)
    fail_because("start the server there: haul pingpong --server --listen ADDRESS",
                 "the other side sends messages back: it is not `haul pingpong --server`");
  else
    fail_because("run haul pingpong of one version on both sides",
                 "the other side sent a message with tag %" PRIu64 ", expected %d", message->tag,
                 (int)tag);
  haul_message_release(message);
  return EXIT_FAILED;
}

static int expect_message(struct side *side, enum pingpong_tag tag) {
  struct haul_message message;
  int status = receive_message(side, tag, &message);
  if (status == EXIT_DONE)
    haul_message_release(&message);
  return status;
}

static int send_messages(struct side *side) {
  int status = memory_to_scratch(side);
  const char *bytes = haul_region_address(side->scratch);
  for (uint64_t at = 0; at < side->size && status == EXIT_DONE; at += PART) {
    uint64_t remaining = side->size - at;
    status =
        send_message(side, TAG_DATA, bytes + at, (size_t)(remaining < PART ? remaining : PART));
  }
  return status;
}

static int receive_messages(struct side *side) {
  char *bytes = haul_region_address(side->scratch);
  for (uint64_t at = 0; at < side->size;) {
    struct haul_message message;
    int status = receive_message(side, TAG_DATA, &message);
    if (status)
      return status;
    bool fits = message.length > 0 && message.length <= side->size - at;
    if (fits)
      memcpy(bytes + at, message.bytes, message.length);
    at += message.length;
    haul_message_release(&message);
    if (!fits)
      return fail_because(NULL, "the other side sent more bytes than agreed");
  }
  return scratch_to_memory(side);
}

/* Copies the text of a greeting with a terminator; "" if it is too long. */
static void copy_text(const struct haul_message *message, char text[GREETING_SIZE]) {
  size_t length = message->bytes && message->length < GREETING_SIZE ? message->length : 0;
  if (length)
    memcpy(text, message->bytes, length);
  text[length] = '\0';
}

static bool parse_hello(const char *text, struct side *side, char region[256]) {
  if (sscanf(text, "haul-pingpong 2 %" SCNu64 " %u %255s", &side->size, &side->iterations,
             region) != 3)
    return false;
  return side->size >= sizeof(uint32_t) && side->size <= PINGPONG_SIZE_MAX &&
         side->size % sizeof(uint32_t) == 0 && side->iterations >= 1 &&
         side->iterations <= PINGPONG_ITERATIONS_MAX;
}

int side_await_hello(struct side *side, char region[256]) {
  char text[GREETING_SIZE];
  struct haul_message message;
  int status = next_message(side, &message, HAUL_FOREVER);
  if (status)
    return status;
  bool good = message.tag == TAG_HELLO && message.kind == HAUL_MESSAGE;
  copy_text(&message, text);
  side->peer = haul_peer_retain(message.peer);
  haul_message_release(&message);
  if (!good || !parse_hello(text, side, region))
    return fail_because("run haul pingpong of one version on both sides",
                        "%s sent an invalid HELLO", haul_peer_name(side->peer));
  return EXIT_DONE;
}

int side_send_welcome(struct side *side) {
  char text[GREETING_SIZE];
  int length = snprintf(text, sizeof(text), "haul-pingpong 2 %s", side->name);
  return send_message(side, TAG_WELCOME, text, (size_t)length);
}

int side_send_hello(struct side *side, char region[256]) {
  char text[GREETING_SIZE];
  struct haul_message message;
  int length = snprintf(text, sizeof(text), "haul-pingpong 2 %" PRIu64 " %u %s", side->size,
                        side->iterations, side->name);
  int status = send_message(side, TAG_HELLO, text, (size_t)length);
  if (status == EXIT_DONE)
    status = receive_message(side, TAG_WELCOME, &message);
  if (status)
    return status;
  copy_text(&message, text);
  haul_message_release(&message);
  if (sscanf(text, "haul-pingpong 2 %255s", region) != 1)
    return fail_because(NULL, "the server sent an invalid WELCOME");
  return EXIT_DONE;
}

void side_end_session(struct side *side) {
  struct haul_message message;
  haul_deadline until = haul_deadline_in(BYE_WAIT_NS);
  if (side->role == ROLE_CLIENT) {
    haul_message_send(side->peer, TAG_BYE, NULL, 0, until);
    return;
  }
  /* After BYE, or a closed connection, the client has all verdicts. */
  while (haul_peer_status(side->peer) == 0 && now_ns() < until) {
    if (haul_message_receive(side->node, &message, haul_deadline_in(INTERRUPT_SLICE_NS)))
      continue;
    bool over = message.peer == side->peer && message.tag == TAG_BYE;
    haul_message_release(&message);
    if (over)
      return;
  }
}

#define WRITE_BASE 1000u
#define READ_BASE  2000u

/* The part of one role in a step: transfers bytes and verifies those it receives. The exit status
 * is that of the session, not of the verification. */
typedef int step_function(struct side *side, unsigned iteration, struct pingpong_result *result);

struct step {
  const char *name;
  bool repeated; /* once for each iteration */
  step_function *client, *server;
};

static void note_path(const struct side *side, const struct haul_path *path,
                      struct pingpong_result *result) {
  const struct {
    const char *name;
    unsigned count;
  } copies[] = {
      {"CPU", path->copies_cpu}, {"kernel", path->copies_kernel}, {"DMA", path->copies_dma}};
  size_t used = 0;
  snprintf(result->path, sizeof(result->path), "%s", path->name);
  for (size_t i = 0; i < sizeof(copies) / sizeof(copies[0]); i++)
    if (copies[i].count > 0)
      used += (size_t)snprintf(result->copies + used, sizeof(result->copies) - used, "%s%s %u",
                               used ? ", " : "", copies[i].name, copies[i].count);
  narrate(side, "  over %s (%s), copies: %s", path->name, path->detail, result->copies);
}

/* Two-sided: the client sends 100·i + k, the server replies 200·i + k. Both know the two places. A
 * failed offer fails the step, not the session. */

static bool is_offered(const struct side *side) {
  return haul_region_place(side->memory).kind != HAUL_HOST ||
         haul_remote_place(side->remote).kind != HAUL_HOST;
}

static int failed_step(const struct side *side, const char *what) {
  fail_library("%s", what);
  return haul_peer_status(side->peer) ? EXIT_FAILED : EXIT_DONE;
}

static int send_memory(struct side *side, bool *sent) {
  if (!is_offered(side))
    return send_messages(side);
  *sent = haul_message_offer(side->peer, TAG_OFFER, side->memory, 0, side->size,
                             haul_deadline_in(side->timeout)) == 0;
  return *sent ? EXIT_DONE : failed_step(side, "cannot send the memory to the other side");
}

static int read_offer(struct side *side, struct pingpong_result *result) {
  struct haul_transfer_options options = HAUL_TRANSFER_OPTIONS_INIT;
  struct haul_report report = {.size = sizeof(report)};
  struct haul_message message;
  int status = receive_message(side, TAG_OFFER, &message);
  if (status)
    return status;
  options.only = side->only;
  options.deadline = haul_deadline_in(side->timeout);
  if (message.length != side->size)
    status = fail_because(NULL, "the other side did not send the agreed number of bytes");
  else if (haul_message_read(&message, side->memory, 0, &options, &report))
    status = failed_step(side, "cannot receive the memory of the other side");
  else
    note_path(side, &report.paths[0], result);
  haul_message_release(&message);
  return status;
}

static int receive_memory(struct side *side, struct pingpong_result *result) {
  return is_offered(side) ? read_offer(side, result) : receive_messages(side);
}

static int exchange_client(struct side *side, unsigned i, struct pingpong_result *result) {
  bool sent = true;
  int status = memory_fill(side, 100 * i);
  if (status == EXIT_DONE)
    status = send_memory(side, &sent);
  if (status == EXIT_DONE)
    status = memory_clear(side);
  if (status == EXIT_DONE)
    status = receive_memory(side, result);
  if (status == EXIT_DONE)
    status = memory_check(side, 200 * i, &result->mine);
  result->mine &= sent;
  return status;
}

static int exchange_server(struct side *side, unsigned i, struct pingpong_result *result) {
  bool sent = true;
  int status = memory_clear(side);
  if (status == EXIT_DONE)
    status = receive_memory(side, result);
  if (status == EXIT_DONE)
    status = memory_check(side, 100 * i, &result->mine);
  if (status == EXIT_DONE)
    status = memory_fill(side, 200 * i);
  if (status == EXIT_DONE)
    status = send_memory(side, &sent);
  result->mine &= sent;
  return status;
}

/* Writes or reads the whole memory, and stores the path in `result`. Without a result, any path is
 * allowed. */
static int transfer(struct side *side, enum haul_operation operation, haul_region *local,
                    struct pingpong_result *result) {
  struct haul_piece piece = {0, 0, side->size};
  struct haul_report report = {.size = sizeof(report)};
  struct haul_transfer_options options = HAUL_TRANSFER_OPTIONS_INIT;
  haul_transfer *transfer = NULL;
  options.only = result ? side->only : NULL;
  int code = operation == HAUL_OP_WRITE
                 ? haul_write(side->remote, local, &piece, 1, &options, &transfer)
                 : haul_read(local, side->remote, &piece, 1, &options, &transfer);
  if (!code)
    code = haul_transfer_wait(transfer, haul_deadline_in(side->timeout));
  if (!code)
    code = haul_transfer_report(transfer, &report);
  if (!code && report.path_count && result)
    note_path(side, &report.paths[0], result);
  int status = code ? fail_library("the one-sided operation failed") : EXIT_DONE;
  haul_transfer_release(transfer);
  return status;
}

/* The server writes into the client's memory and reads it back. A failed write fails the step, not
 * the session. */
static int write_server(struct side *side, unsigned i, struct pingpong_result *result) {
  (void)i;
  int status = memory_fill(side, WRITE_BASE);
  if (status == EXIT_DONE)
    status = expect_message(side, TAG_READY);
  if (status)
    return status;
  bool moved = transfer(side, HAUL_OP_WRITE, side->memory, result) == EXIT_DONE;
  status = send_message(side, TAG_DONE, NULL, 0);
  result->mine = moved && transfer(side, HAUL_OP_READ, side->scratch, NULL) == EXIT_DONE &&
                 scratch_check(side, WRITE_BASE);
  return status;
}

/* The passive part of a one-sided step: `prepared` is the status of filling the memory, whose bytes
 * are verified after the operation of the other side. */
static int await_operation(struct side *side, int prepared, uint32_t base,
                           struct pingpong_result *result) {
  int status = prepared;
  snprintf(result->path, sizeof(result->path), "(theirs)");
  if (status == EXIT_DONE)
    status = send_message(side, TAG_READY, NULL, 0);
  if (status == EXIT_DONE)
    status = expect_message(side, TAG_DONE);
  return status ? status : memory_check(side, base, &result->mine);
}

static int write_client(struct side *side, unsigned i, struct pingpong_result *result) {
  (void)i;
  return await_operation(side, memory_clear(side), WRITE_BASE, result);
}

static int read_client(struct side *side, unsigned i, struct pingpong_result *result) {
  (void)i;
  int status = memory_clear(side);
  if (status == EXIT_DONE)
    status = expect_message(side, TAG_READY);
  if (status)
    return status;
  bool moved = transfer(side, HAUL_OP_READ, side->memory, result) == EXIT_DONE;
  status = send_message(side, TAG_DONE, NULL, 0);
  bool right = false;
  if (status == EXIT_DONE)
    status = memory_check(side, READ_BASE, &right);
  result->mine = moved && right;
  return status;
}

static int read_server(struct side *side, unsigned i, struct pingpong_result *result) {
  (void)i;
  return await_operation(side, memory_fill(side, READ_BASE), READ_BASE, result);
}

static const struct step steps[] = {
    {"exchange", true, exchange_client, exchange_server},
    {"one-sided write", false, write_client, write_server},
    {"one-sided read", false, read_client, read_server},
};

#define STEP_COUNT (sizeof(steps) / sizeof(steps[0]))

static int exchange_verdicts(struct side *side, struct pingpong_result *result) {
  const unsigned char mine = result->mine;
  struct haul_message message;
  int status = send_message(side, TAG_VERDICT, &mine, 1);
  if (status == EXIT_DONE)
    status = receive_message(side, TAG_VERDICT, &message);
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
  snprintf(result->copies, sizeof(result->copies), "-");
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

bool steps_passed(const struct side *side) {
  for (size_t i = 0; i < side->result_count; i++)
    if (!side->results[i].mine || !side->results[i].theirs)
      return false;
  return side->result_count == side->iterations + STEP_COUNT - 1;
}
