/* SPDX-License-Identifier: MIT
 * The world's threads, locks, futexes and clocks. Locks live in the library's own pthread objects;
 * sleepers are found by process and address. */
#include <errno.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>

#include "atomics.h"
#include "calls.h"
#include "sim.h"

#define QUEUES 65536 /* a power of two */

/* Fibers that sleep on an address; several addresses may share a queue. */
static struct list queues[QUEUES];

void threads_start(void) {
  for (size_t i = 0; i < QUEUES; i++)
    list_init(&queues[i]);
}

static uint64_t key_of(const volatile void *address) {
  return (uint64_t)(uintptr_t)address ^ (uint64_t)process_current()->pid << 48;
}

static struct list *queue_of(uint64_t key) {
  return &queues[(key * 0x9e3779b97f4a7c15) >> 48 & (QUEUES - 1)];
}

/* Sleeps until world_wake of the address. False: the time came. */
static bool sleep_on(const volatile void *address, int64_t until) {
  uint64_t key = key_of(address);
  fiber_current()->waiters[0].key = key;
  return fiber_wait_one(queue_of(key), until);
}

static void wake_on(const volatile void *address, size_t most) {
  uint64_t key = key_of(address);
  struct list *queue = queue_of(key);
  list_each_safe(item, queue) {
    struct waiter *waiter = list_entry(item, struct waiter, link);
    if (waiter->key != key || most == 0)
      continue;
    struct list only;
    list_init(&only);
    list_remove(item);
    list_append(&only, item);
    queue_wake(&only, 1);
    most--;
  }
}

static int64_t timespec_ns(const struct timespec *time) {
  return time->tv_sec > NEVER / S - 1 ? NEVER : time->tv_sec * S + time->tv_nsec;
}

/* The realtime clock is the monotonic one, later by a constant of the host. Hosts agree on it
 * within a second, and drift. */
static int64_t realtime_later(const struct host *host) {
  return 1700000000 * S - host->offset + host->offset % S;
}

int world_clock_gettime(clockid_t clock, struct timespec *time) {
  sim_point(25);
  int64_t now = host_clock(process_current()->host, sim_now);
  if (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)
    now += realtime_later(process_current()->host);
  *time = (struct timespec){now / S, now % S};
  return 0;
}

static int64_t world_time(int64_t own, bool realtime) {
  if (own == NEVER)
    return NEVER;
  const struct host *host = process_current()->host;
  return host_time_to_world(host, realtime ? own - realtime_later(host) : own);
}

int64_t world_span(const struct timespec *span) {
  int64_t ns = span ? timespec_ns(span) : NEVER;
  return ns > NEVER - sim_now ? NEVER : sim_now + ns;
}

int world_nanosleep(const struct timespec *span, struct timespec *left) {
  (void)left;
  struct list nothing;
  list_init(&nothing);
  sim_point(500);
  fiber_wait_one(&nothing, world_span(span) + sim_between(0, 60 * US));
  return 0;
}

int world_sched_yield(void) {
  sim_point(300);
  sim_yield();
  return 0;
}

/* Other fibers run in the middle of a copy, as other processors do. */
void *world_memcpy(void *restrict to, const void *restrict from, size_t length) {
  size_t half = length >= 64 ? length / 2 : 0;
  if (half > 0) {
    memcpy(to, from, half);
    sim_copy_point();
  }
  memcpy((char *)to + half, (const char *)from + half, length - half);
  return to;
}

struct mutex {
  uint32_t held;
  uint32_t sleepers;
};
_Static_assert(sizeof(struct mutex) <= sizeof(pthread_mutex_t), "it lies in the library's");

int world_pthread_mutex_init(pthread_mutex_t *mutex, const pthread_mutexattr_t *attributes) {
  (void)attributes;
  memset(mutex, 0, sizeof *mutex);
  return 0;
}

int world_pthread_mutex_destroy(pthread_mutex_t *mutex) {
  if (((struct mutex *)(void *)mutex)->held)
    sim_fail("threads", "a held mutex is destroyed");
  return 0;
}

int world_pthread_mutex_lock(pthread_mutex_t *pthread_mutex) {
  struct mutex *mutex = (struct mutex *)(void *)pthread_mutex;
  sim_point(40);
  while (mutex->held) {
    mutex->sleepers++;
    sleep_on(mutex, NEVER);
    mutex->sleepers--;
  }
  mutex->held = 1;
  return 0;
}

int world_pthread_mutex_trylock(pthread_mutex_t *pthread_mutex) {
  struct mutex *mutex = (struct mutex *)(void *)pthread_mutex;
  sim_point(40);
  if (mutex->held)
    return EBUSY;
  mutex->held = 1;
  return 0;
}

/* The fiber may lose the processor before and after the release. */
int world_pthread_mutex_unlock(pthread_mutex_t *pthread_mutex) {
  struct mutex *mutex = (struct mutex *)(void *)pthread_mutex;
  if (!mutex->held)
    sim_fail("threads", "a mutex is released that is not held");
  sim_atomic_point();
  mutex->held = 0;
  if (mutex->sleepers)
    wake_on(mutex, 1);
  sim_point(40);
  return 0;
}

struct condition {
  uint32_t realtime;
};

int world_pthread_condattr_init(pthread_condattr_t *attributes) {
  memset(attributes, 0, sizeof *attributes);
  return 0;
}

int world_pthread_condattr_destroy(pthread_condattr_t *attributes) {
  (void)attributes;
  return 0;
}

int world_pthread_condattr_setclock(pthread_condattr_t *attributes, clockid_t clock) {
  *(uint32_t *)(void *)attributes = clock == CLOCK_MONOTONIC;
  return 0;
}

int world_pthread_cond_init(pthread_cond_t *condition, const pthread_condattr_t *attributes) {
  memset(condition, 0, sizeof *condition);
  ((struct condition *)(void *)condition)->realtime =
      !attributes || !*(const uint32_t *)(const void *)attributes;
  return 0;
}

int world_pthread_cond_destroy(pthread_cond_t *condition) {
  (void)condition;
  return 0;
}

int world_pthread_cond_timedwait(pthread_cond_t *condition, pthread_mutex_t *mutex,
                                 const struct timespec *until) {
  bool realtime = ((struct condition *)(void *)condition)->realtime;
  int64_t at = until ? world_time(timespec_ns(until), realtime) : NEVER;
  ((struct mutex *)(void *)mutex)->held = 0;
  if (((struct mutex *)(void *)mutex)->sleepers)
    wake_on(mutex, 1);
  bool woken = sim_chance(2000) || sleep_on(condition, at); /* spurious wake-ups are allowed */
  world_pthread_mutex_lock(mutex);
  return woken ? 0 : ETIMEDOUT;
}

int world_pthread_cond_wait(pthread_cond_t *condition, pthread_mutex_t *mutex) {
  return world_pthread_cond_timedwait(condition, mutex, NULL);
}

int world_pthread_cond_signal(pthread_cond_t *condition) {
  sim_point(100);
  wake_on(condition, 1);
  return 0;
}

int world_pthread_cond_broadcast(pthread_cond_t *condition) {
  sim_point(100);
  wake_on(condition, SIZE_MAX);
  return 0;
}

int world_pthread_once(pthread_once_t *once, void (*run)(void)) {
  enum { FRESH, RUNS, DONE };
  sim_point(20);
  while (*once == RUNS)
    sim_yield();
  if (*once == DONE)
    return 0;
  *once = RUNS;
  run();
  *once = DONE;
  return 0;
}

/* Whether a thread begins detached. */
static uint32_t *detachment(pthread_attr_t *attributes) {
  return (uint32_t *)(void *)attributes;
}

int world_pthread_attr_init(pthread_attr_t *attributes) {
  memset(attributes, 0, sizeof *attributes);
  return 0;
}

int world_pthread_attr_destroy(pthread_attr_t *attributes) {
  (void)attributes;
  return 0;
}

int world_pthread_attr_setdetachstate(pthread_attr_t *attributes, int state) {
  *detachment(attributes) = state == PTHREAD_CREATE_DETACHED;
  return 0;
}

int world_pthread_create(pthread_t *thread, const pthread_attr_t *attributes,
                         void *(*run)(void *argument), void *argument) {
  sim_point(10 * US);
  if (refuses_memory()) {
    process_current()->refused_threads++;
    return EAGAIN;
  }
  struct fiber *fiber = fiber_start(process_current(), run, argument);
  fiber->detached = attributes && *detachment((pthread_attr_t *)(uintptr_t)attributes);
  *thread = (pthread_t)fiber;
  return 0;
}

int world_pthread_join(pthread_t thread, void **result) {
  struct fiber *fiber = (struct fiber *)thread;
  sim_point(1 * US);
  while (!fiber->ended)
    fiber_wait_one(&process_current()->joining, NEVER);
  if (result)
    *result = fiber->result;
  fiber_release(fiber);
  return 0;
}

int world_pthread_detach(pthread_t thread) {
  struct fiber *fiber = (struct fiber *)thread;
  fiber->detached = true;
  if (fiber->ended)
    fiber_release(fiber);
  return 0;
}

pthread_t world_pthread_self(void) {
  return (pthread_t)fiber_current();
}

int world_pthread_equal(pthread_t one, pthread_t other) {
  return one == other;
}

int world_pthread_setname_np(pthread_t thread, const char *name) {
  (void)thread, (void)name;
  return 0;
}

int world_pthread_sigmask(int how, const sigset_t *set, sigset_t *old) {
  (void)how, (void)set;
  if (old)
    sigemptyset(old);
  return 0;
}

int world_sigtimedwait(const sigset_t *set, siginfo_t *info, const struct timespec *span) {
  (void)set, (void)info, (void)span;
  errno = EAGAIN;
  return -1;
}

int world_sched_getaffinity(pid_t pid, size_t size, cpu_set_t *set) {
  (void)pid;
  memset(set, 0, size);
  CPU_SET(0, set);
  CPU_SET(1, set);
  return 0;
}

static long do_futex(uint32_t *word, int operation, uint32_t value, const struct timespec *until) {
  int command = operation & FUTEX_CMD_MASK;
  sim_point(200);
  if (command == FUTEX_WAKE) {
    wake_on(word, value);
    return 0;
  }
  if (command != FUTEX_WAIT_BITSET)
    sim_fail("simulator", "futex command %d is not modelled", command);
  if (__atomic_load_n(word, __ATOMIC_SEQ_CST) != value) {
    errno = EAGAIN;
    return -1;
  }
  if (sim_chance(1000)) { /* a signal */
    errno = EINTR;
    return -1;
  }
  if (sleep_on(word, until ? world_time(timespec_ns(until), false) : NEVER))
    return 0;
  errno = ETIMEDOUT;
  return -1;
}

long world_syscall(long number, ...) {
  va_list arguments;
  va_start(arguments, number);
  long a = va_arg(arguments, long), b = va_arg(arguments, long), c = va_arg(arguments, long);
  long d = va_arg(arguments, long), e = va_arg(arguments, long), f = va_arg(arguments, long);
  va_end(arguments);
  switch (number) {
  case SYS_futex:
    return do_futex((uint32_t *)a, (int)b, (uint32_t)c, (const struct timespec *)d);
  case SYS_process_vm_writev:
    return world_process_vm_writev((pid_t)a, (const struct iovec *)b, (unsigned long)c,
                                   (const struct iovec *)d, (unsigned long)e, (unsigned long)f);
  case SYS_pidfd_open:
    return world_pidfd_open((pid_t)a);
  case SYS_pidfd_send_signal:
    return world_pidfd_signal((int)a);
  case SYS_mbind:
    return 0;
  default:
    sim_fail("simulator", "system call %ld is not modelled", number);
  }
}
