/* SPDX-License-Identifier: MIT
 * Key files: one key a line, its name and 64 hexadecimal digits; '#' begins a comment. */
#ifndef HAUL_CORE_TLS_KEYS_H
#define HAUL_CORE_TLS_KEYS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define KEY_BYTES     32
#define KEY_NAME_MAX  63
#define KEYS_MAX      4096
#define KEYS_FILE_MAX (512u << 10)

struct key {
  char name[KEY_NAME_MAX + 1]; /* printable ASCII without blanks */
  uint8_t secret[KEY_BYTES];
};

struct keys {
  struct key *list; /* in file order; the owner presents the first */
  size_t count;
};

/* HAUL_EINVAL (FILE:LINE), HAUL_ENOMEM; HAUL_EINSECURE: others than the owner may read it, or the
 * owner is neither this user nor root. */
int keys_read(const char *path, struct keys *keys);
/* Checks owner and permissions, as above. `what` names the file in errors. */
int keys_guard(const char *path, const char *what);
/* The text of such a file. keys_text_free wipes it. Errors as above. */
int keys_text(const char *path, const char *what, char **text);
void keys_text_free(char *text);
/* Wipes the secrets. */
void keys_free(struct keys *keys);
const struct key *keys_find(const struct keys *keys, const void *name, size_t length);
/* Writes the key to a new file of mode 0600. HAUL_EEXIST, HAUL_ESYSTEM. */
int keys_create(const char *path, const struct key *key);
bool key_name_is_valid(const char *name);
/* HAUL_EINVAL with the rules for a name. */
int key_name_refused(const char *name);
/* 16 hexadecimal digits of an HMAC with the key, which do not reveal it; "" without OpenSSL. */
void key_fingerprint(const struct key *key, char text[17]);

#endif
