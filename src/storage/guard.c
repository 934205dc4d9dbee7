/* SPDX-License-Identifier: MIT */
#include "storage/guard.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <sys/mman.h>
#include <unistd.h>

#include "core/spin.h"

/* The handler takes it, too: whoever holds it touches nothing that a guard watches, so the fault of
 * a thread never finds it held by the same one. */
static struct spin watching;
static struct list guards = LIST_INIT(guards); /* `watching` */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* guards the count and `before` */
static unsigned starts;
static struct sigaction before;
static uintptr_t page;

static void watching_lock(void) {
  while (!spin_try(&watching))
    sched_yield();
}

void guard_watch(struct guard *guard, void *start, size_t length) {
  guard->start = start;
  guard->length = length;
  atomic_store(&guard->lost, false);
  watching_lock();
  list_append(&guards, &guard->link);
  spin_unlock(&watching);
}

void guard_unwatch(struct guard *guard) {
  watching_lock();
  list_remove(&guard->link);
  spin_unlock(&watching);
}

/* `watching` */
static struct guard *find(uintptr_t address) {
  list_each(item, &guards) {
    struct guard *guard = list_entry(item, struct guard, link);
    if (address - (uintptr_t)guard->start < guard->length)
      return guard;
  }
  return NULL;
}

/* An empty page where the lost one was; the access is then made again. */
static bool replace(uintptr_t address) {
  watching_lock();
  struct guard *guard = find(address);
  if (guard) /* before anybody can read the empty page */
    atomic_store(&guard->lost, true);
  bool done = guard && mmap((void *)(address & ~(page - 1)), page, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) != MAP_FAILED;
  spin_unlock(&watching);
  return done;
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
  bool ours = info->si_code == BUS_ADRERR || info->si_code == BUS_MCEERR_AR;
  if (!ours || !replace((uintptr_t)info->si_addr))
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
