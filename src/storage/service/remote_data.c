/* SPDX-License-Identifier: MIT
 * What is open: files, and folders that are being read. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <time.h>

#include "storage/mapping.h"
#include "storage/service/remote_inside.h"

/* ---- Slots ---- */

/* One that bytes go through. It stays taken where nobody knows yet whether the server still uses
 * it. */
struct slot {
  struct stage_area *area;
  unsigned number;
};

static int open_area(struct remote_source *remote, struct stage_area *area, unsigned rights) {
  const struct haul_place host = {HAUL_HOST, 0};
  pthread_condattr_t monotonic;
  haul_region *region;
  int code =
      haul_region_alloc(dial_node(remote->dial), host, REMOTE_SLOTS * REMOTE_SLOT, 0, &region);
  if (code)
    return protocol_errno(code);
  wharf_open(&area->wharf, remote->dial, region, rights);
  pthread_mutex_init(&area->lock, NULL);
  pthread_condattr_init(&monotonic);
  pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
  pthread_cond_init(&area->given, &monotonic);
  pthread_condattr_destroy(&monotonic);
  return 0;
}

static void close_area(struct stage_area *area) {
  wharf_close(&area->wharf);
  haul_region_release(area->wharf.region);
  pthread_cond_destroy(&area->given);
  pthread_mutex_destroy(&area->lock);
}

int remote_open_stages(struct remote_source *remote) {
  int status = open_area(remote, &remote->in, HAUL_READ | HAUL_WRITE);
  if (status)
    return status;
  status = open_area(remote, &remote->out, HAUL_READ);
  if (status)
    close_area(&remote->in);
  return status;
}

void remote_close_stages(struct remote_source *remote) {
  close_area(&remote->in);
  close_area(&remote->out);
}

static int take_slot(struct stage_area *area, struct slot **out) {
  int64_t until = haul_deadline_in(dial_timeout(area->wharf.dial));
  const struct timespec at = {until / 1000000000, until % 1000000000};
  const uint32_t all = (UINT32_C(1) << REMOTE_SLOTS) - 1;
  struct slot *slot = malloc(sizeof *slot);
  int failed = slot ? 0 : ENOMEM;
  pthread_mutex_lock(&area->lock);
  while (!failed && area->taken == all)
    failed = pthread_cond_timedwait(&area->given, &area->lock, &at);
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

static void give_slot(void *user) {
  struct slot *slot = user;
  struct stage_area *area = slot->area;
  pthread_mutex_lock(&area->lock);
  area->taken &= ~(UINT32_C(1) << slot->number);
  pthread_cond_signal(&area->given);
  pthread_mutex_unlock(&area->lock);
  free(slot);
}

static char *slot_bytes(const struct slot *slot) {
  return (char *)haul_region_address(slot->area->wharf.region) + slot->number * REMOTE_SLOT;
}

/* ---- Reading and writing ---- */

/* *in_use: the slot is not the caller's any more. */
static ssize_t move(struct slot *slot, struct wharf_move *move, bool *in_use) {
  struct wharf *wharf = &slot->area->wharf;
  struct call *call;
  *in_use = false;
  move->at = slot->number * REMOTE_SLOT;
  int status = wharf_start(wharf, move, &call);
  return status ? status : wharf_wait(wharf, move, call, give_slot, slot, in_use);
}

static ssize_t read_part(struct remote_source *remote, const struct remote_open_file *file,
                         char *bytes, size_t length, off_t offset) {
  struct wharf_move part = {.operation = PROTOCOL_READ,
                            .generation = file->generation,
                            .file = file->handle,
                            .offset = offset,
                            .length = length};
  struct slot *slot;
  bool in_use;
  int status = take_slot(&remote->in, &slot);
  if (status)
    return status;
  ssize_t moved = move(slot, &part, &in_use);
  if (moved > 0)
    copy_shared(bytes, slot_bytes(slot), (size_t)moved);
  if (!in_use)
    give_slot(slot);
  return moved;
}

static ssize_t write_part(struct remote_source *remote, const struct remote_open_file *file,
                          const char *bytes, size_t length, off_t offset, int flags) {
  struct wharf_move part = {.operation = PROTOCOL_WRITE,
                            .generation = file->generation,
                            .file = file->handle,
                            .offset = offset,
                            .length = length,
                            .flags = protocol_write_flags(flags)};
  struct slot *slot;
  bool in_use;
  int status = take_slot(&remote->out, &slot);
  if (status)
    return status;
  memcpy(slot_bytes(slot), bytes, length);
  ssize_t moved = move(slot, &part, &in_use);
  if (!in_use)
    give_slot(slot);
  return moved;
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

static int make_file(struct remote_source *remote, struct remote_request *asked, uint64_t inode,
                     struct source_file **file) {
  struct remote_open_file *made = calloc(1, sizeof *made);
  if (made) {
    made->file = (struct source_file){.inode = inode, .fd = -1};
    made->handle = asked->answer.file;
    made->generation = asked->generation;
    *file = &made->file;
    return 0;
  }
  asked->request.operation = PROTOCOL_RELEASE;
  asked->request.fields = (struct protocol_fields){.file = asked->answer.file};
  dial_ask(remote->dial, &asked->generation, &asked->request, &asked->answer);
  return -ENOMEM;
}

/* Rights that nobody has checked are not the server's to check: it knows no users of this host. */
int remote_open_node(struct source *source, const struct source_caller *caller, uint64_t node,
                     int flags, struct source_file **file) {
  struct remote_request asked;
  if (!caller->checked)
    return -EPERM;
  if (remote_of(source)->read_only && flags & (O_ACCMODE | O_TRUNC))
    return -EROFS;
  int status = remote_begin(&asked, PROTOCOL_OPEN, node);
  asked.request.fields.flags = protocol_open_flags(flags & ~O_EXCL);
  if (!status)
    status = remote_ask(source, &asked);
  return status ? status : make_file(remote_of(source), &asked, asked.answer.inode, file);
}

int remote_create(struct source *source, const struct source_caller *caller, uint64_t folder,
                  const char *name, mode_t mode, int flags, struct source_entry *entry,
                  struct source_file **file) {
  struct remote_request asked;
  if (!caller->checked)
    return -EPERM;
  int status = source_check_name(name);
  if (!status && remote_of(source)->read_only)
    status = -EROFS;
  if (!status)
    status = remote_begin(&asked, PROTOCOL_CREATE, folder);
  if (status)
    return status;
  strcpy(asked.request.fields.name, name);
  asked.request.fields.mode = mode;
  asked.request.fields.flags = protocol_open_flags(flags);
  status = remote_entry(&asked, remote_ask(source, &asked), entry);
  if (status)
    return status;
  status = make_file(remote_of(source), &asked, entry->stat.st_ino, file);
  if (status)
    source->ops->forget(source, entry->node, 1);
  return status;
}

int remote_opendir(struct source *source, uint64_t node, struct source_file **folder) {
  struct remote_request asked;
  int status = remote_begin(&asked, PROTOCOL_OPENDIR, node);
  if (!status)
    status = remote_ask(source, &asked);
  return status ? status : make_file(remote_of(source), &asked, asked.answer.inode, folder);
}

/* ---- What is done with an open file ---- */

static void begin(struct remote_request *asked, uint16_t operation, struct source_file *file) {
  remote_begin(asked, operation, 0);
  asked->generation = open_of(file)->generation;
  asked->request.fields.file = open_of(file)->handle;
}

/* A server that is gone has released it. */
void remote_release(struct source *source, struct source_file *file) {
  struct remote_request asked;
  begin(&asked, PROTOCOL_RELEASE, file);
  if (dial_is_up(remote_of(source)->dial, asked.generation))
    remote_ask(source, &asked);
  free(open_of(file));
}

int remote_flush(struct source *source, struct source_file *file) {
  struct remote_request asked;
  if (remote_of(source)->read_only)
    return 0;
  begin(&asked, PROTOCOL_FLUSH, file);
  return remote_ask(source, &asked);
}

int remote_fsync(struct source *source, struct source_file *file, bool data_only) {
  struct remote_request asked;
  begin(&asked, PROTOCOL_FSYNC, file);
  asked.request.fields.flags = data_only;
  return remote_ask(source, &asked);
}

int remote_fallocate(struct source *source, struct source_file *file, int mode, off_t offset,
                     off_t length) {
  struct remote_request asked;
  if (remote_of(source)->read_only)
    return -EROFS;
  begin(&asked, PROTOCOL_FALLOCATE, file);
  asked.request.fields.flags = (uint32_t)mode;
  asked.request.fields.offset = offset;
  asked.request.fields.length = (uint64_t)length;
  return remote_ask(source, &asked);
}

off_t remote_lseek(struct source *source, struct source_file *file, off_t offset, int whence) {
  struct remote_request asked;
  begin(&asked, PROTOCOL_LSEEK, file);
  asked.request.fields.flags = (uint32_t)whence;
  asked.request.fields.offset = offset;
  int status = remote_ask(source, &asked);
  if (status)
    return status;
  return asked.answer.offset < 0 ? -EPROTO : asked.answer.offset;
}

/* ---- Folders ---- */

#define ROUNDS 4096 /* of one that never ends, as a server might tell */

struct names {
  bool (*each)(void *user, const struct source_name *name);
  void *user;
  off_t next;
  bool more;
};

static int hand_on(void *user, const struct protocol_fields *answer) {
  struct names *names = user;
  struct protocol_name name;
  struct wire wire = wire_over(answer->bytes, answer->size);
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
                   bool (*each)(void *user, const struct source_name *name), void *user) {
  struct names names = {.each = each, .user = user, .next = offset, .more = true};
  int status = 0;
  for (unsigned round = 0; names.more && !status; round++) {
    struct remote_request asked;
    if (round == ROUNDS)
      return -EPROTO;
    begin(&asked, PROTOCOL_READDIR, folder);
    asked.request.fields.offset = names.next;
    asked.request.fields.length = bytes;
    status = remote_ask_bytes(source, &asked, hand_on, &names);
  }
  return status;
}
