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
#include "node/message.h"
#include "node/node.h"
#include "node/setting.h"

#define MS 1000000LL
#define S  1000000000LL

/* Sets it, where nothing set it before; a mistake is told in any case. */
static int set(unsigned i, const char *text, const char *object, enum origin from, unsigned line,
               struct config *config) {
  bool first = config->origins[i].from == FROM_DEFAULT;
  int code = setting_read(i, text, object, first, config);
  if (code || !first)
    return code;
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

static int parse_line(char *text, const char *object, unsigned line, unsigned *lines,
                      struct config *config) {
  char *value = strchr(text, '=');
  if (!value)
    return error_set(HAUL_EINVAL, 0, object, "a line is NAME = VALUE, or starts with #",
                     "%.60s sets nothing", text);
  *value++ = '\0';
  text = trim(text);
  value = trim(value);
  int i = setting_find(text);
  if (i < 0)
    return error_set(HAUL_EINVAL, 0, object,
                     "man haul.conf lists them; haul info --config prints them",
                     "there is no setting %.60s", text);
  if (lines[i])
    return error_set(HAUL_EINVAL, 0, object, "leave one of them", "%s is set in line %u already",
                     text, lines[i]);
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
                   "let this user read it, or name another file in HAUL_CONF; HAUL_CONF= is none",
                   "the configuration cannot be read");
}

/* The whole of an open file, to be freed; NULL with the detail. */
static char *read_all(int file, const char *path) {
  struct stat found;
  if (fstat(file, &found) != 0 || !S_ISREG(found.st_mode) || found.st_size > CONFIG_MAX) {
    error_set(HAUL_EINVAL, 0, path, NULL, "it is no file of at most %u bytes", CONFIG_MAX);
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
    error_set(HAUL_EINVAL, 0, path, NULL, "it is no text: there is a byte 0 in it");
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

/* A text of the call's. */
static int set_named(const char *name, const char *text, struct config *config) {
  return set((unsigned)setting_find(name), text, name, FROM_CALL, 0, config);
}

static const char *const file_settings[CONFIG_PATHS] = {"key", "certificate", "private_key",
                                                        "authority", "directory_login"};

static int read_call(const struct haul_node_config *given, struct config *config) {
  struct haul_node_config *values = &config->values;
  if (!given)
    return 0;
  if (given->size < sizeof given->size || given->size > 4096)
    return error_set(HAUL_EINVAL, 0, NULL, "start from HAUL_NODE_CONFIG_INIT",
                     "a configuration of an impossible size");
  memcpy(values, given, given->size < sizeof *values ? given->size : sizeof *values);
  if (values->progress != HAUL_PROGRESS_THREAD && values->progress != HAUL_PROGRESS_CALLER)
    return error_set(HAUL_EINVAL, 0, "progress", NULL, "not one of enum haul_progress");
  if (values->spin_ns < 0 || values->liveness_ns < 0 || values->transfer_ns < 0 ||
      values->handshake_ns < 0)
    return error_set(HAUL_EINVAL, 0, NULL, "times are nanoseconds from 0 on", "a negative time");
  if (values->peer_bytes > 0 && values->peer_bytes < 1 << 20)
    return error_set(HAUL_EINVAL, 0, "peer_bytes", NULL, "less than 1 MiB");
  if (values->max_lookups > 1048576 && values->max_lookups != UINT_MAX)
    return error_set(HAUL_EINVAL, 0, "max_lookups", "UINT_MAX is no limit", "more than 1,048,576");
  if (values->tcp_rails > 16)
    return error_set(HAUL_EINVAL, 0, "tcp_rails", NULL, "more than 16 rails");
  if (values->tcp_rate > 0 && values->tcp_rate < TCP_RATE_LEAST)
    return error_set(HAUL_EINVAL, 0, "tcp_rate", NULL, "less than 1 MiB a second");
  if (values->staging_bytes > 0 && values->staging_bytes < STAGING_LEAST)
    return error_set(HAUL_EINVAL, 0, "staging_bytes", NULL, "less than 8 MiB");
  if (values->tcp_zero_copy > 0 && values->tcp_zero_copy < 4096)
    return error_set(HAUL_EINVAL, 0, "tcp_zero_copy", NULL, "less than 4 KiB");
  for (unsigned i = 0; i < SETTINGS_COUNT; i++)
    if (setting_in_call(i, config))
      config->origins[i].from = FROM_CALL;
  int code = values->name ? set_named("name", values->name, config) : 0;
  if (code == 0 && values->paths)
    code = set_named("paths", values->paths, config);
  const char *files[CONFIG_PATHS] = {values->key, values->certificate, values->private_key,
                                     values->authority, values->directory_login};
  for (size_t i = 0; i < CONFIG_PATHS && code == 0; i++)
    if (files[i])
      code = set_named(file_settings[i], files[i], config);
  return code;
}

static int read_environment(struct config *config) {
  int code = 0;
  for (unsigned i = 0; i < SETTINGS_COUNT && code == 0; i++) {
    char variable[40];
    setting_variable(i, variable, sizeof variable);
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

static void tell_origin(const struct config *config, unsigned i, char *text, size_t size) {
  switch (config->origins[i].from) {
  case FROM_DEFAULT:
    snprintf(text, size, "default");
    break;
  case FROM_CALL:
    snprintf(text, size, "call");
    break;
  case FROM_ENVIRONMENT:
    setting_variable(i, text, size);
    break;
  case FROM_FILE:
    snprintf(text, size, "%s:%u", config->path, config->origins[i].line);
    break;
  }
}

static void set_default(size_t *value, size_t otherwise) {
  if (*value == 0)
    *value = otherwise;
}

static void complete(struct config *config) {
  struct haul_node_config *values = &config->values;
  char host[33] = "node", origin[sizeof((struct haul_setting *)0)->origin];
  if (!*config->name) {
    gethostname(host, sizeof host - 1);
    snprintf(config->name, sizeof config->name, "%s:%d", host, (int)getpid());
  }
  values->name = config->name;
  values->paths = NULL; /* the caller's; `rules` say it */
  tell_origin(config, (unsigned)setting_find("paths"), origin, sizeof origin);
  rules_from(&config->rules, strcmp(origin, "call") == 0 ? "the program" : origin);
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
  if (values->max_peers_each == 0)
    values->max_peers_each = values->max_peers;
  if (values->max_lookups == 0)
    values->max_lookups = UINT_MAX;
  if (values->handshake_ns == 0)
    values->handshake_ns = 5 * S;
  set_default(&values->peer_bytes, (size_t)REQUESTS_MAX << 20);
  set_default(&values->pool_bytes, (size_t)256 << 20);
  set_default(&values->tcp_rate, SIZE_MAX);
  set_default(&values->staging_bytes, STAGING_DEFAULT);
  if (values->message_window < MESSAGE_WINDOW_MIN)
    values->message_window = MESSAGE_WINDOW_MIN;
  if (values->message_window > MESSAGE_WINDOW_MAX)
    values->message_window = MESSAGE_WINDOW_MAX;
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

static void tell(const struct config *config, unsigned i, struct haul_setting *told) {
  setting_tell(i, config, told);
  tell_origin(config, i, told->origin, sizeof told->origin);
}

HAUL_API int haul_setting_list(const struct haul_node_config *given, struct haul_setting *told,
                               size_t *count) {
  struct config config;
  int code = error_enter("haul_setting_list");
  if (code == 0 && (!count || (*count > 0 && !told)))
    code = error_set(HAUL_EINVAL, 0, NULL, NULL, "no room or no count");
  if (code == 0)
    code = config_read(given, &config);
  if (code)
    return code;
  for (unsigned i = 0; i < SETTINGS_COUNT && i < *count; i++)
    tell(&config, i, &told[i]);
  *count = SETTINGS_COUNT;
  return 0;
}
