/* SPDX-License-Identifier: MIT */
#include "storage/guard.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <sys/mman.h>
#include <unistd.h>

/* Written by its thread, read by the handler in the same thread: signal fences suffice. */
static _Thread_local struct guard *here;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* guards the count and `before` */
static unsigned starts;
static struct sigaction before;
static uintptr_t page;

void guard_enter(struct guard *guard) {
  atomic_signal_fence(memory_order_seq_cst);
  here = guard;
  atomic_signal_fence(memory_order_seq_cst);
}

/* An empty page where the lost one was; the access is then made again. */
static bool replace(struct guard *guard, uintptr_t address) {
  uintptr_t start = (uintptr_t)guard->start;
  if (address < start || address - start >= guard->length)
    return false;
  atomic_store(&guard->lost, true);
  return mmap((void *)(address & ~(page - 1)), page, PROT_READ | PROT_WRITE,
              MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) != MAP_FAILED;
}

/* As if there were no handler of ours: the default one ends the process at the second fault. */
static void pass_on(int signal, siginfo_t *info, void *context) {
  if (before.sa_flags & SA_SIGINFO)
    before.sa_sigaction(signal, info, context);
  else if (before.sa_handler != SIG_DFL && before.sa_handler != SIG_IGN)
    before.sa_handler(signal);
  else
    sigaction(SIGBUS, &before, NULL);
}

static void on_fault(int signal, siginfo_t *info, void *context) {
  int saved = errno;
  struct guard *guard = here;
  if (!guard || info->si_code <= 0 || !replace(guard, (uintptr_t)info->si_addr))
    pass_on(signal, info, context);
  errno = saved;
}

int guard_start(void) {
  struct sigaction ours = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO | SA_ONSTACK};
  int code = 0;
  pthread_mutex_lock(&lock);
  page = (uintptr_t)sysconf(_SC_PAGESIZE);
  if (starts == 0 && sigaction(SIGBUS, &ours, &before) != 0)
    code = -errno;
  starts += code == 0;
  pthread_mutex_unlock(&lock);
  return code;
}

void guard_stop(void) {
  pthread_mutex_lock(&lock);
  if (--starts == 0)
    sigaction(SIGBUS, &before, NULL);
  pthread_mutex_unlock(&lock);
}
