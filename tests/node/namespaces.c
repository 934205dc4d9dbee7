/* SPDX-License-Identifier: MIT
 * A peer in another PID namespace, or of another user. Shared memory is mapped all the same.
 * Private memory is reached by the number of the peer's process, and each namespace counts for
 * itself: it is attached where this side has a number for the process, and refused with the reason
 * elsewhere.
 *
 *   main        starts `stranger` in a namespace of its own and `roots` in its own, and runs
 *   the tests   in another namespace, where `stranger` has no number, and `below`, in a namespace
 *               below theirs, has one that is not its own
 *   and others  as a user who is not root, in main's namespace */
#include "support/check.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <linux/sched.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "support/child.h"
#include "support/names.h"
#include "support/owner.h"

#define LENGTH  ((uint64_t)3 << 20)
#define SMALL   4096
#define NOBODY  65534
#define SKIPPED 77

static const struct haul_piece whole = {0, 0, LENGTH};

static struct owner stranger, roots, below;
static struct haul_node *node;
static struct haul_region *region;
static struct haul_peer *peer;
static struct haul_remote *remote;

static haul_deadline soon(void) {
  return haul_deadline_in(20 * S);
}

static void start_owner(struct owner *owner, const char *address) {
  owner_start(owner, address, NULL);
  owner_publish(owner, 0, KIND_HOST, LENGTH, "host", HAUL_READ | HAUL_WRITE);
  owner_publish(owner, 1, KIND_WRAPPED, LENGTH, "wrapped", HAUL_READ | HAUL_WRITE);
  owner_publish(owner, 2, KIND_PRIVATE, LENGTH, "private", HAUL_READ | HAUL_WRITE);
}

/* The next child is number 1 of a new namespace; no threads may be started until come_back. */
static int leave(void) {
  int ours = open("/proc/self/ns/pid", O_RDONLY | O_CLOEXEC);
  if (ours < 0 || unshare(CLONE_NEWPID) == 0)
    return ours;
  close(ours);
  return -1;
}

static void come_back(int ours) {
  assert_int_equal(setns(ours, CLONE_NEWPID), 0);
  close(ours);
}

static void start_below(struct owner *owner) {
  int ours = leave();
  assert_true(ours >= 0);
  start_owner(owner, "tcp://127.0.0.1:0");
  come_back(ours);
  assert_true(owner->pid > 1);
}

static void meet_as(const struct haul_node_config *config, const struct owner *owner,
                    const char *name) {
  assert_works(haul_node_open(config, &node));
  region = region_make(node, KIND_HOST, LENGTH);
  assert_works(haul_peer_connect(node, owner->address, soon(), &peer));
  assert_works(haul_peer_lookup(peer, name, soon(), &remote));
}

static void meet(const struct owner *owner, const char *name) {
  meet_as(NULL, owner, name);
}

static void part(void) {
  haul_remote_release(remote);
  haul_peer_close(peer);
  haul_region_release(region);
  haul_node_close(node);
}

/* All of it there and back, over this path. */
static void assert_moves(struct owner *owner, unsigned slot, const char *only) {
  struct haul_transfer_options options = HAUL_TRANSFER_OPTIONS_INIT;
  options.only = only;
  options.flags = HAUL_CHECKSUM;
  region_fill(node, region, 0, LENGTH, slot);
  assert_works(haul_write(remote, region, &whole, 1, &options, NULL));
  assert_true(owner_sum(owner, slot, 0, LENGTH) == region_sum(node, region, 0, LENGTH));
  owner_fill(owner, slot, 0, LENGTH, slot + 100);
  assert_works(haul_read(region, remote, &whole, 1, &options, NULL));
  pattern_check(haul_region_address(region), LENGTH, slot + 100);
}

static void assert_path(const char *name, const char *detail) {
  struct haul_path paths[HAUL_PATHS_MAX];
  size_t count = COUNT(paths);
  assert_works(haul_explain(region, remote, HAUL_OP_WRITE, LENGTH, NULL, paths, &count));
  assert_string_equal(paths[0].name, name);
  if (!strstr(paths[0].detail, detail))
    fail_msg("'%s' is in place of '%s'", paths[0].detail, detail);
}

static void shared_memory_of_a_stranger_is_mapped(void **state) {
  (void)state;
  meet(&stranger, "host");
  assert_path("map", "mapped");
  assert_moves(&stranger, 0, "map");
  part();
}

/* In its namespace the stranger is number 1, and here this process is. */
static void private_memory_of_a_stranger_is_refused_with_the_reason(void **state) {
  static const char *const names[] = {"wrapped", "private"};
  (void)state;
  assert_int_equal(getpid(), 1);
  for (unsigned i = 0; i < COUNT(names); i++) {
    struct haul_transfer_options options = HAUL_TRANSFER_OPTIONS_INIT;
    options.only = "map";
    meet(&stranger, names[i]);
    assert_fails(HAUL_ENOPATH, haul_write(remote, region, &whole, 1, &options, NULL));
    assert_non_null(strstr(haul_error_last()->hint, "not visible (another PID namespace)"));
    assert_moves(&stranger, i + 1, NULL);
    part();
  }
}

/* It is number 1 there, and this side's number for it is another. */
static void private_memory_below_is_attached(void **state) {
  static const char *const names[] = {"wrapped", "private"};
  (void)state;
  for (unsigned i = 0; i < COUNT(names); i++) {
    meet(&below, names[i]);
    assert_path("map", "cross-memory attach");
    assert_moves(&below, i + 1, "map");
    part();
  }
}

/* Number `pid` for a new process, as soon as it is free. Both are as fork says. */
static pid_t fork_as(pid_t pid) {
  struct clone_args arguments = {
      .exit_signal = SIGCHLD, .set_tid = (uintptr_t)&pid, .set_tid_size = 1};
  return (pid_t)syscall(SYS_clone3, &arguments, sizeof arguments);
}

/* Publishes the bytes until it is killed. */
static void own_bytes(void *bytes, int out) {
  char address[160] = "";
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (haul_node_open(NULL, &node) || haul_region_wrap(node, bytes, SMALL, &region) ||
      haul_region_publish(region, "bytes", HAUL_READ | HAUL_WRITE) ||
      haul_node_listen(node, "tcp://127.0.0.1:0") ||
      haul_node_address(node, 0, address, sizeof address) ||
      write(out, address, sizeof address) != (ssize_t)sizeof address)
    _exit(1);
  for (;;)
    pause();
}

/* Waits for a byte; status 0: the bytes are as they were. */
static void watch_bytes(const unsigned char *bytes, int in) {
  char byte;
  bool same = read(in, &byte, 1) == 1;
  for (size_t i = 0; i < SMALL; i++)
    same &= bytes[i] == 0;
  _exit(same ? 0 : 1);
}

/* This side does not look at its connections while it writes small pieces, so it has not seen the
 * peer die; meanwhile the peer's process id was given to another process that maps the same
 * address. */
static void a_number_that_was_given_away_is_not_touched(void **state) {
  struct haul_node_config config = HAUL_NODE_CONFIG_INIT;
  struct haul_transfer_options options = HAUL_TRANSFER_OPTIONS_INIT;
  const struct haul_piece piece = {0, 0, SMALL};
  struct owner owner;
  int said[2], go[2], status;
  (void)state;
  void *bytes =
      mmap(NULL, SMALL, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
  assert_true(bytes != MAP_FAILED && pipe(said) == 0 && pipe(go) == 0);
  owner.pid = fork();
  if (owner.pid == 0)
    own_bytes(bytes, said[1]);
  close(said[1]);
  assert_int_equal(read(said[0], owner.address, sizeof owner.address), sizeof owner.address);
  config.progress = HAUL_PROGRESS_CALLER;
  options.only = "map";
  meet_as(&config, &owner, "bytes");
  memset(haul_region_address(region), 'x', SMALL);
  assert_works(haul_write(remote, region, &piece, 1, &options, NULL));
  assert_path("map", "cross-memory attach");

  kill(owner.pid, SIGKILL);
  assert_int_equal(waitpid(owner.pid, &status, 0), owner.pid);
  pid_t other = fork_as(owner.pid);
  if (other == 0)
    watch_bytes(bytes, go[0]);
  if (other < 0)
    print_message("skipped a number that was given away: %s\n", strerror(errno));
  assert_fails(HAUL_EPEER, haul_write(remote, region, &piece, 1, &options, NULL));
  assert_int_equal(write(go[1], "", 1), 1);
  if (other > 0) {
    assert_int_equal(waitpid(other, &status, 0), owner.pid);
    assert_int_equal(status, 0);
  }
  part();
  munmap(bytes, SMALL);
  close(said[0]);
  close(go[0]);
  close(go[1]);
}

static void a_killed_namespace_is_detected_at_once(void **state) {
  struct haul_transfer_options options = HAUL_TRANSFER_OPTIONS_INIT;
  struct owner doomed;
  (void)state;
  start_below(&doomed);
  meet(&doomed, "wrapped");
  options.only = "map";
  assert_works(haul_write(remote, region, &whole, 1, &options, NULL));
  owner_kill(&doomed);
  haul_deadline until = haul_deadline_in(2 * S); /* the liveness timeout is 5 s */
  while (haul_peer_status(peer) == 0 && haul_deadline_in(0) < until)
    nanosleep(&(struct timespec){0, MS}, NULL);
  assert_fails(HAUL_EPEER, haul_peer_status(peer));
  assert_fails(HAUL_EPEER, haul_write(remote, region, &whole, 1, &options, NULL));
  part();
}

static int start(void **state) {
  (void)state;
  start_below(&below);
  return 0;
}

static int end(void **state) {
  (void)state;
  return owner_end(&below);
}

static void in_another_namespace(void *argument) {
  const struct CMUnitTest tests[] = {
      /* First, because a process that has opened a node cannot fork one that opens another. */
      cmocka_unit_test(a_number_that_was_given_away_is_not_touched),
      cmocka_unit_test(shared_memory_of_a_stranger_is_mapped),
      cmocka_unit_test(private_memory_of_a_stranger_is_refused_with_the_reason),
      cmocka_unit_test(private_memory_below_is_attached),
      cmocka_unit_test(a_killed_namespace_is_detected_at_once),
  };
  (void)argument;
  _exit(cmocka_run_group_tests_name("in another namespace", tests, start, end));
}

static void shared_memory_of_another_user_is_mapped(void **state) {
  (void)state;
  meet(&roots, "host");
  assert_path("map", "mapped");
  assert_moves(&roots, 0, "map");
  part();
}

static void private_memory_of_another_user_is_refused_with_the_reason(void **state) {
  struct haul_transfer_options options = HAUL_TRANSFER_OPTIONS_INIT;
  (void)state;
  options.only = "map";
  meet(&roots, "wrapped");
  assert_fails(HAUL_ENOPATH, haul_write(remote, region, &whole, 1, &options, NULL));
  assert_non_null(strstr(haul_error_last()->hint, "another user"));
  assert_moves(&roots, 1, NULL);
  part();
}

static int become_nobody(void **state) {
  (void)state;
  if (setgroups(0, NULL) != 0 || setresgid(NOBODY, NOBODY, NOBODY) != 0 ||
      setresuid(NOBODY, NOBODY, NOBODY) != 0) {
    print_message("skipped another user: %s\n", strerror(errno));
    _exit(0);
  }
  if (access("/", X_OK) != 0) { /* some chroots: no file has a path then */
    print_message("skipped another user: / may not be entered here: %s\n", strerror(errno));
    _exit(0);
  }
  return prctl(PR_SET_DUMPABLE, 1); /* its /proc/self is its own again */
}

static void as_another_user(void *argument) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(shared_memory_of_another_user_is_mapped),
      cmocka_unit_test(private_memory_of_another_user_is_refused_with_the_reason),
  };
  (void)argument;
  _exit(cmocka_run_group_tests_name("as another user", tests, become_nobody, NULL));
}

int main(int argc, char **argv) {
  if (argc > 1 && strcmp(argv[1], OWNER_MODE) == 0)
    return owner_main();
  int ours = leave();
  if (ours < 0) {
    printf("skipped namespaces: no PID namespace: %s\n", strerror(errno));
    return SKIPPED;
  }
  start_owner(&stranger, own_socket());
  come_back(ours);
  start_owner(&roots, "tcp://127.0.0.1:0");
  ours = leave();
  int failed = child_run(in_another_namespace, NULL);
  come_back(ours);
  failed |= child_run(as_another_user, NULL);
  failed |= owner_end(&stranger);
  return failed | owner_end(&roots);
}
