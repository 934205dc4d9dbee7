/* SPDX-License-Identifier: MIT */
#include "node/config.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/alloc.h"
#include "core/error.h"
#include "node/node.h"

/* Checks the text, and stores it unless a source of higher precedence gave a value already. */
static int config_set(unsigned i, const char *text, const char *object, enum origin from,
                      unsigned line, struct config *config) {
  struct config unused;
  bool wanted = config->origins[i].from == FROM_DEFAULT;
  int code = setting_assign(i, text, object, wanted ? config : &unused);
  if (code == 0 && wanted) {
    config->origins[i].from = from;
    config->origins[i].line = line;
  }
  return code;
}

static int check_call(struct config *config) {
  const struct haul_node_config *values = &config->values;
  if (values->progress != HAUL_PROGRESS_THREAD && values->progress != HAUL_PROGRESS_CALLER)
    return error_set(HAUL_EINVAL, 0, "progress", "use a value of enum haul_progress",
                     "invalid progress '%d'", values->progress);
  for (unsigned i = 0; i < SETTINGS_COUNT; i++) {
    bool given;
    int code = setting_check_call(i, config, &given);
    if (code)
      return code;
    if (given)
      config->origins[i].from = FROM_CALL;
  }
  return 0;
}

static int read_call(const struct haul_node_config *given, struct config *config) {
  struct haul_node_config *values = &config->values;
  if (!given)
    return 0;
  if (given->size < sizeof given->size || given->size > 4096)
    return error_set(HAUL_EINVAL, 0, NULL,
                     "initialize the configuration with HAUL_NODE_CONFIG_INIT",
                     "invalid size of the configuration: %zu", given->size);
  memcpy(values, given, given->size < sizeof *values ? given->size : sizeof *values);
  const struct {
    const char *name, *text;
  } texts[] = {{"name", values->name},
               {"paths", values->paths},
               {"key", values->key},
               {"certificate", values->certificate},
               {"private_key", values->private_key},
               {"authority", values->authority},
               {"directory_login", values->directory_login}};
  int code = check_call(config);
  for (size_t i = 0; i < sizeof texts / sizeof texts[0] && code == 0; i++)
    if (texts[i].text)
      code = config_set((unsigned)setting_find(texts[i].name), texts[i].text, texts[i].name,
                        FROM_CALL, 0, config);
  return code;
}

static int read_environment(struct config *config) {
  int code = 0;
  for (unsigned i = 0; i < SETTINGS_COUNT && code == 0; i++) {
    char variable[40];
    setting_variable(i, variable, sizeof variable);
    const char *text = secure_getenv(variable);
    if (text && *text)
      code = config_set(i, text, variable, FROM_ENVIRONMENT, 0, config);
  }
  return code;
}

static char *trim(char *text) {
  static const char blanks[] = " \t\n\v\f\r";
  text += strspn(text, blanks);
  size_t length = strlen(text);
  while (length > 0 && strchr(blanks, text[length - 1]))
    text[--length] = '\0';
  return text;
}

/* `lines`: where the file sets each setting; 0: not yet. */
static int parse_line(char *text, const char *object, unsigned line, unsigned *lines,
                      struct config *config) {
  char *value = strchr(text, '=');
  if (!value)
    return error_set(HAUL_EINVAL, 0, object, "write NAME = VALUE, or begin a comment with #",
                     "no '=' in '%.60s'", text);
  *value++ = '\0';
  text = trim(text);
  int i = setting_find(text);
  if (i < 0)
    return error_set(HAUL_EINVAL, 0, object, "list the settings: haul info --config, man haul.conf",
                     "unknown setting '%.60s'", text);
  if (lines[i])
    return error_set(HAUL_EINVAL, 0, object, "remove one of the two lines",
                     "line %u sets %s already", lines[i], text);
  lines[i] = line;
  return config_set((unsigned)i, trim(value), object, FROM_FILE, line, config);
}

int config_parse(char *text, const char *path, struct config *config) {
  char object[sizeof((struct haul_error *)0)->object];
  unsigned line = 0, lines[SETTINGS_COUNT] = {0};
  size_t length = strlen(path),
         room = sizeof object - 16; /* the end of a long path, and the line */
  int code = 0;
  for (char *at; code == 0 && (at = strsep(&text, "\n"));) {
    line++;
    at = trim(at);
    snprintf(object, sizeof object, "%s%s:%u", length > room ? "..." : "",
             path + (length > room ? length - room : 0), line);
    if (*at && *at != '#')
      code = parse_line(at, object, line, lines, config);
  }
  return code;
}

static int cannot_read(const char *path, int system) {
  return error_set(HAUL_EINVAL, system, path,
                   "set HAUL_CONF to a file that this user can read, or to nothing (HAUL_CONF=)",
                   "cannot read the configuration: %s", strerror(system));
}

/* The text of an open file, which the caller frees; NULL with the detail. */
static char *read_text(int file, const char *path) {
  struct stat status;
  if (fstat(file, &status) != 0 || !S_ISREG(status.st_mode) || status.st_size > CONFIG_MAX) {
    error_set(HAUL_EINVAL, 0, path, "set HAUL_CONF to a text file, or to nothing (HAUL_CONF=)",
              "not a regular file of at most %u bytes", CONFIG_MAX);
    return NULL;
  }
  size_t length = 0, size = (size_t)status.st_size;
  char *text = alloc_zero(1, size + 1);
  if (!text) {
    error_memory("configuration");
    return NULL;
  }
  ssize_t got = 1;
  while (length < size && got != 0) {
    got = read(file, text + length, size - length);
    if (got < 0 && errno != EINTR)
      break;
    length += got > 0 ? (size_t)got : 0;
  }
  if (got >= 0 && strlen(text) == length)
    return text;
  if (got < 0)
    cannot_read(path, errno);
  else
    error_set(HAUL_EINVAL, 0, path, "write the configuration as text",
              "not a text file: it contains a NUL byte");
  alloc_free(text);
  return NULL;
}

/* The default file may be missing; one that HAUL_CONF names may not. */
static int read_file(struct config *config) {
  const char *named = secure_getenv("HAUL_CONF"), *path = named ? named : CONFIG_FILE;
  if (!*path)
    return 0;
  int file = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (file < 0)
    return !named && (errno == ENOENT || errno == ENOTDIR) ? 0 : cannot_read(path, errno);
  snprintf(config->path, sizeof config->path, "%s", path);
  char *text = read_text(file, path);
  close(file);
  int code = text ? config_parse(text, path, config) : haul_error_last()->code;
  alloc_free(text);
  return code;
}

static void format_origin(const struct config *config, unsigned i, char *text, size_t size) {
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

static void complete(struct config *config) {
  char host[33] = "node", origin[sizeof((struct haul_setting *)0)->origin];
  unsigned paths = (unsigned)setting_find("paths");
  if (!*config->name) {
    gethostname(host, sizeof host - 1);
    snprintf(config->name, sizeof config->name, "%s:%d", host, (int)getpid());
  }
  config->values.name = config->name;
  config->values.paths = NULL;
  format_origin(config, paths, origin, sizeof origin);
  rules_from(&config->rules, config->origins[paths].from == FROM_CALL ? "the program" : origin);
  settings_complete(config);
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

HAUL_API int haul_setting_list(const struct haul_node_config *given, struct haul_setting *list,
                               size_t *count) {
  struct config config;
  int code =
      node_enter("haul_setting_list", count && (*count == 0 || list), "settings or count is NULL");
  if (code == 0)
    code = config_read(given, &config);
  if (code)
    return code;
  for (unsigned i = 0; i < SETTINGS_COUNT && i < *count; i++) {
    setting_format(i, &config, &list[i]);
    format_origin(&config, i, list[i].origin, sizeof list[i].origin);
  }
  *count = SETTINGS_COUNT;
  return 0;
}
