/* SPDX-License-Identifier: MIT
 * `haul mount haul://HOST/EXPORT`, for ordinary programs: this process serves, the command mounts.
 * */
#include "support/check.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "mounted.h"
#include "served.h"

#define MIB  ((size_t)1 << 20)
#define SIZE (3 * MIB + 17)

static struct mounted mounted;
static struct served served;
static char folder[sizeof mounted.source];

static void serve_and_mount(bool writable) {
  served_open(&served, folder, writable);
  snprintf(mounted.source, sizeof mounted.source, "haul://%.40s/" SERVED_EXPORT,
           served.address + strlen("tcp://"));
  const char *const options[] = {"--timeout", "5", NULL};
  mounted_start(&mounted, options);
}

static int set_up(void **state) {
  (void)state;
  mounted_make(&mounted);
  snprintf(folder, sizeof folder, "%s", mounted.source);
  folder_put(folder, "file", "hello");
  assert_int_equal(mkdir(folder_path(folder, "folder"), 0755), 0);
  folder_put(folder, "folder/inner", "inside");
  serve_and_mount(true);
  return 0;
}

static int tear_down(void **state) {
  (void)state;
  mounted_end(&mounted);
  if (served.node)
    served_close(&served);
  return 0;
}

static void assert_has(const char *path, const char *text) {
  char bytes[64] = {0};
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  assert_true(fd >= 0);
  assert_int_equal(read(fd, bytes, sizeof bytes - 1), strlen(text));
  assert_string_equal(bytes, text);
  close(fd);
}

static void files_are_read_and_listed(void **state) {
  (void)state;
  struct statvfs space;
  unsigned count = 0;
  assert_has(at_point(&mounted, "file"), "hello");
  assert_has(at_point(&mounted, "folder/inner"), "inside");
  DIR *names = opendir(mounted.point);
  assert_non_null(names);
  while (readdir(names))
    count++;
  closedir(names);
  assert_int_equal(count, 4);
  assert_int_equal(open(at_point(&mounted, "none"), O_RDONLY | O_CLOEXEC), -1);
  assert_int_equal(errno, ENOENT);
  assert_int_equal(statvfs(mounted.point, &space), 0);
  assert_true(space.f_blocks > 0);
}

static void files_are_created_changed_and_renamed(void **state) {
  (void)state;
  struct stat stat_of;
  folder_put(mounted.point, "new", "text");
  assert_has(folder_path(folder, "new"), "text");
  assert_int_equal(mkdir(at_point(&mounted, "made"), 0700), 0);
  assert_int_equal(rename(at_point(&mounted, "new"), at_point(&mounted, "made/moved")), 0);
  assert_has(folder_path(folder, "made/moved"), "text");
  assert_int_equal(link(at_point(&mounted, "file"), at_point(&mounted, "other")), 0);
  assert_int_equal(symlink("file", at_point(&mounted, "link")), 0);
  assert_has(at_point(&mounted, "link"), "hello");
  assert_int_equal(truncate(at_point(&mounted, "other"), 2), 0);
  assert_has(folder_path(folder, "file"), "he");
  assert_int_equal(chmod(at_point(&mounted, "file"), 0600), 0);
  assert_int_equal(stat(folder_path(folder, "file"), &stat_of), 0);
  assert_int_equal(stat_of.st_mode & 07777, 0600);
  assert_int_equal(unlink(at_point(&mounted, "made/moved")), 0);
  assert_int_equal(rmdir(at_point(&mounted, "made")), 0);
  assert_int_equal(access(folder_path(folder, "made"), F_OK), -1);
}

static void a_large_file_round_trips(void **state) {
  (void)state;
  char *bytes = malloc(SIZE);
  pattern_fill(bytes, SIZE, 3);
  int fd = open(at_point(&mounted, "large"), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  assert_true(fd >= 0);
  assert_int_equal(write(fd, bytes, SIZE), SIZE);
  assert_int_equal(fsync(fd), 0);
  close(fd);
  fd = open(at_point(&mounted, "large"), O_RDONLY | O_CLOEXEC);
  memset(bytes, 0, SIZE);
  assert_int_equal(read(fd, bytes, SIZE), SIZE);
  pattern_check(bytes, SIZE, 3);
  char *mapped = mmap(NULL, SIZE, PROT_READ, MAP_SHARED, fd, 0);
  assert_true(mapped != MAP_FAILED);
  pattern_check(mapped, SIZE, 3);
  munmap(mapped, SIZE);
  close(fd);
  free(bytes);
}

static void a_read_only_tree_rejects_changes(void **state) {
  (void)state;
  assert_int_equal(unlink(at_point(&mounted, "file")), 0);
  mounted_end(&mounted);
  served_close(&served);
  mounted_make(&mounted);
  snprintf(folder, sizeof folder, "%s", mounted.source);
  folder_put(folder, "file", "hello");
  serve_and_mount(false);
  assert_has(at_point(&mounted, "file"), "hello");
  assert_int_equal(unlink(at_point(&mounted, "file")), -1);
  assert_int_equal(errno, EROFS);
  assert_int_equal(open(at_point(&mounted, "file"), O_WRONLY | O_CLOEXEC), -1);
  assert_int_equal(errno, EROFS);
}

static void a_dead_server_gives_errors(void **state) {
  (void)state;
  int fd = open(at_point(&mounted, "file"), O_RDONLY | O_CLOEXEC);
  assert_true(fd >= 0);
  served_close(&served);
  served.node = NULL;
  char byte;
  assert_int_equal(read(fd, &byte, 1), -1);
  assert_true(errno == ENOTCONN || errno == ESTALE);
  close(fd);
  assert_int_equal(access(at_point(&mounted, "folder/inner"), R_OK), -1);
  assert_int_equal(errno, ENOTCONN);
}

int main(void) {
#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
  const struct CMUnitTest tests[] = {
      TEST(files_are_read_and_listed),  TEST(files_are_created_changed_and_renamed),
      TEST(a_large_file_round_trips),   TEST(a_read_only_tree_rejects_changes),
      TEST(a_dead_server_gives_errors),
  };
  mounted_need_fuse();
  return cmocka_run_group_tests(tests, NULL, NULL);
}
