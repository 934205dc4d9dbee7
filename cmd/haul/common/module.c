/* SPDX-License-Identifier: MIT */
#include "module.h"

#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "../command.h"
#include "fail.h"

const struct module module_storage = {"libhaul-storage.so", "liburing2 libfuse3-3",
                                      "liburing-dev libfuse3-dev"};
const struct module module_metrics = {"libhaul-metrics.so", "libmicrohttpd12", "libmicrohttpd-dev"};

/* The module is not built, or a library that it links is missing: `why`, by the loader, names it.
 */
static int is_missing(const struct module *module, const char *path, const char *purpose,
                      const char *why) {
  char hint[256];
  bool built = access(path, F_OK) == 0;
  snprintf(hint, sizeof hint, "%ssudo apt-get install %s",
           built ? "" : "build haul again after: ", built ? module->packages : module->headers);
  return fail_because(hint, "this haul cannot %s: %s", purpose, why);
}

/* Only the module of the same build fits: its path is relative to this executable. */
int module_symbol(const struct module *module, const char *symbol, const char *purpose,
                  void **address) {
  char self[PATH_MAX], path[PATH_MAX + 256];
  ssize_t length = readlink("/proc/self/exe", self, sizeof self - 1);
  if (length < 0)
    return fail_system(errno, "cannot read /proc/self/exe");
  self[length] = '\0';
  strrchr(self, '/')[1] = '\0';
  snprintf(path, sizeof path, "%s" HAUL_MODULES "/%s", self, module->file);
  void *opened = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (!opened)
    return is_missing(module, path, purpose, dlerror());
  *address = dlsym(opened, symbol);
  return *address ? EXIT_DONE : is_missing(module, path, purpose, dlerror());
}
