/* SPDX-License-Identifier: MIT
 * The kinds of memory that an application gets from NVIDIA's driver, wrapped: over the emulated
 * driver, which behaves as a real one was measured to, and over a strict one. */
#include "support/check.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "doubles/cuda/calls.h"
#include "doubles/cuda/door.h"
#include "memory/copy.h"
#include "memory/cuda/cuda.h"
#include "memory/ticket.h"
#include "support/copying.h"
#include "support/gpu.h"

#define MIB ((size_t)1 << 20)

static const struct cuda_driver *app; /* the application's calls */
static struct {
#define SLOT(slot, symbol, arguments) CUresult(*slot) arguments;
  CUDA_APPLICATION(SLOT)
#undef SLOT
} more;
static struct cuda_double *door;
static CUcontext context;

#define assert_cuda(call) assert_int_equal((call), CUDA_SUCCESS)

static void find(void *library, const char *name, void *slot) {
  void *found = dlsym(library, name);
  assert_non_null(found);
  memcpy(slot, &found, sizeof found);
}

static int load(void **state) {
  void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
  (void)state;
#define FIND(slot, symbol, arguments) find(library, #symbol, &more.slot);
  CUDA_APPLICATION(FIND)
#undef FIND
  app = cuda_driver_open();
  assert_cuda(app->init(0));
  return 0;
}

static int begin(void **state) {
  CUdevice device;
  (void)state;
  assert_works(providers_start());
  assert_cuda(app->device_get(&device, 0));
  assert_cuda(app->primary_retain(&context, device));
  assert_cuda(app->context_push(context));
  return 0;
}

static int end(void **state) {
  CUcontext was;
  (void)state;
  door->strict = 0;
  door->dmabuf = 1;
  assert_cuda(app->context_pop(&was));
  providers_stop();
  return 0;
}

static struct memory wrap(void *address, size_t length) {
  struct memory memory;
  assert_works(memory_wrap(address, length, &memory));
  return memory;
}

static uint64_t identity_of(void *address, size_t length) {
  struct memory memory = wrap(address, length);
  assert_int_equal(memory.place.kind, HAUL_CUDA);
  memory_free(&memory);
  assert_true(memory.identity != 0);
  return memory.identity;
}

static bool is_synchronous(const void *address) {
  unsigned set = 2;
  assert_cuda(more.pointer_attribute(&set, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, (uintptr_t)address));
  return set & 0xff;
}

static void check_copies(void *address, size_t length) {
  struct memory memory = wrap(address, length), bytes;
  assert_works(memory_alloc((struct haul_place){HAUL_HOST, 0}, length, 0, &bytes));
  pattern_fill(bytes.view, length, length);
  assert_works(copy_wait(&memory, 0, &bytes, 0, length, HAUL_FOREVER));
  memset(bytes.view, 0, length);
  assert_works(copy_wait(&bytes, 0, &memory, 0, length, HAUL_FOREVER));
  pattern_check(bytes.view, length, length);
  memory_free(&bytes);
  memory_free(&memory);
}

/* Registrations by address end with a mapping, even if its memory is mapped there again. */
static void a_new_mapping_is_other_memory(void **state) {
  const CUmemAllocationProp how = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                   .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
  CUmemGenericAllocationHandle handles[2];
  CUdeviceptr at;
  (void)state;
  assert_cuda(app->reserve(&at, GPU_MAPPING, 0, 0, 0));
  void *address = (void *)(uintptr_t)at;
  for (unsigned i = 0; i < 2; i++)
    assert_cuda(app->create(&handles[i], GPU_MAPPING, &how, 0));
  for (unsigned round = 0; round < 4; round++) {
    bool strict = round >= 2; /* then a mapping has no number, but its memory has */
    door->strict = strict;
    assert_cuda(app->map(at, GPU_MAPPING, 0, handles[0], 0));
    uint64_t before = identity_of(address, GPU_MAPPING);
    assert_true(identity_of(address, MIB) == before);
    assert_cuda(app->unmap(at, GPU_MAPPING));
    assert_cuda(app->map(at, GPU_MAPPING, 0, handles[strict || round % 2], 0));
    assert_true(identity_of(address, GPU_MAPPING) != before);
    assert_cuda(app->unmap(at, GPU_MAPPING));
  }
  for (unsigned i = 0; i < 2; i++)
    assert_cuda(app->release(handles[i]));
  assert_cuda(app->unreserve(at, GPU_MAPPING));
}

static void memory_of_several_mappings_is_one_region(void **state) {
  const size_t length = 3 * GPU_MAPPING;
  (void)state;
  char *at = gpu_alloc_mapped(length);
  check_copies(at + 5, length - 5);
  struct memory memory = wrap(at, length);
  uint64_t offset;
  int fd;
  assert_false(is_synchronous(at)); /* the driver refuses it */
  door->dmabuf = 2;
  providers_stop(); /* the next look finds dma-bufs */
  memory_free(&memory);
  assert_works(providers_start());
  for (unsigned strict = 0; strict < 2; strict++) {
    memory = wrap(at + 1, length - 1);
    door->strict = strict;
    assert_int_equal(memory_dmabuf(&memory, &fd, &offset), strict ? HAUL_ENOTSUP : 0);
    if (!strict) {
      assert_int_equal(offset, 1);
      assert_int_equal(lseek(fd, 0, SEEK_END), length);
      close(fd);
    }
    memory_free(&memory);
  }
  gpu_free(at);
}

static void memory_of_a_pool_is_wrapped_like_cudaMallocs(void **state) {
  (void)state;
  char *at = gpu_alloc_of_pool(5 * MIB), *small = gpu_alloc_of_pool(1000);
  char *next = gpu_alloc_of_pool(1000); /* in the same page */
  struct memory memory;
  check_copies(at + MIB, 4 * MIB);
  assert_true(is_synchronous(at));
  assert_fails(HAUL_EINVAL, memory_wrap(at + MIB, 4 * MIB + 1, &memory));
  assert_fails(HAUL_EINVAL, memory_wrap(small, 1001, &memory));
  uint64_t before = identity_of(next, 1000);
  gpu_free(next);
  char *again = gpu_alloc_of_pool(1000);
  assert_ptr_equal(again, next);
  assert_true(identity_of(again, 1000) != before);
  gpu_free(again);
  gpu_free(small);
  gpu_free(at);
}

/* It is the host's for haul, and the driver copies it without a bounce buffer. */
static void managed_memory_is_host_memory(void **state) {
  CUdeviceptr at;
  (void)state;
  assert_cuda(more.alloc_managed(&at, MIB, CU_MEM_ATTACH_GLOBAL));
  struct memory bytes = wrap((void *)(uintptr_t)at, MIB), memory;
  assert_int_equal(bytes.place.kind, HAUL_HOST);
  assert_works(memory_alloc((struct haul_place){HAUL_CUDA, 0}, MIB, 0, &memory));
  assert_false(provider_cuda.needs_cpu(&bytes));
  struct copy copy = {.to = &memory, .from = &bytes, .length = MIB};
  assert_works(provider_cuda.copy_start(&copy));
  while (provider_cuda.copy_poll(&copy) == 1)
    usleep(200);
  assert_int_equal(copy.status, 0);
  memory_free(&memory);
  memory_free(&bytes);
  assert_cuda(app->free(at));
}

static void only_memory_of_cudaMalloc_has_an_ipc_handle(void **state) {
  void *(*const kinds[])(size_t length) = {gpu_alloc, gpu_alloc_of_pool, gpu_alloc_mapped};
  (void)state;
  for (size_t i = 0; i < COUNT(kinds); i++) {
    void *at = kinds[i](3 * MIB);
    struct memory memory = wrap(at, 3 * MIB);
    struct ticket ticket;
    uint8_t token[IPC_TOKEN];
    int code = memory_ipc_export(&memory, &ticket, token);
    assert_int_equal(code, i == 0 ? 0 : HAUL_ENOTSUP);
    memory_free(&memory);
    gpu_free(at);
  }
}

int main(void) {
#define TEST(test) cmocka_unit_test_setup_teardown(test, begin, end)
  const struct CMUnitTest tests[] = {
      TEST(a_new_mapping_is_other_memory),
      TEST(memory_of_several_mappings_is_one_region),
      TEST(memory_of_a_pool_is_wrapped_like_cudaMallocs),
      TEST(managed_memory_is_host_memory),
      TEST(only_memory_of_cudaMalloc_has_an_ipc_handle),
  };
  if (!gpu_is_there())
    return 77;
  door = gpu_double();
  if (!door) {
    printf("skipped all: the GPU is no mock\n");
    return 77;
  }
  return cmocka_run_group_tests_name("wrapped memory of a GPU", tests, load, NULL);
}
