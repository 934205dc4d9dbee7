/* SPDX-License-Identifier: MIT
 * Memory of NCCL's: a region; a receiver's is published under a name that nobody guesses. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "plugin.h"

static int publish(struct memory *memory) {
  uint8_t random[16];
  int length = snprintf(memory->name, sizeof memory->name, "nccl.");
  if (getrandom(random, sizeof random, 0) != sizeof random)
    return NCCL_SYSTEM_ERROR;
  for (size_t i = 0; i < sizeof random; i++)
    length +=
        snprintf(memory->name + length, sizeof memory->name - (size_t)length, "%02x", random[i]);
  if (haul_region_publish(memory->region, memory->name, HAUL_READ | HAUL_WRITE))
    return warn_of_library("cannot publish memory");
  return NCCL_SUCCESS;
}

static void add(struct comm *comm, struct memory *memory) {
  pthread_mutex_lock(&comm->lock);
  memory->id = ++comm->next_memory;
  list_append(&comm->memories, &memory->link);
  if (!comm->sends)
    memory->told = message_memory(comm, memory) == 0;
  pthread_mutex_unlock(&comm->lock);
}

int memory_register(void *of, void *data, size_t size, int type, void **out) {
  struct comm *comm = of;
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
    return warn_of_library("cannot register memory");
  }
  memory->host = haul_region_place(memory->region).kind == HAUL_HOST;
  int result = comm->sends ? NCCL_SUCCESS : publish(memory);
  if (result) {
    haul_region_release(memory->region);
    free(memory);
    return result;
  }
  add(comm, memory);
  *out = memory;
  return NCCL_SUCCESS;
}

/* Whoever still moves bytes of it has ended when this returns. */
int memory_deregister(void *of, void *what) {
  struct comm *comm = of;
  struct memory *memory = what;
  if (!memory || memory->comm != comm)
    return NCCL_INVALID_ARGUMENT;
  pthread_mutex_lock(&comm->lock);
  list_remove(&memory->link);
  transfer_forget(comm, memory->id);
  if (!comm->sends && memory->told && !comm->failed)
    message_forget(comm, memory->id); /* where there is no room its name is gone all the same */
  pthread_mutex_unlock(&comm->lock);
  haul_region_release(memory->region);
  free(memory);
  return NCCL_SUCCESS;
}

/* ---- As the sender knows it ---- */

void on_memory(struct comm *comm, uint64_t id, const char *name) {
  list_each(item, &comm->targets) if (list_entry(item, struct target, link)->id == id) return;
  struct target *target = calloc(1, sizeof *target);
  if (!target) {
    comm_fail(comm, NCCL_SYSTEM_ERROR);
    return;
  }
  target->id = id;
  memcpy(target->name, name, sizeof target->name);
  list_append(&comm->targets, &target->link);
  clerk_look_up(comm, id);
}

void on_forget(struct comm *comm, uint64_t id) {
  list_each(item, &comm->targets) {
    struct target *target = list_entry(item, struct target, link);
    if (target->id != id)
      continue;
    list_remove(&target->link);
    haul_remote_release(target->remote); /* transfers under way keep it */
    free(target);
  }
}
