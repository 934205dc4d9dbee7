/* SPDX-License-Identifier: MIT
 * A framework loads the hook as its allocator, after the runtime, without preload. Memory is on the
 * requested device, whatever is current; frees follow the order of all streams that use it; small
 * memory comes from the runtime and returns to it. */
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

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

/* Copies in these streams do not proceed while the mock holds them. */

static cudaStream_t streams[6];
static char *pinned;

static void hold(char *to, size_t count) {
  driver_door()->hold = 1;
  for (size_t i = 0; i < count; i++)
    assert_cuda(cudaMemcpyAsync(to + i * 4096, pinned, 4096, cudaMemcpyHostToDevice, streams[i]));
}

static void let_go(void) {
  driver_door()->hold = 0;
  for (size_t i = 0; i < COUNT(streams); i++)
    assert_cuda(cudaStreamSynchronize(streams[i]));
}

/* The hook polls its pending frees in each allocation: then there is none. */
static char *alloc_settled(void) {
  for (int device = 1; device >= 0; device--) {
    assert_cuda(cudaSetDevice(device));
    assert_cuda(cudaDeviceSynchronize());
  }
  return hook.alloc(MIB, 0, NULL);
}

/* Work of another stream than the one of the allocation keeps the memory. */
static void test_record_stream(void **state) {
  (void)state;
  char *address = alloc_settled();
  unsigned events = runtime_door->events;
  for (size_t turn = 0; turn < 3; turn++) {
    hook.record_stream(address, streams[0]);
    hook.record_stream(address + 4096, streams[1]);
  }
  hold(address, 2);
  hook.free(address, MIB, 0, NULL); /* does not wait */
  assert_int_equal(runtime_door->events, events + 3);
  check_passed_on(address);
  assert_int_equal(cudaGetLastError(), cudaSuccess);
  let_go();
  hook.free(alloc_settled(), MIB, 0, NULL);
  assert_int_equal(runtime_door->events, events + 1);
}

static void test_held_memory_is_not_reused(void **state) {
  (void)state;
  void *others[12];
  char *address = alloc_settled();
  unsigned events = runtime_door->events;
  hook.record_stream(address, streams[0]);
  hold(address, 1);
  hook.free(address, MIB, 0, NULL);
  for (size_t i = 0; i < COUNT(others); i++) {
    others[i] = hook.alloc(MIB, 0, NULL);
    assert_ptr_not_equal(others[i], address);
  }
  assert_int_equal(runtime_door->events, events + 2);
  let_go();
  for (size_t i = 0; i < COUNT(others); i++)
    hook.free(others[i], MIB, 0, NULL);
  hook.free(alloc_settled(), MIB, 0, NULL);
  assert_int_equal(runtime_door->events, events + 1);
}

static void *let_go_soon(void *unused) {
  (void)unused;
  nanosleep(&(struct timespec){0, 50000000}, NULL);
  driver_door()->hold = 0;
  return NULL;
}

/* The free waits. */
static void test_many_recorded_streams(void **state) {
  (void)state;
  pthread_t helper;
  char *address = alloc_settled();
  unsigned events = runtime_door->events;
  for (size_t i = 0; i < COUNT(streams); i++)
    hook.record_stream(address, streams[i]);
  hold(address, COUNT(streams));
  assert_int_equal(pthread_create(&helper, NULL, let_go_soon, NULL), 0);
  hook.free(address, MIB, 0, NULL);
  assert_int_equal(driver_door()->hold, 0);
  assert_int_equal(runtime_door->events, events);
  pthread_join(helper, NULL);
  let_go();
}

static void test_record_other_memory(void **state) {
  (void)state;
  void *address = hook.alloc(512, 0, NULL);
  hook.record_stream(address, streams[0]);
  hook.record_stream(NULL, streams[0]);
  hook.free(address, 512, 0, NULL);
}

/* During a capture of a recorded stream its work is the graph's: the memory is kept. */
static void test_captured_recorded_stream(void **state) {
  (void)state;
  cudaGraph_t graph;
  char *address = hook.alloc(MIB, 0, NULL);
  hook.record_stream(address, streams[0]);
  assert_cuda(cudaStreamBeginCapture(streams[0], cudaStreamCaptureModeGlobal));
  hook.free(address, MIB, 0, NULL);
  assert_cuda(cudaStreamEndCapture(streams[0], &graph));
  assert_cuda(cudaGraphDestroy(graph));
  check_served(address);
  hook.free(address, MIB, 0, NULL);
}

static int make_streams(void **state) {
  (void)state;
  for (size_t i = 0; i < COUNT(streams); i++)
    assert_cuda(cudaStreamCreateWithFlags(&streams[i], cudaStreamNonBlocking));
  assert_cuda(cudaMallocHost((void **)&pinned, 4096));
  return 0;
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
      cmocka_unit_test(test_memory),
      cmocka_unit_test(test_another_device),
      cmocka_unit_test(test_passed_on),
      cmocka_unit_test(test_nothing_else_is_hooked),
      cmocka_unit_test(test_record_stream),
      cmocka_unit_test(test_held_memory_is_not_reused),
      cmocka_unit_test(test_many_recorded_streams),
      cmocka_unit_test(test_record_other_memory),
      cmocka_unit_test(test_captured_recorded_stream),
      cmocka_unit_test(test_no_memory),
  };
  void *library = dlopen(getenv("HAUL_CUDAHOOK"), RTLD_NOW | RTLD_LOCAL);
  if (!library) {
    fprintf(stderr, "%s\n", dlerror());
    return 1;
  }
  cudaFree(NULL);
  find_hook(library);
  return cmocka_run_group_tests(tests, make_streams, NULL);
}
