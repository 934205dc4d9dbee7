/* SPDX-License-Identifier: MIT
 * A double of the mount and of its daemon, in the test's own process: a temporary folder stands for
 * the mount, and the calls that the file system would answer (symlink, unlink, ioctl, statx) are
 * answered here. Rings are worked on through src/storage/ring.h, by a thread for each priority.
 * One at a time; what fails in it ends the process. */
#ifndef HAUL_TESTS_USRBIO_DAEMON_H
#define HAUL_TESTS_USRBIO_DAEMON_H

#include <haul/usrbio.h>
#include <stdbool.h>
#include <stddef.h>

#include "hf3fs_usrbio.h"

/* At a folder that is there and empty, or a new one (NULL); returns it. */
const char *daemon_start(const char *folder);
/* All files go too, if it made the folder. */
void daemon_stop(void);

/* While held it looks at no ring: the test is the daemon. */
void daemon_hold(bool held);
/* The ring as the daemon sees it. */
struct ring_view *daemon_ring(const struct hf3fs_ior *ior);
/* The next submission of a held ring, taken; false: there is none. */
bool daemon_next(struct ring_view *view, struct ring_submission *submission);
/* A completion of a held ring, posted. Any index will do. */
void daemon_complete(struct ring_view *view, int32_t index, int64_t result);

/* Every symlink fails from now on; 0: none. */
void daemon_refuse(int error);
/* Whoever asks whether it lives gets this error; 0: none. */
void daemon_answer(int error);
/* It has died, and answers nothing; or another one is there, at a folder of the same name. */
void daemon_die(void);
void daemon_restart(void);

/* How many rings and buffers are registered; how often it was asked whether it lives. */
size_t daemon_registered(void);
unsigned daemon_asked(void);
/* What the last link said: its name, and the file it names. */
const char *daemon_last_name(void);
const char *daemon_last_target(void);
/* How often a priority was woken: 0 high, 1 normal, 2 low. */
unsigned daemon_woken(int priority);

#endif
