/* SPDX-License-Identifier: MIT
 * Registration under 3fs-virt/iovs: what is accepted, from whom, and when it ends. */
#include "support/check.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "client.h"

#define ID "00112233-4455-6677-8899-aabbccddeeff"

static struct rig rig;
static const struct iov_name buffer = {.ring = false};

static int set_up(void **state) {
  *state = &rig;
  rig_open(&rig, 1);
  return 0;
}

static int registers(const char *name, const char *target) {
  struct control_link entry;
  return control_dir_symlink(rig.control, &rig.caller, name, target, &entry);
}

static int finds(const char *name) {
  struct control_link entry;
  return control_dir_lookup(rig.control, &rig.caller, name, &entry);
}

static void count_one(void *user, const char *name, const struct control_link *entry) {
  (void)name;
  (void)entry;
  ++*(unsigned *)user;
}

static unsigned listed(void) {
  unsigned count = 0;
  control_dir_list(rig.control, &rig.caller, count_one, &count);
  return count;
}

/* Creates a file in /dev/shm; returns its path, valid until the next call. */
static const char *file(const char *name, size_t bytes) {
  static char path[64];
  snprintf(path, sizeof path, "/dev/shm/haul-virt-%d-%s", getpid(), name);
  int fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  assert_true(fd >= 0);
  assert_int_equal(ftruncate(fd, (off_t)bytes), 0);
  close(fd);
  return path;
}

static void only_the_callers_regular_files_in_dev_shm_are_registered(void **state) {
  (void)state;
  static const char *const elsewhere[] = {"",
                                          "x",
                                          "/",
                                          "/etc/passwd",
                                          "/dev/shm",
                                          "/dev/shm/",
                                          "/dev/shm/.",
                                          "/dev/shm/..",
                                          "/dev/shm/../../etc/passwd",
                                          "/dev/shmx",
                                          "/dev/shm/a/b",
                                          "dev/shm/x"};
  for (size_t i = 0; i < COUNT(elsewhere); i++)
    assert_int_equal(registers(ID, elsewhere[i]), -EINVAL);
  assert_int_equal(registers(ID, "/dev/shm/haul-there-is-no-such-file"), -ENOENT);
  const char *path = file("link", 1);
  assert_int_equal(unlink(path), 0);
  assert_int_equal(symlink(rig.path, path), 0);
  assert_int_equal(registers(ID, path), -EPERM);
  assert_int_equal(unlink(path), 0);
  assert_int_equal(mkdir(path, 0700), 0);
  assert_true(registers(ID, path) < 0);
  assert_int_equal(rmdir(path), 0);
  assert_int_equal(mkfifo(path, 0600), 0);
  assert_int_equal(registers(ID, path), -EPERM);
  assert_int_equal(unlink(path), 0);
  assert_int_equal(listed(), 5);
}

/* In a mount namespace of its own: a file of another file system over the name in /dev/shm. */
static void cover(const char *path, int ready) {
  char other[] = "/tmp/haul-cover.XXXXXX", word = 'n';
  int fd = mkstemp(other);
  bool covered = fd >= 0 && ftruncate(fd, 4096) == 0 &&
                 unshare(geteuid() == 0 ? CLONE_NEWNS : CLONE_NEWUSER | CLONE_NEWNS) == 0 &&
                 mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0 &&
                 mount(other, path, NULL, MS_BIND, NULL) == 0;
  if (covered)
    word = 'y';
  unlink(other);
  if (write(ready, &word, 1) == 1)
    pause();
  _exit(0);
}

static void files_mounted_over_a_name_are_rejected(void **state) {
  (void)state;
  struct control_caller other = rig.caller;
  struct control_link entry;
  const char *path = file("covered", 4096);
  char word = 0;
  int ends[2];
  assert_int_equal(pipe(ends), 0);
  pid_t child = fork();
  if (child == 0)
    cover(path, ends[1]);
  assert_int_equal(read(ends[0], &word, 1), 1);
  other.thread = child;
  int code = control_dir_symlink(rig.control, &other, ID, path, &entry);
  kill(child, SIGKILL);
  waitpid(child, NULL, 0);
  close(ends[0]);
  close(ends[1]);
  assert_int_equal(unlink(path), 0);
  if (word != 'y')
    skip();
  assert_int_equal(code, -EPERM);
  assert_int_equal(listed(), 5);
}

static void memory_that_contradicts_its_name_is_rejected(void **state) {
  (void)state;
  const char *path = file("small", 0);
  assert_int_equal(registers(ID, path), -EINVAL);
  path = file("small", 4096);
  assert_int_equal(registers(ID ".b4097", path), -EINVAL);
  assert_int_equal(registers(ID ".r1", path), -EINVAL);
  path = file("small", ring_bytes(4));
  assert_int_equal(registers(ID ".r5", path), -EINVAL);
  assert_int_equal(registers("submit-ios", path), -EEXIST);
  assert_int_equal(registers("no-name", path), -EINVAL);
  assert_int_equal(unlink(path), 0);
  assert_int_equal(listed(), 5);
}

static void duplicate_names_and_ids_are_rejected(void **state) {
  (void)state;
  const char *path = file("twice", 8192);
  assert_int_equal(registers(ID, path), 0);
  assert_int_equal(registers(ID, path), -EEXIST);
  assert_int_equal(registers(ID ".b4096", path), -EEXIST);
  assert_int_equal(control_dir_unlink(rig.control, &rig.caller, ID), 0);
  assert_int_equal(registers(ID, path), 0);
  assert_int_equal(unlink(path), 0);
}

static void files_and_entries_of_other_users_are_protected(void **state) {
  (void)state;
  struct control_caller other = rig.caller;
  struct control_link entry;
  if (getuid() != 0) {
    fprintf(stderr, "skipped other users: this is not root\n");
    skip();
  }
  other.uid = 12345;
  const char *path = file("mine", 4096);
  assert_int_equal(control_dir_symlink(rig.control, &other, ID, path, &entry), -EPERM);
  assert_int_equal(registers(ID, path), 0);
  assert_int_equal(control_dir_lookup(rig.control, &other, ID, &entry), -ENOENT);
  assert_int_equal(control_dir_unlink(rig.control, &other, ID), -ENOENT);
  assert_int_equal(finds(ID), 0);
  assert_int_equal(unlink(path), 0);
}

static void semaphore_links_are_permanent(void **state) {
  (void)state;
  struct control_link entry;
  char path[256];
  const char *const names[] = {"submit-ios.ph", "submit-ios", "submit-ios.pl"};
  for (size_t i = 0; i < COUNT(names); i++) {
    assert_int_equal(control_dir_unlink(rig.control, &rig.caller, names[i]), -EPERM);
    assert_int_equal(control_dir_lookup(rig.control, &rig.caller, names[i], &entry), 0);
    assert_true(S_ISLNK(entry.mode));
    assert_int_equal(control_dir_readlink(rig.control, entry.id, path, sizeof path), 0);
    assert_int_equal(strlen(path), entry.length);
    assert_int_equal(access(path, R_OK | W_OK), 0);
    assert_int_equal(control_dir_readlink(rig.control, entry.id, path, 4), -ENAMETOOLONG);
  }
}

static void registered_entries_are_listed(void **state) {
  (void)state;
  struct control_link entry, again;
  char target[256];
  const char *path = file("listed", 4096);
  assert_int_equal(control_dir_symlink(rig.control, &rig.caller, ID ".b4096", path, &entry), 0);
  assert_true(entry.id > 0 && S_ISLNK(entry.mode));
  assert_int_equal(entry.uid, rig.caller.uid);
  assert_int_equal(entry.length, strlen(path));
  assert_int_equal(unlink(path), 0); /* as some clients do after registering */
  assert_int_equal(control_dir_lookup(rig.control, &rig.caller, ID ".b4096", &again), 0);
  assert_int_equal(again.id, entry.id);
  assert_int_equal(again.length, entry.length);
  assert_int_equal(control_dir_stat(rig.control, entry.id, &again), 0);
  assert_int_equal(control_dir_readlink(rig.control, entry.id, target, sizeof target), 0);
  assert_string_equal(target, path);
  assert_int_equal(listed(), 6);
  assert_int_equal(control_dir_unlink(rig.control, &rig.caller, ID ".b4096"), 0);
  assert_int_equal(finds(ID ".b4096"), -ENOENT);
  assert_int_equal(control_dir_stat(rig.control, entry.id, &again), -ENOENT);
  assert_int_equal(listed(), 5);
}

static void removed_buffers_are_not_found(void **state) {
  (void)state;
  struct client client;
  client_open(&client, &rig, &(struct iov_name){.for_read = true, .priority = RING_LOW}, 4, 4096);
  assert_int_equal(client_do(&client, 0, 0, 4096), 4096);
  assert_int_equal(control_dir_unlink(rig.control, &rig.caller, client.buffer.text), 0);
  assert_int_equal(client_do(&client, 0, 0, 4096), -ENOENT);
  client_close(&client);
}

static uint64_t counted(const char *name) {
  return rig_counter(&rig, name);
}

static void counters_show_page_cache_use_and_its_reason(void **state) {
  (void)state;
  struct client client;
  client_open(&client, &rig, &(struct iov_name){.for_read = true, .priority = RING_HIGH}, 4, 8192);
  assert_int_equal(client_do(&client, 0, 0, 4096), 4096);
  assert_int_equal(counted("operations="), 1);
  assert_int_equal(counted(" bytes="), 4096);
  if (counted("buffered_no_direct=") == 0) {
    assert_int_equal(counted(" direct="), 1);
    assert_int_equal(client_do(&client, 1, 0, 4096), 4096);
    assert_int_equal(client_do(&client, 0, 0, 77), 77);
    assert_int_equal(counted("buffered_unaligned="), 2);
  }
  assert_int_equal(client_do(&client, 0, 0, 0), -EINVAL);
  assert_int_equal(counted("failed="), 1);
  client_close(&client);
}

/* RLIMIT_MEMLOCK applies to processes without CAP_IPC_LOCK. */
static void hold_to_limits(bool held) {
  struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
  struct __user_cap_data_struct sets[2];
  assert_int_equal(syscall(SYS_capget, &header, sets), 0);
  sets[0].effective = sets[0].permitted;
  if (held)
    sets[0].effective &= ~(1u << CAP_IPC_LOCK);
  assert_int_equal(syscall(SYS_capset, &header, sets), 0);
}

static void unpinned_buffers_work_and_are_counted(void **state) {
  (void)state;
  struct rlimit before, few;
  struct client client;
  rig_close(&rig);
  assert_int_equal(getrlimit(RLIMIT_MEMLOCK, &before), 0);
  few = (struct rlimit){2 << 20, before.rlim_max}; /* for the ring itself */
  hold_to_limits(true);
  assert_int_equal(setrlimit(RLIMIT_MEMLOCK, &few), 0);
  rig_open(&rig, 1);
  client_open(&client, &rig, &(struct iov_name){.for_read = true, .priority = RING_HIGH}, 4,
              PATTERN_BYTES);
  for (unsigned i = 0; i < 4; i++) /* buffers are pinned at their second use */
    assert_int_equal(client_do(&client, 0, 0, PATTERN_BYTES), PATTERN_BYTES);
  uint64_t unpinned = counted(" unpinned=");
  client_close(&client);
  assert_int_equal(setrlimit(RLIMIT_MEMLOCK, &before), 0);
  hold_to_limits(false);
  assert_true(unpinned >= 2);
}

static void the_last_handle_removes_a_processs_entries(void **state) {
  (void)state;
  uint64_t handles[2];
  struct piece piece;
  for (unsigned i = 0; i < 2; i++)
    assert_int_equal(control_dir_hold(rig.control, &rig.caller, &handles[i]), 0);
  assert_int_equal(piece_open(&piece, &rig, &buffer, 4096), 0);
  control_dir_release(rig.control, handles[0]);
  assert_int_equal(finds(piece.text), 0);
  control_dir_release(rig.control, handles[1]);
  assert_int_equal(finds(piece.text), -ENOENT);
  piece_close(&piece);
}

static void handles_of_others_remove_nothing(void **state) {
  (void)state;
  uint64_t handle;
  struct piece piece;
  struct control_caller other = rig.caller;
  pid_t child = fork();
  if (child == 0) {
    pause();
    _exit(0);
  }
  other.thread = child;
  assert_int_equal(piece_open(&piece, &rig, &buffer, 4096), 0);
  assert_int_equal(control_dir_hold(rig.control, &other, &handle), 0);
  control_dir_release(rig.control, handle);
  assert_int_equal(finds(piece.text), 0);
  kill(child, SIGKILL);
  waitpid(child, NULL, 0);
  piece_close(&piece);
}

static void dead_processes_without_handles_are_reaped(void **state) {
  (void)state;
  struct piece piece, mine;
  struct rig other = rig;
  pid_t child = fork();
  if (child == 0) {
    pause();
    _exit(0);
  }
  other.caller.thread = child;
  assert_int_equal(piece_open(&mine, &rig, &buffer, 4096), 0);
  assert_int_equal(piece_open(&piece, &other, &buffer, 4096), 0);
  kill(child, SIGKILL);
  waitpid(child, NULL, 0);
  for (unsigned tries = 0; finds(piece.text) == 0; tries++) {
    assert_true(tries < 1000);
    usleep(20000);
  }
  assert_int_equal(access(piece.path, F_OK), -1);
  assert_int_equal(finds(mine.text), 0);
  piece_close(&piece);
  piece_close(&mine);
}

/* A file as clients make it, last used long ago; returns its descriptor. */
static char left_files[6][64];
static unsigned left_count;

/* Leaves a file as of a client that has died long ago. */
static const char *leave_file(const char *id, uid_t uid, int *fd) {
  const struct timespec long_ago[2] = {{1000000000, 0}, {1000000000, 0}};
  char *path = left_files[left_count++];
  snprintf(path, sizeof left_files[0], "/dev/shm/hf3fs-iov-%s-%d", id, getpid());
  *fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  assert_true(*fd >= 0);
  assert_int_equal(ftruncate(*fd, 4096), 0);
  assert_int_equal(fchown(*fd, uid, (gid_t)-1), 0);
  assert_int_equal(futimens(*fd, long_ago), 0);
  return path;
}

static int remove_left_files(void **state) {
  while (left_count > 0)
    unlink(left_files[--left_count]);
  return rig_tear_down(state);
}

static void left_files_of_dead_clients_are_removed_at_the_start(void **state) {
  (void)state;
  int fd, in_use;
  const char *left = leave_file("left", getuid(), &fd);
  close(fd);
  const char *mapped = leave_file("mapped", getuid(), &fd);
  char *memory = mmap(NULL, 4096, PROT_READ, MAP_SHARED, fd, 0);
  assert_true(memory != MAP_FAILED);
  close(fd);
  const char *young = leave_file("young", getuid(), &fd);
  assert_int_equal(futimens(fd, NULL), 0);
  close(fd);
  const char *link = leave_file("link", getuid(), &fd);
  close(fd);
  assert_int_equal(unlink(link), 0);
  assert_int_equal(symlink(young, link), 0);
  const char *other = leave_file("other", getuid() == 0 ? 12345 : getuid(), &fd);
  close(fd);
  const char *open_one = leave_file("open", getuid(), &in_use);
  rig_close(&rig);
  rig_open(&rig, 1);
  assert_int_equal(access(left, F_OK), -1);
  assert_int_equal(access(other, F_OK), -1); /* root's daemon serves all users */
  assert_int_equal(unlink(open_one), 0);
  assert_int_equal(unlink(mapped), 0);
  assert_int_equal(unlink(young), 0);
  assert_int_equal(unlink(link), 0);
  munmap(memory, 4096);
  close(in_use);
}

static void one_ring_works_beside_a_thousand(void **state) {
  (void)state;
  static struct piece rings[1000];
  struct client client;
  struct iov_name name = {.ring = true, .for_read = true};
  for (size_t i = 0; i < COUNT(rings); i++) {
    name.priority = (uint8_t)(i % RING_PRIORITIES);
    assert_int_equal(piece_open(&rings[i], &rig, &name, ring_bytes(1)), 0);
  }
  client_open(&client, &rig, &name, 4, 4096);
  for (uint64_t i = 0; i < 100; i++)
    assert_int_equal(client_do(&client, 0, i, 100), 100);
  client_close(&client);
  for (size_t i = 0; i < COUNT(rings); i++)
    piece_close(&rings[i]);
  assert_int_equal(listed(), 5);
}

int main(void) {
  if (!rig_is_possible())
    return 77;
#define TEST(test) cmocka_unit_test_setup_teardown(test, set_up, rig_tear_down)
  const struct CMUnitTest tests[] = {
      TEST(only_the_callers_regular_files_in_dev_shm_are_registered),
      TEST(files_mounted_over_a_name_are_rejected),
      TEST(memory_that_contradicts_its_name_is_rejected),
      TEST(duplicate_names_and_ids_are_rejected),
      TEST(files_and_entries_of_other_users_are_protected),
      TEST(semaphore_links_are_permanent),
      TEST(registered_entries_are_listed),
      TEST(removed_buffers_are_not_found),
      TEST(counters_show_page_cache_use_and_its_reason),
      TEST(unpinned_buffers_work_and_are_counted),
      TEST(the_last_handle_removes_a_processs_entries),
      TEST(handles_of_others_remove_nothing),
      TEST(dead_processes_without_handles_are_reaped),
      cmocka_unit_test_setup_teardown(left_files_of_dead_clients_are_removed_at_the_start, set_up,
                                      remove_left_files),
      TEST(one_ring_works_beside_a_thousand),
  };
  return cmocka_run_group_tests_name("storage/virt", tests, NULL, NULL);
}
