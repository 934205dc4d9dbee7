/* SPDX-License-Identifier: MIT
 * Processes of a job find each other, with any launcher and in any order; and a wrong start is
 * reported. */
#include "support/check.h"

#include <fcntl.h>
#include <haul/world.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "support/owner.h"
#include "support/raw.h"

#define BOUND (30 * S)
#define RANKS 5

static char port[8];

static haul_deadline soon(void) {
  return haul_deadline_in(BOUND);
}

/* A rank: this program again */

/* Says to each other one who it is, and hears it of each. */
static void greet_all(haul_node *node, haul_world *world) {
  bool heard[RANKS] = {false};
  unsigned size = haul_world_size(world), rank = haul_world_rank(world);
  haul_peer *peers[RANKS] = {NULL};
  for (unsigned i = 0; i < size; i++) {
    if (i == rank)
      continue;
    haul_peer *again;
    assert_works(haul_world_peer(world, i, soon(), &peers[i]));
    assert_works(haul_world_peer(world, i, soon(), &again));
    assert_ptr_equal(again, peers[i]);
    haul_peer_close(again);
    assert_works(haul_message_send(peers[i], rank, "hello", 5, soon()));
  }
  for (unsigned i = 1; i < size; i++) {
    struct haul_message message;
    assert_works(haul_message_receive(node, &message, soon()));
    assert_true(message.tag < size && !heard[message.tag]);
    heard[message.tag] = true;
    haul_message_release(&message);
  }
  for (unsigned i = 0; i < size; i++)
    haul_peer_close(peers[i]);
}

/* Nobody ends before all are through: then its parent closes its end of the pipe. */
static void wait_for_all(haul_node *node) {
  char byte = 0;
  struct pollfd go = {.fd = atoi(getenv("WORLD_GO")), .events = POLLIN};
  assert_int_equal(write(atoi(getenv("WORLD_DONE")), &byte, 1), 1);
  while (poll(&go, 1, 0) == 0)
    haul_node_progress(node, haul_deadline_in(10 * MS));
}

/* Its exit status: 0, or the code without its sign; WORLD_WAIT is for how many seconds it waits. */
static int be_rank(const char *mode) {
  struct haul_node_config config = HAUL_NODE_CONFIG_INIT;
  const char *wait = getenv("WORLD_WAIT");
  haul_node *node;
  haul_world *world;
  config.progress = strcmp(mode, "caller") == 0 ? HAUL_PROGRESS_CALLER : HAUL_PROGRESS_THREAD;
  assert_works(haul_node_open(&config, &node));
  int code = haul_world_join(node, wait ? haul_deadline_in(atoi(wait) * S) : soon(), &world);
  if (code == 0) {
    haul_peer *peer;
    unsigned rank = haul_world_rank(world), size = haul_world_size(world);
    assert_fails(HAUL_ERANGE, haul_world_peer(world, rank, soon(), &peer));
    assert_fails(HAUL_ERANGE, haul_world_peer(world, size, soon(), &peer));
    assert_null(haul_world_address(world, size));
    greet_all(node, world);
    if (getenv("WORLD_GO"))
      wait_for_all(node);
    haul_world_leave(world);
  } else {
    fprintf(stderr, "%s\n", haul_error_last()->text);
  }
  haul_node_close(node);
  return -code;
}

static pid_t start(const char *const *environment, const char *mode) {
  pid_t child = fork();
  if (child == 0) {
    for (; *environment; environment += 2)
      setenv(environment[0], environment[1], 1);
    execl("/proc/self/exe", "world", mode, NULL);
    _exit(99);
  }
  return child;
}

static int ended(pid_t child) {
  int status;
  assert_int_equal(waitpid(child, &status, 0), child);
  assert_true(WIFEXITED(status));
  return -WEXITSTATUS(status);
}

static int choose_port(void **state) {
  struct sockaddr_in own;
  socklen_t size = sizeof own;
  int fd = raw_listen("tcp://127.0.0.1:0");
  (void)state;
  assert_int_equal(getsockname(fd, (struct sockaddr *)&own, &size), 0);
  snprintf(port, sizeof port, "%u", ntohs(own.sin_port));
  close(fd);
  setenv("HAUL_WORLD_PORT", port, 1);
  setenv("MASTER_ADDR", "127.0.0.1", 1);
  unsetenv("MASTER_PORT");
  return 0;
}

/* RANKS of them, named as the launcher does; the one that is `last` comes later. */
static void all_meet(const char *rank_name, const char *size_name, unsigned last) {
  pid_t children[RANKS];
  int go[2], done[2];
  char rank[RANKS][8], size[8], number[8], bytes[RANKS];
  assert_int_equal(pipe(go) || pipe(done), 0);
  assert_int_equal(fcntl(go[1], F_SETFD, FD_CLOEXEC), 0);
  snprintf(number, sizeof number, "%d", go[0]);
  setenv("WORLD_GO", number, 1);
  snprintf(number, sizeof number, "%d", done[1]);
  setenv("WORLD_DONE", number, 1);
  snprintf(size, sizeof size, "%d", RANKS);
  for (unsigned i = 0; i < RANKS; i++)
    snprintf(rank[i], sizeof rank[i], "%u", i);
  for (unsigned i = 0; i < RANKS; i++)
    if (i != last)
      children[i] = start((const char *const[]){rank_name, rank[i], size_name, size, NULL},
                          i % 2 ? "caller" : "thread");
  usleep(200000); /* the others wait meanwhile, or come later still: all is well either way */
  children[last] =
      start((const char *const[]){rank_name, rank[last], size_name, size, NULL}, "thread");
  close(done[1]);
  for (size_t got = 0, more; got < RANKS && (more = (size_t)read(done[0], bytes, RANKS)) > 0;)
    got += more; /* or the end, when those that are left have ended */
  close(go[1]);
  for (unsigned i = 0; i < RANKS; i++)
    assert_int_equal(ended(children[i]), 0);
  close(go[0]);
  close(done[0]);
  unsetenv("WORLD_GO");
}

static void started_by_torchrun(void **state) {
  (void)state;
  all_meet("RANK", "WORLD_SIZE", 3);
}

static void started_by_mpi(void **state) {
  (void)state;
  all_meet("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", 0);
  all_meet("PMI_RANK", "PMI_SIZE", 0);
}

static void started_by_slurm(void **state) {
  (void)state;
  all_meet("SLURM_PROCID", "SLURM_NTASKS", 0);
}

/* Which path transfers take is another matter. */
static void with_one_path_that_is_closed(void **state) {
  (void)state;
  setenv("HAUL_PATHS", "rdma", 1);
  all_meet("RANK", "WORLD_SIZE", 1);
  unsetenv("HAUL_PATHS");
}

static void one_alone_is_a_world(void **state) {
  (void)state;
  assert_int_equal(
      ended(start((const char *const[]){"RANK", "0", "WORLD_SIZE", "1", NULL}, "caller")), 0);
}

static int alone(const char *rank, const char *size) {
  const char *const environment[] = {"RANK", rank, "WORLD_SIZE", size, "WORLD_WAIT", "1", NULL};
  return ended(start(environment, "thread"));
}

static void a_missing_rank_times_out(void **state) {
  (void)state;
  assert_int_equal(alone("0", "2"), HAUL_ETIMEDOUT);
  int code = alone("1", "2"); /* and no rank 0 */
  assert_true(code == HAUL_ECONNECT || code == HAUL_ETIMEDOUT);
}

static void numbers_that_are_none(void **state) {
  (void)state;
  assert_int_equal(alone("2", "2"), HAUL_EINVAL);
  assert_int_equal(alone("-1", "2"), HAUL_EINVAL);
  assert_int_equal(alone("x", "2"), HAUL_EINVAL);
  assert_int_equal(alone("0", "0"), HAUL_EINVAL);
  assert_int_equal(alone("0", "1000000"), HAUL_EINVAL);
  const char *const nothing[] = {"WORLD_WAIT", "1", NULL};
  assert_int_equal(ended(start(nothing, "thread")), HAUL_ENOTSUP);
}

static void two_with_one_rank(void **state) {
  const char *const zero[] = {"RANK", "0", "WORLD_SIZE", "3", "WORLD_WAIT", "2", NULL};
  const char *const one[] = {"RANK", "1", "WORLD_SIZE", "3", "WORLD_WAIT", "60", NULL};
  (void)state;
  pid_t first = start(zero, "thread"), second = start(one, "thread"), third = start(one, "thread");
  assert_int_equal(ended(first), HAUL_ETIMEDOUT);
  int codes[] = {ended(second), ended(third)};
  assert_true((codes[0] == HAUL_EEXIST) != (codes[1] == HAUL_EEXIST));
}

static void ranks_that_count_differently(void **state) {
  const char *const zero[] = {"RANK", "0", "WORLD_SIZE", "2", "WORLD_WAIT", "2", NULL};
  const char *const one[] = {"RANK", "1", "WORLD_SIZE", "3", "WORLD_WAIT", "3", NULL};
  (void)state;
  pid_t first = start(zero, "thread");
  assert_int_equal(ended(start(one, "thread")), HAUL_EPROTO);
  assert_int_equal(ended(first), HAUL_ETIMEDOUT);
}

#define TEST(test) cmocka_unit_test_setup(test, choose_port)

int main(int argc, char **argv) {
  if (argc > 1)
    return be_rank(argv[1]);
  const struct CMUnitTest tests[] = {
      TEST(started_by_torchrun),
      TEST(started_by_mpi),
      TEST(started_by_slurm),
      TEST(with_one_path_that_is_closed),
      TEST(one_alone_is_a_world),
      TEST(a_missing_rank_times_out),
      TEST(numbers_that_are_none),
      TEST(two_with_one_rank),
      TEST(ranks_that_count_differently),
  };
  return cmocka_run_group_tests_name("node/world", tests, NULL, NULL);
}
