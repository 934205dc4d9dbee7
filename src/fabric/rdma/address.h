/* SPDX-License-Identifier: MIT
 * The IP addresses of this process's network namespace. */
#ifndef HAUL_FABRIC_RDMA_ADDRESS_H
#define HAUL_FABRIC_RDMA_ADDRESS_H

#include <ifaddrs.h>
#include <stdbool.h>
#include <stdint.h>

/* NULL where they cannot be read; freeifaddrs releases them. */
struct ifaddrs *addresses_read(void);
/* Is this one of them? As a GID has it: IPv4 is mapped. Loopback's are none: every namespace has
 * them. */
bool addresses_have(const struct ifaddrs *addresses, const uint8_t gid[16]);

/* The seam: getifaddrs(3), unless a test has its own. */
extern int (*addresses_get)(struct ifaddrs **addresses);

#endif
