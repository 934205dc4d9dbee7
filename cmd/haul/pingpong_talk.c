/* SPDX-License-Identifier: MIT */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "command.h"
#include "common/fail.h"
#include "common/interrupt.h"
#include "common/text.h"
#include "pingpong.h"

#define PART          (UINT64_C(256) << 10) /* bytes a message: the receiver takes them as they come */
#define PARTING_NS    INT64_C(2000000000)
#define GREETING_SIZE 512
#define PEER_LOST     "the other side is gone"

int talk_send(struct side *side, enum pingpong_tag tag, const void *bytes, size_t length) {
  if (haul_message_send(side->peer, tag, bytes, length, haul_deadline_in(side->patience)))
    return fail_library("cannot send to the other side");
  return EXIT_DONE;
}

/* The next message of this session; events and messages of strangers are dropped. Waits in slices,
 * so that an interruption is seen. `peer` NULL takes anybody's. */
static int next_message(struct side *side, struct haul_message *message, haul_deadline until) {
  for (;;) {
    int result = haul_message_receive(side->node, message, haul_deadline_in(INTERRUPT_SLICE_NS));
    if (interrupted())
      return fail_because(NULL, "interrupted");
    if (result == 0 && message->kind == HAUL_MESSAGE &&
        (!side->peer || message->peer == side->peer))
      return EXIT_DONE;
    if (result == 0) {
      bool left = message->kind == HAUL_PEER_LEFT && side->peer && message->peer == side->peer;
      haul_message_release(message);
      if (left)
        return fail_because(NULL, PEER_LOST);
      continue;
    }
    if (result != HAUL_ETIMEDOUT)
      return fail_library("cannot hear the other side");
    if (side->peer && haul_peer_status(side->peer))
      return fail_library(PEER_LOST);
    if (now_ns() >= until)
      return fail_because(NULL, "the other side is silent");
  }
}

int talk_receive(struct side *side, enum pingpong_tag tag, struct haul_message *message) {
  int status = next_message(side, message, haul_deadline_in(side->patience));
  if (status)
    return status;
  if (message->tag == tag)
    return EXIT_DONE;
  fail_because("is it a haul pingpong of this version?",
               "the other side sent a message with tag %" PRIu64 ", expected %d", message->tag,
               (int)tag);
  haul_message_release(message);
  return EXIT_FAILED;
}

int talk_expect(struct side *side, enum pingpong_tag tag) {
  struct haul_message message;
  int status = talk_receive(side, tag, &message);
  if (status == EXIT_DONE)
    haul_message_release(&message);
  return status;
}

int talk_send_memory(struct side *side) {
  int status = memory_to_scratch(side);
  const char *bytes = haul_region_address(side->scratch);
  for (uint64_t at = 0; at < side->size && status == EXIT_DONE; at += PART) {
    uint64_t left = side->size - at;
    status = talk_send(side, TAG_DATA, bytes + at, (size_t)(left < PART ? left : PART));
  }
  return status;
}

int talk_receive_memory(struct side *side) {
  char *bytes = haul_region_address(side->scratch);
  for (uint64_t at = 0; at < side->size;) {
    struct haul_message message;
    int status = talk_receive(side, TAG_DATA, &message);
    if (status)
      return status;
    bool fits = message.length > 0 && message.length <= side->size - at;
    if (fits)
      memcpy(bytes + at, message.bytes, message.length);
    at += message.length;
    haul_message_release(&message);
    if (!fits)
      return fail_because(NULL, "the other side sent a part that does not fit");
  }
  return scratch_to_memory(side);
}

/* The text of a greeting, terminated; empty when it is too long to be one. */
static void take_text(const struct haul_message *message, char text[GREETING_SIZE]) {
  size_t length = message->length < GREETING_SIZE ? message->length : 0;
  if (length)
    memcpy(text, message->bytes, length);
  text[length] = '\0';
}

static bool parse_hello(const char *text, struct side *side, char region[256]) {
  if (sscanf(text, "haul-pingpong 1 %" SCNu64 " %u %255s", &side->size, &side->iterations,
             region) != 3)
    return false;
  return side->size >= sizeof(uint32_t) && side->size <= PINGPONG_SIZE_MAX &&
         side->size % sizeof(uint32_t) == 0 && side->iterations >= 1 &&
         side->iterations <= PINGPONG_ITERATIONS_MAX;
}

int talk_await_hello(struct side *side, char region[256]) {
  char text[GREETING_SIZE];
  struct haul_message message;
  int status = next_message(side, &message, HAUL_FOREVER);
  if (status)
    return status;
  bool good = message.tag == TAG_HELLO;
  take_text(&message, text);
  side->peer = haul_peer_retain(message.peer);
  haul_message_release(&message);
  if (!good || !parse_hello(text, side, region))
    return fail_because("is it a haul pingpong of this version?",
                        "%s sent no greeting that makes sense", haul_peer_name(side->peer));
  return EXIT_DONE;
}

int talk_welcome(struct side *side) {
  char text[GREETING_SIZE];
  int length = snprintf(text, sizeof(text), "haul-pingpong 1 %s", side->name);
  return talk_send(side, TAG_WELCOME, text, (size_t)length);
}

int talk_say_hello(struct side *side, char region[256]) {
  char text[GREETING_SIZE];
  struct haul_message message;
  int length = snprintf(text, sizeof(text), "haul-pingpong 1 %" PRIu64 " %u %s", side->size,
                        side->iterations, side->name);
  int status = talk_send(side, TAG_HELLO, text, (size_t)length);
  if (status == EXIT_DONE)
    status = talk_receive(side, TAG_WELCOME, &message);
  if (status)
    return status;
  take_text(&message, text);
  haul_message_release(&message);
  if (sscanf(text, "haul-pingpong 1 %255s", region) != 1)
    return fail_because(NULL, "the server's welcome makes no sense");
  return EXIT_DONE;
}

void talk_part(struct side *side) {
  struct haul_message message;
  haul_deadline until = haul_deadline_in(PARTING_NS);
  if (side->role == ROLE_CLIENT) {
    haul_message_send(side->peer, TAG_BYE, NULL, 0, until);
    return;
  }
  /* The client says good-bye or is gone already: either way it has heard all of it. */
  while (haul_peer_status(side->peer) == 0 && now_ns() < until) {
    if (haul_message_receive(side->node, &message, haul_deadline_in(INTERRUPT_SLICE_NS)))
      continue;
    bool over = message.peer == side->peer && message.tag == TAG_BYE;
    haul_message_release(&message);
    if (over)
      return;
  }
}
