/* SPDX-License-Identifier: MIT
 * Threads of the library's own. */
#ifndef HAUL_CORE_THREAD_H
#define HAUL_CORE_THREAD_H

#include <pthread.h>

/* Starts a thread that takes none of the application's signals, but for those that a thread brings
 * about itself (SIGSEGV, SIGBUS, …): their handlers must run where the fault is. 0 or an errno. */
int thread_start(pthread_t *thread, void *(*run)(void *argument), void *argument);

#endif
