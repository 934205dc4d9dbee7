/* SPDX-License-Identifier: MIT
 * import device|driver|cached ROUNDS: imports a GPU region of 4 MiB by ticket and descriptor, by
 * the driver's calls alone, or by the ticket alone. Prints the median of batches in us, without the
 * release. With the mocked driver this measures only the software. */
#include "common.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "memory/cuda/driver.h"

#define LENGTH ((size_t)4 << 20)
#define BATCH  16

static struct {
  haul_node *node;
  haul_region *region;
  struct haul_ticket ticket;
  int descriptor;
} shared;

static void share(void) {
  shared.node = open_node(1, 0);
  shared.region = make_region(shared.node, "cuda:0", LENGTH, 0, 0);
  must(haul_region_export(shared.region, HAUL_READ | HAUL_WRITE, NULL, &shared.ticket,
                          &shared.descriptor),
       "export");
}

static int64_t by_haul(int descriptor) {
  haul_region *imports[BATCH];
  int64_t began = now_ns();
  for (int i = 0; i < BATCH; i++)
    must(haul_region_import(shared.node, &shared.ticket, descriptor, &imports[i]), "import");
  int64_t took = now_ns() - began;
  for (int i = 0; i < BATCH; i++)
    haul_region_release(imports[i]);
  return took;
}

/* The import calls of the driver's manual, in an existing context. */
static int64_t by_driver(void) {
  const struct cuda_driver *driver = cuda_driver_open();
  const CUmemAccessDesc access = {{CU_MEM_LOCATION_TYPE_DEVICE, 0},
                                  CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  CUmemGenericAllocationHandle handles[BATCH];
  CUdeviceptr bases[BATCH];
  int failed = 0;
  int64_t began = now_ns();
  for (int i = 0; i < BATCH; i++) {
    failed |= driver->import_handle(&handles[i], (void *)(intptr_t)shared.descriptor,
                                    CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) != CUDA_SUCCESS;
    failed |= driver->reserve(&bases[i], LENGTH, 0, 0, 0) != CUDA_SUCCESS;
    failed |= driver->map(bases[i], LENGTH, 0, handles[i], 0) != CUDA_SUCCESS;
    failed |= driver->set_access(bases[i], LENGTH, &access, 1) != CUDA_SUCCESS;
  }
  int64_t took = now_ns() - began;
  for (int i = 0; i < BATCH; i++) {
    failed |= driver->unmap(bases[i], LENGTH) != CUDA_SUCCESS;
    failed |= driver->unreserve(bases[i], LENGTH) != CUDA_SUCCESS;
    failed |= driver->release(handles[i]) != CUDA_SUCCESS;
  }
  need(!failed, "a call of the driver's");
  return took;
}

static void enter_context(void) {
  const struct cuda_driver *driver = cuda_driver_open();
  CUcontext context;
  CUdevice device;
  need(driver && driver->device_get(&device, 0) == CUDA_SUCCESS &&
           driver->primary_retain(&context, device) == CUDA_SUCCESS &&
           driver->context_push(context) == CUDA_SUCCESS,
       "the GPU's context");
}

static int by_size(const void *one, const void *other) {
  int64_t left = *(const int64_t *)one, right = *(const int64_t *)other;
  return (left > right) - (left < right);
}

int main(int argc, char **argv) {
  need(argc == 3, "import device|driver|cached ROUNDS");
  size_t rounds = parse_size(argv[2]);
  int64_t *times = calloc(rounds + 1, sizeof *times);
  need(times != NULL, "calloc");
  share();
  if (strcmp(argv[1], "driver") == 0)
    enter_context();
  bool cached = strcmp(argv[1], "cached") == 0;
  haul_region *first; /* one-time cost of a process; later tickets find it */
  must(haul_region_import(shared.node, &shared.ticket, shared.descriptor, &first), "import");
  if (!cached)
    haul_region_release(first);
  for (size_t i = 0; i < rounds; i++)
    times[i] =
        strcmp(argv[1], "driver") == 0 ? by_driver() : by_haul(cached ? -1 : shared.descriptor);
  if (cached)
    haul_region_release(first);
  qsort(times, rounds, sizeof *times, by_size);
  printf("%.3f\n", (double)times[rounds / 2] / BATCH / 1e3);
  haul_region_release(shared.region);
  haul_node_close(shared.node);
  free(times);
  return 0;
}
