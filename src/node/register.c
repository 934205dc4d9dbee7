/* SPDX-License-Identifier: MIT
 * A node's entries in a directory. One thread at a time: the caller's until all stands there, then
 * one of its own, which sleeps on the word that counts what is published and listened on. What went
 * wrong is tried again from where it was; entries that are put or dropped twice stay the same. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "core/alloc.h"
#include "core/error.h"
#include "core/futex.h"
#include "core/sys.h"
#include "core/thread.h"
#include "node/directory.h"

#define SECOND          1000000000LL
#define LEASE_DEFAULT   10u
#define LEASE_LEAST     2u
#define LEASE_MOST      3600u
#define PATIENCE_NS     (5 * SECOND) /* with one request */
#define PAUSE_NS        (SECOND / 2) /* before the next attempt */
#define LAST_NS         SECOND       /* for taking everything back */
#define VIEWS_AT_A_TIME 64

/* A name that the directory has, or should have. */
struct told {
  uint64_t handle;
  char *name;
};

struct told_list {
  struct told *items;
  size_t count, room;
};

struct registration {
  struct haul_node *node;
  const struct directory_module *module;
  struct directory *directory;
  struct haul_register_options options;
  char *advertise;
  unsigned seconds;
  pthread_t thread;
  bool has_thread;
  _Atomic bool stop;
  int64_t lease; /* 0: none */
  int64_t renew_at;
  struct haul_directory_entry self; /* as it stands there */
  bool claimed;
  struct told_list told; /* sorted by name */
  struct haul_directory_entry batch[DIRECTORY_AT_ONCE];
  size_t batched;
  int state; /* what `changed` was told */
};

/* ---- Lists of names ---- */

/* What is there is to be put once more. */
static void doubt(struct told_list *list) {
  for (size_t i = 0; i < list->count; i++)
    list->items[i].handle = 0;
}

static void clear_told(struct told_list *list) {
  for (size_t i = 0; i < list->count; i++)
    alloc_free(list->items[i].name);
  alloc_free(list->items);
  *list = (struct told_list){0};
}

static int add_told(struct told_list *list, const char *word, uint64_t handle) {
  if (list->count == list->room) {
    size_t room = list->room ? list->room * 2 : 64;
    struct told *items = alloc_resize(list->items, room * sizeof *items);
    if (!items)
      return error_memory("directory");
    list->items = items;
    list->room = room;
  }
  char *name = alloc_string(word);
  if (!name)
    return error_memory("directory");
  list->items[list->count++] = (struct told){handle, name};
  return 0;
}

/* What is published to everybody, in order. */
static int list_published(struct haul_node *node, struct told_list *list) {
  struct export_view *views = alloc_zero(VIEWS_AT_A_TIME, sizeof *views);
  char after[NAME_MAX_BYTES + 1] = "";
  size_t got;
  int code = 0;
  if (!views)
    return error_memory("directory");
  do {
    got = exports_list(node->exports, after, "", views, VIEWS_AT_A_TIME);
    for (size_t i = 0; code == 0 && i < got; i++)
      code = add_told(list, views[i].name, views[i].handle);
    if (got > 0)
      snprintf(after, sizeof after, "%s", views[got - 1].name);
  } while (code == 0 && got == VIEWS_AT_A_TIME);
  alloc_free(views);
  return code;
}

/* ---- This node's own entry ---- */

static void add_address(struct haul_directory_entry *entry, const char *address) {
  if (entry->address_count < HAUL_DIRECTORY_ADDRESSES && *address &&
      strlen(address) < sizeof entry->addresses[0])
    strcpy(entry->addresses[entry->address_count++], address);
}

/* "tcp://HOST:PORT" or a Unix socket's. The host's name is for others to resolve. */
static bool is_advertisable(const char *address) {
  const char *host = address + strlen("tcp://"), *bracket = strrchr(address, ']');
  if (strncmp(address, "unix://", 7) == 0)
    return address[7] != '\0';
  const char *port = strrchr(bracket ? bracket : host, ':');
  return strncmp(address, "tcp://", 6) == 0 && port && port > host && port[1] &&
         strspn(port + 1, "0123456789") == strlen(port + 1) && !strchr(address, ' ');
}

static int add_advertised(const char *list, struct haul_directory_entry *entry) {
  char one[160];
  for (const char *at = list; at; at = strchr(at, ',') ? strchr(at, ',') + 1 : NULL) {
    size_t length = strcspn(at, ",");
    snprintf(one, sizeof one, "%.*s", (int)(length < sizeof one ? length : 0), at);
    if (!is_advertisable(one) || entry->address_count == HAUL_DIRECTORY_ADDRESSES)
      return error_set(
          HAUL_EINVAL, 0, list,
          error_hint("up to %d addresses with commas between: tcp://HOST:PORT or unix:///PATH",
                     HAUL_DIRECTORY_ADDRESSES),
          "not what a node can be reached by");
    add_address(entry, one);
  }
  return 0;
}

static void add_listeners(struct registration *registration, struct haul_directory_entry *entry) {
  char address[160], host[64], port[16];
  for (size_t i = 0; listener_address(registration->node, i, address, sizeof address); i++) {
    bool all_of_4 = strncmp(address, "tcp://0.0.0.0:", 14) == 0;
    if (all_of_4 || strncmp(address, "tcp://[::]:", 11) == 0) {
      registration->module->own_host(registration->directory, host, sizeof host);
      if (!*host || (all_of_4 && *host == '['))
        continue;
      snprintf(port, sizeof port, "%s", strrchr(address, ':'));
      snprintf(address, sizeof address, "tcp://%s%s", host, port);
    }
    add_address(entry, address);
  }
}

static int describe_self(struct registration *registration, struct haul_directory_entry *entry) {
  const struct haul_node *node = registration->node;
  *entry = (struct haul_directory_entry){.kind = HAUL_DIRECTORY_NODE};
  snprintf(entry->node, sizeof entry->node, "%s", node->name);
  memcpy(entry->id, node->fabric.node_id, 16);
  memcpy(entry->boot, node->fabric.boot, 16);
  if (registration->advertise)
    return add_advertised(registration->advertise, entry);
  entry->network = directory_network();
  add_listeners(registration, entry);
  return entry->address_count > 0
             ? 0
             : error_set(HAUL_EINVAL, 0, node->name,
                         "listen first (haul_node_listen), or say where it is reached (advertise)",
                         "the node listens nowhere");
}

/* ---- Keeping it up to date ---- */

static int64_t patience(int64_t until) {
  int64_t own = clock_now() + PATIENCE_NS;
  return own < until ? own : until;
}

static int keep_lease(struct registration *registration, int64_t until) {
  const struct directory_module *module = registration->module;
  int64_t now = clock_now();
  int code = 0;
  if (registration->lease && now >= registration->renew_at && !registration->claimed)
    registration->lease = 0; /* of no use yet, and may have ended */
  if (!registration->lease)
    code =
        module->lease(registration->directory, registration->seconds, until, &registration->lease);
  else if (now >= registration->renew_at)
    code = module->renew(registration->directory, registration->lease, &registration->self, until);
  else
    return 0;
  if (code == 0)
    registration->renew_at = now + (int64_t)registration->seconds * SECOND / 3;
  return code;
}

typedef int send_batch(struct directory *directory, int64_t lease,
                       const struct haul_directory_entry *entries, size_t count, int64_t until);

static int flush(struct registration *registration, send_batch *send, int64_t until) {
  size_t count = registration->batched;
  registration->batched = 0;
  int code = count ? keep_lease(registration, patience(until)) : 0; /* there may be many */
  return code || !count ? code
                        : send(registration->directory, registration->lease, registration->batch,
                               count, patience(until));
}

static struct haul_directory_entry *next_in_batch(struct registration *registration,
                                                  const char *name) {
  struct haul_directory_entry *entry = &registration->batch[registration->batched++];
  *entry = registration->self;
  entry->kind = HAUL_DIRECTORY_REGION;
  snprintf(entry->name, sizeof entry->name, "%s", name);
  return entry;
}

static int put_one(struct registration *registration, const char *name, int64_t until) {
  struct export_view view;
  if (exports_find_name(registration->node->exports, name, "", &view) != 0)
    return 0; /* taken back meanwhile, of which the next round knows */
  struct haul_directory_entry *entry = next_in_batch(registration, name);
  entry->length = view.length;
  entry->place = view.place;
  entry->rights = view.rights;
  region_put(view.region);
  return registration->batched == DIRECTORY_AT_ONCE
             ? flush(registration, registration->module->put, until)
             : 0;
}

static int drop_one(struct registration *registration, const char *name, int64_t until) {
  next_in_batch(registration, name);
  return registration->batched == DIRECTORY_AT_ONCE
             ? flush(registration, registration->module->drop, until)
             : 0;
}

/* Goes through two sorted lists: each name of `list` that `other` has not, or, where `handles`, has
 * with another handle. */
static int each_missing(struct registration *registration, const struct told_list *list,
                        const struct told_list *other, bool handles,
                        int (*take)(struct registration *, const char *, int64_t), int64_t until) {
  int code = 0;
  registration->batched = 0;
  for (size_t i = 0, j = 0; code == 0 && i < list->count; i++) {
    int order = -1;
    while (j < other->count && (order = strcmp(list->items[i].name, other->items[j].name)) > 0)
      j++;
    bool has = j < other->count && order == 0 &&
               (!handles || list->items[i].handle == other->items[j].handle);
    if (!has)
      code = take(registration, list->items[i].name, until);
  }
  return code;
}

/* What is about to be put may stand there from now on, whether that is told or not: `told` becomes
 * both lists, and what is not known for sure in it is without a handle. */
static int expect(struct registration *registration, const struct told_list *published) {
  struct told_list *told = &registration->told, both = {0};
  int code = 0;
  for (size_t i = 0, j = 0; code == 0 && (i < told->count || j < published->count);) {
    int order = i == told->count        ? 1
                : j == published->count ? -1
                                        : strcmp(told->items[i].name, published->items[j].name);
    const struct told *one = order <= 0 ? &told->items[i] : &published->items[j];
    bool sure = order < 0 || (order == 0 && one->handle == published->items[j].handle);
    code = add_told(&both, one->name, sure ? one->handle : 0);
    i += order <= 0;
    j += order >= 0;
  }
  clear_told(code ? &both : told);
  if (code == 0)
    *told = both;
  return code;
}

static int update_names(struct registration *registration, int64_t until) {
  struct told_list published = {0};
  int code = list_published(registration->node, &published);
  if (code == 0)
    code = expect(registration, &published);
  if (code == 0)
    code = each_missing(registration, &published, &registration->told, true, put_one, until);
  if (code == 0)
    code = flush(registration, registration->module->put, until);
  if (code == 0)
    code = each_missing(registration, &registration->told, &published, false, drop_one, until);
  if (code == 0)
    code = flush(registration, registration->module->drop, until);
  clear_told(code ? &published : &registration->told);
  if (code == 0)
    registration->told = published;
  return code;
}

static bool is_where_it_was(const struct haul_directory_entry *now,
                            const struct haul_directory_entry *then) {
  bool same = now->address_count == then->address_count;
  for (unsigned i = 0; same && i < now->address_count; i++)
    same = strcmp(now->addresses[i], then->addresses[i]) == 0;
  return same;
}

static int update_self(struct registration *registration, int64_t until) {
  struct haul_directory_entry self;
  int code = describe_self(registration, &self);
  if (code || (registration->claimed && is_where_it_was(&self, &registration->self)))
    return code;
  code = registration->module->claim(registration->directory, registration->lease, &self, until);
  if (code)
    return code;
  registration->self = self;
  registration->claimed = true;
  doubt(&registration->told); /* each name's entry says where the node is */
  return 0;
}

/* What still stands there with this lease goes with it. */
static void forget(struct registration *registration) {
  if (registration->lease)
    registration->module->end(registration->directory, registration->lease, clock_now() + LAST_NS);
  registration->lease = 0;
  registration->claimed = false;
  clear_told(&registration->told);
}

/* Whatever is to be done now. */
static int update(struct registration *registration, int64_t until) {
  int code = keep_lease(registration, patience(until));
  if (code == 0)
    code = update_self(registration, patience(until));
  if (code == 0)
    code = update_names(registration, until);
  if (code == HAUL_ESTALE) {
    forget(registration);
    code = keep_lease(registration, patience(until));
    if (code == 0)
      code = update_self(registration, patience(until));
    if (code == 0)
      code = update_names(registration, until);
  }
  return code;
}

/* ---- The thread ---- */

static void report(struct registration *registration, int code) {
  if ((code == 0) == (registration->state == 0))
    return;
  registration->state = code;
  log_write(&registration->node->fabric.log, code ? LOG_UNREGISTERED : LOG_REGISTERED,
            (struct haul_log_field[]){{"code", code ? haul_error_name(code) : NULL},
                                      {"reason", code ? haul_error_last()->text : NULL},
                                      {0}});
  if (registration->options.changed && !atomic_load(&registration->stop))
    registration->options.changed(registration->options.user, code);
}

static void *keep(void *argument) {
  struct registration *registration = argument;
  _Atomic uint32_t *changes = exports_changes(registration->node->exports);
  error_enter("haul_node_register");
  while (!atomic_load(&registration->stop)) {
    uint32_t seen = atomic_load(changes);
    int code = update(registration, HAUL_FOREVER);
    report(registration, code);
    int64_t until = registration->renew_at;
    if (code) {
      until = clock_now() + PAUSE_NS;
      seen = atomic_load(changes);
    }
    while (!atomic_load(&registration->stop) && atomic_load(changes) == seen && clock_now() < until)
      futex_wait(changes, seen, until);
  }
  return NULL;
}

void registration_stop(struct registration *registration) {
  atomic_store(&registration->stop, true);
  exports_note_change(registration->node->exports);
}

void registration_end(struct registration *registration) {
  if (!registration)
    return;
  registration_stop(registration);
  if (registration->has_thread)
    pthread_join(registration->thread, NULL);
  atomic_store(&registration->stop, false); /* which would end the last request as well */
  if (registration->lease)
    registration->module->end(registration->directory, registration->lease, clock_now() + LAST_NS);
  clear_told(&registration->told);
  if (registration->directory)
    registration->module->close(registration->directory);
  alloc_free(registration->advertise);
  alloc_free(registration);
}

/* ---- Registering ---- */

static int read_options(struct registration *registration,
                        const struct haul_register_options *given) {
  struct haul_register_options *options = &registration->options;
  if (given && (given->size == 0 || given->size > sizeof *options))
    return error_set(HAUL_EINVAL, 0, NULL, "HAUL_REGISTER_OPTIONS_INIT sets it",
                     "the options' size is not of this version");
  if (given)
    memcpy(options, given, given->size);
  registration->seconds = options->lease_seconds ? options->lease_seconds : LEASE_DEFAULT;
  if (registration->seconds < LEASE_LEAST || registration->seconds > LEASE_MOST)
    return error_set(HAUL_EINVAL, 0, NULL, error_hint("%u to %u", LEASE_LEAST, LEASE_MOST),
                     "a lease of %u seconds", registration->seconds);
  if (options->advertise && !(registration->advertise = alloc_string(options->advertise)))
    return error_memory("directory");
  options->advertise = NULL;
  return 0;
}

/* Until the name is free, or the time is over. */
static int enter(struct registration *registration, int64_t until) {
  int code;
  while (((code = update(registration, until)) == HAUL_EEXIST || code == HAUL_ESTALE) &&
         clock_now() + PAUSE_NS < until && !atomic_load(&registration->stop))
    nanosleep(&(struct timespec){0, PAUSE_NS}, NULL);
  return code;
}

static int start(struct registration *registration, const char *directory,
                 const struct haul_register_options *options, int64_t until) {
  int code = read_options(registration, options);
  if (code)
    return code;
  registration->module = directory_module();
  if (!registration->module)
    return haul_error_last()->code;
  code = directory_dial(registration->node, registration->module, directory, &registration->stop,
                        &registration->directory);
  if (code == 0)
    code = enter(registration, until);
  if (code)
    return code;
  int system = thread_start(&registration->thread, keep, registration);
  registration->has_thread = system == 0;
  return system ? error_system(system, directory, "pthread_create") : 0;
}

HAUL_API int haul_node_register(haul_node *node, const char *directory,
                                const struct haul_register_options *options, haul_deadline until) {
  int code = node_enter("haul_node_register", node);
  if (code)
    return code;
  if (!directory_is_address(directory))
    return error_set(HAUL_EADDRESS, 0, directory, "etcd://HOST[:PORT]/PREFIX",
                     "not a directory's address");
  struct registration *registration = alloc_zero(1, sizeof *registration);
  if (!registration)
    return error_memory("directory");
  registration->node = node;
  node_retain(node); /* it may be closed meanwhile, which stops this */
  pthread_mutex_lock(&node->directory_lock);
  bool taken = node->registration || node->registering || node_is_closed(node);
  if (!taken)
    node->registering = registration;
  pthread_mutex_unlock(&node->directory_lock);
  code = taken ? error_set(HAUL_EINVAL, 0, directory, NULL,
                           "the node stands in a directory already, or is closed")
               : start(registration, directory, options, until);
  pthread_mutex_lock(&node->directory_lock);
  if (!taken)
    node->registering = NULL;
  if (code == 0 && node_is_closed(node))
    code = error_code(HAUL_ECLOSED, directory);
  if (code == 0)
    node->registration = registration;
  pthread_mutex_unlock(&node->directory_lock);
  if (code) {
    struct haul_error error;
    error_save(&error);
    registration_end(registration);
    error_restore(&error);
  }
  node_put(node);
  return code;
}
