/* SPDX-License-Identifier: MIT
 * The trees that a server exports, and for whom. */
#ifndef HAUL_STORAGE_SERVICE_EXPORTED_H
#define HAUL_STORAGE_SERVICE_EXPORTED_H

#include <haul/storage.h>

struct exported {
  size_t count;
  struct haul_storage_export *list;
};

/* What is wrong with a folder is told now, and not to each client. */
int exported_check(const struct haul_storage_export *export, struct haul_storage_error *error);
/* Over zeroed memory. -ENOMEM: exported_free is due all the same. */
int exported_copy(struct exported *exports, const struct haul_storage_export *list, size_t count);
void exported_free(struct exported *exports);

/* What a client of that identity (haul_peer_identity) may do there: HAUL_READ, HAUL_WRITE, both, or
 * nothing, and then it is not to hear of it. */
unsigned exported_rights(const struct haul_storage_export *export, const char *identity);
/* NULL: there is none of that name for it. */
const struct haul_storage_export *exported_find(const struct exported *exports, const char *name,
                                                const char *identity);

#endif
