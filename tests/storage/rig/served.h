/* SPDX-License-Identifier: MIT
 * A folder that a node of this process serves, and a client of this process. */
#ifndef HAUL_TESTS_STORAGE_SERVED_H
#define HAUL_TESTS_STORAGE_SERVED_H

#include <stdbool.h>

#include <haul/haul.h>

struct service;
struct source;

struct served {
  haul_node *node;
  struct service *service;
  char address[160];
};

#define SERVED_EXPORT "tree" /* what it is exported as */

/* Listens on a port of this host. */
void served_open(struct served *served, const char *folder, bool writable);
void served_close(struct served *served);

/* The two in one: the tree as a source, whose wait for anything ends after ten seconds. */
struct source *served_open_source(struct served *served, const char *folder, bool read_only);
struct source *served_connect(const struct served *served, bool read_only);

#endif
