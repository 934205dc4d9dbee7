/* SPDX-License-Identifier: MIT
 * Rings: creation, registration, destruction. */
#include "usrbio/world.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static void check_zeroed(const struct hf3fs_ior *ior) {
  static const struct hf3fs_ior zeroed;
  assert_memory_equal(ior, &zeroed, sizeof zeroed);
}

/* The name without its id. */
static const char *marks(void) {
  return daemon_last_name() + 36;
}

static void every_constructor_registers_its_attributes(void **state) {
  struct world *world = *state;
  struct hf3fs_ior ior;
  assert_int_equal(hf3fs_iorcreate(&ior, world->mount, 8, true, 4, -1), 0);
  assert_string_equal(marks(), ".r4.t0");
  hf3fs_iordestroy(&ior);
  assert_int_equal(hf3fs_iorcreate2(&ior, world->mount, 8, false, 0, -7, -1), 0);
  assert_string_equal(marks(), ".w0.ph.t0");
  hf3fs_iordestroy(&ior);
  assert_int_equal(hf3fs_iorcreate3(&ior, world->mount, 8, true, -100, 1, 250, 0), 0);
  assert_string_equal(marks(), ".r-100.pl.t250");
  hf3fs_iordestroy(&ior);
  assert_int_equal(hf3fs_iorcreate4(&ior, world->mount, 8, true, 8, 5, 0,
                                    HF3FS_IOR_FORBID_READ_HOLES | HAUL_IOR_DURABLE),
                   0);
  assert_string_equal(marks(), ".r8.t5.f110");
  assert_int_equal(daemon_registered(), 2);
  hf3fs_iordestroy(&ior); /* by the full name, with all attributes */
  assert_int_equal(daemon_registered(), 1);
}

static void the_ring_describes_itself(void **state) {
  struct world *world = *state;
  struct hf3fs_ior ior;
  assert_int_equal(hf3fs_iorcreate3(&ior, world->mount, 32, true, 16, -1, 7, -1), 0);
  assert_string_equal(ior.mount_point, world->mount);
  assert_string_equal(ior.iov.mount_point, world->mount);
  assert_true(ior.for_read);
  assert_int_equal(ior.io_depth, 16);
  assert_int_equal(ior.priority, -1);
  assert_int_equal(ior.timeout, 7);
  assert_int_equal(ior.iov.size, hf3fs_ior_size(32));
  assert_int_equal(hf3fs_io_entries(&ior), 32);
  assert_int_equal(daemon_ring(&ior)->slots, 33);
  assert_false(world_has(daemon_last_target()));
  hf3fs_iovdestroy(&ior.iov); /* belongs to the ring; destroying it does nothing */
  assert_int_equal(hf3fs_submit_ios(&ior), 0);
  hf3fs_iordestroy(&ior);
}

static void invalid_arguments_are_rejected(void **state) {
  struct world *world = *state;
  struct hf3fs_ior ior;
  const struct {
    const char *mount;
    int entries, depth, timeout, status;
  } wrong[] = {
      {NULL, 8, 0, 0, -EINVAL},
      {"", 8, 0, 0, -EINVAL},
      {"/nowhere", 8, 0, 0, -ENOENT},
      {world->mount, 0, 0, 0, -EINVAL},
      {world->mount, -1, 0, 0, -EINVAL},
      {world->mount, RING_ENTRIES + 1, 0, 0, -EINVAL},
      {world->mount, INT_MAX, 0, 0, -EINVAL},
      {world->mount, 8, 9, 0, -EINVAL}, /* more than the ring can hold */
      {world->mount, 8, INT_MIN, 0, -EINVAL},
      {world->mount, 8, 0, -1, -EINVAL},
  };
  for (size_t i = 0; i < COUNT(wrong); i++) {
    memset(&ior, 0xff, sizeof ior);
    assert_int_equal(hf3fs_iorcreate4(&ior, wrong[i].mount, wrong[i].entries, true, wrong[i].depth,
                                      wrong[i].timeout, -1, 0),
                     wrong[i].status);
    check_zeroed(&ior);
    hf3fs_iordestroy(&ior);
  }
  assert_int_equal(hf3fs_iorcreate(NULL, world->mount, 8, true, 0, -1), -EINVAL);
  hf3fs_iordestroy(NULL);
  assert_int_equal(hf3fs_io_entries(NULL), 0);
  assert_int_equal(hf3fs_io_entries(&ior), 0);
}

static void a_failure_leaves_nothing_behind(void **state) {
  struct world *world = *state;
  struct hf3fs_ior ior;
  daemon_fail_symlinks(EMFILE);
  assert_int_equal(hf3fs_iorcreate(&ior, world->mount, 8, true, 0, -1), -EMFILE);
  check_zeroed(&ior);
  assert_false(world_has(daemon_last_target()));
  daemon_fail_symlinks(0);
}

/* The daemon controls the target of the semaphore's link. */
static void only_semaphores_are_opened(void **state) {
  struct world *world = *state;
  struct hf3fs_ior ior;
  char link[PATH_MAX], empty[64];
  snprintf(link, sizeof link, "%s/3fs-virt/iovs/submit-ios", world->mount);
  snprintf(empty, sizeof empty, "/dev/shm/sem.haul-test-%d-empty", (int)getpid());
  close(open(empty, O_CREAT | O_RDWR | O_CLOEXEC, 0600));
  const struct {
    const char *target;
    int status;
  } wrong[] = {{"/etc/passwd", -EIO},
               {"/dev/shm/", -EIO},
               {"/dev/shm/sem.", -EIO},
               {"/dev/shm/sem.a/b", -EIO},
               {"/dev/shm/sem../../etc/passwd", -EIO},
               {"sem.a", -EIO},
               {"/dev/shm/sem.haul-test-missing", -ENOENT},
               {empty, -EIO}};
  for (size_t i = 0; i < COUNT(wrong); i++) {
    unlinkat(AT_FDCWD, link, 0);
    assert_int_equal(symlinkat(wrong[i].target, AT_FDCWD, link), 0);
    assert_int_equal(hf3fs_iorcreate(&ior, world->mount, 8, true, 0, -1), wrong[i].status);
    check_zeroed(&ior);
  }
  unlinkat(AT_FDCWD, link, 0);
  assert_int_equal(hf3fs_iorcreate(&ior, world->mount, 8, true, 0, -1), -ENOENT);
  unlinkat(AT_FDCWD, empty, 0);
}

static void wait_until_woken(int priority, unsigned before) {
  for (int i = 0; i < AGES * 1000 && daemon_woken(priority) == before; i++)
    usleep(1000);
  assert_true(daemon_woken(priority) > before);
}

static void each_priority_has_its_semaphore(void **state) {
  struct world *world = *state;
  for (int priority = -1; priority <= 1; priority++) {
    struct hf3fs_ior ior;
    unsigned before[] = {daemon_woken(0), daemon_woken(1), daemon_woken(2)};
    assert_int_equal(hf3fs_iorcreate2(&ior, world->mount, 8, true, 0, priority * 3, -1), 0);
    assert_int_equal(hf3fs_submit_ios(&ior), 0);
    wait_until_woken(priority + 1, before[priority + 1]);
    for (int other = 0; other < 3; other++)
      assert_int_equal(daemon_woken(other), before[other] + (other == priority + 1));
    hf3fs_iordestroy(&ior);
  }
}

static void a_ring_is_created_from_its_own_fields(void **state) {
  struct world *world = *state;
  struct hf3fs_ior ior;
  assert_int_equal(hf3fs_iorcreate(&ior, world->mount, 8, true, 0, -1), 0);
  hf3fs_iordestroy(&ior);
  assert_int_equal(hf3fs_iorcreate(&ior, ior.mount_point, 8, true, 0, -1), 0);
  assert_string_equal(ior.mount_point, world->mount);
  hf3fs_iordestroy(&ior);
}

static void a_thousand_rings_are_created(void **state) {
  struct world *world = *state;
  struct hf3fs_ior *rings = calloc(1000, sizeof *rings);
  assert_non_null(rings);
  for (int i = 0; i < 1000; i++)
    assert_int_equal(hf3fs_iorcreate(&rings[i], world->mount, 1 + i % 7, true, 0, -1), 0);
  for (int i = 0; i < 1000; i++) {
    assert_true(hf3fs_prep_io(&rings[i], &world->iov, true, world->iov.base + i, world->file,
                              (size_t)i, 1, &rings[i]) >= 0);
    assert_int_equal(hf3fs_submit_ios(&rings[i]), 0);
  }
  for (int i = 0; i < 1000; i++) {
    struct hf3fs_cqe cqe;
    world_wait(&rings[i], &cqe, 1);
    assert_int_equal(cqe.result, 1);
    assert_ptr_equal(cqe.userdata, &rings[i]);
  }
  pattern_check(world->iov.base, 1000, 1);
  for (int i = 0; i < 1000; i++)
    hf3fs_iordestroy(&rings[i]);
  assert_int_equal(daemon_registered(), 1);
  free(rings);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      world_test(every_constructor_registers_its_attributes),
      world_test(the_ring_describes_itself),
      world_test(invalid_arguments_are_rejected),
      world_test(a_failure_leaves_nothing_behind),
      world_test(only_semaphores_are_opened),
      world_test(each_priority_has_its_semaphore),
      world_test(a_ring_is_created_from_its_own_fields),
      world_test(a_thousand_rings_are_created),
  };
  return cmocka_run_group_tests_name("usrbio/rings", tests, NULL, NULL);
}
