/* SPDX-License-Identifier: MIT
 *
 * libhaul-storage.so, which is opened only when it is needed: it links liburing and libfuse3.
 */
#ifndef HAUL_COMMAND_MODULE_H
#define HAUL_COMMAND_MODULE_H

/* What the module has under this name; `purpose` ends the sentence "this haul cannot …" where there
 * is none. Returns an exit status. */
int module_symbol(const char *symbol, const char *purpose, void **address);

#endif
