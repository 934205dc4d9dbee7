/* SPDX-License-Identifier: MIT
 * Runs `haul mount` for a test. A guard process unmounts and removes the folders if the test dies.
 * */
#ifndef HAUL_TESTS_STORAGE_MOUNTED_H
#define HAUL_TESTS_STORAGE_MOUNTED_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "folder.h"

struct mounted {
  char root[FOLDER_ROOM]; /* contains source and point */
  char source[FOLDER_ROOM + 16], point[FOLDER_ROOM + 16];
  char log[FOLDER_ROOM + 16]; /* standard error of the command */
  pid_t daemon, guard, server;
};

/* From now on mounts a `haul serve --export` of the folder instead of the folder. */
void mounted_use_server(void);
/* Kills the server, and starts it again at the same address. */
void mounted_restart_server(struct mounted *mounted);

/* Without FUSE: prints why, and exits with 77 (skipped). */
void mounted_need_fuse(void);
/* Likewise for a user other than root. */
void mounted_need_root(void);

/* Creates the folders, empty. */
void mounted_make(struct mounted *mounted);
/* Runs the command in the foreground and waits until the mount is ready. `options` end with NULL;
 * NULL: none. */
void mounted_start(struct mounted *mounted, const char *const *options);
/* Runs the command to its end; returns the exit status. */
int mounted_run(struct mounted *mounted, const char *const *arguments);
/* Waits for the exit status, or 128 plus the signal; fails after a timeout. */
int mounted_wait(struct mounted *mounted);
/* Sends SIGTERM, expects status 0 and no mount, and removes the folders. */
void mounted_end(struct mounted *mounted);
/* The same as cmocka's teardown; *state is the mount. */
int mounted_tear_down(void **state);
/* Unmounts lazily, without the process. */
void mounted_detach(const struct mounted *mounted);

bool mounted_is(const struct mounted *mounted);
bool mounted_says(const struct mounted *mounted, const char *text);
/* The number of descriptors of the process. */
unsigned mounted_descriptors(const struct mounted *mounted);
/* Paths in source and point, in one of four static buffers. */
const char *at_source(const struct mounted *mounted, const char *name);
const char *at_point(const struct mounted *mounted, const char *name);

/* Waits up to ten seconds for the condition; returns it. */
#define eventually(condition)                                                                      \
  __extension__({                                                                                  \
    int rounds = 1000;                                                                             \
    while (!(condition) && --rounds > 0)                                                           \
      mounted_pause(10);                                                                           \
    rounds > 0;                                                                                    \
  })
void mounted_pause(int milliseconds);

#endif
