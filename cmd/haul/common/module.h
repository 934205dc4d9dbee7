/* SPDX-License-Identifier: MIT
 *
 * Modules, which are opened only when they are needed: they link libraries of their own.
 */
#ifndef HAUL_COMMAND_MODULE_H
#define HAUL_COMMAND_MODULE_H

struct module {
  const char *file;     /* "libhaul-storage.so" */
  const char *packages; /* of the libraries that it links */
  const char *headers;  /* and of what it takes to build it */
};

extern const struct module module_storage; /* liburing and libfuse3 */
extern const struct module module_metrics; /* libmicrohttpd */

/* What the module has under this name; `purpose` ends the sentence "this haul cannot …" where there
 * is none. Returns an exit status. */
int module_symbol(const struct module *module, const char *symbol, const char *purpose,
                  void **address);

#endif
