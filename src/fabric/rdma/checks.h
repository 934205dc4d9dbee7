/* SPDX-License-Identifier: MIT
 * What RDMA needs on this host, and the command that mends what is missing. */
#ifndef HAUL_FABRIC_RDMA_CHECKS_H
#define HAUL_FABRIC_RDMA_CHECKS_H

#include <stddef.h>

#include "haul/haul.h"

/* As transport.checks: always the same checks in the same order, whatever is missing. Opens the
 * NICs for as long as it looks at them. */
size_t rdma_checks(struct haul_check *checks, size_t room);

/* What registers device memory by its address, by the kernel's name; NULL: nothing. */
const char *checks_peer_memory(void);

#endif
