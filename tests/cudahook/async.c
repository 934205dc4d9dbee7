/* SPDX-License-Identifier: MIT
 * Stream order: memory of cudaFreeAsync is reused only after the work in its stream, and without a
 * wait; cudaFree waits; the last error and captures of the application do not change; frees that an
 * event cannot mark wait. */
#include <pthread.h>
#include <string.h>
#include <time.h>

#include "hooked.h"

static cudaStream_t stream;
static char *pinned;
static struct cuda_double *door;

/* No copy proceeds until `let_go`. Only the mock supports this. */
static void hold(void *to) {
  door->hold = 1;
  assert_cuda(cudaMemcpyAsync(to, pinned, MIB, cudaMemcpyHostToDevice, stream));
}

static void let_go(void) {
  door->hold = 0;
  assert_cuda(cudaStreamSynchronize(stream));
}

/* The hook polls its pending frees in each call. */
static void poll_hook(void) {
  void *address;
  assert_cuda(cudaMalloc(&address, MIB));
  assert_cuda(cudaFree(address));
}

static void test_not_before_its_stream(void **state) {
  (void)state;
  void *address, *others[8], *more[9];
  if (!door || !hook.find) {
    skip();
    return;
  }
  unsigned events = runtime_door->events;
  assert_cuda(cudaMallocAsync(&address, MIB, stream));
  check_served(address);
  hold(address);
  assert_cuda(cudaFreeAsync(address, stream)); /* does not wait */
  for (size_t i = 0; i < COUNT(others); i++) {
    assert_cuda(cudaMallocAsync(&others[i], MIB, stream));
    check_served(others[i]);
    assert_ptr_not_equal(others[i], address);
  }
  check_passed_on(address); /* freed, so not in the table */
  assert_int_equal(runtime_door->events, events + 1);
  assert_int_equal(cudaGetLastError(), cudaSuccess); /* the query's "not ready" is hidden */
  let_go();
  for (size_t i = 0; i < COUNT(others); i++)
    assert_cuda(cudaFree(others[i]));
  assert_int_equal(runtime_door->events, events);
  bool again = false;
  for (size_t i = 0; i < COUNT(more); i++) {
    assert_cuda(cudaMalloc(&more[i], MIB));
    again |= more[i] == address;
  }
  assert_true(again);
  for (size_t i = 0; i < COUNT(more); i++)
    assert_cuda(cudaFree(more[i]));
}

/* Also one that the application has not read yet. */
static void test_last_error(void **state) {
  (void)state;
  void *address;
  if (!door || !hook.find) {
    skip();
    return;
  }
  assert_cuda(cudaMallocAsync(&address, MIB, stream));
  hold(address);
  assert_cuda(cudaFreeAsync(address, stream));
  assert_int_equal(cudaSetDevice(99), cudaErrorInvalidDevice);
  assert_cuda(cudaMallocAsync(&address, MIB, stream));
  assert_int_equal(cudaPeekAtLastError(), cudaErrorInvalidDevice);
  assert_int_equal(cudaGetLastError(), cudaErrorInvalidDevice);
  let_go();
  assert_cuda(cudaFree(address));
}

static void *let_go_soon(void *unused) {
  (void)unused;
  nanosleep(&(struct timespec){0, 50000000}, NULL);
  door->hold = 0;
  return NULL;
}

/* A copy in flight ends before the memory is reused. */
static void test_free_waits(void **state) {
  (void)state;
  void *address;
  pthread_t helper;
  if (!door) {
    skip();
    return;
  }
  assert_cuda(cudaMalloc(&address, MIB));
  hold(address);
  assert_int_equal(pthread_create(&helper, NULL, let_go_soon, NULL), 0);
  assert_cuda(cudaFree(address));
  assert_int_equal(door->hold, 0);
  pthread_join(helper, NULL);
}

static void test_too_many_pending(void **state) {
  (void)state;
  enum { MANY = 600 };
  static void *all[MANY];
  pthread_t helper;
  if (!door || !hook.find) {
    skip();
    return;
  }
  unsigned events = runtime_door->events;
  for (size_t i = 0; i < MANY; i++)
    assert_cuda(cudaMallocAsync(&all[i], MIB, stream));
  hold(all[0]);
  assert_int_equal(pthread_create(&helper, NULL, let_go_soon, NULL), 0);
  for (size_t i = 0; i < MANY; i++) {
    assert_cuda(cudaFreeAsync(all[i], stream));
    assert_true(runtime_door->events <= events + 257);
  }
  pthread_join(helper, NULL);
  let_go();
  poll_hook();
  assert_int_equal(runtime_door->events, events);
}

/* Without memory the hook waits for pending frees. */
static void test_no_memory(void **state) {
  (void)state;
  void *address, *next;
  pthread_t helper;
  if (!door || !hook.find) {
    skip();
    return;
  }
  unsigned long long memory = door->memory;
  door->memory = 128 * MIB;
  assert_cuda(cudaMallocAsync(&address, 100 * MIB, stream));
  hold(address);
  assert_cuda(cudaFreeAsync(address, stream));
  assert_int_equal(pthread_create(&helper, NULL, let_go_soon, NULL), 0);
  assert_cuda(cudaMallocAsync(&next, 100 * MIB, stream));
  check_served(next);
  pthread_join(helper, NULL);
  assert_cuda(cudaFree(next));
  door->memory = memory;
}

/* An event and its stream must be of one device. */
static void test_stream_of_another_device(void **state) {
  (void)state;
  void *address;
  int count = 0;
  assert_cuda(cudaGetDeviceCount(&count));
  if (count < 2)
    skip();
  assert_cuda(cudaMallocAsync(&address, MIB, stream));
  assert_cuda(cudaSetDevice(1));
  if (hook.find)
    assert_cuda(cudaFreeAsync(address, stream));
  assert_int_equal(cudaGetLastError(), cudaSuccess);
  assert_cuda(cudaSetDevice(0));
  if (!hook.find)
    assert_cuda(cudaFreeAsync(address, stream));
}

static void test_default_stream_of_a_thread(void **state) {
  (void)state;
  void *address;
  assert_cuda(cudaMallocAsync_ptsz(&address, 2 * MIB, NULL));
  check_served(address);
  put_bytes(address, 2 * MIB, 11);
  check_bytes(address, 2 * MIB, 11);
  assert_cuda(cudaFreeAsync_ptsz(address, NULL));
  assert_cuda(cudaStreamSynchronize(cudaStreamPerThread));
  poll_hook();
}

static void test_pool_of_the_application(void **state) {
  (void)state;
  void *address;
  cudaMemPool_t pool;
  assert_cuda(cudaDeviceGetDefaultMemPool(&pool, 0));
  assert_cuda(cudaMallocFromPoolAsync(&address, 2 * MIB, pool, stream));
  check_passed_on(address);
  assert_cuda(cudaFreeAsync(address, stream));
}

/* Allocations and frees in a captured stream are graph nodes, which only the runtime can make. */
static void test_capture(void **state) {
  (void)state;
  void *ours, *theirs;
  cudaGraph_t graph;
  if (!runtime_door)
    skip();
  assert_cuda(cudaMalloc(&ours, MIB));
  unsigned captured = runtime_door->captured;
  assert_cuda(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
  assert_cuda(cudaMallocAsync(&theirs, 2 * MIB, stream));
  check_passed_on(theirs);
  assert_int_equal(runtime_door->captured, captured + 1);
  if (hook.find)
    assert_int_equal(cudaFreeAsync(ours, stream), cudaErrorStreamCaptureUnsupported);
  assert_cuda(cudaStreamEndCapture(stream, &graph));
  assert_cuda(cudaGraphDestroy(graph));
  check_served(ours);
  assert_cuda(cudaFree(ours));
  assert_cuda(cudaFreeAsync(theirs, stream));
}

/* Work of the legacy stream would wait for the capture. A thread in mode "relaxed" may allocate
 * from the runtime. */
static void test_capture_of_a_blocking_stream(void **state) {
  (void)state;
  void *ours, *theirs;
  cudaStream_t blocking;
  cudaGraph_t graph;
  int mode = cudaStreamCaptureModeRelaxed;
  assert_cuda(cudaMalloc(&ours, MIB));
  assert_cuda(cudaStreamCreateWithFlags(&blocking, cudaStreamDefault));
  assert_cuda(cudaThreadExchangeStreamCaptureMode(&mode));
  assert_cuda(cudaStreamBeginCapture(blocking, cudaStreamCaptureModeRelaxed));
  assert_cuda(cudaMalloc(&theirs, MIB));
  check_passed_on(theirs);
  if (hook.find)
    assert_int_equal(cudaFree(ours), cudaErrorStreamCaptureUnsupported);
  assert_int_equal(cudaGetLastError(), cudaSuccess);
  assert_cuda(cudaStreamEndCapture(blocking, &graph));
  assert_cuda(cudaThreadExchangeStreamCaptureMode(&mode));
  assert_int_equal(mode, cudaStreamCaptureModeRelaxed);
  assert_cuda(cudaGraphDestroy(graph));
  assert_cuda(cudaStreamDestroy(blocking));
  assert_cuda(cudaFree(ours));
  assert_cuda(cudaFree(theirs));
}

/* The hook's event queries do not invalidate it. */
static void test_pending_frees_during_a_capture(void **state) {
  (void)state;
  void *first, *second;
  cudaStream_t captured;
  cudaGraph_t graph;
  if (!door || !hook.find) {
    skip();
    return;
  }
  unsigned events = runtime_door->events;
  assert_cuda(cudaStreamCreateWithFlags(&captured, cudaStreamNonBlocking));
  assert_cuda(cudaMallocAsync(&first, MIB, stream));
  assert_cuda(cudaMallocAsync(&second, MIB, stream));
  hold(first);
  assert_cuda(cudaStreamBeginCapture(captured, cudaStreamCaptureModeGlobal));
  assert_cuda(cudaFreeAsync(first, stream));
  assert_cuda(cudaFreeAsync(second, stream));
  door->hold = 0;
  while (runtime_door->events > events) {
    assert_cuda(cudaMallocAsync(&first, MIB, stream));
    assert_cuda(cudaFreeAsync(first, stream));
    nanosleep(&(struct timespec){0, 1000000}, NULL);
    if (runtime_door->events == events + 1)
      break; /* of this round */
  }
  assert_cuda(cudaStreamEndCapture(captured, &graph));
  assert_cuda(cudaGraphDestroy(graph));
  assert_cuda(cudaStreamDestroy(captured));
  let_go();
  poll_hook();
}

static int start(void **state) {
  (void)state;
  assert_cuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  assert_cuda(cudaMallocHost((void **)&pinned, MIB));
  memset(pinned, 1, MIB);
  door = driver_door();
  return 0;
}

static int stop(void **state) {
  (void)state;
  assert_cuda(cudaFreeHost(pinned));
  assert_cuda(cudaStreamDestroy(stream));
  return 0;
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_not_before_its_stream),
      cmocka_unit_test(test_last_error),
      cmocka_unit_test(test_free_waits),
      cmocka_unit_test(test_too_many_pending),
      cmocka_unit_test(test_no_memory),
      cmocka_unit_test(test_stream_of_another_device),
      cmocka_unit_test(test_default_stream_of_a_thread),
      cmocka_unit_test(test_pool_of_the_application),
      cmocka_unit_test(test_capture),
      cmocka_unit_test(test_capture_of_a_blocking_stream),
      cmocka_unit_test(test_pending_frees_during_a_capture),
  };
  find_hook(NULL);
  return cmocka_run_group_tests(tests, start, stop);
}
