/* SPDX-License-Identifier: MIT */
#include "cache/store.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/cond.h"
#include "common/fail.h"
#include "common/owner.h"

#define OPEN  "haul_cache_store_open"
#define STATS "haul_cache_store_stats"

#define COPY_NS (10 * HAUL_SECOND) /* for a block; a device that hangs loses it */
#define SAVE_NS (60 * HAUL_SECOND) /* for all blocks of a device, when the store closes */

int64_t cache_now(void) {
  return haul_deadline_in(0);
}

/* ---- Messages ---- */

static void receive(struct haul_cache_store *store) {
  struct haul_message message;
  while (haul_message_receive(store->node, &message, HAUL_NO_WAIT) == 0) {
    bool valid = message.kind == HAUL_MESSAGE && request_is_valid(&message);
    if (valid && ((const struct request *)message.bytes)->kind == REQUEST_PUT) {
      session_submit(store, &message);
      continue;
    }
    if (valid)
      request_execute(store, &message);
    haul_message_release(&message);
  }
}

/* Ends when the node is closed or `wake` is readable. */
static void *run(void *argument) {
  struct haul_cache_store *store = argument;
  struct pollfd entries[] = {{store->wake, POLLIN, 0}, {haul_node_fd(store->node), POLLIN, 0}};
  for (;;) {
    if (poll(entries, 2, -1) < 0 && errno != EINTR)
      return NULL;
    if (entries[0].revents || haul_node_progress(store->node, HAUL_NO_WAIT) < 0)
      return NULL;
    receive(store);
  }
}

/* ---- Life ---- */

static void close_tiers(struct haul_cache_store *store) {
  for (unsigned i = 0; i < TIERS; i++)
    tier_close(&store->tiers[i]);
}

/* Holds the lock. */
static int copy_from_device(void *user, uint64_t offset, uint64_t to, uint64_t length) {
  const struct haul_cache_store *store = user;
  return haul_region_copy(store->tiers[MEMORY_TIER].region, to, store->tiers[DEVICE_TIER].blocks,
                          offset, length, haul_deadline_in(COPY_NS));
}

static int open_device(struct haul_cache_store *store,
                       const struct haul_cache_store_config *config) {
  const struct device_config device = {config->device, config->device_capacity,
                                       config->device_blocks};
  store->top = &store->tiers[DEVICE_TIER];
  store->tier_bits |= TIER_BIT(DEVICE_TIER);
  int code = device_tier_open(store->top, store->node, &device);
  if (code)
    return code;
  store->top->index.copy = copy_from_device;
  store->top->index.user = store;
  return 0;
}

static int open_file(struct haul_cache_store *store, const struct haul_cache_store_config *config) {
  const struct tier_config file = {config->file_path, config->file_capacity, config->file_blocks};
  struct stat first, second;
  if (fstat(store->tiers[MEMORY_TIER].file, &first) == 0 && stat(config->file_path, &second) == 0 &&
      first.st_dev == second.st_dev && first.st_ino == second.st_ino)
    return fail(HAUL_EINVAL, OPEN, config->file_path, "name a second file",
                "the file tier is the file of the store itself");
  store->tier_bits |= TIER_BIT(FILE_TIER);
  int code = tier_open(&store->tiers[FILE_TIER], &file);
  if (code == 0)
    index_put_below(&store->tiers[MEMORY_TIER].index, &store->tiers[FILE_TIER].index);
  return code;
}

static int open_tiers(struct haul_cache_store *store,
                      const struct haul_cache_store_config *config) {
  const struct tier_config memory = {config->path, config->capacity, config->blocks};
  store->top = &store->tiers[MEMORY_TIER];
  store->tier_bits = TIER_BIT(MEMORY_TIER);
  for (unsigned i = 0; i < TIERS; i++)
    store->tiers[i].file = -1;
  int code = config->device.kind ? open_device(store, config) : 0; /* before files are made */
  if (code == 0)
    code = tier_open(&store->tiers[MEMORY_TIER], &memory);
  if (code == 0 && config->file_path)
    code = open_file(store, config);
  if (code == 0 && config->device.kind)
    index_put_below(&store->top->index, &store->tiers[MEMORY_TIER].index);
  if (code == 0)
    atomic_store(&store->tiers[MEMORY_TIER].index.header->tiers, store->tier_bits);
  return code;
}

/* The memory tier last: clients look for the others when they find it. */
static int publish(struct haul_cache_store *store) {
  int code = 0;
  for (unsigned i = TIERS; i-- > 0 && code == 0;)
    if (store->tier_bits & TIER_BIT(i))
      code = tier_publish(&store->tiers[i], store->node, tier_region(i));
  return code;
}

static int start(struct haul_cache_store *store) {
  store->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (store->wake < 0)
    return fail(HAUL_ELIMIT, OPEN, NULL, "raise the limit of open files (ulimit -n)",
                "cannot open an eventfd: %s", strerror(errno));
  int error = pthread_create(&store->thread, NULL, run, store);
  if (error == 0)
    return 0;
  close(store->wake);
  return fail(HAUL_ELIMIT, OPEN, NULL, "raise the limit of threads (ulimit -u)",
              "cannot start a thread: %s", strerror(error));
}

/* Holds their locks. */
static void remove_new_files(struct haul_cache_store *store,
                             const struct haul_cache_store_config *config) {
  if (store->tiers[MEMORY_TIER].created)
    unlink(config->path);
  if (store->tiers[FILE_TIER].created)
    unlink(config->file_path);
}

int haul_cache_store_open(haul_node *node, const struct haul_cache_store_config *config,
                          haul_cache_store **out) {
  if (!node || !config || config->size != sizeof *config || !config->path || !out)
    return fail(HAUL_EINVAL, OPEN, NULL, "start from HAUL_CACHE_STORE_INIT and set path",
                "node, config, its path or store is NULL, or its size is wrong");
  if (config->file_capacity && !config->file_path)
    return fail(HAUL_EINVAL, OPEN, "file_capacity", "set file_path, too",
                "the file tier has a capacity, but no file");
  if (config->device_capacity && config->device.kind == 0)
    return fail(HAUL_EINVAL, OPEN, "device_capacity", "set device, too",
                "the device tier has a capacity, but no device");
  if (owner_check_node(node, OPEN)) /* before a file is made */
    return HAUL_EFORK;
  struct haul_cache_store *store = calloc(1, sizeof *store);
  if (!store)
    return fail_memory(OPEN);
  store->node = node;
  store->owner = getpid();
  pthread_mutex_init(&store->lock, NULL);
  monotonic_cond(&store->session_ended);
  int code = open_tiers(store, config);
  if (code == 0)
    code = publish(store);
  if (code == 0)
    code = start(store);
  if (code == 0) {
    *out = store;
    return 0;
  }
  remove_new_files(store, config);
  close_tiers(store);
  free(store);
  return code;
}

int haul_cache_store_stats(haul_cache_store *store, struct haul_cache_stats *stats) {
  if (!store || !stats || stats->size != sizeof *stats)
    return fail(HAUL_EINVAL, STATS, NULL, "pass both, and start from HAUL_CACHE_STATS_INIT",
                "store or stats is NULL, or the stats have an unknown size");
  if (owner_check(store->owner, STATS))
    return HAUL_EFORK;
  *stats = (struct haul_cache_stats)HAUL_CACHE_STATS_INIT;
  for (unsigned i = 0; i < TIERS; i++)
    if (store->tier_bits & TIER_BIT(i))
      header_stats(store->tiers[i].index.header, i, stats);
  return 0;
}

/* Memory of a device ends with the process, so its blocks move to the tiers that do not. */
static void save_device(struct haul_cache_store *store) {
  haul_deadline until = haul_deadline_in(SAVE_NS);
  pthread_mutex_lock(&store->lock);
  while (cache_now() < until && index_evict_next(&store->top->index, cache_now()))
    ;
  pthread_mutex_unlock(&store->lock);
}

/* In a child: the eventfd would end the parent's thread. Sessions are as their threads left them.
 */
static void close_forked(struct haul_cache_store *store) {
  close(store->wake);
  close_tiers(store);
  free(store);
}

void haul_cache_store_close(haul_cache_store *store) {
  if (!store)
    return;
  if (is_forked(store->owner)) {
    close_forked(store);
    return;
  }
  while (write(store->wake, &(uint64_t){1}, sizeof(uint64_t)) < 0 && errno == EINTR)
    ;
  pthread_join(store->thread, NULL);
  close(store->wake);
  pthread_mutex_lock(&store->lock);
  store->closing = true;
  pthread_mutex_unlock(&store->lock);
  sessions_end(store);
  if (store->top->blocks)
    save_device(store);
  close_tiers(store);
  pthread_cond_destroy(&store->session_ended);
  pthread_mutex_destroy(&store->lock);
  free(store);
}
