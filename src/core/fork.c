/* SPDX-License-Identifier: MIT */
#include "core/fork.h"

#include <errno.h>
#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

static const unsigned char not_watching = 1;
const volatile unsigned char *fork_mark = &not_watching;

static pthread_once_t once = PTHREAD_ONCE_INIT;
static int result;

static void watch(void) {
  size_t page = (size_t)sysconf(_SC_PAGESIZE);
  unsigned char *mark =
      mmap(NULL, page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mark == MAP_FAILED) {
    result = errno;
    return;
  }
  if (madvise(mark, page, MADV_WIPEONFORK) != 0) {
    result = errno;
    munmap(mark, page);
    return;
  }
  *mark = 1;
  fork_mark = mark;
}

int fork_watch(void) {
  pthread_once(&once, watch);
  return result;
}
