/* SPDX-License-Identifier: MIT */
#include "node/setting.h"

#include <ctype.h>
#include <errno.h>
#include <limits.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "memory/staging.h"
#include "node/message.h"
#include "node/node.h"

#define MS 1000000LL
#define S  1000000000LL

enum form { TEXT, SWITCH, TIME, COUNT, BYTES, EAL, POOLS, PATHS, FILE_NAME };

struct setting {
  const char *name; /* in capitals, after HAUL_, that of its variable */
  enum form form;
  size_t field;
  uint64_t least, most; /* of a file, the first: its place in config->files */
  const char *word;     /* that stands for a number, or NULL */
  uint64_t meaning;
  const char *zero; /* what 0 is told as; NULL: it does not occur, or is told as it is */
};

#define FIELD(name)  offsetof(struct config, values.name)
#define MEMORY(name) offsetof(struct config, memory.name)
#define RULES        offsetof(struct config, rules)

/* Not here: what a program relies on (`progress`, `peer_events`). */
static const struct setting settings[] = {
    {"name", TEXT, FIELD(name), 0, 0, NULL, 0, NULL},
    {"insecure", SWITCH, FIELD(insecure), 0, 1, NULL, 0, NULL},
    {"spin", TIME, FIELD(spin_ns), 0, INT64_MAX, "always", HAUL_SPIN_ALWAYS, NULL},
    {"liveness", TIME, FIELD(liveness_ns), 10 * MS, INT64_MAX, NULL, 0, NULL},
    {"deadline", TIME, FIELD(transfer_ns), 1, INT64_MAX, NULL, 0, NULL},
    {"tcp_rails", COUNT, FIELD(tcp_rails), 1, 16, NULL, 0, "1 within a host, 2 beyond"},
    {"copy_threads", COUNT, FIELD(copy_threads), 1, 16, "none", UINT_MAX, NULL},
    {"message_window", BYTES, FIELD(message_window), MESSAGE_WINDOW_MIN, MESSAGE_WINDOW_MAX, NULL,
     0, NULL},
    {"pool", BYTES, FIELD(pool_bytes), 1, SIZE_MAX - 1, "none", SIZE_MAX, NULL},
    {"max_peers", COUNT, FIELD(max_peers), 1, UINT_MAX, NULL, 0, NULL},
    {"max_regions", COUNT, FIELD(max_regions), 1, 1048576, NULL, 0, NULL},
    {"max_transfers", COUNT, FIELD(max_transfers), 1, UINT_MAX, NULL, 0, NULL},
    {"staging", BYTES, FIELD(staging_bytes), STAGING_LEAST, SIZE_MAX, NULL, 0, NULL},
    {"tcp_rate", BYTES, FIELD(tcp_rate), TCP_RATE_LEAST, SIZE_MAX - 1, "0", SIZE_MAX, NULL},
    {"paths", PATHS, RULES, 0, 0, NULL, 0, NULL},
    {"estimates_only", SWITCH, FIELD(estimates_only), 0, 1, NULL, 0, NULL},
    {"tcp_zero_copy", BYTES, FIELD(tcp_zero_copy), 4096, SIZE_MAX - 1, "none", SIZE_MAX, "auto"},
    {"key", FILE_NAME, FIELD(key), 0, 0, NULL, 0, NULL},
    {"certificate", FILE_NAME, FIELD(certificate), 1, 0, NULL, 0, NULL},
    {"private_key", FILE_NAME, FIELD(private_key), 2, 0, NULL, 0, NULL},
    {"authority", FILE_NAME, FIELD(authority), 3, 0, NULL, 0, NULL},
    {"directory_login", FILE_NAME, FIELD(directory_login), 4, 0, NULL, 0, NULL},
    {"plain_data", SWITCH, FIELD(plain_data), 0, 1, NULL, 0, NULL},
    {"process_tls", SWITCH, FIELD(process_tls), 0, 1, NULL, 0, NULL},
    {"handshake", TIME, FIELD(handshake_ns), MS, INT64_MAX, NULL, 0, NULL},
    {"max_peers_each", COUNT, FIELD(max_peers_each), 1, UINT_MAX, NULL, 0, NULL},
    {"max_lookups", COUNT, FIELD(max_lookups), 1, 1048576, "none", UINT_MAX, NULL},
    {"peer_bytes", BYTES, FIELD(peer_bytes), 1 << 20, SIZE_MAX, NULL, 0, NULL},
    {"any_user", SWITCH, FIELD(any_user), 0, 1, NULL, 0, NULL},
    {"any_observer", SWITCH, FIELD(any_observer), 0, 1, NULL, 0, NULL},
    {"dpdk_eal", EAL, MEMORY(dpdk_eal), 0, 0, NULL, 0, NULL},
    {"dpdk_hugepages", BYTES, MEMORY(dpdk_hugepages), 1, SIZE_MAX - 1, "none", SIZE_MAX, "none"},
    {"dpdk_pool", POOLS, MEMORY(dpdk_pool), 0, 1048576, NULL, 0, NULL},
    {"dpdk_wait", TIME, MEMORY(dpdk_wait_ns), 0, INT64_MAX, NULL, 0, NULL},
};
_Static_assert(sizeof settings / sizeof settings[0] == SETTINGS_COUNT, "one origin a setting");

static void *field_of(const struct setting *setting, struct config *config) {
  return (char *)config + setting->field;
}

/* A number, or whether there is a text. */
static uint64_t load(const struct setting *setting, const struct config *config) {
  const void *field = (const char *)config + setting->field;
  switch (setting->form) {
  case TEXT:
  case FILE_NAME:
    return *(const char *const *)field != NULL;
  case SWITCH:
    return *(const int *)field != 0;
  case TIME:
    return (uint64_t) * (const int64_t *)field;
  case COUNT:
    return *(const unsigned *)field;
  case BYTES:
    return *(const size_t *)field;
  case PATHS:
    return config->rules.count;
  case EAL:
  case POOLS:
    return *(const char *)field != '\0';
  }
  return 0;
}

static void store(const struct setting *setting, uint64_t number, struct config *config) {
  void *field = field_of(setting, config);
  if (setting->form == SWITCH)
    *(int *)field = (int)number;
  else if (setting->form == TIME)
    *(int64_t *)field = (int64_t)number;
  else if (setting->form == COUNT)
    *(unsigned *)field = (unsigned)number;
  else if (setting->form == BYTES)
    *(size_t *)field = (size_t)number;
}

/* ---- Values, as they are written ---- */

struct unit {
  const char *name;
  uint64_t size;
};
static const struct unit times[] = {{"min", 60 * S}, {"s", S},  {"ms", MS},
                                    {"us", 1000},    {"ns", 1}, {NULL, 0}};
static const struct unit sizes[] = {{"T", UINT64_C(1) << 40},
                                    {"G", UINT64_C(1) << 30},
                                    {"M", UINT64_C(1) << 20},
                                    {"K", UINT64_C(1) << 10},
                                    {"", 1},
                                    {NULL, 0}};

/* Digits and a unit, nothing else. */
static bool read_number(const char *text, const struct unit *units, uint64_t *number) {
  char *end;
  if (!isdigit((unsigned char)*text))
    return false;
  errno = 0;
  *number = strtoull(text, &end, 10);
  while (units->name && strcmp(units->name, end) != 0)
    units++;
  return errno == 0 && units->name && !__builtin_mul_overflow(*number, units->size, number);
}

static bool read_switch(const char *text, uint64_t *number) {
  *number = strcmp(text, "yes") == 0 || strcmp(text, "1") == 0;
  return *number || strcmp(text, "no") == 0 || strcmp(text, "0") == 0;
}

/* "4096,1024,256,64": one number a class, no more of each than `most`. */
static bool read_pools(const char *text, uint64_t most, uint32_t pools[4]) {
  for (size_t i = 0; i < 4; i++) {
    char *end;
    if (!isdigit((unsigned char)*text))
      return false;
    errno = 0;
    uint64_t count = strtoull(text, &end, 10);
    if (errno || count > most || *end != (i < 3 ? ',' : '\0'))
      return false;
    pools[i] = (uint32_t)count;
    text = end + 1;
  }
  return true;
}

static void write_pools(const uint32_t pools[4], char *text, size_t size) {
  snprintf(text, size, "%u,%u,%u,%u", pools[0], pools[1], pools[2], pools[3]);
}

static bool read_value(const struct setting *setting, const char *text, uint64_t *number) {
  static const struct unit ones[] = {{"", 1}, {NULL, 0}};
  *number = setting->meaning;
  if (setting->word && strcmp(text, setting->word) == 0)
    return true;
  if (setting->zero && strcmp(text, setting->zero) == 0) {
    *number = 0;
    return true;
  }
  if (setting->form == SWITCH)
    return read_switch(text, number);
  /* 0 has no unit. */
  const struct unit *units = setting->form == BYTES                             ? sizes
                             : setting->form == COUNT || strcmp(text, "0") == 0 ? ones
                                                                                : times;
  return read_number(text, units, number) && *number >= setting->least && *number <= setting->most;
}

static void write_number(uint64_t number, const struct unit *units, char *text, size_t size) {
  while (number % units->size)
    units++;
  snprintf(text, size, "%llu%s", (unsigned long long)(number / units->size), units->name);
}

static void write_value(const struct setting *setting, uint64_t number, char *text, size_t size) {
  if (setting->word && number == setting->meaning)
    snprintf(text, size, "%s", setting->word);
  else if (setting->form == SWITCH)
    snprintf(text, size, "%s", number ? "yes" : "no");
  else if (number == 0 || setting->form == COUNT)
    snprintf(text, size, "%llu", (unsigned long long)number);
  else
    write_number(number, setting->form == TIME ? times : sizes, text, size);
}

/* ---- Mistakes ---- */

static int bad_value(const struct setting *setting, const char *object, const char *text) {
  char least[32], most[32], word[32] = "";
  if (setting->form == TEXT)
    return error_set(HAUL_EINVAL, 0, object,
                     "a node's name is 1 to 63 printable ASCII bytes without blanks",
                     "%s is no name", text);
  if (setting->form == FILE_NAME)
    return error_set(HAUL_EINVAL, 0, object, "a path of 1 to 255 bytes, or none",
                     "%s: %.60s is no path of a file", setting->name, text);
  if (setting->form == EAL)
    return error_set(HAUL_EINVAL, 0, object,
                     "auto, or up to 255 printable ASCII bytes that begin with '-', without those "
                     "that end a program (-h, -v)",
                     "%s: these are no arguments of EAL's", setting->name);
  if (setting->form == POOLS)
    return error_set(HAUL_EINVAL, 0, object,
                     "four numbers from 0 to 1048576 with commas between: how many objects of 64 "
                     "KiB, 1 MiB, 16 MiB and 256 MiB",
                     "%s: %.60s cannot be set", setting->name, text);
  if (setting->form == PATHS)
    return error_set(HAUL_EINVAL, 0, object,
                     "auto; or map, rdma or tcp; or several of them, each but the last with the "
                     "bytes up to which it is taken, growing: tcp:64K,rdma",
                     "%s: %.60s cannot be set", setting->name, text);
  if (setting->form == SWITCH)
    return error_set(HAUL_EINVAL, 0, object, "yes (or 1), or no (or 0)",
                     "%s: %.60s is neither yes nor no", setting->name, text);
  write_value(setting, setting->least, least, sizeof least);
  write_value(setting, setting->most, most, sizeof most);
  if (setting->word)
    snprintf(word, sizeof word, ", or %s", setting->word);
  if (setting->zero && setting->word)
    snprintf(word, sizeof word, ", %s or %s", setting->word, setting->zero);
  return error_set(HAUL_EINVAL, 0, object,
                   error_hint("%s from %s to %s%s",
                              setting->form == TIME ? "a time with its unit (ns, us, ms, s, min),"
                              : setting->form == BYTES
                                  ? "bytes, with K, M, G or T behind the number,"
                                  : "a number",
                              least, setting->most >= INT64_MAX ? "any" : most, word),
                   "%s: %.60s cannot be set", setting->name, text);
}

struct value {
  uint64_t number;
  uint32_t pools[4];
  struct path_rules rules;
};

static bool read_any(const struct setting *setting, const char *text, struct value *value) {
  switch (setting->form) {
  case TEXT:
    return name_is_valid(text, sizeof((struct config *)0)->name - 1);
  case FILE_NAME:
    return text[0] && strlen(text) < sizeof((struct config *)0)->files[0];
  case EAL:
    return strcmp(text, "auto") == 0 || memory_eal_is_valid(text);
  case POOLS:
    return read_pools(text, setting->most, value->pools);
  case PATHS:
    return rules_parse(text, &value->rules);
  default:
    return read_value(setting, text, &value->number);
  }
}

/* "none" is as what is not set. */
static void store_file(const struct setting *setting, const char *text, struct config *config) {
  uint64_t i = setting->least;
  bool none = strcmp(text, "none") == 0;
  snprintf(config->files[i], sizeof config->files[i], "%s", none ? "" : text);
  *(const char **)field_of(setting, config) = config->files[i];
}

static void store_any(const struct setting *setting, const char *text, const struct value *value,
                      struct config *config) {
  if (setting->form == TEXT) {
    snprintf(config->name, sizeof config->name, "%s", text);
    config->values.name = config->name;
  } else if (setting->form == FILE_NAME) {
    store_file(setting, text, config);
  } else if (setting->form == EAL) {
    snprintf(config->memory.dpdk_eal, sizeof config->memory.dpdk_eal, "%s",
             strcmp(text, "auto") == 0 ? "" : text);
  } else if (setting->form == POOLS) {
    memcpy(config->memory.dpdk_pool, value->pools, sizeof value->pools);
  } else if (setting->form == PATHS) {
    config->rules = value->rules;
  } else {
    store(setting, value->number, config);
  }
}

/* ---- For all forms ---- */

int setting_find(const char *name) {
  for (unsigned i = 0; i < SETTINGS_COUNT; i++)
    if (strcmp(settings[i].name, name) == 0)
      return (int)i;
  return -1;
}

void setting_variable(unsigned i, char *variable, size_t size) {
  snprintf(variable, size, "HAUL_%s", settings[i].name);
  for (char *at = variable; *at; at++)
    *at = (char)toupper((unsigned char)*at);
}

/* Those of memory are for the process, and no field of the call's. */
bool setting_in_call(unsigned i, const struct config *config) {
  const struct setting *setting = &settings[i];
  return setting->field < offsetof(struct config, memory) && setting->form != TEXT &&
         setting->form != FILE_NAME && load(setting, config);
}

int setting_read(unsigned i, const char *text, const char *object, bool store,
                 struct config *config) {
  struct value value = {.number = 0};
  if (!read_any(&settings[i], text, &value))
    return bad_value(&settings[i], object, text);
  if (store)
    store_any(&settings[i], text, &value, config);
  return 0;
}

/* Of a long path the end. */
static void tell_file(const char *path, char *text, size_t size) {
  size_t length = strlen(path);
  bool whole = length < size;
  snprintf(text, size, "%s%s", whole ? "" : "...",
           !*path  ? "none"
           : whole ? path
                   : path + (length - size + 4));
}

void setting_tell(unsigned i, const struct config *config, struct haul_setting *told) {
  const struct setting *setting = &settings[i];
  size_t size = sizeof told->value;
  snprintf(told->name, sizeof told->name, "%s", setting->name);
  uint64_t number = load(setting, config);
  if (setting->form == TEXT)
    snprintf(told->value, size, "%s", config->name);
  else if (setting->form == FILE_NAME)
    tell_file(number ? *(const char *const *)((const char *)config + setting->field) : "",
              told->value, size);
  else if (setting->form == EAL)
    snprintf(told->value, size, "%.*s", (int)size - 1, number ? config->memory.dpdk_eal : "auto");
  else if (setting->form == POOLS)
    write_pools(config->memory.dpdk_pool, told->value, size);
  else if (setting->form == PATHS)
    rules_format(&config->rules, told->value, size);
  else if (number == 0 && setting->zero)
    snprintf(told->value, size, "%s", setting->zero);
  else
    write_value(setting, number, told->value, size);
}
