/* SPDX-License-Identifier: MIT
 * Key files: a line a key, its name and 64 hexadecimal digits; '#' begins a comment. */
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
  struct key *list; /* in the file's order; the first is what its owner shows */
  size_t count;
};

/* HAUL_EINVAL (FILE:LINE), HAUL_EINSECURE: somebody but its owner may read it, or the owner is
 * neither this user nor root; HAUL_ENOMEM. */
int keys_read(const char *path, struct keys *keys);
/* Whether nobody but its owner may read the file, and that is this user or root: 0, or as above.
 * `what` it is, for messages. */
int keys_guard(const char *path, const char *what);
/* The whole text of such a file, for keys_text_free, which forgets it; or as above. */
int keys_text(const char *path, const char *what, char **text);
void keys_text_free(char *text);
/* Forgets the secrets. */
void keys_free(struct keys *keys);
const struct key *keys_find(const struct keys *keys, const void *name, size_t length);
/* Writes the key to a file that does not exist yet, which nobody else may read. HAUL_EEXIST,
 * HAUL_ESYSTEM. */
int keys_create(const char *path, const struct key *key);
bool key_name_is_valid(const char *name);
/* HAUL_EINVAL, with what a name is. */
int key_name_refused(const char *name);
/* 16 hexadecimal digits that nobody computes a key from: of an HMAC with it; "" without OpenSSL. */
void key_fingerprint(const struct key *key, char text[17]);

#endif
