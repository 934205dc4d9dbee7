/* SPDX-License-Identifier: MIT
 * Registers the components with a UCX of the version that the module was built for, as other
 * versions have other structures. */
#include "module.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>

/* Only libucp knows UCX's version. It is loaded, or beside libuct, or in the build tree of libuct.
 */
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

static bool version_matches(unsigned *major, unsigned *minor) {
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

__attribute__((constructor)) static void module_init(void) {
  unsigned major, minor;
  if (!version_matches(&major, &minor)) {
    fprintf(stderr,
            "haul: cannot load the UCX module: it was built for UCX %d.%d, and this is UCX %u.%u "
            "(hint: set UCX_SOURCE_DIR to this version's source tree and build haul again)\n",
            UCX_MAJOR, UCX_MINOR, major, minor);
    return;
  }
  gaudi_copy_init();
  gaudi_jobs_init();
  uct_component_register(&gaudi_component);
  uct_tl_register(&gaudi_component, &gaudi_copy_tl);
  uct_tl_register(&gaudi_component, &gaudi_dma_tl);
  uct_component_register(&gaudi_ipc_component);
  uct_tl_register(&gaudi_ipc_component, &gaudi_ipc_tl);
}

void gaudi_counters_log(void) {
  struct cache_counters counters;
  gaudi_imports_counters(&counters);
  ucs_info("gaudi: imports: %u entries, %lu hits, %lu misses, %lu evicted", counters.entries,
           (unsigned long)counters.hits, (unsigned long)counters.misses,
           (unsigned long)counters.dropped);
}
