/* SPDX-License-Identifier: MIT
 * GPU memory over the emulated driver: cases that the suite of all providers lacks. */
#include "support/check.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "core/sys.h"
#include "doubles/cuda/door.h"
#include "memory/copy.h"
#include "memory/cuda/cuda.h"
#include "memory/pages.h"
#include "memory/region.h"
#include "memory/staging.h"
#include "memory/ticket.h"
#include "support/child.h"
#include "support/copying.h"
#include "support/owner.h"
#include "support/seams.h"
#include "support/tree.h"

#define MIB ((size_t)1 << 20)

static const struct haul_place gpu0 = {HAUL_CUDA, 0}, gpu1 = {HAUL_CUDA, 1}, host = {HAUL_HOST, 0};

static struct cuda_double *door, *other_door;
/* The emulated driver, its old version, and one without cuStreamAddCallback. */
static char libraries[3][512];

/* The application's calls. */
static CUresult (*app_alloc)(CUdeviceptr *address, size_t bytes);
static CUresult (*app_free)(CUdeviceptr address);
static CUresult (*app_retain)(CUcontext *context, CUdevice device);
static CUresult (*app_release)(CUdevice device);
static CUresult (*app_reset)(CUdevice device);
static CUresult (*app_push)(CUcontext context);
static CUresult (*app_pop)(CUcontext *context);
static CUresult (*app_current)(CUcontext *context);
static CUresult (*app_pin)(void **address, size_t bytes, unsigned flags);
static CUresult (*app_unpin)(void *address);
static CUresult (*app_create)(CUmemGenericAllocationHandle *handle, size_t bytes,
                              const CUmemAllocationProp *properties, unsigned long long flags);
static CUresult (*app_drop)(CUmemGenericAllocationHandle handle);
static CUresult (*app_reserve)(CUdeviceptr *address, size_t bytes, size_t alignment,
                               CUdeviceptr wish, unsigned long long flags);
static CUresult (*app_unreserve)(CUdeviceptr address, size_t bytes);
static CUresult (*app_map)(CUdeviceptr address, size_t bytes, size_t offset,
                           CUmemGenericAllocationHandle handle, unsigned long long flags);
static CUresult (*app_unmap)(CUdeviceptr address, size_t bytes);
static CUresult (*app_ask)(unsigned count, int *attributes, void **values, CUdeviceptr address);
static CUresult (*app_set_access)(CUdeviceptr address, size_t bytes, const CUmemAccessDesc *access,
                                  size_t count);

static void find(void *library, const char *name, void *slot) {
  void *found = dlsym(library, name);
  assert_non_null(found);
  memcpy(slot, &found, sizeof found);
}

static int load_double(void **state) {
  (void)state;
  const char *doubles = getenv("HAUL_DOUBLES");
  assert_non_null(doubles);
  snprintf(libraries[0], sizeof libraries[0], "%s/cuda/current/libcuda.so.1", doubles);
  snprintf(libraries[1], sizeof libraries[1], "%s/cuda/before-vmm/libcuda.so.1", doubles);
  snprintf(libraries[2], sizeof libraries[2], "%s/cuda/without-callbacks/libcuda.so.1", doubles);
  void *library = dlopen(libraries[0], RTLD_NOW), *other = dlopen(libraries[2], RTLD_NOW);
  assert_non_null(library);
  assert_non_null(other);
  find(other, "cuda_double", &other_door);
  find(library, "cuda_double", &door);
  find(library, "cuMemAlloc_v2", &app_alloc);
  find(library, "cuMemFree_v2", &app_free);
  find(library, "cuDevicePrimaryCtxRetain", &app_retain);
  find(library, "cuDevicePrimaryCtxRelease_v2", &app_release);
  find(library, "cuDevicePrimaryCtxReset_v2", &app_reset);
  find(library, "cuCtxPushCurrent_v2", &app_push);
  find(library, "cuCtxPopCurrent_v2", &app_pop);
  find(library, "cuCtxGetCurrent", &app_current);
  find(library, "cuMemHostAlloc", &app_pin);
  find(library, "cuMemFreeHost", &app_unpin);
  find(library, "cuMemCreate", &app_create);
  find(library, "cuMemRelease", &app_drop);
  find(library, "cuMemAddressReserve", &app_reserve);
  find(library, "cuMemAddressFree", &app_unreserve);
  find(library, "cuMemMap", &app_map);
  find(library, "cuMemUnmap", &app_unmap);
  find(library, "cuMemSetAccess", &app_set_access);
  find(library, "cuPointerGetAttributes", &app_ask);
  return 0;
}

static void look_for_devices(void) {
  assert_int_equal(provider_devices(&provider_cuda), 2);
}

/* Before each test: two unused GPUs. */
static int begin(void **state) {
  (void)state;
  cuda_library.names[0] = libraries[0];
  cuda_sys = "/sys";
  cuda_dev = "/dev";
  return providers_start();
}

static unsigned living(void) {
  return door->allocations + door->mappings + door->reservations + door->pinned + door->streams +
         door->events + door->retains;
}

static void print_living(void) {
  if (living() > 0)
    print_message("left: allocations %u, mappings %u, reservations %u, pinned %u, streams %u, "
                  "events %u, retains %u\n",
                  door->allocations, door->mappings, door->reservations, door->pinned,
                  door->streams, door->events, door->retains);
}

/* After each test: no driver object is left, and the emulator is reset. */
static int end(void **state) {
  (void)state;
  providers_stop();
  library_forget(&cuda_library);
  door->bandwidth = door->latency = door->init = door->create = door->pin = door->copy =
      door->ordering = door->hold = door->kernel = door->strict = 0;
  door->vmm = door->moves = 1;
  door->attributes = 20;
  door->flushes = 0;
  CUcontext left;
  assert_int_equal(app_current(&left), CUDA_SUCCESS);
  assert_null(left);
  print_living();
  return living() == 0 ? 0 : -1;
}

static struct memory get(struct haul_place place, size_t length, unsigned flags) {
  struct memory memory;
  assert_works(memory_alloc(place, length, flags, &memory));
  return memory;
}

static void put_pattern(struct memory *memory, size_t length, uint64_t seed) {
  struct memory bytes = get(host, length, HAUL_REGION_PRIVATE);
  pattern_fill(bytes.view, length, seed);
  assert_works(copy_wait(memory, 0, &bytes, 0, length, HAUL_FOREVER));
  memory_free(&bytes);
}

static void expect_pattern(struct memory *memory, size_t length, uint64_t seed) {
  struct memory bytes = get(host, length, HAUL_REGION_PRIVATE);
  assert_works(copy_wait(&bytes, 0, memory, 0, length, HAUL_FOREVER));
  pattern_check(bytes.view, length, seed);
  memory_free(&bytes);
}

static void assert_no_gpu(const char *text, const char *hint) {
  struct memory memory;
  assert_int_equal(provider_devices(&provider_cuda), 0);
  assert_fails(HAUL_EPLACE, memory_alloc(gpu0, 1, 0, &memory));
  if (!strstr(haul_error_last()->text, text) || !strstr(haul_error_last()->hint, hint))
    fail_msg("it says '%s', '%s'", haul_error_last()->text, haul_error_last()->hint);
}

static void other_kinds_work_without_a_driver(void **state) {
  (void)state;
  cuda_library.names[0] = "libcuda-missing.so.1";
  assert_no_gpu("cannot be opened", "nvidia-driver");
  struct memory memory = get(host, 4096, 0);
  memory_free(&memory);
}

static void an_old_driver_names_missing_calls(void **state) {
  static const char *const names[] = {"cuMemGetAllocationGranularity",
                                      "cuMemCreate",
                                      "cuMemRelease",
                                      "cuMemAddressReserve",
                                      "cuMemAddressFree",
                                      "cuMemMap",
                                      "cuMemUnmap",
                                      "cuMemSetAccess",
                                      "cuMemExportToShareableHandle",
                                      "cuMemImportFromShareableHandle"};
  (void)state;
  cuda_library.names[0] = libraries[1];
  for (size_t i = 0; i < COUNT(names); i++)
    assert_no_gpu("older than CUDA 10.2's: it lacks 10 calls", names[i]);
}

static void driver_errors_have_different_texts(void **state) {
  static const struct {
    unsigned long long result;
    const char *text, *hint;
  } cases[] = {{CUDA_ERROR_NO_DEVICE, "shows this process no GPU", "CUDA_VISIBLE_DEVICES"},
               {CUDA_ERROR_SYSTEM_DRIVER_MISMATCH, "different versions", "reboot"},
               {CUDA_ERROR_UNKNOWN, "CUDA_ERROR_UNKNOWN (999)", "nvidia-smi"}};
  (void)state;
  for (size_t i = 0; i < COUNT(cases); i++) {
    door->init = cases[i].result;
    assert_no_gpu(cases[i].text, cases[i].hint);
    providers_stop();
    assert_works(providers_start());
  }
}

static void a_number_out_of_range_is_rejected(void **state) {
  struct memory memory;
  (void)state;
  assert_fails(HAUL_EPLACE, memory_alloc((struct haul_place){HAUL_CUDA, 2}, 1, 0, &memory));
  assert_non_null(strstr(haul_error_last()->text, "cuda has 2 devices"));
}

static bool is_mapped(const char *name) {
  char line[512];
  bool found = false;
  FILE *maps = fopen("/proc/self/maps", "re");
  while (maps && fgets(line, sizeof line, maps))
    found |= strstr(line, name) != NULL;
  if (maps)
    fclose(maps);
  return found;
}

/* In another process, which has not loaded the driver. */
static int lazy_child(void) {
  char bytes[64];
  struct memory memory;
  if (providers_start() != 0 || memory_wrap(bytes, sizeof bytes, &memory) != 0)
    return 1;
  memory_free(&memory);
  memory = get(host, 4096, 0);
  memory_free(&memory);
  bool before = is_mapped("libcuda");
  unsigned devices = provider_devices(&provider_cuda);
  providers_stop();
  return before ? 2 : devices == 2 && is_mapped("libcuda") ? 0 : 3;
}

static void the_driver_is_opened_on_demand(void **state) {
  int socket;
  (void)state;
  pid_t child = child_start("lazy", &socket);
  assert_int_equal(child_end(child, socket), 0);
}

static char root[64];

static void make_root(void) {
  snprintf(root, sizeof root, "/tmp/haul-cuda-XXXXXX");
  assert_non_null(mkdtemp(root));
  cuda_sys = cuda_dev = root;
}

static struct haul_check check_named(const char *name) {
  struct haul_check checks[8];
  size_t count = provider_cuda.checks(checks, COUNT(checks));
  for (size_t i = 0; i < count; i++)
    if (strcmp(checks[i].name, name) == 0)
      return checks[i];
  fail_msg("no check is named %s", name);
  return checks[0];
}

static void assert_check(const char *name, int state, const char *text, const char *remedy) {
  struct haul_check check = check_named(name);
  if (check.state != state || !strstr(check.text, text) || !strstr(check.remedy, remedy))
    fail_msg("%s: %d, '%s', '%s'", name, check.state, check.text, check.remedy);
}

static void again(void) {
  providers_stop();
  assert_works(providers_start());
}

static void checks_know_the_causes(void **state) {
  (void)state;
  make_root();
  cuda_library.names[0] = "libcuda-missing.so.1";
  assert_check("cuda.driver", HAUL_CHECK_OK, "no NVIDIA GPU", "");
  tree_file(root, "bus/pci/devices/0000:da:00.0/vendor", "0x10de\n");
  tree_file(root, "bus/pci/devices/0000:da:00.0/class", "0x030200\n");
  tree_file(root, "bus/pci/devices/0000:da:00.0/numa_node", "1\n");
  assert_check("cuda.driver", HAUL_CHECK_MISSING, "cannot be opened", "nvidia-driver libcuda1");
  cuda_library.names[0] = libraries[0];
  door->init = CUDA_ERROR_NO_DEVICE;
  again();
  assert_check("cuda.driver", HAUL_CHECK_OK, "CUDA 13.0", "");
  assert_check("cuda.device", HAUL_CHECK_MISSING, "0000:da:00.0", "modprobe nvidia");
  tree_file(root, "module/nvidia/version", "1");
  assert_check("cuda.device", HAUL_CHECK_MISSING, "nvidiactl is not here", "--gpus all");
  assert_check("cuda.sharing", HAUL_CHECK_MISSING, "cuda.device", "");
  door->init = 0;
  door->vmm = 0;
  again();
  assert_check("cuda.device", HAUL_CHECK_OK, "2 GPUs", "");
  assert_check("cuda.sharing", HAUL_CHECK_LIMITED, "cuda:0", "");
  assert_check("cuda.peers", HAUL_CHECK_OK, "reaches the memory of the others", "");
  assert_check("cuda.acs", HAUL_CHECK_OK, "no bridge", "");
  assert_check("cuda.iommu", HAUL_CHECK_OK, "no IOMMU", "");
  assert_int_equal(cuda_device(0)->numa, 1);
  assert_int_equal(cuda_device(1)->numa, -1);
  if (!cuda_device(0)->dmabuf) {
    assert_check("cuda.gpudirect-rdma", HAUL_CHECK_LIMITED, "host buffers", "nvidia_peermem");
    tree_file(root, "module/nvidia_peermem/refcnt", "0");
    assert_check("cuda.gpudirect-rdma", HAUL_CHECK_OK, "by address", "");
  }
  tree_remove(root);
}

static bool several_nodes(void) {
  return true;
}

/* sysfs has the NUMA node of the first GPU only. */
static void buffers_are_on_the_gpus_numa_node(void **state) {
  (void)state;
  bool (*before)(void) = sys_ops.has_nodes;
  struct heap *heap;
  struct staging_user user;
  struct bounce *stage;
  make_root();
  tree_file(root, "bus/pci/devices/0000:da:00.0/numa_node", "1\n");
  again();
  assert_works(heap_open(NULL, 0, &heap));
  struct staging *staging = heap_staging(heap);
  sys_ops.has_nodes = several_nodes;
  for (unsigned i = 0; i < 2; i++) { /* queried and cached */
    assert_int_equal(staging_numa(staging, gpu0), 1);
    assert_int_equal(staging_numa(staging, gpu1), -1);
    assert_int_equal(staging_numa(staging, host), -1);
  }
  assert_works(
      staging_get_wait(staging, &user, 1, staging_numa(staging, gpu0), &stage, HAUL_NO_WAIT));
  assert_int_equal(stage->numa, 1);
  staging_put(&user, stage);
  sys_ops.has_nodes = before;
  heap_close(heap);
  tree_remove(root);
}

static void lack_of_memory_leaks_nothing(void **state) {
  struct memory memory;
  const unsigned flags[] = {0, HAUL_REGION_PRIVATE};
  (void)state;
  look_for_devices();
  for (size_t i = 0; i < COUNT(flags); i++) {
    door->create = 1;
    assert_fails(HAUL_ENOMEM, memory_alloc(gpu0, MIB, flags[i], &memory));
    assert_non_null(strstr(haul_error_last()->hint, "nvidia-smi"));
    assert_fails(HAUL_ENOMEM, memory_alloc(gpu0, door->memory + MIB, flags[i], &memory));
    assert_int_equal(door->allocations + door->mappings + door->reservations, 0);
  }
}

static void a_gpu_without_virtual_memory_has_private_memory(void **state) {
  (void)state;
  door->vmm = 0;
  struct memory memory = get(gpu0, MIB, 0);
  struct ticket ticket;
  int fd;
  assert_false(memory.shareable);
  assert_fails(HAUL_ENOTSUP, memory_export(&memory, HAUL_READ | HAUL_WRITE, &ticket, &fd));
  put_pattern(&memory, MIB, 1);
  expect_pattern(&memory, MIB, 1);
  memory_free(&memory);
}

static CUcontext be_an_application(CUdevice device) {
  CUcontext context;
  look_for_devices();
  assert_int_equal(app_retain(&context, device), CUDA_SUCCESS);
  assert_int_equal(app_push(context), CUDA_SUCCESS);
  return context;
}

static void end_application(CUdevice device) {
  CUcontext context;
  assert_int_equal(app_pop(&context), CUDA_SUCCESS);
  assert_int_equal(app_release(device), CUDA_SUCCESS);
}

static void the_applications_memory_is_found(void **state) {
  struct memory memory;
  CUdeviceptr address;
  (void)state;
  be_an_application(1);
  assert_int_equal(app_alloc(&address, 4 * MIB), CUDA_SUCCESS);
  char *at = (char *)(uintptr_t)address;
  assert_works(memory_wrap(at + 5, MIB, &memory));
  assert_memory_equal(&memory.place, &gpu1, sizeof gpu1);
  put_pattern(&memory, MIB, 3);
  expect_pattern(&memory, MIB, 3);
  memory_free(&memory);
  assert_fails(HAUL_EINVAL, memory_wrap(at + MIB, 4 * MIB, &memory));
  assert_fails(HAUL_EINVAL, memory_wrap(at - 1, 2, &memory));
  assert_int_equal(app_free(address), CUDA_SUCCESS);
  assert_fails(HAUL_EINVAL, memory_wrap(at, MIB, &memory));
  end_application(1);
}

static uint64_t identity_of(void *address, size_t length) {
  struct memory memory;
  assert_works(memory_wrap(address, length, &memory));
  uint64_t identity = memory.identity;
  memory_free(&memory);
  assert_true(identity != 0);
  return identity;
}

/* Registration caches, whose entries outlive a region, compare it. */
static void reallocated_memory_has_another_identity(void **state) {
  CUdeviceptr first, again;
  (void)state;
  be_an_application(1);
  assert_int_equal(app_alloc(&first, 4 * MIB), CUDA_SUCCESS);
  char *at = (char *)(uintptr_t)first;
  uint64_t identity = identity_of(at, MIB);
  assert_true(identity_of(at + MIB, 2 * MIB) == identity); /* the same allocation */
  assert_int_equal(app_free(first), CUDA_SUCCESS);
  assert_int_equal(app_alloc(&again, 4 * MIB), CUDA_SUCCESS);
  assert_true(identity_of((void *)(uintptr_t)again, MIB) != identity);
  struct memory own = get(gpu1, MIB, 0);
  assert_true(own.identity == 0);
  memory_free(&own);
  assert_int_equal(app_free(again), CUDA_SUCCESS);
  end_application(1);
}

/* Addresses as of a segment that grows: reserved at once, mapped by and by. */
#define RESERVED_BYTES (8 * MIB)
#define MAPPING        (2 * MIB)

static CUdeviceptr reserve_segment(void) {
  CUdeviceptr at;
  assert_int_equal(app_reserve(&at, RESERVED_BYTES, 0, 0, 0), CUDA_SUCCESS);
  return at;
}

static void map_part(CUdeviceptr segment, unsigned part) {
  const CUmemAllocationProp how = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                   .location = {CU_MEM_LOCATION_TYPE_DEVICE, 1}};
  const CUmemAccessDesc access = {how.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  CUdeviceptr at = segment + part * MAPPING;
  CUmemGenericAllocationHandle handle;
  assert_int_equal(app_create(&handle, MAPPING, &how, 0), CUDA_SUCCESS);
  assert_int_equal(app_map(at, MAPPING, 0, handle, 0), CUDA_SUCCESS);
  assert_int_equal(app_set_access(at, MAPPING, &access, 1), CUDA_SUCCESS);
  assert_int_equal(app_drop(handle), CUDA_SUCCESS); /* the mapping keeps it */
}

static void unmap_part(CUdeviceptr segment, unsigned part) {
  assert_int_equal(app_unmap(segment + part * MAPPING, MAPPING), CUDA_SUCCESS);
}

/* With drivers that tell the mapping of an address, and with older ones. */
static void only_what_is_mapped_is_memory(void **state) {
  (void)state;
  for (unsigned long long attributes = 13; attributes <= 20; attributes += 7) {
    struct memory memory;
    be_an_application(1);
    door->attributes = attributes;
    CUdeviceptr segment = reserve_segment();
    char *at = (char *)(uintptr_t)segment;
    assert_fails(HAUL_EINVAL, memory_wrap(at, MAPPING, &memory));
    map_part(segment, 0);
    assert_fails(HAUL_EINVAL, memory_wrap(at, RESERVED_BYTES, &memory));
    assert_fails(HAUL_EINVAL, memory_wrap(at + 5, MAPPING, &memory));
    map_part(segment, 1);
    map_part(segment, 3);
    assert_fails(HAUL_EINVAL, memory_wrap(at, RESERVED_BYTES, &memory)); /* a hole */
    assert_works(memory_wrap(at + 5, 2 * MAPPING - 5, &memory));
    put_pattern(&memory, MIB, 4);
    expect_pattern(&memory, MIB, 4);
    memory_free(&memory);
    for (unsigned part = 0; part < 4; part += part == 1 ? 2 : 1)
      unmap_part(segment, part);
    assert_int_equal(app_unreserve(segment, RESERVED_BYTES), CUDA_SUCCESS);
    door->attributes = 20;
    end_application(1);
  }
}

static void remapped_memory_has_another_identity(void **state) {
  (void)state;
  be_an_application(1);
  CUdeviceptr segment = reserve_segment();
  void *at = (void *)(uintptr_t)segment;
  for (unsigned part = 0; part < 3; part++)
    map_part(segment, part);
  for (unsigned part = 0; part < 3; part++) {
    uint64_t before = identity_of(at, 3 * MAPPING);
    assert_true(identity_of(at, 3 * MAPPING) == before);
    assert_true(identity_of((char *)at + 1, MAPPING - 1) == identity_of(at, MAPPING));
    unmap_part(segment, part);
    map_part(segment, part);
    assert_true(identity_of(at, 3 * MAPPING) != before);
  }
  for (unsigned part = 0; part < 3; part++)
    unmap_part(segment, part);
  assert_int_equal(app_unreserve(segment, RESERVED_BYTES), CUDA_SUCCESS);
  end_application(1);
}

static unsigned synchronises(CUdeviceptr at) {
  int attribute = CU_POINTER_ATTRIBUTE_SYNC_MEMOPS;
  unsigned set = 2;
  void *value = &set;
  assert_int_equal(app_ask(1, &attribute, &value, at), CUDA_SUCCESS);
  return set;
}

/* Else cudaMemcpy may return before its bytes are where a NIC reads them. */
static void operations_on_wrapped_memory_are_synchronous(void **state) {
  (void)state;
  CUdeviceptr address, other;
  struct memory memory;
  be_an_application(1);
  assert_int_equal(app_alloc(&address, 4 * MIB), CUDA_SUCCESS);
  assert_int_equal(app_alloc(&other, 4 * MIB), CUDA_SUCCESS);
  assert_int_equal(synchronises(address), 0);
  assert_works(memory_wrap((char *)(uintptr_t)address + MIB, MIB, &memory));
  assert_int_equal(synchronises(address), 1); /* it is of the allocation */
  assert_int_equal(synchronises(other), 0);
  memory_free(&memory);
  assert_int_equal(app_free(address), CUDA_SUCCESS);
  assert_int_equal(app_free(other), CUDA_SUCCESS);
  CUdeviceptr segment = reserve_segment();
  map_part(segment, 0);
  assert_works(memory_wrap((void *)(uintptr_t)segment, MAPPING, &memory)); /* it refuses */
  assert_int_equal(synchronises(segment), 0);
  memory_free(&memory);
  unmap_part(segment, 0);
  assert_int_equal(app_unreserve(segment, RESERVED_BYTES), CUDA_SUCCESS);
  end_application(1);
}

static void pinned_host_memory_is_copied_directly(void **state) {
  struct memory bytes, memory;
  void *pinned;
  (void)state;
  be_an_application(0);
  assert_int_equal(app_pin(&pinned, 40 * MIB, 0), CUDA_SUCCESS);
  assert_works(memory_wrap(pinned, 40 * MIB, &bytes));
  assert_int_equal(bytes.place.kind, HAUL_HOST);
  memory = get(gpu0, 40 * MIB, 0);
  pattern_fill(pinned, 40 * MIB, 4);
  assert_works(copy_wait(&memory, 0, &bytes, 0, 40 * MIB, HAUL_FOREVER));
  memset(pinned, 0, 40 * MIB);
  assert_works(copy_wait(&bytes, 1, &memory, 1, 40 * MIB - 1, HAUL_FOREVER));
  assert_int_equal(*(char *)pinned, 0);
  expect_pattern(&memory, 40 * MIB, 4);
  memory_free(&memory);
  memory_free(&bytes);
  assert_int_equal(app_unpin(pinned), CUDA_SUCCESS);
  end_application(0);
}

static int wait_for(struct copy *copy) {
  int status;
  while ((status = provider_cuda.copy_poll(copy)) == 1)
    usleep(200);
  return status;
}

/* The failed start copied nothing. Then first and last bytes of each size, in both directions. */
static void memory_that_is_not_pinned_takes_two_buffers(void **state) {
  (void)state;
  const size_t sizes[] = {1, MIB, MIB + 1, 2 * MIB, 5 * MIB + 3};
  struct memory memory = get(gpu0, 6 * MIB, 0), bytes = get(host, 6 * MIB, 0), through[2];
  for (unsigned i = 0; i < 2; i++)
    through[i] = get(host, BOUNCE_BYTES, HAUL_REGION_PINNED);
  unsigned before = door->pinned;
  for (unsigned i = 0; i < 4 * COUNT(sizes); i++) {
    size_t size = sizes[i % COUNT(sizes)];
    struct copy in = {.to = &memory, .from = &bytes, .length = size}, out = in;
    out.to = &bytes;
    out.from = &memory;
    pattern_fill(bytes.view, size, i);
    assert_int_equal(provider_cuda.copy_start(&in), 1);
    assert_int_equal(provider_cuda.copy_start(&out), 1);
    in.through[0] = out.through[1] = &through[0];
    in.through[1] = out.through[0] = &through[1];
    assert_works(provider_cuda.copy_start(&in));
    assert_int_equal(wait_for(&in), 0);
    memset(bytes.view, 0, size);
    assert_works(provider_cuda.copy_start(&out));
    assert_int_equal(wait_for(&out), 0);
    pattern_check(bytes.view, size, i);
    assert_int_equal(door->pinned, before + 2);
  }
  for (unsigned i = 0; i < 2; i++)
    memory_free(&through[i]);
  assert_int_equal(door->pinned, before);
  memory_free(&memory);
  memory_free(&bytes);
}

static void buffers_that_cannot_be_pinned_are_an_error(void **state) {
  (void)state;
  struct memory memory = get(gpu0, MIB, 0), bytes = get(host, MIB, 0);
  struct memory through = get(host, BOUNCE_BYTES, HAUL_REGION_PINNED);
  struct copy copy = {
      .to = &memory, .from = &bytes, .length = MIB, .through = {&through, &through}};
  door->pin = 1;
  assert_fails(HAUL_ENOMEM, provider_cuda.copy_start(&copy));
  assert_works(provider_cuda.copy_start(&copy));
  assert_int_equal(wait_for(&copy), 0);
  memory_free(&memory);
  memory_free(&bytes);
  memory_free(&through);
}

/* Kernels may wait for what a transfer brings, and a driver may let pinning wait for kernels. */
static void copies_work_while_a_kernel_runs(void **state) {
  (void)state;
  struct heap *heap;
  struct haul_region *there, *here;
  struct staging_counters counters;
  assert_works(heap_open(NULL, 0, &heap));
  staging_counters(heap_staging(heap), &counters);
  assert_int_equal(counters.bytes, 0); /* no GPU is used yet */
  assert_works(heap_alloc(heap, host, 4 * MIB, 0, &here));
  assert_int_equal(door->pinned, 0);
  assert_works(heap_alloc(heap, gpu0, 4 * MIB, 0, &there));
  staging_counters(heap_staging(heap), &counters);
  assert_int_equal(counters.bytes, counters.limit);
  unsigned pinned = door->pinned;
  alarm(20);
  door->kernel = 1;
  for (uint64_t seed = 1; seed < 5; seed++) {
    door->strict = seed > 2;
    pattern_fill(here->memory.view, 4 * MIB, seed);
    assert_works(copy_sync(heap_staging(heap), &there->memory, 0, &here->memory, 0, 4 * MIB,
                           haul_deadline_in(10 * S)));
    memset(here->memory.view, 0, 4 * MIB);
    assert_works(copy_sync(heap_staging(heap), &here->memory, 0, &there->memory, 0, 4 * MIB,
                           haul_deadline_in(10 * S)));
    pattern_check(here->memory.view, 4 * MIB, seed);
    assert_true(heap_expire(heap, clock_now() + 2 * STAGING_IDLE_NS) == HAUL_FOREVER);
    assert_int_equal(door->pinned, pinned);
  }
  door->kernel = 0;
  alarm(0);
  region_put(there);
  region_put(here);
  heap_close(heap);
}

/* As of two GPUs on different sockets. */
static void each_numa_node_has_its_share_of_buffers(void **state) {
  bool (*before)(void) = sys_ops.has_nodes;
  struct heap *heap;
  struct haul_region *regions[2];
  struct staging_counters counters;
  struct staging_user user;
  struct bounce *near;
  (void)state;
  make_root();
  tree_file(root, "bus/pci/devices/0000:da:00.0/numa_node", "1\n");
  tree_file(root, "bus/pci/devices/0000:db:00.0/numa_node", "2\n");
  again();
  assert_works(heap_open(NULL, 0, &heap));
  struct staging *staging = heap_staging(heap);
  staging_limit(staging, STAGING_LEAST);
  sys_ops.has_nodes = several_nodes;
  for (unsigned i = 0; i < 2; i++) {
    assert_works(heap_alloc(heap, i == 0 ? gpu0 : gpu1, MIB, 0, &regions[i]));
    staging_counters(staging, &counters);
    assert_int_equal(counters.bytes, (i + 1) * STAGING_LEAST / 2);
    assert_works(staging_get_wait(staging, &user, 1, (int)i + 1, &near, HAUL_NO_WAIT));
    assert_int_equal(near->numa, i + 1);
    staging_put(&user, near);
  }
  sys_ops.has_nodes = before;
  region_put(regions[0]);
  region_put(regions[1]);
  heap_close(heap);
  tree_remove(root);
}

/* Peers reserved as much as half of the limit, which is the first NUMA node's share. */
static void reservations_leave_buffers_to_the_pool(void **state) {
  bool (*before)(void) = sys_ops.has_nodes;
  struct heap *heap;
  struct haul_region *region;
  struct staging_user user;
  struct bounce *bounce;
  unsigned reserved = 0;
  (void)state;
  make_root();
  tree_file(root, "bus/pci/devices/0000:da:00.0/numa_node", "1\n");
  again();
  assert_works(heap_open(NULL, 0, &heap));
  struct staging *staging = heap_staging(heap);
  staging_limit(staging, STAGING_LEAST);
  for (unsigned more; (more = staging_reserve(staging, 8)) > 0;)
    reserved += more;
  assert_int_equal(reserved, STAGING_LEAST / BOUNCE_BYTES / 2);
  sys_ops.has_nodes = several_nodes;
  assert_works(heap_alloc(heap, gpu0, MIB, 0, &region));
  assert_works(staging_get_wait(staging, &user, 1, 1, &bounce, HAUL_NO_WAIT));
  staging_put(&user, bounce);
  sys_ops.has_nodes = before;
  staging_unreserve(staging, reserved);
  region_put(region);
  heap_close(heap);
  tree_remove(root);
}

/* Then buffers are made on demand, and the first copy reports what is missing. */
static void a_pool_that_cannot_be_filled_still_works(void **state) {
  (void)state;
  struct heap *heap;
  struct haul_region *there, *here;
  assert_works(heap_open(NULL, 0, &heap));
  assert_works(heap_alloc(heap, host, MIB, 0, &here));
  door->pin = 1;
  assert_works(heap_alloc(heap, gpu0, MIB, 0, &there));
  assert_works(copy_sync(heap_staging(heap), &there->memory, 0, &here->memory, 0, MIB,
                         haul_deadline_in(10 * S)));
  region_put(there);
  region_put(here);
  heap_close(heap);
}

/* Else the CPU would copy every byte, as for unpinned memory. */
static void memory_is_pinned_from_its_first_copy_until_its_free(void **state) {
  struct memory plain, bytes, memory;
  const unsigned flags[] = {HAUL_REGION_PINNED, HAUL_REGION_PINNED | HAUL_REGION_PRIVATE};
  (void)state;
  memory = get(gpu0, MIB, 0);
  plain = get(host, MIB, 0);
  assert_true(provider_cuda.needs_cpu(&plain));
  assert_works(copy_wait(&memory, 0, &plain, 0, MIB, HAUL_FOREVER));
  unsigned others = door->pinned;
  for (size_t i = 0; i < COUNT(flags); i++) {
    bytes = get(host, MIB, flags[i]);
    assert_false(provider_cuda.needs_cpu(&bytes));
    pattern_fill(bytes.view, MIB, 5);
    for (int again = 0; again < 2; again++) {
      assert_works(copy_wait(&memory, 0, &bytes, 0, MIB, HAUL_FOREVER));
      assert_int_equal(door->pinned, others + 1);
    }
    expect_pattern(&memory, MIB, 5);
    memory_free(&bytes);
    assert_int_equal(door->pinned, others);
  }
  memory_free(&plain);
  memory_free(&memory);
  assert_fails(HAUL_EINVAL, memory_alloc(gpu0, MIB, HAUL_REGION_PINNED, &memory));
}

/* What it is was asked when it was wrapped and pinned: a question takes about 1 us. */
static void works_ask_the_driver_nothing_about_their_memory(void **state) {
  (void)state;
  CUdeviceptr address;
  struct memory memory, bytes = get(host, MIB, HAUL_REGION_PINNED);
  be_an_application(0);
  assert_int_equal(app_alloc(&address, MIB), CUDA_SUCCESS);
  assert_works(memory_wrap((void *)(uintptr_t)address, MIB, &memory));
  assert_true(memory.identity != 0); /* the key of registrations */
  assert_works(provider_cuda.pin(0, &bytes));
  unsigned before = door->questions;
  for (unsigned i = 0; i < 10; i++) {
    assert_works(copy_sync(NULL, &memory, 0, &bytes, 0, MIB, HAUL_FOREVER));
    assert_works(copy_sync(NULL, &bytes, 0, &memory, 0, MIB, HAUL_FOREVER));
  }
  assert_int_equal(door->questions, before);
  memory_free(&memory);
  memory_free(&bytes);
  assert_int_equal(app_free(address), CUDA_SUCCESS);
  end_application(0);
}

/* A context takes its pinned pages with it. */
static void memory_is_pinned_again_after_a_reset(void **state) {
  (void)state;
  struct memory memory = get(gpu0, MIB, HAUL_REGION_PRIVATE);
  struct memory bytes = get(host, MIB, HAUL_REGION_PINNED);
  assert_works(copy_wait(&memory, 0, &bytes, 0, MIB, HAUL_FOREVER));
  assert_int_equal(app_reset(0), CUDA_SUCCESS);
  memory_free(&memory);
  memory = get(gpu0, MIB, HAUL_REGION_PRIVATE);
  unsigned pinned = door->pinned;
  assert_works(copy_wait(&memory, 0, &bytes, 0, MIB, HAUL_FOREVER));
  assert_int_equal(door->pinned, pinned + 1);
  memory_free(&memory);
  memory_free(&bytes);
}

static void memory_that_cannot_be_pinned_is_an_error(void **state) {
  struct memory bytes, memory;
  (void)state;
  memory = get(gpu0, MIB, 0);
  bytes = get(host, MIB, HAUL_REGION_PINNED);
  door->pin = 1;
  assert_fails(HAUL_ENOMEM, copy_wait(&memory, 0, &bytes, 0, MIB, HAUL_FOREVER));
  assert_works(copy_wait(&memory, 0, &bytes, 0, MIB, HAUL_FOREVER));
  memory_free(&bytes);
  memory_free(&memory);
}

static void the_callers_context_stays_current(void **state) {
  (void)state;
  CUcontext mine = be_an_application(1), now;
  struct memory memory = get(gpu0, 3 * MIB, 0);
  put_pattern(&memory, 3 * MIB, 5);
  expect_pattern(&memory, 3 * MIB, 5);
  assert_works(memory_fence(&memory, FENCE_AFTER_WRITE));
  memory_free(&memory);
  assert_int_equal(app_current(&now), CUDA_SUCCESS);
  assert_ptr_equal(now, mine);
  end_application(1);
}

static void nic_writes_are_flushed_if_necessary(void **state) {
  (void)state;
  struct memory memory = get(gpu0, 4096, 0);
  assert_works(memory_fence(&memory, FENCE_BEFORE_READ));
  assert_int_equal(door->flushes, 0);
  assert_works(memory_fence(&memory, FENCE_AFTER_WRITE));
  assert_int_equal(door->flushes, 1);
  memory_free(&memory);
  door->ordering = CU_GPU_DIRECT_RDMA_WRITES_ORDERING_OWNER;
  again();
  memory = get(gpu0, 4096, 0);
  assert_works(memory_fence(&memory, FENCE_AFTER_WRITE));
  assert_int_equal(door->flushes, 1);
  memory_free(&memory);
}

static void dmabufs_are_exported_if_supported(void **state) {
  (void)state;
  struct memory memory = get(gpu0, MIB, 0);
  uint64_t offset = 7;
  int fd;
  if (!cuda_device(0)->dmabuf) {
    assert_fails(HAUL_ENOTSUP, memory_dmabuf(&memory, &fd, &offset));
  } else {
    assert_works(memory_dmabuf(&memory, &fd, &offset));
    assert_int_equal(offset, 0);
    assert_true(fcntl(fd, F_GETFD) & FD_CLOEXEC);
    close(fd);
  }
  memory_free(&memory);
}

/* An allocation of 3 MiB and 5 bytes has 4 MiB of the GPU's pages. By its documentation a driver
 * may refuse what is behind the allocation. */
static void dmabufs_have_whole_pages_up_to_the_bar1(void **state) {
  (void)state;
  static const struct {
    size_t from, length, bar1;
    bool strict;
    int code;
  } cases[] = {
      {0, MIB, 0, false, 0},
      {4096 - 512, MIB, 0, false, 0}, /* parts of pages */
      {0, 3 * MIB + 5, 0, false, 0},
      {0, MIB, 0, true, 0},
      {4096 - 512, MIB, 0, true, 0},
      {0, 3 * MIB + 5, 0, true, HAUL_ENOTSUP},
      {4096, 2 * MIB, 3 * MIB, false, 0},
      {0, 3 * MIB + 5, 3 * MIB, false, HAUL_ELIMIT},
  };
  CUdeviceptr address;
  door->dmabuf = 2;
  be_an_application(0);
  assert_int_equal(app_alloc(&address, 3 * MIB + 5), CUDA_SUCCESS);
  for (size_t i = 0; i < COUNT(cases); i++) {
    struct memory memory;
    uint64_t offset;
    int fd;
    door->strict = cases[i].strict;
    door->bar1 = cases[i].bar1;
    assert_works(memory_wrap((char *)(uintptr_t)address + cases[i].from, cases[i].length, &memory));
    assert_int_equal(memory_dmabuf(&memory, &fd, &offset), cases[i].code);
    if (cases[i].code == 0) {
      assert_int_equal(offset, (uintptr_t)memory.address % 4096);
      close(fd);
    }
    memory_free(&memory);
  }
  assert_int_equal(app_free(address), CUDA_SUCCESS);
  end_application(0);
  door->dmabuf = 1;
  door->bar1 = 0;
}

/* The engine is stopped, so a blocking call would hang. */
static void starting_a_copy_does_not_block(void **state) {
  (void)state;
  struct memory memory = get(gpu0, 8 * MIB, 0), bytes = get(host, 8 * MIB, HAUL_REGION_PINNED);
  struct memory other = get(gpu1, 8 * MIB, 0);
  struct copy copies[] = {{.to = &memory, .from = &bytes, .length = 8 * MIB},
                          {.to = &other, .from = &memory, .length = 8 * MIB},
                          {.to = &bytes, .from = &other, .length = 8 * MIB}};
  pattern_fill(bytes.view, 8 * MIB, 6);
  for (size_t i = 0; i < COUNT(copies); i++) {
    alarm(60);
    door->hold = 1;
    assert_works(provider_cuda.copy_start(&copies[i]));
    assert_int_equal(provider_cuda.copy_poll(&copies[i]), 1);
    door->hold = 0;
    assert_int_equal(wait_for(&copies[i]), 0);
    alarm(0);
  }
  pattern_check(bytes.view, 8 * MIB, 6);
  memory_free(&memory);
  memory_free(&other);
  memory_free(&bytes);
}

/* Two chunks are in flight; the cancel waits only for them. */
static void a_cancel_is_bounded(void **state) {
  enum { BEGUN = 64, REST = 32 };
  (void)state;
  struct memory memory = get(gpu0, (BEGUN + REST) * MIB, 0);
  struct memory other = get(gpu1, (BEGUN + REST) * MIB, 0), rest = memory;
  struct copy copy = {.to = &memory, .from = &other, .length = (BEGUN + REST) * MIB};
  rest.address = (char *)memory.address + BEGUN * MIB;
  put_pattern(&rest, REST * MIB, 1);
  put_pattern(&other, (BEGUN + REST) * MIB, 2);
  assert_works(provider_cuda.copy_start(&copy));
  provider_cuda.copy_cancel(&copy);
  assert_int_equal(provider_cuda.copy_poll(&copy), HAUL_ECANCELED);
  put_pattern(&other, (BEGUN + REST) * MIB, 3); /* no longer polled */
  expect_pattern(&memory, BEGUN * MIB, 2);
  expect_pattern(&rest, REST * MIB, 1);
  memory_free(&memory);
  memory_free(&other);
}

static void more_copies_than_lanes_wait_their_turn(void **state) {
  enum { COPIES = 5 * CUDA_LANES, PART = 3 * 65536 + 1 };
  static struct copy copies[COPIES];
  (void)state;
  struct memory memory = get(gpu0, COPIES * PART, 0);
  struct memory bytes = get(host, COPIES * PART, HAUL_REGION_PINNED);
  pattern_fill(bytes.view, COPIES * PART, 8);
  for (size_t i = 0; i < COPIES; i++) {
    copies[i] = (struct copy){.to = &memory,
                              .from = &bytes,
                              .to_offset = i * PART,
                              .from_offset = i * PART,
                              .length = PART};
    assert_works(provider_cuda.copy_start(&copies[i]));
  }
  provider_cuda.copy_cancel(&copies[COPIES - 1]);
  for (size_t i = 0; i < COPIES - 1; i++)
    assert_int_equal(wait_for(&copies[i]), 0);
  expect_pattern(&memory, (COPIES - 1) * PART, 8);
  memory_free(&memory);
  memory_free(&bytes);
}

static void count_wake(void *user) {
  atomic_fetch_add((_Atomic unsigned *)user, 1);
}

/* Polls the copy only when the engine has called. */
static int wait_for_wakes(struct copy *copy, const _Atomic unsigned *wakes) {
  int status;
  for (unsigned seen = atomic_load(wakes); (status = provider_cuda.copy_poll(copy)) == 1;
       seen = atomic_load(wakes))
    for (unsigned waited = 0; atomic_load(wakes) == seen; waited++) {
      assert_true(waited < 100000);
      usleep(100);
    }
  return status;
}

/* Three chunks, and a copy that waits for a lane: each is woken when there is something to do. */
static void the_engine_calls_when_a_copy_can_go_on(void **state) {
  static struct copy copies[CUDA_LANES + 1];
  _Atomic unsigned wakes[CUDA_LANES + 1] = {0};
  (void)state;
  struct memory memory = get(gpu0, 96 * MIB, 0), bytes = get(host, 96 * MIB, HAUL_REGION_PINNED);
  assert_true(provider_cuda.wakes);
  door->hold = 1;
  for (size_t i = 0; i < COUNT(copies); i++) {
    copies[i] = (struct copy){.to = &memory,
                              .from = &bytes,
                              .length = 96 * MIB,
                              .wake = count_wake,
                              .user = &wakes[i],
                              .wakes = true};
    assert_works(provider_cuda.copy_start(&copies[i]));
  }
  usleep(20000);
  for (size_t i = 0; i < COUNT(copies); i++)
    assert_int_equal(wakes[i], 0);
  door->hold = 0;
  for (size_t i = 0; i < COUNT(copies); i++)
    assert_int_equal(wait_for_wakes(&copies[i], &wakes[i]), 0);
  memory_free(&memory);
  memory_free(&bytes);
}

/* With the call that the driver makes after an error, and with the one that it drops then. */
static void the_end_of_a_failed_copy_is_noticed(void **state) {
  (void)state;
  for (unsigned i = 0; i < 2; i++) {
    cuda_library.names[0] = libraries[i == 0 ? 0 : 2];
    struct cuda_double *double_of = i == 0 ? door : other_door;
    struct memory memory = get(gpu0, 128 * MIB, 0);
    struct memory bytes = get(host, 128 * MIB, HAUL_REGION_PINNED);
    int64_t began = clock_now();
    assert_works(copy_wait(&memory, 0, &bytes, 0, 128 * MIB, HAUL_FOREVER));
    double_of->copy = 2;
    assert_fails(HAUL_ESYSTEM, copy_wait(&memory, 0, &bytes, 0, 128 * MIB, HAUL_FOREVER));
    assert_non_null(strstr(haul_error_last()->text, "CUDA_ERROR_ILLEGAL_ADDRESS (700)"));
    assert_true(clock_now() - began < INT64_C(60000000000));
    memory_free(&memory);
    if (i == 0)
      assert_int_equal(app_reset(0), CUDA_SUCCESS);
    memory_free(&bytes);
    providers_stop();
    library_forget(&cuda_library);
    assert_works(providers_start());
  }
}

static int64_t cpu_ns(void) {
  struct timespec used;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &used);
  return used.tv_sec * INT64_C(1000000000) + used.tv_nsec;
}

static void *release_copies(void *argument) {
  (void)argument;
  usleep(300000);
  door->hold = 0;
  return NULL;
}

/* A waiting thread sleeps while the device copies. */
static void waiting_takes_no_processor_time(void **state) {
  (void)state;
  struct memory memory = get(gpu0, MIB, 0), other = get(gpu0, MIB, 0);
  put_pattern(&other, MIB, 1);
  pthread_t thread;
  door->hold = 1;
  assert_int_equal(pthread_create(&thread, NULL, release_copies, NULL), 0);
  int64_t began = cpu_ns();
  assert_works(copy_sync(NULL, &memory, 0, &other, 0, MIB, HAUL_FOREVER));
  int64_t used = cpu_ns() - began;
  pthread_join(thread, NULL);
  assert_int_equal(door->hold, 0);
  assert_true(used < 6 * MS); /* 2 % of the time; a poll each 5 us takes some 10 % */
  memory_free(&memory);
  memory_free(&other);
}

/* The context is unusable until the application resets the device, as with the real driver. */
static void an_error_in_the_middle_ends_the_copy(void **state) {
  (void)state;
  struct memory memory = get(gpu0, 128 * MIB, 0), more;
  struct memory bytes = get(host, 128 * MIB, HAUL_REGION_PINNED);
  struct copy copy = {.to = &memory, .from = &bytes, .length = 128 * MIB};
  door->copy = 3;
  assert_works(provider_cuda.copy_start(&copy));
  assert_int_equal(wait_for(&copy), HAUL_ESYSTEM);
  assert_non_null(strstr(haul_error_last()->text, "CUDA_ERROR_ILLEGAL_ADDRESS (700)"));
  assert_fails(HAUL_ESYSTEM, copy_wait(&memory, 0, &bytes, 0, MIB, HAUL_FOREVER));
  provider_cuda.copy_cancel(&copy);
  memory_free(&memory);
  assert_int_equal(app_reset(0), CUDA_SUCCESS);
  more = get(gpu0, MIB, 0);
  put_pattern(&more, MIB, 9);
  expect_pattern(&more, MIB, 9);
  memory_free(&more);
  memory_free(&bytes);
}

static void a_reset_by_the_application_is_reported(void **state) {
  (void)state;
  struct memory memory = get(gpu0, 8 * MIB, HAUL_REGION_PRIVATE), more;
  struct memory bytes = get(host, 8 * MIB, HAUL_REGION_PINNED);
  struct copy copy = {.to = &memory, .from = &bytes, .length = 8 * MIB};
  uint64_t sum;
  door->hold = 1;
  assert_works(provider_cuda.copy_start(&copy));
  assert_int_equal(app_reset(0), CUDA_SUCCESS);
  assert_int_equal(wait_for(&copy), HAUL_ESTALE);
  door->hold = 0;
  assert_fails(HAUL_ESTALE, copy_wait(&memory, 0, &bytes, 0, MIB, HAUL_FOREVER));
  assert_fails(HAUL_ESTALE, provider_cuda.copy_start(&copy));
  assert_non_null(strstr(haul_error_last()->hint, "cudaDeviceReset"));
  assert_fails(HAUL_ESTALE, memory_checksum(&memory, 0, 1, &sum));
  assert_fails(HAUL_ESTALE, memory_fence(&memory, FENCE_AFTER_WRITE));
  more = get(gpu0, MIB, 0);
  put_pattern(&more, MIB, 9);
  expect_pattern(&more, MIB, 9);
  assert_fails(HAUL_ESTALE, provider_cuda.copy_start(&copy));
  memory_free(&memory);
  memory_free(&more);
  memory_free(&bytes);
}

/* The context is active again at the next check, and buffers of the former one are unmapped. */
static void a_reset_is_noticed_while_the_application_runs(void **state) {
  (void)state;
  struct memory memory = get(gpu0, 4 * MIB, HAUL_REGION_PRIVATE), bytes = get(host, 4 * MIB, 0);
  put_pattern(&memory, 4 * MIB, 3);
  assert_int_equal(app_reset(0), CUDA_SUCCESS);
  be_an_application(0);
  assert_fails(HAUL_ESTALE, copy_wait(&memory, 0, &bytes, 0, MIB, HAUL_FOREVER));
  assert_fails(HAUL_ESTALE, memory_check(&memory));
  struct memory more = get(gpu0, MIB, 0);
  put_pattern(&more, MIB, 9);
  expect_pattern(&more, MIB, 9);
  memory_free(&more);
  memory_free(&memory);
  memory_free(&bytes);
  end_application(0);
}

/* The old addresses may now hold memory of the application. */
static void memory_lost_to_a_reset_is_not_exported(void **state) {
  (void)state;
  CUdeviceptr address;
  CUcontext context;
  struct memory memory;
  struct ticket ticket = {.length = 0};
  uint8_t token[IPC_TOKEN];
  be_an_application(0);
  assert_int_equal(app_alloc(&address, MIB), CUDA_SUCCESS);
  assert_works(memory_wrap((void *)(uintptr_t)address, MIB, &memory));
  assert_works(memory_ipc_export(&memory, &ticket, token));
  assert_int_equal(app_reset(0), CUDA_SUCCESS);
  assert_fails(HAUL_ESTALE, memory_ipc_export(&memory, &ticket, token));
  memory_free(&memory);
  assert_int_equal(app_pop(&context), CUDA_SUCCESS);
}

static void an_invalid_token_is_rejected(void **state) {
  (void)state;
  struct memory memory = get(gpu0, MIB, 0), borrowed;
  struct ticket ticket = {.place = gpu0, .length = MIB};
  const uint8_t token[IPC_TOKEN] = {1, 2, 3};
  memcpy(ticket.extra + 8, cuda_device(0)->uuid, 16);
  put_pattern(&memory, MIB, 5);
  assert_fails(HAUL_ETICKET, memory_ipc_import(&ticket, token, &borrowed));
  expect_pattern(&memory, MIB, 5);
  memory_free(&memory);
}

/* PyTorch captures graphs in mode "global" while peers read and write. */
static void a_capture_of_another_thread_is_not_disturbed(void **state) {
  (void)state;
  struct memory memory = get(gpu0, 4 * MIB, 0), bytes = get(host, 4 * MIB, 0), more;
  CUdeviceptr address;
  door->capture = 1;
  put_pattern(&memory, 4 * MIB, 3);
  expect_pattern(&memory, 4 * MIB, 3);
  more = get(gpu1, MIB, 0);
  memory_free(&more);
  assert_works(copy_wait(&bytes, 0, &memory, 0, 4 * MIB, HAUL_FOREVER));
  assert_works(memory_fence(&memory, FENCE_AFTER_WRITE));
  memory_free(&bytes);
  memory_free(&memory);
  be_an_application(0);
  assert_int_equal(app_alloc(&address, MIB), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  door->capture = 0;
  end_application(0);
}

/* A shareable block of 64 KiB takes 2 MiB of the GPU. */
static void the_pool_of_gpu_memory_is_bounded(void **state) {
  (void)state;
  enum { COUNT_OF = 16 };
  struct heap *heap;
  struct haul_region *regions[COUNT_OF];
  struct heap_counters counters;
  assert_works(heap_open(NULL, 8 * MIB, &heap));
  for (int i = 0; i < COUNT_OF; i++)
    assert_works(heap_alloc(heap, gpu0, 64 << 10, 0, &regions[i]));
  for (int i = 0; i < COUNT_OF; i++)
    region_put(regions[i]);
  heap_counters(heap, &counters);
  assert_int_equal(counters.pooled_bytes, 8 * MIB);
  assert_int_equal(door->allocations, 4);
  heap_close(heap);
}

/* Neither the pool nor cached imports return memory of a destroyed context. */
static void memory_from_before_a_reset_is_not_reused(void **state) {
  (void)state;
  struct heap *heap, *user;
  struct haul_region *region, *import;
  struct haul_ticket ticket;
  int fd;
  assert_works(heap_open(NULL, 64 * MIB, &heap));
  assert_works(heap_open(NULL, MIB, &user));
  assert_works(heap_alloc(heap, gpu0, MIB, HAUL_REGION_PRIVATE, &region));
  region_put(region);
  assert_works(heap_alloc(heap, gpu0, MIB, 0, &region));
  assert_works(region_export(region, HAUL_READ | HAUL_WRITE, NULL, &ticket, &fd));
  assert_works(heap_import(user, &ticket, fd, &import));
  region_put(import);
  region_put(region);
  close(fd);

  assert_int_equal(app_reset(0), CUDA_SUCCESS);
  assert_fails(HAUL_ESTALE, heap_import(user, &ticket, -1, &import));
  for (int i = 0; i < 2; i++) {
    assert_works(heap_alloc(heap, gpu0, MIB, HAUL_REGION_PRIVATE, &region));
    put_pattern(&region->memory, MIB, 6);
    expect_pattern(&region->memory, MIB, 6);
    region_put(region); /* the second one is pooled, and valid */
  }
  heap_close(user);
  heap_close(heap);
  /* The import is not unmapped: its address may be reused. */
  assert_int_equal(door->allocations, 1);
  door->allocations = door->mappings = door->reservations = 0;
}

struct order {
  struct haul_ticket ticket;
  uint64_t seed;
};

struct answer {
  int code, device;
  char object[64], hint[256];
};

/* Another process, with other GPUs visible. */
static int import_child(void) {
  struct order order;
  struct answer answer = {.device = -1};
  struct ticket ticket;
  struct memory memory;
  if (providers_start() != 0)
    return 1;
  int fd = child_receive(3, &order, sizeof order);
  answer.code = ticket_unpack(&order.ticket, &ticket);
  if (answer.code == 0)
    answer.code = memory_import(&ticket, fd, &memory);
  close(fd);
  if (answer.code == 0) {
    answer.device = memory.place.device;
    expect_pattern(&memory, MIB, order.seed);
    put_pattern(&memory, MIB, order.seed + 1);
    memory_free(&memory);
  } else {
    snprintf(answer.object, sizeof answer.object, "%.63s", haul_error_last()->object);
    snprintf(answer.hint, sizeof answer.hint, "%s", haul_error_last()->hint);
  }
  child_send(3, &answer, sizeof answer, -1);
  providers_stop();
  return 0;
}

static struct answer import_elsewhere(struct memory *memory, const char *visible, uint64_t seed) {
  struct order order = {.seed = seed};
  struct answer answer;
  struct ticket ticket;
  int fd, socket;
  assert_works(memory_export(memory, HAUL_READ | HAUL_WRITE, &ticket, &fd));
  assert_true(fcntl(fd, F_GETFD) & FD_CLOEXEC);
  ticket_pack(&ticket, &order.ticket);
  if (visible)
    setenv("CUDA_VISIBLE_DEVICES", visible, 1);
  pid_t child = child_start("import", &socket);
  unsetenv("CUDA_VISIBLE_DEVICES");
  child_send(socket, &order, sizeof order, fd);
  close(fd);
  child_receive(socket, &answer, sizeof answer);
  assert_int_equal(child_end(child, socket), 0);
  return answer;
}

/* The driver cannot tell whether two descriptors are of one memory. */
static void contested_imports_need_a_descriptor(void **state) {
  (void)state;
  struct heap *heap, *user;
  struct haul_region *region, *imports[3];
  struct haul_ticket ticket;
  int fd;
  assert_works(heap_open(NULL, 0, &heap));
  assert_works(heap_open(NULL, 0, &user));
  assert_works(heap_alloc(heap, gpu0, MIB, 0, &region));
  assert_works(region_export(region, HAUL_READ | HAUL_WRITE, NULL, &ticket, &fd));
  assert_works(heap_import(user, &ticket, fd, &imports[0]));
  assert_works(heap_import(user, &ticket, -1, &imports[1]));
  assert_works(heap_import(user, &ticket, fd, &imports[2]));
  struct haul_region *import;
  assert_fails(HAUL_ETICKET, heap_import(user, &ticket, -1, &import));
  assert_non_null(strstr(haul_error_last()->text, "more than once"));
  for (int i = 0; i < 3; i++)
    region_put(imports[i]);
  region_put(region);
  close(fd);
  heap_close(user);
  heap_close(heap);
}

static void a_ticket_names_the_same_gpu_in_every_process(void **state) {
  static const struct {
    const char *visible;
    int device;
  } cases[] = {
      {NULL, 1}, {"0,1", 1}, {"1,0", 0}, {"1", 0}, {"GPU-6861756c-2d64-6f75-626c-652d67707531", 0}};
  (void)state;
  struct memory memory = get(gpu1, MIB, 0);
  put_pattern(&memory, MIB, 20);
  for (size_t i = 0; i < COUNT(cases); i++) {
    struct answer answer = import_elsewhere(&memory, cases[i].visible, 20 + i);
    assert_int_equal(answer.code, 0);
    assert_int_equal(answer.device, cases[i].device);
    expect_pattern(&memory, MIB, 21 + i);
  }
  memory_free(&memory);
}

static void an_invisible_gpu_is_rejected_by_name(void **state) {
  (void)state;
  struct memory memory = get(gpu1, MIB, 0);
  struct answer answer = import_elsewhere(&memory, "0", 0);
  assert_int_equal(answer.code, HAUL_EPLACE);
  assert_string_equal(answer.object, "GPU-6861756c-2d64-6f75-626c-652d67707531");
  assert_non_null(strstr(answer.hint, "CUDA_VISIBLE_DEVICES"));
  memory_free(&memory);
}

static void forged_tickets_are_rejected(void **state) {
  (void)state;
  struct memory memory = get(gpu0, MIB, 0), import;
  struct ticket good, bad;
  int fd, other = memfd_create("haul-not-a-gpu", MFD_CLOEXEC);
  assert_works(memory_export(&memory, HAUL_READ | HAUL_WRITE, &good, &fd));
  assert_fails(HAUL_ETICKET, memory_import(&good, other, &import));
  assert_fails(HAUL_ETICKET, memory_import(&good, -1, &import));
  bad = good;
  bad.length = 2 * MIB + 1;
  assert_fails(HAUL_ETICKET, memory_import(&bad, fd, &import));
  bad = good;
  bad.offset = 4096;
  assert_fails(HAUL_ETICKET, memory_import(&bad, fd, &import));
  const uint8_t lengths[][8] = {{0, 0, 64}, {1, 0, 32}, {0, 0, 0, 0, 0, 0, 0, 0xff}};
  for (size_t i = 0; i < COUNT(lengths); i++) {
    bad = good;
    memcpy(bad.extra, lengths[i], 8);
    assert_fails(HAUL_ETICKET, memory_import(&bad, fd, &import));
  }
  close(fd);
  close(other);
  memory_free(&memory);
}

static void shared_memory_shows_no_earlier_contents(void **state) {
  (void)state;
  struct memory memory = get(gpu0, 2 * MIB, 0), import, bytes = get(host, 2 * MIB, 0);
  struct ticket ticket;
  int fd;
  put_pattern(&memory, 2 * MIB, 1);
  memory.length = 4097; /* as from the pool */
  assert_works(memory_export(&memory, HAUL_READ | HAUL_WRITE, &ticket, &fd));
  assert_int_equal(ticket.length, 4097);
  assert_works(memory_import(&ticket, fd, &import));
  assert_int_equal(import.length, 4097);
  assert_works(copy_wait(&bytes, 0, &import, 0, 2 * MIB, HAUL_FOREVER));
  pattern_check(bytes.view, 4097, 1);
  for (size_t i = 4097; i < 2 * MIB; i++)
    assert_int_equal(((char *)bytes.view)[i], 0);
  close(fd);
  memory_free(&import);
  memory_free(&memory);
  memory_free(&bytes);
}

static void in_a_forked_child(void *argument) {
  struct memory *memory = argument, bytes;
  char host_bytes[16];
  struct copy copy = {.to = memory, .from = &bytes, .length = sizeof host_bytes};
  bytes = (struct memory){.provider = provider_of(HAUL_HOST), .view = host_bytes, .length = 16};
  if (provider_cuda.copy_start(&copy) != HAUL_EFORK)
    _exit(1);
  memory_free(memory);
  providers_stop();
}

static void a_forked_child_leaves_the_driver_alone(void **state) {
  (void)state;
  struct memory memory = get(gpu0, MIB, 0);
  put_pattern(&memory, MIB, 30);
  assert_int_equal(child_run(in_a_forked_child, &memory), 0);
  expect_pattern(&memory, MIB, 30);
  memory_free(&memory);
}

/* Each allocation of haul fails in turn. */
static void every_failed_allocation_leaks_nothing(void **state) {
  (void)state;
  struct ticket ticket;
  int fd, status;
  struct memory memory = get(gpu0, MIB, 0), made;
  assert_works(memory_export(&memory, HAUL_READ | HAUL_WRITE, &ticket, &fd));
  unsigned before = door->allocations + door->mappings + door->reservations, refused = 0;
  for (unsigned n = 1;; n++) {
    seams_refuse(n);
    status = memory_import(&ticket, fd, &made);
    if (!seams_restore())
      break;
    assert_int_equal(status, HAUL_ENOMEM);
    assert_int_equal(door->allocations + door->mappings + door->reservations, before);
    refused++;
  }
  assert_int_equal(status, 0);
  assert_true(refused > 0);
  memory_free(&made);
  close(fd);
  memory_free(&memory);
}

int main(int count, char **arguments) {
  setenv("HAUL_CUDA_DOUBLE", "devices=2", 1);
  const char *mode = count == 2 ? arguments[1] : "";
  snprintf(libraries[0], sizeof libraries[0], "%s/cuda/current/libcuda.so.1",
           getenv("HAUL_DOUBLES") ? getenv("HAUL_DOUBLES") : "");
  cuda_library.names[0] = libraries[0];
  if (strcmp(mode, "lazy") == 0)
    return lazy_child();
  if (strcmp(mode, "import") == 0)
    return import_child();
  unsetenv("CUDA_VISIBLE_DEVICES");
#define OVER(test) cmocka_unit_test_setup_teardown(test, begin, end)
  const struct CMUnitTest tests[] = {
      OVER(other_kinds_work_without_a_driver),
      OVER(an_old_driver_names_missing_calls),
      OVER(driver_errors_have_different_texts),
      OVER(a_number_out_of_range_is_rejected),
      OVER(the_driver_is_opened_on_demand),
      OVER(checks_know_the_causes),
      OVER(buffers_are_on_the_gpus_numa_node),
      OVER(lack_of_memory_leaks_nothing),
      OVER(a_gpu_without_virtual_memory_has_private_memory),
      OVER(the_applications_memory_is_found),
      OVER(reallocated_memory_has_another_identity),
      OVER(only_what_is_mapped_is_memory),
      OVER(remapped_memory_has_another_identity),
      OVER(operations_on_wrapped_memory_are_synchronous),
      OVER(pinned_host_memory_is_copied_directly),
      OVER(memory_that_is_not_pinned_takes_two_buffers),
      OVER(buffers_that_cannot_be_pinned_are_an_error),
      OVER(copies_work_while_a_kernel_runs),
      OVER(each_numa_node_has_its_share_of_buffers),
      OVER(reservations_leave_buffers_to_the_pool),
      OVER(a_pool_that_cannot_be_filled_still_works),
      OVER(memory_is_pinned_from_its_first_copy_until_its_free),
      OVER(works_ask_the_driver_nothing_about_their_memory),
      OVER(memory_is_pinned_again_after_a_reset),
      OVER(memory_that_cannot_be_pinned_is_an_error),
      OVER(the_callers_context_stays_current),
      OVER(nic_writes_are_flushed_if_necessary),
      OVER(dmabufs_are_exported_if_supported),
      OVER(dmabufs_have_whole_pages_up_to_the_bar1),
      OVER(starting_a_copy_does_not_block),
      OVER(a_cancel_is_bounded),
      OVER(more_copies_than_lanes_wait_their_turn),
      OVER(the_engine_calls_when_a_copy_can_go_on),
      OVER(the_end_of_a_failed_copy_is_noticed),
      OVER(waiting_takes_no_processor_time),
      OVER(an_error_in_the_middle_ends_the_copy),
      OVER(a_reset_by_the_application_is_reported),
      OVER(a_reset_is_noticed_while_the_application_runs),
      OVER(memory_lost_to_a_reset_is_not_exported),
      OVER(an_invalid_token_is_rejected),
      OVER(a_capture_of_another_thread_is_not_disturbed),
      OVER(the_pool_of_gpu_memory_is_bounded),
      OVER(memory_from_before_a_reset_is_not_reused),
      OVER(contested_imports_need_a_descriptor),
      OVER(a_ticket_names_the_same_gpu_in_every_process),
      OVER(an_invisible_gpu_is_rejected_by_name),
      OVER(forged_tickets_are_rejected),
      OVER(shared_memory_shows_no_earlier_contents),
      OVER(a_forked_child_leaves_the_driver_alone),
      OVER(every_failed_allocation_leaks_nothing),
  };
  return cmocka_run_group_tests_name("memory/cuda", tests, load_double, NULL);
}
