/* SPDX-License-Identifier: MIT */
#include "module.h"

#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "../command.h"
#include "fail.h"

/* Built without it, or what it links is not there: the loader's words say which library. */
static int is_missing(const char *path, const char *purpose, const char *why) {
  return fail_because(access(path, F_OK) == 0 ? "sudo apt-get install liburing2 libfuse3-3"
                                              : "build haul where the headers for it are: "
                                                "sudo apt-get install liburing-dev libfuse3-dev",
                      "this haul cannot %s: %s", purpose, why);
}

/* Beside the libraries of the haul that this command belongs to: no other's would fit. */
int module_symbol(const char *symbol, const char *purpose, void **address) {
  char self[PATH_MAX], path[PATH_MAX + sizeof HAUL_STORAGE_MODULE];
  ssize_t length = readlink("/proc/self/exe", self, sizeof self - 1);
  if (length < 0)
    return fail_system(errno, "cannot find out where haul is");
  self[length] = '\0';
  strrchr(self, '/')[1] = '\0';
  snprintf(path, sizeof path, "%s%s", self, HAUL_STORAGE_MODULE);
  void *module = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (!module)
    return is_missing(path, purpose, dlerror());
  *address = dlsym(module, symbol);
  return *address ? EXIT_DONE : is_missing(path, purpose, dlerror());
}
