/* SPDX-License-Identifier: MIT */
#include "fabric/exports.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "core/alloc.h"
#include "core/error.h"
#include "core/futex.h"
#include "core/sys.h"
#include "core/wire.h"
#include "fabric/operation.h"
#include "memory/shm.h"

struct grant {
  unsigned rights;
  char who[64];
};

struct export {
  uint64_t handle;
  struct haul_region *region;
  unsigned rights;  /* of all peers */
  const char *name; /* behind the grants */
  uint32_t count;
  bool lent; /* found by its handle alone */
  struct grant grants[];
};

struct exports {
  pthread_mutex_t lock;    /* guards the rest; a leaf, taken after the loop's lock */
  struct export **by_name; /* sorted, `count` */
  struct export **by_slot; /* `slots`, NULL where free */
  uint32_t count, slots, limit, next_slot;
  uint32_t restricted; /* entries without rights for all peers */
  struct shm page;
  _Atomic uint32_t *words; /* the validity page; NULL until a peer needs it */
  _Atomic bool watched;
  _Atomic uint32_t changes;
};

int exports_open(unsigned limit, struct exports **out) {
  struct exports *exports = alloc_zero(1, sizeof *exports);
  if (!exports)
    return error_memory("published regions");
  pthread_mutex_init(&exports->lock, NULL);
  exports->limit = limit < EXPORT_SLOTS_MAX ? limit : EXPORT_SLOTS_MAX;
  exports->page.fd = -1;
  *out = exports;
  return 0;
}

_Atomic uint32_t *exports_changes(struct exports *exports) {
  atomic_store(&exports->watched, true);
  return &exports->changes;
}

void exports_note_change(struct exports *exports) {
  atomic_fetch_add(&exports->changes, 1);
  if (atomic_load(&exports->watched))
    futex_wake(&exports->changes);
}

/* With the lock. */
static void set_word(struct exports *exports, uint64_t handle, uint32_t value) {
  if (exports->words)
    atomic_store(&exports->words[EXPORT_SLOT(handle)], value);
}

/* With the lock. */
static struct export *unlink_entry(struct exports *exports, uint32_t at) {
  struct export *entry = exports->by_name[at];
  exports->count--;
  exports->restricted -= entry->rights == 0;
  memmove(exports->by_name + at, exports->by_name + at + 1, (exports->count - at) * sizeof(void *));
  exports->by_slot[EXPORT_SLOT(entry->handle)] = NULL;
  set_word(exports, entry->handle, 0);
  return entry;
}

/* Without the lock. */
static void drop_entry(struct exports *exports, struct export *entry) {
  if (!entry->lent)
    exports_note_change(exports);
  atomic_fetch_sub(&entry->region->names, 1);
  region_put(entry->region);
  alloc_free(entry);
}

void exports_clear(struct exports *exports) {
  for (struct export *entry;;) {
    pthread_mutex_lock(&exports->lock);
    entry = exports->count > 0 ? unlink_entry(exports, exports->count - 1) : NULL;
    pthread_mutex_unlock(&exports->lock);
    if (!entry)
      return;
    drop_entry(exports, entry);
  }
}

void exports_close(struct exports *exports) {
  if (!exports)
    return;
  exports_clear(exports);
  if (exports->words) {
    munmap((void *)exports->words, exports->page.length);
    shm_close(&exports->page);
  }
  alloc_free(exports->by_name);
  alloc_free(exports->by_slot);
  pthread_mutex_destroy(&exports->lock);
  alloc_free(exports);
}

void exports_forked(struct exports *exports) {
  if (exports->page.fd >= 0)
    close(exports->page.fd);
}

/* The index of `name`, or its insertion point. With the lock. */
static uint32_t position(const struct exports *exports, const char *name, bool *found) {
  uint32_t low = 0, high = exports->count;
  *found = false;
  while (low < high) {
    uint32_t middle = low + (high - low) / 2;
    int order = strcmp(exports->by_name[middle]->name, name);
    if (order == 0)
      *found = true;
    if (order < 0)
      low = middle + 1;
    else
      high = middle;
  }
  return low;
}

bool name_is_valid(const char *name, size_t most) {
  size_t length = name ? strnlen(name, most + 1) : 0;
  if (length == 0 || length > most)
    return false;
  for (size_t i = 0; i < length; i++)
    if (!wire_is_printable(name[i]) || name[i] == ' ')
      return false;
  return true;
}

/* Grows both arrays if needed, and picks a free slot. With the lock. */
static int reserve_slot(struct exports *exports, uint32_t *slot) {
  if (exports->count == exports->limit)
    return error_set(HAUL_ELIMIT, 0, NULL, "raise max_regions, or publish fewer, larger regions",
                     "%u regions are published, the limit of this node", exports->limit);
  if (exports->count == exports->slots) {
    uint32_t slots = exports->slots ? exports->slots * 2 : 16;
    slots = slots < exports->limit ? slots : exports->limit;
    void *by_name = alloc_resize(exports->by_name, slots * sizeof(void *));
    exports->by_name = by_name ? by_name : exports->by_name;
    void *by_slot = by_name ? alloc_resize(exports->by_slot, slots * sizeof(void *)) : NULL;
    if (!by_slot)
      return error_memory("published regions");
    exports->by_slot = by_slot;
    memset(exports->by_slot + exports->slots, 0, (slots - exports->slots) * sizeof(void *));
    exports->slots = slots;
  }
  /* Round robin: a word of the validity page is reused as late as possible. */
  do
    exports->next_slot = (exports->next_slot + 1) % exports->slots;
  while (exports->by_slot[exports->next_slot]);
  *slot = exports->next_slot;
  return 0;
}

static uint64_t new_handle(uint32_t slot) {
  uint64_t random;
  random_bytes(&random, sizeof random);
  return (random & ~(uint64_t)0xfffff) | slot;
}

static int check_grants(const char *name, const struct haul_grant *grants, size_t count) {
  if (count == 0 || count > HAUL_GRANTS_MAX)
    return error_set(HAUL_EINVAL, 0, name, error_hint("pass 1 to %d grants", HAUL_GRANTS_MAX),
                     "%zu grants", count);
  for (size_t i = 0; i < count; i++) {
    if (!name_is_valid(grants[i].who, sizeof((struct grant *)NULL)->who - 1))
      return error_set(HAUL_EINVAL, 0, name,
                       "name a key, a certificate, uid:N or * in 1 to 63 printable ASCII "
                       "characters without blanks",
                       "a grant to an invalid identity");
    if (grants[i].rights == 0 || (grants[i].rights & ~(HAUL_READ | HAUL_WRITE)))
      return error_set(HAUL_EINVAL, 0, name, "pass HAUL_READ, HAUL_WRITE or both",
                       "invalid rights 0x%x", grants[i].rights);
  }
  return 0;
}

static struct export *new_entry(struct haul_region *region, const char *name,
                                const struct haul_grant *grants, size_t count) {
  size_t length = strlen(name) + 1, room = count * sizeof(struct grant);
  struct export *entry = alloc_zero(1, sizeof *entry + room + length);
  if (!entry) {
    error_memory("published region");
    return NULL;
  }
  entry->region = region;
  entry->name = memcpy((char *)entry->grants + room, name, length);
  for (size_t i = 0; i < count; i++) {
    struct grant *grant = &entry->grants[entry->count];
    if (strcmp(grants[i].who, "*") == 0) {
      entry->rights |= grants[i].rights;
      continue;
    }
    grant->rights = grants[i].rights;
    snprintf(grant->who, sizeof grant->who, "%s", grants[i].who);
    entry->count++;
  }
  return entry;
}

/* Takes over the entry. */
static int insert(struct exports *exports, struct export *entry, uint64_t *handle) {
  struct haul_region *region = entry->region;
  bool taken, lent = entry->lent;
  uint32_t slot = 0;
  pthread_mutex_lock(&exports->lock);
  uint32_t at = position(exports, entry->name, &taken);
  int code =
      taken ? error_set(HAUL_EEXIST, 0, entry->name, "unpublish it first, or choose another name",
                        "this node publishes a region under this name")
            : reserve_slot(exports, &slot);
  if (code == 0) {
    entry->handle = *handle = new_handle(slot);
    memmove(exports->by_name + at + 1, exports->by_name + at,
            (exports->count - at) * sizeof(void *));
    exports->by_name[at] = entry;
    exports->by_slot[slot] = entry;
    exports->count++;
    exports->restricted += entry->rights == 0;
    region_retain(region);
    atomic_fetch_add(&region->names, 1);
    atomic_store_explicit(&region->was_published, true, memory_order_relaxed);
    set_word(exports, entry->handle, EXPORT_STAMP(entry->handle));
  }
  pthread_mutex_unlock(&exports->lock);
  if (code)
    alloc_free(entry);
  else if (!lent)
    exports_note_change(exports);
  return code;
}

int exports_add(struct exports *exports, struct haul_region *region, const char *name,
                const struct haul_grant *grants, size_t count, uint64_t *handle) {
  if (!name_is_valid(name, NAME_MAX_BYTES))
    return error_set(HAUL_EINVAL, 0, name && strlen(name) <= NAME_MAX_BYTES ? name : NULL,
                     "pass a name of 1 to 255 printable ASCII characters without blanks",
                     "invalid name");
  int code = check_grants(name, grants, count);
  if (code)
    return code;
  struct export *entry = new_entry(region, name, grants, count);
  return entry ? insert(exports, entry, handle) : HAUL_ENOMEM;
}

int exports_lend(struct exports *exports, struct haul_region *region, const char *name,
                 const char *identity, uint64_t *handle) {
  struct export *entry = new_entry(region, name, &(struct haul_grant){identity, HAUL_READ}, 1);
  if (!entry)
    return HAUL_ENOMEM;
  entry->lent = true;
  return insert(exports, entry, handle);
}

int exports_remove(struct exports *exports, struct haul_region *region, const char *name,
                   uint64_t *handle) {
  struct export *entry = NULL;
  pthread_mutex_lock(&exports->lock);
  bool found = false;
  uint32_t at = 0;
  if (name) {
    at = position(exports, name, &found);
    found = found && exports->by_name[at]->region == region;
  } else {
    while (at < exports->count && exports->by_name[at]->region != region)
      at++;
    found = at < exports->count;
  }
  if (found)
    entry = unlink_entry(exports, at);
  pthread_mutex_unlock(&exports->lock);
  if (!entry)
    return error_set(HAUL_ENAME, 0, name, NULL, "the region is not published under this name");
  *handle = entry->handle;
  drop_entry(exports, entry);
  return 0;
}

static unsigned rights_of(const struct export *entry, const char *identity) {
  unsigned rights = entry->rights;
  for (uint32_t i = 0; i < entry->count; i++)
    if (strcmp(entry->grants[i].who, identity) == 0)
      rights |= entry->grants[i].rights;
  return rights;
}

/* Without a reference to the region. False: the identity has no rights. With the lock. */
static bool fill_view(const struct export *entry, const char *identity, struct export_view *view) {
  view->handle = entry->handle;
  view->region = NULL;
  view->length = entry->region->memory.length;
  view->place = entry->region->memory.place;
  view->rights = rights_of(entry, identity);
  memcpy(view->name, entry->name, strlen(entry->name) + 1);
  return view->rights != 0;
}

/* With a reference. With the lock. */
static bool find_entry(const struct export *entry, const char *identity, struct export_view *view) {
  if (!fill_view(entry, identity, view))
    return false;
  view->region = entry->region;
  region_retain(view->region);
  return true;
}

int exports_find_name(struct exports *exports, const char *name, const char *identity,
                      struct export_view *view) {
  bool found;
  pthread_mutex_lock(&exports->lock);
  uint32_t at = position(exports, name, &found);
  found = found && !exports->by_name[at]->lent && find_entry(exports->by_name[at], identity, view);
  pthread_mutex_unlock(&exports->lock);
  return found ? 0 : HAUL_ENAME;
}

int exports_find(struct exports *exports, uint64_t handle, const char *identity,
                 struct export_view *view) {
  uint32_t slot = EXPORT_SLOT(handle);
  pthread_mutex_lock(&exports->lock);
  const struct export *entry = slot < exports->slots ? exports->by_slot[slot] : NULL;
  bool found = entry && entry->handle == handle && find_entry(entry, identity, view);
  pthread_mutex_unlock(&exports->lock);
  return found ? 0 : HAUL_ESTALE;
}

int export_check(const struct export_view *view, enum haul_operation operation, uint64_t offset,
                 uint64_t length) {
  unsigned needed = operation_rights(operation);
  uint64_t end;
  if (!memory_alive(&view->region->memory)) /* an import that its owner released */
    return HAUL_ESTALE;
  if ((view->rights & needed) != needed)
    return HAUL_EACCESS;
  if (__builtin_add_overflow(offset, length, &end) || end > view->region->memory.length)
    return HAUL_ERANGE;
  return 0;
}

size_t exports_list(struct exports *exports, const char *after, const char *identity,
                    struct export_view *views, size_t room) {
  bool found;
  size_t written = 0;
  pthread_mutex_lock(&exports->lock);
  uint32_t at = position(exports, after, &found);
  for (at += found; at < exports->count && written < room; at++)
    written +=
        !exports->by_name[at]->lent && fill_view(exports->by_name[at], identity, &views[written]);
  pthread_mutex_unlock(&exports->lock);
  return written;
}

size_t exports_count(struct exports *exports, const char *identity) {
  pthread_mutex_lock(&exports->lock);
  bool all = !identity || exports->restricted == 0;
  size_t count = all ? exports->count : 0;
  for (uint32_t i = 0; !all && i < exports->count; i++)
    count += !exports->by_name[i]->lent && rights_of(exports->by_name[i], identity) != 0;
  pthread_mutex_unlock(&exports->lock);
  return count;
}

/* With the lock. */
static int make_page(struct exports *exports) {
  void *view;
  size_t length = exports->limit * sizeof(uint32_t);
  int code = shm_create_mapped("haul-validity", length, &exports->page, &view);
  if (code)
    return code;
  exports->words = view;
  for (uint32_t i = 0; i < exports->count; i++)
    set_word(exports, exports->by_name[i]->handle, EXPORT_STAMP(exports->by_name[i]->handle));
  return 0;
}

int exports_validity_page(struct exports *exports, int *descriptor, uint32_t *slots,
                          uint8_t capability[16]) {
  pthread_mutex_lock(&exports->lock);
  int code = exports->words ? 0 : make_page(exports);
  if (code == 0)
    code = shm_descriptor(&exports->page, false, descriptor);
  if (code == 0) {
    memcpy(capability, exports->page.footer->capability, 16);
    *slots = exports->limit;
  }
  pthread_mutex_unlock(&exports->lock);
  return code;
}
