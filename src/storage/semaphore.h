/* SPDX-License-Identifier: MIT
 * POSIX semaphores in memory that clients write to. The C library's own calls trust what lies
 * there: a field of it goes into a system call, so a client could make sem_post wait for ever or
 * end the process. These read the value and the count of waiters alone.
 *
 * The layout is that of the GNU C library since 2.21 on 64-bit machines (struct new_sem,
 * sysdeps/nptl/internaltypes.h): a word with the value below and the waiters above. Processes with
 * different releases of it share semaphores, so it does not change. */
#ifndef HAUL_STORAGE_SEMAPHORE_H
#define HAUL_STORAGE_SEMAPHORE_H

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

_Static_assert(sizeof(sem_t) == 32 && sizeof(void *) == 8 &&
                   __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__,
               "the layout of a 64-bit GNU C library");

#define SEMAPHORE_WAITER (UINT64_C(1) << 32)

static inline _Atomic uint64_t *semaphore_word(sem_t *semaphore) {
  return (_Atomic uint64_t *)(void *)semaphore;
}

static inline void semaphore_wake(sem_t *semaphore) {
  syscall(SYS_futex, semaphore, FUTEX_WAKE, 1, NULL, NULL, 0);
}

/* Release: who takes it sees what was written before. */
static inline void semaphore_post(sem_t *semaphore) {
  uint64_t word = atomic_load_explicit(semaphore_word(semaphore), memory_order_relaxed);
  do {
    if ((uint32_t)word >= SEM_VALUE_MAX)
      break; /* nobody has looked for long; whoever waits is woken all the same */
  } while (!atomic_compare_exchange_weak_explicit(semaphore_word(semaphore), &word, word + 1,
                                                  memory_order_release, memory_order_relaxed));
  if (word >> 32)
    semaphore_wake(semaphore);
}

/* All that was posted; false: nothing. Acquire. */
static inline bool semaphore_take(sem_t *semaphore) {
  uint64_t word = atomic_load_explicit(semaphore_word(semaphore), memory_order_relaxed);
  while ((uint32_t)word > 0)
    if (atomic_compare_exchange_weak_explicit(semaphore_word(semaphore), &word,
                                              word & ~(uint64_t)UINT32_MAX, memory_order_acquire,
                                              memory_order_relaxed))
      return true;
  return false;
}

/* Until somebody posts, or not for much longer than so many nanoseconds. Takes nothing. For the one
 * thread that ever waits: it says so by a bit, so that whatever others wrote there is forgotten. */
static inline void semaphore_wait(sem_t *semaphore, int64_t nanoseconds) {
  const struct timespec most = {nanoseconds / 1000000000, nanoseconds % 1000000000};
  atomic_fetch_or_explicit(semaphore_word(semaphore), SEMAPHORE_WAITER, memory_order_seq_cst);
  syscall(SYS_futex, semaphore, FUTEX_WAIT, 0, &most, NULL, 0);
  atomic_fetch_and_explicit(semaphore_word(semaphore), UINT32_MAX, memory_order_relaxed);
}

#endif
