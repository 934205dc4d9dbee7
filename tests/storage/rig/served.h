/* SPDX-License-Identifier: MIT
 * A file server and a client in this process. */
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

#define SERVED_EXPORT "tree" /* the export's name */

/* Listens on loopback. */
void served_open(struct served *served, const char *folder, bool writable);
void served_close(struct served *served);

/* Serves a folder and connects to it. The source's timeout is ten seconds. */
struct source *served_open_source(struct served *served, const char *folder, bool read_only);
struct source *served_connect(const struct served *served, bool read_only);
/* The latest line that such a source logged; "": none. */
const char *served_note(void);

#endif
