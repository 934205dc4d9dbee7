/* SPDX-License-Identifier: MIT
 * Host names, resolved by a deadline, which getaddrinfo lacks. */
#ifndef HAUL_CORE_RESOLVE_H
#define HAUL_CORE_RESOLVE_H

#include <stdint.h>
#include <sys/socket.h>

/* The first address of a host, given as IP address or name, and a port. A thread resolves names and
 * is abandoned at `until`. HAUL_EADDRESS, HAUL_ETIMEDOUT, HAUL_ELIMIT; `object` names the address
 * in errors. */
int resolve(const char *host, const char *port, const char *object, int64_t until,
            struct sockaddr_storage *storage, socklen_t *length);

#endif
