/* SPDX-License-Identifier: MIT
 * The source: publishes versions and the board on which receivers enter themselves. It only waits
 * for checksums: all else is done by the receivers. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include <xxhash.h>

#include "broadcast/state.h"

#define SILENT_NS     (5 * HAUL_SECOND)
#define CHUNK_AUTO    (UINT64_C(64) << 10)
#define CHUNK_AUTO_TO (UINT64_C(4) << 20)

struct seen {
  uint64_t owner;
  uint32_t beat;
  int64_t at;
};

static struct head *head_of(const haul_broadcast *broadcast) {
  return haul_region_address(broadcast->head_region);
}

static struct board *board_of(const haul_broadcast *broadcast) {
  return haul_region_address(broadcast->board_region);
}

/* ---- Open ---- */

static int check_options(const char *name, const struct haul_broadcast_options *options) {
  const char *call = "haul_broadcast_open";
  if (options->size != sizeof *options)
    return fail(HAUL_EINVAL, call, "options", "start from HAUL_BROADCAST_OPTIONS_INIT",
                "the options have an unknown size");
  if (options->members > MEMBERS_MOST)
    return fail(HAUL_EINVAL, call, "members", "pass at most 65536", "%u members are too many",
                options->members);
  uint64_t chunk = options->chunk;
  if (chunk && (chunk < CHUNK_LEAST || chunk > CHUNK_MOST || (chunk & (chunk - 1))))
    return fail(HAUL_EINVAL, call, "chunk", "pass a power of two from 4096 to 2^30, or 0",
                "a chunk of %" PRIu64 " bytes is not possible", chunk);
  if (!name || !name[0] || strlen(name) > NAME_MOST || !text_is_valid(name, NAME_MOST + 1))
    return fail(HAUL_EINVAL, call, "name", "pass 1 to 200 printable ASCII characters, no blanks",
                "the name is invalid");
  return 0;
}

/* Allocates a region with zeros and publishes it under a name of its own. */
static int board_region(haul_broadcast *broadcast, const char *what, uint64_t length,
                        unsigned rights, haul_region **region) {
  struct haul_place host = {HAUL_HOST, 0};
  char name[MEMBER_NAME_ROOM];
  int code = haul_region_alloc(broadcast->node, host, length, 0, region);
  if (code)
    return code;
  memset(haul_region_address(*region), 0, length);
  member_name(broadcast, 0, what, name);
  return haul_region_publish(*region, name, rights);
}

int haul_broadcast_open(haul_node *node, const char *name,
                        const struct haul_broadcast_options *options, haul_broadcast **broadcast) {
  struct haul_broadcast_options defaults = HAUL_BROADCAST_OPTIONS_INIT;
  if (!options)
    options = &defaults;
  if (!node || !broadcast)
    return fail(HAUL_EINVAL, "haul_broadcast_open", NULL, "pass a node and room for a handle",
                "an argument is NULL");
  int code = check_options(name, options);
  if (code)
    return code;
  haul_broadcast *made = calloc(1, sizeof *made);
  if (!made)
    return fail_memory("haul_broadcast_open");
  made->node = node;
  made->owner = getpid();
  made->options = *options;
  if (!made->options.members)
    made->options.members = 1024;
  snprintf(made->name, sizeof made->name, "%s", name);
  uint64_t capacity = made->options.members;
  made->seen = calloc(capacity, sizeof *made->seen);
  code = made->seen ? 0 : fail_memory("haul_broadcast_open");
  if (!code)
    code = board_region(made, "members", progress_offset(capacity, capacity),
                        HAUL_READ | HAUL_WRITE, &made->board_region);
  if (!code)
    code = board_region(made, "head", sizeof(struct head), HAUL_READ, &made->head_region);
  if (code) {
    haul_broadcast_close(made);
    return code;
  }
  /* Before any receiver can have learned of it: it reads the head first, which is valid last. */
  *board_of(made) = (struct board){.magic = BOARD_MAGIC, .capacity = capacity};
  struct head head = {.magic = HEAD_MAGIC, .chunk = CHUNK_LEAST, .host = host_number()};
  head.hash = head_hash(&head);
  *head_of(made) = head;
  *broadcast = made;
  return 0;
}

/* ---- Publish ---- */

/* Members can write the board, and may have damaged what each of them checks first. They read all
 * cards again, and enter again if theirs is gone. */
static void board_repair(haul_broadcast *broadcast) {
  struct board *board = board_of(broadcast);
  uint64_t capacity = broadcast->options.members;
  if (__atomic_load_n(&board->magic, __ATOMIC_ACQUIRE) == BOARD_MAGIC &&
      board->capacity == capacity)
    return;
  __atomic_store_n(&board->used, capacity, __ATOMIC_RELEASE);
  __atomic_store_n(&board->capacity, capacity, __ATOMIC_RELEASE);
  __atomic_fetch_add(&board->generation, 1, __ATOMIC_ACQ_REL);
  __atomic_store_n(&board->magic, BOARD_MAGIC, __ATOMIC_RELEASE);
}

static uint64_t chunk_for(const haul_broadcast *broadcast, uint64_t length) {
  uint64_t chunk = broadcast->options.chunk ? broadcast->options.chunk : CHUNK_AUTO;
  while (!broadcast->options.chunk && chunk < CHUNK_AUTO_TO && chunk * 1024 < length)
    chunk *= 2;
  while (chunk < CHUNK_MOST && chunk_count(length, chunk) > CHUNKS_MOST)
    chunk *= 2;
  return chunk;
}

static int sums_make(haul_broadcast *broadcast, haul_region *region, const struct head *head,
                     haul_deadline until, haul_region **sums) {
  struct haul_place host = {HAUL_HOST, 0};
  uint64_t count = chunk_count(head->length, head->chunk);
  int code = haul_region_alloc(broadcast->node, host, count * sizeof(uint64_t), 0, sums);
  uint64_t *sum = code ? NULL : haul_region_address(*sums);
  for (uint64_t i = 0; !code && i < count; i++) {
    if (now_ns() >= until)
      return fail(HAUL_ETIMEDOUT, "haul_broadcast_publish", broadcast->name, "allow more time",
                  "%" PRIu64 " of %" PRIu64 " chunks have a checksum", i, count);
    code = range_sum(broadcast, region, i * head->chunk, chunk_length(head->length, head->chunk, i),
                     until, &sum[i]);
  }
  return code;
}

static uint64_t next_version(uint64_t last) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  uint64_t version = (uint64_t)now.tv_sec * 1000000 + (uint64_t)now.tv_nsec / 1000;
  return version > last ? version : last + 1;
}

/* The hash is stored last, so that a torn copy has a wrong one. */
static void head_store(struct head *to, const struct head *from) {
  const uint64_t *words = (const uint64_t *)from;
  _Atomic uint64_t *at = (_Atomic uint64_t *)to;
  for (size_t i = 0; i < sizeof *to / sizeof *words; i++)
    __atomic_store_n((uint64_t *)at + i, words[i], __ATOMIC_RELEASE);
}

int haul_broadcast_publish(haul_broadcast *broadcast, haul_region *region, haul_deadline until,
                           uint64_t *version) {
  const char *call = "haul_broadcast_publish";
  if (!broadcast || broadcast->join)
    return fail(HAUL_EINVAL, call, NULL, "pass a broadcast of haul_broadcast_open",
                "this is no source");
  int code = owner_check(broadcast->owner, call);
  if (code)
    return code;
  for (int i = 0; region && i < 2; i++)
    if (broadcast->held[i].data == region)
      return fail(HAUL_EBUSY, call, broadcast->name,
                  "call haul_broadcast_withdraw before the bytes change",
                  "the region is that of an available version");
  board_repair(broadcast);
  struct head head = {.magic = HEAD_MAGIC, .host = head_of(broadcast)->host};
  head.length = region ? haul_region_length(region) : 0;
  head.chunk = chunk_for(broadcast, head.length);
  head.version = next_version(head_of(broadcast)->version);
  struct held *held = held_next(broadcast, region);
  if (region)
    code = sums_make(broadcast, region, &head, until, &held->sums);
  held->version = head.version;
  held->data = region;
  if (!code && region) {
    head.sums = XXH3_64bits(haul_region_address(held->sums), haul_region_length(held->sums));
    code = show(broadcast, head.version, "sums", held->sums, &held->sums_shown);
    if (!code)
      code = show(broadcast, head.version, "data", region, &held->data_shown);
  }
  if (code) {
    held_end(broadcast, held);
    return code;
  }
  head.hash = head_hash(&head);
  head_store(head_of(broadcast), &head);
  if (version)
    *version = head.version;
  return 0;
}

/* ---- Members ---- */

static void text_copy(char *to, const char *from, size_t room) {
  to[0] = 0;
  if (text_is_valid(from, room))
    memcpy(to, from, strlen(from) + 1);
}

static void member_fill(struct haul_broadcast_member *member, const struct card *card,
                        const struct progress *progress, struct seen *seen) {
  *member = (struct haul_broadcast_member){.state = HAUL_BROADCAST_WAITING};
  text_copy(member->name, card->name, sizeof member->name);
  text_copy(member->address, card->address, sizeof member->address);
  text_copy(member->feeder, progress->feeder, sizeof member->feeder);
  text_copy(member->path, progress->path, sizeof member->path);
  if (progress->state >= HAUL_BROADCAST_WAITING && progress->state <= HAUL_BROADCAST_LEFT)
    member->state = (int)progress->state;
  member->version = progress->version;
  member->bytes = progress->bytes;
  member->retries = progress->retries;
  member->duration_ns = progress->duration_ns;
  if (seen->owner != card->owner || seen->beat != progress->beat)
    *seen = (struct seen){card->owner, progress->beat, now_ns()};
  else if (now_ns() - seen->at > SILENT_NS && card->owner)
    member->state = HAUL_BROADCAST_SILENT;
}

int haul_broadcast_members(haul_broadcast *broadcast, struct haul_broadcast_member *members,
                           size_t *count) {
  const char *call = "haul_broadcast_members";
  if (!broadcast || broadcast->join || !count || (*count && !members))
    return fail(HAUL_EINVAL, call, NULL, "pass a broadcast of haul_broadcast_open, and room",
                "this is no source, or an argument is NULL");
  int code = owner_check(broadcast->owner, call);
  if (code)
    return code;
  board_repair(broadcast);
  /* A copy, as members change it meanwhile. */
  uint64_t capacity = broadcast->options.members;
  size_t length = haul_region_length(broadcast->board_region);
  char *copy = malloc(length);
  uint32_t *order = calloc(capacity, sizeof *order);
  if (!copy || !order) {
    free(copy);
    free(order);
    return fail_memory(call);
  }
  memcpy(copy, board_of(broadcast), length);
  struct card *cards = (struct card *)(copy + card_offset(0));
  struct progress *all = (struct progress *)(copy + progress_offset(capacity, 0));
  uint64_t there = chain_order(cards, capacity, head_of(broadcast)->host, order);
  for (uint64_t i = 0; i < capacity; i++) /* the owner left */
    if (!cards[i].owner && all[i].state == HAUL_BROADCAST_LEFT)
      order[there++] = (uint32_t)i;
  for (uint64_t i = 0; i < there && i < *count; i++)
    member_fill(&members[i], &cards[order[i]], &all[order[i]], &broadcast->seen[order[i]]);
  *count = there;
  free(order);
  free(copy);
  return 0;
}
