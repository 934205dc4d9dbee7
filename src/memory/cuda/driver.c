/* SPDX-License-Identifier: MIT */
#include "memory/cuda/driver.h"

#include <dlfcn.h>
#include <errno.h>
#include <link.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "core/error.h"

#define PACKAGES                                                                                   \
  "install NVIDIA's driver (sudo apt-get install nvidia-driver libcuda1); for a container: start " \
  "it with --gpus all"

const char *cuda_driver_library = "libcuda.so.1";

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* guards the two below until published */
static void *library;
static struct cuda_driver table;
static _Atomic(const struct cuda_driver *) published;

struct symbol {
  const char *name;
  size_t slot; /* its offset in the table */
};

#define SYMBOL(slot, symbol, arguments) {#symbol, offsetof(struct cuda_driver, slot)},
static const struct symbol required[] = {CUDA_REQUIRED(SYMBOL)};
static const struct symbol optional[] = {CUDA_OPTIONAL(SYMBOL)};
#undef SYMBOL

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

static void *look_up(void *from, const struct symbol *symbol) {
  void *found = dlsym(from, symbol->name);
  memcpy((char *)&table + symbol->slot, &found, sizeof found);
  return found;
}

/* All of the names: they fit into a hint. */
static int too_old(const char *names, size_t count) {
  return error_set(
      HAUL_ENOTSUP, 0, cuda_driver_library,
      "NVIDIA's driver is too old: it lacks %zu calls of CUDA 10.2|install a newer one, "
      "with %s",
      count, names);
}

static int fill_table(void *from) {
  char names[216];
  size_t used = 0, missing = 0;
  for (size_t i = 0; i < COUNT(required); i++) {
    if (look_up(from, &required[i]))
      continue;
    if (used < sizeof names)
      used += (size_t)snprintf(names + used, sizeof names - used, "%s%s", missing ? ", " : "",
                               required[i].name);
    missing++;
  }
  for (size_t i = 0; i < COUNT(optional); i++)
    look_up(from, &optional[i]);
  return missing ? too_old(names, missing) : 0;
}

static const char *loader_words(void) {
  const char *words = dlerror();
  return words ? words : "the loader does not say why";
}

/* With the lock. */
static int open_library(void) {
  void *opened = dlopen(cuda_driver_library, RTLD_NOW | RTLD_LOCAL);
  if (!opened)
    return error_set(HAUL_ENOTSUP, ENOENT, cuda_driver_library,
                     "NVIDIA's driver cannot be opened: %.100s|" PACKAGES, loader_words());
  int code = fill_table(opened);
  if (code) {
    dlclose(opened);
    return code;
  }
  library = opened;
  atomic_store_explicit(&published, &table, memory_order_release);
  return 0;
}

int cuda_driver_open(const struct cuda_driver **driver) {
  *driver = atomic_load_explicit(&published, memory_order_acquire);
  if (*driver)
    return 0;
  pthread_mutex_lock(&lock);
  int code = library ? 0 : open_library();
  pthread_mutex_unlock(&lock);
  if (code == 0)
    *driver = &table;
  return code;
}

/* ---- Is it there already? ---- */

/* What the process had loaded, in all, when it was looked through without success. */
static _Atomic unsigned long long looked_at;

static int look_at(struct dl_phdr_info *object, size_t size, void *found) {
  (void)size;
  if (object->dlpi_adds == atomic_load_explicit(&looked_at, memory_order_relaxed))
    return 1; /* nothing has come since */
  const char *name = strrchr(object->dlpi_name, '/');
  *(bool *)found = strncmp(name ? name + 1 : object->dlpi_name, "libcuda.so", 10) == 0;
  return *(bool *)found;
}

static int count_loads(struct dl_phdr_info *object, size_t size, void *adds) {
  (void)size;
  *(unsigned long long *)adds = object->dlpi_adds;
  return 1;
}

/* Asking the loader instead (RTLD_NOLOAD) would go through the file system each time. */
static bool is_in_process(void) {
  bool found = false;
  unsigned long long adds = 0;
  dl_iterate_phdr(count_loads, &adds);
  dl_iterate_phdr(look_at, &found);
  if (!found)
    atomic_store_explicit(&looked_at, adds, memory_order_relaxed);
  return found;
}

const struct cuda_driver *cuda_driver_loaded(void) {
  const struct cuda_driver *driver = atomic_load_explicit(&published, memory_order_acquire);
  if (driver || !is_in_process())
    return driver;
  struct haul_error before;
  error_save(&before);
  if (cuda_driver_open(&driver) != 0) {
    driver = NULL;
    error_restore(&before);
  }
  return driver;
}

const char *cuda_driver_word(const struct cuda_driver *driver, CUresult result) {
  const char *word = NULL;
  if (driver->error_name(result, &word) != CUDA_SUCCESS || !word)
    return "an unknown error";
  return word;
}

void cuda_driver_forget(void) {
  pthread_mutex_lock(&lock);
  atomic_store(&published, NULL);
  atomic_store(&looked_at, 0);
  if (library)
    dlclose(library);
  library = NULL;
  pthread_mutex_unlock(&lock);
}
