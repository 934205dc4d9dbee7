/* SPDX-License-Identifier: MIT
 * What the kernel tells of its devices in files. */
#ifndef HAUL_FABRIC_RDMA_SYSFS_H
#define HAUL_FABRIC_RDMA_SYSFS_H

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>

/* The seams: tests put made-up trees here. */
extern const char *sysfs_root, *doors_root;

/* A path that begins with the root. */
struct sysfs_path {
  char text[512]; /* empty where it does not fit; then nothing is found */
};
struct sysfs_path sysfs_path(const char *format, ...) __attribute__((format(printf, 1, 2)));

bool sysfs_has(struct sysfs_path path);
/* Whether programs may use the device behind a name in /dev/infiniband: 0 or an errno. */
int sysfs_door(const char *name);
/* The first line of a file, without its end; false and "" where it cannot be read. */
bool sysfs_text(struct sysfs_path path, char *text, size_t size);
/* The decimal number at the start of a file, or `missing`. */
int sysfs_number(struct sysfs_path path, int missing);
/* Where it leads once all links are followed, from the root on ("devices/pci0000:00/…"); false
 * where it leads nowhere or out of the root. */
bool sysfs_real(struct sysfs_path path, char real[PATH_MAX]);
/* The alphabetically first entry of a folder for which wanted() is true (NULL: any); false where
 * there is none. */
bool sysfs_first(struct sysfs_path folder, bool (*wanted)(const char *name), char *name,
                 size_t size);

#endif
