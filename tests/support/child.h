/* SPDX-License-Identifier: MIT
 * Other processes for tests: the test's program, run again with one more argument. */
#ifndef HAUL_TESTS_CHILD_H
#define HAUL_TESTS_CHILD_H

#include <stddef.h>
#include <sys/types.h>

/* Runs /proc/self/exe with `mode` as its argument; its descriptor 3 is connected to *socket. */
pid_t child_start(const char *mode, int *socket);
/* Closes the socket, waits, and returns the exit status, or 128 + the signal. */
int child_end(pid_t child, int socket);
/* Stops a child; returns when none of its threads runs. */
void child_stop(pid_t child);
/* Runs `body` in a forked child with the default signal handlers; returns as child_end. */
int child_run(void (*body)(void *), void *argument);

/* One message with a descriptor (or -1). They abort on failure. */
void child_send(int socket, const void *bytes, size_t length, int descriptor);
int child_receive(int socket, void *bytes, size_t length);

#endif
