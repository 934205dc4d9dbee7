/* SPDX-License-Identifier: MIT
 * Creating and destroying rings. */
#include <errno.h>
#include <stdlib.h>
#include <sys/stat.h>

#include "client.h"

size_t hf3fs_ior_size(int entries) {
  return entries >= 0 ? ring_bytes(entries) : 0;
}

struct ring_config {
  int entries, depth, priority, timeout, numa;
  bool for_read;
  uint64_t flags;
};

static uint8_t priority_of(int priority) {
  return priority < 0 ? RING_HIGH : priority > 0 ? RING_LOW : RING_NORMAL;
}

/* The semaphore that wakes the daemon. EIO: its symlink leads to something else. */
static int open_semaphore(const char *mount, uint8_t priority, sem_t **semaphore) {
  char target[PATH_MAX];
  struct stat found;
  int status = mount_semaphore(mount, priority, target);
  if (status != 0)
    return status;
  if (lstat(target, &found) != 0)
    return -errno;
  if (!S_ISREG(found.st_mode) || found.st_size < (off_t)sizeof(sem_t)) /* sem_open checks neither */
    return -EIO;
  *semaphore = sem_open(target + sizeof SEMAPHORE_PREFIX - 1, 0);
  return *semaphore != SEM_FAILED ? 0 : -errno;
}

/* Also after an incomplete start. */
static void free_ring(struct ring *ring) {
  if (ring->submit)
    sem_close(ring->submit);
  if (ring->buffer)
    buffer_free(ring->buffer);
  slots_close(&ring->slots);
  pthread_mutex_destroy(&ring->taking);
  free(ring);
}

static struct ring *new_ring(const struct ring_config *config) {
  struct ring *ring = aligned_alloc(_Alignof(struct ring), sizeof *ring);
  if (!ring)
    return NULL;
  memset(ring, 0, sizeof *ring);
  ring->for_read = config->for_read;
  pthread_mutex_init(&ring->taking, NULL);
  if (slots_open(&ring->slots, config->entries) == 0)
    return ring;
  free(ring);
  return NULL;
}

/* Creates and registers the memory, and then unlinks it, as the daemon has mapped it. */
static int register_ring(struct ring *ring, const char *mount, const struct ring_config *config,
                         struct iov_name *name) {
  size_t size = ring_bytes(config->entries);
  int status = random_id(name->id);
  if (status == 0)
    status = buffer_new(mount, name, size, config->numa, &ring->buffer);
  if (status == 0)
    status = open_semaphore(mount, priority_of(config->priority), &ring->submit);
  if (status != 0) {
    ring->submit = NULL; /* not SEM_FAILED */
    return status;
  }
  ring->mount = mount_id(ring->buffer->mount);
  ring_view_init(&ring->view, ring->buffer->base, size);
  sem_init(ring->view.semaphore, 1, 0);
  status = buffer_register(ring->buffer);
  if (status == 0)
    buffer_unlink(ring->buffer);
  return status;
}

/* Fills the public half; `mount` may be part of it. */
static void describe_ring(struct hf3fs_ior *ior, struct ring *ring, const char *mount,
                          const struct ring_config *config, const struct iov_name *name) {
  char path[MOUNT_ROOM];
  strcpy(path, mount);
  *ior = (struct hf3fs_ior){
      .iov = {.base = ring->buffer->base, .size = ring->buffer->size, .numa = config->numa},
      .iorh = ring,
      .for_read = config->for_read,
      .io_depth = config->depth,
      .priority = config->priority,
      .timeout = config->timeout,
      .flags = config->flags,
  };
  memcpy(ior->iov.id, name->id, sizeof ior->iov.id);
  strcpy(ior->iov.mount_point, path);
  strcpy(ior->mount_point, path);
}

static int make_ring(struct hf3fs_ior *ior, const char *mount, const struct ring_config *config) {
  struct iov_name name = {.ring = true,
                          .for_read = config->for_read,
                          .depth = config->depth,
                          .timeout_ms = config->timeout,
                          .flags = config->flags,
                          .priority = priority_of(config->priority)};
  if (!mount_is_path(mount) || config->entries < 1 || config->entries > RING_ENTRIES ||
      config->timeout < 0 || config->depth == INT_MIN || config->depth > config->entries)
    return -EINVAL;
  struct ring *ring = new_ring(config);
  if (!ring)
    return -ENOMEM;
  int status = register_ring(ring, mount, config, &name);
  if (status != 0)
    free_ring(ring);
  else
    describe_ring(ior, ring, mount, config, &name);
  return status;
}

static int create_ior(struct hf3fs_ior *ior, const char *mount, const struct ring_config *config) {
  int status = ior ? make_ring(ior, mount, config) : -EINVAL;
  if (status != 0 && ior)
    memset(ior, 0, sizeof *ior);
  return status;
}

int hf3fs_iorcreate(struct hf3fs_ior *ior, const char *mount, int entries, bool for_read,
                    int io_depth, int numa) {
  return hf3fs_iorcreate3(ior, mount, entries, for_read, io_depth, 0, 0, numa);
}

int hf3fs_iorcreate2(struct hf3fs_ior *ior, const char *mount, int entries, bool for_read,
                     int io_depth, int priority, int numa) {
  return hf3fs_iorcreate3(ior, mount, entries, for_read, io_depth, priority, 0, numa);
}

int hf3fs_iorcreate3(struct hf3fs_ior *ior, const char *mount, int entries, bool for_read,
                     int io_depth, int priority, int timeout, int numa) {
  const struct ring_config config = {.entries = entries,
                                     .for_read = for_read,
                                     .depth = io_depth,
                                     .priority = priority,
                                     .timeout = timeout,
                                     .numa = numa};
  return create_ior(ior, mount, &config);
}

int hf3fs_iorcreate4(struct hf3fs_ior *ior, const char *mount, int entries, bool for_read,
                     int io_depth, int timeout, int numa, uint64_t flags) {
  const struct ring_config config = {.entries = entries,
                                     .for_read = for_read,
                                     .depth = io_depth,
                                     .timeout = timeout,
                                     .numa = numa,
                                     .flags = flags};
  return create_ior(ior, mount, &config);
}

void hf3fs_iordestroy(struct hf3fs_ior *ior) {
  struct ring *ring = ior ? ior->iorh : NULL;
  if (!ring)
    return;
  unlink(ring->buffer->link);
  free_ring(ring);
  ior->iorh = NULL;
  ior->iov.base = NULL;
}
