/* SPDX-License-Identifier: MIT
 * Removal of trees in a local folder, while others change them. The others are calls of this test
 * before a call of unlinkat, so that they come at a known time. */
#include "support/check.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "folder.h"
#include "storage/source.h"
#include "support/seams.h"

#define LEVELS 2048 /* that can be removed */

static char root[FOLDER_ROOM];
static struct source *source;
static struct source_caller me;
static atomic_bool stop;
static void (*meanwhile)(const char *name);

int __real_unlinkat(int folder, const char *name, int flags);
int __wrap_unlinkat(int folder, const char *name, int flags);
int __wrap_unlinkat(int folder, const char *name, int flags) {
  if (meanwhile)
    meanwhile(name);
  return __real_unlinkat(folder, name, flags);
}

static int set_up(void **state) {
  (void)state;
  strcpy(root, "/dev/shm/haul-remove-XXXXXX"); /* no disk, as there are thousands of changes */
  assert_non_null(mkdtemp(root));
  me = (struct source_caller){.uid = geteuid(), .gid = getegid()};
  atomic_store(&stop, false);
  assert_int_equal(local_source_open(root, false, &source), 0);
  return 0;
}

static int tear_down(void **state) {
  (void)state;
  meanwhile = NULL;
  source->ops->close(source);
  folder_remove(root);
  return 0;
}

static int removes(const char *name) {
  return source->ops->remove(source, &me, SOURCE_ROOT, name, true, &stop);
}

static bool is_there(const char *name) {
  return faccessat(AT_FDCWD, folder_path(root, name), F_OK, AT_SYMLINK_NOFOLLOW) == 0;
}

static void make(const char *name) {
  assert_int_equal(mkdirat(AT_FDCWD, folder_path(root, name), 0700), 0);
}

/* Makes `levels` of folders in each other, the first of this name and the others "in". Returns the
 * one at `kept`. */
static int make_deep(const char *name, int levels, int kept) {
  int at = open(root, O_PATH | O_CLOEXEC), result = -1;
  for (int level = 1; level <= levels; level++) {
    assert_int_equal(mkdirat(at, name, 0700), 0);
    int inner = openat(at, name, O_PATH | O_CLOEXEC);
    assert_true(inner >= 0);
    close(at);
    at = inner;
    name = "in";
    if (level == kept)
      result = fcntl(at, F_DUPFD_CLOEXEC, 0);
  }
  close(at);
  return result;
}

static void a_deep_tree_takes_few_descriptors(void **state) {
  (void)state;
  struct rlimit before;
  make_deep("deep", LEVELS, 0);
  assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
  struct rlimit few = {open_descriptors() + 8, before.rlim_max};
  assert_int_equal(setrlimit(RLIMIT_NOFILE, &few), 0);
  int result = removes("deep");
  assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
  assert_int_equal(result, 0);
  assert_false(is_there("deep"));
}

static void a_tree_may_be_as_deep_as_a_path(void **state) {
  (void)state;
  int middle = make_deep("deep", LEVELS + 2, LEVELS / 2);
  assert_int_equal(removes("deep"), -ENAMETOOLONG);
  assert_int_equal(renameat(middle, "in", AT_FDCWD, folder_path(root, "rest")), 0);
  close(middle);
  assert_int_equal(removes("deep"), 0);
  assert_int_equal(removes("rest"), 0);
}

static void a_wide_tree_is_removed(void **state) {
  (void)state;
  char name[64];
  make("wide");
  for (int i = 0; i < 300; i++) {
    snprintf(name, sizeof name, "wide/%d", i);
    make(name);
    snprintf(name, sizeof name, "wide/%d/file", i);
    folder_put(root, name, "text");
    snprintf(name, sizeof name, "wide/file-%d", i);
    folder_put(root, name, "text");
  }
  assert_int_equal(removes("wide"), 0);
  assert_false(is_there("wide"));
}

static void a_removal_stops_when_it_is_to(void **state) {
  (void)state;
  make("tree");
  folder_put(root, "tree/file", "text");
  atomic_store(&stop, true);
  assert_int_equal(removes("tree"), -ECANCELED);
  assert_true(is_there("tree/file"));
}

static void add_a_name(const char *name) {
  if (strcmp(name, "busy") == 0)
    folder_put(root, "tree/busy/more", "text");
}

static void a_removal_ends_though_others_add_names(void **state) {
  (void)state;
  make("tree");
  make("tree/busy");
  meanwhile = add_a_name;
  assert_int_equal(removes("tree"), -EBUSY);
  assert_true(is_there("tree/busy"));
}

static void add_a_name_once(const char *name) {
  add_a_name(name);
  if (strcmp(name, "busy") == 0)
    meanwhile = NULL;
}

static void names_that_others_add_are_removed(void **state) {
  (void)state;
  make("tree");
  make("tree/busy");
  meanwhile = add_a_name_once;
  assert_int_equal(removes("tree"), 0);
  assert_false(is_there("tree"));
}

/* Before the removal of tree/inner/file. */
static void move_the_folder(const char *name) {
  if (strcmp(name, "file") != 0)
    return;
  meanwhile = NULL;
  char from[FOLDER_ROOM + 32], to[FOLDER_ROOM + 32];
  snprintf(from, sizeof from, "%s/tree/inner", root);
  snprintf(to, sizeof to, "%s/others/inner", root);
  assert_int_equal(rename(from, to), 0);
}

static void nothing_is_removed_beside_a_folder_that_others_move(void **state) {
  (void)state;
  make("tree");
  make("tree/inner");
  make("others");
  folder_put(root, "tree/inner/file", "text");
  folder_put(root, "others/kept", "text");
  meanwhile = move_the_folder;
  assert_int_equal(removes("tree"), -ESTALE);
  assert_true(is_there("others/kept"));
  assert_true(is_there("others/inner"));
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void) {
  const struct CMUnitTest tests[] = {
      TEST(a_deep_tree_takes_few_descriptors),
      TEST(a_tree_may_be_as_deep_as_a_path),
      TEST(a_wide_tree_is_removed),
      TEST(a_removal_stops_when_it_is_to),
      TEST(a_removal_ends_though_others_add_names),
      TEST(names_that_others_add_are_removed),
      TEST(nothing_is_removed_beside_a_folder_that_others_move),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
