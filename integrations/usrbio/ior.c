/* SPDX-License-Identifier: MIT */
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "client.h"

#define SEMAPHORES "/dev/shm/sem." /* where sem_open looks for /NAME */

size_t hf3fs_ior_size(int entries) {
  return entries >= 0 ? ring_bytes(entries) : 0;
}

/* What a ring is asked to be. */
struct wish {
  int entries, depth, priority, timeout, numa;
  bool for_read;
  uint64_t flags;
};

static bool is_ring(const struct wish *wish) {
  return wish->entries >= 1 && wish->entries <= RING_ENTRIES && wish->timeout >= 0 &&
         wish->depth > INT_MIN && wish->depth <= wish->entries;
}

/* enum ring_priority. */
static uint8_t priority_of(int priority) {
  return priority < 0 ? RING_HIGH : priority > 0 ? RING_LOW : RING_NORMAL;
}

/* `target` is a semaphore's file, and no other one; its name as sem_open takes it goes to `name`.
 */
static int semaphore_name(const char *target, char name[NAME_MAX + 1]) {
  struct stat found;
  if (strncmp(target, SEMAPHORES, sizeof SEMAPHORES - 1) != 0)
    return -EIO;
  const char *rest = target + sizeof SEMAPHORES - 1;
  size_t length = strlen(rest);
  if (length == 0 || length > NAME_MAX - 1 || strchr(rest, '/'))
    return -EIO;
  if (lstat(target, &found) != 0)
    return -errno;
  if (!S_ISREG(found.st_mode) || found.st_size < (off_t)sizeof(sem_t)) /* which it does not ask */
    return -EIO;
  name[0] = '/';
  memcpy(name + 1, rest, length + 1);
  return 0;
}

/* The semaphore that the daemon waits for. EIO: its link names something else. */
static int open_semaphore(const char *mount, uint8_t priority, sem_t **semaphore) {
  static const char *const marks[] = {".ph", "", ".pl"};
  char link[LINK_ROOM], target[PATH_MAX], name[NAME_MAX + 1];
  snprintf(link, sizeof link, "%s/3fs-virt/iovs/submit-ios%s", mount, marks[priority]);
  ssize_t length = readlink(link, target, sizeof target - 1);
  if (length < 0)
    return -errno;
  target[length] = '\0';
  int status = semaphore_name(target, name);
  if (status != 0)
    return status;
  *semaphore = sem_open(name, 0);
  return *semaphore != SEM_FAILED ? 0 : -errno;
}

/* The process's own half; memory and semaphore come later. */
static struct ring *make_ring(const struct wish *wish) {
  struct ring *ring = aligned_alloc(_Alignof(struct ring), sizeof *ring);
  if (!ring)
    return NULL;
  memset(ring, 0, sizeof *ring);
  ring->for_read = wish->for_read;
  pthread_mutex_init(&ring->taking, NULL);
  if (slots_make(&ring->slots, wish->entries) == 0)
    return ring;
  free(ring);
  return NULL;
}

static void end_ring(struct ring *ring) {
  slots_end(&ring->slots);
  pthread_mutex_destroy(&ring->taking);
  free(ring);
}

/* All that is there before the daemon knows the ring. */
static int set_up(struct ring *ring, const char *mount, const struct wish *wish,
                  struct iov_name *name) {
  size_t size = ring_bytes(wish->entries);
  int status = buffer_make(mount, name, size, wish->numa, &ring->buffer);
  if (status != 0)
    return status;
  status = open_semaphore(mount, priority_of(wish->priority), &ring->submit);
  if (status != 0)
    goto no_semaphore;
  ring_view_init(&ring->view, ring->buffer->memory.base, size);
  sem_init(ring->view.semaphore, 1, 0);
  return 0;
no_semaphore:
  buffer_end(ring->buffer);
  return status;
}

static void describe(struct hf3fs_ior *ior, struct ring *ring, const char *mount,
                     const struct wish *wish, const struct iov_name *name) {
  char path[MOUNT_PATH]; /* `mount` may be in `ior` */
  strcpy(path, mount);
  *ior = (struct hf3fs_ior){
      .iov = {.base = ring->buffer->memory.base,
              .size = ring->buffer->memory.size,
              .numa = wish->numa},
  };
  memcpy(ior->iov.id, name->id, sizeof ior->iov.id);
  strcpy(ior->iov.mount_point, path);
  strcpy(ior->mount_point, path);
  ior->iorh = ring;
  ior->for_read = wish->for_read;
  ior->io_depth = wish->depth;
  ior->priority = wish->priority;
  ior->timeout = wish->timeout;
  ior->flags = wish->flags;
}

static int try(struct hf3fs_ior *ior, const char *mount, const struct wish *wish) {
  struct iov_name name = {.ring = true,
                          .for_read = wish->for_read,
                          .depth = wish->depth,
                          .timeout_ms = wish->timeout,
                          .flags = wish->flags,
                          .priority = priority_of(wish->priority)};
  if (!mount_is_path(mount) || !is_ring(wish))
    return -EINVAL;
  struct ring *ring = make_ring(wish);
  if (!ring)
    return -ENOMEM;
  int status = set_up(ring, mount, wish, &name);
  if (status != 0)
    goto no_set_up;
  status = buffer_register(ring->buffer);
  if (status != 0)
    goto no_register;
  memory_unlink(&ring->buffer->memory); /* the daemon has mapped it */
  describe(ior, ring, mount, wish, &name);
  return 0;
no_register:
  sem_close(ring->submit);
  buffer_end(ring->buffer);
no_set_up:
  end_ring(ring);
  return status;
}

static int create(struct hf3fs_ior *ior, const char *mount, const struct wish *wish) {
  int status = ior ? try(ior, mount, wish) : -EINVAL;
  if (status != 0 && ior)
    memset(ior, 0, sizeof *ior);
  return status;
}

int hf3fs_iorcreate(struct hf3fs_ior *ior, const char *mount, int entries, bool for_read,
                    int io_depth, int numa) {
  const struct wish wish = {
      .entries = entries, .for_read = for_read, .depth = io_depth, .numa = numa};
  return create(ior, mount, &wish);
}

int hf3fs_iorcreate2(struct hf3fs_ior *ior, const char *mount, int entries, bool for_read,
                     int io_depth, int priority, int numa) {
  const struct wish wish = {.entries = entries,
                            .for_read = for_read,
                            .depth = io_depth,
                            .priority = priority,
                            .numa = numa};
  return create(ior, mount, &wish);
}

int hf3fs_iorcreate3(struct hf3fs_ior *ior, const char *mount, int entries, bool for_read,
                     int io_depth, int priority, int timeout, int numa) {
  const struct wish wish = {.entries = entries,
                            .for_read = for_read,
                            .depth = io_depth,
                            .priority = priority,
                            .timeout = timeout,
                            .numa = numa};
  return create(ior, mount, &wish);
}

int hf3fs_iorcreate4(struct hf3fs_ior *ior, const char *mount, int entries, bool for_read,
                     int io_depth, int timeout, int numa, uint64_t flags) {
  const struct wish wish = {.entries = entries,
                            .for_read = for_read,
                            .depth = io_depth,
                            .timeout = timeout,
                            .numa = numa,
                            .flags = flags};
  return create(ior, mount, &wish);
}

void hf3fs_iordestroy(struct hf3fs_ior *ior) {
  struct ring *ring = ior ? ior->iorh : NULL;
  if (!ring)
    return;
  unlink(ring->buffer->link);
  sem_close(ring->submit);
  buffer_end(ring->buffer);
  end_ring(ring);
  ior->iorh = NULL;
  ior->iov.base = NULL;
}
