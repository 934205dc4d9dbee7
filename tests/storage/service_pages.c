/* SPDX-License-Identifier: MIT
 * Exported files that are sent from their own pages, over `map` and, with an argument, over tcp.
 * They are truncated, changed, extended and deleted during reads. Readers get data that the file
 * had, and no transfer errors. */
#include "support/check.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "mounted.h" /* eventually */
#include "served.h"
#include "storage/mapping.h"
#include "storage/source.h"
#include "support/owner.h"
#include "support/seams.h"

#define MIB   ((size_t)1 << 20)
#define SIZE  (4 * MIB)
#define TURNS 200u

static char root[FOLDER_ROOM];
static struct served served;
static struct source *source;
static struct source_file *file;
static char *expected, *bytes;
static int own; /* the file on the server's host */

static struct source_file *open_named(const char *name, int flags) {
  const struct source_caller caller = {.checked = true};
  struct source_entry entry;
  struct source_file *opened;
  assert_int_equal(source->ops->lookup(source, SOURCE_ROOT, name, &entry), 0);
  assert_int_equal(source->ops->open(source, &caller, entry.node, flags, &opened), 0);
  source->ops->forget(source, entry.node, 1);
  return opened;
}

static int set_up(void **state) {
  (void)state;
  folder_make(root);
  expected = malloc(SIZE);
  bytes = malloc(SIZE);
  pattern_fill(expected, SIZE, 3);
  own = open(folder_path(root, "file"), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  assert_int_equal(write(own, expected, SIZE), SIZE);
  source = served_open_source(&served, root, false);
  file = open_named("file", O_RDONLY);
  return 0;
}

static int tear_down(void **state) {
  char merged[80];
  (void)state;
  source->ops->release(source, file);
  source->ops->close(source);
  served_close(&served);
  close(own);
  free(bytes);
  free(expected);
  snprintf(merged, sizeof merged, "%s/merged", root);
  umount2(merged, MNT_DETACH); /* a mount that a test has made */
  folder_remove(root);
  return 0;
}

static ssize_t read_at(size_t offset, size_t length) {
  return source->ops->read(source, file, bytes, length, (off_t)offset);
}

static void assert_reads(size_t offset, size_t length) {
  memset(bytes, 0x5a, length);
  assert_int_equal(read_at(offset, length), length);
  assert_memory_equal(bytes, expected + offset, length);
}

/* The number of mappings of a path in this process. */
static unsigned mapped(const char *name) {
  char line[512];
  unsigned count = 0;
  FILE *maps = fopen("/proc/self/maps", "re");
  while (fgets(line, sizeof line, maps))
    count += strstr(line, root) && strstr(line, name);
  fclose(maps);
  return count;
}

/* One on file systems with stable pages; elsewhere reads are copied. */
static unsigned once(void) {
  struct statfs system;
  assert_int_equal(fstatfs(own, &system), 0);
  return system.f_type == EXT4_SUPER_MAGIC || system.f_type == XFS_SUPER_MAGIC ||
         system.f_type == BTRFS_SUPER_MAGIC || system.f_type == F2FS_SUPER_MAGIC ||
         system.f_type == TMPFS_MAGIC;
}

static void any_range_is_read(void **state) {
  (void)state;
  const size_t lengths[] = {1, 100000, 131072, 131073, MIB, MIB + 1, SIZE};
  for (size_t i = 0; i < COUNT(lengths); i++)
    for (size_t at = 0; at + lengths[i] <= SIZE; at += 1000003)
      assert_reads(at, lengths[i]);
  assert_int_equal(read_at(SIZE - 200000, MIB), 200000);
  assert_memory_equal(bytes, expected + SIZE - 200000, 200000);
  assert_int_equal(read_at(SIZE, MIB), 0);
}

static void small_reads_are_copied(void **state) {
  (void)state;
  for (size_t at = 0; at < SIZE; at += 65536)
    assert_reads(at, 65536);
  assert_int_equal(mapped("file"), 0);
}

static void a_file_is_mapped_once_and_kept_for_seconds(void **state) {
  (void)state;
  struct source_file *other = open_named("file", O_RDONLY);
  assert_reads(0, SIZE);
  assert_int_equal(source->ops->read(source, other, bytes, SIZE, 0), SIZE);
  assert_int_equal(mapped("file"), once());
  assert_int_equal(unlink(folder_path(root, "file")), 0);
  source->ops->release(source, other);
  assert_reads(MIB, MIB);
  assert_true(eventually(mapped("file") == 0));
  assert_reads(0, MIB);
}

static void a_grown_file_is_read_to_its_end(void **state) {
  (void)state;
  assert_reads(0, SIZE);
  assert_int_equal(pwrite(own, expected, SIZE, SIZE), SIZE);
  assert_int_equal(read_at(SIZE, MIB), MIB);
  assert_memory_equal(bytes, expected, MIB);
}

/* Although a view of the same file exists. */
static void write_only_files_are_not_read(void **state) {
  (void)state;
  struct source_file *writer = open_named("file", O_WRONLY);
  assert_reads(0, MIB);
  assert_int_equal(mapped("file"), once());
  assert_int_equal(source->ops->read(source, writer, bytes, MIB, 0), -EBADF);
  source->ops->release(source, writer);
}

/* Copy-up moves the file to another layer under the same inode number. */
static void overlay_files_are_read_after_copy_up(void **state) {
  (void)state;
  char lower[80], upper[80], work[80], merged[80], options[300], path[100];
  char *const folders[] = {lower, upper, work, merged};
  static const char *const names[] = {"lower", "upper", "work", "merged"};
  for (size_t i = 0; i < COUNT(names); i++) {
    snprintf(folders[i], sizeof lower, "%s/%s", root, names[i]);
    assert_int_equal(mkdir(folders[i], 0755), 0);
  }
  snprintf(path, sizeof path, "%s/big", lower);
  int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
  assert_int_equal(write(fd, expected, SIZE), SIZE);
  close(fd);
  snprintf(options, sizeof options, "lowerdir=%s,upperdir=%s,workdir=%s", lower, upper, work);
  if (mount("haul-test", merged, "overlay", 0, options) != 0) {
    print_message("skipped: no overlay can be mounted here: %s\n", strerror(errno));
    skip();
  }
  struct source_file *before = file;
  struct source_entry folder, entry;
  assert_int_equal(source->ops->lookup(source, SOURCE_ROOT, "merged", &folder), 0);
  snprintf(path, sizeof path, "%s/big", merged);
  for (unsigned round = 0; round < 3; round++) {
    const struct source_caller caller = {.checked = true};
    assert_int_equal(source->ops->lookup(source, folder.node, "big", &entry), 0);
    assert_int_equal(source->ops->open(source, &caller, entry.node, O_RDONLY, &file), 0);
    source->ops->forget(source, entry.node, 1);
    assert_reads(0, MIB);
    source->ops->release(source, file);
    expected[round]++;
    fd = open(path, O_WRONLY | O_CLOEXEC);
    assert_int_equal(pwrite(fd, expected, MIB, 0), MIB);
    close(fd);
  }
  source->ops->forget(source, folder.node, 1);
  file = before;
}

/* On tmpfs, where reading a hole would allocate memory. */
static void holes_stay_unallocated(void **state) {
  (void)state;
  struct stat stat;
  char folder[] = "/dev/shm/haul-pages.XXXXXX", path[64];
  assert_non_null(mkdtemp(folder));
  snprintf(path, sizeof path, "%s/sparse", folder);
  int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  assert_int_equal(ftruncate(fd, SIZE), 0);
  struct served other;
  struct source *before = source;
  source = served_open_source(&other, folder, true);
  struct source_file *sparse = open_named("sparse", O_RDONLY);
  memset(bytes, 1, SIZE);
  assert_int_equal(source->ops->read(source, sparse, bytes, SIZE, 0), SIZE);
  for (size_t i = 0; i < SIZE; i++)
    assert_int_equal(bytes[i], 0);
  assert_int_equal(fstat(fd, &stat), 0);
  assert_int_equal(stat.st_blocks, 0);
  source->ops->release(source, sparse);
  source->ops->close(source);
  served_close(&other);
  source = before;
  close(fd);
  unlink(path);
  rmdir(folder);
}

static struct {
  pthread_t thread;
  _Atomic bool ends;
} changer;

static void change(void *(*how)(void *unused)) {
  atomic_store(&changer.ends, false);
  assert_int_equal(pthread_create(&changer.thread, NULL, how, NULL), 0);
}

static void change_no_more(void) {
  atomic_store(&changer.ends, true);
  pthread_join(changer.thread, NULL);
}

static void *cut(void *unused) {
  uint64_t seed = test_seed();
  while (!atomic_load(&changer.ends)) {
    off_t size = (off_t)(next_random(&seed) % SIZE);
    if (ftruncate(own, size) || ftruncate(own, SIZE))
      return &changer;
    usleep((useconds_t)(next_random(&seed) % 2000));
  }
  return unused;
}

/* cmocka has replaced the server's SIGBUS handler. */
static void guard_again(void) {
  sigbus_stop();
  assert_int_equal(sigbus_start(), 0);
}

/* Each byte is one that the file had at some time, or zero after truncation. */
static void files_may_be_truncated_during_reads(void **state) {
  (void)state;
  guard_again();
  change(cut);
  for (unsigned i = 0; i < TURNS; i++) {
    size_t at = i % 4 * 777777;
    ssize_t got = read_at(at, MIB);
    assert_in_range(got, 0, MIB);
    for (ssize_t k = 0; k < got; k++)
      if (bytes[k] != 0 && bytes[k] != expected[at + (size_t)k])
        fail_msg("turn %u: byte %zd is neither of the file nor empty", i, k);
  }
  change_no_more();
}

static void *scribble(void *unused) {
  uint64_t seed = test_seed();
  while (!atomic_load(&changer.ends)) {
    uint64_t value = next_random(&seed);
    if (pwrite(own, &value, sizeof value, (off_t)(value % (SIZE - 8))) < 0)
      return &changer;
  }
  return unused;
}

static void files_may_change_during_reads(void **state) {
  (void)state;
  change(scribble);
  for (unsigned i = 0; i < TURNS / 4; i++)
    assert_int_equal(read_at(0, MIB), MIB);
  change_no_more();
  pattern_fill(expected, SIZE, 4);
  assert_int_equal(pwrite(own, expected, SIZE, 0), SIZE);
  assert_reads(0, SIZE);
}

int main(int argc, char **argv) {
  if (argc > 1 && strcmp(argv[1], "tcp") == 0)
    seams_no_unix_sockets();
#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
  const struct CMUnitTest tests[] = {
      TEST(any_range_is_read),
      TEST(small_reads_are_copied),
      TEST(a_file_is_mapped_once_and_kept_for_seconds),
      TEST(a_grown_file_is_read_to_its_end),
      TEST(write_only_files_are_not_read),
      TEST(overlay_files_are_read_after_copy_up),
      TEST(holes_stay_unallocated),
      TEST(files_may_be_truncated_during_reads),
      TEST(files_may_change_during_reads),
  };
  return cmocka_run_group_tests_name("storage/service_pages", tests, NULL, NULL);
}
