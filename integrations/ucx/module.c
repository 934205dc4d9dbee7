/* SPDX-License-Identifier: MIT
 * Registers the component with a UCX of the version that the module was built for. One of another
 * version has other structures: it is left alone, and told why. */
#include "module.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>

/* libucp is the only library of UCX that tells its version. It is loaded, or it lies beside libuct,
 * or where libuct lies in a tree that was built and not installed. */
static void *open_ucp(void) {
  static const char *const places[] = {"%s/libucp.so.0", "%s/../../ucp/.libs/libucp.so.0"};
  void *library = dlopen("libucp.so.0", RTLD_LAZY | RTLD_NOLOAD);
  char folder[PATH_MAX - 64], path[PATH_MAX];
  Dl_info uct;
  if (library || !dladdr((void *)(uintptr_t)uct_component_register, &uct) ||
      (size_t)snprintf(folder, sizeof folder, "%s", uct.dli_fname) >= sizeof folder)
    return library;
  char *name = strrchr(folder, '/');
  *(name ? name : folder) = 0;
  for (size_t i = 0; i < sizeof places / sizeof places[0] && !library; i++) {
    snprintf(path, sizeof path, places[i], *folder ? folder : ".");
    library = dlopen(path, RTLD_LAZY | RTLD_LOCAL);
  }
  return library;
}

static bool is_ours(unsigned *major, unsigned *minor) {
  void (*version)(unsigned *, unsigned *, unsigned *);
  void *library = open_ucp();
  unsigned release = 0;
  *(void **)&version = library ? dlsym(library, "ucp_get_version") : NULL;
  *major = *minor = 0;
  if (version)
    version(major, minor, &release);
  if (library)
    dlclose(library);
  return *major == UCX_MAJOR && *minor == UCX_MINOR;
}

__attribute__((constructor)) static void begin(void) {
  unsigned major, minor;
  if (!is_ours(&major, &minor)) {
    fprintf(stderr,
            "haul's module for UCX was built for UCX %d.%d, and this is %u.%u: it is not used; "
            "build it against this one's source tree (UCX_SOURCE_DIR)\n",
            UCX_MAJOR, UCX_MINOR, major, minor);
    return;
  }
  gaudi_copy_init();
  gaudi_ipc_init();
  gaudi_dma_init();
  uct_component_register(&gaudi_component);
  uct_tl_register(&gaudi_component, &gaudi_copy_tl);
  uct_tl_register(&gaudi_component, &gaudi_dma_tl);
  uct_component_register(&gaudi_ipc_component);
  uct_tl_register(&gaudi_ipc_component, &gaudi_ipc_tl);
}

static void log_cache(const char *name, struct cache_counters counters) {
  ucs_info("gaudi: %s: %u kept, %lu hits, %lu misses, %lu dropped", name, counters.entries,
           (unsigned long)counters.hits, (unsigned long)counters.misses,
           (unsigned long)counters.dropped);
}

void gaudi_counters_log(void) {
  struct cache_counters counters;
  gaudi_registrations_counters(&counters);
  log_cache("registrations", counters);
  gaudi_imports_counters(&counters);
  log_cache("imports", counters);
}
