/* SPDX-License-Identifier: MIT
 * libhaul-gaudihook.so, to be preloaded: sees what a framework maps of a Gaudi device's memory, so
 * that the UCX module knows the blocks whole. What is asked of it comes by name (hook.h's callers
 * look it up), so that neither library needs the other. It calls what it stands before, and adds
 * nothing to what that returns. */
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>

struct mapping {
  struct mapping *next;
  int fd;
  uint64_t handle, start, length; /* start 0: allocated, and not mapped */
};

static struct {
  pthread_mutex_t lock;
  struct mapping *mappings;
  int fd; /* that the framework opened first, -1: none */
  void (*changed)(uint64_t start, uint64_t end, bool mapped); /* called with the lock */
} state = {.lock = PTHREAD_MUTEX_INITIALIZER, .fd = -1};

/* Of hl-thunk's hlthunk.h, as in src/memory/gaudi/driver.h. */
#define EXPORTED __attribute__((visibility("default")))
EXPORTED int hlthunk_open(int kind, const char *bus);
EXPORTED int hlthunk_close(int fd);
EXPORTED uint64_t hlthunk_device_memory_alloc(int fd, uint64_t size, uint64_t page, bool contiguous,
                                              bool shared);
EXPORTED int hlthunk_device_memory_free(int fd, uint64_t handle);
EXPORTED uint64_t hlthunk_device_memory_map(int fd, uint64_t handle, uint64_t hint);
EXPORTED int hlthunk_memory_unmap(int fd, uint64_t address);
EXPORTED bool haul_gaudihook_find(uint64_t address, uint64_t length, uint64_t *start,
                                  uint64_t *end);
EXPORTED int haul_gaudihook_descriptor(void);
EXPORTED void haul_gaudihook_watch(void (*changed)(uint64_t start, uint64_t end, bool mapped));

/* ---- What is kept ---- */

static void add(int fd, uint64_t handle, uint64_t length) {
  struct mapping *mapping = malloc(sizeof *mapping);
  if (!mapping)
    return; /* it is unknown then, as without the hook */
  pthread_mutex_lock(&state.lock);
  *mapping = (struct mapping){state.mappings, fd, handle, 0, length};
  state.mappings = mapping;
  pthread_mutex_unlock(&state.lock);
}

/* With the lock. */
static void tell(const struct mapping *mapping, bool mapped) {
  if (state.changed && mapping->start)
    state.changed(mapping->start, mapping->start + mapping->length, mapped);
}

static void map(int fd, uint64_t handle, uint64_t start) {
  pthread_mutex_lock(&state.lock);
  for (struct mapping *mapping = state.mappings; mapping; mapping = mapping->next)
    if (mapping->fd == fd && mapping->handle == handle) {
      mapping->start = start;
      tell(mapping, true);
    }
  pthread_mutex_unlock(&state.lock);
}

static void unmap(int fd, uint64_t start) {
  pthread_mutex_lock(&state.lock);
  for (struct mapping *mapping = state.mappings; mapping; mapping = mapping->next)
    if (mapping->fd == fd && mapping->start == start) {
      tell(mapping, false);
      mapping->start = 0;
    }
  pthread_mutex_unlock(&state.lock);
}

/* Handle 0: all of the descriptor's. */
static void forget(int fd, uint64_t handle) {
  pthread_mutex_lock(&state.lock);
  for (struct mapping **link = &state.mappings; *link;) {
    struct mapping *mapping = *link;
    if (mapping->fd != fd || (handle && mapping->handle != handle)) {
      link = &mapping->next;
      continue;
    }
    *link = mapping->next;
    tell(mapping, false);
    free(mapping);
  }
  pthread_mutex_unlock(&state.lock);
}

/* ---- What is asked ---- */

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
    tell(mapping, true);
  pthread_mutex_unlock(&state.lock);
}

/* ---- What it stands before ---- */

/* The library's own. A framework that was opened with dlopen, as Python does it, has it in a scope
 * that the search for the next one of a name does not see. NULL with errno. */
static void *next_of(const char *name) {
  void *next = dlsym(RTLD_NEXT, name);
  void *library = next ? NULL : dlopen("libhl-thunk.so", RTLD_LAZY | RTLD_NOLOAD);
  if (library) {
    next = dlsym(library, name);
    dlclose(library); /* NOLOAD: others hold it */
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
  forget(fd, 0);
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
    add(fd, handle, size);
  return handle;
}

int hlthunk_device_memory_free(int fd, uint64_t handle) {
  int (*next)(int, uint64_t);
  *(void **)&next = next_of("hlthunk_device_memory_free");
  int code = next ? next(fd, handle) : -ENOSYS;
  if (code == 0)
    forget(fd, handle);
  return code;
}

uint64_t hlthunk_device_memory_map(int fd, uint64_t handle, uint64_t hint) {
  uint64_t (*next)(int, uint64_t, uint64_t);
  *(void **)&next = next_of("hlthunk_device_memory_map");
  uint64_t start = next ? next(fd, handle, hint) : 0;
  if (start)
    map(fd, handle, start);
  return start;
}

int hlthunk_memory_unmap(int fd, uint64_t address) {
  int (*next)(int, uint64_t);
  *(void **)&next = next_of("hlthunk_memory_unmap");
  unmap(fd, address); /* before the driver may give the address to another thread */
  return next ? next(fd, address) : -ENOSYS;
}
