/* SPDX-License-Identifier: MIT
 * The contract of every source: a local folder, or with the argument `remote` the same folder
 * through a server and a client. */
#include "support/check.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <unistd.h>

#include "folder.h"
#include "served.h"
#include "storage/source.h"
#include "support/child.h"
#include "support/seams.h"

static char root[FOLDER_ROOM];
static struct source *source;
static const struct source_ops *ops;
static struct source_caller me;
static unsigned descriptors;
static bool through_server;
static struct served served;

static void open_source(bool read_only) {
  if (through_server)
    source = served_open_source(&served, root, read_only);
  else
    assert_int_equal(local_source_open(root, read_only, &source), 0);
  ops = source->ops;
}

static void close_source(void) {
  ops->close(source);
  if (through_server)
    served_close(&served);
}

static int set_up(void **state) {
  (void)state;
  folder_make(root);
  folder_put(root, "file", "hello");
  assert_int_equal(mkdirat(AT_FDCWD, folder_path(root, "folder"), 0755), 0);
  folder_put(root, "folder/inner", "inside");
  descriptors = open_descriptors();
  me = (struct source_caller){.uid = getuid(), .gid = getgid(), .checked = true};
  open_source(false);
  return 0;
}

static int tear_down(void **state) {
  (void)state;
  close_source();
  folder_remove(root);
  assert_int_equal(open_descriptors(), descriptors);
  return 0;
}

static void reopen(bool read_only) {
  close_source();
  open_source(read_only);
}

static struct source_entry found(uint64_t folder, const char *name) {
  struct source_entry entry;
  assert_int_equal(ops->lookup(source, folder, name, &entry), 0);
  return entry;
}

static int finds(uint64_t folder, const char *name) {
  struct source_entry entry;
  int status = ops->lookup(source, folder, name, &entry);
  if (!status)
    ops->forget(source, entry.node, 1);
  return status;
}

static const struct source_new new_folder = {.kind = SOURCE_FOLDER, .mode = 0755};
static const struct source_new new_file = {.kind = SOURCE_FILE, .mode = S_IFREG | 0644};

/* Every operation with a name rejects it alike. */
static void assert_change_is(int wanted, const char *name) {
  struct source_entry entry;
  struct source_file *file;
  uint64_t node = found(SOURCE_ROOT, "file").node;
  const struct source_new symlink = {.kind = SOURCE_SYMLINK, .target = "file"};
  const struct source_new link = {.kind = SOURCE_LINK, .node = node};
  assert_int_equal(ops->make(source, &me, SOURCE_ROOT, name, &new_folder, &entry), wanted);
  assert_int_equal(ops->make(source, &me, SOURCE_ROOT, name, &new_file, &entry), wanted);
  assert_int_equal(ops->make(source, &me, SOURCE_ROOT, name, &symlink, &entry), wanted);
  assert_int_equal(ops->make(source, &me, SOURCE_ROOT, name, &link, &entry), wanted);
  assert_int_equal(ops->create(source, &me, SOURCE_ROOT, name, 0644, O_RDWR, &entry, &file),
                   wanted);
  assert_int_equal(ops->unlink(source, SOURCE_ROOT, name, 0), wanted);
  assert_int_equal(ops->unlink(source, SOURCE_ROOT, name, AT_REMOVEDIR), wanted);
  assert_int_equal(ops->rename(source, &me, SOURCE_ROOT, name, SOURCE_ROOT, "new", 0), wanted);
  assert_int_equal(ops->rename(source, &me, SOURCE_ROOT, "file", SOURCE_ROOT, name, 0), wanted);
  ops->forget(source, node, 1);
}

static void assert_name_is(int wanted, const char *name) {
  struct source_entry entry;
  assert_int_equal(ops->lookup(source, SOURCE_ROOT, name, &entry), wanted);
  assert_change_is(wanted, name);
}

static void names_must_be_one_component(void **state) {
  (void)state;
  const char *const wrong[] = {"", ".", "..", "/", "../file", "folder/inner", "/etc"};
  for (size_t i = 0; i < COUNT(wrong); i++)
    assert_name_is(-EINVAL, wrong[i]);
}

static void names_have_at_most_255_bytes(void **state) {
  (void)state;
  char name[257] = {0};
  memset(name, 'n', 256);
  assert_name_is(-ENAMETOOLONG, name);
  name[255] = '\0';
  assert_int_equal(finds(SOURCE_ROOT, name), -ENOENT);
}

static void symlinks_are_never_followed(void **state) {
  (void)state;
  struct source_file *file;
  struct source_entry entry;
  char target[64];
  assert_int_equal(symlinkat("/etc", AT_FDCWD, folder_path(root, "out")), 0);
  entry = found(SOURCE_ROOT, "out");
  assert_true(S_ISLNK(entry.stat.st_mode));
  assert_int_equal(ops->readlink(source, entry.node, target, sizeof target), 4);
  assert_memory_equal(target, "/etc", 4);
  assert_int_equal(ops->readlink(source, entry.node, target, 4), -ENAMETOOLONG);
  assert_int_equal(ops->open(source, &me, entry.node, O_RDONLY, &file), -ELOOP);
  assert_int_equal(ops->opendir(source, entry.node, &file), -ENOTDIR);
  assert_int_equal(finds(entry.node, "passwd"), -ENOTDIR);
  assert_int_equal(ops->unlink(source, entry.node, "passwd", 0), -ENOTDIR);
  ops->forget(source, entry.node, 1);
}

static void a_folder_replaced_by_a_symlink_is_not_followed(void **state) {
  (void)state;
  uint64_t folder = found(SOURCE_ROOT, "folder").node;
  assert_int_equal(
      renameat(AT_FDCWD, folder_path(root, "folder"), AT_FDCWD, folder_path(root, "moved")), 0);
  assert_int_equal(symlinkat("/etc", AT_FDCWD, folder_path(root, "folder")), 0);
  assert_int_equal(finds(folder, "passwd"), -ENOENT);
  assert_int_equal(finds(folder, "inner"), 0);
  ops->forget(source, folder, 1);
}

static void only_regular_files_are_opened(void **state) {
  (void)state;
  struct source_file *file;
  struct source_entry entry = found(SOURCE_ROOT, "folder");
  assert_int_equal(ops->open(source, &me, entry.node, O_RDONLY, &file), -EISDIR);
  ops->forget(source, entry.node, 1);
  assert_int_equal(mkfifo(folder_path(root, "fifo"), 0666), 0);
  entry = found(SOURCE_ROOT, "fifo"); /* open(2) would wait for a writer */
  assert_int_equal(ops->open(source, &me, entry.node, O_RDONLY, &file), -ENXIO);
  ops->forget(source, entry.node, 1);
  const struct source_new fifo = {.kind = SOURCE_FILE, .mode = S_IFIFO | 0644};
  const struct source_new disk = {.kind = SOURCE_FILE, .mode = S_IFBLK | 0644};
  assert_int_equal(ops->make(source, &me, SOURCE_ROOT, "fifo2", &fifo, &entry), -EPERM);
  assert_int_equal(ops->make(source, &me, SOURCE_ROOT, "disk", &disk, &entry), -EPERM);
}

static void assert_stale(uint64_t node) {
  struct source_entry entry;
  struct source_file *file;
  struct stat stat;
  char bytes[8];
  const struct source_change change = {.which = SOURCE_MODE, .mode = 0};
  const struct source_new link = {.kind = SOURCE_LINK, .node = node};
  assert_int_equal(ops->lookup(source, node, "name", &entry), -ESTALE);
  assert_int_equal(ops->getattr(source, node, NULL, &stat), -ESTALE);
  assert_int_equal(ops->setattr(source, node, NULL, &change, &stat), -ESTALE);
  assert_int_equal(ops->readlink(source, node, bytes, sizeof bytes), -ESTALE);
  assert_int_equal(ops->make(source, &me, node, "name", &new_folder, &entry), -ESTALE);
  assert_int_equal(ops->make(source, &me, SOURCE_ROOT, "name", &link, &entry), -ESTALE);
  assert_int_equal(ops->unlink(source, node, "name", 0), -ESTALE);
  assert_int_equal(ops->rename(source, &me, SOURCE_ROOT, "file", node, "name", 0), -ESTALE);
  assert_int_equal(ops->open(source, &me, node, O_RDONLY, &file), -ESTALE);
  assert_int_equal(ops->create(source, &me, node, "name", 0644, O_RDWR, &entry, &file), -ESTALE);
  assert_int_equal(ops->opendir(source, node, &file), -ESTALE);
  assert_int_equal(ops->getxattr(source, node, "user.a", bytes, sizeof bytes), -ESTALE);
  assert_int_equal(ops->getxattr(source, node, NULL, bytes, sizeof bytes), -ESTALE);
  ops->forget(source, node, UINT64_MAX);
}

static void unknown_handles_are_stale(void **state) {
  (void)state;
  uint64_t forgotten = found(SOURCE_ROOT, "file").node;
  ops->forget(source, forgotten, 1);
  const uint64_t wrong[] = {0, 2, 99, forgotten, SOURCE_HANDLES - 1, UINT64_MAX};
  for (size_t i = 0; i < COUNT(wrong); i++)
    assert_stale(wrong[i]);
}

static void a_node_lives_until_all_lookups_are_forgotten(void **state) {
  (void)state;
  struct stat stat;
  uint64_t node = found(SOURCE_ROOT, "file").node;
  for (int i = 0; i < 3; i++)
    assert_int_equal(found(SOURCE_ROOT, "file").node, node);
  ops->forget(source, node, 3);
  assert_int_equal(ops->getattr(source, node, NULL, &stat), 0);
  ops->forget(source, node, 1);
  assert_int_equal(ops->getattr(source, node, NULL, &stat), -ESTALE);
  ops->forget(source, SOURCE_ROOT, 1000);
  assert_int_equal(ops->getattr(source, SOURCE_ROOT, NULL, &stat), 0);
}

static void hard_links_share_a_node(void **state) {
  (void)state;
  struct source_entry other;
  struct source_entry entry = found(SOURCE_ROOT, "file");
  const struct source_new link = {.kind = SOURCE_LINK, .node = entry.node};
  assert_int_equal(ops->make(source, &me, SOURCE_ROOT, "other", &link, &other), 0);
  assert_int_equal(other.node, entry.node);
  assert_int_equal(other.stat.st_ino, entry.stat.st_ino);
  assert_int_equal(other.stat.st_nlink, 2);
  ops->forget(source, entry.node, 2);
}

static void a_replaced_file_is_a_new_node(void **state) {
  (void)state;
  struct source_file *file;
  char bytes[8] = {0};
  struct source_entry before = found(SOURCE_ROOT, "file");
  assert_int_equal(unlink(folder_path(root, "file")), 0);
  folder_put(root, "file", "other");
  struct source_entry after = found(SOURCE_ROOT, "file");
  assert_int_not_equal(before.node, after.node);
  assert_int_not_equal(before.stat.st_ino, after.stat.st_ino);
  assert_int_equal(ops->open(source, &me, before.node, O_RDONLY, &file), 0);
  assert_int_equal(ops->read(source, file, bytes, sizeof bytes, 0), 5);
  assert_string_equal(bytes, "hello");
  ops->release(source, file);
  ops->forget(source, before.node, 1);
  ops->forget(source, after.node, 1);
}

static void known_files_are_found_by_inode_number(void **state) {
  (void)state;
  struct source_entry entry = found(SOURCE_ROOT, "folder"), again;
  assert_int_equal(ops->find(source, entry.stat.st_ino, &again), 0);
  assert_int_equal(again.node, entry.node);
  assert_true(S_ISDIR(again.stat.st_mode));
  ops->forget(source, entry.node, 2);
  assert_int_equal(ops->find(source, entry.stat.st_ino, &again), -ESTALE);
  assert_int_equal(ops->find(source, UINT64_MAX, &again), -ESTALE);
}

static void an_open_file_outlives_its_name_and_its_node(void **state) {
  (void)state;
  struct source_file *file;
  char bytes[8] = {0};
  uint64_t node = found(SOURCE_ROOT, "file").node;
  assert_int_equal(ops->open(source, &me, node, O_RDWR, &file), 0);
  ops->forget(source, node, 1);
  assert_int_equal(ops->unlink(source, SOURCE_ROOT, "file", 0), 0);
  assert_int_equal(ops->write(source, file, "HE", 2, 0, 0), 2);
  assert_int_equal(ops->write(source, file, "!", 1, 0, RWF_APPEND), 1);
  assert_int_equal(ops->read(source, file, bytes, sizeof bytes, 0), 6);
  assert_string_equal(bytes, "HEllo!");
  assert_int_equal(ops->read(source, file, bytes, sizeof bytes, 6), 0);
  ops->release(source, file);
}

static void create_never_opens_an_existing_file(void **state) {
  (void)state;
  struct source_entry entry;
  struct source_file *file;
  struct stat stat;
  /* Opening an existing file needs rights to it, which the kernel has not checked here. */
  assert_int_equal(ops->create(source, &me, SOURCE_ROOT, "file", 0644, O_RDWR, &entry, &file),
                   -EEXIST);
  assert_int_equal(symlinkat("nowhere", AT_FDCWD, folder_path(root, "link")), 0);
  assert_int_equal(ops->create(source, &me, SOURCE_ROOT, "link", 0644, O_RDWR, &entry, &file),
                   -EEXIST);
  assert_int_equal(ops->create(source, &me, SOURCE_ROOT, "new", 0400, O_RDWR, &entry, &file), 0);
  assert_int_equal(ops->write(source, file, "x", 1, 0, 0), 1);
  assert_true(through_server ? file->fd == -1 : fstat(file->fd, &stat) == 0);
  assert_int_equal(file->inode, entry.stat.st_ino);
  ops->release(source, file);
  ops->forget(source, entry.node, 1);
}

/* For a file of this user with mode 0600. */
static int opens(const struct source_caller *caller, int flags) {
  struct source_file *file;
  uint64_t node = found(SOURCE_ROOT, "file").node;
  int status = ops->open(source, caller, node, flags, &file);
  if (!status)
    ops->release(source, file);
  ops->forget(source, node, 1);
  return status;
}

static void unchecked_callers_have_their_own_rights(void **state) {
  (void)state;
  struct source_entry entry;
  struct source_caller other = {.uid = 12001, .gid = 12001};
  const int refused = geteuid() == 0 ? -EACCES : -EPERM;
  assert_int_equal(chmod(root, 0755), 0);
  assert_int_equal(chmod(folder_path(root, "file"), 0600), 0);
  if (through_server) { /* the server does not know this host's users */
    me.checked = false;
    assert_int_equal(opens(&other, O_RDONLY), -EPERM);
    assert_int_equal(opens(&me, O_RDONLY), -EPERM);
    return;
  }
  assert_int_equal(opens(&other, O_RDONLY), refused);
  assert_int_equal(opens(&other, O_WRONLY | O_TRUNC), refused);
  uint64_t node = found(SOURCE_ROOT, "file").node;
  const struct source_new link = {.kind = SOURCE_LINK, .node = node};
  int status = ops->make(source, &other, SOURCE_ROOT, "link", &link, &entry);
  assert_true(status == -EACCES ||
              status == -EPERM); /* by the folder's mode, or by fs.protected_hardlinks */
  ops->forget(source, node, 1);
  if (geteuid() == 0 && !folder_is_for_others())
    printf("skipped what other users may open: they may not pass the root folder here\n");
  else if (geteuid() == 0) {
    assert_int_equal(chmod(folder_path(root, "file"), 0604), 0);
    assert_int_equal(opens(&other, O_RDONLY), 0);
    assert_int_equal(opens(&other, O_RDWR), -EACCES);
    gid_t group = getegid();
    other.groups = &group;
    other.group_count = 1;
    assert_int_equal(chmod(folder_path(root, "file"), 0660), 0);
    assert_int_equal(opens(&other, O_RDWR), 0);
  }
  me.checked = false;
  assert_int_equal(opens(&me, O_RDWR), 0);
}

static void a_read_only_source_rejects_changes(void **state) {
  (void)state;
  struct source_file *file;
  struct stat stat;
  const struct source_change change = {.which = SOURCE_SIZE};
  reopen(true);
  uint64_t node = found(SOURCE_ROOT, "file").node;
  assert_change_is(-EROFS, "name");
  assert_int_equal(finds(SOURCE_ROOT, "file"), 0);
  assert_int_equal(ops->open(source, &me, node, O_RDWR, &file), -EROFS);
  assert_int_equal(ops->open(source, &me, node, O_RDONLY | O_TRUNC, &file), -EROFS);
  assert_int_equal(ops->setattr(source, node, NULL, &change, &stat), -EROFS);
  assert_int_equal(ops->setxattr(source, node, "user.a", "b", 1, 0), -EROFS);
  assert_int_equal(ops->removexattr(source, node, "user.a"), -EROFS);
  assert_int_equal(ops->open(source, &me, node, O_RDONLY, &file), 0);
  assert_int_equal(ops->write(source, file, "x", 1, 0, 0), -EROFS);
  assert_int_equal(ops->fallocate(source, file, 0, 0, 10), -EROFS);
  ops->release(source, file);
  ops->forget(source, node, 1);
}

#define MANY 3000

struct reading {
  unsigned seen[MANY];
  unsigned dots, count, limit;
  off_t next;
};

static bool take_name(void *user, const struct source_name *name) {
  struct reading *reading = user;
  unsigned number;
  if (reading->count == reading->limit)
    return false;
  reading->count++;
  reading->next = name->next;
  if (sscanf(name->name, "n%u", &number) == 1 && number < MANY)
    reading->seen[number]++;
  else
    reading->dots++;
  return true;
}

static void readdir_continues_without_repeating_names(void **state) {
  (void)state;
  static struct reading reading;
  struct source_file *folder;
  char name[32];
  uint64_t node = found(SOURCE_ROOT, "folder").node;
  assert_int_equal(unlink(folder_path(root, "folder/inner")), 0);
  for (unsigned i = 0; i < MANY; i++) {
    snprintf(name, sizeof name, "folder/n%u", i);
    folder_put(root, name, "");
  }
  assert_int_equal(ops->opendir(source, node, &folder), 0);
  reading = (struct reading){.limit = 7};
  do {
    reading.count = 0;
    assert_int_equal(ops->readdir(source, folder, reading.next, 512, take_name, &reading), 0);
  } while (reading.count > 0);
  assert_int_equal(reading.dots, 2);
  for (unsigned i = 0; i < MANY; i++)
    assert_int_equal(reading.seen[i], 1);
  ops->release(source, folder);
  ops->forget(source, node, 1);
}

/* Small trees on other devices often have the same inode numbers. */
static void span_devices(void *argument) {
  struct source_entry here, there, again;
  (void)argument;
  if (unshare(CLONE_NEWNS) || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) ||
      mount("none", folder_path(root, "folder"), "tmpfs", 0, "size=1m"))
    _exit(77);
  reopen(false); /* earlier descriptors refer to the old namespace */
  folder_put(root, "folder/inner", "elsewhere");
  here = found(SOURCE_ROOT, "folder");
  there = found(here.node, "inner");
  bool good = here.stat.st_ino >> 48 != 0 && there.stat.st_ino >> 48 == here.stat.st_ino >> 48 &&
              found(SOURCE_ROOT, "file").stat.st_ino >> 48 == 0 &&
              ops->find(source, there.stat.st_ino, &again) == 0 && again.node == there.node;
  _exit(good ? 0 : 1);
}

static void inode_numbers_are_unique_across_devices(void **state) {
  (void)state;
  if (through_server)
    skip(); /* a node does not work in a forked child */
  int status = child_run(span_devices, NULL);
  if (status == 77)
    skip();
  assert_int_equal(status, 0);
}

static void *make_and_take(void *argument) {
  char name[32], other[32];
  struct source_entry entry;
  for (unsigned i = 0; i < 400; i++) {
    snprintf(name, sizeof name, "t%u", i % 5);
    snprintf(other, sizeof other, "t%u", (i + 1) % 5);
    if (ops->make(source, &me, SOURCE_ROOT, name, &new_file, &entry) == 0)
      ops->forget(source, entry.node, 1);
    if (ops->lookup(source, SOURCE_ROOT, other, &entry) == 0) {
      struct stat stat;
      if (ops->getattr(source, entry.node, NULL, &stat))
        *(bool *)argument = true;
      ops->forget(source, entry.node, 1);
    }
    ops->rename(source, &me, SOURCE_ROOT, name, SOURCE_ROOT, other, 0);
    ops->unlink(source, SOURCE_ROOT, other, 0);
  }
  return NULL;
}

static void a_source_serves_many_threads(void **state) {
  (void)state;
  pthread_t threads[4];
  bool wrong[4] = {false};
  unsigned before = open_descriptors();
  for (unsigned i = 0; i < 4; i++)
    assert_int_equal(pthread_create(&threads[i], NULL, make_and_take, &wrong[i]), 0);
  for (unsigned i = 0; i < 4; i++) {
    pthread_join(threads[i], NULL);
    assert_false(wrong[i]);
  }
  /* All nodes are freed; a server gets the last forgets with the next request. */
  assert_true(through_server || open_descriptors() == before);
}

static void a_source_must_be_a_readable_folder(void **state) {
  (void)state;
  struct source *none;
  assert_int_equal(local_source_open("/nowhere/at/all", false, &none), -ENOENT);
  assert_int_equal(local_source_open(folder_path(root, "file"), false, &none), -ENOTDIR);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(int argc, char **argv) {
  through_server = argc > 1 && strcmp(argv[1], "remote") == 0;
  const struct CMUnitTest tests[] = {
      TEST(names_must_be_one_component),
      TEST(names_have_at_most_255_bytes),
      TEST(symlinks_are_never_followed),
      TEST(a_folder_replaced_by_a_symlink_is_not_followed),
      TEST(only_regular_files_are_opened),
      TEST(unknown_handles_are_stale),
      TEST(a_node_lives_until_all_lookups_are_forgotten),
      TEST(hard_links_share_a_node),
      TEST(a_replaced_file_is_a_new_node),
      TEST(known_files_are_found_by_inode_number),
      TEST(an_open_file_outlives_its_name_and_its_node),
      TEST(create_never_opens_an_existing_file),
      TEST(unchecked_callers_have_their_own_rights),
      TEST(a_read_only_source_rejects_changes),
      TEST(readdir_continues_without_repeating_names),
      TEST(inode_numbers_are_unique_across_devices),
      TEST(a_source_serves_many_threads),
      TEST(a_source_must_be_a_readable_folder),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
