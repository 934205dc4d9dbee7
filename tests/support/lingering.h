/* SPDX-License-Identifier: MIT
 * A descriptor that is not worth having. */
#ifndef HAUL_TESTS_LINGERING_H
#define HAUL_TESTS_LINGERING_H

#include <stdbool.h>
#include <stddef.h>

/* A TCP socket with bytes that nobody reads: whoever closes it last waits LINGERS seconds for them.
 */
#define LINGERS 8
int lingering_socket(void);
/* Sends `length` bytes with `count` copies of such a socket, so that the receiver closes it last;
 * false when the receiver does not allow it or is gone. */
bool lingering_send(int socket, const void *bytes, size_t length, size_t count, int flags);

#endif
