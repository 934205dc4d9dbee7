/* SPDX-License-Identifier: MIT
 * Full and broken disks, through rings and the file system: each has its error, the daemon
 * continues, and intact data is readable. */
#include "support/check.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <unistd.h>

#include "user.h"

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

static void a_full_disk_gives_a_short_write_then_enospc(void **state) {
  (void)state;
  struct user writer, reader;
  if (mount("haul-test", mounted.source, "tmpfs", 0, "size=2m") != 0) {
    print_message("skipped: no tmpfs can be mounted here: %s\n", strerror(errno));
    skip();
  }
  mounted_start(&mounted, NULL);
  user_begin(&writer, &mounted, "file", O_RDWR | O_CREAT, 0);
  memcpy(writer.iov.base, expected, 8 * MIB);
  int64_t put = user_do(&writer, 0, 8 * MIB);
  assert_in_range(put, MIB, 2 * MIB);
  assert_int_equal(user_do(&writer, (uint64_t)put, MIB), -ENOSPC);
  assert_int_equal(pwrite(writer.fd, expected, 4096, put), -1);
  assert_int_equal(errno, ENOSPC);
  user_begin(&reader, &mounted, "file", O_RDONLY, 0);
  assert_int_equal(user_do(&reader, 0, 8 * MIB), put);
  assert_memory_equal(reader.iov.base, expected, (size_t)put);
  user_end(&reader);
  user_end(&writer);
}

static bool run(const char *format, const char *first, const char *second) {
  char line[512];
  snprintf(line, sizeof line, format, first, second);
  return system(line) == 0;
}

/* A file system in a file that is truncated: blocks behind the end give EIO. */
static void a_broken_disk_gives_eio(void **state) {
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
  user_begin(&user, &mounted, "file", O_RDONLY, 0);
  assert_int_equal(user_do(&user, 0, MIB), MIB);
  assert_memory_equal(user.iov.base, expected, MIB);
  assert_int_equal(truncate(image, 4096), 0);
  assert_int_equal(user_do(&user, 4 * MIB, MIB), -EIO);
  assert_int_equal(user_do(&user, 4 * MIB + 1, 1000), -EIO); /* through the page cache */
  assert_int_equal(pread(user.fd, user.iov.base, MIB, 6 * MIB), -1);
  assert_int_equal(errno, EIO);
  user_end(&user);
}

int main(void) {
  mounted_need_fuse();
  if (geteuid() != 0) {
    printf("skipped: root alone makes disks that fail\n");
    return 77;
  }
#define TEST(test) cmocka_unit_test_setup_teardown(test, set_up, tear_down)
  const struct CMUnitTest tests[] = {
      TEST(a_full_disk_gives_a_short_write_then_enospc),
      TEST(a_broken_disk_gives_eio),
  };
  return cmocka_run_group_tests_name("storage/mounted_faults", tests, NULL, NULL);
}
