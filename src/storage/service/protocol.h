/* SPDX-License-Identifier: MIT
 * The messages between a client of the file service and its server (docs/protocol.md).
 *
 * A request is a message whose tag is PROTOCOL_TAG plus a number that the client chooses; its
 * response has the same tag. A request begins with its operation and the nodes that the client has
 * forgotten since the last request, a response with its status. The operation's fields follow, in
 * the order of its row in protocol.c. Messages carry no file data: the server writes it to, and
 * reads it from, regions that the client has published. */
#ifndef HAUL_STORAGE_SERVICE_PROTOCOL_H
#define HAUL_STORAGE_SERVICE_PROTOCOL_H

#include <haul/haul.h>
#include <limits.h>

#include "core/wire.h"
#include "storage/source.h"

#define PROTOCOL_TAG     (UINT64_C(0xf11e) << 48)
#define PROTOCOL_NUMBERS (UINT64_C(1) << 48)
#define PROTOCOL_HELLO   UINT32_C(0x4c494648) /* "HFIL" */
#define PROTOCOL_VERSION 2

/* Bounds of one message; a longer one is rejected unread. */
#define PROTOCOL_BYTES_MAX     65536u /* of the field `bytes` */
#define PROTOCOL_FORGETS_MAX   256u   /* pairs of a node and a count */
#define PROTOCOL_REQUEST_ROOM  (PROTOCOL_BYTES_MAX + 16 * PROTOCOL_FORGETS_MAX + 1024)
#define PROTOCOL_RESPONSE_ROOM (PROTOCOL_BYTES_MAX + 1024)
#define PROTOCOL_EXPORT_ROOM   64 /* of an export's name, with the zero byte */
#define PROTOCOL_REGION_ROOM   64 /* of the name of a client's region, likewise */

/* Interval at which threads that receive messages check whether to stop. */
#define PROTOCOL_POLL_NS INT64_C(200000000)

#define PROTOCOL_READ_MAX (UINT64_C(64) << 20) /* bytes of one READ or WRITE */
#define PROTOCOL_NODES    (UINT64_C(1) << 40)  /* every handle of a node is less */

enum protocol_operation {
  PROTOCOL_GREET = 1, /* the first request; an empty name gives access to EXPORTS alone */
  PROTOCOL_EXPORTS,
  PROTOCOL_REGION, /* assigns a number to a region of the client */
  PROTOCOL_UNREGION,
  PROTOCOL_LOOKUP,
  PROTOCOL_FORGET,
  PROTOCOL_FIND,
  PROTOCOL_GETATTR,
  PROTOCOL_SETATTR,
  PROTOCOL_READLINK,
  PROTOCOL_STATFS,
  PROTOCOL_MKDIR,
  PROTOCOL_SYMLINK,
  PROTOCOL_MKNOD,
  PROTOCOL_LINK,
  PROTOCOL_UNLINK,
  PROTOCOL_RMDIR,
  PROTOCOL_RENAME,
  PROTOCOL_OPEN,
  PROTOCOL_CREATE,
  PROTOCOL_RELEASE,
  PROTOCOL_READ,
  PROTOCOL_WRITE,
  PROTOCOL_FLUSH,
  PROTOCOL_FSYNC,
  PROTOCOL_FALLOCATE,
  PROTOCOL_LSEEK,
  PROTOCOL_OPENDIR,
  PROTOCOL_READDIR,
  PROTOCOL_GETXATTR,
  PROTOCOL_LISTXATTR,
  PROTOCOL_SETXATTR,
  PROTOCOL_REMOVEXATTR,
  PROTOCOL_OPERATIONS, /* the number of operations, plus 1 */
};

/* `flags` of OPEN and CREATE, beside the access mode. */
#define PROTOCOL_ACCESS   3u
#define PROTOCOL_TRUNCATE 4u
#define PROTOCOL_EXCL     8u
/* CREATE: the server removes the file with its client, unless it was renamed. For sources:
 * O_TMPFILE. */
#define PROTOCOL_TEMPORARY 16u
/* `flags` of WRITE. */
#define PROTOCOL_APPEND 1u
#define PROTOCOL_DSYNC  2u
#define PROTOCOL_SYNC   4u
/* `flags` of WRITE and READ: the response's `bytes` are an I/O summary. */
#define PROTOCOL_SUMMARY 8u
/* `flags` of GREET's response. */
#define PROTOCOL_WRITABLE 1u

/* Every field that an operation may have; the others are zero. */
struct protocol_fields {
  union {
    struct source_entry entry;
    struct {
      uint64_t node;
      struct stat stat;
    };
  };
  uint64_t folder, file, inode;
  int64_t offset;
  uint64_t length, at; /* at: offset in the region */
  uint32_t region, flags, mode, version, depth;
  char name[NAME_MAX + 1], new_name[NAME_MAX + 1];
  const void *bytes; /* in the message */
  size_t size;
  struct source_change change;
  struct statvfs space;
};

/* One name in the `bytes` of READDIR and EXPORTS. */
struct protocol_name {
  struct source_name name;
  char text[NAME_MAX + 1];
};

struct protocol_forget {
  uint64_t node, count;
};

struct protocol_request {
  uint16_t operation;
  uint16_t forget_count;
  struct protocol_forget forgets[PROTOCOL_FORGETS_MAX];
  struct protocol_fields fields;
};

/* Returns the length; 0: a field exceeds its bound. */
size_t protocol_put_request(const struct protocol_request *request,
                            uint8_t bytes[PROTOCOL_REQUEST_ROOM]);
/* 0, -EPROTO, or -EOPNOTSUPP for an operation that this version lacks. */
int protocol_get_request(const void *bytes, size_t length, struct protocol_request *request);

/* The fields are sent if `status` is 0. */
size_t protocol_put_response(uint16_t operation, int status, const struct protocol_fields *fields,
                             uint8_t bytes[PROTOCOL_RESPONSE_ROOM]);
/* The status, or -EPROTO. */
int protocol_get_response(const void *bytes, size_t length, uint16_t operation,
                          struct protocol_fields *fields);

/* Appends one name; false: there is no room. */
bool protocol_put_name(struct wire *wire, const struct source_name *name);
/* False: the bytes are not a valid name. */
bool protocol_get_name(struct wire *wire, struct protocol_name *name);

/* Conversion from and to the flags of open(2) and pwritev2(2). */
uint32_t protocol_open_flags(int flags);
int protocol_flags_to_open(uint32_t flags); /* -EINVAL */
uint32_t protocol_write_flags(int flags);
int protocol_flags_to_write(uint32_t flags); /* -EINVAL */

/* How the data of a READ or WRITE was transferred. */
struct io_summary {
  struct haul_report report; /* sums of all transfers; paths of the last one */
  uint64_t pages;            /* bytes that were sent from the file's own pages */
};

/* Returns the length; 0: there is no room. */
size_t protocol_put_summary(const struct io_summary *summary, uint8_t *bytes, size_t room);
/* 0 or -EPROTO. */
int protocol_get_summary(const void *bytes, size_t size, struct io_summary *summary);

/* The errno value of a libhaul code. */
int protocol_errno(int code);

#endif
