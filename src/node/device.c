/* SPDX-License-Identifier: MIT
 * The public calls of haul/device.h. */
#include <haul/device.h>
#include <pthread.h>

#include "core/alloc.h"
#include "core/error.h"
#include "core/fork.h"
#include "memory/copy.h"
#include "memory/region.h"

struct haul_copy {
  pthread_mutex_t lock; /* one looks at a time */
  haul_region *to, *from;
  struct copy_pending pending;
  int status;            /* 1: under way */
  struct haul_error why; /* of a failure, for every caller's thread */
};

static int not_at_once(void) {
  return error_set(HAUL_ENOTSUP, 0, NULL, "haul_region_copy does it by way of buffers",
                   "no engine copies straight between the two");
}

static int start(haul_copy *copy, uint64_t to_offset, uint64_t from_offset, size_t length) {
  struct memory *to = &copy->to->memory, *from = &copy->from->memory;
  int code = copy_check(to, to_offset, from, from_offset, length);
  if (code)
    return code;
  switch (copy_method(to, from, &copy->pending.engine)) {
  case COPY_CPU:
    copy->status = 0;
    return copy_sync(NULL, to, to_offset, from, from_offset, length, HAUL_FOREVER);
  case COPY_ENGINE:
    copy->status = 1;
    code = copy_pending_start(&copy->pending, to, to_offset, from, from_offset, length);
    return code == 1 ? not_at_once() : code;
  case COPY_STAGED:
    break;
  }
  return not_at_once();
}

static int check(haul_region *to, uint64_t to_offset, haul_region *from, uint64_t from_offset,
                 size_t length, haul_copy **copy) {
  if (!to || !from || !copy)
    return error_set(HAUL_EINVAL, 0, NULL, NULL, "no region, or no place for the copy");
  if (length == 0)
    return error_set(HAUL_EINVAL, 0, NULL, NULL, "a copy of no bytes");
  int code = region_check(to, to_offset, length);
  if (code == 0)
    code = region_check(from, from_offset, length);
  if (code == 0 && !(memory_alive(&to->memory) && memory_alive(&from->memory)))
    code = error_released(NULL);
  return code;
}

HAUL_API int haul_copy_start(haul_region *to, uint64_t to_offset, haul_region *from,
                             uint64_t from_offset, size_t length, haul_copy **copy) {
  int code = error_enter("haul_copy_start");
  if (code == 0)
    code = check(to, to_offset, from, from_offset, length, copy);
  if (code)
    return code;
  haul_copy *made = alloc_zero(1, sizeof *made);
  if (!made)
    return error_memory("a copy");
  made->to = to;
  made->from = from;
  code = start(made, to_offset, from_offset, length);
  if (code) {
    alloc_free(made);
    return code;
  }
  pthread_mutex_init(&made->lock, NULL);
  region_retain(to);
  region_retain(from);
  *copy = made;
  return 0;
}

/* With the lock. */
static void look(haul_copy *copy) {
  copy->status = copy_pending_look(&copy->pending);
  if (copy->status == 0 && !(memory_alive(&copy->to->memory) && memory_alive(&copy->from->memory)))
    copy->status = error_released(NULL);
  if (copy->status < 0)
    error_save(&copy->why);
}

HAUL_API int haul_copy_test(haul_copy *copy) {
  int code = error_enter("haul_copy_test");
  if (code)
    return code;
  if (!copy)
    return error_set(HAUL_EINVAL, 0, NULL, NULL, "no copy");
  pthread_mutex_lock(&copy->lock);
  if (copy->status == 1)
    look(copy);
  int status = copy->status;
  pthread_mutex_unlock(&copy->lock);
  return status < 0 ? error_restore(&copy->why) : status;
}

/* In a forked child the engine is the parent's, and so is the lock. */
HAUL_API void haul_copy_release(haul_copy *copy) {
  if (!copy)
    return;
  if (!fork_is_child()) {
    if (copy->status == 1)
      copy_pending_cancel(&copy->pending);
    pthread_mutex_destroy(&copy->lock);
    region_put(copy->to);
    region_put(copy->from);
  }
  alloc_free(copy);
}

HAUL_API int haul_region_dmabuf(haul_region *region, int *descriptor, uint64_t *offset) {
  int code = error_enter("haul_region_dmabuf");
  if (code)
    return code;
  if (!region || !descriptor || !offset)
    return error_set(HAUL_EINVAL, 0, NULL, NULL, "no region, or no place for the descriptor");
  if (!memory_alive(&region->memory))
    return error_released(NULL);
  return memory_dmabuf(&region->memory, descriptor, offset);
}
