/* SPDX-License-Identifier: MIT
 * The regions that a node publishes: by name for lookups, by handle for transports. Peers reach no
 * other memory of it. `identity` is that of a peer (struct link), whose rights are those that the
 * region's grants give to it or to all peers. */
#ifndef HAUL_FABRIC_EXPORTS_H
#define HAUL_FABRIC_EXPORTS_H

#include <stdatomic.h>

#include "haul/access.h"
#include "memory/region.h"

struct exports;

#define NAME_MAX_BYTES 255

/* A handle is 20 bits of slot, and 44 random bits that change with every use of the slot. */
#define EXPORT_SLOT(handle)  ((uint32_t)((handle)&0xfffff))
#define EXPORT_STAMP(handle) ((uint32_t)((handle) >> 20) | 1u)
#define EXPORT_SLOTS_MAX     (1u << 20)

struct export_view {
  uint64_t handle;
  struct haul_region *region; /* a reference from exports_find; NULL in a list */
  uint64_t length;
  struct haul_place place;
  unsigned rights;
  char name[NAME_MAX_BYTES + 1];
};

int exports_open(unsigned limit, struct exports **exports);
void exports_close(struct exports *exports);
/* In a forked child: closes the validity page's descriptor and touches nothing else. */
void exports_forked(struct exports *exports);
/* Removes all entries. */
void exports_clear(struct exports *exports);

/* Whether it is 1 to `most` printable ASCII bytes without blanks. */
bool name_is_valid(const char *name, size_t most);

/* HAUL_EINVAL (the name or a grant is invalid), HAUL_EEXIST, HAUL_ELIMIT. Takes a reference to the
 * region, and copies the grants. */
int exports_add(struct exports *exports, struct haul_region *region, const char *name,
                const struct haul_grant *grants, size_t count, uint64_t *handle);
/* Removes the entry, returns its handle and drops its reference. HAUL_ENAME: the region is not
 * published under the name. A NULL name stands for any of the region's names. */
int exports_remove(struct exports *exports, struct haul_region *region, const char *name,
                   uint64_t *handle);

/* HAUL_ENAME or HAUL_ESTALE without a detail, also where the identity has no rights. On success the
 * view has its rights, and a reference to the region that is the caller's. */
int exports_find_name(struct exports *exports, const char *name, const char *identity,
                      struct export_view *view);
int exports_find(struct exports *exports, uint64_t handle, const char *identity,
                 struct export_view *view);
/* Checks a peer's range before anything is touched: HAUL_ESTALE, HAUL_EACCESS, HAUL_ERANGE. */
int export_check(const struct export_view *view, enum haul_operation operation, uint64_t offset,
                 uint64_t length);

/* Lists the entries that the identity has rights to, sorted by name, from the first one behind
 * `after` ("" for all), without references. Returns how many were written, at most `room`. */
size_t exports_list(struct exports *exports, const char *after, const char *identity,
                    struct export_view *views, size_t room);
/* How many of them there are; with a NULL identity, of all entries. */
size_t exports_count(struct exports *exports, const char *identity);

/* A word that changes whenever an entry is added or removed, or exports_note_change is called. From
 * the first call on its sleepers are woken (core/futex.h). */
_Atomic uint32_t *exports_changes(struct exports *exports);
void exports_note_change(struct exports *exports);

/* The validity page: *slots words, each the stamp of the slot's handle while that is published,
 * else 0, in memory that peers of this host map read-only. Made on the first call. The descriptor
 * is the caller's; `capability` is for shm_attach. */
int exports_validity_page(struct exports *exports, int *descriptor, uint32_t *slots,
                          uint8_t capability[16]);

#endif
