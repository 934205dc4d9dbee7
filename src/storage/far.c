/* SPDX-License-Identifier: MIT */
#include "storage/far.h"

#include <stdlib.h>

struct far *far_make(struct source *source, struct source_file *file) {
  struct far *far = malloc(sizeof *far);
  if (!far)
    return NULL;
  far->source = source;
  far->file = file;
  atomic_init(&far->holds, 1);
  return far;
}

void far_put(struct far *far) {
  if (!far || atomic_fetch_sub_explicit(&far->holds, 1, memory_order_acq_rel) != 1)
    return;
  far->source->ops->release(far->source, far->file);
  free(far);
}

bool far_put_unless_last(struct far *far) {
  unsigned holds = atomic_load_explicit(&far->holds, memory_order_relaxed);
  while (holds > 1)
    if (atomic_compare_exchange_weak_explicit(&far->holds, &holds, holds - 1, memory_order_acq_rel,
                                              memory_order_relaxed))
      return true;
  return false;
}
