/* SPDX-License-Identifier: MIT
 * hook SIZE ROUNDS: cudaMalloc and cudaFree of SIZE bytes, of the CUDA runtime or a preloaded hook.
 * Prints the median of batches in ns. */
#include "common.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

#define BATCH 100

/* cudaError_t of cuda_runtime_api.h; 0 is cudaSuccess. */
typedef int malloc_fn(void **address, size_t bytes);
typedef int free_fn(void *address);
typedef int count_fn(int *count);

static malloc_fn *cuda_malloc;
static free_fn *cuda_free;

/* A runtime newer than the driver finds no GPU. */
static int sees_gpu(void *runtime) {
  count_fn *count_devices = (count_fn *)(uintptr_t)dlsym(runtime, "cudaGetDeviceCount");
  int count = 0;
  return count_devices && count_devices(&count) == 0 && count > 0;
}

/* Loads the newest that works, with RTLD_GLOBAL for the hook. */
static void open_runtime(void) {
  static const char *const names[] = {"libcudart.so.13", "libcudart.so.12", "libcudart.so.11.0",
                                      "libcudart.so"};
  for (size_t i = 0; !cuda_malloc && i < sizeof names / sizeof names[0]; i++) {
    void *runtime = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
    if (!runtime)
      continue;
    if (sees_gpu(runtime) && dlopen(names[i], RTLD_NOW | RTLD_GLOBAL)) {
      cuda_malloc = (malloc_fn *)(uintptr_t)dlsym(RTLD_DEFAULT, "cudaMalloc");
      cuda_free = (free_fn *)(uintptr_t)dlsym(RTLD_DEFAULT, "cudaFree");
    }
    dlclose(runtime);
  }
  if (cuda_malloc && cuda_free)
    return;
  fprintf(stderr, "hook: no CUDA runtime (libcudart.so) that sees a GPU is found; LD_LIBRARY_PATH "
                  "names its folder\n");
  exit(1);
}

static int64_t batch(size_t length) {
  void *address;
  int failed = 0;
  int64_t began = now_ns();
  for (int i = 0; i < BATCH; i++) {
    failed |= cuda_malloc(&address, length);
    failed |= cuda_free(address);
  }
  int64_t took = now_ns() - began;
  if (failed) {
    fprintf(stderr, "hook: cudaMalloc or cudaFree: error %d\n", failed);
    exit(1);
  }
  return took;
}

static int by_size(const void *one, const void *other) {
  int64_t left = *(const int64_t *)one, right = *(const int64_t *)other;
  return (left > right) - (left < right);
}

int main(int argc, char **argv) {
  need(argc == 3, "hook SIZE ROUNDS");
  size_t length = parse_size(argv[1]), batches = parse_size(argv[2]) / BATCH + 1;
  int64_t *took = calloc(batches, sizeof *took);
  need(took != NULL, "memory");
  open_runtime();
  batch(length); /* initializes the runtime and fills the pool */
  for (size_t i = 0; i < batches; i++)
    took[i] = batch(length);
  qsort(took, batches, sizeof *took, by_size);
  printf("%.1f\n", (double)took[batches / 2] / BATCH);
  free(took);
  return 0;
}
