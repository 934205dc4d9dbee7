/* SPDX-License-Identifier: MIT
 * The one entry of libhaul-storage.so, for the command: a tree of files as a file system of this
 * host, with USRBIO's rings on its files. */
#ifndef HAUL_STORAGE_MOUNT_H
#define HAUL_STORAGE_MOUNT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define HAUL_STORAGE_MOUNT_SYMBOL "haul_storage_mount"
#define HAUL_STORAGE_NAME_ROOM    32 /* of a mount's name, with its zero byte: 3FS's */

struct haul_storage_mount {
  size_t size;         /* sizeof this: the module of another build refuses */
  const char *source;  /* a folder of this host; or, as whoever asks called it, what follows */
  const char *address; /* of a node that exports the tree; NULL: `source` is a folder */
  const char *export;  /* the tree's name there */
  int64_t timeout_ns;  /* to wait for that node, with anything; 0: 30 seconds */
  const char *target;  /* an empty folder */
  const char *name; /* what clients are told as the file system's; NULL: the source's last part */
  unsigned workers; /* threads for rings; 0: as many as there are processors, at most four */
  bool read_only;   /* but for 3fs-virt, where readers register too */
  bool allow_other; /* users besides the one who mounts */
  int stop;         /* a descriptor: unmounts once it is readable */
  void (*ready)(void *user); /* once: the file system answers. May change stdin, stdout, stderr and
                                the working folder */
  void (*log)(void *user, int priority, const char *text); /* syslog(3)'s priorities; any thread */
  void *user;                                              /* passed to both */
};

struct haul_storage_error {
  char text[512], hint[512]; /* a line each; the hint may be empty */
};

/* Mounts, and returns when it was unmounted: 0. Else a negative errno value and *error; nothing
 * stays mounted. Threads inherit the signal mask: the caller has blocked what it waits for by
 * `stop`; SIGUSR1 is the module's meanwhile. Sets the process's umask to 0, and its limit of
 * descriptors to what is allowed. Once in a process at a time. */
int haul_storage_mount(const struct haul_storage_mount *mount, struct haul_storage_error *error);

#endif
