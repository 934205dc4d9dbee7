/* SPDX-License-Identifier: MIT
 * One of the ranks that world.sh starts: all write to all, and look at every byte.
 *
 *   cluster_rank BYTES ROUNDS JOIN SECONDS SEED
 *
 * In each round it writes that many bytes of its own into every other rank's memory, says so to
 * that rank, waits until all others said so, and compares what they wrote. ROUNDS 0: until a call
 * fails. No call has longer than SECONDS. It says "joined", "round N" for each that was right, and
 * "done"; then it stays for the others until SIGTERM. Exit status 0, 1 when a call failed, 3 when
 * bytes were wrong. */
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <haul/world.h>

#include "support/check.h"

#define RANKS_MOST 64

static size_t bytes;
static unsigned rounds, join_seconds, seconds;
static uint64_t seed;

struct rank {
  haul_node *node;
  haul_world *world;
  unsigned own, size;
  /* Two slots for each rank: a rank that is a round ahead writes while others still compare. */
  haul_region *out, *in;
  haul_peer *peers[RANKS_MOST];
  haul_remote *remotes[RANKS_MOST];
  unsigned told[2]; /* how many said that they wrote: in even rounds, in odd ones */
};

static haul_deadline soon(void) {
  return haul_deadline_in(seconds * 1000000000LL);
}

static void check(int code) {
  const struct haul_error *error = haul_error_last();
  if (code >= 0)
    return;
  fprintf(stderr, "haul: %s: %s: %s\nhint: %s\n", error->call, error->object, error->text,
          error->hint);
  exit(1);
}

static size_t slot(const struct rank *rank, unsigned round, unsigned of) {
  return ((round % 2) * rank->size + of) * bytes;
}

static uint64_t mark(const struct rank *rank, unsigned round, unsigned from, unsigned to) {
  return seed + ((uint64_t)round * rank->size + from) * rank->size + to;
}

/* Publishes the region before other ranks can find this one. */
static void join(struct rank *rank, unsigned size) {
  size_t room = (size_t)size * 2 * bytes;
  const struct haul_place host = {HAUL_HOST, 0};
  check(haul_node_open(NULL, &rank->node));
  check(haul_region_alloc(rank->node, host, room, 0, &rank->in));
  check(haul_region_alloc(rank->node, host, room, 0, &rank->out));
  check(haul_region_publish(rank->in, "in", HAUL_READ | HAUL_WRITE));
  check(haul_world_join(rank->node, haul_deadline_in(join_seconds * 1000000000LL), &rank->world));
  rank->own = haul_world_rank(rank->world);
  rank->size = haul_world_size(rank->world);
  printf("joined as %u\n", rank->own);
  for (unsigned i = 0; i < rank->size; i++) {
    if (i == rank->own)
      continue;
    check(haul_world_peer(rank->world, i, soon(), &rank->peers[i]));
    check(haul_peer_lookup(rank->peers[i], "in", soon(), &rank->remotes[i]));
  }
}

static void write_to_all(struct rank *rank, unsigned round) {
  haul_transfer *transfers[RANKS_MOST] = {NULL};
  struct haul_transfer_options options = HAUL_TRANSFER_OPTIONS_INIT;
  options.deadline = soon();
  for (unsigned i = 0; i < rank->size; i++) {
    if (i == rank->own)
      continue;
    const struct haul_piece piece = {slot(rank, round, i), slot(rank, round, rank->own), bytes};
    pattern_fill((char *)haul_region_address(rank->out) + piece.local, bytes,
                 mark(rank, round, rank->own, i));
    check(haul_write(rank->remotes[i], rank->out, &piece, 1, &options, &transfers[i]));
  }
  for (unsigned i = 0; i < rank->size; i++) {
    if (i == rank->own)
      continue;
    check(haul_transfer_wait(transfers[i], soon()));
    haul_transfer_release(transfers[i]);
    check(haul_message_send(rank->peers[i], round, "wrote", 5, soon()));
  }
}

/* Nobody is more than a round ahead: for that it needs this rank's word. */
static void hear_of_all(struct rank *rank, unsigned round) {
  haul_deadline until = soon();
  while (rank->told[round % 2] < rank->size - 1) {
    struct haul_message message;
    check(haul_message_receive(rank->node, &message, until));
    if (message.kind == HAUL_MESSAGE)
      rank->told[message.tag % 2]++;
    haul_message_release(&message);
  }
  rank->told[round % 2] = 0;
}

static void compare_all(const struct rank *rank, unsigned round, char *expected) {
  for (unsigned i = 0; i < rank->size; i++) {
    if (i == rank->own)
      continue;
    pattern_fill(expected, bytes, mark(rank, round, i, rank->own));
    if (memcmp((char *)haul_region_address(rank->in) + slot(rank, round, i), expected, bytes) !=
        0) {
      fprintf(stderr, "round %u: what rank %u wrote is not what is here\n", round, i);
      exit(3);
    }
  }
}

static void leave(struct rank *rank) {
  for (unsigned i = 0; i < rank->size; i++) {
    haul_remote_release(rank->remotes[i]);
    haul_peer_close(rank->peers[i]);
  }
  haul_world_leave(rank->world);
  haul_region_release(rank->in);
  haul_region_release(rank->out);
  haul_node_close(rank->node);
}

/* Blocks SIGTERM from here on, and accepts it once the last round is reported. */
static void stay(void) {
  sigset_t end;
  int which;
  sigemptyset(&end);
  sigaddset(&end, SIGTERM);
  sigprocmask(SIG_BLOCK, &end, NULL);
  puts("done");
  sigwait(&end, &which);
}

static void go_round(struct rank *rank) {
  char *expected = malloc(bytes);
  if (!expected)
    exit(1);
  for (unsigned round = 0; rounds == 0 || round < rounds; round++) {
    write_to_all(rank, round);
    hear_of_all(rank, round);
    compare_all(rank, round, expected);
    printf("round %u\n", round);
  }
  free(expected);
}

int main(int argc, char **argv) {
  const char *size = getenv("WORLD_SIZE");
  struct rank rank = {0};
  if (argc != 6 || !size || atoi(size) < 1 || atoi(size) > RANKS_MOST) {
    fputs("usage: RANK=N WORLD_SIZE=N cluster_rank BYTES ROUNDS JOIN SECONDS SEED\n", stderr);
    return 2;
  }
  bytes = strtoul(argv[1], NULL, 0);
  rounds = (unsigned)atoi(argv[2]);
  join_seconds = (unsigned)atoi(argv[3]);
  seconds = (unsigned)atoi(argv[4]);
  seed = strtoull(argv[5], NULL, 0);
  setvbuf(stdout, NULL, _IOLBF, 0);
  join(&rank, (unsigned)atoi(size));
  go_round(&rank);
  stay();
  leave(&rank);
  return 0;
}
