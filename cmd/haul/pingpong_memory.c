/* SPDX-License-Identifier: MIT */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "command.h"
#include "common/fail.h"
#include "common/session.h"
#include "common/text.h"
#include "pingpong.h"

#define COPY_LIMIT_NS INT64_C(30000000000)
#define WIPE_BYTE     0xee
#define SHOWN         8 /* elements printed */

static const struct haul_place host = {HAUL_HOST, 0};

static int allocate(struct side *side, struct haul_place place) {
  if (haul_region_alloc(side->node, place, (size_t)side->size, 0, &side->memory) == 0)
    return EXIT_DONE;
  if (place.kind == HAUL_HOST)
    return fail_library("cannot allocate %s", size_text(side->size).text);
  fail_library("cannot allocate at %s, so host memory is used", place_text(place).text);
  side->fell_back = true;
  return allocate(side, host);
}

/* The device of the memory; zeroed: the list does not have it. */
static struct haul_device find_device(const struct side *side, struct haul_place place) {
  struct haul_device list[64];
  size_t count = 64;
  if (haul_device_list(side->node, list, &count) == 0)
    for (size_t i = 0; i < count && i < 64; i++)
      if (list[i].place.kind == place.kind && list[i].place.device == place.device)
        return list[i];
  return (struct haul_device){0};
}

static void note_export(struct side *side, const struct haul_device *device) {
  struct haul_ticket ticket;
  int descriptor = -1;
  if (haul_region_export(side->memory, HAUL_READ, NULL, &ticket, &descriptor)) {
    snprintf(side->exported, sizeof(side->exported), "not exported: %s",
             haul_error_text(haul_error_last()->code));
    return;
  }
  snprintf(side->exported, sizeof(side->exported), "descriptor %d, %s", descriptor,
           *device->exports ? device->exports : "kind unknown");
  close(descriptor);
}

static void describe(struct side *side) {
  struct haul_place place = haul_region_place(side->memory);
  struct haul_device device = find_device(side, place);
  note_export(side, &device);
  narrate(side, "memory: %s at %s (%s), address %p, %s", size_text(side->size).text,
          place_text(place).text, *device.name ? device.name : "unknown",
          haul_region_address(side->memory), side->exported);
  if (place.kind != HAUL_HOST)
    narrate(side,
            "the CPU cannot access this memory, as is normal for a device: copies from and to host "
            "memory fill and verify it");
}

int memory_make(struct side *side, struct haul_place place) {
  int status = allocate(side, place);
  if (status)
    return status;
  if (haul_region_alloc(side->node, host, (size_t)side->size, HAUL_REGION_PRIVATE, &side->scratch))
    return fail_library("cannot allocate %s", size_text(side->size).text);
  describe(side);
  snprintf(side->name, sizeof(side->name), "pingpong-%s-%ld",
           side->role == ROLE_SERVER ? "server" : "client", (long)getpid());
  if (haul_region_publish(side->memory, side->name, HAUL_READ | HAUL_WRITE))
    return fail_library("cannot publish the memory");
  return EXIT_DONE;
}

void memory_release(struct side *side) {
  haul_region_release(side->memory);
  haul_region_release(side->scratch);
}

static int copy(struct side *side, haul_region *to, haul_region *from) {
  if (haul_region_copy(to, 0, from, 0, (size_t)side->size, haul_deadline_in(COPY_LIMIT_NS)))
    return fail_library("cannot copy between the memory and the host");
  return EXIT_DONE;
}

int scratch_to_memory(struct side *side) {
  return copy(side, side->memory, side->scratch);
}

int memory_to_scratch(struct side *side) {
  /* Overwritten first, so that bytes missed by the copy do not pass. */
  memset(haul_region_address(side->scratch), WIPE_BYTE, (size_t)side->size);
  return copy(side, side->scratch, side->memory);
}

int memory_fill(struct side *side, uint32_t base) {
  uint32_t *elements = haul_region_address(side->scratch);
  for (uint64_t k = 0; k < side->size / sizeof(*elements); k++)
    elements[k] = base + (uint32_t)k;
  return scratch_to_memory(side);
}

int memory_clear(struct side *side) {
  memset(haul_region_address(side->scratch), WIPE_BYTE, (size_t)side->size);
  return scratch_to_memory(side);
}

static void narrate_elements(const struct side *side, const uint32_t *elements) {
  char line[160] = "";
  uint64_t count = side->size / sizeof(*elements);
  for (uint64_t k = 0; k < count && k < SHOWN; k++) {
    size_t used = strlen(line);
    snprintf(line + used, sizeof(line) - used, " %u", elements[k]);
  }
  narrate(side, "  found%s%s", line, count > SHOWN ? " ..." : "");
}

bool scratch_check(const struct side *side, uint32_t base) {
  const uint32_t *elements = haul_region_address(side->scratch);
  narrate_elements(side, elements);
  for (uint64_t k = 0; k < side->size / sizeof(*elements); k++) {
    if (elements[k] == base + (uint32_t)k)
      continue;
    fail_because(NULL, "element %llu is %u, expected %u", (unsigned long long)k, elements[k],
                 base + (uint32_t)k);
    return false;
  }
  return true;
}

int memory_check(struct side *side, uint32_t base, bool *right) {
  int status = memory_to_scratch(side);
  *right = status == EXIT_DONE && scratch_check(side, base);
  return status;
}
