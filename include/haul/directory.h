/* SPDX-License-Identifier: MIT
 * A directory of nodes and their published regions in etcd (version 3.4 or later).
 *
 * Its address is etcd://HOST[:PORT][,HOST[:PORT]…]/PREFIX, with up to 8 members; etcds:// uses TLS
 * and the authorities that the system trusts, or those of `directory_login`. The default port is
 * 2379, and PREFIX is one word. The address etcd://…/PREFIX/NAME names a node, or a region that any
 * node publishes, and haul_peer_connect accepts it like a node's address. In NAME, '/', '%' and
 * bytes that are not printable are written as %XX.
 *
 * The directory only tells where a node is. The connection verifies that it is that node, and keys
 * decide about access. A module, libhaul-directory.so, implements the calls with libcurl and
 * libjansson; without it they fail with HAUL_ENOTSUP, and the hint names the packages.
 *
 * The conventions of haul.h apply. Every declaration exists since version 0.1.0. */
#ifndef HAUL_DIRECTORY_H
#define HAUL_DIRECTORY_H

#include <haul/haul.h>

#ifdef __cplusplus
extern "C" {
#endif

#define HAUL_DIRECTORY_ADDRESSES 4

enum haul_directory_kind { HAUL_DIRECTORY_NODE = 1, HAUL_DIRECTORY_REGION = 2 };

/* A node, or a region of a node. */
struct haul_directory_entry {
  int kind; /* enum haul_directory_kind */
  char node[64];
  char name[256];          /* of a region, else "" */
  uint64_t length;         /* of a region */
  struct haul_place place; /* of a region */
  unsigned rights;         /* of a region: HAUL_READ, HAUL_WRITE */
  uint8_t id[16];          /* of the node, new with every haul_node_open */
  uint8_t boot[16];        /* boot id of its host: its loopback addresses are valid on that host */
  uint64_t network; /* inode of its network namespace; 0: its addresses were set by `advertise` */
  unsigned address_count;
  char addresses[HAUL_DIRECTORY_ADDRESSES][160];
};

/* ---- Registration ---- */

struct haul_register_options {
  uint32_t size;          /* sizeof(struct haul_register_options), set by the initializer */
  unsigned lease_seconds; /* lease TTL, 2 to 3600: seconds until a dead node's entries expire;
                             0: 10 */
  const char *advertise;  /* up to four addresses, separated by commas; NULL: those that the node
                             listens on, a wildcard replaced by the address that reaches etcd */
  /* Called, unless NULL, by a thread of the library when the entries become current again (0) or
   * stop being current (the code; haul_error_last() has the detail). Must not close the node. */
  void (*changed)(void *user, int code);
  void *user;
};
#define HAUL_REGISTER_OPTIONS_INIT                                                                 \
  { sizeof(struct haul_register_options), 0, NULL, NULL, NULL }

/* Registers the node under its name, and all regions that it publishes to everyone; regions for
 * some identities only (access.h) are left out. A thread keeps the entries current, also after etcd
 * was away for longer than the lease, until the node is closed; closing then takes up to 2 s longer
 * if etcd does not respond. `options` may be NULL and is copied.
 *
 * Blocks until the node is registered. If another node has the name, it waits for that lease to
 * expire; a node of the same network namespace with a common address is this one's predecessor,
 * whose entry it takes over at once. HAUL_EEXIST (the name), HAUL_EINVAL (options or login file;
 * the node does not listen, or is registered already), HAUL_EADDRESS, HAUL_ECONNECT,
 * HAUL_ETIMEDOUT, HAUL_EPEER (etcd is not ready), HAUL_EPROTO (not etcd), HAUL_EAUTH (etcd denies
 * access, or its certificate is not trusted), HAUL_EINSECURE (a password without TLS), HAUL_ENOTSUP
 * (no module), HAUL_ECLOSED. */
HAUL_API int haul_node_register(haul_node *node, const char *directory,
                                const struct haul_register_options *options, haul_deadline until);

/* ---- Lookup ---- */

/* Lists the entries of the name at the end of the address: a node first, then regions; at most 64.
 * HAUL_ENAME (none), or as haul_node_register. */
HAUL_API int haul_directory_find(haul_node *node, const char *address, haul_deadline until,
                                 struct haul_directory_entry *entries, size_t *count);

/* A walk over the entries, and then over their changes. For one thread at a time. */
typedef struct haul_directory haul_directory;

enum haul_directory_event_kind {
  HAUL_DIRECTORY_HOLDS = 1, /* an entry that exists at the start */
  HAUL_DIRECTORY_TOLD = 2,  /* the end of those; no entry */
  HAUL_DIRECTORY_CAME = 3,  /* an entry that is new or changed */
  HAUL_DIRECTORY_WENT = 4   /* an entry that vanished: kind, node and name only */
};

struct haul_directory_event {
  int kind; /* enum haul_directory_event_kind */
  struct haul_directory_entry entry;
};

/* Starts a walk; haul_directory_next contacts etcd. Release with haul_directory_close. Errors of
 * the address and the module, as of haul_node_register. */
HAUL_API int haul_directory_open(haul_node *node, const char *directory, haul_deadline until,
                                 haul_directory **walk);
/* Reads the next event. HAUL_ETIMEDOUT: none by `until`. While etcd is away it is retried until
 * `until`, and no event is lost. HAUL_EPROTO: etcd was away for so long that it has compacted the
 * changes; open a new walk. Other errors as of haul_node_register. */
HAUL_API int haul_directory_next(haul_directory *walk, haul_deadline until,
                                 struct haul_directory_event *event);
HAUL_API void haul_directory_close(haul_directory *walk);

#ifdef __cplusplus
}
#endif

#endif
