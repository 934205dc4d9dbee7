/* SPDX-License-Identifier: MIT */
#include "core/fork.h"

#include <errno.h>
#include <sys/mman.h>
#include <unistd.h>

static const unsigned char not_watching = 1;
const volatile unsigned char *fork_mark = &not_watching;

/* Of two threads that map it one wins. */
int fork_watch(void) {
  const volatile unsigned char *none = &not_watching;
  if (__atomic_load_n(&fork_mark, __ATOMIC_ACQUIRE) != none)
    return 0;
  size_t page = (size_t)sysconf(_SC_PAGESIZE);
  unsigned char *mark =
      mmap(NULL, page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mark == MAP_FAILED)
    return errno;
  *mark = 1;
  int result = madvise(mark, page, MADV_WIPEONFORK) != 0 ? errno : 0;
  bool wins = result == 0 && __atomic_compare_exchange_n(&fork_mark, &none, mark, false,
                                                         __ATOMIC_RELEASE, __ATOMIC_RELAXED);
  if (!wins)
    munmap(mark, page);
  return result;
}
