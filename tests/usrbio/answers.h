/* SPDX-License-Identifier: MIT
 * Between the double of the daemon and the doubles of the system's calls, which come here first. */
#ifndef HAUL_TESTS_USRBIO_ANSWERS_H
#define HAUL_TESTS_USRBIO_ANSWERS_H

#include <stdbool.h>

/* 0: the system may go on; else a negative errno value. */
int answer_symlink(const char *target, const char *path);
int answer_unlink(const char *path);
/* The folder that stands for the mount; NULL: there is none. */
const char *answer_mount(void);
int answer_liveness(void); /* as the first two */

/* Whether an open file lies below a folder. */
bool answers_is_below(int fd, const char *folder);

#endif
