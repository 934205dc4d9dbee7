/* SPDX-License-Identifier: MIT
 * Shared by the sources of the module. */
#ifndef HAUL_DIRECTORY_ETCD_H
#define HAUL_DIRECTORY_ETCD_H

#include "directory/http.h"
#include "directory/record.h"

struct directory {
  const struct directory_library *library;
  struct http *http;
  char prefix[128];
};

int directory_no_memory(const struct directory *directory);
/* A request for the keys from `from` up to, not including, `to`; `to` NULL: one key. NULL: no
 * memory. */
json_t *range_of(const char *from, const char *to);
/* Parses a pair of key and value of etcd; false: not an entry of haul, or, with errno ENOMEM, no
 * memory. */
bool entry_of(const struct directory *directory, const json_t *pair,
              struct haul_directory_entry *entry);

int walk_open(struct directory *directory, int64_t until, struct directory_walk **walk);
int walk_next(struct directory_walk *walk, int64_t until, struct haul_directory_event *event);
void walk_close(struct directory_walk *walk);

#endif
