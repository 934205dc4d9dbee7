/* SPDX-License-Identifier: MIT
 * Which files rings may use: those that their user has open at this moment. The file system tells
 * of every open and release; the workers ask. */
#ifndef HAUL_STORAGE_FILES_H
#define HAUL_STORAGE_FILES_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

struct files;

/* A file that somebody has open or uses; by inode number. */
struct file {
  uint64_t inode;
  int fd;             /* of the daemon's, for reading or for both, as far as anybody asked for */
  _Atomic int direct; /* the same with O_DIRECT; -1: not tried yet, -2: not allowed */
  bool writes;        /* fd may write */
};

int files_open(struct files **files);
void files_close(struct files *files);

/* A user has opened the file with `fd`, which stays the caller's and which this duplicates;
 * `handle` names it to files_closed. ENOMEM, EMFILE. */
int files_opened(struct files *files, uint64_t inode, int fd, uid_t uid, bool reads, bool writes,
                 uint64_t *handle);
void files_closed(struct files *files, uint64_t handle);

/* The file, held until files_put; -EBADF: this user has not opened it, -EACCES: not so. */
int files_get(struct files *files, uint64_t inode, uid_t uid, bool write, struct file **file);
void files_put(struct files *files, struct file *file);

#endif
