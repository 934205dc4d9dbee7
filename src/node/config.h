/* SPDX-License-Identifier: MIT
 * Settings of a node. Each takes its value from the call that opens the node, else from the
 * environment, else from the file, else its default; haul.conf(5) describes them.
 *
 *   config.c   the sources and their precedence
 *   setting.c  the table of settings, and their values as text */
#ifndef HAUL_NODE_CONFIG_H
#define HAUL_NODE_CONFIG_H

#include "fabric/rdma_settings.h"
#include "haul/haul.h"
#include "memory/settings.h"
#include "transfer/rules.h"

#define CONFIG_FILE      "/etc/haul/haul.conf"
#define CONFIG_MAX       65536u /* bytes of a file */
#define SETTINGS_COUNT   44u
#define CONFIG_FILENAMES 5 /* settings whose value is the name of a file */

enum origin { FROM_DEFAULT, FROM_CALL, FROM_ENVIRONMENT, FROM_FILE };

struct config {
  struct haul_node_config values; /* complete: no 0 stands for a default; `paths` is NULL */
  struct memory_settings memory;
  struct rdma_settings rdma;
  struct path_rules rules;               /* the setting `paths` */
  char name[64];                         /* `values.name` */
  char path[256];                        /* of the configuration file; "": none was read */
  char filenames[CONFIG_FILENAMES][256]; /* what `values` points to */
  struct {
    enum origin from;
    unsigned line; /* of the file */
  } origins[SETTINGS_COUNT];
};

/* `given` may be NULL. HAUL_EINVAL, whose object is where the mistake is: the setting, the variable
 * or FILE:LINE. Every line of the file is checked, also those that another source overrides. */
int config_read(const struct haul_node_config *given, struct config *config);
/* Applies the text of a file to the settings that have no value yet. `path` is for errors. */
int config_parse(char *text, const char *path, struct config *config);

/* setting.c: by a setting's number, below SETTINGS_COUNT */

/* -1: there is no setting of this name. */
int setting_find(const char *name);
/* The name of its environment variable. */
void setting_variable(unsigned i, char *variable, size_t size);
/* Stores a value given as text. HAUL_EINVAL about `object`; then nothing is stored. */
int setting_assign(unsigned i, const char *text, const char *object, struct config *config);
/* Checks a number that the call gave; one out of range is refused, or clamped where haul.h says so.
 * *given: whether the call gave one. Settings that are text are assigned instead. */
int setting_check_call(unsigned i, struct config *config, bool *given);
/* Gives settings without a value their default, except the name. */
void settings_complete(struct config *config);
/* Its name and value, as they are written in a file. */
void setting_format(unsigned i, const struct config *config, struct haul_setting *setting);

#endif
