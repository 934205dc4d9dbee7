/* SPDX-License-Identifier: MIT
 * A node's entries in a directory: its own, and one for each region that it publishes to all peers.
 * They are kept up to date by one thread at a time: the caller's until they are all there, then one
 * that sleeps on the futex that counts publications and listeners. All entries hang on one lease.
 * An update that failed is repeated. A member may carry out the failed one later, and undo a newer
 * one; so the entries move to another lease then, as updates are bound to the lease. */
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "core/alloc.h"
#include "core/error.h"
#include "core/futex.h"
#include "core/sys.h"
#include "core/thread.h"
#include "node/directory.h"
#include "node/listen.h"

#define SECOND        1000000000LL
#define LEASE_DEFAULT 10u /* seconds, as the next two */
#define LEASE_MIN     2u
#define LEASE_MAX     3600u
#define REQUEST_NS    (5 * SECOND) /* for one request to the directory */
#define RETRY_NS      (SECOND / 2) /* before a failed update is repeated for the first time */
#define END_NS        SECOND       /* for ending the lease */
#define VIEWS_MAX     64           /* published regions that are read at a time */

/* A region that is published, or has an entry, or both. The handle changes with each publication
 * of the name. */
struct region_entry {
  char *name;
  uint64_t published; /* its handle; 0: not published */
  uint64_t entered;   /* the handle whose entry is in the directory; 0: none, or not known */
};

struct registration {
  struct haul_node *node;
  const struct directory_module *module;
  struct directory *directory;
  struct haul_register_options options;
  char *advertise;
  unsigned seconds; /* of the lease */
  pthread_t thread;
  bool has_thread;
  _Atomic bool stop;
  int64_t lease; /* 0: none */
  int64_t renew_at;
  bool failed;                      /* the last update */
  struct haul_directory_entry self; /* as it was entered */
  bool claimed;                     /* `self` is entered under `lease` */
  bool uncertain;                   /* an update under `lease` may take effect later */
  struct region_entry *regions;     /* sorted by name */
  size_t region_count;
  struct haul_directory_entry batch[DIRECTORY_AT_ONCE];
  size_t batch_count;
  int reported; /* what options.changed was called with last */
};

static void add_address(struct haul_directory_entry *entry, const char *address) {
  if (entry->address_count < HAUL_DIRECTORY_ADDRESSES && *address &&
      strlen(address) < sizeof entry->addresses[0])
    memcpy(entry->addresses[entry->address_count++], address, strlen(address) + 1);
}

/* "tcp://HOST:PORT", whose host the readers resolve, or a Unix socket. */
static bool is_advertisable(const char *address) {
  if (strncmp(address, "unix://", 7) == 0)
    return address[7] != '\0';
  if (strncmp(address, "tcp://", 6) != 0 || strchr(address, ' '))
    return false;
  const char *host = address + 6, *bracket = strrchr(host, ']');
  const char *port = strrchr(bracket ? bracket : host, ':');
  return port && port > host && port[1] && port[1 + strspn(port + 1, "0123456789")] == '\0';
}

static int add_advertised(const char *list, struct haul_directory_entry *entry) {
  char one[160];
  for (const char *at = list; at; at = strchr(at, ',') ? strchr(at, ',') + 1 : NULL) {
    size_t length = strcspn(at, ",");
    snprintf(one, sizeof one, "%.*s", (int)(length < sizeof one ? length : 0), at);
    if (!is_advertisable(one) || entry->address_count == HAUL_DIRECTORY_ADDRESSES)
      return error_set(HAUL_EINVAL, 0, list,
                       "separate addresses by commas: tcp://HOST:PORT or unix:///PATH",
                       "not a list of up to %d addresses to advertise", HAUL_DIRECTORY_ADDRESSES);
    add_address(entry, one);
  }
  return 0;
}

/* A listener on all addresses is entered with the host's address that reached the directory. */
static void add_listeners(struct registration *registration, struct haul_directory_entry *entry) {
  char address[160], host[64];
  registration->module->own_host(registration->directory, host, sizeof host);
  for (size_t i = 0; listener_address(registration->node, i, address, sizeof address); i++) {
    bool any_4 = strncmp(address, "tcp://0.0.0.0:", 14) == 0;
    bool any_6 = strncmp(address, "tcp://[::]:", 11) == 0;
    if ((any_6 && !*host) || (any_4 && (!*host || *host == '[')))
      continue;
    listener_set_host(address, sizeof address, host);
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
                         "call haul_node_listen first, or set `advertise` to the node's addresses",
                         "the node listens on no address to enter");
}

static int64_t request_deadline(int64_t until) {
  int64_t own = clock_now() + REQUEST_NS;
  return own < until ? own : until;
}

/* Thousands of nodes that started together, or whose directory was away, would else come together
 * for ever. */
static int64_t draw_between(int64_t low, int64_t high) {
  uint32_t drawn;
  random_bytes(&drawn, sizeof drawn);
  return low + (int64_t)((double)drawn / 0x1p32 * (double)(high - low));
}

/* Takes a lease, or renews it when it is due: after a third to a half of it. */
static int keep_lease(struct registration *registration, int64_t until) {
  const struct directory_module *module = registration->module;
  int64_t now = clock_now();
  int code = 0;
  if (registration->lease && now < registration->renew_at)
    return 0;
  if (!registration->claimed)
    registration->lease = 0; /* nothing hangs on it, and it may have expired */
  if (registration->lease)
    code = module->renew(registration->directory, registration->lease, &registration->self, until);
  else
    code =
        module->lease(registration->directory, registration->seconds, until, &registration->lease);
  int64_t lease = (int64_t)registration->seconds * SECOND;
  if (code == 0)
    registration->renew_at = now + draw_between(lease / 3, lease / 2);
  return code;
}

static bool has_same_addresses(const struct haul_directory_entry *a,
                               const struct haul_directory_entry *b) {
  bool same = a->address_count == b->address_count;
  for (unsigned i = 0; same && i < a->address_count; i++)
    same = strcmp(a->addresses[i], b->addresses[i]) == 0;
  return same;
}

static int update_self(struct registration *registration, int64_t until) {
  struct haul_directory_entry self;
  int code = describe_self(registration, &self);
  if (code || (registration->claimed && has_same_addresses(&self, &registration->self)))
    return code;
  code = registration->module->claim(registration->directory, registration->lease, &self, until);
  if (code)
    return code;
  registration->self = self;
  registration->claimed = true;
  for (size_t i = 0; i < registration->region_count; i++)
    registration->regions[i].entered = 0; /* each entry repeats the node's addresses */
  return 0;
}

/* Merges the regions published to all peers into those with entries; both are sorted by name. A
 * region that is published meanwhile may not fit; the next update adds it. */
static int merge_published(struct registration *registration) {
  struct exports *exports = registration->node->exports;
  const struct region_entry *old = registration->regions;
  size_t olds = registration->region_count, next = 0, count = 0, got;
  size_t room = olds + exports_count(exports, "");
  struct region_entry *merged = alloc_zero(room + 1, sizeof *merged);
  struct export_view *views = alloc_zero(VIEWS_MAX, sizeof *views);
  char after[NAME_MAX_BYTES + 1] = "";
  int code = 0;
  if (!merged || !views) {
    alloc_free(views);
    alloc_free(merged);
    return error_memory("directory");
  }
  while (code == 0 && (got = exports_list(exports, after, "", views, VIEWS_MAX)) > 0) {
    for (size_t i = 0; i < got && code == 0; i++) {
      for (; next < olds && strcmp(old[next].name, views[i].name) < 0; next++)
        merged[count++] = (struct region_entry){.name = old[next].name};
      bool known = next < olds && strcmp(old[next].name, views[i].name) == 0;
      if (!known && count + (olds - next) == room)
        continue;
      struct region_entry region = {known ? old[next].name : alloc_string(views[i].name),
                                    views[i].handle, known ? old[next].entered : 0};
      if (region.name)
        merged[count++] = region;
      else
        code = error_memory("directory");
      next += known;
    }
    snprintf(after, sizeof after, "%s", views[got - 1].name);
  }
  alloc_free(views);
  for (; next < olds; next++)
    merged[count++] = (struct region_entry){.name = old[next].name};
  alloc_free(registration->regions);
  registration->regions = merged;
  registration->region_count = count;
  return code;
}

/* With many regions the lease may be due between two batches. */
static int send_batch(struct registration *registration, bool drop, int64_t until) {
  const struct directory_module *module = registration->module;
  size_t count = registration->batch_count;
  registration->batch_count = 0;
  int code = count ? keep_lease(registration, request_deadline(until)) : 0;
  if (code || !count)
    return code;
  code = (drop ? module->drop : module->put)(registration->directory, registration->lease,
                                             registration->batch, count, request_deadline(until));
  registration->uncertain |= code != 0;
  return code > 0 ? 0 : code;
}

/* Puts the entries that are missing or outdated, or drops those of regions that are not published
 * any more. */
static int send_regions(struct registration *registration, bool drop, int64_t until) {
  int code = 0;
  registration->batch_count = 0;
  for (size_t i = 0; code == 0 && i < registration->region_count; i++) {
    const struct region_entry *region = &registration->regions[i];
    struct export_view view = {.length = 0};
    if (drop ? region->published != 0 : !region->published || region->published == region->entered)
      continue;
    if (!drop) {
      if (exports_find_name(registration->node->exports, region->name, "", &view) != 0)
        continue; /* unpublished meanwhile: the next update drops the entry */
      region_put(view.region);
    }
    struct haul_directory_entry *entry = &registration->batch[registration->batch_count++];
    *entry = registration->self;
    entry->kind = HAUL_DIRECTORY_REGION;
    snprintf(entry->name, sizeof entry->name, "%s", region->name);
    entry->length = view.length;
    entry->place = view.place;
    entry->rights = view.rights;
    if (registration->batch_count == DIRECTORY_AT_ONCE)
      code = send_batch(registration, drop, until);
  }
  return code ? code : send_batch(registration, drop, until);
}

static int update_regions(struct registration *registration, int64_t until) {
  int code = merge_published(registration);
  if (code == 0)
    code = send_regions(registration, false, until);
  if (code == 0)
    code = send_regions(registration, true, until);
  if (code)
    return code;
  size_t kept = 0;
  for (size_t i = 0; i < registration->region_count; i++) {
    struct region_entry *region = &registration->regions[i];
    if (region->published)
      registration->regions[kept++] =
          (struct region_entry){region->name, region->published, region->published};
    else
      alloc_free(region->name);
  }
  registration->region_count = kept;
  return 0;
}

static int update_all(struct registration *registration, int64_t until) {
  int code = keep_lease(registration, request_deadline(until));
  if (code == 0)
    code = update_self(registration, request_deadline(until));
  return code ? code : update_regions(registration, until);
}

/* The next update enters all under another lease. This one expires: entries remain meanwhile. */
static void leave_lease(struct registration *registration) {
  registration->lease = 0;
  registration->claimed = false;
  registration->uncertain = false;
}

/* The directory drops all entries with their lease. */
static void end_lease(struct registration *registration) {
  if (registration->lease)
    registration->module->end(registration->directory, registration->lease, clock_now() + END_NS);
  for (size_t i = 0; i < registration->region_count; i++)
    alloc_free(registration->regions[i].name);
  alloc_free(registration->regions);
  registration->regions = NULL;
  registration->region_count = 0;
  leave_lease(registration);
}

/* Makes the directory's entries agree with the node. If the lease has expired, all are entered
 * again. */
static int update(struct registration *registration, int64_t until) {
  if (registration->uncertain)
    leave_lease(registration);
  int code = update_all(registration, until);
  if (code == HAUL_ESTALE) {
    end_lease(registration);
    code = update_all(registration, until);
  }
  if (code || !registration->uncertain)
    return code;
  leave_lease(registration);
  return update_all(registration, until);
}

static void report(struct registration *registration, int code) {
  if ((code == 0) == (registration->reported == 0))
    return;
  registration->reported = code;
  log_write(&registration->node->fabric.log, code ? LOG_UNREGISTERED : LOG_REGISTERED,
            (struct haul_log_field[]){{"code", code ? haul_error_name(code) : NULL},
                                      {"reason", code ? haul_error_last()->text : NULL},
                                      {0}});
  if (registration->options.changed && !atomic_load(&registration->stop))
    registration->options.changed(registration->options.user, code);
}

/* When the next update is due without a change. A second failure in a row is no accident: then the
 * nodes of a directory that is away spread their updates over a third of the lease. */
static int64_t next_update(struct registration *registration, int code) {
  int64_t lease = (int64_t)registration->seconds * SECOND;
  bool again = registration->failed;
  registration->failed = code != 0;
  if (code == 0)
    return registration->renew_at;
  return clock_now() +
         (again ? draw_between(lease / 6, lease / 3) : draw_between(RETRY_NS / 2, RETRY_NS));
}

/* After a failure publications do not shorten the wait: each would be another try. */
static void await_change(const struct registration *registration, _Atomic uint32_t *changes,
                         uint32_t seen, int code, int64_t until) {
  for (;;) {
    uint32_t now = atomic_load(changes); /* before `stop`, which is followed by a change */
    if (atomic_load(&registration->stop) || clock_now() >= until || (code == 0 && now != seen))
      return;
    futex_wait(changes, now, until);
  }
}

static void *keep_entries(void *argument) {
  struct registration *registration = argument;
  _Atomic uint32_t *changes = exports_changes(registration->node->exports);
  error_enter("haul_node_register");
  while (!atomic_load(&registration->stop)) {
    uint32_t seen = atomic_load(changes);
    int code = update(registration, HAUL_FOREVER);
    report(registration, code);
    await_change(registration, changes, seen, code, next_update(registration, code));
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
  atomic_store(&registration->stop, false); /* or it would end the next request */
  end_lease(registration);
  if (registration->directory)
    registration->module->close(registration->directory);
  alloc_free(registration->advertise);
  alloc_free(registration);
}

static int read_options(struct registration *registration,
                        const struct haul_register_options *given) {
  struct haul_register_options *options = &registration->options;
  if (given && (given->size == 0 || given->size > sizeof *options))
    return error_set(HAUL_EINVAL, 0, NULL, "initialize the options with HAUL_REGISTER_OPTIONS_INIT",
                     "invalid size of the options: %u", given->size);
  if (given)
    memcpy(options, given, given->size);
  registration->seconds = options->lease_seconds ? options->lease_seconds : LEASE_DEFAULT;
  if (registration->seconds < LEASE_MIN || registration->seconds > LEASE_MAX)
    return error_set(HAUL_EINVAL, 0, NULL, NULL,
                     "invalid lease_seconds '%u': expected %u to %u, for example %u",
                     registration->seconds, LEASE_MIN, LEASE_MAX, LEASE_DEFAULT);
  if (options->advertise && !(registration->advertise = alloc_string(options->advertise)))
    return error_memory("directory");
  options->advertise = NULL;
  return 0;
}

/* Enters the node. A name that another node has is awaited until `until`. */
static int enter_node(struct registration *registration, int64_t until) {
  int code;
  while (((code = update(registration, until)) == HAUL_EEXIST || code == HAUL_ESTALE) &&
         clock_now() + RETRY_NS < until && !atomic_load(&registration->stop))
    nanosleep(&(struct timespec){0, RETRY_NS}, NULL);
  return code;
}

static int registration_start(struct registration *registration, const char *directory,
                              const struct haul_register_options *options, int64_t until) {
  int code = read_options(registration, options);
  if (code)
    return code;
  registration->module = directory_module();
  if (!registration->module)
    return haul_error_last()->code;
  code = directory_open_url(registration->node, registration->module, directory,
                            &registration->stop, &registration->directory);
  if (code == 0)
    code = enter_node(registration, until);
  if (code)
    return code;
  int system = thread_start(&registration->thread, keep_entries, registration);
  registration->has_thread = system == 0;
  return system ? error_system(system, directory, "pthread_create") : 0;
}

HAUL_API int haul_node_register(haul_node *node, const char *directory,
                                const struct haul_register_options *options, haul_deadline until) {
  int code = node_enter("haul_node_register", node, "node is NULL");
  if (code == 0)
    code = error_if_passed(until, directory);
  if (code)
    return code;
  if (!directory_is_address(directory))
    return error_set(HAUL_EADDRESS, 0, directory, "pass an address: etcd://HOST[:PORT]/PREFIX",
                     "not the address of a directory");
  struct registration *registration = alloc_zero(1, sizeof *registration);
  if (!registration)
    return error_memory("directory");
  registration->node = node;
  node_retain(node); /* another thread may close it, which stops the registration */
  pthread_mutex_lock(&node->directory_lock);
  bool taken = node->registration || node->registering || node_is_closed(node);
  if (!taken)
    node->registering = registration;
  pthread_mutex_unlock(&node->directory_lock);
  code = taken ? error_set(HAUL_EINVAL, 0, directory, NULL,
                           "the node is registered already, or closed")
               : registration_start(registration, directory, options, until);
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
