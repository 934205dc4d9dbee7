/* SPDX-License-Identifier: MIT
 * `haul mount`: its errors and hints, its start and its end. */
#include "support/check.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "mounted.h"
#include "storage/mount/mount.h"

static struct mounted mounted;

static int set_up(void **state) {
  *state = &mounted;
  mounted_make(&mounted);
  folder_put(mounted.source, "file", "hello");
  return 0;
}

/* In the background, where a second process reports errors. */
static void assert_refuses(const char *source, const char *point, const char *text,
                           const char *hint) {
  char line[256];
  const char *const arguments[] = {source, point, NULL};
  assert_int_equal(mounted_run(&mounted, arguments), 1);
  assert_true(mounted_says(&mounted, text));
  snprintf(line, sizeof line, "\nhint: %s", hint);
  assert_true(mounted_says(&mounted, line));
  assert_false(mounted_is(&mounted));
}

static void the_mount_point_must_be_an_empty_folder(void **state) {
  (void)state;
  char missing[128], file[128];
  snprintf(missing, sizeof missing, "%s/missing", mounted.root);
  snprintf(file, sizeof file, "%s/file", mounted.source);
  assert_refuses(mounted.source, missing, "does not exist", "`mkdir -p ");
  assert_refuses(mounted.source, file, "is not a folder", "give an empty folder");
  folder_put(mounted.point, "covered", "");
  assert_refuses(mounted.source, mounted.point, "is not empty", "give an empty folder");
}

static void an_existing_mount_is_not_covered(void **state) {
  (void)state;
  assert_int_equal(unlink(at_source(&mounted, "file")), 0); /* the mount looks empty */
  mounted_start(&mounted, NULL);
  struct mounted second = mounted;
  const char *const arguments[] = {mounted.source, mounted.point, NULL};
  assert_int_equal(mounted_run(&second, arguments), 1);
  assert_true(mounted_says(&mounted, "already"));
  assert_true(mounted_says(&mounted, "hint: `fusermount3 -u "));
  folder_put(mounted.point, "file", "");
}

static void the_mount_point_must_be_outside_the_source(void **state) {
  (void)state;
  char inside[128];
  snprintf(inside, sizeof inside, "%s/inside", mounted.source);
  assert_int_equal(mkdir(inside, 0755), 0);
  assert_refuses(mounted.source, inside, "would contain itself", "mount it at a folder outside");
  assert_refuses(inside, inside, "would contain itself", "mount it at a folder outside");
}

static void the_source_must_be_a_folder(void **state) {
  (void)state;
  char file[128];
  snprintf(file, sizeof file, "%s/file", mounted.source);
  assert_refuses(file, mounted.point, "is not a folder", "give the folder that has this file");
  const char *const arguments[] = {"/nowhere/at/all", mounted.point, NULL};
  assert_int_equal(mounted_run(&mounted, arguments), 1);
  assert_true(mounted_says(&mounted, "cannot use /nowhere/at/all: No such file"));
}

static void a_remote_tree_must_be_reachable(void **state) {
  (void)state;
  const char *const unreachable[] = {"unix://@haul-no-listener/tree", mounted.point, NULL};
  assert_int_equal(mounted_run(&mounted, unreachable), 1);
  assert_true(mounted_says(&mounted, "cannot connect to unix://@haul-no-listener"));
  const char *const no_export[] = {"haul://127.0.0.1", mounted.point, NULL};
  assert_int_equal(mounted_run(&mounted, no_export), 2);
  assert_true(mounted_says(&mounted, "expected haul://HOST[:PORT]/EXPORT"));
  assert_false(mounted_is(&mounted));
}

/* At once, with the kernel's caches, and while a program has a file open. */
static void a_mount_of_a_killed_process_is_replaced(void **state) {
  (void)state;
  char byte;
  mounted_start(&mounted, NULL);
  int fd = open(at_point(&mounted, "file"), O_RDONLY | O_CLOEXEC);
  assert_true(fd >= 0);
  kill(mounted.daemon, SIGKILL);
  assert_int_equal(mounted_wait(&mounted), 128 + SIGKILL);
  mounted_start(&mounted, NULL);
  assert_int_equal(access(at_point(&mounted, "file"), R_OK), 0);
  assert_int_equal(pread(fd, &byte, 1, 0), -1);
  assert_int_equal(errno, ENOTCONN);
  close(fd);
}

/* Another process may have replaced the dead mount that this one has seen. */
static void a_live_mount_is_not_removed_as_dead(void **state) {
  (void)state;
  mounted_start(&mounted, NULL);
  assert_int_equal(mount_remove_dead(mounted.point), 0);
  assert_true(mounted_is(&mounted));
  assert_int_equal(access(at_point(&mounted, "file"), R_OK), 0);
}

static void (*before_unmount)(void);

/* Called instead of libc's. */
int umount2(const char *path, int flags) {
  if (before_unmount)
    before_unmount();
  before_unmount = NULL;
  return (int)syscall(SYS_umount2, path, flags);
}

static const char *in_root(const char *name) {
  return folder_path(mounted.root, name);
}

static void swap_parent(void) {
  assert_int_equal(rename(in_root("parent"), in_root("moved")), 0);
  assert_int_equal(symlink("other", in_root("parent")), 0);
}

/* A user who controls a folder above a dead mount cannot make root detach another mount. */
static void a_path_that_changes_leads_to_no_other_mount(void **state) {
  (void)state;
  const char *const folders[] = {"parent", "parent/point", "other", "other/point"};
  if (geteuid() != 0) {
    print_message("fusermount3 works by paths: root alone\n");
    skip();
  }
  for (size_t i = 0; i < COUNT(folders); i++)
    assert_int_equal(mkdir(in_root(folders[i]), 0755), 0);
  snprintf(mounted.point, sizeof mounted.point, "%s", in_root("parent/point"));
  mounted_start(&mounted, NULL);
  kill(mounted.daemon, SIGKILL);
  assert_int_equal(mounted_wait(&mounted), 128 + SIGKILL);
  assert_int_equal(mount("other", in_root("other/point"), "tmpfs", 0, NULL), 0);
  folder_put(in_root("other/point"), "file", "");
  before_unmount = swap_parent;
  assert_int_equal(mount_remove_dead(mounted.point), 0);
  assert_int_equal(access(at_point(&mounted, "file"), F_OK), 0); /* by the symlink */
  assert_int_equal(access(in_root("moved/point"), F_OK), 0);
  assert_int_equal(umount2(in_root("other/point"), MNT_DETACH), 0);
}

static void the_command_ends_when_the_mount_is_ready(void **state) {
  (void)state;
  const char *const arguments[] = {mounted.source, mounted.point, NULL};
  assert_int_equal(mounted_run(&mounted, arguments), 0);
  assert_true(mounted_is(&mounted));
  assert_int_equal(access(at_point(&mounted, "file"), R_OK), 0);
  mounted_detach(&mounted);
  assert_false(mounted_is(&mounted));
}

static void inherited_descriptors_are_closed(void **state) {
  (void)state;
  int ends[2];
  const char *const arguments[] = {mounted.source, mounted.point, NULL};
  assert_int_equal(pipe(ends), 0);
  assert_int_equal(mounted_run(&mounted, arguments), 0);
  close(ends[1]);
  struct pollfd end = {ends[0], POLLIN, 0};
  assert_true(eventually(poll(&end, 1, 0) == 1 && end.revents & POLLHUP));
  close(ends[0]);
  mounted_detach(&mounted);
}

static void paths_may_be_relative(void **state) {
  (void)state;
  char here[4096];
  assert_non_null(getcwd(here, sizeof here));
  assert_int_equal(chdir(mounted.root), 0);
  const char *const arguments[] = {"source", "point", NULL};
  int status = mounted_run(&mounted, arguments);
  assert_int_equal(chdir(here), 0);
  assert_int_equal(status, 0);
  assert_int_equal(access(at_point(&mounted, "file"), R_OK), 0);
  mounted_detach(&mounted);
}

static void signals_and_unmounting_end_it_with_status_0(void **state) {
  (void)state;
  const int signals[] = {SIGTERM, SIGINT, SIGHUP, 0};
  for (size_t i = 0; i < COUNT(signals); i++) {
    mounted_start(&mounted, NULL);
    if (signals[i])
      kill(mounted.daemon, signals[i]);
    else
      mounted_detach(&mounted);
    assert_int_equal(mounted_wait(&mounted), 0);
    assert_false(mounted_is(&mounted));
  }
}

/* Also right after the start of the process. */
static void a_signal_ends_it_at_any_moment(void **state) {
  (void)state;
  for (int i = 0; i < 20; i++) {
    mounted_start(&mounted, NULL);
    if (i % 2)
      assert_int_equal(access(at_point(&mounted, "file"), R_OK), 0);
    kill(mounted.daemon, SIGTERM);
    assert_int_equal(mounted_wait(&mounted), 0);
  }
}

static void open_files_fail_after_the_end(void **state) {
  (void)state;
  char byte;
  mounted_start(&mounted, NULL);
  int fd = open(at_point(&mounted, "file"), O_RDWR);
  int folder = open(mounted.point, O_RDONLY | O_DIRECTORY);
  assert_true(fd >= 0 && folder >= 0);
  kill(mounted.daemon, SIGTERM);
  assert_int_equal(mounted_wait(&mounted), 0);
  assert_false(mounted_is(&mounted));
  assert_int_equal(pread(fd, &byte, 1, 0), -1);
  assert_true(errno == ENOTCONN || errno == ECONNABORTED);
  close(fd);
  close(folder);
}

/* The line of mountinfo, from the type. */
static void read_type(char *line, size_t size) {
  FILE *mounts = fopen("/proc/self/mountinfo", "re");
  assert_non_null(mounts);
  while (fgets(line, (int)size, mounts))
    if (strstr(line, mounted.point))
      break;
  fclose(mounts);
  const char *type = strstr(line, " - ");
  assert_non_null(type);
  memmove(line, type + 3, strlen(type + 3) + 1);
}

/* Clients find the mount by it. */
static void mountinfo_shows_type_3fs_and_the_source(void **state) {
  (void)state;
  char line[4096], wanted[256];
  mounted_start(&mounted, NULL);
  read_type(line, sizeof line);
  snprintf(wanted, sizeof wanted, "fuse.hf3fs %s ", mounted.source);
  assert_memory_equal(line, wanted, strlen(wanted));
}

static void a_source_may_have_any_name(void **state) {
  (void)state;
  char line[4096];
  assert_int_equal(rmdir(mounted.point), 0);
  assert_int_equal(mkdir(mounted.point, 0755), 0);
  char before[sizeof mounted.source];
  memcpy(before, mounted.source, sizeof before);
  snprintf(mounted.source, sizeof mounted.source, "%s/a,ro\\b c", mounted.root);
  assert_int_equal(rename(before, mounted.source), 0);
  mounted_start(&mounted, NULL);
  read_type(line, sizeof line);
  assert_non_null(strstr(line, "a,ro\\134b\\040c rw,"));
  folder_put(mounted.point, "new", "");
}

static void a_missing_module_is_reported(void **state) {
  (void)state;
  char copy[128], command[512];
  snprintf(copy, sizeof copy, "%s/haul", mounted.root);
  const char *haul = getenv("HAUL");
  assert_non_null(haul);
  if (!haul)
    return;
  snprintf(command, sizeof command, "cp '%s' '%s'", haul, copy);
  assert_int_equal(system(command), 0);
  char *whole = strdup(haul);
  setenv("HAUL", copy, 1);
  assert_refuses(mounted.source, mounted.point,
                 "this haul cannot mount: ", "build haul again after: sudo apt-get install");
  setenv("HAUL", whole, 1);
  free(whole);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, mounted_tear_down)

int main(void) {
  const struct CMUnitTest tests[] = {
      TEST(the_mount_point_must_be_an_empty_folder),
      TEST(an_existing_mount_is_not_covered),
      TEST(the_mount_point_must_be_outside_the_source),
      TEST(the_source_must_be_a_folder),
      TEST(a_remote_tree_must_be_reachable),
      TEST(a_mount_of_a_killed_process_is_replaced),
      TEST(a_live_mount_is_not_removed_as_dead),
      TEST(a_path_that_changes_leads_to_no_other_mount),
      TEST(the_command_ends_when_the_mount_is_ready),
      TEST(inherited_descriptors_are_closed),
      TEST(paths_may_be_relative),
      TEST(signals_and_unmounting_end_it_with_status_0),
      TEST(a_signal_ends_it_at_any_moment),
      TEST(open_files_fail_after_the_end),
      TEST(mountinfo_shows_type_3fs_and_the_source),
      TEST(a_source_may_have_any_name),
      TEST(a_missing_module_is_reported),
  };
  mounted_need_fuse();
  return cmocka_run_group_tests(tests, NULL, NULL);
}
