/* SPDX-License-Identifier: MIT */
#include "serve.h"

#include <stdatomic.h>
#include <stdlib.h>

#include "later.h"
#include "node.h"

/* ---- Allocating ---- */

static bool may_serve(struct record *record, const struct runtime *calls) {
  if (is_forked_child())
    because(record, "in a forked child");
  else if (inside_haul)
    because(record, "called within haul");
  else if (record->bytes == 0)
    because(record, "no bytes, or too many");
  else if (record->bytes < node_minimum())
    because(record, "smaller than HAUL_CUDAHOOK_MINIMUM, %zu bytes", node_minimum());
  else if (!calls->serves)
    because(record, "no CUDA runtime in the process, or one without captures");
  else
    return true;
  return false;
}

static bool learn_device(struct record *record, const struct runtime *calls, cudaStream_t stream) {
  cudaError_t error = calls->get_device(&record->device);
  bool capturing = error == cudaSuccess && is_capturing(calls, stream, &error);
  if (error != cudaSuccess)
    because(record, "the runtime has no device: error %d", error);
  else if (capturing)
    because(record, "a stream is being captured");
  return error == cudaSuccess && !capturing;
}

static int alloc_region(haul_node *node, const struct record *record, haul_region **region) {
  struct haul_place place = {HAUL_CUDA, (uint16_t)record->device};
  inside_haul = true;
  int code = haul_region_alloc(node, place, record->bytes, 0, region);
  inside_haul = false;
  return code;
}

/* What streams have not come to yet is memory too. */
static haul_region *get_region(struct record *record, const struct runtime *calls) {
  const char *why = "";
  haul_region *region;
  haul_node *node = node_get(&why);
  if (!node)
    return because(record, "%s", why);
  int code = alloc_region(node, record, &region);
  if (code == HAUL_ENOMEM && later_wait(calls))
    code = alloc_region(node, record, &region);
  if (code == 0)
    return region;
  return because(record, "%s: %s", haul_error_name(code), haul_error_last()->text);
}

/* All allocations have the same prefix: the first one is told also without a log. */
static void not_published(const struct record *record, const char *name) {
  static atomic_flag told = ATOMIC_FLAG_INIT;
  const struct haul_error *error = haul_error_last();
  if (atomic_flag_test_and_set(&told))
    log_record(record, "not published as %s: %s", name, error->text);
  else
    log_trouble(record, "not published as %s: %s (hint: %s)", name, error->text, error->hint);
}

static void publish(const struct record *record, haul_region *region) {
  char name[512]; /* a name has 255 bytes at most, so one that is cut is refused too */
  unsigned rights;
  if (!node_next_name(name, sizeof name, &rights))
    return;
  if (haul_region_publish(region, name, rights) != 0)
    not_published(record, name);
  else if (node_unreachable())
    log_record(record, "not reachable as %s: %s", name, node_unreachable());
  else
    log_record(record, "published as %s", name);
}

/* Into the table last: from then on other threads may free it. */
static void *hand_out(struct record *record, haul_region *region) {
  struct block *block = malloc(sizeof *block);
  if (!block) {
    haul_region_release(region);
    return because(record, "no memory for its entry");
  }
  char *address = haul_region_address(region);
  record->address = address;
  *block = (struct block){NULL, address, record->bytes, record->device, region};
  log_record(record, "served");
  publish(record, region);
  serve_end(blocks_put(block));
  return address;
}

void *serve_alloc(struct record *record, cudaStream_t stream) {
  const struct runtime *calls = runtime();
  if (calls->serves && !inside_haul)
    node_tell_settings();
  if (!may_serve(record, calls))
    return NULL;
  later_poll(calls);
  if (!learn_device(record, calls, stream))
    return NULL;
  haul_region *region = get_region(record, calls);
  return region ? hand_out(record, region) : NULL;
}

cudaError_t serve_passed_on(const struct record *record, void *address, cudaError_t result) {
  struct record done = *record;
  done.address = address;
  if (result != cudaSuccess)
    log_record(&done, "passed on: %s; error %d", record->why, result);
  else
    log_record(&done, "passed on: %s", record->why);
  if (result == cudaSuccess && address && !is_forked_child())
    serve_end(blocks_take(address));
  return result;
}

/* ---- Freeing ---- */

void serve_end(struct block *block) {
  if (!block)
    return;
  bool before = inside_haul;
  inside_haul = true;
  haul_region_release(block->region);
  inside_haul = before;
  free(block);
}

struct block *serve_take(struct record *record, const void *address) {
  const struct runtime *calls = runtime();
  record->address = address;
  if (!address)
    return because(record, "there is nothing to free");
  if (is_forked_child())
    return because(record, "in a forked child");
  if (inside_haul || !calls->serves)
    return because(record, "not haul's");
  later_poll(calls);
  struct block *block = blocks_take(address);
  if (!block)
    return because(record, "not haul's");
  record->bytes = block->bytes;
  record->device = block->device;
  return block;
}

static cudaError_t keep(const struct record *record, struct block *block, cudaError_t error) {
  blocks_put(block);
  log_record(record, "kept: error %d", error);
  return error;
}

static cudaError_t wait_for_device(const struct runtime *calls, int device) {
  cudaError_t error;
  int before = device_enter(calls, device, &error);
  if (error != cudaSuccess)
    return error;
  /* The wait would end the capture. */
  if (is_capturing(calls, cudaStreamLegacy, &error))
    error = cudaErrorStreamCaptureUnsupported;
  if (error == cudaSuccess)
    error = calls->device_wait();
  device_leave(calls, before, device);
  return error;
}

cudaError_t serve_free(struct record *record, struct block *block) {
  cudaError_t error = wait_for_device(runtime(), block->device);
  if (error != cudaSuccess)
    return keep(record, block, error);
  log_record(record, "given back");
  serve_end(block);
  return cudaSuccess;
}

/* While a stream is captured the runtime frees what the graph itself allocated, and nothing else.
 */
cudaError_t serve_free_async(struct record *record, struct block *block, cudaStream_t stream) {
  const struct runtime *calls = runtime();
  cudaError_t error;
  if (is_capturing(calls, stream, &error))
    error = cudaErrorStreamCaptureUnsupported;
  if (error == cudaSuccess)
    error = later_add(calls, block, stream);
  if (error != cudaSuccess)
    return keep(record, block, error);
  log_record(record, "given back when its stream has come there");
  return cudaSuccess;
}

void serve_reset(void) {
  const struct runtime *calls = runtime();
  int device;
  if (!calls->serves || is_forked_child() || inside_haul)
    return;
  later_wait(calls);
  if (calls->get_device(&device) != cudaSuccess)
    return;
  for (struct block *block = blocks_take_all(device), *next; block; block = next) {
    next = block->next;
    serve_end(block);
  }
}
