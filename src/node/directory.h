/* SPDX-License-Identifier: MIT
 * Directories in etcd, reached through a module that is loaded when needed.
 *
 *   directory.c  the module, finding nodes, connecting to what was found, walks
 *   register.c   keeping a node's own entries up to date */
#ifndef HAUL_NODE_DIRECTORY_H
#define HAUL_NODE_DIRECTORY_H

#include "directory/module.h"
#include "node/peer.h"

/* "etcd://..." or "etcds://..." */
bool directory_is_address(const char *text);

/* NULL with the detail: HAUL_ENOTSUP. */
const struct directory_module *directory_module(void);
extern const struct directory_library directory_library;
/* Opens a connection with the node's login. `stop` ends calls on it within a second. */
int directory_open_url(const struct haul_node *node, const struct directory_module *module,
                       const char *url, const _Atomic bool *stop, struct directory **directory);

/* As peer_connect: to the node of this name, or to one of those that publish the region. */
int directory_connect(struct haul_node *node, const char *address, int64_t until,
                      struct haul_peer **peer);

/* The inode of this process's network namespace; 0: unknown. */
uint64_t directory_network(void);

/* For haul_node_close: ends the node's registration and idle connections. */
void directory_stop(struct haul_node *node);
/* Makes calls that are under way end within a second. */
void registration_stop(struct registration *registration);
/* Stops it, removes its entries and frees it; NULL is allowed. */
void registration_end(struct registration *registration);

#endif
