/* SPDX-License-Identifier: MIT
 * What the library and the module that speaks to a directory know of each other. The module calls
 * nothing of the library but what it is given here, so that it fits one that is linked statically.
 *
 * Deadlines are CLOCK_MONOTONIC in nanoseconds. A handle is for one thread at a time. Every call
 * that fails has set the detail. */
#ifndef HAUL_DIRECTORY_MODULE_H
#define HAUL_DIRECTORY_MODULE_H

#include <stdatomic.h>
#include <stdbool.h>

#include "haul/directory.h"

#define DIRECTORY_FILE    "libhaul-directory.so"
#define DIRECTORY_FOUND   64  /* entries of one name that are looked at, at most */
#define DIRECTORY_AT_ONCE 100 /* entries that `put` and `drop` take: etcd's max-txn-ops is 128 */

struct directory;
struct directory_walk;

/* Functions of the library that the module calls: those of core/error.h, haul_place_format,
 * haul_place_parse. */
struct directory_library {
  int (*error)(int code, int system, const char *object, const char *hint, const char *format, ...)
      __attribute__((format(printf, 5, 6)));
  const char *(*hint)(const char *format, ...) __attribute__((format(printf, 1, 2)));
  int (*code)(int code, const char *object);
  const char *(*quote)(const char *words);
  const char *(*place_format)(struct haul_place place, char *text, size_t size);
  int (*place_parse)(const char *text, struct haul_place *place);
};

struct directory_module {
  /* `login` is the text of the file that says how to log in, in which mistakes are told with their
   * line; NULL: nobody has to. `stop`, where it is not NULL, ends calls under way within a second.
   * Connects to nobody. */
  int (*open)(const struct directory_library *library, const char *url, const char *login,
              const _Atomic bool *stop, struct directory **directory);
  void (*close)(struct directory *directory);

  /* `word` is the name as an address has it. HAUL_ENAME for none; *count as haul_directory_find has
   * it. */
  int (*find)(struct directory *directory, const char *word, int64_t until,
              struct haul_directory_entry *entries, size_t *count);

  int (*walk_open)(struct directory *directory, int64_t until, struct directory_walk **walk);
  int (*walk_next)(struct directory_walk *walk, int64_t until, struct haul_directory_event *event);
  void (*walk_close)(struct directory_walk *walk); /* the directory stays */

  int (*lease)(struct directory *directory, unsigned seconds, int64_t until, int64_t *lease);
  /* HAUL_ESTALE of this and of the last two: the lease ended, or the node's name is another's now.
   */
  int (*renew)(struct directory *directory, int64_t lease, const struct haul_directory_entry *node,
               int64_t until);
  void (*end)(struct directory *directory, int64_t lease, int64_t until);
  /* Enters a node whose name is free, or its successor's (haul_node_register). HAUL_EEXIST. */
  int (*claim)(struct directory *directory, int64_t lease, const struct haul_directory_entry *node,
               int64_t until);
  /* Regions of one node, 1 to DIRECTORY_AT_ONCE. */
  int (*put)(struct directory *directory, int64_t lease, const struct haul_directory_entry *entries,
             size_t count, int64_t until);
  int (*drop)(struct directory *directory, int64_t lease,
              const struct haul_directory_entry *entries, size_t count, int64_t until);
  /* This host's address that the directory was last reached from, without a port; "" before. */
  void (*own_host)(struct directory *directory, char *host, size_t size);
};

#endif
