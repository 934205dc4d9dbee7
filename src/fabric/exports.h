/* SPDX-License-Identifier: MIT
 * The regions that a node publishes: by name for lookups, by handle for transports. Peers can
 * access no other memory of the node. `identity` is a peer's (struct link); its rights are the
 * union of the region's grants to it and to all peers. */
#ifndef HAUL_FABRIC_EXPORTS_H
#define HAUL_FABRIC_EXPORTS_H

#include <stdatomic.h>

#include "haul/access.h"
#include "memory/region.h"

struct exports;

#define NAME_MAX_BYTES 255

/* A handle is 20 bits of slot and 44 random bits, new for each use of the slot. */
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

/* 1 to `most` printable ASCII bytes without blanks. */
bool name_is_valid(const char *name, size_t most);

/* HAUL_EINVAL (invalid name or grant), HAUL_EEXIST, HAUL_ELIMIT. Takes a reference to the region
 * and copies the grants. */
int exports_add(struct exports *exports, struct haul_region *region, const char *name,
                const struct haul_grant *grants, size_t count, uint64_t *handle);
/* Lets peers of the identity read the region by its handle alone: no lookup or list has it.
 * HAUL_EEXIST, HAUL_ELIMIT. Such a name begins with a blank, so that it is none of exports_add. */
int exports_lend(struct exports *exports, struct haul_region *region, const char *name,
                 const char *identity, uint64_t *handle);
/* Drops the entry's reference and returns its handle. HAUL_ENAME: the region is not published under
 * the name. A NULL name matches any name of the region. */
int exports_remove(struct exports *exports, struct haul_region *region, const char *name,
                   uint64_t *handle);

/* HAUL_ENAME or HAUL_ESTALE without a detail, also for an identity without rights. The view has the
 * identity's rights and a reference to the region for the caller. */
int exports_find_name(struct exports *exports, const char *name, const char *identity,
                      struct export_view *view);
int exports_find(struct exports *exports, uint64_t handle, const char *identity,
                 struct export_view *view);
/* Checks a peer's range before anything is touched: HAUL_ESTALE, HAUL_EACCESS, HAUL_ERANGE. */
int export_check(const struct export_view *view, enum haul_operation operation, uint64_t offset,
                 uint64_t length);

/* Lists the entries that the identity has rights to, sorted by name, after `after` ("": from the
 * first), without references. Returns the number written, at most `room`. */
size_t exports_list(struct exports *exports, const char *after, const char *identity,
                    struct export_view *views, size_t room);
/* The number of such entries; with a NULL identity, of all entries, lent ones included. */
size_t exports_count(struct exports *exports, const char *identity);

/* A futex (core/futex.h) that changes when an entry is added or removed, and on
 * exports_note_change. Sleepers are woken from the first call on. */
_Atomic uint32_t *exports_changes(struct exports *exports);
void exports_note_change(struct exports *exports);

/* The validity page, which peers of this host map read-only: *slots words, each the stamp of the
 * slot's published handle, else 0. The first call makes it. The caller closes the descriptor;
 * `capability` is for shm_attach. */
int exports_validity_page(struct exports *exports, int *descriptor, uint32_t *slots,
                          uint8_t capability[16]);

#endif
