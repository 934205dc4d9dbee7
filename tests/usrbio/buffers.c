/* SPDX-License-Identifier: MIT
 * Buffers: create, open, wrap, unlink, destroy. */
#include "usrbio/world.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static void check_zeroed(const struct hf3fs_iov *iov) {
  static const struct hf3fs_iov zeroed;
  assert_memory_equal(iov, &zeroed, sizeof zeroed);
}

static void a_buffer_is_created_and_destroyed(void **state) {
  struct world *world = *state;
  struct hf3fs_iov iov;
  struct stat found;
  char target[256];
  assert_int_equal(hf3fs_iovcreate(&iov, world->mount, 10000, 4096, 0), 0);
  assert_int_equal(iov.size, 10000);
  assert_int_equal(iov.block_size, 4096);
  assert_int_equal(iov.numa, 0);
  assert_string_equal(iov.mount_point, world->mount);
  assert_non_null(strstr(daemon_last_name(), ".b4096"));
  snprintf(target, sizeof target, "%s", daemon_last_target());
  assert_int_equal(strncmp(target, "/dev/shm/hf3fs-iov-", 19), 0);
  assert_int_equal(strncmp(target + 19, daemon_last_name(), 36), 0);
  assert_int_equal(stat(target, &found), 0);
  assert_int_equal(found.st_size, 10000);
  assert_int_equal(found.st_mode & 0777, 0600);
  memset(iov.base, 1, iov.size);
  assert_int_equal(daemon_registered(), 2);
  hf3fs_iovdestroy(&iov);
  assert_int_equal(daemon_registered(), 1);
  assert_false(world_has(target));
  assert_null(iov.iovh);
  hf3fs_iovdestroy(&iov);
}

/* Of the mapping at `base`, see "VmFlags" in proc(5). */
static bool mapping_has(const void *base, const char *flag) {
  char line[512], start[32];
  bool inside = false, has = false;
  FILE *maps = fopen("/proc/self/smaps", "r");
  assert_non_null(maps);
  snprintf(start, sizeof start, "%lx-", (unsigned long)(uintptr_t)base);
  while (fgets(line, sizeof line, maps)) {
    if (strncmp(line, start, strlen(start)) == 0)
      inside = true;
    else if (inside && strncmp(line, "VmFlags:", 8) == 0) {
      has = strstr(line, flag) != NULL;
      break;
    }
  }
  fclose(maps);
  return has;
}

static void the_kernel_may_use_huge_pages(void **state) {
  struct world *world = *state;
  struct hf3fs_iov iov;
  if (!world_has("/sys/kernel/mm/transparent_hugepage")) {
    print_message("skipped huge pages: this kernel has none\n");
    skip();
  }
  assert_int_equal(hf3fs_iovcreate(&iov, world->mount, 4 << 20, 0, -1), 0);
  assert_true(mapping_has(iov.base, " hg"));
  hf3fs_iovdestroy(&iov);
}

static void invalid_arguments_are_rejected(void **state) {
  struct world *world = *state;
  struct hf3fs_iov iov;
  char endless[257];
  memset(endless, 'x', 256);
  endless[256] = '\0';
  const struct {
    const char *mount;
    size_t size, block;
    int status;
  } wrong[] = {
      {NULL, 4096, 0, -EINVAL},
      {"", 4096, 0, -EINVAL},
      {endless, 4096, 0, -EINVAL},
      {world->mount, 0, 0, -EINVAL},
      {world->mount, 4096, 4097, -EINVAL},
      {world->mount, SIZE_MAX, 0, -EINVAL},
      {world->mount, 1ull << 62, 0, -ENOSPC},
      {"/nowhere", 4096, 0, -ENOENT},
      {"/tmp", 4096, 0, -ENOENT},
  };
  for (size_t i = 0; i < COUNT(wrong); i++) {
    memset(&iov, 0xff, sizeof iov);
    assert_int_equal(hf3fs_iovcreate(&iov, wrong[i].mount, wrong[i].size, wrong[i].block, -1),
                     wrong[i].status);
    check_zeroed(&iov);
    hf3fs_iovdestroy(&iov);
  }
  assert_int_equal(hf3fs_iovcreate(NULL, world->mount, 4096, 0, -1), -EINVAL);
  hf3fs_iovdestroy(NULL);
  hf3fs_iovunlink(NULL);
}

static void a_failure_leaves_nothing_behind(void **state) {
  struct world *world = *state;
  const int errors[] = {EPERM, EMFILE, ENOMEM, EEXIST};
  for (size_t i = 0; i < COUNT(errors); i++) {
    struct hf3fs_iov iov;
    daemon_fail_symlinks(errors[i]);
    assert_int_equal(hf3fs_iovcreate(&iov, world->mount, 4096, 0, -1), -errors[i]);
    check_zeroed(&iov);
    assert_false(world_has(daemon_last_target()));
  }
  daemon_fail_symlinks(0);
}

static void any_numa_node_is_accepted(void **state) {
  struct world *world = *state;
  const int nodes[] = {-1, INT_MIN, 0, 1, 63, 64, 1023, 1024, INT_MAX};
  for (size_t i = 0; i < COUNT(nodes); i++) {
    struct hf3fs_iov iov;
    assert_int_equal(hf3fs_iovcreate(&iov, world->mount, 1 << 16, 0, nodes[i]), 0);
    memset(iov.base, 0x5a, iov.size);
    hf3fs_iovdestroy(&iov);
  }
}

static void another_process_opens_a_buffer(void **state) {
  struct world *world = *state;
  struct hf3fs_iov other;
  const uint8_t *id = (const uint8_t *)world->iov.id;
  assert_int_equal(hf3fs_iovopen(&other, id, world->mount, WORLD_BUFFER, 0, -1), 0);
  assert_ptr_not_equal(other.base, world->iov.base);
  memcpy(world->iov.base, "bytes", 6);
  assert_string_equal((char *)other.base, "bytes");
  assert_memory_equal(other.id, world->iov.id, 16);
  hf3fs_iovunlink(&other); /* cannot be unlinked by this process */
  assert_true(world_has(daemon_last_target()));
  hf3fs_iovdestroy(&other);
  assert_int_equal(daemon_registered(), 1);
  assert_string_equal((char *)world->iov.base, "bytes");
}

static void only_registered_buffers_are_opened(void **state) {
  struct world *world = *state;
  struct hf3fs_iov iov;
  const uint8_t *id = (const uint8_t *)world->iov.id, nobody[16] = {1};
  assert_int_equal(hf3fs_iovopen(&iov, nobody, world->mount, 4096, 0, -1), -ENOENT);
  check_zeroed(&iov);
  assert_int_equal(hf3fs_iovopen(&iov, id, world->mount, WORLD_BUFFER + 1, 0, -1), -EINVAL);
  assert_int_equal(hf3fs_iovopen(&iov, id, world->mount, 0, 0, -1), -EINVAL);
  assert_int_equal(hf3fs_iovopen(&iov, id, world->mount, 4096, 8192, -1), -EINVAL);
  assert_int_equal(hf3fs_iovopen(&iov, id, world->mount, 4096, 4096, -1), -ENOENT);
  assert_int_equal(hf3fs_iovopen(&iov, id, "", 4096, 0, -1), -EINVAL);
  assert_int_equal(hf3fs_iovopen(&iov, NULL, world->mount, 4096, 0, -1), -EINVAL);
  assert_int_equal(hf3fs_iovopen(NULL, id, world->mount, 4096, 0, -1), -EINVAL);
  hf3fs_iovunlink(&world->iov);
  assert_int_equal(hf3fs_iovopen(&iov, id, world->mount, 4096, 0, -1), -ENOENT);
}

/* A link may name a file elsewhere, a folder or a FIFO. */
static void only_files_of_shared_memory_are_opened(void **state) {
  struct world *world = *state;
  struct hf3fs_iov iov;
  const uint8_t id[16] = {0};
  char link[PATH_MAX], fifo[64];
  snprintf(fifo, sizeof fifo, "/dev/shm/haul-test-%d.fifo", (int)getpid());
  assert_int_equal(mkfifo(fifo, 0600), 0);
  const char *const targets[] = {world->path, "/dev/shm", fifo, "/dev/shm/../zero"};
  snprintf(link, sizeof link, "%s/3fs-virt/iovs/00000000-0000-0000-0000-000000000000",
           world->mount);
  for (size_t i = 0; i < COUNT(targets); i++) {
    assert_int_equal(symlinkat(targets[i], AT_FDCWD, link), 0);
    int status = hf3fs_iovopen(&iov, id, world->mount, 16, 0, -1);
    assert_true(status == -EINVAL || status == -EISDIR);
    assert_int_equal(unlinkat(AT_FDCWD, link, 0), 0);
  }
  unlinkat(AT_FDCWD, fifo, 0);
}

static void unlinked_buffers_stay_usable(void **state) {
  struct world *world = *state;
  char target[256];
  snprintf(target, sizeof target, "%s", daemon_last_target());
  hf3fs_iovunlink(&world->iov);
  assert_false(world_has(target));
  hf3fs_iovunlink(&world->iov);
  memset(world->iov.base, 1, world->iov.size);
  assert_int_equal(daemon_registered(), 1);
}

static void wrapped_memory_stays_the_callers(void **state) {
  struct world *world = *state;
  struct hf3fs_iov iov;
  uint8_t id[16] = {1, 2, 3};
  static uint8_t memory[8192];
  assert_int_equal(hf3fs_iovwrap(&iov, memory, id, "/anywhere", sizeof memory, 4096, 0), 0);
  assert_ptr_equal(iov.base, memory);
  assert_null(iov.iovh);
  assert_memory_equal(iov.id, id, 16);
  hf3fs_iovunlink(&iov);
  hf3fs_iovdestroy(&iov);
  assert_ptr_equal(iov.base, memory);
  memory[0] = 1;
  assert_int_equal(hf3fs_iovwrap(&iov, iov.base, (uint8_t *)iov.id, iov.mount_point, 100, 0, -1),
                   0);
  assert_memory_equal(iov.id, id, 16);
  assert_string_equal(iov.mount_point, "/anywhere");
  assert_int_equal(hf3fs_iovwrap(NULL, memory, id, world->mount, 1, 0, -1), -EINVAL);
  assert_int_equal(hf3fs_iovwrap(&iov, NULL, id, world->mount, 1, 0, -1), -EINVAL);
  assert_int_equal(hf3fs_iovwrap(&iov, memory, NULL, world->mount, 1, 0, -1), -EINVAL);
  assert_int_equal(hf3fs_iovwrap(&iov, memory, id, NULL, 1, 0, -1), -EINVAL);
  assert_int_equal(hf3fs_iovwrap(&iov, memory, id, world->mount, 0, 0, -1), -EINVAL);
  assert_int_equal(hf3fs_iovwrap(&iov, memory, id, world->mount, 1, 2, -1), -EINVAL);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      world_test(a_buffer_is_created_and_destroyed),
      world_test(the_kernel_may_use_huge_pages),
      world_test(invalid_arguments_are_rejected),
      world_test(a_failure_leaves_nothing_behind),
      world_test(any_numa_node_is_accepted),
      world_test(another_process_opens_a_buffer),
      world_test(only_registered_buffers_are_opened),
      world_test(only_files_of_shared_memory_are_opened),
      world_test(unlinked_buffers_stay_usable),
      world_test(wrapped_memory_stays_the_callers),
  };
  return cmocka_run_group_tests_name("usrbio/buffers", tests, NULL, NULL);
}
