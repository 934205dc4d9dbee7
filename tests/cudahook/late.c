/* SPDX-License-Identifier: MIT
 * A program that loads the runtime with RTLD_LOCAL, like Python modules. Before that the hook
 * returns an error, as there is no runtime to pass calls on to; afterwards it serves. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "doubles/cudart/cudart.h"

#define CHECK(condition)                                                                           \
  do {                                                                                             \
    if (!(condition)) {                                                                            \
      fprintf(stderr, "%d: %s\n", __LINE__, #condition);                                           \
      return 1;                                                                                    \
    }                                                                                              \
  } while (0)

static void find_symbol(const char *symbol, void *slot) {
  void *found = dlsym(RTLD_DEFAULT, symbol);
  memcpy(slot, &found, sizeof found);
}

int main(void) {
  cudaError_t (*allocate)(void **address, size_t bytes);
  cudaError_t (*release)(void *address);
  void *(*of_framework)(size_t size, int device, void *stream);
  int (*find)(const void *address, void **region, uint64_t *offset);
  void *address = NULL, *region;
  uint64_t offset;
  char path[4096];
  find_symbol("cudaMalloc", &allocate);
  find_symbol("cudaFree", &release);
  find_symbol("haul_cudahook_alloc", &of_framework);
  find_symbol("haul_cudahook_find", &find);
  CHECK(allocate && release && of_framework && find);
  CHECK(allocate(&address, 2 << 20) == 302); /* cudaErrorSharedObjectSymbolNotFound */
  CHECK(release(&address) == 302);
  CHECK(of_framework(2 << 20, 0, NULL) == NULL);

  snprintf(path, sizeof path, "%s/cudart/libcudart.so.12", getenv("HAUL_DOUBLES"));
  CHECK(dlopen(path, RTLD_NOW | RTLD_LOCAL) != NULL);
  CHECK(allocate(&address, 2 << 20) == cudaSuccess);
  CHECK(find(address, &region, &offset) == 0);
  CHECK(release(address) == cudaSuccess);
  CHECK(allocate(&address, 1000) == cudaSuccess);
  CHECK(find(address, &region, &offset) != 0);
  CHECK(release(address) == cudaSuccess);
  CHECK(release(&address) == cudaErrorInvalidValue);
  return 0;
}
