/* SPDX-License-Identifier: MIT
 * Registered files: their descriptors and their lifetime. */
#include "usrbio/world.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

static struct hf3fs_ior ring_for(struct world *world, bool read) {
  struct hf3fs_ior ior;
  assert_int_equal(hf3fs_iorcreate(&ior, world->mount, 8, read, 0, -1), 0);
  return ior;
}

/* Prepares one byte; returns 0 or the error. */
static int try_fd(struct world *world, const struct hf3fs_ior *ior, int fd) {
  struct hf3fs_cqe cqe;
  int index = hf3fs_prep_io(ior, &world->iov, ior->for_read, world->iov.base, fd, 0, 1, NULL);
  if (index < 0)
    return index;
  assert_int_equal(hf3fs_submit_ios(ior), 0);
  world_wait(ior, &cqe, 1);
  assert_int_equal(cqe.index, index);
  assert_int_equal(cqe.result, 1);
  return 0;
}

static void either_descriptor_is_accepted(void **state) {
  struct world *world = *state;
  struct hf3fs_ior ior = ring_for(world, true);
  int file = open(world->path, O_RDONLY | O_CLOEXEC);
  assert_int_equal(try_fd(world, &ior, file), -EBADF);
  int number = hf3fs_reg_fd(file, 0);
  assert_true(number <= 0);
  assert_int_not_equal(-number, file);
  assert_int_equal(try_fd(world, &ior, file), 0);
  assert_int_equal(try_fd(world, &ior, number), 0);
  assert_int_equal(try_fd(world, &ior, -number), 0);
  assert_int_equal(try_fd(world, &ior, -file), 0);
  hf3fs_dereg_fd(file);
  assert_int_equal(try_fd(world, &ior, file), -EBADF);
  assert_int_equal(try_fd(world, &ior, number), -EBADF);
  assert_int_equal(fcntl(-number, F_GETFD), -1);
  assert_int_not_equal(fcntl(file, F_GETFD), -1);
  number = hf3fs_reg_fd(file, 0);
  hf3fs_dereg_fd(number); /* by the other number */
  assert_int_equal(try_fd(world, &ior, file), -EBADF);
  assert_int_not_equal(fcntl(file, F_GETFD), -1);
  close(file);
  hf3fs_iordestroy(&ior);
}

static void invalid_descriptors_are_rejected(void **state) {
  (void)state;
  struct world *world = *state;
  struct hf3fs_ior ior = ring_for(world, true);
  int null = open("/dev/null", O_RDWR | O_CLOEXEC);
  assert_int_equal(hf3fs_reg_fd(null, 0), EBADF);
  close(null);
  assert_int_equal(hf3fs_reg_fd(null, 0), EBADF);
  assert_int_equal(hf3fs_reg_fd(-1, 0), EBADF);
  assert_int_equal(hf3fs_reg_fd(INT_MIN, 0), EBADF);
  assert_int_equal(hf3fs_reg_fd(INT_MAX, 0), EBADF);
  const int numbers[] = {-1, INT_MIN, INT_MAX, -INT_MAX, 1 << 22, -(1 << 22), null, 4000000};
  for (size_t i = 0; i < COUNT(numbers); i++) {
    assert_int_equal(try_fd(world, &ior, numbers[i]), -EBADF);
    hf3fs_dereg_fd(numbers[i]);
  }
  assert_int_equal(hf3fs_reg_fd(world->file, 0), EINVAL);
  hf3fs_iordestroy(&ior);
}

static void closed_files_stay_registered(void **state) {
  struct world *world = *state;
  struct hf3fs_ior ior = ring_for(world, true);
  int file = open(world->path, O_RDONLY | O_CLOEXEC);
  int number = hf3fs_reg_fd(file, 0);
  close(file);
  assert_int_equal(try_fd(world, &ior, file), 0);
  assert_int_equal(try_fd(world, &ior, number), 0);
  int again = open(world->path, O_RDONLY | O_CLOEXEC);
  assert_int_equal(again, file);
  assert_int_equal(hf3fs_reg_fd(again, 0), EINVAL);
  hf3fs_dereg_fd(file);
  assert_true(hf3fs_reg_fd(again, 0) <= 0);
  hf3fs_dereg_fd(again);
  close(again);
  hf3fs_dereg_fd(again);
  hf3fs_iordestroy(&ior);
}

/* The kernel reuses the numbers of files that are closed without deregistering. */
static void reused_descriptor_numbers_are_harmless(void **state) {
  struct world *world = *state;
  struct hf3fs_ior ior = ring_for(world, true);
  int left[8], files[8];
  for (int i = 0; i < 8; i++) {
    left[i] = open(world->path, O_RDONLY | O_CLOEXEC);
    assert_true(hf3fs_reg_fd(left[i], 0) <= 0);
  }
  int file = open(world->path, O_RDONLY | O_CLOEXEC);
  for (int i = 0; i < 8; i++)
    close(left[i]);
  int number = hf3fs_reg_fd(file, 0); /* its duplicate might be one of them */
  assert_true(number < 0);
  for (int i = 0; i < 8; i++)
    assert_int_not_equal(-number, left[i]);
  assert_int_equal(try_fd(world, &ior, file), 0);
  hf3fs_dereg_fd(file);
  close(file);
  for (int i = 0; i < 8; i++) {
    hf3fs_dereg_fd(left[i]);
    files[i] = open(world->path, O_RDONLY | O_CLOEXEC);
    assert_true(hf3fs_reg_fd(files[i], 0) <= 0);
  }
  for (int i = 0; i < 8; i++) {
    hf3fs_dereg_fd(files[i]);
    close(files[i]);
  }
  hf3fs_iordestroy(&ior);
}

/* A program may close unknown descriptors, and open other files under their numbers. */
static void a_file_in_the_duplicates_place_stays_open(void **state) {
  struct world *world = *state;
  int file = open(world->path, O_RDONLY | O_CLOEXEC);
  int number = hf3fs_reg_fd(file, 0);
  int null = open("/dev/null", O_RDONLY | O_CLOEXEC);
  assert_int_equal(dup2(null, -number), -number);
  hf3fs_dereg_fd(file);
  assert_int_not_equal(fcntl(-number, F_GETFD), -1);
  close(-number);
  close(null);
  close(file);
}

static void access_modes_are_enforced(void **state) {
  struct world *world = *state;
  struct hf3fs_ior reading = ring_for(world, true), writing = ring_for(world, false);
  const struct {
    int mode, reads, writes;
  } modes[] = {{O_RDONLY, 0, -EACCES}, {O_WRONLY, -EACCES, 0}, {O_RDWR, 0, 0}};
  for (size_t i = 0; i < COUNT(modes); i++) {
    int file = open(world->path, modes[i].mode | O_CLOEXEC);
    int number = hf3fs_reg_fd(file, 0);
    assert_true(number <= 0);
    assert_int_equal(try_fd(world, &reading, file), modes[i].reads);
    assert_int_equal(try_fd(world, &writing, number), modes[i].writes);
    hf3fs_dereg_fd(file);
    close(file);
  }
  hf3fs_iordestroy(&reading);
  hf3fs_iordestroy(&writing);
}

static void *register_often(void *path) {
  for (int i = 0; i < 2000; i++) {
    int file = open(path, O_RDONLY | O_CLOEXEC);
    assert_true(hf3fs_reg_fd(file, 0) <= 0);
    hf3fs_dereg_fd(file);
    close(file);
  }
  return NULL;
}

/* Preparing takes no lock, and may or may not find a file that is being registered. */
static void preparing_never_blocks_on_registration(void **state) {
  struct world *world = *state;
  pthread_t threads[2];
  struct hf3fs_ior ior = ring_for(world, true);
  for (int i = 0; i < 2; i++)
    assert_int_equal(pthread_create(&threads[i], NULL, register_often, world->path), 0);
  for (int i = 0; i < 2000; i++) {
    assert_int_equal(try_fd(world, &ior, world->file), 0);
    int status = try_fd(world, &ior, world->file + 1 + i % 8);
    assert_true(status == 0 || status == -EBADF);
  }
  for (int i = 0; i < 2; i++)
    pthread_join(threads[i], NULL);
  hf3fs_iordestroy(&ior);
}

static void links_and_holes_are_made(void **state) {
  struct world *world = *state;
  char link[PATH_MAX + 8], deep[PATH_MAX + 300];
  struct stat one, other;
  snprintf(link, sizeof link, "%s/link", world->mount);
  assert_int_equal(hf3fs_hardlink(world->path, link), 0);
  assert_int_equal(stat(world->path, &one), 0);
  assert_int_equal(stat(link, &other), 0);
  assert_int_equal(one.st_ino, other.st_ino);
  assert_int_equal(hf3fs_hardlink(world->path, link), EEXIST);
  assert_int_equal(hf3fs_hardlink("/nowhere/file", link), ENOENT);
  assert_int_equal(hf3fs_hardlink(world->path, "/nowhere/link"), ENOENT);
  assert_int_equal(hf3fs_hardlink(world->path, "/dev/shm/link"), EXDEV);
  assert_int_equal(hf3fs_hardlink(world->path, ""), ENOENT);
  snprintf(deep, sizeof deep, "%s/", world->mount);
  assert_int_equal(hf3fs_hardlink(world->path, deep), EINVAL);
  size_t length = strlen(deep);
  memset(deep + length, 'n', 255);
  deep[length + 255] = '\0';
  assert_int_equal(hf3fs_hardlink(world->path, deep), ENAMETOOLONG);
  deep[length + 254] = '\0';
  assert_int_equal(hf3fs_hardlink(world->path, deep), 0);
  assert_int_equal(hf3fs_hardlink(NULL, link), EINVAL);
  assert_int_equal(hf3fs_hardlink(world->path, NULL), EINVAL);

  static size_t start[1001], end[1001];
  start[0] = 4096, end[0] = 12288;
  assert_int_equal(hf3fs_punchhole(world->file, 1, start, end, 0), 0);
  unsigned char bytes[4096], zeros[4096] = {0};
  assert_int_equal(pread(world->file, bytes, sizeof bytes, 8192), sizeof bytes);
  assert_memory_equal(bytes, zeros, sizeof zeros);
  assert_int_equal(hf3fs_punchhole(world->file, 0, NULL, NULL, 0), 0);
  assert_int_equal(hf3fs_punchhole(world->file, -1, start, end, 0), EINVAL);
  assert_int_equal(hf3fs_punchhole(world->file, 1001, start, end, 0), EINVAL);
  assert_int_equal(hf3fs_punchhole(world->file, 1, NULL, end, 0), EINVAL);
  assert_int_equal(hf3fs_punchhole(world->file, 1, start, NULL, 0), EINVAL);
  assert_int_equal(hf3fs_punchhole(world->file, 1, end, start, 0), EINVAL);
  assert_int_equal(hf3fs_punchhole(-1, 0, NULL, NULL, 0), EBADF);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      world_test(either_descriptor_is_accepted),
      world_test(invalid_descriptors_are_rejected),
      world_test(closed_files_stay_registered),
      world_test(reused_descriptor_numbers_are_harmless),
      world_test(a_file_in_the_duplicates_place_stays_open),
      world_test(access_modes_are_enforced),
      world_test(preparing_never_blocks_on_registration),
      world_test(links_and_holes_are_made),
  };
  return cmocka_run_group_tests_name("usrbio/files", tests, NULL, NULL);
}
