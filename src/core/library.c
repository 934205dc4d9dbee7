/* SPDX-License-Identifier: MIT */
#include "core/library.h"

#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <link.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "core/error.h"

/* Without a version dlsym returns the symbol's default version, as a program linked today gets. */
static bool look_up(const struct library *library, void *from,
                    const struct library_symbol *symbol) {
  void *found = dlsym(from, symbol->name);
  memcpy((char *)library->table + symbol->slot, &found, sizeof found);
  return found;
}

/* Names every missing call, in the hint, as it is longer than the text. */
static int fill_table(const struct library *library, void *from) {
  char names[sizeof((struct haul_error *)NULL)->hint];
  unsigned missing = 0;
  size_t used = 0;
  for (size_t i = 0; i < library->required_count; i++) {
    if (look_up(library, from, &library->required[i]))
      continue;
    if (used < sizeof names)
      used += (size_t)snprintf(names + used, sizeof names - used, "%s%s", missing ? ", " : "",
                               library->required[i].name);
    missing++;
  }
  for (size_t i = 0; i < library->optional_count; i++)
    look_up(library, from, &library->optional[i]);
  if (missing == 0)
    return 0;
  return error_set(HAUL_ENOTSUP, 0, library->names[0],
                   error_hint("it lacks %s: sudo apt-get install %s", names, library->packages),
                   "%s is older than %s: it lacks %u call%s", library->title, library->since,
                   missing, missing == 1 ? "" : "s");
}

/* The file of this library, or of the program that it is a part of, whose name in the loader is
 * empty; "" if the path is unknown or too long. */
static void find_self(char *path, size_t size) {
  static const char own; /* an address in it */
  Dl_info self;
  void *object = NULL;
  ssize_t length;
  if (dladdr1(&own, &self, &object, RTLD_DL_LINKMAP) && object &&
      *((struct link_map *)object)->l_name)
    length = snprintf(path, size, "%s", ((struct link_map *)object)->l_name);
  else
    length = readlink("/proc/self/exe", path, size);
  path[length >= 0 && length < (ssize_t)size ? length : 0] = '\0';
}

/* The path of a module: only in the folder haul/ beside this library, so that no other is loaded,
 * from the working directory least of all. */
static int find_module(const struct library *library, char *path, size_t size) {
  find_self(path, size);
  size_t used = *path == '/' ? (size_t)(strrchr(path, '/') + 1 - path) : size;
  if (used < size &&
      snprintf(path + used, size - used, "haul/%s", library->names[0]) < (int)(size - used))
    return 0;
  return error_set(
      HAUL_ENOTSUP, 0, library->names[0], "load haul by an absolute path",
      "%s cannot be found: the path of haul's library is relative, unknown or too long",
      library->title);
}

/* Module and library may be of different releases. */
static int check_module(const struct library *library) {
  const size_t *size;
  memcpy(&size, library->table, sizeof size);
  if (!library->module || *size == library->module)
    return 0;
  return error_set(HAUL_ENOTSUP, 0, library->names[0], "install both from one release",
                   "%s and haul's library are of different releases", library->title);
}

/* Opens the module, or the first name that the loader finds. On failure the detail is about the
 * first one tried. */
static void *open_any(const struct library *library) {
  char words[120] = "", path[PATH_MAX];
  const char *const module[] = {path, NULL}, *const *name = library->names;
  if (library->module) {
    if (find_module(library, path, sizeof path) != 0)
      return NULL;
    name = module;
  }
  for (; *name; name++) {
    void *opened = dlopen(*name, RTLD_NOW | RTLD_LOCAL);
    if (opened)
      return opened;
    const char *why = dlerror();
    if (!*words)
      snprintf(words, sizeof words, "%s", why ? why : "the loader gives no reason");
  }
  error_set(HAUL_ENOTSUP, ENOENT, library->names[0],
            error_hint("sudo apt-get install %s%s", library->packages,
                       library->note ? library->note : ""),
            "%s cannot be opened: %s", library->title, words);
  return NULL;
}

/* With the lock. */
static void open_now(struct library *library) {
  void *opened = open_any(library);
  if (!opened)
    return;
  if (fill_table(library, opened) != 0 || check_module(library) != 0) {
    dlclose(opened);
    return;
  }
  library->handle = opened;
  if (library->opened)
    library->opened();
  atomic_store_explicit(&library->published, library->table, memory_order_release);
}

void *library_open(struct library *library) {
  void *table = atomic_load_explicit(&library->published, memory_order_acquire);
  if (table)
    return table;
  pthread_mutex_lock(&library->lock);
  if (!library->handle)
    open_now(library);
  table = library->handle ? library->table : NULL;
  pthread_mutex_unlock(&library->lock);
  return table;
}

static int count_loads(struct dl_phdr_info *object, size_t size, void *loads) {
  (void)size;
  *(unsigned long long *)loads = object->dlpi_adds;
  return 1;
}

static bool is_in_process(const struct library *library) {
  for (size_t i = 0; library->names[i]; i++) {
    void *found = dlopen(library->names[i], RTLD_NOW | RTLD_NOLOAD);
    if (found)
      return dlclose(found) == 0;
  }
  return false;
}

/* For a name that is not loaded dlopen searches the file system. So it is tried again only after
 * the process has loaded another object. */
static bool is_loaded(struct library *library) {
  unsigned long long loads = 0;
  if (atomic_load_explicit(&library->published, memory_order_acquire))
    return true;
  dl_iterate_phdr(count_loads, &loads);
  if (loads == atomic_load_explicit(&library->searched_at, memory_order_relaxed))
    return false;
  if (is_in_process(library))
    return true;
  atomic_store_explicit(&library->searched_at, loads, memory_order_relaxed);
  return false;
}

void *library_loaded(struct library *library) {
  struct haul_error before;
  if (!is_loaded(library))
    return NULL;
  error_save(&before);
  void *table = library_open(library);
  if (!table)
    error_restore(&before);
  return table;
}

void library_forget(struct library *library) {
  pthread_mutex_lock(&library->lock);
  atomic_store(&library->published, NULL);
  atomic_store(&library->searched_at, 0);
  if (library->handle)
    dlclose(library->handle);
  library->handle = NULL;
  pthread_mutex_unlock(&library->lock);
}
