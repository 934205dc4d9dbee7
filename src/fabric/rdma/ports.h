/* SPDX-License-Identifier: MIT
 * The ports of this host's NICs, for people. */
#ifndef HAUL_FABRIC_RDMA_PORTS_H
#define HAUL_FABRIC_RDMA_PORTS_H

#include <stddef.h>

#include "haul/haul.h"

/* As transport.ports. Opens the NICs for as long as it looks at them. */
size_t rdma_ports(const struct haul_device *device, struct haul_port *ports, size_t room);

#endif
