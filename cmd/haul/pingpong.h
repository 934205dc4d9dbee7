/* SPDX-License-Identifier: MIT
 * The parts of `haul pingpong`: the command (pingpong.c), the messages and steps of a session
 * (pingpong_session.c), and the memory of one side with its patterns (pingpong_memory.c).
 *
 * HELLO and WELCOME agree on size, iterations and the names of the two regions. Each step ends with
 * a verdict in both directions, so that both sides know of every failure. */
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
  TAG_HELLO = 1, /* client: "haul-pingpong 2 SIZE ITERATIONS REGION" */
  TAG_WELCOME,   /* server: "haul-pingpong 2 REGION" */
  TAG_DATA,      /* a chunk of the memory, in order */
  TAG_OFFER,     /* the whole memory, in an offer */
  TAG_READY,     /* the memory of the sender is prepared */
  TAG_DONE,      /* the one-sided operation has ended */
  TAG_VERDICT,   /* one byte; 1: the bytes were right */
  TAG_BYE,       /* the client has received all verdicts */
};

struct pingpong_result {
  char step[24];
  char path[16];
  char copies[48];   /* of each byte on the path: "kernel 2, DMA 1"; "-": not known */
  bool mine, theirs; /* the two verdicts */
};

struct side {
  enum pingpong_role role;
  bool quiet;    /* narrate prints nothing */
  uint64_t size; /* bytes, a multiple of 4 */
  unsigned iterations;
  int64_t timeout;  /* nanoseconds of silence of the other side */
  const char *only; /* path of reads and one-sided operations of this side; NULL: the best one */
  haul_node *node;
  haul_peer *peer;
  haul_region *memory;  /* the memory that the steps transfer, at the place */
  haul_region *scratch; /* host memory, to fill and verify `memory` by the CPU */
  haul_remote *remote;  /* the memory of the other side */
  bool fell_back;       /* host memory replaces the requested place */
  char name[256];       /* of the published memory */
  char exported[96];    /* its export, for example "descriptor 7, memfd" */
  size_t result_count;
  struct pingpong_result results[PINGPONG_RESULTS_MAX];
};

/* Prints a line about the progress, unless the side is quiet. */
void narrate(const struct side *side, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* pingpong_memory.c; functions return an exit status unless stated otherwise */

/* Allocates `size` bytes at the place, or on the host with a note; exports and publishes them. */
int memory_make(struct side *side, struct haul_place place);
void memory_release(struct side *side);

/* Sets element k of the memory to base + k. */
int memory_fill(struct side *side, uint32_t base);

/* Overwrites the memory, so that bytes of an earlier step do not pass. */
int memory_clear(struct side *side);

/* Sets *right if every element k of the memory is base + k; else prints the first wrong element. */
int memory_check(struct side *side, uint32_t base, bool *right);

/* The same for the scratch memory; returns the result. */
bool scratch_check(const struct side *side, uint32_t base);

/* Copies between the memory and the scratch memory. */
int memory_to_scratch(struct side *side);
int scratch_to_memory(struct side *side);

/* pingpong_session.c: messages */

/* Waits for a client without a deadline; sets side->peer, size and iterations, and the name of the
 * client's region. */
int side_await_hello(struct side *side, char region[256]);

/* The client's part: sends HELLO and receives the name of the server's region. */
int side_send_hello(struct side *side, char region[256]);
int side_send_welcome(struct side *side);

/* Sends or awaits BYE, so that neither side ends while the other waits for it. */
void side_end_session(struct side *side);

/* pingpong_session.c: steps */

/* Runs all steps. A failed step does not stop the next one; a broken connection does. */
int steps_run(struct side *side);

/* Whether every step ran and passed on both sides. */
bool steps_passed(const struct side *side);

#endif
