/* SPDX-License-Identifier: MIT */
#include "cache/pull.h"

#include <xxhash.h>

#include "common/fail.h"

#define BOUNCE_BYTES (UINT64_C(4) << 20)

static void forget(struct source *source) {
  haul_remote_release(source->remote);
  *source = (struct source){0, NULL};
}

/* The client's region; blocks for the client at first use. */
static int find_source(struct puller *puller, uint64_t number, haul_deadline until,
                       struct source **found) {
  char name[SOURCE_NAME_MAX];
  for (int i = 0; i < REMOTES; i++)
    if (number != 0 && puller->sources[i].number == number) {
      *found = &puller->sources[i];
      return 0;
    }
  struct source *source = &puller->sources[puller->next_source++ % REMOTES];
  forget(source);
  source_name(number, name);
  int code = haul_peer_lookup(puller->peer, name, until, &source->remote);
  if (code)
    return code;
  source->number = number;
  *found = source;
  return 0;
}

static int read_pieces(struct puller *puller, uint64_t number, haul_region *to,
                       const struct haul_piece *pieces, uint32_t count, haul_deadline until) {
  struct haul_transfer_options options = HAUL_TRANSFER_OPTIONS_INIT;
  struct source *source;
  int code = find_source(puller, number, until, &source);
  if (code)
    return code;
  options.deadline = until;
  code = haul_read(to, source->remote, pieces, count, &options, NULL);
  if (code)
    forget(source);
  return code;
}

/* ---- To host memory ---- */

static int pull_to_host(struct puller *puller, struct tier *tier, uint64_t source,
                        const struct pull *pulls, uint32_t count, haul_deadline until) {
  struct haul_piece pieces[REQUEST_KEYS_MAX] = {{0}};
  for (uint32_t i = 0; i < count; i++)
    pieces[i] = (struct haul_piece){pulls[i].block->offset, pulls[i].from, pulls[i].block->length};
  int code = read_pieces(puller, source, tier->region, pieces, count, until);
  for (uint32_t i = 0; i < count && code == 0; i++)
    pulls[i].block->checksum =
        XXH3_64bits(tier->index.base + pulls[i].block->offset, pulls[i].block->length);
  return code;
}

/* ---- To a device: by parts through a bounce buffer, where the processor sums them ---- */

/* The bytes that come next: of pulls[number] from `at` on. */
struct cursor {
  uint32_t number;
  uint64_t at;
};

/* A part of a block that is in the bounce buffer. */
struct part {
  struct block *block;
  uint64_t at;
};

/* Fills the bounce buffer; returns the number of parts. */
static uint32_t plan_parts(const struct pull *pulls, uint32_t count, struct cursor *cursor,
                           struct haul_piece *pieces, struct part *parts) {
  uint64_t used = 0;
  uint32_t planned = 0;
  while (cursor->number < count && used < BOUNCE_BYTES) {
    const struct pull *pull = &pulls[cursor->number];
    uint64_t rest = pull->block->length - cursor->at, room = BOUNCE_BYTES - used;
    uint64_t length = rest < room ? rest : room;
    pieces[planned] = (struct haul_piece){used, pull->from + cursor->at, length};
    parts[planned++] = (struct part){pull->block, cursor->at};
    used += length;
    cursor->at += length;
    if (length == rest)
      *cursor = (struct cursor){cursor->number + 1, 0};
  }
  return planned;
}

/* Sums a part, which follows the one before, and copies it to its place. */
static int store_part(const struct puller *puller, const struct tier *tier, XXH3_state_t *sum,
                      const struct part *part, const struct haul_piece *piece,
                      haul_deadline until) {
  const uint8_t *bytes = haul_region_address(puller->bounce);
  if (part->at == 0)
    XXH3_64bits_reset(sum);
  XXH3_64bits_update(sum, bytes + piece->local, piece->length);
  if (part->at + piece->length == part->block->length)
    part->block->checksum = XXH3_64bits_digest(sum);
  return haul_region_copy(tier->blocks, part->block->offset + part->at, puller->bounce,
                          piece->local, piece->length, until);
}

static int provide_bounce(struct puller *puller) {
  const struct haul_place host = {HAUL_HOST, 0};
  if (puller->bounce)
    return 0;
  return haul_region_alloc(puller->node, host, BOUNCE_BYTES,
                           HAUL_REGION_PRIVATE | HAUL_REGION_PINNED, &puller->bounce);
}

static int pull_to_device(struct puller *puller, struct tier *tier, uint64_t source,
                          const struct pull *pulls, uint32_t count, haul_deadline until) {
  struct haul_piece pieces[REQUEST_KEYS_MAX];
  struct part parts[REQUEST_KEYS_MAX];
  XXH3_state_t *sum = XXH3_createState();
  int code = sum ? provide_bounce(puller) : HAUL_ENOMEM;
  for (struct cursor cursor = {0, 0}; cursor.number < count && code == 0;) {
    uint32_t planned = plan_parts(pulls, count, &cursor, pieces, parts);
    code = read_pieces(puller, source, puller->bounce, pieces, planned, until);
    for (uint32_t i = 0; i < planned && code == 0; i++)
      code = store_part(puller, tier, sum, &parts[i], &pieces[i], until);
  }
  XXH3_freeState(sum);
  return code;
}

int pull_blocks(struct puller *puller, struct tier *tier, uint64_t source, const struct pull *pulls,
                uint32_t count, haul_deadline until) {
  return (tier->blocks ? pull_to_device : pull_to_host)(puller, tier, source, pulls, count, until);
}

void puller_release(struct puller *puller) {
  for (int i = 0; i < REMOTES; i++)
    forget(&puller->sources[i]);
  haul_region_release(puller->bounce);
}
