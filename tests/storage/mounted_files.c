/* SPDX-License-Identifier: MIT
 * Files of a mount for programs without rings. */
#include "support/check.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "mounted.h"

#define LENGTH ((size_t)9 << 20)

static struct mounted mounted;

static int set_up(void **state) {
  *state = &mounted;
  mounted_make(&mounted);
  folder_put(mounted.source, "file", "hello");
  assert_int_equal(mkdir(at_source(&mounted, "folder"), 0755), 0);
  folder_put(mounted.source, "folder/inner", "inside");
  mounted_start(&mounted, NULL);
  return 0;
}

static int set_up_read_only(void **state) {
  const char *const options[] = {"--read-only", NULL};
  *state = &mounted;
  mounted_make(&mounted);
  folder_put(mounted.source, "file", "hello");
  mounted_start(&mounted, options);
  return 0;
}

static int set_up_small(void **state) {
  *state = &mounted;
  mounted_make(&mounted);
  if (geteuid() == 0)
    assert_int_equal(mount("none", mounted.source, "tmpfs", 0, "size=1m"), 0);
  mounted_start(&mounted, NULL);
  return 0;
}

/* Opens a file and reads its text. */
static const char *text_of(const char *path) {
  static char text[64];
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0)
    return strerror(errno);
  ssize_t length = read(fd, text, sizeof text - 1);
  close(fd);
  assert_true(length >= 0);
  text[length] = '\0';
  return text;
}

static int error_of(int result) {
  return result < 0 ? errno : 0;
}

static void names_that_are_too_long_are_rejected(void **state) {
  (void)state;
  char name[257] = {0};
  memset(name, 'n', 256);
  assert_int_equal(error_of(open(at_point(&mounted, name), O_CREAT | O_RDWR, 0600)), ENAMETOOLONG);
  name[255] = '\0';
  folder_put(mounted.point, name, "long");
  assert_string_equal(text_of(at_source(&mounted, name)), "long");
}

/* The kernel still knows the folder's inode when a symlink has replaced it. */
static void a_folder_replaced_by_a_symlink_is_not_followed(void **state) {
  (void)state;
  int folder = open(at_point(&mounted, "folder"), O_PATH | O_DIRECTORY);
  assert_int_equal(rename(at_source(&mounted, "folder"), at_source(&mounted, "moved")), 0);
  assert_int_equal(symlink("/etc", at_source(&mounted, "folder")), 0);
  assert_int_equal(error_of(openat(folder, "passwd", O_RDONLY)), ENOENT);
  assert_int_equal(error_of(openat(folder, "../passwd", O_RDONLY)), ENOENT);
  int inner = openat(folder, "inner", O_RDONLY);
  assert_true(inner >= 0);
  close(inner);
  close(folder);
}

static void deletions_in_the_source_show_within_seconds(void **state) {
  (void)state;
  char bytes[8] = {0};
  int fd = open(at_point(&mounted, "file"), O_RDONLY);
  assert_int_equal(unlink(at_source(&mounted, "file")), 0);
  assert_true(eventually(access(at_point(&mounted, "file"), F_OK) != 0));
  assert_int_equal(errno, ENOENT);
  assert_int_equal(read(fd, bytes, sizeof bytes), 5);
  assert_string_equal(bytes, "hello");
  close(fd);
}

static void replacements_in_the_source_show_within_seconds(void **state) {
  (void)state;
  assert_string_equal(text_of(at_point(&mounted, "file")), "hello");
  folder_put(mounted.source, "new", "other");
  assert_int_equal(rename(at_source(&mounted, "new"), at_source(&mounted, "file")), 0);
  assert_true(eventually(strcmp(text_of(at_point(&mounted, "file")), "other") == 0));
}

/* Writes bypass the kernel's page cache of the mount, as those of rings do. */
static void open_files_show_writes_to_the_source(void **state) {
  (void)state;
  char bytes[8] = {0};
  struct stat stat_of;
  int fd = open(at_point(&mounted, "file"), O_RDONLY);
  assert_int_equal(pread(fd, bytes, sizeof bytes, 0), 5);
  mounted_pause(20); /* the clock of the file system may be coarse */
  int under = open(at_source(&mounted, "file"), O_WRONLY);
  assert_int_equal(pwrite(under, "HELLO", 5, 0), 5);
  assert_int_equal(pread(fd, bytes, sizeof bytes, 0), 5);
  assert_string_equal(bytes, "HELLO");
  assert_int_equal(pwrite(under, "!!", 2, 5), 2);
  assert_int_equal(fstat(fd, &stat_of), 0);
  assert_int_equal(stat_of.st_size, 7);
  assert_int_equal(pread(fd, bytes, sizeof bytes, 0), 7);
  assert_string_equal(bytes, "HELLO!!");
  close(under);
  close(fd);
}

static void write_whole(int fd, const char *bytes) {
  for (size_t done = 0; done < LENGTH;) {
    ssize_t put = write(fd, bytes + done, LENGTH - done);
    assert_true(put > 0);
    done += (size_t)put;
  }
}

static void read_whole(const char *path, int flags, char *bytes) {
  int fd = open(path, O_RDONLY | flags);
  assert_true(fd >= 0);
  for (size_t done = 0; done < LENGTH;) {
    ssize_t got = read(fd, bytes + done, LENGTH - done);
    assert_true(got > 0);
    done += (size_t)got;
  }
  close(fd);
}

static void all_ways_to_read_and_write_agree(void **state) {
  (void)state;
  char *bytes = mmap(NULL, LENGTH, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  const int flags[] = {0, O_DIRECT, O_SYNC, O_APPEND, O_DSYNC | O_DIRECT};
  for (size_t i = 0; i < COUNT(flags); i++) {
    pattern_fill(bytes, LENGTH, i);
    int fd = open(at_point(&mounted, "big"), O_WRONLY | O_CREAT | O_TRUNC | flags[i], 0644);
    assert_true(fd >= 0);
    write_whole(fd, bytes);
    assert_int_equal(close(fd), 0);
    memset(bytes, 0, LENGTH);
    read_whole(at_source(&mounted, "big"), 0, bytes);
    pattern_check(bytes, LENGTH, i);
    memset(bytes, 0, LENGTH);
    read_whole(at_point(&mounted, "big"), flags[i] & O_DIRECT, bytes);
    pattern_check(bytes, LENGTH, i);
  }
  munmap(bytes, LENGTH);
}

static void files_can_be_mapped_and_shared(void **state) {
  (void)state;
  int fd = open(at_point(&mounted, "file"), O_RDWR);
  char *bytes = mmap(NULL, 5, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  assert_true(bytes != MAP_FAILED);
  assert_memory_equal(bytes, "hello", 5);
  bytes[0] = 'H';
  assert_int_equal(msync(bytes, 5, MS_SYNC), 0);
  assert_string_equal(text_of(at_source(&mounted, "file")), "Hello");
  munmap(bytes, 5);
  close(fd);
}

static void appends_do_not_overwrite_each_other(void **state) {
  (void)state;
  int one = open(at_point(&mounted, "file"), O_WRONLY | O_APPEND);
  int other = open(at_source(&mounted, "file"), O_WRONLY | O_APPEND);
  assert_int_equal(write(one, "1", 1), 1);
  assert_int_equal(write(other, "2", 1), 1);
  assert_int_equal(write(one, "3", 1), 1);
  assert_int_equal(fcntl(one, F_SETFL, 0), 0);
  assert_int_equal(pwrite(one, "H", 1, 0), 1);
  assert_string_equal(text_of(at_point(&mounted, "file")), "Hello123");
  close(one);
  close(other);
}

static void open_flags_are_honored(void **state) {
  (void)state;
  const char *path = at_point(&mounted, "file");
  assert_int_equal(error_of(open(path, O_CREAT | O_EXCL | O_RDWR, 0600)), EEXIST);
  assert_int_equal(error_of(open(path, O_RDONLY | O_DIRECTORY)), ENOTDIR);
  assert_int_equal(error_of(open(at_point(&mounted, "folder"), O_WRONLY)), EISDIR);
  int fd = open(path, O_CREAT | O_WRONLY | O_TRUNC, 0600);
  assert_true(fd >= 0);
  assert_int_equal(write(fd, "a", 1), 1);
  close(fd);
  assert_string_equal(text_of(at_source(&mounted, "file")), "a");
}

static void names_are_created_renamed_and_removed(void **state) {
  (void)state;
  struct stat stat_of;
  assert_int_equal(mkdir(at_point(&mounted, "new"), 0700), 0);
  assert_int_equal(rename(at_point(&mounted, "file"), at_point(&mounted, "new/file")), 0);
  assert_string_equal(text_of(at_source(&mounted, "new/file")), "hello");
  assert_int_equal(link(at_point(&mounted, "new/file"), at_point(&mounted, "second")), 0);
  assert_int_equal(stat(at_point(&mounted, "second"), &stat_of), 0);
  assert_int_equal(stat_of.st_nlink, 2);
  assert_int_equal(error_of(rmdir(at_point(&mounted, "new"))), ENOTEMPTY);
  assert_int_equal(unlink(at_point(&mounted, "new/file")), 0);
  assert_int_equal(rmdir(at_point(&mounted, "new")), 0);
  assert_int_equal(error_of(renameat2(AT_FDCWD, at_point(&mounted, "second"), AT_FDCWD,
                                      at_point(&mounted, "folder"), RENAME_NOREPLACE)),
                   EEXIST);
  assert_int_equal(renameat2(AT_FDCWD, at_point(&mounted, "second"), AT_FDCWD,
                             at_point(&mounted, "folder"), RENAME_EXCHANGE),
                   0);
  assert_string_equal(text_of(at_source(&mounted, "folder")), "hello");
  assert_string_equal(text_of(at_point(&mounted, "second/inner")), "inside");
}

static void symlinks_keep_their_target(void **state) {
  (void)state;
  char target[5000] = {0}, longest[4096] = {0};
  memset(longest, 't', 4095);
  assert_int_equal(symlink("/out/of/the/tree", at_point(&mounted, "link")), 0);
  assert_int_equal(readlink(at_source(&mounted, "link"), target, sizeof target), 16);
  assert_int_equal(readlink(at_point(&mounted, "link"), target, sizeof target), 16);
  assert_string_equal(target, "/out/of/the/tree");
  if (symlink(longest, at_source(&mounted, "longest")) == 0) {
    assert_int_equal(readlink(at_point(&mounted, "longest"), target, sizeof target), 4095);
    assert_memory_equal(target, longest, 4095);
  }
}

static void attributes_are_those_of_the_source(void **state) {
  (void)state;
  const struct timespec times[] = {{1000000000, 123456789}, {1111111111, 987654321}};
  struct stat one, other;
  const char *path = at_point(&mounted, "file");
  assert_int_equal(chmod(path, 0640), 0);
  assert_int_equal(truncate(path, 3), 0);
  assert_int_equal(utimensat(AT_FDCWD, path, times, 0), 0);
  assert_int_equal(stat(path, &one), 0);
  assert_int_equal(stat(at_source(&mounted, "file"), &other), 0);
  assert_int_equal(one.st_mode, S_IFREG | 0640);
  assert_int_equal(one.st_size, 3);
  assert_memory_equal(&one.st_mtim, &times[1], sizeof times[1]);
  assert_memory_equal(&other.st_mtim, &times[1], sizeof times[1]);
  assert_int_equal(one.st_ino, other.st_ino);
  assert_int_equal(one.st_nlink, other.st_nlink);
  assert_int_equal(one.st_blocks, other.st_blocks);
  assert_int_equal(error_of(truncate(path, -1)), EINVAL);
}

static void the_file_system_is_as_large_as_the_source(void **state) {
  (void)state;
  struct statvfs one, other;
  assert_int_equal(statvfs(mounted.point, &one), 0);
  assert_int_equal(statvfs(mounted.source, &other), 0);
  assert_int_equal(one.f_blocks, other.f_blocks);
  assert_int_equal(one.f_namemax, other.f_namemax);
}

static void holes_are_punched_and_found(void **state) {
  (void)state;
  const off_t block = 65536;
  char byte = 1;
  int fd = open(at_point(&mounted, "sparse"), O_RDWR | O_CREAT, 0600);
  assert_int_equal(posix_fallocate(fd, 0, 4 * block), 0);
  for (off_t at = 0; at < 4 * block; at += 512)
    assert_int_equal(pwrite(fd, &byte, 1, at), 1);
  assert_int_equal(fsync(fd), 0);
  if (fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, block, block)) {
    assert_int_equal(errno, EOPNOTSUPP);
    close(fd);
    skip();
  }
  assert_int_equal(pread(fd, &byte, 1, block), 1);
  assert_int_equal(byte, 0);
  assert_int_equal(lseek(fd, 0, SEEK_HOLE), block);
  assert_int_equal(lseek(fd, block, SEEK_DATA), 2 * block);
  assert_int_equal(error_of((int)lseek(fd, 5 * block, SEEK_DATA)), ENXIO);
  assert_int_equal(lseek(fd, 0, SEEK_END), 4 * block);
  close(fd);
}

static void extended_attributes_are_those_of_the_source(void **state) {
  (void)state;
  char value[16] = {0}, list[64];
  const char *path = at_point(&mounted, "file");
  if (setxattr(at_source(&mounted, "file"), "user.first", "1", 1, 0))
    skip(); /* not on this file system */
  assert_int_equal(getxattr(path, "user.first", value, sizeof value), 1);
  assert_int_equal(setxattr(path, "user.second", "four", 4, XATTR_CREATE), 0);
  assert_int_equal(error_of(setxattr(path, "user.second", "", 0, XATTR_CREATE)), EEXIST);
  assert_int_equal(getxattr(at_source(&mounted, "file"), "user.second", value, 16), 4);
  assert_int_equal(error_of((int)getxattr(path, "user.second", value, 2)), ERANGE);
  assert_int_equal(getxattr(path, "user.second", NULL, 0), 4);
  assert_int_equal(listxattr(path, list, sizeof list),
                   listxattr(at_source(&mounted, "file"), list, sizeof list));
  assert_int_equal(removexattr(path, "user.first"), 0);
  assert_int_equal(error_of((int)getxattr(path, "user.first", value, 2)), ENODATA);
}

#define MANY 2000

/* With all attributes, as `ls -l` does. */
static void a_large_folder_is_listed_whole(void **state) {
  (void)state;
  static bool seen[MANY];
  char name[32];
  unsigned number, count = 0, nonempty = 0;
  struct stat stat_of;
  for (unsigned i = 0; i < MANY; i++) {
    snprintf(name, sizeof name, "folder/n%u", i);
    folder_put(mounted.source, name, i % 2 ? "odd" : "");
  }
  DIR *folder = opendir(at_point(&mounted, "folder"));
  for (const struct dirent *entry; (entry = readdir(folder));) {
    if (sscanf(entry->d_name, "n%u", &number) != 1)
      continue;
    assert_false(seen[number]);
    seen[number] = true;
    assert_int_equal(fstatat(dirfd(folder), entry->d_name, &stat_of, 0), 0);
    assert_int_equal(entry->d_ino, stat_of.st_ino);
    nonempty += stat_of.st_size == 3;
    count++;
  }
  closedir(folder);
  assert_int_equal(count, MANY);
  assert_int_equal(nonempty, MANY / 2);
}

static void a_read_only_mount_rejects_changes(void **state) {
  (void)state;
  const char *path = at_point(&mounted, "file");
  assert_string_equal(text_of(path), "hello");
  assert_int_equal(error_of(open(path, O_RDWR)), EROFS);
  assert_int_equal(error_of(open(path, O_RDONLY | O_TRUNC)), EROFS);
  assert_int_equal(error_of(open(at_point(&mounted, "new"), O_CREAT | O_RDWR, 0600)), EROFS);
  assert_int_equal(error_of(truncate(path, 0)), EROFS);
  assert_int_equal(error_of(chmod(path, 0600)), EROFS);
  assert_int_equal(error_of(unlink(path)), EROFS);
  assert_int_equal(error_of(mkdir(at_point(&mounted, "new"), 0700)), EROFS);
  assert_int_equal(error_of(rename(path, at_point(&mounted, "new"))), EROFS);
  assert_string_equal(text_of(at_source(&mounted, "file")), "hello");
}

static void a_full_disk_is_reported(void **state) {
  (void)state;
  static char bytes[1 << 18];
  ssize_t put = 0;
  int written = 0;
  if (geteuid() != 0)
    skip(); /* only root can mount a small disk */
  int fd = open(at_point(&mounted, "big"), O_WRONLY | O_CREAT, 0600);
  while (written < 16 && (put = write(fd, bytes, sizeof bytes)) > 0)
    written++;
  assert_int_equal(put, -1);
  assert_int_equal(errno, ENOSPC);
  assert_int_equal(error_of(fallocate(fd, 0, 0, 4 << 20)), ENOSPC);
  assert_int_equal(ftruncate(fd, 0), 0);
  assert_int_equal(pwrite(fd, bytes, sizeof bytes, 0), sizeof bytes);
  close(fd);
}

static void keep_first_errno(int *first, bool failed) {
  if (failed && *first == 0)
    *first = errno;
}

/* Stores the first unexpected errno in *argument; races among the four threads are expected. */
static void *churn_files(void *argument) {
  char name[64], other[64];
  int *wrong = argument;
  for (unsigned i = 0; i < 300 && *wrong == 0; i++) {
    snprintf(name, sizeof name, "folder/t%u", i % 5);
    snprintf(other, sizeof other, "folder/t%u", (i + 1) % 5);
    int fd = open(at_point(&mounted, name), O_CREAT | O_RDWR, 0600);
    keep_first_errno(wrong, fd < 0 || write(fd, "x", 1) != 1);
    if (fd >= 0)
      close(fd);
    int status = rename(at_point(&mounted, name), at_point(&mounted, other));
    keep_first_errno(wrong, status != 0 && errno != ENOENT);
    status = unlink(at_point(&mounted, other));
    keep_first_errno(wrong, status != 0 && errno != ENOENT);
  }
  return NULL;
}

static void four_threads_change_one_folder(void **state) {
  (void)state;
  pthread_t threads[4];
  int wrong[4] = {0};
  for (unsigned i = 0; i < 4; i++)
    assert_int_equal(pthread_create(&threads[i], NULL, churn_files, &wrong[i]), 0);
  for (unsigned i = 0; i < 4; i++) {
    pthread_join(threads[i], NULL);
    assert_int_equal(wrong[i], 0);
  }
}

static void killed_clients_leave_no_open_files(void **state) {
  (void)state;
  struct stat stat_of;
  assert_int_equal(stat(at_point(&mounted, "file"), &stat_of), 0);
  unsigned before = mounted_descriptors(&mounted);
  pid_t client = fork();
  if (client == 0) {
    for (int i = 0; i < 200; i++)
      if (open(at_point(&mounted, "file"), O_RDWR | (i % 2 ? O_APPEND : 0)) < 0)
        _exit(1);
    kill(getpid(), SIGKILL);
  }
  int status;
  assert_int_equal(waitpid(client, &status, 0), client);
  assert_true(WIFSIGNALED(status));
  /* New threads may have opened up to 50 descriptors. The client's 200 are closed. */
  assert_true(eventually(mounted_descriptors(&mounted) <= before + 50));
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, mounted_tear_down)

int main(void) {
  const struct CMUnitTest tests[] = {
      TEST(names_that_are_too_long_are_rejected),
      TEST(a_folder_replaced_by_a_symlink_is_not_followed),
      TEST(deletions_in_the_source_show_within_seconds),
      TEST(replacements_in_the_source_show_within_seconds),
      TEST(open_files_show_writes_to_the_source),
      TEST(all_ways_to_read_and_write_agree),
      TEST(files_can_be_mapped_and_shared),
      TEST(appends_do_not_overwrite_each_other),
      TEST(open_flags_are_honored),
      TEST(names_are_created_renamed_and_removed),
      TEST(symlinks_keep_their_target),
      TEST(attributes_are_those_of_the_source),
      TEST(the_file_system_is_as_large_as_the_source),
      TEST(holes_are_punched_and_found),
      TEST(extended_attributes_are_those_of_the_source),
      TEST(a_large_folder_is_listed_whole),
      cmocka_unit_test_setup_teardown(a_read_only_mount_rejects_changes, set_up_read_only,
                                      mounted_tear_down),
      cmocka_unit_test_setup_teardown(a_full_disk_is_reported, set_up_small, mounted_tear_down),
      TEST(four_threads_change_one_folder),
      TEST(killed_clients_leave_no_open_files),
  };
  mounted_need_fuse();
  return cmocka_run_group_tests(tests, NULL, NULL);
}
