/* SPDX-License-Identifier: MIT */
#include <errno.h>
#include <limits.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/error.h"
#include "fabric/exports.h"
#include "fabric/transport.h"
#include "memory/staging.h"
#include "node/config.h"
#include "node/message.h"

#define MS  1000000LL
#define S   1000000000LL
#define MIB ((uint64_t)1 << 20)

/* A slower connection would look like a peer that does not read (peer.c). */
#define TCP_RATE_MIN MIB

enum form { NAME, SWITCH, TIME, COUNT, BYTES, EAL, POOLS, PATHS, FILENAME, NICS };

struct setting {
  const char *name; /* HAUL_ and the name in capitals is its variable */
  uint32_t field;   /* offset in struct config */
  uint8_t form;     /* enum form */
  uint8_t index;    /* in config->filenames or rdma.texts */
  bool clamps;      /* a number of the call that is out of range is clamped */
  uint64_t min, max;
  uint64_t initial; /* default; 0: none, or settings_complete computes it */
  const char *word; /* stands for the number `meaning`; or NULL */
  uint64_t meaning;
  const char *zero; /* stands for 0; or NULL */
};

#define VALUE(name)  offsetof(struct config, values.name)
#define MEMORY(name) offsetof(struct config, memory.name)
#define FLAG(title)                                                                                \
  { .name = #title, .form = SWITCH, .field = VALUE(title) }
#define FILE_SETTING(title, i)                                                                     \
  { .name = #title, .form = FILENAME, .field = VALUE(title), .index = i }
#define NUMBER(title, kind, offset, least, most, ...)                                              \
  { .name = title, .form = kind, .field = offset, .min = least, .max = most, __VA_ARGS__ }
#define BY_NIC(title, which, least, most)                                                          \
  { .name = title, .form = NICS, .min = least, .max = most, .index = which }
#define WORD(text, number) .word = text, .meaning = number

/* Not in the table, because programs rely on them: `progress`, `peer_events`. */
static const struct setting settings[] = {
    {.name = "name", .form = NAME, .field = VALUE(name)},
    FLAG(insecure),
    NUMBER("spin", TIME, VALUE(spin_ns), 0, INT64_MAX, WORD("always", HAUL_SPIN_ALWAYS)),
    NUMBER("liveness", TIME, VALUE(liveness_ns), 10 * MS, INT64_MAX, .initial = 5 * S,
           .clamps = true),
    NUMBER("deadline", TIME, VALUE(transfer_ns), 1, INT64_MAX, .initial = 60 * S),
    NUMBER("idle_rails", TIME, VALUE(idle_rails_ns), MS, INT64_MAX - 1, .initial = 60 * S,
           WORD("0", INT64_MAX)),
    NUMBER("tcp_rails", COUNT, VALUE(tcp_rails), 1, 16, .initial = 2),
    NUMBER("copy_threads", COUNT, VALUE(copy_threads), 1, 16, WORD("none", UINT_MAX),
           .clamps = true),
    NUMBER("message_window", BYTES, VALUE(message_window), MESSAGE_WINDOW_MIN, MESSAGE_WINDOW_MAX,
           .initial = MESSAGE_WINDOW_MIN, .clamps = true),
    NUMBER("pool", BYTES, VALUE(pool_bytes), 1, SIZE_MAX - 1, .initial = 256 * MIB,
           WORD("none", SIZE_MAX)),
    NUMBER("pool_warm", BYTES, VALUE(warm_bytes), 0, SIZE_MAX - 1, .zero = "none"),
    NUMBER("max_peers", COUNT, VALUE(max_peers), 1, UINT_MAX, .initial = 1024),
    NUMBER("max_regions", COUNT, VALUE(max_regions), 1, EXPORT_SLOTS_MAX, .initial = 65536,
           .clamps = true),
    NUMBER("max_transfers", COUNT, VALUE(max_transfers), 1, UINT_MAX, .initial = 16384),
    NUMBER("staging", BYTES, VALUE(staging_bytes), STAGING_LEAST, SIZE_MAX,
           .initial = STAGING_DEFAULT),
    NUMBER("tcp_rate", BYTES, VALUE(tcp_rate), TCP_RATE_MIN, SIZE_MAX - 1, .initial = SIZE_MAX,
           WORD("0", SIZE_MAX)),
    {.name = "paths", .form = PATHS, .field = offsetof(struct config, rules)},
    FLAG(estimates_only),
    NUMBER("tcp_zero_copy", BYTES, VALUE(tcp_zero_copy), 4096, SIZE_MAX - 1, WORD("none", SIZE_MAX),
           .zero = "auto"),
    FILE_SETTING(key, 0),
    FILE_SETTING(certificate, 1),
    FILE_SETTING(private_key, 2),
    FILE_SETTING(authority, 3),
    FILE_SETTING(directory_login, 4),
    FLAG(plain_data),
    FLAG(process_tls),
    NUMBER("handshake", TIME, VALUE(handshake_ns), MS, INT64_MAX, .initial = 5 * S, .clamps = true),
    NUMBER("max_peers_each", COUNT, VALUE(max_peers_each), 1, UINT_MAX, .initial = 0),
    NUMBER("max_lookups", COUNT, VALUE(max_lookups), 1, EXPORT_SLOTS_MAX, .initial = UINT_MAX,
           WORD("none", UINT_MAX)),
    NUMBER("peer_bytes", BYTES, VALUE(peer_bytes), MIB, SIZE_MAX, .initial = REQUESTS_MAX * MIB),
    FLAG(any_user),
    FLAG(any_observer),
    {.name = "dpdk_eal", .form = EAL, .field = MEMORY(dpdk_eal)},
    NUMBER("dpdk_hugepages", BYTES, MEMORY(dpdk_hugepages), 1, SIZE_MAX - 1, WORD("none", SIZE_MAX),
           .zero = "none"),
    NUMBER("dpdk_pool", POOLS, MEMORY(dpdk_pool), 0, 1048576, .initial = 0),
    NUMBER("dpdk_wait", TIME, MEMORY(dpdk_wait_ns), 0, INT64_MAX, .initial = 0),
    BY_NIC("rdma_traffic_class", RDMA_TRAFFIC_CLASS, 0, 255),
    BY_NIC("rdma_service_level", RDMA_SERVICE_LEVEL, 0, 15),
    {.name = "rdma_nics", .form = NICS, .index = RDMA_NICS},
    BY_NIC("rdma_gid", RDMA_GID, 0, 255),
    BY_NIC("rdma_pkey", RDMA_PKEY, 1, 65535),
    BY_NIC("rdma_mtu", RDMA_MTU, 256, 4096),
    BY_NIC("rdma_timeout", RDMA_TIMEOUT, 1, 31),
    BY_NIC("rdma_retry_count", RDMA_RETRY_COUNT, 0, 7),
};
_Static_assert(sizeof settings / sizeof settings[0] == SETTINGS_COUNT, "one origin a setting");

static bool is_number(const struct setting *setting) {
  return setting->form == TIME || setting->form == COUNT || setting->form == BYTES ||
         setting->form == SWITCH;
}

static uint64_t load(const struct setting *setting, const struct config *config) {
  const void *field = (const char *)config + setting->field;
  switch (setting->form) {
  case SWITCH:
    return *(const int *)field != 0;
  case TIME:
    return (uint64_t) * (const int64_t *)field;
  case COUNT:
    return *(const unsigned *)field;
  case BYTES:
    return *(const size_t *)field;
  default:
    return 0;
  }
}

static void store(const struct setting *setting, uint64_t number, struct config *config) {
  void *field = (char *)config + setting->field;
  if (setting->form == SWITCH)
    *(int *)field = (int)number;
  else if (setting->form == TIME)
    *(int64_t *)field = (int64_t)number;
  else if (setting->form == COUNT)
    *(unsigned *)field = (unsigned)number;
  else if (setting->form == BYTES)
    *(size_t *)field = (size_t)number;
}

struct unit {
  const char *name;
  uint64_t size;
};
static const struct unit times[] = {{"min", 60 * S}, {"s", S},  {"ms", MS},
                                    {"us", 1000},    {"ns", 1}, {NULL, 0}};
static const struct unit sizes[] = {{"T", MIB << 20}, {"G", MIB << 10}, {"M", MIB},
                                    {"K", MIB >> 10}, {"", 1},          {NULL, 0}};
static const struct unit none[] = {{"", 1}, {NULL, 0}};

static const struct unit *units_of(const struct setting *setting) {
  return setting->form == TIME ? times : setting->form == BYTES ? sizes : none;
}

/* Digits and a unit, nothing else. */
static bool parse_digits(const char *text, const struct unit *units, uint64_t *number) {
  char *end;
  if (*text < '0' || *text > '9')
    return false;
  errno = 0;
  *number = strtoull(text, &end, 10);
  while (units->name && strcmp(units->name, end) != 0)
    units++;
  return errno == 0 && units->name && !__builtin_mul_overflow(*number, units->size, number);
}

static bool parse_number(const struct setting *setting, const char *text, uint64_t *number) {
  *number = setting->meaning;
  if (setting->word && strcmp(text, setting->word) == 0)
    return true;
  *number = 0;
  if (setting->zero && strcmp(text, setting->zero) == 0)
    return true;
  if (setting->form == SWITCH) {
    *number = strcmp(text, "yes") == 0 || strcmp(text, "1") == 0;
    return *number || strcmp(text, "no") == 0 || strcmp(text, "0") == 0;
  }
  /* 0 needs no unit */
  return parse_digits(text, strcmp(text, "0") == 0 ? none : units_of(setting), number) &&
         *number >= setting->min && *number <= setting->max;
}

static void format_number(const struct setting *setting, uint64_t number, char *text, size_t size) {
  const struct unit *unit = number == 0 ? none : units_of(setting);
  while (number % unit->size)
    unit++;
  if (number == 0 && setting->zero)
    snprintf(text, size, "%s", setting->zero);
  else if (setting->word && number == setting->meaning)
    snprintf(text, size, "%s", setting->word);
  else if (setting->form == SWITCH)
    snprintf(text, size, "%s", number ? "yes" : "no");
  else
    snprintf(text, size, "%llu%s", (unsigned long long)(number / unit->size), unit->name);
}

/* "a time of at least 10ms, less than 292 years (units: ns, us, ms, s, min) or always". */
static void describe_range(const struct setting *setting, char *text, size_t size) {
  const char *what = setting->form == TIME    ? "a time"
                     : setting->form == BYTES ? "a number of bytes"
                                              : "a number";
  const char *units = setting->form == TIME    ? " (units: ns, us, ms, s, min)"
                      : setting->form == BYTES ? " (units: K, M, G, T)"
                                               : "";
  char min[32], max[32];
  format_number(setting, setting->min, min, sizeof min);
  format_number(setting, setting->max, max, sizeof max);
  int used = setting->max >= INT64_MAX
                 ? snprintf(text, size, "%s of at least %s, less than %s%s", what, min,
                            setting->form == TIME ? "292 years" : "16777216T", units)
                 : snprintf(text, size, "%s from %s to %s%s", what, min, max, units);
  bool both = setting->word && setting->zero && strcmp(setting->word, setting->zero) != 0;
  if (setting->word)
    snprintf(text + used, size - (size_t)used, both ? ", %s or %s" : " or %s", setting->word,
             setting->zero);
}

/* A default that is a number is the best example. */
static void give_example(const struct setting *setting, char *text, size_t size) {
  if (setting->initial && !(setting->word && setting->initial == setting->meaning))
    format_number(setting, setting->initial, text, size);
  else
    snprintf(text, size, "%s",
             setting->form == TIME    ? "50us"
             : setting->form == BYTES ? "2M"
                                      : "4");
}

static int bad_value(const struct setting *setting, const char *object, const char *value) {
  static const char *const expected[] = {
      [NAME] = "1 to 63 printable ASCII characters without blanks, for example node-1",
      [SWITCH] = "yes or no, for example yes",
      [EAL] = "auto or EAL options, but none that ends a program, for example -l 0 -m 512",
      [POOLS] = "four numbers of objects of 64K, 1M, 16M and 256M, for example 4096,1024,256,64",
      [PATHS] = ("auto, or map, rdma, tcp with growing sizes on all but the last, for example "
                 "tcp:64K,rdma"),
      [NICS] = "auto, names of NICs or ^ and names, for example mlx5_0,mlx5_1 or ^mlx5_2",
      [FILENAME] = "a path of 1 to 255 bytes or none, for example /etc/haul/keys",
  };
  char range[128], example[32];
  unsigned min = (unsigned)setting->min, max = (unsigned)setting->max;
  const char *hint = "man haul.conf describes the settings; haul info --config prints their values";
  if (is_number(setting) && setting->form != SWITCH) {
    describe_range(setting, range, sizeof range);
    give_example(setting, example, sizeof example);
    return error_set(HAUL_EINVAL, 0, object, hint,
                     "invalid %s '%.40s': expected %s, for example %s", setting->name, value, range,
                     example);
  }
  if (setting->form == NICS && max > 0)
    return error_set(HAUL_EINVAL, 0, object, hint,
                     "invalid %s '%.40s': expected auto, %s from %u to %u, or such numbers by NIC, "
                     "for example mlx5_0:%u,mlx5_1:%u",
                     setting->name, value, min == 256 ? "a power of 2" : "a number", min, max, min,
                     max);
  return error_set(HAUL_EINVAL, 0, object, hint, "invalid %s '%.40s': expected %s", setting->name,
                   value, expected[setting->form]);
}

/* "4096,1024,256,64": objects of each size class. */
static bool assign_pools(const char *text, uint64_t max, uint32_t pools[4]) {
  uint32_t counts[4];
  for (size_t i = 0; i < 4; i++) {
    char *end;
    if (*text < '0' || *text > '9')
      return false;
    errno = 0;
    uint64_t count = strtoull(text, &end, 10);
    if (errno || count > max || *end != (i < 3 ? ',' : '\0'))
      return false;
    counts[i] = (uint32_t)count;
    text = end + 1;
  }
  memcpy(pools, counts, sizeof counts);
  return true;
}

static bool assign_filename(const struct setting *setting, const char *text,
                            struct config *config) {
  char *name = config->filenames[setting->index];
  if (!*text || strlen(text) >= sizeof config->filenames[0])
    return false;
  text = strcmp(text, "none") == 0 ? "" : text;
  memcpy(name, text, strlen(text) + 1);
  *(const char **)(void *)((char *)config + setting->field) = name;
  return true;
}

static bool assign(const struct setting *setting, const char *text, struct config *config) {
  uint64_t number;
  switch (setting->form) {
  case NAME:
    if (!name_is_valid(text, sizeof config->name - 1))
      return false;
    memcpy(config->name, text, strlen(text) + 1);
    config->values.name = config->name;
    return true;
  case FILENAME:
    return assign_filename(setting, text, config);
  case EAL:
    if (strcmp(text, "auto") != 0 && !memory_eal_is_valid(text))
      return false;
    snprintf(config->memory.dpdk_eal, sizeof config->memory.dpdk_eal, "%s",
             strcmp(text, "auto") == 0 ? "" : text);
    return true;
  case POOLS:
    return assign_pools(text, setting->max, config->memory.dpdk_pool);
  case PATHS:
    return rules_parse(text, &config->rules);
  case NICS:
    return rdma_setting_assign(&config->rdma, setting->index, text, setting->min, setting->max);
  default:
    if (!parse_number(setting, text, &number))
      return false;
    store(setting, number, config);
    return true;
  }
}

int setting_assign(unsigned i, const char *text, const char *object, struct config *config) {
  return assign(&settings[i], text, config) ? 0 : bad_value(&settings[i], object, text);
}

int setting_check_call(unsigned i, struct config *config, bool *given) {
  const struct setting *setting = &settings[i];
  bool in_call = setting->field < offsetof(struct config, memory) && is_number(setting);
  uint64_t number = in_call ? load(setting, config) : 0;
  *given = number != 0;
  if (number == 0 || setting->form == SWITCH || (setting->word && number == setting->meaning) ||
      (number >= setting->min && number <= setting->max))
    return 0;
  char text[32];
  bool negative = setting->form == TIME && number > INT64_MAX;
  if (setting->clamps && !negative) {
    store(setting, number < setting->min ? setting->min : setting->max, config);
    return 0;
  }
  if (negative)
    snprintf(text, sizeof text, "%lldns", (long long)number);
  else
    format_number(setting, number, text, sizeof text);
  return bad_value(setting, setting->name, text);
}

void settings_complete(struct config *config) {
  struct haul_node_config *values = &config->values;
  for (const struct setting *setting = settings; setting < settings + SETTINGS_COUNT; setting++)
    if (setting->initial && load(setting, config) == 0)
      store(setting, setting->initial, config);
  if (values->copy_threads == 0)
    values->copy_threads = sysconf(_SC_NPROCESSORS_ONLN) > 1 ? 1 : UINT_MAX;
  if (values->max_peers_each == 0)
    values->max_peers_each = values->max_peers;
}

int setting_find(const char *name) {
  for (unsigned i = 0; i < SETTINGS_COUNT; i++)
    if (strcmp(settings[i].name, name) == 0)
      return (int)i;
  return -1;
}

void setting_variable(unsigned i, char *variable, size_t size) {
  snprintf(variable, size, "HAUL_%s", settings[i].name);
  for (char *at = variable; *at; at++)
    if (*at >= 'a')
      *at = (char)(*at - 'a' + 'A');
}

/* The end of a long name. */
static void format_filename(const char *name, char *text, size_t size) {
  size_t length = name ? strlen(name) : 0;
  if (length == 0)
    snprintf(text, size, "none");
  else if (length < size)
    snprintf(text, size, "%s", name);
  else
    snprintf(text, size, "...%s", name + (length - size + 4));
}

void setting_format(unsigned i, const struct config *config, struct haul_setting *out) {
  const struct setting *setting = &settings[i];
  const struct memory_settings *memory = &config->memory;
  char *text = out->value;
  size_t size = sizeof out->value;
  snprintf(out->name, sizeof out->name, "%s", setting->name);
  switch (setting->form) {
  case NAME:
    snprintf(text, size, "%s", config->name);
    break;
  case FILENAME:
    format_filename(*(const char *const *)(const void *)((const char *)config + setting->field),
                    text, size);
    break;
  case EAL:
    snprintf(text, size, "%.*s", (int)size - 1, *memory->dpdk_eal ? memory->dpdk_eal : "auto");
    break;
  case POOLS:
    snprintf(text, size, "%u,%u,%u,%u", memory->dpdk_pool[0], memory->dpdk_pool[1],
             memory->dpdk_pool[2], memory->dpdk_pool[3]);
    break;
  case PATHS:
    rules_format(&config->rules, text, size);
    break;
  case NICS:
    snprintf(text, size, "%.*s", (int)size - 1,
             *config->rdma.texts[setting->index] ? config->rdma.texts[setting->index] : "auto");
    break;
  default:
    format_number(setting, load(setting, config), text, size);
  }
}
