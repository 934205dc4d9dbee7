/* SPDX-License-Identifier: MIT
 * Connections of NCCL's, each for one direction. */
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>

#include "plugin.h"

/* ---- Handles ---- */

#define HANDLE_MAGIC UINT64_C(0x6c7561682d6c6363) /* "ccl-haul" */

/* What NCCL carries from who listens to who connects, and hands to each call of connect. */
struct handle {
  uint64_t magic;
  uint8_t secret[16];
  char address[ADDRESS_ROOM];
  uint64_t check;
  struct comm *connecting; /* connect's own */
};
_Static_assert(sizeof(struct handle) <= NCCL_HANDLE_SIZE, "what NCCL carries");

/* FNV-1a: of bytes that were cut off or mixed up, not of forged ones. */
static uint64_t check_of(const struct handle *handle) {
  const uint8_t *at = (const uint8_t *)handle;
  uint64_t sum = UINT64_C(0xcbf29ce484222325);
  for (size_t i = 0; i < offsetof(struct handle, check); i++)
    sum = (sum ^ at[i]) * UINT64_C(0x100000001b3);
  return sum;
}

/* ---- Life ---- */

static void init_locks(struct comm *comm) {
  pthread_mutexattr_t recursive; /* haul may call back within a call of ours */
  pthread_condattr_t monotonic;
  pthread_mutexattr_init(&recursive);
  pthread_mutexattr_settype(&recursive, PTHREAD_MUTEX_RECURSIVE);
  pthread_mutex_init(&comm->lock, &recursive);
  pthread_mutexattr_destroy(&recursive);
  pthread_condattr_init(&monotonic);
  pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
  pthread_cond_init(&comm->quiet, &monotonic);
  pthread_condattr_destroy(&monotonic);
}

/* plugin.lock: a free place in the table; the table's size where there is none to be had. */
static size_t take_place(void) {
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

static bool enter(struct comm *comm) {
  uint32_t random;
  if (getrandom(&random, sizeof random, 0) != sizeof random)
    return false;
  pthread_mutex_lock(&plugin.lock);
  size_t place = take_place();
  bool found = place < plugin.table_size;
  if (found) {
    comm->id = (uint64_t)place << 32 | random;
    plugin.table[place] = comm;
    list_append(&plugin.comms, &comm->link);
  }
  pthread_mutex_unlock(&plugin.lock);
  return found;
}

static void init_requests(struct comm *comm, bool sends) {
  comm->sends = sends;
  comm->request_count = sends ? SENDS_MAX : GROUPS_MAX;
  comm->requests = calloc(comm->request_count, sizeof comm->requests[0]);
  for (unsigned i = 0; i < comm->request_count && comm->requests; i++)
    comm->requests[i] = (struct request){.comm = comm, .group = sends ? NULL : &comm->groups[i]};
}

static void free_comm(struct comm *comm) {
  pthread_cond_destroy(&comm->quiet);
  pthread_mutex_destroy(&comm->lock);
  free(comm->requests);
  free(comm);
}

struct comm *comm_new(bool sends) {
  struct comm *comm = calloc(1, sizeof *comm);
  if (!comm)
    return NULL;
  init_locks(comm);
  init_requests(comm, sends);
  list_init(&comm->link);
  list_init(&comm->waiting);
  list_init(&comm->memories);
  list_init(&comm->targets);
  if (comm->requests && enter(comm))
    return comm;
  WARN("NET/haul: no memory for a connection");
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

void comm_unlock(struct comm *comm) {
  pthread_mutex_unlock(&comm->lock);
}

/* The other side waits for nothing either. */
void comm_fail(struct comm *comm, int result) {
  if (comm->failed)
    return;
  comm->failed = result;
  if (comm->state == COMM_READY && comm->other)
    message_bye(comm);
}

/* Until haul and the clerks touch it no more; the lock. */
static bool quiet(struct comm *comm) {
  struct timespec until;
  clock_gettime(CLOCK_MONOTONIC, &until);
  until.tv_sec += SET_UP_NS / 1000000000 + 10;
  while (comm->under_way > 0 || comm->jobs > 0)
    if (pthread_cond_timedwait(&comm->quiet, &comm->lock, &until) != 0)
      return false;
  return true;
}

static void cancel_all(struct comm *comm) {
  for (unsigned i = 0; i < comm->request_count; i++)
    if (comm->requests[i].transfer)
      haul_transfer_cancel(comm->requests[i].transfer);
}

static void release_all(struct comm *comm) {
  list_each(item, &comm->memories) {
    struct memory *memory = list_entry(item, struct memory, link);
    haul_region_release(memory->region);
    free(memory);
  }
  list_each(item, &comm->targets) {
    struct target *target = list_entry(item, struct target, link);
    haul_remote_release(target->remote);
    free(target);
  }
  if (comm->route)
    route_give(comm->route);
  haul_peer_close(comm->messages);
}

int comm_close(void *of) {
  struct comm *comm = of;
  if (!comm)
    return NCCL_SUCCESS;
  pthread_mutex_lock(&plugin.lock);
  list_remove(&comm->link);
  list_remove(&comm->waiting);
  plugin.table[comm->id >> 32] = NULL;
  pthread_mutex_lock(&comm->lock); /* who found it before has let go of it then */
  pthread_mutex_unlock(&plugin.lock);
  comm->closing = true;
  cancel_all(comm);
  if (!quiet(comm)) {
    WARN("NET/haul: a connection could not be ended in time, and is left behind");
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

/* ---- Listening ---- */

/* Of this device's listener at the node, whose index it is. */
static int address_of(int device, char address[ADDRESS_ROOM]) {
  char whole[160];
  if (haul_node_address(plugin.node, (size_t)device, whole, sizeof whole))
    return warn_of_library("its address");
  size_t length = strlen(whole);
  if (length >= ADDRESS_ROOM)
    return NCCL_INTERNAL_ERROR;
  memcpy(address, whole, length + 1);
  return NCCL_SUCCESS;
}

int comm_listen(int device, void *out, void **listening) {
  struct handle handle = {.magic = HANDLE_MAGIC};
  struct listener *listener = calloc(1, sizeof *listener);
  *listening = NULL;
  if (!listener || device < 0 || (unsigned)device >= plugin.device_count) {
    free(listener);
    return listener ? NCCL_INVALID_ARGUMENT : NCCL_SYSTEM_ERROR;
  }
  int result = address_of(device, handle.address);
  if (!result && getrandom(handle.secret, sizeof handle.secret, 0) != sizeof handle.secret)
    result = NCCL_SYSTEM_ERROR;
  if (result) {
    free(listener);
    return result;
  }
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

/* Whose HELLO came first; NULL: there is none. */
static struct comm *take_waiting(struct listener *listener) {
  struct comm *comm = NULL;
  pthread_mutex_lock(&plugin.lock);
  if (!list_empty(&listener->waiting)) {
    comm = list_entry(listener->waiting.next, struct comm, waiting);
    list_remove(&comm->waiting);
  }
  pthread_mutex_unlock(&plugin.lock);
  return comm;
}

int comm_close_listen(void *of) {
  struct listener *listener = of;
  if (!listener)
    return NCCL_SUCCESS;
  pthread_mutex_lock(&plugin.lock);
  list_remove(&listener->link); /* nobody waits for it from now on */
  pthread_mutex_unlock(&plugin.lock);
  list_each(item, &listener->waiting) comm_close(list_entry(item, struct comm, waiting));
  free(listener);
  return NCCL_SUCCESS;
}

int comm_accept(void *listener, void **comm) {
  messages_pump();
  *comm = take_waiting(listener);
  return NCCL_SUCCESS;
}

/* ---- Connecting ---- */

static int begin(struct handle *handle) {
  if (handle->magic != HANDLE_MAGIC || handle->check != check_of(handle) ||
      !memchr(handle->address, 0, ADDRESS_ROOM)) {
    WARN("NET/haul: the handle to connect to was cut off, or is another plugin's: all ranks need "
         "the same one");
    return NCCL_INVALID_ARGUMENT;
  }
  struct comm *comm = comm_new(true);
  if (!comm)
    return NCCL_SYSTEM_ERROR;
  memcpy(comm->secret, handle->secret, sizeof comm->secret);
  memcpy(comm->address, handle->address, sizeof comm->address);
  handle->connecting = comm;
  clerk_connect(comm);
  return NCCL_SUCCESS;
}

/* Called again and again with the same handle, until there is a comm or a failure. */
int comm_connect(void *bytes, void **out) {
  struct handle handle;
  int result = NCCL_SUCCESS;
  memcpy(&handle, bytes, sizeof handle);
  *out = NULL;
  if (!handle.connecting)
    result = begin(&handle);
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
