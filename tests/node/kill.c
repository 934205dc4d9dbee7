/* SPDX-License-Identifier: MIT
 * A transfer that is reported complete is complete: writers are killed at random moments, and every
 * write reported complete before the kill has fully arrived. */
#include "support/check.h"

#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
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
#define ROUNDS      (SANITIZED ? 20 : 50) /* for each path; tests/sim kills at any call */

struct brief {
  char address[160], only[8], name[32];
  char detail[64]; /* how the path moves the bytes, as reported; "": any */
  uint64_t seed;
};

static size_t part_size(uint64_t seed, uint64_t part) {
  uint64_t state = seed ^ (part + 1) << 32;
  next_random(&state);
  return next_random(&state) % 4 ? 1 + next_random(&state) % 5000 : PART - part;
}

static void must(int code) {
  if (code == 0)
    return;
  const struct haul_error *error = haul_error_last();
  fprintf(stderr, "the writer: %s: %s (%s)\n", error->call, error->text, error->hint);
  _exit(1);
}

static void check_detail(struct haul_transfer *transfer, const char *wanted) {
  struct haul_report report = HAUL_REPORT_INIT;
  must(haul_transfer_report(transfer, &report));
  if (*wanted == '\0' || strcmp(report.paths[0].detail, wanted) == 0)
    return;
  fprintf(stderr, "the writer: %s, %s instead of %s\n", report.paths[0].name,
          report.paths[0].detail, wanted);
  _exit(1);
}

/* Each write has a range of its own, and is reported once it is complete. */
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
      check_detail(transfers[done], brief.detail);
      child_send(3, &done, sizeof done, -1);
    }
  }
  pause();
  return 0;
}

static bool next_report(int socket, uint64_t *part) {
  return recv(socket, part, sizeof *part, 0) == (ssize_t)sizeof *part;
}

static unsigned check_parts(const char *bytes, uint64_t seed, int socket, uint64_t part) {
  unsigned reported = 0;
  do {
    pattern_check(bytes + part * PART, part_size(seed, part), seed + part);
    reported++;
  } while (next_report(socket, &part));
  return reported;
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
  /* From here on, data that the killed writer left in sockets is discarded. */
  assert_works(haul_region_unpublish(region, brief->name));
  unsigned reported = check_parts(bytes, brief->seed, socket, part);
  assert_int_equal(child_end(writer, socket), 128 + SIGKILL);
  return reported;
}

static void completed_writes_have_arrived(void **state) {
  static const char *const paths[] = {"map", "tcp"};
  static const enum memory_kind kinds[] = {KIND_HOST, KIND_WRAPPED};
  uint64_t chance = test_seed();
  unsigned before = open_descriptors(), reported = 0, cut = 0, attached = 0;
  struct haul_node *node;
  struct haul_region *regions[2];
  struct brief brief = {.seed = chance};
  (void)state;
  prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY); /* Yama: writers attach to this process */
  assert_works(haul_node_open(NULL, &node));
  assert_works(haul_node_listen(node, "tcp://127.0.0.1:0"));
  assert_works(haul_node_address(node, 0, brief.address, sizeof brief.address));
  for (unsigned k = 0; k < 2; k++)
    regions[k] = region_make(node, kinds[k], PARTS * PART);
  for (unsigned round = 0; round < 2 * ROUNDS; round++) {
    /* Wrapped memory cannot be mapped: map writes to it by cross-memory attach. Both paths write to
     * both kinds. */
    bool attaches = round % 8 == 2, wrapped = attaches || round % 8 == 3;
    snprintf(brief.only, sizeof brief.only, "%s", paths[round % 2]);
    snprintf(brief.name, sizeof brief.name, "%s", wrapped ? "wrapped" : "host");
    snprintf(brief.detail, sizeof brief.detail, "%s", attaches ? "cross-memory attach" : "");
    brief.seed += 1000;
    unsigned here = kill_one(regions[wrapped], &brief, &chance);
    reported += here;
    cut += here < PARTS;
    attached += attaches;
  }
  print_message("%u writes reported complete had arrived; %u of %u writers died before their last, "
                "%u wrote by cross-memory attach\n",
                reported, cut, 2 * ROUNDS, attached);
  assert_int_not_equal(attached, 0);
  for (unsigned k = 0; k < 2; k++)
    region_drop(regions[k], kinds[k]);
  haul_node_close(node);
  assert_int_equal(open_descriptors(), before);
  assert_int_equal(haul_mappings(), 0);
}

int main(int argc, char **argv) {
  if (argc > 1 && strcmp(argv[1], WRITER_MODE) == 0)
    return writer_main();
  const struct CMUnitTest tests[] = {cmocka_unit_test(completed_writes_have_arrived)};
  return cmocka_run_group_tests_name("kill", tests, NULL, NULL);
}
