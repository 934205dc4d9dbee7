/* SPDX-License-Identifier: MIT
 *
 * The parts of `haul pingpong`: the command (pingpong.c), the steps of the session and who does
 * what in them (pingpong_steps.c), one side's memory and its patterns (pingpong_memory.c), and the
 * talk between the sides (pingpong_talk.c).
 *
 * The session: HELLO and WELCOME agree on size, iterations and the names of the two regions; then
 * each step ends with a verdict in both directions, so that both sides know of every failure.
 */
#ifndef HAUL_COMMAND_PINGPONG_H
#define HAUL_COMMAND_PINGPONG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <haul/haul.h>

#define PINGPONG_SIZE_MAX       (UINT64_C(1) << 30)
#define PINGPONG_ITERATIONS_MAX 1000
#define PINGPONG_RESULTS_MAX    (PINGPONG_ITERATIONS_MAX + 2)

enum pingpong_role { ROLE_CLIENT, ROLE_SERVER };

/* The tags of messages. */
enum pingpong_tag {
  TAG_HELLO = 1, /* client: "haul-pingpong 1 SIZE ITERATIONS REGION" */
  TAG_WELCOME,   /* server: "haul-pingpong 1 REGION" */
  TAG_DATA,      /* a part of the memory, in order */
  TAG_READY,     /* my memory is prepared: go on */
  TAG_DONE,      /* the one-sided operation is over */
  TAG_VERDICT,   /* one byte: 1, what I checked was right */
  TAG_BYE,       /* the client has every verdict */
};

struct pingpong_result {
  char step[24];
  char path[16];
  bool mine, theirs; /* the two verdicts */
};

struct side {
  enum pingpong_role role;
  bool quiet;    /* no narration */
  uint64_t size; /* bytes, a multiple of 4 */
  unsigned iterations;
  int64_t patience; /* nanoseconds that the other side may be silent */
  const char *only; /* the path that this side's one-sided operations take; NULL: the best one */
  haul_node *node;
  haul_peer *peer;
  haul_region *memory;  /* what the steps move, at the place */
  haul_region *scratch; /* host memory through which the CPU fills and checks it */
  haul_remote *remote;  /* the other side's memory */
  bool fell_back;       /* host memory stands in for the place that was asked for */
  char name[256];       /* under which the memory is published */
  char exported[96];    /* how it was exported: "descriptor 7, memfd" */
  size_t result_count;
  struct pingpong_result results[PINGPONG_RESULTS_MAX];
};

/* Says what happens, for people; nothing when the side is quiet. */
void narrate(const struct side *side, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* ---- pingpong_memory.c; all return an exit status unless they say otherwise ---- */

/* Allocates size bytes at the place, or on the host, which it says; exports and publishes it. */
int memory_make(struct side *side, struct haul_place place);
void memory_release(struct side *side);

/* Element k of the memory becomes base + k. */
int memory_fill(struct side *side, uint32_t base);

/* Overwrites the memory, so that what is found afterwards has arrived. */
int memory_clear(struct side *side);

/* *right: every element k of the memory is base + k. Says where it is not. */
int memory_check(struct side *side, uint32_t base, bool *right);

/* The same of the scratch memory, whatever was moved into it. */
bool scratch_check(const struct side *side, uint32_t base);

/* Between the memory and the scratch memory. */
int memory_to_scratch(struct side *side);
int scratch_to_memory(struct side *side);

/* ---- pingpong_talk.c ---- */

/* A message without content, or with `length` bytes. */
int talk_send(struct side *side, enum pingpong_tag tag, const void *bytes, size_t length);

/* The next message of the peer, which must have this tag; release it. */
int talk_receive(struct side *side, enum pingpong_tag tag, struct haul_message *message);

/* The same, where only its coming matters. */
int talk_expect(struct side *side, enum pingpong_tag tag);

/* The whole memory as messages. */
int talk_send_memory(struct side *side);
int talk_receive_memory(struct side *side);

/* Waits for a client as long as it takes; sets side->peer, size, iterations, and the name of the
 * client's region. */
int talk_await_hello(struct side *side, char region[256]);

/* The client's end of it: sends HELLO, and gets the name of the server's region. */
int talk_say_hello(struct side *side, char region[256]);
int talk_welcome(struct side *side);

/* The last words, so that neither side goes while the other still waits for it. */
void talk_part(struct side *side);

/* ---- pingpong_steps.c ---- */

/* Runs all steps. A step that failed does not stop the next one; a broken session does. */
int steps_run(struct side *side);

/* Did every step run and hold, on both sides? */
bool steps_held(const struct side *side);

#endif
