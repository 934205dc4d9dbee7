/* SPDX-License-Identifier: MIT
 * regcache hit ENTRIES ROUNDS: get and put of one of ENTRIES registrations in random order. Prints
 * the median in ns of many short batches, as batches that lose their CPU do not count. regcache
 * merge REGIONS SIZE: announces REGIONS neighbouring regions, then gets each. Prints the calls of
 * the registrar, which registers nothing. */
#include "common.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fabric/regcache.h"

#define BASE ((uint64_t)1 << 40)

static uint64_t calls;

static int add(void *user, const struct regcache_range *pages, void **handle) {
  (void)user;
  (void)pages;
  *handle = &calls;
  calls++;
  return 0;
}

static void drop(void *user, void *handle) {
  (void)user;
  (void)handle;
}

static const struct regcache_ops ops = {.add = add, .remove = drop};

static struct regcache *open_cache(uint64_t entries) {
  const struct regcache_limits limits = {
      .bytes = UINT64_MAX, .entries = entries, .merge = (uint64_t)1 << 30};
  struct regcache *cache;
  must(regcache_open(&ops, NULL, &limits, &cache), "cache");
  return cache;
}

static void get_and_put(struct regcache *cache, uint64_t address, uint64_t length) {
  const struct regcache_range range = {.address = address, .length = length};
  struct registration *registration;
  must(regcache_get(cache, &range, &registration), "get");
  regcache_put(cache, registration);
}

enum { LENGTH = 64 << 10, STRIDE = LENGTH + 4096, BATCH = 4096, DRAWN = 16 * BATCH };

/* Regions with a page between them, in a random order drawn before the measurement. */
static void draw(uint64_t entries, uint64_t *drawn) {
  uint32_t random = 1;
  for (uint64_t i = 0; i < DRAWN; i++) {
    random = random * 1664525 + 1013904223;
    drawn[i] = BASE + (random * entries >> 32) * STRIDE;
  }
}

static int by_size(const void *one, const void *other) {
  int64_t left = *(const int64_t *)one, right = *(const int64_t *)other;
  return (left > right) - (left < right);
}

static int64_t median(int64_t *times, uint64_t count) {
  qsort(times, count, sizeof *times, by_size);
  return times[count / 2];
}

static void hit(uint64_t entries, uint64_t rounds) {
  static uint64_t drawn[DRAWN];
  uint64_t batches = rounds / BATCH + 1;
  int64_t *times = calloc(batches, sizeof *times);
  need(times != NULL, "calloc");
  struct regcache *cache = open_cache(entries);
  for (uint64_t i = 0; i < entries; i++)
    get_and_put(cache, BASE + i * STRIDE, LENGTH);
  draw(entries, drawn);
  for (uint64_t batch = 0; batch < batches; batch++) {
    const uint64_t *addresses = drawn + batch % (DRAWN / BATCH) * BATCH;
    int64_t began = now_ns();
    for (uint64_t i = 0; i < BATCH; i++)
      get_and_put(cache, addresses[i], LENGTH);
    times[batch] = now_ns() - began;
  }
  printf("%.2f\n", (double)median(times, batches) / BATCH);
  need(calls == entries, "not every get was a hit");
  regcache_close(cache);
  free(times);
}

static void merge(uint64_t regions, uint64_t size) {
  struct regcache *cache = open_cache(regions);
  for (uint64_t i = 0; i < regions; i++) {
    const struct regcache_range range = {.address = BASE + i * size, .length = size};
    must(regcache_announce(cache, &range), "announce");
  }
  for (uint64_t i = 0; i < regions; i++)
    get_and_put(cache, BASE + i * size, size);
  printf("%llu\n", (unsigned long long)calls);
  regcache_close(cache);
}

int main(int argc, char **argv) {
  if (argc < 4) {
    fprintf(stderr, "usage: regcache hit ENTRIES ROUNDS | merge REGIONS SIZE\n");
    return 2;
  }
  uint64_t count = strtoull(argv[2], NULL, 10), second = parse_size(argv[3]);
  if (strcmp(argv[1], "hit") == 0)
    hit(count, second);
  else
    merge(count, second);
  return 0;
}
