/* SPDX-License-Identifier: MIT
 * Host names, by a deadline: the resolver itself knows none. */
#ifndef HAUL_CORE_RESOLVE_H
#define HAUL_CORE_RESOLVE_H

#include <stdint.h>
#include <sys/socket.h>

/* The first address of a host, given as number or name, and a port. Numbers are read here and now;
 * names by a thread that is left to itself at `until`. HAUL_EADDRESS, HAUL_ETIMEDOUT, HAUL_ELIMIT;
 * `object` names the address in errors. */
int resolve(const char *host, const char *port, const char *object, int64_t until,
            struct sockaddr_storage *storage, socklen_t *length);

#endif
