/* SPDX-License-Identifier: MIT */
#include "library.h"

#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>

#include "client.h"

/* Under LOCK_LIBRARY. */
static struct library *library;
static pid_t library_process; /* that opened it */
static bool library_tried;

static bool find_symbol(void *handle, const char *name, void *slot) {
  void *found = dlsym(handle, name);
  memcpy(slot, &found, sizeof found);
  return found;
}

static bool find_symbols(void *handle, struct library *calls) {
  bool all = true;
#define LIBRARY_FIND(name) all &= find_symbol(handle, #name, &calls->name);
  LIBRARY_CALLS(LIBRARY_FIND)
#undef LIBRARY_FIND
  return all;
}

/* The node never waits for peers, so it needs no thread. */
static struct library *open_library(void) {
  const struct haul_node_config init = HAUL_NODE_CONFIG_INIT;
  struct haul_node_config config = init;
  config.progress = HAUL_PROGRESS_CALLER;
  void *handle = dlopen("libhaul.so.0", RTLD_NOW | RTLD_LOCAL);
  struct library *calls = handle ? calloc(1, sizeof *calls) : NULL;
  if (calls && find_symbols(handle, calls) && calls->haul_node_open(&config, &calls->node) == 0)
    return calls;
  free(calls);
  if (handle)
    dlclose(handle);
  return NULL;
}

const struct library *library_get(void) {
  pthread_mutex_lock(&client_locks[LOCK_LIBRARY]);
  if (!library_tried) {
    library = open_library();
    library_process = getpid();
    library_tried = true;
  }
  const struct library *calls = library_process == getpid() ? library : NULL;
  pthread_mutex_unlock(&client_locks[LOCK_LIBRARY]);
  return calls;
}

int library_errno(int code) {
  switch (code) {
  case HAUL_ENOMEM:
    return -ENOMEM;
  case HAUL_EINVAL:
    return -EINVAL;
  case HAUL_EPLACE:
    return -ENODEV;
  case HAUL_ENOTSUP:
    return -ENOTSUP;
  case HAUL_ELIMIT:
    return -EMFILE;
  default:
    return code ? -EIO : 0;
  }
}
