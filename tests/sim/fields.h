/* SPDX-License-Identifier: MIT
 * Fields of a plan that arguments replace: "programs=2". */
#ifndef HAUL_SIM_FIELDS_H
#define HAUL_SIM_FIELDS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

struct field {
  const char *name;
  void *at; /* an integer or a bool */
  size_t size;
  uint64_t unit; /* of the argument, in those of the integer */
  uint64_t least, most;
};
#define FIELD(name, variable, unit, least, most)                                                   \
  { name, &(variable), sizeof(variable), unit, least, most }

/* Sets all fields of the name. False: there is none, or the value is not allowed. */
bool fields_set(const struct field *fields, size_t count, const char *text);
/* In one line, as fields_set takes them. */
void fields_print(const struct field *fields, size_t count, FILE *to);

#endif
