/* SPDX-License-Identifier: MIT */
#include "memory/gaudi/driver.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "core/error.h"

#define PACKAGE "sudo apt-get install habanalabs-thunk (Intel's Gaudi repository)"

const char *gaudi_libraries[3] = {"libhl-thunk.so", "/usr/lib/habanalabs/libhl-thunk.so", NULL};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* guards the two until published */
static void *library;
static struct gaudi_driver table;
static _Atomic(const struct gaudi_driver *) published;

struct symbol {
  const char *name;
  size_t slot; /* its offset in the table */
};

#define SYMBOL(slot, result, arguments) {"hlthunk_" #slot, offsetof(struct gaudi_driver, slot)},
static const struct symbol required[] = {GAUDI_CALLS(SYMBOL)};
static const struct symbol optional[] = {GAUDI_OPTIONAL_CALLS(SYMBOL)};
#undef SYMBOL

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

static bool look_up(void *from, const struct symbol *symbol) {
  void *found = dlsym(from, symbol->name);
  memcpy((char *)&table + symbol->slot, &found, sizeof found);
  return found;
}

static int fill_table(void *from, const char *object) {
  char missing[400];
  size_t used = 0;
  for (size_t i = 0; i < COUNT(required); i++)
    if (!look_up(from, &required[i]) && used < sizeof missing)
      used += (size_t)snprintf(missing + used, sizeof missing - used, "%s%s", used ? ", " : "",
                               required[i].name);
  for (size_t i = 0; i < COUNT(optional); i++)
    look_up(from, &optional[i]);
  if (used == 0)
    return 0;
  return error_set(HAUL_ENOTSUP, 0, object,
                   "libhl-thunk is too old, it lacks %s|install a newer one: " PACKAGE, missing);
}

static const char *loader_words(void) {
  const char *words = dlerror();
  return words ? words : "the loader does not say why";
}

static void *open_first(const char **object, char *why, size_t size) {
  void *opened = NULL;
  for (size_t i = 0; !opened && gaudi_libraries[i]; i++) {
    *object = gaudi_libraries[i];
    opened = dlopen(*object, RTLD_NOW | RTLD_LOCAL);
    if (!opened && i == 0)
      snprintf(why, size, "%s", loader_words());
  }
  if (!opened)
    *object = gaudi_libraries[0];
  return opened;
}

/* With the lock. */
static int open_library(void) {
  char why[160] = "";
  const char *object = "libhl-thunk.so";
  void *opened = open_first(&object, why, sizeof why);
  if (!opened)
    return error_set(HAUL_ENOTSUP, 0, object, "libhl-thunk cannot be opened: %s|" PACKAGE, why);
  int code = fill_table(opened, object);
  if (code) {
    dlclose(opened);
    return code;
  }
  library = opened;
  atomic_store_explicit(&published, &table, memory_order_release);
  return 0;
}

int gaudi_driver_open(const struct gaudi_driver **driver) {
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

void gaudi_driver_forget(void) {
  pthread_mutex_lock(&lock);
  atomic_store(&published, NULL);
  if (library)
    dlclose(library);
  library = NULL;
  pthread_mutex_unlock(&lock);
}
