/* SPDX-License-Identifier: MIT
 *
 * haul ls of a directory.
 */
#ifndef HAUL_COMMAND_LS_DIRECTORY_H
#define HAUL_COMMAND_LS_DIRECTORY_H

#include <stdint.h>

/* Prints the nodes and the regions of a directory, and, where it is to follow, then what changes
 * until it is interrupted. Returns an exit status. */
int directory_list(const char *address, int64_t timeout_ns, int as_json, int follow);

#endif
