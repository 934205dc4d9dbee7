/* SPDX-License-Identifier: MIT
 * Directories, by the module that speaks to them.
 *
 *   directory.c  the module; finding, and connecting to what was found
 *   register.c   keeping a node's own entries up to date */
#ifndef HAUL_NODE_DIRECTORY_H
#define HAUL_NODE_DIRECTORY_H

#include "core/list.h"
#include "directory/module.h"
#include "node/node.h"

/* "etcd://" or "etcds://" */
bool directory_is_address(const char *text);

/* NULL with the detail: HAUL_ENOTSUP. */
const struct directory_module *directory_module(void);
extern const struct directory_library directory_library;
/* Opens it as this node, with its login. */
int directory_dial(const struct haul_node *node, const struct directory_module *module,
                   const char *url, const _Atomic bool *stop, struct directory **directory);

/* Connects to the node, or to one that has the region; an unstarted peer, as peer_reach. */
int directory_connect(struct haul_node *node, const char *address, int64_t until,
                      struct haul_peer **peer);

/* The number of this process's network namespace; 0: not known. */
uint64_t directory_network(void);

/* Ends the node's registration, and what lookups kept open. */
void directory_stop(struct haul_node *node);
/* Has what is under way end within a second. */
void registration_stop(struct registration *registration);
/* NULL is allowed. */
void registration_end(struct registration *registration);

#endif
