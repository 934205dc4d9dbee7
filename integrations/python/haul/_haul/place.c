/* SPDX-License-Identifier: MIT
 * A place is a string: "host", "sim:0", "cuda:1". */
#include "haulpy.h"

bool place_from(const char *text, struct haul_place *place) {
  if (haul_place_parse(text, place) == 0)
    return true;
  raise_last();
  return false;
}

PyObject *place_text(struct haul_place place) {
  char text[32];
  return text_of(haul_place_format(place, text, sizeof text));
}

PyObject *place_item(void *place) {
  return place_text(*(const struct haul_place *)place);
}
