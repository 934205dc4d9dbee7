/* SPDX-License-Identifier: MIT
 * Files read into regions: which bytes pass host memory, and what the report says of them. Calls of
 * the kernel are watched, and some of its refusals emulated: seams.h. */
#include "support/check.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "haul/file.h"
#include "memory/p2p/p2p.h"
#include "seams/seams.h"
#include "support/tree.h"

#define BLOCK  ((size_t)4096)
#define LENGTH ((size_t)5 << 20)

static const struct haul_place host = {HAUL_HOST, 0}, sim = {HAUL_SIM, 0}, p2p = {HAUL_P2P, 0};

static char sys[64], path[64];
static haul_node *node;
static uint8_t *bytes; /* of the file, and as many zeros */

static struct {
  int fd;
  haul_file *file;
  haul_region *region, *view; /* `view`: host memory of the same length */
  struct haul_file_report report;
} t;

/* The p2p memory is a file's in a made-up sysfs. */
static void make_sys(void) {
  char file[160];
  snprintf(sys, sizeof sys, "/tmp/haul-file-XXXXXX");
  assert_non_null(mkdtemp(sys));
  tree_file(sys, "bus/pci/devices/0000:00:04.0/p2pmem/published", "1\n");
  tree_file(sys, "bus/pci/devices/0000:00:04.0/p2pmem/size", "67108864\n");
  tree_file(sys, "bus/pci/devices/0000:00:04.0/p2pmem/allocate", "");
  snprintf(file, sizeof file, "%s/bus/pci/devices/0000:00:04.0/p2pmem/allocate", sys);
  assert_int_equal(truncate(file, 2 * LENGTH), 0);
  p2p_sys = sys;
}

static int begin_all(void **state) {
  (void)state;
  make_sys();
  bytes = calloc(2, LENGTH);
  assert_non_null(bytes);
  pattern_fill(bytes, LENGTH, 7);
  snprintf(path, sizeof path, "/var/tmp/haul-file-XXXXXX");
  int fd = mkstemp(path);
  assert_true(fd >= 0);
  assert_int_equal(write(fd, bytes, LENGTH), LENGTH);
  close(fd);
  assert_works(haul_node_open(NULL, &node));
  return 0;
}

static int end_all(void **state) {
  (void)state;
  haul_node_close(node);
  unlink(path);
  free(bytes);
  tree_remove(sys);
  return 0;
}

static void open_at(struct haul_place place) {
  seams = (struct seams){.memory_align = 512, .offset_align = BLOCK};
  t.report = (struct haul_file_report)HAUL_FILE_REPORT_INIT;
  t.fd = open(path, O_RDONLY | O_CLOEXEC);
  assert_true(t.fd >= 0);
  assert_works(haul_file_open(t.fd, &t.file));
  assert_works(haul_region_alloc(node, place, 2 * LENGTH, 0, &t.region));
  assert_works(haul_region_alloc(node, host, 2 * LENGTH, 0, &t.view));
}

static int tear_down(void **state) {
  (void)state;
  haul_region_release(t.view);
  haul_region_release(t.region);
  haul_file_close(t.file);
  close(t.fd);
  memset(&t, 0, sizeof t);
  return 0;
}

static int read_at(uint64_t offset, uint64_t at, size_t length, unsigned flags) {
  seams.direct = seams.cached = 0;
  return haul_file_read(t.file, offset, t.region, at, length, flags, &t.report);
}

static void assert_there(uint64_t offset, uint64_t at, size_t length) {
  assert_works(haul_region_copy(t.view, 0, t.region, 0, 2 * LENGTH, HAUL_FOREVER));
  assert_memory_equal((char *)haul_region_address(t.view) + at, bytes + offset, length);
}

/* What the report says is what the kernel was asked for. */
static void assert_report(size_t read, size_t direct, const char *way, const char *reason) {
  assert_int_equal(t.report.bytes, read);
  assert_int_equal(t.report.direct, direct);
  assert_string_equal(t.report.path, way);
  if (reason ? !strstr(t.report.reason, reason) : *t.report.reason != '\0')
    fail_msg("the reason is '%s'", t.report.reason);
}

static void whole_blocks_are_read_directly(void **state) {
  (void)state;
  const struct haul_place places[] = {host, p2p};
  for (size_t i = 0; i < COUNT(places); i++) {
    open_at(places[i]);
    assert_works(read_at(BLOCK, 512, LENGTH - BLOCK, HAUL_REQUIRE_ZERO_COPY));
    assert_report(LENGTH - BLOCK, LENGTH - BLOCK, "O_DIRECT", NULL);
    assert_int_equal(seams.cached, 0);
    assert_non_null(strstr(t.report.detail, i ? "peer-to-peer" : "host"));
    assert_there(BLOCK, 512, LENGTH - BLOCK);
    tear_down(state);
  }
  open_at(host);
}

/* Only what is before the first and after the last whole block is copied. */
static void parts_of_blocks_come_from_the_page_cache(void **state) {
  (void)state;
  open_at(p2p);
  assert_works(read_at(100, BLOCK + 100, 3 * BLOCK + 7, 0));
  assert_report(3 * BLOCK + 7, 2 * BLOCK, "O_DIRECT", "3996 bytes at the start and 107 at the end");
  assert_int_equal(seams.direct, 2 * BLOCK);
  assert_int_equal(seams.cached, BLOCK + 7);
  assert_there(100, BLOCK + 100, 3 * BLOCK + 7);
  assert_fails(HAUL_ENOPATH, read_at(100, 100, 3 * BLOCK, HAUL_REQUIRE_ZERO_COPY));
  assert_int_equal(seams.direct + seams.cached, 0);
  assert_non_null(strstr(haul_error_last()->text, "no whole blocks"));
}

static void what_does_not_fit_the_alignment_is_told(void **state) {
  (void)state;
  open_at(host);
  assert_works(read_at(BLOCK, 8, 2 * BLOCK, 0));
  assert_report(2 * BLOCK, 0, "page cache", "do not fit O_DIRECT's alignment, 4096 and 512");
  assert_int_equal(seams.direct, 0);
  assert_there(BLOCK, 8, 2 * BLOCK);
  assert_works(read_at(1, 1, BLOCK, 0));
  assert_report(BLOCK, 0, "page cache", "no whole block of 4096");
  assert_there(1, 1, BLOCK);
}

static void a_file_system_without_direct_reads_is_told(void **state) {
  (void)state;
  open_at(p2p);
  haul_file_close(t.file);
  seams.no_direct = true;
  assert_works(haul_file_open(t.fd, &t.file));
  assert_works(read_at(0, 0, LENGTH, 0));
  assert_report(LENGTH, 0, "page cache", "the file system has no O_DIRECT");
  assert_there(0, 0, LENGTH);
  assert_fails(HAUL_ENOPATH, read_at(0, 0, LENGTH, HAUL_REQUIRE_ZERO_COPY));
  haul_file_close(t.file);
  seams.no_open = EINVAL;
  assert_works(haul_file_open(t.fd, &t.file));
  assert_works(read_at(0, 0, LENGTH, 0));
  assert_report(LENGTH, 0, "page cache", "cannot be opened with O_DIRECT: Invalid argument");
}

/* Only a power of two up to 64 KiB is used: others need not divide the staged chunks. */
static void an_alignment_that_does_not_fit_is_told(void **state) {
  (void)state;
  const unsigned aligns[][2] = {{512, 4 << 20}, {512, 3 << 19},  {512, 1536},
                                {1536, BLOCK},  {512, 1u << 31}, {1u << 17, BLOCK}};
  open_at(sim);
  for (size_t i = 0; i < COUNT(aligns); i++) {
    haul_file_close(t.file);
    seams.memory_align = aligns[i][0];
    seams.offset_align = aligns[i][1];
    assert_works(haul_file_open(t.fd, &t.file));
    assert_fails(HAUL_ENOPATH,
                 haul_file_read(t.file, 0, t.view, 0, LENGTH, HAUL_REQUIRE_ZERO_COPY, &t.report));
    assert_non_null(strstr(haul_error_last()->text, "is no power of two up to 65536"));
    assert_works(read_at(0, 0, LENGTH, 0));
    assert_report(LENGTH, 0, "staged", "");
    assert_int_equal(seams.direct, 0);
    assert_there(0, 0, LENGTH);
  }
}

/* As of a disk from which no DMA reaches the memory; at once, and after some bytes. */
static void a_refusal_of_the_kernel_is_told(void **state) {
  (void)state;
  open_at(p2p);
  seams.refusal = EREMOTEIO;
  assert_works(read_at(0, 0, LENGTH, 0));
  assert_report(LENGTH, 0, "page cache", "no way from this disk to the memory");
  assert_there(0, 0, LENGTH);
  assert_fails(HAUL_ENOPATH, read_at(0, 0, LENGTH, HAUL_REQUIRE_ZERO_COPY));
  assert_non_null(strstr(haul_error_last()->text, "no way from this disk"));
  assert_int_equal(seams.cached, 0);
  seams.most = 3 * BLOCK;
  seams.refuse_after = 2;
  assert_works(read_at(0, 0, LENGTH, 0));
  assert_report(LENGTH, 6 * BLOCK, "page cache", "refused O_DIRECT");
  assert_there(0, 0, LENGTH);
}

/* The last read of a file returns less than a block. */
static void a_shorter_file_is_an_error(void **state) {
  (void)state;
  const struct haul_place places[] = {host, p2p, sim};
  for (size_t i = 0; i < COUNT(places); i++) {
    open_at(places[i]);
    assert_int_equal(truncate(path, (off_t)(LENGTH - 5)), 0);
    assert_fails(HAUL_ERANGE, read_at(BLOCK, 0, LENGTH, 0));
    assert_int_equal(t.report.bytes, LENGTH - 5 - BLOCK);
    assert_there(BLOCK, 0, LENGTH - 5 - BLOCK);
    assert_fails(HAUL_ERANGE, read_at(2 * LENGTH, 0, 1, 0));
    assert_int_equal(t.report.bytes, 0);
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    assert_int_equal(pwrite(fd, bytes + LENGTH - 5, 5, (off_t)(LENGTH - 5)), 5);
    close(fd);
    tear_down(state);
  }
  open_at(host);
}

/* The emulated accelerator: the CPU cannot access its memory. */
static void other_memory_is_staged(void **state) {
  (void)state;
  open_at(sim);
  assert_works(read_at(3, 5, LENGTH - 3, 0));
  assert_report(LENGTH - 3, 0, "staged", "no way from a disk to this kind of memory");
  assert_there(3, 5, LENGTH - 3);
  assert_works(read_at(0, 0, LENGTH, 0));
  assert_int_equal(seams.cached, 0); /* not through the page cache */
  assert_there(0, 0, LENGTH);
  assert_fails(HAUL_ENOPATH, read_at(0, 0, 1, HAUL_REQUIRE_ZERO_COPY));
  seams.refusal = EINVAL;
  assert_works(read_at(0, 0, LENGTH, 0));
  assert_there(0, 0, LENGTH);
}

static void errors_of_the_disk_are_errors(void **state) {
  (void)state;
  const struct haul_place places[] = {host, sim};
  for (size_t i = 0; i < COUNT(places); i++) {
    open_at(places[i]);
    seams.refusal = EIO;
    seams.all = true;
    assert_fails(HAUL_ESYSTEM, read_at(0, 0, LENGTH, 0));
    assert_int_equal(haul_error_last()->system, EIO);
    tear_down(state);
  }
  open_at(host);
}

static void wrong_arguments_are_rejected(void **state) {
  (void)state;
  haul_region *mapped;
  haul_file *file;
  int ends[2], one = open(path, O_WRONLY | O_CLOEXEC), bare = open(path, O_PATH | O_CLOEXEC);
  open_at(host);
  assert_int_equal(pipe(ends), 0);
  assert_fails(HAUL_EINVAL, haul_file_open(one, &file));
  assert_fails(HAUL_EINVAL, haul_file_open(bare, &file));
  assert_fails(HAUL_EINVAL, haul_file_open(ends[0], &file));
  assert_fails(HAUL_EINVAL, haul_file_open(t.fd, NULL));
  assert_fails(HAUL_EINVAL, haul_file_open(-1, &file));
  close(one);
  close(bare);
  close(ends[0]);
  close(ends[1]);
  assert_fails(HAUL_ERANGE, read_at(0, 1, 2 * LENGTH, 0));
  assert_fails(HAUL_EINVAL, read_at(0, 0, 1, 2));
  assert_fails(HAUL_EINVAL, read_at(INT64_MAX, 0, 1, 0));
  assert_works(read_at(0, 0, 0, 0));
  t.report.size = 0;
  assert_fails(HAUL_EINVAL, read_at(0, 0, 1, 0));
  t.report.size = sizeof t.report;
  assert_works(haul_region_wrap_file(node, t.fd, 0, LENGTH, &mapped));
  assert_fails(HAUL_EACCESS, haul_file_read(t.file, 0, mapped, 0, 1, 0, &t.report));
  haul_region_release(mapped);
  assert_string_equal(haul_error_last()->call, "haul_file_read");
}

static void assert_cleared(void) {
  struct haul_file_report none = HAUL_FILE_REPORT_INIT;
  assert_memory_equal(&t.report, &none, sizeof none);
  memset(&t.report.bytes, 7, sizeof t.report - sizeof t.report.size);
}

/* Whichever check fails, the report is not that of an earlier read; nor is it filled beyond its
 * size. */
static void a_failure_leaves_no_earlier_report(void **state) {
  (void)state;
  open_at(p2p);
  assert_works(read_at(1, 0, LENGTH - 1, 0));
  assert_fails(HAUL_ERANGE, read_at(0, 1, 2 * LENGTH, 0));
  assert_cleared();
  assert_fails(HAUL_EINVAL, read_at(0, 0, 1, 2));
  assert_cleared();
  t.report.size = offsetof(struct haul_file_report, detail);
  assert_fails(HAUL_ERANGE, read_at(0, 1, 2 * LENGTH, 0));
  assert_int_equal(t.report.bytes, 0);
  assert_int_equal(t.report.path[0], 0);
  assert_int_equal(t.report.detail[0], 7);
}

#define TEST(name) cmocka_unit_test_teardown(name, tear_down)

int main(void) {
  const struct CMUnitTest tests[] = {
      TEST(whole_blocks_are_read_directly),
      TEST(parts_of_blocks_come_from_the_page_cache),
      TEST(what_does_not_fit_the_alignment_is_told),
      TEST(a_file_system_without_direct_reads_is_told),
      TEST(an_alignment_that_does_not_fit_is_told),
      TEST(a_refusal_of_the_kernel_is_told),
      TEST(a_shorter_file_is_an_error),
      TEST(other_memory_is_staged),
      TEST(errors_of_the_disk_are_errors),
      TEST(a_failure_leaves_no_earlier_report),
      TEST(wrong_arguments_are_rejected),
  };
  setenv("HAUL_SIM_DEVICES", "1", 0);
  if (!seams_direct_works("/var/tmp")) {
    printf("skipped all: the file system of /var/tmp has no O_DIRECT\n");
    return 77;
  }
  return cmocka_run_group_tests_name("file/read", tests, begin_all, end_all);
}
