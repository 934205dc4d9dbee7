/* SPDX-License-Identifier: MIT */
#include "ipc.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

socklen_t ipc_address(const uint8_t process[IPC_ID], struct sockaddr_un *address) {
  *address = (struct sockaddr_un){.sun_family = AF_UNIX};
  char *path = address->sun_path;
  int used = 1 + snprintf(path + 1, sizeof address->sun_path - 1, "haul-cudahook-");
  for (size_t i = 0; i < IPC_ID; i++)
    used += snprintf(path + used, sizeof address->sun_path - (size_t)used, "%02x", process[i]);
  return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + (size_t)used);
}

/* 65534 stands for every user that the namespace does not map. */
bool ipc_is_trusted(int socket) {
  struct ucred other;
  socklen_t size = sizeof other;
  return getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &other, &size) == 0 &&
         other.uid == geteuid() && other.uid != 65534;
}

bool ipc_limit(int socket, int64_t nanoseconds) {
  int64_t microseconds = nanoseconds / 1000 + 1; /* 0 is no limit */
  struct timeval limit = {microseconds / 1000000, microseconds % 1000000};
  return setsockopt(socket, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit) == 0 &&
         setsockopt(socket, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit) == 0;
}

cudaError_t ipc_error(int code) {
  switch (code) {
  case HAUL_ENOMEM:
    return cudaErrorMemoryAllocation;
  case HAUL_ETICKET:
    return cudaErrorInvalidResourceHandle;
  default:
    return cudaErrorMapBufferObjectFailed;
  }
}
