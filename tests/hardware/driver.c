/* SPDX-License-Identifier: MIT
 * What NVIDIA's driver does beyond its documentation, as it was measured with driver 580.159.04
 * (CUDA 13.0) on an H200 (docs/drivers.md). Runs with the mocked driver, which copies it, and on a
 * GPU. */
#include "support/check.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "doubles/cuda/calls.h"
#include "doubles/cuda/door.h"
#include "memory/cuda/driver.h"

#define MIB      ((size_t)1 << 20)
#define GRAIN    (2 * MIB)
#define RESERVED (8 * GRAIN)
#define MAPPING  (2 * GRAIN)
#define PAGE     ((size_t)4096)

static const struct cuda_driver *driver;
static struct {
#define SLOT(slot, symbol, arguments) CUresult(*slot) arguments;
  CUDA_APPLICATION(SLOT)
#undef SLOT
} more;
static struct cuda_double *door; /* NULL: a real driver */
static CUcontext context;
static CUstream stream;

#define assert_result(wanted, call) assert_int_equal((call), (wanted))
#define assert_cuda(call)           assert_result(CUDA_SUCCESS, call)

static void find(void *library, const char *name, void *slot) {
  void *found = dlsym(library, name);
  if (!found)
    fail_msg("the driver lacks %s", name);
  memcpy(slot, &found, sizeof found);
}

static int open_context(void **state) {
  void *library = dlopen("libcuda.so.1", RTLD_NOW);
  CUdevice device;
  (void)state;
#define FIND(slot, symbol, arguments) find(library, #symbol, &more.slot);
  CUDA_APPLICATION(FIND)
#undef FIND
  door = dlsym(library, "cuda_double");
  if (door)
    door->dmabuf = 2;
  assert_cuda(driver->device_get(&device, 0));
  assert_cuda(driver->primary_retain(&context, device));
  assert_cuda(driver->context_push(context));
  assert_cuda(driver->stream_create(&stream, CU_STREAM_NON_BLOCKING));
  return 0;
}

/* Attributes of an address */

#define NO_ADDRESS UINT64_MAX

/* NO_ADDRESS: the driver knows no memory there. */
static uint64_t ask(int attribute, CUdeviceptr at) {
  uint64_t value = 0;
  CUresult result = more.pointer_attribute(&value, attribute, at);
  assert_true(result == CUDA_SUCCESS || result == CUDA_ERROR_INVALID_VALUE);
  return result == CUDA_SUCCESS ? value : NO_ADDRESS;
}

static uint64_t id_of(CUdeviceptr at) {
  return ask(CU_POINTER_ATTRIBUTE_BUFFER_ID, at);
}

static CUresult set_synchronous(CUdeviceptr at) {
  unsigned on = 1;
  return driver->set_pointer_attribute(&on, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, at);
}

static CUresult get_ipc(CUdeviceptr at) {
  CUipcMemHandle handle;
  return driver->ipc_get(&handle, at);
}

struct known {
  unsigned type, managed, plain, rdma;
  CUresult synchronous, ipc;
};

static void assert_known(CUdeviceptr at, const struct known *known) {
  assert_int_equal(ask(CU_POINTER_ATTRIBUTE_MEMORY_TYPE, at), known->type);
  assert_int_equal(ask(CU_POINTER_ATTRIBUTE_IS_MANAGED, at) & 0xff, known->managed);
  assert_int_equal(ask(CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, at) & 0xff, known->plain);
  assert_int_equal(ask(CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE, at) & 0xff, known->rdma);
  assert_int_equal(ask(CU_POINTER_ATTRIBUTE_MAPPED, at) & 0xff, 1);
  assert_result(known->synchronous, set_synchronous(at));
  if (known->synchronous == CUDA_SUCCESS)
    assert_int_equal(ask(CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, at) & 0xff, 1);
  assert_result(known->ipc, get_ipc(at));
}

/* The range that the attributes tell, and the one that cuMemGetAddressRange does. */
static void assert_ranges(CUdeviceptr at, CUdeviceptr whole, size_t bytes, CUdeviceptr part,
                          size_t part_bytes) {
  CUdeviceptr start;
  size_t size;
  assert_int_equal(ask(CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, at), whole);
  assert_int_equal(ask(CU_POINTER_ATTRIBUTE_RANGE_SIZE, at), bytes);
  assert_cuda(more.address_range(&start, &size, at));
  assert_int_equal(start, part);
  assert_int_equal(size, part_bytes);
}

static void assert_unknown(CUdeviceptr at) {
  CUdeviceptr start;
  size_t size;
  assert_true(ask(CU_POINTER_ATTRIBUTE_MEMORY_TYPE, at) == NO_ADDRESS);
  assert_true(ask(CU_POINTER_ATTRIBUTE_RANGE_SIZE, at) == NO_ADDRESS);
  assert_result(CUDA_ERROR_NOT_FOUND, more.address_range(&start, &size, at));
  assert_result(CUDA_ERROR_INVALID_VALUE, set_synchronous(at));
  assert_result(CUDA_ERROR_INVALID_VALUE, get_ipc(at));
}

static CUdeviceptr take(size_t bytes) {
  CUdeviceptr at;
  assert_cuda(driver->alloc(&at, bytes));
  return at;
}

static void plain_memory_is_known_to_its_last_byte(void **state) {
  const struct known known = {CU_MEMORYTYPE_DEVICE, 0, 1, 1, CUDA_SUCCESS, CUDA_SUCCESS};
  const size_t sizes[] = {1000, 3 * MIB + 5, 66 * MIB};
  (void)state;
  for (size_t i = 0; i < COUNT(sizes); i++) {
    CUdeviceptr at = take(sizes[i]);
    assert_int_equal(ask(CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, at) & 0xff, 0);
    assert_known(at + sizes[i] - 1, &known);
    assert_ranges(at + 999, at, sizes[i], at, sizes[i]);
    assert_cuda(driver->free(at));
  }
}

static size_t used(void) {
  size_t left, all;
  assert_cuda(more.memory_info(&left, &all));
  return all - left;
}

static void plain_memory_takes_whole_pages_or_shares_one(void **state) {
  CUdeviceptr at[5];
  (void)state;
  size_t before = used();
  at[0] = take(66 * MIB);
  assert_int_equal(used() - before, 66 * MIB);
  at[1] = take(3 * MIB + 5);
  assert_int_equal(used() - before, 70 * MIB);
  at[2] = take(1000);
  before = used();
  at[3] = take(1000);
  at[4] = take(1000);
  assert_int_equal(used(), before);
  assert_int_equal(at[3] / GRAIN, at[4] / GRAIN);
  assert_int_equal(at[4] - at[3], 1024);
  for (size_t i = 0; i < COUNT(at); i++)
    assert_cuda(driver->free(at[i]));
}

/* Reserved addresses */

static CUdeviceptr reserve(void) {
  CUdeviceptr at;
  assert_cuda(driver->reserve(&at, RESERVED, 0, 0, 0));
  return at;
}

static CUmemGenericAllocationHandle create(bool rdma) {
  const CUmemAllocationProp how = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                   .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                                   .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0},
                                   .allocFlags = {.gpuDirectRDMACapable = rdma}};
  CUmemGenericAllocationHandle handle;
  assert_cuda(driver->create(&handle, MAPPING, &how, 0));
  return handle;
}

static void map(CUdeviceptr at, CUmemGenericAllocationHandle handle) {
  const CUmemAccessDesc access = {{CU_MEM_LOCATION_TYPE_DEVICE, 0},
                                  CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  assert_cuda(driver->map(at, MAPPING, 0, handle, 0));
  assert_cuda(driver->set_access(at, MAPPING, &access, 1));
}

/* Two mappings side by side, of memory that differs, in the middle of a reservation. */
static struct {
  CUdeviceptr reservation, at, end;
  CUmemGenericAllocationHandle handles[2];
} pair;

static void map_pair(void) {
  pair.reservation = reserve();
  pair.at = pair.reservation + MAPPING;
  pair.end = pair.at + 2 * MAPPING;
  for (unsigned i = 0; i < 2; i++)
    map(pair.at + i * MAPPING, pair.handles[i] = create(i == 0));
}

static void unmap_pair(void) {
  for (unsigned i = 0; i < 2; i++) {
    assert_cuda(driver->unmap(pair.at + i * MAPPING, MAPPING));
    assert_cuda(driver->release(pair.handles[i]));
  }
  assert_cuda(driver->unreserve(pair.reservation, RESERVED));
}

static void a_mapping_tells_its_reservation_and_itself(void **state) {
  (void)state;
  map_pair();
  for (unsigned i = 0; i < 2; i++) {
    const struct known known = {CU_MEMORYTYPE_DEVICE,    0, 0, i == 0, CUDA_ERROR_NOT_SUPPORTED,
                                CUDA_ERROR_INVALID_VALUE};
    CUdeviceptr at = pair.at + i * MAPPING;
    assert_known(at + GRAIN, &known);
    assert_ranges(at + GRAIN, pair.reservation, RESERVED, at, MAPPING);
    assert_int_equal(ask(CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES, at),
                     CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
  }
  unmap_pair();
}

/* Drivers that lack them reject all of a call's attributes. */
static void a_mapping_has_attributes_of_its_own(void **state) {
  (void)state;
  map_pair();
  CUdeviceptr at = pair.at + MAPPING;
  uint64_t start = ask(CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR, at + GRAIN);
  uint64_t bytes = ask(CU_POINTER_ATTRIBUTE_MAPPING_SIZE, at + GRAIN);
  if (start == NO_ADDRESS)
    print_message("skipped: the driver lacks CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR\n");
  else
    assert_true(start == at && bytes == MAPPING);
  unmap_pair();
}

static void addresses_without_memory_have_only_a_reservation(void **state) {
  int attributes[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_RANGE_SIZE};
  unsigned type = 99;
  size_t bytes = 99;
  void *values[] = {&type, &bytes};
  (void)state;
  map_pair();
  const CUdeviceptr holes[] = {pair.reservation, pair.end};
  for (size_t i = 0; i < COUNT(holes); i++) {
    assert_unknown(holes[i]);
    assert_cuda(driver->pointer_attributes(2, attributes, values, holes[i]));
    assert_int_equal(type, 0);
    assert_int_equal(bytes, RESERVED);
  }
  unmap_pair();
  static char host[8];
  assert_unknown((uintptr_t)host);
  type = 99;
  assert_cuda(driver->pointer_attributes(2, attributes, values, (uintptr_t)host));
  assert_int_equal(type, 0);
  if (bytes != 0) /* as an H200 with driver 580 did; haul looks at the type first */
    print_message("the size of unknown memory: %zu\n", bytes);
}

static void each_mapping_and_each_allocation_has_another_id(void **state) {
  (void)state;
  map_pair();
  uint64_t first = id_of(pair.at), other = id_of(pair.at + MAPPING);
  assert_true(first != other);
  assert_true(id_of(pair.at + GRAIN) == first);
  assert_cuda(driver->unmap(pair.at, MAPPING));
  map(pair.at, pair.handles[0]);
  assert_true(id_of(pair.at) != first);
  assert_true(id_of(pair.at + MAPPING) == other);
  unmap_pair();
  CUdeviceptr at = take(10 * MIB);
  first = id_of(at);
  assert_true(id_of(at + MIB) == first);
  assert_cuda(driver->free(at));
  CUdeviceptr again = take(10 * MIB);
  assert_true(id_of(again) != first);
  assert_cuda(driver->free(again));
}

/* As PyTorch's expandable segments have them. */
static void a_copy_may_cross_mappings(void **state) {
  enum { LENGTH = 3 * 1024 * 1024 };
  static char bytes[LENGTH];
  (void)state;
  map_pair();
  CUdeviceptr at = pair.at + MAPPING - MIB - 3;
  pattern_fill(bytes, LENGTH, 7);
  assert_cuda(driver->copy_in(at, bytes, LENGTH, stream));
  memset(bytes, 0, LENGTH);
  assert_cuda(driver->copy_out(bytes, at, LENGTH, stream));
  assert_cuda(driver->stream_wait(stream));
  pattern_check(bytes, LENGTH, 7);
  unmap_pair();
}

/* Pools, host memory, managed memory */

static void memory_of_a_pool_is_known_like_an_allocation(void **state) {
  const struct known known = {CU_MEMORYTYPE_DEVICE,    0, 0, 0, CUDA_SUCCESS,
                              CUDA_ERROR_INVALID_VALUE};
  CUdeviceptr at;
  (void)state;
  assert_cuda(more.alloc_async(&at, 5 * MIB, stream));
  assert_cuda(driver->stream_wait(stream));
  assert_known(at + MIB, &known);
  assert_ranges(at + MIB, at, 5 * MIB, at, 5 * MIB);
  assert_cuda(more.free_async(at, stream));
}

static void host_memory_is_known_from_its_registration_on(void **state) {
  const struct known known = {CU_MEMORYTYPE_HOST, 0, 0, 0, CUDA_SUCCESS, CUDA_ERROR_INVALID_VALUE};
  void *pinned, *own = NULL;
  (void)state;
  assert_cuda(driver->host_alloc(&pinned, 8 * MIB, CU_MEMHOSTALLOC_PORTABLE));
  assert_known((uintptr_t)pinned + MIB, &known);
  assert_ranges((uintptr_t)pinned + MIB, (uintptr_t)pinned, 8 * MIB, (uintptr_t)pinned, 8 * MIB);
  assert_cuda(driver->host_free(pinned));
  assert_int_equal(posix_memalign(&own, PAGE, MIB), 0);
  assert_unknown((uintptr_t)own);
  assert_cuda(driver->host_register(own, MIB, CU_MEMHOSTREGISTER_PORTABLE));
  assert_known((uintptr_t)own, &known);
  assert_ranges((uintptr_t)own + 9, (uintptr_t)own, MIB, (uintptr_t)own, MIB);
  assert_cuda(driver->host_unregister(own));
  assert_unknown((uintptr_t)own);
  free(own);
}

static void managed_memory_is_a_devices_and_the_hosts(void **state) {
  const struct known known = {CU_MEMORYTYPE_DEVICE,    1, 0, 0, CUDA_SUCCESS,
                              CUDA_ERROR_INVALID_VALUE};
  CUdeviceptr at;
  (void)state;
  assert_cuda(more.alloc_managed(&at, 4 * MIB, CU_MEM_ATTACH_GLOBAL));
  *(volatile char *)(uintptr_t)at = 1;
  assert_known(at, &known);
  assert_ranges(at + 1, at, 4 * MIB, at, 4 * MIB);
  assert_cuda(driver->free(at));
}

/* dma-bufs */

static CUresult export(CUdeviceptr at, size_t bytes, unsigned long long flags, size_t *size) {
  int fd = -1;
  CUresult result =
      driver->range_handle(&fd, at, bytes, CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, flags);
  *size = fd >= 0 ? (size_t)lseek(fd, 0, SEEK_END) : 0;
  if (fd >= 0)
    close(fd);
  return result;
}

static unsigned wrong; /* facts that do not hold */

static void compare_dmabuf(const char *range, CUdeviceptr at, size_t bytes, CUresult wanted) {
  size_t size, other;
  CUresult result = export(at, bytes, 0, &size);
  CUresult by_pcie = export(at, bytes, CU_MEM_RANGE_FLAG_DMA_BUF_MAPPING_TYPE_PCIE, &other);
  bool pcie_fits = wanted == CUDA_SUCCESS /* only machines with C2C links have it */
                       ? by_pcie == CUDA_ERROR_NOT_SUPPORTED || by_pcie == CUDA_SUCCESS
                       : by_pcie == wanted;
  if (result == wanted && pcie_fits && size == (wanted == CUDA_SUCCESS ? bytes : 0))
    return;
  wrong++;
  print_message("%s, 0x%llx: %d, %zu bytes; by PCIe %d; not %d\n", range, at, (int)result, size,
                (int)by_pcie, (int)wanted);
}

/* All are tried, as a driver may be at hand only once. */
#define compare(at, bytes, wanted) compare_dmabuf(#at ", " #bytes, at, bytes, wanted)

static void assert_all_held(void) {
  unsigned failures = wrong;
  wrong = 0;
  assert_int_equal(failures, 0);
}

static void dmabufs_are_of_whole_pages_with_memory(void **state) {
  (void)state;
  CUdeviceptr at = take(3 * MIB + 5), small = take(1000), pool, managed;
  compare(at, 2 * MIB, CUDA_SUCCESS);
  compare(at + PAGE, PAGE, CUDA_SUCCESS);
  compare(at, 3 * MIB + PAGE, CUDA_SUCCESS);
  compare(at, 4 * MIB, CUDA_SUCCESS);
  compare(at, 3 * MIB + 5, CUDA_ERROR_INVALID_VALUE);
  compare(at + 1024, PAGE, CUDA_ERROR_INVALID_VALUE);
  compare(small / PAGE * PAGE, PAGE, CUDA_SUCCESS);
  compare(small / GRAIN * GRAIN, GRAIN, CUDA_SUCCESS);
  map_pair();
  compare(pair.at, MAPPING, CUDA_SUCCESS);
  compare(pair.at + MAPPING, MAPPING, CUDA_SUCCESS);
  compare(pair.at, 2 * MAPPING, CUDA_SUCCESS);
  compare(pair.at + 65536, 65536, CUDA_SUCCESS);
  compare(pair.at + MAPPING, 2 * MAPPING, CUDA_ERROR_INVALID_VALUE);
  unmap_pair();
  assert_cuda(more.alloc_async(&pool, 5 * MIB, stream));
  assert_cuda(driver->stream_wait(stream));
  compare(pool, 4 * MIB, CUDA_SUCCESS);
  compare(pool + 65536, 65536, CUDA_SUCCESS);
  assert_cuda(more.free_async(pool, stream));
  assert_cuda(more.alloc_managed(&managed, 4 * MIB, CU_MEM_ATTACH_GLOBAL));
  compare(managed, 2 * MIB, CUDA_ERROR_INVALID_VALUE);
  assert_cuda(driver->free(managed));
  assert_cuda(driver->free(at));
  assert_cuda(driver->free(small));
  assert_all_held();
}

static void imported_memory_has_dmabufs(void **state) {
  CUmemGenericAllocationHandle made = create(false), handle;
  int fd;
  (void)state;
  assert_cuda(driver->export_handle(&fd, made, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
  assert_cuda(driver->import_handle(&handle, (void *)(intptr_t)fd,
                                    CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
  close(fd);
  CUdeviceptr at = reserve();
  map(at, handle);
  assert_int_equal(ask(CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES, at), 0);
  compare(at, MAPPING, CUDA_SUCCESS);
  assert_cuda(driver->unmap(at, MAPPING));
  assert_cuda(driver->unreserve(at, RESERVED));
  assert_cuda(driver->release(handle));
  assert_cuda(driver->release(made));
  assert_all_held();
}

/* Implicit synchronization: calls that wait for all that runs on the GPU, here a host function */

static CUdeviceptr one;
static void *pages;

static void do_alloc(void) {
  one = take(8 * MIB);
}
static void do_free(void) {
  assert_cuda(driver->free(one));
}
static void do_host_alloc(void) {
  assert_cuda(driver->host_alloc(&pages, 8 * MIB, 0));
}
static void do_host_free(void) {
  assert_cuda(driver->host_free(pages));
}
static void do_register(void) {
  assert_int_equal(posix_memalign(&pages, PAGE, MIB), 0);
  assert_cuda(driver->host_register(pages, MIB, 0));
}
static void do_unregister(void) {
  assert_cuda(driver->host_unregister(pages));
  free(pages);
}
static void do_map(void) {
  map_pair();
}
static void do_unmap(void) {
  unmap_pair();
}
static void do_async(void) {
  assert_cuda(more.alloc_async(&one, 8 * MIB, stream));
  assert_cuda(driver->fill(one, 0, MIB, stream));
  assert_cuda(driver->stream_wait(stream));
  assert_cuda(more.free_async(one, stream));
}
static void do_stream(void) {
  CUstream made;
  CUevent event;
  assert_cuda(driver->stream_create(&made, CU_STREAM_NON_BLOCKING));
  assert_cuda(driver->event_create(&event, CU_EVENT_DISABLE_TIMING));
  assert_cuda(driver->event_destroy(event));
  assert_cuda(driver->stream_destroy(made));
}

#define CALL(name, waits, may_wait)                                                                \
  { #name, do_##name, waits, may_wait }

static const struct {
  const char *name;
  void (*call)(void);
  bool waits, may_wait; /* as measured; by the documentation */
} calls[] = {CALL(register, false, true),   CALL(unregister, true, true),
             CALL(alloc, false, true),      CALL(free, true, true),
             CALL(host_alloc, false, true), CALL(host_free, true, true),
             CALL(map, false, false),       CALL(unmap, false, false),
             CALL(async, false, false),     CALL(stream, false, false)};

static _Atomic bool began, returned, finish;

static void wait_for_finish(void *unused) {
  (void)unused;
  began = true;
  while (!finish)
    usleep(200);
}

static void *run(void *argument) {
  const size_t *number = argument;
  assert_cuda(driver->context_push(context));
  calls[*number].call();
  returned = true;
  CUcontext was;
  assert_cuda(driver->context_pop(&was));
  return NULL;
}

static void compare_call(size_t number, bool waits, CUstream busy) {
  pthread_t thread;
  began = returned = finish = false;
  assert_cuda(driver->launch_host(busy, wait_for_finish, NULL));
  while (!began)
    usleep(100);
  assert_int_equal(pthread_create(&thread, NULL, run, &number), 0);
  for (unsigned i = 0; i < (waits ? 20 : 5000) && !returned; i++)
    usleep(1000);
  if (returned == waits) {
    wrong++;
    print_message("%s %s for a host function\n", calls[number].name,
                  waits ? "does not wait" : "waits");
  }
  finish = true;
  pthread_join(thread, NULL);
  assert_cuda(driver->stream_wait(busy));
}

static void calls_that_end_memory_wait_for_host_functions(void **state) {
  CUstream busy;
  (void)state;
  assert_cuda(driver->stream_create(&busy, CU_STREAM_NON_BLOCKING));
  for (size_t i = 0; i < COUNT(calls); i++)
    compare_call(i, calls[i].waits, busy);
  for (size_t i = 0; door && i < COUNT(calls); i++) {
    door->strict = 1;
    compare_call(i, calls[i].may_wait, busy);
    door->strict = 0;
  }
  assert_cuda(driver->stream_destroy(busy));
  assert_all_held();
}

/* A strict mock: what the documentation allows a driver to refuse, or leaves open */

static void a_strict_driver_refuses_more_dmabufs(void **state) {
  (void)state;
  if (!door)
    skip();
  CUdeviceptr at = take(3 * MIB + 5);
  map_pair();
  door->strict = 1;
  compare(at, 3 * MIB, CUDA_SUCCESS);
  compare(at, 4 * MIB, CUDA_ERROR_INVALID_VALUE);
  compare(pair.at, MAPPING, CUDA_SUCCESS);
  compare(pair.at, 2 * MAPPING, CUDA_ERROR_INVALID_VALUE); /* with and without RDMA */
  assert_int_equal(id_of(pair.at), id_of(pair.at + MAPPING));
  door->strict = 0;
  unmap_pair();
  assert_cuda(driver->free(at));
  assert_all_held();
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(plain_memory_is_known_to_its_last_byte),
      cmocka_unit_test(plain_memory_takes_whole_pages_or_shares_one),
      cmocka_unit_test(a_mapping_tells_its_reservation_and_itself),
      cmocka_unit_test(a_mapping_has_attributes_of_its_own),
      cmocka_unit_test(addresses_without_memory_have_only_a_reservation),
      cmocka_unit_test(each_mapping_and_each_allocation_has_another_id),
      cmocka_unit_test(a_copy_may_cross_mappings),
      cmocka_unit_test(memory_of_a_pool_is_known_like_an_allocation),
      cmocka_unit_test(host_memory_is_known_from_its_registration_on),
      cmocka_unit_test(managed_memory_is_a_devices_and_the_hosts),
      cmocka_unit_test(dmabufs_are_of_whole_pages_with_memory),
      cmocka_unit_test(imported_memory_has_dmabufs),
      cmocka_unit_test(calls_that_end_memory_wait_for_host_functions),
      cmocka_unit_test(a_strict_driver_refuses_more_dmabufs),
  };
  int version = 0;
  driver = cuda_driver_open();
  if (!driver || driver->init(0) != CUDA_SUCCESS) {
    printf("skipped all: no GPU; tests/doubles/cuda/with runs this program with one\n");
    return 77;
  }
  driver->driver_version(&version);
  if (version < 13000) {
    printf("skipped all: the driver is for CUDA %d.%d, and 13.0 was measured\n", version / 1000,
           version % 1000 / 10);
    return 77;
  }
  return cmocka_run_group_tests_name("NVIDIA's driver", tests, open_context, NULL);
}
