/* SPDX-License-Identifier: MIT */
#include "broadcast/state.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include <xxhash.h>

int64_t now_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * HAUL_SECOND + now.tv_nsec;
}

void pause_until(haul_broadcast *broadcast, haul_deadline until) {
  struct timespec moment = {0, 1000000};
  while (now_ns() < until)
    if (haul_node_progress(broadcast->node, until) < 0)
      nanosleep(&moment, NULL); /* the node is closed */
}

void member_name(const haul_broadcast *broadcast, uint64_t version, const char *what,
                 char text[MEMBER_NAME_ROOM]) {
  if (version)
    snprintf(text, MEMBER_NAME_ROOM, "%s.%" PRIu64 ".%s", broadcast->name, version, what);
  else
    snprintf(text, MEMBER_NAME_ROOM, "%s.%s", broadcast->name, what);
}

int show(haul_broadcast *broadcast, uint64_t version, const char *what, haul_region *region,
         bool *shown) {
  char name[MEMBER_NAME_ROOM];
  member_name(broadcast, version, what, name);
  int code = haul_region_publish(region, name, HAUL_READ);
  *shown = code == 0;
  if (code == HAUL_EEXIST)
    return fail(
        code, broadcast->join ? "haul_broadcast_receive" : "haul_broadcast_publish",
        broadcast->name,
        "withdraw the version there first (haul_broadcast_withdraw), or use the same region",
        "this node has version %" PRIu64 " in another region", version);
  return code;
}

static void hide(haul_broadcast *broadcast, uint64_t version, const char *what, haul_region *region,
                 bool *shown) {
  char name[MEMBER_NAME_ROOM];
  member_name(broadcast, version, what, name);
  if (*shown)
    haul_region_unpublish(region, name);
  *shown = false;
}

void held_end(haul_broadcast *broadcast, struct held *held) {
  hide(broadcast, held->version, "have", held->have, &held->have_shown);
  hide(broadcast, held->version, "data", held->data, &held->data_shown);
  hide(broadcast, held->version, "sums", held->sums, &held->sums_shown);
  haul_region_release(held->have);
  haul_region_release(held->sums);
  *held = (struct held){0};
}

struct held *held_next(haul_broadcast *broadcast, const haul_region *region) {
  struct held *held = broadcast->held;
  for (int i = 0; i < 2; i++)
    if (held[i].version && region && held[i].data == region)
      held_end(broadcast, &held[i]);
  if (held[1].version) {
    held_end(broadcast, &held[0]);
    held[0] = held[1];
    held[1] = (struct held){0};
  }
  return &held[1];
}

int haul_broadcast_withdraw(haul_broadcast *broadcast, uint64_t version) {
  if (!broadcast)
    return fail(HAUL_EINVAL, "haul_broadcast_withdraw", NULL, "pass a broadcast",
                "the broadcast is NULL");
  int code = owner_check(broadcast->owner, "haul_broadcast_withdraw");
  for (int i = 0; !code && i < 2; i++)
    if (!version || broadcast->held[i].version <= version)
      held_end(broadcast, &broadcast->held[i]);
  return code;
}

int range_sum(haul_broadcast *broadcast, haul_region *region, uint64_t offset, uint64_t length,
              haul_deadline until, uint64_t *sum) {
  struct haul_place place = haul_region_place(region), host = {HAUL_HOST, 0};
  haul_region *copy;
  if (place.kind == HAUL_HOST || place.kind == HAUL_DPDK) {
    *sum = XXH3_64bits((const char *)haul_region_address(region) + offset, length);
    return 0;
  }
  int code = haul_region_alloc(broadcast->node, host, length, HAUL_REGION_PRIVATE, &copy);
  if (code)
    return code;
  code = haul_region_copy(copy, 0, region, offset, length, until);
  if (!code)
    *sum = XXH3_64bits(haul_region_address(copy), length);
  haul_region_release(copy);
  return code;
}

void haul_broadcast_close(haul_broadcast *broadcast) {
  if (!broadcast)
    return;
  join_close(broadcast->join);
  for (int i = 0; i < 2; i++)
    held_end(broadcast, &broadcast->held[i]);
  haul_region_release(broadcast->head_region); /* withdraws its name */
  haul_region_release(broadcast->board_region);
  free(broadcast->seen);
  free(broadcast);
}
