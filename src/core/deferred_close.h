/* SPDX-License-Identifier: MIT
 * Closing descriptors that another process sent. The sender can make close() block: a socket may
 * linger over unread bytes, and a FUSE file asks its server. So a few detached threads close
 * them. */
#ifndef HAUL_CORE_DEFERRED_CLOSE_H
#define HAUL_CORE_DEFERRED_CLOSE_H

#include <stdbool.h>

/* Takes the descriptor and returns at once. It stays open if 256 others wait and there is no memory
 * for a longer queue. Any thread; not in a forked child. */
void close_deferred(int descriptor);
/* Tries again to close what a shortage of memory for a thread has left; else the next call of
 * close_deferred does. Any thread; not in a forked child. */
void close_waiting(void);
/* The same, but closes a memfd at once, as that cannot block. Returns whether it did. */
bool close_foreign(int descriptor);
/* The queue is so long that no foreign descriptor should be accepted. */
bool close_queue_is_full(void);

#endif
