/* SPDX-License-Identifier: MIT
 * Registered memory: a region. A receiver publishes it under a random name. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "plugin.h"

static int memory_publish(struct memory *memory) {
  uint8_t random[16];
  int length = snprintf(memory->name, sizeof memory->name, "nccl.");
  if (getrandom(random, sizeof random, 0) != sizeof random)
    return NCCL_SYSTEM_ERROR;
  for (size_t i = 0; i < sizeof random; i++)
    length +=
        snprintf(memory->name + length, sizeof memory->name - (size_t)length, "%02x", random[i]);
  if (haul_region_publish(memory->region, memory->name, HAUL_READ | HAUL_WRITE))
    return warn_library("cannot publish memory");
  return NCCL_SUCCESS;
}

static void memory_add(struct comm *comm, struct memory *memory) {
  pthread_mutex_lock(&comm->lock);
  memory->id = ++comm->next_memory;
  list_append(&comm->memories, &memory->link);
  if (!comm->sends)
    memory->sent = message_memory(comm, memory) == 0;
  pthread_mutex_unlock(&comm->lock);
}

int memory_register(void *handle, void *data, size_t size, int type, void **out) {
  struct comm *comm = handle;
  *out = NULL;
  if (type != NCCL_POINTER_HOST && type != NCCL_POINTER_CUDA)
    return NCCL_INVALID_ARGUMENT;
  struct memory *memory = calloc(1, sizeof *memory);
  if (!memory)
    return NCCL_SYSTEM_ERROR;
  *memory = (struct memory){.comm = comm, .address = data, .size = size};
  list_init(&memory->link);
  if (haul_region_wrap(plugin.node, data, size, &memory->region)) {
    free(memory);
    return warn_library("cannot register memory");
  }
  memory->host = haul_region_place(memory->region).kind == HAUL_HOST;
  int result = comm->sends ? NCCL_SUCCESS : memory_publish(memory);
  if (result) {
    haul_region_release(memory->region);
    free(memory);
    return result;
  }
  memory_add(comm, memory);
  *out = memory;
  return NCCL_SUCCESS;
}

/* Blocks until no transfer uses the memory. */
int memory_deregister(void *handle, void *what) {
  struct comm *comm = handle;
  struct memory *memory = what;
  if (!memory || memory->comm != comm)
    return NCCL_INVALID_ARGUMENT;
  pthread_mutex_lock(&comm->lock);
  list_remove(&memory->link);
  transfer_forget(comm, memory->id);
  if (!comm->sends && memory->sent && !comm->failed)
    message_forget(comm, memory->id); /* may fail, as the release withdraws the name */
  pthread_mutex_unlock(&comm->lock);
  haul_region_release(memory->region);
  free(memory);
  return NCCL_SUCCESS;
}

void on_memory(struct comm *comm, uint64_t id, const char *name) {
  if (target_find(comm, id))
    return;
  struct target *target = calloc(1, sizeof *target);
  if (!target) {
    comm_fail(comm, NCCL_SYSTEM_ERROR);
    return;
  }
  target->id = id;
  memcpy(target->name, name, sizeof target->name);
  list_append(&comm->targets, &target->link);
  worker_look_up(comm, id);
}

void on_forget(struct comm *comm, uint64_t id) {
  struct target *target = target_find(comm, id);
  if (!target)
    return;
  list_remove(&target->link);
  haul_remote_release(target->remote); /* transfers in flight keep it */
  free(target);
}
