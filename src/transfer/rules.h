/* SPDX-License-Identifier: MIT
 * Which paths transfers may take, and up to which size each, as somebody set it: "tcp",
 * "tcp:64K,rdma", "auto". */
#ifndef HAUL_TRANSFER_RULES_H
#define HAUL_TRANSFER_RULES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define RULES_MAX 8

/* Zeroed: any path, by its cost. */
struct path_rules {
  unsigned count;
  struct path_rule {
    uint64_t up_to; /* bytes; that of the last is UINT64_MAX */
    uint32_t path;
  } rules[RULES_MAX]; /* by size */
  /* Of somebody: "HAUL_PATHS", "/etc/haul/haul.conf:12"; what is told of paths that are not in. */
  char origin[64], left_out[80];
};

/* False, and *rules as it was, for a text that is none: a path that there is not, sizes that do not
 * grow, more than RULES_MAX, a last one with a size, one before it without. */
bool rules_parse(const char *text, struct path_rules *rules);
/* Who set them; of a long name the end. */
void rules_from(struct path_rules *rules, const char *origin);
/* As rules_parse reads it. */
void rules_format(const struct path_rules *rules, char *text, size_t size);

/* The path that is to be taken; -1: any. */
int rules_path(const struct path_rules *rules, uint64_t bytes);
/* Whether the path may be taken, of some sizes at least or where those that should be are closed.
 */
bool rules_allow(const struct path_rules *rules, size_t path);

#endif
