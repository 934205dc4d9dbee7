/* SPDX-License-Identifier: MIT */
#include "fields.h"

#include <stdlib.h>
#include <string.h>

bool fields_set(const struct field *fields, size_t count, const char *text) {
  const char *equals = strchr(text, '=');
  char *end;
  bool found = false;
  if (!equals || !equals[1])
    return false;
  size_t length = (size_t)(equals - text);
  uint64_t value = strtoull(equals + 1, &end, 0);
  for (size_t i = 0; i < count && !*end; i++) {
    const struct field *field = &fields[i];
    if (strlen(field->name) != length || memcmp(field->name, text, length) != 0)
      continue;
    if (value < field->least || value > field->most)
      return false;
    uint64_t units = value * field->unit;
    memcpy(field->at, &units, field->size); /* little-endian: x86-64 only */
    found = true;
  }
  return found;
}

void fields_print(const struct field *fields, size_t count, FILE *to) {
  for (size_t i = 0; i < count; i++) {
    const struct field *field = &fields[i];
    uint64_t units = 0;
    memcpy(&units, field->at, field->size);
    if (i == 0 || strcmp(field->name, fields[i - 1].name) != 0)
      fprintf(to, "%s%s=%llu", i ? " " : "", field->name,
              (unsigned long long)(units / field->unit));
  }
  fputc('\n', to);
}
