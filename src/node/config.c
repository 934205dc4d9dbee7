/* SPDX-License-Identifier: MIT */
#include "node/config.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/alloc.h"
#include "core/error.h"
#include "memory/staging.h"
#include "node/node.h"

#define MS 1000000LL
#define S  1000000000LL

/* ---- What can be set ---- */

enum form { TEXT, SWITCH, TIME, COUNT, BYTES, EAL, POOLS };

struct setting {
  const char *name; /* in capitals, after HAUL_, that of its variable */
  enum form form;
  size_t field;
  uint64_t least, most;
  const char *word; /* that stands for a number, or NULL */
  uint64_t meaning;
};

/* A peer that reads nothing for a liveness bound is gone, and what is sent slowly looks like it. */
#define TCP_RATE_LEAST ((uint64_t)1 << 20)

#define FIELD(name)  offsetof(struct config, values.name)
#define MEMORY(name) offsetof(struct config, memory.name)

/* Not here: what a program relies on (`progress`, `peer_events`). */
static const struct setting settings[] = {
    {"name", TEXT, FIELD(name), 0, 0, NULL, 0},
    {"insecure", SWITCH, FIELD(insecure), 0, 1, NULL, 0},
    {"spin", TIME, FIELD(spin_ns), 0, INT64_MAX, "always", HAUL_SPIN_ALWAYS},
    {"liveness", TIME, FIELD(liveness_ns), 10 * MS, INT64_MAX, NULL, 0},
    {"deadline", TIME, FIELD(transfer_ns), 1, INT64_MAX, NULL, 0},
    {"tcp_rails", COUNT, FIELD(tcp_rails), 1, 16, NULL, 0},
    {"copy_threads", COUNT, FIELD(copy_threads), 1, 16, "none", UINT_MAX},
    {"message_window", BYTES, FIELD(message_window), MESSAGE_WINDOW_LEAST, WINDOW_MAX, NULL, 0},
    {"pool", BYTES, FIELD(pool_bytes), 1, SIZE_MAX - 1, "none", SIZE_MAX},
    {"max_peers", COUNT, FIELD(max_peers), 1, UINT_MAX, NULL, 0},
    {"max_regions", COUNT, FIELD(max_regions), 1, 1048576, NULL, 0},
    {"max_transfers", COUNT, FIELD(max_transfers), 1, UINT_MAX, NULL, 0},
    {"staging", BYTES, FIELD(staging_bytes), STAGING_LEAST, SIZE_MAX, NULL, 0},
    {"tcp_rate", BYTES, FIELD(tcp_rate), TCP_RATE_LEAST, SIZE_MAX - 1, "0", SIZE_MAX},
    {"dpdk_eal", EAL, MEMORY(dpdk_eal), 0, 0, NULL, 0},
    {"dpdk_hugepages", BYTES, MEMORY(dpdk_hugepages), 1, SIZE_MAX - 1, "none", SIZE_MAX},
    {"dpdk_pool", POOLS, MEMORY(dpdk_pool), 0, 1048576, NULL, 0},
    {"dpdk_wait", TIME, MEMORY(dpdk_wait_ns), 0, INT64_MAX, NULL, 0},
};
_Static_assert(sizeof settings / sizeof settings[0] == SETTINGS_COUNT, "one origin a setting");

static void *field_of(const struct setting *setting, struct config *config) {
  return (char *)config + setting->field;
}

/* Those of memory are for the process, and no field of the call's. */
static bool is_of_the_call(const struct setting *setting) {
  return setting->field < offsetof(struct config, memory);
}

/* A number, or whether there is a text. */
static uint64_t load(const struct setting *setting, const struct config *config) {
  const void *field = (const char *)config + setting->field;
  switch (setting->form) {
  case TEXT:
    return *(const char *const *)field != NULL;
  case SWITCH:
    return *(const int *)field != 0;
  case TIME:
    return (uint64_t) * (const int64_t *)field;
  case COUNT:
    return *(const unsigned *)field;
  case BYTES:
    return *(const size_t *)field;
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
                     "%s is no name|a node's name is 1 to 63 printable ASCII bytes without blanks",
                     text);
  if (setting->form == EAL)
    return error_set(
        HAUL_EINVAL, 0, object,
        "%s: these are no arguments of EAL's|auto, or up to 255 printable ASCII bytes that "
        "begin with '-', without those that end a program (-h, -v)",
        setting->name);
  if (setting->form == POOLS)
    return error_set(HAUL_EINVAL, 0, object,
                     "%s: %.60s cannot be set|four numbers from 0 to 1048576 with commas between: "
                     "how many objects of 64 KiB, 1 MiB, 16 MiB and 256 MiB",
                     setting->name, text);
  if (setting->form == SWITCH)
    return error_set(HAUL_EINVAL, 0, object, "%s: %.60s is neither yes nor no|", setting->name,
                     text);
  write_value(setting, setting->least, least, sizeof least);
  write_value(setting, setting->most, most, sizeof most);
  if (setting->word)
    snprintf(word, sizeof word, ", or %s", setting->word);
  return error_set(HAUL_EINVAL, 0, object, "%s: %.60s cannot be set|%s from %s to %s%s",
                   setting->name, text,
                   setting->form == TIME    ? "a time with its unit (ns, us, ms, s, min),"
                   : setting->form == BYTES ? "bytes, with K, M, G or T behind the number,"
                                            : "a number",
                   least, setting->most == INT64_MAX ? "any" : most, word);
}

struct value {
  uint64_t number;
  uint32_t pools[4];
};

static bool read_any(const struct setting *setting, const char *text, struct value *value) {
  switch (setting->form) {
  case TEXT:
    return name_is_valid(text, sizeof((struct config *)0)->name - 1);
  case EAL:
    return strcmp(text, "auto") == 0 || memory_eal_is_valid(text);
  case POOLS:
    return read_pools(text, setting->most, value->pools);
  default:
    return read_value(setting, text, &value->number);
  }
}

static void store_any(const struct setting *setting, const char *text, const struct value *value,
                      struct config *config) {
  if (setting->form == TEXT) {
    snprintf(config->name, sizeof config->name, "%s", text);
    config->values.name = config->name;
  } else if (setting->form == EAL) {
    snprintf(config->memory.dpdk_eal, sizeof config->memory.dpdk_eal, "%s",
             strcmp(text, "auto") == 0 ? "" : text);
  } else if (setting->form == POOLS) {
    memcpy(config->memory.dpdk_pool, value->pools, sizeof value->pools);
  } else {
    store(setting, value->number, config);
  }
}

/* Sets it, where nothing set it before; a mistake is told in any case. */
static int set(unsigned i, const char *text, const char *object, enum origin from, unsigned line,
               struct config *config) {
  const struct setting *setting = &settings[i];
  struct value value = {.number = 0};
  if (!read_any(setting, text, &value))
    return bad_value(setting, object, text);
  if (config->origins[i].from != FROM_DEFAULT)
    return 0;
  store_any(setting, text, &value, config);
  config->origins[i].from = from;
  config->origins[i].line = line;
  return 0;
}

/* ---- The file ---- */

static char *trim(char *text) {
  while (isspace((unsigned char)*text))
    text++;
  size_t length = strlen(text);
  while (length > 0 && isspace((unsigned char)text[length - 1]))
    text[--length] = '\0';
  return text;
}

static int find_setting(const char *name) {
  for (unsigned i = 0; i < SETTINGS_COUNT; i++)
    if (strcmp(settings[i].name, name) == 0)
      return (int)i;
  return -1;
}

static int parse_line(char *text, const char *object, unsigned line, unsigned *lines,
                      struct config *config) {
  char *value = strchr(text, '=');
  if (!value)
    return error_set(HAUL_EINVAL, 0, object,
                     "%.60s sets nothing|a line is NAME = VALUE, or starts "
                     "with #",
                     text);
  *value++ = '\0';
  text = trim(text);
  value = trim(value);
  int i = find_setting(text);
  if (i < 0)
    return error_set(HAUL_EINVAL, 0, object,
                     "there is no setting %.60s|man haul.conf lists them; "
                     "haul info --config prints them",
                     text);
  if (lines[i])
    return error_set(HAUL_EINVAL, 0, object, "%s is set in line %u already|leave one of them", text,
                     lines[i]);
  lines[i] = line;
  return set((unsigned)i, value, object, FROM_FILE, line, config);
}

/* "FILE:LINE"; of a long path the end. */
static void place_of(const char *path, unsigned line, char *text, size_t size) {
  size_t length = strlen(path), room = size - 16;
  bool whole = length <= room;
  snprintf(text, size, "%s%s:%u", whole ? "" : "...", whole ? path : path + (length - room), line);
}

int config_parse(char *text, const char *path, struct config *config) {
  unsigned line = 0, lines[SETTINGS_COUNT] = {0};
  int code = 0;
  for (char *at; code == 0 && (at = strsep(&text, "\n"));) {
    char object[sizeof((struct haul_error *)0)->object];
    line++;
    at = trim(at);
    place_of(path, line, object, sizeof object);
    if (*at && *at != '#')
      code = parse_line(at, object, line, lines, config);
  }
  return code;
}

static int cannot_read(const char *path, int system) {
  return error_set(HAUL_EINVAL, system, path,
                   "the configuration cannot be read|let this user read it, or name another file "
                   "in HAUL_CONF; HAUL_CONF= is none");
}

/* The whole of an open file, to be freed; NULL with the detail. */
static char *read_all(int file, const char *path) {
  struct stat found;
  if (fstat(file, &found) != 0 || !S_ISREG(found.st_mode) || found.st_size > CONFIG_MAX) {
    error_set(HAUL_EINVAL, 0, path, "it is no file of at most %u bytes|", CONFIG_MAX);
    return NULL;
  }
  size_t length = 0, room = (size_t)found.st_size;
  char *text = alloc_zero(1, room + 1);
  if (!text) {
    error_memory("the configuration");
    return NULL;
  }
  ssize_t got = 1;
  while (length < room && got != 0) {
    got = read(file, text + length, room - length);
    if (got < 0 && errno != EINTR)
      break;
    length += got > 0 ? (size_t)got : 0;
  }
  if (got >= 0 && strlen(text) == length)
    return text;
  if (got < 0)
    cannot_read(path, errno);
  else
    error_set(HAUL_EINVAL, 0, path, "it is no text: there is a byte 0 in it|");
  alloc_free(text);
  return NULL;
}

static int parse_file(const char *path, bool wanted, struct config *config) {
  int file = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (file < 0)
    return !wanted && (errno == ENOENT || errno == ENOTDIR) ? 0 : cannot_read(path, errno);
  snprintf(config->path, sizeof config->path, "%s", path);
  char *text = read_all(file, path);
  close(file);
  int code = text ? config_parse(text, path, config) : haul_error_last()->code;
  alloc_free(text);
  return code;
}

/* ---- All of it ---- */

static int read_call(const struct haul_node_config *given, struct config *config) {
  struct haul_node_config *values = &config->values;
  if (!given)
    return 0;
  if (given->size < sizeof given->size || given->size > 4096)
    return error_set(HAUL_EINVAL, 0, NULL,
                     "a configuration of an impossible size|start from HAUL_NODE_CONFIG_INIT");
  memcpy(values, given, given->size < sizeof *values ? given->size : sizeof *values);
  if (values->progress != HAUL_PROGRESS_THREAD && values->progress != HAUL_PROGRESS_CALLER)
    return error_set(HAUL_EINVAL, 0, "progress", "not one of enum haul_progress|");
  if (values->spin_ns < 0 || values->liveness_ns < 0 || values->transfer_ns < 0)
    return error_set(HAUL_EINVAL, 0, NULL, "a negative time|times are nanoseconds from 0 on");
  if (values->tcp_rails > 16)
    return error_set(HAUL_EINVAL, 0, "tcp_rails", "more than 16 rails|");
  if (values->tcp_rate > 0 && values->tcp_rate < TCP_RATE_LEAST)
    return error_set(HAUL_EINVAL, 0, "tcp_rate", "less than 1 MiB a second|");
  if (values->staging_bytes > 0 && values->staging_bytes < STAGING_LEAST)
    return error_set(HAUL_EINVAL, 0, "staging_bytes", "less than 8 MiB|");
  for (unsigned i = 0; i < SETTINGS_COUNT; i++)
    if (is_of_the_call(&settings[i]) && settings[i].form != TEXT && load(&settings[i], config))
      config->origins[i].from = FROM_CALL;
  return values->name ? set(0, values->name, "name", FROM_CALL, 0, config) : 0;
}

static void variable_of(const struct setting *setting, char *variable, size_t size) {
  snprintf(variable, size, "HAUL_%s", setting->name);
  for (char *at = variable; *at; at++)
    *at = (char)toupper((unsigned char)*at);
}

static int read_environment(struct config *config) {
  int code = 0;
  for (unsigned i = 0; i < SETTINGS_COUNT && code == 0; i++) {
    char variable[40];
    variable_of(&settings[i], variable, sizeof variable);
    const char *text = secure_getenv(variable);
    if (text && *text)
      code = set(i, text, variable, FROM_ENVIRONMENT, 0, config);
  }
  return code;
}

static int read_file(struct config *config) {
  const char *path = secure_getenv("HAUL_CONF");
  if (path && !*path)
    return 0;
  return parse_file(path ? path : CONFIG_FILE, path, config);
}

static void set_default(size_t *value, size_t otherwise) {
  if (*value == 0)
    *value = otherwise;
}

static void complete(struct config *config) {
  struct haul_node_config *values = &config->values;
  char host[33] = "node";
  if (!*config->name) {
    gethostname(host, sizeof host - 1);
    snprintf(config->name, sizeof config->name, "%s:%d", host, (int)getpid());
  }
  values->name = config->name;
  if (values->liveness_ns == 0)
    values->liveness_ns = 5 * S;
  if (values->liveness_ns < 10 * MS)
    values->liveness_ns = 10 * MS;
  if (values->transfer_ns == 0)
    values->transfer_ns = 60 * S;
  if (values->copy_threads == 0)
    values->copy_threads = sysconf(_SC_NPROCESSORS_ONLN) > 1 ? 1 : UINT_MAX;
  if (values->max_peers == 0)
    values->max_peers = 1024;
  if (values->max_regions == 0)
    values->max_regions = 65536;
  if (values->max_transfers == 0)
    values->max_transfers = 16384;
  set_default(&values->pool_bytes, (size_t)256 << 20);
  set_default(&values->tcp_rate, SIZE_MAX);
  set_default(&values->staging_bytes, STAGING_DEFAULT);
  if (values->message_window < MESSAGE_WINDOW_LEAST)
    values->message_window = MESSAGE_WINDOW_LEAST;
  if (values->message_window > WINDOW_MAX)
    values->message_window = WINDOW_MAX;
}

int config_read(const struct haul_node_config *given, struct config *config) {
  memset(config, 0, sizeof *config);
  config->memory = memory_defaults;
  int code = read_call(given, config);
  if (code == 0)
    code = read_environment(config);
  if (code == 0)
    code = read_file(config);
  if (code == 0)
    complete(config);
  return code;
}

/* ---- Public ---- */

static void describe(const struct config *config, unsigned i, struct haul_setting *told) {
  const struct setting *setting = &settings[i];
  char variable[40];
  snprintf(told->name, sizeof told->name, "%s", setting->name);
  uint64_t number = load(setting, config);
  if (setting->form == TEXT)
    snprintf(told->value, sizeof told->value, "%s", config->name);
  else if (setting->form == EAL)
    snprintf(told->value, sizeof told->value, "%.*s", (int)sizeof told->value - 1,
             number ? config->memory.dpdk_eal : "auto");
  else if (setting->form == POOLS)
    write_pools(config->memory.dpdk_pool, told->value, sizeof told->value);
  else if (setting->form == BYTES && number == 0)
    snprintf(told->value, sizeof told->value, "none");
  else if (setting->form == COUNT && number == 0)
    snprintf(told->value, sizeof told->value, "1 within a host, 2 beyond");
  else
    write_value(setting, number, told->value, sizeof told->value);
  variable_of(setting, variable, sizeof variable);
  switch (config->origins[i].from) {
  case FROM_DEFAULT:
    snprintf(told->origin, sizeof told->origin, "default");
    break;
  case FROM_CALL:
    snprintf(told->origin, sizeof told->origin, "call");
    break;
  case FROM_ENVIRONMENT:
    snprintf(told->origin, sizeof told->origin, "%s", variable);
    break;
  case FROM_FILE:
    snprintf(told->origin, sizeof told->origin, "%s:%u", config->path, config->origins[i].line);
    break;
  }
}

HAUL_API int haul_setting_list(const struct haul_node_config *given, struct haul_setting *told,
                               size_t *count) {
  struct config config;
  int code = error_enter("haul_setting_list");
  if (code == 0 && (!count || (*count > 0 && !told)))
    code = error_set(HAUL_EINVAL, 0, NULL, "no room or no count|");
  if (code == 0)
    code = config_read(given, &config);
  if (code)
    return code;
  for (unsigned i = 0; i < SETTINGS_COUNT && i < *count; i++)
    describe(&config, i, &told[i]);
  *count = SETTINGS_COUNT;
  return 0;
}
