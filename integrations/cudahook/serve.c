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

struct pending {
  struct pending *next;
  struct block *block;
  cudaEvent_t event;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct pending *first; /* under the lock */
static _Atomic unsigned count;

/* Without the lock, as the release of a region may wait for peers. */
static void release_all(const struct runtime *calls, struct pending *list) {
  while (list) {
    struct pending *next = list->next;
    calls->event_destroy(list->event);
    block_release(list->block);
    free(list);
    list = next;
  }
}

/* With the lock. An event that fails is done too: its device was reset, or all its work ended by a
 * fault. */
static struct pending *remove_done(const struct runtime *calls) {
  struct pending *done = NULL, **at = &first;
  while (*at) {
    struct pending *one = *at;
    if (calls->event_query(one->event) == cudaErrorNotReady) {
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
  struct pending *done = saved.error == cudaSuccess ? remove_done(calls) : NULL;
  pthread_mutex_unlock(&lock);
  release_all(calls, done);
  saved_end(calls, &saved);
}

/* Waits for all pending frees; false if there is none. */
static bool pending_wait(const struct runtime *calls) {
  pthread_mutex_lock(&lock);
  struct pending *all = first;
  first = NULL;
  atomic_store(&count, 0);
  pthread_mutex_unlock(&lock);
  struct saved saved = saved_begin(calls);
  for (const struct pending *one = all; one; one = one->next)
    calls->event_wait(one->event);
  release_all(calls, all);
  saved_end(calls, &saved);
  return all != NULL;
}

/* The event belongs to the current device, which may be another than the stream's: then it fails.
 */
static cudaError_t mark_stream(const struct runtime *calls, cudaStream_t stream,
                               cudaEvent_t *event) {
  cudaError_t error = calls->event_create(event, cudaEventDisableTiming);
  if (error != cudaSuccess)
    return error;
  error = calls->event_record(*event, stream);
  if (error != cudaSuccess)
    calls->event_destroy(*event);
  return error;
}

/* Releases the block after the work in the stream. Waits for the stream if an event cannot mark it.
 * After an error the caller still owns the block. */
static cudaError_t pending_add(const struct runtime *calls, struct block *block,
                               cudaStream_t stream) {
  cudaEvent_t event = NULL;
  if (atomic_load(&count) >= PENDING_MAX)
    pending_wait(calls);
  struct pending *made = malloc(sizeof *made);
  struct saved saved = saved_begin(calls);
  bool marked = made && mark_stream(calls, stream, &event) == cudaSuccess;
  saved_end(calls, &saved);
  if (marked) {
    pthread_mutex_lock(&lock);
    *made = (struct pending){.next = first, .block = block, .event = event};
    first = made;
    atomic_fetch_add(&count, 1);
    pthread_mutex_unlock(&lock);
    return cudaSuccess;
  }
  free(made);
  cudaError_t error = calls->stream_wait(stream);
  if (error == cudaSuccess)
    block_release(block);
  return error;
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
  struct block *block = malloc(sizeof *block);
  if (!block) {
    haul_region_release(region);
    return pass_on(record, "out of host memory");
  }
  char *address = haul_region_address(region);
  record->address = address;
  *block = (struct block){NULL, address, record->bytes, record->device, region, NULL};
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
cudaError_t serve_free_async(struct record *record, struct block *block, cudaStream_t stream) {
  const struct runtime *calls = runtime();
  cudaError_t error;
  if (is_capturing(calls, stream, &error))
    error = cudaErrorStreamCaptureUnsupported;
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
