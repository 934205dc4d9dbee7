/* SPDX-License-Identifier: MIT
 * A transfer that is reported complete is complete: writers are killed at random moments, and every
 * write whose completion they had told of before is wholly there. */
#include "support/check.h"

#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "support/child.h"
#include "support/owner.h"
#include "support/seams.h"

#define WRITER_MODE "writer"
#define PARTS       64
#define PART        ((size_t)96 << 10)
#define IN_FLIGHT   4
#define ROUNDS      (SANITIZED ? 60 : 500) /* for each path */

struct brief {
  char address[160], only[8], name[32];
  uint64_t seed;
};

static size_t part_size(uint64_t seed, uint64_t part) {
  uint64_t state = seed ^ (part + 1) << 32;
  next_random(&state);
  return next_random(&state) % 4 ? 1 + next_random(&state) % 5000 : PART - part;
}

/* ---- The writer's process ---- */

static void must(int code) {
  if (code == 0)
    return;
  const struct haul_error *error = haul_error_last();
  fprintf(stderr, "the writer: %s: %s (%s)\n", error->call, error->text, error->hint);
  _exit(1);
}

/* Each write has a range of its own, and is announced once it is complete. */
static int writer_main(void) {
  struct brief brief;
  struct haul_node *node;
  struct haul_peer *peer;
  struct haul_remote *remote;
  struct haul_transfer *transfers[PARTS];
  child_receive(3, &brief, sizeof brief);
  must(haul_node_open(NULL, &node));
  must(haul_peer_connect(node, brief.address, haul_deadline_in(20 * S), &peer));
  must(haul_peer_lookup(peer, brief.name, haul_deadline_in(20 * S), &remote));
  struct haul_region *region = region_make(node, KIND_PRIVATE, PARTS * PART);
  struct haul_transfer_options options = HAUL_TRANSFER_OPTIONS_INIT;
  options.only = brief.only;
  for (uint64_t i = 0; i < PARTS + IN_FLIGHT; i++) {
    if (i < PARTS) {
      struct haul_piece piece = {i * PART, i * PART, part_size(brief.seed, i)};
      region_fill(node, region, piece.local, piece.length, brief.seed + i);
      must(haul_write(remote, region, &piece, 1, &options, &transfers[i]));
    }
    if (i >= IN_FLIGHT) {
      uint64_t done = i - IN_FLIGHT;
      must(haul_transfer_wait(transfers[done], HAUL_FOREVER));
      child_send(3, &done, sizeof done, -1);
    }
  }
  pause();
  return 0;
}

/* ---- The owner's, which kills ---- */

static bool next_report(int socket, uint64_t *part) {
  return recv(socket, part, sizeof *part, 0) == (ssize_t)sizeof *part;
}

static unsigned check_parts(const char *bytes, uint64_t seed, int socket, uint64_t part) {
  unsigned told = 0;
  do {
    pattern_check(bytes + part * PART, part_size(seed, part), seed + part);
    told++;
  } while (next_report(socket, &part));
  return told;
}

static unsigned kill_one(struct haul_region *region, const struct brief *brief, uint64_t *chance) {
  int socket;
  uint64_t part;
  char *bytes = haul_region_address(region);
  memset(bytes, 0, PARTS * PART);
  assert_works(haul_region_publish(region, brief->name, HAUL_READ | HAUL_WRITE));
  pid_t writer = child_start(WRITER_MODE, &socket);
  child_send(socket, brief, sizeof *brief, -1);
  if (!next_report(socket, &part))
    fail_msg("the writer failed before its first write over %s", brief->only);
  uint64_t delay = next_random(chance) % (SANITIZED ? 3000000 : 500000);
  nanosleep(&(struct timespec){0, (long)delay}, NULL);
  kill(writer, SIGKILL);
  /* What the dead one left in sockets goes nowhere from now on. */
  assert_works(haul_region_unpublish(region, brief->name));
  unsigned told = check_parts(bytes, brief->seed, socket, part);
  assert_int_equal(child_end(writer, socket), 128 + SIGKILL);
  return told;
}

static void completed_writes_are_there(void **state) {
  static const char *const ways[] = {"map", "tcp"};
  static const enum memory_kind kinds[] = {KIND_HOST, KIND_WRAPPED};
  uint64_t chance = test_seed();
  unsigned before = open_descriptors(), told = 0, cut = 0;
  struct haul_node *node;
  struct haul_region *regions[2];
  struct brief brief = {.seed = chance};
  (void)state;
  assert_works(haul_node_open(NULL, &node));
  assert_works(haul_node_listen(node, "tcp://127.0.0.1:0"));
  assert_works(haul_node_address(node, 0, brief.address, sizeof brief.address));
  for (unsigned k = 0; k < 2; k++)
    regions[k] = region_make(node, kinds[k], PARTS * PART);
  for (unsigned round = 0; round < 2 * ROUNDS; round++) {
    unsigned k = round % 8 == 3; /* some over cross-memory attach */
    snprintf(brief.only, sizeof brief.only, "%s", ways[round % 2]);
    snprintf(brief.name, sizeof brief.name, "%s", k ? "wrapped" : "host");
    brief.seed += 1000;
    unsigned here = kill_one(regions[k], &brief, &chance);
    told += here;
    cut += here < PARTS;
  }
  print_message("%u writes told complete were there; %u of %u writers died before their last\n",
                told, cut, 2 * ROUNDS);
  for (unsigned k = 0; k < 2; k++)
    region_drop(regions[k], kinds[k]);
  haul_node_close(node);
  assert_int_equal(open_descriptors(), before);
  assert_int_equal(haul_mappings(), 0);
}

int main(int argc, char **argv) {
  if (argc > 1 && strcmp(argv[1], WRITER_MODE) == 0)
    return writer_main();
  const struct CMUnitTest tests[] = {cmocka_unit_test(completed_writes_are_there)};
  return cmocka_run_group_tests_name("kill", tests, NULL, NULL);
}
