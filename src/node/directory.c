/* SPDX-License-Identifier: MIT */
#include "node/directory.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "core/alloc.h"
#include "core/error.h"
#include "core/library.h"
#include "core/sys.h"

#define IDLE_MOST 4 /* connections to directories that are kept for the next look-up */

/* ---- The module ---- */

const struct directory_library directory_library = {
    error_set, error_hint, error_code, error_quote, haul_place_format, haul_place_parse};

static struct { const struct directory_module *module; } table;

static const struct library_symbol symbols[] = {{"haul_directory_module", 0}};

static char path[512];
static struct library library = {
    .title = DIRECTORY_FILE,
    .names = {path, DIRECTORY_FILE},
    .since = "this haul",
    .packages = "libcurl4 libjansson4",
    .note = "; a haul that was built without their headers (libcurl4-openssl-dev, libjansson-dev) "
            "has no such module",
    .required = symbols,
    .required_count = LIBRARY_COUNT(symbols),
    .table = &table,
    .lock = PTHREAD_MUTEX_INITIALIZER,
};

/* In the folder haul/ beside this library, and nowhere else in an installed one. */
static void find_path(void) {
  Dl_info self;
  const char *slash = dladdr(&library, &self) ? strrchr(self.dli_fname, '/') : NULL;
  if (slash)
    snprintf(path, sizeof path, "%.*s/haul/" DIRECTORY_FILE, (int)(slash - self.dli_fname),
             self.dli_fname);
  else
    snprintf(path, sizeof path, "haul/" DIRECTORY_FILE);
}

const struct directory_module *directory_module(void) {
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  pthread_once(&once, find_path);
  return library_open(&library) ? table.module : NULL;
}

/* ---- Connections that are kept ---- */

struct idle {
  struct list link; /* node->directories */
  struct directory *directory;
  char url[];
};

bool directory_is_address(const char *text) {
  return text && (strncmp(text, "etcd://", 7) == 0 || strncmp(text, "etcds://", 8) == 0);
}

int directory_dial(const struct haul_node *node, const struct directory_module *module,
                   const char *url, const _Atomic bool *stop, struct directory **directory) {
  return module->open(&directory_library, url, node->login, stop, directory);
}

static struct idle *new_idle(const struct directory_module *module, const struct haul_node *node,
                             const char *url) {
  struct idle *idle = alloc_zero(1, sizeof *idle + strlen(url) + 1);
  if (!idle) {
    error_memory("directory");
    return NULL;
  }
  memcpy(idle->url, url, strlen(url));
  if (directory_dial(node, module, url, &node->closing, &idle->directory) == 0)
    return idle;
  alloc_free(idle);
  return NULL;
}

static void free_idle(struct idle *idle) {
  table.module->close(idle->directory);
  alloc_free(idle);
}

/* One that nobody else uses; NULL with the detail. */
static struct idle *borrow(struct haul_node *node, const char *url) {
  const struct directory_module *module = directory_module();
  struct idle *found = NULL;
  if (!module)
    return NULL;
  pthread_mutex_lock(&node->directory_lock);
  list_each(item, &node->directories) {
    struct idle *idle = list_entry(item, struct idle, link);
    if (strcmp(idle->url, url) == 0) {
      list_remove(&idle->link);
      node->idle_directories--;
      found = idle;
      break;
    }
  }
  pthread_mutex_unlock(&node->directory_lock);
  return found ? found : new_idle(module, node, url);
}

static void give_back(struct haul_node *node, struct idle *idle) {
  pthread_mutex_lock(&node->directory_lock);
  bool kept = node->idle_directories < IDLE_MOST && !node_is_closed(node);
  if (kept) {
    list_append(&node->directories, &idle->link);
    node->idle_directories++;
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
  node->idle_directories = 0;
  pthread_mutex_unlock(&node->directory_lock);
}

/* ---- Finding ---- */

/* Where the word behind the prefix begins; NULL: there is none. */
static const char *word_of(const char *address) {
  const char *slash = strchr(strstr(address, "://") + 3, '/');
  slash = slash ? strchr(slash + 1, '/') : NULL;
  return slash && slash[1] && !strchr(slash + 1, '/') ? slash + 1 : NULL;
}

static int find(struct haul_node *node, const char *address, int64_t until,
                struct haul_directory_entry *entries, size_t *count) {
  char url[256];
  const char *word = directory_is_address(address) ? word_of(address) : NULL;
  if (!word || (size_t)(word - address) > sizeof url)
    return error_set(HAUL_EADDRESS, 0, address,
                     "etcd://HOST[:PORT]/PREFIX/NODE; haul ls etcd://HOST[:PORT]/PREFIX lists them",
                     "not the address of a node or a region in a directory");
  snprintf(url, sizeof url, "%.*s", (int)(word - address) - 1, address);
  struct idle *idle = borrow(node, url);
  if (!idle)
    return haul_error_last()->code;
  int code = table.module->find(idle->directory, word, until, entries, count);
  give_back(node, idle);
  return code;
}

HAUL_API int haul_directory_find(haul_node *node, const char *address, haul_deadline until,
                                 struct haul_directory_entry *entries, size_t *count) {
  int code = node_enter("haul_directory_find", node);
  if (code)
    return code;
  if (!count || (*count > 0 && !entries))
    return error_set(HAUL_EINVAL, 0, address, NULL, "no place for what is found");
  node_retain(node); /* it may be closed meanwhile */
  code = find(node, address, until, entries, count);
  node_put(node);
  return code;
}

/* ---- Connecting ---- */

uint64_t directory_network(void) {
  struct stat status;
  return stat("/proc/self/ns/net", &status) == 0 ? status.st_ino : 0;
}

/* A Unix socket, or loopback, is for who is on the same host, and in the same network namespace but
 * for a socket with a path. */
static bool is_elsewhere(const struct haul_node *node, const struct haul_directory_entry *entry,
                         const char *text) {
  struct address address;
  bool same_host = memcmp(entry->boot, node->fabric.boot, 16) == 0;
  if (same_host && (!entry->network || entry->network == directory_network() ||
                    strncmp(text, "unix:///", 8) == 0))
    return false;
  return strncmp(text, "tcp://", 6) != 0 ||
         (address_parse(text, clock_now(), &address) == 0 && address.loopback);
}

/* With each address that is left goes an equal share of the time that is left. */
static int connect_to(struct haul_node *node, const struct haul_directory_entry *entry,
                      int64_t until, struct haul_peer **peer) {
  int code = 0;
  for (unsigned i = 0; i < entry->address_count; i++) {
    const char *text = entry->addresses[i];
    if (is_elsewhere(node, entry, text))
      continue;
    int64_t now = clock_now(), share = (until - now) / (entry->address_count - i);
    code = peer_reach(node, text, entry->id,
                      until == HAUL_FOREVER || share < 0 ? until : now + share, peer);
    if (code == 0)
      return 0;
  }
  return code ? code
              : error_set(HAUL_ECONNECT, 0, entry->node,
                          "let it listen on an address of its network, or tell of one: haul serve "
                          "--advertise",
                          "it can be reached from its own host alone (%s)", entry->addresses[0]);
}

int directory_connect(struct haul_node *node, const char *address, int64_t until,
                      struct haul_peer **peer) {
  size_t count = DIRECTORY_FOUND;
  struct haul_directory_entry *entries = alloc_zero(count, sizeof *entries);
  if (!entries)
    return error_memory("directory");
  uint32_t random;
  random_bytes(&random, sizeof random);
  int code = find(node, address, until, entries, &count);
  /* A node of this name is meant; else one of those that have the region, each as often. */
  bool by_node = code == 0 && entries[0].kind == HAUL_DIRECTORY_NODE;
  size_t tries = code ? 0 : by_node ? 1 : count;
  for (size_t i = 0; i < tries; i++) {
    const struct haul_directory_entry *entry = &entries[by_node ? 0 : (random + i) % count];
    int64_t now = clock_now();
    int64_t share = until == HAUL_FOREVER ? until : now + (until - now) / (int64_t)(tries - i);
    code = connect_to(node, entry, share, peer);
    if (code == 0)
      break;
  }
  alloc_free(entries);
  return code;
}

/* ---- Walks ---- */

struct haul_directory {
  struct haul_node *node;
  struct idle *idle;
  struct directory_walk *walk;
};

HAUL_API int haul_directory_open(haul_node *node, const char *directory, haul_deadline until,
                                 haul_directory **out) {
  int code = node_enter("haul_directory_open", node);
  if (code)
    return code;
  if (!out)
    return error_set(HAUL_EINVAL, 0, directory, NULL, "no place for the walk");
  if (!directory_is_address(directory))
    return error_set(HAUL_EADDRESS, 0, directory, "etcd://HOST[:PORT]/PREFIX",
                     "not a directory's address");
  haul_directory *walk = alloc_zero(1, sizeof *walk);
  if (!walk)
    return error_memory("directory");
  node_retain(node);
  walk->idle = borrow(node, directory);
  code = walk->idle ? table.module->walk_open(walk->idle->directory, until, &walk->walk)
                    : haul_error_last()->code;
  if (code) {
    if (walk->idle)
      give_back(node, walk->idle);
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
  int code = error_enter("haul_directory_next");
  if (code)
    return code;
  if (!walk || !event)
    return error_set(HAUL_EINVAL, 0, NULL, NULL, "no walk, or no place for the event");
  return table.module->walk_next(walk->walk, until, event);
}

HAUL_API void haul_directory_close(haul_directory *walk) {
  if (!walk)
    return;
  table.module->walk_close(walk->walk);
  give_back(walk->node, walk->idle);
  node_put(walk->node);
  alloc_free(walk);
}
