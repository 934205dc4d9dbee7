/* SPDX-License-Identifier: MIT
 * Buffers in device memory where there is no device: every call says so. Those that there are stand
 * in tests/storage/mounted_devices.c. */
#include "usrbio/world.h"

#include "hf3fs_usrbio_gdr.h"

static void there_are_none(void **state) {
  (void)state;
  assert_false(hf3fs_gdr_available());
  assert_int_equal(hf3fs_gdr_device_count(), 0);
}

static void none_is_made(void **state) {
  struct world *world = *state;
  struct hf3fs_iov iov, zeroed = {0};
  static uint8_t memory[4096];
  const uint8_t id[16] = {1};
  hf3fs_gpu_ipc_handle_t handle = {{0}};
  for (int i = 0; i < 7; i++) {
    memset(&iov, 0xff, sizeof iov);
    int status = i == 0   ? hf3fs_iovcreate_gpu(&iov, world->mount, 4096, 0, 0)
                 : i == 1 ? hf3fs_iovopen_gpu(&iov, id, world->mount, 4096, 0, 0)
                 : i == 2 ? hf3fs_iovwrap_gpu(&iov, memory, id, world->mount, 4096, 0, 0)
                 : i == 3 ? hf3fs_iovcreate_device(&iov, world->mount, 4096, 0, 0)
                 : i == 4 ? hf3fs_iovopen_device(&iov, id, world->mount, 4096, 0, 0)
                 : i == 5 ? hf3fs_iovwrap_device(&iov, memory, id, world->mount, 4096, 0, 0)
                          : hf3fs_iov_import_gpu(&iov, &handle, world->mount);
    assert_int_equal(status, i == 6 ? -EINVAL : -ENOTSUP); /* the last is no handle */
    assert_memory_equal(&iov, &zeroed, sizeof iov);
    hf3fs_iovdestroy_gpu(&iov);
  }
  assert_int_equal(hf3fs_iovcreate_gpu(NULL, world->mount, 4096, 0, 0), -EINVAL);
  assert_int_equal(hf3fs_iov_import_gpu(&iov, NULL, world->mount), -EINVAL);
}

static void host_memory_is_told_apart(void **state) {
  struct world *world = *state;
  hf3fs_gpu_ipc_handle_t handle;
  assert_false(hf3fs_iov_is_gpu(&world->iov));
  assert_false(hf3fs_iov_is_gpu(NULL));
  assert_int_equal(hf3fs_iov_gpu_device(&world->iov), -1);
  assert_int_equal(hf3fs_iov_device_id(&world->iov), -1);
  assert_int_equal(hf3fs_iov_mem_type(&world->iov), HF3FS_MEM_HOST);
  assert_int_equal(hf3fs_iov_export_gpu(&world->iov, &handle), -EINVAL);
  assert_int_equal(hf3fs_iov_export_gpu(NULL, &handle), -EINVAL);
  assert_int_equal(hf3fs_iov_export_gpu(&world->iov, NULL), -EINVAL);
  for (int direction = 0; direction < 2; direction++) {
    assert_int_equal(hf3fs_iovsync(&world->iov, direction), 0);
    assert_int_equal(hf3fs_iovsync_gpu(&world->iov, direction), -EINVAL);
  }
  assert_int_equal(hf3fs_iovsync(&world->iov, 2), -EINVAL);
  assert_int_equal(hf3fs_iovsync(NULL, 0), -EINVAL);
  assert_int_equal(hf3fs_iovsync_gpu(NULL, 0), -EINVAL);
  hf3fs_iovunlink_gpu(&world->iov);
  hf3fs_iovdestroy_gpu(&world->iov); /* takes buffers of all memories */
  assert_int_equal(daemon_registered(), 0);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      world_test(there_are_none),
      world_test(none_is_made),
      world_test(host_memory_is_told_apart),
  };
  return cmocka_run_group_tests_name("usrbio/devices", tests, NULL, NULL);
}
