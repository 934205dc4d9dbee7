/* SPDX-License-Identifier: MIT
 * What the parts of `haul cache` share. */
#ifndef HAUL_COMMAND_CACHE_H
#define HAUL_COMMAND_CACHE_H

#include <stdbool.h>
#include <stdint.h>

#include <haul/cache.h>

#include "command.h"
#include "common/log.h"
#include "common/options.h"
#include "common/output.h"

struct cache_values {
  struct text_list listen;
  const char *name, *directory, *priority, *only, *file_tier, *device;
  uint64_t capacity, file_capacity, device_capacity;
  int64_t lease, timeout;
  unsigned blocks, replicas, ready_fd;
  int insecure, if_absent, json;
  struct log_values log;
};

/* Runs a store until a signal. Returns an exit status. */
int cache_serve(const struct command *command, const struct cache_values *given, const char *file);

struct cache_client {
  const struct cache_values *given;
  const char *nodes; /* as on the command line */
  int priority;
  haul_node *node;
  haul_cache *cache;
  haul_deadline until;
  char directory[ADDRESS_MAX]; /* or */
  size_t count;
  char addresses[HAUL_CACHE_MEMBERS_MAX][ADDRESS_MAX];
  /* cache_check_length */
  unsigned asked; /* stores */
  uint64_t largest;
};

/* Of the nodes that it names. Returns an exit status; call cache_client_close in any case. */
int cache_client_open(const struct command *command, struct cache_client *client);
void cache_client_close(struct cache_client *client);

/* Of a call to one member after the other: one that hangs leaves half of the time that is left. */
haul_deadline cache_share(const struct cache_client *client, unsigned member);

/* Fails for a block that no store takes, which it asks about long ones. */
int cache_check_length(struct cache_client *client, const char *file, uint64_t length);

struct haul_cache_item cache_item(const char *key);

unsigned cache_lease_seconds(const struct cache_values *given);

/* "memory", "file", "device" */
const char *cache_tier_text(unsigned tier);

/* Writes "key", and "key_hex" where JSON cannot have its bytes: a zero, or invalid UTF-8. */
void cache_key_json(struct json *json, const char *key, size_t length);

/* An action of a client. `operands` follow the nodes. Returns an exit status. */
typedef int cache_action(struct cache_client *client, char **operands);
cache_action cache_put, cache_get, cache_exists, cache_rm, cache_pin, cache_unpin, cache_ls,
    cache_stat, cache_check, cache_repair;

#endif
