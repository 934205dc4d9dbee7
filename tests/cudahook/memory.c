/* SPDX-License-Identifier: MIT
 * Memory from haul behaves like the runtime's: contents, sizes and errors. Other memory comes from
 * the runtime and returns to it. */
#include "hooked.h"

static void test_bytes(void **state) {
  (void)state;
  size_t sizes[] = {MIB, 2 * MIB, 3 * MIB + 12345, 20 * MIB};
  for (size_t i = 0; i < COUNT(sizes); i++) {
    void *one = NULL, *other = NULL;
    assert_cuda(cudaMalloc(&one, sizes[i]));
    assert_cuda(cudaMalloc(&other, sizes[i]));
    check_served(one);
    check_served(other);
    put_bytes(one, sizes[i], i);
    assert_cuda(cudaMemcpy(other, one, sizes[i], cudaMemcpyDeviceToDevice));
    check_bytes(other, sizes[i], i);
    assert_cuda(cudaFree(one));
    check_bytes(other, sizes[i], i);
    assert_cuda(cudaFree(other));
  }
}

/* Small allocations are passed on, as each would take 2 MiB. */
static void test_small(void **state) {
  (void)state;
  void *address = NULL;
  unsigned before = runtime_door ? runtime_door->allocations : 0;
  assert_cuda(cudaMalloc(&address, 4096));
  check_passed_on(address);
  put_bytes(address, 4096, 7);
  check_bytes(address, 4096, 7);
  if (runtime_door)
    assert_int_equal(runtime_door->allocations, before + 1);
  before = runtime_door ? runtime_door->frees : 0;
  assert_cuda(cudaFree(address));
  if (runtime_door)
    assert_int_equal(runtime_door->frees, before + 1);
}

static void test_nothing(void **state) {
  (void)state;
  void *address = &address;
  assert_cuda(cudaFree(NULL));
  assert_cuda(cudaMalloc(&address, 0));
  assert_null(address);
  assert_int_equal(cudaMalloc(NULL, MIB), cudaErrorInvalidValue);
  assert_int_equal(cudaGetLastError(), cudaErrorInvalidValue);
}

/* The runtime reports errors of the application. */
static void test_invalid_addresses(void **state) {
  (void)state;
  char *address = NULL;
  assert_cuda(cudaMalloc((void **)&address, 2 * MIB));
  put_bytes(address, 2 * MIB, 9);
  assert_int_equal(cudaFree(address + 4096), cudaErrorInvalidValue);
  assert_int_equal(cudaFree(&address), cudaErrorInvalidValue);
  check_bytes(address, 2 * MIB, 9);
  assert_cuda(cudaFree(address));
  assert_int_equal(cudaFree(address), cudaErrorInvalidValue);
  assert_int_equal(cudaGetLastError(), cudaErrorInvalidValue);
}

static void test_rows(void **state) {
  (void)state;
  void *address = NULL;
  size_t pitch = 0;
  assert_cuda(cudaMallocPitch(&address, &pitch, 5000, 400));
  check_served(address);
  assert_int_equal(pitch % 512, 0);
  assert_true(pitch >= 5000);
  put_bytes(address, pitch * 400, 3);
  check_bytes(address, pitch * 400, 3);
  assert_cuda(cudaFree(address));

  struct cudaPitchedPtr pitched = {NULL, 0, 0, 0};
  assert_cuda(cudaMalloc3D(&pitched, (struct cudaExtent){1000, 30, 70}));
  check_served(pitched.ptr);
  assert_int_equal(pitched.xsize, 1000);
  assert_int_equal(pitched.ysize, 30);
  put_bytes(pitched.ptr, pitched.pitch * 30 * 70, 4);
  check_bytes(pitched.ptr, pitched.pitch * 30 * 70, 4);
  assert_cuda(cudaFree(pitched.ptr));
  assert_int_not_equal(cudaMallocPitch(&address, &pitch, SIZE_MAX / 2, SIZE_MAX / 2), cudaSuccess);
  cudaGetLastError();
}

/* Memory is on the current device. A free works with another current device, and keeps it current.
 */
static void test_devices(void **state) {
  (void)state;
  void *address = NULL;
  haul_region *region;
  uint64_t offset;
  int count = 0, now = -1;
  assert_cuda(cudaGetDeviceCount(&count));
  if (count < 2)
    skip();
  assert_cuda(cudaSetDevice(1));
  assert_cuda(cudaMalloc(&address, MIB));
  check_served(address);
  put_bytes(address, MIB, 5);
  if (hook.find) {
    assert_int_equal(hook.find(address, &region, &offset), 0);
    assert_int_equal(haul_region_place(region).kind, HAUL_CUDA);
    assert_int_equal(haul_region_place(region).device, 1);
    assert_cuda(cudaSetDevice(0));
  }
  assert_cuda(cudaFree(address));
  assert_cuda(cudaGetDevice(&now));
  assert_int_equal(now, hook.find ? 0 : 1);
  assert_cuda(cudaSetDevice(0));
}

/* The runtime reports its own error, and freed memory is available again. */
static void test_no_memory(void **state) {
  (void)state;
  struct cuda_double *door = driver_door();
  void *address = &address;
  if (!door) {
    skip();
    return;
  }
  unsigned long long memory = door->memory;
  door->memory = 64 * MIB;
  assert_int_equal(cudaMalloc(&address, 100 * MIB), cudaErrorMemoryAllocation);
  assert_ptr_equal(address, &address);
  assert_int_equal(cudaGetLastError(), cudaErrorMemoryAllocation);
  for (int i = 0; i < 5; i++) {
    assert_cuda(cudaMalloc(&address, 60 * MIB));
    assert_cuda(cudaFree(address));
    assert_cuda(cudaMalloc(&address, 30 * MIB));
    assert_cuda(cudaFree(address));
  }
  door->memory = memory;
}

/* haul takes little more than the allocations, and gives them what its pool keeps. */
static void test_fills_the_device(void **state) {
  (void)state;
  struct cuda_double *door = driver_door();
  void *addresses[62], *kept[4];
  if (!door) {
    skip();
    return;
  }
  unsigned long long memory = door->memory;
  door->memory = 4096 * MIB;
  for (size_t i = 0; i < COUNT(kept); i++)
    assert_cuda(cudaMalloc(&kept[i], 60 * MIB));
  for (size_t i = 0; i < COUNT(kept); i++)
    assert_cuda(cudaFree(kept[i]));
  for (size_t i = 0; i < COUNT(addresses); i++) {
    assert_cuda(cudaMalloc(&addresses[i], 66 * MIB));
    check_served(addresses[i]);
  }
  for (size_t i = 0; i < COUNT(addresses); i++)
    assert_cuda(cudaFree(addresses[i]));
  door->memory = memory;
}

/* The runtime gets the memory that haul keeps, and an application sees no error of its first try.
 */
static void test_small_without_memory(void **state) {
  (void)state;
  struct cuda_double *door = driver_door();
  void *kept, *later, *small;
  if (!door) {
    skip();
    return;
  }
  unsigned long long memory = door->memory;
  door->memory = 64 * MIB;
  assert_cuda(cudaMalloc(&kept, 40 * MIB));
  assert_cuda(cudaMalloc(&later, 24 * MIB));
  assert_int_equal(cudaMalloc(&small, 4096), cudaErrorMemoryAllocation);
  assert_int_equal(cudaGetLastError(), cudaErrorMemoryAllocation);
  assert_cuda(cudaFree(kept));
  assert_cuda(cudaMalloc(&small, 4096));
  check_passed_on(small);
  assert_cuda(cudaGetLastError());
  assert_cuda(cudaFree(small));

  assert_cuda(cudaMalloc(&kept, 40 * MIB));
  assert_cuda(cudaFreeAsync(later, cudaStreamPerThread));
  assert_cuda(cudaMalloc(&small, 4096));
  assert_cuda(cudaFree(small));
  assert_cuda(cudaFree(kept));
  door->memory = memory;
}

/* A device reset frees everything; addresses are reused. */
static void test_reset(void **state) {
  (void)state;
  void *lost[4], *address;
  haul_region *region;
  uint64_t offset;
  for (size_t i = 0; i < COUNT(lost); i++)
    assert_cuda(cudaMalloc(&lost[i], 20 * MIB));
  assert_cuda(cudaFreeAsync(lost[0], NULL)); /* pending in the hook */
  assert_cuda(cudaDeviceReset());
  for (size_t i = 0; i < COUNT(lost) && hook.find; i++)
    assert_int_equal(hook.find((char *)lost[i] + 8, &region, &offset), HAUL_EINVAL);
  if (runtime_door)
    assert_int_equal(runtime_door->events, 0);
  for (size_t i = 0; i < 8; i++) {
    assert_cuda(cudaMalloc(&address, 20 * MIB));
    check_served(address);
    put_bytes(address, MIB, i);
    check_bytes(address, MIB, i);
    assert_cuda(cudaFree(address));
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_bytes),
      cmocka_unit_test(test_small),
      cmocka_unit_test(test_nothing),
      cmocka_unit_test(test_invalid_addresses),
      cmocka_unit_test(test_rows),
      cmocka_unit_test(test_devices),
      cmocka_unit_test(test_no_memory),
      cmocka_unit_test(test_fills_the_device),
      cmocka_unit_test(test_small_without_memory),
      cmocka_unit_test(test_reset),
  };
  find_hook(NULL);
  return cmocka_run_group_tests(tests, NULL, NULL);
}
