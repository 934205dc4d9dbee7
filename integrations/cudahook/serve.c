/* SPDX-License-Identifier: MIT */
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "hook.h"

#define PENDING_MAX 256u /* frees; the next one waits for all of them */

/* Pending frees: memory that a stream may still use */

static void block_release(struct block *block) {
  if (!block)
    return;
  bool before = inside_haul;
  inside_haul = true;
  export_end(block->export);
  haul_region_release(block->region);
  inside_haul = before;
  free(block);
}

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct block *first; /* under the lock */
static _Atomic unsigned count;

/* Without the lock, as the release of a region may wait for peers. */
static void release_all(const struct runtime *calls, struct block *list) {
  while (list) {
    struct block *next = list->next;
    for (unsigned i = 0; i < list->event_count; i++)
      calls->event_destroy(list->events[i]);
    block_release(list);
    list = next;
  }
}

/* An event that fails is done too: its device was reset, or all its work ended by a fault. */
static bool is_done(const struct runtime *calls, const struct block *block) {
  for (unsigned i = 0; i < block->event_count; i++)
    if (calls->event_query(block->events[i]) == cudaErrorNotReady)
      return false;
  return true;
}

/* With the lock. */
static struct block *remove_done(const struct runtime *calls) {
  struct block *done = NULL, **at = &first;
  while (*at) {
    struct block *one = *at;
    if (!is_done(calls, one)) {
      at = &one->next;
      continue;
    }
    *at = one->next;
    one->next = done;
    done = one;
    atomic_fetch_sub(&count, 1);
  }
  return done;
}

/* Releases the blocks that their streams have passed, without a wait. */
static void pending_poll(const struct runtime *calls) {
  if (atomic_load(&count) == 0 || pthread_mutex_trylock(&lock) != 0)
    return;
  struct saved saved = saved_begin(calls);
  /* "not ready" would replace an error that the application has not read yet. */
  struct block *done = saved.error == cudaSuccess ? remove_done(calls) : NULL;
  pthread_mutex_unlock(&lock);
  release_all(calls, done);
  saved_end(calls, &saved);
}

/* Waits for all pending frees; false if there is none. */
static bool pending_wait(const struct runtime *calls) {
  pthread_mutex_lock(&lock);
  struct block *all = first;
  first = NULL;
  atomic_store(&count, 0);
  pthread_mutex_unlock(&lock);
  struct saved saved = saved_begin(calls);
  for (const struct block *one = all; one; one = one->next)
    for (unsigned i = 0; i < one->event_count; i++)
      calls->event_wait(one->events[i]);
  release_all(calls, all);
  saved_end(calls, &saved);
  return all != NULL;
}

/* The event belongs to the current device, which may be another than the stream's: then it fails.
 */
static bool mark_stream(const struct runtime *calls, cudaStream_t stream, cudaEvent_t *event) {
  struct saved saved = saved_begin(calls);
  bool marked = false;
  if (calls->event_create(event, cudaEventDisableTiming) == cudaSuccess) {
    marked = calls->event_record(*event, stream) == cudaSuccess;
    if (!marked)
      calls->event_destroy(*event);
  }
  saved_end(calls, &saved);
  return marked;
}

/* Marks the stream's work, or waits for it if an event cannot mark it. */
static cudaError_t pass_stream(const struct runtime *calls, struct block *block,
                               cudaStream_t stream) {
  if (!mark_stream(calls, stream, &block->events[block->event_count]))
    return calls->stream_wait(stream);
  block->event_count++;
  return cudaSuccess;
}

static void forget_events(const struct runtime *calls, struct block *block) {
  while (block->event_count > 0)
    calls->event_destroy(block->events[--block->event_count]);
}

/* Releases the block after the work in its streams. After an error the caller still owns it. */
static cudaError_t pending_add(const struct runtime *calls, struct block *block,
                               cudaStream_t stream) {
  if (atomic_load(&count) >= PENDING_MAX)
    pending_wait(calls);
  cudaError_t error = pass_stream(calls, block, stream);
  for (unsigned i = 0; i < block->stream_count && error == cudaSuccess; i++)
    error = pass_stream(calls, block, block->streams[i]);
  if (error != cudaSuccess) {
    forget_events(calls, block);
    return error;
  }
  if (block->event_count == 0) {
    block_release(block);
    return cudaSuccess;
  }
  pthread_mutex_lock(&lock);
  block->next = first;
  first = block;
  atomic_fetch_add(&count, 1);
  pthread_mutex_unlock(&lock);
  return cudaSuccess;
}

bool serve_may_act(struct record *record) {
  if (is_forked_child())
    pass_on(record, "in a forked child");
  else if (inside_haul)
    pass_on(record, "a call within haul");
  else if (!runtime()->serves)
    pass_on(record, "no CUDA runtime in the process, or one without stream capture");
  else
    return true;
  return false;
}

static bool is_served_size(struct record *record) {
  if (record->bytes == 0)
    pass_on(record, "invalid size");
  else if (record->bytes < node_minimum())
    pass_on(record, "smaller than HAUL_CUDAHOOK_MINIMUM, %zu bytes", node_minimum());
  else
    return true;
  return false;
}

static bool check_device(struct record *record, const struct runtime *calls, cudaStream_t stream) {
  cudaError_t error = calls->get_device(&record->device);
  bool capturing = error == cudaSuccess && is_capturing(calls, stream, &error);
  if (error != cudaSuccess)
    pass_on(record, "the runtime has no device: error %d", error);
  else if (capturing)
    pass_on(record, "a stream is being captured");
  return error == cudaSuccess && !capturing;
}

static int alloc_region(haul_node *node, int device, size_t bytes, unsigned flags,
                        haul_region **region) {
  struct haul_place place = {HAUL_CUDA, (uint16_t)device};
  inside_haul = true;
  int code = haul_region_alloc(node, place, bytes, flags, region);
  inside_haul = false;
  return code;
}

/* Without memory, retries after the pending frees. */
static haul_region *serve_get_region(struct record *record, const struct runtime *calls) {
  const char *why = "";
  haul_region *region;
  haul_node *node = node_get(&why);
  if (!node)
    return pass_on(record, "%s", why);
  int code = alloc_region(node, record->device, record->bytes, 0, &region);
  if (code == HAUL_ENOMEM && pending_wait(calls))
    code = alloc_region(node, record->device, record->bytes, 0, &region);
  if (code == 0)
    return region;
  return pass_on(record, "%s: %s", haul_error_name(code), haul_error_last()->text);
}

/* Warns once, as all allocations have the same prefix. */
static void log_unpublished(const struct record *record, const char *name) {
  static atomic_flag warned = ATOMIC_FLAG_INIT;
  const struct haul_error *error = haul_error_last();
  if (atomic_flag_test_and_set(&warned))
    log_record(record, "cannot publish %s: %s", name, error->text);
  else
    log_warning(record, "cannot publish %s: %s (hint: %s)", name, error->text, error->hint);
}

static void serve_publish(const struct record *record, haul_region *region) {
  char name[512]; /* names have at most 255 bytes, so a truncated one is rejected too */
  unsigned rights;
  if (!node_next_name(name, sizeof name, &rights))
    return;
  if (haul_region_publish(region, name, rights) != 0)
    log_unpublished(record, name);
  else if (node_unreachable())
    log_record(record, "not reachable as %s: %s", name, node_unreachable());
  else
    log_record(record, "published as %s", name);
}

/* Inserts the block last, as other threads may free it from then on. */
static void *serve_region(struct record *record, haul_region *region) {
  struct block *block = calloc(1, sizeof *block);
  if (!block) {
    haul_region_release(region);
    return pass_on(record, "out of host memory");
  }
  char *address = haul_region_address(region);
  record->address = address;
  block->address = address;
  block->bytes = record->bytes;
  block->device = record->device;
  block->region = region;
  log_record(record, "served");
  serve_publish(record, region);
  block_release(blocks_insert(block));
  return address;
}

void *serve_alloc(struct record *record, cudaStream_t stream) {
  const struct runtime *calls = runtime();
  if (calls->serves && !inside_haul)
    node_check_settings();
  if (!serve_may_act(record) || !is_served_size(record))
    return NULL;
  pending_poll(calls);
  if (!check_device(record, calls, stream))
    return NULL;
  haul_region *region = serve_get_region(record, calls);
  return region ? serve_region(record, region) : NULL;
}

bool serve_again(struct record *record, cudaError_t result) {
  haul_node *node = is_forked_child() ? NULL : node_opened();
  const struct runtime *calls = runtime();
  haul_region *region;
  int device;
  if (result != cudaErrorMemoryAllocation || record->again || inside_haul || !node ||
      calls->get_device(&device) != cudaSuccess)
    return false;
  record->again = true;
  pending_wait(calls);
  /* haul empties its pool before an allocation fails. This one does: no GPU has 64 TiB. */
  if (alloc_region(node, device, (size_t)1 << 46, HAUL_REGION_PRIVATE, &region) == 0)
    haul_region_release(region);
  calls->last_error(); /* of the first attempt */
  return true;
}

cudaError_t serve_passed_on(const struct record *record, void *const *address, cudaError_t result) {
  struct record done = *record;
  done.address = address && result == cudaSuccess ? *address : NULL;
  if (result != cudaSuccess)
    log_record(&done, "passed on: %s; error %d", record->why, result);
  else
    log_record(&done, "passed on: %s", record->why);
  if (done.address && !is_forked_child())
    block_release(blocks_remove(done.address));
  return result;
}

struct block *serve_remove(struct record *record, const void *address) {
  record->address = address;
  if (!address)
    return pass_on(record, "a NULL address");
  if (!serve_may_act(record))
    return NULL;
  pending_poll(runtime());
  struct block *block = blocks_remove(address);
  if (!block)
    return pass_on(record, "not allocated by haul");
  record->bytes = block->bytes;
  record->device = block->device;
  return block;
}

static cudaError_t keep(const struct record *record, struct block *block, cudaError_t error) {
  blocks_insert(block);
  log_record(record, "not freed: error %d", error);
  return error;
}

cudaError_t serve_free(struct record *record, struct block *block) {
  cudaError_t error = device_idle(runtime(), block->device);
  if (error != cudaSuccess)
    return keep(record, block, error);
  log_record(record, "freed");
  block_release(block);
  return cudaSuccess;
}

/* During a capture only memory that the graph allocated can be freed. */
static cudaError_t refuse_capture(const struct runtime *calls, const struct block *block,
                                  cudaStream_t stream) {
  cudaError_t error;
  bool captured = is_capturing(calls, stream, &error);
  for (unsigned i = 0; i < block->stream_count && error == cudaSuccess && !captured; i++)
    captured = is_capturing(calls, block->streams[i], &error);
  return captured ? cudaErrorStreamCaptureUnsupported : error;
}

cudaError_t serve_free_async(struct record *record, struct block *block, cudaStream_t stream) {
  const struct runtime *calls = runtime();
  if (block->stream_count > BLOCK_STREAMS)
    return serve_free(record, block);
  cudaError_t error = refuse_capture(calls, block, stream);
  if (error == cudaSuccess)
    error = pending_add(calls, block, stream);
  if (error != cudaSuccess)
    return keep(record, block, error);
  log_record(record, "freed in stream order");
  return cudaSuccess;
}

void serve_reset(void) {
  const struct runtime *calls = runtime();
  int device;
  if (!calls->serves || is_forked_child() || inside_haul)
    return;
  pending_wait(calls);
  if (calls->get_device(&device) != cudaSuccess)
    return;
  for (struct block *block = blocks_remove_all(device), *next; block; block = next) {
    next = block->next;
    block_release(block);
  }
  import_reset(device);
}
