/* SPDX-License-Identifier: MIT
 * What is asked before mounting, so that what is wrong is told in words. */
#ifndef HAUL_STORAGE_MOUNT_POINT_H
#define HAUL_STORAGE_MOUNT_POINT_H

#include <haul/storage.h>

#define VIRTUAL_NAME "3fs-virt"

#define POINT_ROOM 4096 /* PATH_MAX */

struct point {
  char source[POINT_ROOM], target[POINT_ROOM]; /* whole paths */
};

/* Whether `mount` names a folder to show and a place for it. A negative errno value, and *error
 * says why. */
int point_check(const struct haul_storage_mount *mount, struct point *point,
                struct haul_storage_error *error);

/* Fills *error; returns `status`. */
int point_refuse(struct haul_storage_error *error, int status, const char *hint, const char *format,
                 ...) __attribute__((format(printf, 4, 5)));

#endif
