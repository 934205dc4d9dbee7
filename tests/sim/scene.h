/* SPDX-License-Identifier: MIT
 * What a run simulates. */
#ifndef HAUL_SIM_SCENE_H
#define HAUL_SIM_SCENE_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

struct scene {
  const char *name;               /* the argument that selects it */
  void (*draw)(void);             /* its plan, by the seed */
  bool (*set)(const char *field); /* "programs=2"; false: no such field, or value */
  void (*print_fields)(FILE *to); /* those that `set` knows */
  void (*print_plan)(void);
  void (*start)(void);
  bool (*is_over)(void); /* asked after each step */
  void (*print_history)(void);
  uint64_t (*operations)(void); /* done so far */
};

#endif
