/* SPDX-License-Identifier: MIT
 * regcache hit ENTRIES ROUNDS [ucx]: get and put of one of ENTRIES registrations in random order.
 * Prints the median in ns of many short batches, as batches that lose their CPU do not count.
 * regcache mixed ENTRIES THREADS SECONDS [ucx]: gets and puts of ranges inside registrations by
 * THREADS threads. One get in a hundred registers a new range and evicts the oldest of ENTRIES.
 * Prints millions of gets a second, of all threads.
 * `ucx`: UCX's cache, in the library HAUL_BENCH_UCS. No registrar here registers anything.
 * regcache merge REGIONS SIZE: announces REGIONS neighbouring regions, then gets each. Prints the
 * calls of the registrar. */
#include "regcache.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "common.h"
#include "fabric/regcache.h"

_Atomic uint64_t tested_calls;

static int add(void *user, const struct regcache_range *pages, void **handle) {
  (void)user;
  (void)pages;
  *handle = &tested_calls;
  atomic_fetch_add_explicit(&tested_calls, 1, memory_order_relaxed);
  return 0;
}

static void drop(void *user, void *handle) {
  (void)user;
  (void)handle;
}

static const struct regcache_ops ops = {.add = add, .remove = drop};

static struct regcache *cache;

static void open_haul(uint64_t entries, bool evicts) {
  (void)evicts;
  const struct regcache_limits limits = {
      .bytes = UINT64_MAX, .entries = entries, .merge = (uint64_t)1 << 30};
  must(regcache_open(&ops, NULL, &limits, &cache), "cache");
}

static void touch_haul(const struct touched *ranges, size_t count) {
  for (size_t i = 0; i < count; i++) {
    const struct regcache_range range = {.address = ranges[i].address, .length = ranges[i].length};
    struct registration *registration;
    must(regcache_get(cache, &range, &registration), "get");
    regcache_put(cache, registration);
  }
}

static void close_haul(void) {
  regcache_close(cache);
}

static const struct tested tested_haul = {open_haul, touch_haul, close_haul};

enum { LENGTH = 64 << 10, STRIDE = LENGTH + 4096, BATCH = 4096, DRAWN = 64 * BATCH };
enum { INSIDE = 4096, NEW_EACH = 100, THREADS_MAX = 16 };

static uint64_t base;

/* Regions with a page between them; untouched memory, as UCX looks at its protection. */
static void map_regions(uint64_t count) {
  void *memory = mmap(NULL, count * STRIDE, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  need(memory != MAP_FAILED, "memory");
  base = (uintptr_t)memory;
}

static uint32_t draw(uint32_t *random, uint64_t below) {
  *random = *random * 1664525 + 1013904223;
  return (uint32_t)(*random * below >> 32);
}

static struct touched whole(uint64_t region) {
  return (struct touched){base + region * STRIDE, LENGTH};
}

static struct touched *room(void) {
  struct touched *drawn = calloc(DRAWN, sizeof *drawn);
  need(drawn != NULL, "memory");
  return drawn;
}

/* The first regions are the last used. */
static void fill(const struct tested *tested, uint64_t entries) {
  for (uint64_t i = entries; i-- > 0;) {
    const struct touched range = whole(i);
    tested->touch(&range, 1);
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

static void hit(const struct tested *tested, uint64_t entries, uint64_t rounds) {
  uint64_t batches = rounds / BATCH + 1;
  int64_t *times = calloc(batches, sizeof *times);
  struct touched *drawn = room();
  uint32_t random = 1;
  need(times != NULL, "calloc");
  map_regions(entries);
  for (uint64_t i = 0; i < DRAWN; i++)
    drawn[i] = whole(draw(&random, entries));
  tested->open(entries, false);
  fill(tested, entries);
  for (uint64_t batch = 0; batch < batches; batch++) {
    int64_t began = now_ns();
    tested->touch(drawn + batch % (DRAWN / BATCH) * BATCH, BATCH);
    times[batch] = now_ns() - began;
  }
  printf("%.2f\n", (double)median(times, batches) / BATCH);
  need(tested_calls == entries, "not every get was a hit");
  tested->close();
  free(drawn);
  free(times);
}

struct worker {
  pthread_t thread;
  const struct tested *tested;
  struct touched *drawn;
  int64_t end;
  uint64_t gets;
};

/* Four fifths of the entries are hit inside. A thread's new ranges are more than the other fifth,
 * so each is evicted before it is drawn again. */
static void draw_mix(struct worker *worker, uint64_t entries, unsigned number) {
  uint64_t hot = entries / 5 * 4, fresh = entries + (uint64_t)number * (DRAWN / NEW_EACH + 1);
  uint32_t random = number + 1;
  worker->drawn = room();
  for (uint64_t i = 0; i < DRAWN; i++) {
    struct touched *range = &worker->drawn[i];
    if (i % NEW_EACH == NEW_EACH - 1)
      *range = whole(fresh++);
    else {
      range->address = base + draw(&random, hot) * (uint64_t)STRIDE + 64 +
                       draw(&random, (LENGTH - INSIDE) / 64 - 1) * (uint64_t)64;
      range->length = INSIDE;
    }
  }
}

static void *work(void *user) {
  struct worker *worker = user;
  for (unsigned batch = 0; now_ns() < worker->end; batch++) {
    worker->tested->touch(worker->drawn + batch % (DRAWN / BATCH) * BATCH, BATCH);
    worker->gets += BATCH;
  }
  return NULL;
}

static void mixed(const struct tested *tested, uint64_t entries, unsigned threads, double seconds) {
  struct worker workers[THREADS_MAX] = {0};
  uint64_t gets = 0;
  need(threads >= 1 && threads <= THREADS_MAX && entries / 5 < DRAWN / NEW_EACH, "the arguments");
  map_regions(entries + threads * (DRAWN / NEW_EACH + 1));
  for (unsigned i = 0; i < threads; i++)
    draw_mix(&workers[i], entries, i);
  tested->open(entries, true);
  fill(tested, entries);
  uint64_t before = tested_calls;
  int64_t began = now_ns();
  for (unsigned i = 0; i < threads; i++) {
    workers[i].tested = tested;
    workers[i].end = began + (int64_t)(seconds * 1e9);
    need(pthread_create(&workers[i].thread, NULL, work, &workers[i]) == 0, "thread");
  }
  for (unsigned i = 0; i < threads; i++) {
    pthread_join(workers[i].thread, NULL);
    gets += workers[i].gets;
    free(workers[i].drawn);
  }
  printf("%.4f\n", (double)gets / (double)(now_ns() - began) * 1e3);
  double share = (double)(tested_calls - before) / (double)gets;
  fprintf(stderr, "registrations %.2f%%\n", share * 100);
  need(share > 0.9 / NEW_EACH && share < 1.1 / NEW_EACH, "another share of gets has registered");
  tested->close();
}

static void merge(uint64_t regions, uint64_t size) {
  const uint64_t first = (uint64_t)1 << 40;
  open_haul(regions, false);
  for (uint64_t i = 0; i < regions; i++) {
    const struct regcache_range range = {.address = first + i * size, .length = size};
    must(regcache_announce(cache, &range), "announce");
  }
  for (uint64_t i = 0; i < regions; i++) {
    const struct touched range = {first + i * size, size};
    touch_haul(&range, 1);
  }
  printf("%llu\n", (unsigned long long)tested_calls);
  close_haul();
}

int main(int argc, char **argv) {
  const char *how = argc > 3 ? argv[1] : "";
  int words = strcmp(how, "mixed") == 0 ? 5 : 4;
  if (argc < words) {
    fprintf(stderr, "usage: regcache hit ENTRIES ROUNDS [ucx] | mixed ENTRIES THREADS SECONDS [ucx]"
                    " | merge REGIONS SIZE\n");
    return 2;
  }
  const struct tested *tested = argc > words ? &tested_ucx : &tested_haul;
  uint64_t count = strtoull(argv[2], NULL, 10), second = parse_size(argv[3]);
  if (words == 5)
    mixed(tested, count, (unsigned)second, atof(argv[4]));
  else if (strcmp(how, "hit") == 0)
    hit(tested, count, second);
  else
    merge(count, second);
  return 0;
}
