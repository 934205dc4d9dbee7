/* SPDX-License-Identifier: MIT
 * Staged buffers: device memory that the daemon cannot reach. It knows a window of shared memory by
 * their id. Each operation has a part of the window: its bytes are copied there before a write is
 * published, and from there after a read has completed. */
#include <errno.h>
#include <stdlib.h>

#include "client.h"
#include "library.h"

#define WINDOW_BYTES    ((uint64_t)64 << 20) /* as libhaul's bounce buffers */
#define PART_ALIGNMENT  4096u                /* the daemon bypasses the page cache */
#define COPY_TIMEOUT_NS INT64_C(30000000000) /* a longer copy counts as a lost device */

struct stage_part {
  struct stage_part *next; /* in the order of their places */
  struct stage *stage;
  uint64_t place;          /* in the window */
  uint64_t offset, length; /* in the device's memory */
  bool read;
};

struct stage {
  const struct library *calls;
  haul_region *memory, *view; /* the device's, and the window */
  struct buffer *window;
  uint64_t size; /* of the window */

  pthread_mutex_t lock; /* guards the fields below; no lock is taken after it */
  pthread_cond_t quiet; /* no copy is in progress */
  struct stage_part *parts;
  unsigned copies; /* in progress */
  unsigned users;  /* the device, and the operations in flight */
  bool closed;
};

static void free_stage(struct stage *stage) {
  for (struct stage_part *part = stage->parts, *next; part; part = next) {
    next = part->next;
    free(part);
  }
  pthread_mutex_destroy(&stage->lock);
  pthread_cond_destroy(&stage->quiet);
  free(stage);
}

/* With the lock, which it releases. */
static void drop_user(struct stage *stage) {
  bool last = --stage->users == 0;
  pthread_mutex_unlock(&stage->lock);
  if (last)
    free_stage(stage);
}

/* The daemon maps the window when it is registered; no other process is to open it. */
static int open_window(struct stage *stage, const char *mount, const uint8_t id[16]) {
  struct iov_name name = {.block = 0};
  memcpy(name.id, id, sizeof name.id);
  int code = buffer_new(mount, &name, stage->size, -1, &stage->window);
  if (code)
    return code;
  code = buffer_register(stage->window);
  if (code == 0) {
    buffer_unlink(stage->window);
    code = library_errno(stage->calls->haul_region_wrap(stage->calls->node, stage->window->base,
                                                        stage->size, &stage->view));
    if (code)
      unlink(stage->window->link);
  }
  if (code)
    buffer_free(stage->window);
  return code;
}

int stage_new(const char *mount, const uint8_t id[16], uint64_t size, haul_region *memory,
              struct stage **out) {
  struct stage *stage = calloc(1, sizeof *stage);
  if (!stage)
    return -ENOMEM;
  stage->calls = library_get();
  stage->memory = memory;
  stage->size = size < WINDOW_BYTES ? size : WINDOW_BYTES;
  stage->users = 1;
  pthread_mutex_init(&stage->lock, NULL);
  pthread_cond_init(&stage->quiet, NULL);
  int code = open_window(stage, mount, id);
  if (code)
    free_stage(stage);
  else
    *out = stage;
  return code;
}

void stage_close(struct stage *stage) {
  pthread_mutex_lock(&stage->lock);
  stage->closed = true;
  while (stage->copies > 0)
    pthread_cond_wait(&stage->quiet, &stage->lock);
  unlink(stage->window->link);
  stage->calls->haul_region_release(stage->view);
  buffer_free(stage->window);
  drop_user(stage);
}

static int copy_part(const struct stage_part *part, uint64_t length) {
  struct stage *stage = part->stage;
  haul_deadline until = stage->calls->haul_deadline_in(COPY_TIMEOUT_NS);
  return library_errno(part->read
                           ? stage->calls->haul_region_copy(stage->memory, part->offset,
                                                            stage->view, part->place, length, until)
                           : stage->calls->haul_region_copy(stage->view, part->place, stage->memory,
                                                            part->offset, length, until));
}

/* Copies unless the buffer has been destroyed, which waits for this. */
static int copy_now(struct stage_part *part, uint64_t length) {
  struct stage *stage = part->stage;
  pthread_mutex_lock(&stage->lock);
  bool closed = stage->closed;
  stage->copies += !closed;
  pthread_mutex_unlock(&stage->lock);
  if (closed)
    return -ECANCELED;
  int code = copy_part(part, length);
  pthread_mutex_lock(&stage->lock);
  if (--stage->copies == 0)
    pthread_cond_broadcast(&stage->quiet);
  pthread_mutex_unlock(&stage->lock);
  return code;
}

static uint64_t end_of(const struct stage_part *part) {
  return (part->place + part->length + PART_ALIGNMENT - 1) / PART_ALIGNMENT * PART_ALIGNMENT;
}

/* With the lock: gives the part the first gap that holds it. The first pages are used most, so that
 * the others need no memory. False: there is none. */
static bool add_part(struct stage *stage, struct stage_part *part) {
  struct stage_part **at = &stage->parts;
  part->place = 0;
  while (*at && (*at)->place - part->place < part->length) {
    part->place = end_of(*at);
    at = &(*at)->next;
  }
  if (part->place > stage->size || part->length > stage->size - part->place)
    return false;
  part->next = *at;
  *at = part;
  stage->users++;
  return true;
}

static void remove_part(struct stage_part *part) {
  struct stage *stage = part->stage;
  struct stage_part **at = &stage->parts;
  pthread_mutex_lock(&stage->lock);
  while (*at != part)
    at = &(*at)->next;
  *at = part->next;
  free(part);
  drop_user(stage);
}

int stage_begin(struct stage *stage, bool read, uint64_t offset, uint64_t length,
                struct stage_part **out) {
  if (length > stage->size)
    return -EINVAL;
  struct stage_part *part = malloc(sizeof *part);
  if (!part)
    return -ENOMEM;
  *part = (struct stage_part){.stage = stage, .offset = offset, .length = length, .read = read};
  pthread_mutex_lock(&stage->lock);
  bool fits = add_part(stage, part);
  pthread_mutex_unlock(&stage->lock);
  if (!fits) {
    free(part);
    return -EAGAIN;
  }
  int code = read ? 0 : copy_now(part, length);
  if (code)
    remove_part(part);
  else
    *out = part;
  return code;
}

uint64_t stage_place(const struct stage_part *part) {
  return part->place;
}

int64_t stage_end(struct stage_part *part, int64_t result) {
  if (part->read && result > 0) {
    int code = (uint64_t)result > part->length ? -EPROTO : copy_now(part, (uint64_t)result);
    result = code ? code : result;
  }
  remove_part(part);
  return result;
}

void stage_abandon(struct stage_part *part) {
  pthread_mutex_lock(&part->stage->lock);
  drop_user(part->stage);
}
