/* SPDX-License-Identifier: MIT
 * The module libhaul-storage.so, as the command opens it: three symbols. haul_storage_mount shows a
 * tree of files as a FUSE file system, haul_storage_service serves folders to other nodes,
 * haul_storage_tree reads and writes served files without a mount.
 *
 * Not installed: command and module are of one build. Each struct that the command fills begins
 * with its size, and the module refuses any other size with EINVAL.
 *
 * Calls return 0 or a negative errno value; where they take an `error`, a failure fills it. */
#ifndef HAUL_STORAGE_H
#define HAUL_STORAGE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

#include <haul/access.h>
#include <haul/haul.h>

struct haul_storage_error {
  char text[512], hint[512]; /* one line each; the hint may be empty */
};

/* ---- A mount ---- */

#define HAUL_STORAGE_MOUNT_SYMBOL "haul_storage_mount"
#define HAUL_STORAGE_NAME_ROOM    32 /* of a mount's name, with its zero byte: 3FS's limit */

struct haul_storage_mount {
  size_t size;
  const char *source;        /* a local folder; for a remote tree, its name as the user wrote it */
  const char *address;       /* of the node that serves a remote tree; NULL: `source` is local */
  const char *export;        /* the remote tree's name there */
  int64_t timeout_ns;        /* of each request to that node; 0: 30 seconds */
  const char *target;        /* the mount point: an empty folder */
  const char *name;          /* that clients see; NULL: the last component of `source` */
  unsigned workers;          /* threads that serve rings; 0: one a processor, at most four */
  bool read_only;            /* except 3fs-virt, where readers register, too */
  bool allow_other;          /* users other than the one that mounts have access */
  int stop;                  /* a descriptor that becomes readable to unmount */
  void (*ready)(void *user); /* called once, when the file system responds. May redirect stdin,
                                stdout and stderr, and change the working folder */
  void (*log)(void *user, int priority, const char *text); /* syslog(3)'s priorities; any thread */
  void *user;                                              /* passed to both */
};

/* Mounts, and blocks until the file system is unmounted. After a failure nothing is mounted. At
 * most one call at a time in a process. Threads inherit the signal mask, so the caller blocks the
 * signals that `stop` reports; SIGUSR1 is the module's during the call. Sets the umask to 0 and
 * raises the limit of descriptors. */
int haul_storage_mount(const struct haul_storage_mount *mount, struct haul_storage_error *error);

/* ---- The file service ---- */

#define HAUL_STORAGE_SERVICE_SYMBOL "haul_storage_service" /* struct haul_storage_service */

struct haul_storage_export {
  const char *name; /* 1 to 63 printable ASCII bytes without blanks and '/' */
  const char *path; /* a folder of this host */
  bool writable;
  const struct haul_grant *grants; /* peers without a grant do not see the export */
  size_t grant_count;              /* 0: every peer that can connect has access */
};

struct haul_storage_serving {
  size_t size;
  haul_node *node; /* opened with haul_storage_node_config; the module receives its messages */
  const struct haul_storage_export *exports;
  size_t count;
  /* Called for each message that is not of the file service, one at a time, in a thread of the
   * module; valid during the call. NULL: such messages are dropped. */
  void (*other)(void *user, const struct haul_message *message);
  void *user;
};

struct service;

struct haul_storage_service {
  /* Call before haul_node_open, in the thread that starts all others: it drops the right to keep
   * set-user-ID bits of files that are written (CAP_FSETID). Threads that drop it later are refused
   * by the NICs' drivers. */
  void (*prepare)(void);
  /* All arguments stay the caller's until `close`. Raises the limit of descriptors and sets the
   * umask to 0. After a failure nothing runs. */
  int (*open)(const struct haul_storage_serving *serving, struct service **service,
              struct haul_storage_error *error);
  /* Call before haul_node_close: the module does not use the node afterwards. Blocks for some
   * tenths of a second. */
  void (*stop)(struct service *service);
  /* Call after haul_node_close, which ends pending waits. -ETIMEDOUT: a disk does not respond, and
   * threads stay behind with what they use. */
  int (*close)(struct service *service);
};

/* Fills a configuration for a node that serves or uses files: driven by the caller's thread, with
 * peer events, and with spinning and copy threads where the user has set neither. */
static inline void haul_storage_node_config(struct haul_node_config *config) {
  /* Requests and responses come in a row, and a sleep between two of them costs both ends: a third
   * of the rate where both run on one host (bench/run fileservice). */
  const int64_t spin_ns = 50000;
  /* One thread copies and checks 3.9 GB/s between processes of a host, two copy 6.1 GB/s (bench/run
   * fileservice). */
  const unsigned copy_threads = 2;
  struct haul_setting settings[64];
  size_t count = sizeof settings / sizeof settings[0];
  config->progress = HAUL_PROGRESS_CALLER;
  config->peer_events = 1;
  if (haul_setting_list(config, settings, &count) != 0)
    return; /* haul_node_open reports the same error */
  for (size_t i = 0; i < count && i < sizeof settings / sizeof settings[0]; i++) {
    if (strcmp(settings[i].origin, "default") != 0)
      continue;
    if (strcmp(settings[i].name, "spin") == 0)
      config->spin_ns = spin_ns;
    else if (strcmp(settings[i].name, "copy_threads") == 0 && sysconf(_SC_NPROCESSORS_ONLN) > 1)
      config->copy_threads = copy_threads;
  }
}

/* ---- Served files without a mount ---- */

#define HAUL_STORAGE_TREE_SYMBOL "haul_storage_tree" /* struct haul_storage_tree */

struct haul_storage_remote {
  size_t size;
  const char *address;
  const char *export; /* "": only `list` is used, and lists the exports */
  int64_t timeout_ns; /* of each request; 0: 30 seconds */
};

struct haul_storage_name {
  const char *name;
  mode_t mode; /* of an export: its write bits say whether it is writable */
  uint64_t size;
};

/* Where the bytes of `get` go, and those of `put` come from. */
struct haul_storage_stream {
  /* get: the number of bytes to come, then the bytes; false ends the call with -ECANCELED. */
  bool (*begin)(void *user, uint64_t length);
  bool (*write)(void *user, const void *bytes, size_t length);
  /* put: the next bytes; 0 is the end, a negative value ends the call with -ECANCELED. */
  ssize_t (*read)(void *user, void *bytes, size_t room);
  /* Both: the server's report of a part. `pages` of its bytes were sent from the file's own pages;
   * the server copied the others. */
  void (*report)(void *user, const struct haul_report *report, uint64_t pages);
  void *user;
};

struct tree;

/* Paths are relative to the export's root, which is "". No symlink is followed. */
struct haul_storage_tree {
  int (*open)(const struct haul_storage_remote *remote, struct tree **tree,
              struct haul_storage_error *error);
  void (*close)(struct tree *tree);
  /* Calls `each` for the names in a folder, or for the one file; for the exports where the tree was
   * opened without one. */
  int (*list)(struct tree *tree, const char *path,
              void (*each)(void *user, const struct haul_storage_name *name), void *user,
              struct haul_storage_error *error);
  /* Reads `length` bytes from `offset` on, in order; 0: to the end of the file. */
  int (*get)(struct tree *tree, const char *path, uint64_t offset, uint64_t length,
             const struct haul_storage_stream *stream, struct haul_storage_error *error);
  /* Writes a file, which replaces an earlier one of this name once it is complete. */
  int (*put)(struct tree *tree, const char *path, const struct haul_storage_stream *stream,
             struct haul_storage_error *error);
};

#endif
