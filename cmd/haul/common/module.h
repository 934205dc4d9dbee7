/* SPDX-License-Identifier: MIT
 * Modules: shared objects with further dependencies, opened when a command needs them. */
#ifndef HAUL_COMMAND_MODULE_H
#define HAUL_COMMAND_MODULE_H

struct module {
  const char *file;     /* "libhaul-storage.so" */
  const char *packages; /* Debian packages of the libraries that it links */
  const char *headers;  /* Debian packages for building it */
};

extern const struct module module_storage; /* liburing and libfuse3 */
extern const struct module module_metrics; /* libmicrohttpd */

/* Looks a symbol of the module up. `purpose` ends the error text "this haul cannot …". Returns an
 * exit status. */
int module_symbol(const struct module *module, const char *symbol, const char *purpose,
                  void **address);

#endif
