/* SPDX-License-Identifier: MIT */
#include "hooked.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

struct hook hook;
struct cudart_double *runtime_door;

static void find_symbol(void *library, const char *symbol, void *slot) {
  void *found = dlsym(library, symbol);
  memcpy(slot, &found, sizeof found);
}

int find_hook(void *library) {
  void *where = library ? library : RTLD_DEFAULT;
  find_symbol(where, "haul_cudahook_alloc", &hook.alloc);
  find_symbol(where, "haul_cudahook_free", &hook.free);
  find_symbol(where, "haul_cudahook_record_stream", &hook.record_stream);
  find_symbol(where, "haul_cudahook_find", &hook.find);
  find_symbol(where, "haul_cudahook_publish", &hook.publish);
  find_symbol(RTLD_DEFAULT, "cudart_double", &runtime_door);
  return 0;
}

struct cuda_double *driver_door(void) {
  struct cuda_double *door = NULL;
  void *driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
  if (driver)
    find_symbol(driver, "cuda_double", &door);
  return door;
}

void check_served(const void *address) {
  haul_region *region;
  uint64_t offset;
  assert_non_null(address);
  if (!hook.find)
    return;
  assert_int_equal(hook.find(address, &region, &offset), 0);
  assert_ptr_equal(haul_region_address(region), address);
  assert_int_equal(offset, 0);
}

void check_passed_on(const void *address) {
  haul_region *region;
  uint64_t offset;
  if (hook.find)
    assert_int_equal(hook.find(address, &region, &offset), HAUL_EINVAL);
}

void put_bytes(void *to, size_t length, uint64_t seed) {
  char *bytes = malloc(length);
  assert_non_null(bytes);
  pattern_fill(bytes, length, seed);
  assert_cuda(cudaMemcpy(to, bytes, length, cudaMemcpyHostToDevice));
  free(bytes);
}

void check_bytes(const void *from, size_t length, uint64_t seed) {
  char *bytes = calloc(1, length);
  assert_non_null(bytes);
  assert_cuda(cudaMemcpy(bytes, from, length, cudaMemcpyDeviceToHost));
  pattern_check(bytes, length, seed);
  free(bytes);
}
