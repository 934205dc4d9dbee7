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

/* Where the word is kept; NULL: there is none of the name. */
static char *place_of(struct login *login, struct part name) {
  for (size_t i = 0; i < sizeof words / sizeof words[0]; i++)
    if (strlen(words[i].name) == name.length && memcmp(words[i].name, name.at, name.length) == 0)
      return (char *)login + words[i].at;
  return NULL;
}

/* NULL, or what is wrong with it. */
static const char *take_line(struct login *login, const char *from, const char *to) {
  struct part line = trimmed(from, to);
  if (line.length == 0 || *line.at == '#')
    return NULL;
  const char *equals = memchr(line.at, '=', line.length);
  if (!equals)
    return "it sets nothing";
  char *place = place_of(login, trimmed(line.at, equals));
  struct part value = trimmed(equals + 1, line.at + line.length);
  if (!place)
    return "there is no such name";
  if (*place)
    return "it is set already";
  if (value.length == 0 || value.length >= LOGIN_WORD)
    return "a value has 1 to 255 bytes";
  memcpy(place, value.at, value.length);
  return NULL;
}

static const char *what_is_missing(const struct login *login) {
  if (!*login->user != !*login->password)
    return "user and password go together";
  if (!*login->certificate != !*login->private_key)
    return "certificate and private_key go together";
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
    mistake = what_is_missing(login);
  }
  if (!mistake)
    return 0;
  char place[32] = "";
  if (line > 0)
    snprintf(place, sizeof place, "line %u: ", line);
  login_forget(login);
  return library->error(
      HAUL_EINVAL, 0, "directory_login",
      "lines are NAME = VALUE, of user, password, authority, certificate and private_key", "%s%s",
      place, mistake);
}

void login_forget(struct login *login) {
  explicit_bzero(login, sizeof *login);
}
