/* SPDX-License-Identifier: MIT
 * The files that rings may use: those that the ring's user has open at this moment. The file system
 * adds each open and removes it at release; workers look files up. All calls may be made from any
 * thread, and return 0 or a negative errno value. */
#ifndef HAUL_STORAGE_FILES_H
#define HAUL_STORAGE_FILES_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include <haul/file.h>

#include "storage/source.h"

/* An open file of another host, which has no descriptor here: its source reads and writes it. The
 * last reference releases it, as rings may use it longer than it is open. */
struct remote_file {
  struct source *source;
  struct source_file *file;
  _Atomic unsigned references;
};

/* With one reference; takes the file. NULL: no memory, and the file stays the caller's. */
struct remote_file *remote_file_new(struct source *source, struct source_file *file);
static inline void remote_file_get(struct remote_file *remote) {
  atomic_fetch_add_explicit(&remote->references, 1, memory_order_relaxed);
}
/* The last one blocks for as long as a release does. NULL is allowed. */
void remote_file_put(struct remote_file *remote);
/* Does not block. False: it is the last reference, and stays. */
bool remote_file_put_unless_last(struct remote_file *remote);

struct files;

enum file_direction { FILE_READ, FILE_WRITE, FILE_DIRECTIONS };

/* A file that is open, or in use. */
struct file {
  uint64_t inode;
  int fd[FILE_DIRECTIONS];             /* -1: not opened for it */
  _Atomic int direct[FILE_DIRECTIONS]; /* the same with O_DIRECT, or enum file_direct */
  /* O_DIRECT's requirements of addresses, and of offsets and lengths; set before `direct`. A thread
   * that opens the other direction may store the same values again. */
  _Atomic uint32_t memory_align, offset_align;
  /* Of local files: reads into device memory without bounce buffers. NULL: not opened yet. */
  _Atomic(haul_file *) reader;
  _Atomic int64_t reader_at; /* not used before, as bytes would be staged */
};

enum file_direct {
  DIRECT_UNKNOWN = -1,
  DIRECT_UNSUPPORTED = -2 /* by the file system */
};

/* One open by a user, either of a descriptor or of a remote file. */
struct file_open {
  uint64_t inode;
  int fd;                     /* is duplicated; -1: remote */
  struct remote_file *remote; /* a reference is taken; NULL: local */
  uid_t uid;
  bool may[FILE_DIRECTIONS];
};

int files_open(struct files **files);
/* Files in use stay until file_put. */
void files_close(struct files *files);

/* Adds an open; `handle` is for files_remove. ENOMEM, EMFILE. */
int files_add(struct files *files, const struct file_open *open, uint64_t *handle);
void files_remove(struct files *files, uint64_t handle);

/* The user's file and, where it is remote, a reference to that; else *remote is NULL. To be
 * followed by file_put, and remote_file_put. EBADF: the user does not have it open; EACCES: not for
 * this direction. */
int files_get(struct files *files, uint64_t inode, uid_t uid, enum file_direction direction,
              struct file **file, struct remote_file **remote);
void file_put(struct file *file);

/* The descriptor with O_DIRECT, which the first call opens, or DIRECT_UNSUPPORTED. Blocks for as
 * long as open(2) does. */
int file_direct(struct file *file, enum file_direction direction);

/* For a read into device memory, or NULL: the bytes are to be staged. Opened by the first call,
 * which blocks as open(2) does. `now`: CLOCK_MONOTONIC, ns. */
haul_file *file_reader(struct file *file, int64_t now);
/* It had to stage bytes: none is given for a while. */
void file_reader_staged(struct file *file, int64_t now);

#endif
