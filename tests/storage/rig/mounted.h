/* SPDX-License-Identifier: MIT
 * `haul mount`, run by a test as a person would. A process of its own watches the test, and takes
 * mount and folders away should it die. */
#ifndef HAUL_TESTS_STORAGE_MOUNTED_H
#define HAUL_TESTS_STORAGE_MOUNTED_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "folder.h"

struct mounted {
  char root[FOLDER_ROOM]; /* which has the two */
  char source[FOLDER_ROOM + 16], point[FOLDER_ROOM + 16];
  char log[FOLDER_ROOM + 16]; /* what the command says on standard error */
  pid_t daemon, guard, server;
};

/* From now on the command mounts not the folder but what `haul serve` exports of it. */
void mounted_be_far(void);
/* Kills the server, and starts it again at the same address. */
void mounted_restart_server(struct mounted *mounted);

/* Ends the program with 77, which is a skip, and says why, where there is no FUSE. */
void mounted_need_fuse(void);
/* The same where this user is not root. */
void mounted_need_root(void);

/* Two empty folders. */
void mounted_make(struct mounted *mounted);
/* Runs the command in the foreground until its mount point answers. `options` end with NULL; NULL:
 * there are none. */
void mounted_start(struct mounted *mounted, const char *const *options);
/* Runs it so that it ends by itself, and returns its exit status. */
int mounted_run(struct mounted *mounted, const char *const *arguments);
/* The exit status, or 128 and the signal; fails when it does not end in time. */
int mounted_wait(struct mounted *mounted);
/* As a person would: SIGTERM, and it is to end with 0 and without a mount. Then the folders go. */
void mounted_end(struct mounted *mounted);
/* Without a word to the process. */
void mounted_detach(const struct mounted *mounted);

bool mounted_is(const struct mounted *mounted);
bool mounted_says(const struct mounted *mounted, const char *text);
/* How many descriptors the process has. */
unsigned mounted_descriptors(const struct mounted *mounted);
/* Paths in either; one of four places in turn. */
const char *at_source(const struct mounted *mounted, const char *name);
const char *at_point(const struct mounted *mounted, const char *name);

/* Until it holds, ten seconds at the most: whether it does. */
#define eventually(condition)                                                                      \
  __extension__({                                                                                  \
    int rounds = 1000;                                                                             \
    while (!(condition) && --rounds > 0)                                                           \
      mounted_pause(10);                                                                           \
    rounds > 0;                                                                                    \
  })
void mounted_pause(int milliseconds);

#endif
