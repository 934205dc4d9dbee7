/* SPDX-License-Identifier: MIT */
#include "transfer/rules.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fabric/transport.h"

static const char units[] = "KMGT";

/* Digits and an optional unit. */
static bool parse_size(const char *text, uint64_t *bytes) {
  char *end;
  if (*text < '0' || *text > '9')
    return false;
  errno = 0;
  *bytes = strtoull(text, &end, 10);
  const char *unit = *end ? strchr(units, *end) : NULL;
  uint64_t factor = unit ? UINT64_C(1) << (10 * (unit - units + 1)) : 1;
  if (unit)
    end++;
  return errno == 0 && *end == '\0' && *bytes > 0 && !__builtin_mul_overflow(*bytes, factor, bytes);
}

/* "tcp", or "tcp:64K" with a size above `least`. Writes into the text. */
static bool parse_rule(char *text, bool last, uint64_t least, struct path_rule *rule) {
  char *size = strchr(text, ':');
  if (size)
    *size++ = '\0';
  const struct transport *transport = transport_named(text);
  if (!transport || last != !size)
    return false;
  rule->path = transport->index;
  rule->up_to = UINT64_MAX;
  return last || (parse_size(size, &rule->up_to) && rule->up_to > least);
}

bool rules_parse(const char *text, struct path_rules *rules) {
  struct path_rules parsed = {.count = 0};
  char copy[128];
  uint64_t least = 0;
  if (strlen(text) >= sizeof copy)
    return false;
  snprintf(copy, sizeof copy, "%s", text);
  bool any = strcmp(text, "auto") == 0;
  for (char *rest = any ? NULL : copy; rest;) {
    char *one = strsep(&rest, ",");
    if (parsed.count == RULES_MAX ||
        !parse_rule(one, rest == NULL, least, &parsed.rules[parsed.count]))
      return false;
    least = parsed.rules[parsed.count++].up_to;
  }
  *rules = parsed;
  return true;
}

void rules_from(struct path_rules *rules, const char *origin) {
  size_t length = strlen(origin), room = sizeof rules->origin - 1;
  snprintf(rules->origin, sizeof rules->origin, "%s",
           length > room ? origin + (length - room) : origin);
  snprintf(rules->left_out, sizeof rules->left_out, "left out by %s", rules->origin);
}

static void format_size(uint64_t bytes, char *text, size_t size) {
  unsigned unit = 0;
  for (; unit < sizeof units - 1 && bytes % 1024 == 0; unit++)
    bytes /= 1024;
  const char letter[2] = {unit ? units[unit - 1] : '\0', '\0'};
  snprintf(text, size, "%llu%s", (unsigned long long)bytes, letter);
}

void rules_format(const struct path_rules *rules, char *text, size_t size) {
  size_t at = 0;
  snprintf(text, size, "auto");
  for (unsigned i = 0; i < rules->count && at < size; i++) {
    const char *name = transport_at(rules->rules[i].path)->name;
    char up_to[32] = "";
    bool last = i + 1 == rules->count;
    if (!last)
      format_size(rules->rules[i].up_to, up_to, sizeof up_to);
    at += (size_t)snprintf(text + at, size - at, "%s%s%s%s", name, last ? "" : ":", up_to,
                           last ? "" : ",");
  }
}

int rules_path(const struct path_rules *rules, uint64_t bytes) {
  for (unsigned i = 0; i < rules->count; i++)
    if (bytes <= rules->rules[i].up_to)
      return (int)rules->rules[i].path;
  return -1;
}

bool rules_allow(const struct path_rules *rules, size_t path) {
  bool named = rules->count == 0;
  for (unsigned i = 0; i < rules->count; i++)
    named |= rules->rules[i].path == path;
  return named;
}
