/* SPDX-License-Identifier: MIT
 *
 * The ports of NICs that paths go through, and how far each is from each place.
 */
#ifndef HAUL_COMMAND_PORTS_H
#define HAUL_COMMAND_PORTS_H

#include <stddef.h>

#include <haul/haul.h>

#include "json.h"

struct ports {
  const struct haul_device *devices; /* the caller's */
  size_t device_count;
  size_t count;            /* of ports; those seen from the first device, in its order */
  struct haul_port **seen; /* a list for each device */
  size_t *seen_counts;
};

/* Returns an exit status. Release with ports_free. */
int ports_load(struct ports *ports, haul_node *node, const struct haul_device *devices,
               size_t count);
void ports_free(struct ports *ports);

/* Two tables, or nothing where there is no port. */
void ports_print(const struct ports *ports);
/* An array of the name. */
void ports_to_json(const struct ports *ports, struct json *json, const char *name);

#endif
