/* SPDX-License-Identifier: MIT
 *
 * Nodes that find each other by name in etcd, version 3.4 or later.
 *
 * A directory is etcd://HOST[:PORT][,HOST[:PORT]…]/PREFIX, or etcds:// over TLS with the
 * authorities that the system knows; the port is 2379 where none is given, and the prefix is one
 * word. In it etcd://…/PREFIX/NAME is a node, or a region that some node publishes, and is taken
 * wherever a node's address is (haul_peer_connect). '/', '%' and what does not print are written
 * %XX there.
 *
 * The directory says where a node is, and no more: who connects finds out whether it is that node,
 * and keys decide who may. It is spoken to by a module, libhaul-directory.so, which needs libcurl
 * and libjansson; without it these calls say HAUL_ENOTSUP and which package has it.
 *
 * What haul.h says of all its calls holds here. Everything here is there since version 0.1.
 */
#ifndef HAUL_DIRECTORY_H
#define HAUL_DIRECTORY_H

#include <haul/haul.h>

#ifdef __cplusplus
extern "C" {
#endif

#define HAUL_DIRECTORY_ADDRESSES 4

enum haul_directory_kind { HAUL_DIRECTORY_NODE = 1, HAUL_DIRECTORY_REGION = 2 };

/* A node, or a region at its node. */
struct haul_directory_entry {
  int kind;
  char node[64];
  char name[256];          /* of a region; else "" */
  uint64_t length;         /* of a region: bytes, place, HAUL_READ and HAUL_WRITE */
  struct haul_place place; /* likewise */
  unsigned rights;         /* likewise */
  uint8_t id[16];          /* of the node: another one with every start */
  uint8_t boot[16];        /* of its host: what is on loopback there is here if it is this host's */
  uint64_t network; /* there: the number of its network namespace; 0: it told of its addresses
                       by hand */
  unsigned address_count;
  char addresses[HAUL_DIRECTORY_ADDRESSES][160];
};

/* ---- Being found ---- */

struct haul_register_options {
  uint32_t size;          /* sizeof: HAUL_REGISTER_OPTIONS_INIT sets it */
  unsigned lease_seconds; /* 2 to 3600: so long after its end the node is gone from the directory;
                             0: 10 */
  const char *advertise;  /* NULL: what the node listens on, where a listener on all addresses is
                             told by the one that etcd is reached from. Else up to four addresses,
                             with commas between */
  /* NULL, or called by a thread of the library whenever the node comes to stand in the directory
   * (0) or does not any more (the code; haul_error_last has the detail). It must not close the
   * node. */
  void (*changed)(void *user, int code);
  void *user;
};
#define HAUL_REGISTER_OPTIONS_INIT                                                                 \
  { .size = sizeof(struct haul_register_options) }

/* Enters the node, under its name, and all that it publishes to everybody, and keeps that up to
 * date until the node is closed, from a thread of its own; closing it takes up to two seconds then,
 * where etcd does not answer. When etcd is away for longer than the lease the node is entered again
 * once it is back. What is published to some alone is not entered.
 *
 * Blocks until the node stands there. A name that another node has is waited for until `until`, as
 * its lease may end; one that a node at the same address had is taken at once: its successor is
 * here. HAUL_EEXIST; HAUL_EINVAL: the node listens nowhere, or is registered already;
 * HAUL_EADDRESS: no directory's; HAUL_ECONNECT, HAUL_ETIMEDOUT, HAUL_EPROTO, HAUL_EAUTH,
 * HAUL_ENOTSUP. NULL for the options: all defaults. */
HAUL_API int haul_node_register(haul_node *node, const char *directory,
                                const struct haul_register_options *options, haul_deadline until);

/* ---- Finding ---- */

/* What goes by the name at the end of the address: a node, and regions, each with where it is.
 * Fills up to *count entries and sets *count to how many there are, at most 64. HAUL_ENAME: none.
 */
HAUL_API int haul_directory_find(haul_node *node, const char *address, haul_deadline until,
                                 struct haul_directory_entry *entries, size_t *count);

/* A walk over the directory, which then tells of what changes. One thread at a time. */
typedef struct haul_directory haul_directory;

enum haul_directory_event_kind {
  HAUL_DIRECTORY_HOLDS = 1, /* was there at the start */
  HAUL_DIRECTORY_TOLD = 2,  /* all that was there is told; no entry */
  HAUL_DIRECTORY_CAME = 3,  /* or changed */
  HAUL_DIRECTORY_WENT = 4   /* the entry has its kind, node and name alone */
};

struct haul_directory_event {
  int kind;
  struct haul_directory_entry entry;
};

HAUL_API int haul_directory_open(haul_node *node, const char *directory, haul_deadline until,
                                 haul_directory **walk);
/* The next one; HAUL_ETIMEDOUT: nothing happened. When etcd is away it is looked for again until
 * `until`, and nothing is lost; HAUL_EPROTO: it was away for so long that it has forgotten what
 * happened meanwhile, and the walk is to be opened again. */
HAUL_API int haul_directory_next(haul_directory *walk, haul_deadline until,
                                 struct haul_directory_event *event);
HAUL_API void haul_directory_close(haul_directory *walk);

#ifdef __cplusplus
}
#endif

#endif
