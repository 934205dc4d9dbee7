/* SPDX-License-Identifier: MIT
 * Pages and address space. */
#ifndef HAUL_MEMORY_PAGES_H
#define HAUL_MEMORY_PAGES_H

#include <stdbool.h>
#include <stddef.h>

/* A block of this size or more is aligned to it and asks for huge pages: one x86-64 or arm64 (4 KiB
 * granule) PMD entry. */
#define HUGE_PAGE ((size_t)2 << 20)

size_t page_size(void);

/* `length` rounded up to whole pages; false when that, or a little more, does not fit a ptrdiff_t.
 */
bool page_round(size_t length, size_t *rounded);

/* Address space without access or memory behind it, aligned to HUGE_PAGE from that size on; NULL
 * with errno. Given back with munmap. */
void *pages_reserve(size_t length);

/* Is a block of this length aligned as it should be? */
bool pages_aligned(const void *address, size_t length);

/* Has pages come from this NUMA node as long as it has some, and moves there what lies elsewhere
 * already where `move` is set. -1 with errno. */
int pages_prefer(void *address, size_t length, unsigned node, bool move);

/* Asks for huge pages where the block is large enough. Without them everything works, slower. */
void pages_want_huge(void *address, size_t length);

#endif
