/* SPDX-License-Identifier: MIT
 * Finding USRBIO file systems and their mount points, with a mock mountinfo and temporary folders.
 * */
#include "usrbio/world.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

static char root[PATH_MAX], table[PATH_MAX + 8];
static bool no_table;

__attribute__((visibility("default"))) FILE *fopen(const char *restrict path,
                                                   const char *restrict mode);

/* Mock of libc's fopen: redirects mountinfo to another file. */
FILE *fopen(const char *restrict path, const char *restrict mode) {
  bool is_table = strcmp(path, "/proc/self/mountinfo") == 0;
  if (is_table && no_table)
    return NULL;
  int file = open(is_table && root[0] ? table : path, O_RDONLY | O_CLOEXEC);
  return file < 0 ? NULL : fdopen(file, mode);
}

static void folder(const char *path) {
  char whole[PATH_MAX * 2];
  snprintf(whole, sizeof whole, "%s%s", root, path);
  assert_int_equal(mkdir(whole, 0700), 0);
}

/* Lines of mountinfo; %s is the root. */
static void write_table(const char *const *lines, size_t count) {
  int file = open(table, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  assert_true(file >= 0);
  for (size_t i = 0; i < count; i++) {
    const char *place = strstr(lines[i], "%s");
    if (place)
      dprintf(file, "%.*s%s%s\n", (int)(place - lines[i]), lines[i], root, place + 2);
    else
      dprintf(file, "%s\n", lines[i]);
  }
  close(file);
}

static int make_folders(void **state) {
  (void)state;
  char made[] = "/tmp/haul-usrbio.XXXXXX";
  assert_non_null(mkdtemp(made));
  assert_non_null(realpath(made, root));
  snprintf(table, sizeof table, "%s/table", root);
  static const char *const folders[] = {
      "/a",          "/a/3fs-virt",          "/a/b",   "/a/b/3fs-virt", "/a/b/c",        "/ab",
      "/with space", "/with space/3fs-virt", "/plain", "/only",         "/only/3fs-virt"};
  for (size_t i = 0; i < COUNT(folders); i++)
    folder(folders[i]);
  static const char *const lines[] = {
      "",
      "21 1 0:20 / / rw,relatime shared:1 - ext4 /dev/root rw",
      "22 1 0:21 / %s/a rw,nosuid shared:2 master:3 - fuse.hf3fs haul rw,user_id=0",
      "23 1 0:22 / %s/a/b rw - fuse.hf3fs haul rw",
      "24 1 0:23 / %s/with\\040space rw - fuse.hf3fs haul rw",
      "25 1 0:24 / %s/plain rw - fuse.hf3fs haul rw",
      "26 1 0:25 / %s/only/3fs-virt rw - fuse.hf3fs haul rw",
      "27 1 0:26",
      "28 1 0:27 / /nowhere rw - fuse.hf3fs haul rw",
  };
  write_table(lines, COUNT(lines));
  return 0;
}

static int remove_folders(void **state) {
  (void)state;
  char command[PATH_MAX + 16];
  snprintf(command, sizeof command, "rm -rf '%s'", root);
  root[0] = '\0';
  return system(command);
}

static int extract(const char *path, char *out, int size) {
  char whole[PATH_MAX * 2];
  snprintf(whole, sizeof whole, "%s%s", root, path);
  return hf3fs_extract_mount_point(out, size, whole);
}

static void check_set(const char *path, const char *mount) {
  char out[PATH_MAX], want[PATH_MAX * 2];
  int length = snprintf(want, sizeof want, "%s%s", root, mount);
  assert_int_equal(extract(path, out, sizeof out), length + 1);
  assert_string_equal(out, want);
}

static void the_innermost_mount_is_found(void **state) {
  (void)state;
  check_set("/a", "/a");
  check_set("/a/3fs-virt", "/a");
  check_set("/a/b", "/a/b");
  check_set("/a/b/c", "/a/b");
  check_set("/a/b/../b/./c", "/a/b");
  check_set("/with space/3fs-virt", "/with space");
  check_set("/only", "/only");
}

static void paths_without_a_mount_fail(void **state) {
  (void)state;
  char out[PATH_MAX] = "as it was";
  assert_int_equal(extract("/ab", out, sizeof out), -1);
  assert_int_equal(extract("/plain", out, sizeof out), -1);
  assert_int_equal(extract("/missing", out, sizeof out), -1);
  assert_int_equal(extract("", out, sizeof out), -1);
  assert_int_equal(hf3fs_extract_mount_point(out, sizeof out, NULL), -1);
  assert_int_equal(hf3fs_extract_mount_point(out, sizeof out, ""), -1);
  no_table = true;
  assert_int_equal(extract("/a", out, sizeof out), -1);
  no_table = false;
  assert_string_equal(out, "as it was");
}

static void a_small_buffer_gets_the_length(void **state) {
  (void)state;
  char out[PATH_MAX] = "as it was";
  int length = (int)strlen(root) + 2;
  assert_int_equal(extract("/a", out, length), length + 1);
  assert_string_equal(out, "as it was");
  assert_int_equal(extract("/a", NULL, 0), length + 1);
  assert_int_equal(extract("/a", out, -1), length + 1);
  assert_string_equal(out, "as it was");
  assert_int_equal(extract("/a", out, length + 1), length + 1);
  assert_int_equal(strlen(out), length);
}

static void any_type_is_accepted_if_configured(void **state) {
  (void)state;
  static const char *const lines[] = {
      "23 1 0:22 / %s/a/b rw - ext4 /dev/other rw",
      "24 1 0:22 / %s/a rw - fuse.hf3fs haul rw",
  };
  write_table(lines, COUNT(lines));
  check_set("/a/b/c", "/a");
  setenv("HF3FS_USRBIO_DONT_CHECKFS_FOR_MP", "no", 1);
  check_set("/a/b/c", "/a");
  setenv("HF3FS_USRBIO_DONT_CHECKFS_FOR_MP", "yes", 1);
  check_set("/a/b/c", "/a/b");
  unsetenv("HF3FS_USRBIO_DONT_CHECKFS_FOR_MP");
}

static void the_magic_identifies_the_file_system(void **state) {
  struct world *world = *state;
  int null = open("/dev/null", O_RDONLY | O_CLOEXEC), ends[2];
  assert_int_equal(pipe(ends), 0);
  assert_true(hf3fs_is_hf3fs(world->file));
  assert_false(hf3fs_is_hf3fs(null));
  assert_false(hf3fs_is_hf3fs(ends[0]));
  assert_false(hf3fs_is_hf3fs(-1));
  assert_false(hf3fs_is_hf3fs(INT_MAX));
  close(null);
  close(ends[0]);
  close(ends[1]);
}

#define folders_test(test) cmocka_unit_test_setup_teardown(test, make_folders, remove_folders)

int main(void) {
  const struct CMUnitTest tests[] = {
      folders_test(the_innermost_mount_is_found),
      folders_test(paths_without_a_mount_fail),
      folders_test(a_small_buffer_gets_the_length),
      folders_test(any_type_is_accepted_if_configured),
      world_test(the_magic_identifies_the_file_system),
  };
  return cmocka_run_group_tests_name("usrbio/mounts", tests, NULL, NULL);
}
