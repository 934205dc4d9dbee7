/* SPDX-License-Identifier: MIT
 * A descriptor that blocks when it is closed. */
#ifndef HAUL_TESTS_LINGERING_H
#define HAUL_TESTS_LINGERING_H

#include <stdbool.h>
#include <stddef.h>

/* A TCP socket with bytes that are never read: its last close blocks for LINGERS seconds. */
#define LINGERS 8
int lingering_socket(void);
/* Sends `length` bytes with `count` copies of such a socket, so that the receiver closes it last.
 * False when the receiver does not allow descriptors or has closed the socket. */
bool lingering_send(int socket, const void *bytes, size_t length, size_t count, int flags);

#endif
