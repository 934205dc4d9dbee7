/* SPDX-License-Identifier: MIT */
#include "broadcast/layout.h"

#include <fcntl.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

uint64_t head_hash(const struct head *head) {
  return XXH3_64bits(head, offsetof(struct head, hash));
}

bool head_is_valid(const struct head *head) {
  if (head->magic != HEAD_MAGIC || head->hash != head_hash(head))
    return false;
  return head->chunk >= CHUNK_LEAST && head->chunk <= CHUNK_MOST &&
         (head->chunk & (head->chunk - 1)) == 0 &&
         chunk_count(head->length, head->chunk) <= CHUNKS_MOST;
}

uint64_t card_hash(const struct card *card) {
  struct card copy = *card;
  copy.hash = 0;
  return XXH3_64bits(&copy, sizeof copy);
}

bool text_is_valid(const char *text, uint64_t room) {
  for (uint64_t i = 0; i < room; i++) {
    if (!text[i])
      return true;
    if (text[i] <= ' ' || text[i] > '~')
      return false;
  }
  return false;
}

bool card_is_valid(const struct card *card) {
  return card->owner && card->hash == card_hash(card) &&
         text_is_valid(card->name, sizeof card->name) && card->name[0] &&
         text_is_valid(card->address, sizeof card->address);
}

uint64_t host_number(void) {
  char boot[40] = "";
  struct stat network = {0};
  int file = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
  if (file >= 0) {
    ssize_t got = read(file, boot, sizeof boot);
    if (got < 0)
      boot[0] = 0;
    close(file);
  }
  if (stat("/proc/self/ns/net", &network))
    network.st_ino = 0;
  return XXH3_64bits_withSeed(boot, sizeof boot, network.st_ino);
}

struct rank {
  uint64_t host, first; /* place of the host's first member */
  uint32_t place;
};

static int compare(const void *left, const void *right) {
  const struct rank *a = left, *b = right;
  if (a->first != b->first)
    return a->first < b->first ? -1 : 1;
  return a->place < b->place ? -1 : a->place > b->place;
}

static int compare_hosts(const void *left, const void *right) {
  const struct rank *a = left, *b = right;
  if (a->host != b->host)
    return a->host < b->host ? -1 : 1;
  return a->place < b->place ? -1 : a->place > b->place;
}

uint64_t chain_order(const struct card *cards, uint64_t count, uint64_t source_host,
                     uint32_t *order) {
  struct rank *ranks = calloc(count ? count : 1, sizeof *ranks);
  uint64_t valid = 0;
  if (!ranks)
    return 0;
  for (uint64_t i = 0; i < count; i++)
    if (card_is_valid(&cards[i]))
      ranks[valid++] = (struct rank){.host = cards[i].host, .place = (uint32_t)i};
  qsort(ranks, valid, sizeof *ranks, compare_hosts);
  for (uint64_t i = 0; i < valid; i++) {
    bool same = i > 0 && ranks[i].host == ranks[i - 1].host;
    ranks[i].first = ranks[i].host == source_host ? 0
                     : same                       ? ranks[i - 1].first
                                                  : 1 + (uint64_t)ranks[i].place;
  }
  qsort(ranks, valid, sizeof *ranks, compare);
  for (uint64_t i = 0; i < valid; i++)
    order[i] = ranks[i].place;
  free(ranks);
  return valid;
}
