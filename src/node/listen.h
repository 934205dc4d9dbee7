/* SPDX-License-Identifier: MIT
 * Listeners (listen.c), and the connections that they accept until their handshake is complete
 * (accept.c). */
#ifndef HAUL_NODE_LISTEN_H
#define HAUL_NODE_LISTEN_H

#include "core/sock.h"
#include "node/node.h"

struct listener {
  struct list link; /* node->listeners */
  struct haul_node *node;
  struct watch watch;
  struct timer timer; /* resumes accepting after a failure */
  struct address address;
  int fd;
  dev_t device; /* of the file address.path, with its inode */
  ino_t inode;
  bool companion; /* takes channels only */
};

/* The address of the listener with this number; without locks. False: there are fewer. */
bool listener_address(struct haul_node *node, size_t index, char *text, size_t size);
/* Replaces the host in the address of a listener on all addresses; leaves others alone. */
void listener_set_host(char *address, size_t size, const char *host);
/* With the loop's lock. Ends listeners and handshakes. */
void listen_stop(struct haul_node *node);
/* In a forked child: closes descriptors and touches nothing else. */
void listen_forked(struct haul_node *node);

/* accept.c, with the loop's lock: starts the handshake of an accepted connection. Takes over the
 * descriptor. */
void accept_start(const struct listener *listener, int fd);
void accept_stop(struct haul_node *node);
void accept_forked(struct haul_node *node);

#endif
