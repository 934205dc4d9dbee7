/* SPDX-License-Identifier: MIT
 * Facts about devices from sysfs, and the IP addresses of this network namespace. */
#ifndef HAUL_FABRIC_RDMA_SYSFS_H
#define HAUL_FABRIC_RDMA_SYSFS_H

#include <ifaddrs.h>
#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Seams for tests: /sys, /dev/infiniband and getifaddrs(3). */
extern const char *sysfs_root, *device_nodes_root;
extern int (*addresses_get)(struct ifaddrs **addresses);

/* A path that begins with the root. */
struct sysfs_path {
  char text[512]; /* empty where it does not fit; then nothing is found */
};
struct sysfs_path sysfs_path(const char *format, ...) __attribute__((format(printf, 1, 2)));

bool sysfs_has(struct sysfs_path path);
/* Access of this process to a node in /dev/infiniband: 0 or an errno. */
int sysfs_node_access(const char *name);
/* The first line of a file, without its end; false and "" where it cannot be read. */
bool sysfs_text(struct sysfs_path path, char *text, size_t size);
/* The decimal number at the start of a file, or `missing`. */
int sysfs_number(struct sysfs_path path, int missing);
/* The target of all links, from the root on ("devices/pci0000:00/…"); false where it does not exist
 * or lies outside of the root. */
bool sysfs_real(struct sysfs_path path, char real[PATH_MAX]);
/* The alphabetically first entry of a folder for which wanted() is true (NULL: any); false without
 * one. */
bool sysfs_first(struct sysfs_path folder, bool (*wanted)(const char *name), char *name,
                 size_t size);

/* How many leading bits of the GID name its subnet, by the netmask of the address that it is (IPv4
 * is mapped); 0: unknown. -1: it is none of the addresses. Loopback addresses do not count: every
 * namespace has them. */
int addresses_subnet(const struct ifaddrs *addresses, const uint8_t gid[16]);

#endif
