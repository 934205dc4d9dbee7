/* SPDX-License-Identifier: MIT
 * A peer that dies under a stream of large writes ends them with HAUL_EPEER; the application, whose
 * SIGPIPE has its default action, lives on. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "haul/haul.h"

#define SIZE   (8u << 20)
#define ROUNDS 30

static const struct haul_place host = {HAUL_HOST, 0};

/* The owner, in a process of its own: says its address and serves until it is killed. */
static void own(int out) {
  haul_node *node;
  haul_region *region;
  char address[128] = "";
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (haul_node_open(NULL, &node) || haul_region_alloc(node, host, SIZE, 0, &region) ||
      haul_region_publish(region, "target", HAUL_READ | HAUL_WRITE) ||
      haul_node_listen(node, "tcp://127.0.0.1:0") ||
      haul_node_address(node, 0, address, sizeof address))
    _exit(1);
  if (write(out, address, sizeof address) != (ssize_t)sizeof address)
    _exit(1);
  for (;;)
    pause();
}

static pid_t start_owner(char address[128]) {
  int ends[2];
  assert_int_equal(pipe(ends), 0);
  pid_t owner = fork();
  assert_true(owner >= 0);
  if (owner == 0)
    own(ends[1]);
  close(ends[1]);
  assert_int_equal(read(ends[0], address, 128), 128);
  close(ends[0]);
  return owner;
}

/* Writes until the owner, killed after `us`, is missed; returns the code. In a child, because a
 * process that opened haul cannot fork owners that do the same. */
static int write_until_killed(int progress, unsigned us) {
  char address[128];
  pid_t owner = start_owner(address);
  struct haul_node_config config = HAUL_NODE_CONFIG_INIT;
  struct haul_transfer_options options = HAUL_TRANSFER_OPTIONS_INIT;
  haul_node *node;
  haul_peer *peer;
  haul_remote *remote;
  haul_region *source;
  config.progress = progress;
  options.only = "tcp";
  haul_deadline until = haul_deadline_in(20000000000);
  if (haul_node_open(&config, &node) || haul_peer_connect(node, address, until, &peer) ||
      haul_peer_lookup(peer, "target", until, &remote) ||
      haul_region_alloc(node, host, SIZE, HAUL_REGION_PRIVATE, &source))
    return 1;
  memset(haul_region_address(source), 7, SIZE);
  pid_t killer = fork();
  if (killer == 0) {
    usleep(us);
    kill(owner, SIGKILL);
    _exit(0);
  }
  struct haul_piece piece = {0, 0, SIZE};
  int code = 0;
  while (code == 0)
    code = haul_write(remote, source, &piece, 1, &options, NULL);
  waitpid(killer, NULL, 0);
  waitpid(owner, NULL, 0);
  haul_region_release(source);
  haul_remote_release(remote);
  haul_peer_close(peer);
  haul_node_close(node);
  return code == HAUL_EPEER ? 0 : -code;
}

static void survives(int progress) {
  for (unsigned i = 0; i < ROUNDS; i++) {
    int status = 0;
    pid_t writer = fork();
    assert_true(writer >= 0);
    if (writer == 0) {
      signal(SIGPIPE, SIG_DFL);
      _exit(write_until_killed(progress, 1000 + 777 * i));
    }
    assert_int_equal(waitpid(writer, &status, 0), writer);
    assert_false(WIFSIGNALED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
  }
}

static void with_a_progress_thread(void **state) {
  (void)state;
  survives(HAUL_PROGRESS_THREAD);
}

static void driven_by_the_caller(void **state) {
  (void)state;
  survives(HAUL_PROGRESS_CALLER);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(with_a_progress_thread),
      cmocka_unit_test(driven_by_the_caller),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
