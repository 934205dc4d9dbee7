/* SPDX-License-Identifier: MIT
 * The remote source's requests and file data. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/random.h>

#include "storage/mapping.h"
#include "storage/service/remote.h"
#include "storage/util.h"

#define COPY_TIMEOUT_NS INT64_C(30000000000) /* a longer copy counts as a lost device */

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

void remote_begin(struct remote_call *call, uint16_t operation, uint64_t node) {
  call->generation = 0;
  call->request.operation = operation;
  call->request.forget_count = 0;
  call->request.fields = (struct protocol_fields){0};
  call->response = (struct protocol_fields){0};
  call->status = node ? translate(call, node, &call->request.fields.node) : 0;
}

void remote_add_folder(struct remote_call *call, uint64_t folder) {
  if (!call->status)
    call->status = translate(call, folder, &call->request.fields.folder);
}

int remote_call(struct source *source, struct remote_call *call) {
  return remote_call_bytes(source, call, NULL, NULL);
}

int remote_call_bytes(struct source *source, struct remote_call *call,
                      int (*take)(void *user, const struct protocol_fields *response), void *user) {
  return call->status ? call->status
                      : rpc_call(remote_of(source)->rpc, &call->generation, &call->request,
                                 &call->response, take, user);
}

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

void client_buffer_withdraw(struct client_buffer *buffer) {
  pthread_mutex_lock(&buffer->lock);
  if (buffer->generation)
    rpc_unregion(buffer->rpc, buffer->generation, buffer->number);
  withdraw(buffer);
  pthread_mutex_unlock(&buffer->lock);
}

void client_buffer_close(struct client_buffer *buffer) {
  client_buffer_withdraw(buffer);
  pthread_mutex_destroy(&buffer->lock);
}

/* With the lock. */
static int publish(struct client_buffer *buffer) {
  uint64_t random[2];
  if (getrandom(random, sizeof random, 0) != sizeof random)
    return -EIO;
  snprintf(buffer->name, sizeof buffer->name, "haul-files.%016" PRIx64 "%016" PRIx64, random[0],
           random[1]);
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
  status = rpc_call(buffer->rpc, generation, &request, &response, NULL, NULL);
  if (status)
    return status;
  buffer->number = response.region;
  buffer->generation = *generation;
  return 0;
}

/* The number for READ and WRITE on this connection. */
static int get_number(struct client_buffer *buffer, uint64_t *generation, uint32_t *number,
                      bool *registered) {
  int status = 0;
  pthread_mutex_lock(&buffer->lock);
  *registered = buffer->generation < *generation;
  if (*registered)
    status = register_buffer(buffer, generation);
  else if (buffer->generation > *generation)
    status = -ESTALE; /* of an earlier connection, for which no name may be withdrawn */
  *number = buffer->number;
  pthread_mutex_unlock(&buffer->lock);
  return status;
}

int client_buffer_announce(struct client_buffer *buffer, uint64_t generation) {
  uint32_t number;
  bool registered;
  return get_number(buffer, &generation, &number, &registered);
}

int client_buffer_start(struct client_buffer *buffer, struct buffer_io *io,
                        struct rpc_call **call) {
  uint64_t generation = io->generation;
  struct protocol_request request = {
      .operation = io->operation,
      .fields = {.file = io->file,
                 .offset = io->offset,
                 .length = io->length,
                 .at = io->at,
                 .flags = io->flags | (io->summary ? PROTOCOL_SUMMARY : 0)}};
  int status = get_number(buffer, &generation, &request.fields.region, &io->registered);
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
}

static void free_area(struct bounce_area *area) {
  pthread_cond_destroy(&area->freed);
  pthread_mutex_destroy(&area->lock);
}

int remote_open_bounce(struct remote_source *remote) {
  int status = open_area(remote, &remote->in, HAUL_READ | HAUL_WRITE);
  if (status)
    return status;
  status = open_area(remote, &remote->out, HAUL_READ);
  if (status) {
    close_area(&remote->in);
    free_area(&remote->in);
  }
  return status;
}

void remote_close_bounce(struct remote_source *remote) {
  close_area(&remote->in);
  close_area(&remote->out);
}

void remote_free_bounce(struct remote_source *remote) {
  free_area(&remote->in);
  free_area(&remote->out);
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

/* The caller's side of a move. */
struct side {
  char *in; /* a read's bytes go there, or NULL */
  const char *out;
  haul_region *region; /* without both: device memory, from `at` on */
  uint64_t at;
};

static char *slot_bytes(const struct slot *slot) {
  return (char *)haul_region_address(slot->area->buffer.region) + slot->number * REMOTE_SLOT;
}

/* From the slot to the device's memory, or back. */
static int copy_device(const struct slot *slot, const struct side *side, uint64_t done,
                       uint64_t length, bool read) {
  haul_region *bounce = slot->area->buffer.region, *device = side->region;
  uint64_t at = slot->number * REMOTE_SLOT, there = side->at + done;
  haul_deadline until = haul_deadline_in(COPY_TIMEOUT_NS);
  return storage_errno(read ? haul_region_copy(device, there, bounce, at, length, until)
                            : haul_region_copy(bounce, at, device, there, length, until));
}

static int copy_slot(const struct slot *slot, const struct side *side, uint64_t done,
                     uint64_t length, bool read) {
  if (read && side->in)
    copy_shared(side->in + done, slot_bytes(slot), length);
  else if (!read && side->out)
    memcpy(slot_bytes(slot), side->out + done, length);
  else
    return copy_device(slot, side, done, length, read);
  return 0;
}

/* At most REMOTE_SLOT bytes, of which the side's begin behind `done`. */
static ssize_t move_part(struct bounce_area *area, struct buffer_io *io, const struct side *side,
                         uint64_t done) {
  struct rpc_call *call;
  struct slot *slot;
  bool in_use = false, read = io->operation == PROTOCOL_READ;
  ssize_t moved = get_slot(area, &slot);
  if (moved < 0)
    return moved;
  moved = read ? 0 : copy_slot(slot, side, done, io->length, read);
  io->at = slot->number * REMOTE_SLOT;
  if (moved == 0)
    moved = client_buffer_start(&area->buffer, io, &call);
  if (moved == 0)
    moved = client_buffer_wait(&area->buffer, io, call, put_slot, slot, &in_use);
  if (read && moved > 0) {
    int code = copy_slot(slot, side, done, (uint64_t)moved, read);
    moved = code ? code : moved;
  }
  if (!in_use)
    put_slot(slot);
  return moved;
}

/* As move_part, for any length. `like` has operation and flags. */
static ssize_t move_bytes(struct bounce_area *area, const struct remote_open_file *file,
                          const struct buffer_io *like, const struct side *side, size_t length,
                          off_t offset) {
  size_t done = 0;
  while (done < length) {
    struct buffer_io io = *like;
    io.generation = file->generation;
    io.file = file->handle;
    io.offset = offset + (off_t)done;
    io.length = length - done < REMOTE_SLOT ? length - done : REMOTE_SLOT;
    ssize_t moved = move_part(area, &io, side, done);
    if (moved < 0 && !done)
      return moved;
    if (moved > 0)
      done += (size_t)moved;
    if (moved < (ssize_t)io.length)
      break;
  }
  return (ssize_t)done;
}

ssize_t remote_read(struct source *source, struct source_file *file, void *bytes, size_t length,
                    off_t offset) {
  const struct buffer_io read = {.operation = PROTOCOL_READ};
  const struct side side = {.in = bytes};
  return move_bytes(&remote_of(source)->in, open_of(file), &read, &side, length, offset);
}

ssize_t remote_write(struct source *source, struct source_file *file, const void *bytes,
                     size_t length, off_t offset, int flags) {
  struct remote_source *remote = remote_of(source);
  const struct buffer_io write = {.operation = PROTOCOL_WRITE,
                                  .flags = protocol_write_flags(flags)};
  const struct side side = {.out = bytes};
  if (remote->read_only)
    return -EROFS;
  return move_bytes(&remote->out, open_of(file), &write, &side, length, offset);
}

ssize_t remote_move_staged(struct remote_source *remote, const struct remote_open_file *file,
                           haul_region *region, const struct source_move *move) {
  const struct buffer_io io = {.operation = move->write ? PROTOCOL_WRITE : PROTOCOL_READ,
                               .flags = protocol_write_flags(move->flags)};
  const struct side side = {.region = region, .at = move->at};
  return move_bytes(move->write ? &remote->out : &remote->in, file, &io, &side, move->length,
                    move->offset);
}
