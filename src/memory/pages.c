/* SPDX-License-Identifier: MIT */
#include "memory/pages.h"

#include <errno.h>
#include <stdint.h>
#include <sys/mman.h>
#include <unistd.h>

#include "core/sys.h"

size_t page_size(void) {
  return (size_t)sysconf(_SC_PAGESIZE);
}

bool page_round(size_t length, size_t *rounded) {
  size_t page = page_size();
  if (length > (size_t)PTRDIFF_MAX - 2 * HUGE_PAGE)
    return false;
  *rounded = (length + page - 1) & ~(page - 1);
  return true;
}

static void *reserve(size_t length) {
  void *base =
      sys_ops.mmap(NULL, length, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return base == MAP_FAILED ? NULL : base;
}

void *pages_reserve(size_t length) {
  char *base = reserve(length);
  if (!base || pages_aligned(base, length))
    return base;
  munmap(base, length);
  base = reserve(length + HUGE_PAGE);
  if (!base)
    return NULL;
  size_t head = (HUGE_PAGE - (uintptr_t)base % HUGE_PAGE) % HUGE_PAGE;
  if (head)
    munmap(base, head);
  if (head < HUGE_PAGE)
    munmap(base + head + length, HUGE_PAGE - head);
  return base + head;
}

bool pages_aligned(const void *address, size_t length) {
  return length < HUGE_PAGE || (uintptr_t)address % HUGE_PAGE == 0;
}

#define NODES_MAX 1024u
#define WORD_BITS (8 * sizeof(unsigned long))
#define PREFERRED 1  /* MPOL_PREFERRED, linux/mempolicy.h: a full node is no reason to fail */
#define MOVE      2u /* MPOL_MF_MOVE */

int pages_prefer(void *address, size_t length, unsigned node, bool move) {
  unsigned long nodes[NODES_MAX / WORD_BITS] = {0};
  if (node >= NODES_MAX) {
    errno = EINVAL;
    return -1;
  }
  nodes[node / WORD_BITS] = 1ul << node % WORD_BITS;
  return (int)sys_ops.mbind(address, length, PREFERRED, nodes, NODES_MAX + 1, move ? MOVE : 0);
}

void pages_want_huge(void *address, size_t length) {
  if (length >= HUGE_PAGE)
    madvise(address, length, MADV_HUGEPAGE);
}
