/* SPDX-License-Identifier: MIT
 * The hook's settings, and its node. */
#ifndef HAUL_CUDAHOOK_NODE_H
#define HAUL_CUDAHOOK_NODE_H

#include <stdbool.h>

#include <haul/haul.h>

/* Whether another process than the one that opened the node. Takes no lock; to be asked before
 * anything that does. */
bool is_forked_child(void);

/* Whether the thread is inside a call of haul's, or of the driver's that haul makes: what it
 * allocates then is not the application's. */
extern _Thread_local bool inside_haul;

/* Tells, once, what was set and is not understood. */
void node_tell_settings(void);

/* The node, opened at the first call, which may take as long as the driver's start; NULL and why.
 */
haul_node *node_get(const char **why);

/* HAUL_CUDAHOOK_MINIMUM: smaller allocations are the runtime's. */
size_t node_minimum(void);

/* HAUL_CUDAHOOK_PUBLISH and _RIGHTS: the name for the next allocation, false where none is wanted.
 */
bool node_next_name(char *name, size_t size, unsigned *rights);

/* Once there is a node: why peers find nothing there, NULL: they do. */
const char *node_unreachable(void);

#endif
