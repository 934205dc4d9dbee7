/* SPDX-License-Identifier: MIT
 * What a node is opened with: each value from the call, else from the environment, else from the
 * file, else its default. haul.conf(5) is its page. */
#ifndef HAUL_NODE_CONFIG_H
#define HAUL_NODE_CONFIG_H

#include "haul/haul.h"
#include "memory/settings.h"
#include "transfer/rules.h"

#define CONFIG_FILE    "/etc/haul/haul.conf"
#define CONFIG_MAX     65536u /* bytes of a file */
#define SETTINGS_COUNT 34u
#define CONFIG_PATHS   5

enum origin { FROM_DEFAULT, FROM_CALL, FROM_ENVIRONMENT, FROM_FILE };

struct config {
  struct haul_node_config values; /* without zeros that mean a default; `name` is the one below */
  struct memory_settings memory;
  struct path_rules rules; /* what `paths` says */
  char name[64];
  char path[256];                /* of the file; "": none was read */
  char files[CONFIG_PATHS][256]; /* behind the paths in `values`, as config.c lists them */
  struct {
    enum origin from;
    unsigned line; /* of the file */
  } origins[SETTINGS_COUNT];
};

/* `given` may be NULL. HAUL_EINVAL with the place of the mistake as its object: the field's name,
 * the variable, or FILE:LINE; all of the file is checked, whatever stands over it. */
int config_read(const struct haul_node_config *given, struct config *config);

/* What the file's text says, for settings that are not found elsewhere; `path` is for messages. */
int config_parse(char *text, const char *path, struct config *config);

#endif
