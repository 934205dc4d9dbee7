/* SPDX-License-Identifier: MIT
 * The messages between a client of a tree of files and the node that serves it (docs/protocol.md).
 *
 * A request is a message whose tag has PROTOCOL_TAG above and a number of the client's choice
 * below; its answer has the same tag. A request begins with its operation and the nodes that the
 * client has forgotten meanwhile, an answer with its status; then come the operation's fields, in
 * the order of its row in protocol.c. Bytes of files do not come in messages: they are written to,
 * and read from, regions that the client has published. */
#ifndef HAUL_STORAGE_SERVICE_PROTOCOL_H
#define HAUL_STORAGE_SERVICE_PROTOCOL_H

#include <limits.h>

#include "core/wire.h"
#include "storage/source.h"

#define PROTOCOL_TAG     (UINT64_C(0xf11e) << 48)
#define PROTOCOL_NUMBERS (UINT64_C(1) << 48)
#define PROTOCOL_HELLO   UINT32_C(0x4c494648) /* "HFIL" */
#define PROTOCOL_VERSION 2

/* Bounds of what one message has; the longer side is refused unread. */
#define PROTOCOL_BYTES_MAX    65536u /* a symlink's target, an attribute, a list of names */
#define PROTOCOL_FORGETS_MAX  256u   /* pairs of a node and a count */
#define PROTOCOL_REQUEST_ROOM (PROTOCOL_BYTES_MAX + 16 * PROTOCOL_FORGETS_MAX + 1024)
#define PROTOCOL_ANSWER_ROOM  (PROTOCOL_BYTES_MAX + 1024)
#define PROTOCOL_EXPORT_ROOM  64 /* of an export's name, with its zero byte */
#define PROTOCOL_REGION_ROOM  64 /* likewise of a client's region */

/* How often who receives messages looks whether it is to end. */
#define PROTOCOL_LOOK_NS INT64_C(200000000)

#define PROTOCOL_READ_MAX (UINT64_C(64) << 20) /* bytes of one READ or WRITE */
#define PROTOCOL_NODES    (UINT64_C(1) << 40)  /* handles of nodes are below */

enum protocol_operation {
  PROTOCOL_GREET = 1, /* the first; with an empty name: for the list of exports alone */
  PROTOCOL_EXPORTS,
  PROTOCOL_REGION, /* a region of the client's gets a number */
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
  PROTOCOL_OPERATIONS, /* how many, and 0 which there is none of */
};

/* `flags` of OPEN and CREATE: the access mode, and these. */
#define PROTOCOL_ACCESS   3u
#define PROTOCOL_TRUNCATE 4u
#define PROTOCOL_EXCL     8u
/* Of CREATE: it goes with its client unless it was renamed. In open(2)'s flags: O_TMPFILE. */
#define PROTOCOL_TEMPORARY 16u
/* `flags` of WRITE. */
#define PROTOCOL_APPEND 1u
#define PROTOCOL_DSYNC  2u
#define PROTOCOL_SYNC   4u
/* `flags` of WRITE and READ: the answer's bytes tell how they went (told.h). */
#define PROTOCOL_TELL 8u
/* `flags` of a greeting's answer. */
#define PROTOCOL_WRITABLE 1u

/* Every field that an operation may have. Those that it lacks are zero. */
struct protocol_fields {
  uint64_t node, folder, file, inode;
  int64_t offset;
  uint64_t length, at; /* at: where in the region */
  uint32_t region, flags, mode, version, depth;
  char name[NAME_MAX + 1], new_name[NAME_MAX + 1];
  const void *bytes; /* lie in the message */
  size_t size;
  struct source_change change;
  struct stat stat;
  struct statvfs space;
};

/* One name of a READDIR's answer, or of an EXPORTS'. */
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

/* The length in `bytes`, or 0 where a field does not fit its bound. */
size_t protocol_put_request(const struct protocol_request *request,
                            uint8_t bytes[PROTOCOL_REQUEST_ROOM]);
/* 0, -EPROTO, or -EOPNOTSUPP for an operation that this version does not know. */
int protocol_get_request(const void *bytes, size_t length, struct protocol_request *request);

/* `status` below 0 comes without fields. */
size_t protocol_put_answer(uint16_t operation, int status, const struct protocol_fields *fields,
                           uint8_t bytes[PROTOCOL_ANSWER_ROOM]);
/* The status, or -EPROTO. */
int protocol_get_answer(const void *bytes, size_t length, uint16_t operation,
                        struct protocol_fields *fields);

/* A list of names, one after the other; false: no room. */
bool protocol_put_name(struct wire *wire, const struct source_name *name);
/* False: what is there is no name. */
bool protocol_get_name(struct wire *wire, struct protocol_name *name);

/* As in open(2) and pwritev2(2), and back. */
uint32_t protocol_open_flags(int flags);
int protocol_flags_to_open(uint32_t flags); /* -EINVAL */
uint32_t protocol_write_flags(int flags);
int protocol_flags_to_write(uint32_t flags); /* -EINVAL */

/* What the library says of a transfer, as files know it. */
int protocol_errno(int code);

#endif
