/* SPDX-License-Identifier: MIT
 * The interface between the library and the module for directories. The module calls the library
 * only through struct directory_library, so that it also works with a statically linked library.
 *
 * Deadlines are CLOCK_MONOTONIC in ns. A handle is for one thread at a time. Every call that fails
 * sets the detail. */
#ifndef HAUL_DIRECTORY_MODULE_H
#define HAUL_DIRECTORY_MODULE_H

#include <stdatomic.h>
#include <stdbool.h>

#include "haul/directory.h"

#define DIRECTORY_FILE    "libhaul-directory.so"
#define DIRECTORY_FOUND   64  /* limit of entries read for one name */
#define DIRECTORY_AT_ONCE 100 /* entries of one `put` or `drop`; etcd's max-txn-ops is 128 */

struct directory;
struct directory_walk;

/* Functions of the library that the module calls: those of core/error.h, haul_place_format,
 * haul_place_parse. */
struct directory_library {
  size_t size; /* of the struct: the module refuses another one; `error` stays behind it */
  int (*error)(int code, int system, const char *object, const char *hint, const char *format, ...)
      __attribute__((format(printf, 5, 6)));
  const char *(*hint)(const char *format, ...) __attribute__((format(printf, 1, 2)));
  int (*code)(int code, const char *object);
  const char *(*place_format)(struct haul_place place, char *text, size_t size);
  int (*place_parse)(const char *text, struct haul_place *place);
};

struct directory_module {
  size_t size; /* of the struct: the library refuses another one */

  /* Makes no connection. `login`: text of the login file (login.h); NULL: no login. A member that
   * is silent for `liveness` ns is left for the next one. `stop`: ends calls under way within a
   * second once it is set; may be NULL. */
  int (*open)(const struct directory_library *library, const char *url, const char *login,
              int64_t liveness, const _Atomic bool *stop, struct directory **directory);
  void (*close)(struct directory *directory);

  /* `word`: the name as written in an address. *count as in haul_directory_find. HAUL_ENAME: no
   * entry. */
  int (*find)(struct directory *directory, const char *word, int64_t until,
              struct haul_directory_entry *entries, size_t *count);

  int (*walk_open)(struct directory *directory, int64_t until, struct directory_walk **walk);
  int (*walk_next)(struct directory_walk *walk, int64_t until, struct haul_directory_event *event);
  void (*walk_close)(struct directory_walk *walk); /* the directory stays */

  int (*lease)(struct directory *directory, unsigned seconds, int64_t until, int64_t *lease);
  /* HAUL_ESTALE, also of `put` and `drop`: the lease expired, or another node took the name. */
  int (*renew)(struct directory *directory, int64_t lease, const struct haul_directory_entry *node,
               int64_t until);
  void (*end)(struct directory *directory, int64_t lease, int64_t until);
  /* Enters a node under a name that is free or that the node succeeds to (haul_node_register).
   * HAUL_EEXIST: another node has the name. */
  int (*claim)(struct directory *directory, int64_t lease, const struct haul_directory_entry *node,
               int64_t until);
  /* Regions of one node, 1 to DIRECTORY_AT_ONCE. 1: it is done, and an earlier try may still take
   * effect, as after each failure, until the node is claimed under another lease. */
  int (*put)(struct directory *directory, int64_t lease, const struct haul_directory_entry *entries,
             size_t count, int64_t until);
  int (*drop)(struct directory *directory, int64_t lease,
              const struct haul_directory_entry *entries, size_t count, int64_t until);
  /* This host's address on the last connection to the directory, without a port; "": none yet. */
  void (*own_host)(struct directory *directory, char *host, size_t size);
};

#endif
