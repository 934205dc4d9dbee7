/* SPDX-License-Identifier: MIT
 * Closing descriptors that another process sent. close() may keep its caller for as long as the
 * sender likes: a socket lingers over bytes that nobody reads, a file of a file system in user
 * space asks its owner. So a few threads of the process's do it, which nobody waits for. */
#ifndef HAUL_CORE_DEFERRED_CLOSE_H
#define HAUL_CORE_DEFERRED_CLOSE_H

#include <stdbool.h>

/* Takes the descriptor and returns at once; without memory to note it down it stays open for good.
 * Any thread; not in a forked child. */
void close_deferred(int descriptor);
/* The same, but what cannot keep anybody, the memory of a memfd, is closed here and now: true. */
bool close_foreign(int descriptor);
/* So many wait to be closed that nothing foreign should be taken. */
bool close_queue_is_full(void);

#endif
