/* SPDX-License-Identifier: MIT */
#include "support/load.h"

#include <stdlib.h>
#include <string.h>

#define GAP_MOST 64 /* unused bytes before each range */

static uint64_t mix(uint64_t value) {
  value = (value ^ value >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
  value = (value ^ value >> 27) * UINT64_C(0x94d049bb133111eb);
  return value ^ value >> 31;
}

static uint64_t draw(uint64_t *state) {
  return mix(*state += UINT64_C(0x9e3779b97f4a7c15));
}

/* Log-uniform: as many from 64 to 128 bytes as from 512 KiB to 1 MiB. */
static uint64_t draw_length(uint64_t *state, uint64_t most) {
  uint64_t octaves = (uint64_t)__builtin_ctzll(most / LOAD_LEAST);
  uint64_t least = (uint64_t)LOAD_LEAST << draw(state) % octaves;
  return least + draw(state) % (least + 1);
}

static uint64_t take(uint64_t *length, uint64_t gap, uint64_t bytes) {
  uint64_t at = *length + gap;
  *length = at + bytes;
  return at;
}

static void make_moves(struct load_plan *plan, uint64_t most) {
  uint64_t state = plan->seed;
  for (unsigned i = 0; i < plan->count; i++) {
    struct load_move *move = &plan->moves[i];
    move->peer = i < plan->peers ? i : (unsigned)(draw(&state) % plan->peers);
    move->region = i % plan->regions;
    move->to_node = draw(&state) % 2;
    move->length = draw_length(&state, most);
    move->here = take(&plan->region_lengths[move->region], draw(&state) % GAP_MOST, move->length);
    move->there = take(&plan->memory_lengths[move->peer], draw(&state) % GAP_MOST, move->length);
  }
}

bool load_plan_make(struct load_plan *plan, unsigned peers, unsigned regions, unsigned count,
                    uint64_t most, uint64_t seed) {
  *plan = (struct load_plan){.peers = peers, .regions = regions, .count = count, .seed = seed};
  plan->moves = calloc(count, sizeof *plan->moves);
  plan->region_lengths = calloc(regions, sizeof(uint64_t));
  plan->memory_lengths = calloc(peers, sizeof(uint64_t));
  if (!plan->moves || !plan->region_lengths || !plan->memory_lengths) {
    load_plan_free(plan);
    return false;
  }
  make_moves(plan, most);
  return true;
}

void load_plan_free(struct load_plan *plan) {
  free(plan->moves);
  free(plan->region_lengths);
  free(plan->memory_lengths);
  *plan = (struct load_plan){.count = 0};
}

uint64_t load_bytes(const struct load_plan *plan, bool to_node) {
  uint64_t sum = 0;
  for (unsigned i = 0; i < plan->count; i++)
    sum += plan->moves[i].to_node == to_node ? plan->moves[i].length : 0;
  return sum;
}

/* An endless unique byte sequence. */
struct text {
  uint64_t key;
};

static struct text text_of(const struct load_plan *plan, bool region, unsigned index,
                           unsigned round) {
  return (struct text){mix(mix(plan->seed ^ (uint64_t)region << 63 ^ round) + index)};
}

/* `length` bytes of the sequence from `at` on. */
static void put_text(struct text text, uint64_t at, unsigned char *bytes, uint64_t length) {
  while (length > 0) {
    uint64_t word = mix(text.key + at / 8), skip = at % 8;
    uint64_t part = 8 - skip < length ? 8 - skip : length;
    if (part == 8)
      memcpy(bytes, &word, 8);
    else
      memcpy(bytes, (const unsigned char *)&word + skip, part);
    at += part;
    bytes += part;
    length -= part;
  }
}

void load_fill_region(const struct load_plan *plan, unsigned region, unsigned round, void *bytes) {
  put_text(text_of(plan, true, region, round), 0, bytes, plan->region_lengths[region]);
}

void load_fill_memory(const struct load_plan *plan, unsigned peer, unsigned round, void *bytes) {
  put_text(text_of(plan, false, peer, round), 0, bytes, plan->memory_lengths[peer]);
}

/* A check of memory from start to end. */
struct look {
  const unsigned char *bytes;
  uint64_t at; /* checked up to here */
};

static bool is_text(struct look *look, struct text text, uint64_t from, uint64_t length) {
  unsigned char expected[4096];
  while (length > 0) {
    uint64_t part = length < sizeof expected ? length : sizeof expected;
    put_text(text, from, expected, part);
    if (memcmp(expected, look->bytes + look->at, part) != 0) {
      for (uint64_t i = 0; expected[i] == look->bytes[look->at]; i++)
        look->at++;
      return false;
    }
    look->at += part;
    from += part;
    length -= part;
  }
  return true;
}

/* Unmodified up to this place. */
static bool is_own(struct look *look, struct text own, uint64_t up_to) {
  return is_text(look, own, look->at, up_to - look->at);
}

/* Ranges are in the order of the moves, in regions and memories. */
bool load_check_region(const struct load_plan *plan, unsigned region, unsigned round,
                       const void *bytes, uint64_t *at) {
  struct text own = text_of(plan, true, region, round);
  struct look look = {bytes, 0};
  bool right = true;
  for (unsigned i = region; right && i < plan->count; i += plan->regions) {
    const struct load_move *move = &plan->moves[i];
    if (move->to_node)
      right = is_own(&look, own, move->here) &&
              is_text(&look, text_of(plan, false, move->peer, round), move->there, move->length);
  }
  right = right && is_own(&look, own, plan->region_lengths[region]);
  *at = look.at;
  return right;
}

bool load_check_memory(const struct load_plan *plan, unsigned peer, unsigned round,
                       const void *bytes, uint64_t *at) {
  struct text own = text_of(plan, false, peer, round);
  struct look look = {bytes, 0};
  bool right = true;
  for (unsigned i = 0; right && i < plan->count; i++) {
    const struct load_move *move = &plan->moves[i];
    if (move->peer == peer && !move->to_node)
      right = is_own(&look, own, move->there) &&
              is_text(&look, text_of(plan, true, move->region, round), move->here, move->length);
  }
  right = right && is_own(&look, own, plan->memory_lengths[peer]);
  *at = look.at;
  return right;
}
