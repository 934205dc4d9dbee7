/* SPDX-License-Identifier: MIT
 * A tree that another node exports, as a source. Its files have no descriptor on this host. */
#ifndef HAUL_STORAGE_SERVICE_REMOTE_H
#define HAUL_STORAGE_SERVICE_REMOTE_H

#include "storage/service/dial.h"

struct remote_config {
  struct dial_config dial;
  bool read_only;
};

int remote_source_open(const struct remote_config *config, struct source **source,
                       struct haul_storage_error *error);

#endif
