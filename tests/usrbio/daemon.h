/* SPDX-License-Identifier: MIT
 * A mock of the mount and its daemon, in the test's process. A temporary folder is the mount, and
 * symlink, unlink, ioctl, statx and fcntl are mocked. A thread per priority serves the rings. One
 * at a time; its errors abort the process. */
#ifndef HAUL_TESTS_USRBIO_DAEMON_H
#define HAUL_TESTS_USRBIO_DAEMON_H

#include <haul/usrbio.h>
#include <stdbool.h>
#include <stddef.h>

#include "hf3fs_usrbio.h"

/* Uses an empty folder, or a new one (NULL); returns its path. */
const char *daemon_start(const char *folder);
/* Also removes a folder that it created, with all files. */
void daemon_stop(void);

/* While held it serves no ring: the test acts as the daemon. */
void daemon_hold(bool held);
/* The daemon's view of the ring. */
struct ring_view *daemon_ring(const struct hf3fs_ior *ior);
/* Fetches the next submission of a held ring; false: there is none. */
bool daemon_next(struct ring_view *view, struct ring_submission *submission);
/* Writes and posts a completion of a held ring, with any index. */
void daemon_complete(struct ring_view *view, int32_t index, int64_t result);

/* The error of every symlink from now on; 0: success. */
void daemon_fail_symlinks(int error);
/* The error of liveness checks; 0: success. */
void daemon_fail_liveness(int error);
/* Acts as a dead daemon; as a new one at the same path. */
void daemon_die(void);
void daemon_restart(void);

/* The number of registered rings and buffers; of liveness checks, which no daemon takes part in. */
size_t daemon_registered(void);
unsigned daemon_liveness_checks(void);
/* Of calls that wait for a real daemon. */
unsigned daemon_requests(void);
/* Name and target of the last symlink. */
const char *daemon_last_name(void);
const char *daemon_last_target(void);
/* The number of wake-ups of a priority: 0 high, 1 normal, 2 low. */
unsigned daemon_woken(int priority);

#endif
