/* SPDX-License-Identifier: MIT
 * The semaphores that clients post when they have submitted something, one a priority, and the
 * threads that wait for it. */
#ifndef HAUL_STORAGE_DOORBELL_H
#define HAUL_STORAGE_DOORBELL_H

#include <haul/usrbio.h>

#include "storage/worker.h"

struct doorbell;

/* Makes /dev/shm/sem.haul-…, which this user may post, or with `others` every user, and a thread.
 */
int doorbell_open(struct workers *workers, enum ring_priority priority, bool others,
                  struct doorbell **doorbell);
void doorbell_close(struct doorbell *doorbell);
/* Takes away what killed daemons of this user's left. */
void doorbell_sweep(void);
const char *doorbell_path(const struct doorbell *doorbell);

#endif
