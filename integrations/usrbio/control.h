/* SPDX-License-Identifier: MIT
 * The ioctls of 3FS's files that clients use (src/lib/api/fuse.h there). */
#ifndef HAUL_USRBIO_CONTROL_H
#define HAUL_USRBIO_CONTROL_H

#include <limits.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/ioctl.h>
#include <sys/types.h>

#define CONTROL_HOLES 1000

struct control_hardlink {
  ino_t folder;
  char name[NAME_MAX]; /* with its zero byte */
};

struct control_holes {
  int count;
  size_t flags;
  size_t start[CONTROL_HOLES];
  size_t end[CONTROL_HOLES];
};

#define CONTROL_MAGIC    _IOR('h', 2, uint32_t)
#define CONTROL_FSYNC    _IOR('h', 11, uint32_t)
#define CONTROL_HARDLINK _IOW('h', 12, struct control_hardlink)
#define CONTROL_HOLE     _IOW('h', 13, struct control_holes)

_Static_assert(CONTROL_MAGIC == 0x80046802, "3FS's number");
_Static_assert(sizeof(struct control_hardlink) == 264, "3FS's layout");
_Static_assert(sizeof(struct control_holes) == 16016, "3FS's layout");

#endif
