/* SPDX-License-Identifier: MIT
 * Messages whose payload is in a region, at their sender and at their receiver. The tag is the seed
 * of the payload. */
#include "operations.h"

static uint8_t pattern(uint64_t tag, size_t at) {
  return (uint8_t)((tag >> at % 7 * 8) + at);
}

/* From the part of the local region that reads use as well. */
void do_offer(struct link *link) {
  uint64_t tag = sim_random();
  size_t length = 1 + sim_below(plan.lane), offset = plan.lane + sim_below(plan.lane - length + 1);
  for (size_t i = 0; i < length; i++)
    link->bytes[offset + i] = pattern(tag, i);
  int64_t until = draw_deadline(100 * US, 3 * S);
  struct limit limit = limit_begin("haul_message_offer", until + plan.liveness);
  link->from->offering++;
  int code = haul_message_offer(link->peer, tag, link->local, offset, length, until);
  link->from->offering--;
  limit_end(&limit);
  check_code("haul_message_offer", code);
  count(link, OFFER, code);
}

static void read_offer(const struct haul_message *message, haul_region *to) {
  struct haul_transfer_options options = HAUL_TRANSFER_OPTIONS_INIT;
  options.deadline = draw_deadline(100 * US, 3 * S);
  options.flags = sim_below(100) < plan.checksum_share ? HAUL_CHECKSUM : 0;
  struct limit limit = limit_begin("haul_message_read", options.deadline);
  int code = haul_message_read(message, to, 0, &options, NULL);
  limit_end(&limit);
  if (code != HAUL_ECHECKSUM) /* the sender stopped waiting, and changed the bytes */
    check_code("haul_message_read", code);
  const uint8_t *bytes = region_bytes(to);
  for (size_t i = 0; code == 0 && i < message->length; i++)
    if (bytes[i] != pattern(message->tag, i))
      sim_fail("offers", "byte %zu of %zu of an offer is wrong", i, message->length);
}

void on_offer(struct program *program, const struct haul_message *message) {
  struct haul_place place = {plan.device_local ? HAUL_SIM : HAUL_HOST, 0};
  haul_region *region;
  if ((!is_calm() && sim_chance(50000)) ||
      haul_region_alloc(program->node, place, message->length, 0, &region) != 0)
    return; /* the release refuses it */
  read_offer(message, region);
  haul_region_release(region);
}
