/* SPDX-License-Identifier: MIT
 * Peer-to-peer memory of PCI devices in a made-up sysfs, where `allocate` is a file. */
#include "support/check.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "core/sys.h"
#include "memory/p2p/p2p.h"
#include "memory/provider.h"
#include "support/seams.h"
#include "support/tree.h"

#define DEVICES "bus/pci/devices/"
#define PAGE    4096u

static const struct haul_place first = {HAUL_P2P, 0};
static char root[64];

static void add_device(const char *name, const char *published) {
  const struct {
    const char *name, *text;
  } files[] = {{"size", "67108864\n"}, {"published", published}, {"allocate", ""}};
  char path[128];
  for (size_t i = 0; i < COUNT(files); i++) {
    snprintf(path, sizeof path, DEVICES "%s/p2pmem/%s", name, files[i].name);
    tree_file(root, path, files[i].text);
  }
}

static void make_file(const char *path, unsigned pages) {
  char whole[192];
  snprintf(whole, sizeof whole, "%s/" DEVICES "%s/p2pmem/allocate", root, path);
  assert_int_equal(truncate(whole, pages * PAGE), 0);
}

static int begin(void **state) {
  (void)state;
  snprintf(root, sizeof root, "/tmp/haul-p2p-XXXXXX");
  assert_non_null(mkdtemp(root));
  p2p_sys = root;
  return 0;
}

static int end(void **state) {
  (void)state;
  providers_stop();
  tree_remove(root);
  return 0;
}

/* In the order of their addresses. */
static void devices_that_publish_memory_are_places(void **state) {
  (void)state;
  add_device("10000:e1:00.0", "1\n");
  add_device("0000:01:00.0", "0\n"); /* not for others */
  add_device("0000:00:04.0", "1\n");
  tree_file(root, DEVICES "0000:00:04.0/numa_node", "1\n");
  tree_file(root, DEVICES "0000:02:00.0/vendor", "0x8086\n"); /* without such memory */
  assert_works(providers_start());
  const struct provider *p2p = provider_of(HAUL_P2P);
  struct haul_device info = {.memory = 0};
  assert_int_equal(provider_devices(p2p), 2);
  p2p->describe(0, &info);
  assert_string_equal(info.pci, "0000:00:04.0");
  assert_int_equal(info.numa, 1);
  assert_int_equal(info.memory, 64 << 20);
  p2p->describe(1, &info);
  assert_string_equal(info.pci, "10000:e1:00.0");
  assert_int_equal(info.numa, -1);
  struct haul_check check;
  assert_int_equal(p2p->checks(&check, 1), 1);
  assert_string_equal(check.name, "p2p.device");
  assert_string_equal(check.text, "PCI devices that publish memory: 2");
}

static void without_devices_there_is_no_place(void **state) {
  (void)state;
  struct memory memory;
  assert_works(providers_start());
  assert_fails(HAUL_EPLACE, memory_alloc(first, 1, 0, &memory));
  assert_string_equal(haul_error_last()->text, "p2p has no devices here");
}

/* Whole pages, writable, shared with the file. */
static void memory_is_a_mapping_of_the_file(void **state) {
  (void)state;
  struct memory memory;
  unsigned before = open_descriptors();
  add_device("0000:00:04.0", "1\n");
  make_file("0000:00:04.0", 2);
  assert_works(providers_start());
  assert_works(memory_alloc(first, PAGE + 1, 0, &memory));
  assert_int_equal(open_descriptors(), before);
  assert_ptr_equal(memory.view, memory.address);
  assert_int_equal(memory.length, PAGE + 1);
  assert_true(memory.writable && !memory.shareable);
  memset(memory.view, 'x', 2 * (size_t)PAGE);
  char path[192], byte = 0;
  snprintf(path, sizeof path, "%s/" DEVICES "0000:00:04.0/p2pmem/allocate", root);
  FILE *file = fopen(path, "re");
  assert_non_null(file);
  assert_int_equal(fseek(file, PAGE, SEEK_SET), 0);
  assert_int_equal(fread(&byte, 1, 1, file), 1);
  assert_int_equal(byte, 'x');
  fclose(file);
  void *address = memory.address;
  memory_free(&memory);
  assert_int_equal(msync(address, 1, MS_ASYNC), -1);
}

static void ranges_of_it_are_recognised(void **state) {
  (void)state;
  struct memory memory, wrapped;
  struct haul_place place;
  const struct provider *p2p = provider_of(HAUL_P2P);
  add_device("0000:00:03.0", "1\n");
  add_device("0000:00:04.0", "1\n");
  make_file("0000:00:04.0", 2);
  assert_works(providers_start());
  assert_works(memory_alloc((struct haul_place){HAUL_P2P, 1}, 2 * (size_t)PAGE, 0, &memory));
  char *at = memory.address;
  assert_int_equal(p2p->owns(at - 1, 1, &place), 0);
  assert_int_equal(p2p->owns(at + 2 * (size_t)PAGE, 1, &place), 0);
  assert_fails(HAUL_EINVAL, p2p->owns(at - 1, 2, &place));
  assert_fails(HAUL_EINVAL, p2p->owns(at + PAGE, PAGE + 1, &place));
  assert_works(memory_wrap(at + 3, PAGE, &wrapped));
  assert_int_equal(wrapped.place.kind, HAUL_P2P);
  assert_int_equal(wrapped.place.device, 1);
  assert_ptr_equal(wrapped.view, at + 3);
  memory_free(&wrapped); /* leaves the memory */
  assert_int_equal(p2p->owns(at, 2 * (size_t)PAGE, &place), 1);
  memory_free(&memory);
  assert_int_equal(p2p->owns(at, 1, &place), 0);
}

static int answer; /* errno of mmap */

static void *refuse(void *address, size_t length, int protection, int flags, int descriptor,
                    off_t offset) {
  assert_null(address);
  assert_int_equal(length, PAGE);
  assert_int_equal(protection, PROT_READ | PROT_WRITE);
  assert_int_equal(flags, MAP_SHARED);
  assert_true(descriptor >= 0);
  assert_int_equal(offset, 0);
  errno = answer;
  return MAP_FAILED;
}

static void failures_leave_nothing(void **state) {
  (void)state;
  struct memory memory;
  struct haul_place place;
  char path[192];
  void *(*real)(void *, size_t, int, int, int, off_t) = sys_ops.mmap;
  add_device("0000:00:04.0", "1\n");
  assert_works(providers_start());
  unsigned before = open_descriptors(), n = 1;
  for (int status; seams_refuse(n), status = memory_alloc(first, 1, 0, &memory), seams_restore();
       n++)
    assert_int_equal(status, HAUL_ENOMEM);
  assert_int_equal(n, 3); /* bookkeeping, mapping */
  memory_free(&memory);
  sys_ops.mmap = refuse;
  answer = ENOMEM;
  assert_fails(HAUL_ENOMEM, memory_alloc(first, 1, 0, &memory));
  answer = ENODEV; /* the driver was unbound */
  assert_fails(HAUL_ESYSTEM, memory_alloc(first, 1, 0, &memory));
  sys_ops.mmap = real;
  snprintf(path, sizeof path, "%s/" DEVICES "0000:00:04.0/p2pmem/allocate", root);
  assert_int_equal(unlink(path), 0);
  assert_fails(HAUL_ESYSTEM, memory_alloc(first, 1, 0, &memory));
  assert_int_equal(haul_error_last()->system, ENOENT);
  assert_int_equal(open_descriptors(), before);
  assert_int_equal(provider_of(HAUL_P2P)->owns((void *)PAGE, SIZE_MAX / 2, &place), 0);
}

static void it_cannot_be_shared(void **state) {
  (void)state;
  struct memory memory;
  struct ticket ticket;
  int descriptor;
  uint64_t offset;
  add_device("0000:00:04.0", "1\n");
  make_file("0000:00:04.0", 1);
  assert_works(providers_start());
  assert_works(memory_alloc(first, 1, 0, &memory));
  assert_fails(HAUL_ENOTSUP, memory_export(&memory, HAUL_READ, &ticket, &descriptor));
  assert_fails(HAUL_ENOTSUP, memory_dmabuf(&memory, &descriptor, &offset));
  memory_free(&memory);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, begin, end)

int main(void) {
  const struct CMUnitTest tests[] = {
      TEST(devices_that_publish_memory_are_places),
      TEST(without_devices_there_is_no_place),
      TEST(memory_is_a_mapping_of_the_file),
      TEST(ranges_of_it_are_recognised),
      TEST(failures_leave_nothing),
      TEST(it_cannot_be_shared),
  };
  return cmocka_run_group_tests_name("memory/p2p", tests, NULL, NULL);
}
