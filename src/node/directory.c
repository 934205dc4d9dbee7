/* SPDX-License-Identifier: MIT */
#include "node/directory.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "core/alloc.h"
#include "core/error.h"
#include "core/library.h"
#include "core/sys.h"

#define IDLE_MAX 4 /* connections kept for the next lookup */

const struct directory_library directory_library = {
    sizeof directory_library, error_set,       error_hint, error_code,
    haul_place_format,        haul_place_parse};

static struct { const struct directory_module *module; } table;

static const struct library_symbol symbols[] = {{"haul_directory_module", 0}};

static struct library library = {
    .title = DIRECTORY_FILE,
    .names = {DIRECTORY_FILE},
    .module = sizeof(struct directory_module),
    .since = "this haul",
    .packages = "libcurl4 libjansson4",
    .note = "; if haul was built without libcurl4-openssl-dev and libjansson-dev, build it again",
    LIBRARY_REQUIRED(symbols, table),
};

const struct directory_module *directory_module(void) {
  return library_open(&library) ? table.module : NULL;
}

struct idle {
  struct list link; /* node->directories */
  struct directory *directory;
  char url[];
};

bool directory_is_address(const char *text) {
  return text && (strncmp(text, "etcd://", 7) == 0 || strncmp(text, "etcds://", 8) == 0);
}

int directory_open_url(const struct haul_node *node, const struct directory_module *module,
                       const char *url, const _Atomic bool *stop, struct directory **directory) {
  return module->open(&directory_library, url, node->login, node->config.liveness_ns, stop,
                      directory);
}

static struct idle *new_idle(const struct directory_module *module, const struct haul_node *node,
                             const char *url) {
  struct idle *idle = alloc_zero(1, sizeof *idle + strlen(url) + 1);
  if (!idle) {
    error_memory("directory");
    return NULL;
  }
  memcpy(idle->url, url, strlen(url));
  if (directory_open_url(node, module, url, &node->closing, &idle->directory) == 0)
    return idle;
  alloc_free(idle);
  return NULL;
}

static void free_idle(struct idle *idle) {
  table.module->close(idle->directory);
  alloc_free(idle);
}

/* Takes an idle connection, or opens one; NULL with the detail. */
static struct idle *take_idle(struct haul_node *node, const char *url) {
  const struct directory_module *module = directory_module();
  struct idle *found = NULL;
  if (!module)
    return NULL;
  pthread_mutex_lock(&node->directory_lock);
  list_each(item, &node->directories) {
    struct idle *idle = list_entry(item, struct idle, link);
    if (strcmp(idle->url, url) == 0) {
      list_remove(&idle->link);
      node->directory_count--;
      found = idle;
      break;
    }
  }
  pthread_mutex_unlock(&node->directory_lock);
  return found ? found : new_idle(module, node, url);
}

static void put_idle(struct haul_node *node, struct idle *idle) {
  pthread_mutex_lock(&node->directory_lock);
  bool kept = node->directory_count < IDLE_MAX && !node_is_closed(node);
  if (kept) {
    list_append(&node->directories, &idle->link);
    node->directory_count++;
  }
  pthread_mutex_unlock(&node->directory_lock);
  if (!kept)
    free_idle(idle);
}

void directory_stop(struct haul_node *node) {
  pthread_mutex_lock(&node->directory_lock);
  struct registration *registration = node->registration;
  node->registration = NULL;
  if (node->registering)
    registration_stop(node->registering);
  pthread_mutex_unlock(&node->directory_lock);
  registration_end(registration);
  pthread_mutex_lock(&node->directory_lock);
  for (struct list *item; (item = list_take(&node->directories));)
    free_idle(list_entry(item, struct idle, link));
  node->directory_count = 0;
  pthread_mutex_unlock(&node->directory_lock);
}

/* The name behind the prefix of an address; NULL: there is none. */
static const char *name_in(const char *address) {
  const char *slash = strchr(strstr(address, "://") + 3, '/');
  slash = slash ? strchr(slash + 1, '/') : NULL;
  return slash && slash[1] && !strchr(slash + 1, '/') ? slash + 1 : NULL;
}

static int find_entries(struct haul_node *node, const char *address, int64_t until,
                        struct haul_directory_entry *entries, size_t *count) {
  char url[256];
  const char *name = directory_is_address(address) ? name_in(address) : NULL;
  if (!name || (size_t)(name - address) > sizeof url)
    return error_set(HAUL_EADDRESS, 0, address,
                     "list the entries: haul ls etcd://HOST[:PORT]/PREFIX",
                     "not an address in a directory: expected etcd://HOST[:PORT]/PREFIX/NAME");
  snprintf(url, sizeof url, "%.*s", (int)(name - address) - 1, address);
  struct idle *idle = take_idle(node, url);
  if (!idle)
    return haul_error_last()->code;
  int code = table.module->find(idle->directory, name, until, entries, count);
  put_idle(node, idle);
  return code;
}

HAUL_API int haul_directory_find(haul_node *node, const char *address, haul_deadline until,
                                 struct haul_directory_entry *entries, size_t *count) {
  int code = node_enter("haul_directory_find", node && count && (*count == 0 || entries),
                        "node, entries or count is NULL");
  if (code == 0)
    code = error_if_passed(until, address);
  if (code)
    return code;
  node_retain(node); /* another thread may close it */
  code = find_entries(node, address, until, entries, count);
  node_put(node);
  return code;
}

uint64_t directory_network(void) {
  struct stat status;
  return stat("/proc/self/ns/net", &status) == 0 ? status.st_ino : 0;
}

/* Loopback addresses and Unix sockets are reached from the same host only, and from the same
 * network namespace, except for a socket with a path. */
static bool is_unreachable(const struct haul_node *node, const struct haul_directory_entry *entry,
                           const char *text) {
  struct address address;
  bool same_host = memcmp(entry->boot, node->fabric.boot, 16) == 0;
  if (same_host && (!entry->network || entry->network == directory_network() ||
                    strncmp(text, "unix:///", 8) == 0))
    return false;
  return strncmp(text, "tcp://", 6) != 0 ||
         (address_parse(text, clock_now(), &address) == 0 && address.loopback);
}

/* When the first of `tries` attempts has to end, so that each gets the same share of the time. */
static int64_t share_of(int64_t until, size_t tries) {
  int64_t now = clock_now();
  return until == HAUL_FOREVER || until < now ? until : now + (until - now) / (int64_t)tries;
}

/* Tries the entry's addresses in their order. */
static int connect_to(struct haul_node *node, const struct haul_directory_entry *entry,
                      int64_t until, struct haul_peer **peer) {
  int code = 0;
  for (unsigned i = 0; i < entry->address_count; i++) {
    const char *text = entry->addresses[i];
    if (is_unreachable(node, entry, text))
      continue;
    code = peer_connect(node, text, entry->id, share_of(until, entry->address_count - i), peer);
    if (code == 0)
      return 0;
  }
  return code ? code
              : error_set(HAUL_ECONNECT, 0, entry->node,
                          "have the node listen on a network address, or advertise one: haul serve "
                          "--advertise ADDRESS",
                          "the node can be reached from its own host only, at %s",
                          error_quote(entry->addresses[0]));
}

int directory_connect(struct haul_node *node, const char *address, int64_t until,
                      struct haul_peer **peer) {
  size_t count = DIRECTORY_FOUND;
  struct haul_directory_entry *entries = alloc_zero(count, sizeof *entries);
  if (!entries)
    return error_memory("directory");
  uint32_t first;
  random_bytes(&first, sizeof first);
  int code = find_entries(node, address, until, entries, &count);
  /* A node's name means that node. A region's name means any of the nodes that publish it, in an
   * order that starts at random to spread the load. */
  bool by_node = code == 0 && entries[0].kind == HAUL_DIRECTORY_NODE;
  size_t tries = code ? 0 : by_node ? 1 : count;
  for (size_t i = 0; i < tries; i++) {
    const struct haul_directory_entry *entry = &entries[by_node ? 0 : (first + i) % count];
    code = connect_to(node, entry, share_of(until, tries - i), peer);
    if (code == 0)
      break;
  }
  alloc_free(entries);
  return code;
}

struct haul_directory {
  struct haul_node *node;
  struct idle *idle;
  struct directory_walk *walk;
};

HAUL_API int haul_directory_open(haul_node *node, const char *directory, haul_deadline until,
                                 haul_directory **out) {
  int code = node_enter("haul_directory_open", node && out, "node or walk is NULL");
  if (code == 0)
    code = error_if_passed(until, directory);
  if (code)
    return code;
  if (!directory_is_address(directory))
    return error_set(HAUL_EADDRESS, 0, directory, "pass an address: etcd://HOST[:PORT]/PREFIX",
                     "not the address of a directory");
  haul_directory *walk = alloc_zero(1, sizeof *walk);
  if (!walk)
    return error_memory("directory");
  node_retain(node);
  walk->idle = take_idle(node, directory);
  code = walk->idle ? table.module->walk_open(walk->idle->directory, until, &walk->walk)
                    : haul_error_last()->code;
  if (code) {
    if (walk->idle)
      put_idle(node, walk->idle);
    alloc_free(walk);
    node_put(node);
    return code;
  }
  walk->node = node;
  *out = walk;
  return 0;
}

HAUL_API int haul_directory_next(haul_directory *walk, haul_deadline until,
                                 struct haul_directory_event *event) {
  int code = node_enter("haul_directory_next", walk && event, "walk or event is NULL");
  if (code)
    return code;
  return table.module->walk_next(walk->walk, until, event);
}

HAUL_API void haul_directory_close(haul_directory *walk) {
  if (!walk)
    return;
  table.module->walk_close(walk->walk);
  put_idle(walk->node, walk->idle);
  node_put(walk->node);
  alloc_free(walk);
}
