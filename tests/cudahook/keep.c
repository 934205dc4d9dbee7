/* SPDX-License-Identifier: MIT
 * keep BYTES: an application without haul. It allocates memory, fills it from stdin, prints "ready"
 * or the error, and frees the memory at the next byte or the end of stdin. */
#include <stdio.h>
#include <stdlib.h>

#include "doubles/cudart/cudart.h"

static int failed(const char *call, cudaError_t error) {
  printf("%s: error %d\n", call, error);
  return 1;
}

static int fill(void *to, size_t bytes) {
  char *host = calloc(1, bytes);
  if (!host)
    return 1;
  size_t got = fread(host, 1, bytes, stdin);
  cudaError_t error = cudaMemcpy(to, host, got, cudaMemcpyHostToDevice);
  free(host);
  return error == cudaSuccess ? 0 : failed("cudaMemcpy", error);
}

int main(int count, char **arguments) {
  size_t bytes = count > 1 ? strtoul(arguments[1], NULL, 10) : (size_t)1 << 20;
  void *address = NULL;
  cudaError_t error = cudaMalloc(&address, bytes);
  if (error != cudaSuccess)
    return failed("cudaMalloc", error);
  if (fill(address, bytes) != 0)
    return 1;
  puts("ready");
  fflush(stdout);
  getchar();
  error = cudaFree(address);
  return error == cudaSuccess ? 0 : failed("cudaFree", error);
}
