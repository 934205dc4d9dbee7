/* SPDX-License-Identifier: MIT */
#include "fabric/devcopy.h"

static int start_segment(struct devcopy *copy) {
  struct devcopy_segment segment = copy->segment(copy, copy->index);
  copy->copy = (struct copy){.to = copy->to,
                             .from = copy->from,
                             .to_offset = segment.to_offset,
                             .from_offset = segment.from_offset,
                             .length = segment.length,
                             .through = {copy->bounce[0], copy->bounce[1]},
                             .wake = loop_wake_callback,
                             .user = copy->loop,
                             .wakes = true};
  int code = copy->engine->copy_start(&copy->copy);
  copy->in_flight = code == 0;
  return code == 1 ? DEVCOPY_NEEDS_BOUNCE : code;
}

void devcopy_cancel(struct devcopy *copy) {
  if (copy->in_flight)
    copy->engine->copy_cancel(&copy->copy);
  copy->in_flight = false;
}

int devcopy_poll(struct devcopy *copy) {
  while (copy->index < copy->count) {
    int code = copy->in_flight ? 0 : start_segment(copy);
    if (code)
      return code;
    int status = copy->engine->copy_poll(&copy->copy);
    if (status > 0)
      return 1;
    devcopy_cancel(copy); /* ended, but its `wake` may still be on its way to the loop */
    if (status < 0)
      return status;
    copy->copied += copy->copy.length;
    copy->index++;
  }
  return 0;
}
