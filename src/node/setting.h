/* SPDX-License-Identifier: MIT
 * The settings by number: their names, and their values as text. */
#ifndef HAUL_NODE_SETTING_H
#define HAUL_NODE_SETTING_H

#include <stdbool.h>

#include "node/config.h"

/* A peer that reads nothing for a liveness bound is gone, and what is sent slowly looks like it. */
#define TCP_RATE_LEAST ((uint64_t)1 << 20)

/* -1: there is none of this name. */
int setting_find(const char *name);
/* Of the environment. */
void setting_variable(unsigned i, char *variable, size_t size);
/* Whether the call's configuration says something, other than a text. */
bool setting_in_call(unsigned i, const struct config *config);
/* HAUL_EINVAL for a text that is none of its values, about `object`. Else takes it over, if
 * `store`. */
int setting_read(unsigned i, const char *text, const char *object, bool store,
                 struct config *config);
/* Its name and value. */
void setting_tell(unsigned i, const struct config *config, struct haul_setting *told);

#endif
