/* SPDX-License-Identifier: MIT
 * A handle belongs to the process that opened it. In a child of fork(2) the threads are missing,
 * and locks of theirs may be held for ever: there its release frees memory and closes descriptors
 * alone. */
#ifndef HAUL_SERVICES_OWNER_H
#define HAUL_SERVICES_OWNER_H

#include <stdbool.h>
#include <sys/types.h>

#include <haul/haul.h>

/* Whether this is a child of the process with the number `owner`. */
bool is_forked(pid_t owner);

/* 0, or HAUL_EFORK in a child. `call` is the public call. */
int owner_check(pid_t owner, const char *call);
/* The same for a call that opens a handle, by its node. */
int owner_check_node(haul_node *node, const char *call);

#endif
