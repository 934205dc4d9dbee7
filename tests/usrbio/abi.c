/* SPDX-License-Identifier: MIT
 * The ABI of 3FS's header, as measured on x86-64. */
#include "support/check.h"

#include "hf3fs_usrbio.h"
#include "hf3fs_usrbio_gdr.h"

#define AT(type, member, offset)                                                                   \
  _Static_assert(offsetof(struct type, member) == (offset), "3FS's " #type)

_Static_assert(sizeof(struct hf3fs_iov) == 312, "3FS's hf3fs_iov");
AT(hf3fs_iov, base, 0);
AT(hf3fs_iov, iovh, 8);
AT(hf3fs_iov, id, 16);
AT(hf3fs_iov, mount_point, 32);
AT(hf3fs_iov, size, 288);
AT(hf3fs_iov, block_size, 296);
AT(hf3fs_iov, numa, 304);

_Static_assert(sizeof(struct hf3fs_ior) == 600, "3FS's hf3fs_ior");
AT(hf3fs_ior, iov, 0);
AT(hf3fs_ior, iorh, 312);
AT(hf3fs_ior, mount_point, 320);
AT(hf3fs_ior, for_read, 576);
AT(hf3fs_ior, io_depth, 580);
AT(hf3fs_ior, priority, 584);
AT(hf3fs_ior, timeout, 588);
AT(hf3fs_ior, flags, 592);

_Static_assert(sizeof(struct hf3fs_cqe) == 24, "3FS's hf3fs_cqe");
AT(hf3fs_cqe, index, 0);
AT(hf3fs_cqe, reserved, 4);
AT(hf3fs_cqe, result, 8);
AT(hf3fs_cqe, userdata, 16);

_Static_assert(HF3FS_SUPER_MAGIC == 0x8f3f5fff, "3FS's number");
_Static_assert(HF3FS_IOR_ALLOW_READ_UNCOMMITTED == 1, "3FS's flag");
_Static_assert(HF3FS_IOR_FORBID_READ_HOLES == 2, "3FS's flag");
_Static_assert(sizeof(hf3fs_gpu_ipc_handle_t) == 80, "the proposal's handle");

/* The declarations of 3FS. */
static bool (*const is_hf3fs)(int) = hf3fs_is_hf3fs;
static int (*const extract)(char *, int, const char *) = hf3fs_extract_mount_point;
static int (*const iovcreate)(struct hf3fs_iov *, const char *, size_t, size_t,
                              int) = hf3fs_iovcreate;
static int (*const iovopen)(struct hf3fs_iov *, const uint8_t *, const char *, size_t, size_t,
                            int) = hf3fs_iovopen;
static int (*const iovwrap)(struct hf3fs_iov *, void *, const uint8_t *, const char *, size_t,
                            size_t, int) = hf3fs_iovwrap;
static void (*const iovunlink)(struct hf3fs_iov *) = hf3fs_iovunlink;
static void (*const iovdestroy)(struct hf3fs_iov *) = hf3fs_iovdestroy;
static size_t (*const ior_size)(int) = hf3fs_ior_size;
static int (*const iorcreate)(struct hf3fs_ior *, const char *, int, bool, int,
                              int) = hf3fs_iorcreate;
static int (*const iorcreate2)(struct hf3fs_ior *, const char *, int, bool, int, int,
                               int) = hf3fs_iorcreate2;
static int (*const iorcreate3)(struct hf3fs_ior *, const char *, int, bool, int, int, int,
                               int) = hf3fs_iorcreate3;
static int (*const iorcreate4)(struct hf3fs_ior *, const char *, int, bool, int, int, int,
                               uint64_t) = hf3fs_iorcreate4;
static void (*const iordestroy)(struct hf3fs_ior *) = hf3fs_iordestroy;
static int (*const reg_fd)(int, uint64_t) = hf3fs_reg_fd;
static void (*const dereg_fd)(int) = hf3fs_dereg_fd;
static int (*const io_entries)(const struct hf3fs_ior *) = hf3fs_io_entries;
static int (*const prep_io)(const struct hf3fs_ior *, const struct hf3fs_iov *, bool, void *, int,
                            size_t, uint64_t, const void *) = hf3fs_prep_io;
static int (*const submit_ios)(const struct hf3fs_ior *) = hf3fs_submit_ios;
static int (*const wait_for_ios)(const struct hf3fs_ior *, struct hf3fs_cqe *, int, int,
                                 const struct timespec *) = hf3fs_wait_for_ios;
static int (*const hardlink)(const char *, const char *) = hf3fs_hardlink;
static int (*const punchhole)(int, int, const size_t *, const size_t *, size_t) = hf3fs_punchhole;

static void every_function_is_exported(void **state) {
  (void)state;
  assert_true(is_hf3fs && extract && iovcreate && iovopen && iovwrap && iovunlink && iovdestroy);
  assert_true(ior_size && iorcreate && iorcreate2 && iorcreate3 && iorcreate4 && iordestroy);
  assert_true(reg_fd && dereg_fd && io_entries && prep_io && submit_ios && wait_for_ios);
  assert_true(hardlink && punchhole);
}

static void ring_sizes_match_3fs(void **state) {
  (void)state;
  const int entries[] = {0, 1, 2, 31, 32, 1000, 1 << 20};
  for (size_t i = 0; i < COUNT(entries); i++)
    assert_int_equal(hf3fs_ior_size(entries[i]), 96 * ((size_t)entries[i] + 1) + 4144);
  assert_int_equal(hf3fs_ior_size(INT32_MAX), 96 * ((size_t)INT32_MAX + 1) + 4144);
  assert_int_equal(hf3fs_ior_size(-1), 0);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(every_function_is_exported),
      cmocka_unit_test(ring_sizes_match_3fs),
  };
  return cmocka_run_group_tests_name("usrbio/abi", tests, NULL, NULL);
}
