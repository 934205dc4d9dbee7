/* SPDX-License-Identifier: MIT */
#include "storage/service/client_buffer.h"

#include <errno.h>
#include <stdio.h>
#include <sys/random.h>

void client_buffer_open(struct client_buffer *buffer, struct rpc *rpc, haul_region *region,
                        unsigned rights) {
  *buffer = (struct client_buffer){.rpc = rpc, .region = region, .rights = rights};
  pthread_mutex_init(&buffer->lock, NULL);
}

/* With the lock. */
static void withdraw(struct client_buffer *buffer) {
  if (*buffer->name)
    haul_region_unpublish(buffer->region, buffer->name);
  buffer->name[0] = '\0';
  buffer->generation = 0;
}

void client_buffer_close(struct client_buffer *buffer) {
  struct protocol_request request = {.operation = PROTOCOL_UNREGION,
                                     .fields = {.region = buffer->number}};
  struct protocol_fields response;
  uint64_t generation = buffer->generation;
  if (generation)
    rpc_call(buffer->rpc, &generation, &request, &response);
  withdraw(buffer);
  pthread_mutex_destroy(&buffer->lock);
}

/* With the lock. */
static int publish(struct client_buffer *buffer) {
  uint8_t random[16];
  int length = snprintf(buffer->name, sizeof buffer->name, "haul-files.");
  if (getrandom(random, sizeof random, 0) != sizeof random)
    return -EIO;
  for (size_t i = 0; i < sizeof random; i++)
    length +=
        snprintf(buffer->name + length, sizeof buffer->name - (size_t)length, "%02x", random[i]);
  int code = haul_region_publish(buffer->region, buffer->name, buffer->rights);
  if (code)
    buffer->name[0] = '\0';
  return protocol_errno(code);
}

/* With the lock. */
static int register_buffer(struct client_buffer *buffer, uint64_t *generation) {
  struct protocol_request request = {.operation = PROTOCOL_REGION};
  struct protocol_fields response;
  withdraw(buffer);
  int status = publish(buffer);
  if (status)
    return status;
  snprintf(request.fields.name, sizeof request.fields.name, "%s", buffer->name);
  status = rpc_call(buffer->rpc, generation, &request, &response);
  if (status)
    return status;
  buffer->number = response.region;
  buffer->generation = *generation;
  return 0;
}

/* The number for READ and WRITE on this connection. */
static int get_number(struct client_buffer *buffer, uint64_t *generation, uint32_t *number) {
  int status = 0;
  pthread_mutex_lock(&buffer->lock);
  if (buffer->generation == 0 || buffer->generation != *generation)
    status = register_buffer(buffer, generation);
  *number = buffer->number;
  pthread_mutex_unlock(&buffer->lock);
  return status;
}

int client_buffer_start(struct client_buffer *buffer, const struct buffer_io *io,
                        struct rpc_call **call) {
  uint64_t generation = io->generation;
  struct protocol_request request = {
      .operation = io->operation,
      .fields = {.file = io->file,
                 .offset = io->offset,
                 .length = io->length,
                 .at = io->at,
                 .flags = io->flags | (io->summary ? PROTOCOL_SUMMARY : 0)}};
  int status = get_number(buffer, &generation, &request.fields.region);
  return status ? status : rpc_start(buffer->rpc, &generation, &request, call);
}

ssize_t client_buffer_wait(struct client_buffer *buffer, const struct buffer_io *io,
                           struct rpc_call *call, void (*late)(void *user), void *user,
                           bool *in_use) {
  struct protocol_fields response;
  int status = rpc_wait(buffer->rpc, &call, &response, late, user);
  *in_use = !call;
  if (!status && io->summary)
    status = protocol_get_summary(response.bytes, response.size, io->summary);
  rpc_end(call);
  if (status)
    return status;
  return response.length > io->length ? -EPROTO : (ssize_t)response.length;
}
