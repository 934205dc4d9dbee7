/* SPDX-License-Identifier: MIT
 * Pages and address space. */
#ifndef HAUL_MEMORY_PAGES_H
#define HAUL_MEMORY_PAGES_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/mman.h>

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ  22 /* linux/mman.h, since 5.14 */
#define MADV_POPULATE_WRITE 23
#endif

/* Blocks from this size on are aligned to it and request huge pages. It is a PMD entry of x86-64
 * and of arm64 with 4 KiB pages. */
#define HUGE_PAGE ((size_t)2 << 20)

size_t page_size(void);

/* Rounds `length` up to whole pages; false if the result is near PTRDIFF_MAX or above. */
bool page_round(size_t length, size_t *rounded);

/* Reserves address space without access, aligned to HUGE_PAGE from that size on. NULL with errno.
 * Free it with munmap. */
void *pages_reserve(size_t length);

/* Is a block of this length aligned to HUGE_PAGE, if it is that large? */
bool pages_aligned(const void *address, size_t length);

/* Prefers this NUMA node for pages; `move` migrates existing ones. -1 with errno. */
int pages_prefer(void *address, size_t length, unsigned node, bool move);

/* Requests huge pages if the block is large enough; best effort. */
void pages_want_huge(void *address, size_t length);

#endif
