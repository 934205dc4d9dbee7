/* SPDX-License-Identifier: MIT
 *
 * What `haul serve` offers: regions, and trees of files by the module libhaul-storage.so.
 */
#ifndef HAUL_COMMAND_SERVE_OFFERS_H
#define HAUL_COMMAND_SERVE_OFFERS_H

#include <limits.h>
#include <stddef.h>

#include <haul/access.h>
#include <haul/storage.h>

#include "command.h"
#include "common/options.h"

/* What one --region or --file asks for. */
struct offer {
  char name[256];
  unsigned rights;
  const char *path;                   /* --file: the file that fills it */
  struct haul_place place;            /* --region */
  uint64_t size;                      /* --region */
  char rest[4096];                    /* what follows the '=', cut into parts */
  struct haul_grant grants[LIST_MAX]; /* --allow; none: it is for everybody who can connect */
  size_t grant_count;
};

struct offers {
  size_t count;
  struct offer list[2 * LIST_MAX];
  haul_region *regions[2 * LIST_MAX];
};

/* Reads "NAME=PLACE:SIZE[:ro]" and "NAME=PATH[:ro]". Returns an exit status: usage errors only. */
int offers_parse(const struct command *command, struct offers *offers,
                 const struct text_list *regions, const struct text_list *files);
/* NULL: none has the name. */
struct offer *offers_find(struct offers *offers, const char *name);

/* Allocates, fills and publishes all of them. Returns an exit status; offers_release is due either
 * way. */
int offers_publish(struct offers *offers, haul_node *node);
void offers_release(struct offers *offers);

struct served_tree {
  char name[64];
  char path[PATH_MAX];
  struct haul_grant grants[LIST_MAX]; /* --allow; none: it is for everybody who can connect */
};

struct exports {
  size_t count;
  struct haul_storage_export list[LIST_MAX];
  struct served_tree trees[LIST_MAX];
  const struct haul_storage_service *calls;
  struct service *service;
};

/* Reads "[NAME=]DIR[:rw]". Returns an exit status: usage errors only. */
int exports_parse(const struct command *command, struct exports *exports,
                  const struct text_list *list);

/* That one alone, and others whom it is told, may read there, and write where the export allows it;
 * false: no export has the name. `who` is kept. */
bool exports_allow(struct exports *exports, const char *name, const char *who, bool reads_only);

/* From now on the node's messages are received by a thread of the module's, which hands those that
 * are no business of files to `other`. Nothing is done where nothing is exported. Returns an exit
 * status. */
int exports_open(struct exports *exports, haul_node *node,
                 void (*other)(void *user, const struct haul_message *message), void *user);
/* Before haul_node_close, and after it. */
void exports_stop(struct exports *exports);
int exports_close(struct exports *exports);

#endif
