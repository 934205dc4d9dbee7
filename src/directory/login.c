/* SPDX-License-Identifier: MIT */
#include "directory/login.h"

#include <stddef.h>
#include <stdio.h>
#include <string.h>

static const struct {
  const char *name;
  size_t at;
} words[] = {
    {"user", offsetof(struct login, user)},
    {"password", offsetof(struct login, password)},
    {"authority", offsetof(struct login, authority)},
    {"certificate", offsetof(struct login, certificate)},
    {"private_key", offsetof(struct login, private_key)},
};

struct part {
  const char *at;
  size_t length;
};

static struct part trimmed(const char *from, const char *to) {
  while (from < to && strchr(" \t\r", *from))
    from++;
  while (to > from && strchr(" \t\r", to[-1]))
    to--;
  return (struct part){from, (size_t)(to - from)};
}

/* The field of this name; NULL: unknown. */
static char *find_field(struct login *login, struct part name) {
  for (size_t i = 0; i < sizeof words / sizeof words[0]; i++)
    if (strlen(words[i].name) == name.length && memcmp(words[i].name, name.at, name.length) == 0)
      return (char *)login + words[i].at;
  return NULL;
}

/* NULL, or the mistake. */
static const char *take_line(struct login *login, const char *from, const char *to) {
  struct part line = trimmed(from, to);
  if (line.length == 0 || *line.at == '#')
    return NULL;
  const char *equals = memchr(line.at, '=', line.length);
  if (!equals)
    return "no '='";
  char *field = find_field(login, trimmed(line.at, equals));
  struct part value = trimmed(equals + 1, line.at + line.length);
  if (!field)
    return "unknown name";
  if (*field)
    return "duplicate name";
  if (value.length == 0 || value.length >= LOGIN_WORD)
    return "expected a value of 1 to 255 bytes";
  memcpy(field, value.at, value.length);
  return NULL;
}

int login_parse(const struct directory_library *library, const char *text, struct login *login) {
  const char *mistake = NULL;
  unsigned line = 0;
  memset(login, 0, sizeof *login);
  for (const char *end; text && *text && !mistake; text = *end ? end + 1 : end) {
    end = strchrnul(text, '\n');
    mistake = take_line(login, text, end);
    line++;
  }
  if (!mistake) {
    line = 0;
    if (!*login->user != !*login->password)
      mistake = "user and password must be set together";
    else if (!*login->certificate != !*login->private_key)
      mistake = "certificate and private_key must be set together";
  }
  if (!mistake)
    return 0;
  char place[32] = "";
  if (line > 0)
    snprintf(place, sizeof place, "line %u: ", line);
  login_forget(login);
  return library->error(
      HAUL_EINVAL, 0, "directory_login",
      "write NAME = VALUE; names: user, password, authority, certificate, private_key", "%s%s",
      place, mistake);
}

void login_forget(struct login *login) {
  explicit_bzero(login, sizeof *login);
}
