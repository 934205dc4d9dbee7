/* SPDX-License-Identifier: MIT */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "node.h"

static struct {
  struct haul_region *region;
  uint64_t number;
} own[KINDS];

static const char *name_of(unsigned kind) {
  static const char *const names[KINDS] = {"host", "private", "wrapped", "sim"};
  return names[kind];
}

static bool is_reached(unsigned kind) {
  return haul_region_place(own[kind].region).kind == HAUL_HOST;
}

/* `length` bytes to or from this process's memory. Only where nothing is refused to it. */
static void copy(unsigned kind, uint64_t offset, void *bytes, size_t length, bool out) {
  struct haul_region *staging;
  struct haul_place host = {HAUL_HOST, 0};
  char *reached = haul_region_address(own[kind].region);
  if (is_reached(kind)) {
    memcpy(out ? reached + offset : bytes, out ? bytes : reached + offset, length);
    return;
  }
  if (haul_region_alloc(me.node, host, length, HAUL_REGION_PRIVATE, &staging) != 0)
    violation("no memory to look at the own regions with");
  if (out)
    memcpy(haul_region_address(staging), bytes, length);
  int code = out ? haul_region_copy(own[kind].region, offset, staging, 0, length, HAUL_FOREVER)
                 : haul_region_copy(staging, 0, own[kind].region, offset, length, HAUL_FOREVER);
  if (code)
    violation("haul_region_copy: %s", haul_error_last()->text);
  if (!out)
    memcpy(bytes, haul_region_address(staging), length);
  haul_region_release(staging);
}

static void make(unsigned kind) {
  uint64_t none = 0;
  own[kind].region = region_make(me.node, (enum memory_kind)kind, region_size());
  own[kind].number = atomic_fetch_add(&me.board->regions, 1) + 1;
  copy(kind, 0, &own[kind].number, sizeof own[kind].number, true);
  for (unsigned i = 0; i < NODES; i++)
    copy(kind, lane_offset(i), &none, sizeof none, true);
  if (haul_region_publish(own[kind].region, name_of(kind), HAUL_READ | HAUL_WRITE) != 0)
    violation("haul_region_publish: %s", haul_error_last()->text);
}

void own_open(void) {
  for (unsigned i = 0; i < KINDS; i++)
    make(i);
}

void own_replace(void) {
  unsigned kind = (unsigned)chance(KINDS);
  harm_hold();
  region_drop(own[kind].region, (enum memory_kind)kind);
  make(kind);
  harm_let();
  atomic_fetch_add(&me.seat->tally.replaced, 1);
}

static void verify_block(const char *bytes, unsigned writer, unsigned kind, unsigned block) {
  const struct lane *lane = &me.board->lanes[writer][me.number][kind];
  size_t at;
  if (!atomic_load(&lane->blocks[block].certain))
    return;
  uint64_t generation = atomic_load(&lane->blocks[block].generation);
  if (!pattern_holds(bytes + block_offset(writer, block), block_size(block),
                     block_seed(own[kind].number, writer, block, generation), &at))
    violation("what node %u wrote to %s is not there: block %u, generation %llu, byte %zu of %zu",
              writer, name_of(kind), block, (unsigned long long)generation, at, block_size(block));
  atomic_fetch_add(&me.seat->tally.verified, 1);
}

static void verify_number(const char *bytes, unsigned writer, unsigned kind) {
  const struct lane *lane = &me.board->lanes[writer][me.number][kind];
  uint64_t number, begun = atomic_load(&lane->adds_begun), done = atomic_load(&lane->adds_done);
  memcpy(&number, bytes + lane_offset(writer), sizeof number);
  if (number < done || number > begun)
    violation("node %u added to %s %llu to %llu times, and there is %llu", writer, name_of(kind),
              (unsigned long long)done, (unsigned long long)begun, (unsigned long long)number);
}

void own_verify(void) {
  char *bytes = malloc(region_size());
  if (!bytes)
    abort();
  for (unsigned kind = 0; kind < KINDS; kind++) {
    copy(kind, 0, bytes, region_size(), false);
    for (unsigned writer = 0; writer < NODES; writer++) {
      if (atomic_load(&me.board->lanes[writer][me.number][kind].region) != own[kind].number)
        continue;
      verify_number(bytes, writer, kind);
      for (unsigned block = 0; block < BLOCKS; block++)
        verify_block(bytes, writer, kind, block);
    }
  }
  free(bytes);
}

void own_close(void) {
  for (unsigned i = 0; i < KINDS; i++)
    region_drop(own[i].region, (enum memory_kind)i);
}
