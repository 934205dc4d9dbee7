/* SPDX-License-Identifier: MIT */
#include "storage/service/exported.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "storage/error.h"
#include "storage/source.h"

int exported_check(const struct haul_storage_export *export, struct haul_storage_error *error) {
  struct source *source;
  int status = local_source_open(export->path, !export->writable, &source);
  if (!status) {
    source->ops->close(source);
    return 0;
  }
  return storage_fail(error, status, status == -ENOTDIR ? "give the folder it lies in" : "",
                      "cannot export %s: %s", export->path, strerror(-status));
}

/* ---- Copies ---- */

static int copy_grants(struct haul_storage_export *to, const struct haul_storage_export *from) {
  struct haul_grant *grants = calloc(from->grant_count, sizeof *grants);
  to->grants = grants;
  if (!grants)
    return -ENOMEM;
  for (; to->grant_count < from->grant_count; to->grant_count++) {
    const struct haul_grant *grant = &from->grants[to->grant_count];
    grants[to->grant_count] = (struct haul_grant){strdup(grant->who), grant->rights};
    if (!grants[to->grant_count].who)
      return -ENOMEM;
  }
  return 0;
}

static int copy(struct haul_storage_export *to, const struct haul_storage_export *from) {
  to->writable = from->writable;
  to->name = strdup(from->name);
  to->path = strdup(from->path);
  if (!to->name || !to->path)
    return -ENOMEM;
  return from->grant_count ? copy_grants(to, from) : 0;
}

int exported_copy(struct exported *exports, const struct haul_storage_export *list, size_t count) {
  int status = 0;
  exports->list = calloc(count ? count : 1, sizeof *exports->list);
  if (!exports->list)
    return -ENOMEM;
  for (size_t i = 0; i < count && !status; i++)
    status = copy(&exports->list[exports->count++], &list[i]);
  return status;
}

/* What was allocated here, but for the caller const. */
static void drop(const void *copied) {
  free((void *)(uintptr_t)copied);
}

void exported_free(struct exported *exports) {
  for (size_t i = 0; i < exports->count; i++) {
    const struct haul_storage_export *export = &exports->list[i];
    for (size_t k = 0; k < export->grant_count; k++)
      drop(export->grants[k].who);
    drop(export->grants);
    drop(export->name);
    drop(export->path);
  }
  free(exports->list);
}

/* ---- Rights ---- */

unsigned exported_rights(const struct haul_storage_export *export, const char *identity) {
  unsigned all = HAUL_READ | (export->writable ? HAUL_WRITE : 0u), rights = 0;
  if (export->grant_count == 0)
    return all;
  for (size_t i = 0; i < export->grant_count; i++)
    if (strcmp(export->grants[i].who, "*") == 0 ||
        (*identity && strcmp(export->grants[i].who, identity) == 0))
      rights |= export->grants[i].rights;
  return rights & all;
}

const struct haul_storage_export *exported_find(const struct exported *exports, const char *name,
                                                const char *identity) {
  for (size_t i = 0; i < exports->count; i++)
    if (strcmp(exports->list[i].name, name) == 0)
      return exported_rights(&exports->list[i], identity) & HAUL_READ ? &exports->list[i] : NULL;
  return NULL;
}
