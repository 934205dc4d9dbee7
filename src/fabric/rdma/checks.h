/* SPDX-License-Identifier: MIT
 * Reports about RDMA on this host: checks with remedies, and ports. */
#ifndef HAUL_FABRIC_RDMA_CHECKS_H
#define HAUL_FABRIC_RDMA_CHECKS_H

#include <stddef.h>

#include "haul/haul.h"

struct fabric;

/* As transport.checks and transport.ports. Both open the NICs for the duration of the call. The
 * checks are always the same, in the same order. */
size_t rdma_checks(struct haul_check *checks, size_t room);
size_t rdma_ports(const struct fabric *fabric, const struct haul_device *device,
                  struct haul_port *ports, size_t room);

/* The kernel's name of the module that registers device memory by address; NULL: none is loaded. */
const char *checks_peer_memory(void);

#endif
