/* SPDX-License-Identifier: MIT
 * The setting `paths`: which paths transfers may take, and up to which size each, for example
 * "tcp", "tcp:64K,rdma" or "auto". */
#ifndef HAUL_TRANSFER_RULES_H
#define HAUL_TRANSFER_RULES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define RULES_MAX 8

/* Zeroed: "auto", any path by its cost. */
struct path_rules {
  unsigned count;
  struct path_rule {
    uint64_t up_to; /* bytes; UINT64_MAX in the last rule */
    uint32_t path;
  } rules[RULES_MAX]; /* by size */
  /* Source of the setting: "HAUL_PATHS", "/etc/haul/haul.conf:12"; reason of paths without rule. */
  char origin[64], left_out[80];
};

/* False, with *rules unchanged, for an invalid text: an unknown path, sizes that do not grow, more
 * than RULES_MAX rules, a size in the last rule, or no size in another. */
bool rules_parse(const char *text, struct path_rules *rules);
/* Sets the source of the rules; of a long name its end. */
void rules_from(struct path_rules *rules, const char *origin);
/* The text that rules_parse reads. */
void rules_format(const struct path_rules *rules, char *text, size_t size);

/* The path for this size; -1: any. */
int rules_path(const struct path_rules *rules, uint64_t bytes);
/* Whether a rule names the path. It may be taken for its sizes, and for others whose path is
 * closed. */
bool rules_allow(const struct path_rules *rules, size_t path);

#endif
