/* SPDX-License-Identifier: MIT
 * The remote source's requests and file data. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/random.h>

#include "storage/mapping.h"
#include "storage/service/remote.h"
#include "storage/util.h"

/* ---- Requests ---- */

/* *handle is the server's. All nodes of a call must be of one connection. */
static int translate(struct remote_call *call, uint64_t node, uint64_t *handle) {
  if (node >= SOURCE_HANDLES || node == 0)
    return -ESTALE;
  *handle = node % PROTOCOL_NODES;
  if (node == SOURCE_ROOT)
    return 0;
  uint64_t generation = node / PROTOCOL_NODES;
  if (generation == 0 || *handle <= SOURCE_ROOT ||
      (call->generation && call->generation != generation))
    return -ESTALE;
  call->generation = generation;
  return 0;
}

int remote_begin(struct remote_call *call, uint16_t operation, uint64_t node) {
  call->generation = 0;
  call->request.operation = operation;
  call->request.forget_count = 0;
  call->request.fields = (struct protocol_fields){0};
  call->response = (struct protocol_fields){0};
  return node ? translate(call, node, &call->request.fields.node) : 0;
}

int remote_add_folder(struct remote_call *call, uint64_t folder) {
  return translate(call, folder, &call->request.fields.folder);
}

int remote_call(struct source *source, struct remote_call *call) {
  return rpc_call(remote_of(source)->rpc, &call->generation, &call->request, &call->response);
}

int remote_call_bytes(struct source *source, struct remote_call *call,
                      int (*take)(void *user, const struct protocol_fields *response), void *user) {
  struct rpc *rpc = remote_of(source)->rpc;
  struct rpc_call *sent;
  int status = rpc_start(rpc, &call->generation, &call->request, &sent);
  if (status)
    return status;
  status = rpc_wait(rpc, &sent, &call->response, NULL, NULL);
  if (!status)
    status = take(user, &call->response);
  rpc_end(sent);
  return status;
}

/* ---- Client buffers ---- */

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
  if (generation) /* may fail: the end of the connection has the same effect */
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

/* ---- Bounce buffers ---- */

/* Stays taken after a timeout, until the server can no longer use it. */
struct slot {
  struct bounce_area *area;
  unsigned number;
};

static int open_area(struct remote_source *remote, struct bounce_area *area, unsigned rights) {
  const struct haul_place host = {HAUL_HOST, 0};
  haul_region *region;
  int code = haul_region_alloc(rpc_node(remote->rpc), host, REMOTE_SLOTS * REMOTE_SLOT, 0, &region);
  if (code)
    return protocol_errno(code);
  client_buffer_open(&area->buffer, remote->rpc, region, rights);
  pthread_mutex_init(&area->lock, NULL);
  storage_cond_init(&area->freed);
  return 0;
}

static void close_area(struct bounce_area *area) {
  client_buffer_close(&area->buffer);
  haul_region_release(area->buffer.region);
  pthread_cond_destroy(&area->freed);
  pthread_mutex_destroy(&area->lock);
}

int remote_open_bounce(struct remote_source *remote) {
  int status = open_area(remote, &remote->in, HAUL_READ | HAUL_WRITE);
  if (status)
    return status;
  status = open_area(remote, &remote->out, HAUL_READ);
  if (status)
    close_area(&remote->in);
  return status;
}

void remote_close_bounce(struct remote_source *remote) {
  close_area(&remote->in);
  close_area(&remote->out);
}

/* -ENOMEM, or -ETIMEDOUT: all are taken. */
static int get_slot(struct bounce_area *area, struct slot **out) {
  const uint32_t all = (UINT32_C(1) << REMOTE_SLOTS) - 1;
  int64_t until = haul_deadline_in(rpc_timeout(area->buffer.rpc));
  struct slot *slot = malloc(sizeof *slot);
  if (!slot)
    return -ENOMEM;
  bool waited = true;
  pthread_mutex_lock(&area->lock);
  while (area->taken == all && waited)
    waited = storage_wait(&area->freed, &area->lock, until);
  if (waited) {
    *slot = (struct slot){.area = area, .number = (unsigned)__builtin_ctz(~area->taken)};
    area->taken |= UINT32_C(1) << slot->number;
  }
  pthread_mutex_unlock(&area->lock);
  if (!waited) {
    free(slot);
    return -ETIMEDOUT;
  }
  *out = slot;
  return 0;
}

static void put_slot(void *user) {
  struct slot *slot = user;
  struct bounce_area *area = slot->area;
  pthread_mutex_lock(&area->lock);
  area->taken &= ~(UINT32_C(1) << slot->number);
  pthread_cond_signal(&area->freed);
  pthread_mutex_unlock(&area->lock);
  free(slot);
}

static char *slot_bytes(const struct slot *slot) {
  return (char *)haul_region_address(slot->area->buffer.region) + slot->number * REMOTE_SLOT;
}

/* ---- Reading and writing ---- */

/* *in_use: the server may still use the slot. */
static ssize_t do_io(struct slot *slot, struct buffer_io *io, bool *in_use) {
  struct client_buffer *buffer = &slot->area->buffer;
  struct rpc_call *call;
  *in_use = false;
  io->at = slot->number * REMOTE_SLOT;
  int status = client_buffer_start(buffer, io, &call);
  return status ? status : client_buffer_wait(buffer, io, call, put_slot, slot, in_use);
}

static ssize_t read_part(struct remote_source *remote, const struct remote_open_file *file,
                         char *bytes, size_t length, off_t offset) {
  struct buffer_io io = {.operation = PROTOCOL_READ,
                         .generation = file->generation,
                         .file = file->handle,
                         .offset = offset,
                         .length = length};
  struct slot *slot;
  bool in_use;
  int status = get_slot(&remote->in, &slot);
  if (status)
    return status;
  ssize_t got = do_io(slot, &io, &in_use);
  if (got > 0)
    copy_shared(bytes, slot_bytes(slot), (size_t)got);
  if (!in_use)
    put_slot(slot);
  return got;
}

static ssize_t write_part(struct remote_source *remote, const struct remote_open_file *file,
                          const char *bytes, size_t length, off_t offset, int flags) {
  struct buffer_io io = {.operation = PROTOCOL_WRITE,
                         .generation = file->generation,
                         .file = file->handle,
                         .offset = offset,
                         .length = length,
                         .flags = protocol_write_flags(flags)};
  struct slot *slot;
  bool in_use;
  int status = get_slot(&remote->out, &slot);
  if (status)
    return status;
  memcpy(slot_bytes(slot), bytes, length);
  ssize_t put = do_io(slot, &io, &in_use);
  if (!in_use)
    put_slot(slot);
  return put;
}

static size_t part_of(size_t left) {
  return left < REMOTE_SLOT ? left : REMOTE_SLOT;
}

ssize_t remote_read(struct source *source, struct source_file *file, void *bytes, size_t length,
                    off_t offset) {
  size_t done = 0;
  while (done < length) {
    size_t part = part_of(length - done);
    ssize_t got = read_part(remote_of(source), open_of(file), (char *)bytes + done, part,
                            offset + (off_t)done);
    if (got < 0 && !done)
      return got;
    if (got > 0)
      done += (size_t)got;
    if (got < (ssize_t)part)
      break;
  }
  return (ssize_t)done;
}

ssize_t remote_write(struct source *source, struct source_file *file, const void *bytes,
                     size_t length, off_t offset, int flags) {
  size_t done = 0;
  if (remote_of(source)->read_only)
    return -EROFS;
  while (done < length) {
    size_t part = part_of(length - done);
    ssize_t put = write_part(remote_of(source), open_of(file), (const char *)bytes + done, part,
                             offset + (off_t)done, flags);
    if (put < 0 && !done)
      return put;
    if (put > 0)
      done += (size_t)put;
    if (put < (ssize_t)part)
      break;
  }
  return (ssize_t)done;
}
