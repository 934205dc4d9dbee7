/* SPDX-License-Identifier: MIT
 *
 * This host's network interfaces, as the kernel tells of them.
 */
#ifndef HAUL_COMMAND_INTERFACES_H
#define HAUL_COMMAND_INTERFACES_H

#include <stdbool.h>
#include <stddef.h>

#define INTERFACES_MAX 64

struct interface {
  char name[16];
  bool up;
  long megabits;       /* a second; -1: unknown */
  long mtu;            /* -1: unknown */
  long numa;           /* -1: unknown */
  char addresses[256]; /* with blanks between */
};

/* Returns how many there are, at most INTERFACES_MAX, in the kernel's order. */
size_t interfaces_list(struct interface list[INTERFACES_MAX]);

#endif
