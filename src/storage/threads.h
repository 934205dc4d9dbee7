/* SPDX-License-Identifier: MIT
 * Threads of the daemon's own: signals are its first thread's business. */
#ifndef HAUL_STORAGE_THREADS_H
#define HAUL_STORAGE_THREADS_H

#include <pthread.h>
#include <signal.h>

/* 0 or a negative errno value. Faults are handled where they are. */
static inline int storage_thread(pthread_t *thread, void *(*run)(void *argument), void *argument) {
  sigset_t all, before;
  sigfillset(&all);
  sigdelset(&all, SIGBUS);
  sigdelset(&all, SIGSEGV);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  int code = -pthread_create(thread, NULL, run, argument);
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  return code;
}

#endif
