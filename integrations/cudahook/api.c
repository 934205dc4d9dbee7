/* SPDX-License-Identifier: MIT
 * The public calls of haul-cudahook.h. */
#include "haul-cudahook.h"
#include "hook.h"

/* PyTorch makes the device current before it calls; other frameworks may not. */
static void *alloc_here(struct record *record, cudaStream_t stream) {
  const struct runtime *calls = runtime();
  void *address = serve_alloc(record, stream);
  if (address)
    return address;
  cudaError_t result;
  do
    result = calls->malloc ? calls->malloc(&address, record->bytes) : NO_RUNTIME;
  while (serve_again(record, result));
  return serve_passed_on(record, &address, result) == cudaSuccess ? address : NULL;
}

void *haul_cudahook_alloc(size_t size, int device, void *stream) {
  struct record record = {.call = "haul_cudahook_alloc", .bytes = size, .device = device};
  const struct runtime *calls = runtime();
  cudaError_t error = NO_RUNTIME;
  if (size == 0)
    return NULL;
  int before = calls->serves ? device_enter(calls, device, &error) : -1;
  if (error != cudaSuccess) {
    log_record(&record, "failed: error %d", error);
    return NULL;
  }
  void *address = alloc_here(&record, stream);
  device_leave(calls, before, device);
  return address;
}

static void free_here(struct record *record, void *address, cudaStream_t stream) {
  const struct runtime *calls = runtime();
  struct block *block = serve_remove(record, address);
  if (block) {
    serve_free_async(record, block, stream);
    return;
  }
  log_record(record, "passed on: %s", record->why);
  if (calls->free)
    calls->free(address);
}

void haul_cudahook_free(void *address, size_t size, int device, void *stream) {
  struct record record = {.call = "haul_cudahook_free", .bytes = size, .device = device};
  const struct runtime *calls = runtime();
  cudaError_t error = NO_RUNTIME;
  int before = calls->serves && address ? device_enter(calls, device, &error) : -1;
  if (!address)
    return;
  free_here(&record, address, stream);
  if (error == cudaSuccess)
    device_leave(calls, before, device);
}

static int record_stream(void *user, struct block *block) {
  cudaStream_t stream = user;
  unsigned i = 0;
  while (i < block->stream_count && i < BLOCK_STREAMS && block->streams[i] != stream)
    i++;
  if (i < block->stream_count)
    return 0; /* known, or there are more than fit */
  if (i < BLOCK_STREAMS)
    block->streams[i] = stream;
  block->stream_count++;
  return 0;
}

/* Memory that the runtime allocated is freed by cudaFree, which waits for the device. */
void haul_cudahook_record_stream(void *address, void *stream) {
  if (address && !is_forked_child())
    blocks_use(address, record_stream, stream);
}

struct search {
  const char *address;
  haul_region **region;
  uint64_t *offset;
};

static int store_found(void *user, struct block *block) {
  const struct search *search = user;
  *search->region = block->region;
  *search->offset = (uint64_t)(search->address - block->address);
  return 0;
}

int haul_cudahook_find(const void *address, haul_region **region, uint64_t *offset) {
  struct search search = {address, region, offset};
  if (is_forked_child())
    return HAUL_EFORK;
  if (!address || !region || !offset)
    return HAUL_EINVAL;
  return blocks_use(address, store_found, &search);
}

struct publication {
  const char *name;
  unsigned rights;
};

/* With the lock of the block, so that no thread releases the region meanwhile. */
static int publish_block(void *user, struct block *block) {
  const struct publication *publication = user;
  return haul_region_publish(block->region, publication->name, publication->rights);
}

int haul_cudahook_publish(const void *address, const char *name, unsigned rights) {
  struct publication publication = {name, rights};
  if (is_forked_child())
    return HAUL_EFORK;
  return address ? blocks_use(address, publish_block, &publication) : HAUL_EINVAL;
}
