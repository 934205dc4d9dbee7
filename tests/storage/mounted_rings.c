/* SPDX-License-Identifier: MIT
 * USRBIO programs on a real mount: coherence of rings and ordinary file access, and killed clients
 * and daemons. */
#include "support/check.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <haul/usrbio.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "user.h"

#define MIB    ((size_t)1 << 20)
#define LENGTH (3 * MIB + 123)

static struct mounted mounted;

static uint8_t byte_at(uint64_t offset, unsigned seed) {
  return (uint8_t)(offset * 7 + (offset >> 8) + seed);
}

static void put_file(const char *path, size_t length, unsigned seed) {
  uint8_t *bytes = malloc(length);
  int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  assert_true(bytes && fd >= 0);
  for (size_t i = 0; i < length; i++)
    bytes[i] = byte_at(i, seed);
  assert_int_equal(write(fd, bytes, length), (ssize_t)length);
  close(fd);
  free(bytes);
}

static void assert_bytes(const uint8_t *bytes, uint64_t offset, size_t length, unsigned seed) {
  for (size_t i = 0; i < length; i++)
    if (bytes[i] != byte_at(offset + i, seed))
      fail_msg("byte %zu is %u instead of %u", i, bytes[i], byte_at(offset + i, seed));
}

static int set_up(void **state) {
  *state = &mounted;
  mounted_make(&mounted);
  put_file(at_source(&mounted, "file"), LENGTH, 1);
  mounted_start(&mounted, NULL);
  return 0;
}

static unsigned entries_of(const char *path) {
  unsigned count = 0;
  DIR *folder = opendir(path);
  assert_non_null(folder);
  for (struct dirent *entry; (entry = readdir(folder));)
    count += entry->d_name[0] != '.';
  closedir(folder);
  return count;
}

static unsigned registered(void) {
  return entries_of(at_point(&mounted, "3fs-virt/iovs"));
}

/* The last memory that the only client registered; its ring is unlinked already. */
static void find_memory(char path[256]) {
  const char *folder = at_point(&mounted, "3fs-virt/iovs");
  DIR *names = opendir(folder);
  assert_non_null(names);
  *path = '\0';
  for (struct dirent *entry; (entry = readdir(names));) {
    char target[256];
    ssize_t length = readlinkat(dirfd(names), entry->d_name, target, sizeof target - 1);
    if (length < 0)
      continue;
    target[length] = '\0';
    if (strncmp(target, "/dev/shm/hf3fs-iov-", 19) == 0 && access(target, F_OK) == 0)
      memcpy(path, target, sizeof target);
  }
  closedir(names);
  assert_true(*path);
}

static void files_of_other_file_systems_are_rejected(void **state) {
  (void)state;
  char point[256];
  int fd = open(at_source(&mounted, "file"), O_RDONLY);
  assert_false(hf3fs_is_hf3fs(fd));
  assert_int_equal(hf3fs_reg_fd(fd, 0), EBADF);
  assert_int_equal(hf3fs_extract_mount_point(point, sizeof point, mounted.source), -1);
  close(fd);
  fd = open(at_point(&mounted, "file"), O_RDONLY);
  assert_true(hf3fs_is_hf3fs(fd));
  assert_true(hf3fs_reg_fd(fd, 0) <= 0);
  assert_int_equal(hf3fs_reg_fd(fd, 0), EINVAL);
  hf3fs_dereg_fd(fd);
  close(fd);
  assert_int_equal(hf3fs_extract_mount_point(point, sizeof point, at_point(&mounted, "file")),
                   (int)strlen(mounted.point) + 1);
  assert_string_equal(point, mounted.point);
}

static void closed_files_are_not_used(void **state) {
  (void)state;
  struct user user;
  struct stat stat;
  user_begin(&user, &mounted, "file", O_RDONLY, 0);
  assert_int_equal(fstat(user.fd, &stat), 0);
  assert_int_equal(user_do(&user, 0, 100), 100);
  int fd = user.fd; /* not through the library, whose duplicate keeps the file open */
  close(fd);
  assert_int_equal(user_do(&user, 0, 100), 100);
  user.fd = -1;
  hf3fs_dereg_fd(fd);
  hf3fs_iordestroy(&user.ior);
  hf3fs_iovdestroy(&user.iov);
}

static void a_ring_reads_the_files_data(void **state) {
  (void)state;
  struct user user;
  user_begin(&user, &mounted, "file", O_RDONLY, 0);
  const uint64_t ranges[][2] = {{0, MIB}, {4096, 2 * MIB}, {77, 100001}, {0, 1}};
  for (size_t i = 0; i < COUNT(ranges); i++) {
    assert_int_equal(user_do(&user, ranges[i][0], ranges[i][1]), (int64_t)ranges[i][1]);
    assert_bytes(user.iov.base, ranges[i][0], ranges[i][1], 1);
  }
  assert_int_equal(user_do(&user, LENGTH - 5, 100), 5);
  assert_int_equal(user_do(&user, LENGTH, 100), 0);
  user_end(&user);
}

/* For a descriptor that is open all the time, and for a new one; both have read the old data. */
static void ring_writes_are_visible_to_readers(void **state) {
  (void)state;
  struct user user;
  static uint8_t bytes[MIB];
  int fd = open(at_point(&mounted, "file"), O_RDONLY);
  assert_int_equal(pread(fd, bytes, MIB, 0), MIB);
  user_begin(&user, &mounted, "file", O_RDWR, 0);
  nanosleep(&(struct timespec){0, 20000000}, NULL); /* one tick of the file system's clock */
  for (size_t i = 0; i < MIB; i++)
    user.iov.base[i] = byte_at(i, 9);
  assert_int_equal(user_do(&user, 0, MIB), MIB);
  assert_int_equal(user_do(&user, LENGTH, 100), 100);
  assert_int_equal(pread(fd, bytes, MIB, 0), MIB);
  assert_bytes(bytes, 0, MIB, 9);
  assert_int_equal(pread(fd, bytes, MIB, (off_t)LENGTH), 100);
  assert_bytes(bytes, 0, 100, 9);
  close(fd);
  user_end(&user);
}

static void file_writes_are_visible_to_rings(void **state) {
  (void)state;
  struct user user;
  uint8_t *bytes = malloc(MIB);
  user_begin(&user, &mounted, "file", O_RDONLY, 0);
  assert_int_equal(user_do(&user, 0, MIB), MIB);
  int fd = open(at_point(&mounted, "file"), O_RDWR);
  for (size_t i = 0; i < MIB; i++)
    bytes[i] = byte_at(i, 5);
  assert_int_equal(pwrite(fd, bytes, MIB, 0), MIB);
  assert_int_equal(user_do(&user, 0, MIB), MIB);
  assert_bytes(user.iov.base, 0, MIB, 5);
  close(fd);
  free(bytes);
  user_end(&user);
}

static void files_are_truncated_replaced_and_deleted_during_io(void **state) {
  (void)state;
  struct user user;
  user_begin(&user, &mounted, "file", O_RDONLY, 0);
  assert_int_equal(truncate(at_point(&mounted, "file"), 1000), 0);
  assert_int_equal(user_do(&user, 0, 4096), 1000);
  put_file(at_source(&mounted, "other"), 5000, 3);
  assert_int_equal(rename(at_source(&mounted, "other"), at_source(&mounted, "file")), 0);
  assert_int_equal(user_do(&user, 0, 4096), 1000); /* the file that was opened */
  assert_bytes(user.iov.base, 0, 1000, 1);
  assert_int_equal(unlink(at_point(&mounted, "file")), 0);
  assert_int_equal(user_do(&user, 0, 4096), 1000);
  user_end(&user);
}

static void a_ring_alone_extends_a_file(void **state) {
  (void)state;
  struct user user;
  struct stat stat;
  int fd = open(at_point(&mounted, "new"), O_RDWR | O_CREAT, 0600);
  assert_true(fd >= 0);
  user_begin(&user, &mounted, "new", O_RDWR, 0);
  for (unsigned i = 0; i < 3; i++) {
    memset(user.iov.base, (int)i + 1, MIB);
    assert_int_equal(user_do(&user, i * MIB, MIB), MIB);
    assert_int_equal(fstat(fd, &stat), 0);
    assert_int_equal(stat.st_size, (i + 1) * MIB);
  }
  close(fd);
  user_end(&user);
}

/* In a child: registers, prepares operations until the ring is full, and reports it. */
static void run_victim(int ready) {
  struct user user;
  user_begin(&user, &mounted, "file", O_RDONLY, 0);
  for (unsigned i = 0; i < 64; i++)
    assert_true(hf3fs_prep_io(&user.ior, &user.iov, true, user.iov.base, user.fd, 0, MIB, NULL) >=
                0);
  hf3fs_submit_ios(&user.ior);
  if (write(ready, "x", 1) == 1)
    pause();
  _exit(1);
}

static void killed_clients_leave_nothing_behind(void **state) {
  (void)state;
  struct user user;
  user_begin(&user, &mounted, "file", O_RDONLY, 0); /* allocations of the first use remain */
  assert_int_equal(user_do(&user, 0, 100), 100);
  user_end(&user);
  unsigned descriptors = mounted_descriptors(&mounted);
  for (unsigned round = 0; round < 10; round++) {
    int ready[2];
    char byte, memory[256];
    assert_int_equal(pipe2(ready, O_CLOEXEC), 0);
    pid_t child = fork();
    if (child == 0)
      run_victim(ready[1]);
    close(ready[1]);
    assert_int_equal(read(ready[0], &byte, 1), 1);
    find_memory(memory);
    kill(child, SIGKILL);
    assert_int_equal(waitpid(child, NULL, 0), child);
    close(ready[0]);
    assert_true(eventually(registered() == 5));
    assert_int_equal(access(memory, F_OK), -1);
  }
  assert_true(eventually(mounted_descriptors(&mounted) <= descriptors));
}

/* A wait that waited for the daemon would not end. */
static void deadlines_pass_while_the_daemon_is_stopped(void **state) {
  (void)state;
  struct user user;
  struct hf3fs_cqe done;
  user_begin(&user, &mounted, "file", O_RDONLY, 0);
  assert_int_equal(user_do(&user, 0, 100), 100);
  kill(mounted.daemon, SIGSTOP);
  assert_int_equal(waitpid(mounted.daemon, NULL, WUNTRACED), mounted.daemon);
  alarm(60);
  assert_true(user_prepare(&user, 0, 0, 100) >= 0);
  assert_int_equal(hf3fs_submit_ios(&user.ior), 0);
  for (int i = 0; i < 2; i++) {
    assert_int_equal(user_wait(&user, 2), -ETIME);
    assert_int_equal(hf3fs_wait_for_ios(&user.ior, &done, 1, 0, NULL), 0);
  }
  alarm(0);
  kill(mounted.daemon, SIGCONT);
  assert_int_equal(user_wait(&user, 30), 100);
  user_end(&user);
}

static void a_killed_daemon_is_reported_and_replaced(void **state) {
  (void)state;
  struct user user;
  char bell[256] = "";
  user_begin(&user, &mounted, "file", O_RDONLY, 0);
  assert_int_equal(user_do(&user, 0, 100), 100);
  assert_true(readlink(at_point(&mounted, "3fs-virt/iovs/submit-ios"), bell, sizeof bell - 1) > 0);
  int fd = open(at_point(&mounted, "file"), O_RDONLY | O_CLOEXEC);
  kill(mounted.daemon, SIGKILL);
  assert_int_equal(mounted_wait(&mounted), 128 + SIGKILL);
  assert_int_equal(hf3fs_reg_fd(fd, 0), ENOTCONN);
  close(fd);
  int64_t result = user_do(&user, 0, 100);
  assert_true(result == -ENOTCONN);
  mounted_start(&mounted, NULL);            /* the client keeps the first mount busy */
  assert_int_equal(access(bell, F_OK), -1); /* the files of the first daemon are removed */
  assert_int_equal(user_do(&user, 0, 100), -ENOTCONN);
  struct user again;
  user_begin(&again, &mounted, "file", O_RDONLY, 0);
  assert_int_equal(user_do(&again, 0, 100), 100);
  assert_bytes(again.iov.base, 0, 100, 1);
  user_end(&again);
  user_end(&user);
}

/* Other users may lock the semaphore's file, and lock the daemon's lock for reading. */
static void locks_of_others_keep_no_daemon_alive(void **state) {
  (void)state;
  struct user user;
  char bell[256] = "", lock[264];
  struct flock whole = {.l_type = F_RDLCK, .l_whence = SEEK_SET};
  user_begin(&user, &mounted, "file", O_RDONLY, 0);
  assert_true(readlink(at_point(&mounted, "3fs-virt/iovs/submit-ios"), bell, sizeof bell - 1) > 0);
  snprintf(lock, sizeof lock, "%s" SEMAPHORE_LOCK, bell);
  int fds[] = {open(bell, O_RDONLY | O_CLOEXEC), open(lock, O_RDONLY | O_CLOEXEC)};
  kill(mounted.daemon, SIGKILL);
  assert_int_equal(mounted_wait(&mounted), 128 + SIGKILL);
  assert_int_equal(flock(fds[0], LOCK_EX | LOCK_NB), 0);
  int locked = fcntl(fds[1], F_OFD_SETLK, &whole);
  assert_int_equal(user_do(&user, 0, 100), -ENOTCONN);
  assert_int_equal(locked, 0);
  mounted_start(&mounted, NULL);
  assert_int_equal(access(bell, F_OK), -1);
  assert_int_equal(access(lock, F_OK), -1);
  close(fds[0]);
  close(fds[1]);
  user_end(&user);
}

/* A file may get the inode number of one that was deleted. */
static void a_new_daemon_rejects_files_of_the_old_one(void **state) {
  (void)state;
  struct user old, user;
  uint8_t bytes[4096];
  user_begin(&old, &mounted, "file", O_RDWR, 0);
  kill(mounted.daemon, SIGKILL);
  assert_int_equal(mounted_wait(&mounted), 128 + SIGKILL);
  assert_int_equal(unlink(at_source(&mounted, "file")), 0);
  put_file(at_source(&mounted, "other"), 4096, 2);
  mounted_start(&mounted, NULL);
  user_begin(&user, &mounted, "other", O_RDWR, 0);
  memset(user.iov.base, 0, 4096);
  assert_int_equal(hf3fs_prep_io(&user.ior, &user.iov, false, user.iov.base, old.fd, 0, 4096, NULL),
                   -EBADF);
  assert_int_equal(pread(user.fd, bytes, sizeof bytes, 0), sizeof bytes);
  assert_bytes(bytes, 0, sizeof bytes, 2);
  user_end(&user);
  user_end(&old);
}

static void a_ring_rejects_files_of_another_mount(void **state) {
  (void)state;
  struct mounted second;
  struct user here, there;
  mounted_make(&second);
  put_file(folder_path(second.source, "file"), LENGTH, 2);
  mounted_start(&second, NULL);
  user_begin(&here, &mounted, "file", O_RDONLY, 0);
  user_begin(&there, &second, "file", O_RDONLY, 0);
  assert_int_equal(hf3fs_prep_io(&here.ior, &here.iov, true, here.iov.base, there.fd, 0, 1, NULL),
                   -EBADF);
  assert_int_equal(user_do(&here, 0, 100), 100);
  assert_int_equal(user_do(&there, 0, 100), 100);
  user_end(&there);
  user_end(&here);
  mounted_end(&second);
}

int main(int argc, char **argv) {
  mounted_need_fuse();
  if (argc > 1 && strcmp(argv[1], "remote") == 0)
    mounted_use_server();
#define TEST(test) cmocka_unit_test_setup_teardown(test, set_up, mounted_tear_down)
  const struct CMUnitTest tests[] = {
      TEST(files_of_other_file_systems_are_rejected),
      TEST(closed_files_are_not_used),
      TEST(a_ring_reads_the_files_data),
      TEST(ring_writes_are_visible_to_readers),
      TEST(file_writes_are_visible_to_rings),
      TEST(files_are_truncated_replaced_and_deleted_during_io),
      TEST(a_ring_alone_extends_a_file),
      TEST(killed_clients_leave_nothing_behind),
      TEST(deadlines_pass_while_the_daemon_is_stopped),
      TEST(a_killed_daemon_is_reported_and_replaced),
      TEST(locks_of_others_keep_no_daemon_alive),
      TEST(a_new_daemon_rejects_files_of_the_old_one),
      TEST(a_ring_rejects_files_of_another_mount),
  };
  return cmocka_run_group_tests_name("storage/mounted_rings", tests, NULL, NULL);
}
