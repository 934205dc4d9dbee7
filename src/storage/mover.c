/* SPDX-License-Identifier: MIT */
#include "storage/mover.h"

#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <unistd.h>

#include "storage/foreign.h"
#include "storage/threads.h"

#define DEADLINE_NS INT64_C(30000000000) /* of one copy; a device that takes longer is lost */

struct mover {
  _Atomic bool hurries; /* far files are not asked any more */
  pthread_mutex_t lock; /* guards what follows; nothing is taken after it */
  pthread_cond_t posted;
  struct list waiting;
  bool stops;
  unsigned count;
  pthread_t threads[];
};

static int errno_of(int code) {
  switch (code) {
  case 0:
    return 0;
  case HAUL_ETIMEDOUT:
    return -ETIMEDOUT;
  case HAUL_ENOMEM:
    return -ENOMEM;
  case HAUL_ESTALE:
    return -ESTALE;
  case HAUL_EACCESS:
    return -EACCES;
  default:
    return -EIO;
  }
}

static int copy(const struct moving *moving) {
  return errno_of(haul_region_copy(moving->to, moving->to_offset, moving->from, moving->from_offset,
                                   moving->length, haul_deadline_in(DEADLINE_NS)));
}

/* What lies beyond the end of the file is no hole. */
static int look_for_holes(const struct moving *moving) {
  struct source *source = moving->far->source;
  struct source_file *file = moving->far->file;
  off_t hole = source->ops->lseek(source, file, moving->hole_from, SEEK_HOLE);
  if (hole < 0)
    return hole == -ENXIO ? 0 : (int)hole;
  if (hole >= moving->hole_end)
    return 0;
  char byte; /* the end of the file is told as a hole, too */
  ssize_t got = source->ops->read(source, file, &byte, 1, hole);
  return got > 0 ? -ENODATA : (int)got;
}

static ssize_t read_far(const struct moving *moving) {
  struct source *source = moving->far->source;
  int status = moving->hole_end ? look_for_holes(moving) : 0;
  return status ? status
                : source->ops->read(source, moving->far->file, moving->bytes, moving->length,
                                    moving->offset);
}

static bool is_lost(const struct moving *moving) {
  return moving->guard && atomic_load(&moving->guard->lost);
}

/* By way of memory of our own, so that what a client has cut off is not written as zeros. */
static ssize_t write_far(const struct moving *moving) {
  struct source *source = moving->far->source;
  char *bytes = moving->guard ? malloc(moving->length) : moving->bytes;
  if (!bytes)
    return -ENOMEM;
  if (moving->guard)
    foreign_copy(bytes, moving->bytes, moving->length);
  ssize_t done = is_lost(moving)
                     ? -EFAULT
                     : source->ops->write(source, moving->far->file, bytes, moving->length,
                                          moving->offset, moving->flags);
  if (moving->guard)
    free(bytes);
  return done;
}

static ssize_t move_far(const struct mover *mover, const struct moving *moving) {
  if (!moving->bytes) {
    far_put(moving->far);
    return 0;
  }
  if (atomic_load(&mover->hurries))
    return -ECANCELED;
  if (moving->writes)
    return write_far(moving);
  ssize_t done = read_far(moving);
  return is_lost(moving) ? -EFAULT : done;
}

static void move(const struct mover *mover, struct moving *moving) {
  moving->result = moving->far ? move_far(mover, moving) : copy(moving);
  moving->done(moving);
}

static struct moving *take(struct mover *mover) {
  pthread_mutex_lock(&mover->lock);
  while (list_empty(&mover->waiting) && !mover->stops)
    pthread_cond_wait(&mover->posted, &mover->lock);
  struct list *item = list_take(&mover->waiting);
  pthread_mutex_unlock(&mover->lock);
  return item ? list_entry(item, struct moving, link) : NULL;
}

static void *run(void *argument) {
  struct mover *mover = argument;
  for (struct moving *moving; (moving = take(mover));)
    move(mover, moving);
  return NULL;
}

void mover_hurry(struct mover *mover) {
  atomic_store(&mover->hurries, true);
}

void mover_post(struct mover *mover, struct moving *moving) {
  list_init(&moving->link);
  pthread_mutex_lock(&mover->lock);
  list_append(&mover->waiting, &moving->link);
  pthread_cond_signal(&mover->posted);
  pthread_mutex_unlock(&mover->lock);
}

int mover_open(unsigned threads, struct mover **out) {
  struct mover *mover = calloc(1, sizeof *mover + threads * sizeof mover->threads[0]);
  if (!mover)
    return -ENOMEM;
  pthread_mutex_init(&mover->lock, NULL);
  pthread_cond_init(&mover->posted, NULL);
  list_init(&mover->waiting);
  int code = 0;
  while (code == 0 && mover->count < threads) {
    code = storage_thread(&mover->threads[mover->count], run, mover);
    mover->count += code == 0;
  }
  if (code)
    mover_close(mover);
  else
    *out = mover;
  return code;
}

void mover_close(struct mover *mover) {
  if (!mover)
    return;
  pthread_mutex_lock(&mover->lock);
  mover->stops = true;
  pthread_cond_broadcast(&mover->posted);
  pthread_mutex_unlock(&mover->lock);
  for (unsigned i = 0; i < mover->count; i++)
    pthread_join(mover->threads[i], NULL);
  pthread_cond_destroy(&mover->posted);
  pthread_mutex_destroy(&mover->lock);
  free(mover);
}
