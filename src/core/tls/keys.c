/* SPDX-License-Identifier: MIT */
#include "core/tls/keys.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/alloc.h"
#include "core/error.h"
#include "core/tls/openssl.h"

#define LINE_HINT "a line is NAME and 64 hexadecimal digits, as haul key new writes it"

bool key_name_is_valid(const char *name) {
  size_t length = strlen(name);
  if (strncmp(name, "uid:", 4) == 0 ||
      strcmp(name, "*") == 0) /* reserved: a Unix socket's user; everyone */
    return false;
  for (size_t i = 0; i < length; i++)
    if (name[i] <= ' ' || name[i] > '~' || name[i] == '#')
      return false;
  return length > 0 && length <= KEY_NAME_MAX;
}

int key_name_refused(const char *name) {
  return error_set(HAUL_EINVAL, 0, name,
                   "use 1 to 63 printable ASCII bytes without blanks and '#', neither * nor uid:N",
                   "this is not a valid key name");
}

void key_fingerprint(const struct key *key, char text[17]) {
  static const unsigned char label[] = "haul key fingerprint";
  const struct openssl *openssl = openssl_open();
  uint8_t sum[32];
  unsigned size = sizeof sum;
  text[0] = '\0';
  if (!openssl || !openssl->hmac(openssl->sha256(), key->secret, KEY_BYTES, label, sizeof label - 1,
                                 sum, &size))
    return;
  for (size_t i = 0; i < 8; i++)
    snprintf(text + 2 * i, 3, "%02x", sum[i]);
}

#define KEY_FILE "key file"

static const char *key_hint(const char *what) {
  return strcmp(what, KEY_FILE) == 0 ? "name a file that `haul key new` wrote" : NULL;
}

static int cannot_read(const char *path, const char *what, int system) {
  bool is_key = strcmp(what, KEY_FILE) == 0;
  return error_set(
      HAUL_EINVAL, system, path,
      error_hint("%sonly its owner may read it", is_key ? "haul key new makes one; " : ""),
      "the %s cannot be read: %s", what, strerror(system));
}

/* systemd gives a service's user access to credentials by an ACL, which shows as group access.
 * Their folder belongs to that user alone. */
static bool is_handed_over(const char *path, const struct stat *found) {
  const char *folder = secure_getenv("CREDENTIALS_DIRECTORY");
  size_t length = folder ? strlen(folder) : 0;
  return length > 1 && strncmp(path, folder, length) == 0 && path[length] == '/' &&
         !strstr(path, "..") && (found->st_mode & 077) == S_IRGRP &&
         (found->st_uid == 0 || found->st_uid == geteuid());
}

static int check_owner(int file, const char *path, const char *what, size_t *size) {
  struct stat found;
  if (fstat(file, &found) != 0)
    return cannot_read(path, what, errno);
  if (!S_ISREG(found.st_mode) || found.st_size > KEYS_FILE_MAX)
    return error_set(HAUL_EINVAL, 0, path, key_hint(what),
                     "the %s is not a regular file of at most %u bytes", what, KEYS_FILE_MAX);
  if (found.st_mode & (S_IRWXG | S_IRWXO) && !is_handed_over(path, &found))
    return error_set(HAUL_EINSECURE, 0, path,
                     "chmod 600 the file; replace its secrets if others may have read them",
                     "others than its owner may read or write the %s (mode %o)", what,
                     (unsigned)found.st_mode & 0777u);
  if (found.st_uid != geteuid() && found.st_uid != 0)
    return error_set(
        HAUL_EINSECURE, 0, path, "chown the file to the user that reads it, or to root",
        "the %s belongs to user %u, who could change it", what, (unsigned)found.st_uid);
  *size = (size_t)found.st_size;
  return 0;
}

int keys_guard(const char *path, const char *what) {
  size_t size;
  int file = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  int code = file < 0 ? cannot_read(path, what, errno) : check_owner(file, path, what, &size);
  if (file >= 0)
    close(file);
  return code;
}

static int digit(char c) {
  return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

static bool parse_secret(const char *text, uint8_t secret[KEY_BYTES]) {
  for (size_t i = 0; i < KEY_BYTES; i++) {
    int high = digit(text[2 * i]), low = high < 0 ? -1 : digit(text[2 * i + 1]);
    if (low < 0)
      return false;
    secret[i] = (uint8_t)(high << 4 | low);
  }
  return text[(size_t)2 * KEY_BYTES] == '\0';
}

/* NULL: there is none. */
static char *next_word(char **text) {
  char *word;
  do
    word = strsep(text, " \t\r");
  while (word && !*word);
  return word;
}

static int parse_line(char *text, const char *place, struct keys *keys) {
  struct key *key = &keys->list[keys->count];
  char *name = next_word(&text), *secret = next_word(&text);
  if (!name || *name == '#')
    return 0;
  if (!key_name_is_valid(name) || !secret || !parse_secret(secret, key->secret))
    return error_set(HAUL_EINVAL, 0, place, LINE_HINT, "the line is not a key");
  if (next_word(&text))
    return error_set(HAUL_EINVAL, 0, place, LINE_HINT, "the line continues behind the key");
  if (keys_find(keys, name, strlen(name)))
    return error_set(HAUL_EINVAL, 0, place, "leave one of them", "there is a key %s already", name);
  memcpy(key->name, name, strlen(name) + 1);
  keys->count++;
  return 0;
}

static int parse(char *text, const char *path, struct keys *keys) {
  unsigned line = 0;
  int code = 0;
  for (char *at; code == 0 && (at = strsep(&text, "\n"));) {
    char place[128];
    snprintf(place, sizeof place, "%.100s:%u", path, ++line);
    if (keys->count == KEYS_MAX && *at)
      return error_set(HAUL_ELIMIT, 0, place, NULL, "more than %u keys", KEYS_MAX);
    code = parse_line(at, place, keys);
  }
  if (code == 0 && keys->count == 0)
    code = error_set(HAUL_EINVAL, 0, path, LINE_HINT, "the file contains no key");
  return code;
}

static int read_text(int file, const char *path, const char *what, char *text, size_t size) {
  size_t length = 0;
  while (length < size) {
    ssize_t got = read(file, text + length, size - length);
    if (got < 0 && errno != EINTR)
      return cannot_read(path, what, errno);
    if (got == 0)
      break;
    length += got > 0 ? (size_t)got : 0;
  }
  return strlen(text) == length ? 0
                                : error_set(HAUL_EINVAL, 0, path, key_hint(what),
                                            "the %s is binary: it contains a zero byte", what);
}

void keys_text_free(char *text) {
  if (text)
    explicit_bzero(text, strlen(text));
  alloc_free(text);
}

int keys_text(const char *path, const char *what, char **text) {
  size_t size = 0;
  *text = NULL;
  int file = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (file < 0)
    return cannot_read(path, what, errno);
  int code = check_owner(file, path, what, &size);
  char *bytes = code ? NULL : alloc_zero(1, size + 1);
  if (bytes)
    code = read_text(file, path, what, bytes, size);
  else if (code == 0)
    code = error_memory(what);
  close(file);
  if (code == 0) {
    *text = bytes;
    return 0;
  }
  if (bytes)
    explicit_bzero(bytes, size);
  alloc_free(bytes);
  return code;
}

int keys_read(const char *path, struct keys *keys) {
  char *text;
  *keys = (struct keys){NULL, 0};
  int code = keys_text(path, KEY_FILE, &text);
  if (code || !text)
    return code;
  size_t size = strlen(text), lines = 1;
  for (const char *at = text; *at; at++)
    lines += *at == '\n';
  keys->list = alloc_zero((lines < KEYS_MAX ? lines : KEYS_MAX) + 1, sizeof *keys->list);
  code = keys->list ? parse(text, path, keys) : error_memory("keys");
  explicit_bzero(text, size); /* parse cuts it up */
  alloc_free(text);
  if (code)
    keys_free(keys);
  return code;
}

void keys_free(struct keys *keys) {
  if (keys->list)
    explicit_bzero(keys->list, (keys->count + 1) * sizeof *keys->list);
  alloc_free(keys->list);
  *keys = (struct keys){NULL, 0};
}

const struct key *keys_find(const struct keys *keys, const void *name, size_t length) {
  for (size_t i = 0; i < keys->count; i++)
    if (strlen(keys->list[i].name) == length && memcmp(keys->list[i].name, name, length) == 0)
      return &keys->list[i];
  return NULL;
}

static int cannot_make(const char *path, int system) {
  if (system == EEXIST)
    return error_set(HAUL_EEXIST, system, path,
                     "choose another file; an existing key is not overwritten",
                     "the file exists already");
  return error_set(HAUL_ESYSTEM, system, path,
                   "name a file in a folder that this user can write to, with space left",
                   "the key file cannot be created: %s", strerror(system));
}

static int write_key(int file, const struct key *key) {
  char line[KEY_NAME_MAX + 2 * KEY_BYTES + 3];
  int length = snprintf(line, sizeof line, "%s ", key->name);
  for (size_t i = 0; i < KEY_BYTES; i++)
    length += snprintf(line + length, 3, "%02x", key->secret[i]);
  line[length++] = '\n';
  errno = ENOSPC; /* a short write means a full disk */
  bool whole = write(file, line, (size_t)length) == length && fsync(file) == 0;
  explicit_bzero(line, sizeof line);
  return whole ? 0 : errno;
}

int keys_create(const char *path, const struct key *key) {
  int file = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (file < 0)
    return cannot_make(path, errno);
  int system = write_key(file, key);
  close(file);
  if (system == 0)
    return 0;
  unlink(path);
  return cannot_make(path, system);
}
