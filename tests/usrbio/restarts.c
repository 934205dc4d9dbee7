/* SPDX-License-Identifier: MIT
 * Daemons that die and are replaced, and forked clients. */
#include "usrbio/world.h"

#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

#include "support/child.h"

#define ENTRIES 8

static struct hf3fs_ior ring(struct world *world) {
  struct hf3fs_ior ior;
  assert_int_equal(hf3fs_iorcreate(&ior, world->mount, ENTRIES, true, 0, -1), 0);
  return ior;
}

static void register_again(struct world *world) {
  hf3fs_dereg_fd(world->file);
  assert_true(hf3fs_reg_fd(world->file, 0) <= 0);
}

static int prepare(struct world *world, const struct hf3fs_ior *ior) {
  return hf3fs_prep_io(ior, &world->iov, true, world->iov.base, world->file, 0, 1, world);
}

static int read_one(struct world *world, const struct hf3fs_ior *ior) {
  struct hf3fs_cqe cqe;
  assert_true(prepare(world, ior) >= 0);
  assert_int_equal(hf3fs_submit_ios(ior), 0);
  world_wait(ior, &cqe, 1);
  return (int)cqe.result;
}

static void check_dead(struct world *world, const struct hf3fs_ior *ior) {
  struct hf3fs_cqe cqe;
  assert_int_equal(hf3fs_wait_for_ios(ior, &cqe, 1, 1, NULL), -ENOTCONN);
  assert_int_equal(hf3fs_wait_for_ios(ior, &cqe, 1, 0, NULL), -ENOTCONN);
  assert_int_equal(prepare(world, ior), -ENOTCONN);
  assert_int_equal(hf3fs_submit_ios(ior), -ENOTCONN);
}

/* A wait without a deadline returns the operations in flight, once. */
static void waits_end_when_the_daemon_dies(void **state) {
  struct world *world = *state;
  struct hf3fs_ior ior = ring(world);
  struct hf3fs_cqe cqes[ENTRIES];
  daemon_hold(true);
  for (int i = 0; i < 5; i++)
    assert_true(prepare(world, &ior) >= 0);
  struct ring_submission submission;
  assert_true(daemon_next(daemon_ring(&ior), &submission));
  daemon_complete(daemon_ring(&ior), submission.index, 1);
  daemon_die();
  int got = hf3fs_wait_for_ios(&ior, cqes, ENTRIES, 5, NULL);
  assert_int_equal(got, 5);
  assert_int_equal(cqes[0].index, submission.index);
  assert_int_equal(cqes[0].result, 1);
  for (int i = 1; i < 5; i++) {
    assert_int_equal(cqes[i].result, -ENOTCONN);
    assert_ptr_equal(cqes[i].userdata, world);
  }
  check_dead(world, &ior);
  hf3fs_iordestroy(&ior);
}

/* Calls with room for fewer completions return all of them in turn. */
static void all_operations_complete_in_turn(void **state) {
  struct world *world = *state;
  struct hf3fs_ior ior = ring(world);
  struct hf3fs_cqe cqes[2];
  daemon_hold(true);
  for (int i = 0; i < 5; i++)
    assert_true(prepare(world, &ior) >= 0);
  daemon_die();
  assert_int_equal(hf3fs_wait_for_ios(&ior, cqes, 2, 2, NULL), 2);
  assert_int_equal(hf3fs_wait_for_ios(&ior, cqes, 2, 2, NULL), 2);
  assert_int_equal(hf3fs_wait_for_ios(&ior, cqes, 2, 2, NULL), 1);
  assert_int_equal(cqes[0].result, -ENOTCONN);
  check_dead(world, &ior);
  hf3fs_iordestroy(&ior);
}

/* Also by polling, and by waits shorter than a second. */
static void short_waits_detect_a_dead_daemon(void **state) {
  struct world *world = *state;
  const long times[] = {-1000, 50};
  for (size_t i = 0; i < COUNT(times); i++) {
    struct hf3fs_ior ior = ring(world);
    struct hf3fs_cqe cqe;
    daemon_hold(true);
    assert_true(prepare(world, &ior) >= 0);
    daemon_die();
    struct timespec end = world_in(AGES * 1000), now;
    int got = 0;
    do {
      struct timespec deadline = world_in(times[i]);
      got = hf3fs_wait_for_ios(&ior, &cqe, 1, 1, &deadline);
      assert_in_range(got, 0, 1);
      usleep(1000);
      now = world_in(0);
    } while (got == 0 && now.tv_sec < end.tv_sec);
    assert_int_equal(got, 1);
    assert_int_equal(cqe.result, -ENOTCONN);
    hf3fs_iordestroy(&ior);
    daemon_restart();
    register_again(world);
  }
}

/* Waits check its liveness, and send it no request, which would wait for it. */
static void a_slow_daemon_is_not_dead(void **state) {
  struct world *world = *state;
  struct hf3fs_ior ior = ring(world);
  struct hf3fs_cqe cqe;
  daemon_hold(true);
  assert_true(prepare(world, &ior) >= 0);
  unsigned before = daemon_liveness_checks(), requests = daemon_requests();
  struct timespec deadline = world_in(2500);
  assert_int_equal(hf3fs_wait_for_ios(&ior, &cqe, 1, 1, &deadline), 0);
  assert_int_equal(hf3fs_wait_for_ios(&ior, &cqe, 1, 0, NULL), 0);
  assert_in_range(daemon_liveness_checks() - before, 1, 25);
  assert_int_equal(daemon_requests(), requests);
  daemon_hold(false);
  hf3fs_submit_ios(&ior);
  world_wait(&ior, &cqe, 1);
  assert_int_equal(cqe.result, 1);
  hf3fs_iordestroy(&ior);
}

/* A client that changed its user fails the check, and its rings still work. */
static void a_failed_liveness_check_is_not_death(void **state) {
  struct world *world = *state;
  const int errors[] = {EACCES, EINTR, ENOMEM, ENOLCK};
  for (size_t i = 0; i < COUNT(errors); i++) {
    struct hf3fs_ior ior = ring(world);
    struct hf3fs_cqe cqe;
    daemon_hold(true);
    daemon_fail_liveness(errors[i]);
    assert_true(prepare(world, &ior) >= 0);
    unsigned before = daemon_liveness_checks();
    struct timespec deadline = world_in(1200);
    assert_int_equal(hf3fs_wait_for_ios(&ior, &cqe, 1, 1, &deadline), 0);
    assert_true(daemon_liveness_checks() > before);
    daemon_hold(false);
    hf3fs_submit_ios(&ior);
    world_wait(&ior, &cqe, 1);
    assert_int_equal(cqe.result, 1);
    daemon_fail_liveness(0);
    hf3fs_iordestroy(&ior);
  }
}

static void a_busy_ring_checks_no_liveness(void **state) {
  struct world *world = *state;
  struct hf3fs_ior ior = ring(world);
  unsigned before = daemon_liveness_checks();
  for (int i = 0; i < 1000; i++)
    assert_int_equal(read_one(world, &ior), 1);
  assert_in_range(daemon_liveness_checks() - before, 0, 100); /* the machine may stall */
  hf3fs_iordestroy(&ior);
}

/* As of 3FS. Nor does it count as dead by a file that another user has put there. */
static void a_daemon_without_a_lock_counts_as_alive(void **state) {
  struct world *world = *state;
  char lock[64];
  snprintf(lock, sizeof lock, "/dev/shm/sem.haul-test-%d-1" SEMAPHORE_LOCK, (int)getpid());
  for (int of_other = 0; of_other <= (geteuid() == 0); of_other++) {
    struct hf3fs_cqe cqe;
    daemon_restart();
    assert_int_equal(of_other ? chown(lock, 12001, 12001) : unlinkat(AT_FDCWD, lock, 0), 0);
    struct hf3fs_ior ior = ring(world);
    register_again(world);
    daemon_hold(true);
    assert_true(prepare(world, &ior) >= 0);
    daemon_die();
    struct timespec deadline = world_in(1200);
    assert_int_equal(hf3fs_wait_for_ios(&ior, &cqe, 1, 1, &deadline), 0);
    daemon_hold(false);
    hf3fs_iordestroy(&ior);
  }
}

static void nothing_is_created_without_a_daemon(void **state) {
  struct world *world = *state;
  struct hf3fs_ior ior;
  struct hf3fs_iov iov;
  daemon_die();
  assert_int_equal(hf3fs_iovcreate(&iov, world->mount, 4096, 0, -1), -ENOTCONN);
  assert_false(world_has(daemon_last_target()));
  assert_int_equal(hf3fs_iorcreate(&ior, world->mount, 8, true, 0, -1), -ENOTCONN);
  assert_false(world_has(daemon_last_target()));
}

/* The inode number may mean another file of the new mount. */
static void files_of_a_dead_daemon_are_rejected(void **state) {
  struct world *world = *state;
  daemon_die();
  daemon_restart();
  struct hf3fs_ior ior = ring(world);
  assert_int_equal(prepare(world, &ior), -EBADF);
  register_again(world);
  assert_true(prepare(world, &ior) >= 0);
  hf3fs_iordestroy(&ior);
}

/* New objects can be created while those of the old daemon exist. */
static void a_new_daemon_is_used(void **state) {
  struct world *world = *state;
  for (int i = 0; i < 3; i++) {
    struct hf3fs_ior old = ring(world);
    daemon_hold(true);
    assert_true(prepare(world, &old) >= 0);
    daemon_die();
    struct hf3fs_cqe cqe;
    assert_int_equal(hf3fs_wait_for_ios(&old, &cqe, 1, 1, NULL), 1);
    assert_int_equal(cqe.result, -ENOTCONN);
    daemon_restart();
    daemon_hold(false);
    struct hf3fs_iov iov;
    assert_int_equal(hf3fs_iovcreate(&iov, world->mount, 4096, 0, -1), 0);
    struct hf3fs_ior ior = ring(world);
    hf3fs_iovdestroy(&world->iov);
    world->iov = iov;
    register_again(world);
    assert_int_equal(read_one(world, &ior), 1);
    check_dead(world, &old);
    hf3fs_iordestroy(&old);
    assert_int_equal(read_one(world, &ior), 1);
    hf3fs_iordestroy(&ior);
  }
}

/* The number of descriptors of the control directory. */
static int holds(struct world *world) {
  char folder[PATH_MAX + 32], link[64], path[PATH_MAX];
  int count = 0;
  snprintf(folder, sizeof folder, "%s/3fs-virt/iovs", world->mount);
  for (int fd = 0; fd < 1024; fd++) {
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length < 0)
      continue;
    path[length] = '\0';
    count += strcmp(path, folder) == 0;
  }
  return count;
}

static void a_process_holds_one_descriptor_per_mount(void **state) {
  struct world *world = *state;
  assert_int_equal(holds(world), 1);
  struct hf3fs_ior rings[10];
  for (int i = 0; i < 10; i++)
    rings[i] = ring(world);
  assert_int_equal(holds(world), 1);
  for (int i = 0; i < 10; i++)
    hf3fs_iordestroy(&rings[i]);
  hf3fs_iovdestroy(&world->iov);
  assert_int_equal(holds(world), 1); /* would end registrations made without the library */
}

/* A program may close the descriptor that shows its liveness. */
static void closing_the_liveness_descriptor_is_detected(void **state) {
  struct world *world = *state;
  struct hf3fs_ior ior = ring(world);
  struct hf3fs_cqe cqe;
  char link[64], path[PATH_MAX];
  daemon_hold(true);
  assert_true(prepare(world, &ior) >= 0);
  for (int fd = 3; fd < 1024; fd++) {
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, sizeof path);
    if (length > 5 && strncmp(path + length - 5, "/iovs", 5) == 0)
      close(fd);
  }
  assert_int_equal(hf3fs_wait_for_ios(&ior, &cqe, 1, 1, NULL), 1);
  assert_int_equal(cqe.result, -ENOTCONN);
  hf3fs_iordestroy(&ior);
}

/* A forked child is a new client; the mock daemon's threads are not in it. */
static void make_another(void *argument) {
  struct world *world = argument;
  struct hf3fs_iov iov;
  struct hf3fs_ior ior;
  if (holds(world) != 1 || hf3fs_iovcreate(&iov, world->mount, 4096, 0, -1) != 0)
    _exit(1);
  if (holds(world) != 2) /* the parent's descriptor may be the last one */
    _exit(2);
  if (hf3fs_iorcreate(&ior, world->mount, 8, true, 0, -1) != 0 || holds(world) != 2)
    _exit(3);
  int file = open(world->path, O_RDONLY | O_CLOEXEC);
  if (hf3fs_reg_fd(file, 0) > 0 ||
      hf3fs_prep_io(&ior, &iov, true, iov.base, world->file, 0, 1, NULL) < 0)
    _exit(4);
  hf3fs_iordestroy(&ior);
  hf3fs_iovdestroy(&iov);
}

static void a_forked_child_is_a_new_client(void **state) {
  struct world *world = *state;
  struct hf3fs_ior ior = ring(world);
  assert_int_equal(read_one(world, &ior), 1);
  assert_int_equal(child_run(make_another, world), 0);
  assert_int_equal(read_one(world, &ior), 1);
  hf3fs_iordestroy(&ior);
}

struct parents {
  struct world *world;
  struct hf3fs_ior ior;
};

/* As after daemon(3): the child uses the parent's rings. */
static void go_on(void *argument) {
  struct parents *parents = argument;
  struct hf3fs_cqe cqe;
  struct timespec deadline = world_in(AGES * 1000);
  if (prepare(parents->world, &parents->ior) < 0 || hf3fs_submit_ios(&parents->ior) != 0)
    _exit(1);
  if (hf3fs_wait_for_ios(&parents->ior, &cqe, 1, 1, &deadline) != 1 || cqe.result != 1)
    _exit(2);
}

static void a_forked_child_keeps_the_parents_rings(void **state) {
  struct parents parents = {.world = *state, .ior = ring(*state)};
  assert_int_equal(read_one(parents.world, &parents.ior), 1);
  assert_int_equal(child_run(go_on, &parents), 0);
  hf3fs_iordestroy(&parents.ior);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      world_test(waits_end_when_the_daemon_dies),
      world_test(all_operations_complete_in_turn),
      world_test(short_waits_detect_a_dead_daemon),
      world_test(a_slow_daemon_is_not_dead),
      world_test(a_failed_liveness_check_is_not_death),
      world_test(a_busy_ring_checks_no_liveness),
      world_test(a_daemon_without_a_lock_counts_as_alive),
      world_test(nothing_is_created_without_a_daemon),
      world_test(files_of_a_dead_daemon_are_rejected),
      world_test(a_new_daemon_is_used),
      world_test(a_process_holds_one_descriptor_per_mount),
      world_test(closing_the_liveness_descriptor_is_detected),
      world_test(a_forked_child_is_a_new_client),
      world_test(a_forked_child_keeps_the_parents_rings),
  };
  return cmocka_run_group_tests_name("usrbio/restarts", tests, NULL, NULL);
}
