/* SPDX-License-Identifier: MIT */
#include "places.h"

#include <dlfcn.h>
#include <haul/device.h>
#include <haul/haul.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

static haul_node *node; /* of the rank, besides the plugin's */
static struct haul_place where = {HAUL_HOST, 0};

static bool open_node(void) {
  const char *text = getenv("HAUL_TEST_PLACE");
  struct haul_node_config config = HAUL_NODE_CONFIG_INIT;
  haul_region *region;
  config.progress = HAUL_PROGRESS_CALLER;
  if (node)
    return true;
  if (text && haul_place_parse(text, &where) != 0)
    return false;
  return haul_node_open(&config, &node) == 0 &&
         haul_region_alloc(node, where, 4096, 0, &region) == 0;
}

/* In a child: this process forks ranks, so it must not open a node. */
bool places_are_available(void) {
  int status = 1;
  pid_t child = fork();
  if (child == 0)
    _exit(open_node() ? 0 : 1);
  waitpid(child, &status, 0);
  if (status)
    printf("skipped all: this host has no %s\n", getenv("HAUL_TEST_PLACE"));
  return status == 0;
}

static struct {
  void *library, *context;
  int (*retain)(void **context, int device);
  int (*push)(void *context);
  int (*pop)(void **context);
  int (*alloc)(uint64_t *address, size_t size);
} driver;

static bool find_call(const char *name, void *slot) {
  void *found = dlsym(driver.library, name);
  memcpy(slot, &found, sizeof found);
  return found;
}

/* Like cudaMalloc, in the primary context, which the CUDA runtime shares. */
static void *gpu_alloc(size_t size) {
  uint64_t address = 0;
  if (!driver.library) {
    driver.library = dlopen("libcuda.so.1", RTLD_NOW);
    bool whole = driver.library && find_call("cuDevicePrimaryCtxRetain", &driver.retain) &&
                 find_call("cuCtxPushCurrent_v2", &driver.push) &&
                 find_call("cuCtxPopCurrent_v2", &driver.pop) &&
                 find_call("cuMemAlloc_v2", &driver.alloc);
    if (!whole || driver.retain(&driver.context, 0) != 0)
      return NULL;
  }
  void *was;
  bool good = driver.push(driver.context) == 0 && driver.alloc(&address, size) == 0;
  driver.pop(&was);
  return good ? (void *)(uintptr_t)address : NULL;
}

/* GPU memory is freed by the end of the rank. */
void place_make(const struct rank *rank, struct place *place, size_t size) {
  haul_region *region = NULL;
  rank_need(rank, open_node());
  *place = (struct place){.size = size, .type = NCCL_POINTER_CUDA};
  if (where.kind == HAUL_HOST) {
    place->address = malloc(size);
    place->type = NCCL_POINTER_HOST;
  } else if (where.kind == HAUL_CUDA) {
    place->address = gpu_alloc(size);
    rank_need(rank, place->address);
    if (haul_region_wrap(node, place->address, size, &region))
      rank_fail(rank, "%s", haul_error_last()->text);
  } else {
    rank_need(rank, haul_region_alloc(node, where, size, 0, &region) == 0);
    place->address = haul_region_address(region);
  }
  rank_need(rank, place->address);
  place->region = region;
}

void place_end(struct place *place) {
  if (place->region)
    haul_region_release(place->region);
  else
    free(place->address);
}

/* Without dma-buf support it is an empty file, as the plugin asks the driver by the address. */
static int dmabuf_of(const struct place *place, uint64_t *offset) {
  int descriptor = -1;
  *offset = 0;
  if (haul_region_dmabuf(place->region, &descriptor, offset))
    descriptor = memfd_create("no dma-buf", MFD_CLOEXEC);
  return descriptor;
}

void place_register(const struct rank *rank, const struct place *place, void *comm, void **memory) {
  uint64_t offset;
  if (!place->region) {
    rank_ok(rank, net_register(comm, place->address, place->size, place->type, memory));
    return;
  }
  int descriptor = dmabuf_of(place, &offset);
  rank_need(rank, descriptor >= 0);
  rank_ok(rank, net_register_dmabuf(comm, place->address, place->size, place->type, offset,
                                    descriptor, memory));
  rank_need(rank, close(descriptor) == 0);
}

static void copy(const struct rank *rank, const struct place *place, size_t offset, void *bytes,
                 size_t size, bool out) {
  haul_region *host;
  if (size == 0)
    return;
  if (!place->region) {
    memcpy(out ? (void *)(place->address + offset) : bytes,
           out ? bytes : (void *)(place->address + offset), size);
    return;
  }
  rank_need(rank, haul_region_wrap(node, bytes, size, &host) == 0);
  haul_deadline until = haul_deadline_in(INT64_C(300000000000)); /* a sanitizer on a busy machine */
  int code = out ? haul_region_copy(place->region, offset, host, 0, size, until)
                 : haul_region_copy(host, 0, place->region, offset, size, until);
  haul_region_release(host);
  rank_need(rank, code == 0);
}

void place_put(const struct rank *rank, const struct place *place, size_t offset,
               const uint8_t *bytes, size_t size) {
  copy(rank, place, offset, (void *)(uintptr_t)bytes, size, true);
}

void place_get(const struct rank *rank, const struct place *place, size_t offset, uint8_t *bytes,
               size_t size) {
  copy(rank, place, offset, bytes, size, false);
}
