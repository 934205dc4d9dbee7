/* SPDX-License-Identifier: MIT */
#include "core/thread.h"

#include <signal.h>

int thread_start(pthread_t *thread, void *(*run)(void *argument), void *argument) {
  static const int own[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS};
  sigset_t blocked, before;
  sigfillset(&blocked);
  for (size_t i = 0; i < sizeof own / sizeof own[0]; i++)
    sigdelset(&blocked, own[i]);
  pthread_sigmask(SIG_BLOCK, &blocked, &before);
  int failed = pthread_create(thread, NULL, run, argument);
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  return failed;
}
