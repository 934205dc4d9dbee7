/* SPDX-License-Identifier: MIT
 * Which files rings may use: those that their user has open at this moment. The file system tells
 * of every open and release; the workers ask. Any thread; 0 or a negative errno value. */
#ifndef HAUL_STORAGE_FILES_H
#define HAUL_STORAGE_FILES_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

struct files;
struct far;

enum file_way { FILE_READS, FILE_WRITES, FILE_WAYS };

/* A file that somebody has open, or that is still in use. */
struct file {
  uint64_t inode;
  int fd[FILE_WAYS];             /* -1: nobody has opened it so */
  _Atomic int direct[FILE_WAYS]; /* the same with O_DIRECT, or enum file_direct */
  /* What O_DIRECT wants of addresses, and of offsets and lengths; set before `direct`. */
  uint32_t memory_align, offset_align;
};

enum file_direct {
  DIRECT_UNKNOWN = -1,
  DIRECT_REFUSED = -2 /* the file system has none of it */
};

int files_open(struct files **files);
/* What is still held stays until it is put. */
void files_close(struct files *files);

/* What was opened: a descriptor, which stays the caller's and which this duplicates, or `far`,
 * which this holds. */
struct files_open_file {
  uint64_t inode;
  int fd;          /* -1: it is far */
  struct far *far; /* NULL: it is not */
};

/* A user has opened the file; `handle` names it to files_closed. ENOMEM, EMFILE. */
int files_opened(struct files *files, const struct files_open_file *file, uid_t uid, bool reads,
                 bool writes, uint64_t *handle);
void files_closed(struct files *files, uint64_t handle);

/* The file, held until files_put, and the far one, held too, or NULL. EBADF: this user has not
 * opened it; EACCES: not for that. */
int files_get(struct files *files, uint64_t inode, uid_t uid, enum file_way way, struct file **file,
              struct far **far);
void files_put(struct file *file);

/* The descriptor with O_DIRECT, opened at the first call, or DIRECT_REFUSED. May block for as long
 * as an open does. */
int file_direct(struct file *file, enum file_way way);

#endif
