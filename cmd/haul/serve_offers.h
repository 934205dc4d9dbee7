/* SPDX-License-Identifier: MIT
 * What `haul serve` offers: regions, and trees of files by the module libhaul-storage.so. */
#ifndef HAUL_COMMAND_SERVE_OFFERS_H
#define HAUL_COMMAND_SERVE_OFFERS_H

#include <limits.h>
#include <stddef.h>

#include <haul/access.h>
#include <haul/storage.h>

#include "command.h"
#include "common/options.h"

/* One --region or --file. */
struct offer {
  char name[256];
  unsigned rights;
  const char *path;                   /* --file: the file that fills it */
  struct haul_place place;            /* --region */
  uint64_t size;                      /* --region */
  const char *load;                   /* --load: the file that fills the start of it, or NULL */
  char rest[4096];                    /* the text after '=', split in place */
  struct haul_grant grants[LIST_MAX]; /* --allow; none: for all peers */
  size_t grant_count;
};

struct offers {
  size_t count;
  struct offer list[2 * LIST_MAX];
  haul_region *regions[2 * LIST_MAX];
};

/* Parses "NAME=PLACE:SIZE[:ro]" and "NAME=PATH[:ro]". Returns EXIT_DONE or EXIT_USAGE. */
int offers_parse(const struct command *command, struct offers *offers,
                 const struct text_list *regions, const struct text_list *files);
/* Parses "NAME=PATH" of --load, after offers_parse. Keeps and changes it. Returns EXIT_DONE or
 * EXIT_USAGE. */
int offers_parse_load(const struct command *command, struct offers *offers, char *text);
/* NULL: no offer has the name. */
struct offer *offers_find(struct offers *offers, const char *name);

/* Allocates, fills and publishes all regions. Returns an exit status; call offers_release in any
 * case. */
int offers_publish(struct offers *offers, haul_node *node);
void offers_release(struct offers *offers);

struct served_tree {
  char name[64];
  char path[PATH_MAX];
  struct haul_grant grants[LIST_MAX]; /* --allow; none: for all peers */
};

struct exports {
  size_t count;
  struct haul_storage_export list[LIST_MAX];
  struct served_tree trees[LIST_MAX];
  const struct haul_storage_service *calls;
  struct service *service;
};

/* Parses "[NAME=]DIR[:rw]". Returns EXIT_DONE or EXIT_USAGE. */
int exports_parse(const struct command *command, struct exports *exports,
                  const struct text_list *list);

/* Adds a grant: only grantees may read the export, and write if it is writable. False: no export
 * has the name. `who` must outlive the exports. */
bool exports_allow(struct exports *exports, const char *name, const char *who, bool reads_only);

/* Call before the node is opened. Does nothing without exports. Returns an exit status. */
int exports_prepare(struct exports *exports);
/* Starts the thread of the module that receives the messages of the node and passes those of other
 * services to `other`. Does nothing without exports. Returns an exit status. */
int exports_open(struct exports *exports, haul_node *node,
                 void (*other)(void *none, const struct haul_message *message));
/* Call exports_stop before haul_node_close, and exports_close after it. */
void exports_stop(struct exports *exports);
int exports_close(struct exports *exports);

#endif
