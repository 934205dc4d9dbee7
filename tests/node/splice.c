/* SPDX-License-Identifier: MIT
 * Large writes over tcp are copied where the system forbids splicing; the report, haul_explain and
 * the checks show it. */
#include "support/check.h"

#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <stddef.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "support/owner.h"
#include "support/rails.h"

#define BOUND  (20 * S)
#define LENGTH (1 << 20)

static struct {
  struct haul_node *owner, *user;
  struct haul_region *target, *source;
  struct haul_peer *peer;
  struct haul_remote *remote;
} t;

static haul_deadline soon(void) {
  return haul_deadline_in(BOUND);
}

static void connect_user(void) {
  char address[160];
  assert_works(haul_node_address(t.owner, 0, address, sizeof address));
  assert_works(haul_node_open(NULL, &t.user));
  assert_works(haul_peer_connect(t.user, address, soon(), &t.peer));
  assert_works(haul_peer_lookup(t.peer, "target", soon(), &t.remote));
  t.source = region_make(t.user, KIND_HOST, LENGTH);
  open_rails(t.remote, t.source);
}

static int set_up(void **state) {
  (void)state;
  assert_works(haul_node_open(NULL, &t.owner));
  assert_works(haul_node_listen(t.owner, "tcp://127.0.0.1:0"));
  t.target = region_make(t.owner, KIND_HOST, LENGTH);
  assert_works(haul_region_publish(t.target, "target", HAUL_READ | HAUL_WRITE));
  return 0;
}

static int tear_down(void **state) {
  (void)state;
  haul_region_release(t.source);
  haul_remote_release(t.remote);
  haul_peer_close(t.peer);
  haul_node_close(t.user);
  haul_region_release(t.target);
  haul_node_close(t.owner);
  return 0;
}

static unsigned copies_explained(void) {
  struct haul_transfer_options options = HAUL_TRANSFER_OPTIONS_INIT;
  struct haul_path path;
  options.only = "tcp";
  assert_works(
      haul_explain(t.source, t.remote, HAUL_OP_WRITE, LENGTH, &options, &path, &(size_t){1}));
  return path.copies_kernel;
}

/* Writes, and returns the reported number of kernel copies. */
static unsigned copies_reported(void) {
  struct haul_transfer_options options = HAUL_TRANSFER_OPTIONS_INIT;
  struct haul_report report = HAUL_REPORT_INIT;
  struct haul_piece piece = {0, 0, LENGTH};
  struct haul_transfer *transfer;
  options.only = "tcp";
  region_fill(t.user, t.source, 0, LENGTH, 7);
  assert_works(haul_write(t.remote, t.source, &piece, 1, &options, &transfer));
  assert_works(haul_transfer_wait(transfer, soon()));
  assert_works(haul_transfer_report(transfer, &report));
  haul_transfer_release(transfer);
  pattern_check(haul_region_address(t.target), LENGTH, 7);
  return report.paths[0].copies_kernel;
}

static struct haul_check splice_check(void) {
  struct haul_check checks[64];
  size_t count = COUNT(checks);
  assert_works(haul_check_list(t.owner, checks, &count));
  for (size_t i = 0; i < count; i++)
    if (strcmp(checks[i].name, "tcp.splice") == 0)
      return checks[i];
  fail_msg("no check tcp.splice");
  return checks[0];
}

/* Exhausts the descriptors; returns the limit to restore. */
static struct rlimit without_descriptors(void) {
  struct rlimit before, none;
  int next = dup(0);
  assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
  none = (struct rlimit){(rlim_t)next, before.rlim_max};
  assert_int_equal(setrlimit(RLIMIT_NOFILE, &none), 0);
  close(next);
  return before;
}

static void large_writes_are_spliced(void **state) {
  (void)state;
  connect_user();
  assert_int_equal(copies_explained(), 1);
  assert_int_equal(copies_reported(), 1);
  assert_int_equal(splice_check().state, HAUL_CHECK_OK);
}

static void writes_are_copied_without_a_pipe(void **state) {
  (void)state;
  connect_user();
  assert_int_equal(copies_explained(), 1);
  struct rlimit before = without_descriptors();
  unsigned reported = copies_reported();
  struct haul_check check = splice_check();
  setrlimit(RLIMIT_NOFILE, &before);
  assert_int_equal(reported, 2);
  assert_int_equal(copies_explained(), 2);
  assert_int_equal(copies_reported(), 2); /* for the life of the connection */
  assert_int_equal(check.state, HAUL_CHECK_LIMITED);
  assert_string_equal(check.remedy, "ulimit -n 65536");
}

/* In this thread and the threads that it starts. */
static void forbid(unsigned call) {
  struct sock_filter filter[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, call, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  struct sock_fprog program = {COUNT(filter), filter};
  assert_int_equal(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
  assert_int_equal(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program, 0, 0), 0);
}

static unsigned explained, reported;
static struct haul_check checked;

static void *write_in_a_sandbox(void *call) {
  forbid((unsigned)(uintptr_t)call);
  connect_user();
  explained = copies_explained();
  reported = copies_reported();
  checked = splice_check();
  return NULL;
}

static void writes_are_copied_without_the_call(void **state) {
  pthread_t thread;
  pthread_create(&thread, NULL, write_in_a_sandbox, *state);
  pthread_join(thread, NULL);
  assert_int_equal(explained, 2);
  assert_int_equal(reported, 2);
  assert_int_equal(checked.state, HAUL_CHECK_LIMITED);
  assert_non_null(strstr(checked.text, strerror(EPERM)));
  assert_non_null(strstr(checked.remedy, "filter"));
}

int main(void) {
#define WITHOUT_CALL(call)                                                                         \
  {                                                                                                \
    "writes_are_copied_without_" #call, writes_are_copied_without_the_call, set_up, tear_down,     \
        (void *)(uintptr_t)SYS_##call                                                              \
  }
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup_teardown(large_writes_are_spliced, set_up, tear_down),
      cmocka_unit_test_setup_teardown(writes_are_copied_without_a_pipe, set_up, tear_down),
      WITHOUT_CALL(vmsplice),
      WITHOUT_CALL(splice),
  };
  return cmocka_run_group_tests_name("splice", tests, NULL, NULL);
}
