/* SPDX-License-Identifier: MIT
 * Memory of other processes, opened by their handles. */
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ipc.h"

#define ANSWER_NS 5000000000 /* for the other process to connect and answer */

struct import {
  struct import *next;
  struct ipc_handle handle;
  haul_region *region;
  unsigned opens;
};

/* Taken only once there was an import, so that a forked child is detected first. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct import *imports; /* under the lock */
static _Atomic bool used;

/* Fetching a ticket and a descriptor from the exporting process */

/* Limits the next call to the time until the deadline. */
static bool arm(int socket, haul_deadline until) {
  int64_t left = until - haul_deadline_in(0);
  errno = EAGAIN;
  return left > 0 && ipc_limit(socket, left);
}

static bool connect_until(int socket, const struct ipc_handle *handle, haul_deadline until) {
  struct sockaddr_un address;
  socklen_t length = ipc_address(handle->process, &address);
  int result;
  do
    result = arm(socket, until) ? connect(socket, (struct sockaddr *)&address, length) : -1;
  while (result != 0 && errno == EINTR);
  return result == 0;
}

/* Closes all descriptors of the message unless it has exactly one, which it returns; else -1. */
static int take_descriptor(struct msghdr *message) {
  const struct cmsghdr *header = CMSG_FIRSTHDR(message);
  int descriptors[2] = {-1, -1};
  if (!header || header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS)
    return -1;
  size_t bytes = header->cmsg_len - CMSG_LEN(0);
  memcpy(descriptors, CMSG_DATA(header), bytes < sizeof descriptors ? bytes : sizeof descriptors);
  if (descriptors[1] < 0)
    return descriptors[0];
  for (int i = 0; i < 2; i++)
    if (descriptors[i] >= 0)
      close(descriptors[i]);
  return -1;
}

/* Returns the descriptor; -1: errno is EAGAIN at the deadline, or EPROTO for another answer, as for
 * memory that was freed. */
static int receive(int socket, struct haul_ticket *ticket, haul_deadline until) {
  union {
    struct cmsghdr header;
    char room[CMSG_SPACE(2 * sizeof(int))];
  } control;
  struct iovec part = {ticket, sizeof *ticket};
  struct msghdr message = {
      .msg_iov = &part, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
  ssize_t got;
  do
    got = arm(socket, until) ? recvmsg(socket, &message, MSG_CMSG_CLOEXEC) : -1;
  while (got < 0 && errno == EINTR);
  if (got < 0)
    return -1;
  int descriptor = take_descriptor(&message);
  errno = EPROTO;
  if (got == sizeof *ticket && !(message.msg_flags & MSG_TRUNC))
    return descriptor;
  if (descriptor >= 0)
    close(descriptor);
  return -1;
}

static int ask(int socket, const struct ipc_handle *handle, struct haul_ticket *ticket) {
  haul_deadline until = haul_deadline_in(ANSWER_NS);
  if (!connect_until(socket, handle, until))
    return -1;
  if (!ipc_is_trusted(socket)) {
    errno = EPERM;
    return -1;
  }
  if (send(socket, handle->memory, IPC_ID, MSG_DONTWAIT | MSG_NOSIGNAL) != IPC_ID)
    return -1;
  return receive(socket, ticket, until);
}

static cudaError_t fetch(struct record *record, const struct ipc_handle *handle,
                         struct haul_ticket *ticket, int *descriptor) {
  int stream = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  *descriptor = stream < 0 ? -1 : ask(stream, handle, ticket);
  int reason = errno;
  if (stream >= 0)
    close(stream);
  if (*descriptor >= 0)
    return cudaSuccess;
  if (stream < 0)
    pass_on(record, "no socket: errno %d", reason);
  else if (reason == EAGAIN)
    pass_on(record, "the exporting process does not answer");
  else if (reason == EPERM)
    pass_on(record, "the exporting process is of another user");
  else
    pass_on(record, "the exporting process has ended or has freed the memory: errno %d", reason);
  return stream < 0 || reason == EAGAIN ? cudaErrorMapBufferObjectFailed
                                        : cudaErrorInvalidResourceHandle;
}

/* The table */

static void import_free(struct import *import) {
  bool before = inside_haul;
  inside_haul = true;
  haul_region_release(import->region);
  inside_haul = before;
  free(import);
}

static int import_region(haul_node *node, const struct haul_ticket *ticket, int descriptor,
                         haul_region **region) {
  inside_haul = true;
  int code = haul_region_import(node, ticket, descriptor, region);
  inside_haul = false;
  return code;
}

/* NULL with *error. */
static struct import *import_new(struct record *record, const struct ipc_handle *handle,
                                 cudaError_t *error) {
  const char *why = "";
  struct haul_ticket ticket;
  int descriptor;
  haul_region *region;
  haul_node *node = node_of_imports(&why);
  *error = cudaErrorMapBufferObjectFailed;
  if (!node)
    return pass_on(record, "%s", why);
  *error = fetch(record, handle, &ticket, &descriptor);
  if (*error != cudaSuccess)
    return NULL;
  int code = import_region(node, &ticket, descriptor, &region);
  close(descriptor);
  if (code != 0) {
    *error = ipc_error(code);
    return pass_on(record, "%s: %s", haul_error_name(code), haul_error_last()->text);
  }
  struct import *made = malloc(sizeof *made);
  if (made) {
    *made = (struct import){NULL, *handle, region, 1};
    return made;
  }
  haul_region_release(region);
  *error = cudaErrorMemoryAllocation;
  return pass_on(record, "out of host memory");
}

/* With the lock. */
static struct import *find_handle(const struct ipc_handle *handle) {
  struct import *one = imports;
  while (one && memcmp(&one->handle, handle, sizeof *handle) != 0)
    one = one->next;
  return one;
}

/* Returns the address. */
static void *describe(const struct import *import, struct record *record) {
  void *address = haul_region_address(import->region);
  record->address = address;
  record->bytes = haul_region_length(import->region);
  record->device = haul_region_place(import->region).device;
  return address;
}

static void *open_again(struct record *record, const struct ipc_handle *handle) {
  if (!atomic_load(&used))
    return NULL;
  pthread_mutex_lock(&lock);
  struct import *import = find_handle(handle);
  void *address = import ? describe(import, record) : NULL;
  if (import)
    import->opens++;
  pthread_mutex_unlock(&lock);
  return address;
}

/* Another thread may have opened the same memory meanwhile: its import is used. */
static void *insert(struct record *record, struct import *made) {
  atomic_store(&used, true);
  pthread_mutex_lock(&lock);
  struct import *import = find_handle(&made->handle);
  if (import) {
    import->opens++;
  } else {
    made->next = imports;
    imports = import = made;
  }
  void *address = describe(import, record);
  pthread_mutex_unlock(&lock);
  if (import != made)
    import_free(made);
  return address;
}

static cudaError_t open_handle(struct record *record, const struct ipc_handle *handle,
                               unsigned flags, void **address) {
  static const uint8_t zero[sizeof handle->zero];
  cudaError_t error = runtime()->get_device(&record->device);
  if (error != cudaSuccess) {
    pass_on(record, "the runtime has no device");
    return error;
  }
  if (flags != cudaIpcMemLazyEnablePeerAccess) {
    pass_on(record, "invalid flags %u", flags);
    return cudaErrorInvalidValue;
  }
  if (export_is_own(handle)) {
    pass_on(record, "this process has exported the memory");
    return cudaErrorDeviceUninitialized;
  }
  if (memcmp(handle->zero, zero, sizeof zero) != 0) {
    pass_on(record, "the handle is damaged");
    return cudaErrorInvalidResourceHandle;
  }
  *address = open_again(record, handle);
  if (*address)
    return cudaSuccess;
  struct import *made = import_new(record, handle, &error);
  if (made)
    *address = insert(record, made);
  return error;
}

bool import_open(struct record *record, const cudaIpcMemHandle_t *given, unsigned flags,
                 void **address, cudaError_t *error) {
  struct ipc_handle handle;
  void *opened = NULL;
  memcpy(&handle, given, sizeof handle);
  if (!serve_may_act(record))
    return false;
  if (!address || memcmp(handle.magic, IPC_MAGIC, sizeof handle.magic) != 0) {
    pass_on(record, "not a handle of the hook");
    return false;
  }
  *error = open_handle(record, &handle, flags, &opened);
  if (*error != cudaSuccess) {
    log_record(record, "not opened: %s; error %d", record->why, *error);
    return true;
  }
  *address = opened;
  log_record(record, "opened");
  return true;
}

/* Ends one of the opens; false: the address is not in the table. *last: the import, taken out of
 * the table, if that was the last one, or NULL. */
static bool close_one(struct record *record, const void *address, struct import **last) {
  *last = NULL;
  if (!atomic_load(&used))
    return false;
  pthread_mutex_lock(&lock);
  struct import **at = &imports;
  while (*at && haul_region_address((*at)->region) != address)
    at = &(*at)->next;
  struct import *import = *at;
  if (import)
    describe(import, record);
  if (import && --import->opens == 0) {
    *at = import->next;
    *last = import;
  }
  pthread_mutex_unlock(&lock);
  return import != NULL;
}

/* Waits for the device, whose work may use the memory. */
static cudaError_t end_import(struct import *import) {
  cudaError_t error = device_idle(runtime(), haul_region_place(import->region).device);
  if (error == cudaSuccess) {
    import_free(import);
    return error;
  }
  pthread_mutex_lock(&lock);
  import->opens = 1;
  import->next = imports;
  imports = import;
  pthread_mutex_unlock(&lock);
  return error;
}

bool import_close(struct record *record, const void *address, cudaError_t *error) {
  struct import *last;
  record->address = address;
  if (!serve_may_act(record))
    return false;
  if (!close_one(record, address, &last)) {
    pass_on(record, "not opened by the hook");
    return false;
  }
  *error = last ? end_import(last) : cudaSuccess;
  if (*error != cudaSuccess)
    log_record(record, "not closed: error %d", *error);
  else
    log_record(record, "closed");
  return true;
}

void import_reset(int device) {
  struct import *ended = NULL;
  if (!atomic_load(&used))
    return;
  pthread_mutex_lock(&lock);
  for (struct import **at = &imports; *at;) {
    struct import *one = *at;
    if (haul_region_place(one->region).device != device) {
      at = &one->next;
      continue;
    }
    *at = one->next;
    one->next = ended;
    ended = one;
  }
  pthread_mutex_unlock(&lock);
  if (ended)
    device_idle(runtime(), device); /* kernels may use the memory */
  while (ended) {
    struct import *next = ended->next;
    import_free(ended);
    ended = next;
  }
}
