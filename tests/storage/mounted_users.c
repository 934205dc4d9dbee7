/* SPDX-License-Identifier: MIT
 * Several users on a mount of root: each has its own rights, and owns the files that it creates. */
#include "support/check.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <haul/usrbio.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/fsuid.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "calls.h"
#include "mounted.h"
#include "support/child.h"

#define ALICE 12001u
#define BOB   12002u
#define TEAM  12100u

static struct mounted mounted;

static void make_folder(const char *name, mode_t mode, uid_t uid, gid_t gid) {
  const char *path = at_source(&mounted, name);
  assert_int_equal(mkdir(path, 0700), 0);
  assert_int_equal(chown(path, uid, gid), 0);
  assert_int_equal(chmod(path, mode), 0);
}

static void make_tree(void) {
  mounted_make(&mounted);
  make_folder("open", 0777, 0, 0);
  make_folder("sticky", 01777, 0, 0);
  make_folder("root", 0700, 0, 0);
  make_folder("team", 0770, 0, TEAM);
  make_folder("set-group", 02777, 0, TEAM);
  make_folder("alice", 0700, ALICE, ALICE);
  make_folder("root/open", 0777, 0, 0);
  folder_put(mounted.source, "root/secret", "secret");
  folder_put(mounted.source, "of-root", "root's");
  assert_int_equal(chmod(at_source(&mounted, "of-root"), 0600), 0);
}

static int set_up(void **state) {
  const char *const options[] = {"--allow-other", NULL};
  *state = &mounted;
  make_tree();
  mounted_start(&mounted, options);
  return 0;
}

static int set_up_alone(void **state) {
  *state = &mounted;
  make_tree();
  mounted_start(&mounted, NULL);
  return 0;
}

struct user {
  uid_t uid;
  gid_t gid, group; /* supplementary; 0: none */
  int (*act)(void);
};

static int error_of(int result) {
  return result < 0 ? errno : 0;
}

static void become_and_act(void *argument) {
  const struct user *user = argument;
  if (setgroups(user->group ? 1 : 0, &user->group) || setgid(user->gid) || setuid(user->uid))
    _exit(125);
  umask(022);
  _exit(user->act());
}

/* The result of the call in a process of the user. */
static int by(uid_t uid, gid_t group, int (*act)(void)) {
  struct user user = {uid, uid, group, act};
  return child_run(become_and_act, &user);
}

static int make_in(const char *folder) {
  char name[64];
  snprintf(name, sizeof name, "%s/new", folder);
  return error_of(open(at_point(&mounted, name), O_CREAT | O_EXCL | O_WRONLY, 0666));
}

static void assert_owned(const char *name, uid_t uid, gid_t gid, mode_t mode) {
  struct stat stat_of;
  assert_int_equal(lstat(at_source(&mounted, name), &stat_of), 0);
  assert_int_equal(stat_of.st_uid, uid);
  assert_int_equal(stat_of.st_gid, gid);
  assert_int_equal(stat_of.st_mode, mode);
}

static int make_all(void) {
  int failed = make_in("open");
  failed = failed ? failed : error_of(mkdir(at_point(&mounted, "open/folder"), 0777));
  failed = failed ? failed : error_of(symlink("x", at_point(&mounted, "open/symlink")));
  failed = failed ? failed : error_of(mknod(at_point(&mounted, "open/node"), S_IFREG | 0666, 0));
  return failed;
}

static void new_files_belong_to_their_creator(void **state) {
  (void)state;
  assert_int_equal(by(ALICE, 0, make_all), 0);
  assert_owned("open/new", ALICE, ALICE, S_IFREG | 0644);
  assert_owned("open/folder", ALICE, ALICE, S_IFDIR | 0755);
  assert_owned("open/symlink", ALICE, ALICE, S_IFLNK | 0777);
  assert_owned("open/node", ALICE, ALICE, S_IFREG | 0644);
  folder_put(mounted.point, "open/of-root", "");
  assert_owned("open/of-root", 0, 0, S_IFREG | 0644);
}

static int make_in_root(void) {
  return make_in("root");
}

static int make_in_team(void) {
  return make_in("team");
}

static int make_in_set_group(void) {
  int failed = make_in("set-group");
  return failed ? failed : error_of(mkdir(at_point(&mounted, "set-group/folder"), 0777));
}

static void folder_permissions_are_enforced(void **state) {
  (void)state;
  assert_int_equal(by(ALICE, 0, make_in_root), EACCES);
  assert_int_equal(by(ALICE, 0, make_in_team), EACCES);
  assert_int_equal(by(ALICE, TEAM, make_in_team), 0);
  assert_owned("team/new", ALICE, ALICE, S_IFREG | 0644);
}

static void a_setgid_folder_passes_on_its_group(void **state) {
  (void)state;
  assert_int_equal(by(ALICE, 0, make_in_set_group), 0);
  assert_owned("set-group/new", ALICE, TEAM, S_IFREG | 0644);
  assert_owned("set-group/folder", ALICE, TEAM, S_IFDIR | S_ISGID | 0755);
}

static int read_of_root(void) {
  return error_of(open(at_point(&mounted, "of-root"), O_RDONLY));
}

static int read_secret(void) {
  return error_of(open(at_point(&mounted, "root/secret"), O_RDONLY));
}

static int chown_open(void) {
  return error_of(chown(at_point(&mounted, "open"), ALICE, ALICE));
}

static void file_permissions_are_enforced(void **state) {
  (void)state;
  assert_int_equal(by(ALICE, 0, read_of_root), EACCES);
  assert_int_equal(by(ALICE, 0, read_secret), EACCES);
  assert_int_equal(by(ALICE, 0, chown_open), EPERM);
}

static int make_in_sticky(void) {
  return make_in("sticky");
}

static int take_from_sticky(void) {
  return error_of(unlink(at_point(&mounted, "sticky/new")));
}

static void a_sticky_folder_protects_others_files(void **state) {
  (void)state;
  assert_int_equal(by(ALICE, 0, make_in_sticky), 0);
  assert_int_equal(by(BOB, 0, take_from_sticky), EPERM);
  assert_int_equal(by(ALICE, 0, take_from_sticky), 0);
}

static void without_allow_other_others_are_rejected(void **state) {
  (void)state;
  assert_int_equal(by(ALICE, 0, make_all), EACCES);
  assert_int_equal(by(ALICE, 0, read_of_root), EACCES);
  assert_int_equal(read_of_root(), 0);
}

static uint64_t target; /* a folder's inode number */

static int link_there(void) {
  struct call_link call = {.folder = target, .name = "link"};
  int fd = open(at_point(&mounted, "open/of-alice"), O_RDONLY);
  return fd < 0 ? 125 : error_of(ioctl(fd, CALL_LINK, &call));
}

static void make_target(const char *name) {
  struct stat stat_of;
  assert_int_equal(stat(at_point(&mounted, name), &stat_of), 0);
  target = stat_of.st_ino;
}

/* The kernel checks no rights: the ioctl passes an inode number. */
static void the_link_ioctl_checks_the_callers_rights(void **state) {
  (void)state;
  struct stat stat_of;
  folder_put(mounted.source, "open/of-alice", "text");
  assert_int_equal(chown(at_source(&mounted, "open/of-alice"), ALICE, ALICE), 0);
  make_target("root");
  assert_int_equal(by(ALICE, 0, link_there), EACCES);
  make_target("alice");
  assert_int_equal(by(BOB, 0, link_there), EACCES);
  assert_int_equal(by(ALICE, 0, link_there), 0);
  make_target("root/open");
  assert_int_equal(by(ALICE, 0, link_there), EACCES); /* no path leads her there */
  make_target("team");
  assert_int_equal(by(ALICE, 0, link_there), EACCES);
  assert_int_equal(by(ALICE, TEAM, link_there), 0);
  assert_int_equal(stat(at_source(&mounted, "alice/link"), &stat_of), 0);
  assert_int_equal(stat_of.st_nlink, 3);
  assert_int_equal(stat_of.st_uid, ALICE);
}

static int move_there(void) {
  struct call_move call = {.name = "of-alice", .new_folder = target, .new_name = "moved"};
  struct stat stat_of;
  int fd = open(at_point(&mounted, "open"), O_RDONLY);
  if (fd < 0 || fstat(fd, &stat_of) != 0)
    return 125;
  call.folder = stat_of.st_ino;
  return error_of(ioctl(fd, CALL_MOVE, &call));
}

static int remove_from(const char *folder, const char *name) {
  struct call_remove call = {.recursive = true};
  struct stat stat_of;
  int fd = open(at_point(&mounted, folder), O_RDONLY);
  if (fd < 0 || fstat(fd, &stat_of) != 0)
    return 125;
  call.folder = stat_of.st_ino;
  strcpy(call.name, name);
  return error_of(ioctl(fd, CALL_REMOVE, &call));
}

static int remove_of_root(void) {
  return remove_from(".", "of-root");
}

static int remove_from_sticky(void) {
  return remove_from("sticky", "of-alice");
}

static int remove_tree(void) {
  return remove_from("open", "tree");
}

/* A place outside of the mounted tree. */
static const char *above_source(void) {
  static char path[sizeof mounted.root + 16];
  snprintf(path, sizeof path, "%s/above", mounted.root);
  return path;
}

/* As that of links. */
static void the_move_ioctl_checks_the_callers_rights(void **state) {
  (void)state;
  make_folder("open/above", 0777, 0, 0);
  make_folder("open/above/below", 0777, 0, 0);
  folder_put(mounted.source, "open/of-alice", "text");
  assert_int_equal(chown(at_source(&mounted, "open/of-alice"), ALICE, ALICE), 0);
  make_target("root");
  assert_int_equal(by(ALICE, 0, move_there), EACCES);
  make_target("root/open");
  assert_int_equal(by(ALICE, 0, move_there), EACCES); /* no path leads her there */
  make_target("open/above/below");
  assert_int_equal(rename(at_source(&mounted, "open/above"), above_source()), 0);
  assert_int_equal(by(ALICE, 0, move_there), ESTALE);
  make_target("team");
  assert_int_equal(by(ALICE, 0, move_there), EACCES);
  make_target("alice");
  assert_int_equal(by(BOB, 0, move_there), EACCES);
  assert_int_equal(by(ALICE, 0, move_there), 0);
  assert_owned("alice/moved", ALICE, ALICE, S_IFREG | 0644);
}

static void the_remove_ioctl_checks_the_callers_rights(void **state) {
  (void)state;
  folder_put(mounted.source, "sticky/of-alice", "text");
  assert_int_equal(chown(at_source(&mounted, "sticky/of-alice"), ALICE, ALICE), 0);
  assert_int_equal(by(ALICE, 0, remove_of_root), EACCES);
  assert_int_equal(by(BOB, 0, remove_from_sticky), EPERM);
  assert_int_equal(by(ALICE, 0, remove_from_sticky), 0);
  make_folder("open/tree", 0755, ALICE, ALICE);
  make_folder("open/tree/of-root", 0755, 0, 0);
  folder_put(mounted.source, "open/tree/of-root/file", "text");
  assert_int_equal(by(BOB, 0, remove_tree), EACCES);
  assert_int_equal(by(ALICE, 0, remove_tree), EACCES);
  assert_int_equal(access(at_source(&mounted, "open/tree/of-root/file"), F_OK), 0);
  assert_int_equal(chown(at_source(&mounted, "open/tree/of-root"), ALICE, ALICE), 0);
  assert_int_equal(by(ALICE, 0, remove_tree), 0);
  assert_int_equal(access(at_source(&mounted, "open/tree"), F_OK), -1);
}

#define JOBS_EACH 16 /* removals of one user at a time */

/* A mount in the tree, whose process is stopped: calls for its names wait. */
static struct {
  struct mounted mount;
  int folder; /* open, through the outer mount */
  struct call_remove call;
  int results[2]; /* a pipe */
  pthread_t threads[JOBS_EACH + 1];
} slow;

static int set_up_slow(void **state) {
  const char *const options[] = {"--allow-other", NULL};
  struct stat stat_of;
  *state = &mounted;
  make_tree();
  make_folder("slow", 0777, 0, 0);
  mounted_make(&slow.mount);
  strcpy(slow.mount.point, at_source(&mounted, "slow"));
  mounted_start(&slow.mount, options);
  mounted_start(&mounted, options);
  slow.folder = open(at_point(&mounted, "slow"), O_RDONLY | O_CLOEXEC);
  assert_true(slow.folder >= 0);
  assert_int_equal(fstat(slow.folder, &stat_of), 0);
  slow.call = (struct call_remove){.folder = stat_of.st_ino, .name = "absent"};
  assert_int_equal(pipe2(slow.results, O_CLOEXEC), 0);
  assert_int_equal(kill(slow.mount.daemon, SIGSTOP), 0);
  assert_int_equal(waitpid(slow.mount.daemon, NULL, WUNTRACED), slow.mount.daemon);
  return 0;
}

static int tear_down_slow(void **state) {
  kill(slow.mount.daemon, SIGCONT);
  for (size_t i = 0; i < COUNT(slow.threads); i++)
    if (slow.threads[i])
      pthread_join(slow.threads[i], NULL);
  close(slow.results[0]);
  close(slow.results[1]);
  close(slow.folder);
  mounted_tear_down(state);
  mounted_end(&slow.mount);
  return 0;
}

/* As alice: setfsuid changes this thread alone. */
static void *remove_slowly(void *argument) {
  (void)argument;
  setfsuid(ALICE);
  int failed = error_of(ioctl(slow.folder, CALL_REMOVE, &slow.call));
  if (write(slow.results[1], &failed, sizeof failed) != sizeof failed)
    abort();
  return NULL;
}

static int next_result(void) {
  struct pollfd wait = {slow.results[0], POLLIN, 0};
  int failed;
  assert_int_equal(poll(&wait, 1, 30000), 1);
  assert_int_equal(read(slow.results[0], &failed, sizeof failed), sizeof failed);
  return failed;
}

static int remove_absent(void) {
  return remove_from("open", "absent");
}

static void one_user_leaves_room_for_removals_of_others(void **state) {
  (void)state;
  for (size_t i = 0; i < COUNT(slow.threads); i++)
    assert_int_equal(pthread_create(&slow.threads[i], NULL, remove_slowly, NULL), 0);
  assert_int_equal(next_result(), EAGAIN);
  assert_int_equal(by(BOB, 0, remove_absent), ENOENT);
  assert_int_equal(kill(slow.mount.daemon, SIGCONT), 0);
  for (int i = 0; i < JOBS_EACH; i++)
    assert_int_equal(next_result(), ENOENT);
}

static void the_process_is_root_again_after_each_call(void **state) {
  (void)state;
  for (int i = 0; i < 40; i++) {
    assert_int_equal(by(ALICE, TEAM, make_in_set_group), 0);
    assert_int_equal(by(BOB, 0, make_in_root), EACCES);
    assert_int_equal(unlink(at_point(&mounted, "set-group/new")), 0);
    assert_int_equal(rmdir(at_point(&mounted, "set-group/folder")), 0);
    folder_put(mounted.point, "root/mine", "x");
    assert_owned("root/mine", 0, 0, S_IFREG | 0644);
  }
}

/* A POSIX ACL in the format of the kernel's attribute. */
struct acl {
  uint32_t version;
  struct {
    uint16_t tag, rights;
    uint32_t id;
  } entries[5];
};

static int read_shared(void) {
  return error_of(open(at_point(&mounted, "shared"), O_RDONLY));
}

/* The group bits of the mode are the ACL's mask, and exceed the group's rights. */
static void acls_are_enforced(void **state) {
  (void)state;
  const struct acl acl = {2,
                          {{0x01, 6, UINT32_MAX},
                           {0x02, 4, ALICE},
                           {0x04, 0, UINT32_MAX},
                           {0x10, 7, UINT32_MAX},
                           {0x20, 0, UINT32_MAX}}};
  folder_put(mounted.source, "shared", "text");
  const char *path = at_source(&mounted, "shared");
  assert_int_equal(chown(path, 0, TEAM), 0);
  if (setxattr(path, "system.posix_acl_access", &acl, sizeof acl, 0))
    skip(); /* not on this file system */
  assert_owned("shared", 0, TEAM, S_IFREG | 0670);
  assert_int_equal(by(ALICE, 0, read_shared), 0);
  assert_int_equal(by(BOB, 0, read_shared), EACCES);
  assert_int_equal(by(BOB, TEAM, read_shared), EACCES);
}

static int set_up_without_acls(void **state) {
  const char *const options[] = {"--allow-other", NULL};
  *state = &mounted;
  mounted_make(&mounted);
  assert_int_equal(mount("none", mounted.source, "ramfs", 0, NULL), 0);
  assert_int_equal(chmod(mounted.source, 0755), 0);
  mounted_start(&mounted, options);
  return 0;
}

static void modes_are_enforced_without_acls(void **state) {
  (void)state;
  folder_put(mounted.source, "shared", "text");
  const char *path = at_source(&mounted, "shared");
  assert_int_equal(chown(path, 0, TEAM), 0);
  assert_int_equal(chmod(path, 0640), 0);
  assert_int_equal(by(ALICE, TEAM, read_shared), 0);
  assert_int_equal(by(ALICE, 0, read_shared), EACCES);
}

static int open_lock(int flags) {
  char path[256] = "";
  ssize_t length = readlink(at_point(&mounted, "3fs-virt/iovs/submit-ios"), path, sizeof path - 8);
  assert_true(length > 0);
  memcpy(path + length, SEMAPHORE_LOCK, sizeof SEMAPHORE_LOCK);
  return error_of(open(path, flags | O_CLOEXEC));
}

static int read_lock(void) {
  return open_lock(O_RDONLY);
}

static int write_lock(void) {
  return open_lock(O_RDWR);
}

/* Who can write to it could lock it, so that a dead daemon seems alive. */
static void others_only_read_the_daemons_lock(void **state) {
  (void)state;
  assert_int_equal(by(ALICE, 0, read_lock), 0);
  assert_int_equal(by(ALICE, 0, write_lock), EACCES);
}

/* Each lookup would send a request to the same mount, which would wait for itself. */
static void a_mount_bound_into_its_source_does_not_recurse(void **state) {
  (void)state;
  struct stat stat_of;
  assert_int_equal(mount(mounted.point, at_source(&mounted, "open"), NULL, MS_BIND, NULL), 0);
  assert_int_equal(error_of(stat(at_point(&mounted, "open"), &stat_of)), ELOOP);
  assert_int_equal(error_of(stat(at_point(&mounted, "open/open/open/open/open"), &stat_of)), ELOOP);
  assert_int_equal(umount2(at_source(&mounted, "open"), MNT_DETACH), 0);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, mounted_tear_down)

int main(void) {
  const struct CMUnitTest tests[] = {
      TEST(new_files_belong_to_their_creator),
      TEST(folder_permissions_are_enforced),
      TEST(a_setgid_folder_passes_on_its_group),
      TEST(file_permissions_are_enforced),
      TEST(a_sticky_folder_protects_others_files),
      cmocka_unit_test_setup_teardown(without_allow_other_others_are_rejected, set_up_alone,
                                      mounted_tear_down),
      TEST(the_link_ioctl_checks_the_callers_rights),
      TEST(the_move_ioctl_checks_the_callers_rights),
      TEST(the_remove_ioctl_checks_the_callers_rights),
      cmocka_unit_test_setup_teardown(one_user_leaves_room_for_removals_of_others, set_up_slow,
                                      tear_down_slow),
      TEST(the_process_is_root_again_after_each_call),
      TEST(acls_are_enforced),
      cmocka_unit_test_setup_teardown(modes_are_enforced_without_acls, set_up_without_acls,
                                      mounted_tear_down),
      TEST(others_only_read_the_daemons_lock),
      TEST(a_mount_bound_into_its_source_does_not_recurse),
  };
  mounted_need_fuse();
  mounted_need_root();
  umask(022);
  return cmocka_run_group_tests(tests, NULL, NULL);
}
