/* SPDX-License-Identifier: MIT
 * Device memory as buffers: what a symlink cannot say goes over a socket. A client connects to the
 * address that 3fs-virt/iovs/haul-devices names, and sends a ticket and a descriptor; the buffer
 * lives as long as that connection. For memory that is lent (HAUL_LEND) the descriptor is the
 * writing end of a pipe, which all who import the ticket keep open for as long: its owner sees at
 * the other end when nobody uses the memory any more, and may free it.
 *
 * Records are of SOCK_SEQPACKET and of this host, so their fields are in its byte order. */
#ifndef HAUL_STORAGE_DEVICES_H
#define HAUL_STORAGE_DEVICES_H

struct devices;
struct buffers;

/* 0 or a negative errno value. */
int devices_open(struct buffers *buffers, struct devices **devices);
/* Takes all buffers back; workers may still use some. */
void devices_stop(struct devices *devices);
/* After that, and when they use none any more. */
void devices_close(struct devices *devices);
/* "@haul-…": a name in the abstract namespace of Unix sockets. */
const char *devices_address(const struct devices *devices);

#endif
