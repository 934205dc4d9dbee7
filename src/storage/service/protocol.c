/* SPDX-License-Identifier: MIT */
#include "storage/service/protocol.h"

#include <errno.h>
#include <fcntl.h>

/* Each operation's fields in the request and in the response, one letter per field. */
static const struct row {
  const char *request, *response;
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

#define FIELD(name)                                                                                \
  sizeof((struct protocol_fields *)NULL)->name, offsetof(struct protocol_fields, name)

/* A field's parts in their order; all parts of a letter are adjacent. */
static const struct number {
  char letter;
  uint8_t bytes; /* on the wire */
  uint8_t size;  /* in the struct: 4 or 8 */
  uint16_t offset;
} numbers[] = {
    {'d', 8, FIELD(node)},
    {'e', 8, FIELD(node)},
    {'t', 8, FIELD(folder)},
    {'f', 8, FIELD(file)},
    {'i', 8, FIELD(inode)},
    {'o', 8, FIELD(offset)},
    {'l', 8, FIELD(length)},
    {'a', 8, FIELD(at)},
    {'r', 4, FIELD(region)},
    {'g', 4, FIELD(flags)},
    {'p', 4, FIELD(mode)},
    {'D', 4, FIELD(depth)},
    {'s', 8, FIELD(stat.st_ino)},
    {'s', 4, FIELD(stat.st_mode)},
    {'s', 4, FIELD(stat.st_nlink)},
    {'s', 4, FIELD(stat.st_uid)},
    {'s', 4, FIELD(stat.st_gid)},
    {'s', 8, FIELD(stat.st_size)},
    {'s', 8, FIELD(stat.st_blocks)},
    {'s', 4, FIELD(stat.st_blksize)},
    {'s', 8, FIELD(stat.st_atim.tv_sec)},
    {'s', 4, FIELD(stat.st_atim.tv_nsec)},
    {'s', 8, FIELD(stat.st_mtim.tv_sec)},
    {'s', 4, FIELD(stat.st_mtim.tv_nsec)},
    {'s', 8, FIELD(stat.st_ctim.tv_sec)},
    {'s', 4, FIELD(stat.st_ctim.tv_nsec)},
    {'c', 4, FIELD(change.which)},
    {'c', 4, FIELD(change.mode)},
    {'c', 4, FIELD(change.uid)},
    {'c', 4, FIELD(change.gid)},
    {'c', 8, FIELD(change.size)},
    {'c', 8, FIELD(change.times[0].tv_sec)},
    {'c', 4, FIELD(change.times[0].tv_nsec)},
    {'c', 8, FIELD(change.times[1].tv_sec)},
    {'c', 4, FIELD(change.times[1].tv_nsec)},
    {'v', 8, FIELD(space.f_bsize)},
    {'v', 8, FIELD(space.f_frsize)},
    {'v', 8, FIELD(space.f_blocks)},
    {'v', 8, FIELD(space.f_bfree)},
    {'v', 8, FIELD(space.f_bavail)},
    {'v', 8, FIELD(space.f_files)},
    {'v', 8, FIELD(space.f_ffree)},
    {'v', 8, FIELD(space.f_favail)},
    {'v', 4, FIELD(space.f_namemax)},
};

#undef FIELD

#define NUMBERS (sizeof numbers / sizeof *numbers)

/* NUMBERS: the field has no numbers. */
static size_t first_number(char letter) {
  size_t i = 0;
  while (i < NUMBERS && numbers[i].letter != letter)
    i++;
  return i;
}

static void number_field(struct wire *wire, const struct number *number,
                         struct protocol_fields *fields) {
  void *place = (char *)fields + number->offset;
  uint32_t half;
  uint64_t value;
  if (number->size == 4) {
    memcpy(&half, place, sizeof half);
    half = (uint32_t)wire_field(wire, half, number->bytes);
    memcpy(place, &half, sizeof half);
  } else {
    memcpy(&value, place, sizeof value);
    value = wire_field(wire, value, number->bytes);
    memcpy(place, &value, sizeof value);
  }
}

/* A name is any bytes without zero; the source checks more. */
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

static void name_field(struct wire *wire, char name[NAME_MAX + 1]) {
  if (wire->gets)
    get_name(wire, name);
  else
    put_name(wire, name);
}

static void bytes_field(struct wire *wire, struct protocol_fields *fields) {
  size_t size = fields->size;
  WIRE(wire, 32, size);
  if (size > PROTOCOL_BYTES_MAX)
    wire->failed = true;
  if (!wire->gets) {
    wire_put_bytes(wire, fields->bytes, size);
    return;
  }
  fields->bytes = wire_take(wire, size);
  fields->size = fields->bytes ? size : 0;
}

static bool is_time(const struct timespec *time) {
  return time->tv_nsec < 1000000000;
}

/* As for utimensat(2): UTIME_NOW and UTIME_OMIT are valid, too. */
static bool is_new_time(const struct timespec *time) {
  return is_time(time) || time->tv_nsec == UTIME_NOW || time->tv_nsec == UTIME_OMIT;
}

static bool is_stat(const struct stat *stat) {
  mode_t type = stat->st_mode & S_IFMT;
  bool known = type == S_IFREG || type == S_IFDIR || type == S_IFLNK || type == S_IFIFO ||
               type == S_IFSOCK || type == S_IFBLK || type == S_IFCHR;
  return known && !(stat->st_mode & ~(mode_t)(S_IFMT | 07777)) && stat->st_size >= 0 &&
         stat->st_blocks >= 0 && stat->st_ino > 0 && stat->st_ino < SOURCE_INODES &&
         is_time(&stat->st_atim) && is_time(&stat->st_mtim) && is_time(&stat->st_ctim);
}

static bool is_change(const struct source_change *change) {
  const unsigned known = SOURCE_MODE | SOURCE_UID | SOURCE_GID | SOURCE_SIZE | SOURCE_TIMES;
  return !(change->which & ~known) && is_new_time(&change->times[0]) &&
         is_new_time(&change->times[1]);
}

/* Block sizes are divisors, and the receiver stores them in 32 bits. */
static bool is_space(const struct statvfs *space) {
  return space->f_bsize && space->f_bsize <= INT32_MAX && space->f_frsize &&
         space->f_frsize <= INT32_MAX;
}

static bool is_valid(char letter, const struct protocol_fields *fields) {
  switch (letter) {
  case 'e':
    return fields->node > 0 && fields->node < PROTOCOL_NODES;
  case 's':
    return is_stat(&fields->stat);
  case 'c':
    return is_change(&fields->change);
  case 'v':
    return is_space(&fields->space);
  default:
    return true;
  }
}

static void letter_fields(struct wire *wire, const char *letters, struct protocol_fields *fields) {
  uint32_t hello = PROTOCOL_HELLO;
  for (; *letters; letters++) {
    size_t i = first_number(*letters);
    for (; i < NUMBERS && numbers[i].letter == *letters; i++)
      number_field(wire, &numbers[i], fields);
    if (*letters == 'n') {
      name_field(wire, fields->name);
    } else if (*letters == 'm') {
      name_field(wire, fields->new_name);
    } else if (*letters == 'x') {
      bytes_field(wire, fields);
    } else if (*letters == 'V') {
      WIRE(wire, 32, hello);
      wire->failed |= hello != PROTOCOL_HELLO;
      WIRE(wire, 32, fields->version);
    }
    wire->failed |= wire->gets && !is_valid(*letters, fields);
  }
}

static void put_fields(struct wire *wire, const char *letters,
                       const struct protocol_fields *fields) {
  struct protocol_fields copy = *fields;
  letter_fields(wire, letters, &copy);
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
  struct wire wire = wire_from(bytes, length);
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
  letter_fields(&wire, rows[request->operation].request, &request->fields);
  return ended_well(&wire) ? 0 : -EPROTO;
}

size_t protocol_put_response(uint16_t operation, int status, const struct protocol_fields *fields,
                             uint8_t bytes[PROTOCOL_RESPONSE_ROOM]) {
  struct wire wire = wire_over(bytes, PROTOCOL_RESPONSE_ROOM);
  wire_put32(&wire, status < 0 ? (uint32_t)-status : 0);
  if (status >= 0)
    put_fields(&wire, rows[operation].response, fields);
  return wire.failed ? 0 : (size_t)(wire.at - bytes);
}

/* Errors are errno values of Linux, at most 4095. */
int protocol_get_response(const void *bytes, size_t length, uint16_t operation,
                          struct protocol_fields *fields) {
  struct wire wire = wire_from(bytes, length);
  uint32_t status = wire_get32(&wire);
  *fields = (struct protocol_fields){0};
  if (status == 0)
    letter_fields(&wire, rows[operation].response, fields);
  if (!ended_well(&wire) || status > 4095)
    return -EPROTO;
  return -(int)status;
}

bool protocol_put_name(struct wire *wire, const struct source_name *name) {
  wire_put64(wire, name->inode);
  wire_put64(wire, (uint64_t)name->next);
  wire_put32(wire, name->type);
  put_name(wire, name->name);
  return !wire->failed;
}

/* Rejects '/', which would lead the reader of the list to another folder. */
bool protocol_get_name(struct wire *wire, struct protocol_name *name) {
  name->name = (struct source_name){.name = name->text};
  name->name.inode = wire_get64(wire);
  name->name.next = (off_t)wire_get64(wire);
  name->name.type = wire_get32(wire) & S_IFMT;
  get_name(wire, name->text);
  return !wire->failed && *name->text && !strchr(name->text, '/') &&
         name->name.inode < SOURCE_INODES && name->name.next >= 0;
}

/* Nanoseconds, bounded so that they fit int64_t and double. */
static int64_t time_field(struct wire *wire, int64_t time) {
  WIRE(wire, 64, time);
  if (wire->gets && (time < 0 || time > INT64_C(1) << 62))
    wire->failed = true;
  return wire->failed ? 0 : time;
}

static void path_fields(struct wire *wire, struct haul_path *path) {
  unsigned flags = (path->open ? 1 : 0) | (path->chosen ? 2 : 0) | (path->measured ? 4 : 0) |
                   (path->zero_copy ? 8 : 0);
  WIRE(wire, 8, flags);
  path->open = (flags & 1) != 0;
  path->chosen = (flags & 2) != 0;
  path->measured = (flags & 4) != 0;
  path->zero_copy = (flags & 8) != 0;
  path->cost_ns = (double)time_field(wire, (int64_t)path->cost_ns);
  path->estimate_ns = (double)time_field(wire, (int64_t)path->estimate_ns);
  WIRE(wire, 8, path->copies_cpu);
  WIRE(wire, 8, path->copies_kernel);
  WIRE(wire, 8, path->copies_dma);
  wire_string(wire, path->name, sizeof path->name);
  wire_string(wire, path->detail, sizeof path->detail);
  wire_string(wire, path->reason, sizeof path->reason);
  wire_string(wire, path->send, sizeof path->send);
}

/* Fails with more paths than there may be. */
static void summary_fields(struct wire *wire, struct io_summary *summary) {
  struct haul_report *report = &summary->report;
  WIRE(wire, 64, report->bytes);
  WIRE(wire, 64, report->slices);
  WIRE(wire, 32, report->retries);
  WIRE(wire, 64, summary->pages);
  report->queued_ns = time_field(wire, report->queued_ns);
  report->setup_ns = time_field(wire, report->setup_ns);
  WIRE(wire, 16, report->from.kind);
  WIRE(wire, 16, report->from.device);
  WIRE(wire, 16, report->to.kind);
  WIRE(wire, 16, report->to.device);
  WIRE(wire, 8, report->checksum);
  WIRE(wire, 8, report->path_count);
  if (report->path_count > HAUL_PATHS_MAX)
    wire->failed = true;
  for (size_t i = 0; !wire->failed && i < report->path_count; i++)
    path_fields(wire, &report->paths[i]);
}

size_t protocol_put_summary(const struct io_summary *summary, uint8_t *bytes, size_t room) {
  struct io_summary copy = *summary;
  struct wire wire = wire_over(bytes, room);
  copy.report.checksum = summary->report.checksum != 0;
  summary_fields(&wire, &copy);
  return wire.failed ? 0 : (size_t)(wire.at - bytes);
}

int protocol_get_summary(const void *bytes, size_t size, struct io_summary *summary) {
  struct haul_report empty = HAUL_REPORT_INIT;
  struct wire wire = wire_from(bytes, size);
  *summary = (struct io_summary){.report = empty};
  summary_fields(&wire, summary);
  summary->report.checksum = summary->report.checksum != 0;
  summary->report.pieces = summary->report.slices;
  return wire.failed || wire_left(&wire) > 0 || summary->pages > summary->report.bytes ? -EPROTO
                                                                                       : 0;
}

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
  if (flags & ~(PROTOCOL_APPEND | PROTOCOL_DSYNC | PROTOCOL_SYNC | PROTOCOL_SUMMARY))
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
    return -ENXIO; /* the region was withdrawn */
  case HAUL_EPEER:
  case HAUL_ECLOSED:
  case HAUL_ECONNECT:
    return -ENOTCONN;
  default:
    return -EREMOTEIO;
  }
}
