/* SPDX-License-Identifier: MIT
 * Rings on remote files, where they differ from local ones. The suites of rings and devices run on
 * such a mount, too. */
#include "support/check.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "support/child.h"
#include "user.h"

#define MIB    ((size_t)1 << 20)
#define LENGTH (6 * MIB + 4321)

static struct mounted mounted;
static char *expected;

static int set_up(void **state) {
  (void)state;
  const char *const options[] = {"--timeout", "2", NULL};
  mounted_make(&mounted);
  expected = malloc(LENGTH);
  pattern_fill(expected, LENGTH, 9);
  int fd = open(at_source(&mounted, "file"), O_RDWR | O_CREAT, 0600);
  assert_int_equal(write(fd, expected, LENGTH), LENGTH);
  close(fd);
  mounted_start(&mounted, options);
  return 0;
}

static int tear_down(void **state) {
  (void)state;
  mounted_end(&mounted);
  free(expected);
  return 0;
}

static void any_range_is_read(void **state) {
  (void)state;
  struct user user;
  user_begin(&user, &mounted, "file", O_RDONLY, 0);
  const size_t lengths[] = {1, 4096, MIB, MIB + 1, 5 * MIB};
  for (size_t i = 0; i < COUNT(lengths); i++)
    for (size_t at = 0; at + lengths[i] <= LENGTH; at += 999999) {
      assert_int_equal(user_do(&user, at, lengths[i]), lengths[i]);
      assert_memory_equal(user.iov.base, expected + at, lengths[i]);
    }
  assert_int_equal(user_do(&user, LENGTH - 4321, 3 * MIB), 4321);
  assert_int_equal(user_do(&user, LENGTH, MIB), 0);
  user_end(&user);
}

static void many_operations_are_in_flight(void **state) {
  (void)state;
  struct user user;
  user_begin(&user, &mounted, "file", O_RDONLY, 0);
  memset(user.iov.base, 0, 6 * MIB);
  for (unsigned i = 0; i < 48; i++)
    assert_true(user_prepare(&user, i * 131072, i * 131072, 131072) >= 0);
  assert_int_equal(hf3fs_submit_ios(&user.ior), 0);
  for (unsigned i = 0; i < 48; i++)
    assert_int_equal(user_wait(&user, 30), 131072);
  assert_memory_equal(user.iov.base, expected, 6 * MIB);
  user_end(&user);
}

static void holes_fail_with_forbid_read_holes(void **state) {
  (void)state;
  struct user user;
  int fd = open(at_source(&mounted, "sparse"), O_RDWR | O_CREAT, 0600);
  assert_int_equal(write(fd, expected, MIB), MIB);
  assert_int_equal(pwrite(fd, expected, MIB, 3 * MIB), MIB);
  assert_int_equal(ftruncate(fd, 5 * MIB), 0);
  close(fd);
  user_begin(&user, &mounted, "sparse", O_RDONLY, HF3FS_IOR_FORBID_READ_HOLES);
  assert_int_equal(user_do(&user, 0, MIB), MIB);
  assert_int_equal(user_do(&user, 0, 4 * MIB), -ENODATA);
  assert_int_equal(user_do(&user, 3 * MIB, MIB), MIB);
  assert_int_equal(user_do(&user, 4 * MIB, 4096), -ENODATA);
  assert_int_equal(user_do(&user, 5 * MIB, 4096), 0);
  user_end(&user);
  user_begin(&user, &mounted, "file", O_RDONLY, HF3FS_IOR_FORBID_READ_HOLES);
  assert_int_equal(user_do(&user, LENGTH - 100, MIB), 100);
  user_end(&user);
  user_begin(&user, &mounted, "sparse", O_RDONLY, 0);
  memset(user.iov.base, 1, 4 * MIB);
  assert_int_equal(user_do(&user, MIB, MIB), MIB);
  for (size_t i = 0; i < MIB; i++)
    assert_int_equal(user.iov.base[i], 0);
  user_end(&user);
}

static void a_dead_server_is_reported(void **state) {
  (void)state;
  struct user user;
  user_begin(&user, &mounted, "file", O_RDONLY, 0);
  child_stop(mounted.server);
  int64_t result = user_do(&user, 0, 4 * MIB);
  assert_true(result == -ETIMEDOUT || result == -ENOTCONN);
  kill(mounted.server, SIGKILL);
  waitpid(mounted.server, NULL, 0);
  mounted.server = -1;
  assert_in_range(-user_do(&user, 0, 4096), 1, 4095);
  user_end(&user);
}

/* Although the user still has a file of the old connection open. */
static void a_restarted_server_is_used_again(void **state) {
  (void)state;
  struct user before, after;
  user_begin(&before, &mounted, "file", O_RDONLY, 0);
  assert_int_equal(user_do(&before, 0, MIB), MIB);
  mounted_restart_server(&mounted);
  int fd = -1;
  assert_true(eventually((fd = open(at_point(&mounted, "file"), O_RDONLY)) >= 0));
  close(fd);
  user_begin(&after, &mounted, "file", O_RDONLY, 0);
  assert_int_equal(user_do(&after, MIB, MIB), MIB);
  assert_memory_equal(after.iov.base, expected + MIB, MIB);
  user_end(&after);
  user_end(&before);
}

/* With more operations than could time out one after the other. */
static void a_stopped_server_does_not_delay_the_end(void **state) {
  (void)state;
  struct user user;
  user_begin(&user, &mounted, "file", O_RDONLY, 0);
  child_stop(mounted.server);
  for (unsigned i = 0; i < 60; i++)
    assert_true(user_prepare(&user, i * 4096, i * 4096, 4096) >= 0);
  assert_int_equal(hf3fs_submit_ios(&user.ior), 0);
  mounted_pause(300);
  kill(mounted.daemon, SIGTERM);
  assert_int_equal(mounted_wait(&mounted), 0); /* within ten seconds */
  user_end(&user);
}

static void cut_buffer(const struct user *user) {
  char name[64] = "/dev/shm/hf3fs-iov-";
  size_t length = strlen(name);
  for (unsigned i = 0; i < 16; i++)
    length += (size_t)snprintf(name + length, sizeof name - length,
                               i == 4 || i == 6 || i == 8 || i == 10 ? "-%02x" : "%02x",
                               (unsigned char)user->iov.id[i]);
  assert_int_equal(truncate(name, 4096), 0);
}

/* Its own operations fail without changing the file; the daemon continues. */
static void truncating_a_buffer_harms_its_client_alone(void **state) {
  (void)state;
  struct user reader, writer, good;
  user_begin(&reader, &mounted, "file", O_RDONLY, 0);
  user_begin(&writer, &mounted, "file", O_RDWR, 0);
  user_begin(&good, &mounted, "file", O_RDONLY, 0);
  cut_buffer(&reader);
  cut_buffer(&writer);
  assert_int_equal(user_do(&reader, 0, MIB), -EFAULT);
  assert_int_equal(user_do(&writer, 0, MIB), -EFAULT);
  assert_int_equal(user_do(&good, 0, MIB), MIB);
  assert_memory_equal(good.iov.base, expected, MIB);
  user_end(&good);
  user_end(&writer);
  user_end(&reader);
}

int main(void) {
  mounted_need_fuse();
  mounted_use_server();
#define TEST(test) cmocka_unit_test_setup_teardown(test, set_up, tear_down)
  const struct CMUnitTest tests[] = {
      TEST(any_range_is_read),
      TEST(many_operations_are_in_flight),
      TEST(holes_fail_with_forbid_read_holes),
      TEST(a_dead_server_is_reported),
      TEST(a_restarted_server_is_used_again),
      TEST(a_stopped_server_does_not_delay_the_end),
      TEST(truncating_a_buffer_harms_its_client_alone),
  };
  return cmocka_run_group_tests_name("storage/mounted_remote", tests, NULL, NULL);
}
