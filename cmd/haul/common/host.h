/* SPDX-License-Identifier: MIT
 * The state of this host: the checks of the library, network interfaces, ports of NICs. */
#ifndef HAUL_COMMAND_HOST_H
#define HAUL_COMMAND_HOST_H

#include <stdbool.h>
#include <stddef.h>

#include <haul/haul.h>

#include "output.h"

struct checks {
  struct haul_check *list;
  size_t count;
};

/* Returns an exit status. Release with checks_free. */
int checks_load(struct checks *checks, haul_node *node);
void checks_free(struct checks *checks);

/* Whether a check or a backend has the name. */
bool checks_know(const struct checks *checks, const char *name);

/* "ok", "limited", "missing". */
const char *check_state_text(int state);

#define INTERFACES_MAX 64

struct interface {
  char name[16];
  bool up;
  long megabits;       /* a second; -1: unknown */
  long mtu;            /* -1: unknown */
  long numa;           /* -1: unknown */
  char addresses[256]; /* separated by blanks */
};

/* Returns the number of interfaces, at most INTERFACES_MAX; they are in the order of the kernel. */
size_t interfaces_list(struct interface list[INTERFACES_MAX]);

struct ports {
  const struct haul_device *devices; /* of the caller */
  size_t device_count;
  size_t count;            /* ports, in the order of the first device */
  struct haul_port **seen; /* one list for each device */
  size_t *seen_counts;
};

/* Returns an exit status. Release with ports_free. */
int ports_load(struct ports *ports, haul_node *node, const struct haul_device *devices,
               size_t count);
void ports_free(struct ports *ports);

/* The same port in the list of another device; NULL: it was removed meanwhile. */
const struct haul_port *ports_as_seen(const struct ports *ports, size_t device,
                                      const struct haul_port *port);

/* Prints two tables; nothing without ports. */
void ports_print(const struct ports *ports);
/* Writes an array called `name`. */
void ports_to_json(const struct ports *ports, struct json *json, const char *name);

#endif
