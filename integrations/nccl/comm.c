/* SPDX-License-Identifier: MIT
 * Connections of NCCL (comms), each for one direction. */
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>

#include "plugin.h"

#define HANDLE_MAGIC UINT64_C(0x6c7561682d6c6363) /* "ccl-haul" */

/* NCCL carries it from listen to the connecting rank, and passes it to each call of connect. */
struct handle {
  uint64_t magic;
  uint8_t secret[16];
  char address[ADDRESS_ROOM];
  uint64_t check;
  struct comm *connecting; /* used by connect */
};
_Static_assert(sizeof(struct handle) <= NCCL_HANDLE_SIZE, "it fits in NCCL's handle");

/* FNV-1a: detects truncated and damaged handles, not forged ones. */
static uint64_t check_of(const struct handle *handle) {
  const uint8_t *at = (const uint8_t *)handle;
  uint64_t sum = UINT64_C(0xcbf29ce484222325);
  for (size_t i = 0; i < offsetof(struct handle, check); i++)
    sum = (sum ^ at[i]) * UINT64_C(0x100000001b3);
  return sum;
}

static void init_locks(struct comm *comm) {
  pthread_mutexattr_t recursive; /* haul may run callbacks within a call */
  pthread_condattr_t monotonic;
  pthread_mutexattr_init(&recursive);
  pthread_mutexattr_settype(&recursive, PTHREAD_MUTEX_RECURSIVE);
  pthread_mutex_init(&comm->lock, &recursive);
  pthread_mutexattr_destroy(&recursive);
  pthread_condattr_init(&monotonic);
  pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
  pthread_cond_init(&comm->idle, &monotonic);
  pthread_condattr_destroy(&monotonic);
}

/* With plugin.lock: a free slot of the table; its size if there is no memory to grow it. */
static size_t table_slot(void) {
  size_t at = 0, size = plugin.table_size;
  while (at < size && plugin.table[at])
    at++;
  if (at < size)
    return at;
  size_t larger = size ? 2 * size : 64;
  struct comm **table = realloc(plugin.table, larger * sizeof *table);
  if (!table)
    return size;
  memset(table + size, 0, (larger - size) * sizeof *table);
  plugin.table = table;
  plugin.table_size = larger;
  return at;
}

static bool table_insert(struct comm *comm) {
  uint32_t random;
  if (getrandom(&random, sizeof random, 0) != sizeof random)
    return false;
  pthread_mutex_lock(&plugin.lock);
  size_t place = table_slot();
  bool found = place < plugin.table_size;
  if (found) {
    comm->id = (uint64_t)place << 32 | random;
    plugin.table[place] = comm;
    list_append(&plugin.comms, &comm->link);
  }
  pthread_mutex_unlock(&plugin.lock);
  return found;
}

static void free_comm(struct comm *comm) {
  pthread_cond_destroy(&comm->idle);
  pthread_mutex_destroy(&comm->lock);
  free(comm->requests);
  free(comm);
}

struct comm *comm_new(bool sends) {
  struct comm *comm = calloc(1, sizeof *comm);
  if (!comm)
    return NULL;
  init_locks(comm);
  comm->sends = sends;
  comm->request_count = sends ? SENDS_MAX : GROUPS_MAX;
  comm->requests = calloc(comm->request_count, sizeof comm->requests[0]);
  for (unsigned i = 0; i < comm->request_count && comm->requests; i++)
    comm->requests[i] = (struct request){.comm = comm, .group = sends ? NULL : &comm->groups[i]};
  list_init(&comm->link);
  list_init(&comm->waiting);
  list_init(&comm->memories);
  list_init(&comm->targets);
  if (comm->requests && table_insert(comm))
    return comm;
  WARN("NET/haul: cannot create a connection: out of memory");
  free_comm(comm);
  return NULL;
}

struct comm *comm_find(uint64_t id) {
  uint64_t place = id >> 32;
  pthread_mutex_lock(&plugin.lock);
  struct comm *found = place < plugin.table_size ? plugin.table[place] : NULL;
  if (found && found->id != id)
    found = NULL;
  if (found)
    pthread_mutex_lock(&found->lock);
  pthread_mutex_unlock(&plugin.lock);
  return found;
}

/* Notifies the peer, so that it does not wait. */
void comm_fail(struct comm *comm, int result) {
  if (comm->failed)
    return;
  comm->failed = result;
  if (comm->state == COMM_READY && comm->other)
    message_bye(comm);
}

/* Waits until neither haul nor the workers use it. With the lock. */
static bool wait_idle(struct comm *comm) {
  struct timespec until;
  clock_gettime(CLOCK_MONOTONIC, &until);
  until.tv_sec += SET_UP_NS / 1000000000 + 10;
  while (comm->in_flight > 0 || comm->jobs > 0)
    if (pthread_cond_timedwait(&comm->idle, &comm->lock, &until) != 0)
      return false;
  return true;
}

static void release_all(struct comm *comm) {
  list_each_safe(item, &comm->memories) {
    struct memory *memory = list_entry(item, struct memory, link);
    haul_region_release(memory->region);
    free(memory);
  }
  list_each_safe(item, &comm->targets) {
    struct target *target = list_entry(item, struct target, link);
    haul_remote_release(target->remote);
    free(target);
  }
  if (comm->route)
    route_release(comm->route);
  haul_peer_close(comm->messages);
}

int comm_close(void *handle) {
  struct comm *comm = handle;
  if (!comm)
    return NCCL_SUCCESS;
  pthread_mutex_lock(&plugin.lock);
  list_remove(&comm->link);
  list_remove(&comm->waiting);
  plugin.table[comm->id >> 32] = NULL;
  pthread_mutex_lock(&comm->lock); /* a thread that found it before has unlocked it */
  pthread_mutex_unlock(&plugin.lock);
  comm->closing = true;
  for (unsigned i = 0; i < comm->request_count; i++)
    if (comm->requests[i].transfer)
      haul_transfer_cancel(comm->requests[i].transfer);
  if (!wait_idle(comm)) {
    WARN("NET/haul: a connection did not close in time, its memory leaks");
    pthread_mutex_unlock(&comm->lock);
    return NCCL_INTERNAL_ERROR;
  }
  if (comm->state == COMM_READY && !comm->failed && comm->other)
    message_bye(comm);
  pthread_mutex_unlock(&comm->lock);
  release_all(comm);
  free_comm(comm);
  return NCCL_SUCCESS;
}

/* Devices and the node's listeners have the same indices. */
static int address_of(int device, char address[ADDRESS_ROOM]) {
  char whole[160];
  if (haul_node_address(plugin.node, (size_t)device, whole, sizeof whole))
    return warn_library("cannot get the listener's address");
  size_t length = strlen(whole);
  if (length >= ADDRESS_ROOM)
    return NCCL_INTERNAL_ERROR;
  memcpy(address, whole, length + 1);
  return NCCL_SUCCESS;
}

int comm_listen(int device, void *out, void **listening) {
  struct handle handle = {.magic = HANDLE_MAGIC};
  *listening = NULL;
  if (device < 0 || (unsigned)device >= plugin.device_count)
    return NCCL_INVALID_ARGUMENT;
  int result = address_of(device, handle.address);
  if (result)
    return result;
  if (getrandom(handle.secret, sizeof handle.secret, 0) != sizeof handle.secret)
    return NCCL_SYSTEM_ERROR;
  struct listener *listener = calloc(1, sizeof *listener);
  if (!listener)
    return NCCL_SYSTEM_ERROR;
  handle.check = check_of(&handle);
  memset(out, 0, NCCL_HANDLE_SIZE);
  memcpy(out, &handle, sizeof handle);
  memcpy(listener->secret, handle.secret, sizeof handle.secret);
  list_init(&listener->waiting);
  pthread_mutex_lock(&plugin.lock);
  list_append(&plugin.listeners, &listener->link);
  pthread_mutex_unlock(&plugin.lock);
  *listening = listener;
  return NCCL_SUCCESS;
}

int comm_close_listen(void *handle) {
  struct listener *listener = handle;
  if (!listener)
    return NCCL_SUCCESS;
  pthread_mutex_lock(&plugin.lock);
  list_remove(&listener->link); /* no further HELLO finds it */
  pthread_mutex_unlock(&plugin.lock);
  list_each_safe(item, &listener->waiting) comm_close(list_entry(item, struct comm, waiting));
  free(listener);
  return NCCL_SUCCESS;
}

/* Returns the comm with the oldest HELLO, or NULL. */
int comm_accept(void *handle, void **out) {
  struct listener *listener = handle;
  struct comm *comm = NULL;
  messages_pump();
  pthread_mutex_lock(&plugin.lock);
  if (!list_empty(&listener->waiting)) {
    comm = list_entry(listener->waiting.next, struct comm, waiting);
    list_remove(&comm->waiting);
  }
  pthread_mutex_unlock(&plugin.lock);
  *out = comm;
  return NCCL_SUCCESS;
}

static int connect_begin(struct handle *handle) {
  if (handle->magic != HANDLE_MAGIC || handle->check != check_of(handle) ||
      !memchr(handle->address, 0, ADDRESS_ROOM)) {
    WARN("NET/haul: invalid connect handle: truncated, or of another plugin (hint: load the same "
         "plugin in all ranks)");
    return NCCL_INVALID_ARGUMENT;
  }
  struct comm *comm = comm_new(true);
  if (!comm)
    return NCCL_SYSTEM_ERROR;
  memcpy(comm->secret, handle->secret, sizeof comm->secret);
  memcpy(comm->address, handle->address, sizeof comm->address);
  handle->connecting = comm;
  worker_connect(comm);
  return NCCL_SUCCESS;
}

/* NCCL calls it repeatedly with the same handle, until it returns a comm or an error. */
int comm_connect(void *bytes, void **out) {
  struct handle handle;
  int result = NCCL_SUCCESS;
  memcpy(&handle, bytes, sizeof handle);
  *out = NULL;
  if (!handle.connecting)
    result = connect_begin(&handle);
  messages_pump();
  struct comm *comm = handle.connecting;
  if (!result) {
    pthread_mutex_lock(&comm->lock);
    enum comm_state state = comm->state;
    result = state == COMM_FAILED ? comm->failed : NCCL_SUCCESS;
    pthread_mutex_unlock(&comm->lock);
    if (state == COMM_READY)
      *out = comm;
    if (state != COMM_CONNECTING)
      handle.connecting = NULL;
    if (state == COMM_FAILED)
      comm_close(comm);
  }
  memcpy(bytes, &handle, sizeof handle);
  return result;
}
