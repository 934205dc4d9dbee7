/* SPDX-License-Identifier: MIT
 * Ranks: processes that exchange handles through shared memory, like NCCL's bootstrap. Every wait
 * has a deadline, which ends the rank. */
#ifndef HAUL_TESTS_NCCL_RANKS_H
#define HAUL_TESTS_NCCL_RANKS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "harness.h"

#define RANKS_MAX 8

struct world {
  unsigned ranks;
  _Atomic uint64_t seed;
  _Atomic unsigned arrived[64];                         /* at each barrier, in order */
  char handles[RANKS_MAX][RANKS_MAX][NCCL_HANDLE_SIZE]; /* [listener][connector] */
};

struct rank {
  struct world *world;
  unsigned number, barriers;
  void *listeners[RANKS_MAX], *to[RANKS_MAX], *from[RANKS_MAX];
};

/* Runs `work` in `ranks` processes. True if each exits with 0 or was killed by SIGKILL. */
bool ranks_run(unsigned ranks, int version, void (*work)(struct rank *rank));
/* Ends the rank with a message. */
_Noreturn void rank_fail(const struct rank *rank, const char *format, ...);
#define rank_need(rank, condition)                                                                 \
  ((condition) ? (void)0 : rank_fail(rank, "%s:%d: %s", __FILE__, __LINE__, #condition))
#define rank_ok(rank, call) rank_need(rank, (call) == NCCL_SUCCESS)

void rank_barrier(struct rank *rank);
/* Connects to and from these ranks, all at the same time. */
void rank_connect(struct rank *rank, const bool peers[RANKS_MAX]);
void rank_disconnect(struct rank *rank);
/* Waits for the request and stores its sizes. An error ends the rank. */
void rank_wait(const struct rank *rank, void *request, int *sizes);
int64_t rank_now(void);

#endif
