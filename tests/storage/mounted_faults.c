/* SPDX-License-Identifier: MIT
 * Disks that are full or broken, under rings and under the file system: each says what it is, the
 * daemon lives, and what is still there can be read. */
#include "support/check.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <time.h>
#include <unistd.h>

#include "hf3fs_usrbio.h"
#include "mounted.h"

#define MIB ((size_t)1 << 20)

static struct mounted mounted;
static char *expected;

static int set_up(void **state) {
  (void)state;
  mounted_make(&mounted);
  expected = malloc(8 * MIB);
  pattern_fill(expected, 8 * MIB, 5);
  return 0;
}

static int tear_down(void **state) {
  (void)state;
  mounted_end(&mounted);
  free(expected);
  return 0;
}

struct user {
  struct hf3fs_iov iov;
  struct hf3fs_ior ior;
  int fd;
};

static void begin(struct user *user, const char *name, bool reads) {
  *user = (struct user){.fd = open(at_point(&mounted, name), O_RDWR | O_CREAT, 0600)};
  assert_true(user->fd >= 0 && hf3fs_reg_fd(user->fd, 0) <= 0);
  assert_int_equal(hf3fs_iovcreate(&user->iov, mounted.point, 8 * MIB, 0, -1), 0);
  assert_int_equal(hf3fs_iorcreate4(&user->ior, mounted.point, 8, reads, 0, 0, -1, 0), 0);
}

static void end(struct user *user) {
  hf3fs_iordestroy(&user->ior);
  hf3fs_iovdestroy(&user->iov);
  hf3fs_dereg_fd(user->fd);
  close(user->fd);
}

static int64_t do_one(struct user *user, uint64_t offset, uint64_t length) {
  struct timespec until;
  struct hf3fs_cqe done;
  assert_true(hf3fs_prep_io(&user->ior, &user->iov, user->ior.for_read, user->iov.base, user->fd,
                            offset, length, NULL) >= 0);
  assert_int_equal(hf3fs_submit_ios(&user->ior), 0);
  clock_gettime(CLOCK_REALTIME, &until);
  until.tv_sec += 20;
  assert_int_equal(hf3fs_wait_for_ios(&user->ior, &done, 1, 1, &until), 1);
  return done.result;
}

static void a_full_disk_takes_what_it_can_and_says_so(void **state) {
  (void)state;
  struct user writer, reader;
  if (mount("haul-test", mounted.source, "tmpfs", 0, "size=2m") != 0) {
    print_message("skipped: no tmpfs can be mounted here: %s\n", strerror(errno));
    skip();
  }
  mounted_start(&mounted, NULL);
  begin(&writer, "file", false);
  memcpy(writer.iov.base, expected, 8 * MIB);
  int64_t put = do_one(&writer, 0, 8 * MIB);
  assert_in_range(put, MIB, 2 * MIB);
  assert_int_equal(do_one(&writer, (uint64_t)put, MIB), -ENOSPC);
  assert_int_equal(pwrite(writer.fd, expected, 4096, put), -1);
  assert_int_equal(errno, ENOSPC);
  begin(&reader, "file", true);
  assert_int_equal(do_one(&reader, 0, 8 * MIB), put);
  assert_memory_equal(reader.iov.base, expected, (size_t)put);
  end(&reader);
  end(&writer);
}

static bool run(const char *format, const char *first, const char *second) {
  char line[512];
  snprintf(line, sizeof line, format, first, second);
  return system(line) == 0;
}

/* A file system in a file; what lies on the part of it that is cut off cannot be read any more. */
static void a_broken_disk_is_told_from_all_else(void **state) {
  (void)state;
  char image[sizeof mounted.root + 16];
  struct user user;
  snprintf(image, sizeof image, "%s/image", mounted.root);
  if (!run("truncate -s 24M %s && mkfs.ext4 -q -O ^has_journal %s 2>/dev/null", image, image) ||
      !run("mount -o loop %s %s 2>/dev/null", image, mounted.source)) {
    print_message("skipped: no ext4 can be mounted by a loop device here\n");
    skip();
  }
  int fd = open(at_source(&mounted, "file"), O_RDWR | O_CREAT, 0600);
  assert_int_equal(write(fd, expected, 8 * MIB), 8 * MIB);
  assert_int_equal(fsync(fd), 0);
  posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
  close(fd);
  mounted_start(&mounted, NULL);
  begin(&user, "file", true);
  assert_int_equal(do_one(&user, 0, MIB), MIB);
  assert_memory_equal(user.iov.base, expected, MIB);
  assert_int_equal(truncate(image, 4096), 0);
  assert_int_equal(do_one(&user, 4 * MIB, MIB), -EIO);
  assert_int_equal(do_one(&user, 4 * MIB + 1, 1000), -EIO); /* by the page cache */
  assert_int_equal(pread(user.fd, user.iov.base, MIB, 6 * MIB), -1);
  assert_int_equal(errno, EIO);
  end(&user);
}

int main(void) {
  mounted_need_fuse();
  if (geteuid() != 0) {
    printf("skipped: root alone makes disks that fail\n");
    return 77;
  }
#define TEST(test) cmocka_unit_test_setup_teardown(test, set_up, tear_down)
  const struct CMUnitTest tests[] = {
      TEST(a_full_disk_takes_what_it_can_and_says_so),
      TEST(a_broken_disk_is_told_from_all_else),
  };
  return cmocka_run_group_tests_name("storage/mounted_faults", tests, NULL, NULL);
}
