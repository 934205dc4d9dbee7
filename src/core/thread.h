/* SPDX-License-Identifier: MIT
 * Threads of the library. */
#ifndef HAUL_CORE_THREAD_H
#define HAUL_CORE_THREAD_H

#include <pthread.h>

/* Starts a thread with all signals blocked but synchronous ones (SIGSEGV, SIGBUS, …), whose
 * handlers must run in the faulting thread. 0 or an errno. */
int thread_start(pthread_t *thread, void *(*run)(void *argument), void *argument);

#endif
