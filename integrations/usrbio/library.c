/* SPDX-License-Identifier: MIT */
#include "library.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define DEVICES_MAX 64

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* guards what follows */
static struct library *library;
static pid_t process; /* whose it is */
static bool tried;

static void before_fork(void) {
  pthread_mutex_lock(&lock);
}

static void after_fork(void) {
  pthread_mutex_unlock(&lock);
}

__attribute__((constructor)) static void watch_forks(void) {
  pthread_atfork(before_fork, after_fork, after_fork);
}

static bool find(void *handle, const char *name, void *slot) {
  void *found = dlsym(handle, name);
  memcpy(slot, &found, sizeof found);
  return found;
}

static bool fill(void *handle, struct library *into) {
  bool all = true;
#define LIBRARY_FIND(name) all &= find(handle, #name, &into->name);
  LIBRARY_CALLS(LIBRARY_FIND)
#undef LIBRARY_FIND
  return all;
}

/* Nothing here waits for peers, so the node needs no thread. */
static struct library *open_library(void) {
  const struct haul_node_config init = HAUL_NODE_CONFIG_INIT;
  struct haul_node_config config = init;
  config.progress = HAUL_PROGRESS_CALLER;
  void *handle = dlopen("libhaul.so.0", RTLD_NOW | RTLD_LOCAL);
  struct library *made = handle ? calloc(1, sizeof *made) : NULL;
  if (made && fill(handle, made) && made->haul_node_open(&config, &made->node) == 0)
    return made;
  free(made);
  if (handle)
    dlclose(handle);
  return NULL;
}

const struct library *library_get(void) {
  pthread_mutex_lock(&lock);
  if (!tried) {
    library = open_library();
    process = getpid();
    tried = true;
  }
  const struct library *found = process == getpid() ? library : NULL;
  pthread_mutex_unlock(&lock);
  return found;
}

static int count_of(const struct haul_device *devices, size_t count, uint16_t kind) {
  int found = 0;
  for (size_t i = 0; i < count; i++)
    found += devices[i].place.kind == kind;
  return found;
}

int library_devices(uint16_t *kind) {
  const struct library *calls = library_get();
  struct haul_device devices[DEVICES_MAX];
  size_t count = DEVICES_MAX;
  const char *asked = getenv("HAUL_USRBIO_DEVICES");
  if (!calls || calls->haul_device_list(calls->node, devices, &count) != 0)
    return 0;
  count = count < DEVICES_MAX ? count : DEVICES_MAX;
  if (asked && strcmp(asked, "sim") == 0)
    *kind = HAUL_SIM;
  else
    *kind = count_of(devices, count, HAUL_CUDA) > 0 ? HAUL_CUDA : HAUL_GAUDI;
  return count_of(devices, count, *kind);
}
