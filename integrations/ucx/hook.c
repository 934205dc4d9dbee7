/* SPDX-License-Identifier: MIT
 * libhaul-gaudihook.so, to preload: records the mappings of device memory that a framework makes by
 * libhl-thunk, so that the UCX module knows whole blocks. The module looks its calls up by name, so
 * that neither library depends on the other. Hooked calls return exactly what the real ones do. */
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>

#include "hlthunk.h"

struct mapping {
  struct mapping *next;
  int fd;
  uint64_t handle, start, length; /* start 0: allocated but not mapped */
};

static struct {
  pthread_mutex_t lock;
  struct mapping *mappings;
  int fd; /* of the framework's first open device; -1: none */
  void (*changed)(uint64_t start, uint64_t end, bool mapped); /* called with the lock */
} state = {.lock = PTHREAD_MUTEX_INITIALIZER, .fd = -1};

#define EXPORTED __attribute__((visibility("default")))
EXPORTED bool haul_gaudihook_find(uint64_t address, uint64_t length, uint64_t *start,
                                  uint64_t *end);
EXPORTED int haul_gaudihook_descriptor(void);
EXPORTED void haul_gaudihook_watch(void (*changed)(uint64_t start, uint64_t end, bool mapped));

static void mapping_add(int fd, uint64_t handle, uint64_t length) {
  struct mapping *mapping = malloc(sizeof *mapping);
  if (!mapping)
    return; /* unknown, as without the hook */
  pthread_mutex_lock(&state.lock);
  *mapping = (struct mapping){state.mappings, fd, handle, 0, length};
  state.mappings = mapping;
  pthread_mutex_unlock(&state.lock);
}

/* With the lock. */
static void notify(const struct mapping *mapping, bool mapped) {
  if (state.changed && mapping->start)
    state.changed(mapping->start, mapping->start + mapping->length, mapped);
}

static void mapping_begin(int fd, uint64_t handle, uint64_t start) {
  pthread_mutex_lock(&state.lock);
  for (struct mapping *mapping = state.mappings; mapping; mapping = mapping->next)
    if (mapping->fd == fd && mapping->handle == handle) {
      mapping->start = start;
      notify(mapping, true);
    }
  pthread_mutex_unlock(&state.lock);
}

static void mapping_end(int fd, uint64_t start) {
  pthread_mutex_lock(&state.lock);
  for (struct mapping *mapping = state.mappings; mapping; mapping = mapping->next)
    if (mapping->fd == fd && mapping->start == start) {
      notify(mapping, false);
      mapping->start = 0;
    }
  pthread_mutex_unlock(&state.lock);
}

/* Handle 0: all of the descriptor's. */
static void mapping_remove(int fd, uint64_t handle) {
  pthread_mutex_lock(&state.lock);
  for (struct mapping **link = &state.mappings; *link;) {
    struct mapping *mapping = *link;
    if (mapping->fd != fd || (handle && mapping->handle != handle)) {
      link = &mapping->next;
      continue;
    }
    *link = mapping->next;
    notify(mapping, false);
    free(mapping);
  }
  pthread_mutex_unlock(&state.lock);
}

bool haul_gaudihook_find(uint64_t address, uint64_t length, uint64_t *start, uint64_t *end) {
  bool found = false;
  pthread_mutex_lock(&state.lock);
  for (const struct mapping *mapping = state.mappings; mapping && !found; mapping = mapping->next) {
    found = mapping->start && address >= mapping->start && length <= mapping->length &&
            address - mapping->start <= mapping->length - length;
    *start = mapping->start;
    *end = mapping->start + mapping->length;
  }
  pthread_mutex_unlock(&state.lock);
  return found;
}

int haul_gaudihook_descriptor(void) {
  pthread_mutex_lock(&state.lock);
  int fd = state.fd;
  pthread_mutex_unlock(&state.lock);
  return fd;
}

void haul_gaudihook_watch(void (*changed)(uint64_t start, uint64_t end, bool mapped)) {
  pthread_mutex_lock(&state.lock);
  state.changed = changed;
  for (const struct mapping *mapping = state.mappings; mapping; mapping = mapping->next)
    notify(mapping, true);
  pthread_mutex_unlock(&state.lock);
}

/* The real call. RTLD_NEXT does not find a library that a framework loaded with RTLD_LOCAL, as
 * Python does. NULL with errno. */
static void *next_of(const char *name) {
  void *next = dlsym(RTLD_NEXT, name);
  void *library = next ? NULL : dlopen("libhl-thunk.so", RTLD_LAZY | RTLD_NOLOAD);
  if (library) {
    next = dlsym(library, name);
    dlclose(library); /* the framework keeps it open */
  }
  if (!next)
    errno = ENOSYS;
  return next;
}

int hlthunk_open(int kind, const char *bus) {
  int (*next)(int, const char *);
  *(void **)&next = next_of("hlthunk_open");
  int fd = next ? next(kind, bus) : -1;
  pthread_mutex_lock(&state.lock);
  if (fd >= 0 && state.fd < 0)
    state.fd = fd;
  pthread_mutex_unlock(&state.lock);
  return fd;
}

int hlthunk_close(int fd) {
  int (*next)(int);
  *(void **)&next = next_of("hlthunk_close");
  mapping_remove(fd, 0);
  pthread_mutex_lock(&state.lock);
  if (state.fd == fd)
    state.fd = -1;
  pthread_mutex_unlock(&state.lock);
  return next ? next(fd) : -ENOSYS;
}

uint64_t hlthunk_device_memory_alloc(int fd, uint64_t size, uint64_t page, bool contiguous,
                                     bool shared) {
  uint64_t (*next)(int, uint64_t, uint64_t, bool, bool);
  *(void **)&next = next_of("hlthunk_device_memory_alloc");
  uint64_t handle = next ? next(fd, size, page, contiguous, shared) : 0;
  if (handle)
    mapping_add(fd, handle, size);
  return handle;
}

int hlthunk_device_memory_free(int fd, uint64_t handle) {
  int (*next)(int, uint64_t);
  *(void **)&next = next_of("hlthunk_device_memory_free");
  int code = next ? next(fd, handle) : -ENOSYS;
  if (code == 0)
    mapping_remove(fd, handle);
  return code;
}

uint64_t hlthunk_device_memory_map(int fd, uint64_t handle, uint64_t hint) {
  uint64_t (*next)(int, uint64_t, uint64_t);
  *(void **)&next = next_of("hlthunk_device_memory_map");
  uint64_t start = next ? next(fd, handle, hint) : 0;
  if (start)
    mapping_begin(fd, handle, start);
  return start;
}

int hlthunk_memory_unmap(int fd, uint64_t address) {
  int (*next)(int, uint64_t);
  *(void **)&next = next_of("hlthunk_memory_unmap");
  mapping_end(fd, address); /* before the driver may give the address to another thread */
  return next ? next(fd, address) : -ENOSYS;
}
