/* SPDX-License-Identifier: MIT
 * cache OPERATION PATH SIZE COUNT SECONDS: OPERATION is get or put, of COUNT blocks of SIZE bytes a
 * call, or read: a plain haul_read of the same length, from memory of the same kind. Prints
 * microseconds a call (median). */
#include "common.h"

#include <haul/cache.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define CALLS_MAX 100000

static struct {
  const char *operation, *path;
  uint64_t size, count;
  int64_t end;
} given;

static uint64_t total(void) {
  return given.size * given.count;
}

/* A store. */
static _Noreturn void serve(void) {
  haul_node *node = open_node(1, SPIN_NS);
  char address[160], path[64];
  struct haul_cache_store_config config = HAUL_CACHE_STORE_INIT;
  haul_cache_store *store;
  snprintf(path, sizeof path, "/dev/shm/haul-bench-cache-%d", getpid());
  config.path = path;
  config.capacity = 3 * total();
  config.blocks = 3 * given.count;
  must(haul_cache_store_open(node, &config, &store), "store");
  unlink(path); /* it is mapped */
  must(haul_node_listen(node, listen_address(given.path)), "listen");
  must(haul_node_address(node, 0, address, sizeof address), "address");
  say_line(address);
  for (;;)
    pause();
}

/* What a plain read reads: wrapped shared memory. */
static _Noreturn void serve_plain(void) {
  haul_node *node = open_node(1, SPIN_NS);
  char address[160];
  haul_region *region;
  void *memory = mmap(NULL, total(), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  need(memory != MAP_FAILED, "mmap");
  memset(memory, 1, total());
  must(haul_region_wrap(node, memory, total(), &region), "wrap");
  must(haul_region_publish(region, "target", HAUL_READ), "publish");
  must(haul_node_listen(node, listen_address(given.path)), "listen");
  must(haul_node_address(node, 0, address, sizeof address), "address");
  say_line(address);
  for (;;)
    pause();
}

static double *times;
static size_t calls;

/* Whether to make another call, after one that took `ns`. */
static int more(int64_t ns) {
  times[calls++] = (double)ns / 1e3;
  return calls < CALLS_MAX && now_ns() < given.end;
}

static void read_plain(haul_node *node, const char *address, haul_region *region) {
  struct haul_transfer_options options = HAUL_TRANSFER_OPTIONS_INIT;
  struct haul_piece *pieces = calloc(given.count, sizeof *pieces);
  haul_peer *peer;
  haul_remote *remote;
  int64_t began;
  need(pieces != NULL, "memory");
  options.only = given.path;
  for (uint64_t i = 0; i < given.count; i++)
    pieces[i] =
        (struct haul_piece){i * given.size, scattered(i, given.count) * given.size, given.size};
  must(haul_peer_connect(node, address, haul_deadline_in(10 * HAUL_SECOND), &peer), "connect");
  must(haul_peer_lookup(peer, "target", haul_deadline_in(10 * HAUL_SECOND), &remote), "lookup");
  do {
    began = now_ns();
    must(haul_read(region, remote, pieces, given.count, &options, NULL), "read");
  } while (more(now_ns() - began));
}

static struct haul_cache_item *items(void) {
  struct haul_cache_item *list = calloc(given.count, sizeof *list);
  char(*keys)[32] = calloc(given.count, sizeof *keys);
  need(list && keys, "memory");
  for (uint64_t i = 0; i < given.count; i++) {
    int length = snprintf(keys[i], sizeof keys[i], "block-%llu", (unsigned long long)i);
    list[i] = (struct haul_cache_item){.key = keys[i],
                                       .key_length = (size_t)length,
                                       .offset = i * given.size,
                                       .length = given.size};
  }
  return list;
}

static void use_cache(haul_node *node, const char *address, haul_region *region) {
  struct haul_cache_config config = HAUL_CACHE_INIT;
  haul_cache *cache;
  struct haul_cache_item *list = items();
  int64_t began;
  config.members = &address;
  config.member_count = 1;
  config.only = given.path;
  must(haul_cache_open(node, &config, HAUL_NO_WAIT, &cache), "open");
  must(haul_cache_attach(cache, region), "attach");
  do {
    began = now_ns();
    must(haul_cache_put(cache, region, list, given.count, 0, 0, haul_deadline_in(10 * HAUL_SECOND)),
         "put");
  } while (strcmp(given.operation, "put") == 0 && more(now_ns() - began));
  while (strcmp(given.operation, "get") == 0) {
    began = now_ns();
    must(haul_cache_get(cache, region, list, given.count, haul_deadline_in(10 * HAUL_SECOND)),
         "get");
    if (!more(now_ns() - began))
      break;
  }
  haul_cache_close(cache);
}

int main(int argc, char **argv) {
  char address[160];
  if (argc < 6) {
    fprintf(stderr, "usage: cache get|put|read PATH SIZE COUNT SECONDS\n");
    return 2;
  }
  given.operation = argv[1];
  given.path = argv[2];
  given.size = parse_size(argv[3]);
  given.count = strtoull(argv[4], NULL, 10);
  setenv("HAUL_PATHS", given.path, 1); /* of the store's reads, too */
  int plain = strcmp(given.operation, "read") == 0;
  if (is_child(argc, argv)) {
    if (plain)
      serve_plain();
    serve();
  }
  pid_t child = start_child(argc, argv, address, sizeof address);
  haul_node *node = open_node(0, SPIN_NS);
  haul_region *region = make_region(node, "host", total(), 2, 0);
  times = calloc(CALLS_MAX, sizeof *times);
  need(times != NULL, "memory");
  given.end = now_ns() + (int64_t)(strtod(argv[5], NULL) * 1e9);
  if (plain)
    read_plain(node, address, region);
  else
    use_cache(node, address, region);
  printf("%.2f\n", median_of(times, calls));
  end_child(child);
  haul_region_release(region);
  haul_node_close(node);
  return 0;
}
