/* SPDX-License-Identifier: MIT */
#include "services/rig/cache.h"

#include <fcntl.h>
#include <inttypes.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/wait.h>
#include <unistd.h>

#include <haul/directory.h>

#include "support/check.h"
#include "support/child.h"
#include "support/owner.h"

#define BOUND (30 * S)

struct brief {
  char address[160], path[128], directory[96], name[16], network[64];
  uint64_t capacity, file_capacity, device_capacity;
  bool has_file;
};

static void file_path(const char *path, char file[160]) {
  snprintf(file, 160, "%s.file", path);
}

static void must(int code) {
  if (code == 0)
    return;
  fprintf(stderr, "the store: %s (%s)\n", haul_error_last()->text, haul_error_last()->hint);
  _exit(1);
}

#ifdef __SANITIZE_THREAD__
/* Of the sanitizer's library. */
void AnnotateBenignRaceSized(const char *file, int line, const volatile void *address, size_t size,
                             const char *description);

void cache_expect_races(void *address, size_t length) {
  AnnotateBenignRaceSized(__FILE__, __LINE__, address, length, "verified reads");
}
#else
void cache_expect_races(void *address, size_t length) {
  (void)address;
  (void)length;
}
#endif

static void expect_races(const char *path) {
  char line[512];
  FILE *maps = fopen("/proc/self/maps", "re");
  while (maps && fgets(line, sizeof line, maps)) {
    unsigned long first, end;
    if (strstr(line, path) && sscanf(line, "%lx-%lx", &first, &end) == 2)
      cache_expect_races((void *)first, end - first);
  }
  if (maps)
    fclose(maps);
}

static void enter(const char *network) {
  char path[96];
  snprintf(path, sizeof path, "/run/netns/%s", network);
  int file = open(path, O_RDONLY | O_CLOEXEC);
  if (file < 0 || setns(file, CLONE_NEWNET)) {
    perror(path);
    _exit(1);
  }
  close(file);
}

int cache_store_main(void) {
  struct brief brief;
  struct haul_node_config config = patient_config();
  struct haul_cache_store_config how = HAUL_CACHE_STORE_INIT;
  struct haul_register_options registration = HAUL_REGISTER_OPTIONS_INIT;
  haul_node *node;
  haul_cache_store *store;
  char byte, file[160];
  child_receive(3, &brief, sizeof brief);
  registration.lease_seconds = 2;
  if (*brief.network)
    enter(brief.network);
  config.insecure = *brief.network != 0;
  how.path = brief.path;
  how.capacity = brief.capacity;
  how.blocks = brief.capacity / 4096;
  file_path(brief.path, file);
  how.file_path = brief.has_file ? file : NULL;
  how.file_capacity = brief.file_capacity;
  how.file_blocks = brief.file_capacity / 4096;
  if (brief.device_capacity)
    how.device = owners_device_place();
  how.device_capacity = brief.device_capacity;
  how.device_blocks = brief.device_capacity / 4096;
  config.name = *brief.name ? brief.name : NULL;
  must(haul_node_open(&config, &node));
  must(haul_cache_store_open(node, &how, &store));
  expect_races(brief.path);
  if (brief.device_capacity) { /* its slots, and its blocks on the emulated accelerator */
    expect_races("/memfd:haul-host");
    expect_races("/memfd:haul-sim");
  }
  must(haul_node_listen(node, brief.address));
  must(haul_node_address(node, 0, brief.address, sizeof brief.address));
  if (*brief.directory)
    must(haul_node_register(node, brief.directory, &registration, haul_deadline_in(BOUND)));
  child_send(3, &brief, sizeof brief, -1);
  if (read(3, &byte, 1) != 0) /* its end is the end of the test */
    return 1;
  haul_cache_store_close(store);
  haul_node_close(node);
  return 0;
}

static void launch(struct cache_store *store, uint64_t capacity, uint64_t file_capacity) {
  struct brief brief = {.capacity = capacity,
                        .file_capacity = file_capacity,
                        .device_capacity = store->device_capacity,
                        .has_file = store->has_file};
  snprintf(brief.address, sizeof brief.address, "%s", store->address);
  snprintf(brief.path, sizeof brief.path, "%s", store->path);
  snprintf(brief.directory, sizeof brief.directory, "%s", store->directory);
  snprintf(brief.name, sizeof brief.name, "%s", store->name);
  snprintf(brief.network, sizeof brief.network, "%s", store->network);
  store->pid = child_start(CACHE_STORE_MODE, &store->socket);
  child_send(store->socket, &brief, sizeof brief, -1);
  child_receive(store->socket, &brief, sizeof brief);
  memcpy(store->address, brief.address, sizeof store->address);
}

void cache_path(char path[128]) {
  const char *folder = access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp";
  uint64_t number; /* a process that was killed may have left files, and had this one's number */
  assert_int_equal(getrandom(&number, sizeof number, 0), sizeof number);
  snprintf(path, 128, "%s/haul-test-cache-%016" PRIx64, folder, number);
}

void cache_store_begin_device(struct cache_store *store, const char *address,
                              uint64_t device_capacity, uint64_t capacity, uint64_t file_capacity) {
  static unsigned number;
  *store = (struct cache_store){.has_file = file_capacity > 0, .device_capacity = device_capacity};
  cache_path(store->path);
  if (address)
    snprintf(store->address, sizeof store->address, "%s", address);
  else
    snprintf(store->address, sizeof store->address, "unix://@haul-test-cache-%d-%u", getpid(),
             number++);
  launch(store, capacity, file_capacity);
}

void cache_store_begin(struct cache_store *store, const char *address, uint64_t capacity) {
  cache_store_begin_device(store, address, 0, capacity, 0);
}

void cache_store_begin_tiers(struct cache_store *store, const char *address, uint64_t capacity,
                             uint64_t file_capacity) {
  cache_store_begin_device(store, address, 0, capacity, file_capacity);
}

void cache_store_begin_named(struct cache_store *store, const char *directory, const char *name,
                             uint64_t capacity) {
  *store = (struct cache_store){.address = "tcp://127.0.0.1:0"};
  cache_path(store->path);
  snprintf(store->directory, sizeof store->directory, "%s", directory);
  snprintf(store->name, sizeof store->name, "%s", name);
  launch(store, capacity, 0);
}

void cache_store_begin_in(struct cache_store *store, const char *network, const char *address,
                          uint64_t capacity) {
  *store = (struct cache_store){0};
  cache_path(store->path);
  snprintf(store->address, sizeof store->address, "%s", address);
  snprintf(store->network, sizeof store->network, "%s", network);
  launch(store, capacity, 0);
}

void cache_store_again(struct cache_store *store) {
  launch(store, 0, 0);
}

int cache_store_end(struct cache_store *store) {
  int status = child_end(store->pid, store->socket);
  store->pid = 0;
  return status;
}

void cache_store_kill(struct cache_store *store) {
  kill(store->pid, SIGKILL);
  child_end(store->pid, store->socket);
  store->pid = 0;
}

void cache_store_forget(struct cache_store *store) {
  char file[160];
  file_path(store->path, file);
  unlink(store->path);
  unlink(file);
}

void cache_client_begin(struct cache_client *client, const struct cache_store *stores, size_t count,
                        unsigned replicas, const char *only, size_t length) {
  struct haul_node_config node = patient_config();
  struct haul_cache_config config = HAUL_CACHE_INIT;
  const struct haul_place host = {HAUL_HOST, 0};
  const char *members[8];
  for (size_t i = 0; i < count; i++)
    members[i] = stores[i].address;
  config.members = members;
  config.member_count = *stores->directory ? 0 : count;
  config.directory = stores->directory;
  config.replicas = replicas;
  config.only = only;
  config.connect_ns = 10 * S;
  assert_works(haul_node_open(&node, &client->node));
  assert_works(haul_cache_open(client->node, &config, haul_deadline_in(BOUND), &client->cache));
  assert_works(haul_region_alloc(client->node, host, length, 0, &client->region));
  assert_works(haul_cache_attach(client->cache, client->region));
  client->bytes = haul_region_address(client->region);
}

void cache_client_end(struct cache_client *client) {
  haul_cache_close(client->cache);
  haul_region_release(client->region);
  haul_node_close(client->node);
  memset(client, 0, sizeof *client);
}

static struct haul_cache_item item_of(const char *key, uint64_t offset, uint64_t length) {
  return (struct haul_cache_item){
      .key = key, .key_length = strlen(key), .offset = offset, .length = length};
}

int cache_put(struct cache_client *client, const char *key, uint64_t offset, uint64_t length,
              unsigned flags) {
  struct haul_cache_item item = item_of(key, offset, length);
  return haul_cache_put(client->cache, client->region, &item, 1, flags, HAUL_PRIORITY_NORMAL,
                        haul_deadline_in(BOUND));
}

int cache_get(struct cache_client *client, const char *key, uint64_t offset, uint64_t *length) {
  struct haul_cache_item item = item_of(key, offset, *length);
  int code = haul_cache_get(client->cache, client->region, &item, 1, haul_deadline_in(BOUND));
  *length = item.length;
  return code;
}

int cache_exists(struct cache_client *client, const char *key) {
  struct haul_cache_item item = item_of(key, 0, 0);
  return haul_cache_exists(client->cache, &item, 1, haul_deadline_in(BOUND));
}

int cache_remove(struct cache_client *client, const char *key) {
  struct haul_cache_item item = item_of(key, 0, 0);
  return haul_cache_remove(client->cache, &item, 1, haul_deadline_in(BOUND));
}

int cache_pin(struct cache_client *client, const char *key, unsigned seconds) {
  struct haul_cache_item item = item_of(key, 0, 0);
  return haul_cache_pin(client->cache, &item, 1, seconds, haul_deadline_in(BOUND));
}

void cache_here_begin(struct cache_here *here, uint64_t capacity, const struct haul_place *device) {
  struct haul_node_config config = patient_config();
  struct haul_cache_store_config how = HAUL_CACHE_STORE_INIT;
  *here = (struct cache_here){0};
  cache_path(here->seen.path);
  how.path = here->seen.path;
  how.capacity = capacity;
  if (device) {
    how.device = *device;
    how.device_capacity = capacity;
  }
  assert_works(haul_node_open(&config, &here->node));
  assert_works(haul_cache_store_open(here->node, &how, &here->store));
  assert_works(haul_node_listen(here->node, "tcp://127.0.0.1:0"));
  assert_works(haul_node_address(here->node, 0, here->seen.address, sizeof here->seen.address));
  cache_client_begin(&here->client, &here->seen, 1, 1, NULL, capacity);
}

void cache_here_end(struct cache_here *here) {
  cache_client_end(&here->client);
  haul_cache_store_close(here->store);
  haul_node_close(here->node);
  cache_store_forget(&here->seen);
}
