/* SPDX-License-Identifier: MIT */
#include "storage/service/protocol.h"

#include <errno.h>
#include <fcntl.h>
#include <haul/haul.h>

/* Each operation's fields in the request and in the answer, a letter a field. */
static const struct row {
  const char *request, *answer;
} rows[PROTOCOL_OPERATIONS] = {
    [PROTOCOL_GREET] = {"Vn", "VgDl"},   [PROTOCOL_EXPORTS] = {"", "x"},
    [PROTOCOL_REGION] = {"n", "r"},      [PROTOCOL_UNREGION] = {"r", ""},
    [PROTOCOL_LOOKUP] = {"dn", "es"},    [PROTOCOL_FORGET] = {"", ""},
    [PROTOCOL_FIND] = {"i", "es"},       [PROTOCOL_GETATTR] = {"d", "s"},
    [PROTOCOL_SETATTR] = {"dfc", "s"},   [PROTOCOL_READLINK] = {"d", "x"},
    [PROTOCOL_STATFS] = {"", "v"},       [PROTOCOL_MKDIR] = {"dnp", "es"},
    [PROTOCOL_SYMLINK] = {"dnx", "es"},  [PROTOCOL_MKNOD] = {"dnp", "es"},
    [PROTOCOL_LINK] = {"dtn", "es"},     [PROTOCOL_UNLINK] = {"dn", ""},
    [PROTOCOL_RMDIR] = {"dn", ""},       [PROTOCOL_RENAME] = {"dntmg", ""},
    [PROTOCOL_OPEN] = {"dg", "fi"},      [PROTOCOL_CREATE] = {"dnpg", "esf"},
    [PROTOCOL_RELEASE] = {"f", ""},      [PROTOCOL_READ] = {"folrag", "lx"},
    [PROTOCOL_WRITE] = {"folrag", "lx"}, [PROTOCOL_FLUSH] = {"f", ""},
    [PROTOCOL_FSYNC] = {"fg", ""},       [PROTOCOL_FALLOCATE] = {"folg", ""},
    [PROTOCOL_LSEEK] = {"fog", "o"},     [PROTOCOL_OPENDIR] = {"d", "fi"},
    [PROTOCOL_READDIR] = {"fol", "x"},   [PROTOCOL_GETXATTR] = {"dnl", "lx"},
    [PROTOCOL_LISTXATTR] = {"dl", "lx"}, [PROTOCOL_SETXATTR] = {"dnxg", ""},
    [PROTOCOL_REMOVEXATTR] = {"dn", ""},
};

/* ---- Numbers: letter, bytes, place ---- */

static const struct number {
  char letter;
  uint8_t bytes;
  size_t offset;
} numbers[] = {
    {'d', 8, offsetof(struct protocol_fields, node)},
    {'e', 8, offsetof(struct protocol_fields, node)},
    {'t', 8, offsetof(struct protocol_fields, folder)},
    {'f', 8, offsetof(struct protocol_fields, file)},
    {'i', 8, offsetof(struct protocol_fields, inode)},
    {'o', 8, offsetof(struct protocol_fields, offset)},
    {'l', 8, offsetof(struct protocol_fields, length)},
    {'a', 8, offsetof(struct protocol_fields, at)},
    {'r', 4, offsetof(struct protocol_fields, region)},
    {'g', 4, offsetof(struct protocol_fields, flags)},
    {'p', 4, offsetof(struct protocol_fields, mode)},
    {'D', 4, offsetof(struct protocol_fields, depth)},
};

static const struct number *number_of(char letter) {
  for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
    if (numbers[i].letter == letter)
      return &numbers[i];
  return NULL;
}

static void put_number(struct wire *wire, const struct number *number,
                       const struct protocol_fields *fields) {
  uint64_t value = 0;
  memcpy(&value, (const char *)fields + number->offset, number->bytes);
  wire_put(wire, number->bytes == 4 ? (uint32_t)value : value, number->bytes);
}

static void get_number(struct wire *wire, const struct number *number,
                       struct protocol_fields *fields) {
  uint64_t value = wire_get(wire, number->bytes);
  uint32_t half = (uint32_t)value;
  void *place = (char *)fields + number->offset;
  if (number->bytes == 4)
    memcpy(place, &half, sizeof half);
  else
    memcpy(place, &value, sizeof value);
}

/* ---- Names and bytes ---- */

/* Any bytes but zero ones: what a name may be is the source's to say. */
static void put_name(struct wire *wire, const char *name) {
  size_t length = strlen(name);
  wire_put16(wire, (uint16_t)length);
  wire_put_bytes(wire, name, length);
}

static void get_name(struct wire *wire, char name[NAME_MAX + 1]) {
  size_t length = wire_get16(wire);
  name[0] = '\0';
  if (length > NAME_MAX) {
    wire->failed = true;
    return;
  }
  const uint8_t *at = wire_take(wire, length);
  if (!at || memchr(at, 0, length)) {
    wire->failed = true;
    return;
  }
  memcpy(name, at, length);
  name[length] = '\0';
}

static void put_bytes(struct wire *wire, const struct protocol_fields *fields) {
  if (fields->size > PROTOCOL_BYTES_MAX) {
    wire->failed = true;
    return;
  }
  wire_put32(wire, (uint32_t)fields->size);
  wire_put_bytes(wire, fields->bytes, fields->size);
}

static void get_bytes(struct wire *wire, struct protocol_fields *fields) {
  size_t size = wire_get32(wire);
  if (size > PROTOCOL_BYTES_MAX)
    wire->failed = true;
  fields->bytes = wire_take(wire, size);
  fields->size = fields->bytes ? size : 0;
}

/* ---- Attributes ---- */

static void put_time(struct wire *wire, const struct timespec *time) {
  wire_put64(wire, (uint64_t)time->tv_sec);
  wire_put32(wire, (uint32_t)time->tv_nsec);
}

/* Nanoseconds beyond a second are those that utimensat has a meaning for, where there are any. */
static void get_time(struct wire *wire, struct timespec *time, bool may_be_special) {
  time->tv_sec = (time_t)wire_get64(wire);
  time->tv_nsec = (long)wire_get32(wire);
  bool special = may_be_special && (time->tv_nsec == UTIME_NOW || time->tv_nsec == UTIME_OMIT);
  if (time->tv_nsec >= 1000000000 && !special)
    wire->failed = true;
}

static void put_stat(struct wire *wire, const struct stat *stat) {
  wire_put64(wire, stat->st_ino);
  wire_put32(wire, stat->st_mode);
  wire_put32(wire, (uint32_t)stat->st_nlink);
  wire_put32(wire, stat->st_uid);
  wire_put32(wire, stat->st_gid);
  wire_put64(wire, (uint64_t)stat->st_size);
  wire_put64(wire, (uint64_t)stat->st_blocks);
  wire_put32(wire, (uint32_t)stat->st_blksize);
  put_time(wire, &stat->st_atim);
  put_time(wire, &stat->st_mtim);
  put_time(wire, &stat->st_ctim);
}

static void get_stat(struct wire *wire, struct stat *stat) {
  stat->st_ino = wire_get64(wire);
  stat->st_mode = wire_get32(wire);
  stat->st_nlink = wire_get32(wire);
  stat->st_uid = wire_get32(wire);
  stat->st_gid = wire_get32(wire);
  stat->st_size = (off_t)wire_get64(wire);
  stat->st_blocks = (blkcnt_t)wire_get64(wire);
  stat->st_blksize = (blksize_t)wire_get32(wire);
  get_time(wire, &stat->st_atim, false);
  get_time(wire, &stat->st_mtim, false);
  get_time(wire, &stat->st_ctim, false);
  mode_t type = stat->st_mode & S_IFMT;
  bool known = type == S_IFREG || type == S_IFDIR || type == S_IFLNK || type == S_IFIFO ||
               type == S_IFSOCK || type == S_IFBLK || type == S_IFCHR;
  if (!known || stat->st_mode & ~(mode_t)(S_IFMT | 07777) || stat->st_size < 0 ||
      stat->st_blocks < 0 || stat->st_ino == 0 || stat->st_ino >= SOURCE_INODES)
    wire->failed = true;
}

#define CHANGES (SOURCE_MODE | SOURCE_UID | SOURCE_GID | SOURCE_SIZE | SOURCE_TIMES)

static void put_change(struct wire *wire, const struct source_change *change) {
  wire_put32(wire, change->which);
  wire_put32(wire, change->mode);
  wire_put32(wire, change->uid);
  wire_put32(wire, change->gid);
  wire_put64(wire, (uint64_t)change->size);
  put_time(wire, &change->times[0]);
  put_time(wire, &change->times[1]);
}

static void get_change(struct wire *wire, struct source_change *change) {
  change->which = wire_get32(wire);
  change->mode = wire_get32(wire);
  change->uid = wire_get32(wire);
  change->gid = wire_get32(wire);
  change->size = (off_t)wire_get64(wire);
  get_time(wire, &change->times[0], true);
  get_time(wire, &change->times[1], true);
  if (change->which & ~(unsigned)CHANGES)
    wire->failed = true;
}

static void put_space(struct wire *wire, const struct statvfs *space) {
  wire_put64(wire, space->f_bsize);
  wire_put64(wire, space->f_frsize);
  wire_put64(wire, space->f_blocks);
  wire_put64(wire, space->f_bfree);
  wire_put64(wire, space->f_bavail);
  wire_put64(wire, space->f_files);
  wire_put64(wire, space->f_ffree);
  wire_put64(wire, space->f_favail);
  wire_put32(wire, (uint32_t)space->f_namemax);
}

/* Sizes of blocks are divided by, and end up in 32 bits. */
static void get_space(struct wire *wire, struct statvfs *space) {
  space->f_bsize = wire_get64(wire);
  space->f_frsize = wire_get64(wire);
  space->f_blocks = wire_get64(wire);
  space->f_bfree = wire_get64(wire);
  space->f_bavail = wire_get64(wire);
  space->f_files = wire_get64(wire);
  space->f_ffree = wire_get64(wire);
  space->f_favail = wire_get64(wire);
  space->f_namemax = wire_get32(wire);
  if (!space->f_bsize || space->f_bsize > INT32_MAX || !space->f_frsize ||
      space->f_frsize > INT32_MAX)
    wire->failed = true;
}

static void put_version(struct wire *wire, const struct protocol_fields *fields) {
  wire_put32(wire, PROTOCOL_HELLO);
  wire_put32(wire, fields->version);
}

static void get_version(struct wire *wire, struct protocol_fields *fields) {
  if (wire_get32(wire) != PROTOCOL_HELLO)
    wire->failed = true;
  fields->version = wire_get32(wire);
}

/* ---- Requests and answers ---- */

static void put_fields(struct wire *wire, const char *letters,
                       const struct protocol_fields *fields) {
  for (; *letters; letters++) {
    const struct number *number = number_of(*letters);
    if (number)
      put_number(wire, number, fields);
    else if (*letters == 'n')
      put_name(wire, fields->name);
    else if (*letters == 'm')
      put_name(wire, fields->new_name);
    else if (*letters == 'x')
      put_bytes(wire, fields);
    else if (*letters == 's')
      put_stat(wire, &fields->stat);
    else if (*letters == 'c')
      put_change(wire, &fields->change);
    else if (*letters == 'v')
      put_space(wire, &fields->space);
    else
      put_version(wire, fields);
  }
}

static void get_fields(struct wire *wire, const char *letters, struct protocol_fields *fields) {
  for (; *letters; letters++) {
    const struct number *number = number_of(*letters);
    if (number)
      get_number(wire, number, fields);
    else if (*letters == 'n')
      get_name(wire, fields->name);
    else if (*letters == 'm')
      get_name(wire, fields->new_name);
    else if (*letters == 'x')
      get_bytes(wire, fields);
    else if (*letters == 's')
      get_stat(wire, &fields->stat);
    else if (*letters == 'c')
      get_change(wire, &fields->change);
    else if (*letters == 'v')
      get_space(wire, &fields->space);
    else
      get_version(wire, fields);
    /* Nobody else gives out handles like these. */
    if (*letters == 'e' && (fields->node == 0 || fields->node >= PROTOCOL_NODES))
      wire->failed = true;
  }
}

static bool ended_well(const struct wire *wire) {
  return !wire->failed && wire_left(wire) == 0;
}

size_t protocol_put_request(const struct protocol_request *request,
                            uint8_t bytes[PROTOCOL_REQUEST_ROOM]) {
  struct wire wire = wire_over(bytes, PROTOCOL_REQUEST_ROOM);
  wire_put16(&wire, request->operation);
  wire_put16(&wire, request->forget_count);
  for (unsigned i = 0; i < request->forget_count; i++) {
    wire_put64(&wire, request->forgets[i].node);
    wire_put64(&wire, request->forgets[i].count);
  }
  put_fields(&wire, rows[request->operation].request, &request->fields);
  return wire.failed ? 0 : (size_t)(wire.at - bytes);
}

int protocol_get_request(const void *bytes, size_t length, struct protocol_request *request) {
  struct wire wire = wire_over(bytes, length);
  request->fields = (struct protocol_fields){0};
  request->operation = wire_get16(&wire);
  request->forget_count = wire_get16(&wire);
  if (request->forget_count > PROTOCOL_FORGETS_MAX)
    return -EPROTO;
  for (unsigned i = 0; i < request->forget_count; i++) {
    request->forgets[i].node = wire_get64(&wire);
    request->forgets[i].count = wire_get64(&wire);
  }
  if (wire.failed)
    return -EPROTO;
  if (request->operation >= PROTOCOL_OPERATIONS || !rows[request->operation].request)
    return -EOPNOTSUPP;
  get_fields(&wire, rows[request->operation].request, &request->fields);
  return ended_well(&wire) ? 0 : -EPROTO;
}

size_t protocol_put_answer(uint16_t operation, int status, const struct protocol_fields *fields,
                           uint8_t bytes[PROTOCOL_ANSWER_ROOM]) {
  struct wire wire = wire_over(bytes, PROTOCOL_ANSWER_ROOM);
  wire_put32(&wire, status < 0 ? (uint32_t)-status : 0);
  if (status >= 0)
    put_fields(&wire, rows[operation].answer, fields);
  return wire.failed ? 0 : (size_t)(wire.at - bytes);
}

/* Numbers of errors are those of Linux, which has 4095 of them. */
int protocol_get_answer(const void *bytes, size_t length, uint16_t operation,
                        struct protocol_fields *fields) {
  struct wire wire = wire_over(bytes, length);
  uint32_t status = wire_get32(&wire);
  *fields = (struct protocol_fields){0};
  if (status == 0)
    get_fields(&wire, rows[operation].answer, fields);
  if (!ended_well(&wire) || status > 4095)
    return -EPROTO;
  return -(int)status;
}

/* ---- Lists of names ---- */

bool protocol_put_name(struct wire *wire, const struct source_name *name) {
  wire_put64(wire, name->inode);
  wire_put64(wire, (uint64_t)name->next);
  wire_put32(wire, name->type);
  put_name(wire, name->name);
  return !wire->failed;
}

/* A '/' would lead whoever shows the list somewhere else. */
bool protocol_get_name(struct wire *wire, struct protocol_name *name) {
  name->name = (struct source_name){.name = name->text};
  name->name.inode = wire_get64(wire);
  name->name.next = (off_t)wire_get64(wire);
  name->name.type = wire_get32(wire) & S_IFMT;
  get_name(wire, name->text);
  return !wire->failed && *name->text && !strchr(name->text, '/') &&
         name->name.inode < SOURCE_INODES && name->name.next >= 0;
}

/* ---- Flags and errors ---- */

uint32_t protocol_open_flags(int flags) {
  return (uint32_t)(flags & O_ACCMODE) | (flags & O_TRUNC ? PROTOCOL_TRUNCATE : 0) |
         (flags & O_EXCL ? PROTOCOL_EXCL : 0) |
         ((flags & O_TMPFILE) == O_TMPFILE ? PROTOCOL_TEMPORARY : 0);
}

int protocol_flags_to_open(uint32_t flags) {
  uint32_t access = flags & PROTOCOL_ACCESS;
  if (access == 3 || flags & ~(PROTOCOL_ACCESS | PROTOCOL_TRUNCATE | PROTOCOL_EXCL))
    return -EINVAL;
  return (int)access | (flags & PROTOCOL_TRUNCATE ? O_TRUNC : 0) |
         (flags & PROTOCOL_EXCL ? O_EXCL : 0);
}

uint32_t protocol_write_flags(int flags) {
  return (flags & RWF_APPEND ? PROTOCOL_APPEND : 0) | (flags & RWF_DSYNC ? PROTOCOL_DSYNC : 0) |
         (flags & RWF_SYNC ? PROTOCOL_SYNC : 0);
}

int protocol_flags_to_write(uint32_t flags) {
  if (flags & ~(PROTOCOL_APPEND | PROTOCOL_DSYNC | PROTOCOL_SYNC | PROTOCOL_TELL))
    return -EINVAL;
  return (flags & PROTOCOL_APPEND ? RWF_APPEND : 0) | (flags & PROTOCOL_DSYNC ? RWF_DSYNC : 0) |
         (flags & PROTOCOL_SYNC ? RWF_SYNC : 0);
}

int protocol_errno(int code) {
  switch (code) {
  case 0:
    return 0;
  case HAUL_ECHECKSUM:
    return -EBADMSG;
  case HAUL_ETIMEDOUT:
    return -ETIMEDOUT;
  case HAUL_ENOMEM:
  case HAUL_ELIMIT:
    return -ENOMEM;
  case HAUL_ERANGE:
  case HAUL_EINVAL:
    return -EINVAL;
  case HAUL_EACCESS:
    return -EACCES;
  case HAUL_ENAME:
  case HAUL_ESTALE:
    return -ENXIO; /* the region is gone */
  case HAUL_EPEER:
  case HAUL_ECLOSED:
  case HAUL_ECONNECT:
    return -ENOTCONN;
  default:
    return -EREMOTEIO;
  }
}
