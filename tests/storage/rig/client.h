/* SPDX-License-Identifier: MIT
 * A USRBIO client without the library: shared memory, names and rings. It calls the control
 * directory itself, so no mount is needed. */
#ifndef HAUL_TESTS_STORAGE_CLIENT_H
#define HAUL_TESTS_STORAGE_CLIENT_H

#include <haul/usrbio.h>

#include "storage/control_dir.h"
#include "storage/files.h"

/* The parts of a daemon, and a file of PATTERN_BYTES bytes that this user has open for reading and
 * writing. */
#define PATTERN_BYTES ((size_t)4 << 20)
struct rig {
  struct files *files;
  struct control_dir *control;
  struct control_caller caller;
  int fd;
  uint64_t inode, handle;
  char path[64];
  struct remote_file *remote; /* NULL: the file is local */
};

/* Whether this host allows it; otherwise prints why the program is skipped. */
bool rig_is_possible(void);
void rig_open(struct rig *rig, unsigned workers);
/* The same over a remote source, which shows this folder: the file is created there. */
void rig_open_remote(struct rig *rig, unsigned workers, struct source *source, const char *folder);
void rig_close(struct rig *rig);
/* The same as cmocka's teardown; *state is the rig. */
int rig_tear_down(void **state);
/* Adds an open of the user; returns the handle for files_remove. */
uint64_t rig_add_file(struct rig *rig, int fd, uid_t uid, bool reads, bool writes);
/* A number among the daemon's counters, by its name with a '='. */
uint64_t rig_counter(const struct rig *rig, const char *name);
/* The last line of the workers' log. */
const char *rig_note(void);
/* The file's data at `offset`. */
uint8_t rig_byte(uint64_t offset);

/* Registers shared memory under `name`, which contains its id. */
struct piece {
  struct rig *rig;
  struct iov_name name;
  char path[64];
  char text[IOV_NAME_ROOM];
  char *memory;
  size_t length;
};

/* The result of control_dir_symlink; without memory on failure. */
int piece_open(struct piece *piece, struct rig *rig, const struct iov_name *name, size_t length);
void piece_close(struct piece *piece);

struct client {
  struct piece buffer, ring;
  struct ring_view view;
  sem_t *bell; /* the daemon's */
};

/* `how`: the attributes of the ring. */
void client_open(struct client *client, struct rig *rig, const struct iov_name *how,
                 int32_t entries, size_t buffer);
void client_close(struct client *client);

/* Writes a record and its submission and moves the head, without a post. `userdata` is `index`. */
void client_prepare(struct client *client, int32_t index, uint64_t file, uint64_t buffer_offset,
                    uint64_t offset, uint64_t length);
void client_submit(struct client *client);
/* The next completion; false after a timeout in milliseconds. */
bool client_take(struct client *client, struct ring_completion *completion, int milliseconds);
/* One operation on the rig's file, from submission to completion; returns its result. */
int64_t client_do(struct client *client, uint64_t buffer_offset, uint64_t offset, uint64_t length);

#endif
