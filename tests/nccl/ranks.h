/* SPDX-License-Identifier: MIT
 * Ranks: processes that find each other by memory that they share, as NCCL's do by its bootstrap.
 * Everything here has a deadline, and ends the rank where it passes. */
#ifndef HAUL_TESTS_NCCL_RANKS_H
#define HAUL_TESTS_NCCL_RANKS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "player.h"

#define RANKS_MAX 8

struct world {
  unsigned ranks;
  _Atomic uint64_t seed;
  _Atomic unsigned arrived[64];                         /* at the barriers, in their order */
  char handles[RANKS_MAX][RANKS_MAX][NCCL_HANDLE_SIZE]; /* of who listens, for whom */
};

struct rank {
  struct world *world;
  unsigned number, barriers;
  void *listeners[RANKS_MAX], *to[RANKS_MAX], *from[RANKS_MAX];
};

/* Runs `work` in so many processes. True when all returned, and nobody was killed but who was told
 * so by his exit status 0 or -SIGKILL. */
bool ranks_run(unsigned ranks, int version, void (*work)(struct rank *rank));
/* Ends the rank, with words. */
_Noreturn void rank_fail(const struct rank *rank, const char *format, ...);
#define rank_need(rank, condition)                                                                 \
  ((condition) ? (void)0 : rank_fail(rank, "%s:%d: %s", __FILE__, __LINE__, #condition))

void rank_barrier(struct rank *rank);
/* Connections to and from these ranks, all set up at once. */
void rank_connect(struct rank *rank, const bool peers[RANKS_MAX]);
void rank_disconnect(struct rank *rank);
/* Until it is done: its size. A result that is no success ends the rank. */
void rank_wait(const struct rank *rank, void *request, int *sizes);
int64_t rank_now(void);

#endif
