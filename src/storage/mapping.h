/* SPDX-License-Identifier: MIT
 * Mapped memory and files that another process may change or truncate at any time. */
#ifndef HAUL_STORAGE_MAPPING_H
#define HAUL_STORAGE_MAPPING_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <string.h>
#include <sys/types.h>

#include "core/list.h"

/* Truncation. An access behind the end of a truncated file raises SIGBUS. In a watched mapping the
 * handler puts an empty private page there, whichever thread had the fault, and sets `lost`: bytes
 * that were read since may not be the file's. */

struct sigbus_watch {
  struct list link;
  void *start; /* of a page */
  size_t length;
  _Atomic bool lost;
};

/* Installs the handler, which passes other faults on to the handler before it. Calls nest. 0 or a
 * negative errno value. */
int sigbus_start(void);
void sigbus_stop(void);

void sigbus_watch(struct sigbus_watch *watch, void *start, size_t length);
/* To be called before the mapping is removed. */
void sigbus_unwatch(struct sigbus_watch *watch);

#ifdef __has_feature
#define MAPPING_TSAN __has_feature(thread_sanitizer)
#elif defined(__SANITIZE_THREAD__)
#define MAPPING_TSAN 1
#else
#define MAPPING_TSAN 0
#endif

#if MAPPING_TSAN
/* ThreadSanitizer ignores accesses between Begin and End. */
void AnnotateIgnoreReadsBegin(const char *file, int line);
void AnnotateIgnoreReadsEnd(const char *file, int line);
void AnnotateIgnoreWritesBegin(const char *file, int line);
void AnnotateIgnoreWritesEnd(const char *file, int line);
#endif

/* Copies to or from memory of a client, which may access these bytes at the same time, or name them
 * in two operations, and is responsible for the result. */
static inline void copy_shared(void *to, const void *from, size_t length) {
#if MAPPING_TSAN
  AnnotateIgnoreReadsBegin(__FILE__, __LINE__);
  AnnotateIgnoreWritesBegin(__FILE__, __LINE__);
#endif
  memcpy(to, from, length);
#if MAPPING_TSAN
  AnnotateIgnoreWritesEnd(__FILE__, __LINE__);
  AnnotateIgnoreReadsEnd(__FILE__, __LINE__);
#endif
}

struct client_memory {
  void *memory;
  size_t length;
  dev_t device; /* of its file */
  ino_t inode;
};

/* The process that a thread belongs to; the thread's own number where /proc does not say. */
pid_t client_process(pid_t thread);

/* Maps the whole of a file in /dev/shm, as the client's thread sees that folder. EPERM: not the
 * user's file, or no tmpfs; EINVAL: no name in /dev/shm, or an empty file; ENOENT, ENOMEM. */
int client_memory_map(uid_t uid, pid_t thread, const char *path, struct client_memory *memory);

/* Removes a file that a dead client left behind: one in the daemon's own /dev/shm that has a name
 * of the client library and is still this inode. */
void client_memory_unlink(const char *path, dev_t device, ino_t inode);

/* The same for clients that died while there was no daemon: of the files of this user, for root of
 * all users, those that no process has open or mapped and that are older than a minute. A younger
 * one may be about to be mapped. */
void client_memory_sweep(void);

#endif
