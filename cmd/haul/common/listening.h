/* SPDX-License-Identifier: MIT
 * What commands that serve others do with their node: listen, register, say where. Each returns an
 * exit status, and has printed the failure. */
#ifndef HAUL_COMMAND_LISTENING_H
#define HAUL_COMMAND_LISTENING_H

#include <haul/directory.h>

#include "options.h"
#include "session.h"

#define LISTEN_DEFAULT "tcp://127.0.0.1:" DEFAULT_PORT

/* On all addresses of the list, or on LISTEN_DEFAULT if it is empty. */
int listen_all(haul_node *node, const struct text_list *given);

/* In a directory; NULL: in none. Waits at most 30 s for a directory that does not respond and for a
 * name that another node has, says so, and ends early for a signal of signals_open. `how` may be
 * NULL. */
int register_node(haul_node *node, const char *directory, const struct haul_register_options *how,
                  int signals);

/* Prints the addresses, also to the descriptor, which it closes; 0: none. Flushes standard output.
 */
int announce_node(haul_node *node, unsigned descriptor);

#endif
