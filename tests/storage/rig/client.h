/* SPDX-License-Identifier: MIT
 * A client of USRBIO that does everything itself, as some do: its shared memory, the names, the
 * ring. It calls what the file system would call for it, so no mount is needed. */
#ifndef HAUL_TESTS_STORAGE_CLIENT_H
#define HAUL_TESTS_STORAGE_CLIENT_H

#include <haul/usrbio.h>

#include "storage/control_dir.h"
#include "storage/files.h"

/* One daemon's worth, and one file of PATTERN_BYTES bytes that this user has open both ways. */
#define PATTERN_BYTES ((size_t)4 << 20)
struct rig {
  struct files *files;
  struct control_dir *control;
  struct control_caller caller;
  int fd;
  uint64_t inode, handle;
  char path[64];
};

/* Does this host allow it? Else it says that the program is skipped, and why. */
bool rig_is_possible(void);
void rig_open(struct rig *rig, unsigned workers);
void rig_close(struct rig *rig);
/* The user has the file open, by this descriptor; returns the handle for files_remove. */
uint64_t rig_add_file(struct rig *rig, int fd, uid_t uid, bool reads, bool writes);
/* What the file has at `offset`. */
uint8_t rig_byte(uint64_t offset);

/* Shared memory that is registered under `name`; its id is in the name. */
struct piece {
  struct rig *rig;
  struct iov_name name;
  char path[64];
  char text[IOV_NAME_ROOM];
  char *memory;
  size_t length;
};

/* 0, or what control_dir_symlink said; then there is none. */
int piece_open(struct piece *piece, struct rig *rig, const struct iov_name *name, size_t length);
void piece_close(struct piece *piece);

struct client {
  struct piece buffer, ring;
  struct ring_view view;
  sem_t *bell; /* the daemon's */
};

/* `how` says what ring: depth, priority, timeout, flags. */
void client_open(struct client *client, struct rig *rig, const struct iov_name *how,
                 int32_t entries, size_t buffer);
void client_close(struct client *client);

/* Writes a record and its submission, and moves the head: not yet told. `userdata` is `index`. */
void client_prepare(struct client *client, int32_t index, uint64_t file, uint64_t buffer_offset,
                    uint64_t offset, uint64_t length);
void client_submit(struct client *client);
/* The next completion; false when there was none for so many milliseconds. */
bool client_take(struct client *client, struct ring_completion *completion, int milliseconds);
/* All of that, for one operation on the rig's file: its result. */
int64_t client_do(struct client *client, uint64_t buffer_offset, uint64_t offset, uint64_t length);

#endif
