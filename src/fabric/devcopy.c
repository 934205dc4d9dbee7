/* SPDX-License-Identifier: MIT */
#include "fabric/devcopy.h"

#include "core/shrinkable.h"

/* Offers the segments that follow, as far as they fit the group. */
static void add_more(struct devcopy *copy) {
  uint64_t bytes = copy->copy.length;
  copy->copy.more = copy->more;
  while (copy->copy.more_count < shrinkable(DEVCOPY_GROUP - 1, 2)) {
    uint32_t next = copy->index + 1 + copy->copy.more_count;
    if (next == copy->count)
      return;
    struct copy_segment segment = copy->segment(copy, next, copy->copied + bytes);
    bytes += segment.length;
    if (bytes > COPY_GROUP_BYTES)
      return;
    copy->more[copy->copy.more_count++] = segment;
  }
}

static int start(struct devcopy *copy) {
  struct copy_segment segment = copy->segment(copy, copy->index, copy->copied);
  copy->copy = (struct copy){.to = copy->to,
                             .from = copy->from,
                             .to_offset = segment.to_offset,
                             .from_offset = segment.from_offset,
                             .length = segment.length,
                             .through = {copy->bounce[0], copy->bounce[1]},
                             .wake = loop_wake_callback,
                             .user = copy->loop,
                             .wakes = true};
  if (copy->engine->gathers)
    add_more(copy);
  int code = copy->engine->copy_start(&copy->copy);
  copy->in_flight = code == 0;
  return code == 1 ? DEVCOPY_NEEDS_BOUNCE : code;
}

void devcopy_cancel(struct devcopy *copy) {
  if (copy->in_flight)
    copy->engine->copy_cancel(&copy->copy);
  copy->in_flight = false;
}

/* Counts what has been copied. */
static void advance(struct devcopy *copy) {
  copy->copied += copy->copy.length;
  copy->index++;
  for (uint32_t i = 0; copy->copy.gathers && i < copy->copy.more_count; i++) {
    copy->copied += copy->more[i].length;
    copy->index++;
  }
}

int devcopy_poll(struct devcopy *copy) {
  while (copy->index < copy->count) {
    int code = copy->in_flight ? 0 : start(copy);
    if (code)
      return code;
    int status = copy->engine->copy_poll(&copy->copy);
    if (status > 0)
      return 1;
    devcopy_cancel(copy); /* ended, but its `wake` may still be on its way to the loop */
    if (status < 0)
      return status;
    advance(copy);
  }
  return 0;
}
