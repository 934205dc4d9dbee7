/* SPDX-License-Identifier: MIT */
#include "fabric/devcopy.h"

#include "core/alloc.h"
#include "core/shrinkable.h"
#include "core/sys.h"

/* Offers the segments that follow, as far as they fit the group; none without memory for them. */
static void add_more(struct devcopy *copy) {
  uint32_t left = copy->count - copy->index - 1, most = shrinkable(DEVCOPY_GROUP, 2) - 1;
  uint64_t bytes = copy->copy.length;
  if (left == 0)
    return;
  copy->more = alloc_zero(left < most ? left : most, sizeof *copy->more);
  for (uint32_t i = 0; copy->more && i < left && i < most; i++) {
    copy->more[i] = copy->segment(copy, copy->index + 1 + i, copy->copied + bytes);
    bytes += copy->more[i].length;
    if (bytes > COPY_GROUP_BYTES)
      break;
    copy->copy.more_count++;
  }
  copy->copy.more = copy->more;
}

static void end_group(struct devcopy *copy) {
  copy->in_flight = false;
  alloc_free(copy->more);
  copy->more = NULL;
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
                             .user = copy->loop};
  copy->started = clock_now();
  if (copy->engine->gathers)
    add_more(copy);
  int code = copy->engine->copy_start(&copy->copy);
  if (code)
    end_group(copy);
  else
    copy->in_flight = true;
  return code == 1 ? DEVCOPY_NEEDS_BOUNCE : code;
}

void devcopy_cancel(struct devcopy *copy) {
  if (!copy->in_flight)
    return;
  copy->engine->copy_cancel(&copy->copy);
  end_group(copy);
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

static int poll_engine(struct devcopy *copy) {
  int status = copy->engine->copy_poll(&copy->copy);
  if (status <= 0 || copy->copy.wakes || !copy->engine->wakes ||
      clock_now() < clock_after(copy->started, DEVCOPY_POLLED))
    return status;
  copy->copy.wakes = true;
  return copy->engine->copy_poll(&copy->copy);
}

int devcopy_poll(struct devcopy *copy) {
  while (copy->index < copy->count) {
    int code = copy->in_flight ? 0 : start(copy);
    if (code)
      return code;
    int status = poll_engine(copy);
    if (status > 0)
      return 1;
    if (status == 0)
      advance(copy);
    devcopy_cancel(copy); /* ended, but its `wake` may still be on its way to the loop */
    if (status < 0)
      return status;
  }
  return 0;
}
