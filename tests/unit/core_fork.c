/* SPDX-License-Identifier: MIT
 * A child is detected, however it was made. */
#include "support/check.h"

#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/error.h"
#include "core/fork.h"
#include "support/child.h"

static void is_child(void *unused) {
  (void)unused;
  if (!fork_is_child())
    _exit(1);
  if (error_enter("haul_call") != HAUL_EFORK || haul_error_last()->hint[0] == '\0')
    _exit(2);
  _exit(10);
}

static void is_no_child(void *unused) {
  (void)unused;
  _exit(fork_is_child() ? 1 : 10);
}

static void grandchild(void *unused) {
  _exit(child_run(is_child, unused));
}

/* A child of a process without a node is an ordinary process. */
static void no_child_is_detected_before_the_watch(void **state) {
  (void)state;
  assert_int_equal(child_run(is_no_child, NULL), 10);
}

/* A process that was once short of memory can still open a node. */
static void a_failed_watch_is_tried_again(void **state) {
  (void)state;
  struct rlimit limit, none;
  assert_int_equal(getrlimit(RLIMIT_AS, &limit), 0);
  none = (struct rlimit){1, limit.rlim_max};
  assert_int_equal(setrlimit(RLIMIT_AS, &none), 0);
  int short_of_memory = fork_watch();
  assert_int_equal(setrlimit(RLIMIT_AS, &limit), 0);
  assert_int_equal(short_of_memory, ENOMEM);
  assert_int_equal(fork_watch(), 0);
}

static void a_forked_child_is_detected(void **state) {
  (void)state;
  assert_int_equal(fork_watch(), 0);
  assert_int_equal(fork_watch(), 0);
  assert_false(fork_is_child());
  assert_int_equal(child_run(is_child, NULL), 10);
  assert_int_equal(child_run(grandchild, NULL), 10);
  assert_false(fork_is_child());
}

/* clone() runs no pthread_atfork handlers. */
static void a_cloned_child_is_detected(void **state) {
  (void)state;
  int status;
  assert_int_equal(fork_watch(), 0);
  pid_t child = (pid_t)syscall(SYS_clone, SIGCHLD, NULL, NULL, NULL, NULL);
  if (child == 0)
    _exit(fork_is_child() ? 10 : 1);
  assert_true(child > 0);
  assert_int_equal(waitpid(child, &status, 0), child);
  assert_int_equal(WEXITSTATUS(status), 10);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(no_child_is_detected_before_the_watch),
      cmocka_unit_test(a_failed_watch_is_tried_again),
      cmocka_unit_test(a_forked_child_is_detected),
      cmocka_unit_test(a_cloned_child_is_detected),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
