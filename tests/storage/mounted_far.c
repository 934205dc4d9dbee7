/* SPDX-License-Identifier: MIT
 * Rings on files of a server: what of it is not as on a disk of this host. The suites of rings and
 * devices run over such a mount, too. */
#include "support/check.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "hf3fs_usrbio.h"
#include "mounted.h"

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

struct user {
  struct hf3fs_iov iov;
  struct hf3fs_ior ior;
  int fd;
};

static void begin(struct user *user, const char *name, uint64_t flags) {
  *user = (struct user){.fd = open(at_point(&mounted, name), O_RDONLY)};
  assert_true(user->fd >= 0 && hf3fs_reg_fd(user->fd, 0) <= 0);
  assert_int_equal(hf3fs_iovcreate(&user->iov, mounted.point, 8 * MIB, 0, -1), 0);
  assert_int_equal(hf3fs_iorcreate4(&user->ior, mounted.point, 64, true, 0, 0, -1, flags), 0);
}

static void end(struct user *user) {
  hf3fs_iordestroy(&user->ior);
  hf3fs_iovdestroy(&user->iov);
  hf3fs_dereg_fd(user->fd);
  close(user->fd);
}

static void ask(struct user *user, uint64_t at, uint64_t offset, uint64_t length) {
  assert_true(hf3fs_prep_io(&user->ior, &user->iov, true, user->iov.base + at, user->fd, offset,
                            length, NULL) >= 0);
}

static int64_t wait_one(struct user *user) {
  struct timespec until;
  struct hf3fs_cqe done;
  clock_gettime(CLOCK_REALTIME, &until);
  until.tv_sec += 30;
  assert_int_equal(hf3fs_wait_for_ios(&user->ior, &done, 1, 1, &until), 1);
  return done.result;
}

static int64_t read_one(struct user *user, uint64_t offset, uint64_t length) {
  ask(user, 0, offset, length);
  assert_int_equal(hf3fs_submit_ios(&user->ior), 0);
  return wait_one(user);
}

static void any_part_is_read_as_it_is(void **state) {
  (void)state;
  struct user user;
  begin(&user, "file", 0);
  const size_t lengths[] = {1, 4096, MIB, MIB + 1, 5 * MIB};
  for (size_t i = 0; i < COUNT(lengths); i++)
    for (size_t at = 0; at + lengths[i] <= LENGTH; at += 999999) {
      assert_int_equal(read_one(&user, at, lengths[i]), lengths[i]);
      assert_memory_equal(user.iov.base, expected + at, lengths[i]);
    }
  assert_int_equal(read_one(&user, LENGTH - 4321, 3 * MIB), 4321);
  assert_int_equal(read_one(&user, LENGTH, MIB), 0);
  end(&user);
}

static void many_are_under_way(void **state) {
  (void)state;
  struct user user;
  begin(&user, "file", 0);
  memset(user.iov.base, 0, 6 * MIB);
  for (unsigned i = 0; i < 48; i++)
    ask(&user, i * 131072, i * 131072, 131072);
  assert_int_equal(hf3fs_submit_ios(&user.ior), 0);
  for (unsigned i = 0; i < 48; i++)
    assert_int_equal(wait_one(&user), 131072);
  assert_memory_equal(user.iov.base, expected, 6 * MIB);
  end(&user);
}

static void holes_are_told_by_flag(void **state) {
  (void)state;
  struct user user;
  int fd = open(at_source(&mounted, "sparse"), O_RDWR | O_CREAT, 0600);
  assert_int_equal(write(fd, expected, MIB), MIB);
  assert_int_equal(pwrite(fd, expected, MIB, 3 * MIB), MIB);
  assert_int_equal(ftruncate(fd, 5 * MIB), 0);
  close(fd);
  begin(&user, "sparse", HF3FS_IOR_FORBID_READ_HOLES);
  assert_int_equal(read_one(&user, 0, MIB), MIB);
  assert_int_equal(read_one(&user, 0, 4 * MIB), -ENODATA);
  assert_int_equal(read_one(&user, 3 * MIB, MIB), MIB);
  assert_int_equal(read_one(&user, 4 * MIB, 4096), -ENODATA);
  assert_int_equal(read_one(&user, 5 * MIB, 4096), 0);
  end(&user);
  begin(&user, "file", HF3FS_IOR_FORBID_READ_HOLES);
  assert_int_equal(read_one(&user, LENGTH - 100, MIB), 100);
  end(&user);
  begin(&user, "sparse", 0);
  memset(user.iov.base, 1, 4 * MIB);
  assert_int_equal(read_one(&user, MIB, MIB), MIB);
  for (size_t i = 0; i < MIB; i++)
    assert_int_equal(user.iov.base[i], 0);
  end(&user);
}

static void a_server_that_is_gone_is_told(void **state) {
  (void)state;
  struct user user;
  begin(&user, "file", 0);
  kill(mounted.server, SIGSTOP);
  int64_t result = read_one(&user, 0, 4 * MIB);
  assert_true(result == -ETIMEDOUT || result == -ENOTCONN);
  kill(mounted.server, SIGKILL);
  waitpid(mounted.server, NULL, 0);
  mounted.server = -1;
  assert_in_range(-read_one(&user, 0, 4096), 1, 4095);
  end(&user);
}

/* Its own operations fail, and the daemon lives. */
static void a_client_that_cuts_its_buffer_short_harms_itself(void **state) {
  (void)state;
  struct user bad, good;
  char name[64] = "/dev/shm/hf3fs-iov-";
  size_t length = strlen(name);
  begin(&bad, "file", 0);
  begin(&good, "file", 0);
  for (unsigned i = 0; i < 16; i++)
    length += (size_t)snprintf(name + length, sizeof name - length,
                               i == 4 || i == 6 || i == 8 || i == 10 ? "-%02x" : "%02x",
                               (unsigned char)bad.iov.id[i]);
  assert_int_equal(truncate(name, 4096), 0);
  assert_int_equal(read_one(&bad, 0, MIB), -EFAULT);
  assert_int_equal(read_one(&good, 0, MIB), MIB);
  assert_memory_equal(good.iov.base, expected, MIB);
  end(&good);
  end(&bad);
}

int main(void) {
  mounted_need_fuse();
  mounted_be_far();
#define TEST(test) cmocka_unit_test_setup_teardown(test, set_up, tear_down)
  const struct CMUnitTest tests[] = {
      TEST(any_part_is_read_as_it_is),
      TEST(many_are_under_way),
      TEST(holes_are_told_by_flag),
      TEST(a_server_that_is_gone_is_told),
      TEST(a_client_that_cuts_its_buffer_short_harms_itself),
  };
  return cmocka_run_group_tests_name("storage/mounted_far", tests, NULL, NULL);
}
