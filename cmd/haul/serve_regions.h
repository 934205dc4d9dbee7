/* SPDX-License-Identifier: MIT
 *
 * The regions that `haul serve` publishes, from what was written on the command line.
 */
#ifndef HAUL_COMMAND_SERVE_REGIONS_H
#define HAUL_COMMAND_SERVE_REGIONS_H

#include <stddef.h>

#include <haul/access.h>

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

#endif
