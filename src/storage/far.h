/* SPDX-License-Identifier: MIT
 * An open file that has no descriptor here, as it lies on another host: its source reads and writes
 * it. It is released with the last hold, since rings may use it longer than it is open. */
#ifndef HAUL_STORAGE_FAR_H
#define HAUL_STORAGE_FAR_H

#include <stdatomic.h>
#include <stdbool.h>

#include "storage/source.h"

struct far {
  struct source *source;
  struct source_file *file;
  _Atomic unsigned holds;
};

/* With one hold; takes the file. NULL: no memory, and the file stays the caller's. */
struct far *far_make(struct source *source, struct source_file *file);
static inline void far_hold(struct far *far) {
  atomic_fetch_add_explicit(&far->holds, 1, memory_order_relaxed);
}
/* The last one blocks for as long as a release does. NULL: does nothing. */
void far_put(struct far *far);
/* Does not block. False: it is the last hold, which stays. */
bool far_put_unless_last(struct far *far);

#endif
