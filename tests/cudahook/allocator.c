/* SPDX-License-Identifier: MIT
 * A framework loads the hook as its allocator, after the runtime, without preload. Memory is on the
 * requested device, whatever is current; frees follow stream order; small memory comes from the
 * runtime and returns to it. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

#include "hooked.h"

static void test_memory(void **state) {
  (void)state;
  cudaStream_t stream;
  int now = -1;
  assert_cuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  for (int i = 0; i < 20; i++) {
    void *address = hook.alloc(2 * MIB, 0, stream);
    check_served(address);
    put_bytes(address, 2 * MIB, (uint64_t)i);
    check_bytes(address, 2 * MIB, (uint64_t)i);
    hook.free(address, 2 * MIB, 0, stream);
  }
  assert_cuda(cudaGetDevice(&now));
  assert_int_equal(now, 0);
  assert_cuda(cudaStreamSynchronize(stream));
  hook.free(hook.alloc(MIB, 0, NULL), MIB, 0, NULL);
  assert_cuda(cudaStreamDestroy(stream));
}

static void test_another_device(void **state) {
  (void)state;
  haul_region *region;
  uint64_t offset;
  int now = -1;
  void *address = hook.alloc(2 * MIB, 1, NULL);
  check_served(address);
  assert_int_equal(hook.find(address, &region, &offset), 0);
  assert_int_equal(haul_region_place(region).device, 1);
  hook.free(address, 2 * MIB, 1, NULL);
  assert_cuda(cudaGetDevice(&now));
  assert_int_equal(now, 0);
  assert_null(hook.alloc(2 * MIB, 99, NULL));
  assert_int_equal(cudaGetLastError(), cudaErrorInvalidDevice);
}

static void test_passed_on(void **state) {
  (void)state;
  unsigned frees = runtime_door->frees;
  void *address = hook.alloc(512, 0, NULL);
  assert_non_null(address);
  check_passed_on(address);
  put_bytes(address, 512, 1);
  hook.free(address, 512, 0, NULL);
  assert_int_equal(runtime_door->frees, frees + 1);
  assert_null(hook.alloc(0, 0, NULL));
  hook.free(NULL, 0, 0, NULL);
}

/* The application's own calls go to the runtime. */
static void test_nothing_else_is_hooked(void **state) {
  (void)state;
  void *address;
  assert_cuda(cudaMalloc(&address, 2 * MIB));
  check_passed_on(address);
  assert_cuda(cudaFree(address));
}

static void test_no_memory(void **state) {
  (void)state;
  struct cuda_double *door = driver_door();
  unsigned long long memory = door->memory;
  door->memory = 64 * MIB;
  assert_null(hook.alloc(100 * MIB, 0, NULL));
  assert_int_equal(cudaGetLastError(), cudaErrorMemoryAllocation);
  door->memory = memory;
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_memory),    cmocka_unit_test(test_another_device),
      cmocka_unit_test(test_passed_on), cmocka_unit_test(test_nothing_else_is_hooked),
      cmocka_unit_test(test_no_memory),
  };
  void *library = dlopen(getenv("HAUL_CUDAHOOK"), RTLD_NOW | RTLD_LOCAL);
  if (!library) {
    fprintf(stderr, "%s\n", dlerror());
    return 1;
  }
  cudaFree(NULL);
  find_hook(library);
  return cmocka_run_group_tests(tests, NULL, NULL);
}
