/* SPDX-License-Identifier: MIT
 * Calls of the allocators of frameworks, as PyTorch's: segments that hold many tensors, used by
 * several streams; segments for captured work; segments of the driver's virtual-memory calls, which
 * are not the hook's; tensors of cudaMallocAsync. */
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#include "hooked.h"
#include "memory/cuda/api.h"

#define SEGMENT (20 * MIB)
#define TENSOR  (MIB + 512)

static cudaStream_t one, other;
static char *pinned;
static struct cuda_double *door;

/* No copy proceeds until `let_go`. Only the mock supports this. */
static void hold(void *to, cudaStream_t stream) {
  door->hold = 1;
  assert_cuda(cudaMemcpyAsync(to, pinned, MIB, cudaMemcpyHostToDevice, stream));
}

static void let_go(void) {
  door->hold = 0;
  assert_cuda(cudaStreamSynchronize(one));
  assert_cuda(cudaStreamSynchronize(other));
}

static void check_found(const char *segment, size_t at) {
  haul_region *region;
  uint64_t offset;
  if (!hook.find)
    return;
  assert_int_equal(hook.find(segment + at, &region, &offset), 0);
  assert_ptr_equal(haul_region_address(region), segment);
  assert_int_equal(offset, at);
}

/* record_stream is the allocator's own: an event of the other stream, and no call of the hook. */
static void test_tensors_of_a_segment(void **state) {
  (void)state;
  char *segment;
  cudaEvent_t used;
  cudaIpcMemHandle_t handle, same;
  assert_cuda(cudaMalloc((void **)&segment, SEGMENT));
  check_served(segment);
  assert_cuda(cudaEventCreateWithFlags(&used, cudaEventDisableTiming));
  for (size_t at = 0; at + TENSOR <= SEGMENT; at += 3 * TENSOR) {
    check_found(segment, at);
    put_bytes(segment + at, TENSOR, at);
  }
  assert_cuda(cudaMemcpyAsync(segment, pinned, MIB, cudaMemcpyHostToDevice, other));
  assert_cuda(cudaEventRecord(used, other));
  assert_cuda(cudaStreamWaitEvent(one, used, 0));
  assert_cuda(cudaMemcpyAsync(pinned, segment, MIB, cudaMemcpyDeviceToHost, one));
  assert_cuda(cudaStreamSynchronize(one));
  for (size_t at = 3 * TENSOR; at + TENSOR <= SEGMENT; at += 3 * TENSOR)
    check_bytes(segment + at, TENSOR, at);
  assert_cuda(cudaIpcGetMemHandle(&handle, segment));
  assert_cuda(cudaIpcGetMemHandle(&same, segment + 3 * TENSOR));
  assert_memory_equal(&handle, &same, sizeof handle);
  assert_cuda(cudaEventDestroy(used));
  assert_cuda(cudaFree(segment));
}

/* The allocator makes its segments in mode "relaxed"; they are as good as others. */
static void test_segments_during_a_capture(void **state) {
  (void)state;
  char *segment;
  cudaGraph_t graph;
  int mode = cudaStreamCaptureModeRelaxed;
  unsigned captured = runtime_door ? runtime_door->captured : 0;
  assert_cuda(cudaStreamBeginCapture(one, cudaStreamCaptureModeGlobal));
  assert_cuda(cudaThreadExchangeStreamCaptureMode(&mode));
  assert_cuda(cudaMalloc((void **)&segment, SEGMENT));
  assert_cuda(cudaThreadExchangeStreamCaptureMode(&mode));
  check_served(segment);
  assert_cuda(cudaMemcpyAsync(segment, pinned, MIB, cudaMemcpyHostToDevice, one));
  assert_cuda(cudaStreamEndCapture(one, &graph));
  if (runtime_door)
    assert_int_equal(runtime_door->captured, captured + 1); /* the copy */
  put_bytes(segment, SEGMENT, 5);
  check_bytes(segment, SEGMENT, 5);
  assert_cuda(cudaGraphDestroy(graph));
  assert_cuda(cudaFree(segment));
}

/* Expandable segments */

static struct {
#define SLOT(slot, symbol, arguments) CUresult(*slot) arguments;
  CUDA_REQUIRED(SLOT)
#undef SLOT
} driver;

static void find_driver(void) {
  void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD), *found;
  assert_non_null(library);
#define FILL(slot, symbol, arguments)                                                              \
  found = dlsym(library, #symbol);                                                                 \
  memcpy(&driver.slot, &found, sizeof found);
  CUDA_REQUIRED(FILL)
#undef FILL
}

#define PART (2 * MIB)

static void map_part(CUdeviceptr at) {
  CUmemAllocationProp how = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                             .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
  CUmemAccessDesc access = {how.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  CUmemGenericAllocationHandle handle;
  assert_cuda(driver.create(&handle, PART, &how, 0));
  assert_cuda(driver.map(at, PART, 0, handle, 0));
  assert_cuda(driver.release(handle));
  assert_cuda(driver.set_access(at, PART, &access, 1));
}

/* The runtime's errors; the segment is neither found nor freed. */
static void test_expandable_segments(void **state) {
  (void)state;
  CUdeviceptr start;
  cudaIpcMemHandle_t handle;
  void *ours;
  assert_cuda(cudaMalloc(&ours, 2 * MIB));
  find_driver();
  assert_cuda(driver.reserve(&start, 8 * PART, 0, 0, 0));
  char *segment = (char *)(uintptr_t)start; /* NOLINT(performance-no-int-to-ptr) */
  for (size_t i = 0; i < 3; i++) {
    map_part(start + i * PART);
    put_bytes(segment + i * PART, PART, i);
  }
  check_passed_on(segment);
  if (hook.publish)
    assert_int_equal(hook.publish(segment, "segment", HAUL_READ), HAUL_EINVAL);
  assert_int_equal(cudaIpcGetMemHandle(&handle, segment), cudaErrorInvalidValue);
  assert_int_equal(cudaFree(segment), cudaErrorInvalidValue);
  cudaGetLastError();
  for (size_t i = 0; i < 3; i++) {
    check_bytes(segment + i * PART, PART, i);
    assert_cuda(driver.unmap(start + i * PART, PART));
  }
  assert_cuda(driver.unreserve(start, 8 * PART));
  assert_cuda(cudaFree(ours));
}

/* Small tensors are of the runtime's pool, large ones the hook's. */
static void test_stream_ordered_tensors(void **state) {
  (void)state;
  char *small, *large;
  unsigned before = runtime_door ? runtime_door->async_allocations : 0;
  assert_cuda(cudaMallocAsync((void **)&small, 4096, one));
  assert_cuda(cudaMallocAsync((void **)&large, TENSOR, one));
  check_passed_on(small);
  check_served(large);
  if (runtime_door)
    assert_int_equal(runtime_door->async_allocations, before + (hook.find ? 1 : 2));
  put_bytes(large, TENSOR, 1);
  check_bytes(large, TENSOR, 1);
  assert_cuda(cudaFreeAsync(small, one));
  assert_cuda(cudaFreeAsync(large, one));
  assert_cuda(cudaStreamSynchronize(one));
}

/* record_stream: the stream of the free waits for the other one. */
static void test_stream_ordered_tensor_of_two_streams(void **state) {
  (void)state;
  char *tensor, *others[8];
  cudaEvent_t used;
  if (!door || !hook.find) {
    skip();
    return;
  }
  assert_cuda(cudaEventCreateWithFlags(&used, cudaEventDisableTiming));
  assert_cuda(cudaMallocAsync((void **)&tensor, MIB, one));
  hold(tensor, other);
  assert_cuda(cudaEventRecord(used, other));
  assert_cuda(cudaStreamWaitEvent(one, used, 0));
  assert_cuda(cudaFreeAsync(tensor, one));
  for (size_t i = 0; i < COUNT(others); i++) {
    assert_cuda(cudaMallocAsync((void **)&others[i], MIB, one));
    assert_ptr_not_equal(others[i], tensor);
  }
  let_go();
  for (size_t i = 0; i < COUNT(others); i++)
    assert_cuda(cudaFreeAsync(others[i], one));
  assert_cuda(cudaEventDestroy(used));
}

static int start(void **state) {
  (void)state;
  assert_cuda(cudaStreamCreateWithFlags(&one, cudaStreamNonBlocking));
  assert_cuda(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking));
  assert_cuda(cudaMallocHost((void **)&pinned, MIB));
  memset(pinned, 1, MIB);
  door = driver_door();
  return 0;
}

static int stop(void **state) {
  (void)state;
  assert_cuda(cudaFreeHost(pinned));
  assert_cuda(cudaStreamDestroy(one));
  assert_cuda(cudaStreamDestroy(other));
  return 0;
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_tensors_of_a_segment),
      cmocka_unit_test(test_segments_during_a_capture),
      cmocka_unit_test(test_expandable_segments),
      cmocka_unit_test(test_stream_ordered_tensors),
      cmocka_unit_test(test_stream_ordered_tensor_of_two_streams),
  };
  find_hook(NULL);
  return cmocka_run_group_tests(tests, start, stop);
}
