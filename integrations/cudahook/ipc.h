/* SPDX-License-Identifier: MIT
 * Memory of the hook in other processes, by the runtime's IPC calls. A handle names the socket of
 * the exporting process and one allocation. A process that sends the allocation's id there, as one
 * packet, receives a ticket and a descriptor as one packet, or the end of the connection. Both
 * sides accept only processes of their user. */
#ifndef HAUL_CUDAHOOK_IPC_H
#define HAUL_CUDAHOOK_IPC_H

#include <sys/socket.h>
#include <sys/un.h>

#include "hook.h"

#define IPC_ID    16
#define IPC_MAGIC "haul-cudahook-1"

/* In the 64 bytes of cudaIpcMemHandle_t. Both ids are random. */
struct ipc_handle {
  char magic[16];
  uint8_t process[IPC_ID]; /* the abstract socket "haul-cudahook-", and these in hexadecimal */
  uint8_t memory[IPC_ID];  /* another one for each allocation */
  uint8_t zero[16];
};
_Static_assert(sizeof(struct ipc_handle) == sizeof(cudaIpcMemHandle_t), "it fits exactly");

/* ipc.c */

/* Returns the length of the socket's address. */
socklen_t ipc_address(const uint8_t process[IPC_ID], struct sockaddr_un *address);
/* Whether the process at the other end is of the same user. */
bool ipc_is_trusted(int socket);
/* Limits each later call on the socket to `nanoseconds`, rounded up to microseconds. */
bool ipc_limit(int socket, int64_t nanoseconds);
/* The runtime's error for a code of haul. */
cudaError_t ipc_error(int code);

/* export.c */

/* Whether this process made the handle. */
bool export_is_own(const struct ipc_handle *handle);

#endif
