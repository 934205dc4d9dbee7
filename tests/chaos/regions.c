/* SPDX-License-Identifier: MIT */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "node.h"

static struct {
  struct haul_region *region;
  uint64_t id;
} regions[KINDS];

const char *const region_names[KINDS] = {"host", "private", "wrapped", "sim"};

static bool is_host(unsigned kind) {
  return haul_region_place(regions[kind].region).kind == HAUL_HOST;
}

/* `out`: from `bytes` to the region. Not while faults are injected. */
static void copy(unsigned kind, uint64_t offset, void *bytes, size_t length, bool out) {
  struct haul_region *staging;
  struct haul_place host = {HAUL_HOST, 0};
  char *address = haul_region_address(regions[kind].region);
  if (is_host(kind)) {
    memcpy(out ? address + offset : bytes, out ? bytes : address + offset, length);
    return;
  }
  if (haul_region_alloc(self.node, host, length, HAUL_REGION_PRIVATE, &staging) != 0)
    violation("no memory to check the own regions");
  if (out)
    memcpy(haul_region_address(staging), bytes, length);
  int code = out ? haul_region_copy(regions[kind].region, offset, staging, 0, length, HAUL_FOREVER)
                 : haul_region_copy(staging, 0, regions[kind].region, offset, length, HAUL_FOREVER);
  if (code)
    violation("haul_region_copy: %s", haul_error_last()->text);
  if (!out)
    memcpy(bytes, haul_region_address(staging), length);
  haul_region_release(staging);
}

static void make(unsigned kind) {
  uint64_t none = 0;
  regions[kind].region = region_make(self.node, (enum memory_kind)kind, region_size());
  regions[kind].id = atomic_fetch_add(&self.shared->region_ids, 1) + 1;
  copy(kind, 0, &regions[kind].id, sizeof regions[kind].id, true);
  for (unsigned i = 0; i < NODES; i++)
    copy(kind, lane_offset(i), &none, sizeof none, true);
  if (haul_region_publish(regions[kind].region, region_names[kind], HAUL_READ | HAUL_WRITE) != 0)
    violation("haul_region_publish: %s", haul_error_last()->text);
}

void regions_open(void) {
  for (unsigned i = 0; i < KINDS; i++)
    make(i);
}

void regions_replace(void) {
  unsigned kind = (unsigned)chance(KINDS);
  faults_pause();
  region_drop(regions[kind].region, (enum memory_kind)kind);
  make(kind);
  faults_resume();
  atomic_fetch_add(&self.process->counts.replaced, 1);
}

static void verify_block(const char *bytes, unsigned writer, unsigned kind, unsigned block) {
  const struct lane *lane = &self.shared->lanes[writer][self.number][kind];
  size_t at;
  if (!atomic_load(&lane->blocks[block].known))
    return;
  uint64_t generation = atomic_load(&lane->blocks[block].generation);
  if (!pattern_holds(bytes + block_offset(writer, block), block_size(block),
                     block_seed(regions[kind].id, writer, block, generation), &at))
    violation("a write of node %u to %s is lost: block %u, generation %llu, byte %zu of %zu",
              writer, region_names[kind], block, (unsigned long long)generation, at,
              block_size(block));
  atomic_fetch_add(&self.process->counts.verified, 1);
}

static void verify_counter(const char *bytes, unsigned writer, unsigned kind) {
  const struct lane *lane = &self.shared->lanes[writer][self.number][kind];
  uint64_t number, begun = atomic_load(&lane->adds_begun), done = atomic_load(&lane->adds_done);
  memcpy(&number, bytes + lane_offset(writer), sizeof number);
  if (number < done || number > begun)
    violation("node %u added to %s %llu to %llu times, but the counter is %llu", writer,
              region_names[kind], (unsigned long long)done, (unsigned long long)begun,
              (unsigned long long)number);
}

void regions_verify(void) {
  char *bytes = malloc(region_size());
  if (!bytes)
    abort();
  for (unsigned kind = 0; kind < KINDS; kind++) {
    copy(kind, 0, bytes, region_size(), false);
    for (unsigned writer = 0; writer < NODES; writer++) {
      if (atomic_load(&self.shared->lanes[writer][self.number][kind].region) != regions[kind].id)
        continue;
      verify_counter(bytes, writer, kind);
      for (unsigned block = 0; block < BLOCKS; block++)
        verify_block(bytes, writer, kind, block);
    }
  }
  free(bytes);
}

void regions_close(void) {
  for (unsigned i = 0; i < KINDS; i++)
    region_drop(regions[i].region, (enum memory_kind)i);
}
