/* SPDX-License-Identifier: MIT
 *
 * The library's checks, whole.
 */
#ifndef HAUL_COMMAND_CHECKS_H
#define HAUL_COMMAND_CHECKS_H

#include <stdbool.h>
#include <stddef.h>

#include <haul/haul.h>

struct checks {
  struct haul_check *list;
  size_t count;
};

/* Returns an exit status. Release with checks_free. */
int checks_load(struct checks *checks, haul_node *node);
void checks_free(struct checks *checks);

bool checks_know(const struct checks *checks, const char *name);
bool checks_know_backend(const struct checks *checks, const char *backend);

/* "ok", "limited", "missing". */
const char *check_state_text(int state);

#endif
