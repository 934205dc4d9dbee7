/* SPDX-License-Identifier: MIT
 * Open files and folders of the remote source. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <time.h>

#include "storage/mapping.h"
#include "storage/service/remote.h"

/* ---- Bounce buffers ---- */

/* Stays taken after a timeout, until the server can no longer use it. */
struct slot {
  struct bounce_area *area;
  unsigned number;
};

static int open_area(struct remote_source *remote, struct bounce_area *area, unsigned rights) {
  const struct haul_place host = {HAUL_HOST, 0};
  pthread_condattr_t monotonic;
  haul_region *region;
  int code = haul_region_alloc(rpc_node(remote->rpc), host, REMOTE_SLOTS * REMOTE_SLOT, 0, &region);
  if (code)
    return protocol_errno(code);
  client_buffer_open(&area->buffer, remote->rpc, region, rights);
  pthread_mutex_init(&area->lock, NULL);
  pthread_condattr_init(&monotonic);
  pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
  pthread_cond_init(&area->freed, &monotonic);
  pthread_condattr_destroy(&monotonic);
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

static int get_slot(struct bounce_area *area, struct slot **out) {
  int64_t until = haul_deadline_in(rpc_timeout(area->buffer.rpc));
  const struct timespec at = {until / 1000000000, until % 1000000000};
  const uint32_t all = (UINT32_C(1) << REMOTE_SLOTS) - 1;
  struct slot *slot = malloc(sizeof *slot);
  int failed = slot ? 0 : ENOMEM;
  pthread_mutex_lock(&area->lock);
  while (!failed && area->taken == all)
    failed = pthread_cond_timedwait(&area->freed, &area->lock, &at);
  if (!failed) {
    slot->area = area;
    slot->number = (unsigned)__builtin_ctz(~area->taken);
    area->taken |= UINT32_C(1) << slot->number;
  }
  pthread_mutex_unlock(&area->lock);
  if (failed) {
    free(slot);
    return failed == ENOMEM ? -ENOMEM : -ETIMEDOUT;
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

/* ---- Opening ---- */

static int make_file(struct remote_source *remote, struct remote_call *call, uint64_t inode,
                     struct source_file **file) {
  struct remote_open_file *made = calloc(1, sizeof *made);
  if (made) {
    made->file = (struct source_file){.inode = inode, .fd = -1};
    made->handle = call->response.file;
    made->generation = call->generation;
    *file = &made->file;
    return 0;
  }
  call->request.operation = PROTOCOL_RELEASE;
  call->request.fields = (struct protocol_fields){.file = call->response.file};
  rpc_call(remote->rpc, &call->generation, &call->request, &call->response);
  return -ENOMEM;
}

/* -EPERM for unchecked rights: the server does not know this host's users. */
int remote_open_node(struct source *source, const struct source_caller *caller, uint64_t node,
                     int flags, struct source_file **file) {
  struct remote_call call;
  if (!caller->checked)
    return -EPERM;
  if (remote_of(source)->read_only && flags & (O_ACCMODE | O_TRUNC))
    return -EROFS;
  int status = remote_begin(&call, PROTOCOL_OPEN, node);
  call.request.fields.flags = protocol_open_flags(flags & ~O_EXCL);
  if (!status)
    status = remote_call(source, &call);
  return status ? status : make_file(remote_of(source), &call, call.response.inode, file);
}

int remote_create(struct source *source, const struct source_caller *caller, uint64_t folder,
                  const char *name, mode_t mode, int flags, struct source_entry *entry,
                  struct source_file **file) {
  struct remote_call call;
  if (!caller->checked)
    return -EPERM;
  int status = remote_begin_change(source, &call, PROTOCOL_CREATE, folder, name);
  if (status)
    return status;
  call.request.fields.mode = mode;
  call.request.fields.flags = protocol_open_flags(flags);
  status = remote_entry(&call, remote_call(source, &call), entry);
  if (status)
    return status;
  status = make_file(remote_of(source), &call, entry->stat.st_ino, file);
  if (status)
    source->ops->forget(source, entry->node, 1);
  return status;
}

int remote_opendir(struct source *source, uint64_t node, struct source_file **folder) {
  struct remote_call call;
  int status = remote_begin(&call, PROTOCOL_OPENDIR, node);
  if (!status)
    status = remote_call(source, &call);
  return status ? status : make_file(remote_of(source), &call, call.response.inode, folder);
}

/* ---- Operations on open files ---- */

static void begin_file(struct remote_call *call, uint16_t operation, struct source_file *file) {
  remote_begin(call, operation, 0);
  call->generation = open_of(file)->generation;
  call->request.fields.file = open_of(file)->handle;
}

/* The server releases all files when the connection ends. */
void remote_release(struct source *source, struct source_file *file) {
  struct remote_call call;
  begin_file(&call, PROTOCOL_RELEASE, file);
  if (rpc_is_up(remote_of(source)->rpc, call.generation))
    remote_call(source, &call);
  free(open_of(file));
}

int remote_flush(struct source *source, struct source_file *file) {
  struct remote_call call;
  if (remote_of(source)->read_only)
    return 0;
  begin_file(&call, PROTOCOL_FLUSH, file);
  return remote_call(source, &call);
}

int remote_fsync(struct source *source, struct source_file *file, bool data_only) {
  struct remote_call call;
  begin_file(&call, PROTOCOL_FSYNC, file);
  call.request.fields.flags = data_only;
  return remote_call(source, &call);
}

int remote_fallocate(struct source *source, struct source_file *file, int mode, off_t offset,
                     off_t length) {
  struct remote_call call;
  if (remote_of(source)->read_only)
    return -EROFS;
  begin_file(&call, PROTOCOL_FALLOCATE, file);
  call.request.fields.flags = (uint32_t)mode;
  call.request.fields.offset = offset;
  call.request.fields.length = (uint64_t)length;
  return remote_call(source, &call);
}

off_t remote_lseek(struct source *source, struct source_file *file, off_t offset, int whence) {
  struct remote_call call;
  begin_file(&call, PROTOCOL_LSEEK, file);
  call.request.fields.flags = (uint32_t)whence;
  call.request.fields.offset = offset;
  int status = remote_call(source, &call);
  if (status)
    return status;
  return call.response.offset < 0 ? -EPROTO : call.response.offset;
}

/* ---- Folders ---- */

#define ROUNDS_MAX 4096 /* requests for one readdir: bounds a server that never ends the list */

struct names {
  source_each *each;
  void *user;
  off_t next;
  bool more;
};

static int pass_names(void *user, const struct protocol_fields *response) {
  struct names *names = user;
  struct protocol_name name;
  struct wire wire = wire_over(response->bytes, response->size);
  names->more = wire_left(&wire) > 0;
  while (names->more && wire_left(&wire) > 0) {
    if (!protocol_get_name(&wire, &name))
      return -EPROTO;
    names->more = names->each(names->user, &name.name);
    names->next = name.name.next;
  }
  return 0;
}

int remote_readdir(struct source *source, struct source_file *folder, off_t offset, size_t bytes,
                   source_each *each, void *user) {
  struct names names = {.each = each, .user = user, .next = offset, .more = true};
  int status = 0;
  for (unsigned round = 0; names.more && !status; round++) {
    struct remote_call call;
    if (round == ROUNDS_MAX)
      return -EPROTO;
    begin_file(&call, PROTOCOL_READDIR, folder);
    call.request.fields.offset = names.next;
    call.request.fields.length = bytes;
    status = remote_call_bytes(source, &call, pass_names, &names);
  }
  return status;
}
