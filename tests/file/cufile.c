/* SPDX-License-Identifier: MIT
 * Files read into GPU memory by cuFile, over the emulations of NVIDIA's driver and of cuFile. With
 * the argument "without" there is no cuFile. */
#include "support/check.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "doubles/cuda/door.h"
#include "doubles/cufile/door.h"
#include "haul/file.h"
#include "seams/seams.h"
#include "support/gpu.h"

#define MIB    ((size_t)1 << 20)
#define LENGTH (18 * MIB)

static const struct haul_place host = {HAUL_HOST, 0}, gpu = {HAUL_CUDA, 0};

static struct cufile_double *cufile; /* NULL: "without" */
static char path[64];
static haul_node *node;
static uint8_t *bytes; /* of the file */

static struct {
  int fd;
  haul_file *file;
  haul_region *region, *view;
  struct haul_file_report report;
} t;

static int begin_all(void **state) {
  (void)state;
  bytes = malloc(LENGTH);
  assert_non_null(bytes);
  pattern_fill(bytes, LENGTH, 9);
  snprintf(path, sizeof path, "/var/tmp/haul-cufile-XXXXXX");
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
  return 0;
}

/* As in a new process. */
static int set_up(void **state) {
  (void)state;
  seams = (struct seams){.memory_align = 512, .offset_align = 512, .file_system = EXT4_SUPER_MAGIC};
  if (cufile) {
    cufile->drivers = 0;
    cufile->nvfs = cufile->compat = cufile->nth = 1;
    cufile->p2p = cufile->open = cufile->file = cufile->read = cufile->most = 0;
    cufile->pinned = 128 * (long long)MIB;
    cufile->straight = cufile->buffered = cufile->through_host = 0;
  }
  t.report = (struct haul_file_report)HAUL_FILE_REPORT_INIT;
  t.fd = open(path, O_RDONLY | O_CLOEXEC);
  assert_true(t.fd >= 0);
  assert_works(haul_file_open(t.fd, &t.file));
  assert_works(haul_region_alloc(node, gpu, LENGTH, 0, &t.region));
  assert_works(haul_region_alloc(node, host, LENGTH, 0, &t.view));
  memset(haul_region_address(t.view), 0, LENGTH);
  assert_works(haul_region_copy(t.region, 0, t.view, 0, LENGTH, HAUL_FOREVER));
  return 0;
}

static int tear_down(void **state) {
  (void)state;
  haul_file_close(t.file);
  haul_region_release(t.view);
  haul_region_release(t.region);
  close(t.fd);
  if (cufile) {
    assert_int_equal(cufile->handles, 0);
    assert_int_equal(cufile->buffers, 0);
  }
  return 0;
}

/* Reads, and checks that the bytes are there. */
static void read_at(uint64_t offset, uint64_t at, size_t length) {
  assert_works(haul_file_read(t.file, offset, t.region, at, length, 0, &t.report));
  assert_works(haul_region_copy(t.view, 0, t.region, 0, LENGTH, HAUL_FOREVER));
  assert_memory_equal((char *)haul_region_address(t.view) + at, bytes + offset, length);
  assert_int_equal(t.report.bytes, length);
}

static void assert_staged(const char *reason) {
  assert_int_equal(t.report.direct, 0);
  assert_string_equal(t.report.path, "staged");
  if (!strstr(t.report.reason, reason))
    fail_msg("the reason is '%s'", t.report.reason);
  assert_fails(HAUL_ENOPATH,
               haul_file_read(t.file, 0, t.region, 0, MIB, HAUL_REQUIRE_ZERO_COPY, &t.report));
  if (!strstr(haul_error_last()->text, reason))
    fail_msg("the text is '%s'", haul_error_last()->text);
  if (cufile)
    assert_int_equal(cufile->through_host, 0);
}

static void assert_direct(size_t length, const char *detail) {
  assert_int_equal(t.report.direct, length);
  assert_string_equal(t.report.path, "cuFile");
  assert_string_equal(t.report.detail, detail);
  assert_string_equal(t.report.reason, "");
  assert_int_equal(cufile->through_host, 0);
  assert_int_equal(seams.cached + seams.direct, 0);
}

/* No copy by the engine of the GPU either, nor by the CPU, which cannot access the memory. */
static void the_disk_writes_to_registered_memory(void **state) {
  (void)state;
  unsigned copies = gpu_double()->records;
  assert_works(haul_file_read(t.file, 0, t.region, 0, LENGTH, HAUL_REQUIRE_ZERO_COPY, &t.report));
  assert_int_equal(gpu_double()->records, copies);
  assert_direct(LENGTH, "straight into GPU memory");
  assert_int_equal(cufile->straight, 1);
  assert_int_equal(cufile->buffered, 0);
  read_at(0, 0, LENGTH);
  assert_int_equal(cufile->handles, 1);
  assert_int_equal(cufile->registered, 0);
}

static void other_reads_pass_a_buffer_of_the_gpu(void **state) {
  (void)state;
  read_at(1, 3, MIB + 5);
  assert_direct(MIB + 5, "through cuFile's buffers in GPU memory");
  assert_int_equal(cufile->straight, 0);
  cufile->pinned = 0;
  read_at(0, 0, LENGTH);
  assert_direct(LENGTH, "through cuFile's buffers in GPU memory");
  assert_int_equal(cufile->straight, 0);
}

static void reads_are_continued(void **state) {
  (void)state;
  cufile->most = (long long)MIB;
  read_at(0, 0, LENGTH);
  assert_direct(LENGTH, "straight into GPU memory");
  assert_int_equal(cufile->straight, 18);
}

static void peer_to_peer_dma_is_enough(void **state) {
  (void)state;
  cufile->nvfs = 0;
  cufile->p2p = 1;
  read_at(0, 0, MIB);
  assert_direct(MIB, "through cuFile's buffers in GPU memory");
}

/* Only the first in a process to open the driver decides about it. */
static void compatibility_mode_is_turned_off(void **state) {
  (void)state;
  read_at(0, 0, MIB);
  assert_int_equal(cufile->compat, 0);
}

static void where_it_is_allowed_bytes_are_staged(void **state) {
  (void)state;
  int (*open_driver)(void); /* by the application; its result is in a register */
  void *found = dlsym(dlopen("libcufile.so.0", RTLD_NOW | RTLD_NOLOAD), "cuFileDriverOpen");
  memcpy(&open_driver, &found, sizeof open_driver);
  assert_int_equal(open_driver(), 0);
  read_at(0, 0, MIB);
  assert_staged("compatibility mode, which reads through host memory");
  assert_int_equal(cufile->compat, 1);
  assert_int_equal(cufile->handles, 0);
}

static void without_a_driver_bytes_are_staged(void **state) {
  (void)state;
  cufile->nvfs = 0;
  read_at(0, 0, MIB);
  assert_staged("cuFileDriverOpen failed with 5001: nvidia-fs is not loaded");
  assert_int_equal(cufile->compat, 1); /* as it was */
}

static void files_that_it_refuses_are_staged(void **state) {
  (void)state;
  cufile->file = 5008;
  read_at(0, 0, MIB);
  assert_staged("cuFileHandleRegister failed with 5008: this file system or disk");
}

static void a_failed_read_is_staged(void **state) {
  (void)state;
  cufile->read = 5013;
  read_at(0, 0, MIB);
  assert_int_equal(t.report.direct, 0);
  assert_string_equal(t.report.path, "staged");
  assert_non_null(strstr(t.report.reason, "cuFileRead failed with 5013: this kind of memory"));
  cufile->nth = 1;
  cufile->read = -EIO;
  read_at(0, 0, MIB);
  assert_non_null(strstr(t.report.reason, "cuFileRead failed: Input/output error"));
}

static void a_read_that_fails_later_is_continued(void **state) {
  (void)state;
  cufile->most = (long long)MIB;
  cufile->nth = 4;
  cufile->read = 5030;
  read_at(0, 0, LENGTH);
  assert_int_equal(t.report.direct, 3 * MIB);
  assert_string_equal(t.report.path, "staged");
  assert_non_null(strstr(t.report.reason, "cuFileRead failed with 5030"));
}

/* There settings of cuFile may force reads through host memory. */
static void other_file_systems_are_staged(void **state) {
  (void)state;
  seams.file_system = 0x0BD00BD0; /* Lustre */
  read_at(0, 0, MIB);
  assert_staged("cuFile is used for ext4 and xfs alone");
}

static void the_end_of_the_file_is_told(void **state) {
  (void)state;
  assert_fails(HAUL_ERANGE, haul_file_read(t.file, LENGTH - 5, t.region, 0, 100, 0, &t.report));
  assert_int_equal(t.report.bytes, 5);
  assert_int_equal(t.report.direct, 5);
  t.report = (struct haul_file_report)HAUL_FILE_REPORT_INIT;
  assert_fails(HAUL_ERANGE, haul_file_read(t.file, LENGTH - 5, t.region, 0, 100,
                                           HAUL_REQUIRE_ZERO_COPY, &t.report));
  assert_int_equal(t.report.bytes, 5);
  assert_int_equal(t.report.direct, 5);
  assert_string_equal(t.report.path, "cuFile");
  assert_string_equal(t.report.reason, "");
  assert_fails(HAUL_ERANGE,
               haul_file_read(t.file, LENGTH, t.region, 0, 100, HAUL_REQUIRE_ZERO_COPY, &t.report));
  assert_int_equal(t.report.bytes, 0);
  assert_int_equal(seams.cached + seams.direct, 0);
}

static void without_cufile_bytes_are_staged(void **state) {
  (void)state;
  read_at(1, 2, LENGTH - 2);
  assert_staged("cuFile cannot be opened: libcufile.so.0");
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

static int without_it(void) {
  const struct CMUnitTest tests[] = {TEST(without_cufile_bytes_are_staged)};
  return cmocka_run_group_tests_name("file/cufile without", tests, begin_all, end_all);
}

int main(int count, char **arguments) {
  const struct CMUnitTest tests[] = {
      TEST(the_disk_writes_to_registered_memory),
      TEST(other_reads_pass_a_buffer_of_the_gpu),
      TEST(reads_are_continued),
      TEST(peer_to_peer_dma_is_enough),
      TEST(compatibility_mode_is_turned_off),
      TEST(where_it_is_allowed_bytes_are_staged),
      TEST(without_a_driver_bytes_are_staged),
      TEST(files_that_it_refuses_are_staged),
      TEST(a_failed_read_is_staged),
      TEST(a_read_that_fails_later_is_continued),
      TEST(other_file_systems_are_staged),
      TEST(the_end_of_the_file_is_told),
  };
  (void)arguments;
  if (!gpu_is_there())
    return 77;
  if (!seams_direct_works("/var/tmp")) {
    printf("skipped all: the file system of /var/tmp has no O_DIRECT\n");
    return 77;
  }
  if (count > 1)
    return without_it();
  void *library = dlopen("libcufile.so.0", RTLD_NOW);
  cufile = library ? dlsym(library, "cufile_double") : NULL;
  if (!cufile) {
    printf(
        "skipped all: tests/doubles/cufile/with runs this program with the emulation of cuFile\n");
    return 77;
  }
  return cmocka_run_group_tests_name("file/cufile", tests, begin_all, end_all);
}
