/* SPDX-License-Identifier: MIT
 * The regions that a node publishes: by name for lookups, by handle for transports. What is not
 * here cannot be reached; and what is, by whom it was granted to: `who` is a peer's identity, "" of
 * one who proved nothing. */
#ifndef HAUL_FABRIC_EXPORTS_H
#define HAUL_FABRIC_EXPORTS_H

#include <stdatomic.h>

#include "haul/access.h"
#include "memory/region.h"

struct exports;

#define NAME_MAX_BYTES 255

/* A handle is 20 bits of slot and 44 random bits that change with every use of the slot. */
#define EXPORT_SLOT(handle)  ((uint32_t)((handle)&0xfffff))
#define EXPORT_STAMP(handle) ((uint32_t)((handle) >> 20) | 1u)
#define EXPORT_SLOTS_MAX     (1u << 20)

struct export_view {
  uint64_t handle;
  struct haul_region *region; /* exports_find gives a reference with it; NULL in a list */
  uint64_t length;
  struct haul_place place;
  unsigned rights;
  char name[NAME_MAX_BYTES + 1];
};

int exports_open(unsigned limit, struct exports **exports);
void exports_close(struct exports *exports);
/* In a forked child: closes the board's descriptor and touches nothing else. */
void exports_forked(struct exports *exports);
/* Forgets everything, for good: nothing is found any more. */
void exports_clear(struct exports *exports);

/* Whether it is 1 to `most` printable ASCII bytes without blanks. */
bool name_is_valid(const char *name, size_t most);

/* HAUL_EINVAL for a name or a grant that is not valid, HAUL_EEXIST, HAUL_ELIMIT. Takes a reference
 * to the region; the grants are copied. */
int exports_add(struct exports *exports, struct haul_region *region, const char *name,
                const struct haul_grant *grants, size_t count, uint64_t *handle);
/* Forgets the name and gives its handle; drops the reference. HAUL_ENAME when the region is not
 * published under it. NULL for the name: any one of the region's. */
int exports_remove(struct exports *exports, struct haul_region *region, const char *name,
                   uint64_t *handle);

/* HAUL_ENAME or HAUL_ESTALE without a detail, also where `who` has no right at all; on success a
 * reference to the region is the caller's, and the view's rights are those of `who`. */
int exports_find_name(struct exports *exports, const char *name, const char *who,
                      struct export_view *view);
int exports_find(struct exports *exports, uint64_t handle, const char *who,
                 struct export_view *view);
/* Checks a peer's range before anything is touched: HAUL_ESTALE, HAUL_EACCESS, HAUL_ERANGE. */
int export_check(const struct export_view *view, enum haul_operation operation, uint64_t offset,
                 uint64_t length);

/* Copies the published entries that `who` has a right to, sorted by name, from the first one behind
 * `after` ("" for all); no references. Returns how many were written, at most `room`. */
size_t exports_list(struct exports *exports, const char *after, const char *who,
                    struct export_view *views, size_t room);
/* How many of them there are; NULL: of all. */
size_t exports_count(struct exports *exports, const char *who);

/* A word that changes with whatever is published or taken back, or where it is noted; from the
 * first call on its sleepers are woken (core/futex.h). */
_Atomic uint32_t *exports_changes(struct exports *exports);
void exports_note_change(struct exports *exports);

/* A word for each slot that holds the handle's stamp while it is published and 0 after, in memory
 * that peers of this host may map to read: made on the first call. A read-only descriptor, the
 * caller's; *slots words lie in it; `capability` is shm_attach's. */
int exports_validity_page(struct exports *exports, int *descriptor, uint32_t *slots,
                          uint8_t capability[16]);

#endif
